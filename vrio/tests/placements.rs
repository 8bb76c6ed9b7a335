//! Volumes that the cluster places on real nodes: they are created from any node, outlive the node
//! that serves them, are opened again while the registry is away, and are removed.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::{Value, json};
use testbed::nodes::{Node, NodePlan};
use testbed::stand_in::StandIn;

use crate::churn::done;
use crate::pools::{refused, told};
use crate::replicas::{
    PATIENCE, POOL_SIZE, Rack, connect, succeeds, work_a_while, work_on, work_until,
};

/// A node with a pool, in a rack. No peer and no volume is in its file.
fn member(rack: &Rack, name: &str) -> NodePlan {
    let config = format!(
        "[cluster]\ndirectory = {:?}\nvolume-keys = {:?}\ndomain = [\"rack=r-{name}\"]\n\
         [[pool]]\nname = \"fast\"\nclass = \"ssd\"\ndevices = [{:?}]\n",
        rack.path(&format!("of-{name}")),
        rack.path(&format!("keys-of-{name}")),
        rack.path(&format!("{name}.pool"))
    );
    let mut plan = rack.plan(name, &config);
    plan.directories = Some(format!(
        "volumes = [{:?}]\nsockets = {:?}\nstate = {:?}\n",
        rack.path(""),
        plan.home,
        plan.home.join("state")
    ));
    plan
}

pub(crate) fn start(rack: &Rack, name: &str) -> Node {
    start_with_pool(rack, name, POOL_SIZE)
}

/// Starts a node with a pool of this size, and has it join the cluster.
pub(crate) fn start_with_pool(rack: &Rack, name: &str, size: &str) -> Node {
    rack.make_pool(&format!("{name}.pool"), size);
    let node = member(rack, name).start().expect("the node starts");
    rack.join(&node);
    node
}

/// Runs `vrio` with the directory of a node.
pub(crate) fn vrio(rack: &Rack, words: &str, of: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(words.split(' ')).arg("--directory").arg(rack.path(of));
    command.output().expect("the binary was built")
}

pub(crate) fn fails(output: &Output, wanted: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(wanted), "{wanted}: {output:?}");
}

