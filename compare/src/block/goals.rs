//! The goals of disks.

use super::peer::name;
use super::requests::Requests;
use crate::contest::Case;
use crate::goals::{Figure, RowBound, Subject, part};
use bench::block::floor::{REMOTE_GOAL, SEALING_GOAL};

/// The name of our direct client, which goals refer to.
pub(super) const DIRECT: &str = "vrio direct";
pub(super) const DIRECT_XDP: &str = "vrio direct over AF_XDP";

/// The numbers of the goals that no peer is for.
pub(super) const EVENTS_GOAL: u8 = 11;
pub(super) const TWO_CORES_GOAL: u8 = 12;

/// The missing measurement of such goals, where vrio alone was not measured.
const OURS: &str = "our own figures";

pub(super) static DISKS: Subject = Subject {
    rate: "IOPS",
    each: "request",
    texts: &TEXTS,
    parts: &PARTS,
    own: &[(REMOTE_GOAL, OURS), (SEALING_GOAL, OURS), (EVENTS_GOAL, OURS), (TWO_CORES_GOAL, OURS)],
    cases: || Requests::all().iter().map(Requests::name).collect(),
};

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

const PARTS: [RowBound; 13] = [
    part(1, "null", "depth 32", &[name::SPDK_VHOST, name::DAEMON], Figure::Rate, 1.0),
    part(2, "null", "depth 1", &[name::SPDK_VHOST], Figure::P50, 1.0),
    part(3, "local, memory", "4k depth 1", &[name::SPDK_VHOST], Figure::P50, 1.0),
    part(3, "local, memory", "depth 32", &[name::SPDK_VHOST], Figure::Rate, 1.5),
    part(4, "memory file", "depth 32", &[name::FIO], Figure::Rate, 0.95),
    part(4, "O_DIRECT", "depth 32", &[name::FIO], Figure::Rate, 0.95),
    RowBound {
        ours: DIRECT_XDP,
        ..part(5, "direct, memory", "4k depth 1", &[name::SPDK_NVME], Figure::P50, 0.35)
    },
    udp(6, "4k depth 1", &[name::SPDK_NVME], Figure::P50, 0.6),
    udp(7, "depth 32", &[name::SPDK_NVME], Figure::Rate, 1.5),
    udp(8, " 64k", &[name::SPDK_NVME, name::NBDKIT], Figure::Rate, 1.0),
    udp(8, " 64k", &[name::SPDK_NVME, name::NBDKIT], Figure::Cpu, 1.0),
    udp(8, " 1m", &[name::SPDK_NVME, name::NBDKIT], Figure::Rate, 1.0),
    udp(8, " 1m", &[name::SPDK_NVME, name::NBDKIT], Figure::Cpu, 1.0),
];

const fn udp(
    goal: u8,
    case: &'static str,
    theirs: &'static [&'static str],
    figure: Figure,
    bound: f64,
) -> RowBound {
    RowBound { ours: DIRECT, ..part(goal, "direct, memory", case, theirs, figure, bound) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::LOCAL;
    use crate::goals::GoalOutcome;
    use crate::table::{PairRow, tests};
    use bench::verdict::{Bound, GoalState, Spread, Verdict};

    fn row(contest: &str, case: &str, names: [&str; 2], rounds: &[[f64; 2]]) -> PairRow {
        assert!((DISKS.cases)().iter().any(|it| it == case), "{case}");
        tests::row(&DISKS, contest, case, names, rounds)
    }

    const DAEMONS: [&str; 2] = ["qemu-storage-daemon 7.2.22", "qemu-storage-daemon 10.0.2"];
    const NULL: &str = "local, null volume";

    fn goal(number: u8, rows: &[(&str, PairRow)]) -> GoalOutcome {
        let rows: Vec<_> = rows.iter().map(|(contest, row)| (*contest, row)).collect();
        let mut all = DISKS.reached(&rows, &[]);
        assert_eq!(all.len(), 12);
        all.remove(usize::from(number) - 1)
    }

    /// All rows of the first goal.
    fn null_rows(kiops: f64) -> Vec<(&'static str, PairRow)> {
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
        assert_eq!((reached.standing, reached.verdicts, reached.hold), (GoalState::Holds, 6, 6));
        let said = reached.to_string();
        assert!(said.contains("holds           6 of 6"), "{said}");
        assert!(said.contains("IOPS 1.20 (1.20-1.20) >= 1.00"), "{said}");
        // A row that does not hold decides the goal, and a row that is open decides before rows
        // that hold.
        let case = "randread 4k depth 32";
        let slower =
            row(NULL, case, [LOCAL, DAEMONS[0]], &[[12.0, 10.0], [9.0, 10.0], [8.0, 10.0]]);
        rows[0].1 = slower;
        let reached = goal(1, &rows);
        assert_eq!((reached.standing, reached.hold), (GoalState::Undecided, 5));
        let decisive = reached.decisive.unwrap();
        assert!(decisive.starts_with("randread 4k depth 32, qemu-storage-daemon 7.2.22: "));
        assert!(decisive.ends_with("0.80 to 1.20 in its rounds"), "{decisive}");
        rows[1].1 = row(NULL, case, [LOCAL, DAEMONS[1]], &[[9.0, 10.0]; 3]);
        assert_eq!(goal(1, &rows).standing, GoalState::DoesNotHold);
    }

    #[test]
    fn a_goal_that_lacks_a_peer_or_a_case_does_not_hold_yet() {
        let mut rows = null_rows(12.0);
        rows.retain(|(_, row)| row.theirs != name::SPDK_VHOST);
        let reached = goal(1, &rows);
        assert_eq!(reached.standing, GoalState::NotMeasured);
        assert_eq!(reached.missing[0], "randread 4k depth 32, null, SPDK vhost");
        assert_eq!(reached.missing.len(), 2);
        let said = reached.to_string();
        assert!(said.contains("not measured: randread 4k depth 32, null, SPDK vhost, and 1 more"));
        let nothing = goal(7, &[]);
        assert_eq!((nothing.standing, nothing.verdicts), (GoalState::NotMeasured, 0));
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
        let all = DISKS.reached(&[], &[("local", &verdict)]);
        let of = |goal: u8| &all[usize::from(goal) - 1];
        assert_eq!(of(EVENTS_GOAL).standing, GoalState::Holds);
        assert_eq!(of(TWO_CORES_GOAL).standing, GoalState::NotMeasured);
        assert!(all.iter().zip(1..).all(|(reached, number)| reached.goal == number));
    }
}
