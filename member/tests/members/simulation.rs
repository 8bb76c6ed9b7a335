//! Runs of some seeds: members are killed, lose power, stand still, and lose their sessions, while
//! clients write and read. Each read has the content of the last write that was acknowledged. When
//! faults have ended, all members serve the volume again and have the same content.

use std::collections::BTreeMap;

use member::{Outbox, RangeContent, TICK_NS, from_wire, to_wire};
use random::Random;
use replica::wire::{decode, encode};
use replica::{MemberId, Message, VolumeRecord};
use seeds::{Seeds, Tally};

use super::clients::SimClient;
use super::node::{SimNode, SimRegistry};

const SECTORS: u64 = 48;
const CLIENTS: u64 = 6;

/// Rounds with faults, and rounds after which all must be well without them.
const ROUNDS: u64 = 6_000;
const FAIR_ROUNDS: u64 = 6_000;

/// Rounds in which each client has an answer then.
const ANSWER_ROUNDS: u64 = 3_000;

/// A round's time: ten are a tick.
const ROUND_NS: u64 = TICK_NS / 10;

struct Simulation {
    nodes: Vec<SimNode>,
    registry: SimRegistry,
    clients: Vec<SimClient>,
    zeroes: Vec<Vec<u64>>,
    random: Random,
    now_ns: u64,
    lives: u64,
    /// When each node that is down starts again.
    back_ns: BTreeMap<usize, u64>,
    /// Nodes that end in order, and the time after which they are killed.
    retiring: BTreeMap<usize, u64>,
    tally: Tally,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let members = random.between(2, 3) as usize;
        let in_sync = (0..members).map(|id| (id as MemberId, id as u64 + 1)).collect();
        let registry = SimRegistry { record: VolumeRecord::first(0, in_sync), is_away: false };
        let nodes = (0..members)
            .map(|id| SimNode::new(id as MemberId, members, SECTORS as usize, &mut random))
            .collect();
        let share = SECTORS / CLIENTS;
        let clients = (0..CLIENTS).map(|at| SimClient::new(at as u16, at * share, share));
        let mut simulation = Self {
            nodes,
            registry,
            clients: clients.collect(),
            zeroes: vec![Vec::new(); CLIENTS as usize],
            random,
            now_ns: 1_000 * TICK_NS,
            lives: 0,
            back_ns: BTreeMap::new(),
            retiring: BTreeMap::new(),
            tally: Tally::default(),
        };
        (0..members).for_each(|at| simulation.start(at));
        simulation
    }

    fn start(&mut self, at: usize) {
        self.lives += 1;
        self.nodes[at].start(self.now_ns, self.lives);
    }

    fn fault(&mut self) {
        let at = self.random.below(self.nodes.len() as u64) as usize;
        match self.random.below(8) {
            0 | 1 if self.nodes[at].member.is_some() => {
                let loses_power = self.random.one_in(3);
                self.kill(at, loses_power);
                self.tally.add(if loses_power { "losses of power" } else { "kills" }, 1);
            }
            2 => {
                self.nodes[at].is_paused = !self.nodes[at].is_paused;
                self.tally.add("pauses", 1);
            }
            3 => {
                self.lose_sessions(at);
                self.tally.add("lost sessions", 1);
            }
            4 => {
                self.registry.is_away = !self.registry.is_away;
                self.tally.add("times without registry", 1);
            }
            5 => {
                let volume = &mut *self.nodes[at].volume.borrow_mut();
                volume.is_full = !volume.is_full;
                self.tally.add("full pools", 1);
            }
            6 if self.nodes[at].member.is_some() => {
                self.nodes[at].is_paused = false;
                self.retiring.entry(at).or_insert(self.now_ns + 20 * TICK_NS);
            }
            _ => self.nodes[at].is_paused = false,
        }
    }

    fn kill(&mut self, at: usize, loses_power: bool) {
        self.retiring.remove(&at);
        self.nodes[at].kill(self.now_ns, loses_power);
        self.lose_sessions(at);
        let away_ns = self.random.below(40) * TICK_NS;
        self.back_ns.insert(at, self.now_ns + away_ns);
    }

    /// Nodes that end in order are gone when they have done what they can, or after some time. Then
    /// a loss of power takes nothing.
    fn retire(&mut self) {
        for (at, until_ns) in self.retiring.clone() {
            if self.nodes[at].has_retired() || self.now_ns >= until_ns {
                let loses_power = self.random.one_in(2);
                self.kill(at, loses_power);
                self.tally.add("ends in order", 1);
                self.tally.add("ends that were kept", u64::from(self.nodes[at].has_end()));
            }
        }
    }

    /// The sessions of a node end with all that is under way.
    fn lose_sessions(&mut self, at: usize) {
        for other in 0..self.nodes.len() {
            self.nodes[other].inbox[at].clear();
            self.nodes[at].inbox[other].clear();
            for (of, with) in [(other, at), (at, other)] {
                if let Some(member) = &mut self.nodes[of].member {
                    member.session_lost(with as MemberId);
                }
            }
        }
    }

    fn round(&mut self) -> Result<(), String> {
        self.now_ns += ROUND_NS;
        self.retire();
        for at in 0..self.nodes.len() {
            if self.back_ns.get(&at).is_some_and(|back_ns| self.now_ns >= *back_ns) {
                self.back_ns.remove(&at);
                self.start(at);
            }
            let sent = self.nodes[at].round(self.now_ns, &mut self.registry, &mut self.random);
            self.post(at, sent);
        }
        let now_ns = self.now_ns;
        let serves =
            |node: &SimNode| node.member.as_ref().is_some_and(|member| member.serves(now_ns));
        if self.nodes.iter().filter(|node| serves(node)).count() > 1 {
            return Err("two members answer reads".to_owned());
        }
        for node in &self.nodes {
            if let Some(why) = node.member.as_ref().and_then(|member| member.failed()) {
                return Err(format!("a member has stopped: {why}"));
            }
        }
        self.send_requests();
        self.take_answers()
    }

    fn post(&mut self, from: usize, sent: Vec<(MemberId, Message<RangeContent>)>) {
        for (to, message) in sent {
            let to = &mut self.nodes[usize::from(to)];
            if to.member.is_some() {
                to.inbox[from].push_back(by_wire(message));
            }
        }
    }

    /// Clients ask the member that takes itself for the primary.
    fn send_requests(&mut self) {
        for at in 0..self.clients.len() {
            let is_new = self.clients[at].waits.is_none();
            self.clients[at].next(&mut self.random);
            if is_new {
                self.zeroes[at].extend(self.clients[at].zeroes());
            }
            if !is_new && !self.random.one_in(20) {
                continue;
            }
            let Some((id, request)) = self.clients[at].sent() else { continue };
            let to = self.random.below(self.nodes.len() as u64) as usize;
            let incarnation = self.clients[at].incarnation;
            let node = &mut self.nodes[to];
            if let Some(member) = node.member.as_mut().filter(|_| !node.is_paused) {
                let mut out = Outbox::default();
                member.request(self.now_ns, id, incarnation, request, &mut out);
                let sent = node.take(out);
                self.post(to, sent);
            }
        }
    }

    fn take_answers(&mut self) -> Result<(), String> {
        for node in &mut self.nodes {
            for answer in node.answers.drain(..) {
                for (client, zeroes) in self.clients.iter_mut().zip(&self.zeroes) {
                    client.answered(&answer, zeroes)?;
                }
            }
        }
        Ok(())
    }

    fn is_well(&self) -> bool {
        let in_sync = &self.registry.record.in_sync;
        in_sync.len() == self.nodes.len()
            && self
                .nodes
                .iter()
                .any(|node| node.member.as_ref().is_some_and(|member| member.serves(self.now_ns)))
    }

    fn heal(&mut self) {
        self.registry.is_away = false;
        for node in &mut self.nodes {
            node.is_paused = false;
            node.volume.borrow_mut().is_full = false;
        }
    }
}

