//! The node's half of the fabric: what makes a domain's memory, knows whose each slot of it is,
//! lets processes in, and carries messages to other hosts. The members' half, and what the two have
//! in common, is the crate `fabric`; nothing there knows of this one.

mod doorbell;
pub mod gateway;
pub mod hand_over;
mod liveness;
mod mailbox;
pub mod registration;
mod slots;
#[cfg(test)]
mod testing;

pub use doorbell::GatewayDoorbell;
pub use fabric::RegionOptions;
pub use slots::{HostsFull, SlotError, SlotTable};
