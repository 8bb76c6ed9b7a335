//! The virtio-blk disk, volumes, stages, backends, and the remote volume with its server.
//!
//! The files in the order in which a request passes them: [`disk`] takes it from the guest's ring,
//! [`export`] admits it (epoch, incarnation), the [`stage`]s see it, a [`backend`] does it; or
//! [`remote`] carries it to another node's [`server`], which hands it to an export there. A direct
//! client has [`ublk`] in place of the disk: its requests are its own kernel's.

mod attach;
pub mod attachment;
pub mod backend;
pub mod chain;
mod copy;
pub mod disk;
pub mod export;
pub mod latency;
pub mod layer;
mod name;
pub mod plane;
pub mod record;
pub mod remote;
pub mod request;
pub mod server;
pub mod settings;
mod size;
pub mod stage;
pub mod ublk;
pub mod uring;
pub mod volume;
pub mod wire;

#[cfg(test)]
mod contract;

pub use attach::{Attach, Attached};
pub use attachment::{AttachOptions, Attachment};
pub use disk::{Disk, DiskCore, DiskOptions, DiskQueues};
pub use export::local::LocalVolume;
pub use export::{Export, ExportOptions, Exports};
pub use plane::Plane;
pub use remote::{Outlook, Reach, RemoteVolume};
pub use size::Size;
pub use volume::*;
