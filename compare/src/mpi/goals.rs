//! The goals of the messages of MPI.

use super::messages::Messages;
use super::options::TWO_HOSTS;
use super::ways::name;
use crate::contest::Case;
use crate::goals::{Figure, RowBound, Subject};

/// Cores with which two hosts have one for each rank and each sidecore.
const ROOMY: usize = 4;

/// The goals with so many cores. On fewer cores than [`ROOMY`], ranks and sidecores share them, and
/// a short message between two hosts queues for cores. So its processor time is judged instead of
/// its latency. A rank or sidecore that polls takes a core also while it waits, so that this figure
/// moves with the message's time and does not tell work from waiting. The goal's text says so.
pub(super) fn of_cores(cores: usize) -> &'static Subject {
    if cores >= ROOMY { &ROOMY_MESSAGES } else { &MESSAGES }
}

static MESSAGES: Subject = Subject { texts: &TEXTS, parts: &PARTS, ..ROOMY_MESSAGES };

static ROOMY_MESSAGES: Subject = Subject {
    rate: "MB/s or 1/s",
    each: "message",
    texts: &ROOMY_TEXTS,
    parts: &ROOMY_PARTS,
    own: &[],
    cases: || Messages::all(2).iter().map(Messages::name).collect(),
};

const TEXTS: [&str; 5] = texts(
    "two hosts, 8 B: processor time of all ranks and nodes, with that in which they poll and wait, \
     at most twice that of libfabric's tcp (four cores: median)",
);
const ROOMY_TEXTS: [&str; 5] = texts("two hosts, 8 B: median at most that of libfabric's tcp");

const fn texts(short_on_two_hosts: &'static str) -> [&'static str; 5] {
    [
        "one host, 8 B: median at most 1.3 times that of Open MPI's own shared memory",
        "one host, 8 B: median below that of libfabric's shm and tcp",
        "one host, 64 KiB and 1 MiB: bandwidth at least that of Open MPI's own shared memory",
        short_on_two_hosts,
        "two hosts, 64 KiB and 1 MiB: bandwidth above that of libfabric's tcp and of UCX's",
    ]
}

const SHORT: &str = "latency 8 B";
const LONG: &str = "bandwidth 64 KiB";
const LONGEST: &str = "bandwidth 1 MiB";

const fn median(
    goal: u8,
    contest: &'static str,
    theirs: &'static [&'static str],
    bound: f64,
) -> RowBound {
    RowBound { goal, contest, case: SHORT, ours: name::VRIO, theirs, figure: Figure::P50, bound }
}

const fn bandwidth(
    goal: u8,
    contest: &'static str,
    case: &'static str,
    theirs: &'static [&'static str],
) -> RowBound {
    RowBound { goal, contest, case, ours: name::VRIO, theirs, figure: Figure::Rate, bound: 1.0 }
}

const SHORT_ON_TWO_HOSTS: RowBound = median(4, TWO_HOSTS, &[name::TCP], 1.0);
const ROOMY_PARTS: [RowBound; 8] = parts(SHORT_ON_TWO_HOSTS);
const PARTS: [RowBound; 8] =
    parts(RowBound { figure: Figure::Cpu, bound: 2.0, ..SHORT_ON_TWO_HOSTS });

