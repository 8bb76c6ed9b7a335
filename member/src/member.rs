//! The member itself: the protocol, and its outputs in their order. It has no clock, no thread and
//! no network. Its owner gives it time, messages and ends of errands, and carries its messages and
//! errands away.

mod recovery;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use replica::{
    ClientRequest, Counter, Durable, Fetch, Input, Life, MemberId, Message, Note, Op, Output,
    Pacing, Place, RecoveryPlan, Replica, RequestId, ScrubFinding, ScrubStage, SwapOutcome,
    VolumeRecord,
};
use sidecore::{Progress, Wake};
use volume::{Channel, Size};

use crate::content::RangeContent;
use crate::damage::DamageBook;
use crate::queue::{VolumeTask, VolumeTaskEnd, WorkQueue};
use crate::scrub::{ProofWork, ScrubBook};
use crate::status::FilledPercent;
use recovery::Survey;

pub use recovery::RecoveryView;

/// The time between two looks at the protocol's clocks: a tenth of the time after which a member is
/// silent.
pub const TICK_NS: u64 = 100_000_000;

/// Percent are told in steps: each change is written into the cluster's registry.
const PERCENT_STEP: u8 = 5;

/// How long a member that stores nothing more waits for operations before they are sent again. A
/// session loses nothing, so only a message that a member has not heard is sent again.
const RESEND_NS: u64 = 500_000_000;

/// Outputs that wait for the private file. With more of them no message is taken: each is sent
/// again.
const OUTPUTS_MAX: usize = 4096;

/// Works on the volume that wait. With more of them no message is taken.
const WORKS_MAX: usize = 16_384;

/// Something that a thread does for a member, because it may wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Errand {
    /// To make this durable.
    Keep(Durable),
    /// To replace the registry's record by this record.
    Swap(VolumeRecord),
    /// To make the registry's record anew.
    Remake(RecoveryPlan),
    /// To read the registry's record.
    Look,
    /// To change the volume as a whole.
    Volume(VolumeTask),
}

/// The end of an [`Errand`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrandEnd {
    /// The state is durable.
    Kept,
    /// The state cannot be made durable, for this reason: the member stops.
    NotKept(String),
    /// The outcome of a swap.
    Swapped(VolumeRecord, SwapOutcome),
    /// The registry's record.
    Seen(VolumeRecord),
    /// There is no record to be seen now, for this reason.
    NotSeen(String),
    /// The record is not for this member, says this text: the member stops.
    NoRecord(String),
    /// The registry has lost the volume's record, says this text: it cannot be read, or be replaced
    /// by this record.
    Lost(Option<VolumeRecord>, String),
    /// The registry's record was not made anew, for this reason.
    NotRemade(RecoveryPlan, String),
    /// The end of a change of the volume.
    Volume(VolumeTaskEnd),
    /// Of no errand: the process that had this member in this life has ended, as is proved.
    Over(MemberId, Life),
}

/// The end of a client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done; a read has content.
    Done(RequestId, Option<RangeContent>),
    /// The volume has this incarnation now, and the request is of an older incarnation.
    Refused(RequestId, u64),
    /// The table of applied requests is full: offer it again later.
    Full(RequestId),
    /// A part of its range is damaged, and no member in sync has it.
    Unreadable(RequestId),
    /// Its range is not in the volume that users have, or its content is of another length.
    Invalid(RequestId),
}

/// A member's messages, errands and answers for its owner, which takes all of them after each call.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Messages for other members.
    pub messages: Vec<(MemberId, Message<RangeContent>)>,
    /// Errands.
    pub errands: Vec<Errand>,
    /// Ends of requests.
    pub answers: Vec<Answer>,
    /// Blocks that copies have in different forms, and that are named.
    pub findings: Vec<ScrubFinding>,
}

/// How far a member is that ends in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetireStage {
    /// It does what the protocol has given out.
    Working,
    /// It makes its content durable.
    Flushing,
    /// It keeps the end of its life.
    Keeping,
    /// It has done all that it can.
    Done,
}

