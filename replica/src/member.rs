//! A member of a volume: what it knows, what it hears, and what must be done next.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;

use crate::message::{Applied, Block, Counter, Cut, Message, Op, RequestId};
use crate::outside::Outside;
use crate::primary::Primary;
use crate::record::{Life, MemberId, Record};
use crate::rule::Rule;

/// The times of the protocol, the same for all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// How long a member lets a primary serve, from the primary's sending on.
    pub lease_ns: u64,
    /// How long a backup waits for a ping: the lease, and what clocks may drift apart meanwhile.
    pub patience_ns: u64,
    /// How long a primary waits for an answer before it goes on without a member.
    pub silence_ns: u64,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request<D> {
    /// Writes a block.
    Write(Block, D),
    /// Reads a block.
    Read(Block),
    /// Makes all completed writes durable.
    Flush,
}

/// The outcome of a swap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SwapOutcome {
    /// The record is the new one.
    Done,
    /// Another change came first; the record is this.
    Conflict(Record),
    /// No answer came. The swap may have happened, or may happen later.
    Unknown,
}

/// What a block is fetched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fetch {
    /// A client reads it.
    Read(RequestId),
    /// A member that joins lacks it, in this attempt to join.
    Fill(MemberId, u32),
    /// Members may differ in it.
    Equal,
}

/// What a member is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Input<D> {
    /// Time has passed.
    Timer,
    /// A message from another member.
    Message(MemberId, Message<D>),
    /// A request of a client.
    Request(RequestId, Request<D>),
    /// The outcome of [`Output::Swap`].
    Swapped(Record, SwapOutcome),
    /// The registry's record, after [`Output::Look`] or by a watch. It may be an old one.
    Seen(Record),
    /// The outcome of [`Output::Store`]. Operations are stored in the order of their counters.
    Stored(Counter),
    /// The outcome of [`Output::Fetch`].
    Fetched(Fetch, Block, D),
    /// The outcome of [`Output::Compare`].
    Changed(MemberId, u32, BTreeSet<Block>),
    /// An operator makes another member the primary.
    Move(MemberId),
}

/// What must be done, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Output<D> {
    /// A message for another member.
    Send(MemberId, Message<D>),
    /// The registry's record must be replaced by this one, if its epoch is one less.
    Swap(Record),
    /// The registry's record must be read.
    Look,
    /// Both epochs must be durable before any later output is carried out: the epoch below which
    /// no message is heard, and the newest one that the registry had.
    Promise(u64, u64),
    /// The operation must be stored, after all earlier ones.
    Store(Counter, Op<D>),
    /// The block must be read, after all operations that were given out before.
    Fetch(Fetch, Block),
    /// The content must become the cut's, or empty.
    GoBack(Option<Cut>),
    /// The blocks must be found that changed since the cut (none: all that were ever written), for
    /// a member that joins and its attempt.
    Compare(MemberId, u32, Option<Cut>),
    /// The client's request is completed, for a read with the block's content.
    Answer(RequestId, Option<D>),
}

/// What a member has of the volume, besides the content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holding {
    /// The reign whose operations it stores.
    pub(crate) reign: u64,
    /// The last operation that it was told to store, and the last one that is stored.
    pub(crate) issued: Counter,
    pub(crate) stored: Counter,
    /// The blocks of operations that others may lack, and such blocks of earlier reigns.
    pub(crate) tail: BTreeMap<Counter, Block>,
    pub(crate) old_tail: BTreeSet<Block>,
    pub(crate) applied: Applied,
    pub(crate) cuts: BTreeSet<Cut>,
    /// Counts the attempts to join in this life.
    pub(crate) admission: u32,
}

impl Holding {
    /// Begins with the operations of a reign.
    pub(crate) fn begin(&mut self, reign: u64, counter: Counter) {
        self.old_tail.extend(std::mem::take(&mut self.tail).into_values());
        (self.reign, self.issued, self.stored) = (reign, counter, counter);
    }

    /// All members in sync have all operations up to here.
    pub(crate) fn all_have(&mut self, held: Counter) {
        self.tail = self.tail.split_off(&(held + 1));
    }

    /// The blocks that this member may have and others may lack.
    pub(crate) fn blocks(&self) -> BTreeSet<Block> {
        self.old_tail.iter().chain(self.tail.values()).copied().collect()
    }
}

/// What a member is for its volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role<D> {
    /// Not in sync: it waits, or joins.
    Outside(Outside),
    /// In sync, and another member serves.
    Backup,
    /// It serves, or is about to.
    Primary(Box<Primary<D>>),
}

/// A member of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Member<D> {
    pub(crate) id: MemberId,
    pub(crate) life: Life,
    pub(crate) timing: Timing,
    pub(crate) broken: Option<Rule>,
    pub(crate) promised: u64,
    pub(crate) seen: u64,
    pub(crate) record: Option<Record>,
    pub(crate) role: Role<D>,
    /// The last time at which it let a primary go on.
    pub(crate) granted_ns: u64,
    pub(crate) holding: Holding,
    /// The swap that was asked for and has no known outcome.
    pub(crate) swap: Option<Record>,
}

