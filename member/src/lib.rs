//! A member of a replicated volume: the protocol of the crate `replica` over a channel of the
//! member's own volume.
//!
//! ```text
//!   messages ──▶ ┌────────┐ ──▶ messages
//!   requests ──▶ │ member │ ──▶ answers      (errands: private file, registry, snapshots)
//!       time ──▶ └───┬────┘ ──▶ errands ──▶ a thread that may wait ──▶ their ends
//!                    ▼
//!        WorkQueue, in the protocol's order
//!                    ▼
//!        the channel of the member's volume
//! ```
//!
//! A member never waits: a sidecore polls it. It has no network and no thread of its own, so
//! `tests/` runs several members of the real code in one thread, on simulated volumes.
#![forbid(unsafe_code)]

mod content;
mod desk;
pub mod door;
mod member;
pub mod plane;
mod queue;

pub use content::{RangeContent, content_of, from_wire, to_wire};
pub use desk::{RecordDesk, StateFile, StateFileError};
pub use member::{
    Answer, Errand, ErrandEnd, MemberCounters, MemberStart, Outbox, TICK_NS, VolumeMember,
};
pub use queue::{MEMBER_DEPTH, VolumeTask, VolumeTaskEnd};
