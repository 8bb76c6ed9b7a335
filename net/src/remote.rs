//! Networks across nodes: a nic here is a port of a network there.
//!
//! ```text
//!   VMhost: nic ── bridge of two ── CablePort ═ casts ═ CablePort ── bridge of the network :IOhost
//! ```
//!
//! Both ends are the same port, over the sidecore's sessions. One joins (`client`), and the
//! network's node makes the other one for it (`server`). The nic's own node checks the nic's
//! rings, offloads, MTU, filter and rate. The network's node checks everything that concerns others
//! once more: the right to join, offloads, tags, addresses, isolation, floods, and the rules of the
//! network's own stages.

mod cable;
mod client;
mod mark;
mod members;
mod plane;
mod port;
mod server;
mod wire;

use peer::{PlaneId, Token};

pub use cable::CableCore;
pub use client::{AWAY_NS, Prove, ReachNotice, WantedNetwork, join};
pub use members::{MemberInfo, Members};
pub use plane::NetPlane;
pub use server::{Admission, JoinGate, MemberRight, NetServer, PortMaker, ServerCounters};
pub use wire::{
    Join, KIND_MIN, MalformedCall, NAME_BYTES_MAX, NetAnswer, NetCallKind, NetRequest, PROOF_BYTES,
    TEXT_BYTES_MAX,
};

/// The token of calls whose answer is not waited for.
const TOKEN_UNHEARD: Token = Token::new(PlaneId::Network, u32::MAX as u64);
