//! The goals of network cards.

use super::frames::Frames;
use super::peers::name;
use crate::contest::Case;
use crate::goals::{Figure, RowBound, Subject, part};

/// The names of contests, which goals refer to.
pub(super) const CONTEST: &str = "guest to guest, local";
pub(super) const PORTS: &str = "remote port to remote port, one crossing, clear";
pub(super) const THROUGH: &str =
    "guest to guest through an IOhost, two crossings, clear, CPU of each crossing";

/// The numbers of goals that figures of vrio alone are about.
pub(super) const ADDS_GOAL: u8 = 6;
pub(super) const REST_GOAL: u8 = 8;

/// The missing measurement of such goals.
const OURS: &str = "our own figures";

pub(super) static NICS: Subject = Subject {
    rate: "frames/s",
    each: "frame",
    texts: &TEXTS,
    parts: &PARTS,
    own: &[
        (2, "bench net has no nic that only sends, or only takes"),
        (ADDS_GOAL, OURS),
        (REST_GOAL, OURS),
    ],
    cases: || Frames::all().iter().map(Frames::name).collect(),
};

const TEXTS: [&str; 8] = [
    "local, 64 B through the switch: frames/s above Open vSwitch with DPDK's, at least testpmd's",
    "local, 64 B, one nic, sidecore to driver and back: frames/s at least DPDK vhost's",
    "local, one frame there and back: median at most testpmd's",
    "remote, 64 KiB of TCP uncut, one crossing of a veth, clear: above the kernel's TCP",
    "remote, the same through an IOhost: CPU per byte and crossing at most the kernel's TCP's",
    "remote, one frame there and back: adds at most 1.0 us to a bare echo",
    "local, one frame there and back: median below tap and bridge's",
    "an idle nic: less than 1 % of a core",
];

/// A part about one of our contestants between nodes.
const fn between(goal: u8, contest: &'static str, ours: &'static str, figure: Figure) -> RowBound {
    let (case, theirs) = ("64 KiB one way", &[name::TCP]);
    RowBound { goal, contest, case, ours, theirs, figure, bound: 1.0 }
}

const PARTS: [RowBound; 5] = [
    part(1, CONTEST, "64 B one way", &[name::OVS, name::TESTPMD], Figure::Rate, 1.0),
    part(3, CONTEST, "64 B there and back", &[name::TESTPMD], Figure::P50, 1.0),
    between(4, PORTS, name::PORTS, Figure::Rate),
    between(5, THROUGH, name::THROUGH, Figure::Cpu),
    part(7, CONTEST, "64 B there and back", &[name::TAPS], Figure::P50, 1.0),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contest::LOCAL;
    use crate::goals::GoalOutcome;
    use crate::table::{PairRow, tests};
    use bench::verdict::GoalState;

    const OVS: &str = "Open vSwitch with DPDK 3.1.0";

    fn row(case: &str, theirs: &str, rounds: &[[f64; 2]]) -> PairRow {
        assert!((NICS.cases)().iter().any(|it| it == case), "{case}");
        tests::row(&NICS, CONTEST, case, [LOCAL, theirs], rounds)
    }

    fn goal(number: u8, rows: &[PairRow]) -> GoalOutcome {
        let rows: Vec<_> = rows.iter().map(|row| (CONTEST, row)).collect();
        let mut all = NICS.reached(&rows, &[]);
        assert_eq!(all.len(), 8);
        all.remove(usize::from(number) - 1)
    }

    #[test]
    fn the_switch_is_judged_beside_both_others() {
        let short = "64 B one way";
        let rows = [OVS, name::TESTPMD].map(|theirs| row(short, theirs, &[[12.0, 10.0]; 3]));
        let reached = goal(1, &rows);
        assert_eq!((reached.standing, reached.verdicts, reached.hold), (GoalState::Holds, 2, 2));
        let decisive = reached.decisive.unwrap();
        assert_eq!(decisive, format!("{short}, {OVS}: frames/s 1.20 (1.20-1.20) >= 1.00"));
        let one = goal(1, &rows[1..]);
        assert_eq!(one.standing, GoalState::NotMeasured);
        assert_eq!(one.missing, [format!("{short}, {CONTEST}, {}", name::OVS)]);
        let slow = [rows[0].clone(), row(short, name::TESTPMD, &[[9.0, 10.0]; 3])];
        assert_eq!(goal(1, &slow).standing, GoalState::DoesNotHold);
        let judged = |case: &str, theirs: &str| {
            row(case, theirs, &[[12.0, 10.0]; 3]).goals.iter().map(|it| it.goal).collect::<Vec<_>>()
        };
        assert_eq!(judged(short, name::TESTPMD), [1]);
        assert!(judged(short, name::TAPS).is_empty());
        assert!(judged("64 KiB one way", name::TESTPMD).is_empty(), "it is not the shortest");
        assert!(judged("1500 B one way", OVS).is_empty());
    }

    #[test]
    fn one_that_bounces_is_judged_by_its_median() {
        let bouncing = |theirs: &str| row("64 B there and back", theirs, &[[12.0, 10.0]; 3]);
        let rows = [bouncing(name::TESTPMD), bouncing(name::TAPS), bouncing(OVS)];
        for number in [3, 7] {
            let reached = goal(number, &rows);
            assert_eq!((reached.standing, reached.verdicts), (GoalState::Holds, 1), "{reached}");
            assert!(reached.decisive.unwrap().contains("p50 0.83"));
        }
        assert!(rows[2].goals.is_empty(), "it is for information");
    }

    #[test]
    fn figures_between_nodes_are_judged_beside_tcp() {
        let case = "64 KiB one way";
        let row = |contest, ours, rounds: &[[f64; 2]]| {
            (contest, tests::row(&NICS, contest, case, [ours, name::TCP], rounds))
        };
        // In a test's samples, the faster contestant has less processor time for each frame.
        let rows = [
            row(PORTS, name::PORTS, &[[9.0, 10.0]; 3]),
            row(THROUGH, name::THROUGH, &[[12.0, 10.0]; 3]),
        ];
        let rows: Vec<_> = rows.iter().map(|(contest, row)| (*contest, row)).collect();
        let all = NICS.reached(&rows, &[]);
        assert_eq!((all[3].standing, all[4].standing), (GoalState::DoesNotHold, GoalState::Holds));
        assert!(all[3].decisive.as_ref().unwrap().contains("frames/s 0.90"), "{:?}", all[3]);
        assert!(all[4].decisive.as_ref().unwrap().contains("CPU 0.83"), "{:?}", all[4]);
        for missing in [goal(4, &[]), goal(5, &[])] {
            assert_eq!((missing.standing, missing.missing.len()), (GoalState::NotMeasured, 1));
        }
    }

    #[test]
    fn goals_without_a_measurement_say_so() {
        for number in 1..=8 {
            if [1, 3, 4, 5, 7].contains(&number) {
                continue;
            }
            let reached = goal(number, &[]);
            assert_eq!((reached.standing, reached.verdicts), (GoalState::NotMeasured, 0));
            assert_eq!(reached.missing.len(), 1, "{reached}");
        }
        assert!(goal(2, &[]).to_string().contains("not measured: bench net has no nic"));
    }
}
