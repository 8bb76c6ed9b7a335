//! A member on a sidecore: its rounds, and all that goes in and out.
//!
//! ```text
//!   other members ─▶ DoorInbox ──┐                    ┌─▶ MemberMail ─▶ other members
//!   users ────────▶ FrontLinks ──┼─▶ VolumeMember ────┼─▶ FrontLinks ─▶ users
//!   the guard ───▶ NoteRecords ──┤                    ├─▶ NoteRecords, PlaceWatch
//!   ErrandDesk ──────────────────┘                    └─▶ ErrandDesk
//! ```
//!
//! **A paused member breaks no promise.** A process, a thread or a host can stand still at any
//! place of this code, for longer than a lease. These rules hold:
//!
//! - All inputs of a round are taken first, and the clock is read after them
//!   ([`MemberHost::poll`]). A backup that hears a ping waits for its patience from a time at which
//!   the ping was there. With a time from before a pause it would take over while the lease of its
//!   own answer still holds, and two members would answer reads.
//! - A read is answered under leases that hold at a time which was read after the request was taken
//!   and after the range was read. No member had begun to serve before that time, so the range has
//!   all that was acknowledged before the request.
//! - A lease counts from the time in the ping, which was read before the ping was sent.
//! - A write is answered when all members of each record that may be the registry's have it. That
//!   stays true however late the answer is, so it needs no clock.
//! - When the reign ends, requests that are under way end as [`Status::Fenced`], and an answer that
//!   the protocol gives to one of them later finds it gone. A request that comes by a channel of an
//!   earlier term is refused (`front.rs`).
//! - An answer may lie in a mailbox for long. It answers a request that was open at the moment
//!   at which it was right.
//!
//! The clock counts while the host sleeps. The clock of a virtual machine may not: a node in one
//! must not be stopped and continued as a machine.

mod operator;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use replica::wire::SECTOR_BYTES;
use replica::{
    ClientId, ClientRequest, Durable, Input, Life, MEMBERS_MAX, MemberId, Message, Note, Pacing,
    Place, RequestId, SnapshotChange, VolumeRecord,
};
use sidecore::{Poll, Progress, Services, Wake, Waker};
use volume::{Incarnation, OpenArguments, OpenError, Status, Volume};

use crate::content::{RangeContent, from_wire};
use crate::desk_threads::ErrandDesk;
use crate::door::{ArrivedMessage, DoorInbox, MemberDoor};
use crate::form::VolumeForm;
use crate::front::{FrontLinks, FrontPlace, FrontVolume, PutRequest};
use crate::member::{Answer, ErrandEnd, MemberCounters, MemberStart, Outbox, VolumeMember};
use crate::notes::{NoteBook, NoteRecords};
use crate::queue::MEMBER_DEPTH;
use crate::snapshots::{SnapshotDesk, SnapshotEnd};
use crate::status::{FilledPercent, MemberPart, MemberStatus, MemberView, not_here};

/// Messages that are heard in a round, and bytes of content after which no more are taken: a round
/// of some milliseconds.
const MESSAGES_PER_ROUND: usize = 128;
const BYTES_PER_ROUND: usize = 8 << 20;

/// Messages to a member that wait for its session. More of them are dropped: the protocol sends
/// them again.
const OUTGOING_MAX: usize = 1024;

/// Attachments that are forgotten at a tick, after a member has begun to serve.
const FORGOTTEN_PER_TICK: usize = 256;

/// The times of the protocol on nodes. Clocks of two hosts may differ by a fifth of a lease before
/// a promise is in danger, which is far more than clocks drift.
pub const NODE_PACING: Pacing = Pacing {
    lease_ns: 2_000_000_000,
    patience_ns: 2_500_000_000,
    silence_ns: 1_000_000_000,
    fetch_sectors_max: 1 << 11,
    fetches_max: 8,
    block_sectors: (store::block::BLOCK_BYTES as u64 / SECTOR_BYTES) as u32,
    members: MEMBERS_MAX,
};

/// How long the backup of a drained node waits for a silent primary: another backup has taken over
/// by then, if there is one that can.
const DRAINED_PATIENCE_NS: u64 = 3 * NODE_PACING.patience_ns;

