//! The form of a scenario, its checks, and one scenario with several values of a key.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::fault::{NAME_MAX, PlanFault, key, named, within};
use crate::money::Fraction;
use crate::trace::{Trace, TraceForm};

/// Nanoseconds of a millisecond.
pub(crate) const NS_PER_MS: u64 = 1_000_000;
/// Guests of all hosts.
pub const GUESTS_MAX: u64 = 1 << 22;
/// Sidecores, cards and drives of a scenario; each takes 16 bytes.
pub const STATIONS_MAX: u64 = 1 << 24;
/// Drivers and sidecores with turns; each takes some 150 bytes, and its queues.
pub const TURN_STATIONS_MAX: u64 = 1 << 20;
/// The longest simulated time: an hour.
pub const MILLISECONDS_MAX: u64 = 3_600_000;
/// Requests of a scenario: an hour of one core of the simulating machine.
pub const REQUESTS_MAX: u64 = 4_000_000_000;
/// Requests under way: at this number, more arrivals are refused and counted. Without a bound, a
/// load beyond the stations' would take all memory.
pub const UNDER_WAY_MAX: u64 = 1 << 24;
/// Spans of all guests, with bursts: a guest whose spans are quiet goes through them one by one, in
/// some seconds for all.
pub const SPANS_MAX: u64 = 1 << 28;
/// The most requests of a guest in a second while it is busy: one in a nanosecond.
const BUSY_RATE_MAX: u64 = 1_000_000_000;
/// Keys of a path, with one more than any scenario has.
const PATH_KEYS_MAX: usize = 3;
/// Keys with words as values, also if a word is a number.
const WORD_KEYS: [&str; 3] = ["title", "load.trace", "load.volume"];
/// The longest name of a file.
const FILE_NAME_MAX: usize = 4096;
/// Values of one key beside one another: a table that a person reads.
pub const VARIED_MAX: usize = 64;
/// The longest cost of a step: a second.
pub(super) const COST_NS_MAX: u64 = 1_000_000_000;
/// The largest request, as disks have it.
pub(super) const BYTES_MAX: u64 = 64 << 20;

/// A scenario.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The title for a reader.
    pub title: String,
    /// The seed of all randomness.
    #[serde(default = "one")]
    pub seed: u64,
    /// The simulated time.
    pub milliseconds: u64,
    /// The time at the beginning; its requests are not reported.
    #[serde(default)]
    pub warm_up_ms: u64,
    /// Where guests are served.
    pub served: ServedAt,
    /// The hosts of guests.
    pub hosts: SimulatedHosts,
    /// The load of guests.
    pub load: SimulatedLoad,
    /// The IOhosts; when hosts serve their own guests, the part of a host that does.
    pub pool: SimulatedPool,
    /// The time of each step of a request.
    pub costs: StepCosts,
    /// The turns of threads that poll; without them stations take requests one at a time.
    pub turns: Option<SimulatedTurns>,
    /// The cards and the switch.
    #[serde(default)]
    pub network: SimulatedNetwork,
    /// The death of an IOhost.
    pub death: Option<SimulatedDeath>,
}

pub(super) fn one() -> u64 {
    1
}

/// The place where guests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServedAt {
    /// By sidecores of their own host.
    Host,
    /// By IOhosts.
    Pool,
}

/// The hosts.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedHosts {
    /// Hosts of all racks.
    pub count: u64,
    /// Guests of a host.
    pub guests: u64,
    /// Hosts of a rack; their guests share its IOhosts. By default all hosts.
    pub in_rack: Option<u64>,
    /// Sidecores of a VMhost, on a request's way out and back; 0 if the guest itself sends.
    #[serde(default)]
    pub sidecores: u64,
}

/// The times of a guest's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// At random, independent of one another.
    Poisson,
    /// At equal distances.
    Even,
    /// At random in busy spans, and none between them.
    Bursts,
    /// A number of requests is always under way.
    Closed,
    /// As in a trace, which each guest begins at a place of its own.
    Trace,
}

