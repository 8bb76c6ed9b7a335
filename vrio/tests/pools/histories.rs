//! Histories of volumes: a mistake is undone by a clone of the volume as it was before, over a kill
//! and a hand-over, and a pool that becomes full takes the oldest moments back.

use std::time::Instant;

use random::Random;
use testbed::nodes::Node;

use super::{
    PATIENCE, VOLUME, check, connect, mix, plan_with_pool, pool, refused, told, work_a_while,
};

fn history(node: &Node, name: &str) -> serde_json::Value {
    let pool = pool(node);
    let mut all = pool["volumes"].as_array().expect("a list").iter();
    let volume = all.find(|it| it["name"] == name);
    volume.unwrap_or_else(|| panic!("no {name} in {pool}"))["history"].clone()
}

/// All bytes of a volume, by a snapshot of it.
fn content(node: &Node, name: &str) -> Vec<u8> {
    let out = node.plan().file("out.raw");
    told(node, &format!("volume snapshot {name} --name now"));
    told(node, &format!("volume export {name}@now {}", out.display()));
    told(node, &format!("volume remove {name}@now"));
    let content = std::fs::read(&out).expect("an export");
    std::fs::remove_file(&out).expect("it was there");
    content
}

/// Makes a clone of the volume `a` as it was, and gives the time of the moment.
fn clone_at(node: &Node, time: &str, name: &str) -> String {
    let text = told(node, &format!("volume at a {time} --name {name}"));
    let line = text.lines().find(|line| line.contains("as it was at")).expect("the moment's line");
    line.rsplit(' ').next().expect("a time").to_owned()
}

/// The time of the moment that has this content: it is taken when the step has passed.
fn moment_with(node: &Node, wanted: &[u8]) -> String {
    let until = Instant::now() + PATIENCE;
    loop {
        let time = clone_at(node, "-0s", "try");
        let is_it = content(node, "try") == wanted;
        told(node, "volume remove try --data");
        if is_it {
            return time;
        }
        assert!(Instant::now() < until, "no moment: {}", history(node, "a"));
    }
}

#[test]
fn a_mistake_is_undone_by_a_clone_of_the_moment_before_it() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(74);
    let mut node = plan_with_pool(home.path(), "512MiB", VOLUME).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut guest, 200);
    refused(&node, "volume at a -1s --name b", "has no history");
    refused(&node, "volume history a 48h", "make its step longer");
    let kept = told(&node, "volume history a 2h --step 100ms");
    assert!(kept.contains("2h with a step of 100ms"), "{kept}");
    work_a_while(&mut guest, 200);
    check(&mut guest);
    let before = content(&node, "a");
    let time = moment_with(&node, &before);
    let shown = told(&node, "pool show p");
    assert!(shown.contains("history of a"), "{shown}");

    // The mistake.
    work_a_while(&mut guest, 500);
    check(&mut guest);
    assert!(content(&node, "a") != before, "the guest has written");
    assert_eq!(clone_at(&node, &time, "b"), time);
    assert!(content(&node, "b") == before, "the clone is what the volume was");
    refused(&node, "volume at a 2020-01-01T00:00:00Z --name c", "before the history");
    refused(&node, "volume at a noon --name c", "is no time");
    let snapshots = told(&node, "volume snapshots");
    assert!(!snapshots.contains("a@"), "a moment is no snapshot: {snapshots}");

    node = node.kill().expect("it ran").start().expect("it starts again");
    work_a_while(&mut guest, 100);
    check(&mut guest);
    clone_at(&node, &time, "c");
    assert!(content(&node, "c") == before, "the history is there after a kill");
    // Only a node that is as its file says hands over.
    told(&node, "volume remove c --data");

    node = node.hand_over().expect("a successor");
    work_a_while(&mut guest, 100);
    check(&mut guest);
    clone_at(&node, &time, "d");
    assert!(content(&node, "d") == before, "and in a successor");

    told(&node, "volume history a none");
    let until = Instant::now() + PATIENCE;
    while !history(&node, "a").is_null() {
        assert!(Instant::now() < until, "its moments go: {}", history(&node, "a"));
    }
    assert!(content(&node, "d") == before, "a clone is a volume like others");
    check(&mut guest);
    guest.disconnect();
    node.stop().expect("an orderly end");
}

/// The guest overwrites far more than the pool has room for.
#[test]
fn a_full_pool_takes_the_oldest_moments_back() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(75);
    let volume = VOLUME.replace("size =", "history = \"2h\", history-step = \"100ms\", size =");
    let mut node = plan_with_pool(home.path(), "64MiB", &volume).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    let until = Instant::now() + PATIENCE;
    while history(&node, "a")["shortened"].is_null() {
        assert!(Instant::now() < until, "it gives way: {}", pool(&node));
        work_a_while(&mut guest, 200);
    }
    let shown = told(&node, "pool show p");
    assert!(shown.contains("shortened"), "{shown}");
    work_a_while(&mut guest, 500);
    check(&mut guest);
    guest.disconnect();
    node.stop().expect("an orderly end");
}