/// The way of messages to other members.
pub trait MemberMail {
    /// Sends a message. A message to a member that cannot be reached is as a lost one.
    ///
    /// # Errors
    /// Gives the message back when the way is full: it is offered again, before later ones.
    #[expect(clippy::result_large_err, reason = "a message that is given back is only moved")]
    fn send(
        &mut self,
        now_ns: u64,
        to: MemberId,
        message: Message<RangeContent>,
    ) -> Result<(), Message<RangeContent>>;

    /// The other members are these from now on, by the names of their nodes.
    fn set_members(&mut self, others: &BTreeMap<MemberId, String>);

    /// Grows with each session to the member that was lost, with what was under way in it.
    fn losses(&self, to: MemberId) -> u64;
}

/// The guard of a volume, which hears where the volume is served.
pub trait PlaceWatch {
    /// This node serves it from now on, with the records of its store.
    ///
    /// # Errors
    /// Why it cannot: the member stops.
    fn serves(&mut self) -> Result<(), String>;

    /// Another node serves it; an empty name says that it is not known which.
    fn elsewhere(&mut self, node: &str);

    /// The volume that this node serves has grown: users are told.
    fn resized(&mut self);
}

/// The parts of a member before it has a sidecore.
#[derive(Debug)]
pub struct MemberSetup {
    /// The volume's name.
    pub volume: String,
    /// Its name among the members.
    pub id: MemberId,
    /// The nodes of all members, this node among them.
    pub nodes: BTreeMap<MemberId, String>,
    /// A random number of this start, which also numbers the attachments of its users.
    pub life: Life,
    /// Random bytes, for a volume that is new.
    pub number: [u8; 16],
    /// The protocol's times.
    pub pacing: Pacing,
    /// The state that was kept.
    pub durable: Durable,
    /// The cuts that the volume has.
    pub cuts: BTreeSet<Place>,
    /// Settings that all members must have alike besides the nodes and the size, each as text.
    pub settings: Vec<String>,
    /// The size that users have, of a volume whose nodes and size may change: the settings name it,
    /// and the form has neither nodes nor size.
    pub placed_bytes: Option<u64>,
    /// The member's own volume, with blocks of 512 bytes.
    pub own: Arc<dyn Volume>,
}

/// A member that is not on its sidecore yet, and its parts for other threads.
#[derive(Debug)]
pub struct MemberPlan {
    setup: MemberSetup,
    /// The volume, for disks and servers.
    pub front: Arc<FrontVolume>,
    /// The records of the volume's guard.
    pub records: Arc<NoteRecords>,
    /// The way of other members' messages.
    pub door: Arc<MemberDoor>,
    /// Its state.
    pub status: Arc<MemberStatus>,
}

impl MemberPlan {
    /// The plan of a member. `home` wakes the sidecore that it will be on.
    pub fn new(setup: MemberSetup, home: &Waker) -> Self {
        let MemberSetup { volume, id, nodes, own, settings, placed_bytes, .. } = &setup;
        let info = own.info();
        let form = match placed_bytes {
            None => VolumeForm::of(nodes, info.size_bytes, settings),
            Some(_) => VolumeForm::of(&BTreeMap::new(), 0, settings),
        };
        let peers = MemberList::new(nodes.clone()).peers(*id);
        let size_bytes = placed_bytes.unwrap_or(info.size_bytes);
        let front = Arc::new(FrontVolume::new(&info, size_bytes, home.clone()));
        let records = NoteRecords::new(volume, home.clone());
        let (door, status) = (MemberDoor::new(peers, form, home.clone()), Arc::default());
        Self { front, records, door, status, setup }
    }
}

/// The nodes of a volume's members, and the size of a volume that may grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberList {
    /// By the members' places.
    pub nodes: BTreeMap<MemberId, String>,
    /// The members that must go: the volume goes on without them as soon as it can.
    pub leaving: BTreeSet<MemberId>,
    /// The members with own volumes that are smaller than the volume: each joins when it has grown.
    pub small: BTreeSet<MemberId>,
    /// The size that users have, once all members in sync know it; 0: it does not change.
    pub size_bytes: u64,
}

impl MemberList {
    /// A list of members of which none must go.
    pub fn new(nodes: BTreeMap<MemberId, String>) -> Self {
        Self { nodes, ..Self::default() }
    }

    /// The same, of a volume that may grow.
    pub fn of_size(nodes: BTreeMap<MemberId, String>, size_bytes: Option<u64>) -> Self {
        Self { size_bytes: size_bytes.unwrap_or_default(), ..Self::new(nodes) }
    }

