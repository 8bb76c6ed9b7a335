//! The simulated world: stations, requests under way, and the steps between them.

use random::Random;

use super::calendar::{Calendar, Event};
use super::scenario::{
    Arrivals, NS_PER_MS, REQUESTS_MAX, Refuge, Scenario, ServedAt, SimulatedDeath, SpreadOver,
    Spreading, Steering, UNDER_WAY_MAX,
};
use super::variate::{exponential, hash};
use crate::fault::{PlanFault, key};

mod arrivals;
mod report;
mod turns;

pub use report::{LatencySummary, SimulationReport, StationUse};

use arrivals::GuestLoad;
use report::BegunLatencies;
pub(crate) use report::{Tail, latencies, summary_of};
use turns::{TurnKind, TurnStations};

/// Events of a scenario, some ten for each request: hours of one core of the simulating machine.
/// The number of a closed load's requests is not known before.
const EVENTS_MAX: u64 = 10 * REQUESTS_MAX;

/// Simulates a scenario to its end.
///
/// # Errors
/// When it has too many events.
pub fn simulate(scenario: &Scenario) -> Result<SimulationReport, PlanFault> {
    Ok(simulated(scenario, EVENTS_MAX)?.report())
}

/// The p99 of a scenario's requests, of which one that had no answer within `wanted_ns` at the end,
/// or was refused, took for ever. If the guests are known to have `given` so many requests, it ends
/// when too many of them took longer, and has none.
///
/// # Errors
/// When it has too many events.
pub(crate) fn simulate_tail(
    scenario: &Scenario,
    wanted_ns: u64,
    given: Option<u64>,
) -> Result<Option<Tail>, PlanFault> {
    let late_max = given.map_or(u64::MAX, |given| given / 100);
    let world = simulated_while(scenario, EVENTS_MAX, (wanted_ns, late_max))?;
    Ok((world.late <= late_max).then(|| world.tail(wanted_ns)))
}

fn simulated(scenario: &Scenario, events_max: u64) -> Result<World<'_>, PlanFault> {
    simulated_while(scenario, events_max, (u64::MAX, u64::MAX))
}

/// Simulates while no more than so many requests took longer than a time.
fn simulated_while(
    scenario: &Scenario,
    events_max: u64,
    (late_after_ns, late_max): (u64, u64),
) -> Result<World<'_>, PlanFault> {
    let mut world = World::new(scenario);
    (world.late_after_ns, world.late_max) = (late_after_ns, late_max);
    world.begin();
    world.run(events_max)?;
    Ok(world)
}

/// The next place of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestStep {
    /// With turns, a sidecore learns of it.
    PassOut,
    /// The VMhost's sidecore takes it from the guest.
    VmhostOut,
    /// The VMhost's card sends it to its IOhost.
    VmhostSend,
    /// The IOhost's card takes it.
    Receive,
    /// A sidecore serves it.
    Serve,
    /// Its guest's limit lets it pass.
    Limit,
    /// Copies of a write are sent, and a drive does it.
    Device,
    /// The drive is done with it; it waits for its copies.
    Join,
    /// A sidecore completes it.
    Complete,
    /// The IOhost's card sends the answer.
    Send,
    /// The VMhost's card takes the answer.
    VmhostReceive,
    /// The VMhost's sidecore gives it to the guest.
    VmhostIn,
    /// With turns, the guest learns of its answer.
    PassIn,
    /// The thread that drives the guest's disk takes the answer.
    Drive,
    /// The guest has it.
    Done,
    /// The serving IOhost's card sends a copy.
    CopySend,
    /// The other IOhost's card takes the copy.
    CopyReceive,
    /// A sidecore there serves it.
    CopyServe,
    /// A drive there does it.
    CopyDevice,
    /// The other IOhost's card sends the acknowledgement.
    CopyAck,
    /// The serving IOhost's card takes it.
    CopyAcked,
    /// The copy is known to be written, or its member to be out.
    CopyDone,
}

