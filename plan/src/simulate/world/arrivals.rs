//! The times of guests' requests. Each guest has a stream of randomness of its own, so that its
//! requests come at the same times under each policy.

use std::sync::Arc;

use random::Random;

use super::super::scenario::{Arrivals, NS_PER_MS, Scenario};
use super::super::variate::{exponential, hash};
use crate::trace::Trace;

/// A number of the draws of busy spans, beside the numbers of other draws.
const OWN_SPAN: u64 = 1 << 40;
const COMMON_SPAN: u64 = 2 << 40;
const CHOICE: u64 = 3 << 40;

/// The loads of all guests.
#[derive(Debug)]
pub(super) struct GuestLoad {
    streams: Vec<Random>,
    arrivals: Arrivals,
    /// Between two requests of a guest; with bursts, inside of a busy span.
    gap_ns: f64,
    writes_ppm: u64,
    /// Guests at the first so many places of each rack have no load.
    idle_in_rack: u64,
    guests_in_rack: u64,
    seed: u64,
    span_ns: u64,
    busy_ppm: u64,
    common_ppm: u64,
    end_ns: u64,
    bytes: u32,
    playing: Option<Playing>,
}

/// The places of guests in a trace.
#[derive(Debug)]
struct Playing {
    trace: Arc<Trace>,
    /// The next request of each guest.
    places: Vec<u32>,
    /// The time of each guest at which its trace would have begun; it may lie before the start.
    begins_ns: Vec<i64>,
}

impl GuestLoad {
    pub(super) fn new(scenario: &Scenario, end_ns: u64) -> Self {
        let (hosts, load) = (&scenario.hosts, &scenario.load);
        let guests = hosts.count * hosts.guests;
        let in_rack = scenario.hosts_in_rack().min(hosts.count);
        let busy_ppm = if load.arrivals == Arrivals::Bursts { load.busy.ppm() } else { 1_000_000 };
        let mean_gap_ns = 1e9 / load.requests_per_second.max(1) as f64;
        Self {
            streams: (0..guests).map(|it| Random::new(hash(scenario.seed, it, 0))).collect(),
            arrivals: load.arrivals,
            gap_ns: mean_gap_ns * busy_ppm as f64 / 1e6,
            writes_ppm: load.writes.ppm(),
            idle_in_rack: load.idle_hosts.down(in_rack) * hosts.guests,
            guests_in_rack: scenario.hosts_in_rack() * hosts.guests,
            seed: scenario.seed,
            span_ns: load.burst_ms * NS_PER_MS,
            busy_ppm,
            common_ppm: load.correlation.ppm(),
            end_ns,
            bytes: load.bytes as u32,
            playing: None,
        }
        .with_trace(load.playing.clone())
    }

    /// Gives each guest its place in a trace: the trace's start for those that have it in common,
    /// and any other place.
    fn with_trace(mut self, trace: Option<Arc<Trace>>) -> Self {
        let Some(trace) = trace.filter(|_| self.arrivals == Arrivals::Trace) else { return self };
        let shift_ns = |guest: u64| {
            let draw = |of: u64| hash(self.seed, of, 0);
            let is_common = draw(CHOICE + guest) % 1_000_000 < self.common_ppm;
            if is_common { 0 } else { draw(OWN_SPAN + guest) % trace.length_ns }
        };
        let shifts: Vec<u64> = (0..self.streams.len() as u64).map(shift_ns).collect();
        let place = |shift_ns: &u64| {
            trace.requests.partition_point(|request| request.at_ns < *shift_ns) as u32
        };
        self.playing = Some(Playing {
            places: shifts.iter().map(place).collect(),
            begins_ns: shifts.iter().map(|shift_ns| -(*shift_ns as i64)).collect(),
            trace,
        });
        self
    }

    pub(super) fn is_idle(&self, guest: u32) -> bool {
        u64::from(guest) % self.guests_in_rack < self.idle_in_rack
    }

    /// The first request of a guest.
    pub(super) fn first(&mut self, guest: u32) -> Option<u64> {
        if self.is_idle(guest) {
            return None;
        }
        if self.arrivals == Arrivals::Even {
            let gap_ns = (self.gap_ns as u64).max(1);
            return Some(self.streams[guest as usize].below(gap_ns));
        }
        if let Some(playing) = &mut self.playing {
            return playing.time(guest as usize).filter(|time_ns| *time_ns <= self.end_ns);
        }
        self.next(guest, 0)
    }

    /// The request after that of this time; none if it is behind the end.
    #[inline]
    pub(super) fn next(&mut self, guest: u32, now_ns: u64) -> Option<u64> {
        let stream = &mut self.streams[guest as usize];
        let next_ns = match self.arrivals {
            Arrivals::Poisson => now_ns + exponential(stream, self.gap_ns).max(1),
            Arrivals::Even => now_ns + (self.gap_ns as u64).max(1),
            Arrivals::Bursts => return self.next_of_bursts(guest, now_ns),
            Arrivals::Trace => {
                let playing = self.playing.as_mut()?;
                playing.places[guest as usize] += 1;
                playing.time(guest as usize)?
            }
            Arrivals::Closed => return None,
        };
        (next_ns <= self.end_ns).then_some(next_ns)
    }

    /// Draws in busy spans and skips the other draws, as many as the scenario has.
    fn next_of_bursts(&mut self, guest: u32, mut now_ns: u64) -> Option<u64> {
        while now_ns <= self.end_ns {
            let span = now_ns / self.span_ns;
            let ends_ns = (span + 1) * self.span_ns;
            if self.is_busy(guest, span) {
                // A gap of 0 for ever would be a burst without end.
                let gap_ns = exponential(&mut self.streams[guest as usize], self.gap_ns).max(1);
                let next_ns = now_ns + gap_ns;
                if next_ns < ends_ns {
                    return (next_ns <= self.end_ns).then_some(next_ns);
                }
            }
            now_ns = ends_ns;
        }
        None
    }

    fn is_busy(&self, guest: u32, span: u64) -> bool {
        let draw = |of: u64| hash(self.seed, of, span) % 1_000_000;
        let guest = u64::from(guest);
        let is_common = draw(CHOICE + guest) < self.common_ppm;
        let of =
            if is_common { COMMON_SPAN + guest / self.guests_in_rack } else { OWN_SPAN + guest };
        draw(of) < self.busy_ppm
    }

    /// The data of the guest's present request, and whether it is a write.
    #[inline]
    pub(super) fn request(&mut self, guest: u32) -> (u32, bool) {
        if let Some(playing) = &self.playing {
            let request = playing.trace.requests[playing.places[guest as usize] as usize];
            return (request.bytes, request.is_write);
        }
        let is_write = self.writes_ppm > 0 && self.streams[guest as usize].hits(self.writes_ppm);
        (self.bytes, is_write)
    }
}

impl Playing {
    /// The time of a guest's next request. Behind the trace's end it begins anew.
    fn time(&mut self, guest: usize) -> Option<u64> {
        let place = &mut self.places[guest];
        if *place as usize >= self.trace.requests.len() {
            *place = 0;
            self.begins_ns[guest] =
                self.begins_ns[guest].checked_add_unsigned(self.trace.length_ns)?;
        }
        let at_ns = self.trace.requests[*place as usize].at_ns;
        self.begins_ns[guest].checked_add_unsigned(at_ns)?.try_into().ok()
    }
}