/// The load.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedLoad {
    /// The times of requests.
    pub arrivals: Arrivals,
    /// Requests of a guest in a second, on average; with `closed` they come of themselves.
    #[serde(default)]
    pub requests_per_second: u64,
    /// Requests of a guest under way, with `closed`.
    #[serde(default = "one")]
    pub depth: u64,
    /// Requests of a guest in a second that its limit lets pass; 0 if there is none.
    #[serde(default)]
    pub limit: u64,
    /// The time for which an idle guest saves its limit.
    #[serde(default = "limit_burst_ms")]
    pub limit_burst_ms: u64,
    /// The data of a request.
    pub bytes: u64,
    /// The share of writes.
    #[serde(default = "no_share")]
    pub writes: Fraction,
    /// The share of hosts with guests that have no load.
    #[serde(default = "no_share")]
    pub idle_hosts: Fraction,
    /// The length of a busy span and of a quiet one, with `bursts`.
    #[serde(default = "burst_ms")]
    pub burst_ms: u64,
    /// The share of spans that are busy.
    #[serde(default = "whole")]
    pub busy: Fraction,
    /// The share of spans that a guest has in common with all guests of its rack: 0 if bursts are
    /// independent, 1 if all guests have theirs at once. With `trace`, the share of guests that
    /// begin the trace at the same place.
    #[serde(default = "no_share")]
    pub correlation: Fraction,
    /// The file, with `trace`.
    pub trace: Option<String>,
    /// Its form.
    pub form: Option<TraceForm>,
    /// The volume of the file with the requests that count; by default all.
    pub volume: Option<String>,
    /// The trace runs at so many times its speed.
    #[serde(default = "one")]
    pub speed: u64,
    /// The requests of the file.
    #[serde(skip)]
    pub playing: Option<Arc<Trace>>,
}

fn no_share() -> Fraction {
    Fraction::NONE
}

fn whole() -> Fraction {
    Fraction::ALL
}

fn burst_ms() -> u64 {
    10
}

/// A node's own default (`volume/src/stage/limit.rs`).
fn limit_burst_ms() -> u64 {
    1000
}

/// The rule by which a request gets a sidecore of its IOhost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// Each guest has one sidecore for ever.
    Static,
    /// Any sidecore.
    Random,
    /// The less busy of two sidecores.
    Two,
    /// The sidecore that is free first: one queue for all.
    Shared,
}

/// The rule by which a guest gets an IOhost of its rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpreadOver {
    /// In turn.
    Turn,
    /// Any.
    Random,
}

/// The IOhosts of a rack.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedPool {
    /// IOhosts of a rack that serve.
    #[serde(default = "one")]
    pub iohosts: u64,
    /// IOhosts of a rack that wait for a death.
    #[serde(default)]
    pub spare: u64,
    /// Sidecores of an IOhost.
    pub sidecores: u64,
    /// The rule that gives a request its sidecore.
    #[serde(default = "shared")]
    pub steering: Steering,
    /// The rule that gives a guest its IOhost.
    #[serde(default = "in_turn")]
    pub spread: SpreadOver,
    /// Requests that the drives of an IOhost do at a time; 0 if there is no drive.
    #[serde(default)]
    pub device_lanes: u64,
    /// Copies of each write, on IOhosts of the rack.
    #[serde(default = "one")]
    pub replicas: u64,
}

fn shared() -> Steering {
    Steering::Shared
}

fn in_turn() -> SpreadOver {
    SpreadOver::Turn
}

/// The distribution of a step's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Spreading {
    /// The same for each request.
    Fixed,
    /// Exponential.
    Exponential,
}

/// The time of each step.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepCosts {
    /// A VMhost's sidecore, for a request on its way out.
    #[serde(default)]
    pub vmhost_ns: u64,
    /// The same on its way back.
    #[serde(default)]
    pub vmhost_back_ns: u64,
    /// A serving sidecore, for a request on its way down.
    pub serve_ns: u64,
    /// The same for each KiB of its data.
    #[serde(default)]
    pub serve_ns_per_kib: u64,
    /// The same on its way up.
    #[serde(default)]
    pub complete_ns: u64,
    /// A drive.
    #[serde(default)]
    pub device_ns: u64,
    /// All that takes time and no sidecore: the guest's own path, interrupts.
    #[serde(default)]
    pub guest_ns: u64,
    /// The distribution of sidecores' times.
    #[serde(default = "fixed")]
    pub spreading: Spreading,
    /// The distribution of drives' times.
    #[serde(default = "fixed")]
    pub device_spreading: Spreading,
}

