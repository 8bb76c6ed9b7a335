//! Volumes: the storage of a disk's blocks, and the stages on the way to it.
//!
//! A request comes through the [`chain`]: each [`stage`] sees it, and a [`backend`] does it. All of
//! them keep one contract, [`Volume`] and [`Channel`]; [`layer`] is for a volume that is made of
//! others. Volumes know no guests and no peers: the crate `block` above attaches disks and exports
//! to them.

pub mod backend;
pub mod chain;
pub mod copy;
pub mod latency;
pub mod layer;
pub mod name;
pub mod record;
pub mod settings;
mod size;
pub mod stage;
pub mod uring;
mod volume;

#[cfg(any(test, feature = "contract"))]
pub mod contract;

pub use size::Size;
pub use volume::*;
