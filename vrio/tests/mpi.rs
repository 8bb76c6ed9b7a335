//! MPI over the fabric of a real node: Debian's Open MPI, which knows nothing of vrio, and the
//! environment that `vrio mpi env` prints. `mpi/exercise.c` says what is exercised.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bench::nodes::{Node, NodePlan};
use tempfile::TempDir;

#[path = "mpi/built.rs"]
mod built;

use built::{exercise, provider, said};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// How long a job may take on a busy machine, in seconds, before it is ended.
const PATIENCE_S: &str = "300";

/// How long the node may take to notice that somebody is gone.
const NOTICE: Duration = Duration::from_secs(60);

/// A node with two domains, and an installation of vrio as a user has it.
struct Stage {
    node: Node,
    installed: PathBuf,
    home: TempDir,
}

fn write_key(path: &Path, key: &str) {
    fs::write(path, format!("{key}\n")).expect("ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o640)).expect("ours");
}

impl Stage {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let key = home.path().join("blue.key");
        write_key(&key, KEY);
        write_key(&home.path().join("red.key"), &KEY.replace('0', "z"));
        let config = format!(
            "[[domain]]\nname = \"blue\"\nkey = {key:?}\nendpoints-max = 16\n\
             [[domain]]\nname = \"red\"\nkey = {:?}\nendpoints-max = 2\n",
            home.path().join("red.key")
        );
        let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n", config);
        let node = plan.start().expect("it starts");
        let installed = home.path().join("usr/bin/vrio");
        let library = home.path().join("usr/lib/vrio/libvrio-fi.so");
        for path in [&installed, &library] {
            fs::create_dir_all(path.parent().expect("it has one")).expect("ours");
        }
        fs::copy(env!("CARGO_BIN_EXE_vrio"), &installed).expect("ours");
        symlink(provider(), library).expect("ours");
        Self { node, installed, home }
    }

    fn domain(&self, name: &str) -> serde_json::Value {
        let status = self.node.status().expect("it answers");
        let domains = status["domains"].as_array().expect("it has some");
        domains.iter().find(|it| it["name"] == name).expect("it has it").clone()
    }

    /// Waits until nobody is in.
    fn until_empty(&self) {
        let end = Instant::now() + NOTICE;
        loop {
            let blue = self.domain("blue");
            if blue["members"] == 0 && blue["endpoints"] == 0 {
                return;
            }
            assert!(Instant::now() < end, "somebody is still there: {blue}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A shell in which MPI uses a domain: what a user types, and nothing else.
    fn shell(&self, domain: &str, line: &str) -> Command {
        let mut shell = Command::new("timeout");
        shell.args(["--kill-after=5", PATIENCE_S, "sh", "-euc"]);
        let control = self.node.plan().control();
        shell.arg(format!(
            "eval \"$({:?} mpi env --control {control:?} --domain {domain})\"\n{line}",
            self.installed
        ));
        // Its own files, and not those of another job of this user; and no way but ours.
        shell.env("TMPDIR", self.home.path()).env("OMPI_MCA_btl", "self").stdin(Stdio::null());
        shell
    }

    fn mpirun(&self, domain: &str, ranks: usize, what: &str) -> Command {
        let (run, program) = ("mpirun.openmpi --allow-run-as-root --oversubscribe", exercise());
        self.shell(domain, &format!("exec {run} --bind-to none -n {ranks} {program:?} {what}"))
    }

    fn exercise(&self, ranks: usize, what: &str) {
        let ended = self.mpirun("blue", ranks, what).output().expect("sh is everywhere");
        let text = said(&ended);
        let is_done = ended.status.success() && text.contains(&format!("ok {what}"));
        assert!(is_done, "{what} of {ranks}: {}\n{text}\n{}", ended.status, self.node.log_tail());
    }

    /// A job that waits; ended when dropped.
    fn waiting(&self, ranks: usize) -> Waiting {
        let mut run = self.mpirun("blue", ranks, "wait");
        let mut job = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("as above");
        let mut lines = BufReader::new(job.stdout.take().expect("it is piped")).lines();
        let line = lines.next().expect("it says something").expect("in letters");
        assert_eq!(line, "waiting");
        Waiting(job)
    }
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

#[test]
fn a_job_of_two_and_one_of_four_find_everything_as_it_was_sent() {
    let stage = Stage::new();
    // Four polling ranks on whatever cores there are: they have to yield to each other.
    for what in [
        "ping-pong",
        "unexpected",
        "all-to-all",
        "any-source",
        "probe",
        "cancel",
        "truncate",
        "strided",
    ] {
        stage.exercise(2, what);
        stage.exercise(4, what);
    }
    stage.until_empty();
}

#[test]
fn libfabric_lists_the_provider() {
    let stage = Stage::new();
    let ended = stage.shell("blue", "fi_info -p vrio").output().expect("sh is everywhere");
    let text = said(&ended);
    assert!(ended.status.success(), "libfabric-bin (scripts/install test): {text}");
    assert!(text.contains("provider: vrio") && text.contains("FI_EP_RDM"), "{text}");
    assert!(!text.contains("ofi_rx"), "nothing is layered over it: {text}");
}

#[test]
fn a_rank_that_is_killed_ends_its_job_and_nothing_else() {
    let stage = Stage::new();
    let other = stage.waiting(2);
    for _ in 0..3 {
        let ended = stage.mpirun("blue", 3, "killed").output().expect("sh is everywhere");
        let text = said(&ended);
        assert!(!ended.status.success() && !text.contains("ok killed"), "{text}");
        assert_ne!(ended.status.code(), Some(124), "it waited for ever: {text}");
        assert!(text.contains("exited on signal 9"), "MPI says why: {text}");
    }
    // The slots of the dead are somebody's again, and who was there goes on.
    stage.exercise(4, "all-to-all");
    other.end();
    stage.until_empty();
}

#[test]
fn who_has_another_key_or_finds_no_slot_is_told_so() {
    let stage = Stage::new();
    let wrong = stage.home.path().join("red.key");
    let line = format!(
        "export VRIO_DOMAIN_KEY_FILE={wrong:?}\n\
         exec mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 {:?} ping-pong",
        exercise()
    );
    let ended = stage.shell("blue", &line).output().expect("sh is everywhere");
    let text = said(&ended);
    assert!(!ended.status.success() && !text.contains("ok ping-pong"), "{text}");
    assert!(text.contains("does not let this process into domain"), "{text}");
    // Two endpoints are one too few.
    let ended = stage.mpirun("red", 3, "ping-pong").output().expect("sh is everywhere");
    let text = said(&ended);
    assert!(!ended.status.success() && text.contains("endpoints-max"), "{text}");
    stage.exercise(2, "ping-pong");
}

#[test]
fn what_is_in_use_is_neither_removed_nor_handed_over() {
    let stage = Stage::new();
    let job = stage.waiting(2);
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
    // Nobody is in: a successor goes on with the same door.
    let Stage { node, installed, home } = stage;
    let node = node.hand_over().expect("nobody is in");
    let stage = Stage { node, installed, home };
    stage.exercise(2, "all-to-all");
    let (done, text) = {
        let mut vrio = Command::new(env!("CARGO_BIN_EXE_vrio"));
        vrio.args(["domain", "remove", "red", "--control"]).arg(stage.node.plan().control());
        let ended = vrio.output().expect("it was built");
        (ended.status.success(), said(&ended))
    };
    assert!(done, "{text}");
}
