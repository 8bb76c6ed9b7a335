//! What we mean to reach: ratios within one run, and figures of our own, not absolute speeds.

use std::fmt;

use serde::Serialize;

use super::Case;
use super::peers::name;
use super::table::Row;
use crate::block::floor::{REMOTE_GOAL, SEALING_GOAL};
use crate::verdict::{Bound, Standing, Verdict};

/// What a ratio is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    /// Requests per second: ours divided by theirs.
    Iops,
    /// The median latency.
    P50,
    /// Processor time for each request, which are of one length.
    Cpu,
}

/// What a goal says of the rows that it fits.
struct Part {
    goal: u8,
    /// Contests have this in their name, rows these words in their case.
    contest: &'static str,
    case: &'static str,
    ours: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    bound: f64,
}

/// The numbers of the goals that are ours alone.
pub(super) const EVENTS_GOAL: u8 = 11;
pub(super) const TWO_CORES_GOAL: u8 = 12;

/// All goals, in the order of their numbers, from 1.
const TEXTS: [&str; 12] = [
    "local, null, depth 32: IOPS above SPDK vhost's and qemu-storage-daemon's",
    "local, null, depth 1: median at most SPDK vhost's",
    "local, memory: median below SPDK vhost's at depth 1, 1.5 times its IOPS at depth 32",
    "local, file, depth 32: IOPS at least 0.95 times those of fio's io_uring engine",
    "direct, AF_XDP, depth 1: median at most 0.35 times SPDK NVMe/TCP's",
    "direct, UDP, depth 1: median at most 0.6 times SPDK NVMe/TCP's",
    "direct, UDP, depth 32: IOPS at least 1.5 times SPDK NVMe/TCP's",
    "direct, 64k and 1m in order: above NVMe/TCP and nbdkit, at less CPU per byte",
    "remote adds at most 1.0 us to local and a bare echo, over shm",
    "sealing adds at most 1.1 times what AES-256-GCM takes",
    "depth 32, spin: no kick and no wake-up; a driver that sleeps: few calls per request",
    "three roles on two cores, depth 32: a third of what the busiest could do, p99 below 1 ms",
];

const PARTS: [Part; 13] = [
    part(1, "null", "depth 32", &[name::SPDK_VHOST, name::DAEMON], Figure::Iops, 1.0),
    part(2, "null", "depth 1", &[name::SPDK_VHOST], Figure::P50, 1.0),
    part(3, "local, memory", "4k depth 1", &[name::SPDK_VHOST], Figure::P50, 1.0),
    part(3, "local, memory", "depth 32", &[name::SPDK_VHOST], Figure::Iops, 1.5),
    part(4, "memory file", "depth 32", &[name::FIO], Figure::Iops, 0.95),
    part(4, "O_DIRECT", "depth 32", &[name::FIO], Figure::Iops, 0.95),
    Part {
        ours: super::DIRECT_XDP,
        ..part(5, "direct, memory", "4k depth 1", &[name::SPDK_NVME], Figure::P50, 0.35)
    },
    udp(6, "4k depth 1", &[name::SPDK_NVME], Figure::P50, 0.6),
    udp(7, "depth 32", &[name::SPDK_NVME], Figure::Iops, 1.5),
    udp(8, " 64k", &[name::SPDK_NVME, name::NBDKIT], Figure::Iops, 1.0),
    udp(8, " 64k", &[name::SPDK_NVME, name::NBDKIT], Figure::Cpu, 1.0),
    udp(8, " 1m", &[name::SPDK_NVME, name::NBDKIT], Figure::Iops, 1.0),
    udp(8, " 1m", &[name::SPDK_NVME, name::NBDKIT], Figure::Cpu, 1.0),
];

const fn part(
    goal: u8,
    contest: &'static str,
    case: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    bound: f64,
) -> Part {
    Part { goal, contest, case, ours: super::LOCAL, theirs, figure, bound }
}

const fn udp(
    goal: u8,
    case: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    bound: f64,
) -> Part {
    Part { ours: super::DIRECT, ..part(goal, "direct, memory", case, theirs, figure, bound) }
}

