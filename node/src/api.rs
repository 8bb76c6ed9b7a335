//! What the control API takes and gives, besides the status.
//!
//! Like the status these are promises: within a version fields may be added, never renamed or
//! removed.

use serde::{Deserialize, Serialize};

/// The version of these shapes; the `v1` of the path.
pub const API_VERSION: u32 = 1;

/// What a change did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// [`API_VERSION`].
    pub version: u32,
    /// What was changed, in this order.
    pub applied: Vec<String>,
    /// What else there is to know.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Why something was not done, and what to do. What is not in `applied` is as it was before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{error}; {way_out}")]
pub struct Refused {
    /// How HTTP says it.
    #[serde(skip)]
    pub kind: RefusedKind,
    /// What is wrong.
    pub error: String,
    /// What to do.
    pub way_out: String,
    /// Of several changes, those that were done before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied: Vec<String>,
    /// Those that came after it and were not tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub untried: Vec<String>,
}

/// What kind of refusal it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusedKind {
    /// The request makes no sense.
    Bad,
    /// There is no such object.
    Unknown,
    /// Somebody uses it, or the file has changed.
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
    pub(crate) fn new(
        kind: RefusedKind,
        error: impl Into<String>,
        way_out: impl Into<String>,
    ) -> Self {
        Self { kind, error: error.into(), way_out: way_out.into(), ..Self::default() }
    }
}

/// What a reload of the configuration would change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`API_VERSION`].
    pub version: u32,
    /// The file.
    pub file: String,
    /// Stands for this list; a reload that names it does this or nothing.
    pub digest: String,
    /// What would be done first, at once and whatever becomes of the rest: keys and entries of
    /// `allow` that are no longer there count no more.
    #[serde(default)]
    pub revokes: Vec<String>,
    /// What would be done, in this order.
    pub changes: Vec<Planned>,
    /// Keys of the file that are different and take a restart of the node.
    pub needs_restart: Vec<String>,
    /// Whether key files are read again, too: what is in them is not compared.
    #[serde(default)]
    pub reads_keys: bool,
}

/// Whether a node is drained, and who still uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// [`API_VERSION`].
    pub version: u32,
    /// It takes nobody new.
    pub draining: bool,
    /// Guests with a disk of this node, and attachments of other nodes to its volumes.
    pub users: Vec<String>,
}

/// What is asked of a drain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SetDrain {
    /// It is over: whoever comes is taken again.
    pub undo: bool,
}

/// What a process says that wants to go on in a node's place.
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
    /// Who uses the object now and would be interrupted: it takes `force`.
    #[serde(default)]
    pub used_by: Vec<String>,
}

/// What is asked of a reload.
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
