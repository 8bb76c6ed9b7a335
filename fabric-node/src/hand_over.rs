//! The state of a hand-over: a node tells its successor about the fabric. It has the owner of each
//! endpoint, and the descriptors by which the node sees their ends. The memory itself is handed
//! over as a file, and members notice nothing.
//!
//! A descriptor is a [`DescriptorNumber`] here. The successor checks that the state does not
//! contradict itself before it uses any of it, because the state decides which process may write
//! where.
//!
//! The names in JSON are a format between releases; where a field's name has changed, `rename`
//! keeps the old one.

use std::io;
use std::path::PathBuf;

use handover::DescriptorNumber;
use serde::{Deserialize, Serialize};

use fabric::RegionError;
use fabric::registration::wire::SlotGrant;

/// Why a node cannot go on with what it was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The state contradicts itself, or this node's configuration.
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

/// An error, unless a condition holds.
pub(crate) fn ensure(condition: bool, otherwise: &'static str) -> Result<(), Unfit> {
    if condition { Ok(()) } else { Err(Unfit::Contradiction(otherwise)) }
}

/// A registration server.
#[derive(Debug, Serialize, Deserialize)]
pub struct RegistrationState {
    /// Its socket.
    pub listener: DescriptorNumber,
    /// The host's name in addresses.
    pub host: u64,
    /// The domains.
    pub domains: Vec<DomainState>,
    /// Clients, members among them.
    pub callers: Vec<CallerState>,
    /// Departed members.
    #[serde(rename = "leavers")]
    pub departed: Vec<DepartedMemberState>,
    /// The vfs.
    pub vfs: Vec<VfState>,
}

/// A domain.
#[derive(Debug, Serialize, Deserialize)]
pub struct DomainState {
    /// Its name.
    pub name: String,
    /// Its memory.
    pub region: RegionState,
    /// The owners of its slots.
    #[serde(rename = "ledger")]
    pub slot_table: SlotTableState,
    /// The gateways' doorbells, in the order of the gateways.
    #[serde(rename = "bells")]
    pub doorbells: Vec<GatewayDoorbellState>,
}

handover::array_state! {
    /// A gateway's doorbell.
    #[derive(Debug)]
    pub struct GatewayDoorbellState {
        /// The eventfd that members ring.
        pub shared: DescriptorNumber,
        /// The eventfd that only the node rings.
        pub own: DescriptorNumber,
    }
}

/// A region, by what the node itself knows: its header any member can write.
#[derive(Debug, Serialize, Deserialize)]
pub struct RegionState {
    /// The file.
    pub memory: DescriptorNumber,
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

/// A slot table.
#[derive(Debug, Serialize, Deserialize)]
pub struct SlotTableState {
    /// Slots that were ever given out, in their order.
    pub slots: Vec<SlotState>,
    /// Slots that were given out.
    pub given: u64,
    /// Deaths.
    pub deaths: u64,
    /// Entries of the table of hosts that were ever used, this host's among them.
    pub hosts: usize,
    /// The hosts for which a gateway takes nothing.
    pub holds: Vec<HoldState>,
    /// The doorbells of endpoints.
    #[serde(rename = "bells")]
    pub doorbells: Vec<DoorbellState>,
}

handover::array_state! {
    /// A host for which a gateway takes nothing.
    #[derive(Debug)]
    pub struct HoldState {
        /// The host's place in the region's table.
        pub host: u16,
        /// One bit for each gateway that takes nothing.
        pub gateways: u64,
    }
}

handover::array_state! {
    /// A slot that was granted, and the incarnation by which its owner is known.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GrantState {
        /// The slot.
        pub slot: u16,
        /// The incarnation.
        pub incarnation: u32,
    }
}

impl From<SlotGrant> for GrantState {
    fn from(SlotGrant { slot, incarnation }: SlotGrant) -> Self {
        Self { slot, incarnation }
    }
}

