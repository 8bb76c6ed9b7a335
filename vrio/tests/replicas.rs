//! Volumes with copies on real nodes: the primary is killed, and stopped, under a checked load, and
//! the guest goes on.
//!
//! `REPLICA_KILLS=n` sets the number of kills, `KILL_SEED=n` another run.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::Value;
use testbed::nodes::{Node, NodeKeys, NodePlan};
use testbed::stand_in::{RingKind, StandIn};
use workload::Mix;

/// The kills of one run: as many as CI has time for, since a copy is filled after each of them.
const KILLS: u64 = 4;

/// Requests that must be outstanding when a node is killed.
const OUTSTANDING_MIN: usize = 8;

/// The blocks of 4 KiB that the guest uses.
const BLOCKS: u64 = 1024;

/// How long a state may take that comes by itself; only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(180);

/// The nodes with a copy, in the order of the volume's list.
const MEMBERS: [&str; 2] = ["io1", "io2"];

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// A cluster of one machine: its registry is a file.
struct Rack {
    home: tempfile::TempDir,
    keys: NodeKeys,
    port: u16,
}

impl Rack {
    fn new(test: u16) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let keys = NodeKeys::make(home.path(), &["io1", "io2", "vm1"]).expect("keys");
        let port = 36_000 + (std::process::id() % 200) as u16 * 60 + test * 16;
        let this = Self { home, keys, port };
        let registry = this.path("registry");
        let words = ["cluster", "init", "lab", "--file"].map(str::to_owned);
        let registry = registry.to_str().expect("a plain name").to_owned();
        succeeds(&this.vrio(words.into_iter().chain([registry])));
        this
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Runs `vrio` with the operator's directory.
    fn vrio(&self, words: impl IntoIterator<Item = String>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(words).arg("--directory").arg(self.path("operator")).stdin(Stdio::null());
        command.output().expect("the binary was built")
    }

    fn address(&self, name: &str) -> String {
        let at = ["io1", "io2", "vm1"].iter().position(|it| *it == name).expect("a node");
        format!("127.0.0.1:{}", self.port + at as u16 * 4)
    }

