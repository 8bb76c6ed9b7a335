//! The simulated switches: links, packets under way, and the turns of hosts.

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use random::Random;

use super::super::calendar::{Calendar, Event};
use super::super::world::latencies;
use super::form::{Placement, Routing, SwitchScenario};
use super::link::SwitchLink;
use super::report::SwitchReport;

/// Simulates an exchange to its end. A scenario that was read has a bound of packets.
pub fn simulate_switch(scenario: &SwitchScenario) -> SwitchReport {
    let mut world = SwitchWorld::new(scenario);
    world.run();
    world.report()
}

/// The next place of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketStep {
    /// The sender's leaf.
    FirstLeaf,
    /// The spine.
    Spine,
    /// The receiver's leaf.
    LastLeaf,
    /// The receiver.
    Receiver,
}

/// A packet behind its sender's card.
#[derive(Clone, Copy, Debug)]
struct Packet {
    message: u32,
    spine: u32,
    is_last: bool,
    step: PacketStep,
}

/// A message that has not arrived.
#[derive(Clone, Copy, Debug)]
struct SwitchMessage {
    sender: u32,
    from: u32,
    to: u32,
    begun_ns: u64,
    /// Packets that have not arrived.
    missing: u64,
}

/// A rank as a sender.
#[derive(Clone, Debug, Default)]
struct Sender {
    /// Turns that it has begun.
    turns: u64,
    /// Its messages that the card has not sent as a whole, in order.
    queue: VecDeque<u32>,
    /// Packets of the first of them that the card has sent.
    sent: u64,
    is_sending: bool,
}

#[derive(Debug)]
pub(super) struct SwitchWorld<'a> {
    pub(super) scenario: &'a SwitchScenario,
    calendar: Calendar,
    random: Random,
    senders: Vec<Sender>,
    /// The host of each rank.
    places: Vec<u32>,
    messages: Vec<SwitchMessage>,
    free_messages: Vec<u32>,
    packets: Vec<Packet>,
    free_packets: Vec<u32>,
    /// Links of hosts to their leaf and from it.
    pub(super) out: Vec<SwitchLink>,
    pub(super) into: Vec<SwitchLink>,
    /// Links of leaves to spines and from them, by leaf and spine.
    pub(super) up: Vec<SwitchLink>,
    pub(super) down: Vec<SwitchLink>,
    /// Messages of this turn that have not arrived, behind a barrier.
    missing_in_turn: u64,
    pub(super) latencies: (Histogram<u64>, u128),
    /// Messages from one half of the ranks to the other half.
    pub(super) crossed: u64,
    pub(super) events: u64,
    pub(super) end_ns: u64,
}

impl<'a> SwitchWorld<'a> {
    fn new(scenario: &'a SwitchScenario) -> Self {
        let switch = &scenario.switch;
        let hosts = scenario.hosts() as usize;
        let of_leaves = (switch.leaves * switch.uplinks) as usize;
        let mut random = Random::new(scenario.seed);
        let packet_bits = 8 * (switch.packet_bytes + switch.head_bytes).min(scenario.load.bytes);
        // A packet has five events.
        let a_second = 5_000_000_000 * scenario.hosts() * switch.host_gbit / packet_bits;
        Self {
            calendar: Calendar::new(a_second),
            places: places(scenario, &mut random.fork()),
            random,
            senders: vec![Sender::default(); hosts],
            messages: Vec::new(),
            free_messages: Vec::new(),
            packets: Vec::new(),
            free_packets: Vec::new(),
            out: vec![SwitchLink::default(); hosts],
            into: vec![SwitchLink::default(); hosts],
            up: vec![SwitchLink::default(); of_leaves],
            down: vec![SwitchLink::default(); of_leaves],
            missing_in_turn: scenario.hosts(),
            latencies: latencies(),
            crossed: 0,
            events: 0,
            end_ns: 0,
            scenario,
        }
    }

    fn run(&mut self) {
        let ranks = self.senders.len() as u32;
        let first = self.scenario.load.window.min(self.scenario.turns());
        for rank in 0..ranks {
            for _ in 0..first {
                self.begin(rank, 0);
            }
        }
        while let Some(event) = self.calendar.pop() {
            self.events += 1;
            if event.owner < ranks {
                self.send(event.owner, event.time_ns);
            } else {
                self.forward(event.owner - ranks, event.time_ns);
            }
        }
    }

    /// Begins the next turn of a rank, if it has one.
    fn begin(&mut self, rank: u32, now_ns: u64) {
        let sender = &mut self.senders[rank as usize];
        if sender.turns == self.scenario.turns() {
            return;
        }
        let to = self.scenario.receiver(rank.into(), sender.turns);
        sender.turns += 1;
        let half = self.scenario.hosts() / 2;
        self.crossed += u64::from((u64::from(rank) < half) != (to < half));
        let message = SwitchMessage {
            sender: rank,
            from: self.places[rank as usize],
            to: self.places[to as usize],
            begun_ns: now_ns,
            missing: self.scenario.packets(),
        };
        let slot = slot(&mut self.messages, &mut self.free_messages, message);
        let sender = &mut self.senders[rank as usize];
        sender.queue.push_back(slot);
        if !sender.is_sending {
            self.send(rank, now_ns);
        }
    }

