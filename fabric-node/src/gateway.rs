//! The way between hosts: messages of a domain's endpoints go through the *gateways* of its node,
//! one on each sidecore, and the session of the two hosts.
//!
//! ```text
//!   endpoint ─ ring of a gateway ▷ batches ═ calls of a session ═ ▷ ring of an endpoint
//!              (its cells)         [Outbox]                [Inbox]   (cells, and a slab, of the
//!                                                                     gateway there)
//! ```
//!
//! A [`Room`] is a domain's part of a sidecore. It does no I/O: its caller has the sessions, the
//! clock and the buffers ([`Carrier`]), so that it is tested without any of them.

use std::ops::Range;

mod associations;
mod link;
mod post;
mod room;
#[cfg(test)]
mod tests;
mod wire;

pub use self::associations::{Associations, PeerReport};
pub use self::post::PostCounters;
pub use self::room::{
    About, Handed, Prove, Room, RoomSettings, about, answer_nobody, room_of_token,
};
pub use self::wire::{Join, KIND_MIN, PROOF_BYTES};

/// Tokens of calls between gateways have these upper bits, which other planes' have not.
pub const TOKEN: u64 = 2 << TOKEN_BITS;

/// See [`TOKEN`].
pub const TOKEN_BITS: u32 = 62;

/// Rooms that a sidecore tells apart.
pub const ROOMS_MAX: u16 = 1 << 13;

/// Carries calls between gateways.
pub trait Carrier {
    /// A session; never used twice.
    type Session: Copy + Ord + std::fmt::Debug;
    /// A call that waits for its answer.
    type Call: Copy + std::fmt::Debug;
    /// A buffer.
    type Body: Copy + std::fmt::Debug;

    /// A buffer for so many bytes; none while there is none.
    fn body(&mut self, bytes: usize) -> Option<Self::Body>;

    /// Has the bytes of a buffer at these places written.
    fn write(&mut self, body: Self::Body, places: Range<usize>, put: &mut dyn FnMut(&mut [u8]));

    /// Shows the first so many bytes of a buffer.
    fn read(&self, body: Self::Body, bytes: usize, show: &mut dyn FnMut(&[u8]));

    /// The buffer is not needed any more.
    fn release(&mut self, body: Self::Body);

    /// Calls. `false`: there is no room now, or no such session any more.
    fn call(
        &mut self,
        session: Self::Session,
        token: u64,
        head: &[u8],
        body: Option<(Self::Body, usize)>,
    ) -> bool;

    /// Answers.
    fn reply(&mut self, call: Self::Call, head: &[u8]);
}

/// The node at the other end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayPeer {
    /// The node's name.
    pub name: String,
    /// A name of the session that no other session has, the same at both ends; or at least a name
    /// of the two processes.
    pub binding: [u8; 32],
}