impl<D: Clone + Debug + Eq + Hash + Ord> Member<D> {
    /// A member at the start of its process, with what was durable: the promised and the newest
    /// seen epoch, and the cuts of its content.
    pub fn start(
        id: MemberId,
        life: Life,
        timing: Timing,
        durable: (u64, u64),
        cuts: BTreeSet<Cut>,
        now_ns: u64,
    ) -> Self {
        let holding = Holding {
            reign: 0,
            issued: 0,
            stored: 0,
            tail: BTreeMap::new(),
            old_tail: BTreeSet::new(),
            applied: Applied::new(),
            cuts,
            admission: 0,
        };
        let (promised, seen) = durable;
        let (broken, record, swap) = (None, None, None);
        let role = Role::Outside(Outside::default());
        let granted_ns = now_ns;
        Self {
            id,
            life,
            timing,
            broken,
            promised,
            seen,
            record,
            role,
            granted_ns,
            holding,
            swap,
        }
    }

    /// The same member with one rule broken, for tests.
    #[must_use]
    pub fn breaking(self, broken: Option<Rule>) -> Self {
        Self { broken, ..self }
    }

    /// Its life.
    pub fn life(&self) -> Life {
        self.life
    }

    /// The newest record that it knows.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    /// The cuts that it has.
    pub fn cuts(&self) -> &BTreeSet<Cut> {
        &self.holding.cuts
    }

    /// Whether it is the primary, as far as it knows.
    pub fn is_primary(&self) -> bool {
        matches!(self.role, Role::Primary(_))
    }

    /// The reign whose operations it stores.
    pub fn reign(&self) -> u64 {
        self.holding.reign
    }

    /// Whether it answers reads at this time.
    pub fn serves(&self, now_ns: u64) -> bool {
        match &self.role {
            Role::Primary(primary) => {
                primary.is_serving() && (self.breaks(Rule::ReadsNeedLeases) || self.has_leases(now_ns))
            }
            _ => false,
        }
    }

    pub(crate) fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    /// Takes one input, and adds what must be done.
    pub fn step(&mut self, now_ns: u64, input: Input<D>, out: &mut Vec<Output<D>>) {
        match input {
            Input::Timer => self.timer(now_ns, out),
            Input::Message(from, message) => self.hear(now_ns, from, message, out),
            Input::Request(id, request) => self.request(now_ns, id, request, out),
            Input::Swapped(target, outcome) => self.swapped(now_ns, target, outcome, out),
            Input::Seen(record) => self.adopt(now_ns, record, out),
            Input::Stored(counter) => self.stored(now_ns, counter, out),
            Input::Fetched(fetch, block, data) => self.fetched(now_ns, fetch, block, data, out),
            Input::Changed(member, admission, blocks) => {
                self.changed(now_ns, member, admission, blocks, out);
            }
            Input::Move(to) => self.start_move(now_ns, to, out),
        }
    }

    fn timer(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        // A swap of unknown outcome is asked for again, never given up: it may happen later.
        if let Some(target) = &self.swap {
            out.push(Output::Swap(target.clone()));
        }
        match &self.role {
            Role::Outside(_) => self.outside_timer(now_ns, out),
            Role::Backup => self.backup_timer(now_ns, out),
            Role::Primary(_) => self.primary_timer(now_ns, out),
        }
    }

    fn hear(
        &mut self,
        now_ns: u64,
        from: MemberId,
        message: Message<D>,
        out: &mut Vec<Output<D>>,
    ) {
        match message {
            Message::Ping { record, life, sent_ns, held } => {
                self.ping(now_ns, from, record, life, sent_ns, held, out);
            }
            Message::Seal { record } => self.seal(now_ns, from, record, out),
            Message::Append { epoch, life, admission, counter, op } => {
                self.append(from, (epoch, life, admission), counter, op, out);
            }
            Message::GoBack { record, life, admission, cut, counter } => {
                self.go_back(now_ns, record, (life, admission), cut, counter, out);
            }
            Message::Hello => {
                let (life, record) = (self.life, self.record.clone());
                out.push(Output::Send(from, Message::Alive { life, record }));
            }
            Message::Alive { life, record } => self.alive(now_ns, from, life, record, out),
            Message::Pong { epoch, life, sent_ns } => {
                self.pong(now_ns, from, epoch, life, sent_ns, out);
            }
            Message::Sealed { epoch, life, admission, tail } => {
                self.sealed(now_ns, from, (epoch, life, admission), tail, out);
            }
            Message::Held { epoch, life, admission, counter } => {
                self.held(now_ns, from, (epoch, life, admission), counter, out);
            }
            Message::Join { epoch, life, admission, cuts } => {
                self.join(now_ns, from, (epoch, life, admission), &cuts, out);
            }
        }
    }

