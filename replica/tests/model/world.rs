//! The state of the small world, and its events.

use std::collections::VecDeque;

use replica::{
    Cut, Input, Life, MemberId, Op, Output, Record, Request, SwapOutcome,
};
use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use super::disk::Disk;
use super::{Case, Data, ModelMember, ModelMessage, TIMING, first_record, request};

/// A request in a client's plan. All are about one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Plan {
    Write(Data),
    Read,
    Flush,
}

/// How often each kind of fault may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// A member loses power, and starts again at once.
    pub power: u8,
    /// A member does not run for some time.
    pub pauses: u8,
    /// All messages that wait between two members, in one direction, are lost.
    pub losses: u8,
    /// A message is held back, and comes any time later.
    pub delays: u8,
    /// The answer of the registry to a swap is lost.
    pub unknown: u8,
    /// The registry is away for some time.
    pub away: u8,
    /// The registry is put back to its first record.
    pub restored: u8,
    /// A member sees an old record.
    pub stale: u8,
    /// An operator moves the primary.
    pub moves: u8,
    /// A client sends its request again.
    pub again: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub member: ModelMember,
    pub disk: Disk,
    pub is_paused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    /// The number of the request that it waits for, or will send next.
    next: usize,
    is_sent: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Tick,
    Deliver(MemberId, MemberId),
    DeliverDelayed,
    Delay(MemberId, MemberId),
    Lose(MemberId, MemberId),
    Swap(usize, bool),
    Send(usize, MemberId),
    Power(MemberId),
    Pause(MemberId),
    Resume(MemberId),
    RegistryAway(bool),
    Restore,
    Stale(MemberId),
    Move(MemberId, MemberId),
}

type History = LinearizabilityTester<usize, Register<Data>>;

#[derive(Clone, Debug, PartialEq, Hash)]
pub struct World {
    now: u64,
    pub nodes: Vec<Node>,
    pub registry: Record,
    /// Records that the registry had.
    past: Vec<Record>,
    is_away: bool,
    /// Swaps on their way to the registry.
    swaps: Vec<(MemberId, Life, Record)>,
    /// Messages on their way, in order for each pair of members.
    queues: Vec<VecDeque<ModelMessage>>,
    delayed: Option<(MemberId, MemberId, ModelMessage)>,
    clients: Vec<Client>,
    history: History,
    is_history_valid: bool,
    /// The value that must be there: written, completed and flushed, and no write came later.
    flushed: Option<Data>,
    completed: Option<Data>,
    begun_writes: u8,
    lives: Life,
    budget: Budget,
}

impl World {
    pub fn new(case: &Case) -> Self {
        let record = first_record(case);
        let count = usize::from(case.members);
        let node = |id: u8| {
            let member = ModelMember::start(id, 1, TIMING, (0, 0), Default::default(), 0);
            let member = member.breaking(case.broken);
            Node { member, disk: Disk::default(), is_paused: false }
        };
        let mut world = Self {
            now: 0,
            nodes: (0..case.members).map(node).collect(),
            registry: record.clone(),
            past: Vec::new(),
            is_away: false,
            swaps: Vec::new(),
            queues: vec![VecDeque::new(); count * count],
            delayed: None,
            clients: vec![Client { next: 0, is_sent: false }; 2],
            history: LinearizabilityTester::new(Register(0)),
            is_history_valid: true,
            flushed: None,
            completed: None,
            begun_writes: 0,
            lives: 1,
            budget: case.budget,
        };
        // The volume is there and served: a fair beginning.
        for id in 0..case.members {
            world.step(case, id, Input::Seen(record.clone()));
        }
        world.settle(case);
        world
    }

    fn queue(&self, from: MemberId, to: MemberId) -> usize {
        usize::from(from) * self.nodes.len() + usize::from(to)
    }

    fn ids(&self) -> impl Iterator<Item = MemberId> + use<> {
        0..u8::try_from(self.nodes.len()).expect("few members")
    }

    pub fn servers(&self) -> usize {
        self.nodes.iter().filter(|node| node.member.serves(self.now)).count()
    }