    /// Sends the next packet of a rank by its card, which is free.
    fn send(&mut self, rank: u32, now_ns: u64) {
        let sender = &mut self.senders[rank as usize];
        let Some(message) = sender.queue.front().copied() else {
            sender.is_sending = false;
            return;
        };
        sender.is_sending = true;
        sender.sent += 1;
        let is_last = sender.sent == self.scenario.packets();
        if is_last {
            sender.sent = 0;
            sender.queue.pop_front();
        }
        let packet = Packet { message, spine: 0, is_last, step: PacketStep::FirstLeaf };
        let slot = slot(&mut self.packets, &mut self.free_packets, packet);
        let link = &mut self.out[self.messages[message as usize].from as usize];
        let bits = bits(self.scenario, is_last);
        let sent_ns = link.send(now_ns, bits, self.scenario.switch.host_gbit);
        self.calendar.push(Event { time_ns: sent_ns, owner: rank });
        self.arrives(slot, sent_ns);
    }

    /// A packet comes to the other end of a link behind its last bit.
    fn arrives(&mut self, slot: u32, sent_ns: u64) {
        let owner = self.senders.len() as u32 + slot;
        self.calendar.push(Event { time_ns: sent_ns + self.scenario.switch.hop_ns, owner });
    }

    /// Sends a packet on by its next link.
    fn forward(&mut self, slot: u32, now_ns: u64) {
        let mut packet = self.packets[slot as usize];
        let SwitchMessage { from, to, .. } = self.messages[packet.message as usize];
        let leaf_of = |host: u32| u64::from(host) / self.scenario.switch.hosts;
        let (host_gbit, uplink_gbit) =
            (self.scenario.switch.host_gbit, self.scenario.uplink_gbit());
        let place =
            |leaf: u64, spine: u32| (leaf * self.scenario.switch.uplinks) as usize + spine as usize;
        let (next, link, gbit) = match packet.step {
            PacketStep::FirstLeaf if leaf_of(from) != leaf_of(to) => {
                packet.spine = self.spine(from, to);
                let place = place(leaf_of(from), packet.spine);
                (PacketStep::Spine, &mut self.up[place], uplink_gbit)
            }
            PacketStep::Spine => {
                let place = place(leaf_of(to), packet.spine);
                (PacketStep::LastLeaf, &mut self.down[place], uplink_gbit)
            }
            PacketStep::FirstLeaf | PacketStep::LastLeaf => {
                (PacketStep::Receiver, &mut self.into[to as usize], host_gbit)
            }
            PacketStep::Receiver => return self.received(slot, now_ns),
        };
        let sent_ns = link.send(now_ns, bits(self.scenario, packet.is_last), gbit);
        packet.step = next;
        self.packets[slot as usize] = packet;
        self.arrives(slot, sent_ns);
    }

    /// The spine of a packet.
    fn spine(&mut self, from: u32, to: u32) -> u32 {
        if let Some(spine) = self.scenario.spine(from.into(), to.into()) {
            return spine as u32;
        }
        let uplinks = self.scenario.switch.uplinks;
        let any = self.random.below(uplinks);
        if self.scenario.switch.routing == Routing::Packet {
            return any as u32;
        }
        let first = (u64::from(from) / self.scenario.switch.hosts * uplinks) as usize;
        // Of up-links that are free at once any: with the first one, all leaves would take the
        // same spine.
        let all = (0..uplinks).map(|step| (any + step) % uplinks);
        let shortest = all.min_by_key(|spine| self.up[first + *spine as usize].free_at_whole_ns());
        shortest.unwrap_or(any) as u32
    }

    /// A packet is at its receiver.
    fn received(&mut self, slot: u32, now_ns: u64) {
        self.free_packets.push(slot);
        let number = self.packets[slot as usize].message;
        let message = &mut self.messages[number as usize];
        message.missing -= 1;
        if message.missing > 0 {
            return;
        }
        let (rank, took_ns) = (message.sender, now_ns - message.begun_ns);
        self.latencies.0.saturating_record(took_ns);
        self.latencies.1 += u128::from(took_ns);
        self.free_messages.push(number);
        self.end_ns = now_ns;
        if !self.scenario.load.barrier {
            return self.begin(rank, now_ns);
        }
        self.missing_in_turn -= 1;
        if self.missing_in_turn == 0 {
            self.missing_in_turn = self.scenario.hosts();
            for rank in 0..self.senders.len() as u32 {
                self.begin(rank, now_ns);
            }
        }
    }
}

/// Bits of a packet on a link.
fn bits(scenario: &SwitchScenario, is_last: bool) -> u64 {
    let switch = &scenario.switch;
    let others = (scenario.packets() - 1) * switch.packet_bytes;
    let data = if is_last { scenario.load.bytes - others } else { switch.packet_bytes };
    8 * (data + switch.head_bytes)
}

/// Puts an entry into a free slot, or a new one. Reading a scenario bounds their number.
fn slot<T>(all: &mut Vec<T>, free: &mut Vec<u32>, entry: T) -> u32 {
    if let Some(slot) = free.pop() {
        all[slot as usize] = entry;
        return slot;
    }
    all.push(entry);
    all.len() as u32 - 1
}

/// The host of each rank.
fn places(scenario: &SwitchScenario, random: &mut Random) -> Vec<u32> {
    let mut places: Vec<u32> = (0..scenario.hosts() as u32).collect();
    if scenario.load.placement == Placement::Random {
        for last in (1..places.len()).rev() {
            places.swap(last, random.below(last as u64 + 1) as usize);
        }
    }
    places
}