/// The message as it arrives, by the bytes of the wire.
fn by_wire(message: Message<RangeContent>) -> Message<RangeContent> {
    let (message, content) = to_wire(message);
    let (mut head, mut body) = (Vec::new(), Vec::new());
    encode(1, &message, &mut head, &mut body);
    if let Some(RangeContent::Bytes(bytes)) = content {
        body.extend_from_slice(&bytes);
    }
    let (_, message) = decode(&head, &body).expect("a member keeps to the limits");
    from_wire(message, body)
}

fn run(seed: u64) -> Result<Tally, String> {
    let mut simulation = Simulation::new(seed);
    for _ in 0..ROUNDS {
        if simulation.random.one_in(300) {
            simulation.fault();
        }
        simulation.round()?;
    }
    simulation.heal();
    for _ in 0..FAIR_ROUNDS {
        simulation.round()?;
        if simulation.is_well() {
            break;
        }
    }
    if !simulation.is_well() {
        return Err(format!("not all members serve again: {:?}", simulation.registry.record));
    }
    let before: Vec<u64> = simulation.clients.iter().map(|client| client.ended).collect();
    for _ in 0..ANSWER_ROUNDS {
        simulation.round()?;
    }
    let is_served = |(client, before): (&SimClient, &u64)| client.ended > *before;
    if !simulation.clients.iter().zip(&before).all(is_served) {
        return Err("a client has no answer".to_owned());
    }
    // All members are in sync: nothing looks for a difference any more.
    if simulation.nodes.iter().any(|node| node.volume.borrow_mut().difference.is_some()) {
        return Err("a difference was left".to_owned());
    }
    let mut tally = simulation.tally;
    let (record, clients) = (&simulation.registry.record, &simulation.clients);
    tally.add("changes of the record", record.epoch - 1);
    tally.add("incarnations", record.incarnation - 1);
    tally.add("requests that ended", clients.iter().map(|client| client.ended).sum());
    Ok(tally)
}

/// Seeds when nothing else is said.
const SEEDS: u64 = 60;

/// Events that must have been in so many runs.
const EVENTS: [&str; 11] = [
    "full pools",
    "kills",
    "ends in order",
    "ends that were kept",
    "losses of power",
    "pauses",
    "lost sessions",
    "times without registry",
    "changes of the record",
    "incarnations",
    "requests that ended",
];

#[test]
fn clients_read_what_was_acknowledged_last_through_all_faults() {
    let seeds = Seeds::of("MEMBER", SEEDS);
    if let Some(seed) = seeds.only {
        match run(seed) {
            Ok(tally) => println!("seed {seed} keeps the promises: {tally}"),
            Err(failure) => panic!("seed {seed}: {failure}"),
        }
        return;
    }
    let (tally, failures) = seeds.run(run, Tally::merge);
    println!("{tally}");
    assert!(failures.is_empty(), "{failures:#?}");
    for what in EVENTS {
        assert!(seeds.count < SEEDS || tally.of(what) > 0, "no {what} in {} runs", seeds.count);
    }
}
