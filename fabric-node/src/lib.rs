//! The node's half of the fabric: what makes a domain's memory, knows whose each slot of it is,
//! lets processes in, and carries messages to other hosts. The members' half, and what the two have
//! in common, is the crate `fabric`; nothing there knows of this one.

mod bell;
mod clerk;
pub mod gateway;
pub mod hand_over;
mod keeper;
pub mod registration;
#[cfg(test)]
mod testing;
mod vigil;

pub use bell::GatewayBell;
pub use fabric::RegionOptions;
pub use keeper::{HostsFull, Keeper, SlotError};