    /// The names of the nodes in their order; a place without a node is empty.
    pub fn names(&self) -> Vec<String> {
        let places = self.nodes.keys().last().map_or(0, |last| usize::from(*last) + 1);
        let mut names = vec![String::new(); places];
        for (place, node) in &self.nodes {
            names[usize::from(*place)].clone_from(node);
        }
        names
    }

    /// The place of a node.
    pub fn place_of(&self, node: &str) -> Option<MemberId> {
        self.nodes.iter().find(|(_, name)| *name == node).map(|(member, _)| *member)
    }

    /// The places of the other members, by their nodes.
    pub fn peers(&self, own: MemberId) -> BTreeMap<String, MemberId> {
        let others = self.nodes.iter().filter(|(member, _)| **member != own);
        others.map(|(member, node)| (node.clone(), *member)).collect()
    }
}

/// The parts of a member's surroundings that its sidecore has.
pub struct HostOutside {
    /// The way to other members.
    pub mail: Box<dyn MemberMail>,
    /// The threads for errands.
    pub desk: Box<dyn ErrandDesk>,
    /// The volume's guard.
    pub watch: Box<dyn PlaceWatch>,
    /// The clock of the leases: [`sidecore::boot_ns`].
    pub clock: Box<dyn FnMut() -> u64>,
}

impl fmt::Debug for HostOutside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostOutside")
    }
}

/// The way to one other member.
#[derive(Debug, Default)]
struct OutgoingMail {
    waiting: VecDeque<Message<RangeContent>>,
    losses: u64,
}

/// Inputs of a round, taken before the clock was read.
#[derive(Debug, Default)]
struct RoundInputs {
    arrived: Vec<ArrivedMessage>,
    ends: Vec<ErrandEnd>,
    asked: Vec<PutRequest>,
    gone: Vec<u128>,
}

/// A member with its surroundings, on one sidecore.
#[derive(Debug)]
pub struct MemberHost {
    volume: String,
    id: MemberId,
    list: MemberList,
    life: Life,
    number: [u8; 16],
    member: VolumeMember,
    inbox: DoorInbox,
    fronts: FrontLinks,
    records: Arc<NoteRecords>,
    status: Arc<MemberStatus>,
    outside: HostOutside,
    outgoing: BTreeMap<MemberId, OutgoingMail>,
    dropped: u64,
    inputs: RoundInputs,
    out: Outbox,
    /// The reign in which it serves, and its term.
    reign: Option<u64>,
    term: u64,
    terms: u64,
    /// The node that was told to the guard; none while this node serves.
    told_elsewhere: Option<String>,
    /// The note that the protocol has, or has put off.
    note: Option<(RequestId, Note, bool)>,
    notes: u64,
    snapshots: SnapshotDesk,
    /// Attachments of other lives may be in the table of applied requests.
    sweeps: bool,
    /// The node is drained.
    is_drained: bool,
    /// While the node is drained, or the member must go: the members in sync that the volume was
    /// given to, or that gave it here. Each is given the volume once, since its node may be drained
    /// as well.
    given: Option<BTreeSet<MemberId>>,
    /// The other member that was the primary last.
    served_before: Option<MemberId>,
    patience_ns: u64,
    /// The epoch, the part, whether it follows, and the reason to wait, as the status has them.
    shown: Option<(u64, MemberPart, bool, FilledPercent, Option<String>)>,
}

/// Why a member has stopped that its node has ended.
const ENDED: &str = "the member was ended on this node";

