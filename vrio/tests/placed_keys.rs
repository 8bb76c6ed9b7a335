//! Placed volumes whose copies are encrypted: each node reads the key from a file of its own, and
//! names the file that is missing.

use std::fs;
use std::path::Path;
use std::process::Command;

use random::Random;
use serde_json::Value;
use testbed::nodes::Node;

use crate::placements::{fails, start, vrio, wait, wait_for_nodes, wait_for_state};
use crate::pools::told;
use crate::replicas::{Rack, connect, succeeds, work_on};

/// The keys of the volumes and snapshots of a node's pool with this name, or with a snapshot's name
/// behind it.
fn keys_of(node: &Node, volume: &str) -> Vec<Value> {
    let status = node.status().expect("it answers");
    let all = status["pools"][0]["volumes"].as_array().expect("a list");
    let is_its = |it: &&Value| it["name"].as_str().is_some_and(|name| name.starts_with(volume));
    all.iter().filter(is_its).map(|it| it["key"].clone()).collect()
}

fn make_key(file: &Path) {
    let mut make = Command::new(env!("CARGO_BIN_EXE_vrio"));
    make.args(["key", "new", "--volume"]).arg(file);
    succeeds(&make.output().expect("the binary was built"));
}

/// Waits until a copy says that it wants this file.
fn wait_until_named(rack: &Rack, file: &Path) {
    let named = format!("{file:?} is not there");
    wait(rack, "the node names the file", |status| {
        let problems = status["problems"].as_array().expect("a list");
        problems.iter().any(|it| it.as_str().is_some_and(|it| it.contains(&named)))
    });
}

#[test]
fn the_copies_of_an_encrypted_volume_need_the_key_on_each_node() {
    let mut random = Random::new(101);
    let rack = Rack::new(24);
    let [io1, io2, mut io3] = ["io1", "io2", "io3"].map(|name| start(&rack, name));
    wait_for_nodes(&rack, 3);
    let file = |node: &str| rack.path(&format!("keys-of-{node}/alice.key"));
    for node in ["io1", "io2", "io3"] {
        fs::create_dir(file(node).parent().expect("a directory")).expect("a new directory");
    }
    make_key(&file("io1"));
    let create = "volume create alice --size 16MiB --on io1,io2 --allow io3 --encrypt --wait 0";
    succeeds(&vrio(&rack, create, "operator"));
    // The copy without its key waits, and says which file it wants.
    wait_until_named(&rack, &file("io2"));
    fs::copy(file("io1"), file("io2")).expect("the operator brings the key");
    wait_for_state(&rack, "alice", "well");
    told(&io3, "disk add alice --socket alice.sock --volume alice --queues 2");
    let mut guest = connect(&mut io3, &mut random);
    work_on(&mut guest, 500);
    for node in [&io1, &io2] {
        let keys = keys_of(node, "alice");
        assert!(!keys.is_empty() && keys.iter().all(Value::is_string), "{keys:?}");
    }
    // A volume that begins as a snapshot has the key of its origin, and no other key.
    let taken = told(&io1, "volume snapshot alice --name monday");
    let snapshot = taken.split_whitespace().find(|word| word.starts_with("alice@monday"));
    let snapshot = snapshot.expect("it is named").trim_end_matches([',', ':', '.', ';']);
    let from = format!("volume create ben --on io1,io2 --from {snapshot}");
    fails(&vrio(&rack, &format!("{from} --encrypt=eve"), "operator"), "has its key, \"alice\"");
    succeeds(&vrio(&rack, &from, "operator"));
    assert!(keys_of(&io2, "ben").iter().all(Value::is_string));
    // The other copy serves with its key, and a node that starts again reads the key again.
    let plan = io1.kill().expect("it ran until now");
    work_on(&mut guest, 500);
    let io1 = plan.start().expect("the node starts again");
    wait_for_state(&rack, "alice", "well");
    // Without its key a copy does not serve, and is no plain volume either.
    fs::remove_file(file("io1")).expect("the key is there");
    let plan = io1.stop().expect("a node stops in order");
    work_on(&mut guest, 100);
    let io1 = plan.start().expect("a node without a key of a volume starts");
    wait_until_named(&rack, &file("io1"));
    fs::copy(file("io2"), file("io1")).expect("the operator brings the key");
    wait_for_state(&rack, "alice", "well");
    work_on(&mut guest, 100);
    // The other node has another key from now on, in the place of the old one.
    let new = rack.path("new.key");
    make_key(&new);
    let rekey = format!("volume rekey alice --key {}", new.to_str().expect("a plain name"));
    told(&io2, &rekey);
    fs::rename(&new, file("io2")).expect("the operator replaces the file");
    let plan = io2.kill().expect("it ran until now");
    work_on(&mut guest, 100);
    let io2 = plan.start().expect("the node starts again");
    wait_for_state(&rack, "alice", "well");
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a guest notices nothing");
    guest.disconnect();
    for node in [io3, io2, io1] {
        node.stop().expect("a node stops in order");
    }
}
