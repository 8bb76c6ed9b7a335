//! A node's part in a cluster.

use serde::{Deserialize, Serialize};

/// A node's part in a cluster, as its agent has told last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeClusterStatus {
    /// The cluster's name; empty until the agent knows it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// The node's name in the cluster.
    pub node: String,
    /// `present` in the registry, or `away`.
    pub state: String,
    /// Why the node is away, and the way out; empty if it is present.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The state of the whole cluster: `well`, `degraded`, `frozen` or `away`, as `vrio cluster
    /// status` has it; empty until the agent has looked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub verdict: String,
    /// Problems of the cluster, the worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// The agent's process; 0 while there is none.
    #[serde(default)]
    pub agent_pid: u32,
    /// How often the agent was started again since the node has started.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub agent_restarts: u64,
    /// How long ago the agent has told this.
    #[serde(default)]
    pub heard_s: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}
