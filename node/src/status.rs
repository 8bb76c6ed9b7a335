//! What a node tells about itself: the answer to `GET /v1/status`.
//!
//! The shape is a promise. Within a version fields may be added, never renamed or removed; readers
//! skip what they do not know. Counters are maps from name to number, so that a new counter is no
//! new shape.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of the shape; the `v1` of the path.
pub const STATUS_VERSION: u32 = 1;

/// Numbers by name. Names end in their unit unless they count things; all but those that end in
/// `_now` only ever grow.
pub type Counters = BTreeMap<String, u64>;

/// A node and everything it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// The node as a whole.
    pub node: NodeStatus,
    /// By index.
    pub sidecores: Vec<SidecoreStatus>,
    /// In the configuration's order.
    pub volumes: Vec<VolumeStatus>,
    /// In the configuration's order.
    pub disks: Vec<DiskStatus>,
    /// By peer and sidecore.
    pub sessions: Vec<SessionStatus>,
}

/// A node as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// The release that it runs.
    pub release: String,
    /// Its process.
    pub pid: u32,
    /// For how long it has run.
    pub uptime_s: u64,
    /// Where peers reach it.
    pub listen: Option<String>,
    /// `loopback` or `network`.
    pub trust: String,
}

/// A polling thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SidecoreStatus {
    /// Its index on the node.
    pub index: usize,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// `spin`, `adaptive` or `sleep`.
    pub idle: String,
    /// Its own address for sessions.
    pub address: Option<String>,
    /// What it did.
    pub counters: Counters,
}

/// A volume of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// What holds its blocks, such as `file /var/lib/vrio/alice.img (direct)`.
    pub backend: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its smallest unit.
    pub block_bytes: u32,
    /// `flush` or `write-through`.
    pub durability: String,
    /// Writes are refused.
    pub read_only: bool,
    /// Several attachments at once may use it.
    pub shared: bool,
    /// The present incarnation.
    pub incarnation: String,
    /// The stages that every request passes.
    pub chain: Vec<String>,
    /// The nodes whose disks may use it.
    pub allow: Vec<String>,
    /// Who uses it now.
    pub attachments: Vec<AttachmentStatus>,
    /// What it did.
    pub counters: Counters,
}

/// A disk, here or elsewhere, that uses a volume of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentStatus {
    /// Its name.
    pub name: String,
}

/// A disk that this node shows to a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its name.
    pub name: String,
    /// Its vhost-user socket.
    pub socket: String,
    /// What stands behind it: `volume` or `peer/volume`.
    pub volume: String,
    /// How many queues it offers.
    pub queues: u16,
    /// One word: see [`DiskState`].
    pub state: DiskState,
    /// More words, for people.
    pub detail: String,
    /// Its size, once known.
    pub size_bytes: Option<u64>,
    /// The epoch of its attachment, while it has one.
    pub epoch: Option<u64>,
    /// What it did.
    pub counters: Counters,
}

/// What a disk is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskState {
    /// Its volume is not known yet, so there is no socket yet.
    #[default]
    Waiting,
    /// The socket is there and no guest uses it.
    Ready,
    /// A guest uses it.
    Running,
    /// A guest uses it, and its volume is out of reach.
    Lost,
    /// It is over for this attachment; `detail` says why.
    Failed,
}

impl std::fmt::Display for DiskState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Lost => "lost",
            Self::Failed => "failed",
        })
    }
}

/// A session with another node's sidecore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The peer's name, once it has said it.
    pub peer: String,
    /// Its sidecore's address.
    pub address: String,
    /// The sidecore here.
    pub sidecore: usize,
    /// The session's index between the two nodes.
    pub index: u16,
    /// `connecting`, `half-open` or `connected`.
    pub state: String,
    /// Whether this node began it.
    pub outgoing: bool,
    /// The protocol's version, 0 while connecting.
    pub protocol: u32,
    /// What it did.
    pub counters: Counters,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: &str = r#"{
  "version": 1,
  "node": {
    "name": "",
    "release": "",
    "pid": 0,
    "uptime_s": 0,
    "listen": null,
    "trust": ""
  },
  "sidecores": [
    {
      "index": 0,
      "core": null,
      "idle": "",
      "address": null,
      "counters": {}
    }
  ],
  "volumes": [
    {
      "name": "",
      "backend": "",
      "size_bytes": 0,
      "block_bytes": 0,
      "durability": "",
      "read_only": false,
      "shared": false,
      "incarnation": "",
      "chain": [],
      "allow": [],
      "attachments": [
        {
          "name": ""
        }
      ],
      "counters": {}
    }
  ],
  "disks": [
    {
      "name": "",
      "socket": "",
      "volume": "",
      "queues": 0,
      "state": "running",
      "detail": "",
      "size_bytes": null,
      "epoch": null,
      "counters": {}
    }
  ],
  "sessions": [
    {
      "peer": "",
      "address": "",
      "sidecore": 0,
      "index": 0,
      "state": "",
      "outgoing": false,
      "protocol": 0,
      "counters": {}
    }
  ]
}"#;

    /// A change here that is not an addition needs a new [`STATUS_VERSION`].
    #[test]
    fn the_shape_of_version_1_stays() {
        let status = Status {
            version: STATUS_VERSION,
            sidecores: vec![SidecoreStatus::default()],
            volumes: vec![VolumeStatus {
                attachments: vec![AttachmentStatus::default()],
                ..VolumeStatus::default()
            }],
            disks: vec![DiskStatus { state: DiskState::Running, ..DiskStatus::default() }],
            sessions: vec![SessionStatus::default()],
            ..Status::default()
        };
        let text = serde_json::to_string_pretty(&status).unwrap();
        assert_eq!(text, SHAPE);
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }

    #[test]
    fn what_a_reader_does_not_know_it_skips() {
        let text = r#"{ "name": "a", "novelty": 1 }"#;
        let known: AttachmentStatus = serde_json::from_str(text).unwrap();
        assert_eq!(known.name, "a");
    }
}
