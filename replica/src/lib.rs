//! Replicas: which of several copies of a volume serves it, and when a write is safe.
//!
//! A volume's *members* each have one copy. One of them is the *primary*: it gives all operations
//! an order and sends them to its *backups*. A write completes when all members *in
//! sync* have it. Which members these are, and which of them is the primary, is one small record
//! in a registry that replaces it as a whole (PacificA, MSR-TR-2008-25: primary and backups, with
//! the configuration agreed elsewhere).
//!
//! | situation | step |
//! | --- | --- |
//! | a backup is silent | the primary swaps the record for one without it, then acknowledges |
//! | the primary is silent | its leases run out; a backup swaps itself in and makes all equal |
//! | the end of a process is proved | nothing waits for its silence, nor for its leases |
//! | a member is made equal and must take over | it goes back to its own cut of before |
//! | a member comes back | it goes back to a common cut, gets the difference, is admitted |
//! | all in sync were restarted | when each has said so, one goes on under a new incarnation |
//! | a member ends in order | it keeps its life's end, and goes on with the life in a new reign |
//! | the record is lost, or all copies in sync | an operator has a copy serve under a new epoch |
//! | the primary cannot read a block | a member in sync lends it, and it is written again |
//! | a backup cannot read a block, or has other content | a scrub finds it, all write it again |
//! | a swap's outcome is unknown | until then an operation needs the members of both records |
//!
//! The crate has no I/O. [`Replica::step`] takes the time and one input, and gives outputs.
//! `tests/protocol/exhaustive.rs` runs it through all orders of events that a small case has.

mod applied;
mod backup;
mod cuts;
mod extent;
mod fetch;
mod flights;
mod follower;
mod member;
mod mending;
mod message;
mod outside;
mod primary;
mod proof;
mod record;
mod recovery;
mod remake;
mod rule;
mod scrub;
mod scrubbing;
pub mod wire;

pub use applied::{APPLIED_MAX, Applied, ClientId, RequestId};
pub use cuts::CUTS_MAX;
pub use extent::{Extent, ExtentSet};
pub use fetch::{Fetch, MENDS_MAX};
pub use flights::{FILL_BYTES_MAX, FILLS_MAX, FLIGHT_BYTES_MAX, FLIGHTS_MAX};
pub use member::{
    ChangedPart, ClientRequest, Durable, Input, LifeEnd, Output, Pacing, Replica, SwapOutcome,
};
pub use message::{
    Counter, Knowledge, Message, NOTE_BYTES_MAX, Note, Op, Place, SNAPSHOT_NAME_MAX, SnapshotChange,
};
pub use proof::{
    BlockDigest, BlockProof, ProofQuestion, SCRUB_BLOCKS_MAX, SCRUB_RANGES_MAX, ScrubFinding,
    ScrubKey, ScrubOrder, ScrubReport, ScrubStage,
};
pub use record::{Life, MEMBERS_MAX, MemberId, VolumeRecord};
pub use recovery::{RECOVERY_MARGIN, Recovery, RecoveryLoss, RecoveryPlan, RecoveryRefusal};
pub use rule::Rule;
