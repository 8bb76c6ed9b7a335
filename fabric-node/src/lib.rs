//! The node's half of the fabric. It makes a domain's memory, knows the owner of each slot of it,
//! lets processes in, and carries messages to other hosts. The members' half, and the part that the
//! two share, is the crate `fabric`, which knows nothing of this one.
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