impl MemberHost {
    /// A member on the calling sidecore.
    ///
    /// # Errors
    /// When its own volume cannot be opened there, or has blocks of more than 512 bytes.
    pub fn start(
        plan: MemberPlan,
        services: &Services,
        mut outside: HostOutside,
    ) -> Result<Self, OpenError> {
        let MemberPlan { setup, front, records, door, status } = plan;
        let MemberSetup { volume, id, nodes, life, number, pacing, durable, cuts, .. } = setup;
        let MemberSetup { placed_bytes, own, .. } = setup;
        // First, so that channels and planes see an end if the member does not begin.
        let fronts = FrontLinks::new(Arc::clone(front.shared()), life);
        let inbox = DoorInbox::new(door);
        let info = own.info();
        if u64::from(info.block_bytes) != SECTOR_BYTES {
            let what = format!("start the member of volume {volume}");
            let why = "its own volume has larger blocks than 512 bytes; take a volume of a pool";
            return Err(OpenError::Io { what, source: io::Error::other(why) });
        }
        let channel = own.open(&OpenArguments { services, depth: MEMBER_DEPTH })?;
        let sectors = placed_bytes.unwrap_or(info.size_bytes) / SECTOR_BYTES;
        let own = placed_bytes.map(|_| own.size());
        let start = MemberStart { id, life, pacing, durable, cuts, sectors, own };
        let now_ns = (outside.clock)();
        let member =
            VolumeMember::new(start, channel, now_ns).noting(status.damage(), status.scrubs());
        let others = nodes.keys().filter(|other| **other != id);
        let outgoing = others.map(|other| (*other, OutgoingMail::default())).collect();
        outside.watch.elsewhere("");
        Ok(Self {
            member,
            inbox,
            fronts,
            records,
            status,
            outside,
            outgoing,
            dropped: 0,
            inputs: RoundInputs::default(),
            out: Outbox::default(),
            reign: None,
            term: 0,
            terms: 0,
            told_elsewhere: Some(String::new()),
            note: None,
            notes: 0,
            snapshots: SnapshotDesk::new(ClientId { slot: 1, ..own_client(life) }),
            sweeps: false,
            is_drained: false,
            given: None,
            served_before: None,
            patience_ns: pacing.patience_ns,
            shown: None,
            volume,
            id,
            list: MemberList::of_size(nodes, placed_bytes),
            life,
            number,
        })
    }

    /// Its life: a new one, or the life that its last process ended in order.
    pub fn life(&self) -> Life {
        self.member.life()
    }

    /// Why the member has stopped, if it has.
    pub fn failed(&self) -> Option<&str> {
        self.member.failed()
    }

    /// Its counters, and the messages that were dropped because a member takes none.
    pub fn counters(&self) -> (MemberCounters, u64) {
        (self.member.counters(), self.dropped)
    }

    /// Begins a change of the snapshots, if this member serves. Its end comes by the channel, which
    /// ends without one when the member serves no longer.
    ///
    /// # Errors
    /// Why it does not begin.
    pub fn change_snapshots(
        &mut self,
        change: SnapshotChange,
    ) -> Result<Receiver<SnapshotEnd>, String> {
        if self.reign.is_none() {
            return Err(not_here(&self.elsewhere()));
        }
        let begun = self.snapshots.begin(change);
        begun.ok_or_else(|| "another snapshot of the volume is being taken or removed".to_owned())
    }

    /// The node is drained, or is not any more. While it is, the member takes over last, and gives
    /// the volume to another member in sync when there is one.
    pub fn set_drained(&mut self, drained: bool) {
        self.is_drained = drained;
        self.set_reserve();
    }

    /// The nodes of the members are these from now on, and users have this size when all members in
    /// sync know it. This member keeps its place, and the volume gets no smaller.
    pub fn set_list(&mut self, mut list: MemberList) {
        list.size_bytes = list.size_bytes.max(self.list.size_bytes);
        self.records.set_size(list.size_bytes);
        let mut others = list.nodes.clone();
        others.remove(&self.id);
        self.outside.mail.set_members(&others);
        self.outgoing.retain(|member, _| others.contains_key(member));
        for member in others.keys() {
            self.outgoing.entry(*member).or_default();
        }
        self.member.set_members(list.nodes.len());
        let clock_ns = (self.outside.clock)();
        for member in self.list.nodes.keys() {
            let must_wait = list.leaving.contains(member) || list.small.contains(member);
            if !others.contains_key(member) || must_wait {
                self.member.tell(clock_ns, Input::Left(*member), &mut self.out);
            }
        }
        self.list = list;
        // The status has the names.
        self.shown = None;
        self.set_reserve();
        self.show();
    }

    /// A member of a drained node, or one that must go, takes over last, and gives the volume away.
    fn set_reserve(&mut self) {
        let is_reserve = self.is_drained || self.list.leaving.contains(&self.id);
        let patience_ns = if is_reserve { DRAINED_PATIENCE_NS } else { self.patience_ns };
        self.member.set_patience(patience_ns);
        match is_reserve {
            true => _ = self.given.get_or_insert_default(),
            false => self.given = None,
        }
    }

