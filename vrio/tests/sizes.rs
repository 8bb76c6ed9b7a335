//! Placed volumes that get larger on real nodes while a guest uses them.

use std::time::{Duration, Instant};

use random::Random;
use serde_json::{Value, json};
use testbed::nodes::Node;
use testbed::stand_in::StandIn;

use crate::placements::{fails, nodes_of, start, vrio, wait, wait_for_nodes, wait_for_state};
use crate::pools::{refused, told};
use crate::replicas::{PATIENCE, Rack, connect, succeeds, work_a_while, work_on, work_until};

/// Blocks of 4 KiB of the volume before and after: the guest uses all of them.
const BLOCKS: u64 = 1024;
const GROWN: u64 = 2 * BLOCKS;

/// The size of the copy of a node in its pool.
fn has_bytes(node: &Node) -> u64 {
    let status = node.status().ok();
    let copy = status.map(|status| status["volumes"][0]["copy"].clone());
    copy.and_then(|copy| copy["has_bytes"].as_u64()).unwrap_or_default()
}

/// The guest hears that its disk has so many blocks, and uses all of them.
fn hear(mut guest: StandIn, blocks: u64) -> StandIn {
    let until = Instant::now() + PATIENCE;
    loop {
        let (same, told) = guest.look_at_size().expect("the disk answers");
        guest = same;
        if let Some(told) = told {
            assert_eq!(told, blocks, "it has one other size");
            guest.checker.grow(blocks);
            work_on(&mut guest, 200);
            return guest;
        }
        assert!(Instant::now() < until, "the guest is not told");
        work_on(&mut guest, 10);
    }
}

fn in_sync(rack: &Rack) -> Value {
    let output = vrio(rack, "cluster status --json", "operator");
    let status: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    status["volumes"][0]["in_sync"].clone()
}

/// The size that is asked for while one node is away and another node is killed: commands, guests
/// and copies get it all the same, and no read is wrong.
#[test]
fn a_volume_grows_under_its_guest_while_the_node_that_serves_dies() {
    let mut random = Random::new(11);
    let rack = Rack::new(11);
    let [io1, io2, io3] = ["io1", "io2", "io3"].map(|name| start(&rack, name));
    let vm1 = rack.plan("vm1", &format!("[cluster]\ndirectory = {:?}\n", rack.path("of-vm1")));
    let mut vm1 = vm1.start().expect("the VMhost starts");
    rack.join(&vm1);
    wait_for_nodes(&rack, 4);
    let create = "volume create alice --size 4MiB --on io1,io2,io3 --allow vm1";
    succeeds(&vrio(&rack, create, "operator"));
    vm1.wait_until("its peers", |vm1| {
        vm1.status().is_ok_and(|it| it["peers"].as_array().is_some_and(|all| all.len() == 3))
    })
    .expect("the agent adds them");
    told(&vm1, "disk add alice --socket alice.sock --volume alice");
    let mut guest = connect(&mut vm1, &mut random);
    work_a_while(&mut guest, &mut random);
    let io3 = io3.kill().expect("it ran until now");
    work_until(&mut guest, || in_sync(&rack) == json!(["io1", "io2"]));
    // The node that serves dies when copies have grown.
    let io1 = std::thread::scope(|scope| {
        let resize = || vrio(&rack, "volume resize alice 8MiB --cluster", "of-io2");
        let running = scope.spawn(resize);
        work_until(&mut guest, || has_bytes(&io1).max(has_bytes(&io2)) == GROWN * 4096);
        let io1 = io1.kill().expect("it ran until now").start().expect("it starts again");
        work_until(&mut guest, || running.is_finished());
        let output = running.join().expect("the command ends");
        succeeds(&output);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(text, "done: resize volume \"alice\" from 4MiB to 8MiB\n");
        io1
    });
    let mut guest = hear(guest, GROWN);
    // The node that was away gets the size, and all that it lacks.
    let mut io3 = io3.start().expect("it starts again");
    work_until(&mut guest, || in_sync(&rack) == json!(["io1", "io2", "io3"]));
    assert_eq!([&io1, &io2, &io3].map(has_bytes), [GROWN * 4096; 3]);
    let status = nodes_of(&rack, &["io1", "io2", "io3"]);
    assert_eq!(status["volumes"][0]["size_bytes"], GROWN * 4096, "{status:#}");
    work_on(&mut guest, 200);
    // Each of them has each write: the last two are killed.
    let plans = [io1, io2].map(|node| node.kill().expect("it ran until now"));
    let [io1, io2] = plans.map(|plan| plan.start().expect("it starts again"));
    work_on(&mut guest, 200);
    wait_for_state(&rack, "alice", "well");
    for to in ["io3", "io2", "io1"] {
        let serves = |node: &&Node| {
            let status = node.status().expect("it answers");
            status["volumes"][0]["copy"]["role"] == "primary"
        };
        let primary = [&io1, &io2, &io3].into_iter().find(serves).expect("one node serves");
        told(primary, &format!("volume move alice {to}"));
        guest.read_all().expect("all of the disk is as promised");
    }
    assert_eq!(guest.workload.counts.errors, 0, "a guest notices a larger disk alone");
    refuse_sizes(&rack, &io1);
    guest.disconnect();
    io3.wait_until("it is as large after a restart", |node| has_bytes(node) == GROWN * 4096)
        .expect("it stays");
    for node in [io1, io2, io3, vm1] {
        node.stop().expect("a node stops in order");
    }
}

