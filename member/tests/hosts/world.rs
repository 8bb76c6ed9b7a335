//! Nodes with hosts of members, the mail between them, a registry, and a clock that a node may be
//! paused at.

use std::cell::{Cell, Ref, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use block::export::{Export, ExportOptions};
use member::door::{ArrivedMessage, DoorSender};
use member::{
    Errand, ErrandDesk, ErrandEnd, FrontVolume, HostOutside, MemberHost, MemberList, MemberMail,
    MemberPart, MemberPlan, MemberSetup, NODE_PACING, NoteRecords, PlaceWatch, RangeContent,
    RecordClerk, RecordDeskError, SnapshotChange, SnapshotEnd, VolumeRecords, to_wire,
};
use parking_lot::Mutex;
use random::Random;
use replica::wire::{decode, encode};
use replica::{Durable, Input, Life, MemberId, Message, RecoveryPlan, SwapOutcome, VolumeRecord};
use sidecore::mailbox::Full;
use sidecore::{Poll, Services, Waker};
use volume::Volume;

use crate::members::volume::{SECTOR, SharedVolume};

pub(crate) const MS: u64 = 1_000_000;

/// Sectors of the volume.
pub(crate) const SECTORS: u64 = 64;

/// Messages that a way has room for: so few that hosts must keep some back.
const WAY_MAX: usize = 12;

pub(crate) const VOLUME: &str = "alice";

/// The parts of a node while its process lives.
pub(crate) struct Process {
    pub(crate) front: Arc<FrontVolume>,
    pub(crate) records: Arc<NoteRecords>,
    pub(crate) export: Arc<Export>,
    plan_status: Arc<member::MemberStatus>,
    senders: BTreeMap<MemberId, DoorSender>,
    errands: Rc<RefCell<VecDeque<Errand>>>,
}

pub(crate) struct WorldNode {
    pub(crate) volume: SharedVolume,
    pub(crate) durable: RefCell<Option<Durable>>,
    pub(crate) process: RefCell<Option<Process>>,
    host: RefCell<Option<MemberHost>>,
    /// Not polled before this time.
    paused_until_ns: Cell<u64>,
    /// The next look at the clock takes so long.
    pause_at_clock_ns: Cell<u64>,
    /// Its errands do not end.
    pub(crate) desk_hangs: Cell<bool>,
}

#[derive(Debug)]
pub(crate) struct WorldRegistry {
    pub(crate) record: Option<VolumeRecord>,
    pub(crate) is_away: bool,
}

/// The acts of users between two rounds.
pub(crate) type WorldUsers = Box<dyn Fn(&World)>;

/// All of it.
pub(crate) struct World {
    me: Weak<Self>,
    pub(crate) now_ns: Cell<u64>,
    /// The size by which nodes open the volume; none: it is in the nodes' files.
    pub(crate) placed_bytes: Cell<Option<u64>>,
    /// The most sectors that users of a node that serves have had.
    pub(crate) most_sectors: Cell<u64>,
    pub(crate) random: RefCell<Random>,
    pub(crate) nodes: Vec<WorldNode>,
    pub(crate) registry: Arc<Mutex<WorldRegistry>>,
    /// Messages under way, by sender and receiver.
    mail: Vec<Vec<RefCell<VecDeque<Message<RangeContent>>>>>,
    losses: Vec<Vec<Cell<u64>>>,
    /// Ways on which nothing arrives.
    pub(crate) cut_off: RefCell<Vec<(usize, usize)>>,
    pub(crate) users: RefCell<Option<WorldUsers>>,
    is_nested: Cell<bool>,
    pub(crate) pauses: Cell<u64>,
    /// Members hear that processes were killed, at once or late; and such processes.
    pub(crate) tells_ends: Cell<bool>,
    over: RefCell<Vec<(MemberId, Life)>>,
    pub(crate) told_ends: Cell<u64>,
}

impl World {
    /// `members` nodes, none of which runs. Member 0 makes the first record.
    pub(crate) fn new(members: usize, seed: u64) -> Rc<Self> {
        let mut random = Random::new(seed);
        let node = |random: &mut Random| WorldNode {
            volume: SharedVolume::new(SECTORS as usize, random.fork()),
            durable: RefCell::new(None),
            process: RefCell::new(None),
            host: RefCell::new(None),
            paused_until_ns: Cell::new(0),
            pause_at_clock_ns: Cell::new(0),
            desk_hangs: Cell::new(false),
        };
        let nodes = (0..members).map(|_| node(&mut random)).collect();
        let way = || RefCell::new(VecDeque::new());
        let registry = WorldRegistry { record: None, is_away: false };
        Rc::new_cyclic(|me| Self {
            me: me.clone(),
            now_ns: Cell::new(1000 * MS),
            placed_bytes: Cell::new(Some(SECTORS * SECTOR as u64)),
            most_sectors: Cell::new(0),
            random: RefCell::new(random),
            nodes,
            registry: Arc::new(Mutex::new(registry)),
            mail: (0..members).map(|_| (0..members).map(|_| way()).collect()).collect(),
            losses: vec![vec![Cell::new(0); members]; members],
            cut_off: RefCell::new(Vec::new()),
            users: RefCell::new(None),
            is_nested: Cell::new(false),
            pauses: Cell::new(0),
            tells_ends: Cell::new(false),
            over: RefCell::new(Vec::new()),
            told_ends: Cell::new(0),
        })
    }

    pub(crate) fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().below(end)
    }

    pub(crate) fn one_in(&self, cases: u64) -> bool {
        self.random.borrow_mut().one_in(cases)
    }

    pub(crate) fn name(at: usize) -> String {
        format!("io{at}")
    }

    /// Starts a node's process.
    pub(crate) fn start(&self, at: usize) {
        let node = &self.nodes[at];
        let id = at as MemberId;
        let (life, durable) = (self.random.borrow_mut().draw(), node.durable.borrow().clone());
        // As a node does: the end of a life is good for one start.
        if let Some(durable) = &mut *node.durable.borrow_mut() {
            durable.ended = None;
        }
        let has_state = durable.is_some();
        let nodes = (0..self.nodes.len()).map(|at| (at as MemberId, Self::name(at))).collect();
        let setup = MemberSetup {
            volume: VOLUME.to_owned(),
            id,
            nodes,
            life,
            number: [life as u8; 16],
            pacing: NODE_PACING,
            durable: durable.unwrap_or_default(),
            cuts: node.volume.borrow_mut().cuts(),
            settings: Vec::new(),
            placed_bytes: self.placed_bytes.get(),
            own: Arc::new(node.volume.clone()),
        };
        let plan = MemberPlan::new(setup, &Waker::none());
        let (front, records) = (Arc::clone(&plan.front), Arc::clone(&plan.records));
        let export = Export::new(
            VOLUME,
            Arc::clone(&front) as Arc<dyn Volume>,
            ExportOptions::default(),
            Arc::clone(&records) as Arc<dyn volume::record::RecordStore>,
        );
        let export = export.expect("a member that does not serve has no records");
        let others = (0..self.nodes.len()).filter(|other| *other != at);
        let senders = others.map(|it| (it as MemberId, plan.door.connect(Waker::none())));
        let errands = Rc::new(RefCell::new(VecDeque::new()));
        let process = Process {
            senders: senders.collect(),
            plan_status: Arc::clone(&plan.status),
            export: Arc::clone(&export),
            errands: Rc::clone(&errands),
            front,
            records,
        };
        *node.process.borrow_mut() = Some(process);
        let registry = SimRecords(Arc::clone(&self.registry));
        let desk = SimDesk {
            world: self.me.clone(),
            at,
            errands,
            clerk: RecordClerk::new(registry, VOLUME, (id, life), has_state),
        };
        let world = self.me.clone();
        let outside = HostOutside {
            mail: Box::new(SimMail { world: self.me.clone(), from: at }),
            desk: Box::new(desk),
            watch: Box::new(Guard(export)),
            clock: Box::new(move || world.upgrade().expect("the test has it").clock(at)),
        };
        let host = MemberHost::start(plan, &Services::new(), outside).expect("it opens");
        *node.host.borrow_mut() = Some(host);
    }

    pub(crate) fn set_drained(&self, at: usize, drained: bool) {
        if let Some(host) = &mut *self.nodes[at].host.borrow_mut() {
            host.set_drained(drained);
        }
    }

    /// The placement of the volume has changed: these members must go.
    pub(crate) fn set_leaving(&self, leaving: &[usize]) {
        let nodes = (0..self.nodes.len()).map(|at| (at as MemberId, Self::name(at))).collect();
        let leaving = leaving.iter().map(|at| *at as MemberId).collect();
        let list = MemberList { leaving, ..MemberList::new(nodes) };
        for node in &self.nodes {
            if let Some(host) = &mut *node.host.borrow_mut() {
                host.set_list(list.clone());
            }
        }
    }

    /// A node hears that users get so many sectors, and which members have not grown.
    pub(crate) fn tell_size(&self, at: usize, sectors: u64, small: &[usize]) {
        let nodes = (0..self.nodes.len()).map(|at| (at as MemberId, Self::name(at))).collect();
        let small = small.iter().map(|at| *at as MemberId).collect();
        let size_bytes = sectors * SECTOR as u64;
        let list = MemberList { small, size_bytes, ..MemberList::new(nodes) };
        if let Some(host) = &mut *self.nodes[at].host.borrow_mut() {
            host.set_list(list);
        }
    }

    /// The sectors that users of the volume on a node have.
    pub(crate) fn sectors(&self, at: usize) -> u64 {
        let size_bytes = self.process(at).expect("it runs").front.info().size_bytes;
        size_bytes / SECTOR as u64
    }

    /// A node's process ends in order, if it can within a second. Says whether the end of its life
    /// was kept: then its next process goes on with it.
    pub(crate) fn end_in_order(&self, at: usize) -> bool {
        let until_ns = self.now_ns.get() + 1000 * MS;
        let has_retired = |world: &Self| {
            let host = &mut *world.nodes[at].host.borrow_mut();
            host.as_mut().is_none_or(|host| host.retire(world.now_ns.get()))
        };
        while !has_retired(self) && self.now_ns.get() < until_ns {
            self.step();
        }
        self.kill(at);
        let durable = self.nodes[at].durable.borrow();
        durable.as_ref().is_some_and(|durable| durable.ended.is_some())
    }

    /// A node's process is killed.
    pub(crate) fn kill(&self, at: usize) {
        let node = &self.nodes[at];
        let host = node.host.borrow_mut().take();
        let goes_on = node.durable.borrow().as_ref().is_some_and(|it| it.ended.is_some());
        let over = host.as_ref().filter(|_| !goes_on).map(|host| (at as MemberId, host.life()));
        self.over.borrow_mut().extend(over);
        if let Some(mut host) = host
            && self.one_in(2)
        {
            // Some of what is under way at its volume happens still.
            assert!(host.abandon(self.now_ns.get()), "the volume lets go at once");
        }
        *node.process.borrow_mut() = None;
        node.paused_until_ns.set(0);
        node.pause_at_clock_ns.set(0);
        node.desk_hangs.set(false);
        for other in 0..self.nodes.len() {
            self.lose_session(at, other);
        }
    }

    pub(crate) fn lose_session(&self, one: usize, other: usize) {
        for (from, to) in [(one, other), (other, one)] {
            self.mail[from][to].borrow_mut().clear();
            self.losses[from][to].set(self.losses[from][to].get() + 1);
        }
    }

    /// The node is not polled for so long.
    pub(crate) fn pause(&self, at: usize, for_ns: u64) {
        self.nodes[at].paused_until_ns.set(self.now_ns.get() + for_ns);
    }

    /// The node stands still for so long right behind its next look at the clock, in a round.
    pub(crate) fn pause_at_clock(&self, at: usize, for_ns: u64) {
        self.nodes[at].pause_at_clock_ns.set(for_ns);
    }

    /// Asks the host of a node that runs.
    pub(crate) fn with_host<R>(&self, at: usize, ask: impl FnOnce(&mut MemberHost) -> R) -> R {
        ask(self.nodes[at].host.borrow_mut().as_mut().expect("the node runs"))
    }

    pub(crate) fn order(&self, at: usize, order: Input<RangeContent>) {
        if let Some(host) = &mut *self.nodes[at].host.borrow_mut() {
            host.order(self.now_ns.get(), order);
        }
    }

    /// Begins to take a snapshot at a node. None if the node refuses.
    pub(crate) fn take_snapshot(&self, at: usize, name: &str) -> Option<Receiver<SnapshotEnd>> {
        let change = SnapshotChange::Take { name: name.to_owned(), at_s: 7 };
        self.nodes[at].host.borrow_mut().as_mut()?.change_snapshots(change).ok()
    }

    /// The content that a node's copy has under a snapshot's name.
    pub(crate) fn snapshot(&self, at: usize, name: &str) -> Option<Vec<u8>> {
        self.nodes[at].volume.borrow_mut().snapshots.get(name).cloned()
    }

    pub(crate) fn set_full(&self, at: usize, is_full: bool) {
        self.nodes[at].volume.borrow_mut().is_full = is_full;
    }

    fn clock(&self, at: usize) -> u64 {
        let now_ns = self.now_ns.get();
        let for_ns = self.nodes[at].pause_at_clock_ns.take();
        if for_ns > 0 && !self.is_nested.replace(true) {
            self.pauses.set(self.pauses.get() + 1);
            while self.now_ns.get() < now_ns + for_ns {
                self.step();
            }
            self.is_nested.set(false);
        }
        now_ns
    }

    /// A round of all nodes that are not paused.
    pub(crate) fn step(&self) {
        let step_ns = self.random.borrow_mut().between(1, 12) * MS;
        self.now_ns.set(self.now_ns.get() + step_ns);
        self.deliver();
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            if self.now_ns.get() < node.paused_until_ns.get() {
                continue;
            }
            // A node that stands still inside of a round is borrowed.
            if let Ok(mut host) = node.host.try_borrow_mut()
                && let Some(host) = &mut *host
            {
                let _ = host.poll(self.now_ns.get());
            }
        }
        let serving = (0..self.nodes.len()).filter(|at| self.part(*at) == Some(MemberPart::Serves));
        let most = serving.map(|at| self.sectors(at)).max().unwrap_or_default();
        self.most_sectors.set(self.most_sectors.get().max(most));
        let users = self.users.borrow();
        if let Some(users) = &*users {
            users(self);
        }
    }

    pub(crate) fn run(&self, for_ns: u64) {
        let until_ns = self.now_ns.get() + for_ns;
        while self.now_ns.get() < until_ns {
            self.step();
        }
    }

    /// Runs until something holds; a test that waits in vain fails.
    pub(crate) fn run_until(&self, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let until_ns = self.now_ns.get() + 120_000 * MS;
        while !holds(self) {
            assert!(self.now_ns.get() < until_ns, "{what}: not within two minutes");
            self.step();
        }
    }

    /// Messages arrive, some of them, each by its bytes.
    fn deliver(&self) {
        for from in 0..self.nodes.len() {
            for to in 0..self.nodes.len() {
                if self.cut_off.borrow().contains(&(from, to)) {
                    continue;
                }
                let mut process = self.nodes[to].process.borrow_mut();
                let mut way = self.mail[from][to].borrow_mut();
                let Some(process) = &mut *process else {
                    way.clear();
                    continue;
                };
                let count = self.below(way.len() as u64 + 1);
                for _ in 0..count {
                    let message = way.pop_front().expect("as many as there are");
                    let sender = process.senders.get_mut(&(from as MemberId)).expect("a member");
                    if let Err(Full(_)) = sender.send(arrived(from as MemberId, message.clone())) {
                        way.push_front(message);
                        break;
                    }
                }
            }
        }
    }

    pub(crate) fn process(&self, at: usize) -> Option<Ref<'_, Process>> {
        Ref::filter_map(self.nodes[at].process.borrow(), Option::as_ref).ok()
    }

    pub(crate) fn part(&self, at: usize) -> Option<MemberPart> {
        Some(self.process(at)?.plan_status.view().part)
    }

    pub(crate) fn view(&self, at: usize) -> member::MemberView {
        self.process(at).expect("it runs").plan_status.view()
    }

    /// The node that serves, if one says that it does.
    pub(crate) fn server(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|at| self.part(*at) == Some(MemberPart::Serves))
    }

    pub(crate) fn in_sync(&self) -> usize {
        self.registry.lock().record.as_ref().map_or(0, |record| record.in_sync.len())
    }

    pub(crate) fn is_well(&self) -> bool {
        self.in_sync() == self.nodes.len() && self.server().is_some()
    }
}