/// Open MPI refuses libfabric's shm; MPICH takes it.
const fn parts(short_on_two_hosts: RowBound) -> [RowBound; 8] {
    [
        median(1, "one host, Open MPI", &[name::OWN], 1.3),
        median(2, "one host, MPICH", &[name::SHM, name::TCP], 1.0),
        median(2, "one host, Open MPI", &[name::TCP], 1.0),
        bandwidth(3, "one host, Open MPI", LONG, &[name::OWN]),
        bandwidth(3, "one host, Open MPI", LONGEST, &[name::OWN]),
        short_on_two_hosts,
        bandwidth(5, TWO_HOSTS, LONG, &[name::TCP, name::UCX_TCP]),
        bandwidth(5, TWO_HOSTS, LONGEST, &[name::TCP, name::UCX_TCP]),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::options::ONE_HOST;
    use super::*;
    use crate::goals::GoalOutcome;
    use crate::table::{PairRow, tests};
    use bench::verdict::GoalState;

    const OPEN_MPI: &str = "one host, Open MPI 4.1.4";
    const MPICH: &str = "one host, MPICH 5.0.2";
    const SLOWER: &[[f64; 2]] = &[[6.0, 10.0]; 3];

    fn row(contest: &'static str, case: &str, theirs: &str, ratio: f64) -> (&'static str, PairRow) {
        assert!((MESSAGES.cases)().iter().any(|it| it == case), "{case}");
        assert!(contest.starts_with(ONE_HOST) || contest.starts_with(TWO_HOSTS));
        let rounds = &[[10.0 * ratio, 10.0]; 3];
        (contest, tests::row(&MESSAGES, contest, case, [name::VRIO, theirs], rounds))
    }

    fn goals(rows: &[(&'static str, PairRow)]) -> Vec<GoalOutcome> {
        let rows: Vec<_> = rows.iter().map(|(contest, row)| (*contest, row)).collect();
        MESSAGES.reached(&rows, &[])
    }

    #[test]
    fn short_messages_are_judged_beside_shared_memory_and_libfabric() {
        let vader = "its own shared memory (vader)";
        let rows = [
            row(OPEN_MPI, SHORT, vader, 0.8),
            row(OPEN_MPI, SHORT, "libfabric tcp (net)", 5.0),
            row(MPICH, SHORT, name::SHM, 2.0),
            row(MPICH, SHORT, name::TCP, 5.0),
        ];
        let all = goals(&rows);
        assert_eq!((all[0].standing, all[0].verdicts), (GoalState::Holds, 1), "{}", all[0]);
        assert_eq!((all[1].standing, all[1].verdicts), (GoalState::Holds, 3), "{}", all[1]);
        assert_eq!(goals(&rows[..2])[1].standing, GoalState::NotMeasured, "MPICH is missing");
        let slow = [row(OPEN_MPI, SHORT, vader, 0.7)];
        assert_eq!(goals(&slow)[0].standing, GoalState::DoesNotHold);
        // MPICH's own shared memory is for information.
        assert!(row(MPICH, SHORT, name::OWN, 0.1).1.goals.is_empty());
    }

    #[test]
    fn long_ones_are_judged_by_their_rate_one_way() {
        let vader = "its own shared memory (vader)";
        let rows = [row(OPEN_MPI, LONG, vader, 1.2), row(OPEN_MPI, LONGEST, vader, 0.9)];
        let all = goals(&rows);
        assert_eq!((all[2].standing, all[2].verdicts), (GoalState::DoesNotHold, 2), "{}", all[2]);
        assert!(row(OPEN_MPI, "both ways 1 MiB", vader, 0.9).1.goals.is_empty());
        assert_eq!(goals(&rows[..1])[2].standing, GoalState::NotMeasured);
    }

    #[test]
    fn nothing_of_two_hosts_is_said_by_one() {
        let rows = [row(OPEN_MPI, SHORT, name::TCP, 2.0)];
        let all = goals(&rows);
        assert_eq!(
            (all[3].standing, all[4].standing),
            (GoalState::NotMeasured, GoalState::NotMeasured)
        );
        let two = [row("two hosts, MPICH 5.0.2", LONG, name::UCX_TCP, 2.0)];
        assert_eq!(two[0].1.goals.len(), 1);
    }

    #[test]
    fn short_messages_of_two_hosts_are_judged_by_what_the_cores_can_show() {
        let (contest, short) = row("two hosts, Open MPI 4.1.4", SHORT, name::TCP, 0.6);
        let [few] = &short.goals[..] else { panic!("{short:?}") };
        assert_eq!((few.goal, few.figure, few.standing), (4, "CPU", GoalState::Holds));
        let roomy = tests::row(of_cores(4), contest, SHORT, [name::VRIO, name::TCP], SLOWER);
        let [many] = &roomy.goals[..] else { panic!("{roomy:?}") };
        assert_eq!((many.goal, many.figure, many.standing), (4, "p50", GoalState::DoesNotHold));
        assert_eq!(of_cores(3).texts[4], of_cores(4).texts[4]);
    }
}
