//! Snapshots of a volume with copies on two real nodes: the same on both, taken while a guest
//! writes, there when the node that served is gone, and the beginning of another volume.

use std::fs;

use random::Random;
use testbed::nodes::Node;

use crate::placements::{fails, start, vrio, wait_for_nodes, wait_for_state};
use crate::pools::{refused, told};
use crate::replicas::{Rack, connect, succeeds, work_a_while, work_on};

/// The content of a snapshot on a node.
fn content(rack: &Rack, node: &Node, snapshot: &str) -> Vec<u8> {
    let file = rack.path(&format!("{}.{snapshot}.raw", node.plan().name));
    told(node, &format!("volume export {snapshot} {}", file.display()));
    fs::read(&file).expect("the command wrote it")
}

#[test]
fn a_snapshot_is_the_same_on_all_copies_and_another_volume_begins_as_it() {
    let mut random = Random::new(17);
    let rack = Rack::new(13);
    let [io1, io2] = ["io1", "io2"].map(|name| start(&rack, name));
    let vm1 = rack.plan("vm1", &format!("[cluster]\ndirectory = {:?}\n", rack.path("of-vm1")));
    let mut vm1 = vm1.start().expect("the VMhost starts");
    rack.join(&vm1);
    wait_for_nodes(&rack, 3);
    let create = "volume create alice --size 16MiB --on io1,io2 --allow vm1";
    succeeds(&vrio(&rack, create, "operator"));
    vm1.wait_until("its peers", |vm1| {
        vm1.status().is_ok_and(|it| it["peers"].as_array().is_some_and(|all| all.len() == 2))
    })
    .expect("the agent adds them");
    told(&vm1, "disk add alice --socket alice.sock --volume alice");
    let mut guest = connect(&mut vm1, &mut random);
    work_a_while(&mut guest, &mut random);
    // All that the guest has written is in it, on both nodes.
    guest.drain().expect("the requests end");
    told(&io1, "volume snapshot alice --name monday");
    let monday = content(&rack, &io1, "alice@monday");
    guest.compare_image(&rack.path("io1.alice@monday.raw")).expect("it has all writes");
    assert!(monday == content(&rack, &io2, "alice@monday"), "the copies have one content");
    refused(&io1, "volume snapshot alice --name monday", "is in use");
    refused(&io1, "volume snapshot alice --name cut.1.1", "copies of replicated volumes give");
    refused(&io2, "volume snapshot alice --name sunday", "run the command on io1");
    // While it writes: the same moment on both nodes.
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| told(&io1, "volume snapshot alice --name tuesday"));
        while !taken.is_finished() {
            work_on(&mut guest, 20);
        }
    });
    work_on(&mut guest, 200);
    let tuesday = content(&rack, &io1, "alice@tuesday");
    assert!(tuesday != monday, "the guest has written");
    assert!(tuesday == content(&rack, &io2, "alice@tuesday"), "the copies have one moment");
    // Another volume begins as the first snapshot, and goes on by itself.
    fails(&vrio(&rack, "volume create ben --from alice", "operator"), "write VOLUME@SNAPSHOT");
    fails(&vrio(&rack, "volume create ben --from zoe@monday", "operator"), "placed no volume");
    succeeds(&vrio(&rack, "volume create ben --from alice@monday --allow vm1", "operator"));
    told(&io1, "volume snapshot ben --name begun");
    for node in [&io1, &io2] {
        assert!(monday == content(&rack, node, "ben@begun"), "all copies begin as the snapshot");
    }
    // The node that serves dies: the other one has the snapshots, and takes and removes more.
    let plan = io1.kill().expect("it ran until now");
    work_on(&mut guest, 100);
    assert!(tuesday == content(&rack, &io2, "alice@tuesday"), "it is there");
    told(&io2, "volume snapshot alice --name wednesday");
    told(&io2, "volume remove alice@tuesday");
    let io1 = plan.start().expect("it starts again");
    wait_for_state(&rack, "alice", "well");
    let of_both = [&io1, &io2].map(|node| told(node, "volume snapshots alice"));
    assert!(of_both[0].contains("@tuesday") && !of_both[0].contains("@wednesday"));
    assert!(!of_both[1].contains("@tuesday") && of_both[1].contains("@wednesday"));
    // A node that does not serve removes what it has kept.
    told(&io1, "volume remove alice@tuesday");
    assert!(!told(&io1, "volume snapshots alice").contains("@tuesday"));
    told(&io2, "volume remove alice@monday");
    for node in [&io1, &io2] {
        assert!(!told(node, "volume snapshots alice").contains("@monday"));
    }
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a guest notices nothing");
    guest.disconnect();
    for node in [io1, io2, vm1] {
        node.stop().expect("a node stops in order");
    }
}
