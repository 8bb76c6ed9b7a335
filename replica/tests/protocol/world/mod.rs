//! The protocol in a small world: members, a registry, clients, and all that can happen to them.
//!
//! Members are the crate's own. Storage, network, registry, clients and clocks are made up here.
//! All that is under way is in one list, the *wire*; the world goes on by one entry of it, by a
//! tick of the clocks, or by a fault. `tests/simulation.rs` chooses by a seed, and
//! `tests/exhaustive.rs` tries each choice.

pub(crate) mod action;
pub(crate) mod cases;
pub(crate) mod disk;
pub(crate) mod fair;
pub(crate) mod model;
pub(crate) mod random;
pub(crate) mod recover;
pub(crate) mod register;
pub(crate) mod scrub;

use std::collections::{BTreeMap, BTreeSet};

use replica::{
    ClientId, ClientRequest, Extent, Fetch, Input, Life, MemberId, Message, Output, Pacing,
    Recovery, RecoveryPlan, Replica, RequestId, Rule, SnapshotChange, SwapOutcome, VolumeRecord,
};

use action::Budget;
use disk::Disk;
use register::{Caller, Register};

/// The content of a sector: its writer and the number of the request.
pub(crate) type Value = u16;

/// The most sectors of a volume, so that a range's content is small.
pub(crate) const SECTORS_MAX: usize = 4;

/// The content of a range: a value for each of its sectors, and zeroes behind them.
pub(crate) type Data = [Value; SECTORS_MAX];

pub(crate) type WorldMember = Replica<Data>;

/// A request in a client's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Plan {
    /// The first sector, and how many.
    Write(u64, u32),
    Read(u64, u32),
    Flush,
    /// Takes the next epoch, as a guard with the volume's note does.
    Claim,
    /// Takes a snapshot, as an operator's command does.
    Snapshot,
}

/// A case: the clients' requests, the faults that may come, and the rule that is broken.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) members: u8,
    /// The members that are in sync at first. The first member is the primary.
    pub(crate) in_sync: Vec<MemberId>,
    pub(crate) sectors: u64,
    pub(crate) plans: Vec<Vec<Plan>>,
    pub(crate) budget: Budget,
    pub(crate) broken: Option<Rule>,
    pub(crate) pacing: Pacing,
    /// Records above this epoch are not explored, nor operations above this counter.
    pub(crate) epochs: u64,
    pub(crate) counters: u64,
    /// Faults come only when nothing else can happen.
    pub(crate) is_calm: bool,
    /// Storage takes time, clocks run at different speeds, and the wire is in no order.
    pub(crate) is_wild: bool,
    /// Storage takes time, and clients do not wait for it.
    pub(crate) is_slow: bool,
}

