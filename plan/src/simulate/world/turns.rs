//! Stations that turn from queue to queue, as polling threads do: a sidecore with its guests'
//! rings, and the thread that drives the rings.
//!
//! ```text
//!   look ─▶ look ─▶ [turn: burst ─▶ burst] ─▶ look ─▶ ...      one queue after the other
//! ```
//!
//! A look at a queue takes a time, a turn takes a time of its own beside its requests, and the
//! requests of a burst are done at its end. So a busy station has less to do for each request when
//! more of them come at a time. Looks have no events: the time at which a station that finds
//! nothing reaches a queue is known when a request comes.

use std::collections::BTreeMap;

use super::super::calendar::Event;
use super::super::scenario::{Scenario, ServedAt, SimulatedTurns};
use super::World;

/// Requests of a serving sidecore's burst from one guest: the first one of a turn, and further
/// ones, as in `block/src/disk/queues.rs`.
const FIRST_BURST: u64 = 4;
const BURST: u64 = 8;
/// The most requests of a sidecore's turn.
const TURN_MAX: u64 = 32;

/// The kinds of stations with turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnKind {
    /// A thread that drives guests' disks.
    Driver,
    /// A VMhost's sidecore.
    Vmhost,
    /// A sidecore that serves.
    Serve,
}

/// A station with turns.
#[derive(Clone, Debug)]
struct TurnStation {
    kind: TurnKind,
    /// Whether a turn has several bursts, as that of a sidecore that serves its own host's guests.
    /// Any other station has a single burst with all that waits: messages leave at the turn's end.
    has_bursts: bool,
    /// The number of its queues.
    queues: u64,
    /// Requests that wait, by queue and order of arrival, each with its slot and its time.
    waiting: BTreeMap<(u64, u64), (u32, u64)>,
    arrived: u64,
    /// The queue that had the last turn, and when that turn ended.
    last: u64,
    since_ns: u64,
    /// The requests of the present burst; none while it looks.
    burst: Vec<u32>,
    /// Requests of the present turn.
    taken: u64,
    /// The time of the only event that counts: events for later queues may be pending as well.
    next_ns: u64,
}

impl TurnStation {
    fn new(kind: TurnKind, queues: u64, has_bursts: bool) -> Self {
        Self {
            kind,
            has_bursts,
            queues,
            waiting: BTreeMap::new(),
            arrived: 0,
            last: queues - 1,
            since_ns: 0,
            burst: Vec::new(),
            taken: 0,
            next_ns: u64::MAX,
        }
    }

    /// The first queue with a request that it reaches if it looks from now on, and when.
    fn reach(&self, now_ns: u64, look_ns: u64) -> Option<(u64, u64)> {
        // The first look behind the last turn is at the next queue, and ends a look later.
        let looks = (now_ns - self.since_ns).div_ceil(look_ns).max(1);
        let at = (self.last + looks) % self.queues;
        let mut onwards = self.waiting.range((at, 0)..).chain(self.waiting.iter());
        let queue = onwards.next()?.0.0;
        let behind = (queue + self.queues - at) % self.queues;
        Some((queue, self.since_ns.saturating_add((looks + behind).saturating_mul(look_ns))))
    }

    /// Takes a burst of the queue that has the turn, and says how long it takes; none if nothing
    /// waits there, or the turn is over.
    fn take(&mut self, turn_ns: u64) -> Option<u64> {
        let most = match (self.has_bursts, self.taken) {
            (false, 0) => u64::MAX,
            (false, _) => 0,
            (true, 0) => FIRST_BURST,
            (true, taken) => BURST.min(TURN_MAX - taken),
        };
        // The turn's own time is before its first request.
        let mut took_ns = if self.taken == 0 { turn_ns } else { 0 };
        while (self.burst.len() as u64) < most {
            let next = self.waiting.range((self.last, 0)..=(self.last, u64::MAX)).next();
            let Some((&place, &(slot, cost_ns))) = next else { break };
            self.waiting.remove(&place);
            self.burst.push(slot);
            took_ns = took_ns.saturating_add(cost_ns);
        }
        self.taken += self.burst.len() as u64;
        (!self.burst.is_empty()).then_some(took_ns)
    }
}

/// All stations with turns; the owners of their events are the last numbers of all.
#[derive(Debug)]
pub(super) struct TurnStations {
    of: SimulatedTurns,
    stations: Vec<TurnStation>,
    /// The number of drivers, and of drivers and VMhosts' sidecores.
    drivers: usize,
    not_serving: usize,
}

impl TurnStations {
    pub(super) fn new(scenario: &Scenario) -> Option<Self> {
        let of = scenario.turns.clone()?;
        let hosts = &scenario.hosts;
        let share = |queues: u64, stations: u64| queues.div_ceil(stations.max(1));
        let in_rack = scenario.hosts_in_rack().min(hosts.count);
        let served = match scenario.served {
            ServedAt::Host => share(hosts.guests, scenario.pool.sidecores),
            ServedAt::Pool => in_rack,
        };
        let several = |kind, number: u64, queues: u64| {
            let has_bursts = kind == TurnKind::Serve && scenario.served == ServedAt::Host;
            std::iter::repeat_n(TurnStation::new(kind, queues, has_bursts), number as usize)
        };
        let drivers = hosts.count * of.drivers;
        let vmhosts = hosts.count * hosts.sidecores;
        let serving = scenario.servers() * scenario.pool.sidecores;
        let stations = several(TurnKind::Driver, drivers, share(hosts.guests, of.drivers))
            // The IOhosts' answers have a queue of their own.
            .chain(several(TurnKind::Vmhost, vmhosts, share(hosts.guests, hosts.sidecores) + 1))
            .chain(several(TurnKind::Serve, serving, served));
        Some(Self {
            stations: stations.collect(),
            drivers: drivers as usize,
            not_serving: (drivers + vmhosts) as usize,
            of,
        })
    }

