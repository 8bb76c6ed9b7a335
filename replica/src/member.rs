//! A member of a volume: its state, its inputs, and its outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;

use crate::applied::{Applied, RequestId};
use crate::extent::{Extent, ExtentSet};
use crate::fetch::Fetch;
use crate::message::{Counter, Message, Note, Op, Place, SnapshotChange};
use crate::outside::Outside;
use crate::primary::Primary;
use crate::proof::{BlockProof, ProofQuestion, ScrubFinding, ScrubKey, ScrubOrder};
use crate::record::{Life, MemberId, VolumeRecord};
use crate::recovery::{RECOVERY_MARGIN, Recovery, RecoveryPlan};
use crate::rule::Rule;

/// The times of the protocol, the same for all members, and the sizes of its own reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pacing {
    /// How long a member lets a primary serve, from the primary's sending on.
    pub lease_ns: u64,
    /// How long a backup waits for a ping: the lease, and the drift of clocks meanwhile.
    pub patience_ns: u64,
    /// How long a primary waits for an answer before it goes on without a member.
    pub silence_ns: u64,
    /// The most sectors that are fetched at once, to make members equal.
    pub fetch_sectors_max: u32,
    /// How many such fetches are under way at most.
    pub fetches_max: usize,
    /// The sectors of a block of the members' storages: a block is damaged as a whole, and is
    /// written again as a whole.
    pub block_sectors: u32,
    /// The members of the volume, in sync or not.
    pub members: usize,
}

/// The state that a member must remember when it is restarted, besides the content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Durable {
    /// The epoch below which no message is heard.
    pub promised: u64,
    /// The newest record that it knows.
    pub record: Option<VolumeRecord>,
    /// The newest note that it was told to store.
    pub note: Note,
    /// The content is being filled since this place, or was never filled: it has old and new
    /// blocks beside each other, a state that the volume never had.
    pub filled_since: Option<Place>,
    /// The newest epoch by which it was in sync, if it is not by the record; else 0.
    pub was_in: u64,
    /// The end of the member's life, if its process ended in order. It is good for one start: it
    /// must be gone, durably, before the member that it was given to begins.
    pub ended: Option<LifeEnd>,
}

/// The state of a member in sync that ended in order, after all that it was told to store had
/// become durable. The record names its life, so the member goes on with that life and nothing is
/// lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LifeEnd {
    /// The life.
    pub life: Life,
    /// The last operation that the member did not get, in the reign whose operations it stored.
    pub began: Place,
    /// The sectors that it may have and other members may lack.
    pub tail: ExtentSet,
    /// The requests that were applied.
    pub applied: Applied,
    /// The newest cut of its content: content without this cut is older than the end.
    pub cut: Option<Place>,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClientRequest<D> {
    /// Writes a range.
    Write(Extent, D),
    /// Reads a range.
    Read(Extent),
    /// Makes all completed writes durable.
    Flush,
    /// Replaces the volume's note, durably.
    Note(Note),
    /// Takes or removes a snapshot. The requester sends it once: a request that is sent again
    /// through another member may be answered as done while some member in sync lacks the snapshot.
    Snapshot(SnapshotChange),
}

/// The outcome of a swap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SwapOutcome {
    /// The record is the new one.
    Done,
    /// Another change came first; the record is this.
    Conflict(VolumeRecord),
    /// No answer came. The swap may have happened, or may happen later.
    Unknown,
    /// The registry has no record of the volume: it was not made, or it was lost since.
    NoRecord,
}

/// Ranges that differ from a cut, from some sector on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChangedPart {
    /// The ranges.
    pub extents: Vec<Extent>,
    /// The sector from which on there may be more; none if these are all.
    pub next: Option<u64>,
}