impl Part {
    fn has_case(&self, case: &str) -> bool {
        // "depth 1" is no part of "depth 16".
        case.ends_with(self.case) || !self.case.contains("depth") && case.contains(self.case)
    }

    fn is_of(&self, contest: &str, row: &Row) -> bool {
        contest.contains(self.contest)
            && self.has_case(&row.case)
            && row.ours == self.ours
            && self.theirs.iter().any(|theirs| is_called(&row.theirs, theirs))
    }

    fn bound(&self) -> Bound {
        match self.figure {
            Figure::Iops => Bound::AtLeast(self.bound),
            Figure::P50 | Figure::Cpu => Bound::AtMost(self.bound),
        }
    }

    /// Peers that it is about and no row of a case has, in those cases that it fits.
    fn missing(&self, rows: &[(&str, &Row)]) -> Vec<String> {
        let cases = Case::all().into_iter().map(|case| case.name());
        let cases: Vec<_> = cases.filter(|case| self.has_case(case)).collect();
        let is_there = |case: &str, theirs: &str| {
            rows.iter().any(|(contest, row)| {
                row.case == case
                    && self.is_of(contest, row)
                    && is_called(&row.theirs, theirs)
                    && (self.figure != Figure::Cpu || row.cpu_ratio.is_some())
            })
        };
        let pairs =
            self.theirs.iter().flat_map(|their| cases.iter().map(move |case| (their, case)));
        let missing = pairs.filter(|(their, case)| !is_there(case, their));
        missing.map(|(their, case)| format!("{case}, {}, {their}", self.contest)).collect()
    }
}

/// Whether a peer has that name; a daemon's version follows its.
fn is_called(peer: &str, name: &str) -> bool {
    peer == name || name == name::DAEMON && peer.starts_with(&format!("{name} "))
}

/// What the goals say of a row.
pub(super) fn verdicts(contest: &str, row: &Row, ratios: &Ratios) -> Vec<Verdict> {
    let of = PARTS.iter().filter(|part| part.is_of(contest, row));
    of.filter_map(|part| {
        let (name, values) = match part.figure {
            Figure::Iops => ("IOPS", &ratios.iops),
            Figure::P50 => ("p50", &ratios.p50),
            Figure::Cpu => ("CPU", &ratios.cpu),
        };
        let is_known = !values.is_empty();
        is_known.then(|| Verdict::of(part.goal, name, part.bound(), values, row.moved))
    })
    .collect()
}

/// Ours divided by theirs, of each round that counts.
pub(super) struct Ratios {
    pub(super) iops: Vec<f64>,
    pub(super) p50: Vec<f64>,
    pub(super) p99: Vec<f64>,
    /// Empty where a server's is not known.
    pub(super) cpu: Vec<f64>,
}

/// A goal, and what all rows together say of it.
#[derive(Clone, Debug, Serialize)]
pub struct Reached {
    /// Its number.
    pub goal: u8,
    /// What we mean to reach.
    pub text: &'static str,
    /// What is to be said.
    pub standing: Standing,
    /// How many verdicts that rests on, and how many of them say that it holds.
    pub verdicts: usize,
    /// Those that say that it holds.
    pub hold: usize,
    /// The verdict that decides, and whose it is: the one that is furthest from holding.
    pub decisive: Option<String>,
    /// What would have to be measured too.
    pub missing: Vec<String>,
}

/// What was found of every goal. `rows` have the contest's name, `own` what a verdict of our own
/// figures is about.
pub(super) fn reached(rows: &[(&str, &Row)], own: &[(&str, &Verdict)]) -> Vec<Reached> {
    let numbers = 1..=u8::try_from(TEXTS.len()).expect("a dozen");
    numbers.zip(TEXTS).map(|(goal, text)| one(goal, text, rows, own)).collect()
}

