//! A node's copies of replicated volumes: from a volume of a pool to the volume that its users see
//! (`docs/decisions/084-members-on-nodes.md`).
//!
//! [`MemberSeats`] makes the copies, [`ServedMember`] is one of them, and the node's agent in the
//! cluster answers for the registry ([`ClusterView`]).

mod agent;
mod commands;
mod identity;
mod metrics;
mod recovery;
mod scrub;
mod served;

pub use agent::ClusterView;
pub use commands::{CopyCommand, CopyList, SnapshotWait};
pub use metrics::COPY_METRICS;
pub use scrub::{SCRUB_RATE_BYTES, ScrubAsk, scrub_rate};
pub use served::{
    MemberSeats, PlannedCopy, ServedMember, end_in_order, forget, refuse_plain, set_drained,
};