/// A request under way, or a copy of one.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    /// When the guest gave it.
    begun_ns: u64,
    /// When it was sent to its IOhost.
    sent_ns: u64,
    /// Its guest; for a copy, its request.
    of: u32,
    /// The IOhost that serves it.
    server: u32,
    /// The IOhost of the copy.
    copy_on: u32,
    /// Its data.
    bytes: u32,
    /// Copies that it waits for, and its own drive.
    waits_for: u8,
    step: RequestStep,
    is_write: bool,
}

impl UnderWay {
    /// Whether it is a copy of a request.
    fn is_copy(&self) -> bool {
        matches!(
            self.step,
            RequestStep::CopySend
                | RequestStep::CopyReceive
                | RequestStep::CopyServe
                | RequestStep::CopyDevice
                | RequestStep::CopyAck
                | RequestStep::CopyAcked
                | RequestStep::CopyDone
        )
    }
}

/// A server of one request at a time, in the order of arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Station {
    free_at_ns: u64,
    busy_ns: u64,
}

impl Station {
    /// Takes a request now, and says when it is done.
    #[inline]
    fn serve(&mut self, now_ns: u64, cost_ns: u64) -> u64 {
        // Sums end at the last number of all, which is far behind the end of each scenario.
        self.free_at_ns = self.free_at_ns.max(now_ns).saturating_add(cost_ns);
        self.busy_ns = self.busy_ns.saturating_add(cost_ns);
        self.free_at_ns
    }
}

/// The scenario's death in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Death {
    server: u32,
    at_ns: u64,
    known_ns: u64,
    back_ns: u64,
    refuge: Refuge,
}

impl From<&SimulatedDeath> for Death {
    fn from(death: &SimulatedDeath) -> Self {
        Self {
            server: death.iohost as u32,
            at_ns: death.at_ms * NS_PER_MS,
            known_ns: (death.at_ms + death.detect_ms) * NS_PER_MS,
            back_ns: death.back_ms.map_or(u64::MAX, |back| back * NS_PER_MS),
            refuge: death.refuge,
        }
    }
}

/// Bytes on the wire as time.
#[derive(Clone, Copy, Debug)]
struct WireTimes {
    head_bytes: u64,
    /// Of a VMhost's card and of an IOhost's; 0 if it takes no time.
    gbit: [u64; 2],
}

impl WireTimes {
    /// A message with so much data, on one of the cards.
    #[inline]
    fn of(self, card: usize, bytes: u64) -> u64 {
        match self.gbit[card] {
            0 => 0,
            gbit => ((self.head_bytes + bytes) * 8).div_ceil(gbit),
        }
    }
}

/// A VMhost's card and an IOhost's card.
const OF_VMHOST: usize = 0;
const OF_IOHOST: usize = 1;

