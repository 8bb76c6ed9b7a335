//! Requests and answers of the control API, and the status.
//!
//! Like the status these are promises: within a version fields may be added, never renamed or
//! removed.

pub mod agent;
pub mod status;

use serde::{Deserialize, Serialize};

/// The version of these shapes; the `v1` of the path.
pub const API_VERSION: u32 = 1;

/// The result of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// [`API_VERSION`].
    pub version: u32,
    /// The changes that were made, in this order.
    pub applied: Vec<String>,
    /// Remarks for the caller.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A moment of a volume's history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MomentReport {
    /// [`API_VERSION`].
    pub version: u32,
    /// The pool that has it.
    pub pool: String,
    /// Its number there: `from = "POOL:NUMBER"` makes a volume of it.
    pub number: u32,
    /// Its time, by RFC 3339.
    pub time: String,
}

/// A part of the difference of two snapshots, or of all that a snapshot has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotDiff {
    /// [`API_VERSION`].
    pub version: u32,
    /// The later snapshot's size.
    pub size_bytes: u64,
    /// The runs of bytes that differ, in their order.
    pub runs: Vec<SnapshotRun>,
    /// Where the next part begins; none if this was the last one.
    pub next_bytes: Option<u64>,
}

/// A run of bytes that differ between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotRun {
    /// The first byte.
    pub offset_bytes: u64,
    /// How many.
    pub length_bytes: u64,
    /// They are zeroes in the later snapshot, and take no space there.
    pub zeroes: bool,
}

/// How far a stream is received into a volume of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveProgress {
    /// [`API_VERSION`].
    pub version: u32,
    /// The snapshot that is received, as commands name it when it is there.
    pub snapshot: String,
    /// All bytes of the volume below are as the snapshot's.
    pub received_bytes: u64,
    /// The size of the snapshot.
    pub size_bytes: u64,
    /// The snapshot is there.
    pub complete: bool,
    /// Where the stream goes on: `vrio volume send --resume` takes it.
    pub token: String,
}

/// The steps of receiving a stream. The body of a request has their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveStep {
    /// The stream's header: it begins, or goes on.
    Begin,
    /// One part.
    Part,
    /// The stream's header again: all parts were sent.
    End,
}

/// The stream that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedStream {
    /// The snapshot, and the earlier snapshot from which the difference is sent.
    Named {
        /// The snapshot, as commands name it.
        to: String,
        /// The earlier snapshot.
        from: Option<String>,
    },
    /// The rest of a stream, by its token.
    Rest(String),
}

/// Why a request was refused, and the way out. An object that is not in `applied` is as it was
/// before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{error}; {way_out}")]
pub struct Refused {
    /// The kind of the refusal, which gives the HTTP status.
    #[serde(skip)]
    pub kind: RefusedKind,
    /// The fault.
    pub error: String,
    /// The way out.
    pub way_out: String,
    /// Of several changes, those that were made before the refused one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied: Vec<String>,
    /// The changes that came after the refused one and were not tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untried: Vec<String>,
}

/// Kinds of refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusedKind {
    /// The request makes no sense.
    Bad,
    /// There is no such object.
    Unknown,
    /// The object is in use, or the file has changed.
    Conflict,
    /// The system did not do it.
    #[default]
    Failed,
    /// Not now.
    Busy,
}

impl RefusedKind {
    /// Its HTTP status.
    pub fn code(self) -> u16 {
        match self {
            Self::Bad => 400,
            Self::Unknown => 404,
            Self::Conflict => 409,
            Self::Failed => 500,
            Self::Busy => 503,
        }
    }
}

impl Refused {
    /// A refusal of one request.
    pub fn new(kind: RefusedKind, error: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { kind, error: error.into(), way_out: way_out.into(), ..Self::default() }
    }
}

/// The changes that a reload of the configuration would make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadPlan {
    /// [`API_VERSION`].
    pub version: u32,
    /// The file.
    pub file: String,
    /// Stands for this list; a reload that names it does this or nothing.
    pub digest: String,
    /// Keys and entries of `allow` that are no longer in the file. A reload ends them first and at
    /// once, also when later changes fail.
    #[serde(default)]
    pub revokes: Vec<String>,
    /// The changes, in this order.
    pub changes: Vec<Planned>,
    /// Keys of the file that are different and take a restart of the node.
    pub needs_restart: Vec<String>,
    /// Whether key files are read again, too. The plan does not compare their content.
    #[serde(default)]
    pub reads_keys: bool,
}

/// Whether a node is drained, and which guests and nodes still use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// [`API_VERSION`].
    pub version: u32,
    /// The node refuses new front ends, attachments and members.
    pub draining: bool,
    /// Guests with a disk of this node, and attachments of other nodes to its volumes.
    pub users: Vec<String>,
}

/// A request to drain, or to end a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SetDrain {
    /// The drain ends: new front ends, attachments and members are admitted again.
    pub undo: bool,
}

/// The request of a process that wants to go on in a node's place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HandOver {
    /// The version of what it expects to be told.
    pub state_version: u32,
    /// Its release.
    pub release: String,
    /// The node of its configuration.
    pub node: String,
    /// Stands for the content of its configuration's file.
    pub config_digest: u64,
    /// Its process; it waits at the control socket's path with `.take-over.PID` behind it.
    pub pid: u32,
}

/// One change of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// Such as `remove disk "alice"`.
    pub what: String,
    /// The guests and nodes that use the object now. The change would interrupt them, so it takes
    /// `force`.
    #[serde(default)]
    pub used_by: Vec<String>,
}

/// A request to reload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reload {
    /// The plan's digest: a file that has changed since is not applied.
    pub digest: Option<String>,
    /// Also what interrupts guests.
    pub force: bool,
    /// Nothing but the plan's `revokes` and reading the key files again.
    pub revoke_only: bool,
}
