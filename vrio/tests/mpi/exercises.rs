//! MPI's promises over the fabric of a real node. `exercise.c` names the exercises.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use super::built::{self, compile, said};
use super::house::{Mpi, Stage};

/// The exercises, built once for each MPI.
fn exercise(mpi: Mpi) -> &'static Path {
    static OF_MPICH: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    match mpi {
        Mpi::Open => built::exercise(),
        Mpi::Mpich => &OF_MPICH.get_or_init(|| compile(&mpi.compiler(), "exercise", &[])).1,
    }
}

/// A shell that becomes an exercise. `ranks` may have further options of the launcher after the
/// number.
fn exercising(
    stage: &Stage,
    mpi: Mpi,
    domain: &str,
    ranks: impl std::fmt::Display,
    what: &str,
) -> Command {
    let (run, program) = (mpi.run(), exercise(mpi));
    stage.shell(mpi, domain, &format!("exec {run} -n {ranks} {program:?} {what}"))
}

pub(crate) fn mpirun(stage: &Stage, domain: &str, ranks: usize, what: &str) -> Command {
    exercising(stage, Mpi::Open, domain, ranks, what)
}

pub(crate) fn exercised(stage: &Stage, mpi: Mpi, ranks: usize, what: &str) {
    let mut run = exercising(stage, mpi, "blue", ranks, what);
    let ended = run.output().expect("sh is everywhere");
    let text = said(&ended);
    let is_done = ended.status.success() && text.contains(&format!("ok {what}"));
    assert!(is_done, "{what} of {ranks}: {}\n{text}\n{}", ended.status, stage.node.log_tail());
}

/// A job that waits. It is ended when dropped.
fn waiting(stage: &Stage, ranks: usize) -> Waiting {
    let mut run = mpirun(stage, "blue", ranks, "wait");
    let mut job = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("as above");
    let mut lines = BufReader::new(job.stdout.take().expect("it is piped")).lines();
    let line = lines.next().expect("it says something").expect("in letters");
    assert_eq!(line, "waiting");
    Waiting(job)
}

struct Waiting(Child);

impl Waiting {
    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("it was begun").success());
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The exercises for any two ranks or more.
const EXERCISES: [&str; 9] = [
    "ping-pong",
    "unexpected",
    "all-to-all",
    "any-source",
    "probe",
    "cancel",
    "truncate",
    "strided",
    "local",
];

/// Further exercises that Open MPI runs.
const FURTHER: [&str; 4] = ["order", "synchronous", "collective", "looked"];

/// Further exercises that MPICH runs. (Open MPI's windows take ways of their own beside `cm`.)
const MPICHS: [&str; 1] = ["put"];

/// Runs all exercises, with up to four polling ranks on fewer cores: the ranks have to yield to
/// each other.
fn all_exercises(mpi: Mpi, further: &[&str]) {
    let stage = Stage::new();
    for what in EXERCISES.iter().chain(further) {
        exercised(&stage, mpi, 2, what);
        exercised(&stage, mpi, 4, what);
    }
    stage.until_empty();
}

#[test]
fn open_mpis_jobs_of_two_and_of_four_find_everything_as_it_was_sent() {
    all_exercises(Mpi::Open, &FURTHER);
}

#[test]
fn mpichs_jobs_of_two_and_of_four_find_everything_as_it_was_sent() {
    all_exercises(Mpi::Mpich, &MPICHS);
}

/// A user may tell MPICH by which protocol it sends long messages.
#[test]
fn mpich_sends_by_each_protocol_that_can_be_and_is_told_of_the_other() {
    let stage = Stage::new();
    let run = |protocol: &str, what: &str| {
        let mut run = exercising(&stage, Mpi::Mpich, "blue", 2, what);
        run.env("MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD", "16384");
        run.env("MPIR_CVAR_CH4_OFI_RNDV_PROTOCOL", protocol);
        let ended = run.output().expect("sh is everywhere");
        (ended.status, said(&ended))
    };
    for protocol in ["pipeline", "read", "direct", "auto"] {
        for what in ["ping-pong", "local"] {
            let (status, text) = run(protocol, what);
            let is_done = status.success() && text.contains(&format!("ok {what}"));
            assert!(is_done, "{what} by {protocol}: {status}\n{text}");
        }
    }
    let (status, text) = run("write", "ping-pong");
    assert!(!status.success() && text.contains("set it to read or pipeline"), "{text}");
    assert_ne!(status.code(), Some(124), "it waited for ever: {text}");
    stage.until_empty();
}

/// MPICH 5.0.2 confuses messages that come by its shared memory with messages that come by
/// libfabric, with any provider. On one host the documents leave `MPIR_CVAR_NOLOCAL` out, so MPICH
/// uses its shared memory only.
#[test]
fn messages_that_mpich_has_found_are_received() {
    let stage = Stage::new();
    let mut run = exercising(&stage, Mpi::Mpich, "blue", 4, "looked");
    let ended = run.env_remove("MPIR_CVAR_NOLOCAL").output().expect("sh is everywhere");
    let text = said(&ended);
    assert!(ended.status.success() && text.contains("ok looked"), "{}\n{text}", ended.status);
    let documents = include_str!("../../../docs/mpi.md");
    let commands = documents.lines().filter(|line| line.contains("MPIR_CVAR_NOLOCAL=1 "));
    assert_eq!(commands.count(), 0, "no command of the documents asks for the mixture");
}

