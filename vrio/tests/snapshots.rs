//! Snapshots of a volume with copies on two real nodes: the same on both, taken while a guest
//! writes, there when the node that served is gone, and the beginning of another volume.

use std::fs;
use std::time::Instant;

use random::Random;
use rustix::process::Signal;
use testbed::nodes::Node;

use crate::clusters::{kill_agent, signal_agent};
use crate::placements::{fails, start, vrio, wait, wait_for_nodes, wait_for_state};
use crate::pools::{refused, told};
use crate::replicas::{PATIENCE, Rack, connect, succeeds, work_a_while, work_on};

/// Takes a snapshot on the node that serves, and gives its whole name.
pub(crate) fn take(node: &Node, volume: &str, name: &str) -> String {
    let said = told(node, &format!("volume snapshot {volume} --name {name}"));
    let begin = format!("{volume}@{name}.");
    let whole = said.split_whitespace().find(|word| word.starts_with(&begin));
    whole.unwrap_or_else(|| panic!("no name in {said:?}")).to_owned()
}

/// The content of a snapshot on a node.
fn content(rack: &Rack, node: &Node, snapshot: &str) -> Vec<u8> {
    let file = rack.path(&format!("{}.{snapshot}.raw", node.plan().name));
    // A command replaces no file.
    let _ = fs::remove_file(&file);
    told(node, &format!("volume export {snapshot} {}", file.display()));
    fs::read(&file).expect("the command wrote it")
}

/// Another volume begins as a snapshot, and goes on by itself.
fn begin_another(rack: &Rack, nodes: [&Node; 2], (snapshot, monday): (&str, &[u8])) {
    fails(&vrio(rack, "volume create ben --from alice", "operator"), "write VOLUME@SNAPSHOT");
    fails(&vrio(rack, "volume create ben --from zoe@monday", "operator"), "placed no volume");
    fails(&vrio(rack, "volume create ben --from alice@cut.1.1", "operator"), "goes by itself");
    let asked = Instant::now();
    let lacks = "volume create ben --from alice@monday.99.1";
    fails(&vrio(rack, lacks, "operator"), "its pool has no snapshot alice@monday.99.1");
    assert!(asked.elapsed() < PATIENCE, "it is told before the wait for all copies ends");
    let create = format!("volume create ben --from {snapshot} --allow vm1");
    succeeds(&vrio(rack, &create, "operator"));
    let begun = take(nodes[0], "ben", "begun");
    for node in nodes {
        assert!(monday == content(rack, node, &begun), "all copies begin as the snapshot");
    }
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
    let of_monday = take(&io1, "alice", "monday");
    let monday = content(&rack, &io1, &of_monday);
    guest.compare_image(&rack.path(&format!("io1.{of_monday}.raw"))).expect("it has all writes");
    assert!(monday == content(&rack, &io2, &of_monday), "the copies have one content");
    let long = format!("volume snapshot alice --name {}", "m".repeat(25));
    refused(&io1, &long, "too long");
    for name in ["cut", "cut.1"] {
        let words = format!("volume snapshot alice --name {name}");
        refused(&io1, &words, "copies of replicated volumes give");
    }
    refused(&io2, "volume snapshot alice --name sunday", "run the command on io1");
    // While it writes: the same moment on both nodes.
    let of_tuesday = std::thread::scope(|scope| {
        let taken = scope.spawn(|| take(&io1, "alice", "tuesday"));
        while !taken.is_finished() {
            work_on(&mut guest, 20);
        }
        taken.join().expect("it is taken")
    });
    work_on(&mut guest, 200);
    let tuesday = content(&rack, &io1, &of_tuesday);
    assert!(tuesday != monday, "the guest has written");
    assert!(tuesday == content(&rack, &io2, &of_tuesday), "the copies have one moment");
    begin_another(&rack, [&io1, &io2], (&of_monday, &monday));
    // The node that serves dies: the other node has the snapshots, and takes and removes more.
    let plan = io1.kill().expect("it ran until now");
    work_on(&mut guest, 100);
    assert!(tuesday == content(&rack, &io2, &of_tuesday), "it is there");
    let of_wednesday = take(&io2, "alice", "wednesday");
    told(&io2, &format!("volume remove {of_tuesday}"));
    let io1 = plan.start().expect("it starts again");
    wait_for_state(&rack, "alice", "well");
    let has = |node: &Node, name: &str| told(node, "volume snapshots alice").contains(name);
    assert!(has(&io1, &of_tuesday) && !has(&io1, &of_wednesday));
    assert!(!has(&io2, &of_tuesday) && has(&io2, &of_wednesday));
    // A node that does not serve removes the snapshot that it has kept.
    told(&io1, &format!("volume remove {of_tuesday}"));
    assert!(!has(&io1, &of_tuesday));
    told(&io2, &format!("volume remove {of_monday}"));
    assert!(!has(&io1, &of_monday) && !has(&io2, &of_monday));
    // The snapshots of a copy that goes go with it.
    succeeds(&vrio(&rack, "volume remove ben --cluster --data", "operator"));
    assert!(!told(&io1, "pool show fast").contains("begun"));
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a guest notices nothing");
    guest.disconnect();
    for node in [io1, io2, vm1] {
        node.stop().expect("a node stops in order");
    }
}

/// A growth that is taken back leaves a copy with the larger size, and its snapshots have it.
#[test]
fn a_volume_gets_the_size_of_the_snapshot_that_it_begins_as() {
    let rack = Rack::new(16);
    let [io1, io2] = ["io1", "io2"].map(|name| start(&rack, name));
    wait_for_nodes(&rack, 2);
    succeeds(&vrio(&rack, "volume create alice --size 16MiB --on io1,io2", "operator"));
    // The copy of io2 does not grow meanwhile.
    let halted = loop {
        let halted = signal_agent(&io2, Signal::STOP);
        // It may have been stopped while it held the lock of the registry's file.
        if vrio(&rack, "cluster status", "operator").status.success() {
            break halted;
        }
        signal_agent(&io2, Signal::CONT);
    };
    let grow = "volume resize alice 32MiB --cluster --wait 0";
    succeeds(&vrio(&rack, grow, "operator"));
    wait(&rack, "the copy of io1 has grown", |_| {
        io1.status().is_ok_and(|it| it["volumes"][0]["copy"]["has_bytes"] == 32 << 20)
    });
    succeeds(&vrio(&rack, "volume resize alice 16MiB --cluster --wait 0", "operator"));
    let monday = take(&io1, "alice", "monday");
    // The agent that was halted may have seen the growth: a new agent has not.
    assert_eq!(kill_agent(&io2), halted);
    wait_for_nodes(&rack, 2);
    wait_for_state(&rack, "alice", "well");
    let create = format!("volume create ben --from {monday} --on io1,io2");
    let output = vrio(&rack, &create, "operator");
    succeeds(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("it has 32MiB, as its snapshot has"), "{text}");
    for node in [&io1, &io2] {
        let begun = content(&rack, node, &take(&io1, "ben", "begun"));
        assert_eq!(begun.len(), 32 << 20);
    }
    for node in [io1, io2] {
        node.stop().expect("a node stops in order");
    }
}
