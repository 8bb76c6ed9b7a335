//! A guest on a node that has a copy of its volume: the node serves it without any other node, and
//! the disk follows the volume to other nodes and back.

use random::Random;
use serde_json::Value;
use testbed::nodes::Node;

use crate::placements::{start, vrio, wait_for_nodes, wait_for_state};
use crate::pools::{refused, told};
use crate::replicas::{
    CopyFile, POOL_SIZE, Rack, connect, copy, succeeds, wait_until_in_sync, work_on,
};

fn serves(node: &Node) -> bool {
    copy(node).is_some_and(|copy| copy["role"] == "primary")
}

#[test]
fn a_guest_beside_a_copy_needs_no_other_node() {
    let mut random = Random::new(95);
    let (rack, list) = (Rack::new(22), ["io1", "io2"]);
    let start = |node, more: &str| {
        rack.make_pool(&format!("{node}.pool"), POOL_SIZE);
        let pool = format!("{node}.pool");
        let mut plan = rack.member(CopyFile { node, list: &list, pool: &pool });
        let users = |names: &[&str]| rack.keys.allow(names);
        plan.config = plan.config.replace(&users(&["vm1"]), &users(&["vm1", "io1"])) + more;
        let node = plan.start().expect("the node starts");
        rack.join(&node);
        node
    };
    let disk = format!(
        "[[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1,io2/alice\"\nqueues = 2\n{}",
        rack.keys.disk()
    );
    let (io1, io2) = (start("io1", &disk), start("io2", ""));
    let mut nodes = [Some(io1), Some(io2)];
    assert_eq!(wait_until_in_sync(&nodes), 0, "the first one of the list begins");
    let mut guest = connect(nodes[0].as_mut().expect("it runs"), &mut random);
    work_on(&mut guest, 500);
    // No other node is there.
    let other = nodes[1].take().expect("it runs").kill().expect("it ran until now");
    work_on(&mut guest, 500);
    nodes[1] = Some(other.start().expect("the node starts again"));
    wait_until_in_sync(&nodes);
    // The other copy serves, and its node dies: the copy beside the guest has all of it.
    let [io1, io2] = &nodes;
    let (io1, io2) = (io1.as_ref().expect("it runs"), io2.as_ref().expect("it runs"));
    told(io1, "volume move alice io2");
    work_on(&mut guest, 500);
    assert!(serves(io2) && !serves(io1));
    assert_eq!(wait_until_in_sync(&nodes), 1);
    let other = nodes[1].take().expect("it runs").kill().expect("it ran until now");
    work_on(&mut guest, 500);
    guest.read_all().expect("all of the disk is as promised");
    assert!(serves(nodes[0].as_ref().expect("it runs")));
    assert_eq!(guest.workload.counts.errors, 0, "the death of a node is a pause, not an error");
    nodes[1] = Some(other.start().expect("the node starts again"));
    wait_until_in_sync(&nodes);
    // A volume of one node is no list, and the node has no session about it.
    let io1 = nodes[0].as_ref().expect("it runs");
    refused(io1, "disk add b --socket b.sock --volume io1/alice", "without a peer");
    guest.disconnect();
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}

/// The nodes that the disk of a node asks.
fn volume_of(node: &Node) -> Value {
    node.status().expect("it answers")["disks"][0]["volume"].clone()
}

#[test]
fn a_guest_beside_a_copy_that_the_cluster_has_placed_follows_it() {
    let mut random = Random::new(96);
    let rack = Rack::new(23);
    let [mut io1, io2, io3] = ["io1", "io2", "io3"].map(|name| start(&rack, name));
    wait_for_nodes(&rack, 3);
    let create = "volume create alice --size 16MiB --on io1,io2 --allow io1,io3";
    succeeds(&vrio(&rack, create, "operator"));
    wait_for_state(&rack, "alice", "well");
    told(&io1, "disk add alice --socket alice.sock --volume alice --queues 2");
    assert_eq!(volume_of(&io1), "io1,io2/alice");
    let mut guest = connect(&mut io1, &mut random);
    work_on(&mut guest, 500);
    told(&io1, "volume move alice io2");
    work_on(&mut guest, 500);
    // The copy beside the guest leaves, and comes back in another place.
    let moved = |words: &str, guest: &mut testbed::stand_in::StandIn| {
        std::thread::scope(|scope| {
            let running = scope.spawn(|| vrio(&rack, words, "operator"));
            while !running.is_finished() {
                work_on(guest, 20);
            }
            succeeds(&running.join().expect("the command ends"));
        });
    };
    moved("volume copies alice --replace io1 --by io3", &mut guest);
    io1.wait_until("the copy beside it has gone", |io1| volume_of(io1) == "io2,io3/alice")
        .expect("its agent says so");
    work_on(&mut guest, 500);
    moved("volume copies alice --replace io2 --by io1", &mut guest);
    io1.wait_until("a copy is beside it", |io1| {
        volume_of(io1).as_str().is_some_and(|volume| volume.contains("io1"))
    })
    .expect("its agent says so");
    io2.stop().expect("a node stops in order");
    io3.kill().expect("it ran until now");
    work_on(&mut guest, 500);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a guest notices nothing");
    guest.disconnect();
    io1.stop().expect("a node stops in order");
}