    fn plan(&self, name: &str, config: &str) -> NodePlan {
        let config = format!(
            "listen = {:?}\n{}[sidecores]\ncount = 2\nidle = \"adaptive\"\n{config}",
            self.address(name),
            self.keys.own(name)
        );
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    fn peer(&self, name: &str) -> String {
        format!(
            "[[peer]]\nname = {name:?}\naddress = {:?}\n{}",
            self.address(name),
            self.keys.peer(name)
        )
    }

    /// A node with a pool and a copy.
    fn member(&self, name: &str) -> NodePlan {
        let other = MEMBERS.into_iter().find(|it| *it != name).expect("two members");
        let pool = self.path(&format!("{name}.pool"));
        let config = format!(
            "[cluster]\ndirectory = {:?}\n{}{}\
             [[pool]]\nname = \"fast\"\ndevices = [{pool:?}]\n\
             [[volume]]\nname = \"alice\"\nbackend = {{ pool = \"fast\", size = \"16MiB\" }}\n\
             replicas = {MEMBERS:?}\n{}",
            self.path(&format!("of-{name}")),
            self.peer(other),
            self.keys.clients(&["vm1"]),
            self.keys.allow(&["vm1"])
        );
        let mut plan = self.plan(name, &config);
        plan.directories = Some(format!(
            "volumes = [{:?}]\nsockets = {:?}\nstate = {:?}\n",
            self.home.path(),
            plan.home,
            plan.home.join("state")
        ));
        plan
    }

    /// Makes the node's pool, starts it, and has it join the cluster.
    fn start_member(&self, name: &str) -> Node {
        let pool = self.path(&format!("{name}.pool"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(["pool", "create", "--size", "256MiB"]).arg(&pool);
        succeeds(&command.output().expect("the binary was built"));
        let node = self.member(name).start().expect("the node starts");
        let token = self.vrio(["cluster", "token"].map(str::to_owned));
        succeeds(&token);
        let token = String::from_utf8(token.stdout).expect("text");
        let config = node.plan().home.join("node.toml");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(["node", "join", token.trim(), "--config"]).arg(config);
        succeeds(&command.output().expect("the binary was built"));
        node
    }

    fn client(&self) -> NodePlan {
        let config = format!(
            "{}{}[[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1,io2/alice\"\nqueues = 2\n{}",
            self.peer("io1"),
            self.peer("io2"),
            self.keys.disk()
        );
        self.plan("vm1", &config)
    }
}

fn succeeds(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

/// The state of the copy on a node, as its status has it.
fn copy(node: &Node) -> Option<Value> {
    let status = node.status().ok()?;
    let volumes = status["volumes"].as_array()?.clone();
    let alice = volumes.into_iter().find(|volume| volume["name"] == "alice")?;
    alice.get("copy").cloned()
}

/// Waits until both copies are in sync, and gives the name of the node that serves.
fn wait_until_in_sync(nodes: &mut [Option<Node>; 2]) -> usize {
    let until = Instant::now() + PATIENCE;
    loop {
        let copies: Vec<_> = nodes.iter().map(|node| node.as_ref().and_then(copy)).collect();
        let is_primary = |copy: &Option<Value>| {
            copy.as_ref().is_some_and(|copy| {
                copy["role"] == "primary" && copy["missing"].as_array().is_some_and(Vec::is_empty)
            })
        };
        if let Some(primary) = copies.iter().position(is_primary) {
            return primary;
        }
        assert!(Instant::now() < until, "the copies are not in sync: {copies:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn work_a_while(guest: &mut StandIn, random: &mut Random) {
    let until = Instant::now() + Duration::from_micros(random.between(500, 200_000));
    let worked = guest
        .work(|guest| Instant::now() >= until && guest.workload.outstanding() >= OUTSTANDING_MIN);
    worked.expect("the promise is kept");
}

/// Works until so many more requests have completed.
fn work_on(guest: &mut StandIn, requests: u64) {
    let wanted = guest.workload.counts.completed + requests;
    guest.work(|guest| guest.workload.counts.completed >= wanted).expect("the disk is served");
}

#[test]
fn a_guest_goes_on_when_the_node_that_serves_its_disk_is_killed_or_stands_still() {
    let seed = number("KILL_SEED", 1);
    let kills = number("REPLICA_KILLS", KILLS);
    println!("KILL_SEED={seed} REPLICA_KILLS={kills}");
    let mut random = Random::new(seed);
    let rack = Rack::new(0);
    let mut nodes = MEMBERS.map(|name| Some(rack.start_member(name)));
    let mut vm = rack.client().start().expect("the VMhost starts");
    let socket = vm.wait_for_disk("alice").expect("the disk is served");
    let guest =
        StandIn::connect_with(&socket, RingKind::Split, 2, Mix::OF_ALL, BLOCKS, &mut random);
    let mut guest = guest.expect("connects");
    let mut served = [0u64; 2];
    for kill in 0..kills {
        let primary = wait_until_in_sync(&mut nodes);
        served[primary] += 1;
        work_a_while(&mut guest, &mut random);
        let victim = nodes[primary].take().expect("it runs");
        if kill % 2 == 0 {
            let plan = victim.kill().expect("it ran until now");
            work_on(&mut guest, 100);
            nodes[primary] = Some(plan.start().expect("the node starts again"));
        } else {
            // A node that stands still knows nothing of its successor when it goes on.
            victim.halt().expect("it runs");
            work_on(&mut guest, 100);
            victim.resume().expect("it is stopped");
            nodes[primary] = Some(victim);
        }
        work_on(&mut guest, 100);
    }
    let primary = wait_until_in_sync(&mut nodes);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "the death of a node is a pause, not an error");
    assert!(served.iter().all(|served| *served > 0) || kills < 2, "{served:?}: both have served");
    // The other copy has the same content.
    let plan = nodes[primary].take().expect("it runs").kill().expect("it ran until now");
    guest.read_all().expect("the other copy is as promised");
    guest.disconnect();
    drop(plan);
    vm.stop().expect("the VMhost stops in order");
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}
