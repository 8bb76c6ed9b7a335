//! Networks across nodes: a nic here is a port of a network there.
//!
//! ```text
//!   VMhost: nic ── bridge of two ── CablePort ═ casts ═ CablePort ── bridge of the network :IOhost
//! ```
//!
//! Both ends are the same port, over the sidecore's sessions. One joins ([`client`]), the other is
//! made by that ([`server`]). What is checked where: the nic's rings, offloads, MTU, filter and
//! rate at its own node; and again everything that concerns others at the network's: the right to
//! join, offloads, tags, addresses, isolation, floods, and what the network's own stages say.

mod cable;
mod client;
mod mark;
mod members;
mod plane;
mod port;
mod server;
mod wire;

pub use cable::CableCore;
pub use client::{AWAY_NS, Prove, Told, Wanted, join};
pub use members::{MemberInfo, Members};
pub use plane::{Plane, PlanePoll};
pub use server::{Admission, Chain, Gate, Right, Server, ServerCounters};
pub use wire::{
    Answer, Join, KIND_MIN, Kind, Malformed, NAME_BYTES_MAX, PROOF_BYTES, Request, TEXT_BYTES_MAX,
};

/// Tokens of this plane's calls have these upper bits, which the block plane's have not.
const TOKEN: u64 = 1 << TOKEN_BITS;
const TOKEN_BITS: u32 = 62;

/// The token of calls whose answer nobody waits for.
const TOKEN_NOBODY: u64 = TOKEN | u32::MAX as u64;