    /// Gives the volume away, if this member must not have it and another member has come into
    /// sync. Otherwise it goes on without members that must go.
    fn give_away(&mut self, clock_ns: u64) {
        let takes = self.reign.is_some() && self.member.takes_requests();
        let Some(record) = self.member.record().filter(|_| takes) else { return };
        let leaving = &self.list.leaving;
        let mut order = None;
        if let Some(given) = &mut self.given {
            // The node of a member that was out of sync meanwhile may not be drained any more.
            given.retain(|member| record.in_sync.contains_key(member));
            // A member that leaves has no turn: the volume goes from it until it is elsewhere.
            let may_give =
                |member: &MemberId| leaving.contains(&self.id) || !given.contains(member);
            let is_next = |member: &MemberId| may_give(member) && !leaving.contains(member);
            if let Some(next) = record.others(self.id).find(is_next) {
                given.insert(next);
                order = Some(Input::Move(next));
            }
        }
        if order.is_none() && !leaving.contains(&self.id) {
            let gone = record.others(self.id).find(|member| leaving.contains(member));
            order = gone.map(Input::Evicted);
        }
        if let Some(order) = order {
            self.member.tell(clock_ns, order, &mut self.out);
        }
    }

    /// Ends the member in order: users' requests end, and the member goes on until its content is
    /// durable and the end of its life is kept. `true` once that is so, or cannot be; its caller
    /// goes on asking until then, and then abandons the member.
    pub fn retire(&mut self, now_ns: u64) -> bool {
        self.member.retire();
        self.settle(now_ns);
        self.member.has_retired()
    }

    /// Ends the member: users' requests end, no client is admitted, and the volume is let go.
    /// `true` once no request touches the volume any more; its caller goes on asking until then.
    pub fn abandon(&mut self, now_ns: u64) -> bool {
        self.member.fail(ENDED.to_owned());
        self.settle(now_ns);
        self.member.abandon(now_ns)
    }

    fn place(&self) -> FrontPlace {
        let takes = self.member.has_room() && self.member.serving() == self.reign;
        match self.reign {
            Some(_) if takes => FrontPlace::Here(self.term),
            Some(_) => FrontPlace::Busy(self.term),
            None if self.is_elsewhere() => FrontPlace::Elsewhere,
            None => FrontPlace::Unknown,
        }
    }

    /// Whether another member serves by all that is known, or this member has ended.
    fn is_elsewhere(&self) -> bool {
        let primary = self.member.record().map(|record| record.primary);
        self.member.failed().is_some() || primary.is_some_and(|primary| primary != self.id)
    }

    /// Takes the inputs of a round.
    fn take_inputs(&mut self, now_ns: u64) -> Progress {
        let place = self.place();
        let RoundInputs { arrived, ends, asked, gone } = &mut self.inputs;
        self.inbox.take(MESSAGES_PER_ROUND, BYTES_PER_ROUND, arrived);
        while let Some(end) = self.outside.desk.take() {
            ends.push(end);
        }
        let moved = self.fronts.gather(place, asked, gone);
        let worked = self.member.work(now_ns, &mut self.out);
        let is_busy = moved || !arrived.is_empty() || !ends.is_empty() || !gone.is_empty();
        worked | Progress::busy_if(is_busy)
    }

    /// Gives them to the member. `clock_ns` was read after they were taken.
    fn give_inputs(&mut self, clock_ns: u64) {
        let mut inputs = std::mem::take(&mut self.inputs);
        for (member, outgoing) in &mut self.outgoing {
            let losses = self.outside.mail.losses(*member);
            if std::mem::replace(&mut outgoing.losses, losses) != losses {
                self.member.session_lost(*member);
            }
        }
        for end in inputs.ends.drain(..) {
            if let ErrandEnd::Over(member, life) = end
                && !self.counts(member, life)
            {
                continue;
            }
            self.member.end(clock_ns, end, &mut self.out);
        }
        for ArrivedMessage { from, message, body } in inputs.arrived.drain(..) {
            // It would come into sync and go again without end, or hold up writes beyond its end.
            let must_wait = self.list.leaving.contains(&from) || self.list.small.contains(&from);
            if must_wait && matches!(message, Message::Join { .. }) {
                continue;
            }
            self.member.hear(clock_ns, from, from_wire(message, body), &mut self.out);
        }
        for attachment in inputs.gone.drain(..) {
            self.member.tell(clock_ns, Input::Forget(attachment), &mut self.out);
        }
        if clock_ns >= self.member.next_tick_ns() {
            self.fronts.offer_again(&mut inputs.asked);
            self.forget_others(clock_ns);
            self.give_away(clock_ns);
            if let Some((_, _, again)) = &mut self.note {
                *again = true;
            }
            self.snapshots.put_off();
        }
        for (id, request) in inputs.asked.drain(..) {
            self.put(clock_ns, id, request);
        }
        self.put_note(clock_ns);
        self.put_snapshot(clock_ns);
        self.inputs = inputs;
    }

