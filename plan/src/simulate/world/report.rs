//! The report of a simulated world.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::super::scenario::{Arrivals, Scenario, ServedAt, Steering};
use super::{Station, World};

/// The longest latency that is told apart: an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Digits of a latency.
const DIGITS: u8 = 3;

/// Latencies of requests. Percentiles have three digits; without requests all times are 0 here,
/// and nothing in reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(into = "LatencyForm")]
pub struct LatencySummary {
    /// Requests.
    pub requests: u64,
    /// Their mean.
    pub mean_ns: u64,
    /// Half of them take no longer.
    pub p50_ns: u64,
    /// 99 of 100 take no longer.
    pub p99_ns: u64,
    /// 999 of 1000 take no longer.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// The same in JSON, where times of no request are null.
#[derive(Serialize)]
struct LatencyForm {
    requests: u64,
    mean_ns: Option<u64>,
    p50_ns: Option<u64>,
    p99_ns: Option<u64>,
    p999_ns: Option<u64>,
    max_ns: Option<u64>,
}

impl From<LatencySummary> for LatencyForm {
    fn from(of: LatencySummary) -> Self {
        let known = |time_ns: u64| (of.requests > 0).then_some(time_ns);
        Self {
            requests: of.requests,
            mean_ns: known(of.mean_ns),
            p50_ns: known(of.p50_ns),
            p99_ns: known(of.p99_ns),
            p999_ns: known(of.p999_ns),
            max_ns: known(of.max_ns),
        }
    }
}

/// The p99 of requests of which some have no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    /// Requests, also the requests that took for ever.
    pub(crate) requests: u64,
    /// Their p99; none if it is for ever.
    pub(crate) p99_ns: Option<u64>,
    /// All requests that the guests gave; none of a closed load, which gives as many as it can.
    pub(crate) given: Option<u64>,
}

/// The use of stations of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StationUse {
    /// The kind.
    pub stations: &'static str,
    /// Their number.
    pub count: u64,
    /// The mean share of time that they were busy, in parts of a million.
    pub mean_ppm: u64,
    /// That of the idlest.
    pub least_ppm: u64,
    /// That of the busiest.
    pub most_ppm: u64,
}

/// The outcome of a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SimulationReport {
    /// The scenario's title.
    pub title: String,
    /// Its seed.
    pub seed: u64,
    /// The place where guests are served.
    pub served: ServedAt,
    /// The rule that gives requests their sidecores.
    pub steering: Steering,
    /// The simulated time.
    pub simulated_ns: u64,
    /// Hosts, guests and IOhosts.
    pub hosts: u64,
    /// Guests of all hosts.
    pub guests: u64,
    /// IOhosts, spare ones included; 0 if hosts serve their own guests.
    pub iohosts: u64,
    /// Events.
    pub events: u64,
    /// Latencies of all requests that were begun after the warm-up and answered.
    pub latency: LatencySummary,
    /// Requests that had no answer at the end. Places of a closed load always have a request.
    pub unanswered: u64,
    /// The time that the oldest of them had waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_ns: Option<u64>,
    /// Requests beyond the limit of requests under way.
    pub refused: u64,
    /// Requests that were sent again, since their IOhost died.
    pub sent_again: u64,
    /// Latencies of requests that were begun before the death, until it was known, and after that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub around_death: Option<[LatencySummary; 3]>,
    /// The use of stations.
    pub used: Vec<StationUse>,
}

/// Latencies by the time of their beginning.
#[derive(Debug)]
pub(super) struct BegunLatencies {
    warm_up_ns: u64,
    bounds_ns: Option<(u64, u64)>,
    parts: Vec<(Histogram<u64>, u128)>,
}

impl BegunLatencies {
    pub(super) fn new(scenario: &Scenario, bounds_ns: Option<(u64, u64)>) -> Self {
        let parts = if bounds_ns.is_some() { 3 } else { 1 };
        Self {
            warm_up_ns: scenario.warm_up_ms * super::NS_PER_MS,
            bounds_ns,
            parts: (0..parts).map(|_| latencies()).collect(),
        }
    }

    /// Takes a latency, and says whether it counts.
    #[inline]
    pub(super) fn record(&mut self, begun_ns: u64, done_ns: u64) -> bool {
        if begun_ns < self.warm_up_ns {
            return false;
        }
        let part = self.bounds_ns.map_or(0, |(died_ns, known_ns)| {
            usize::from(begun_ns >= died_ns) + usize::from(begun_ns >= known_ns)
        });
        let (histogram, sum) = &mut self.parts[part];
        histogram.saturating_record(done_ns - begun_ns);
        *sum += u128::from(done_ns - begun_ns);
        true
    }

    fn summary(&self) -> LatencySummary {
        summary_of(&self.summary_histogram())
    }

    fn summary_histogram(&self) -> (Histogram<u64>, u128) {
        let mut all = self.parts[0].clone();
        for (histogram, sum) in &self.parts[1..] {
            all.0.add(histogram).unwrap_or_else(|error| panic!("the same bounds: {error}"));
            all.1 += sum;
        }
        all
    }

