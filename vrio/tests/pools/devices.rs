//! A pool that grows and shrinks, and the space of its volumes.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use random::Random;
use testbed::nodes::{Node, NodePlan};

use super::{
    PATIENCE, VOLUME, check, connect, make_pool, mix, plan, plan_with_pool, pool, refused, told,
    tried, work_a_while,
};

/// Waits until a pool has so many devices.
fn wait_for_devices(node: &Node, count: usize) {
    let until = Instant::now() + PATIENCE;
    while pool(node)["devices"].as_array().map(Vec::len) != Some(count) {
        assert!(Instant::now() < until, "{}", pool(node));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The file becomes longer, another file joins and the first file leaves, with a kill in the middle
/// of that, while a guest works all the time.
#[test]
fn a_pool_grows_and_leaves_a_device_under_a_guest() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(10);
    let mut node = plan_with_pool(home.path(), "48MiB", VOLUME).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    let (first, second) = (node.plan().file("p.pool"), node.plan().file("q.pool"));
    let path = |path: &Path| path.to_str().expect("a plain path").to_owned();
    let size = |node: &Node| pool(node)["size_bytes"].as_u64().expect("a number");
    work_a_while(&mut guest, 1000);

    let before = size(&node);
    let (done, text) = tried(&node, "pool grow p");
    assert!(!done && text.contains("no device of it has become longer"), "{text}");
    File::options().write(true).open(&first).and_then(|it| it.set_len(80 << 20)).expect("longer");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            told(&node, "pool grow p");
            let grown = size(&node);
            assert!(grown > before + (20 << 20), "{before} and {grown}");
            told(&node, &format!("pool grow p --add {} --size 64MiB", path(&second)));
            assert!(size(&node) > grown + (40 << 20));
            told(&node, &format!("pool shrink p --remove {}", path(&first)));
            is_over.store(true, Relaxed);
        });
        guest.work(|_| is_over.load(Relaxed) || other.is_finished()).expect("the promise is kept");
        other.join().expect("it grows, and begins to shrink");
    });
    let shown = told(&node, "pool show p");
    assert!(shown.contains("q.pool"), "{shown}");

    // The file does not name the new device: a reload does not break the pool, and says so.
    let (done, text) = tried(&node, "node reload --yes");
    assert!(!done && text.contains("also has") && text.contains("q.pool"), "{text}");
    // The pool is not opened without the device either.
    node = node.kill().expect("it ran").start().expect("it starts all the same");
    let shown = told(&node, "pool show p");
    assert!(shown.contains("not named: number 1"), "{shown}");
    node.stop().expect("an orderly end");
    let mut plan = node_plan(home.path(), "[\"p.pool\", \"q.pool\"]");
    node = plan.start().expect("a node");
    work_a_while(&mut guest, 500);
    wait_for_devices(&node, 1);
    work_a_while(&mut guest, 500);

    refuses_other_files(&node, home.path(), &mut plan);
    // The file still names the device that has left, and then it does not.
    let reloaded = told(&node, "node reload --yes");
    assert!(!reloaded.contains("pool"), "{reloaded}");
    node = node.kill().expect("it ran").start().expect("it opens the pool again");
    work_a_while(&mut guest, 500);
    assert!(pool(&node)["devices"].to_string().contains("q.pool"), "{}", pool(&node));
    node.stop().expect("an orderly end");
    plan = node_plan(home.path(), "[\"q.pool\"]");
    std::fs::remove_file(&first).expect("it is not needed");
    // A file that became longer while no node had it.
    File::options().write(true).open(&second).and_then(|it| it.set_len(80 << 20)).expect("longer");
    node = plan.start().expect("a node");
    work_a_while(&mut guest, 500);
    let before = size(&node);
    told(&node, "pool grow p");
    assert!(size(&node) > before + (8 << 20), "{before} and {}", size(&node));
    work_a_while(&mut guest, 500);
    check(&mut guest);
    node.stop().expect("an orderly end");
}

/// A file that names only the device that has left would close the pool; and a device that is not
/// there cannot join without a size.
fn refuses_other_files(node: &Node, home: &Path, plan: &mut NodePlan) {
    node_plan(home, "[\"p.pool\"]").write().expect("another file");
    let (done, text) = tried(node, "node reload --yes");
    assert!(!done && text.contains("has") && text.contains("q.pool: add that"), "{text}");
    plan.write().expect("the file before");
    let (done, text) = tried(node, "pool grow p --add none.pool");
    assert!(!done && text.contains("--size SIZE"), "{text}");
}

/// A plan with a pool of these devices, which are there.
fn node_plan(home: &Path, devices: &str) -> NodePlan {
    let config = format!("[[pool]]\nname = \"p\"\ndevices = {devices}\n{VOLUME}");
    let plan = plan(home, &config);
    plan.write().expect("its directories");
    plan
}

