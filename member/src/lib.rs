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
//! A member never waits: its [`MemberHost`] is polled by one sidecore, and users of its volume are
//! on any sidecore ([`FrontVolume`]). Its messages go by the [`plane`] of its sidecore. Threads or
//! a test do its errands, so `tests/` runs several members of the real code in one thread, on
//! simulated volumes.
// `front/channel.rs` alone copies between guest memory and messages, which needs unsafe code.
#![deny(unsafe_code)]

mod content;
mod damage;
mod desk;
mod desk_threads;
pub mod door;
mod form;
mod front;
mod host;
mod member;
mod notes;
pub mod plane;
mod queue;
mod scrub;
mod snapshots;
mod status;
mod tasks;
mod text;

pub use content::{RangeContent, content_of, from_wire, to_wire};
pub use desk::{
    RecordDesk, RecordDeskError, RegistryRecords, StateFile, StateFileError, VolumeRecords,
};
pub use desk_threads::{DeskLanes, DeskThreads, DeskWork, ErrandDesk, RecordClerk};
pub use form::VolumeForm;
pub use front::FrontVolume;
pub use host::{
    HostOutside, MemberHost, MemberList, MemberMail, MemberPlan, MemberSetup, NODE_PACING,
    PlaceWatch,
};
pub use member::{
    Answer, Errand, ErrandEnd, MemberCounters, MemberStart, Outbox, RecoveryView, TICK_NS,
    VolumeMember,
};
pub use notes::{MalformedNote, NOTE_RECORDS_MAX, NoteRecords};
pub use plane::{ReplicaPlane, ReplicaRoute};
pub use queue::{MEMBER_DEPTH, VolumeTask, VolumeTaskEnd};
pub use replica::{ScrubOrder, ScrubStage};
pub use replica::{SnapshotChange, SwapOutcome};
pub use scrub::ScrubView;
pub use snapshots::{SnapshotDone, SnapshotEnd, snapshot_name};
pub use status::{MemberPart, MemberStatus, MemberView};
pub use tasks::{PoolTasks, VolumeTasks, is_cut_name};
pub use text::{form_from_text, form_text, record_from_text, record_text};
