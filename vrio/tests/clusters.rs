//! A cluster as its operator meets it: three real members of etcd, two nodes, tokens, the death of
//! members and agents, and certificates that are renewed, while a guest works.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use random::Random;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testbed::etcd::{self, EtcdMember};
use testbed::nodes::{Node, NodeKeys, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;

/// How long a state may take that comes by itself; only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(180);

const MEMBERS: [&str; 3] = ["a", "b", "c"];

/// The place of a cluster's files. In memory where there is such a file system: etcd waits for its
/// disk at each change.
struct Place {
    home: tempfile::TempDir,
    keys: NodeKeys,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Place {
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let home = tempfile::Builder::new().prefix("vrio-cluster").tempdir_in(place);
        let home = home.expect("a directory");
        let keys = NodeKeys::make(home.path(), &["io1", "io2"]).expect("keys");
        Self { home, keys }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Runs `vrio` with the cluster's directory of this name.
    fn vrio(&self, words: &[&str], directory: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(words).arg("--directory").arg(self.path(directory)).stdin(Stdio::null());
        command.output().expect("the binary was built")
    }

    fn token(&self) -> Result<String, String> {
        let output = self.vrio(&["cluster", "token"], "operator");
        match output.status.success() {
            true => Ok(text(&output.stdout).trim().to_owned()),
            false => Err(text(&output.stderr)),
        }
    }

    fn join(&self, token: &str, node: &Node) -> Output {
        let config = node.plan().home.join("node.toml");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(["node", "join", token, "--config"]).arg(config).stdin(Stdio::null());
        command.output().expect("the binary was built")
    }

    fn status(&self) -> Value {
        let output = self.vrio(&["cluster", "status", "--json"], "operator");
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
    }

    /// Waits until the status is so.
    fn wait(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(Instant::now() < until, "{what}: {status:#}");
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    fn wait_for_verdict(&self, verdict: &str) -> Value {
        self.wait(verdict, |status| status["verdict"] == verdict)
    }

    fn member(&self, name: &str) -> EtcdMember {
        let directory = self.path("operator").join("members").join(name);
        EtcdMember::start(&directory, None).expect("a member of etcd")
    }

    fn node(&self, name: &str, config: &str) -> Node {
        let directory = self.path(&format!("of-{name}"));
        let config =
            format!("{}{config}[cluster]\ndirectory = {directory:?}\n", self.keys.own(name));
        let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config);
        plan.start().expect("the node starts")
    }

    /// Makes the cluster at loopback addresses of this test alone.
    fn init(&self) -> Output {
        let [.., a, b] = std::process::id().to_be_bytes();
        let addresses = [1, 2, 3].map(|number| Ipv4Addr::new(127, a | 1, b, 100 + number));
        let free = || {
            let bound = TcpListener::bind((addresses[0], 0)).expect("a loopback address");
            bound.local_addr().expect("it is bound").port().to_string()
        };
        let [client, peer] = [free(), free()];
        let members: Vec<_> =
            MEMBERS.iter().zip(addresses).map(|(name, at)| format!("{name}={at}")).collect();
        let mut words = vec!["cluster", "init", "rack1", "--client-port", &client];
        words.extend(["--peer-port", &peer]);
        members.iter().for_each(|member| words.extend(["--member", member]));
        let made = self.vrio(&words, "operator");
        for name in MEMBERS {
            let directory = self.path("operator").join("members").join(name);
            etcd::make_patient(&directory).expect("it was made");
        }
        made
    }
}

fn has_failed(output: &Output, wanted: &str) {
    assert!(!output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains(wanted), "{output:?}");
}

fn state_of(status: &Value, node: &str) -> String {
    let nodes = status["nodes"].as_array().expect("a list");
    let found = nodes.iter().find(|it| it["name"] == node);
    found.map_or("unknown", |it| it["state"].as_str().expect("a word")).to_owned()
}

/// The node's part in the cluster, as the node says itself.
pub(crate) fn part_of(node: &Node) -> Value {
    node.status().expect("it answers")["cluster"].clone()
}

/// Waits until the node says so of its part in the cluster.
fn wait_for_part(node: &mut Node, what: &str, is: impl Fn(&Value) -> bool) {
    // Twice the time of a test's node: a lease of 15 s may have to end first.
    let mut wait = || node.wait_until(what, |node| is(&part_of(node)));
    if wait().or_else(|_| wait()).is_err() {
        panic!("{what}: {:#}", part_of(node));
    }
}

/// Kills the agent of a node, with SIGKILL.
pub(crate) fn kill_agent(node: &Node) -> u64 {
    signal_agent(node, Signal::KILL)
}

/// Sends a signal to the agent of a node.
pub(crate) fn signal_agent(node: &Node, signal: Signal) -> u64 {
    let pid = part_of(node)["agent_pid"].as_u64().expect("it runs");
    let found = Pid::from_raw(i32::try_from(pid).expect("a number of a process"));
    kill_process(found.expect("not 0"), signal).expect("it runs");
    pid
}

/// More requests of a guest complete.
fn goes_on(guest: &mut StandIn) {
    let until = Instant::now() + Duration::from_millis(300);
    guest.work(|_| Instant::now() >= until).expect("the promise is kept");
    guest.drain().expect("everything is answered");
}

#[test]
fn a_cluster_of_three_members_and_two_nodes_lives_through_the_death_of_members() {
    let place = Place::new();
    let made = place.init();
    assert!(made.status.success(), "{made:?}");
    assert!(text(&made.stdout).contains("systemctl enable --now --no-block vrio-etcd"), "{made:?}");
    assert_eq!(place.status()["verdict"], "away", "no member runs yet");
    let mut members = MEMBERS.map(|name| Some(place.member(name)));
    place.wait_for_verdict("well");
    let volume = "[[volume]]\nname = \"v\"\nbackend = { memory = \"16MiB\" }\n\
                  [[disk]]\nsocket = \"d.sock\"\nvolume = \"v\"\n";
    let mut io1 = place.node("io1", volume);
    let mut io2 = place.node("io2", "");
    let socket = io1.wait_for_disk("d").expect("the disk is served");
    let mut guest =
        StandIn::connect(&socket, 1, Mix::OF_ALL, 512, &mut Random::new(1)).expect("connects");
    wait_for_part(&mut io1, "the way out", |part| {
        part["detail"].as_str().is_some_and(|it| it.contains("vrio node join"))
    });
    let first = place.token().expect("a token");
    assert!(place.join(&first, &io1).status.success());
    has_failed(&place.join(&first, &io2), "node \"io1\" has used this token");
    let second = place.token().expect("a token");
    assert!(place.join(&second, &io2).status.success());
    let well = place.wait("both nodes are present", |status| {
        status["verdict"] == "well"
            && ["io1", "io2"].map(|it| state_of(status, it)) == ["present"; 2]
    });
    assert_eq!(well["nodes"][0]["key"], place.keys.public("io1"));
    wait_for_part(&mut io1, "present", |part| part["state"] == "present");
    goes_on(&mut guest);
    // An agent that is killed is started again, and is present when the lease of the dead one has
    // ended.
    let killed = kill_agent(&io2);
    wait_for_part(&mut io2, "another agent", |part| {
        part["agent_pid"] != killed && part["state"] == "present"
    });
    // A node that ends is away, and present when it is back.
    let plan = io2.stop().expect("it runs");
    let degraded = place.wait("io2 is away", |status| state_of(status, "io2") == "away");
    assert!(degraded["problems"].to_string().contains("node io2 is away: start it"), "{degraded}");
    let mut io2 = plan.start().expect("the node starts");
    place.wait_for_verdict("well");
    wait_for_part(&mut io2, "present", |part| part["state"] == "present");
    // A successor has an agent of its own.
    let before = part_of(&io2)["agent_pid"].clone();
    let mut io2 = io2.hand_over().expect("a successor");
    wait_for_part(&mut io2, "an agent of its own", |part| {
        part["agent_pid"] != before && part["state"] == "present"
    });
    lose_members(&place, &mut members, &mut guest);
    let after = place.wait("all is well again", |status| {
        status["verdict"] == "well"
            && ["io1", "io2"].map(|it| state_of(status, it)) == ["present"; 2]
    });
    assert_eq!(after["registry"]["members"].as_array().map(Vec::len), Some(3));
    let until = Instant::now() + PATIENCE;
    loop {
        let shown = text(&place.vrio(&["cluster", "status"], "of-io1").stdout);
        if shown.starts_with("cluster rack1: all is well\n") {
            break;
        }
        assert!(Instant::now() < until, "{shown}");
        std::thread::sleep(Duration::from_millis(300));
    }
    renew(&place, &mut io1, &mut guest);
}

/// The operator renews the certificate of a node, and copies the files as the command says.
fn renew(place: &Place, node: &mut Node, guest: &mut StandIn) {
    let before = place.status()["registry"]["revision"].as_u64().expect("it answers");
    let to = place.path("renewed");
    let to = to.to_str().expect("a path");
    let renewed = place.vrio(&["cluster", "renew", "--node", "io1", "--to", to], "operator");
    assert!(renewed.status.success(), "{renewed:?}");
    for file in ["cluster.json", "client.key", "client.pem"] {
        let content = std::fs::read(Path::new(to).join(file)).expect("it was made");
        std::fs::write(place.path("of-io1").join(file), content).expect("ours");
    }
    // The presence names the new certificate, so it is told once more.
    place.wait("the presence is told again", |status| {
        status["registry"]["revision"].as_u64() > Some(before)
            && state_of(status, "io1") == "present"
    });
    wait_for_part(node, "present", |part| part["state"] == "present");
    goes_on(guest);
}

/// One member is killed, then a second member; both come back.
fn lose_members(place: &Place, members: &mut [Option<EtcdMember>; 3], guest: &mut StandIn) {
    members[2] = None;
    let degraded = place.wait_for_verdict("degraded");
    let problem = degraded["problems"][0].as_str().expect("a text");
    assert!(problem.contains("changes go on, and no other member may fail"), "{problem}");
    // A change may meet the election of another leader.
    let until = Instant::now() + PATIENCE;
    while let Err(error) = place.token() {
        assert!(Instant::now() < until, "{error}");
        std::thread::sleep(Duration::from_millis(300));
    }
    goes_on(guest);
    members[1] = None;
    place.wait_for_verdict("away");
    let refused = place.token().expect_err("no majority");
    assert!(refused.contains("the registry does not answer"), "{refused}");
    assert!(refused.contains("I/O goes on, and changes wait"), "{refused}");
    let away = place.vrio(&["cluster", "status"], "operator");
    assert_eq!(away.status.code(), Some(1));
    assert!(text(&away.stdout).starts_with("cluster rack1: AWAY"), "{away:?}");
    goes_on(guest);
    for at in [1, 2] {
        members[at] = Some(place.member(MEMBERS[at]));
    }
}

#[test]
fn a_cluster_of_one_machine_needs_no_etcd() {
    let place = Place::new();
    let file = place.path("registry");
    let words = ["cluster", "init", "lab", "--file", file.to_str().expect("a path")];
    assert!(place.vrio(&words, "operator").status.success());
    has_failed(&place.vrio(&words, "operator"), "is not empty");
    assert_eq!(place.status()["verdict"], "well");
    let node = place.node("io1", "");
    let joined = place.join(&place.token().expect("a token"), &node);
    assert!(joined.status.success(), "{joined:?}");
    place.wait("present", |status| state_of(status, "io1") == "present");
    has_failed(&place.vrio(&["cluster", "remove", "io1"], "operator"), "is present");
    // A node that is killed takes its agent with it.
    node.kill().expect("it runs");
    place.wait("away", |status| state_of(status, "io1") == "away");
    assert!(place.vrio(&["cluster", "remove", "io1"], "operator").status.success());
    // A backup is put back.
    let content = file.join("registry");
    let backup = std::fs::read(&content).expect("ours");
    place.token().expect("a token");
    std::fs::write(&content, backup).expect("ours");
    assert_eq!(place.status()["verdict"], "frozen");
    let refused = place.token().expect_err("it is frozen");
    assert!(refused.contains("changes are frozen") && refused.contains("vrio cluster trust"));
    let id = || -> Value {
        let text = std::fs::read_to_string(&content).expect("ours");
        let content = text.lines().nth(1).expect("two lines");
        serde_json::from_str::<Value>(content).expect("JSON")["store"].clone()
    };
    let old = id();
    assert!(place.vrio(&["cluster", "trust", "--restored"], "operator").status.success());
    let new = id();
    assert_ne!(old, new);
    // Other machines know this id from now on, so no other word changes it.
    for words in [&["cluster", "trust", "--volumes"][..], &["cluster", "trust"]] {
        assert!(place.vrio(words, "operator").status.success());
        assert_eq!(id(), new);
        place.token().expect("a token");
    }
    // A directory of no cluster, and words that are no token.
    has_failed(&place.vrio(&["cluster", "status"], "nowhere"), "is no directory of a cluster");
}