impl Case {
    /// The time of all clocks, always: with each tick all times that are remembered become earlier,
    /// so worlds that differ in the time alone are the same. No time of the protocol is longer.
    pub(crate) fn now(&self) -> u64 {
        self.pacing.patience_ns
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    pub(crate) member: WorldMember,
    pub(crate) disk: Disk,
    pub(crate) is_paused: bool,
    /// Its process has ended in order, and has not started again.
    pub(crate) is_stopped: bool,
    /// Its disk was lost.
    pub(crate) is_gone: bool,
}

impl Node {
    pub(crate) fn runs(&self) -> bool {
        !self.is_paused && !self.is_stopped && !self.is_gone
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    /// The request that it waits for, or will send next.
    pub(crate) next: usize,
    pub(crate) is_sent: bool,
    incarnation: u64,
    pub(crate) id: u8,
}

/// An entry of the wire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Post {
    Message(MemberId, MemberId, Message<Data>),
    Request(MemberId, RequestId, u64, ClientRequest<Data>),
    Swap(MemberId, Life, VolumeRecord),
    Remake(MemberId, Life, RecoveryPlan),
    /// The registry's answer to one of these.
    Swapped(MemberId, Life, VolumeRecord, SwapOutcome),
    /// A member's own storage must do something.
    Work(MemberId, Life, Output<Data>),
}

impl Post {
    /// The member that it comes to; none for the registry.
    fn to(&self) -> Option<MemberId> {
        match self {
            Self::Message(_, to, _) | Self::Request(to, ..) => Some(*to),
            Self::Work(to, ..) | Self::Swapped(to, ..) => Some(*to),
            Self::Swap(..) | Self::Remake(..) => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Hash)]
pub(crate) struct World {
    pub(crate) nodes: Vec<Node>,
    pub(crate) registry: VolumeRecord,
    /// The newest incarnation that a member has served in, or an operator has begun.
    incarnation: u64,
    /// Records that the registry had.
    past: Vec<VolumeRecord>,
    pub(crate) is_away: bool,
    /// It has lost the record; the last one is kept here for the promises.
    pub(crate) has_lost: bool,
    /// The members' knowledge as a member's operator has asked for it, at some time before.
    pub(crate) asked: Option<(MemberId, Recovery)>,
    /// It was put back to an old record, and waits for an operator.
    pub(crate) is_restored: bool,
    /// An operator gave up a member that was there.
    is_mistaken: bool,
    pub(crate) wire: Vec<Post>,
    /// Entries that were held back and may come at any time.
    pub(crate) held: Vec<Post>,
    /// Directions that lose each message.
    pub(crate) cut: BTreeSet<(MemberId, MemberId)>,
    pub(crate) clients: Vec<Client>,
    /// Clients that have gone and are remembered.
    pub(crate) gone: Vec<u8>,
    registers: Vec<Register>,
    /// Claims under way, by their numbers: the client and the epoch that it will have.
    claims: BTreeMap<u64, (u8, u64)>,
    claims_made: u64,
    /// Snapshots under way, by their numbers: the client, and the caller that reads all sectors.
    snapshots: BTreeMap<u64, (u8, Caller)>,
    snapshots_made: u64,
    /// The content of snapshots that were completed.
    pub(crate) completed: BTreeMap<String, Vec<Value>>,
    /// The epochs that clients have.
    granted: BTreeSet<u64>,
    /// Ranges that were mended, and reads that ended without content.
    pub(crate) mended: u64,
    pub(crate) unreadable: u64,
    /// Ways back to members' own cuts.
    pub(crate) own_ways_back: u64,
    /// Blocks that scrubs have named.
    pub(crate) found: u64,
    /// A promise that was broken.
    pub(crate) broken: Option<String>,
    lives: Life,
    /// The processes that have ended, by their members and lives.
    over: Vec<(MemberId, Life)>,
    ghosts: Caller,
    client_ids: u8,
    ticks: u64,
    pub(crate) budget: Budget,
}

impl Eq for World {}

impl World {
    pub(crate) fn new(case: &Case) -> Self {
        let record = VolumeRecord::first(0, case.in_sync.iter().map(|id| (*id, 1)).collect());
        let client = |index| Client { next: 0, is_sent: false, incarnation: 1, id: index };
        let mut world = Self {
            nodes: Vec::new(),
            registry: record.clone(),
            incarnation: record.incarnation,
            past: Vec::new(),
            is_away: false,
            has_lost: false,
            asked: None,
            is_restored: false,
            is_mistaken: false,
            wire: Vec::new(),
            held: Vec::new(),
            cut: BTreeSet::new(),
            clients: (0_u8..).take(case.plans.len()).map(client).collect(),
            gone: Vec::new(),
            registers: (0..case.sectors).map(|_| Register::new()).collect(),
            claims: BTreeMap::new(),
            claims_made: 0,
            snapshots: BTreeMap::new(),
            snapshots_made: 0,
            completed: BTreeMap::new(),
            granted: BTreeSet::new(),
            mended: 0,
            unreadable: 0,
            own_ways_back: 0,
            found: 0,
            broken: None,
            lives: 1,
            over: Vec::new(),
            ghosts: 1000,
            client_ids: u8::try_from(case.plans.len()).expect("few clients"),
            ticks: 0,
            budget: case.budget,
        };
        for _ in 0..case.members {
            world.add_node(case, 1);
        }
        // The volume is there and served: a fair beginning.
        for id in 0..case.members {
            world.step(case, id, Input::Seen(record.clone()));
        }
        world.settle(case);
        world
    }