/// The operations that were sent to a member, so that they are not sent again while they are under
/// way.
#[derive(Clone, Copy, Debug, Default)]
struct SentAppends {
    epoch: u64,
    life: Life,
    began: Counter,
    last: Counter,
    /// The last operation that it has stored, and the time of the last news of it.
    held: Counter,
    news_ns: u64,
}

/// Counters of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberCounters {
    /// Messages that were not taken, because too much waited.
    pub dropped: u64,
    /// Requests of a range beyond the volume's end, or with content of another length.
    pub refused: u64,
    /// Operations that were not sent again, because they are under way.
    pub spared: u64,
}

/// A member.
#[derive(Debug)]
pub struct VolumeMember {
    replica: Replica<RangeContent>,
    queue: WorkQueue,
    sectors: u64,
    /// Operations beyond the end of its own volume wait.
    waits_to_grow: bool,
    /// Outputs that have not been carried out: the first one waits for the private file.
    outputs: VecDeque<Output<RangeContent>>,
    is_keeping: bool,
    /// A swap and a look are asked for one at a time: the protocol asks for them again and again.
    swapping: Option<VolumeRecord>,
    is_looking: bool,
    /// Why the last look has seen no record.
    unseen: Option<String>,
    /// The registry has lost the record, says the text there.
    is_lost: bool,
    /// The answers of other members to an operator's question, and why the registry has refused an
    /// operator's record.
    survey: Survey,
    refused: Option<String>,
    sent: BTreeMap<MemberId, SentAppends>,
    /// The operation by which the present primary has said that all members in sync are equal, and
    /// whether this member has said that it has it.
    equal: (Place, bool),
    inputs: Vec<Input<RangeContent>>,
    scratch: Vec<Output<RangeContent>>,
    next_tick_ns: u64,
    /// It knows no record yet, and has not looked. It hears nothing before: a record of a message
    /// would be kept, and a member that has lost its state would pass for one that has it.
    is_new: bool,
    counters: MemberCounters,
    damage: Arc<DamageBook>,
    scrubs: Arc<ScrubBook>,
    block_sectors: u32,
    failed: Option<String>,
    /// It ends in order, and gives the protocol no input any more.
    retiring: Option<RetireStage>,
}

/// The state that a member starts with.
#[derive(Clone, Debug)]
pub struct MemberStart {
    /// Its name among the members.
    pub id: MemberId,
    /// A random number of this start.
    pub life: Life,
    /// The protocol's times.
    pub pacing: Pacing,
    /// The state that was kept.
    pub durable: Durable,
    /// The cuts that the volume has.
    pub cuts: BTreeSet<Place>,
    /// The size of the volume that users have.
    pub sectors: u64,
    /// The size of the member's own volume, if that may be smaller for a while: operations beyond
    /// its end wait.
    pub own: Option<Size>,
}

impl VolumeMember {
    /// A member over a channel of its volume, which was opened for
    /// [`MEMBER_DEPTH`](crate::MEMBER_DEPTH) requests.
    pub fn new(start: MemberStart, channel: Box<dyn Channel>, now_ns: u64) -> Self {
        let MemberStart { id, life, pacing, durable, cuts, sectors, own } = start;
        let is_new = durable.record.is_none();
        Self {
            is_new,
            replica: Replica::start(id, life, pacing, durable, cuts, now_ns),
            waits_to_grow: own.is_some(),
            queue: WorkQueue::new(channel, own),
            sectors,
            outputs: VecDeque::new(),
            is_keeping: false,
            swapping: None,
            is_looking: false,
            unseen: None,
            is_lost: false,
            survey: Survey::default(),
            refused: None,
            sent: BTreeMap::new(),
            equal: (Place::default(), false),
            inputs: Vec::new(),
            scratch: Vec::new(),
            next_tick_ns: now_ns,
            counters: MemberCounters::default(),
            damage: Arc::default(),
            scrubs: Arc::default(),
            block_sectors: pacing.block_sectors,
            failed: None,
            retiring: None,
        }
    }