#[derive(Debug)]
struct World<'a> {
    scenario: &'a Scenario,
    calendar: Calendar,
    random: Random,
    /// Threads that drive guests' disks.
    drivers: Vec<Station>,
    /// Stations of VMhosts: sidecores, cards out, cards in.
    vm_cores: Vec<Station>,
    vm_out: Vec<Station>,
    vm_in: Vec<Station>,
    /// Stations of IOhosts: sidecores, cards in and out, lanes of drives.
    cores: Vec<Station>,
    cards_in: Vec<Station>,
    cards_out: Vec<Station>,
    lanes: Vec<Station>,
    /// The IOhost of each guest.
    homes: Vec<u32>,
    guests: GuestLoad,
    /// Stations that turn from queue to queue, if the scenario has such.
    turns: Option<TurnStations>,
    /// The time up to which each guest's limit is given away, if there is one.
    limits_ns: Vec<u64>,
    /// Requests under way by slot; the owner of an event is the number of guests and a slot.
    requests: Vec<UnderWay>,
    free: Vec<u32>,
    wire: WireTimes,
    death: Option<Death>,
    has_died: bool,
    latencies: BegunLatencies,
    end_ns: u64,
    events: u64,
    refused: u64,
    sent_again: u64,
    /// Requests that guests have given, if they are not of a closed load.
    given: u64,
    /// Answers that took longer than `late_after_ns`; beyond `late_max` the simulation ends.
    late: u64,
    late_after_ns: u64,
    late_max: u64,
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let (hosts, servers) = (scenario.hosts.count as usize, scenario.servers() as usize);
        let pool = &scenario.pool;
        let stations = |count: usize| vec![Station::default(); count];
        let of_server = |each: u64| stations(servers * each as usize);
        let network = &scenario.network;
        let mut random = Random::new(scenario.seed);
        let death = scenario.death.as_ref().map(Death::from);
        let end_ns = scenario.milliseconds * NS_PER_MS;
        // A request has about ten events.
        let a_second = scenario.expected().saturating_mul(10_000) / scenario.milliseconds;
        Self {
            calendar: Calendar::new(a_second),
            drivers: stations(hosts * scenario.drivers() as usize),
            vm_cores: stations(hosts * scenario.hosts.sidecores as usize),
            vm_out: stations(hosts),
            vm_in: stations(hosts),
            cores: of_server(pool.sidecores),
            cards_in: of_server(1),
            cards_out: of_server(1),
            lanes: of_server(pool.device_lanes),
            homes: homes(scenario, &mut random.fork()),
            guests: GuestLoad::new(scenario, end_ns),
            turns: TurnStations::new(scenario),
            limits_ns: limits(scenario),
            requests: Vec::new(),
            free: Vec::new(),
            wire: WireTimes {
                head_bytes: network.head_bytes,
                gbit: [network.vmhost_gbit, network.iohost_gbit],
            },
            has_died: false,
            latencies: BegunLatencies::new(
                scenario,
                death.map(|death| (death.at_ns, death.known_ns)),
            ),
            death,
            end_ns,
            events: 0,
            refused: 0,
            sent_again: 0,
            given: 0,
            late: 0,
            late_after_ns: u64::MAX,
            late_max: u64::MAX,
            random,
            scenario,
        }
    }

    /// The first requests.
    fn begin(&mut self) {
        for guest in 0..self.homes.len() as u32 {
            if self.scenario.load.arrivals == Arrivals::Closed {
                let depth = if self.guests.is_idle(guest) { 0 } else { self.scenario.load.depth };
                for _ in 0..depth {
                    self.admit(guest, 0);
                }
            } else if let Some(time_ns) = self.guests.first(guest) {
                self.push(Event { time_ns, owner: guest });
            }
        }
    }

    /// Adds an event, if it is not behind the end: a request of which nothing is known any more
    /// stays under way.
    #[inline]
    fn push(&mut self, event: Event) {
        if event.time_ns <= self.end_ns {
            self.calendar.push(event);
        }
    }

    fn run(&mut self, events_max: u64) -> Result<(), PlanFault> {
        let guests = self.homes.len() as u32;
        while let Some(event) = self.calendar.pop().filter(|_| self.late <= self.late_max) {
            self.events += 1;
            if self.events > events_max {
                let at_ms = event.time_ns / NS_PER_MS;
                let cause = format!("more than {events_max} events in its first {at_ms} ms");
                let way_out = "lower milliseconds, hosts.count, hosts.guests or the load";
                return Err(key("the scenario", cause, way_out));
            }
            if !self.has_died && self.death.is_some_and(|death| event.time_ns >= death.at_ns) {
                self.has_died = true;
                self.clear_dead();
                self.clear_turns(event.time_ns);
            }
            if event.owner < guests {
                self.admit(event.owner, event.time_ns);
                if let Some(time_ns) = self.guests.next(event.owner, event.time_ns) {
                    self.push(Event { time_ns, owner: event.owner });
                }
            } else if let Some(turns) = &self.turns
                && let Some(station) = turns.of_owner(event.owner)
            {
                self.turn(station, event.time_ns);
            } else {
                self.step(event.owner - guests, event.time_ns);
            }
        }
        Ok(())
    }

    /// Takes a request of a guest.
    fn admit(&mut self, guest: u32, now_ns: u64) {
        self.given += 1;
        let (bytes, is_write) = self.guests.request(guest);
        let request = UnderWay {
            begun_ns: now_ns,
            sent_ns: now_ns,
            bytes,
            of: guest,
            server: self.homes[guest as usize],
            copy_on: 0,
            waits_for: 0,
            step: self.first_step(),
            is_write,
        };
        match self.slot(request) {
            Some(slot) => self.step(slot, now_ns),
            None => self.refused += 1,
        }
    }

    fn first_step(&self) -> RequestStep {
        if self.turns.is_some() { RequestStep::PassOut } else { self.taking_step() }
    }

    fn taking_step(&self) -> RequestStep {
        match self.scenario.served {
            ServedAt::Host => RequestStep::Serve,
            ServedAt::Pool => RequestStep::VmhostOut,
        }
    }

    fn served_step(&self) -> RequestStep {
        if self.limits_ns.is_empty() { RequestStep::Device } else { RequestStep::Limit }
    }

    fn completed_step(&self) -> RequestStep {
        match self.scenario.served {
            ServedAt::Host => self.last_step(),
            ServedAt::Pool => RequestStep::Send,
        }
    }

    fn last_step(&self) -> RequestStep {
        if self.turns.is_some() { RequestStep::PassIn } else { RequestStep::Done }
    }

    fn slot(&mut self, request: UnderWay) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            self.requests[slot as usize] = request;
            return Some(slot);
        }
        if self.requests.len() as u64 >= UNDER_WAY_MAX {
            return None;
        }
        self.requests.push(request);
        Some(self.requests.len() as u32 - 1)
    }

    /// Takes a request through its steps until one takes time.
    fn step(&mut self, slot: u32, now_ns: u64) {
        loop {
            let step = self.requests[slot as usize].step;
            let ends = match step {
                RequestStep::Done => match self.finish(slot, now_ns) {
                    Some(next_ns) => next_ns,
                    None => return,
                },
                RequestStep::CopyDone => {
                    let request = self.requests[slot as usize].of;
                    self.free.push(slot);
                    return self.joined(request, now_ns);
                }
                RequestStep::Join => return self.joined(slot, now_ns),
                _ => self.visit(slot, step, now_ns),
            };
            if ends > now_ns {
                let owner = self.homes.len() as u32 + slot;
                return self.push(Event { time_ns: ends, owner });
            }
        }
    }

    /// One station: its cost, and the step after it.
    #[inline]
    fn visit(&mut self, slot: u32, step: RequestStep, now_ns: u64) -> u64 {
        let request = self.requests[slot as usize];
        if self.is_dead_at(&request, step, now_ns) {
            return self.lose(slot, now_ns);
        }
        let costs = &self.scenario.costs;
        let bytes = u64::from(request.bytes);
        let (out, back) = if request.is_write { (bytes, 0) } else { (0, bytes) };
        let serve_ns = costs.serve_ns + costs.serve_ns_per_kib * bytes / 1024;
        let (next, ends) = match step {
            RequestStep::VmhostOut => {
                (RequestStep::VmhostSend, self.vm_core(slot, false, now_ns, costs.vmhost_ns))
            }
            RequestStep::VmhostSend => match self.send(slot, now_ns) {
                Some(ends) => (RequestStep::Receive, ends),
                None => return self.death.map_or(now_ns, |death| death.back_ns),
            },
            RequestStep::Receive => (RequestStep::Serve, self.card_in(request.server, now_ns, out)),
            RequestStep::Serve => (
                self.served_step(),
                self.core(slot, (request.server, request.of), now_ns, serve_ns),
            ),
            RequestStep::Device => {
                self.fork(slot, now_ns);
                (RequestStep::Join, self.lane(request.server, now_ns))
            }
            RequestStep::Complete => {
                let at = (request.server, request.of);
                (self.completed_step(), self.core(slot, at, now_ns, costs.complete_ns))
            }
            RequestStep::Send => {
                (RequestStep::VmhostReceive, self.card_out(request.server, now_ns, back))
            }
            RequestStep::VmhostReceive => {
                let time = self.wire.of(OF_VMHOST, back);
                let host = self.host_of(request.of);
                (RequestStep::VmhostIn, self.vm_in[host].serve(now_ns, time))
            }
            RequestStep::VmhostIn => {
                (self.last_step(), self.vm_core(slot, true, now_ns, costs.vmhost_back_ns))
            }
            RequestStep::CopySend => {
                (RequestStep::CopyReceive, self.card_out(request.server, now_ns, bytes))
            }
            RequestStep::CopyReceive => {
                (RequestStep::CopyServe, self.card_in(request.copy_on, now_ns, bytes))
            }
            RequestStep::CopyServe => {
                let guest = self.requests[request.of as usize].of;
                (
                    RequestStep::CopyDevice,
                    self.core(slot, (request.copy_on, guest), now_ns, serve_ns),
                )
            }
            RequestStep::CopyDevice => (RequestStep::CopyAck, self.lane(request.copy_on, now_ns)),
            RequestStep::CopyAck => {
                (RequestStep::CopyAcked, self.card_out(request.copy_on, now_ns, 0))
            }
            RequestStep::CopyAcked => {
                (RequestStep::CopyDone, self.card_in(request.server, now_ns, 0))
            }
            RequestStep::PassOut
            | RequestStep::Limit
            | RequestStep::PassIn
            | RequestStep::Drive => self.visit_guest(slot, step, now_ns),
            RequestStep::Join | RequestStep::Done | RequestStep::CopyDone => (step, now_ns),
        };
        self.requests[slot as usize].step = next;
        ends
    }

    /// The steps that scenarios with turns or a limit have.
    fn visit_guest(&mut self, slot: u32, step: RequestStep, now_ns: u64) -> (RequestStep, u64) {
        let guest = self.requests[slot as usize].of;
        let pass_ns = self.scenario.turns.as_ref().map_or(0, |turns| turns.pass_ns);
        match step {
            RequestStep::PassOut => (self.taking_step(), now_ns + pass_ns),
            RequestStep::PassIn if self.drivers.is_empty() => (RequestStep::Done, now_ns + pass_ns),
            RequestStep::PassIn => (RequestStep::Drive, now_ns + pass_ns),
            RequestStep::Drive => {
                let each = self.scenario.drivers();
                let (host, place) = (self.host_of(guest), self.place_of(guest));
                let driver = host * each as usize + (place % each) as usize;
                let at = (TurnKind::Driver, driver, place / each);
                let cost_ns = self.scenario.costs.guest_ns;
                let ends = self.wait_for_turn(at, slot, now_ns, cost_ns);
                (RequestStep::Done, ends.unwrap_or(now_ns))
            }
            _ => (RequestStep::Device, self.within_limit(guest, now_ns)),
        }
    }

    /// The time at which a guest's limit lets a request pass.
    fn within_limit(&mut self, guest: u32, now_ns: u64) -> u64 {
        let load = &self.scenario.load;
        let saved_ns = now_ns.saturating_sub(load.limit_burst_ms * NS_PER_MS);
        let given_ns = &mut self.limits_ns[guest as usize];
        let passes_ns = (*given_ns).max(saved_ns);
        *given_ns = passes_ns.saturating_add(1_000_000_000 / load.limit);
        passes_ns.max(now_ns)
    }

    /// Sends a request to the IOhost that serves its guest now; none while it waits for one.
    fn send(&mut self, slot: u32, now_ns: u64) -> Option<u64> {
        let guest = self.requests[slot as usize].of;
        let server = self.route(guest, now_ns)?;
        let request = &mut self.requests[slot as usize];
        (request.server, request.sent_ns) = (server, now_ns);
        let bytes = if request.is_write { request.bytes.into() } else { 0 };
        let time = self.wire.of(OF_VMHOST, bytes);
        let host = self.host_of(guest);
        let sent_ns = self.vm_out[host].serve(now_ns, time);
        Some(sent_ns.saturating_add(self.scenario.network.hop_ns))
    }

    /// The IOhost for a guest as its VMhost knows it.
    fn route(&self, guest: u32, now_ns: u64) -> Option<u32> {
        let home = self.homes[guest as usize];
        let Some(death) = self.death else { return Some(home) };
        let is_away = home == death.server && now_ns >= death.known_ns && now_ns < death.back_ns;
        if !is_away {
            return Some(home);
        }
        let pool = &self.scenario.pool;
        let (serving, of_rack) = (pool.iohosts as u32, (pool.iohosts + pool.spare) as u32);
        let first = home / of_rack * of_rack;
        match death.refuge {
            Refuge::Wait => None,
            Refuge::Spare => Some(first + serving),
            Refuge::Rest => {
                let other = guest % (serving - 1);
                Some(first + (home - first + 1 + other) % serving)
            }
        }
    }

    /// Whether the step is at an IOhost that is dead, or that has forgotten the request.
    #[inline]
    fn is_dead_at(&self, request: &UnderWay, step: RequestStep, now_ns: u64) -> bool {
        let Some(death) = self.death else { return false };
        if now_ns < death.at_ns {
            return false;
        }
        let server = match step {
            RequestStep::Receive
            | RequestStep::Serve
            | RequestStep::Device
            | RequestStep::Complete
            | RequestStep::Send => request.server,
            RequestStep::CopySend | RequestStep::CopyAcked => request.server,
            RequestStep::CopyReceive
            | RequestStep::CopyServe
            | RequestStep::CopyDevice
            | RequestStep::CopyAck => request.copy_on,
            _ => return false,
        };
        server == death.server && (request.sent_ns < death.at_ns || now_ns < death.back_ns)
    }

    /// Has a request go on when its VMhost knows that its IOhost is dead; a copy is given up then.
    fn lose(&mut self, slot: u32, now_ns: u64) -> u64 {
        let known_ns = self.death.map_or(now_ns, |death| death.known_ns.max(now_ns));
        let request = &mut self.requests[slot as usize];
        match request.step {
            RequestStep::CopySend
            | RequestStep::CopyReceive
            | RequestStep::CopyServe
            | RequestStep::CopyDevice
            | RequestStep::CopyAck
            | RequestStep::CopyAcked => request.step = RequestStep::CopyDone,
            _ => {
                request.step = RequestStep::VmhostSend;
                self.sent_again += 1;
            }
        }
        known_ns
    }

    /// Sends the copies of a write to the next IOhosts of the rack.
    fn fork(&mut self, slot: u32, now_ns: u64) {
        let request = self.requests[slot as usize];
        self.requests[slot as usize].waits_for = 1;
        let pool = &self.scenario.pool;
        if !request.is_write || pool.replicas == 1 {
            return;
        }
        let (serving, of_rack) = (pool.iohosts as u32, (pool.iohosts + pool.spare) as u32);
        let first = request.server / of_rack * of_rack;
        let place = request.server - first;
        for further in 1..pool.replicas as u32 {
            let copy_on = first + (place + further) % serving;
            // A member that is known to be dead is out of the set.
            let is_out = self.death.is_some_and(|death| {
                death.server == copy_on && now_ns >= death.known_ns && now_ns < death.back_ns
            });
            let copy = UnderWay { of: slot, copy_on, step: RequestStep::CopySend, ..request };
            if is_out || copy_on == request.server {
                continue;
            }
            if let Some(copy) = self.slot(copy) {
                self.requests[slot as usize].waits_for += 1;
                self.step(copy, now_ns);
            }
        }
    }

    /// A drive or a copy of a request is done; behind the last one it goes on.
    fn joined(&mut self, slot: u32, now_ns: u64) {
        let request = &mut self.requests[slot as usize];
        request.waits_for -= 1;
        if request.waits_for == 0 {
            request.step = RequestStep::Complete;
            self.step(slot, now_ns);
        }
    }

    /// The guest has its answer. With a closed load the place's next request begins: says when.
    fn finish(&mut self, slot: u32, now_ns: u64) -> Option<u64> {
        let request = self.requests[slot as usize];
        // A guest's own time is its driver's, if it has one.
        let guest_ns = if self.drivers.is_empty() { self.scenario.costs.guest_ns } else { 0 };
        let done_ns = now_ns + guest_ns;
        let is_counted = self.latencies.record(request.begun_ns, done_ns);
        self.late += u64::from(is_counted && done_ns - request.begun_ns > self.late_after_ns);
        if self.scenario.load.arrivals != Arrivals::Closed {
            self.free.push(slot);
            return None;
        }
        self.requests[slot as usize] = UnderWay {
            begun_ns: done_ns,
            sent_ns: done_ns,
            server: self.homes[request.of as usize],
            step: self.first_step(),
            is_write: self.guests.request(request.of).1,
            ..request
        };
        Some(done_ns)
    }

    fn host_of(&self, guest: u32) -> usize {
        guest as usize / self.scenario.hosts.guests as usize
    }

    /// A guest's place on its host.
    fn place_of(&self, guest: u32) -> u64 {
        u64::from(guest) % self.scenario.hosts.guests
    }

    fn card_in(&mut self, server: u32, now_ns: u64, bytes: u64) -> u64 {
        let time = self.wire.of(OF_IOHOST, bytes);
        self.cards_in[server as usize].serve(now_ns, time)
    }

    /// The time when a message of an IOhost is at the other card.
    fn card_out(&mut self, server: u32, now_ns: u64, bytes: u64) -> u64 {
        let time = self.wire.of(OF_IOHOST, bytes);
        let sent_ns = self.cards_out[server as usize].serve(now_ns, time);
        sent_ns.saturating_add(self.scenario.network.hop_ns)
    }

    /// The time of a step, drawn from its distribution.
    fn time(&mut self, mean_ns: u64, spreading: Spreading) -> u64 {
        match spreading {
            Spreading::Fixed => mean_ns,
            Spreading::Exponential => exponential(&mut self.random, mean_ns as f64),
        }
    }

    /// A VMhost's sidecore that is free first; without sidecores there is no queue.
    fn vm_core(&mut self, slot: u32, is_back: bool, now_ns: u64, cost_ns: u64) -> u64 {
        // A step that takes no time is no step: it waits for no station.
        if cost_ns == 0 {
            return now_ns;
        }
        let cost_ns = self.time(cost_ns, self.scenario.costs.spreading);
        let each = self.scenario.hosts.sidecores;
        if each == 0 {
            return now_ns + cost_ns;
        }
        let guest = self.requests[slot as usize].of;
        let first = self.host_of(guest) * each as usize;
        let place = self.place_of(guest);
        // Answers have the queue behind the queues of the guests.
        let answers = self.scenario.hosts.guests.div_ceil(each);
        let queue = if is_back { answers } else { place / each };
        let at = (TurnKind::Vmhost, first + (place % each) as usize, queue);
        if let Some(ends) = self.wait_for_turn(at, slot, now_ns, cost_ns) {
            return ends;
        }
        let core = free_first(&self.vm_cores[first..first + each as usize]);
        self.vm_cores[first + core].serve(now_ns, cost_ns)
    }

    /// A sidecore of an IOhost, by the scenario's steering.
    fn core(&mut self, slot: u32, (server, guest): (u32, u32), now_ns: u64, cost_ns: u64) -> u64 {
        if cost_ns == 0 {
            return now_ns;
        }
        let cost_ns = self.time(cost_ns, self.scenario.costs.spreading);
        let each = self.scenario.pool.sidecores as usize;
        let first = server as usize * each;
        let place = self.place_of(guest);
        let core = place as usize % each;
        let queue = match self.scenario.served {
            ServedAt::Host => place / each as u64,
            ServedAt::Pool => self.host_of(guest) as u64 % self.scenario.hosts_in_rack(),
        };
        let at = (TurnKind::Serve, first + core, queue);
        if let Some(ends) = self.wait_for_turn(at, slot, now_ns, cost_ns) {
            return ends;
        }
        let of_server = &self.cores[first..first + each];
        let core = match self.scenario.pool.steering {
            _ if each == 1 => 0,
            Steering::Static => hash(self.scenario.seed, guest.into(), 0) as usize % each,
            Steering::Random => self.random.below(each as u64) as usize,
            Steering::Two => {
                let mut draw = || self.random.below(each as u64) as usize;
                let (one, other) = (draw(), draw());
                let is_less = of_server[one].free_at_ns <= of_server[other].free_at_ns;
                if is_less { one } else { other }
            }
            Steering::Shared => free_first(of_server),
        };
        self.cores[first + core].serve(now_ns, cost_ns)
    }

    /// A lane of an IOhost's drives.
    fn lane(&mut self, server: u32, now_ns: u64) -> u64 {
        let each = self.scenario.pool.device_lanes as usize;
        if each == 0 || self.scenario.costs.device_ns == 0 {
            return now_ns;
        }
        let costs = &self.scenario.costs;
        let time = self.time(costs.device_ns, costs.device_spreading);
        let first = server as usize * each;
        let lane = free_first(&self.lanes[first..first + each]);
        self.lanes[first + lane].serve(now_ns, time)
    }

    /// At an IOhost's death all that it was doing is gone, and its stations are idle.
    fn clear_dead(&mut self) {
        let Some(death) = self.death else { return };
        let server = death.server as usize;
        let pool = &self.scenario.pool;
        for (stations, each) in [
            (&mut self.cores, pool.sidecores as usize),
            (&mut self.lanes, pool.device_lanes as usize),
            (&mut self.cards_in, 1),
            (&mut self.cards_out, 1),
        ] {
            for station in &mut stations[server * each..(server + 1) * each] {
                let undone_ns = station.free_at_ns.saturating_sub(death.at_ns);
                station.busy_ns -= undone_ns.min(station.busy_ns);
                station.free_at_ns -= undone_ns;
            }
        }
    }
}

