//! Jobs under which their node hands over to another process.

use std::time::{Duration, Instant};

use random::Random;
use testbed::nodes::Node;

use super::busy::Busy;
use super::exercises::{exercised, mpirun};
use super::house::{Mpi, Stage};

/// Hand-overs under one job.
const HAND_OVERS: u64 = 4;

/// Hand-overs in which one of the two processes is killed.
const KILLS: u64 = 8;

/// How long a process that is killed, or left alone, may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

fn busy(stage: &Stage, ranks: usize) -> Busy {
    Busy::start(mpirun(stage, "blue", ranks, "busy"))
}

#[test]
fn a_job_notices_nothing_of_hand_overs() {
    let mut stage = Stage::new();
    let mut job = busy(&stage, 4);
    for _ in 0..HAND_OVERS {
        stage = stage.hand_over();
        let blue = stage.domain("blue");
        assert_eq!((&blue["members"], &blue["endpoints"]), (&4.into(), &4.into()), "{blue}");
        job.go_on();
    }
    // Another job runs beside it, served by the successor.
    exercised(&stage, Mpi::Open, 2, "all-to-all");
    job.go_on();
    job.end();
    stage.until_empty();
    // Other jobs can use all of its slots again.
    exercised(&stage, Mpi::Open, 4, "all-to-all");
    stage.until_empty();
}

#[test]
fn a_process_killed_after_a_hand_over_is_missed() {
    let stage = Stage::new();
    let other = busy(&stage, 2);
    let stage = stage.hand_over();
    let ended = mpirun(&stage, "blue", 3, "killed").output().expect("sh is everywhere");
    assert!(!ended.status.success() && ended.status.code() != Some(124), "{ended:?}");
    other.end();
    stage.until_empty();
}

/// Whether a node still serves: a job that joins is answered. The node may have been killed with
/// its successor, or ended by it.
fn serves(stage: &mut Stage) -> bool {
    let until = Instant::now() + PATIENCE;
    loop {
        let joined = mpirun(stage, "blue", 2, "wait").output().expect("sh is everywhere");
        if stage.node.ended().expect("the system says").is_some() {
            return false;
        }
        if joined.status.success() {
            return true;
        }
        assert!(Instant::now() < until, "{joined:?}\n{}", stage.node.log_tail());
    }
}

/// Starts a successor, and kills it or the node after that time. Gives the other process, which may
/// have ended.
fn kill_one(node: Node, kills_node: bool, after: Duration) -> Node {
    let successor = node.plan().spawn(&["--take-over"]).expect("the program is there");
    std::thread::sleep(after);
    // Killed when dropped.
    if kills_node { (drop(node), successor).1 } else { (drop(successor), node).1 }
}

/// The survivor serves on. If no process survives, the job's ranks still reach each other, and a
/// node that is started again serves new jobs.
#[test]
fn a_job_continues_after_a_kill_of_either_node_in_a_hand_over() {
    let mut random = Random::new(1);
    let mut stage = Stage::new();
    let begun = Instant::now();
    stage = stage.hand_over();
    let longest_us = begun.elapsed().as_micros() as u64;
    let mut job = busy(&stage, 2);
    let (mut went_on, mut taken, mut started) = (0, 0, 0);
    for round in 0..KILLS {
        let kills_node = round % 2 == 0;
        let after = Duration::from_micros(random.below(longest_us));
        stage = stage.with(|node| kill_one(node, kills_node, after));
        job.go_on();
        match (serves(&mut stage), kills_node) {
            (false, _) => {
                started += 1;
                // The old job and the jobs of the new node know nothing of each other.
                stage = stage.with(|node| node.plan().start().expect("it starts again"));
                exercised(&stage, Mpi::Open, 2, "ping-pong");
                job.go_on();
                job.end();
                job = busy(&stage, 2);
            }
            (true, true) => taken += 1,
            (true, false) => went_on += 1,
        }
        // Jobs that only tested whether the node answers have left, and all members of the busy job
        // are there.
        let until = Instant::now() + PATIENCE;
        while stage.domain("blue")["members"] != 2 {
            assert!(Instant::now() < until, "{}", stage.domain("blue"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    println!("{went_on} nodes went on, {taken} were taken over, {started} were started again");
    job.end();
    stage.until_empty();
}