#[test]
fn libfabric_lists_the_provider() {
    let stage = Stage::new();
    let ended =
        stage.shell(Mpi::Open, "blue", "fi_info -p vrio").output().expect("sh is everywhere");
    let text = said(&ended);
    assert!(ended.status.success(), "libfabric-bin (scripts/install test): {text}");
    assert!(text.contains("provider: vrio") && text.contains("FI_EP_RDM"), "{text}");
    assert!(!text.contains("ofi_rx"), "nothing is layered over it: {text}");
}

#[test]
fn a_rank_that_waits_for_a_killed_one_is_told_by_its_own_call() {
    let stage = Stage::new();
    let other = waiting(&stage, 2);
    for _ in 0..3 {
        // Without this option mpirun ends the other ranks before they can report the death.
        let ranks = "3 --enable-recovery";
        let ended = exercising(&stage, Mpi::Open, "blue", ranks, "killed").output();
        let ended = ended.expect("sh is everywhere");
        let text = said(&ended);
        assert_ne!(ended.status.code(), Some(124), "it waited for ever: {text}");
        for rank in 0..2 {
            assert!(text.contains(&format!("rank {rank} was told: class")), "{text}");
        }
    }
    // Without the option mpirun reports the death, and ends the job.
    let ended = mpirun(&stage, "blue", 3, "killed").output().expect("sh is everywhere");
    let text = said(&ended);
    assert!(!ended.status.success() && !text.contains("ok killed"), "{text}");
    assert!(text.contains("exited on signal 9"), "MPI says why: {text}");
    // The slots of the dead ranks can be used again, and the job that was there goes on.
    exercised(&stage, Mpi::Open, 4, "all-to-all");
    other.end();
    stage.until_empty();
}

#[test]
fn a_rank_that_does_not_receive_holds_up_its_sender_alone() {
    let stage = Stage::new();
    exercised(&stage, Mpi::Open, 4, "deaf");
    stage.until_empty();
}

#[test]
fn a_process_with_another_key_or_without_a_slot_is_told_so() {
    let stage = Stage::new();
    let job = waiting(&stage, 2);
    let wrong = stage.path("red.key");
    let line = format!(
        "export VRIO_DOMAIN_KEY_FILE={wrong:?}\n\
         exec {} -n 2 {:?} ping-pong",
        Mpi::Open.run(),
        exercise(Mpi::Open)
    );
    let ended = stage.shell(Mpi::Open, "blue", &line).output().expect("sh is everywhere");
    let text = said(&ended);
    assert!(!ended.status.success() && !text.contains("ok ping-pong"), "{text}");
    assert!(text.contains("does not let this process into domain"), "{text}");
    // The job with the right key was in the domain all the time.
    job.end();
    // The domain has two endpoints, one too few.
    let ended = mpirun(&stage, "red", 3, "ping-pong").output().expect("sh is everywhere");
    let text = said(&ended);
    assert!(!ended.status.success() && text.contains("endpoints-max"), "{text}");
    exercised(&stage, Mpi::Open, 2, "ping-pong");
}

#[test]
fn objects_in_use_are_not_removed() {
    let stage = Stage::new();
    let job = waiting(&stage, 2);
    let blue = stage.domain("blue");
    assert_eq!((&blue["members"], &blue["endpoints"]), (&2.into(), &2.into()), "{blue}");
    let vrio = |words: &[&str]| {
        let mut vrio = Command::new(env!("CARGO_BIN_EXE_vrio"));
        vrio.args(words).arg("--control").arg(stage.node.plan().control());
        let ended = vrio.output().expect("it was built");
        (ended.status.success(), said(&ended))
    };
    let (done, text) = vrio(&["domain", "list"]);
    assert!(done && text.contains("blue") && text.contains("red"), "{text}");
    let (done, text) = vrio(&["domain", "remove", "blue"]);
    assert!(!done && text.contains("2 processes") && text.contains("--force"), "{text}");
    let (done, text) = vrio(&["node", "drain"]);
    assert!(done && text.contains("2 processes"), "{text}");
    let (done, text) = vrio(&["node", "drain", "--undo"]);
    assert!(done, "{text}");
    job.end();
    stage.until_empty();
    // The same holds after a hand-over: an unused domain can be removed from the successor.
    let stage = stage.hand_over();
    exercised(&stage, Mpi::Open, 2, "all-to-all");
    let (done, text) = {
        let mut vrio = Command::new(env!("CARGO_BIN_EXE_vrio"));
        vrio.args(["domain", "remove", "red", "--control"]).arg(stage.node.plan().control());
        let ended = vrio.output().expect("it was built");
        (ended.status.success(), said(&ended))
    };
    assert!(done, "{text}");
}