/// The station that is free first.
fn free_first(stations: &[Station]) -> usize {
    let mut best = 0;
    for (at, station) in stations.iter().enumerate().skip(1) {
        if station.free_at_ns < stations[best].free_at_ns {
            best = at;
        }
    }
    best
}

/// A time for each guest, if guests have a limit.
fn limits(scenario: &Scenario) -> Vec<u64> {
    let guests =
        if scenario.load.limit > 0 { scenario.hosts.count * scenario.hosts.guests } else { 0 };
    vec![0; guests as usize]
}

/// The IOhost of each guest.
fn homes(scenario: &Scenario, random: &mut Random) -> Vec<u32> {
    let each = scenario.hosts.guests;
    let pool = &scenario.pool;
    let guests_in_rack = scenario.hosts_in_rack() * each;
    let home = |guest: u64| match scenario.served {
        ServedAt::Host => guest / each,
        ServedAt::Pool => {
            let (rack, place) = (guest / guests_in_rack, guest % guests_in_rack);
            let of_rack = match pool.spread {
                SpreadOver::Turn => place % pool.iohosts,
                SpreadOver::Random => random.below(pool.iohosts),
            };
            rack * (pool.iohosts + pool.spare) + of_rack
        }
    };
    (0..scenario.hosts.count * each).map(home).map(|home| home as u32).collect()
}

#[cfg(test)]
mod tests;
