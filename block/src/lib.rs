//! The virtio-blk disk, the guard of a volume, and the remote volume with its server.
//!
//! The files in the order in which a request passes them: [`disk`] takes it from the guest's ring,
//! [`export`] admits it (epoch, incarnation) to the stages and the backend of the crate [`volume`];
//! or [`remote`] carries it to another node's [`server`], which hands it to an export there. A
//! direct client has [`ublk`] in place of the disk: its requests are its own kernel's.

mod attach;
pub mod attachment;
pub mod disk;
pub mod export;
pub mod plane;
pub mod remote;
pub mod request;
pub mod server;
pub mod ublk;
pub mod wire;

#[cfg(test)]
mod unguarded;

pub use attach::{Attach, Attached};
pub use attachment::{AttachOptions, Attachment};
pub use disk::{Disk, DiskCore, DiskOptions, DiskQueues};
pub use export::local::LocalVolume;
pub use export::{Export, ExportOptions, Exports};
pub use plane::Plane;
pub use remote::{ROUTE_PEERS_MAX, Reach, RemoteVolume, VolumeReach};
