//! The disk of a direct client: a volume shown to this machine's own kernel, as `/dev/ublkbN`.
//!
//! As [`crate::disk`] is the place where requests of a guest's virtqueue enter, so this is for the
//! kernel's ublk driver. It has no vhost-user and no guest memory: one process is driver and client
//! in one.
//!
//! ```text
//!   /dev/ublkbN ─▶ ublk_drv ═io_uring═▶ Front ─▶ Channel (a RemoteVolume's)
//!                           ◀═════════ Front ◀─ Channel
//! ```
//!
//! - [`abi`]: the kernel's structures and numbers, from `linux/ublk_cmd.h`;
//! - [`control`]: `/dev/ublk-control`, by which devices come and go;
//! - [`device`]: one device's queues as its server sees them: descriptors, buffers, the ring;
//! - [`front`]: from there to the channel, without a system call of its own.
//!
//! A server that dies leaves its device *quiesced*: requests wait in the kernel, and those that the
//! server had are handed to the next server again. So a restart of the client is a pause for
//! programs that have the device open.
//!
//! Why this is not the crate `libublk`: decision 016.

pub mod abi;
pub mod control;
pub mod device;
pub mod front;

#[cfg(test)]
mod tests;

pub use control::{Control, ControlError, NewDevice};
pub use device::{Shape, UblkDevice};
pub use front::{Front, FrontCore, Kernel};
