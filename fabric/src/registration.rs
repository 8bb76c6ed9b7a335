//! Registration: how a process becomes a member of a domain. It connects to the node's Unix socket,
//! sends the domain's name and key, and is handed the region's memory. It gets slots for its
//! endpoints over the same connection. When the connection ends, the process is no member any more.
//!
//! ```text
//!   process                                   node
//!      Hello{name, key}        ────────────▶
//!                              ◀────────────  Welcome{host} + memory   or  Refused{why}
//!      NewEndpoint             ────────────▶
//!                              ◀────────────  Endpoint{slot, incarnation}  or  Full
//!      CloseEndpoint{slot, ..} ────────────▶
//!      (the process ends)                     all its slots: dead, then free again
//! ```
//!
//! None of this is on the path of a message. The server is in the crate `fabric-node`; processes
//! inside of VMs register through memory ([`mailbox`](crate::mailbox)).

mod client;
mod key;
pub mod wire;

pub use client::{
    Domain, IN_VM, Invitation, JoinError, LOAD_COST_CACHED_NS_MAX, OpenEndpointError,
};
pub use key::{DomainKey, KEY_BYTES_MAX, KEY_BYTES_MIN, KeyError};
pub use wire::{NAME_BYTES_MAX, SlotGrant};
