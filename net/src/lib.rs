//! Virtual machines' network: ports, and what frames pass between them.
//!
//! The files in the order in which a frame passes them: a [`Port`] receives a [`Burst`] of
//! [`Frame`]s ([`frame`]), whose headers are read by [`ether`] and whose [`offload`]s are checked.
//! A frame that is dropped has a [`Reason`].

pub mod bridge;
pub mod ether;
pub mod finish;
pub mod frame;
pub mod maker;
pub mod network;
pub mod nic;
pub mod offload;
pub mod port;
pub mod reason;
pub mod remote;
pub mod stage;
pub mod stand_in;
pub mod switch;
#[cfg(test)]
mod testing;
pub mod uplink;

pub use bridge::Bridge;
pub use ether::Mac;
pub use frame::{BURST_FRAMES_MAX, Burst, FRAME_BYTES_MAX, Frame};
pub use network::{AttachError, Attached, Network};
pub use nic::{Nic, NicCore, NicOptions};
pub use offload::{Cut, Offers, Offload};
pub use port::{Chosen, Port, PortCounters};
pub use reason::{Drops, Reason};
pub use stage::Rules;
pub use switch::{PortOptions, Stations, Switch, VlanSet, Vlans};
