//! Scrubs of a volume with copies on two real nodes: damage of the copy that does not serve is
//! found and repaired under its guest, and a second scrub finds none.

use std::thread::sleep;
use std::time::{Duration, Instant};

use random::Random;
use serde_json::Value;
use testbed::nodes::Node;

use crate::damage::{blocks_of, damage};
use crate::pools::{refused, told, tried};
use crate::replicas::{PATIENCE, Rack, connect, copy, wait_until_in_sync, work_on, work_until};
use crate::snapshots::take;

/// The scrub of a node's copy, as its status has it.
fn scrub(node: &Node) -> Value {
    copy(node).expect("it has a copy")["scrub"].clone()
}

fn is_running(node: &Node) -> bool {
    scrub(node)["is_running"] == true
}

/// Blocks of a kind in the last scrub.
fn blocks(node: &Node, kind: &str) -> u64 {
    scrub(node)[format!("{kind}_blocks")].as_u64().unwrap_or(0)
}

#[test]
fn damage_of_a_copy_that_does_not_serve_is_repaired_under_its_guest() {
    let mut random = Random::new(72);
    let (rack, list) = (Rack::new(20), ["io1", "io2"]);
    let nodes = rack.start_members(&list);
    let mut vm = rack.client(&list).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    work_on(&mut guest, 500);
    let primary = wait_until_in_sync(&nodes);
    let [node, backup] = [primary, 1 - primary].map(|at| nodes[at].as_ref().expect("it runs"));
    let (serves, other) = (list[primary], list[1 - primary]);
    guest.drain().expect("the requests end");
    // All is as it should be.
    assert!(copy(node).is_some_and(|copy| copy.get("scrub").is_none()), "there was none");
    let said = told(node, "volume scrub alice --wait");
    let all = format!("all of 16MiB checked, no damage; compared with {other}");
    assert!(said.contains(&all), "{said}");
    // Each block of the other copy is damaged, and none of its reads meets that.
    let snapshot = take(node, "alice", "all");
    let image = rack.path("all.raw");
    told(node, &format!("volume export {snapshot} {}", image.display()));
    let contents = blocks_of(&image);
    let found = damage(&rack.path(&format!("{other}.pool")), &contents);
    assert!(found >= contents.len() && contents.len() > 50, "{found} of {}", contents.len());
    guest.read_all().expect("the copy that serves is whole");
    let said = told(node, "volume scrub alice --rate 1GiB --wait");
    let repaired = format!("{} blocks damaged and repaired; ", contents.len());
    assert!(said.contains(&repaired), "{said}");
    assert!(told(node, "volume show alice").contains("repaired"));
    // A second scrub, beside the guest, has nothing to repair.
    told(node, "volume scrub alice --rate 8MiB");
    work_until(&mut guest, || !is_running(node));
    assert_eq!(["repaired", "differed", "lost"].map(|kind| blocks(node, kind)), [0, 0, 0]);
    guest.drain().expect("the requests end");
    assert!(told(node, "volume scrub alice --wait").contains("checked, no damage"));
    // The other copy has all of it: it serves from now on, and the scrub was of the first copy.
    refused(backup, "volume scrub alice", &format!("run the command on {serves}"));
    told(node, &format!("volume move alice {other}"));
    guest.read_all().expect("the copy was repaired");
    work_on(&mut guest, 100);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a guest notices nothing");
    assert!(scrub(backup).is_null() && scrub(node).is_null(), "it ended with the reign");
    told(backup, "volume scrub alice --wait");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}

#[test]
fn a_scrub_rests_goes_on_and_ends_by_commands() {
    let rack = Rack::new(21);
    let list = ["io1", "io2"];
    let mut nodes = rack.start_members(&list);
    let primary = wait_until_in_sync(&nodes);
    let (backup, other) = (nodes[1 - primary].take().expect("it runs"), list[1 - primary]);
    let node = nodes[primary].as_ref().expect("it runs");
    refused(node, "volume scrub alice --pause", "is not being scrubbed");
    refused(node, "volume scrub alice --rate 1B", "at least 4KiB in a second");
    refused(node, "volume scrub bob", "bob");
    // It takes minutes at this pace.
    told(node, "volume scrub alice --rate 64KiB");
    assert!(is_running(node), "{}", scrub(node));
    told(node, "volume scrub alice --pause");
    assert!(told(node, "volume show alice").contains("scrub: paused"));
    let rests = scrub(node)["checked_bytes"].clone();
    sleep(Duration::from_millis(1500));
    // A range that was under way may have ended since.
    let checked = |value: &Value| value.as_u64().expect("a number");
    assert!(checked(&scrub(node)["checked_bytes"]) <= checked(&rests) + (4 << 16));
    assert!(told(node, "volume scrub alice").contains("at its own pace"));
    assert!(scrub(node).get("is_paused").is_none());
    told(node, "volume scrub alice --stop");
    assert_eq!(scrub(node)["is_stopped"], true);
    refused(node, "volume scrub alice --stop", "is not being scrubbed");
    // The next one, at another pace meanwhile, is through.
    told(node, "volume scrub alice --rate 64KiB");
    told(node, "volume scrub alice --rate 1GiB");
    let until = Instant::now() + PATIENCE;
    while is_running(node) {
        assert!(Instant::now() < until, "{}", scrub(node));
        sleep(Duration::from_millis(100));
    }
    let scrub = scrub(node);
    assert_eq!(scrub["checked_bytes"], scrub["total_bytes"], "{scrub}");
    // A volume of one node has no copies to compare.
    told(node, "volume add bob --pool fast --size 1MiB");
    refused(node, "volume scrub bob", "`vrio pool scrub`");
    let (is_done, said) = tried(node, "volume scrub alice --pause --wait");
    assert!(!is_done && said.contains("cannot be used with"), "{said}");
    // A copy that is away is not proved.
    backup.stop().expect("a member stops in order");
    refused(node, "volume scrub alice --rate 1GiB --wait", &format!("the copies on {other}"));
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}
