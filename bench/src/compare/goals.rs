//! What we mean to reach against whom: ratios within one run, not absolute times.

use serde::Serialize;

use super::peers::name;
use super::table::Row;

/// What a goal is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Requests per second: ours divided by theirs is to be at least that.
    Iops,
    /// The median latency: at most.
    P50,
    /// Processor time for each request: at most.
    Cpu,
}

/// A goal, for every row that it fits.
struct Goal {
    /// Contests have this in their name, rows these words in their case.
    contest: &'static str,
    case: &'static str,
    ours: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    bound: f64,
}

/// A goal, and whether it holds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What it is about.
    pub figure: Figure,
    /// The bound of the ratio.
    pub bound: f64,
    /// Whether the median ratio is within.
    pub holds: bool,
}

const fn goal(
    contest: &'static str,
    case: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    bound: f64,
) -> Goal {
    Goal { contest, case, ours: "vrio", theirs, figure, bound }
}

const GOALS: [Goal; 12] = [
    goal("null", "depth 32", &[name::SPDK_VHOST, name::DAEMON], Figure::Iops, 1.0),
    goal("null", "depth 1", &[name::SPDK_VHOST], Figure::P50, 1.0),
    goal("local, memory", "4k depth 1", &[name::SPDK_VHOST], Figure::P50, 1.0),
    goal("local, memory", "depth 32", &[name::SPDK_VHOST], Figure::Iops, 1.5),
    goal("file", "depth 32", &[name::FIO], Figure::Iops, 0.95),
    udp("4k depth 1", &[name::SPDK_NVME], Figure::P50, 0.6),
    udp("depth 32", &[name::SPDK_NVME], Figure::Iops, 1.5),
    udp(" 64k", &[name::SPDK_NVME, name::NBDKIT], Figure::Iops, 1.0),
    udp(" 64k", &[name::SPDK_NVME, name::NBDKIT], Figure::Cpu, 1.0),
    udp(" 1m", &[name::SPDK_NVME, name::NBDKIT], Figure::Iops, 1.0),
    udp(" 1m", &[name::SPDK_NVME, name::NBDKIT], Figure::Cpu, 1.0),
    Goal {
        ours: super::DIRECT_XDP,
        ..goal("direct, memory", "4k depth 1", &[name::SPDK_NVME], Figure::P50, 0.35)
    },
];

const fn udp(
    case: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    bound: f64,
) -> Goal {
    Goal { ours: super::DIRECT, ..goal("direct, memory", case, theirs, figure, bound) }
}

impl Goal {
    fn is_of(&self, contest: &str, row: &Row) -> bool {
        // "depth 1" is no part of "depth 16".
        let case_fits = row.case.ends_with(self.case)
            || !self.case.contains("depth") && row.case.contains(self.case);
        let ours_fits = match self.ours {
            "vrio" => row.ours.starts_with("vrio "),
            ours => row.ours == ours,
        };
        contest.contains(self.contest)
            && case_fits
            && ours_fits
            && self.theirs.iter().any(|theirs| row.theirs.starts_with(theirs))
    }
}

/// The goals of a row.
pub(super) fn verdicts(contest: &str, row: &Row) -> Vec<Verdict> {
    let of = GOALS.iter().filter(|goal| goal.is_of(contest, row));
    of.map(|&Goal { figure, bound, .. }| {
        let holds = match figure {
            Figure::Iops => row.iops_ratio.median >= bound,
            Figure::P50 => row.p50_ratio.median <= bound,
            Figure::Cpu => row.cpu_ratio.is_some_and(|ratio| ratio.median <= bound),
        };
        Verdict { figure, bound, holds }
    })
    .collect()
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, sign) = match self.figure {
            Figure::Iops => ("IOPS", ">="),
            Figure::P50 => ("p50", "<="),
            Figure::Cpu => ("CPU", "<="),
        };
        let said = if self.holds { "holds" } else { "DOES NOT HOLD" };
        write!(f, "goal {name} {sign} {}: {said}", self.bound)
    }
}