    /// Whether the record has this member in this life.
    pub(crate) fn is_in(&self, record: &Record) -> bool {
        record.has(self.id, self.life)
            || self.breaks(Rule::RestartIsLoss) && record.in_sync.contains_key(&self.id)
    }

    /// Asks for a swap, one at a time.
    pub(crate) fn ask_for(&mut self, target: Record, out: &mut Vec<Output<D>>) {
        if self.swap.is_none() {
            self.swap = Some(target.clone());
            out.push(Output::Swap(target));
        }
    }

    fn swapped(
        &mut self,
        now_ns: u64,
        target: Record,
        outcome: SwapOutcome,
        out: &mut Vec<Output<D>>,
    ) {
        let is_mine = self.swap.as_ref() == Some(&target);
        match outcome {
            SwapOutcome::Done => self.adopt(now_ns, target, out),
            SwapOutcome::Conflict(record) => {
                if is_mine {
                    self.swap = None;
                }
                self.adopt(now_ns, record, out);
                self.go_on(now_ns, out);
            }
            SwapOutcome::Unknown => {
                if is_mine && self.breaks(Rule::UnknownSwapsMayHaveHappened) {
                    self.swap = None;
                    self.go_on(now_ns, out);
                }
            }
        }
    }

    /// Takes a newer record for true.
    pub(crate) fn adopt(&mut self, now_ns: u64, record: Record, out: &mut Vec<Output<D>>) {
        let known = self.record.as_ref().map_or(0, |known| known.epoch);
        let is_news = if self.breaks(Rule::NewerRecordsOnly) {
            record.epoch != known
        } else {
            record.epoch > known
        };
        // A registry that was put back has epochs that are used up.
        let is_back = record.epoch < self.seen
            && !self.breaks(Rule::RegistryNeverGoesBack)
            && !self.breaks(Rule::NewerRecordsOnly);
        if !is_news || is_back {
            return;
        }
        self.seen = record.epoch;
        self.promised = self.promised.max(record.epoch);
        if self.breaks(Rule::RegistryNeverGoesBack) {
            self.promised = record.epoch;
        }
        out.push(Output::Promise(self.promised, self.seen));
        if self.swap.as_ref().is_some_and(|target| target.epoch <= record.epoch) {
            self.swap = None;
        }
        let (is_in, reign) = (self.is_in(&record), record.reign);
        let is_primary = is_in && record.primary == self.id;
        let before = self.record.replace(record);
        if is_primary {
            match &self.role {
                Role::Primary(primary) if primary.reign == reign => self.record_changed(out),
                _ => self.become_primary(now_ns, out),
            }
            self.go_on(now_ns, out);
        } else if is_in {
            if let Role::Primary(_) = self.role {
                // The new primary may not know yet that it is one.
                self.tell_primary(out);
            }
            if self.role != Role::Backup {
                self.role = Role::Backup;
                self.granted_ns = now_ns;
            }
        } else {
            let same_reign = before.is_some_and(|before| before.reign == reign);
            match &self.role {
                Role::Outside(outside) if outside.joins && same_reign => {}
                _ => self.leave(),
            }
        }
    }

    fn tell_primary(&self, out: &mut Vec<Output<D>>) {
        if let Some(record) = &self.record {
            let alive = Message::Alive { life: self.life, record: Some(record.clone()) };
            out.push(Output::Send(record.primary, alive));
        }
    }

    /// Takes an operation into the holding, and has it stored.
    pub(crate) fn take(&mut self, counter: Counter, op: Op<D>, out: &mut Vec<Output<D>>) {
        let joins = matches!(self.role, Role::Outside(_));
        self.holding.issued = counter;
        let op = match op {
            Op::Write { id, block, .. } => {
                self.holding.tail.insert(counter, block);
                self.holding.applied.insert(id.client, id.number);
                op
            }
            Op::Equal { block, .. } => {
                self.holding.tail.insert(counter, block);
                op
            }
            Op::Flush { id } => {
                self.holding.applied.insert(id.client, id.number);
                op
            }
            // The content of a member that joins is not the primary's yet.
            Op::Cut if joins => Op::Nothing,
            Op::Cut => {
                self.holding.cuts.insert(Cut { reign: self.holding.reign, counter });
                op
            }
            Op::Applied(ref applied) => {
                self.holding.applied.clone_from(applied);
                // What earlier reigns left is equal now.
                self.holding.old_tail.clear();
                op
            }
            Op::Fill { to, .. } if to != self.id || !joins => Op::Nothing,
            Op::Fill { .. } | Op::Nothing => op,
        };
        out.push(Output::Store(counter, op));
    }

    fn stored(&mut self, now_ns: u64, counter: Counter, out: &mut Vec<Output<D>>) {
        if counter <= self.holding.stored || counter > self.holding.issued {
            return;
        }
        self.holding.stored = counter;
        match &self.role {
            Role::Primary(_) => self.go_on(now_ns, out),
            _ => self.say_held(out),
        }
    }
}
