//! Volumes with copies on real nodes: the primary is killed, stands still, is stopped and is moved
//! under a checked load, and the guest goes on. A copy that has changed is refused.
//!
//! `REPLICA_KILLS=n` sets the number of kills, `KILL_SEED=n` another run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::Value;
use testbed::nodes::{Node, NodeKeys, NodePlan};
use testbed::stand_in::{RingKind, StandIn};
use workload::Mix;

use crate::clusters::kill_agent;
use crate::pools::{refused, told, tried};

/// The kills of one run: as many as CI has time for, since a copy is filled after each of them.
const KILLS: u64 = 4;

/// The nodes of a rack: three with copies at most, a VMhost, and a direct client.
const NODES: [&str; 5] = ["io1", "io2", "io3", "vm1", "web1"];

/// Requests that must be outstanding when a node is killed.
const OUTSTANDING_MIN: usize = 8;

/// The blocks of 4 KiB that the guest uses.
const BLOCKS: u64 = 1024;

/// The size of a node's pool.
pub(crate) const POOL_SIZE: &str = "256MiB";

/// How long a state may take that comes by itself; only a hang takes longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A node with a copy of the volume, as its file has it.
#[derive(Clone, Copy)]
pub(crate) struct CopyFile<'c> {
    pub(crate) node: &'c str,
    /// The nodes with copies, in their order; empty for a file without the key.
    pub(crate) list: &'c [&'c str],
    /// The file of the node's pool.
    pub(crate) pool: &'c str,
}

pub(crate) fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// A cluster of one machine: its registry is a file.
pub(crate) struct Rack {
    home: tempfile::TempDir,
    pub(crate) keys: NodeKeys,
    port: u16,
}

impl Rack {
    pub(crate) fn new(test: u16) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let keys = NodeKeys::make(home.path(), &NODES).expect("keys");
        let port = 36_000 + (std::process::id() % 60) as u16 * 400 + test * 16;
        let this = Self { home, keys, port };
        let registry = this.path("registry");
        let words = ["cluster", "init", "lab", "--file"].map(str::to_owned);
        let registry = registry.to_str().expect("a plain name").to_owned();
        succeeds(&this.vrio(words.into_iter().chain([registry])));
        this
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Runs `vrio` with the operator's directory.
    pub(crate) fn vrio(&self, words: impl IntoIterator<Item = String>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(words).arg("--directory").arg(self.path("operator")).stdin(Stdio::null());
        command.output().expect("the binary was built")
    }

    pub(crate) fn address(&self, name: &str) -> String {
        let at = NODES.iter().position(|it| *it == name).expect("a node");
        // Each has a port for each of its two sidecores.
        format!("127.0.0.1:{}", self.port + at as u16 * 3)
    }

