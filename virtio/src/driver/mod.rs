//! The driver side: a stand-in for a guest, for tests and measurements.
//!
//! A [`DriverGuest`] is memory with virtqueues in it, and a [`RingDriver`] is the driver's end of
//! one queue: virtio-blk requests over a split or a packed ring; a [`FrameRing`] is that of one of
//! virtio-net's. They need no socket, so a simulation can put a device directly onto the same
//! memory. A [`FrontEnd`] hands them to a vhost-user-blk server, ours or a foreign one, and
//! connects again when that dies; a [`Keeper`] does so by itself.
//!
//! The ring driver trusts nothing that a device stores: every violation by a device is a [`Breach`]
//! with a name. [`GuestMemory::digest`] shows that nothing at all was stored.

mod complete;
mod disk;
mod elements;
mod error;
mod event;
mod frames;
mod front_end;
mod guest;
mod hostile;
mod keeper;
mod layout;
mod log;
mod memory;
mod message;
mod nic_end;
mod packed;
mod request;
mod ring;
#[cfg(test)]
mod ring_tests;
mod socket;
mod split;
mod start;

pub use disk::{DiskInfo, feature, has, protocol};
pub use elements::Reuse;
pub use error::FrontEndError;
pub use frames::{FramePart, FrameRing};
pub use front_end::{FrontEnd, FrontEndConfig, Resumption, UsedFeatures};
pub use guest::{DriverGuest, GuestPlan};
pub use hostile::RawDescriptor;
pub use keeper::{Keeper, KeeperCounters};
pub use layout::{QueueLayout, RING_SIZE_MAX, RingAddresses, RingShape};
pub use log::DirtyPages;
pub use memory::{Backing, GUEST_BASE, GuestMemory, GuestRegion, HOLE_BYTES, Regions};
pub use nic_end::{NicEnd, NicEndConfig};
pub use request::{
    Breach, Data, DriverCompletion, DriverOp, DriverRequest, GuestPiece, ID_BYTES, RequestSlot,
    RequestStatus, SECTOR_BYTES, SubmitError,
};
pub use ring::{RingCounters, RingDriver, RingOptions};
pub use socket::SocketRole;