    pub(crate) fn add_node(&mut self, case: &Case, life: Life) {
        let id = u8::try_from(self.nodes.len()).expect("few members");
        let disk = Disk::new(case.is_wild);
        let member = WorldMember::start(
            id,
            life,
            case.pacing,
            disk.durable_of_member.clone(),
            disk.cuts(),
            case.now(),
        );
        let member = member.breaking(case.broken);
        // It is empty, which the volume is not any more.
        let mut disk = disk;
        disk.is_mixed = life > 1 || !case.in_sync.contains(&id);
        let node = Node { member, disk, is_paused: false, is_stopped: false, is_gone: false };
        self.nodes.push(node);
    }

    pub(crate) fn node(&mut self, id: MemberId) -> &mut Node {
        &mut self.nodes[usize::from(id)]
    }

    /// The members whose disks are there.
    pub(crate) fn ids(&self) -> impl Iterator<Item = MemberId> + use<> {
        let is_there = |(id, node): (usize, &Node)| (!node.is_gone).then_some(id as MemberId);
        let ids: Vec<MemberId> = self.nodes.iter().enumerate().filter_map(is_there).collect();
        ids.into_iter()
    }

    /// The members that answer reads.
    pub(crate) fn servers(&self, case: &Case) -> usize {
        let is_there = |node: &&Node| !node.is_gone && !node.is_stopped;
        let there = self.nodes.iter().filter(is_there);
        there.filter(|node| node.member.serves(case.now())).count()
    }

    /// The promise that is broken in this state.
    pub(crate) fn breach(&self, case: &Case) -> Option<String> {
        if self.servers(case) > 1 {
            return Some("two members answer reads".to_owned());
        }
        for (name, content) in &self.completed {
            let there = self.nodes.iter().filter(|node| !node.is_gone);
            let mut copies = there.filter_map(|node| node.disk.named(name, case.sectors));
            if let Some(other) = copies.find(|copy| copy != content) {
                return Some(format!("snapshot {name} has {content:?}, and a copy {other:?}"));
            }
        }
        self.broken.clone()
    }

    /// Whether the entry can be carried out now.
    pub(crate) fn is_deliverable(&self, at: usize) -> bool {
        let post = &self.wire[at];
        match post.to() {
            None => !self.is_away,
            Some(to) if self.nodes[usize::from(to)].is_paused => false,
            // Storage works in order.
            Some(to) => {
                let is_work = |post: &Post| matches!(post, Post::Work(of, ..) if *of == to);
                !is_work(post) || !self.wire[..at].iter().any(is_work)
            }
        }
    }

    pub(crate) fn deliverable(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.wire.len()).filter(|at| self.is_deliverable(*at))
    }

    /// Carries out an entry.
    pub(crate) fn deliver(&mut self, case: &Case, post: Post, is_told: bool) {
        match post {
            Post::Message(from, to, message) => {
                self.step(case, to, Input::Message(from, message));
            }
            Post::Request(to, id, incarnation, request) => {
                self.step(case, to, Input::Request(id, incarnation, request));
            }
            Post::Swap(from, life, target) => {
                let outcome = self.swap(&target);
                self.answer_swap(case, (from, life), target, is_told.then_some(outcome));
            }
            Post::Remake(from, life, plan) => {
                let outcome = self.remake(&plan);
                self.answer_swap(case, (from, life), plan.record, is_told.then_some(outcome));
            }
            Post::Swapped(from, life, target, outcome) => {
                self.tell_swapped(case, from, life, target, outcome);
            }
            Post::Work(id, life, output) => {
                let node = &mut self.nodes[usize::from(id)];
                if node.member.life() == life
                    && !node.is_stopped
                    && let Some(input) = self.work(case, id, output)
                {
                    self.step(case, id, input);
                }
            }
        }
    }