    /// The same, and the damage that it meets and its scrubs are noted here.
    pub(crate) fn noting(self, damage: &Arc<DamageBook>, scrubs: &Arc<ScrubBook>) -> Self {
        Self { damage: Arc::clone(damage), scrubs: Arc::clone(scrubs), ..self }
    }

    /// Notes how far the scrub is, for other threads.
    pub(crate) fn note_scrub(&self, now_ns: u64) {
        self.scrubs.note(now_ns, self.replica.scrub().filter(|_| self.failed.is_none()));
    }

    /// Whether the volume is being scrubbed.
    pub(crate) fn scrubs(&self) -> bool {
        let stage = self.replica.scrub().map(|report| report.stage);
        self.runs() && matches!(stage, Some(ScrubStage::Runs | ScrubStage::Paused))
    }

    /// See [`Replica::set_patience`].
    pub(crate) fn set_patience(&mut self, patience_ns: u64) {
        self.replica.set_patience(patience_ns);
    }

    /// Its life: a new one, or the life that its last process ended in order.
    pub fn life(&self) -> Life {
        self.replica.life()
    }

    /// The newest record that it knows.
    pub fn record(&self) -> Option<&VolumeRecord> {
        self.replica.record()
    }

    /// The volume's note; true for a member that serves.
    pub fn note(&self) -> &Note {
        self.replica.note()
    }

    /// Whether it answers reads at this time.
    pub fn serves(&self, now_ns: u64) -> bool {
        self.runs() && self.replica.serves(now_ns)
    }

    /// The members that this member fills, and how much of what they lack they have.
    pub(crate) fn filling(&self) -> FilledPercent {
        let mut filled = FilledPercent::default();
        for (place, (id, known)) in filled.iter_mut().zip(self.replica.filling()) {
            let percent = known.map_or(100, |sector| sector * 100 / self.sectors.max(1));
            *place = Some((id, percent.min(100) as u8 / PERCENT_STEP * PERCENT_STEP));
        }
        filled
    }

    /// Users have so many sectors of the volume.
    pub(crate) fn set_sectors(&mut self, sectors: u64) {
        self.sectors = sectors;
    }

    /// The volume has so many members.
    pub(crate) fn set_members(&mut self, members: usize) {
        self.replica.set_members(members);
    }

    /// Why it has stopped, if it has.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Why it does not go on at the moment, if that is so: a change of its volume is tried again,
    /// or the registry does not say which member serves.
    pub fn waits(&self) -> Option<&str> {
        // A member that follows, or serves, was told the record by another member.
        let is_told = self.replica.serving().is_some() || self.follows();
        let unseen = self.unseen.as_deref().filter(|_| !is_told || self.is_lost);
        self.queue.waits().or(unseen).filter(|_| self.failed.is_none())
    }

    /// Why this member has left the last change of the snapshots out, if it has.
    pub(crate) fn snapshot_left_out(&self) -> Option<&str> {
        self.queue.left_out()
    }

    /// The place of the last change of the snapshots, and the members in sync that have left it
    /// out, if this member serves.
    pub(crate) fn last_snapshot(&self) -> Option<(Place, Vec<MemberId>)> {
        self.replica.last_snapshot()
    }

    /// Its counters.
    pub fn counters(&self) -> MemberCounters {
        self.counters
    }

    /// The member's work on its own volume moves on. The protocol hears of it with the next other
    /// call, whose time must have been read after this call: a block that was read is answered
    /// under leases that still hold after it was read, and not under leases of an earlier time.
    pub fn work(&mut self, now_ns: u64, out: &mut Outbox) -> Progress {
        if self.failed.is_some() {
            return Progress::Idle;
        }
        let mut task = None;
        let polled = self.queue.poll(now_ns, &mut self.inputs, &mut task);
        out.errands.extend(task.map(Errand::Volume));
        match polled {
            Ok(progress) => progress,
            Err(why) => {
                self.fail(why);
                Progress::Busy
            }
        }
    }

