//! MPI over two hosts: two network namespaces with a node each, Debian's Open MPI, which knows
//! nothing of vrio, and a launcher that enters the other host as ssh would.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bench::installed;
use bench::nodes::{Node, NodePlan};
use tempfile::TempDir;

#[path = "mpi/built.rs"]
mod built;

use built::{exercise, said};

/// How long a job may take on a busy machine, in seconds, before it is ended.
const PATIENCE_S: &str = "300";

/// How long nodes may take to find each other.
const NOTICE: Duration = Duration::from_secs(60);

const ADDRESSES: [&str; 2] = ["10.78.0.1", "10.78.0.2"];

/// One job's polling ranks at a time, on what cores there are.
static TURN: Mutex<()> = Mutex::new(());

/// Two hosts, and an installation of vrio.
struct Hosts {
    nodes: Vec<Node>,
    spaces: [String; 2],
    installed: PathBuf,
    launcher: PathBuf,
    home: TempDir,
    _turn: MutexGuard<'static, ()>,
}

fn ip(words: &str) -> bool {
    let ended = Command::new("ip").args(words.split(' ')).output();
    ended.is_ok_and(|ended| ended.status.success())
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("ours");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
}

impl Hosts {
    /// None where one may not make network namespaces.
    fn new(link: &str) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let home = tempfile::tempdir().expect("a directory");
        let number = std::process::id();
        let spaces = ["a", "b"].map(|end| format!("vrio-mpi-{number}{end}"));
        let [one, other] = &spaces;
        if !ip(&format!("netns add {one}")) {
            eprintln!("skipped: network namespaces take root");
            return None;
        }
        assert!(ip(&format!("netns add {other}")));
        assert!(ip(&format!("link add vm{number}a netns {one} type veth peer vm{number}b")));
        assert!(ip(&format!("link set vm{number}b netns {other}")));
        for (end, (space, address)) in ["a", "b"].into_iter().zip(spaces.iter().zip(ADDRESSES)) {
            let device = format!("vm{number}{end}");
            assert!(ip(&format!("-n {space} addr add {address}/24 dev {device}")));
            assert!(ip(&format!("-n {space} link set {device} up")));
            assert!(ip(&format!("-n {space} link set lo up")));
        }
        let vrio = env!("CARGO_BIN_EXE_vrio").as_ref();
        let installed = installed::install(vrio, home.path()).expect("it was built");
        let key = home.path().join("blue.key");
        write(&key, "0123456789abcdef0123456789abcdef\n", 0o640);
        let start = |host| plan(host, home.path(), &spaces, link).start().expect("it starts");
        let nodes = (0..2).map(start).collect();
        let launcher = home.path().join("enter");
        let hosts = Self { nodes, spaces, installed, launcher, home, _turn: turn };
        write(&hosts.launcher, &hosts.launch(), 0o755);
        hosts.until_joined();
        Some(hosts)
    }

    /// What MPI starts its daemons by, and what starts MPI: goes to the host of an address, where
    /// it makes the environment as a user's profile does.
    fn launch(&self) -> String {
        let mut script = "#!/bin/sh\n\
            while case \"$1\" in -*) true;; *) false;; esac; do shift; done\n\
            address=$1; shift\ncase $address in\n"
            .to_owned();
        for (host, (address, space)) in ADDRESSES.iter().zip(&self.spaces).enumerate() {
            let control = self.nodes[host].plan().control();
            script +=
                &format!("{address}) space={space}; name=vrio-h{host}; control={control:?};;\n");
        }
        script += &format!(
            "esac\nexec ip netns exec $space unshare -u sh -c \"hostname $name\n\
             eval \\\"\\$({:?} mpi env --control $control --domain blue)\\\"\n$*\"\n",
            self.installed
        );
        script
    }

    fn domain(&self, host: usize) -> serde_json::Value {
        let status = self.nodes[host].status().expect("it answers");
        status["domains"][0].clone()
    }

    fn until_joined(&self) {
        let end = Instant::now() + NOTICE;
        while (0..2).any(|host| self.domain(host)["peers"][0]["is_joined"] != true) {
            assert!(Instant::now() < end, "{:?}", [0, 1].map(|host| self.domain(host)));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A job of so many ranks, one after the other on the one and the other host.
    fn mpirun(&self, ranks: usize, what: &str) -> Command {
        let mut run = Command::new("timeout");
        run.args(["--kill-after=5", PATIENCE_S]).arg(&self.launcher).arg(ADDRESSES[0]);
        let slots = ADDRESSES.map(|address| format!("{address}:{ranks}")).join(",");
        run.arg(format!(
            "mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent {:?} --host {slots} \
             --mca oob_tcp_if_include 10.78.0.0/24 --mca btl self --map-by node --bind-to none \
             -n {ranks} {:?} {what}",
            self.launcher,
            exercise()
        ));
        run.env("TMPDIR", self.home.path()).stdin(Stdio::null());
        run
    }

    fn exercise(&self, ranks: usize, what: &str) {
        let begun = Instant::now();
        let ended = self.mpirun(ranks, what).output().expect("timeout is everywhere");
        let text = said(&ended);
        let is_done = ended.status.success() && text.contains(&format!("ok {what}"));
        assert!(
            is_done,
            "{what} of {ranks}: {} after {:?}\n{text}\n{}\n{}",
            ended.status,
            begun.elapsed(),
            self.nodes[0].log_tail(),
            self.nodes[1].log_tail()
        );
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for space in &self.spaces {
            ip(&format!("netns del {space}"));
        }
    }
}

fn plan(host: usize, home: &Path, spaces: &[String; 2], link: &str) -> NodePlan {
    let other = 1 - host;
    let config = format!(
        "listen = \"{}:4870\"\ntrust = \"network\"\n\
         [[peer]]\nname = \"h{other}\"\naddress = \"{}:4870\"\n\
         [[domain]]\nname = \"blue\"\nkey = {:?}\npeers = [\"h{other}\"]\n{link}",
        ADDRESSES[host],
        ADDRESSES[other],
        home.join("blue.key"),
    );
    let name = format!("h{host}");
    let mut plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home, &name, config);
    plan.namespace = Some(spaces[host].clone());
    plan
}