    /// The registry's answer comes. It may be late where an operator has copies serve.
    fn answer_swap(
        &mut self,
        case: &Case,
        (from, life): (MemberId, Life),
        target: VolumeRecord,
        outcome: Option<SwapOutcome>,
    ) {
        match outcome {
            Some(outcome) if case.budget.recoveries > 0 => {
                self.post(Post::Swapped(from, life, target, outcome));
            }
            outcome => {
                let outcome = outcome.unwrap_or(SwapOutcome::Unknown);
                self.tell_swapped(case, from, life, target, outcome);
            }
        }
    }

    pub(crate) fn tell_swapped(
        &mut self,
        case: &Case,
        from: MemberId,
        life: Life,
        target: VolumeRecord,
        outcome: SwapOutcome,
    ) {
        let node = self.node(from);
        if node.member.life() == life && !node.is_paused {
            self.step(case, from, Input::Swapped(target, outcome));
        }
    }

    fn swap(&mut self, target: &VolumeRecord) -> SwapOutcome {
        if self.has_lost {
            return SwapOutcome::NoRecord;
        }
        if !target.follows(&self.registry) {
            return SwapOutcome::Conflict(self.registry.clone());
        }
        if target.incarnation != self.registry.incarnation {
            let keeps = |(id, life): (&MemberId, &Life)| {
                let node = &self.nodes[usize::from(*id)];
                !node.is_gone && node.member.life() == *life
            };
            if !self.is_mistaken && self.registry.in_sync.iter().any(keeps) {
                self.broken = Some("a member that lost nothing was given up".to_owned());
            }
        }
        self.put(target);
        SwapOutcome::Done
    }

    /// The registry has this record from now on.
    fn put(&mut self, target: &VolumeRecord) {
        self.past.push(std::mem::replace(&mut self.registry, target.clone()));
    }

    /// The volume is as this member has it. Flushed writes may be gone if an operator says so. A
    /// member that runs on stores what it has begun to store.
    fn lose(&mut self, member: MemberId, (gives_up, runs_on): (bool, bool)) {
        let mut disk = self.nodes[usize::from(member)].disk.clone();
        for post in &self.wire {
            if let Post::Work(of, _, Output::Store(place, op)) = post
                && runs_on
                && *of == member
            {
                disk.store(*place, op);
            }
        }
        for (sector, register) in (0..).zip(&mut self.registers) {
            let value = disk.read_sector(sector);
            // A copy that an operator has serve may go on with writes that it has not flushed.
            let may_become = disk.may_become(sector);
            let is_kept = register.lost(value, may_become, runs_on);
            if !is_kept && !gives_up && self.broken.is_none() {
                self.broken = Some(format!("sector {sector} lost what was flushed: {value}"));
            }
        }
    }

    /// A member takes an input, and all that follows at once.
    pub(crate) fn step(&mut self, case: &Case, id: MemberId, input: Input<Data>) {
        let mut inputs = std::collections::VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let node = self.node(id);
            if node.is_gone || node.is_stopped {
                return;
            }
            let mut out = Vec::new();
            let (life, served) = (node.member.life(), node.member.serving());
            node.member.step(case.now(), input, &mut out);
            if node.member.is_primary() {
                node.disk.rotten.clear();
            }
            let serves = node.member.serving();
            if serves.is_some() && serves != served {
                self.begin_incarnation(id);
                self.compare_in_sync(case, id);
            }
            for output in out {
                if self.node(id).member.life() != life {
                    return;
                }
                inputs.extend(self.carry_out(case, id, output));
            }
        }
    }