fn fixed() -> Spreading {
    Spreading::Fixed
}

/// The turns of threads that poll many queues: each turn to a queue with requests takes a time
/// beside theirs, and so does each look at a queue.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedTurns {
    /// Threads of a host that drive its guests' disks, with `costs.guest_ns` for a request; 0 if
    /// each guest has its own.
    #[serde(default)]
    pub drivers: u64,
    /// A driver, for a turn to a guest.
    #[serde(default)]
    pub driver_ns: u64,
    /// A VMhost's sidecore, for a turn to a guest or to the answers.
    #[serde(default)]
    pub vmhost_ns: u64,
    /// A serving sidecore, for a turn to a guest, or to a VMhost.
    #[serde(default)]
    pub serve_ns: u64,
    /// A look at one queue.
    pub look_ns: u64,
    /// From a thread's store to the other's view.
    #[serde(default)]
    pub pass_ns: u64,
}

/// The network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedNetwork {
    /// Gbit/s of a VMhost's card in one direction; 0 if it takes no time.
    #[serde(default)]
    pub vmhost_gbit: u64,
    /// The same of an IOhost.
    #[serde(default)]
    pub iohost_gbit: u64,
    /// From card to card: wires and the switch.
    #[serde(default)]
    pub hop_ns: u64,
    /// Bytes of a request or an answer beside its data.
    #[serde(default)]
    pub head_bytes: u64,
}

/// The way of guests after the death of their IOhost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refuge {
    /// They wait until it is back.
    Wait,
    /// The rack's first spare IOhost serves them.
    Spare,
    /// The other IOhosts of the rack share them.
    Rest,
}

/// The death of an IOhost.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedDeath {
    /// The IOhost, counted from 0 over all racks, spare ones included.
    #[serde(default)]
    pub iohost: u64,
    /// The time of its death.
    pub at_ms: u64,
    /// The time until its guests turn to other IOhosts.
    pub detect_ms: u64,
    /// The time of its return; by default after the end.
    pub back_ms: Option<u64>,
    /// The way of its guests.
    pub refuge: Refuge,
}

