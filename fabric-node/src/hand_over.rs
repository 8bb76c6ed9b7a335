//! What a node tells the one that goes on in its place of its fabric: whose each endpoint is, and
//! what it hears of them by. The memory itself goes along as a file, and members notice nothing.
//!
//! Descriptors are numbers here, of those that go along. Who goes on believes none of it before it
//! was found not to contradict itself: what it is told decides who may write where.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use fabric::RegionError;

/// The number of a descriptor among those that go along.
pub type Number = usize;

/// Puts a descriptor to those that go along.
pub type Put<'a> = &'a mut dyn FnMut(OwnedFd) -> Number;

/// Takes one from those that came; each once.
pub type Take<'a> = &'a mut dyn FnMut(Number) -> io::Result<OwnedFd>;

/// Why a node cannot go on with what it was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// It contradicts itself, or what this node is to be.
    #[error("{0}")]
    Contradiction(&'static str),
    /// The memory is none.
    #[error(transparent)]
    Region(#[from] RegionError),
    /// A descriptor is missing, or the system refuses.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<rustix::io::Errno> for Unfit {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::System(errno.into())
    }
}

/// Nothing, if it is so.
pub(crate) fn expect(is_so: bool, otherwise: &'static str) -> Result<(), Unfit> {
    if is_so { Ok(()) } else { Err(Unfit::Contradiction(otherwise)) }
}

/// A node's door.
#[derive(Debug, Serialize, Deserialize)]
pub struct DoorState {
    /// Its socket.
    pub listener: Number,
    /// The host's name in addresses.
    pub host: u64,
    /// The domains.
    pub domains: Vec<DomainState>,
    /// Who has called, members among them.
    pub callers: Vec<CallerState>,
    /// Former members that may still store something.
    pub leavers: Vec<LeaverState>,
    /// Ways in for VMs.
    pub vfs: Vec<VfState>,
}

/// A domain.
#[derive(Debug, Serialize, Deserialize)]
pub struct DomainState {
    /// Its name.
    pub name: String,
    /// Its memory.
    pub region: RegionState,
    /// Whose its slots are.
    pub ledger: LedgerState,
    /// Of each gateway what members ring, and what this node rings.
    pub bells: Vec<(Number, Number)>,
}

/// A region, by what the node itself knows: its header any member can write.
#[derive(Debug, Serialize, Deserialize)]
pub struct RegionState {
    /// The file.
    pub memory: Number,
    /// The version of its layout.
    pub version: u32,
    /// As of [`RegionOptions`](fabric::RegionOptions).
    pub slots: u16,
    /// See there.
    pub gateways: u16,
    /// See there.
    pub cells: u32,
    /// See there.
    pub buffers: u32,
    /// See there.
    pub buffer_bytes: u32,
}

/// Whose each slot is.
#[derive(Debug, Serialize, Deserialize)]
pub struct LedgerState {
    /// Those that were ever given out, in their order.
    pub slots: Vec<SlotState>,
    /// Slots that were given out.
    pub given: u64,
    /// Deaths.
    pub deaths: u64,
    /// Places of the table of hosts that were ever used, this host's among them.
    pub hosts: usize,
    /// Of hosts, which gateways take nothing for them.
    pub holds: Vec<(u16, u64)>,
    /// By what those are woken that sleep.
    pub bells: Vec<BellState>,
}

/// A slot.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlotState {
    /// Which.
    pub slot: u16,
    /// As it stands in the region: state and incarnation.
    pub life: u64,
    /// The process that it was given to; 0 for none that can be told.
    pub pid: u32,
    /// When it was given out.
    pub given: u64,
    /// When its last endpoint died.
    pub died: u64,
    /// When its ring was found to break the rules.
    pub spoiled: Option<u64>,
}

/// An endpoint's bell.
#[derive(Debug, Serialize, Deserialize)]
pub struct BellState {
    /// Whose.
    pub slot: u16,
    /// Which of its owners'.
    pub incarnation: u32,
    /// For which sleep it was rung last.
    pub rung: u64,
    /// By what it is rung.
    pub rope: Number,
}

/// Somebody who has called.
#[derive(Debug, Serialize, Deserialize)]
pub struct CallerState {
    /// The connection; between two messages, or with the next ones unread.
    pub connection: Number,
    /// What can be read once the process has ended, where the system tells.
    pub process: Option<Number>,
    /// The process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The domain that it is a member of; none for who has not said yet what he wants.
    pub domain: Option<String>,
    /// Its slots, with the incarnations.
    pub seats: Vec<(u16, u32)>,
}

/// Somebody who has hung up and not ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct LeaverState {
    /// Can be read once the process has ended.
    pub process: Number,
    /// Of which domain.
    pub domain: String,
    /// Slots that it still has.
    pub seats: Vec<(u16, u32)>,
}

/// A VM's way into a domain.
#[derive(Debug, Serialize, Deserialize)]
pub struct VfState {
    /// Its name.
    pub name: String,
    /// The domain's.
    pub domain: String,
    /// Where QEMU calls.
    pub path: PathBuf,
    /// The socket there, and the number of its file; none once it was taken away.
    pub listener: Option<(Number, u64)>,
    /// What was denied.
    pub denied: u64,
    /// The VM that is in.
    pub vm: Option<VmState>,
}

