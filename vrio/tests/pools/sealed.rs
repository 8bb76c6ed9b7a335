//! Encrypted volumes of a pool: keys that are missing, wrong and changed, snapshots and clones,
//! shredding, and the content of the medium.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::Value;
use testbed::nodes::{Node, NodePlan};
use testbed::stand_in::StandIn;
use workload::checker::{Checker, read_stamp};

use super::{
    BLOCKS, PATIENCE, check, connect, mix, plan_with_pool, pool, refused, told, tried, vrio,
    work_a_while,
};

/// Makes a key file; its path.
fn new_key(home: &Path, name: &str) -> PathBuf {
    let path = home.join(name);
    let made = vrio(&["key", "new", "--volume", path.to_str().expect("a plain path")]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    path
}

/// The name of a key file's key.
fn name_of(key: &Path) -> String {
    let shown = vrio(&["key", "show", key.to_str().expect("a plain path"), "--json"]);
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    let found = text
        .split('"')
        .find(|word| word.len() == 16 && word.bytes().all(|digit| digit.is_ascii_hexdigit()));
    found.unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// A volume of the pool with a disk; encrypted if it has a key.
fn volume(name: &str, key: Option<&Path>) -> String {
    let key = key.map_or_else(String::new, |key| format!(", key = {key:?}"));
    format!(
        "[[volume]]\nname = \"{name}\"\nbackend = {{ pool = \"p\", size = \"16MiB\"{key} }}\n\
         [[disk]]\nvolume = \"{name}\"\nsocket = \"{name}.sock\"\nqueues = 2\n"
    )
}

/// The same plan with other volumes.
fn with_volumes(plan: &NodePlan, volumes: &str) -> NodePlan {
    let end = plan.config.find("[[volume]]").unwrap_or(plan.config.len());
    NodePlan { config: format!("{}{volumes}", &plan.config[..end]), ..plan.clone() }
}

/// Blocks of the pool's file that have a guest's content in clear.
fn in_clear(path: &Path) -> usize {
    let bytes = std::fs::read(path).expect("the pool's file");
    let is_of_guest = |block: &&[u8]| {
        let word = |at: usize| u64::from_le_bytes(block[at * 8..][..8].try_into().expect("eight"));
        word(0) != 0 && read_stamp(word(2), block).is_ok()
    };
    bytes.chunks_exact(4096).filter(is_of_guest).count()
}

/// A volume or snapshot in the pool's list.
fn listed(node: &Node, name: &str) -> Option<Value> {
    let pool = pool(node);
    let all = pool["volumes"].as_array().expect("a list").clone();
    all.into_iter().find(|it| it["name"] == name)
}

fn under_old_key(node: &Node, name: &str) -> u64 {
    let listed = listed(node, name).expect("it is there");
    listed["old_key_bytes"].as_u64().expect("a number")
}

fn wait_for_new_key(node: &Node, name: &str) {
    let until = Instant::now() + PATIENCE;
    while under_old_key(node, name) > 0 {
        assert!(Instant::now() < until, "{:?}", listed(node, name));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The secret of a key file is neither in the log nor in the status.
fn tells_no_secret(node: &Node, key: &Path) {
    let log = node.log_tail();
    let secret = std::fs::read_to_string(key).expect("the key");
    let secret = secret.lines().nth(1).and_then(|line| line.split(' ').nth(1)).expect("a secret");
    let status = node.status().expect("it answers").to_string();
    assert!(!log.contains(secret) && !status.contains(secret));
}

fn refuses_wrong_commands(node: &Node) {
    // The node's user may read this key, and the running node nothing in its place.
    let elsewhere = tempfile::tempdir().expect("a directory");
    let key = new_key(elsewhere.path(), "a.key");
    if !node.log_tail().contains("files are not restricted") {
        let words = format!("volume rekey a --key {}", key.display());
        refused(node, &words, "may not read files in that place");
    }
    for (words, wanted) in [
        ("volume rekey b --data", "is not encrypted"),
        ("volume rekey c --data", "there is no volume \"c\""),
        ("volume rekey a --key a.key", "is no absolute path"),
        ("volume rekey a --key /nowhere/a.key", "does not exist"),
        ("volume remove b --shred", "is not encrypted"),
        ("volume add c --pool p --size 1MiB --key a.key", "absolute"),
    ] {
        let (done, text) = tried(node, words);
        assert!(!done && text.contains(wanted), "vrio {words}: {text}");
    }
}

#[test]
fn an_encrypted_volume_is_closed_without_its_key_and_no_other_is() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(30);
    let (key, other) = (new_key(home.path(), "a.key"), new_key(home.path(), "other.key"));
    let first = plan_with_pool(home.path(), "96MiB", "");
    let medium = first.file("p.pool");
    let all = |key: Option<&Path>| volume("a", key) + &volume("b", None);
    let mut node = with_volumes(&first, &volume("a", Some(&key))).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut guest, 1000);
    check(&mut guest);
    let shown = told(&node, "volume show a");
    assert!(shown.contains("encrypted"), "{shown}");
    let shown = told(&node, "pool show p");
    assert!(shown.contains(&name_of(&key)), "{shown}");
    let mut written = Checker::new(BLOCKS);
    std::mem::swap(&mut guest.checker, &mut written);
    guest.disconnect();
    node.stop().expect("an orderly end");
    assert_eq!(in_clear(&medium), 0);

    // No key, the key of something else, a key file that is missing, and one for others to read.
    let (missing, open) = (home.path().join("missing.key"), new_key(home.path(), "open.key"));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&open, mode).expect("ours");
    let wanted = name_of(&key);
    // The neighbour's content.
    let mut known = Checker::new(BLOCKS);
    for (given, says) in [
        (None, &*wanted),
        (Some(&other), &*wanted),
        (Some(&missing), "does not exist"),
        (Some(&open), "others may read"),
    ] {
        let plan = with_volumes(&first, &all(given.map(PathBuf::as_path)));
        let mut node = plan.start().expect("a node starts all the same");
        let shown = told(&node, "volume show a");
        assert!(shown.contains("STOPPED") && shown.contains(says), "{given:?}: {shown}");
        let mut neighbour = connect(&mut node, "b", mix(), &mut random);
        std::mem::swap(&mut neighbour.checker, &mut known);
        work_a_while(&mut neighbour, 300);
        check(&mut neighbour);
        std::mem::swap(&mut neighbour.checker, &mut known);
        neighbour.disconnect();
        assert_eq!(told(&node, "pool show p").lines().next(), Some("1 pool: all is well"));
        node.stop().expect("an orderly end");
    }
    assert!(in_clear(&medium) > 0, "the neighbour is not encrypted");

    // With the right key all is there, after a kill as well.
    let mut node = with_volumes(&first, &all(Some(&key))).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    guest.checker = written;
    work_a_while(&mut guest, 500);
    node = node.kill().expect("it ran").start().expect("it opens the pool again");
    work_a_while(&mut guest, 500);
    check(&mut guest);
    tells_no_secret(&node, &key);
    refuses_wrong_commands(&node);
    assert!(listed(&node, "b").is_some_and(|it| it["served"] == true), "{}", pool(&node));
    node.stop().expect("an orderly end");
}

/// Each data key follows another key, and a kill comes before all blocks are under it.
fn changes_data_keys_with_kills(mut node: Node, guest: &mut StandIn) -> Node {
    let mut kills = 0;
    for round in 0..6 {
        told(&node, &format!("volume snapshot a --name s{round}"));
        told(&node, "volume rekey a --data");
        let (done, text) = tried(&node, "volume rekey a --data");
        assert!(done || text.contains("sealed anew"), "{text}");
        let enough = guest.checker.checked + 20;
        guest.work(|guest| guest.checker.checked >= enough).expect("the promise is kept");
        kills += u64::from(under_old_key(&node, "a") > 0);
        node = node.kill().expect("it ran").start().expect("it opens the pool again");
        work_a_while(guest, 200);
        wait_for_new_key(&node, "a");
        if round > 0 {
            told(&node, &format!("volume remove a@s{}", round - 1));
        }
    }
    assert!(kills > 0, "no kill came while blocks were under an old key");
    node
}

/// Both keys change under a guest's work, with kills in the middle of sealing blocks anew.
#[test]
fn keys_change_while_a_guest_works_and_the_node_is_killed() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(31);
    let (key, next) = (new_key(home.path(), "a.key"), new_key(home.path(), "next.key"));
    let first = plan_with_pool(home.path(), "128MiB", "");
    let mut node = with_volumes(&first, &volume("a", Some(&key))).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut guest, 2000);

    let said = told(&node, &format!("volume rekey a --key {}", next.display()));
    assert!(said.contains(&name_of(&next)), "{said}");
    work_a_while(&mut guest, 200);
    // The file still names the old key, which opens nothing any more. A reload says so, and the
    // volume is served as before.
    for says in ["the next start would not open it", &name_of(&next)] {
        refused(&node, "node reload --yes", says);
    }
    work_a_while(&mut guest, 200);
    guest.drain().expect("all requests end");
    let mut written = Checker::new(BLOCKS);
    std::mem::swap(&mut guest.checker, &mut written);
    guest.disconnect();
    node = node.kill().expect("it ran").start().expect("it starts all the same");
    let shown = told(&node, "volume show a");
    assert!(shown.contains("STOPPED") && shown.contains(&name_of(&next)), "{shown}");
    node.stop().expect("an orderly end");
    let plan = with_volumes(&first, &volume("a", Some(&next)));
    node = plan.start().expect("a node");
    // Another path of the same key is taken over in place.
    let moved = home.path().join("moved.key");
    std::fs::copy(&next, &moved).expect("a copy of the key, with its mode");
    with_volumes(&first, &volume("a", Some(&moved))).write().expect("another file");
    let said = told(&node, "node reload --yes");
    assert!(said.contains("its key file is now"), "{said}");
    assert!(told(&node, "node reload --yes").contains("nothing to change"));
    plan.write().expect("the file before");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    guest.checker = written;
    work_a_while(&mut guest, 500);

    node = changes_data_keys_with_kills(node, &mut guest);
    check(&mut guest);
    // A change of both at once, and no kill.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            told(&node, &format!("volume rekey a --data --key {}", key.display()));
            wait_for_new_key(&node, "a");
            is_over.store(true, Relaxed);
        });
        guest.work(|_| is_over.load(Relaxed) || other.is_finished()).expect("the promise is kept");
        other.join().expect("both keys are other ones");
    });
    // A successor reads the file again, as each start does.
    node.stop().expect("an orderly end");
    node = with_volumes(&first, &volume("a", Some(&key))).start().expect("a node");
    node = node.hand_over().expect("a successor");
    work_a_while(&mut guest, 200);
    check(&mut guest);
    told(&node, "pool scrub p --rate 1GiB");
    let until = Instant::now() + PATIENCE;
    while pool(&node)["scrub"]["passes"] != 1 {
        assert!(Instant::now() < until, "{}", pool(&node));
        std::thread::sleep(Duration::from_millis(20));
    }
    let scrub = pool(&node)["scrub"].clone();
    assert_eq!((&scrub["damaged_blocks"], &scrub["unproved_bytes"]), (&0.into(), &0.into()));
    node.stop().expect("an orderly end");
    assert_eq!(in_clear(&first.file("p.pool")), 0);
}