/// The message as it arrives.
fn arrived(from: MemberId, message: Message<RangeContent>) -> ArrivedMessage {
    let (message, content) = to_wire(message);
    let (mut head, mut body) = (Vec::new(), Vec::new());
    encode(1, &message, &mut head, &mut body);
    if let Some(RangeContent::Bytes(bytes)) = content {
        body.extend_from_slice(&bytes);
    }
    let (_, message) = decode(&head, &body).expect("a member keeps to the limits");
    ArrivedMessage { from, message, body }
}

struct SimMail {
    world: Weak<World>,
    from: usize,
}

impl MemberMail for SimMail {
    fn send(
        &mut self,
        _now_ns: u64,
        to: MemberId,
        message: Message<RangeContent>,
    ) -> Result<(), Message<RangeContent>> {
        let world = self.world.upgrade().expect("the test has it");
        let mut way = world.mail[self.from][usize::from(to)].borrow_mut();
        if way.len() >= WAY_MAX {
            return Err(message);
        }
        way.push_back(message);
        Ok(())
    }

    /// A member that leaves the list hears and says nothing: the test closes the way.
    fn set_members(&mut self, _others: &BTreeMap<MemberId, String>) {}

    fn losses(&self, to: MemberId) -> u64 {
        let world = self.world.upgrade().expect("the test has it");
        world.losses[self.from][usize::from(to)].get()
    }
}