    /// Time has passed.
    pub fn poll(&mut self, now_ns: u64, out: &mut Outbox) -> Progress {
        if self.failed.is_some() {
            return Progress::Idle;
        }
        let retry = self.queue.retry(now_ns);
        out.errands.extend(retry.map(Errand::Volume));
        if now_ns >= self.next_tick_ns {
            self.next_tick_ns = now_ns + TICK_NS;
            if !self.is_full() && self.retiring.is_none() {
                self.allow_resending(now_ns);
                self.note_scrub(now_ns);
                self.inputs.push(Input::Timer);
            }
        }
        let moved = self.follow(now_ns, out);
        Progress::busy_if(moved | self.go_on_retiring(out))
    }

    /// Begins to end in order, so that the next process goes on with this life. From now on it
    /// serves nothing, hears nothing and promises nothing.
    pub fn retire(&mut self) {
        self.retiring.get_or_insert(RetireStage::Working);
    }

    /// Whether all is done that an end in order needs, or can be done.
    pub fn has_retired(&self) -> bool {
        self.failed.is_some() || self.retiring == Some(RetireStage::Done)
    }

    /// Whether it takes part in its volume.
    fn runs(&self) -> bool {
        self.failed.is_none() && self.retiring.is_none()
    }

    fn go_on_retiring(&mut self, out: &mut Outbox) -> bool {
        let Some(stage) = self.retiring else { return false };
        if self.is_keeping || !self.outputs.is_empty() || self.queue.len() > 0 {
            return false;
        }
        let next = match stage {
            RetireStage::Working => {
                self.queue.flush();
                RetireStage::Flushing
            }
            // A member that lacks writes has no end to keep.
            RetireStage::Flushing => match self.replica.end() {
                Some(durable) => {
                    self.is_keeping = true;
                    out.errands.push(Errand::Keep(durable));
                    RetireStage::Keeping
                }
                None => RetireStage::Done,
            },
            RetireStage::Keeping | RetireStage::Done => RetireStage::Done,
        };
        self.retiring = Some(next);
        next != stage
    }

    /// The time from which on [`Self::poll`] has something to do.
    pub fn next_tick_ns(&self) -> u64 {
        self.next_tick_ns
    }

    /// The reign in which it serves, if it is a primary that has made all members equal. It may be
    /// one that no lease allows to answer at this time.
    pub fn serving(&self) -> Option<u64> {
        self.replica.serving().filter(|_| self.runs())
    }

    /// Whether the primary of this record serves, as far as this backup can know: it has made the
    /// members equal, and this member has answered for it.
    pub fn follows(&self) -> bool {
        let reign = self.record().map(|record| record.reign);
        self.equal.1 && reign == Some(self.equal.0.reign)
    }

    /// Whether a request is taken now, so that it has an answer when its operation ends, and none
    /// when this member's reign ends before.
    pub fn takes_requests(&self) -> bool {
        self.runs() && !self.is_full() && self.replica.takes_requests()
    }

    /// Whether it also has room for further requests. Requests that were on their way when the room
    /// was used up are taken.
    pub fn has_room(&self) -> bool {
        self.takes_requests() && self.replica.has_room()
    }

    /// The attachments of clients with requests that it remembers.
    pub fn attachments(&self) -> BTreeSet<u128> {
        self.replica.attachments()
    }

    /// A message of another member has come. A message that is not taken is as a lost one.
    pub fn hear(
        &mut self,
        now_ns: u64,
        from: MemberId,
        message: Message<RangeContent>,
        out: &mut Outbox,
    ) {
        if !self.runs() {
            return;
        }
        // A question of an operator changes nothing here.
        let is_question = matches!(message, Message::Ask { .. });
        if self.is_full() || self.is_new && !is_question {
            self.counters.dropped += 1;
            return;
        }
        let message = match message {
            Message::Known { number, knowledge } => {
                return self.note_answer(from, number, knowledge);
            }
            message => message,
        };
        if let Message::Held { life, began, counter, .. } = &message {
            self.note_held(now_ns, from, (*life, began.counter, *counter));
        }
        self.inputs.push(Input::Message(from, message));
        self.follow(now_ns, out);
    }