#[test]
fn clones_share_the_key_and_a_shredded_volume_is_gone_for_good() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(32);
    let (key, other) = (new_key(home.path(), "a.key"), new_key(home.path(), "b.key"));
    let first = plan_with_pool(home.path(), "128MiB", "");
    let volumes = volume("a", Some(&key)) + &volume("b", Some(&other));
    let mut node = with_volumes(&first, &volumes).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    let mut neighbour = connect(&mut node, "b", mix(), &mut random);
    work_a_while(&mut neighbour, 1000);
    work_a_while(&mut guest, 1000);
    check(&mut guest);
    told(&node, "volume snapshot a --name s");

    // A clone has the key of its snapshot, and no other.
    let (done, text) = tried(&node, "volume clone a@s c");
    assert!(!done && text.contains(&name_of(&key)), "{text}");
    let (done, text) = tried(&node, &format!("volume clone a@s c --key {}", other.display()));
    assert!(!done && text.contains(&name_of(&key)), "{text}");
    assert!(listed(&node, "c").is_none(), "{}", pool(&node));
    told(&node, &format!("volume clone a@s c --key {}", key.display()));
    told(&node, "disk add --volume c --socket c.sock --queues 2");
    let mut clone = connect(&mut node, "c", mix(), &mut random);
    std::mem::swap(&mut clone.checker, &mut guest.checker);
    check(&mut clone);
    work_a_while(&mut clone, 500);

    // Shredding a clone would take its relatives' blocks.
    let (done, text) = tried(&node, "volume remove a --shred --force");
    assert!(!done && text.contains("a@s"), "{text}");
    assert!(listed(&node, "a").is_some_and(|it| it["served"] == true), "{text}");
    let (done, text) = tried(&node, "volume remove a --shred --all --force");
    assert!(!done && text.contains("serves volume \"c\""), "{text}");
    assert!(listed(&node, "a").is_some_and(|it| it["served"] == true), "{text}");
    for (disk, guest) in [("c", clone), ("a", guest)] {
        guest.disconnect();
        told(&node, &format!("disk remove {disk} --force"));
    }
    told(&node, "volume remove c --force");
    let copy = home.path().join("copy.pool");
    std::fs::copy(first.file("p.pool"), &copy).expect("a copy of the medium");
    let said = told(&node, "volume remove a --shred --all --force");
    assert!(said.contains("delete that key's file"), "{said}");
    let until = Instant::now() + PATIENCE;
    while ["a", "a@s", "c"].iter().any(|it| listed(&node, it).is_some()) {
        assert!(Instant::now() < until, "{}", pool(&node));
        std::thread::sleep(Duration::from_millis(20));
    }
    work_a_while(&mut neighbour, 500);
    check(&mut neighbour);
    // Its name can be used again, and nothing of it comes back, with the same key as well.
    told(&node, &format!("volume add a --pool p --size 16MiB --key {}", key.display()));
    told(&node, "disk add --volume a --socket a.sock --queues 2");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    guest.read_all().expect("all zeroes");
    work_a_while(&mut guest, 200);
    node = node.kill().expect("it ran").start().expect("it opens the pool again");
    work_a_while(&mut neighbour, 500);
    check(&mut neighbour);
    node.stop().expect("an orderly end");
    assert_eq!(in_clear(&first.file("p.pool")), 0);
    assert_eq!(in_clear(&copy), 0);
}