    pub fn is_done(&self) -> bool {
        self.clients.iter().all(|client| !client.is_sent && client.next > 0)
            && self.clients.iter().any(|client| client.next > 1)
    }

    pub fn is_linearizable(&self) -> bool {
        !self.is_history_valid || self.history.serialized_history().is_some()
    }

    /// The member that serves has the flushed value, if no write began since it completed.
    pub fn keeps_flushed(&self) -> bool {
        let Some(flushed) = self.flushed else { return true };
        let serving = self.nodes.iter().filter(|node| node.member.serves(self.now));
        serving.into_iter().all(|node| node.disk.read(0) == flushed)
    }

    pub fn actions(&self, case: &Case, actions: &mut Vec<Action>) {
        if self.now < case.ticks {
            actions.push(Action::Tick);
        }
        for from in self.ids() {
            for to in self.ids() {
                if self.queues[self.queue(from, to)].is_empty() {
                    continue;
                }
                if !self.nodes[usize::from(to)].is_paused {
                    actions.push(Action::Deliver(from, to));
                }
                if self.budget.losses > 0 {
                    actions.push(Action::Lose(from, to));
                }
                if self.budget.delays > 0 && self.delayed.is_none() {
                    actions.push(Action::Delay(from, to));
                }
            }
        }
        if self.delayed.as_ref().is_some_and(|(_, to, _)| !self.nodes[usize::from(*to)].is_paused) {
            actions.push(Action::DeliverDelayed);
        }
        if !self.is_away {
            for swap in 0..self.swaps.len() {
                actions.push(Action::Swap(swap, true));
                if self.budget.unknown > 0 {
                    actions.push(Action::Swap(swap, false));
                }
            }
        }
        for (index, client) in self.clients.iter().enumerate() {
            let is_over = client.next >= case.plans[index].len();
            if is_over || client.is_sent && self.budget.again == 0 {
                continue;
            }
            for id in self.ids() {
                let node = &self.nodes[usize::from(id)];
                if !node.is_paused && node.member.is_primary() {
                    actions.push(Action::Send(index, id));
                }
            }
        }
        self.faults(actions);
    }

    fn faults(&self, actions: &mut Vec<Action>) {
        for id in self.ids() {
            let node = &self.nodes[usize::from(id)];
            if self.budget.power > 0 {
                actions.push(Action::Power(id));
            }
            match node.is_paused {
                true => actions.push(Action::Resume(id)),
                false if self.budget.pauses > 0 => actions.push(Action::Pause(id)),
                false => {}
            }
            if self.budget.stale > 0 && !self.past.is_empty() && !node.is_paused {
                actions.push(Action::Stale(id));
            }
            if self.budget.moves > 0 && node.member.is_primary() && !node.is_paused {
                let to = self.registry.others(id);
                actions.extend(to.map(|to| Action::Move(id, to)));
            }
        }
        match self.is_away {
            true => actions.push(Action::RegistryAway(false)),
            false if self.budget.away > 0 => actions.push(Action::RegistryAway(true)),
            false => {}
        }
        if self.budget.restored > 0 && !self.past.is_empty() {
            actions.push(Action::Restore);
        }
    }

    pub fn act(&mut self, case: &Case, action: &Action) {
        match *action {
            Action::Tick => self.tick(case),
            Action::Deliver(from, to) => {
                let queue = self.queue(from, to);
                if let Some(message) = self.queues[queue].pop_front() {
                    self.step(case, to, Input::Message(from, message));
                }
            }
            Action::Delay(from, to) => {
                self.budget.delays -= 1;
                let queue = self.queue(from, to);
                self.delayed = self.queues[queue].pop_front().map(|message| (from, to, message));
            }
            Action::DeliverDelayed => {
                if let Some((from, to, message)) = self.delayed.take() {
                    self.step(case, to, Input::Message(from, message));
                }
            }
            Action::Lose(from, to) => {
                self.budget.losses -= 1;
                let queue = self.queue(from, to);
                self.queues[queue].clear();
            }
            Action::Swap(index, is_told) => self.swap(case, index, is_told),
            Action::Send(client, to) => self.send(case, client, to),
            Action::Power(id) => self.power(case, id),
            Action::Pause(id) => {
                self.budget.pauses -= 1;
                self.nodes[usize::from(id)].is_paused = true;
            }
            Action::Resume(id) => self.nodes[usize::from(id)].is_paused = false,
            Action::RegistryAway(is_away) => {
                self.budget.away -= u8::from(is_away);
                self.is_away = is_away;
            }
            Action::Restore => {
                self.budget.restored -= 1;
                self.registry = self.past[0].clone();
            }
            Action::Stale(id) => {
                self.budget.stale -= 1;
                let old = self.past[self.past.len() - 1].clone();
                self.step(case, id, Input::Seen(old));
            }
            Action::Move(id, to) => {
                self.budget.moves -= 1;
                self.step(case, id, Input::Move(to));
            }
        }
    }