#[test]
fn jobs_over_two_hosts_find_everything_as_it_was_sent() {
    let Some(hosts) = Hosts::new("") else { return };
    // Four polling ranks and two nodes on whatever cores there are.
    for ranks in [2, 4] {
        for what in ["ping-pong", "unexpected", "all-to-all", "any-source", "probe", "truncate"] {
            hosts.exercise(ranks, what);
        }
    }
    // One session for all of that.
    let status = hosts.nodes[0].status().expect("it answers");
    assert_eq!(status["sessions"].as_array().map(Vec::len), Some(1), "{}", status["sessions"]);
}

#[test]
fn what_the_network_loses_is_sent_again() {
    // One in two hundred datagrams, either way, and others come twice or late.
    let link = "[link]\nfault = { loss = 0.005, duplicate = 0.005, reorder = 0.005, seed = 1 }\n";
    let Some(hosts) = Hosts::new(link) else { return };
    hosts.exercise(4, "all-to-all");
    hosts.exercise(2, "ping-pong");
    let status = hosts.nodes[0].status().expect("it answers");
    let lost = &status["sessions"][0]["counters"]["packets_lost"];
    assert!(lost.as_u64() > Some(0), "{}", status["sessions"]);
}

#[test]
fn a_rank_that_is_killed_or_a_node_that_is_another_one_ends_the_job() {
    let Some(mut hosts) = Hosts::new("") else { return };
    let ended = hosts.mpirun(4, "killed").output().expect("timeout is everywhere");
    let text = said(&ended);
    assert!(!ended.status.success() && !text.contains("ok killed"), "{text}");
    assert_ne!(ended.status.code(), Some(124), "it waited for ever: {text}");
    hosts.exercise(2, "ping-pong");
    // The other host's node is killed under a job that waits, and comes back as another one.
    let mut run = hosts.mpirun(2, "wait");
    let job = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut job = job.spawn().expect("as above");
    let mut lines = BufReader::new(job.stdout.take().expect("it is piped")).lines();
    assert_eq!(lines.next().expect("it says something").expect("in letters"), "waiting");
    let other = hosts.nodes.pop().expect("there are two").kill().expect("it ran");
    hosts.nodes.push(other.start().expect("it starts"));
    let ended = job.wait_with_output().expect("it was begun");
    let text = said(&ended);
    assert!(!ended.status.success() && !text.contains("ok wait"), "{text}");
    assert_ne!(ended.status.code(), Some(124), "it waited for ever: {text}");
    hosts.until_joined();
    hosts.exercise(4, "all-to-all");
}