    pub(crate) fn plan(&self, name: &str, config: &str) -> NodePlan {
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

    /// A node with a pool and a copy. Its peers are all other nodes.
    pub(crate) fn member(&self, CopyFile { node, list, pool }: CopyFile<'_>) -> NodePlan {
        let others = NODES[..3].iter().filter(|it| **it != node).map(|it| self.peer(it));
        let replicas = match list {
            [] => String::new(),
            list => format!("replicas = {list:?}\n"),
        };
        let config = format!(
            "[cluster]\ndirectory = {:?}\n{}{}\
             [[pool]]\nname = \"fast\"\ndevices = [{:?}]\n\
             [[volume]]\nname = \"alice\"\nbackend = {{ pool = \"fast\", size = \"16MiB\" }}\n\
             {replicas}{}",
            self.path(&format!("of-{node}")),
            others.collect::<String>(),
            self.keys.clients(&["vm1"]),
            self.path(pool),
            self.keys.allow(&["vm1"])
        );
        let mut plan = self.plan(node, &config);
        plan.directories = Some(format!(
            "volumes = [{:?}]\nsockets = {:?}\nstate = {:?}\n",
            self.home.path(),
            plan.home,
            plan.home.join("state")
        ));
        plan
    }

    pub(crate) fn make_pool(&self, pool: &str, size: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(["pool", "create", "--size", size]).arg(self.path(pool));
        succeeds(&command.output().expect("the binary was built"));
    }

    /// Makes the node's pool, starts it, and has it join the cluster.
    pub(crate) fn start_member(&self, file: CopyFile<'_>) -> Node {
        self.make_pool(file.pool, POOL_SIZE);
        let node = self.member(file).start().expect("the node starts");
        self.join(&node);
        node
    }

    /// Has a node join the cluster.
    pub(crate) fn join(&self, node: &Node) {
        self.join_by(&node.plan().home.join("node.toml"));
    }

    /// Has the node of this configuration join the cluster.
    pub(crate) fn join_by(&self, config: &Path) {
        let token = self.vrio(["cluster", "token"].map(str::to_owned));
        succeeds(&token);
        let token = String::from_utf8(token.stdout).expect("text");
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(["node", "join", token.trim(), "--config"]).arg(config);
        succeeds(&command.output().expect("the binary was built"));
    }

    /// The nodes of a list, each with its copy.
    pub(crate) fn start_members(&self, list: &[&str]) -> Vec<Option<Node>> {
        let start = |node: &&str| {
            let pool = format!("{node}.pool");
            self.start_member(CopyFile { node, list, pool: &pool })
        };
        list.iter().map(start).map(Some).collect()
    }

    /// A VMhost with a disk that names these nodes.
    pub(crate) fn client(&self, list: &[&str]) -> NodePlan {
        let config = format!(
            "{}[[disk]]\nsocket = \"alice.sock\"\nvolume = \"{}/alice\"\nqueues = 2\n{}",
            list.iter().map(|it| self.peer(it)).collect::<String>(),
            list.join(","),
            self.keys.disk()
        );
        self.plan("vm1", &config)
    }
}

pub(crate) fn succeeds(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

/// The state of the copy on a node, as its status has it.
pub(crate) fn copy(node: &Node) -> Option<Value> {
    let status = node.status().ok()?;
    let volumes = status["volumes"].as_array()?.clone();
    let alice = volumes.into_iter().find(|volume| volume["name"] == "alice")?;
    alice.get("copy").cloned()
}

/// Waits until all copies are in sync, and gives the place of the node that serves.
pub(crate) fn wait_until_in_sync(nodes: &[Option<Node>]) -> usize {
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

/// Waits until the volume of a node is closed for a reason with these words.
fn wait_until_closed(node: &mut Node, words: &str) {
    node.wait_until(words, |node| {
        let status = node.status().ok();
        let stopped = status.map(|status| status["volumes"][0]["stopped"].clone());
        stopped.is_some_and(|why| why.as_str().is_some_and(|why| why.contains(words)))
    })
    .expect("the volume is closed");
}

pub(crate) fn work_a_while(guest: &mut StandIn, random: &mut Random) {
    let until = Instant::now() + Duration::from_micros(random.between(500, 200_000));
    let worked = guest
        .work(|guest| Instant::now() >= until && guest.workload.outstanding() >= OUTSTANDING_MIN);
    worked.expect("the promise is kept");
}

/// Works until so many more requests have completed.
pub(crate) fn work_on(guest: &mut StandIn, requests: u64) {
    let wanted = guest.workload.counts.completed + requests;
    guest.work(|guest| guest.workload.counts.completed >= wanted).expect("the disk is served");
}

/// Works until something holds that comes by itself.
pub(crate) fn work_until(guest: &mut StandIn, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "it has not come");
        work_on(guest, 10);
    }
}

pub(crate) fn connect(vm: &mut Node, random: &mut Random) -> StandIn {
    let socket = vm.wait_for_disk("alice").expect("the disk is served");
    let guest = StandIn::connect_with(&socket, RingKind::Split, 2, Mix::OF_ALL, BLOCKS, random);
    guest.expect("connects")
}

#[test]
fn a_guest_goes_on_when_the_node_that_serves_its_disk_goes_in_any_way() {
    let seed = number("KILL_SEED", 1);
    let kills = number("REPLICA_KILLS", KILLS);
    println!("KILL_SEED={seed} REPLICA_KILLS={kills}");
    let mut random = Random::new(seed);
    let (rack, list) = (Rack::new(0), ["io1", "io2"]);
    let mut nodes = rack.start_members(&list);
    let mut vm = rack.client(&list).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    for kill in 0..kills {
        let primary = wait_until_in_sync(&nodes);
        let other = list[1 - primary];
        work_a_while(&mut guest, &mut random);
        let victim = nodes[primary].take().expect("it runs");
        nodes[primary] = Some(match kill % 4 {
            0 => {
                let plan = victim.kill().expect("it ran until now");
                work_on(&mut guest, 100);
                plan.start().expect("the node starts again")
            }
            // A node that stands still knows nothing of its successor when it goes on.
            1 => {
                victim.halt().expect("it runs");
                work_on(&mut guest, 100);
                victim.resume().expect("it is stopped");
                victim
            }
            2 => {
                let moving = std::thread::scope(|scope| {
                    let told =
                        scope.spawn(|| tried(&victim, &format!("volume move alice {other}")));
                    work_on(&mut guest, 100);
                    told.join().expect("the command ends")
                });
                assert!(moving.0, "{}", moving.1);
                refused(&victim, &format!("volume move alice {other}"), "serves it");
                victim
            }
            _ => {
                let plan = victim.stop().expect("it stops in order");
                work_on(&mut guest, 100);
                plan.start().expect("the node starts again")
            }
        });
        work_on(&mut guest, 100);
    }
    let primary = wait_until_in_sync(&nodes);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "the death of a node is a pause, not an error");
    // The other copy has the same content.
    nodes[primary].take().expect("it runs").kill().expect("it ran until now");
    guest.read_all().expect("the other copy is as promised");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}