/// An input of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Input<D> {
    /// Time has passed.
    Timer,
    /// A message from another member.
    Message(MemberId, Message<D>),
    /// A request of a client that knows the volume under this incarnation.
    Request(RequestId, u64, ClientRequest<D>),
    /// The outcome of [`Output::Swap`].
    Swapped(VolumeRecord, SwapOutcome),
    /// The registry's record, after [`Output::Look`] or by a watch. It may be an old one.
    Seen(VolumeRecord),
    /// The outcome of [`Output::Store`]. Operations are stored in the order of these outputs.
    Stored(Place),
    /// This change of the snapshots, which is stored next, could not be made: it is left out, and
    /// the primary is told so.
    LeftOut(Place),
    /// The outcome of [`Output::Fetch`].
    Fetched(Fetch, Extent, D),
    /// The other outcome of [`Output::Fetch`]: the storage cannot read the range, or a part of it.
    Unread(Fetch, Extent),
    /// The outcome of [`Output::Prove`]: a proof of each block of the range.
    Proved(ProofQuestion, Vec<BlockProof>),
    /// The outcome of [`Output::Compare`].
    Changed(MemberId, Place, ChangedPart),
    /// The other outcome of [`Output::Compare`]: the cut is gone, by no wish of the protocol.
    CutGone(MemberId, Place),
    /// An operator makes another member the primary.
    Move(MemberId),
    /// An operator says that a member's copy of the volume is gone for good.
    Evicted(MemberId),
    /// An operator has this member's copy serve.
    Recover(Recovery),
    /// An operator's word about a scrub.
    Scrub(ScrubOrder),
    /// No message comes from this member any more, or it must not come into sync: its attempt to
    /// join ends. It may begin again.
    Left(MemberId),
    /// The process that had a member in this life has ended, as is proved: it answers nothing any
    /// more. This is never said of a life that another process goes on with.
    Over(MemberId, Life),
    /// No request of this attachment comes any more, neither from its client nor from the wire: its
    /// epoch is over. Lost with the primary; the next primary is told by the next attachment.
    Forget(u128),
}

/// An output of a member. Outputs are carried out in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Output<D> {
    /// A message for another member.
    Send(MemberId, Message<D>),
    /// The registry's record must be replaced by this record, if its epoch is one less.
    Swap(VolumeRecord),
    /// The registry's record must be replaced by the plan's, or made, if it is not newer than the
    /// known record. Its outcome is that of [`Output::Swap`].
    Remake(RecoveryPlan),
    /// The registry's record must be read.
    Look,
    /// This must be durable before any later output is carried out.
    Keep(Durable),
    /// The operation must be stored, after all earlier ones.
    Store(Place, Op<D>),
    /// A cut is not needed any more.
    Drop(Place),
    /// The range must be read, after all operations that were given out before.
    Fetch(Fetch, Extent),
    /// The range must be written, after all operations that were given out before and before all
    /// later ones. The content is what the range has: the storage could not read it.
    Mend(Extent, D),
    /// No member in sync can read this range. It stays so until it is written as a whole, or
    /// another member comes into sync.
    Lost(Extent),
    /// The blocks of the range must be read, after all operations that were given out before, and a
    /// digest of each must be made with the key.
    Prove(ProofQuestion, Extent, ScrubKey),
    /// A scrub has found a block that copies have in different forms.
    Found(ScrubFinding),
    /// The content must become the cut's, or empty.
    GoBack(Option<Place>),
    /// Ranges must be found that changed since the cut (none: all that were ever written), from
    /// this sector on, for a member that joins and began behind this operation. As many as are
    /// looked at in one go, and more in the next one.
    Compare(MemberId, Place, Option<Place>, u64),
    /// No further part of this difference is wanted: the attempt to join has ended.
    EndCompare(MemberId, Place),
    /// The client's request is completed, for a read with the range's content.
    Answer(RequestId, Option<D>),
    /// The client's read ends without content: its range, or a part of it, cannot be read.
    Unreadable(RequestId),
    /// The client's request is of an older incarnation than this, which the volume has now: it is
    /// not carried out any more.
    Refuse(RequestId, u64),
    /// The table of applied requests has no place for another client, or too much is under way: the
    /// request was not taken, and may be offered again when an attachment was forgotten, or when
    /// there is room.
    Full(RequestId),
}

/// A member's knowledge about its content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holding {
    /// The reign whose operations it stores, and the last operation of it that it did not get.
    pub(crate) began: Place,
    /// The last operation that it was told to store, and the last one that is stored.
    pub(crate) issued: Counter,
    pub(crate) stored: Counter,
    /// The last change of the snapshots that its storage could not make.
    pub(crate) left_out: Counter,
    /// The ranges of operations that other members may lack, and such ranges of earlier reigns.
    pub(crate) tail: BTreeMap<Counter, Extent>,
    pub(crate) old_tail: ExtentSet,
    pub(crate) applied: Applied,
    pub(crate) note: Note,
    pub(crate) cuts: BTreeSet<Place>,
    /// The reign of the table of applied requests that it has taken last.
    pub(crate) equal_in: u64,
    /// The cut of its content before the first operation that made it equal, while the primary's
    /// table of applied requests has not come.
    pub(crate) own_cut: Option<Place>,
}

