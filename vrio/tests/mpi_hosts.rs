//! MPI over two hosts: two network namespaces with a node each, Debian's Open MPI and MPICH 5,
//! which know nothing of vrio, and a launcher that enters the other host as ssh would.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use random::Random;
use serde_json::Value;
use tempfile::TempDir;
use testbed::hosts::{Hosts, Launcher};
use testbed::installed;
use testbed::nodes::Node;

use crate::mpi::built::{compile, exercise, said};
use crate::mpi::busy::Busy;
use crate::mpi::inputs::{Application, RANKS};
use crate::mpi::mpich::mpich;

/// The fewest messages between the hosts in any exercise. `truncate` has the fewest: a message, and
/// one more of each of four sizes.
const CROSSING_MIN: u64 = 8;

/// The hand-overs under one job, and those in which one of the two processes is killed.
const HAND_OVERS: u64 = 6;
const KILLS: u64 = 6;

/// How long a hand-over may take to its end after one of the two processes was killed.
const SETTLED: Duration = Duration::from_secs(60);

/// Only one job has polling ranks at a time: there are few cores.
static TURN: Mutex<()> = Mutex::new(());

/// Two hosts, and an installation of vrio.
struct Place {
    hosts: Hosts,
    home: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Place {
    /// `None` without the right to make network namespaces.
    fn new(link: &str) -> Option<Self> {
        let turn = TURN.lock();
        let home = tempfile::tempdir().expect("a directory");
        let vrio = env!("CARGO_BIN_EXE_vrio").as_ref();
        let vrio = installed::install(vrio, home.path()).expect("it was built");
        let hosts = Hosts::new(&vrio, link, ["", ""]).expect("they start");
        if hosts.is_none() {
            println!("SKIP MPI over two hosts: network namespaces take root");
        }
        Some(Self { hosts: hosts?, home, _turn: turn })
    }

    fn status(&self) -> Value {
        self.hosts.nodes[0].status().expect("it answers")
    }

    /// A job of Open MPI.
    fn mpirun(&self, ranks: usize, what: &str) -> Command {
        self.job(Launcher::OpenMpi, ranks, exercise(), what)
    }

    fn job(&self, mpi: Launcher<'_>, ranks: usize, program: &Path, what: &str) -> Command {
        let line = format!("{program:?} {what}");
        self.hosts.job(mpi, ranks, self.home.path(), &line).expect("there is room")
    }

    fn exercise(&self, ranks: usize, what: &str) {
        self.exercise_by(Launcher::OpenMpi, ranks, exercise(), what);
    }

    fn exercise_by(&self, mpi: Launcher<'_>, ranks: usize, program: &Path, what: &str) {
        let (begun, before) = (Instant::now(), self.crossed());
        let ended = self.job(mpi, ranks, program, what).output().expect("timeout is everywhere");
        let text = said(&ended);
        let is_done = ended.status.success() && text.contains(&format!("ok {what}"));
        assert!(
            is_done,
            "{what} of {ranks}: {} after {:?}\n{text}\n{}\n{}",
            ended.status,
            begun.elapsed(),
            self.hosts.nodes[0].log_tail(),
            self.hosts.nodes[1].log_tail()
        );
        let crossed = self.crossed() - before;
        assert!(crossed >= CROSSING_MIN, "{what} of {ranks} went another way: {crossed} crossed");
    }

    /// Messages between the hosts so far, by their nodes.
    fn crossed(&self) -> u64 {
        self.hosts.crossed().expect("they answer")
    }

    /// The results of a program with a rank on either host, and of the same program over shared
    /// memory on one host.
    fn both_ways(&self, name: &str, application: &Application) -> [Vec<String>; 2] {
        let folder = |way: &str| self.home.path().join(format!("{name}-{way}"));
        let mut most = [0; 2];
        let members = |host| self.hosts.domain(host).expect("it answers")["members"].as_u64();
        let before = self.crossed();
        let ours = application.run(
            &folder("vrio"),
            |folder, words| {
                let job = self.hosts.job(Launcher::OpenMpi, RANKS, folder, words);
                job.expect("there is room")
            },
            || most = [0, 1].map(|host| most[host].max(members(host).expect("a number"))),
        );
        assert_eq!(most, [1, 1], "its ranks were not in the domain");
        assert!(self.crossed() - before >= CROSSING_MIN, "its messages went another way");
        [ours, application.run_by_shared_memory(&folder("memory"))]
    }
}

#[test]
fn jobs_over_two_hosts_find_everything_as_it_was_sent() {
    let Some(place) = Place::new("") else { return };
    // Four polling ranks and two nodes share the cores.
    for ranks in [2, 4] {
        for what in
            ["ping-pong", "unexpected", "all-to-all", "any-source", "probe", "truncate", "local"]
        {
            place.exercise(ranks, what);
        }
    }
    // One session served all of these jobs.
    let status = place.status();
    assert_eq!(status["sessions"].as_array().map(Vec::len), Some(1), "{}", status["sessions"]);
}

#[test]
fn lost_datagrams_are_sent_again() {
    // Either way, one in two hundred datagrams is lost, and as many come twice or late.
    let link = "[link]\nfault = { loss = 0.005, duplicate = 0.005, reorder = 0.005, seed = 1 }\n";
    let Some(place) = Place::new(link) else { return };
    place.exercise(4, "all-to-all");
    place.exercise(2, "ping-pong");
    let status = place.status();
    let lost = &status["sessions"][0]["counters"]["packets_lost"];
    assert!(lost.as_u64() > Some(0), "{}", status["sessions"]);
}

#[test]
fn a_rank_that_is_killed_or_a_node_that_is_another_one_ends_the_job() {
    let Some(mut place) = Place::new("") else { return };
    let ended = place.mpirun(4, "killed").output().expect("timeout is everywhere");
    let text = said(&ended);
    assert!(!ended.status.success() && !text.contains("ok killed"), "{text}");
    assert_ne!(ended.status.code(), Some(124), "it waited for ever: {text}");
    place.exercise(2, "ping-pong");
    // The other host's node is killed while a job waits, and comes back as a new process.
    let mut run = place.mpirun(2, "wait");
    let job = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut job = job.spawn().expect("as above");
    let mut lines = BufReader::new(job.stdout.take().expect("it is piped")).lines();
    assert_eq!(lines.next().expect("it says something").expect("in letters"), "waiting");
    let other = place.hosts.nodes.pop().expect("there are two").kill().expect("it ran");
    place.hosts.nodes.push(other.start().expect("it starts"));
    let ended = job.wait_with_output().expect("it was begun");
    let text = said(&ended);
    assert!(!ended.status.success() && !text.contains("ok wait"), "{text}");
    assert_ne!(ended.status.code(), Some(124), "it waited for ever: {text}");
    place.hosts.wait_until_joined().expect("they find each other");
    place.exercise(4, "all-to-all");
}

#[test]
fn a_job_over_two_hosts_notices_nothing_of_hand_overs() {
    let Some(mut place) = Place::new("") else { return };
    let mut job = Busy::start(place.mpirun(4, "busy"));
    for round in 0..HAND_OVERS {
        let next = place.hosts.nodes.remove(0).hand_over();
        // The nodes hand over in turn, an even number of times, so that each is at its host's place
        // at the end.
        place.hosts.nodes.push(next.unwrap_or_else(|error| panic!("{error:#}")));
        println!("hand-over {round}");
        job.go_on();
    }
    let members = [0, 1].map(|host| place.hosts.domain(host).expect("it answers"));
    assert!(members.iter().all(|it| it["members"] == 2), "{members:?}");
    job.end();
    place.exercise(4, "all-to-all");
}

/// If one of the two processes survives, the job goes on. If none does, the host is gone, and the
/// job ends.
#[test]
fn a_job_over_two_hosts_continues_or_ends_after_a_kill_in_a_hand_over() {
    let Some(mut place) = Place::new("") else { return };
    let mut random = Random::new(1);
    let begun = Instant::now();
    let next = place.hosts.nodes.remove(0).hand_over();
    place.hosts.nodes.insert(0, next.unwrap_or_else(|error| panic!("{error:#}")));
    let longest_us = begun.elapsed().as_micros() as u64;
    let mut job = Busy::start(place.mpirun(2, "busy"));
    let (mut went_on, mut ended) = (0, 0);
    for round in 0..KILLS {
        let node = place.hosts.nodes.remove(0);
        let plan = node.plan().clone();
        let successor = plan.spawn(&["--take-over"]).expect("the program is there");
        std::thread::sleep(Duration::from_micros(random.below(longest_us)));
        // Killed when dropped.
        let kills_node = round % 2 == 0;
        let left = if kills_node { (drop(node), successor).1 } else { (drop(successor), node).1 };
        match settle(left) {
            Some(node) => {
                place.hosts.nodes.insert(0, node);
                job.go_on();
                went_on += 1;
            }
            None => {
                place.hosts.nodes.insert(0, plan.start().expect("it starts again"));
                let status = job.job.wait().expect("it was begun");
                assert!(!status.success() && status.code() != Some(124), "{status}");
                place.hosts.wait_until_joined().expect("they find each other");
                job = Busy::start(place.mpirun(2, "busy"));
                ended += 1;
            }
        }
    }
    println!("{went_on} times it went on, {ended} times it was ended");
    job.end();
}

/// Waits until a node serves or has ended. It may have been killed, or have ended because its
/// successor went on. A node serves if it takes orders, for which the hand-over has to be over.
fn settle(mut node: Node) -> Option<Node> {
    let until = Instant::now() + SETTLED;
    loop {
        if node.ended().expect("the system says").is_some() {
            return None;
        }
        let mut reload = Command::new(env!("CARGO_BIN_EXE_vrio"));
        reload.args(["node", "reload", "--control"]).arg(node.plan().control());
        let status = node.status().is_ok_and(|it| it["node"]["pid"] == node.pid());
        if status && reload.output().expect("it was built").status.success() {
            return Some(node);
        }
        assert!(Instant::now() < until, "nothing moves:\n{}", node.log_tail());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn mpichs_jobs_over_two_hosts_find_everything_as_it_was_sent() {
    let Some(place) = Place::new("") else { return };
    let prefix = mpich();
    let compiler = prefix.join("bin/mpicc");
    let (_kept, program): (TempDir, PathBuf) =
        compile(compiler.to_str().expect("a plain name"), "exercise", &[]);
    for ranks in [2, 4] {
        for what in ["ping-pong", "unexpected", "all-to-all", "any-source", "strided", "local"] {
            place.exercise_by(Launcher::Mpich(&prefix), ranks, &program, what);
        }
    }
    let status = place.status();
    assert_eq!(status["sessions"].as_array().map(Vec::len), Some(1), "{}", status["sessions"]);
}

/// A program of libfabric's, started by an MPI's launcher, since an MPI's own programs poll.
#[test]
fn processes_of_two_hosts_sleep_until_the_other_one_has_something_for_them() {
    let Some(place) = Place::new("") else { return };
    let words = ["-lfabric", "-lpthread"];
    let (_kept, program) = compile("cc", "../../../ofi/tests/libfabric/sleep", &words);
    for what in ["descriptor", "call", "long", "counter", "killed", "refused"] {
        // The files in which the processes leave their names.
        let folder = place.home.path();
        (0..2).for_each(|rank| drop(std::fs::remove_file(folder.join(format!("name-{rank}")))));
        place.exercise_by(Launcher::OpenMpi, 2, &program, what);
    }
}

#[test]
fn programs_over_two_hosts_find_what_they_find_over_shared_memory() {
    let Some(place) = Place::new("") else { return };
    let [challenge, _] = place.both_ways("challenge", &Application::challenge());
    assert_eq!(challenge, ["Success=1"]);
    let [ours, theirs] = place.both_ways("melt", &Application::melt());
    assert_eq!((ours.len(), &ours), (4, &theirs));
    let [ours, theirs] = place.both_ways("silicon", &Application::silicon());
    assert_eq!(ours, theirs);
    assert!(ours[0].contains("-15.8"), "{ours:?}");
}