impl Scenario {
    /// Reads and checks a scenario, with values of keys in place of the file's.
    ///
    /// # Errors
    /// When the text is not of this form, or a value cannot be used.
    pub fn read(name: &str, text: &str, set: &[(String, String)]) -> Result<Self, PlanFault> {
        let scenario: Self = form(name, text, set, "vrio plan example scenario")?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Threads of a host that drive its guests' disks.
    pub fn drivers(&self) -> u64 {
        self.turns.as_ref().map_or(0, |turns| turns.drivers)
    }

    /// Hosts of a rack.
    pub fn hosts_in_rack(&self) -> u64 {
        self.hosts.in_rack.unwrap_or(self.hosts.count)
    }

    /// The number of racks.
    pub fn racks(&self) -> u64 {
        self.hosts.count.div_ceil(self.hosts_in_rack().max(1))
    }

    /// IOhosts of all racks, spare ones included; when hosts serve, the hosts.
    pub fn servers(&self) -> u64 {
        match self.served {
            ServedAt::Host => self.hosts.count,
            ServedAt::Pool => self.racks().saturating_mul(self.pool.iohosts + self.pool.spare),
        }
    }

    /// Requests that are expected. With `closed` it is a guess: stations may make them fewer, and
    /// times that are drawn may make them more.
    pub fn expected(&self) -> u64 {
        let load = &self.load;
        let guests = self.hosts.count * self.hosts.guests;
        let each = match load.arrivals {
            // A request's own steps bound the rate of each place.
            Arrivals::Closed => {
                let costs = &self.costs;
                let cycle = costs.guest_ns
                    + costs.vmhost_ns
                    + costs.vmhost_back_ns
                    + costs.serve_ns
                    + costs.complete_ns
                    + costs.device_ns
                    + 2 * self.network.hop_ns;
                load.depth.saturating_mul(1_000_000_000 / cycle.max(1))
            }
            Arrivals::Trace => load.playing.as_ref().map_or(0, |trace| {
                let of_second = trace.requests.len() as u128 * 1_000_000_000;
                (of_second / u128::from(trace.length_ns.max(1))) as u64
            }),
            _ => load.requests_per_second,
        };
        let a_second = u128::from(guests) * u128::from(each);
        let all = a_second * u128::from(self.milliseconds) / 1000;
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// Gives the scenario the requests of its trace.
    ///
    /// # Errors
    /// When the guests' requests are too many then.
    pub fn play(&mut self, trace: &Arc<Trace>) -> Result<(), PlanFault> {
        self.load.playing = Some(Trace::faster(trace, self.load.speed));
        self.check_requests()
    }

    fn check_requests(&self) -> Result<(), PlanFault> {
        let expected = self.expected();
        if expected <= REQUESTS_MAX {
            return Ok(());
        }
        let load = match self.load.arrivals {
            // The events of a closed load are counted while it runs.
            Arrivals::Closed => return Ok(()),
            Arrivals::Trace => "load.speed",
            _ => "load.requests_per_second",
        };
        let cause = format!("they make {expected} requests, more than {REQUESTS_MAX}");
        let keys = format!("hosts.count x hosts.guests x {load} x milliseconds");
        Err(key(keys, cause, "lower one of them"))
    }

    fn check(&self) -> Result<(), PlanFault> {
        named("title", &self.title, NAME_MAX)?;
        within("milliseconds", self.milliseconds, 1, MILLISECONDS_MAX)?;
        within("warm_up_ms", self.warm_up_ms, 0, self.milliseconds - 1)?;
        within("hosts.count", self.hosts.count, 1, GUESTS_MAX)?;
        within("hosts.guests", self.hosts.guests, 1, GUESTS_MAX)?;
        within("hosts.count x hosts.guests", self.hosts.count * self.hosts.guests, 1, GUESTS_MAX)?;
        within("hosts.in_rack", self.hosts_in_rack(), 1, GUESTS_MAX)?;
        within("hosts.sidecores", self.hosts.sidecores, 0, 1024)?;
        self.check_load()?;
        self.check_pool()?;
        self.check_costs()?;
        self.turns.as_ref().map_or(Ok(()), |turns| self.check_turns(turns))?;
        if self.load.arrivals == Arrivals::Closed {
            let under_way = self.hosts.count * self.hosts.guests * self.load.depth;
            within("guests x load.depth", under_way, 1, UNDER_WAY_MAX)?;
        }
        self.check_requests()?;
        self.death.as_ref().map_or(Ok(()), |death| self.check_death(death))
    }

    fn check_load(&self) -> Result<(), PlanFault> {
        let load = &self.load;
        if load.arrivals == Arrivals::Trace {
            let (Some(_), Some(_)) = (&load.trace, load.form) else {
                let way_out =
                    "set load.trace and load.form (blktrace, alibaba, tencent, msr, vscsi)";
                return Err(key("load.arrivals", "no trace is named", way_out));
            };
        } else if load.arrivals != Arrivals::Closed {
            within("load.requests_per_second", load.requests_per_second, 1, 100_000_000)?;
        }
        within("load.speed", load.speed, 1, 1_000_000)?;
        within("load.depth", load.depth, 1, 65_536)?;
        within("load.bytes", load.bytes, 0, BYTES_MAX)?;
        within("load.limit", load.limit, 0, BUSY_RATE_MAX)?;
        within("load.limit_burst_ms", load.limit_burst_ms, 0, MILLISECONDS_MAX)?;
        within("load.burst_ms", load.burst_ms, 1, MILLISECONDS_MAX)?;
        let shares = [
            ("load.writes", load.writes),
            ("load.idle_hosts", load.idle_hosts),
            ("load.busy", load.busy),
            ("load.correlation", load.correlation),
        ];
        for (name, share) in shares {
            if !share.is_part() {
                return Err(key(name, format!("{share} is more than all"), "give 0 to 1"));
            }
        }
        if load.busy.ppm() == 0 {
            return Err(key("load.busy", "no span is busy", "give more than 0"));
        }
        for (name, words) in [("load.trace", &load.trace), ("load.volume", &load.volume)] {
            words.as_ref().map_or(Ok(()), |words| named(name, words, FILE_NAME_MAX))?;
        }
        if load.arrivals == Arrivals::Bursts { self.check_bursts() } else { Ok(()) }
    }

    fn check_bursts(&self) -> Result<(), PlanFault> {
        let load = &self.load;
        if load.requests_per_second * 1_000_000 > BUSY_RATE_MAX * load.busy.ppm() {
            let cause = "a busy guest would have more than a request in a nanosecond";
            let way_out = "raise load.busy, or lower load.requests_per_second";
            return Err(key("load.requests_per_second / load.busy", cause, way_out));
        }
        let guests = self.hosts.count * self.hosts.guests;
        let spans = guests.saturating_mul(self.milliseconds.div_ceil(load.burst_ms));
        if spans > SPANS_MAX {
            let cause = format!("they make {spans} spans, more than {SPANS_MAX}");
            let way_out = "raise load.burst_ms, or lower another of them";
            return Err(key("guests x milliseconds / load.burst_ms", cause, way_out));
        }
        Ok(())
    }

    pub(crate) fn check_pool(&self) -> Result<(), PlanFault> {
        let pool = &self.pool;
        within("pool.iohosts", pool.iohosts, 1, GUESTS_MAX)?;
        within("pool.spare", pool.spare, 0, GUESTS_MAX)?;
        within("pool.sidecores", pool.sidecores, 1, 65_536)?;
        within("pool.device_lanes", pool.device_lanes, 0, 65_536)?;
        within("pool.replicas", pool.replicas, 1, pool.iohosts.min(16))?;
        if self.served == ServedAt::Host && (pool.replicas > 1 || pool.spare > 0) {
            let cause = "hosts that serve their own guests have no copies and no spares";
            return Err(key("pool", cause, "set served = \"pool\""));
        }
        let of_server = pool.sidecores + pool.device_lanes + 2;
        let stations = self.servers().saturating_mul(of_server);
        let of_hosts = self.hosts.count * (self.hosts.sidecores + 2);
        within("sidecores, cards and drives", stations.saturating_add(of_hosts), 1, STATIONS_MAX)
    }

    fn check_costs(&self) -> Result<(), PlanFault> {
        let costs = &self.costs;
        for (name, cost) in [
            ("costs.vmhost_ns", costs.vmhost_ns),
            ("costs.vmhost_back_ns", costs.vmhost_back_ns),
            ("costs.serve_ns", costs.serve_ns),
            ("costs.serve_ns_per_kib", costs.serve_ns_per_kib),
            ("costs.complete_ns", costs.complete_ns),
            ("costs.device_ns", costs.device_ns),
            ("costs.guest_ns", costs.guest_ns),
            ("network.hop_ns", self.network.hop_ns),
        ] {
            // A closed load of requests that take no time would never end.
            let least = u64::from(name == "costs.serve_ns");
            within(name, cost, least, COST_NS_MAX)?;
        }
        within("network.vmhost_gbit", self.network.vmhost_gbit, 0, 10_000)?;
        within("network.iohost_gbit", self.network.iohost_gbit, 0, 10_000)?;
        within("network.head_bytes", self.network.head_bytes, 0, BYTES_MAX)
    }

    fn check_turns(&self, turns: &SimulatedTurns) -> Result<(), PlanFault> {
        within("turns.drivers", turns.drivers, 0, 1024)?;
        within("turns.look_ns", turns.look_ns, 1, COST_NS_MAX)?;
        for (name, cost) in [
            ("turns.driver_ns", turns.driver_ns),
            ("turns.vmhost_ns", turns.vmhost_ns),
            ("turns.serve_ns", turns.serve_ns),
            ("turns.pass_ns", turns.pass_ns),
        ] {
            within(name, cost, 0, COST_NS_MAX)?;
        }
        if self.pool.sidecores > 1 && self.pool.steering != Steering::Static {
            let cause = "with turns each guest has a sidecore of its own";
            return Err(key("pool.steering", cause, "set pool.steering = \"static\""));
        }
        let of_hosts = self.hosts.count * (turns.drivers + self.hosts.sidecores);
        let threads = of_hosts + self.servers().saturating_mul(self.pool.sidecores);
        within("drivers and sidecores with turns", threads, 1, TURN_STATIONS_MAX)
    }

    fn check_death(&self, death: &SimulatedDeath) -> Result<(), PlanFault> {
        if self.served == ServedAt::Host {
            let cause = "hosts that serve their own guests die with them";
            return Err(key("death", cause, "set served = \"pool\""));
        }
        within("death.iohost", death.iohost, 0, self.servers() - 1)?;
        if death.at_ms > self.milliseconds {
            let cause = format!("{} is after the end, {} ms", death.at_ms, self.milliseconds);
            let way_out = "raise milliseconds, or give none: `--set death=none`";
            return Err(key("death.at_ms", cause, way_out));
        }
        within("death.detect_ms", death.detect_ms, 0, MILLISECONDS_MAX)?;
        if let Some(back) = death.back_ms {
            within("death.back_ms", back, death.at_ms, MILLISECONDS_MAX)?;
        }
        match death.refuge {
            Refuge::Spare if self.pool.spare == 0 => {
                Err(key("death.refuge", "there is no spare IOhost", "set pool.spare = 1"))
            }
            Refuge::Rest if self.pool.iohosts < 2 => {
                Err(key("death.refuge", "there is no other IOhost", "set pool.iohosts = 2"))
            }
            _ => Ok(()),
        }
    }
}

/// Reads a text of this form, with values of keys in place of the text's.
pub(super) fn form<T: DeserializeOwned>(
    name: &str,
    text: &str,
    set: &[(String, String)],
    example: &'static str,
) -> Result<T, PlanFault> {
    let fault = |error: toml::de::Error| PlanFault::Form {
        file: name.to_owned(),
        cause: error.to_string().trim_end().to_owned(),
        example,
    };
    // Faults of the text itself have their line; faults of changed values have their key.
    if set.is_empty() {
        return toml::from_str(text).map_err(fault);
    }
    let mut table: Table = toml::from_str(text).map_err(fault)?;
    for (path, value) in set {
        put(&mut table, path, value)?;
    }
    table.try_into().map_err(fault)
}

/// One key with several values: `pool.steering=static,shared`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vary {
    /// The key.
    pub key: String,
    /// Its values.
    pub values: Vec<String>,
}

impl std::str::FromStr for Vary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = assignment(text)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        if values.len() > VARIED_MAX {
            return Err(format!("{} values: give {VARIED_MAX} at most", values.len()));
        }
        for value in [&key].into_iter().chain(&values) {
            named("--vary", value, FILE_NAME_MAX).map_err(|fault| fault.to_string())?;
        }
        Ok(Self { key, values })
    }
}