    /// The number of a kind's station.
    fn number(&self, kind: TurnKind, index: usize) -> usize {
        match kind {
            TurnKind::Driver => index,
            TurnKind::Vmhost => self.drivers + index,
            TurnKind::Serve => self.not_serving + index,
        }
    }

    fn turn_ns(&self, kind: TurnKind) -> u64 {
        match kind {
            TurnKind::Driver => self.of.driver_ns,
            TurnKind::Vmhost => self.of.vmhost_ns,
            TurnKind::Serve => self.of.serve_ns,
        }
    }

    /// The station of an event's owner, if it is one.
    #[inline]
    pub(super) fn of_owner(&self, owner: u32) -> Option<usize> {
        let number = (u32::MAX - owner) as usize;
        (number < self.stations.len()).then_some(number)
    }

    /// The event with which the station looks on, if none that counts is before it.
    fn look(&mut self, number: usize, now_ns: u64) -> Option<Event> {
        let station = &mut self.stations[number];
        let (_, time_ns) = station.reach(now_ns, self.of.look_ns)?;
        if time_ns >= station.next_ns {
            return None;
        }
        station.next_ns = time_ns;
        Some(Event { time_ns, owner: u32::MAX - number as u32 })
    }
}

impl World<'_> {
    /// Has a request wait for its turn at a station, at whose end it goes on.
    pub(super) fn wait_for_turn(
        &mut self,
        (kind, index, queue): (TurnKind, usize, u64),
        slot: u32,
        now_ns: u64,
        cost_ns: u64,
    ) -> Option<u64> {
        let turns = self.turns.as_mut()?;
        let number = turns.number(kind, index);
        let station = &mut turns.stations[number];
        let place = (queue, station.arrived);
        station.arrived += 1;
        station.waiting.insert(place, (slot, cost_ns));
        if station.burst.is_empty()
            && let Some(event) = turns.look(number, now_ns)
        {
            self.push(event);
        }
        // Until its turn nothing is known of its end.
        Some(u64::MAX)
    }

    /// A station's burst is done, or it has reached a queue with requests.
    pub(super) fn turn(&mut self, number: usize, now_ns: u64) {
        let Some(turns) = &mut self.turns else { return };
        let station = &mut turns.stations[number];
        if station.next_ns != now_ns {
            // An earlier event has taken the place of this event.
            return;
        }
        if station.burst.is_empty() {
            let Some((queue, _)) = station.reach(now_ns, turns.of.look_ns) else { return };
            (station.last, station.taken) = (queue, 0);
        } else {
            // Requests that come back while the turn goes on wait for the next look.
            for slot in std::mem::take(&mut station.burst) {
                self.step(slot, now_ns);
            }
        }
        self.begin_burst(number, now_ns);
    }

    /// Goes on with the turn, or with looks behind it.
    fn begin_burst(&mut self, number: usize, now_ns: u64) {
        let Some(turns) = &mut self.turns else { return };
        let kind = turns.stations[number].kind;
        let turn_ns = turns.turn_ns(kind);
        let station = &mut turns.stations[number];
        let event = match station.take(turn_ns) {
            Some(took_ns) => {
                let used = match kind {
                    TurnKind::Driver => &mut self.drivers[number],
                    TurnKind::Vmhost => &mut self.vm_cores[number - turns.drivers],
                    TurnKind::Serve => &mut self.cores[number - turns.not_serving],
                };
                let ends_ns = used.serve(now_ns, took_ns);
                turns.stations[number].next_ns = ends_ns;
                Some(Event { time_ns: ends_ns, owner: u32::MAX - number as u32 })
            }
            None => {
                (station.since_ns, station.next_ns) = (now_ns, u64::MAX);
                turns.look(number, now_ns)
            }
        };
        if let Some(event) = event {
            self.push(event);
        }
    }

    /// Requests at the sidecores of the IOhost that died are lost.
    pub(super) fn clear_turns(&mut self, now_ns: u64) {
        let (Some(turns), Some(death)) = (&mut self.turns, self.death) else { return };
        let each = self.scenario.pool.sidecores as usize;
        let first = turns.number(TurnKind::Serve, death.server as usize * each);
        let mut lost = Vec::new();
        for station in &mut turns.stations[first..first + each] {
            lost.append(&mut station.burst);
            lost.extend(std::mem::take(&mut station.waiting).into_values().map(|(slot, _)| slot));
            (station.since_ns, station.next_ns) = (now_ns, u64::MAX);
        }
        for slot in lost {
            let time_ns = self.lose(slot, now_ns);
            let owner = self.homes.len() as u32 + slot;
            self.push(Event { time_ns, owner });
        }
    }
}

#[cfg(test)]
mod tests;