impl Holding {
    /// Begins with the operations of a reign.
    pub(crate) fn begin(&mut self, began: Place) {
        self.old_tail.extend(std::mem::take(&mut self.tail).into_values());
        self.old_tail.coarsen(TAIL_RANGES_MAX);
        self.began = began;
        (self.issued, self.stored, self.left_out) = (began.counter, began.counter, 0);
    }

    /// All members in sync have all operations up to here.
    pub(crate) fn all_have(&mut self, held: Counter) {
        self.tail = self.tail.split_off(&(held + 1));
    }

    /// The sectors that this member may have and other members may lack.
    pub(crate) fn whole_tail(&self) -> ExtentSet {
        let mut whole = self.old_tail.clone();
        whole.extend(self.tail.values().copied());
        whole.coarsen(TAIL_RANGES_MAX);
        whole
    }
}

/// A member's part in its volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MemberRole<D> {
    /// Not in sync: it waits, or joins.
    Outside(Outside),
    /// In sync, and another member serves.
    Backup,
    /// It serves, or is about to.
    Primary(Box<Primary<D>>),
}

/// A member of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replica<D> {
    pub(crate) id: MemberId,
    pub(crate) life: Life,
    pub(crate) pacing: Pacing,
    pub(crate) broken: Option<Rule>,
    pub(crate) promised: u64,
    pub(crate) record: Option<VolumeRecord>,
    pub(crate) role: MemberRole<D>,
    /// The last time at which it let a primary go on.
    pub(crate) granted_ns: u64,
    pub(crate) holding: Holding,
    /// The swap that was asked for and has no known outcome.
    pub(crate) swap: Option<VolumeRecord>,
    /// The plan of which it is the record, if an operator has asked for it.
    pub(crate) remake: Option<RecoveryPlan>,
    /// When it was asked for first.
    pub(crate) remade_ns: u64,
    /// The registry has said that it has no record: the swap is told as made no more, unless it is
    /// an operator's.
    pub(crate) is_void: bool,
    /// Swaps without an outcome of before, the latest last.
    pub(crate) swaps_before: Vec<VolumeRecord>,
    /// An operator's word that waits for the end of leases.
    pub(crate) recovery: Option<Recovery>,
    pub(crate) filled_since: Option<Place>,
    /// The newest epoch by which it was in sync.
    pub(crate) was_in: u64,
    /// The differences that are being looked for: the members, and where their attempts began.
    pub(crate) differences: BTreeMap<MemberId, Place>,
    /// The reign in which its process ended in order, or a later reign that the process before may
    /// have begun. It has no part in that reign any more, since it does not know which operations
    /// and answers were under way: it waits for the next reign, or begins that itself.
    pub(crate) resumed: Option<u64>,
    /// Ranges that are being read for the primary.
    pub(crate) lending: BTreeSet<(Place, Extent)>,
    /// Questions of a scrub for which ranges are being read.
    pub(crate) proving: BTreeSet<ProofQuestion>,
}