    fn tick(&mut self, case: &Case) {
        self.now += 1;
        for id in self.ids() {
            if !self.nodes[usize::from(id)].is_paused {
                self.step(case, id, Input::Timer);
            }
        }
    }

    fn swap(&mut self, case: &Case, index: usize, is_told: bool) {
        let (from, life, target) = self.swaps.remove(index);
        let outcome = if target.epoch == self.registry.epoch + 1 {
            if target.incarnation != self.registry.incarnation {
                // What was not flushed may be lost, and the clients are told.
                self.is_history_valid = false;
            }
            self.past.push(std::mem::replace(&mut self.registry, target.clone()));
            SwapOutcome::Done
        } else {
            SwapOutcome::Conflict(self.registry.clone())
        };
        let outcome = if is_told {
            outcome
        } else {
            self.budget.unknown -= 1;
            SwapOutcome::Unknown
        };
        let node = &self.nodes[usize::from(from)];
        if node.member.life() == life && !node.is_paused {
            self.step(case, from, Input::Swapped(target, outcome));
        }
    }

    fn power(&mut self, case: &Case, id: MemberId) {
        self.budget.power -= 1;
        self.restart(case, id);
    }

    fn restart(&mut self, case: &Case, id: MemberId) {
        self.lives += 1;
        let (life, now) = (self.lives, self.now);
        let node = &mut self.nodes[usize::from(id)];
        node.disk.lose_power();
        node.is_paused = false;
        let member =
            ModelMember::start(id, life, TIMING, node.disk.epochs, node.disk.cuts(), now);
        node.member = member.breaking(case.broken);
        // Sessions end with the process.
        for other in self.ids() {
            for queue in [self.queue(id, other), self.queue(other, id)] {
                self.queues[queue].clear();
            }
        }
    }

    fn send(&mut self, case: &Case, client: usize, to: MemberId) {
        let number = self.clients[client].next;
        let plan = case.plans[client][number];
        if self.clients[client].is_sent {
            self.budget.again -= 1;
        } else {
            self.clients[client].is_sent = true;
            let op = match plan {
                Plan::Write(data) => Some(RegisterOp::Write(data)),
                Plan::Read => Some(RegisterOp::Read),
                Plan::Flush => None,
            };
            if let Plan::Write(_) = plan {
                self.begun_writes += 1;
                (self.flushed, self.completed) = (None, None);
            }
            if let (Some(op), true) = (op, self.is_history_valid) {
                let taken = self.history.on_invoke(client, op);
                taken.expect("a client has one request at a time");
            }
        }
        let asked = match plan {
            Plan::Write(data) => Request::Write(0, data),
            Plan::Read => Request::Read(0),
            Plan::Flush => Request::Flush,
        };
        self.step(case, to, Input::Request(request(client, number + 1), asked));
    }

