//! A cluster of nodes around one registry.
//!
//! ```text
//!   vrio cluster init ── directory of the operator: authorities, a client's certificate, and
//!                        a directory for each member of etcd
//!   vrio cluster token ─ a token: a right to join, and a client's certificate
//!   vrio node join ───── directory of the node
//!   vrio node ────────── starts its agent, which keeps it present as long as it answers
//! ```
//!
//! A node's own process has no part in this: it may open no connection by TCP, and holds no
//! certificate. Why it is so: `docs/decisions/080-registry.md`.

mod agent;
mod certificates;
mod copies;
mod directory;
mod error;
mod etcd;
mod init;
mod kept;
mod placement;
mod renewal;
mod revocation;
mod sizes;
mod status;
mod token;
mod volumes;

pub use agent::{Agent, AgentRound, NodeView, ROUND};
pub use copies::{CopyStep, another_copy, next_steps};
pub use directory::{ClusterDirectory, ClusterFile, EtcdMemberFile, RegistryPlace};
pub use error::ClusterError;
pub use etcd::{EtcdCredentials, EtcdRegistry};
pub use init::{ClusterPlan, EtcdMemberPlan, init};
pub use kept::{KeptPeer, KeptPlacements, OpenedMark};
pub use placement::{PlacementAsk, check_copy, place, twice};
pub use registry;
pub use renewal::{renew_all, renew_client};
pub use revocation::revoke_node;
pub use sizes::{ask_size, check_growth, fit_snapshot, tell_size};
pub use status::{
    ClusterNodeStatus, ClusterStatus, ClusterVerdict, EtcdMemberStatus, RegistryStatus, status,
};
pub use token::{JoinToken, issue_token, join};
pub use volumes::{ClusterVolumeStatus, CopyFault, NO_SNAPSHOT, of_volumes, problem, volumes};