impl<D: Clone + Debug + Eq + Hash + Ord> Replica<D> {
    /// A member at the start of its process, with what was durable, and the cuts of its content.
    pub fn start(
        id: MemberId,
        life: Life,
        pacing: Pacing,
        durable: Durable,
        cuts: BTreeSet<Place>,
        now_ns: u64,
    ) -> Self {
        let Durable { promised, record, note, filled_since, was_in, ended } = durable;
        // The end of a life that the record does not have in sync is of no use, nor is one beside
        // content that was put back to an older state.
        let is_good = |end: &LifeEnd| {
            let is_in = record.as_ref().is_some_and(|it| it.has(id, end.life));
            is_in && end.cut.is_none_or(|cut| cuts.contains(&cut))
        };
        let ended = ended.filter(is_good);
        let (life, role, resumed) = match (&ended, &record) {
            (Some(end), Some(record)) => (end.life, MemberRole::Backup, Some(record.reign)),
            _ => (life, MemberRole::Outside(Outside::default()), None),
        };
        // A member that knows no record has never been filled.
        let filled_since = record.as_ref().map_or(Some(Place::default()), |_| filled_since);
        let is_in = |record: &VolumeRecord| record.in_sync.contains_key(&id);
        let was_in = record.as_ref().filter(|it| is_in(it)).map_or(was_in, |it| it.epoch);
        // A release before these marks may have been filling the copy.
        let filled_since = filled_since.or((was_in == 0).then(Place::default));
        let LifeEnd { began, tail, applied, .. } = ended.unwrap_or_default();
        let holding = Holding {
            began,
            issued: began.counter,
            stored: began.counter,
            left_out: 0,
            tail: BTreeMap::new(),
            old_tail: tail,
            applied,
            note,
            // A process that ended may have left a cut of its own.
            cuts: cuts.into_iter().filter(|cut| !cut.is_own()).collect(),
            equal_in: 0,
            own_cut: None,
        };
        Self {
            id,
            life,
            pacing,
            broken: None,
            promised,
            record,
            role,
            granted_ns: now_ns,
            holding,
            swap: None,
            remake: None,
            remade_ns: 0,
            is_void: false,
            swaps_before: Vec::new(),
            recovery: None,
            filled_since,
            was_in,
            differences: BTreeMap::new(),
            resumed,
            lending: BTreeSet::new(),
            proving: BTreeSet::new(),
        }
    }

    /// The state with which the next process of this member goes on, if it is in sync. The caller
    /// ends the member in order: it gives no input any more, carries all outputs out, makes the
    /// content durable, and then keeps this state.
    ///
    /// A member with content that is half equal to its primary's has no such state.
    pub fn end(&self) -> Option<Durable> {
        let is_whole = self.holding.own_cut.is_none();
        let record = self.record.as_ref().filter(|it| is_whole && it.has(self.id, self.life))?;
        let ended = LifeEnd {
            life: self.life,
            began: self.holding.began,
            tail: self.holding.whole_tail(),
            applied: self.holding.applied.clone(),
            cut: self.holding.cuts.last().copied(),
        };
        let (promised, note) = (self.promised, self.holding.note.clone());
        let record = Some(record.clone());
        Some(Durable { promised, record, note, ended: Some(ended), ..Durable::default() })
    }

    /// Whether it has no part in the operations of this reign, since its process ended in it.
    pub(crate) fn is_past_reign(&self, reign: u64) -> bool {
        self.resumed.is_some_and(|last| reign <= last)
            && !self.breaks(Rule::ResumedMembersReignAnew)
    }

    /// The same member with one rule broken, for tests.
    #[must_use]
    pub fn breaking(mut self, broken: Option<Rule>) -> Self {
        self.broken = broken;
        if self.breaks(Rule::RestartIsLoss)
            && let Some(record) = &self.record
            && let Some(life) = record.in_sync.get(&self.id)
        {
            (self.life, self.role) = (*life, MemberRole::Backup);
        }
        self
    }

    /// Waits so long for a silent primary before it takes over, and a lease at least. A backup that
    /// must be the last to take over waits longer than other backups.
    pub fn set_patience(&mut self, patience_ns: u64) {
        self.pacing.patience_ns = patience_ns.max(self.pacing.lease_ns);
    }

    /// The volume has so many members from now on, in sync or not.
    pub fn set_members(&mut self, members: usize) {
        self.pacing.members = members;
    }

    /// Its life.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The newest record that it knows.
    pub fn record(&self) -> Option<&VolumeRecord> {
        self.record.as_ref()
    }

    /// The volume's note, as far as it knows. It is true for a member that serves.
    pub fn note(&self) -> &Note {
        &self.holding.note
    }

