//! Measurements of `vrio bench block` beside the simulator's predictions of them. A few named
//! measurements give the costs, and all other measurements are held out.

mod results;

use ::results::{Measurement, Quantity, Unit};
use serde::Serialize;

use crate::fault::{PlanFault, key};
use crate::measured::{self, MeasuredCost};
use crate::money::grouped;
use crate::simulate::{self, BENCH, Scenario};
use crate::text::{row, table};

pub use results::own_results;

/// Measurements of one machine, with the commands that made them.
const RECORDED: &str = include_str!("../data/own-bench.json");

/// The most by which a prediction that holds is away from its measurement, as a share of it.
pub const WITHIN: f64 = 0.15;

/// A look at a ring that is in the cache. Only the sum of a look and a turn is measured.
const LOOK_NS: f64 = 10.0;

/// The depth that keeps a sidecore busy with one guest, and the guests that do so at depth 1.
const DEEP: u64 = 32;
const MANY: u64 = 16;

/// Guests of which it is known that the simulator expects too much.
const TOO_MANY: u64 = 32;

/// The way from the driver to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BenchWay {
    /// The rings of a node's own guests.
    Local,
    /// A session of a client with an IOhost.
    Direct,
}

/// A measurement of disks as fast as they go.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchRun {
    /// The way to the volumes.
    pub way: BenchWay,
    /// Guests, each with a disk.
    pub guests: u64,
    /// Requests under way of each guest.
    pub depth: u64,
    /// Requests of a guest in a second that its limit lets pass; 0 if it has none.
    pub limit: u64,
    /// Requests of all guests in a second.
    pub measured_per_s: f64,
    /// The least and the most of the rounds, if there were several.
    pub spread_per_s: Option<(f64, f64)>,
}

impl BenchRun {
    /// The run of a measurement; none if it is of another kind than the simulator knows.
    fn of(it: &Measurement) -> Option<Self> {
        let setup = |name: &str| it.setup.get(name).map(String::as_str);
        let number = |name: &str, default| match setup(name) {
            Some(text) => text.parse().ok(),
            None => Some(default),
        };
        let way = match setup("path")? {
            "local" => BenchWay::Local,
            "direct" => BenchWay::Direct,
            _ => return None,
        };
        let series = it.series.iter().find(|series| series.quantity == Quantity::Iops)?;
        let [point] = series.points.as_slice() else { return None };
        let per_s = |y: f64| series.unit.convert(y, Unit::PerS).filter(|it| *it >= 1.0);
        // Sidecores that sleep, several of them, and volumes with storage have other costs.
        let is_known = it.benchmark == "block"
            && setup("idle").is_none_or(|idle| idle == "spin")
            && setup("driver").is_none_or(|driver| driver == "polls")
            && setup("volume").is_none_or(|volume| volume == "null")
            && ["jobs", "sidecores"].iter().all(|name| setup(name).is_none_or(|it| it == "1"))
            && ["busy", "iops", "chain"].iter().all(|name| setup(name).is_none());
        let run = Self {
            way,
            guests: number("guests", 1)?,
            depth: point.x as u64,
            limit: number("limit", 0)?,
            measured_per_s: per_s(point.y)?,
            spread_per_s: point.low.and_then(per_s).zip(point.high.and_then(per_s)),
        };
        is_known.then_some(run)
    }

    /// Whether it is the measurement of these guests and this depth without a limit.
    fn is(&self, way: BenchWay, guests: u64, depth: u64) -> bool {
        (self.way, self.guests, self.depth, self.limit) == (way, guests, depth, 0)
    }

    /// Its words for a reader.
    fn words(&self) -> String {
        let way = match self.way {
            BenchWay::Local => "local",
            BenchWay::Direct => "direct",
        };
        let limit = match self.limit {
            0 => String::new(),
            limit => format!(", limit {}", grouped(limit)),
        };
        let guests = if self.guests == 1 { "guest" } else { "guests" };
        format!("{way}, {} {guests}, depth {}{limit}", self.guests, self.depth)
    }
}

/// The judgement on a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnVerdict {
    /// The costs were taken from this measurement.
    Fitted,
    /// The prediction holds, of a measurement that gave no cost.
    HeldOut,
    /// It holds, and a figure without a simulator does as well: the nearest one of the
    /// measurements that gave the costs, or the limit itself.
    Weak,
    /// It does not hold.
    Differs,
}

/// A measurement beside its prediction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnFigure {
    /// The measurement.
    #[serde(flatten)]
    pub run: BenchRun,
    /// The prediction of its requests in a second.
    pub ours_per_s: f64,
    /// The judgement.
    pub verdict: OwnVerdict,
}

