//! How a process becomes a member of a domain: it calls the node at a Unix socket, says the
//! domain's name and key, and is handed the region's memory. It gets slots for its endpoints over
//! the same connection, and the end of the connection is how the node learns that it is gone.
//!
//! ```text
//!   process                                   node
//!      Hello{name, key}        ────────────▶
//!                              ◀────────────  Welcome{host} + memory   or  Refused{why}
//!      NewEndpoint             ────────────▶
//!                              ◀────────────  Endpoint{slot, incarnation}  or  Full
//!      CloseEndpoint{slot, ..} ────────────▶
//!      (the connection ends)                  all its slots: dead, swept, free again
//! ```
//!
//! Nothing of this is on a message's way: once an endpoint is there, the node is asked nothing.

mod client;
mod key;
pub mod wire;

pub use client::{
    Domain, IN_VM, Invitation, JoinError, LOAD_COST_CACHED_NS_MAX, OpenEndpointError,
};
pub use key::{KEY_BYTES_MAX, KEY_BYTES_MIN, Key, KeyError};
pub use wire::{NAME_BYTES_MAX, SlotGrant};