#[test]
fn copies_that_are_stopped_in_order_lose_nothing_and_go_on_in_any_order() {
    let mut random = Random::new(number("KILL_SEED", 3));
    let (rack, list) = (Rack::new(6), ["io1", "io2"]);
    let mut nodes = rack.start_members(&list);
    let mut vm = rack.client(&list).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    let stop = |nodes: &mut Vec<Option<Node>>, at: usize| {
        nodes[at].take().expect("it runs").stop().expect("it stops in order")
    };
    // One copy alone has the writes, and the guest has not flushed all of them.
    let primary = wait_until_in_sync(&nodes);
    let other = stop(&mut nodes, 1 - primary);
    work_on(&mut guest, 200);
    work_a_while(&mut guest, &mut random);
    let plan = stop(&mut nodes, primary);
    nodes[primary] = Some(plan.start().expect("the node starts again"));
    work_on(&mut guest, 200);
    nodes[1 - primary] = Some(other.start().expect("the node starts again"));
    // Both go, one after the other, and come back in each order.
    for is_reversed in [false, true] {
        let first = wait_until_in_sync(&nodes);
        work_on(&mut guest, 100);
        work_a_while(&mut guest, &mut random);
        let mut plans = [first, 1 - first].map(|at| (at, stop(&mut nodes, at)));
        if is_reversed {
            plans.reverse();
        }
        for (at, plan) in plans {
            nodes[at] = Some(plan.start().expect("the node starts again"));
        }
        work_on(&mut guest, 100);
    }
    wait_until_in_sync(&nodes);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a stop in order is a pause, not an error");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    // A copy that is removed leaves no cut behind.
    let backup = nodes[1 - wait_until_in_sync(&nodes)].as_ref().expect("it runs");
    assert!(tried(backup, "volume snapshots").1.contains("cut."));
    told(backup, "volume remove alice --data");
    assert!(!tried(backup, "volume snapshots").1.contains("cut."));
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}