    /// Whether the proved end of a process changes something here. A drained node waits for its
    /// patience all the same: another node takes over first.
    fn counts(&self, member: MemberId, life: Life) -> bool {
        let is_both = |it: &&VolumeRecord| it.has(member, life) && it.has(self.id, self.life());
        let record = self.member.record().filter(is_both).filter(|_| self.given.is_none());
        let step = match record.map(|record| record.primary) {
            Some(primary) if primary == member => "this copy takes over at once",
            Some(primary) if primary == self.id => "this copy goes on without it at once",
            _ => return false,
        };
        let (volume, node) = (&*self.volume, self.list.nodes.get(&member));
        tracing::info!(volume, node, "the process of another copy has ended, as is proved: {step}");
        true
    }

    /// Offers a request to the protocol, if it takes requests of this term still.
    fn put(&mut self, clock_ns: u64, id: RequestId, request: ClientRequest<RangeContent>) {
        let serves = self.reign.is_some() && self.member.serving() == self.reign;
        let record = self.member.record().filter(|_| serves);
        let Some(incarnation) = record.map(|record| record.incarnation) else {
            return self.fronts.answer(id, Status::Fenced, None);
        };
        if self.member.takes_requests() {
            self.member.request(clock_ns, id, incarnation, request, &mut self.out);
        } else {
            // So many works wait that the protocol is asked again at the next tick.
            self.fronts.put_off(id);
        }
    }

    /// Offers the next note, or the last one again if it was put off.
    fn put_note(&mut self, clock_ns: u64) {
        let serves = self.reign.is_some() && self.member.serving() == self.reign;
        if !serves || !self.member.takes_requests() {
            return;
        }
        if self.note.is_none()
            && let Some(note) = self.records.take()
        {
            self.notes += 1;
            let client = own_client(self.life);
            self.note = Some((RequestId { client, number: self.notes }, note, true));
        }
        let incarnation = self.member.record().map_or(0, |record| record.incarnation);
        if let Some((id, note, again)) = &mut self.note
            && std::mem::take(again)
        {
            // A request that was taken before waits on for its operation.
            let request = ClientRequest::Note(note.clone());
            self.member.request(clock_ns, *id, incarnation, request, &mut self.out);
        }
    }

    /// Gives the protocol the change of the snapshots, or again if there was no room.
    fn put_snapshot(&mut self, clock_ns: u64) {
        let serves = self.reign.is_some() && self.member.serving() == self.reign;
        if !serves || !self.member.takes_requests() {
            return;
        }
        if let Some((id, change)) = self.snapshots.request() {
            let incarnation = self.member.record().map_or(0, |record| record.incarnation);
            // A request that was taken before waits on for its operation.
            let request = ClientRequest::Snapshot(change);
            self.member.request(clock_ns, id, incarnation, request, &mut self.out);
        }
    }

    /// Forgets clients of other lives, and channels that went while nothing was taken.
    fn forget_others(&mut self, clock_ns: u64) {
        if !self.sweeps || !self.member.takes_requests() {
            return;
        }
        let live = self.fronts.live();
        let known = self.member.attachments();
        let mut over = known.difference(&live).copied().peekable();
        for attachment in over.by_ref().take(FORGOTTEN_PER_TICK) {
            self.member.tell(clock_ns, Input::Forget(attachment), &mut self.out);
        }
        self.sweeps = over.peek().is_some();
    }