/// A VM that is in.
#[derive(Debug, Serialize, Deserialize)]
pub struct VmState {
    /// QEMU's connection.
    pub connection: Number,
    /// What its doorbell rings.
    pub bell: Number,
    /// QEMU.
    pub pid: u32,
    /// Can be read once QEMU has ended, where the system tells.
    pub process: Option<Number>,
    /// Its part of the desk.
    pub clerk: ClerkState,
}

/// What is remembered of a part of the desk.
#[derive(Debug, Serialize, Deserialize)]
pub struct ClerkState {
    /// Which.
    pub part: u8,
    /// The random words that stand there.
    pub nonce: [u64; 4],
    /// The turn that each entry is in.
    pub turns: Vec<u32>,
    /// The boot of the VM's system.
    pub boot: Option<u64>,
    /// Those that are over.
    pub boots_over: Vec<u64>,
    /// Which slot, with its incarnation, each ticket has.
    pub held: Vec<(u64, (u16, u32))>,
}

/// Which hosts a domain is joined with.
#[derive(Debug, Serialize, Deserialize)]
pub struct AssociationsState {
    /// The count that the next to be met, or to be given up, gets.
    pub epoch_next: u32,
    /// The peers.
    pub peers: Vec<PeerState>,
}

/// A peer of a domain.
#[derive(Debug, Serialize, Deserialize)]
pub struct PeerState {
    /// Its node's name.
    pub name: String,
    /// How often it was given up, as it was told.
    pub epoch: u32,
    /// Its host, where that is known.
    pub there: Option<ThereState>,
    /// Which of the gateways here takes what each of its gateways sends.
    pub takers: Vec<(u16, u16)>,
}

/// Another host.
#[derive(Debug, Serialize, Deserialize)]
pub struct ThereState {
    /// Its name in addresses.
    pub host: u64,
    /// How often it has given this one up, as it said.
    pub epoch: u32,
    /// Its place in the region's table.
    pub index: u16,
}

/// What a gateway has under way. Its messages go beside it, one after the other in the order in
/// which they stand here: what waits, and of each link what was sent, what is queued, and deaths.
#[derive(Debug, Serialize, Deserialize)]
pub struct RoomState {
    /// The domain.
    pub domain: String,
    /// Which of its gateways.
    pub gateway: u16,
    /// The region's side.
    pub post: PostState,
    /// By slot, the last owner whose death was told to all hosts.
    pub told: Vec<(u16, u32)>,
    /// Other hosts.
    pub links: Vec<LinkState>,
}

/// A gateway in its region.
#[derive(Debug, Serialize, Deserialize)]
pub struct PostState {
    /// Of its slot.
    pub incarnation: u32,
    /// Where its ring goes on.
    pub position: u64,
    /// What it knows of slots that it has sent to.
    pub ways: Vec<WayState>,
    /// Buffers of its slab that are lent.
    pub lent: Vec<LentState>,
    /// The number of the next lending.
    pub lending: u64,
    /// How many messages wait for receivers. Beside it is of each, in its receiver's order, the
    /// index of the host that it is from, in 8 bytes, and then the message.
    pub waiting: usize,
}

/// What a gateway knows of a slot.
#[derive(Debug, Serialize, Deserialize)]
pub struct WayState {
    /// Which.
    pub slot: u16,
    /// Of which of its owners.
    pub incarnation: u32,
    /// It has claimed nothing from here on.
    pub next: u64,
    /// Which sleep it was woken from last.
    pub rung: u64,
}

/// A buffer that is lent.
#[derive(Debug, Serialize, Deserialize)]
pub struct LentState {
    /// Which.
    pub buffer: u16,
    /// Of the lending.
    pub number: u64,
    /// The receiver: slot and incarnation.
    pub to: (u16, u32),
}

/// A gateway's way to a peer.
#[derive(Debug, Serialize, Deserialize)]
pub struct LinkState {
    /// The peer's name.
    pub name: String,
    /// The number of the first batch that is not known to have been taken.
    pub first: u64,
    /// How long those are that were numbered.
    pub sent: Vec<usize>,
    /// And those that were not.
    pub queue: Vec<usize>,
    /// Producers are held up.
    pub is_held: bool,
    /// Of each gateway there, how many batches have been taken.
    pub heard: Vec<(u16, u64)>,
    /// Deaths there that not all were told of: the gateway that said so, and how many there are.
    pub gones: Vec<(u16, u16)>,
}

/// What lies beside a [`RoomState`], to be taken piece by piece.
#[derive(Debug)]
pub(crate) struct Cargo<'a>(&'a [u8]);

impl<'a> Cargo<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next so many bytes.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Unfit> {
        let (piece, rest) =
            self.0.split_at_checked(bytes).ok_or(Unfit::Contradiction("a message is missing"))?;
        self.0 = rest;
        Ok(piece)
    }

    /// All that is left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.0
    }
}
