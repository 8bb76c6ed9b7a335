//! The state that a stopped node sends to its successor. `docs/protocol.md` lists it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};

use block::attachment::{Name, Standing};
use fabric_node::hand_over::{AssociationsState, RegistrationState, RoomState};
use peer::AttachmentKey;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use virtio::hand_over::{ServedDevice, TryMap};
use volume::record::{REPLACED_MAX, Record};
use volume::{Durability, Incarnation, Topology, VolumeInfo, Zeroing};

/// The version of the state. A node hands over only to a program with the same version. A change of
/// a field's meaning takes a new version.
pub(crate) const STATE_VERSION: u32 = 7;

/// The number of a descriptor in its message.
pub(crate) type Number = usize;

/// The state of a whole node.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) version: u32,
    /// The control socket and the lock beside it.
    pub(crate) control: Number,
    pub(crate) control_lock: Number,
    /// The port for metrics.
    pub(crate) metrics: Option<Number>,
    /// The lock of the directory of records.
    pub(crate) state_lock: Option<Number>,
    /// The socket at which nodes of this machine ask for shared memory.
    pub(crate) door: Option<Number>,
    /// The sidecores' sockets, in their order.
    pub(crate) links: Vec<Number>,
    pub(crate) volumes: Vec<VolumeState>,
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
    /// By domain, the hosts that it is joined with.
    pub(crate) joined: Vec<(String, AssociationsState)>,
    /// The state of gateways, and the memory with their messages.
    pub(crate) rooms: Vec<(RoomState, Number)>,
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
    pub(crate) served: ServedDevice<Number>,
    /// The conversations that its filter keeps, in a memory file.
    pub(crate) conversations: Option<Number>,
}

/// A volume.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct VolumeState {
    pub(crate) name: String,
    /// Its locked file.
    pub(crate) file: Option<Number>,
    /// A sync of it has failed.
    pub(crate) failed: bool,
    /// Its memory.
    pub(crate) memory: Option<Number>,
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
    pub(crate) standing: Option<StandingState>,
    pub(crate) served: Option<ServedDevice<Number>>,
}

/// The state of an attachment.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct StandingState {
    epoch: u64,
    incarnation: [u8; 16],
    claimant: u64,
    resume: bool,
    unflushed: bool,
}

impl From<Standing> for StandingState {
    fn from(standing: Standing) -> Self {
        let Standing { epoch, incarnation, claimant, resume, unflushed } = standing;
        Self { epoch, incarnation: incarnation.0, claimant, resume, unflushed }
    }
}

impl From<StandingState> for Standing {
    fn from(state: StandingState) -> Self {
        let StandingState { epoch, incarnation, claimant, resume, unflushed } = state;
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
pub(crate) struct Yours {}

/// Descriptors that will be sent.
#[derive(Debug, Default)]
pub(crate) struct Sent(pub(crate) Vec<OwnedFd>);

impl Sent {
    pub(crate) fn put(&mut self, fd: OwnedFd) -> Number {
        self.0.push(fd);
        self.0.len() - 1
    }

    pub(crate) fn copy(&mut self, fd: impl AsFd) -> io::Result<Number> {
        Ok(self.put(fd.as_fd().try_clone_to_owned()?))
    }

    /// Puts bytes that are too many for the JSON into a memory file.
    pub(crate) fn put_bytes(&mut self, what: &str, bytes: &[u8]) -> io::Result<Number> {
        let mut file = File::from(memfd_create(what, MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok(self.put(file.into()))
    }

    pub(crate) fn served(&mut self, served: ServedDevice<OwnedFd>) -> ServedDevice<Number> {
        let mut put = |fd| Ok::<_, std::convert::Infallible>(self.put(fd));
        match served.try_map(&mut put) {
            Ok(served) => served,
            Err(never) => match never {},
        }
    }
}

/// Received descriptors, each to be taken once.
#[derive(Debug)]
pub(crate) struct Received(Vec<Option<OwnedFd>>);

impl Received {
    pub(crate) fn new(fds: Vec<OwnedFd>) -> Self {
        Self(fds.into_iter().map(Some).collect())
    }

    pub(crate) fn take(&mut self, number: Number) -> io::Result<OwnedFd> {
        let fd = self.0.get_mut(number).and_then(Option::take);
        fd.ok_or_else(|| io::Error::other(format!("descriptor {number} has not arrived")))
    }

    /// The bytes that [`Sent::put_bytes`] has put, at most `max`.
    pub(crate) fn take_bytes(&mut self, number: Number, max: u64) -> io::Result<Vec<u8>> {
        let (mut file, mut bytes) = (File::from(self.take(number)?), Vec::new());
        file.rewind()?;
        file.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn served(
        &mut self,
        served: ServedDevice<Number>,
    ) -> io::Result<ServedDevice<OwnedFd>> {
        served.try_map(&mut |number| self.take(number))
    }
}