    /// The requests, and their p99 when `late` ones beside the recorded ones took for ever.
    fn tail(&self, late: u64) -> (u64, Option<u64>) {
        let requests: u64 = self.parts.iter().map(|(part, _)| part.len()).sum::<u64>() + late;
        let all = self.summary_histogram();
        let rank = (requests * 99).div_ceil(100);
        let is_answered = rank > 0 && rank <= all.0.len();
        let at = || all.0.value_at_quantile(rank as f64 / all.0.len() as f64);
        (requests, is_answered.then(at))
    }

    fn around_death(&self) -> Option<[LatencySummary; 3]> {
        let [before, until_known, after] = self.parts.as_slice() else { return None };
        Some([before, until_known, after].map(summary_of))
    }
}

/// Latencies and their sum, of which there are none yet.
pub(crate) fn latencies() -> (Histogram<u64>, u128) {
    let bounds = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
    (bounds.unwrap_or_else(|error| panic!("fixed bounds: {error}")), 0)
}

pub(crate) fn summary_of((histogram, sum): &(Histogram<u64>, u128)) -> LatencySummary {
    let requests = histogram.len();
    if requests == 0 {
        return LatencySummary::default();
    }
    let at = |quantile: f64| histogram.value_at_quantile(quantile);
    LatencySummary {
        requests,
        mean_ns: (sum / u128::from(requests)) as u64,
        p50_ns: at(0.5),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        max_ns: histogram.max(),
    }
}

impl World<'_> {
    /// The ages of the requests that have no answer at the end; copies are no requests.
    fn ages_ns(&self) -> impl Iterator<Item = u64> {
        let mut is_free = vec![false; self.requests.len()];
        self.free.iter().for_each(|slot| is_free[*slot as usize] = true);
        let under_way = self.requests.iter().zip(is_free).filter(|(it, is_free)| {
            let is_begun = it.begun_ns <= self.end_ns;
            !is_free && is_begun && !it.is_copy()
        });
        under_way.map(|(request, _)| self.end_ns - request.begun_ns)
    }

    /// The p99 at the end; a request is late once it has waited for longer than `wanted_ns`, and
    /// the younger ones do not count.
    pub(super) fn tail(&self, wanted_ns: u64) -> Tail {
        let given = (self.scenario.load.arrivals != Arrivals::Closed).then_some(self.given);
        let late = self.ages_ns().filter(|age_ns| *age_ns > wanted_ns).count() as u64;
        let (requests, p99_ns) = self.latencies.tail(late + self.refused);
        Tail { requests, p99_ns, given }
    }

    /// The report at the end.
    pub(super) fn report(self) -> SimulationReport {
        let scenario = self.scenario;
        let is_pool = scenario.served == ServedAt::Pool;
        let kinds: [(&'static str, &[Station]); 8] = [
            ("drivers of guests' disks", &self.drivers),
            ("VMhosts' sidecores", &self.vm_cores),
            ("VMhosts' cards, out", &self.vm_out),
            ("VMhosts' cards, in", &self.vm_in),
            ("IOhosts' cards, in", &self.cards_in),
            ("IOhosts' cards, out", &self.cards_out),
            (if is_pool { "IOhosts' sidecores" } else { "hosts' sidecores" }, &self.cores),
            ("lanes of drives", &self.lanes),
        ];
        let used = kinds.iter().filter_map(|(name, all)| self.used(name, all));
        SimulationReport {
            title: scenario.title.clone(),
            seed: scenario.seed,
            served: scenario.served,
            steering: scenario.pool.steering,
            simulated_ns: self.end_ns,
            hosts: scenario.hosts.count,
            guests: self.homes.len() as u64,
            iohosts: if is_pool { scenario.servers() } else { 0 },
            events: self.events,
            latency: self.latencies.summary(),
            unanswered: self.ages_ns().count() as u64,
            oldest_ns: self.ages_ns().max(),
            refused: self.refused,
            sent_again: self.sent_again,
            around_death: self.latencies.around_death(),
            used: used.collect(),
        }
    }

    /// The use of stations that did anything.
    fn used(&self, name: &'static str, stations: &[Station]) -> Option<StationUse> {
        let share = |station: &Station| {
            // Work that was taken on and is not done yet.
            let ahead_ns = station.free_at_ns.saturating_sub(self.end_ns);
            let done_ns = station.busy_ns.saturating_sub(ahead_ns);
            (u128::from(done_ns) * 1_000_000 / u128::from(self.end_ns)) as u64
        };
        let shares: Vec<u64> = stations.iter().map(share).collect();
        let most = *shares.iter().max()?;
        let sum: u64 = shares.iter().sum();
        (sum > 0).then(|| StationUse {
            stations: name,
            count: shares.len() as u64,
            mean_ppm: sum / shares.len() as u64,
            least_ppm: shares.iter().copied().min().unwrap_or(0),
            most_ppm: most,
        })
    }
}