/// The volume's guard, as a node wires it.
struct Guard(Arc<Export>);

impl PlaceWatch for Guard {
    fn serves(&mut self) -> Result<(), String> {
        self.0.serve_here().map_err(|error| error.to_string())
    }

    fn elsewhere(&mut self, node: &str) {
        self.0.set_elsewhere(Some(node));
    }

    fn resized(&mut self) {
        self.0.tell_peers();
    }
}

fn no_answer() -> RecordDeskError {
    RecordDeskError::NoAnswer("the registry is away".to_owned())
}

/// The registry's record.
struct SimRecords(Arc<Mutex<WorldRegistry>>);

impl VolumeRecords for SimRecords {
    fn look(&mut self) -> Result<Option<VolumeRecord>, RecordDeskError> {
        let registry = self.0.lock();
        if registry.is_away { Err(no_answer()) } else { Ok(registry.record.clone()) }
    }

    fn create(&mut self, first: &VolumeRecord) -> Result<(), RecordDeskError> {
        let mut registry = self.0.lock();
        if registry.is_away || registry.record.is_some() {
            return Err(no_answer());
        }
        registry.record = Some(first.clone());
        Ok(())
    }

    fn swap(&mut self, target: &VolumeRecord) -> SwapOutcome {
        let mut registry = self.0.lock();
        match registry.record.clone() {
            _ if registry.is_away => SwapOutcome::Unknown,
            Some(record) if record == *target => SwapOutcome::Done,
            Some(record) if record.epoch + 1 != target.epoch => SwapOutcome::Conflict(record),
            _ => {
                registry.record = Some(target.clone());
                SwapOutcome::Done
            }
        }
    }