    /// Carries away what the member has said, and looks where the volume is served.
    fn settle(&mut self, now_ns: u64) {
        let mut out = std::mem::take(&mut self.out);
        for answer in out.answers.drain(..) {
            self.answer(answer);
        }
        out.errands.drain(..).for_each(|errand| self.outside.desk.put(errand));
        for (to, message) in out.messages.drain(..) {
            let Some(outgoing) = self.outgoing.get_mut(&to) else { continue };
            if outgoing.waiting.len() < OUTGOING_MAX {
                outgoing.waiting.push_back(message);
            } else {
                self.dropped += 1;
            }
        }
        out.findings.drain(..).for_each(|finding| self.note_finding(&finding));
        self.out = out;
        self.send(now_ns);
        self.look();
    }

    fn answer(&mut self, answer: Answer) {
        let (id, status, content) = match answer {
            Answer::Done(id, content) => (id, Status::Done, content),
            // Of another incarnation: its term has ended.
            Answer::Refused(id, _) => (id, Status::Fenced, None),
            Answer::Invalid(id) => (id, Status::Invalid, None),
            Answer::Unreadable(id) => (id, Status::Error, None),
            Answer::Full(id) => {
                self.sweeps = true;
                return self.fronts.put_off(id);
            }
        };
        if self.note.as_ref().is_some_and(|(note, ..)| *note == id) {
            self.note = None;
            if status == Status::Done {
                self.grow(self.records.kept());
            }
            return;
        }
        if self.snapshots.is_its(id) {
            let (last, left_out) = (self.member.last_snapshot(), self.member.snapshot_left_out());
            return match status {
                Status::Done => self.snapshots.end(last, left_out, &self.list.nodes),
                _ => self.snapshots.give_up(),
            };
        }
        self.fronts.answer(id, status, content);
    }

    /// All members in sync know this size: users get it.
    fn grow(&mut self, size_bytes: u64) {
        if size_bytes > self.fronts.shared().size().get() {
            self.set_size(size_bytes);
            self.outside.watch.resized();
        }
    }

    fn set_size(&mut self, size_bytes: u64) {
        self.fronts.shared().size().set(size_bytes);
        self.member.set_sectors(size_bytes / SECTOR_BYTES);
    }

    fn send(&mut self, now_ns: u64) {
        for (to, outgoing) in &mut self.outgoing {
            while let Some(message) = outgoing.waiting.pop_front() {
                if let Err(message) = self.outside.mail.send(now_ns, *to, message) {
                    outgoing.waiting.push_front(message);
                    break;
                }
            }
        }
    }

    /// Looks whether this member serves, or another member, and tells the guard and the users.
    fn look(&mut self) {
        let primary = self.member.record().map(|record| record.primary);
        self.served_before = primary.filter(|it| *it != self.id).or(self.served_before);
        let serving = self.member.serving();
        if serving != self.reign {
            if self.reign.is_some() {
                self.end_term();
            }
            if let Some(reign) = serving {
                self.begin_term(reign);
            }
        }
        if self.reign.is_none() {
            let elsewhere = self.elsewhere();
            if self.told_elsewhere.as_ref() != Some(&elsewhere) {
                self.outside.watch.elsewhere(&elsewhere);
                self.records.end(&not_here(&elsewhere));
                self.told_elsewhere = Some(elsewhere);
            }
        }
        self.show();
    }

    /// The node that serves, as far as it is known.
    fn elsewhere(&self) -> String {
        let record = self.member.record().filter(|_| self.member.failed().is_none());
        let primary = record.map(|record| record.primary).filter(|primary| *primary != self.id);
        primary.and_then(|primary| self.list.nodes.get(&primary)).cloned().unwrap_or_default()
    }

    /// Its reign has ended. The guard hears of it before anything of the term is over: from then on
    /// it admits no client, so none can begin with what another member may not have.
    fn end_term(&mut self) {
        (self.reign, self.term, self.note) = (None, 0, None);
        self.snapshots.give_up();
        let elsewhere = self.elsewhere();
        self.outside.watch.elsewhere(&elsewhere);
        self.records.end(&not_here(&elsewhere));
        self.fronts.end_term();
        self.told_elsewhere = Some(elsewhere);
    }