    fn answer(&mut self, case: &Case, id: replica::RequestId, data: Option<Data>) {
        let index = usize::from(id.client);
        let client = &mut self.clients[index];
        if !client.is_sent || client.next + 1 != id.number as usize {
            return;
        }
        let plan = case.plans[index][client.next];
        client.next += 1;
        client.is_sent = false;
        let returned = match plan {
            Plan::Write(value) => {
                // With another write under way it is not known which of both comes last.
                let others = self.clients.iter().enumerate().any(|(other, client)| {
                    other != index
                        && client.is_sent
                        && matches!(case.plans[other][client.next], Plan::Write(_))
                });
                self.completed = (!others).then_some(value);
                Some(RegisterRet::WriteOk)
            }
            Plan::Read => Some(RegisterRet::ReadOk(data.expect("a read gives data"))),
            Plan::Flush => {
                // Only for a flush that began after the write had completed: the same client's.
                let own = case.plans[index][..self.clients[index].next - 1].last();
                if own == self.completed.map(Plan::Write).as_ref() {
                    self.flushed = self.completed;
                }
                None
            }
        };
        if let (Some(returned), true) = (returned, self.is_history_valid) {
            self.is_history_valid = self.history.on_return(index, returned).is_ok();
        }
    }

    fn step(&mut self, case: &Case, id: MemberId, input: Input<Data>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let (mut out, now) = (Vec::new(), self.now);
            self.nodes[usize::from(id)].member.step(now, input, &mut out);
            for output in out {
                self.carry_out(case, id, output, &mut inputs);
            }
        }
    }

    fn carry_out(
        &mut self,
        case: &Case,
        id: MemberId,
        output: Output<Data>,
        inputs: &mut VecDeque<Input<Data>>,
    ) {
        let queue = |to: MemberId| usize::from(id) * self.nodes.len() + usize::from(to);
        match output {
            Output::Send(to, message) => {
                let queue = queue(to);
                // What is sent again while the first one waits adds nothing.
                if !self.queues[queue].contains(&message) {
                    self.queues[queue].push_back(message);
                }
            }
            Output::Swap(target) => {
                let swap = (id, self.nodes[usize::from(id)].member.life(), target);
                if !self.swaps.contains(&swap) {
                    self.swaps.push(swap);
                }
            }
            Output::Look => {
                if !self.is_away {
                    inputs.push_back(Input::Seen(self.registry.clone()));
                }
            }
            Output::Promise(promised, seen) => {
                self.nodes[usize::from(id)].disk.epochs = (promised, seen);
            }
            Output::Store(counter, op) => {
                let node = &mut self.nodes[usize::from(id)];
                let cut = (op == Op::Cut).then(|| Cut { reign: node.member.reign(), counter });
                node.disk.store(cut, &op);
                inputs.push_back(Input::Stored(counter));
            }
            Output::Fetch(fetch, block) => {
                let data = self.nodes[usize::from(id)].disk.read(block);
                inputs.push_back(Input::Fetched(fetch, block, data));
            }
            Output::GoBack(cut) => self.nodes[usize::from(id)].disk.go_back(cut),
            Output::Compare(member, admission, cut) => {
                let blocks = self.nodes[usize::from(id)].disk.changed(cut);
                inputs.push_back(Input::Changed(member, admission, blocks));
            }
            Output::Answer(request, data) => self.answer(case, request, data),
        }
    }

    /// Lets everything that waits happen in one order, without faults.
    fn settle(&mut self, case: &Case) {
        loop {
            let waiting = self.ids().flat_map(|from| self.ids().map(move |to| (from, to)));
            let next = waiting
                .into_iter()
                .find(|(from, to)| !self.queues[self.queue(*from, *to)].is_empty());
            if let Some((from, to)) = next {
                self.act(case, &Action::Deliver(from, to));
            } else if !self.swaps.is_empty() {
                self.swap(case, 0, true);
            } else {
                return;
            }
        }
    }

    /// Whether a member serves after some time without faults.
    pub fn serves_again(&self, case: &Case) -> bool {
        let mut world = self.clone();
        world.is_away = false;
        world.delayed = None;
        for node in &mut world.nodes {
            node.is_paused = false;
        }
        for _ in 0..FAIR_TICKS {
            world.settle(case);
            let in_sync = world.registry.in_sync.len();
            if world.servers() == 1 && in_sync == world.nodes.len() {
                return true;
            }
            world.tick(case);
        }
        false
    }
}

/// Ticks after which a volume is served by all its members again, once faults have ended: a lease,
/// a take-over, an admission of each member.
const FAIR_TICKS: u32 = 16;
