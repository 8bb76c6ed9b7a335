//! Volumes with copies that have lost their record or newest copy: an operator has a copy serve.

use std::time::{Duration, Instant};

use random::Random;
use testbed::nodes::Node;

use crate::pools::{refused, told, tried};
use crate::replicas::{
    PATIENCE, POOL_SIZE, Rack, connect, copy, succeeds, wait_until_in_sync, work_a_while, work_on,
};

/// The record of the volume is removed, as a registry that was rebuilt does not have it.
fn lose_record(rack: &Rack) {
    succeeds(&rack.vrio(["cluster", "forget", "alice", "--force"].map(str::to_owned)));
}

/// Waits until the copy of a node waits, and names the command.
fn wait_until_named(node: &mut Node) {
    node.wait_until("the status names the command", |node| {
        let copy = copy(node).unwrap_or_default();
        copy["why"].as_str().is_some_and(|why| why.contains("vrio volume recover alice"))
    })
    .expect("the status says what to do");
}

/// Looks until the command says these words: the other copy may not be reached yet.
fn look_until(node: &Node, words: &str) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (_, said) = tried(node, "volume recover alice");
        if said.contains(words) {
            return;
        }
        assert!(Instant::now() < until, "{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_volume_whose_record_is_lost_serves_again_by_a_command_and_loses_nothing() {
    let mut random = Random::new(11);
    let (rack, list) = (Rack::new(14), ["io1", "io2"]);
    let mut nodes = rack.start_members(&list);
    let mut vm = rack.client(&list).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    let first = wait_until_in_sync(&nodes);
    let other = 1 - first;
    work_a_while(&mut guest, &mut random);
    // The second one to stop has writes that the first one lacks, not all of them flushed.
    let stop = |nodes: &mut Vec<Option<Node>>, at: usize| {
        nodes[at].take().expect("it runs").stop().expect("it stops in order")
    };
    let stopped = stop(&mut nodes, first);
    work_on(&mut guest, 200);
    work_a_while(&mut guest, &mut random);
    let last = stop(&mut nodes, other);
    lose_record(&rack);
    let mut behind = stopped.start().expect("it starts again");
    wait_until_named(&mut behind);
    // Alone it cannot know what the other copy has.
    refused(&behind, "volume recover alice --serve", "has not answered");
    let mut whole = last.start().expect("it starts again");
    wait_until_named(&mut whole);
    look_until(&behind, "has more than the copy here");
    refused(&behind, "volume recover alice --force", "has more than the copy here");
    look_until(&whole, "Nothing is lost");
    assert_ne!(copy(&whole).expect("a copy")["role"], "primary", "a look changes nothing");
    told(&whole, "volume recover alice --serve");
    work_on(&mut guest, 200);
    nodes[first] = Some(behind);
    nodes[other] = Some(whole);
    wait_until_in_sync(&nodes);
    // The primary makes a record that is lost again anew, and its guests notice nothing.
    lose_record(&rack);
    let primary = wait_until_in_sync(&nodes);
    let backup = nodes[1 - primary].as_ref().expect("it runs");
    refused(backup, "volume recover alice --serve", "serves volume");
    told(nodes[primary].as_ref().expect("it runs"), "volume recover alice --serve");
    work_on(&mut guest, 100);
    // The record changes as before: the other copy takes over.
    let plan = stop(&mut nodes, primary);
    work_on(&mut guest, 100);
    nodes[primary] = Some(plan.start().expect("it starts again"));
    wait_until_in_sync(&nodes);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a lost record is a pause, not an error");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}

#[test]
fn an_older_copy_serves_by_force_when_the_newest_one_is_lost_for_good() {
    let mut random = Random::new(12);
    let (rack, list) = (Rack::new(15), ["io1", "io2"]);
    let mut nodes = rack.start_members(&list);
    let mut vm = rack.client(&list).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    let primary = wait_until_in_sync(&nodes);
    let other = 1 - primary;
    work_a_while(&mut guest, &mut random);
    let older = nodes[other].take().expect("it runs").stop().expect("it stops in order");
    work_on(&mut guest, 200);
    let lost = nodes[primary].take().expect("it runs").kill().expect("it ran until now");
    let pool = rack.path(&format!("{}.pool", list[primary]));
    std::fs::remove_file(&pool).expect("its pool is lost");
    let mut older = older.start().expect("it starts again");
    older
        .wait_until("it knows that it lacks writes", |node| {
            let missing = copy(node).unwrap_or_default()["missing"].clone();
            missing.as_array().is_some_and(|all| all.iter().any(|it| it == list[other]))
        })
        .expect("the registry has the record");
    let (is_fine, said) = tried(&older, "volume recover alice");
    assert!(is_fine && said.contains("has not answered"), "{said}");
    assert!(said.contains("The writes since this copy was in sync are lost"), "{said}");
    refused(&older, "volume recover alice --serve", "has not answered");
    // The killed node is present for some seconds more.
    let until = Instant::now() + PATIENCE;
    loop {
        let (is_done, said) = tried(&older, "volume recover alice --force");
        if is_done {
            break;
        }
        assert!(said.contains("is present") && Instant::now() < until, "{said}");
        std::thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(copy(&older).expect("a copy")["role"], "primary");
    // The guest is told of the loss: its requests end with errors until the disk is reset.
    let until = Instant::now() + PATIENCE;
    while guest.workload.counts.errors == 0 {
        assert!(Instant::now() < until, "the guest has heard of no loss");
        let soon = Instant::now() + Duration::from_millis(200);
        if guest.work(|_| Instant::now() >= soon).is_err() {
            break;
        }
    }
    drop(guest);
    vm.stop().expect("the VMhost stops in order");
    // The lost copy is made anew, and filled.
    let kept = lost.home.join("state/own.members");
    for name in ["alice", "alice.copy"] {
        std::fs::remove_file(kept.join(name)).expect("it was kept");
    }
    rack.make_pool(&format!("{}.pool", list[primary]), POOL_SIZE);
    nodes[other] = Some(older);
    nodes[primary] = Some(lost.start().expect("it starts again"));
    assert_eq!(wait_until_in_sync(&nodes), other);
    for node in nodes.into_iter().flatten() {
        node.stop().expect("a member stops in order");
    }
}