    /// In a new incarnation the volume is as the member has it that begins to serve. A record by
    /// which no member has served says nothing: the registry may lose it before a member hears of
    /// it (seed 1418006).
    fn begin_incarnation(&mut self, primary: MemberId) {
        let record = self.nodes[usize::from(primary)].member.record();
        let incarnation = record.map_or(0, |record| record.incarnation);
        if incarnation > self.incarnation {
            self.incarnation = incarnation;
            self.lose(primary, (false, false));
        }
    }

    /// Members in sync have one content when a primary begins to serve. A primary that was paused
    /// may begin when another member reigns: it has no lease, and answers nothing.
    fn compare_in_sync(&mut self, case: &Case, primary: MemberId) {
        let own = &self.nodes[usize::from(primary)];
        let Some(record) = own.member.record() else { return };
        if record.reign != self.registry.reign {
            return;
        }
        let is_in = |(id, node): &(usize, &Node)| {
            !node.is_gone && record.has(*id as MemberId, node.member.life())
        };
        for (id, node) in self.nodes.iter().enumerate().filter(is_in) {
            let has = |node: &Node, at: u64| {
                (!node.disk.damaged.contains(&at)).then(|| node.disk.read_sector(at))
            };
            let pairs = (0..case.sectors).map(|at| (has(own, at), has(node, at)));
            if pairs.flat_map(|(own, its)| own.zip(its)).any(|(own, its)| own != its) {
                let text = format!("{primary} serves, and {id} is in sync with another content");
                self.broken.get_or_insert(text);
            }
        }
    }

    fn carry_out(
        &mut self,
        case: &Case,
        id: MemberId,
        output: Output<Data>,
    ) -> Option<Input<Data>> {
        let life = self.node(id).member.life();
        match output {
            Output::Send(to, message) => {
                if !self.cut.contains(&(id, to)) && usize::from(to) < self.nodes.len() {
                    self.post(Post::Message(id, to, message));
                }
                None
            }
            // It is asked for again when an answer has come.
            Output::Swap(target) if self.is_answered(id, &target) => None,
            Output::Swap(target) => {
                self.post(Post::Swap(id, life, target));
                None
            }
            Output::Remake(plan) => {
                self.post(Post::Remake(id, life, plan));
                None
            }
            Output::Look if self.is_away || self.has_lost => None,
            Output::Look => Some(Input::Seen(self.registry.clone())),
            Output::Keep(mut durable) => {
                let kept = &mut self.node(id).disk.durable_of_member;
                if case.broken == Some(Rule::EndsAreUsedOnce) {
                    durable.ended = kept.ended.take();
                }
                *kept = durable;
                self.node(id).disk.note_sync(id, life);
                None
            }
            Output::Answer(request, data) => {
                self.answer(case, id, request, data);
                None
            }
            Output::Unreadable(request) => {
                self.unreadable(case, id, request);
                None
            }
            Output::Lost(_) => None,
            Output::Found(finding) => {
                self.found(&finding);
                None
            }
            Output::Refuse(request, incarnation) => {
                self.refuse(request, incarnation);
                None
            }
            work if case.is_wild || case.is_slow => {
                self.wire.push(Post::Work(id, life, work));
                None
            }
            output => self.work(case, id, output),
        }
    }

    /// A member's storage does something.
    fn work(&mut self, case: &Case, id: MemberId, output: Output<Data>) -> Option<Input<Data>> {
        let disk = &mut self.node(id).disk;
        if let Output::Fetch(fetch, extent) = &output
            && !disk.can_read(*extent)
        {
            // A member that cannot read what it must make equal ends.
            if matches!(fetch, Fetch::Equal(_)) {
                self.restart(case, id, disk::Loss::Nothing);
                return None;
            }
            return Some(Input::Unread(*fetch, *extent));
        }
        if let Output::Prove(question, range, _) = output {
            let proofs = scrub::proofs_of(disk, range, case.pacing.block_sectors);
            return Some(Input::Proved(question, proofs));
        }
        let is_mend = matches!(output, Output::Mend(..));
        let is_own = matches!(&output, Output::GoBack(Some(cut)) if cut.is_own());
        let input = work(disk, output);
        self.mended += u64::from(is_mend);
        self.own_ways_back += u64::from(is_own);
        input
    }