    fn remake(&mut self, plan: &RecoveryPlan) -> Result<SwapOutcome, RecordDeskError> {
        let mut registry = self.0.lock();
        match &registry.record {
            _ if registry.is_away => Err(no_answer()),
            Some(record) if record.epoch > plan.known.epoch => {
                Ok(SwapOutcome::Conflict(record.clone()))
            }
            _ => {
                registry.record = Some(plan.record.clone());
                Ok(SwapOutcome::Done)
            }
        }
    }
}

struct SimDesk {
    world: Weak<World>,
    at: usize,
    errands: Rc<RefCell<VecDeque<Errand>>>,
    clerk: RecordClerk<SimRecords>,
}

impl ErrandDesk for SimDesk {
    fn put(&mut self, errand: Errand) {
        self.errands.borrow_mut().push_back(errand);
    }

    fn take(&mut self) -> Option<ErrandEnd> {
        let world = self.world.upgrade().expect("the test has it");
        let node = &world.nodes[self.at];
        if node.desk_hangs.get() || world.one_in(3) {
            return None;
        }
        let over = world.over.borrow();
        if world.tells_ends.get() && !over.is_empty() && world.one_in(50) {
            // The last end, or an end of long ago.
            let last = over.len() - 1;
            let told = if world.one_in(2) { last } else { world.below(over.len() as u64) as usize };
            let (member, life) = over[told];
            world.told_ends.set(world.told_ends.get() + 1);
            return Some(ErrandEnd::Over(member, life));
        }
        let errand = self.errands.borrow_mut().pop_front()?;
        Some(match errand {
            Errand::Keep(durable) => {
                *node.durable.borrow_mut() = Some(durable);
                ErrandEnd::Kept
            }
            Errand::Volume(task) => ErrandEnd::Volume(node.volume.borrow_mut().carry_out(task)),
            Errand::Look => self.clerk.look(),
            Errand::Remake(plan) => self.clerk.remake(plan),
            Errand::Swap(target) => match self.clerk.swap(target) {
                ErrandEnd::Swapped(target, _) if world.one_in(8) => {
                    ErrandEnd::Swapped(target, SwapOutcome::Unknown)
                }
                end => end,
            },
        })
    }

    fn is_empty(&self) -> bool {
        self.errands.borrow().is_empty()
    }
}

impl Process {
    pub(crate) fn errands(&self) -> usize {
        self.errands.borrow().len()
    }
}

pub(crate) const SECTOR_BYTES: usize = SECTOR;