    /// It begins to serve: records and incarnation first, then the word that clients may come.
    fn begin_term(&mut self, reign: u64) {
        let mut book = match NoteBook::of(self.member.note()) {
            Ok(book) => book.unwrap_or_else(|| NoteBook::new(self.number)),
            Err(error) => {
                return self.member.fail(format!(
                    "{error}; without the records of its attachments volume {} is not served: \
                     restore a member's state from a backup",
                    self.volume
                ));
            }
        };
        let incarnation = self.member.record().map_or(0, |record| record.incarnation);
        let parts = [self.volume.as_bytes(), &book.number, &incarnation.to_le_bytes()];
        let incarnation = Incarnation::digest(&parts);
        if self.list.size_bytes > 0 {
            // A guest has a record in a note, and each note of such a volume has a size.
            if book.size_bytes == 0 {
                book.size_bytes = self.list.size_bytes;
            }
            self.set_size(book.size_bytes);
        }
        self.records.begin(book);
        self.records.set_size(self.list.size_bytes);
        self.terms += 1;
        (self.reign, self.term, self.sweeps) = (Some(reign), self.terms, true);
        if let Some(given) = &mut self.given {
            given.extend(self.served_before);
        }
        self.fronts.shared().begin_term(self.term, incarnation);
        match self.outside.watch.serves() {
            Ok(()) => self.told_elsewhere = None,
            Err(why) => {
                self.member.fail(why);
                self.end_term();
            }
        }
    }

    /// Shows its state, if that has changed.
    fn show(&mut self) {
        let record = self.member.record();
        let life = self.member.life();
        let is_in = record.is_some_and(|record| record.has(self.id, life));
        let part = match record {
            _ if self.member.failed().is_some() => MemberPart::Failed,
            _ if self.reign.is_some() => MemberPart::Serves,
            Some(record) if is_in && record.primary == self.id => MemberPart::TakesOver,
            Some(_) if is_in => MemberPart::Backup,
            _ => MemberPart::Outside,
        };
        let epoch = record.map_or(0, |record| record.epoch);
        let follows = part == MemberPart::Backup && self.member.follows();
        let waits = self.member.waits();
        let filled = self.member.filling();
        let is_same = |shown: &(u64, MemberPart, bool, FilledPercent, Option<String>)| {
            let (shown_epoch, shown_part, followed, had, waited) = shown;
            (*shown_epoch, *shown_part, *followed, *had, waited.as_deref())
                == (epoch, part, follows, filled, waits)
        };
        if self.shown.as_ref().is_some_and(is_same) {
            return;
        }
        if let Some(why) = self.member.failed().filter(|why| *why != ENDED) {
            tracing::error!(volume = self.volume, why, "a copy of a replicated volume has stopped");
        }
        let waits = waits.map(str::to_owned);
        self.shown = Some((epoch, part, follows, filled, waits.clone()));
        let node = |member: &MemberId| self.list.nodes.get(member).cloned();
        let in_sync = record.into_iter().flat_map(|record| record.in_sync.keys());
        self.status.set(MemberView {
            part,
            primary: record.and_then(|record| node(&record.primary)),
            epoch,
            in_sync: in_sync.filter_map(node).collect(),
            follows,
            filling: filled
                .iter()
                .flatten()
                .filter_map(|(id, percent)| Some((node(id)?, *percent)))
                .collect(),
            waits,
            failed: self.member.failed().map(str::to_owned),
            ..MemberView::default()
        });
    }
}

/// The host as a client of the protocol.
fn own_client(life: Life) -> ClientId {
    ClientId { attachment: FrontLinks::attachment(life, 0), channel: 0, slot: 0 }
}

impl Poll for MemberHost {
    fn poll(&mut self, now_ns: u64) -> Progress {
        let mut progress = self.take_inputs(now_ns);
        // Not the round's time, which was read before: see the module.
        let clock_ns = (self.outside.clock)();
        self.give_inputs(clock_ns);
        progress |= self.member.poll(clock_ns, &mut self.out);
        self.settle(now_ns);
        progress
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let place = self.place();
        let has_note = self.note.is_none() && self.records.has_news();
        let waits = !self.inbox.is_empty()
            || !self.outside.desk.is_empty()
            || self.fronts.has_work(place)
            || has_note && matches!(place, FrontPlace::Here(_));
        // The tick is of a clock that also counts while the host sleeps, and a deadline is not.
        let left_ns = self.member.next_tick_ns().saturating_sub((self.outside.clock)());
        if self.member.failed().is_none() {
            wake.at(sidecore::now_ns() + left_ns);
        }
        self.member.arm(wake) | Progress::busy_if(waits)
    }

    fn disarm(&mut self) {
        self.member.disarm();
    }

    fn label(&self) -> String {
        format!("member of volume {:?}", self.volume)
    }
}