/// All measurements beside their predictions, and the costs of the predictions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnFigures {
    /// The costs of each way, as keys of a scenario.
    pub costs: Vec<Vec<MeasuredCost>>,
    /// The measurements.
    pub figures: Vec<OwnFigure>,
}

/// The recorded measurements of the program.
///
/// # Errors
/// When they are no measurements.
pub fn recorded() -> Result<Vec<Measurement>, PlanFault> {
    measured::measurements("own-bench.json", RECORDED)
}

/// Predicts measurements by the costs of the named measurements.
///
/// # Errors
/// When the named ones are not there, or their figures give no costs.
pub fn own(name: &str, all: &[Measurement]) -> Result<OwnFigures, PlanFault> {
    let runs: Vec<BenchRun> = all.iter().filter_map(BenchRun::of).collect();
    let local = local_costs(name, &runs)?;
    let direct = direct_costs(name, &runs)?;
    let mut figures = Vec::new();
    for run in &runs {
        let costs = match run.way {
            BenchWay::Local => Some(&local),
            BenchWay::Direct => direct.as_ref(),
        };
        if let Some(costs) = costs {
            let ours_per_s = predicted(run, costs)?;
            let verdict = verdict(run, &runs, ours_per_s);
            figures.push(OwnFigure { run: run.clone(), ours_per_s, verdict });
        }
    }
    Ok(OwnFigures { costs: [local].into_iter().chain(direct).collect(), figures })
}

/// The costs of a scenario with turns, of measurements of a node's own guests.
///
/// # Errors
/// As [`own`].
pub fn turn_costs(name: &str, all: &[Measurement]) -> Result<Vec<MeasuredCost>, PlanFault> {
    let runs: Vec<BenchRun> = all.iter().filter_map(BenchRun::of).collect();
    local_costs(name, &runs)
}

/// The time of a request in a named measurement, which may be missing.
fn time_ns(runs: &[BenchRun], way: BenchWay, guests: u64, depth: u64) -> Option<f64> {
    let run = runs.iter().find(|run| run.is(way, guests, depth))?;
    Some(1e9 / run.measured_per_s)
}

/// Whether the costs of its way were taken from a measurement.
fn is_fitted(run: &BenchRun) -> bool {
    run.is(run.way, 1, 1) || run.is(run.way, 1, DEEP) || run.is(BenchWay::Local, MANY, 1)
}

/// Many guests at depth 1 keep the sidecore at one request a turn, and one guest at a large depth
/// keeps it at the most requests of a turn: the two tell a turn from a request. The rest of one
/// request alone is the driver's turn and the ways between the two threads, by halves.
fn local_costs(name: &str, runs: &[BenchRun]) -> Result<Vec<MeasuredCost>, PlanFault> {
    let of = |guests, depth| time_ns(runs, BenchWay::Local, guests, depth);
    let (Some(alone), Some(deep), Some(many)) = (of(1, 1), of(1, DEEP), of(MANY, 1)) else {
        let cause = format!(
            "it lacks a measurement of `vrio bench block --idle spin` with 1 guest at depth 1 or \
             {DEEP}, or with {MANY} guests at depth 1"
        );
        return Err(key(name, cause, "measure all three with --json, and name their files"));
    };
    let request = (DEEP as f64 * deep - many) / (DEEP - 1) as f64;
    let turn = many - LOOK_NS - request;
    // The driver touches the same lines for a request as the sidecore.
    let rest = alone - (turn + request) - request;
    let from = format!(
        "1 guest at depths 1 and {DEEP}, {MANY} guests at depth 1; a look of {LOOK_NS} ns and a \
         driver's request as dear as the sidecore's are assumed"
    );
    let costs = [
        ("costs.serve_ns", request),
        ("turns.serve_ns", turn),
        ("costs.guest_ns", request),
        ("turns.driver_ns", rest / 2.0),
        ("turns.pass_ns", rest / 4.0),
        ("turns.look_ns", LOOK_NS),
        ("turns.drivers", 1.0),
    ];
    costs_of(name, &from, &costs)
}

/// Requests of a client come and go together, so two depths tell a turn of both sides from a
/// request; nothing tells the sides apart.
fn direct_costs(name: &str, runs: &[BenchRun]) -> Result<Option<Vec<MeasuredCost>>, PlanFault> {
    let of = |depth| time_ns(runs, BenchWay::Direct, 1, depth);
    let (Some(alone), Some(deep)) = (of(1), of(DEEP)) else { return Ok(None) };
    let request = (DEEP as f64 * deep - alone) / (DEEP - 1) as f64 / 2.0;
    let turn = alone / 2.0 - request - LOOK_NS;
    let from = format!("direct, depths 1 and {DEEP}; both sides are taken to be equal");
    let costs = [
        ("costs.serve_ns", request),
        ("turns.serve_ns", turn),
        ("costs.guest_ns", request),
        ("turns.driver_ns", turn),
        ("turns.pass_ns", 0.0),
        ("turns.look_ns", LOOK_NS),
        ("turns.drivers", 1.0),
    ];
    costs_of(name, &from, &costs).map(Some)
}