    /// The members that it fills as the primary, each with the sector from which on the difference
    /// is not known yet; none if all of it is.
    pub fn filling(&self) -> impl Iterator<Item = (MemberId, Option<u64>)> + '_ {
        let primary = match &self.role {
            MemberRole::Primary(primary) => Some(primary),
            _ => None,
        };
        primary.into_iter().flat_map(|primary| primary.filling())
    }

    /// Whether it is the primary, as far as it knows.
    pub fn is_primary(&self) -> bool {
        matches!(self.role, MemberRole::Primary(_))
    }

    /// The reign in which it serves, if it is a primary that has made all members equal. It may be
    /// one that no lease allows to answer at this time.
    pub fn serving(&self) -> Option<u64> {
        match &self.role {
            MemberRole::Primary(primary) if primary.is_serving() => Some(primary.reign),
            _ => None,
        }
    }

    /// Whether it takes requests. Each that it takes has an answer, unless its reign ends before.
    pub fn takes_requests(&self) -> bool {
        matches!(&self.role, MemberRole::Primary(primary) if primary.takes_requests())
    }

    /// Whether there is room for further requests: a member that is slow holds them back. Requests
    /// that were on their way before are taken, up to as much again.
    pub fn has_room(&self) -> bool {
        matches!(&self.role, MemberRole::Primary(primary) if primary.has_room())
    }

    /// The place of the last change of the snapshots, and the members in sync, perhaps this one
    /// among them, that have left it out; none if this member does not serve, or made no change.
    pub fn last_snapshot(&self) -> Option<(Place, Vec<MemberId>)> {
        let MemberRole::Primary(primary) = &self.role else { return None };
        primary.last_snapshot((self.id, self.holding.left_out))
    }

    /// The attachments of clients with requests that it remembers.
    pub fn attachments(&self) -> BTreeSet<u128> {
        self.holding.applied.requests().map(|id| id.client.attachment).collect()
    }

    /// Whether it answers reads at this time.
    pub fn serves(&self, now_ns: u64) -> bool {
        match &self.role {
            MemberRole::Primary(primary) => primary.is_serving() && self.may_read(now_ns),
            _ => false,
        }
    }

    /// Makes all times that it remembers earlier. A test's clock can stand still so: members that
    /// differ in the time alone are the same.
    pub fn age(&mut self, by_ns: u64) {
        self.granted_ns = self.granted_ns.saturating_sub(by_ns);
        self.remade_ns = self.remade_ns.saturating_sub(by_ns);
        match &mut self.role {
            MemberRole::Outside(outside) => {
                outside.heard_ns = outside.heard_ns.saturating_sub(by_ns);
            }
            MemberRole::Backup => {}
            MemberRole::Primary(primary) => primary.age(by_ns),
        }
    }

    pub(crate) fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    /// Takes one input, and adds its outputs.
    pub fn step(&mut self, now_ns: u64, input: Input<D>, out: &mut Vec<Output<D>>) {
        match input {
            Input::Timer => self.timer(now_ns, out),
            Input::Message(from, message) => self.hear(now_ns, from, message, out),
            Input::Request(id, incarnation, request) => {
                self.request(now_ns, id, incarnation, request, out);
            }
            Input::Swapped(target, outcome) => self.swapped(now_ns, target, outcome, out),
            Input::Seen(record) => self.see(now_ns, record, out),
            Input::Stored(place) => self.stored(now_ns, place, out),
            Input::LeftOut(place) => self.left_out(place),
            Input::Fetched(fetch, extent, data) => self.fetched(now_ns, fetch, extent, data, out),
            Input::Unread(fetch, extent) => self.unread(now_ns, fetch, extent, out),
            Input::Proved(question, proofs) => self.proved_here(now_ns, question, proofs, out),
            Input::Changed(member, began, part) => self.changed(member, began, part, out),
            Input::CutGone(member, began) => self.cut_gone(member, began),
            Input::Move(to) => self.start_move(now_ns, to, out),
            Input::Evicted(member) => self.evicted(now_ns, member, out),
            Input::Recover(recovery) => self.recover(now_ns, recovery, out),
            Input::Scrub(order) => self.order_scrub(now_ns, order, out),
            Input::Left(member) => self.end_joins(|other| other == member),
            Input::Over(member, life) => self.over(member, life, out),
            Input::Forget(attachment) => self.forget(attachment, out),
        }
        if !self.differences.is_empty() {
            self.end_differences(out);
        }
    }

    /// Ends the differences of attempts to join that are over.
    fn end_differences(&mut self, out: &mut Vec<Output<D>>) {
        let Self { differences, role, .. } = self;
        differences.retain(|member, began| {
            let is_wanted = match &*role {
                MemberRole::Primary(primary) => primary.compares(*member, *began),
                _ => false,
            };
            if !is_wanted {
                out.push(Output::EndCompare(*member, *began));
            }
            is_wanted
        });
    }

    fn timer(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        // A swap of unknown outcome is asked for again, never given up: it may happen later.
        match (&self.remake, &self.swap) {
            (Some(plan), _) => self.remake_again(now_ns, plan, out),
            (None, Some(target)) => out.push(Output::Swap(target.clone())),
            (None, None) => {}
        }
        if self.recovery.is_some() {
            self.try_recovery(now_ns, out);
        }
        match &self.role {
            MemberRole::Outside(_) => self.outside_timer(now_ns, out),
            MemberRole::Backup => self.backup_timer(now_ns, out),
            MemberRole::Primary(_) => self.primary_timer(now_ns, out),
        }
    }

    fn hear(&mut self, now_ns: u64, from: MemberId, message: Message<D>, out: &mut Vec<Output<D>>) {
        match message {
            Message::Ping { record, life, sent_ns, held } => {
                self.ping(now_ns, from, record, life, sent_ns, held, out);
            }
            Message::Seal { record } => self.seal(now_ns, from, record, out),
            Message::Append { epoch, life, began, counter, op } => {
                self.append(from, (epoch, life, began), counter, op, out);
            }
            Message::GoBack { record, life, cut, began } => {
                self.go_back(now_ns, from, (record, life), cut, began, out);
            }
            Message::Hello { life, epoch } => self.say_life(from, Some((life, epoch)), out),
            Message::Ask { number } => {
                let knowledge = self.knowledge();
                out.push(Output::Send(from, Message::Known { number, knowledge }));
            }
            // It is the operator's tool that has asked.
            Message::Known { .. } => {}
            Message::Alive { life, record, answers } => {
                self.alive(now_ns, from, life, record, answers, out);
            }
            Message::Pong { epoch, life, sent_ns } => {
                self.pong(now_ns, from, epoch, life, sent_ns, out);
            }
            Message::Sealed { epoch, life, tail } => {
                self.sealed(now_ns, from, epoch, life, tail, out);
            }
            Message::Held { life, began, counter, left_out } => {
                self.held(now_ns, from, life, began, (counter, left_out), out);
            }
            Message::Join { epoch, life, cuts } => {
                self.join(now_ns, from, epoch, life, &cuts, out);
            }
            Message::Lend { epoch, life, counter, extent } => {
                self.lend(from, (epoch, life), counter, extent, out);
            }
            Message::Lent { life, place, extent, data } => {
                self.lent(now_ns, (from, life), place, (extent, data), out);
            }
            Message::Prove { epoch, life, number, extent, key } => {
                self.prove(from, (epoch, life), number, (extent, key), out);
            }
            Message::Proved { life, reign, number, proofs } => {
                self.proved(now_ns, (from, life), (reign, number), proofs, out);
            }
        }
    }

    /// The records that were asked for and may be the registry's.
    pub(crate) fn swaps(&self) -> impl Iterator<Item = &VolumeRecord> {
        self.swap.iter().chain(&self.swaps_before)
    }

    /// Asks for a swap, one at a time.
    pub(crate) fn ask_for(&mut self, target: VolumeRecord, out: &mut Vec<Output<D>>) {
        if self.swap.is_none() {
            (self.swap, self.is_void) = (Some(target.clone()), false);
            out.push(Output::Swap(target));
        }
    }

    fn swapped(
        &mut self,
        now_ns: u64,
        target: VolumeRecord,
        outcome: SwapOutcome,
        out: &mut Vec<Output<D>>,
    ) {
        let is_mine = self.swap.as_ref() == Some(&target);
        match outcome {
            SwapOutcome::Done => self.adopt(now_ns, target, out),
            SwapOutcome::Conflict(record) => {
                if is_mine {
                    (self.swap, self.remake) = (self.swaps_before.pop(), None);
                    self.is_void = false;
                }
                // Nothing came first: the registry refuses this change, and would again at once.
                if is_mine && record.epoch < target.epoch {
                    self.end_joins(|member| target.in_sync.contains_key(&member));
                }
                self.adopt(now_ns, record, out);
                self.go_on(now_ns, out);
            }
            SwapOutcome::NoRecord => self.is_void |= is_mine && self.remake.is_none(),
            SwapOutcome::Unknown => {
                if is_mine && self.breaks(Rule::UnknownSwapsMayHaveHappened) {
                    self.swap = None;
                    self.go_on(now_ns, out);
                }
            }
        }
    }

    /// The registry has this record, or had it.
    fn see(&mut self, now_ns: u64, record: VolumeRecord, out: &mut Vec<Output<D>>) {
        if self.breaks(Rule::RegistryNeverGoesBack)
            && self.record.as_ref().is_some_and(|known| known.epoch > record.epoch)
        {
            (self.promised, self.record) = (0, None);
        }
        // The registry may carry swaps out again.
        self.is_void = false;
        self.end_remake(&record);
        self.adopt_told(now_ns, record, out);
    }

    /// Takes a newer record for true that is no answer to a swap of this process. It may be of
    /// before the process: an operator, after the end of the last process, may have had another
    /// copy serve since. So a member that goes on with its life is no primary by it, and asks for
    /// the next reign: the registry makes that if nothing came between.
    pub(crate) fn adopt_told(
        &mut self,
        now_ns: u64,
        record: VolumeRecord,
        out: &mut Vec<Output<D>>,
    ) {
        let is_next = |known: &VolumeRecord| {
            record.epoch > known.epoch && record.reign > known.reign && record.primary == self.id
        };
        let begins = self.record.as_ref().is_some_and(is_next);
        if begins && !self.breaks(Rule::ResumedMembersAskAnew) {
            self.resumed = self.resumed.map(|_| record.reign);
        }
        self.adopt(now_ns, record, out);
    }

    /// Takes a newer record for true.
    pub(crate) fn adopt(&mut self, now_ns: u64, record: VolumeRecord, out: &mut Vec<Output<D>>) {
        // A registry that was put back has epochs that are used up.
        let known = self.record.as_ref().map_or(0, |known| known.epoch);
        let is_news = match self.breaks(Rule::NewerRecordsOnly) {
            true => record.epoch != known,
            false => record.epoch > known,
        };
        if !is_news {
            return;
        }
        self.promised = self.promised.max(record.epoch);
        let before = self.record.replace(record.clone());
        let is_in = record.has(self.id, self.life);
        // The operator has decided without this news.
        self.recovery = None;
        // Nothing was acknowledged under it without this copy, also if its life has ended.
        let counts = record.in_sync.contains_key(&self.id);
        // A copy that began to be filled was out of sync then, so that the record is of its
        // admission, in this life or in one before. A copy that never began may only have the
        // number of a lost copy.
        let is_filled = |since: &Place| is_in || counts && *since != Place::default();
        self.filled_since = self.filled_since.filter(|since| !is_filled(since));
        self.was_in = if counts { record.epoch } else { self.was_in };
        // The new primary may not know yet that it is one. It need not wait until this is kept.
        if is_in && record.primary != self.id && matches!(self.role, MemberRole::Primary(_)) {
            self.say_life(record.primary, None, out);
        }
        self.keep(out);
        let is_over = |target: &VolumeRecord| target.epoch <= record.epoch;
        self.swaps_before.retain(|target| !is_over(target));
        if self.swap.as_ref().is_some_and(is_over) {
            (self.swap, self.remake) = (None, None);
        }
        let is_remade = record.reign.saturating_sub(known) >= RECOVERY_MARGIN;
        // A swap of before its process ended may come late, in the reign of that time.
        let reigns = record.primary == self.id && !self.is_past_reign(record.reign);
        if is_in && reigns {
            match &self.role {
                MemberRole::Primary(primary) if primary.reign == record.reign => {
                    self.record_changed(out);
                }
                _ => self.become_primary(now_ns, is_remade, out),
            }
            self.go_on(now_ns, out);
        } else if is_in {
            if self.role != MemberRole::Backup {
                self.role = MemberRole::Backup;
                self.granted_ns = now_ns;
            }
        } else {
            let same_reign = before.is_some_and(|before| before.reign == record.reign);
            match &self.role {
                MemberRole::Outside(outside) if outside.joins && same_reign => {}
                _ => self.role = MemberRole::Outside(Outside::default()),
            }
        }
    }

    pub(crate) fn keep(&self, out: &mut Vec<Output<D>>) {
        let (promised, record) = (self.promised, self.record.clone());
        let (note, filled_since) = (self.holding.note.clone(), self.filled_since);
        let is_in = record.as_ref().is_some_and(|it| it.in_sync.contains_key(&self.id));
        let was_in = if is_in { 0 } else { self.was_in };
        let durable = Durable { promised, record, note, filled_since, was_in, ended: None };
        out.push(Output::Keep(durable));
    }

    /// Says its life, and the record that it knows.
    pub(crate) fn say_life(
        &self,
        to: MemberId,
        answers: Option<(Life, u64)>,
        out: &mut Vec<Output<D>>,
    ) {
        let alive = Message::Alive { life: self.life, record: self.record.clone(), answers };
        out.push(Output::Send(to, alive));
    }

    /// Takes an operation into the holding, and has it stored.
    pub(crate) fn take(&mut self, counter: Counter, op: Op<D>, out: &mut Vec<Output<D>>) {
        let joins = matches!(self.role, MemberRole::Outside(_));
        self.holding.issued = counter;
        let op = match op {
            Op::Write { id, extent, .. } => {
                self.holding.tail.insert(counter, extent);
                self.holding.applied.note(id);
                op
            }
            Op::Equal { extent, .. } => {
                self.prepare_equal(extent, out);
                self.holding.tail.insert(counter, extent);
                op
            }
            Op::Flush { id } => {
                self.holding.applied.note(id);
                op
            }
            Op::Note { id, ref note } => {
                self.holding.applied.note(id);
                self.holding.note.clone_from(note);
                self.keep(out);
                op
            }
            Op::Forget(attachment) => {
                self.holding.applied.forget(attachment);
                op
            }
            // The content of a member that joins is not the primary's yet.
            Op::Cut if joins => Op::Nothing,
            Op::Snapshot { id, ref change } => {
                self.holding.applied.note(id);
                let is_taken = matches!(change, SnapshotChange::Take { .. });
                let leaves_out = joins && is_taken && !self.breaks(Rule::JoinsTakeNoSnapshots);
                if leaves_out {
                    self.holding.left_out = counter;
                }
                if leaves_out { Op::Nothing } else { op }
            }
            Op::Cut => {
                self.holding.cuts.insert(Place { counter, ..self.holding.began });
                self.drop_surplus_cuts(out);
                op
            }
            Op::Applied { ref applied, ref note } => {
                self.holding.applied.clone_from(applied);
                if self.holding.note != *note && !self.breaks(Rule::NotesComeWithAdmission) {
                    self.holding.note.clone_from(note);
                    self.keep(out);
                }
                // Tails of earlier reigns are equal now.
                self.holding.old_tail.clear();
                self.holding.equal_in = self.holding.began.reign;
                let own_cut = self.holding.own_cut.take();
                out.push(Output::Store(Place { counter, ..self.holding.began }, op));
                return out.extend(own_cut.map(Output::Drop));
            }
            Op::Fill { to, .. } if to != self.id || !joins => Op::Nothing,
            Op::Fill { extent, .. } => {
                // It has operations in it that other members may lack.
                if !self.breaks(Rule::FillsAreTail) {
                    self.holding.tail.insert(counter, extent);
                }
                op
            }
            Op::Nothing => op,
        };
        out.push(Output::Store(Place { counter, ..self.holding.began }, op));
    }

    fn left_out(&mut self, Place { reign, counter }: Place) {
        if reign == self.holding.began.reign && counter <= self.holding.issued {
            self.holding.left_out = counter;
        }
    }

    fn stored(&mut self, now_ns: u64, place: Place, out: &mut Vec<Output<D>>) {
        let Place { reign, counter } = place;
        let is_next = counter > self.holding.stored && counter <= self.holding.issued;
        if reign != self.holding.began.reign || !is_next {
            return;
        }
        self.holding.stored = counter;
        match &self.role {
            MemberRole::Primary(_) => self.go_on(now_ns, out),
            _ => self.say_held(out),
        }
    }
}

/// Ranges of a tail of earlier reigns, so that it fits a message. Of more of them the smallest gaps
/// are closed: sectors that all members have alike are made equal without harm.
pub(crate) const TAIL_RANGES_MAX: usize = 4096;