#[test]
fn a_drained_node_gives_its_volume_away_and_serves_it_while_no_other_node_can() {
    let mut random = Random::new(number("KILL_SEED", 4));
    let (rack, list) = (Rack::new(7), ["io1", "io2"]);
    let mut nodes = rack.start_members(&list);
    let mut vm = rack.client(&list).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    let first = wait_until_in_sync(&nodes);
    work_on(&mut guest, 100);
    let is_primary = |nodes: &[Option<Node>], at: usize| {
        let copy = nodes[at].as_ref().and_then(copy);
        copy.is_some_and(|copy| copy["role"] == "primary")
    };
    // Its guests are listed while they are there, so the command may have another exit code.
    let drained = nodes[first].as_ref().expect("it runs");
    tried(drained, "node drain");
    work_until(&mut guest, || is_primary(&nodes, 1 - first));
    work_on(&mut guest, 100);
    // The drained node is the only one, and guests come over.
    let plan = nodes[1 - first].take().expect("it runs").stop().expect("it stops in order");
    work_on(&mut guest, 100);
    work_until(&mut guest, || is_primary(&nodes, first));
    nodes[1 - first] = Some(plan.start().expect("the node starts again"));
    work_until(&mut guest, || is_primary(&nodes, 1 - first));
    assert_eq!(wait_until_in_sync(&nodes), 1 - first);
    work_on(&mut guest, 100);
    told(nodes[first].as_ref().expect("it runs"), "node drain --undo");
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a drain is no error");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}

#[test]
fn of_three_copies_two_are_lost_one_after_the_other_and_come_back() {
    let mut random = Random::new(number("KILL_SEED", 2));
    let (rack, list) = (Rack::new(1), ["io1", "io2", "io3"]);
    let mut nodes = rack.start_members(&list);
    let mut vm = rack.client(&list).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    let first = wait_until_in_sync(&nodes);
    work_a_while(&mut guest, &mut random);
    let mut plans = vec![(first, nodes[first].take().expect("it runs").kill().expect("it ran"))];
    work_on(&mut guest, 100);
    let second = (0..3).find(|at| {
        nodes[*at].as_ref().and_then(copy).is_some_and(|copy| copy["role"] == "primary")
    });
    let second = second.expect("one of the two serves");
    // On a busy machine the third one may have been silent for too long, and be out for a while.
    let lacks_one = |node: &Node| {
        let copy = copy(node).unwrap_or_default();
        copy["missing"].as_array().is_some_and(|missing| missing.len() == 1)
    };
    let serving = nodes[second].as_mut().expect("it runs");
    serving.wait_until("two copies are in sync", lacks_one).expect("the third one is in sync");
    plans.push((second, nodes[second].take().expect("it runs").kill().expect("it ran")));
    work_on(&mut guest, 100);
    for (at, plan) in plans {
        nodes[at] = Some(plan.start().expect("the node starts again"));
    }
    wait_until_in_sync(&nodes);
    work_on(&mut guest, 100);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "the death of a node is a pause, not an error");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}

#[test]
fn a_copy_that_is_not_what_it_was_is_refused_by_name() {
    let (rack, list) = (Rack::new(2), ["io1", "io2"]);
    let mut nodes = rack.start_members(&list);
    wait_until_in_sync(&nodes);
    let io1 = nodes[0].take().expect("it runs");
    for (words, why) in [
        ("volume rollback alice monday", "would not be rolled back"),
        ("volume schedule alice 1h:24", "copies on several nodes"),
        ("volume resize alice 32MiB", "would keep their size"),
        ("volume move alice io3", "no copy of volume \"alice\""),
        ("volume evict alice io1", "is this node"),
    ] {
        refused(&io1, words, why);
    }
    let plan = nodes[1].take().expect("it runs").stop().expect("it stops in order");
    rack.make_pool("other.pool", POOL_SIZE);
    let wrong = |list, pool| rack.member(CopyFile { node: "io2", list, pool });
    for (wrong, why) in [
        (wrong(&["io2", "io1"], "io2.pool"), "Put the old ones back"),
        (wrong(&list, "other.pool"), "Put the old ones back"),
        (wrong(&[], "io2.pool"), "the file has no \"replicas\" for it"),
    ] {
        let mut node = wrong.start().expect("the node starts");
        wait_until_closed(&mut node, why);
        node.stop().expect("it stops in order");
    }
    nodes = vec![Some(io1), Some(plan.start().expect("the node starts again"))];
    let primary = wait_until_in_sync(&nodes);
    // Both are gone at once, and one comes back without its promises.
    let [io1, io2] = [0, 1].map(|at| nodes[at].take().expect("it runs"));
    let order = if primary == 0 { [io1, io2] } else { [io2, io1] };
    order.iter().for_each(|node| node.halt().expect("it runs"));
    let mut plans = order.map(|node| node.kill().expect("it was there"));
    plans.sort_by_key(|plan| plan.home.clone());
    let [plan1, plan2] = plans;
    let promises = plan2.home.join("state/own.members/alice");
    std::fs::remove_file(&promises).expect("its private file");
    let (io1, mut io2) = (plan1.start().expect("starts"), plan2.start().expect("starts"));
    io2.wait_until("the copy stops by name", |node| {
        let copy = copy(node).unwrap_or_default();
        copy["why"].as_str().is_some_and(|why| why.contains("it has no state"))
    })
    .expect("it is refused");
    refused(&io1, "volume evict alice io2", "acknowledged writes may be on io2 alone");
    told(&io1, "volume evict alice io2 --force");
    let plan2 = io2.stop().expect("it stops in order");
    let nodes = [Some(io1), Some(plan2.start().expect("starts"))];
    assert_eq!(wait_until_in_sync(&nodes), 0, "the other copy is filled again");
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}

