//! The goals of disks in pools.

use super::cases::{AFTER_SNAPSHOT, OVERWRITTEN, cases};
use crate::contest::Case;
use crate::goals::{Figure, RowBound, Subject, part};

/// The names of the sides, which goals refer to. A version follows those of QEMU.
pub(super) const STORE: &str = "vrio store";
pub(super) const FILE: &str = "vrio file";
pub(super) const RAW: &str = "qemu-storage-daemon raw";
pub(super) const QCOW2: &str = "qemu-storage-daemon qcow2";

/// The numbers of the goals that no peer is for.
pub(super) const STEADY_GOAL: u8 = 6;
pub(super) const AMPLIFICATION_GOAL: u8 = 7;
pub(super) const TAIL_GOAL: u8 = 8;
pub(super) const SNAPSHOT_GOAL: u8 = 9;

/// The missing measurement of such goals, where vrio alone was not measured.
const OURS: &str = "our own figures";

pub(super) static STORES: Subject = Subject {
    rate: "IOPS",
    each: "request",
    texts: &TEXTS,
    parts: &PARTS,
    own: &[
        (STEADY_GOAL, OURS),
        (AMPLIFICATION_GOAL, OURS),
        (TAIL_GOAL, OURS),
        (SNAPSHOT_GOAL, OURS),
    ],
    cases: || cases().iter().map(Case::name).collect(),
};

const TEXTS: [&str; 9] = [
    "4 KiB random writes, depth 32: IOPS at least those of `file`",
    "the same: at least 3 times those of qcow2",
    "the same after a snapshot: at least 3 times those of qcow2",
    "reads at depth 1: median at most 1.15 times that of `file`, the map in memory",
    "reads at depth 32: IOPS at least 0.9 times those of `file`",
    "80 % full, collecting: IOPS at least 0.9 times those of `file` / blocks written for each",
    "80 % full, Zipf: at most 2.2 blocks written for a block",
    "collection: a guest's p99 at most 2 times that without, at half of its full load",
    "first writes after a snapshot: IOPS at least 1 / 1.1 of those before",
];

const PARTS: [RowBound; 5] = [
    part(1, OVERWRITTEN, "randwrite 4k depth 32", &[FILE], Figure::Rate, 1.0).by(STORE),
    part(2, OVERWRITTEN, "randwrite 4k depth 32", &[QCOW2], Figure::Rate, 3.0).by(STORE),
    part(3, AFTER_SNAPSHOT, "randwrite 4k depth 32", &[QCOW2], Figure::Rate, 3.0).by(STORE),
    part(4, OVERWRITTEN, "randread 4k depth 1", &[FILE], Figure::P50, 1.15).by(STORE),
    part(5, OVERWRITTEN, "randread 4k depth 32", &[FILE], Figure::Rate, 0.9).by(STORE),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests;

    #[test]
    fn a_goal_is_about_its_contest_its_case_and_its_side() {
        let judged = |contest: &str, case: &str, theirs: &str| {
            assert!((STORES.cases)().iter().any(|it| it == case), "{case}");
            let row = tests::row(&STORES, contest, case, [STORE, theirs], &[[30.0, 10.0]; 3]);
            row.goals.iter().map(|it| (it.goal, it.figure)).collect::<Vec<_>>()
        };
        let writes = "randwrite 4k depth 32";
        assert_eq!(judged(OVERWRITTEN, writes, FILE), [(1, "IOPS")]);
        assert_eq!(judged(OVERWRITTEN, writes, &format!("{QCOW2} 10.0.2")), [(2, "IOPS")]);
        assert_eq!(judged(AFTER_SNAPSHOT, writes, QCOW2), [(3, "IOPS")]);
        assert_eq!(judged(OVERWRITTEN, writes, RAW), []);
        assert_eq!(judged(OVERWRITTEN, writes, "vrio file, on xfs in a file"), []);
        assert_eq!(judged(OVERWRITTEN, "randread 4k depth 1", FILE), [(4, "p50")]);
        assert_eq!(judged(OVERWRITTEN, "randread 4k depth 32", FILE), [(5, "IOPS")]);
    }

    #[test]
    fn the_last_goals_are_about_vrio_alone() {
        let all = STORES.reached(&[], &[]);
        assert_eq!(all.len(), 9);
        for goal in [STEADY_GOAL, AMPLIFICATION_GOAL, TAIL_GOAL, SNAPSHOT_GOAL] {
            assert_eq!(all[usize::from(goal) - 1].missing, [OURS]);
        }
    }
}