    /// A client's request; the client knows the volume under this incarnation. A request has no
    /// answer if this member does not serve now or knows an older incarnation alone, or if it has
    /// too much to do.
    pub fn request(
        &mut self,
        now_ns: u64,
        id: RequestId,
        incarnation: u64,
        request: ClientRequest<RangeContent>,
        out: &mut Outbox,
    ) {
        if !self.runs() {
            return;
        }
        if self.is_full() {
            self.counters.dropped += 1;
            return;
        }
        let fits = match &request {
            ClientRequest::Write(extent, content) => {
                content.fits(*extent) && extent.end() <= self.sectors
            }
            ClientRequest::Read(extent) => extent.end() <= self.sectors,
            ClientRequest::Flush | ClientRequest::Note(_) | ClientRequest::Snapshot(_) => true,
        };
        if !fits {
            self.counters.refused += 1;
            out.answers.push(Answer::Invalid(id));
            return;
        }
        self.inputs.push(Input::Request(id, incarnation, request));
        self.follow(now_ns, out);
    }

    /// An operator's word, or a change of the clients: [`Input::Move`], [`Input::Evicted`],
    /// [`Input::Recover`], [`Input::Scrub`] and [`Input::Forget`].
    pub fn tell(&mut self, now_ns: u64, input: Input<RangeContent>, out: &mut Outbox) {
        if self.runs() {
            self.inputs.push(input);
            self.follow(now_ns, out);
        }
    }

    /// An errand has ended.
    pub fn end(&mut self, now_ns: u64, end: ErrandEnd, out: &mut Outbox) {
        if self.failed.is_some() {
            return;
        }
        match end {
            ErrandEnd::Kept => self.is_keeping = false,
            ErrandEnd::NotKept(why) | ErrandEnd::NoRecord(why) => return self.fail(why),
            ErrandEnd::Swapped(target, outcome) => {
                self.swapping = None;
                if outcome != SwapOutcome::Unknown {
                    (self.unseen, self.is_lost) = (None, false);
                }
                self.inputs.push(Input::Swapped(target, outcome));
            }
            ErrandEnd::Seen(record) => {
                (self.is_looking, self.is_new) = (false, false);
                (self.unseen, self.is_lost) = (None, false);
                self.inputs.push(Input::Seen(record));
            }
            ErrandEnd::NotSeen(why) => {
                (self.is_looking, self.unseen, self.is_lost) = (false, Some(why), false);
            }
            ErrandEnd::Lost(target, why) => {
                (self.unseen, self.is_lost) = (Some(why), true);
                match target {
                    None => self.is_looking = false,
                    Some(target) => {
                        self.swapping = None;
                        self.inputs.push(Input::Swapped(target, SwapOutcome::NoRecord));
                    }
                }
            }
            ErrandEnd::NotRemade(plan, why) => self.not_remade(plan, why),
            ErrandEnd::Over(member, life) => self.inputs.push(Input::Over(member, life)),
            ErrandEnd::Volume(end) => {
                if let Err(why) = self.queue.end_task(now_ns, end, &mut self.inputs) {
                    return self.fail(why);
                }
            }
        }
        self.follow(now_ns, out);
    }

    /// It stops as if its process had ended: the other members go on.
    pub fn fail(&mut self, why: String) {
        self.failed = Some(why);
        self.outputs.clear();
        self.inputs.clear();
        // It has ended with this member, and the last page would say for ever that it goes on.
        self.scrubs.clear();
    }

    /// Whether so much waits for the private file or for the volume that nothing more is taken.
    fn is_full(&self) -> bool {
        self.outputs.len() >= OUTPUTS_MAX || self.queue.len() >= WORKS_MAX
    }