fn one(goal: u8, text: &'static str, rows: &[(&str, &Row)], own: &[(&str, &Verdict)]) -> Reached {
    let of_rows = rows.iter().flat_map(|(_, row)| {
        row.goals.iter().map(move |it| (format!("{}, {}", row.case, row.theirs), it))
    });
    let of_own = own.iter().map(|(about, verdict)| ((*about).to_owned(), *verdict));
    let all: Vec<_> = of_rows.chain(of_own).filter(|(_, verdict)| verdict.goal == goal).collect();
    let parts = PARTS.iter().filter(|part| part.goal == goal);
    let mut missing: Vec<_> = parts.flat_map(|part| part.missing(rows)).collect();
    missing.dedup();
    if OWN_GOALS.contains(&goal) && all.is_empty() {
        missing.push("our own figures".to_owned());
    }
    let with = |standing| all.iter().filter(move |(_, verdict)| verdict.standing == standing);
    let standing = if with(Standing::DoesNotHold).next().is_some() {
        Standing::DoesNotHold
    } else if with(Standing::Undecided).next().is_some() {
        Standing::Undecided
    } else if !missing.is_empty() {
        Standing::NotMeasured
    } else {
        Standing::Holds
    };
    let room = |verdict: &Verdict| verdict.bound.room(verdict.value.median);
    // One that decides nothing for want of rounds is no news where another one fails.
    let decisive = all
        .iter()
        .filter(|(_, verdict)| standing == Standing::NotMeasured || verdict.standing == standing)
        .min_by(|(_, one), (_, two)| room(one).total_cmp(&room(two)));
    Reached {
        goal,
        text,
        standing,
        verdicts: all.len(),
        hold: with(Standing::Holds).count(),
        decisive: decisive.map(|(about, it)| {
            let open = it.why.as_deref().map_or(String::new(), |why| format!("; {why}"));
            format!("{about}: {} {} {}{open}", it.figure, it.value, it.bound)
        }),
        missing,
    }
}

/// Goals without a peer.
const OWN_GOALS: [u8; 4] = [REMOTE_GOAL, SEALING_GOAL, EVENTS_GOAL, TWO_CORES_GOAL];

