//! The virtio-blk disk, volumes, stages, backends, and the remote volume with its server.
//!
//! The files in the order in which a request passes them: [`disk`] takes it from the guest's
//! ring, [`export`] admits it (epoch, incarnation), the `stage`s see it, a `backend` does it; or
//! [`remote`] carries it to another node's [`server`], which hands it to an export there.

pub mod attachment;
pub mod volume;

pub use attachment::Attachment;
pub use volume::*;