/// A key and its value: `pool.sidecores=4`.
///
/// # Errors
/// When there is no `=` with words on both sides.
pub fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(format!("'{text}' is no key with a value: write pool.sidecores=4")),
    }
}

/// Puts a value at a path of keys. A value that is no TOML is a word, and `death=none` is no death.
fn put(table: &mut Table, path: &str, value: &str) -> Result<(), PlanFault> {
    if (path, value) == ("death", "none") {
        table.remove("death");
        return Ok(());
    }
    let mut at = table;
    let mut keys: Vec<&str> = path.split('.').take(PATH_KEYS_MAX + 1).collect();
    if keys.len() > PATH_KEYS_MAX {
        let cause = format!("the path has more than {PATH_KEYS_MAX} keys");
        return Err(key("--set", cause, "name a key of the scenario, such as pool.sidecores"));
    }
    let last = keys.pop().unwrap_or(path);
    for name in keys {
        let below = at.entry(name).or_insert_with(|| Value::Table(Table::new()));
        let Value::Table(below) = below else {
            let cause = format!("'{name}' has a value of its own");
            return Err(key(path, cause, "name a key of the scenario, such as pool.sidecores"));
        };
        at = below;
    }
    let read: Result<Table, _> = toml::from_str(&format!("value = {value}"));
    let read =
        read.ok().and_then(|mut read| if read.len() == 1 { read.remove("value") } else { None });
    // A volume's name is a word, also if it is a number.
    let read = read.filter(|read| read.is_str() || !WORD_KEYS.contains(&path));
    at.insert(last.to_owned(), read.unwrap_or_else(|| Value::String(value.to_owned())));
    Ok(())
}