    /// Stores an operation. A member that cannot store one lacks it, so it stops: the primary goes
    /// on without it, and no request waits for it for ever. A volume that will grow is waited for.
    fn store(&mut self, place: Place, op: Op<RangeContent>) {
        if let Op::Write { extent, data, .. }
        | Op::Fill { extent, data, .. }
        | Op::Equal { extent, data } = &op
            && (!self.waits_to_grow && extent.end() > self.sectors || !data.fits(*extent))
        {
            return self.fail(format!(
                "an operation on the sectors from {} to {} does not fit this copy, which has {}: \
                 all copies of a volume have one size. Make them equal, and start the node again",
                extent.first(),
                extent.end(),
                self.sectors
            ));
        }
        if let Op::Write { extent, .. } | Op::Fill { extent, .. } | Op::Equal { extent, .. } = &op {
            self.damage.written(*extent);
        }
        if matches!(op, Op::Applied { .. }) {
            self.equal = (place, false);
        }
        self.queue.store(place, op);
    }

    /// Gives the protocol its inputs, and carries its outputs out.
    fn follow(&mut self, now_ns: u64, out: &mut Outbox) -> bool {
        let mut moved = false;
        loop {
            if self.retiring.is_some() {
                self.inputs.clear();
            }
            // Inputs in their order; an input's outputs come before the next input's outputs.
            let mut inputs = std::mem::take(&mut self.inputs);
            moved |= !inputs.is_empty();
            for input in inputs.drain(..) {
                self.replica.step(now_ns, input, &mut self.scratch);
                self.outputs.extend(self.scratch.drain(..));
            }
            self.inputs = inputs;
            while !self.is_keeping
                && let Some(output) = self.outputs.pop_front()
            {
                self.carry_out(now_ns, output, out);
            }
            if self.inputs.is_empty() {
                return moved;
            }
        }
    }

    fn carry_out(&mut self, now_ns: u64, output: Output<RangeContent>, out: &mut Outbox) {
        match output {
            Output::Send(to, message) => {
                if let Message::Held { began, counter, .. } = &message {
                    let (place, is_said) = &mut self.equal;
                    *is_said |= began.reign == place.reign && *counter >= place.counter;
                }
                // Its volume takes no change. A member that joined now would hold writes up that do
                // not need it.
                if matches!(message, Message::Join { .. }) && self.queue.waits().is_some() {
                    return;
                }
                if self.is_news(now_ns, to, &message) {
                    out.messages.push((to, message));
                } else {
                    self.counters.spared += 1;
                }
            }
            Output::Swap(target) => {
                if self.swapping.as_ref() != Some(&target) {
                    self.swapping = Some(target.clone());
                    out.errands.push(Errand::Swap(target));
                }
            }
            Output::Remake(plan) => {
                if self.swapping.as_ref() != Some(&plan.record) {
                    self.swapping = Some(plan.record.clone());
                    out.errands.push(Errand::Remake(plan));
                }
            }
            Output::Look => {
                if !std::mem::replace(&mut self.is_looking, true) {
                    out.errands.push(Errand::Look);
                }
            }
            Output::Keep(durable) => {
                self.is_keeping = true;
                out.errands.push(Errand::Keep(durable));
            }
            Output::Store(place, op) => self.store(place, op),
            // Another member has said where the range is.
            Output::Fetch(fetch @ Fetch::Lend(..), extent)
                if extent.end() > self.queue.sectors().unwrap_or(self.sectors) =>
            {
                self.inputs.push(Input::Unread(fetch, extent));
            }
            Output::Fetch(fetch, extent) => self.queue.fetch(fetch, extent),
            Output::Mend(extent, content) => {
                self.damage.repaired(extent);
                self.queue.mend(extent, content);
            }
            Output::Lost(extent) => self.damage.is_lost(extent),
            Output::Unreadable(id) => out.answers.push(Answer::Unreadable(id)),
            Output::Prove(question, range, key) => {
                self.prove(ProofWork::new(question, range, key, self.block_sectors));
            }
            Output::Found(finding) => self.found(finding, out),
            Output::Drop(cut) => self.queue.change(VolumeTask::Drop(cut)),
            Output::GoBack(cut) => self.queue.change(VolumeTask::GoBack(cut)),
            Output::Compare(member, began, cut, from) => {
                self.queue.change(VolumeTask::Compare(member, began, cut, from));
            }
            Output::EndCompare(member, began) => {
                self.queue.change(VolumeTask::EndCompare(member, began));
            }
            Output::Answer(id, content) => out.answers.push(Answer::Done(id, content)),
            Output::Refuse(id, incarnation) => out.answers.push(Answer::Refused(id, incarnation)),
            Output::Full(id) => out.answers.push(Answer::Full(id)),
        }
    }

