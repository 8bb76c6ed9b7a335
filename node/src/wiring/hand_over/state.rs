//! The state that a stopped node sends to its successor. `docs/protocol.md` lists it.

use std::collections::HashMap;

use block::attachment::{AttachmentSnapshot, Name};
use fabric_node::hand_over::{AssociationsState, RegistrationState, RoomState};
use handover::DescriptorNumber;
use peer::AttachmentKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use virtio::hand_over::ServedDevice;
use volume::record::{REPLACED_MAX, Record};
use volume::{Durability, Incarnation, Topology, VolumeInfo, Zeroing};

/// The state of a whole node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeState {
    pub(crate) version: u32,
    /// The control socket and the lock beside it.
    pub(crate) control: DescriptorNumber,
    pub(crate) control_lock: DescriptorNumber,
    /// The port for metrics.
    pub(crate) metrics: Option<DescriptorNumber>,
    /// The lock of the directory of records.
    pub(crate) state_lock: Option<DescriptorNumber>,
    /// The socket at which nodes of this machine ask for shared memory.
    pub(crate) door: Option<DescriptorNumber>,
    /// The sidecores' sockets, in their order.
    pub(crate) links: Vec<DescriptorNumber>,
    pub(crate) volumes: Vec<VolumeState>,
    /// The names of the pools that are open. Their devices have been let go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) pools: Vec<String>,
    pub(crate) disks: Vec<DiskState>,
    pub(crate) uplinks: Vec<UplinkState>,
    pub(crate) nics: Vec<NicState>,
    /// The fabric, where there are domains.
    pub(crate) fabric: Option<FabricState>,
}

/// The fabric: its registration server with its members, and the memory of its domains.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FabricState {
    #[serde(rename = "door")]
    pub(crate) registration: RegistrationState,
    /// The hosts that each domain is joined with.
    pub(crate) joined: Vec<JoinedState>,
    pub(crate) rooms: Vec<RoomWithCargo>,
}

handover::array_state! {
    /// The hosts that a domain is joined with.
    #[derive(Debug)]
    pub(crate) struct JoinedState {
        pub(crate) domain: String,
        pub(crate) associations: AssociationsState,
    }
}

handover::array_state! {
    /// A gateway's state.
    #[derive(Debug)]
    pub(crate) struct RoomWithCargo {
        pub(crate) room: RoomState,
        /// The memory file with its messages.
        pub(crate) cargo: DescriptorNumber,
    }
}

/// A network's uplink.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct UplinkState {
    pub(crate) network: String,
    /// Its interface, in the form that the uplink itself has written.
    pub(crate) open: Value,
}

/// A nic that is served.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NicState {
    pub(crate) name: String,
    pub(crate) served: ServedDevice<DescriptorNumber>,
    /// The conversations that its filter keeps, in a memory file.
    pub(crate) conversations: Option<DescriptorNumber>,
}

/// A volume.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeState {
    pub(crate) name: String,
    /// Its locked file.
    pub(crate) file: Option<DescriptorNumber>,
    /// A sync of it has failed.
    pub(crate) failed: bool,
    /// Its memory.
    pub(crate) memory: Option<DescriptorNumber>,
    pub(crate) incarnation: [u8; 16],
    /// The records of its attachments, where these are not in files.
    pub(crate) records: HashMap<String, RecordState>,
    /// The check value of the key that encrypts it. Nodes of older releases cannot have such a
    /// volume.
    #[serde(default)]
    pub(crate) key_check: Option<String>,
}

/// The record of an attachment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RecordState {
    epoch: u64,
    claimant: u64,
    incarnation: [u8; 16],
    clean: bool,
    replaced: [u64; REPLACED_MAX],
    /// Nodes of older releases do not send these three.
    #[serde(default)]
    born: u64,
    #[serde(default)]
    node: String,
    #[serde(default)]
    key: Option<[u8; 32]>,
}