#[test]
fn a_node_with_another_list_is_no_second_primary() {
    let rack = Rack::new(3);
    let start = |node, list, pool| rack.start_member(CopyFile { node, list, pool });
    let mut io1 = start("io1", &["io1", "io2"], "io1.pool");
    let serves = |node: &Node| copy(node).is_some_and(|copy| copy["role"] == "primary");
    io1.wait_until("it serves", serves).expect("the first node of the list");
    // Each is number 0 by its own file.
    let mut io2 = start("io2", &["io2", "io1"], "io2.pool");
    io2.wait_until("its copy stops by name", |node| {
        let copy = copy(node).unwrap_or_default();
        copy["why"].as_str().is_some_and(|why| why.contains("another list of nodes"))
    })
    .expect("it is refused");
    assert!(!serves(&io2) && serves(&io1));
    for node in [io1, io2] {
        node.stop().expect("a node stops in order");
    }
}

/// The kills until one of them is proved before the leases have ended: on a host that is so busy
/// that leases end first, another kill follows.
const PROOFS: usize = 12;

/// A node's log, with that of its agent.
fn log(plan: &NodePlan) -> String {
    std::fs::read_to_string(plan.home.join("log")).expect("a log")
}

fn wait_until_it_serves(node: &mut Node) {
    let serves = |node: &Node| copy(node).is_some_and(|copy| copy["role"] == "primary");
    node.wait_until("it serves", serves).expect("the other node takes over");
}

#[test]
fn a_backup_takes_over_when_the_end_of_the_primary_is_proved_or_its_leases_end() {
    let (rack, list) = (Rack::new(8), ["io1", "io2"]);
    let mut nodes = rack.start_members(&list);
    // The agent is killed as well, and nothing is proved.
    let primary = wait_until_in_sync(&nodes);
    let victim = nodes[primary].take().expect("it runs");
    kill_agent(&victim);
    let plan = victim.kill().expect("it ran until now");
    wait_until_it_serves(nodes[1 - primary].as_mut().expect("it runs"));
    nodes[primary] = Some(plan.start().expect("it starts again"));
    // The registry is away when the process ends, and comes back.
    let primary = wait_until_in_sync(&nodes);
    let (registry, elsewhere) = (rack.path("registry"), rack.path("elsewhere"));
    std::fs::rename(&registry, &elsewhere).expect("it is moved");
    let plan = nodes[primary].take().expect("it runs").kill().expect("it ran until now");
    let other = nodes[1 - primary].as_mut().expect("it runs");
    let is_tried = |_: &Node| log(&plan).contains("the node's process is not told");
    other.wait_until("the agent cannot tell", is_tried).expect("it says so");
    std::fs::rename(&elsewhere, &registry).expect("it is moved back");
    wait_until_it_serves(other);
    nodes[primary] = Some(plan.start().expect("it starts again"));
    for _ in 0..PROOFS {
        let primary = wait_until_in_sync(&nodes);
        let plan = nodes[primary].take().expect("it runs").kill().expect("it ran until now");
        // The next process has other lives.
        nodes[primary] = Some(plan.start().expect("it starts again"));
        let other = nodes[1 - primary].as_mut().expect("it runs");
        wait_until_it_serves(other);
        if log(other.plan()).contains("as is proved: this copy takes over at once") {
            return;
        }
    }
    panic!("no end was proved before the leases ended");
}