    /// A scrub has found a block that copies have in different forms.
    fn found(&self, finding: ScrubFinding, out: &mut Outbox) {
        let is_told = !finding.differ.is_empty() || finding.is_unsettled;
        if is_told && self.scrubs.differs(&finding) {
            out.findings.push(finding);
        }
    }

    /// Proves a range. A volume that ends before it has no proofs of it: another member may have
    /// said where it is, and a block that cannot be read would be written.
    fn prove(&mut self, work: ProofWork) {
        match work.range.end() > self.queue.sectors().unwrap_or(self.sectors) {
            true => self.inputs.push(Input::Proved(work.question, Vec::new())),
            false => self.queue.prove(work),
        }
    }

    /// Whether a message is not an operation that is under way already.
    fn is_news(&mut self, now_ns: u64, to: MemberId, message: &Message<RangeContent>) -> bool {
        let Message::Append { epoch, life, began, counter, .. } = message else { return true };
        let sent = self.sent.entry(to).or_default();
        if (sent.epoch, sent.life, sent.began) != (*epoch, *life, *began) {
            let (epoch, life, began) = (*epoch, *life, *began);
            // The member may not know the record yet: it hears of it by the ping of the next tick,
            // and gets the operations behind it again.
            let news_ns = now_ns.saturating_sub(RESEND_NS - TICK_NS);
            *sent = SentAppends { epoch, life, began, last: 0, held: began, news_ns };
        }
        let is_news = *counter > sent.last;
        sent.last = sent.last.max(*counter);
        is_news
    }

    fn note_held(&mut self, now_ns: u64, from: MemberId, held: (Life, Counter, Counter)) {
        let Some(sent) = self.sent.get_mut(&from) else { return };
        let (life, began, counter) = held;
        if (sent.life, sent.began) == (life, began) && counter > sent.held {
            (sent.held, sent.news_ns) = (counter, now_ns);
        }
    }

    /// Lets operations be sent again to members that have stored nothing more for a while.
    fn allow_resending(&mut self, now_ns: u64) {
        for sent in self.sent.values_mut() {
            if sent.last > sent.held && now_ns >= sent.news_ns + RESEND_NS {
                (sent.last, sent.news_ns) = (sent.held, now_ns);
            }
        }
    }

    /// The session with a member has ended, with all that was under way to it.
    pub fn session_lost(&mut self, member: MemberId) {
        self.sent.remove(&member);
    }

    /// Before the sidecore sleeps; its owner sees to [`Self::next_tick_ns`].
    pub fn arm(&mut self, wake: &mut Wake) -> Progress {
        if self.failed.is_some() {
            return Progress::Idle;
        }
        self.queue.arm(wake) | Progress::busy_if(!self.inputs.is_empty())
    }

    /// After the sidecore slept.
    pub fn disarm(&mut self) {
        self.queue.disarm();
    }

    /// Lets go of the volume; see [`Channel::abandon`].
    pub fn abandon(&mut self, now_ns: u64) -> bool {
        self.queue.abandon(now_ns)
    }
}