impl From<GrantState> for SlotGrant {
    fn from(GrantState { slot, incarnation }: GrantState) -> Self {
        Self { slot, incarnation }
    }
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

/// An endpoint's doorbell.
#[derive(Debug, Serialize, Deserialize)]
pub struct DoorbellState {
    /// The slot of the endpoint.
    pub slot: u16,
    /// Which of the slot's owners it is.
    pub incarnation: u32,
    /// The sleep for which it was rung last.
    pub rung: u64,
    /// The write end.
    #[serde(rename = "rope")]
    pub write_end: DescriptorNumber,
}

/// A client.
#[derive(Debug, Serialize, Deserialize)]
pub struct CallerState {
    /// The connection; between two messages, perhaps with unread ones.
    pub connection: DescriptorNumber,
    /// Its pidfd, where the kernel gives one.
    pub process: Option<DescriptorNumber>,
    /// The process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// The domain that it is a member of; none while it is unregistered.
    pub domain: Option<String>,
    /// Its slots, with the incarnations.
    #[serde(rename = "seats")]
    pub grants: Vec<GrantState>,
}

/// A departed member.
#[derive(Debug, Serialize, Deserialize)]
pub struct DepartedMemberState {
    /// Its pidfd.
    pub process: DescriptorNumber,
    /// Of which domain.
    pub domain: String,
    /// Slots that it still has.
    #[serde(rename = "seats")]
    pub grants: Vec<GrantState>,
}

/// A vf.
#[derive(Debug, Serialize, Deserialize)]
pub struct VfState {
    /// Its name.
    pub name: String,
    /// The domain's.
    pub domain: String,
    /// The path of the socket that QEMU connects to.
    pub path: PathBuf,
    /// The socket there; none once it was taken away.
    pub listener: Option<ListenerState>,
    /// How many processes were denied.
    pub denied: u64,
    /// The VM that is connected.
    pub vm: Option<VmState>,
}

handover::array_state! {
    /// The socket of a vf.
    #[derive(Debug)]
    pub struct ListenerState {
        /// The socket.
        pub socket: DescriptorNumber,
        /// The inode of its file.
        pub inode: u64,
    }
}

/// A VM that is connected.
#[derive(Debug, Serialize, Deserialize)]
pub struct VmState {
    /// QEMU's connection.
    pub connection: DescriptorNumber,
    /// Its doorbell.
    #[serde(rename = "bell")]
    pub doorbell: DescriptorNumber,
    /// QEMU.
    pub pid: u32,
    /// QEMU's pidfd, where the kernel gives one.
    pub process: Option<DescriptorNumber>,
    /// Its mailbox.
    #[serde(rename = "clerk")]
    pub mailbox: MailboxState,
}

/// The memory of a mailbox server.
#[derive(Debug, Serialize, Deserialize)]
pub struct MailboxState {
    /// Which.
    #[serde(rename = "part")]
    pub number: u8,
    /// The random words that stand there.
    pub nonce: [u64; 4],
    /// The turn that each entry is in.
    pub turns: Vec<u32>,
    /// The boot of the VM's system.
    pub boot: Option<u64>,
    /// Those that are over.
    pub boots_over: Vec<u64>,
    /// The slots that its processes hold.
    pub held: Vec<HeldState>,
}

handover::array_state! {
    /// A slot that a process of a VM holds.
    #[derive(Debug)]
    pub struct HeldState {
        /// The number of the holder's lock.
        pub holder: u64,
        /// The slot.
        pub grant: GrantState,
    }
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
    pub takers: Vec<TakerState>,
}

handover::array_state! {
    /// The gateway here that takes what another host's gateway sends.
    #[derive(Debug)]
    pub struct TakerState {
        /// The other host's gateway.
        pub theirs: u16,
        /// The gateway here.
        pub ours: u16,
    }
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

/// The work that a gateway has under way. Its messages go beside it, one after the other in the
/// order in which they stand here: those that wait, and for each link those that were sent, those
/// that are queued, and deaths.
#[derive(Debug, Serialize, Deserialize)]
pub struct RoomState {
    /// The domain.
    pub domain: String,
    /// Which of its gateways.
    pub gateway: u16,
    /// The region's side.
    pub post: PostState,
    /// By slot, the last owner whose death was told to all hosts.
    pub told: Vec<GrantState>,
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
    /// The slots that it has sent to, as it knows them.
    pub ways: Vec<WayState>,
    /// Buffers of its slab that are lent.
    pub lent: Vec<LentState>,
    /// The number of the next lending.
    pub lending: u64,
    /// How many messages wait for receivers. Beside it is of each, in its receiver's order, the
    /// index of the host that it is from, in 8 bytes, and then the message.
    pub waiting: usize,
}

/// A slot, as a gateway knows it.
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
    /// The receiver.
    pub to: GrantState,
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
    pub heard: Vec<HeardState>,
    /// Deaths there that not all were told of.
    pub gones: Vec<GoneState>,
}

handover::array_state! {
    /// The batches of another host's gateway that have been taken.
    #[derive(Debug)]
    pub struct HeardState {
        /// The other host's gateway.
        pub gateway: u16,
        /// How many batches.
        pub batches: u64,
    }
}

handover::array_state! {
    /// A death on another host.
    #[derive(Debug)]
    pub struct GoneState {
        /// The other host's gateway that said so.
        pub gateway: u16,
        /// How many gateways the other host has.
        pub gateways: u16,
    }
}

/// A gateway's state, and its messages beside it.
#[derive(Debug)]
pub struct TakenRoom {
    /// The state.
    pub state: RoomState,
    /// The messages.
    pub cargo: Vec<u8>,
}

/// The clients of a registration server, and the vfs.
#[derive(Debug)]
pub struct ClientStates {
    /// Clients, members among them.
    pub callers: Vec<CallerState>,
    /// Departed members.
    pub departed: Vec<DepartedMemberState>,
    /// The vfs.
    pub vfs: Vec<VfState>,
}

/// The bytes beside a [`RoomState`], to be taken piece by piece.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A node hands over to a node of another release: the names in JSON are a format.
    #[test]
    fn the_names_of_a_hand_over_stay_as_they_were() {
        let text = concat!(
            r#"{"listener":1,"host":2,"domains":[{"name":"blue","region":{"memory":3,"version":4,"#,
            r#""slots":5,"gateways":1,"cells":16,"buffers":2,"buffer_bytes":4096},"ledger":{"#,
            r#""slots":[{"slot":1,"life":2,"pid":3,"given":4,"died":5,"spoiled":null}],"given":6,"#,
            r#""deaths":7,"hosts":8,"holds":[[1,2]],"bells":[{"slot":1,"incarnation":2,"rung":3,"#,
            r#""rope":4}]},"bells":[[5,6]]}],"callers":[{"connection":7,"process":8,"pid":9,"#,
            r#""uid":10,"domain":"blue","seats":[[1,2]]}],"leavers":[{"process":11,"#,
            r#""domain":"blue","seats":[[3,4]]}],"vfs":[{"name":"vf","domain":"blue","#,
            r#""path":"/run/vf","listener":[12,13],"denied":14,"vm":{"connection":15,"bell":16,"#,
            r#""pid":17,"process":null,"clerk":{"part":1,"nonce":[1,2,3,4],"turns":[5],"boot":6,"#,
            r#""boots_over":[7],"held":[[8,[9,10]]]}}}]}"#,
        );
        let state: RegistrationState = serde_json::from_str(text).expect("a state of before");
        assert_eq!(serde_json::to_string(&state).expect("it can be written"), text);
    }
}
