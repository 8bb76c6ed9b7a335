//! What a node tells its successor, once nothing of it moves any more. `docs/protocol.md` lists it.

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

/// The version of what is told. A node hands over to no other: a program that changes the meaning
/// of a field has another one.
pub(super) const STATE_VERSION: u32 = 7;

/// The number of a descriptor in its message.
pub(in crate::wiring) type Number = usize;

/// A whole node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) version: u32,
    /// The control socket and the lock beside it.
    pub(super) control: Number,
    pub(super) control_lock: Number,
    /// The port for metrics.
    pub(super) metrics: Option<Number>,
    /// The lock of the directory of records.
    pub(super) state_lock: Option<Number>,
    /// Where nodes of this machine ask for shared memory.
    pub(super) door: Option<Number>,
    /// The sidecores' sockets, in their order.
    pub(super) links: Vec<Number>,
    pub(super) volumes: Vec<VolumeState>,
    pub(super) disks: Vec<DiskState>,
    pub(super) uplinks: Vec<UplinkState>,
    pub(super) nics: Vec<NicState>,
    /// The fabric, where there are domains.
    pub(super) fabric: Option<FabricState>,
}

/// The fabric: its registration server with its members, and the memory of its domains.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::wiring) struct FabricState {
    #[serde(rename = "door")]
    pub(in crate::wiring) registration: RegistrationState,
    /// By domain, which hosts it is joined with.
    pub(in crate::wiring) joined: Vec<(String, AssociationsState)>,
    /// What gateways have under way, and the memory that has its messages.
    pub(in crate::wiring) rooms: Vec<(RoomState, Number)>,
}

/// A network's way out.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::wiring) struct UplinkState {
    pub(in crate::wiring) network: String,
    /// Its interface, as the uplink itself has written it.
    pub(in crate::wiring) open: Value,
}

/// A nic that is served.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::wiring) struct NicState {
    pub(in crate::wiring) name: String,
    pub(in crate::wiring) served: ServedDevice<Number>,
    /// The conversations that its filter keeps, in memory.
    pub(in crate::wiring) conversations: Option<Number>,
}

/// A volume.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct VolumeState {
    pub(super) name: String,
    /// Its locked file.
    pub(super) file: Option<Number>,
    /// A sync of it has failed.
    pub(super) failed: bool,
    /// Its memory.
    pub(super) memory: Option<Number>,
    pub(super) incarnation: [u8; 16],
    /// Of a volume whose records are not in files.
    pub(super) records: HashMap<String, RecordState>,
    /// The check value of what it is encrypted with. Older nodes have none that are.
    #[serde(default)]
    pub(super) key_check: Option<String>,
}

/// What is remembered of an attachment.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RecordState {
    epoch: u64,
    claimant: u64,
    incarnation: [u8; 16],
    clean: bool,
    replaced: [u64; REPLACED_MAX],
    /// Older nodes do not know these three.
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
pub(super) struct DiskState {
    pub(super) name: String,
    /// What a peer has told of its volume.
    pub(super) described: Option<InfoState>,
    /// What its rings go on with, if any ran.
    pub(super) standing: Option<StandingState>,
    pub(super) served: Option<ServedDevice<Number>>,
}

/// Where an attachment stands.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StandingState {
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

/// What a volume is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct InfoState {
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

/// What the successor answers: whether it has all of it and can go on.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Verdict {
    Have,
    Cannot(String),
}

/// The last word of the node: it is the successor's.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Yours {}

/// Descriptors on their way out.
#[derive(Debug, Default)]
pub(in crate::wiring) struct Sent(pub(super) Vec<OwnedFd>);

impl Sent {
    pub(in crate::wiring) fn put(&mut self, fd: OwnedFd) -> Number {
        self.0.push(fd);
        self.0.len() - 1
    }

    pub(super) fn copy(&mut self, fd: impl AsFd) -> io::Result<Number> {
        Ok(self.put(fd.as_fd().try_clone_to_owned()?))
    }

    /// Bytes that are too many for words, in memory of their own.
    pub(in crate::wiring) fn put_bytes(&mut self, what: &str, bytes: &[u8]) -> io::Result<Number> {
        let mut file = File::from(memfd_create(what, MemfdFlags::CLOEXEC)?);
        file.write_all(bytes)?;
        Ok(self.put(file.into()))
    }

    pub(in crate::wiring) fn served(
        &mut self,
        served: ServedDevice<OwnedFd>,
    ) -> ServedDevice<Number> {
        let mut put = |fd| Ok::<_, std::convert::Infallible>(self.put(fd));
        match served.try_map(&mut put) {
            Ok(served) => served,
            Err(never) => match never {},
        }
    }
}

/// Descriptors that came, each to be taken once.
#[derive(Debug)]
pub(in crate::wiring) struct Received(Vec<Option<OwnedFd>>);

impl Received {
    pub(super) fn new(fds: Vec<OwnedFd>) -> Self {
        Self(fds.into_iter().map(Some).collect())
    }

    pub(in crate::wiring) fn take(&mut self, number: Number) -> io::Result<OwnedFd> {
        let fd = self.0.get_mut(number).and_then(Option::take);
        fd.ok_or_else(|| io::Error::other(format!("descriptor {number} has not come")))
    }

    /// What [`Sent::put_bytes`] has put, of which there may be so many.
    pub(in crate::wiring) fn take_bytes(
        &mut self,
        number: Number,
        max: u64,
    ) -> io::Result<Vec<u8>> {
        let (mut file, mut bytes) = (File::from(self.take(number)?), Vec::new());
        file.rewind()?;
        file.take(max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    pub(in crate::wiring) fn served(
        &mut self,
        served: ServedDevice<Number>,
    ) -> io::Result<ServedDevice<OwnedFd>> {
        served.try_map(&mut |number| self.take(number))
    }
}