impl fmt::Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { goal, text, standing, verdicts, hold, .. } = self;
        writeln!(f, "  {goal:>2}  {standing:14}{hold:>3} of {verdicts:<3}  {text}")?;
        self.decisive.iter().try_for_each(|it| writeln!(f, "{:32}{it}", ""))?;
        match &self.missing[..] {
            [] => Ok(()),
            [one] => writeln!(f, "{:32}not measured: {one}", ""),
            [one, more @ ..] => {
                writeln!(f, "{:32}not measured: {one}, and {} more", "", more.len())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::table::tests::row;
    use crate::compare::{DIRECT, DIRECT_XDP, LOCAL};
    use crate::verdict::Spread;

    const DAEMONS: [&str; 2] = ["qemu-storage-daemon 7.2.22", "qemu-storage-daemon 10.0.2"];
    const NULL: &str = "local, null volume";

    fn goal(number: u8, rows: &[(&str, Row)]) -> Reached {
        let rows: Vec<_> = rows.iter().map(|(contest, row)| (*contest, row)).collect();
        let mut all = reached(&rows, &[]);
        assert_eq!(all.len(), 12);
        all.remove(usize::from(number) - 1)
    }

    /// All rows of the first goal.
    fn null_rows(kiops: f64) -> Vec<(&'static str, Row)> {
        let cases = ["randread 4k depth 32", "randwrite 4k depth 32"];
        let theirs = [DAEMONS[0], DAEMONS[1], name::SPDK_VHOST];
        let pairs = cases.iter().flat_map(|case| theirs.map(|theirs| (case, theirs)));
        let of = |(case, theirs): (&&str, _)| {
            (NULL, row(NULL, case, [LOCAL, theirs], &[[kiops, 10.0]; 3]))
        };
        pairs.map(of).collect()
    }

    #[test]
    fn a_goal_holds_if_all_its_rows_do() {
        let mut rows = null_rows(12.0);
        let reached = goal(1, &rows);
        assert_eq!((reached.standing, reached.verdicts, reached.hold), (Standing::Holds, 6, 6));
        let said = reached.to_string();
        assert!(said.contains("holds           6 of 6"), "{said}");
        assert!(said.contains("IOPS 1.20 (1.20-1.20) >= 1.00"), "{said}");
        // One that does not hold decides, and one that is open before those that hold.
        let case = "randread 4k depth 32";
        let slower =
            row(NULL, case, [LOCAL, DAEMONS[0]], &[[12.0, 10.0], [9.0, 10.0], [8.0, 10.0]]);
        rows[0].1 = slower;
        let reached = goal(1, &rows);
        assert_eq!((reached.standing, reached.hold), (Standing::Undecided, 5));
        let decisive = reached.decisive.unwrap();
        assert!(decisive.starts_with("randread 4k depth 32, qemu-storage-daemon 7.2.22: "));
        assert!(decisive.ends_with("0.80 to 1.20 in its rounds"), "{decisive}");
        rows[1].1 = row(NULL, case, [LOCAL, DAEMONS[1]], &[[9.0, 10.0]; 3]);
        assert_eq!(goal(1, &rows).standing, Standing::DoesNotHold);
    }

    #[test]
    fn a_goal_that_lacks_a_peer_or_a_case_does_not_hold_yet() {
        let mut rows = null_rows(12.0);
        rows.retain(|(_, row)| row.theirs != name::SPDK_VHOST);
        let reached = goal(1, &rows);
        assert_eq!(reached.standing, Standing::NotMeasured);
        assert_eq!(reached.missing[0], "randread 4k depth 32, null, SPDK vhost");
        assert_eq!(reached.missing.len(), 2);
        let said = reached.to_string();
        assert!(said.contains("not measured: randread 4k depth 32, null, SPDK vhost, and 1 more"));
        let nothing = goal(7, &[]);
        assert_eq!((nothing.standing, nothing.verdicts), (Standing::NotMeasured, 0));
        assert!(!nothing.missing.is_empty() && nothing.decisive.is_none());
        assert!(!goal(9, &[]).missing.is_empty(), "our own figures are asked for too");
    }

    #[test]
    fn a_goal_is_about_its_peer_its_way_and_its_case_alone() {
        let judged = |contest: &str, case: &str, names| {
            let row = row(contest, case, names, &[[30.0, 10.0]; 3]);
            row.goals.iter().map(|it| (it.goal, it.figure)).collect::<Vec<_>>()
        };
        let small = "randread 4k depth 1";
        assert_eq!(judged(NULL, small, [LOCAL, name::SPDK_VHOST]), [(2, "p50")]);
        assert_eq!(judged(NULL, small, [LOCAL, name::SPDK_BDEVPERF]), []);
        assert_eq!(judged(NULL, "randread 4k depth 8", [LOCAL, name::SPDK_VHOST]), []);
        let direct = "direct, memory";
        assert_eq!(judged(direct, small, [DIRECT, name::SPDK_NVME]), [(6, "p50")]);
        assert_eq!(judged(direct, small, [DIRECT_XDP, name::SPDK_NVME]), [(5, "p50")]);
        assert_eq!(judged(direct, small, [DIRECT, name::NBDKIT]), []);
        let long = judged(direct, "read 64k depth 8", [DIRECT, name::NBDKIT]);
        assert_eq!(long, [(8, "IOPS"), (8, "CPU")]);
        let file = "local, memory file (/dev/shm)";
        let deep = "randwrite 4k depth 32";
        assert_eq!(judged(file, deep, [LOCAL, name::FIO]), [(4, "IOPS")]);
        assert_eq!(judged(file, small, [LOCAL, name::FIO_PSYNC]), []);
        assert_eq!(judged("local, disk file, page cache (/x)", deep, [LOCAL, name::FIO]), []);
        assert_eq!(judged("local, memory", deep, [LOCAL, name::SPDK_VHOST]), [(3, "IOPS")]);
    }

    #[test]
    fn our_own_figures_count_for_their_goals() {
        let verdict = Verdict::of(EVENTS_GOAL, "kicks", Bound::AtMost(0.0), &[0.0; 3], false);
        assert_eq!(verdict.value, Spread { median: 0.0, min: 0.0, max: 0.0 });
        let all = reached(&[], &[("local", &verdict)]);
        let of = |goal: u8| &all[usize::from(goal) - 1];
        assert_eq!(of(EVENTS_GOAL).standing, Standing::Holds);
        assert_eq!(of(TWO_CORES_GOAL).standing, Standing::NotMeasured);
        assert!(all.iter().zip(1..).all(|(reached, number)| reached.goal == number));
    }
}
