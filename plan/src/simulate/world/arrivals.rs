//! The times of guests' requests. Each guest has a stream of randomness of its own, so that its
//! requests come at the same times under each policy.

use random::Random;

use super::super::scenario::{Arrivals, Scenario};
use super::super::variate::{exponential, hash};

/// A number of the draws of busy spans, beside those of other draws.
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
    /// Guests below this number have no load.
    first_busy: u32,
    guests_in_rack: u64,
    seed: u64,
    span_ns: u64,
    busy_ppm: u64,
    common_ppm: u64,
    end_ns: u64,
}

impl GuestLoad {
    pub(super) fn new(scenario: &Scenario, end_ns: u64) -> Self {
        let (hosts, load) = (&scenario.hosts, &scenario.load);
        let guests = hosts.count * hosts.guests;
        let busy_ppm = if load.arrivals == Arrivals::Bursts { load.busy.ppm() } else { 1_000_000 };
        let mean_gap_ns = 1e9 / load.requests_per_second.max(1) as f64;
        Self {
            streams: (0..guests).map(|it| Random::new(hash(scenario.seed, it, 0))).collect(),
            arrivals: load.arrivals,
            gap_ns: mean_gap_ns * busy_ppm as f64 / 1e6,
            writes_ppm: load.writes.ppm(),
            first_busy: (load.idle_hosts.down(hosts.count) * hosts.guests) as u32,
            guests_in_rack: scenario.hosts_in_rack() * hosts.guests,
            seed: scenario.seed,
            span_ns: load.burst_ms * super::NS_PER_MS,
            busy_ppm,
            common_ppm: load.correlation.ppm(),
            end_ns,
        }
    }

    pub(super) fn is_idle(&self, guest: u32) -> bool {
        guest < self.first_busy
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
        self.next(guest, 0)
    }

    /// The request after that of this time; none if it is behind the end.
    #[inline]
    pub(super) fn next(&mut self, guest: u32, now_ns: u64) -> Option<u64> {
        let stream = &mut self.streams[guest as usize];
        let next_ns = match self.arrivals {
            Arrivals::Poisson => now_ns + exponential(stream, self.gap_ns),
            Arrivals::Even => now_ns + (self.gap_ns as u64).max(1),
            Arrivals::Bursts => return self.next_of_bursts(guest, now_ns),
            Arrivals::Closed => return None,
        };
        (next_ns <= self.end_ns).then_some(next_ns)
    }

    /// Draws in busy spans and skips the others, as many as the scenario has.
    fn next_of_bursts(&mut self, guest: u32, mut now_ns: u64) -> Option<u64> {
        while now_ns <= self.end_ns {
            let span = now_ns / self.span_ns;
            let ends_ns = (span + 1) * self.span_ns;
            if self.is_busy(guest, span) {
                let next_ns = now_ns + exponential(&mut self.streams[guest as usize], self.gap_ns);
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

    /// Whether the guest's next request is a write.
    #[inline]
    pub(super) fn draws_write(&mut self, guest: u32) -> bool {
        self.writes_ppm > 0 && self.streams[guest as usize].hits(self.writes_ppm)
    }
}