    /// A read ends without content. That is right if a block of it is damaged on all members in
    /// sync, or if the member's storage has failed a block again and again.
    fn unreadable(&mut self, case: &Case, at: MemberId, id: RequestId) {
        let Some(index) = self.client_of(id) else { return };
        let client = &mut self.clients[index];
        let (plan, caller) = (case.plans[index][client.next], Caller::from(client.id));
        client.next += 1;
        client.is_sent = false;
        self.unreadable += 1;
        let Plan::Read(first, sectors) = plan else { return };
        for register in &mut self.registers[places(first, sectors)] {
            register.refused(caller);
        }
        let unit = u64::from(case.pacing.block_sectors);
        let record = self.nodes[usize::from(at)].member.record().cloned();
        let is_damaged = |block: u64| {
            let block = extent(block * unit, case.pacing.block_sectors);
            let is_worn = self.nodes[usize::from(at)].disk.is_worn(block);
            is_worn
                || record.iter().flat_map(|record| record.in_sync.keys()).all(|id| {
                    let node = &self.nodes[usize::from(*id)];
                    node.is_gone || !node.disk.can_read(block)
                })
        };
        if !(first / unit..=(first + u64::from(sectors) - 1) / unit).any(is_damaged) {
            self.broken.get_or_insert(format!("client {caller} got nothing for {plan:?}"));
        }
    }

    /// Whether a sector is damaged on all members in sync that are there.
    pub(crate) fn is_spoiled(&self, case: &Case) -> bool {
        let unit = u64::from(case.pacing.block_sectors);
        (0..case.sectors.div_ceil(unit)).any(|block| {
            let block = extent(block * unit, case.pacing.block_sectors);
            self.registry.in_sync.keys().all(|id| {
                let node = &self.nodes[usize::from(*id)];
                node.is_gone || !node.disk.can_read(block)
            })
        })
    }

    /// An entry that is sent again while it waits adds nothing.
    fn post(&mut self, post: Post) {
        if !self.wire.contains(&post) && self.wire.len() < WIRE_MAX {
            self.wire.push(post);
        }
    }

    /// Whether a client's request of this id is under way, and its place.
    fn client_of(&self, id: RequestId) -> Option<usize> {
        let is_it = |client: &Client| {
            client_id(client.id) == id.client
                && client.is_sent
                && client.next as u64 + 1 == id.number
        };
        self.clients.iter().position(is_it)
    }

    /// A client sends its request, or sends it again.
    pub(crate) fn send(&mut self, case: &Case, index: usize, to: MemberId) {
        let client = &mut self.clients[index];
        let plan = case.plans[index][client.next];
        match plan {
            Plan::Claim => return self.claim(case, index, to),
            Plan::Snapshot => return self.snapshot(case, index, to),
            _ => {}
        }
        let number = client.next as u64 + 1;
        let id = RequestId { client: client_id(client.id), number };
        let value = Value::from(client.id) * 100 + number as Value;
        let (caller, incarnation) = (Caller::from(client.id), client.incarnation);
        let is_new = !std::mem::replace(&mut client.is_sent, true);
        let request = match plan {
            Plan::Write(first, sectors) => {
                let mut data = Data::default();
                data[..sectors as usize].fill(value);
                ClientRequest::Write(extent(first, sectors), data)
            }
            Plan::Read(first, sectors) => ClientRequest::Read(extent(first, sectors)),
            Plan::Flush => ClientRequest::Flush,
            Plan::Claim | Plan::Snapshot => unreachable!("it is made at the member"),
        };
        if is_new {
            match plan {
                Plan::Write(first, sectors) => {
                    let registers = &mut self.registers[places(first, sectors)];
                    registers.iter_mut().for_each(|register| register.write(caller, value));
                }
                Plan::Read(first, sectors) => {
                    let registers = &mut self.registers[places(first, sectors)];
                    registers.iter_mut().for_each(|register| register.read(caller));
                }
                Plan::Flush => {
                    self.registers.iter_mut().for_each(|register| register.flush(caller));
                }
                Plan::Claim | Plan::Snapshot => {}
            }
        }
        self.post(Post::Request(to, id, incarnation, request));
    }

