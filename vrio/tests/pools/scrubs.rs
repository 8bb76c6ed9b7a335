//! Scrubs that rest, have a deadline, and outlive the node's process.

use std::time::{Duration, Instant};

use random::Random;
use serde_json::Value;
use testbed::nodes::Node;

use super::{PATIENCE, VOLUME, connect, mix, plan_with_pool, pool, told, tried, work_a_while};

fn scrub(node: &Node) -> Value {
    pool(node)["scrub"].clone()
}

fn flags(node: &Node) -> (bool, bool) {
    let scrub = scrub(node);
    // A scrub that does not rest has no such member.
    (scrub["is_running"] == true, scrub["is_paused"] == true)
}

#[test]
fn a_scrub_goes_on_after_a_hand_over_and_a_kill_and_ends_in_time() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(31);
    let mut node = plan_with_pool(home.path(), "96MiB", VOLUME).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut guest, 1000);
    let (done, text) = tried(&node, "pool scrub p --pause");
    assert!(!done && text.contains("is not being scrubbed"), "{text}");
    let (done, text) = tried(&node, "pool scrub p --within 7");
    assert!(!done && text.contains("is not a duration"), "{text}");
    let (done, text) = tried(&node, "pool scrub p --rate 0B");
    assert!(!done && text.contains("at least 4KiB"), "{text}");
    // It would take an hour.
    told(&node, "pool scrub p --rate 4KiB");
    assert_eq!(flags(&node), (true, false));
    drop(guest);
    let node = node.hand_over().expect("a successor");
    assert_eq!(flags(&node), (true, false), "{}", scrub(&node));
    told(&node, "pool scrub p --pause");
    assert!(told(&node, "pool show p").contains("scrub: paused"));
    let node = node.kill().expect("it runs").start().expect("the node again");
    assert_eq!(flags(&node), (true, true), "{}", scrub(&node));
    assert!(told(&node, "pool scrub p").contains("at its own pace"));
    let node = node.kill().expect("it runs").start().expect("the node again");
    assert_eq!(flags(&node), (true, false), "{}", scrub(&node));
    told(&node, "pool scrub p --within 1s");
    let until = Instant::now() + PATIENCE;
    while scrub(&node)["passes"] != 1 {
        assert!(Instant::now() < until, "{}", pool(&node));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(told(&node, "pool show p").contains("no damage"));
    node.stop().expect("an orderly end");
}
