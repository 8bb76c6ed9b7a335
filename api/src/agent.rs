//! The lines between a node and its agent in a cluster: one JSON object each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::status::NodeClusterStatus;

/// The longest line, of either side: twice a value of a registry, which can be all lives of a node.
/// A report has a dozen problems of some hundred characters, and a record has some hundred bytes.
pub const AGENT_LINE_BYTES_MAX: u64 = 128 << 10;

/// The most lives that a node tells its agent, and an agent its node. Copies beyond these have
/// leases alone, which end by themselves.
pub const LIVES_MAX: usize = 512;

/// Lives of copies, in hexadecimal digits, by volume.
pub type CopyLives = BTreeMap<String, String>;

/// A line of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeLine {
    /// A question about a record.
    Question(RecordQuestion),
    /// All lives that end with the node's process: no other process goes on with one of them.
    Lives(CopyLives),
}

/// A line of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentLine {
    /// The node's part in its cluster.
    Report(NodeClusterStatus),
    /// The answer to a question of the node.
    Answer(RecordAnswer),
    /// A process of another node has ended, with these lives: nothing answers for them any more.
    Over {
        /// The node.
        node: String,
        /// The lives.
        lives: CopyLives,
    },
}

/// A question of a node about the record of a replicated volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordQuestion {
    /// The answer has the same number.
    pub number: u64,
    /// The volume's name.
    pub volume: String,
    /// The volume's form by this node's file, in hexadecimal digits: the record must have it.
    pub form: String,
    /// The nodes with copies by this node's file, in their order: people read them in the record.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// The question.
    pub ask: RecordAsk,
}

/// A question about a record. Records are bytes of the volume's members, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordAsk {
    /// The present record.
    Look,
    /// This must be the first record.
    Create(String),
    /// This must be the next record.
    Swap(String),
    /// The record must be made anew, as an operator wants it.
    Remake(RecordRemake),
}

/// A record that is made anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordRemake {
    /// The newest record that a member knows; the registry must have none that is newer.
    pub known: String,
    /// The record in its place.
    pub record: String,
    /// The places of the copies that have answered; none if no other copy matters.
    pub heard: Option<Vec<u8>>,
    /// The places of the copies that have not answered: their nodes must be away.
    pub unheard: Vec<u8>,
    /// The cluster has placed the volume.
    pub placed: bool,
}

/// The answer to a [`RecordQuestion`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordAnswer {
    /// The question's number.
    pub number: u64,
    /// The answer.
    pub outcome: RecordOutcome,
}

/// The outcome of a [`RecordAsk`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecordOutcome {
    /// The present record; also why a swap was not made.
    Record(String),
    /// The registry has no record of the volume.
    NoRecord,
    /// The record is of nodes with another list, or other copies.
    OtherForm,
    /// The record is the new one.
    Done,
    /// The registry has not said whether it has made the record anew.
    Unknown,
    /// The record was not made anew, for this reason: the registry was not asked for it, or has
    /// said that it did not make it.
    Refused(String),
    /// No answer, for this reason: a change may have been made, or may be made later.
    NoAnswer(String),
}