    /// The guard at a member takes the next epoch for a client. Each try is another request.
    fn claim(&mut self, case: &Case, index: usize, to: MemberId) {
        let client = &mut self.clients[index];
        client.is_sent = true;
        let client = client.id;
        self.claims_made += 1;
        let member = &self.nodes[usize::from(to)].member;
        let Some(incarnation) = member.record().map(|record| record.incarnation) else { return };
        let last = member.note().first_chunk().map_or(0, |epoch| u64::from_le_bytes(*epoch));
        let (number, epoch) = (self.claims_made, last + 1);
        self.claims.insert(number, (client, epoch));
        let id = RequestId { client: ClientId { channel: CLAIMS, ..client_id(client) }, number };
        let note = ClientRequest::Note(epoch.to_le_bytes().to_vec());
        self.step(case, to, Input::Request(id, incarnation, note));
    }

    /// An operator's command at a member. Each try is another snapshot: a try that has no answer is
    /// given up.
    fn snapshot(&mut self, case: &Case, index: usize, to: MemberId) {
        let client = &mut self.clients[index];
        client.is_sent = true;
        let client = client.id;
        self.forget_snapshots(client);
        self.snapshots_made += 1;
        self.ghosts += 1;
        let (number, caller) = (self.snapshots_made, self.ghosts);
        let member = &self.nodes[usize::from(to)].member;
        let Some(incarnation) = member.record().map(|record| record.incarnation) else { return };
        self.snapshots.insert(number, (client, caller));
        self.registers.iter_mut().for_each(|register| register.read(caller));
        let id = RequestId { client: ClientId { channel: SNAPSHOTS, ..client_id(client) }, number };
        let change = SnapshotChange::Take { name: number.to_string(), at_s: number };
        self.step(case, to, Input::Request(id, incarnation, ClientRequest::Snapshot(change)));
    }

    /// The tries of a client for a snapshot are given up.
    pub(crate) fn forget_snapshots(&mut self, client: u8) {
        let given_up = self.snapshots.extract_if(.., |_, (of, _)| *of == client);
        for (_, caller) in given_up.map(|(_, of)| of).collect::<Vec<_>>() {
            self.registers.iter_mut().for_each(|register| register.refused(caller));
        }
    }

    /// A snapshot was completed at a member: it is of a moment at which a read could have been.
    fn snapshot_taken(&mut self, case: &Case, at: MemberId, number: u64) {
        let Some((client, caller)) = self.snapshots.remove(&number) else { return };
        let name = number.to_string();
        let content = self.nodes[usize::from(at)].disk.named(&name, case.sectors);
        let Some(content) = content else {
            self.broken.get_or_insert(format!("snapshot {name} is not at member {at}"));
            return;
        };
        for (register, value) in self.registers.iter_mut().zip(&content) {
            if !register.answered(caller, Some(*value)) {
                self.broken.get_or_insert(format!("snapshot {name} has {content:?}: no order has"));
            }
        }
        self.completed.insert(name, content);
        self.next_of(case, client, Plan::Snapshot);
    }

    /// A client goes on that waits for this.
    fn next_of(&mut self, case: &Case, client: u8, done: Plan) {
        for (waiting, plan) in self.clients.iter_mut().zip(&case.plans) {
            if waiting.id == client && plan.get(waiting.next) == Some(&done) {
                waiting.next += usize::from(std::mem::take(&mut waiting.is_sent));
            }
        }
    }

    fn granted(&mut self, case: &Case, number: u64) {
        let Some((client, epoch)) = self.claims.remove(&number) else { return };
        if !self.granted.insert(epoch) && self.broken.is_none() {
            self.broken = Some(format!("epoch {epoch} was granted twice"));
        }
        self.next_of(case, client, Plan::Claim);
    }