/// Costs as keys of a scenario.
fn costs_of(
    name: &str,
    from: &str,
    costs: &[(&'static str, f64)],
) -> Result<Vec<MeasuredCost>, PlanFault> {
    let cost = |&(cost, ns): &(&'static str, f64)| {
        if !(0.0..=1e9).contains(&ns) {
            let cause = format!("its measurements make {cost} {ns:.0}: they contradict each other");
            return Err(key(name, cause, "measure again, in turn, on a machine that is quiet"));
        }
        Ok(MeasuredCost { key: cost, ns: ns.round() as u64, from: from.to_owned() })
    };
    costs.iter().map(cost).collect()
}

/// The requests in a second that the simulator finds.
fn predicted(run: &BenchRun, costs: &[MeasuredCost]) -> Result<f64, PlanFault> {
    let mut set = measured::assignments(costs);
    let mut put = |key: &str, value: String| set.push((key.to_owned(), value));
    put("hosts.guests", run.guests.to_string());
    put("load.depth", run.depth.to_string());
    put("load.limit", run.limit.to_string());
    if run.limit > 0 {
        // A limit passes far fewer requests in a time.
        put("milliseconds", "100".to_owned());
    }
    if run.way == BenchWay::Direct {
        put("served", "pool".to_owned());
    }
    let report = simulate::simulate(&Scenario::read("bench", BENCH, &set)?)?;
    Ok(report.latency.requests as f64 * 1e9 / report.simulated_ns as f64)
}

fn verdict(run: &BenchRun, runs: &[BenchRun], ours_per_s: f64) -> OwnVerdict {
    let is_near = |per_s: f64| (per_s / run.measured_per_s - 1.0).abs() <= WITHIN;
    let of_way = runs.iter().filter(|it| it.way == run.way && is_fitted(it));
    let mut guesses: Vec<f64> = of_way.map(|it| it.measured_per_s).collect();
    if run.limit > 0 {
        guesses = vec![(run.limit * run.guests) as f64];
    }
    match is_near(ours_per_s) {
        _ if is_fitted(run) => OwnVerdict::Fitted,
        false => OwnVerdict::Differs,
        true if guesses.into_iter().any(is_near) => OwnVerdict::Weak,
        true => OwnVerdict::HeldOut,
    }
}

/// The figures as a table.
pub fn own_text(figures: &OwnFigures) -> String {
    let head = ["measurement", "measured/s", "of rounds", "predicted/s", "off", "verdict"];
    let mut rows = vec![row(head)];
    let whole = |per_s: f64| grouped(per_s.round() as u64);
    let mut notes = String::new();
    for OwnFigure { run, ours_per_s, verdict } in &figures.figures {
        let spread = run.spread_per_s.map_or_else(
            || "-".to_owned(),
            |(least, most)| format!("{} to {}", whole(least), whole(most)),
        );
        let off = format!("{:+.1} %", (ours_per_s / run.measured_per_s - 1.0) * 100.0);
        let word = match verdict {
            OwnVerdict::Fitted => "fitted",
            OwnVerdict::HeldOut => "held out",
            OwnVerdict::Weak => "weak",
            OwnVerdict::Differs => "differs",
        };
        let (measured, ours) = (whole(run.measured_per_s), whole(*ours_per_s));
        rows.push(row([&run.words(), &measured, &spread, &ours, &off, word]));
        if *verdict == OwnVerdict::Differs {
            let reason = if run.guests >= TOO_MANY {
                "so many guests are slower than fewer guests with as many requests under way, and \
                 the simulator knows no reason"
            } else {
                "no reason is known"
            };
            notes.push_str(&format!("{}: {reason}.\n", run.words()));
        }
    }
    let costs = figures.costs.iter().map(|costs| {
        let words = costs.iter().map(|cost| format!("{} = {}", cost.key, cost.ns));
        let from = costs.first().map_or("", |cost| cost.from.as_str());
        format!("{} ({from})\n", words.collect::<Vec<_>>().join(", "))
    });
    let costs: String = costs.collect();
    format!(
        "{}\n{notes}\nFITTED\n{costs}\nNOT COMPARED\nremote, through a VMhost: three threads that \
         poll need three cores; on two of them the kernel's turns decide, not the sidecores'.\n",
        table(&rows, 1)
    )
}

#[cfg(test)]
mod tests;