/// Waits until the status of the cluster is so.
pub(crate) fn wait(rack: &Rack, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let output = vrio(rack, "cluster status --json", "operator");
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        if is(&status) {
            return status;
        }
        assert!(Instant::now() < until, "{what}: {status:#}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

pub(crate) fn wait_for_nodes(rack: &Rack, count: usize) {
    wait(rack, "the nodes are present with their pools", |status| {
        let nodes = status["nodes"].as_array().expect("a list").clone();
        nodes.iter().filter(|node| node["state"] == "present").count() == count
    });
}

fn state_of(status: &Value, volume: &str) -> String {
    let volumes = status["volumes"].as_array().expect("a list");
    let found = volumes.iter().find(|it| it["name"] == volume);
    found.map_or("none", |it| it["state"].as_str().expect("a word")).to_owned()
}

pub(crate) fn wait_for_state(rack: &Rack, volume: &str, state: &str) -> Value {
    wait(rack, state, |status| state_of(status, volume) == state)
}

#[test]
fn a_volume_is_created_from_a_third_node_and_outlives_the_node_that_serves_it() {
    let mut random = Random::new(7);
    let rack = Rack::new(4);
    let mut io1 = Some(start(&rack, "io1"));
    let (mut io2, io3) = (start(&rack, "io2"), start(&rack, "io3"));
    let vm1 = rack.plan("vm1", &format!("[cluster]\ndirectory = {:?}\n", rack.path("of-vm1")));
    let mut vm1 = vm1.start().expect("the VMhost starts");
    rack.join(&vm1);
    wait_for_nodes(&rack, 4);
    let create = "volume create alice --size 16MiB --on io1,io2 --allow vm1";
    succeeds(&vrio(&rack, create, "of-io3"));
    fails(&vrio(&rack, create, "of-io3"), "the cluster has a volume \"alice\" already");
    // The VMhost knows the nodes of a volume that its disks may use.
    vm1.wait_until("its peers", |vm1| {
        vm1.status().is_ok_and(|it| it["peers"].as_array().is_some_and(|all| all.len() == 2))
    })
    .expect("the agent adds them");
    told(&vm1, "disk add alice --socket alice.sock --volume alice");
    let mut guest = connect(&mut vm1, &mut random);
    work_a_while(&mut guest, &mut random);
    wait_for_state(&rack, "alice", "well");
    // The node that serves dies. Its guest goes on, and people are told.
    let plan = io1.take().expect("it runs").kill().expect("it ran until now");
    work_on(&mut guest, 100);
    let degraded = wait(&rack, "the copy of io1 lacks writes", |status| {
        let told = status["problems"].to_string();
        told.contains("volume alice has 1 of 2 copies in sync; the copy of io1 lacks writes for")
            && told.contains("node io1 is away")
    });
    assert_eq!(degraded["volumes"][0]["primary"], "io2", "{degraded:#}");
    io1 = Some(plan.start().expect("the node starts again"));
    wait_for_state(&rack, "alice", "well");
    work_on(&mut guest, 100);
    // Neither the node nor its guests need the registry until the copies in sync change.
    let [content, aside] = ["registry/registry", "aside"].map(|name| rack.path(name));
    let plan = io1.take().expect("it runs").stop().expect("it stops in order");
    work_on(&mut guest, 100);
    wait(&rack, "io2 has gone on without it", |status| {
        status["volumes"][0]["in_sync"].as_array().is_some_and(|all| all.len() == 1)
    });
    move_registry(&rack, &content, &aside);
    let mut node = plan.start().expect("the node starts while the registry is away");
    // By the record that it knows it can be in sync: it may have ended before io2 went on.
    node.wait_until("its placed volume is open", |node| {
        let role = node.status().map(|it| it["volumes"][0]["copy"]["role"].clone());
        role.is_ok_and(|role| role == "outside" || role == "backup")
    })
    .expect("it is kept");
    work_on(&mut guest, 100);
    move_registry(&rack, &aside, &content);
    io1 = Some(node);
    wait_for_state(&rack, "alice", "well");
    follow_placement(&mut vm1, &mut guest);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "the death of a node is a pause, not an error");
    guest.disconnect();
    vm1.stop().expect("it stops in order");
    let vm1 = remove_placed(&rack, &mut io2, &mut random);
    // The name is free, and its copies begin anew.
    succeeds(&vrio(&rack, create, "operator"));
    for node in [io1.expect("it runs"), io2, io3, vm1] {
        node.stop().expect("a node stops in order");
    }
}

/// Gives the content of the registry another name, between the changes of others: a process that
/// has read it would write it again.
fn move_registry(rack: &Rack, from: &Path, to: &Path) {
    let lock = std::fs::File::open(rack.path("registry/lock")).expect("the registry has it");
    lock.lock().expect("no process holds it for long");
    std::fs::rename(from, to).expect("ours");
}

/// A VMhost whose file names the volume alone, and no peer, starts with the disk. The volume is
/// removed when no disk uses it. Gives the VMhost.
fn remove_placed(rack: &Rack, io2: &mut Node, random: &mut Random) -> Node {
    wait(rack, "its last user is gone", |status| status["volumes"][0]["users"] == 0);
    let disk = "[[disk]]\nsocket = \"alice.sock\"\nvolume = \"alice\"\n";
    let config = format!("[cluster]\ndirectory = {:?}\n{disk}", rack.path("of-vm1"));
    let mut vm1 = rack.plan("vm1", &config).start().expect("the VMhost starts again");
    let guest = connect(&mut vm1, random);
    let remove = "volume remove alice --cluster --data";
    wait(rack, "its user is told", |status| status["volumes"][0]["users"] != 0);
    fails(&vrio(rack, remove, "of-io3"), "disks use volume \"alice\"");
    guest.disconnect();
    told(&vm1, "disk remove alice");
    wait(rack, "its user is gone", |status| status["volumes"][0]["users"] == 0);
    succeeds(&vrio(rack, remove, "of-io3"));
    wait_until_empty(io2);
    vm1
}

/// Runs `vrio` as the operator while the guest works.
fn meanwhile(rack: &Rack, guest: &mut StandIn, words: &str) {
    let output = std::thread::scope(|scope| {
        let running = scope.spawn(|| vrio(rack, words, "operator"));
        work_until(guest, || running.is_finished());
        running.join().expect("the command ends")
    });
    succeeds(&output);
    work_on(guest, 100);
}

/// The nodes of the volume, when no copy comes or goes any more.
pub(crate) fn nodes_of(rack: &Rack, wanted: &[&str]) -> Value {
    wait(rack, "its copies are on the wanted nodes", |status| {
        let volume = &status["volumes"][0];
        let is_so = |key: &str| volume[key] == json!(wanted);
        volume["state"] == "well" && is_so("nodes") && is_so("in_sync")
    })
}

/// Waits until a node has nothing of any volume.
fn wait_until_empty(node: &mut Node) {
    let until = Instant::now() + PATIENCE;
    let is_empty = |list: &Value| list.as_array().is_some_and(Vec::is_empty);
    loop {
        let status = node.status().expect("it answers");
        if is_empty(&status["volumes"]) && is_empty(&status["pools"][0]["volumes"]) {
            return;
        }
        assert!(Instant::now() < until, "it has something: {status:#}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn the_copies_of_a_volume_move_to_other_nodes_while_its_guest_works() {
    let mut random = Random::new(8);
    let rack = Rack::new(10);
    let [mut io1, mut io2, mut io3] = ["io1", "io2", "io3"].map(|name| start(&rack, name));
    let vm1 = rack.plan("vm1", &format!("[cluster]\ndirectory = {:?}\n", rack.path("of-vm1")));
    let mut vm1 = vm1.start().expect("the VMhost starts");
    rack.join(&vm1);
    wait_for_nodes(&rack, 4);
    succeeds(&vrio(&rack, "volume create alice --size 16MiB --on io1 --allow vm1", "operator"));
    vm1.wait_until("its peers", |vm1| {
        vm1.status().is_ok_and(|it| it["peers"].as_array().is_some_and(|all| all.len() == 1))
    })
    .expect("the agent adds them");
    told(&vm1, "disk add alice --socket alice.sock --volume alice");
    let mut guest = connect(&mut vm1, &mut random);
    work_a_while(&mut guest, &mut random);
    let last = "volume copies alice --remove io1";
    fails(&vrio(&rack, last, "operator"), "the last writes would go");
    // One copy becomes two, and both move.
    meanwhile(&rack, &mut guest, "volume copies alice --add io2");
    nodes_of(&rack, &["io1", "io2"]);
    fails(&vrio(&rack, "volume copies alice --add io2", "operator"), "it has a copy");
    meanwhile(&rack, &mut guest, "volume copies alice --replace io2 --by io3");
    nodes_of(&rack, &["io1", "io3"]);
    wait_until_empty(&mut io2);
    meanwhile(&rack, &mut guest, "volume copies --all --replace io1");
    nodes_of(&rack, &["io3", "io2"]);
    wait_until_empty(&mut io1);
    meanwhile(&rack, &mut guest, "volume copies alice --remove io3");
    wait_until_empty(&mut io3);
    nodes_of(&rack, &["io2"]);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a guest notices nothing");
    guest.disconnect();
    for node in [io1, io2, io3, vm1] {
        node.stop().expect("a node stops in order");
    }
}

#[test]
fn a_copy_of_a_node_that_stays_away_is_made_anew_on_another_node() {
    let mut random = Random::new(9);
    let rack = Rack::new(9);
    let [io1, io2, io3] = ["io1", "io2", "io3"].map(|name| start(&rack, name));
    let vm1 = rack.plan("vm1", &format!("[cluster]\ndirectory = {:?}\n", rack.path("of-vm1")));
    let mut vm1 = vm1.start().expect("the VMhost starts");
    rack.join(&vm1);
    wait_for_nodes(&rack, 4);
    let create = "volume create alice --size 16MiB --on io1,io2 --allow vm1 --rebuild-after 1h";
    succeeds(&vrio(&rack, create, "operator"));
    vm1.wait_until("its peers", |vm1| {
        vm1.status().is_ok_and(|it| it["peers"].as_array().is_some_and(|all| all.len() == 2))
    })
    .expect("the agent adds them");
    told(&vm1, "disk add alice --socket alice.sock --volume alice");
    let mut guest = connect(&mut vm1, &mut random);
    work_a_while(&mut guest, &mut random);
    let away = io2.kill().expect("it ran until now");
    wait(&rack, "people are told what will be done", |status| {
        let told = status["problems"].to_string();
        told.contains("60 min after it went another node gets a copy in its stead")
    });
    succeeds(&vrio(&rack, "volume copies alice --rebuild-after 1s", "operator"));
    work_until(&mut guest, || {
        let output = vrio(&rack, "cluster status --json", "operator");
        let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        status["volumes"][0]["in_sync"] == json!(["io1", "io3"])
    });
    // The node that is back has nothing of the volume any more.
    let mut io2 = away.start().expect("the node starts again");
    wait_until_empty(&mut io2);
    nodes_of(&rack, &["io1", "io3"]);
    // The new copy has all of it.
    let io1 = io1.kill().expect("it ran until now");
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a guest notices nothing");
    guest.disconnect();
    let io1 = io1.start().expect("the node starts again");
    for node in [io1, io2, io3, vm1] {
        node.stop().expect("a node stops in order");
    }
}

/// A running disk with another list of peers than the nodes of its volume: the agent of its node
/// gives it these nodes, the guest notices nothing, and the node is as its file says.
fn follow_placement(vm1: &mut Node, guest: &mut StandIn) {
    let errors = guest.workload.counts.errors;
    for other in [json!(["io2", "io1"]), json!(["io2"])] {
        done(vm1, "PUT", "/v1/disks/alice/peers", &json!({ "peers": other }));
        work_on(guest, 100);
        vm1.wait_until("the disk has the nodes of the volume", |node| {
            let status = node.status().expect("it answers");
            status["disks"][0]["volume"] == "io1,io2/alice"
        })
        .expect("the agent gives them");
        work_on(guest, 100);
    }
    assert_eq!(guest.workload.counts.errors, errors);
}

#[test]
fn a_volume_that_cannot_be_placed_is_refused_by_name_with_numbers() {
    let rack = Rack::new(5);
    let [io1, io2] = ["io1", "io2"].map(|name| start(&rack, name));
    wait_for_nodes(&rack, 2);
    for (words, wanted) in [
        ("--size 16MiB --replicas 3", "3 copies of 16MiB cannot be placed: 2 nodes can have"),
        ("--size 10GiB", "io1: pool fast has"),
        ("--size 16MiB --pool-class hdd", "io2: it has no pool of class \"hdd\""),
        ("--size 16MiB --domain room", "has no \"domain\" of kind \"room\""),
        ("--size 16MiB --on io1,io9", "no node \"io9\""),
        ("--size 16MiB --on io1,io1", "in the list twice"),
        ("--size 16MiB --allow vm9", "no node \"vm9\""),
        ("--size 1000B", "no sectors"),
        ("--size 0B", "no sectors"),
    ] {
        fails(&vrio(&rack, &format!("volume create bob {words}"), "operator"), wanted);
    }
    fails(&vrio(&rack, "volume remove bob --cluster --data", "operator"), "has placed no volume");
    // A volume of a node's own is not touched: not by a placement, and not by its removal.
    told(&io1, "volume add bob --pool fast --size 1MiB");
    succeeds(&vrio(&rack, "volume create bob --size 16MiB --wait 0", "operator"));
    wait(&rack, "the node says why it does not open it", |status| {
        status["problems"].to_string().contains("io1: node io1 has another volume of this name")
    });
    told(&io1, "volume remove bob");
    wait(&rack, "a volume of another time is not taken for a copy", |status| {
        status["problems"].to_string().contains("has a volume bob already, of another time")
    });
    succeeds(&vrio(&rack, "volume remove bob --cluster --data", "operator"));
    let volumes = io1.status().expect("it answers")["pools"][0]["volumes"].clone();
    assert_eq!(volumes[0]["name"], "bob", "it is the node's own: {volumes:#}");
    // A copy of a placed volume has its rules, as each copy.
    succeeds(&vrio(&rack, "volume create ann --size 16MiB --domain rack", "of-io1"));
    refused(&io1, "volume resize ann 32MiB", "would keep their size");
    // A node that cannot read what it has kept opens no placed volume, and says so of each.
    let plan = io1.stop().expect("a node stops in order");
    let kept = plan.home.join("state/own.cluster/placements.json");
    let whole = std::fs::read(&kept).expect("its agent keeps what is placed");
    std::fs::write(&kept, &whole[..whole.len() / 2]).expect("a damaged file");
    let io1 = plan.start().expect("the node starts");
    let damaged = wait(&rack, "the node says so", |status| {
        status["problems"].to_string().contains("cannot be read, so it opens none")
    });
    assert_ne!(state_of(&damaged, "ann"), "well");
    let plan = io1.stop().expect("a node stops in order");
    std::fs::write(&kept, &whole).expect("the file is back");
    let io1 = plan.start().expect("the node starts");
    wait_for_state(&rack, "ann", "well");
    for node in [io1, io2] {
        node.stop().expect("a node stops in order");
    }
}
