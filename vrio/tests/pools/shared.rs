//! Volumes with the same content share its space.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use random::Random;
use testbed::nodes::{Node, NodePlan};

use super::{PATIENCE, make_pool, plan, pool, told};

/// The content of each volume.
const IMAGE_BYTES: usize = 4 << 20;

/// An open segment is looked at when it is full, and its blocks are whole ones of the image.
const SHARED_BYTES_MIN: u64 = IMAGE_BYTES as u64 * 3 / 4;

fn plan_with(home: &Path, option: &str) -> NodePlan {
    plan(home, &format!("[[pool]]\nname = \"p\"\ndevices = [\"p.pool\"]\n{option}"))
}

fn saved_bytes(node: &Node) -> u64 {
    pool(node)["shared"]["saved_bytes"].as_u64().unwrap_or(0)
}

/// Two imports of one image share their blocks when the pool is idle. Each is what it was, also
/// after a kill, after its copy was removed, and when nothing more is shared.
#[test]
fn two_copies_of_an_image_share_their_space() {
    let home = tempfile::tempdir().expect("a directory");
    let plan = plan_with(home.path(), "deduplication = true\n");
    plan.write().expect("its directories");
    make_pool(&plan.file("p.pool"), "64MiB", "1MiB");
    let mut node = plan.start().expect("a node");
    let mut random = Random::new(75);
    let content: Vec<u8> = (0..IMAGE_BYTES / 8).flat_map(|_| random.draw().to_le_bytes()).collect();
    let image = node.plan().file("image.raw");
    fs::write(&image, &content).expect("room");
    let out = node.plan().file("out.raw");
    let has_its_content = |node: &Node, name: &str| {
        told(node, &format!("volume export {name}@imported {}", out.display()));
        assert!(fs::read(&out).expect("an export") == content, "{name} is another");
        fs::remove_file(&out).expect("it was there");
    };
    // The third one fills the segment that is open after the second one.
    for name in ["a", "b", "c"] {
        told(&node, &format!("volume import {name} --pool p {}", image.display()));
    }
    let until = Instant::now() + PATIENCE;
    while saved_bytes(&node) < SHARED_BYTES_MIN {
        assert!(Instant::now() < until, "an idle pool shares: {}", pool(&node));
        std::thread::sleep(Duration::from_millis(20));
    }
    let shown = told(&node, "pool show p");
    assert!(shown.contains("deduplication saves"), "{shown}");
    ["a", "b", "c"].iter().for_each(|name| has_its_content(&node, name));

    node = node.kill().expect("it ran").start().expect("it starts again");
    ["a", "b", "c"].iter().for_each(|name| has_its_content(&node, name));
    told(&node, "volume remove a@imported");
    told(&node, "volume remove a --data");
    ["b", "c"].iter().for_each(|name| has_its_content(&node, name));

    // Nothing more is shared, and what is shared stays so.
    plan_with(home.path(), "").write().expect("its file");
    told(&node, "node reload --yes");
    assert_eq!(pool(&node)["shared"]["is_on"], false, "{}", pool(&node));
    ["b", "c"].iter().for_each(|name| has_its_content(&node, name));
    node.stop().expect("an orderly end");
}