/// A volume at its limit waits and its neighbour goes on, until the limit is higher.
#[test]
fn a_volume_at_its_limit_does_not_stop_its_neighbour() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(11);
    let volume = |name: &str, quota: &str| {
        format!(
            "[[volume]]\nname = \"{name}\"\nbackend = {{ pool = \"p\", size = \"8MiB\"{quota} }}\n\
             [[disk]]\nvolume = \"{name}\"\nsocket = \"{name}.sock\"\nqueues = 2\n"
        )
    };
    let config = volume("a", ", limit = \"12MiB\"") + &volume("b", ", reservation = \"16MiB\"");
    let mut node = plan_with_pool(home.path(), "96MiB", &config).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    let mut other = connect(&mut node, "b", mix(), &mut random);
    let of = |node: &Node, name: &str| {
        let pool = pool(node);
        let all = pool["volumes"].as_array().expect("a list").clone();
        all.into_iter().find(|it| it["name"] == name).expect("it is there")
    };
    assert_eq!(of(&node, "a")["limit_bytes"], 12 << 20);
    assert_eq!(of(&node, "b")["reservation_bytes"], 16 << 20);
    std::thread::scope(|scope| {
        let watched = scope.spawn(|| {
            let until = Instant::now() + 2 * PATIENCE;
            let mut taken = 0;
            while of(&node, "a")["waits"].is_null() {
                assert!(Instant::now() < until, "{}", pool(&node));
                let (done, _) = tried(&node, &format!("volume snapshot a --name s{taken}"));
                taken += u64::from(done);
                std::thread::sleep(Duration::from_millis(50));
            }
            let status = told(&node, "status");
            assert!(status.contains("writes of volume a wait: it has reached"), "{status}");
            assert_eq!(pool(&node)["state"], "ok", "{}", pool(&node));
            // The neighbour is not stopped.
            work_a_while(&mut other, 1000);
            check(&mut other);
            told(&node, "volume quota a --limit 64MiB");
            while !of(&node, "a")["waits"].is_null() {
                assert!(Instant::now() < until, "{}", pool(&node));
                std::thread::sleep(Duration::from_millis(20));
            }
            for at in 0..taken {
                told(&node, &format!("volume remove a@s{at}"));
            }
        });
        guest.work(|_| watched.is_finished()).expect("the promise is kept");
        watched.join().expect("it waited, and then it did not");
    });
    work_a_while(&mut guest, 500);
    check(&mut guest);
    let shown = told(&node, "pool show p");
    assert!(shown.contains("OWNS") || shown.contains("owns"), "{shown}");
    for (words, wanted) in [
        ("volume quota a --reservation 1GiB --limit none", "not reserved"),
        ("volume quota a --reservation 9MiB --limit 8MiB", "make it larger"),
        ("volume quota q --limit 8MiB", "there is no volume \"q\""),
        ("volume quota a --limit 1G", "is not a size"),
    ] {
        refused(&node, words, wanted);
    }
    // A reservation of the file that the pool cannot give keeps no node from starting.
    told(&node, "volume quota b --reservation none --limit 8MiB");
    node = node.kill().expect("it ran").start().expect("it starts all the same");
    assert_eq!(of(&node, "b")["reservation_bytes"], 0);
    assert_eq!(of(&node, "b")["limit_bytes"], 8 << 20);
    work_a_while(&mut other, 500);
    check(&mut other);
    node.stop().expect("an orderly end");
}

#[test]
fn wrong_devices_of_a_pool_are_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let plan = plan_with_pool(home.path(), "64MiB", VOLUME);
    let file = |name: &str| plan.file(name);
    make_pool(&file("other.pool"), "64MiB", "1MiB");
    std::fs::write(file("data"), vec![1; 4 << 20]).expect("room");
    std::fs::write(file("empty"), []).expect("room");
    File::create(file("small")).and_then(|it| it.set_len(256 << 10)).expect("room");
    std::fs::create_dir(file("directory")).expect("a directory");
    let fifo = Command::new("mkfifo").arg(file("fifo")).status().expect("mkfifo is there");
    assert!(fifo.success());
    let node = plan.start().expect("a node");
    let existing = format!("pool grow p --add {} --size 64MiB", node.plan().file("data").display());
    for (words, wanted) in [
        ("pool grow q", "there is no pool \"q\""),
        ("pool grow p --add p.pool", "the same device"),
        ("pool grow p --add none", "no such file"),
        ("pool grow p --add other.pool", "holds a pool"),
        ("pool grow p --add data", "holds data"),
        ("pool grow p --add empty", "empty"),
        ("pool grow p --add small", "make it longer first"),
        ("pool grow p --add directory", "directory"),
        ("pool grow p --add fifo", "fifo"),
        ("pool grow p --add /dev/null", "outside the directories"),
        ("pool grow p --add ../../p.pool", ""),
        (&existing, "is there already"),
        ("pool grow p --add /nowhere/q.pool --size 1G", "is not a size"),
        ("pool shrink p --remove p.pool", "a pool needs 32"),
        ("pool shrink p --remove q.pool", "is none of its devices"),
        ("pool shrink q --remove p.pool", "there is no pool \"q\""),
    ] {
        refused(&node, words, wanted);
    }
    // All is as it was.
    assert_eq!(pool(&node)["devices"].as_array().map(Vec::len), Some(1));
    assert_eq!(std::fs::read(node.plan().file("data")).expect("it is there"), vec![1; 4 << 20]);
    node.stop().expect("an orderly end");
}