impl From<Record> for RecordState {
    fn from(record: Record) -> Self {
        let Record { epoch, claimant, incarnation, clean, replaced, born, node, key } = record;
        let (incarnation, node) = (incarnation.0, node.as_str().to_owned());
        let key = key.map(|key| key.0);
        Self { epoch, claimant, incarnation, clean, replaced, born, node, key }
    }
}

impl From<RecordState> for Record {
    fn from(state: RecordState) -> Self {
        let RecordState { epoch, claimant, incarnation, clean, replaced, born, node, key } = state;
        let (incarnation, node) = (Incarnation(incarnation), Name::new(&node));
        let key = key.map(AttachmentKey);
        Self { epoch, claimant, incarnation, clean, replaced, born, node, key }
    }
}

/// A disk.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DiskState {
    pub(crate) name: String,
    /// A peer's description of its volume.
    pub(crate) described: Option<InfoState>,
    /// The state with which its rings go on, if any ran.
    pub(crate) standing: Option<AttachmentState>,
    pub(crate) served: Option<ServedDevice<DescriptorNumber>>,
}

/// The state of an attachment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AttachmentState {
    epoch: u64,
    incarnation: [u8; 16],
    claimant: u64,
    resume: bool,
    unflushed: bool,
}

impl From<AttachmentSnapshot> for AttachmentState {
    fn from(standing: AttachmentSnapshot) -> Self {
        let AttachmentSnapshot { epoch, incarnation, claimant, resume, unflushed } = standing;
        Self { epoch, incarnation: incarnation.0, claimant, resume, unflushed }
    }
}

impl From<AttachmentState> for AttachmentSnapshot {
    fn from(state: AttachmentState) -> Self {
        let AttachmentState { epoch, incarnation, claimant, resume, unflushed } = state;
        Self { epoch, incarnation: Incarnation(incarnation), claimant, resume, unflushed }
    }
}

/// The description of a volume.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct InfoState {
    size_bytes: u64,
    block_bytes: u32,
    read_only: bool,
    write_through: bool,
    volatile: bool,
    incarnation: [u8; 16],
    discard: bool,
    write_zeroes: bool,
    unit_bytes: u32,
    physical_bytes: u32,
    optimal_bytes: u32,
}

impl From<VolumeInfo> for InfoState {
    fn from(info: VolumeInfo) -> Self {
        let Zeroing { discard, write_zeroes, unit_bytes } = info.zeroing;
        let Topology { physical_bytes, optimal_bytes } = info.topology;
        Self {
            size_bytes: info.size_bytes,
            block_bytes: info.block_bytes,
            read_only: info.read_only,
            write_through: info.durability == Durability::WriteThrough,
            volatile: info.volatile,
            incarnation: info.incarnation.0,
            discard,
            write_zeroes,
            unit_bytes,
            physical_bytes,
            optimal_bytes,
        }
    }
}

impl From<InfoState> for VolumeInfo {
    fn from(state: InfoState) -> Self {
        let InfoState { discard, write_zeroes, unit_bytes, .. } = state;
        let InfoState { physical_bytes, optimal_bytes, .. } = state;
        Self {
            size_bytes: state.size_bytes,
            block_bytes: state.block_bytes,
            read_only: state.read_only,
            durability: match state.write_through {
                true => Durability::WriteThrough,
                false => Durability::Flush,
            },
            volatile: state.volatile,
            incarnation: Incarnation(state.incarnation),
            zeroing: Zeroing { discard, write_zeroes, unit_bytes },
            topology: Topology { physical_bytes, optimal_bytes },
        }
    }
}

/// The successor's answer: whether it has everything and can go on.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Verdict {
    Have,
    Cannot(String),
}

/// The last message of the node: the successor has the node now.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandoverEnd {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node hands over to a node of another release: the names of each part's state are a format.
    #[test]
    fn the_form_of_version_7_stays_as_it_was() {
        let text = include_str!("state/version_7.json");
        let state: NodeState = serde_json::from_str(text).expect("a state of before");
        let written = serde_json::to_value(&state).expect("it can be written");
        assert_eq!(state.version, handover::STATE_VERSION);
        assert_eq!(written, serde_json::from_str::<Value>(text).expect("JSON"));
    }
}