/// A size that cannot be is refused with the way out, and changes nothing.
fn refuse_sizes(rack: &Rack, io1: &Node) {
    for (words, wanted) in [
        ("alice 4MiB --cluster", "its guests have 8MiB, and a volume with copies"),
        ("alice 16MiB --cluster --shrink", "gets no smaller size"),
        ("alice 10GiB --cluster", "it cannot get 9.9GiB more: io1: pool fast has"),
        ("alice 9000000B --cluster", "no blocks of 4096"),
        ("alice large --cluster", "the size"),
        ("alice 257TiB --cluster --overcommit", "more than 256TiB"),
        ("alice 16MiB", "without --cluster the command is about a volume of one node"),
        ("bob 16MiB --cluster", "the cluster has placed no volume \"bob\""),
    ] {
        fails(&vrio(rack, &format!("volume resize {words}"), "operator"), wanted);
    }
    refused(io1, "volume resize alice 16MiB", "`vrio volume resize alice SIZE --cluster`");
    let same = vrio(rack, "volume resize alice 8MiB --cluster --json", "operator");
    succeeds(&same);
    let done: Value = serde_json::from_slice(&same.stdout).expect("JSON");
    assert_eq!(done["applied"], json!([]), "{done:#}");
}

#[test]
fn a_volume_grows_beyond_its_pools_by_a_word_and_a_later_copy_has_the_size() {
    let rack = Rack::new(12);
    let [io1, io2] = ["io1", "io2"].map(|name| start(&rack, name));
    wait_for_nodes(&rack, 2);
    succeeds(&vrio(&rack, "volume create alice --size 4MiB --on io1,io2", "operator"));
    // More than the pools have needs a word.
    let resize = "volume resize alice 1GiB --cluster";
    fails(&vrio(&rack, resize, "operator"), "--overcommit");
    let output = vrio(&rack, &format!("{resize} --overcommit --wait 0"), "operator");
    succeeds(&output);
    assert!(String::from_utf8_lossy(&output.stdout).contains("note: its users have the size when"));
    wait(&rack, "it is in force", |status| {
        let volume = &status["volumes"][0];
        volume["size_bytes"] == 1u64 << 30 && volume["state"] == "well"
    });
    let until = Instant::now() + PATIENCE;
    while [&io1, &io2].map(has_bytes) != [1 << 30; 2] {
        assert!(Instant::now() < until, "both have grown");
        std::thread::sleep(Duration::from_millis(100));
    }
    // A copy that comes later is made with the size.
    let io3 = start(&rack, "io3");
    wait_for_nodes(&rack, 3);
    succeeds(&vrio(&rack, "volume copies alice --add io3", "operator"));
    assert_eq!(has_bytes(&io3), 1 << 30);
    for node in [io1, io2, io3] {
        node.stop().expect("a node stops in order");
    }
}