    fn answer(&mut self, case: &Case, at: MemberId, id: RequestId, data: Option<Data>) {
        match id.client.channel {
            CLAIMS => return self.granted(case, id.number),
            SNAPSHOTS => return self.snapshot_taken(case, at, id.number),
            _ => {}
        }
        let Some(index) = self.client_of(id) else { return };
        let client = &mut self.clients[index];
        let (plan, caller) = (case.plans[index][client.next], Caller::from(client.id));
        client.next += 1;
        client.is_sent = false;
        let places = match plan {
            Plan::Flush => {
                self.registers.iter_mut().for_each(|register| register.flushed(caller));
                return;
            }
            Plan::Write(first, sectors) | Plan::Read(first, sectors) => places(first, sectors),
            Plan::Claim | Plan::Snapshot => return,
        };
        for (at, register) in self.registers[places].iter_mut().enumerate() {
            let value = data.map(|data| data[at]);
            if !register.answered(caller, value) && self.broken.is_none() {
                self.broken =
                    Some(format!("client {caller} got {data:?} for {plan:?}: no order has it"));
            }
        }
    }

    fn refuse(&mut self, id: RequestId, incarnation: u64) {
        let Some(index) = self.client_of(id) else { return };
        let client = &mut self.clients[index];
        // A member that is behind knows nothing of what became of the request.
        if incarnation <= client.incarnation && self.broken.is_none() {
            self.broken = Some(format!("incarnation {incarnation} is over and was said to be new"));
        }
        client.next += 1;
        client.is_sent = false;
        client.incarnation = incarnation;
        let caller = Caller::from(client.id);
        self.registers.iter_mut().for_each(|register| register.refused(caller));
    }

    /// Lets everything on the wire happen in its order, without faults.
    pub(crate) fn settle(&mut self, case: &Case) {
        loop {
            let Some(at) = self.deliverable().next() else { return };
            let post = self.wire.remove(at);
            self.deliver(case, post, true);
        }
    }

    pub(crate) fn is_done(&self, case: &Case) -> bool {
        self.clients.iter().zip(&case.plans).all(|(client, plan)| client.next >= plan.len())
    }
}

/// The channel of claims, which are requests of the guard.
const CLAIMS: u16 = 1;

/// The channel of snapshots, which are requests of an operator.
const SNAPSHOTS: u16 = 2;

/// A client of the world as the protocol knows it.
pub(crate) fn client_id(id: u8) -> ClientId {
    ClientId { attachment: id.into(), channel: 0, slot: 0 }
}

pub(crate) fn extent(first: u64, sectors: u32) -> Extent {
    Extent::new(first, sectors).expect("it has sectors")
}

fn places(first: u64, sectors: u32) -> std::ops::Range<usize> {
    first as usize..first as usize + sectors as usize
}

fn work(disk: &mut Disk, output: Output<Data>) -> Option<Input<Data>> {
    match output {
        Output::Store(place, op) => {
            disk.store(place, &op);
            Some(Input::Stored(place))
        }
        Output::Fetch(fetch, extent) => Some(Input::Fetched(fetch, extent, disk.read(extent))),
        Output::Mend(extent, data) => {
            disk.write(extent, &data);
            None
        }
        Output::GoBack(cut) => {
            disk.go_back(cut);
            None
        }
        Output::Drop(cut) => {
            disk.drop_cut(cut);
            None
        }
        Output::EndCompare(..) => None,
        Output::Compare(to, began, cut, from) => {
            Some(Input::Changed(to, began, disk.changed(cut, from)))
        }
        // Its outcome is nothing that is stored.
        Output::Prove(..) => None,
        other => panic!("{other:?} is no work of a disk"),
    }
}

/// Entries of the wire; others are lost. A member that is paused for long must not make the world
/// large.
const WIRE_MAX: usize = 200;
