//! A guest that drives its disk's rings by hand, as malformed as can be, beside a guest that works.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::guest::{self, BOOT_TIMEOUT, Builder, Guest, VhostDisk, scripts};
use testbed::nodes::{Node, NodePlan};

/// The time limit of a script: an emulated guest on a busy machine is slow.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a failure may take to be counted.
const COUNT_TIMEOUT: Duration = Duration::from_secs(60);
const COUNT_PERIOD: Duration = Duration::from_millis(5);

/// Rounds of noise after the attacks, by tier.
fn rounds() -> u64 {
    match std::env::var("VRIO_TIER").as_deref() {
        Ok("long") => 100_000,
        Ok("nightly") => 5_000,
        _ => 200,
    }
}

/// One node with one sidecore, and a disk for each guest.
fn plan(home: &Path) -> NodePlan {
    let volume = |name: &str| {
        format!(
            "[[volume]]\nname = \"{name}\"\n\
             backend = {{ file = \"{name}.img\", size = \"32MiB\" }}\n\
             [[disk]]\nsocket = \"{name}.sock\"\nvolume = \"{name}\"\nqueues = 1\n"
        )
    };
    let config = format!(
        "[sidecores]\ncount = 1\nidle = \"adaptive\"\n{}{}",
        volume("victim"),
        volume("honest")
    );
    NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home, "io1", config)
}

fn on_disk(image: &guest::Image, name: &str, socket: PathBuf) -> Builder {
    Guest::builder(image).name(name).disk(VhostDisk { socket, queues: 1, packed: false })
}

fn disk(node: &Node, name: &str) -> Value {
    let status = node.status().unwrap();
    let disks = status["disks"].as_array().unwrap();
    disks.iter().find(|disk| disk["name"] == name).unwrap().clone()
}

fn broken(disk: &Value, kind: &str) -> u64 {
    disk["counters"][format!("broken_{kind}")].as_u64().unwrap_or(0)
}

/// The sum of all counters of broken rules.
fn broken_in_all(disk: &Value) -> u64 {
    let counters = disk["counters"].as_object().unwrap();
    let broken = counters.iter().filter(|(name, _)| name.starts_with("broken_"));
    broken.map(|(_, count)| count.as_u64().unwrap()).sum()
}

/// Follows the attacks: each must be counted, under its kind, before the next one begins. Gives the
/// kinds that were seen. The guest repeats a line until its answer has come. So each line is
/// answered, and its attack is made once.
fn watch(node: &Node, hostile: &mut Guest) -> Vec<String> {
    let mut kinds = Vec::new();
    let mut attack = String::new();
    let (mut before, mut is_seen) = (0, true);
    loop {
        let line = hostile.next(SCRIPT_TIMEOUT).unwrap();
        if let Some(report) = line.strip_prefix("hostile done ") {
            println!("{report}");
            return kinds;
        }
        assert!(!line.starts_with("exit"), "its report is missing: {line}");
        // QEMU writes warnings into the same line now and then. The guest repeats a line that was
        // spoilt so.
        let whole = |words: &str| {
            words.bytes().all(|it| it.is_ascii_alphanumeric() || b"-_ ".contains(&it))
        };
        let Some((said, kind)) = line.split_once(" kind=") else { continue };
        if !whole(said) || !whole(kind) || kind.contains(' ') {
            continue;
        }
        if let Some(name) = said.strip_prefix("attack ") {
            if name != attack {
                assert!(is_seen, "{name} begins before {attack} was seen");
                (attack, is_seen) = (name.to_owned(), false);
                before = broken(&disk(node, "victim"), kind);
            }
            hostile.type_line(&format!("go {name}")).unwrap();
        } else if let Some(name) = said.strip_prefix("attacked ") {
            if !is_seen {
                assert_eq!(name, attack);
                wait_for_count(node, name, kind, before);
                kinds.push(kind.to_owned());
                is_seen = true;
            }
            hostile.type_line(&format!("seen {name}")).unwrap();
        }
    }
}

fn wait_for_count(node: &Node, name: &str, kind: &str, before: u64) {
    let since = Instant::now();
    while broken(&disk(node, "victim"), kind) == before {
        let waited = since.elapsed();
        assert!(waited < COUNT_TIMEOUT, "{name} is not counted as {kind}\n{}", node.log_tail());
        std::thread::sleep(COUNT_PERIOD);
    }
    let honest = disk(node, "honest");
    assert_eq!((&honest["state"], broken_in_all(&honest)), (&"running".into(), 0), "{name}");
}

#[test]
fn a_hostile_guest_ruins_its_own_disk_only() {
    const TEST: &str = "a_hostile_guest_ruins_its_own_disk_only";
    let Some(image) = guest::available(TEST) else { return };
    let home = tempfile::tempdir().unwrap();
    let mut node = plan(home.path()).start().unwrap();
    let pid = u64::from(node.pid());
    let (victim, honest) = (node.wait_for_disk("victim"), node.wait_for_disk("honest"));
    let honest = on_disk(&image, "honest", honest.unwrap());
    let mut honest = honest.script(scripts::CHURN).set("THREADS", 4).start().unwrap();
    let hostile = on_disk(&image, "hostile", victim.unwrap());
    let hostile = hostile.script(scripts::HOSTILE).set("ROUNDS", rounds());
    let mut hostile = hostile.start().unwrap();
    honest.wait_for("churn", BOOT_TIMEOUT).unwrap();
    hostile.wait_for("booted", BOOT_TIMEOUT).unwrap();

    let mut kinds = watch(&node, &mut hostile);
    hostile.wait_success(SCRIPT_TIMEOUT).unwrap();
    let report = honest.ask("stop", "churned", SCRIPT_TIMEOUT).unwrap();
    honest.wait_success(SCRIPT_TIMEOUT).unwrap();

    kinds.sort();
    kinds.dedup();
    println!("{kinds:?}; {}", disk(&node, "victim")["counters"]);
    assert!(kinds.len() >= 11, "some rules were never broken: {kinds:?}");
    assert_eq!(node.status().unwrap()["node"]["pid"], pid, "another process answers");
    let after = disk(&node, "honest");
    assert_eq!((broken_in_all(&after), &after["counters"]["errors"]), (0, &0.into()), "{after}");
    node.stop().unwrap();
    let digest = guest::image_digest(&plan(home.path()).file("honest.img")).unwrap();
    assert!(report.ends_with(&format!("digest={digest:016x}")), "{report}, image {digest:016x}");
}
