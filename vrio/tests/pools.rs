//! Pools as their users meet them: the commands, guests at work on volumes of a pool, snapshots,
//! clones and going back, kills, hand-overs, a full pool and a missing pool.
//!
//! `POOL_KILLS=n` sets the number of kills.

mod devices;
mod histories;
mod scrubs;
mod sealed;
mod shared;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::Value;
use testbed::nodes::{Node, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;
use workload::checker::read_stamp;

/// Kills of one run: each needs an opening of the pool.
const KILLS: u64 = 8;

/// The disk's blocks of 4 KiB that a guest uses.
const BLOCKS: u64 = 2048;

/// A volume of the pool, with a disk.
pub(crate) const VOLUME: &str = "[[volume]]\nname = \"a\"\n\
     backend = { pool = \"p\", size = \"16MiB\" }\n\
     [[disk]]\nvolume = \"a\"\nsocket = \"a.sock\"\nqueues = 2\n";

/// The number of a user without rights, which every system has.
const NOBODY: u32 = 65534;

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The number of kills of one run.
pub(crate) fn kills() -> u64 {
    let text = std::env::var("POOL_KILLS").ok().filter(|text| !text.is_empty());
    text.map_or(KILLS, |text| text.parse().expect("a number"))
}

pub(crate) fn mix() -> Mix {
    Mix { blocks_max: 8, depth: 8, hot_blocks: 64, ..Mix::OF_ALL }
}

pub(crate) fn vrio(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vrio")).args(args).output().expect("the binary was built")
}

/// Makes a pool in a file.
pub(crate) fn make_pool(path: &Path, size: &str, segment: &str) {
    let words = ["pool", "create", "--size", size, "--segment", segment];
    let made = vrio(&[&words[..], &[path.to_str().expect("a plain path")]].concat());
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

pub(crate) fn plan(home: &Path, config: &str) -> NodePlan {
    let config = format!("[sidecores]\ncount = 2\nidle = \"adaptive\"\n{config}");
    NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home, "n1", config)
}

/// A plan with the directory for volumes, and a pool of this size in it.
pub(crate) fn plan_with_pool(home: &Path, size: &str, config: &str) -> NodePlan {
    let plan = plan(home, &format!("[[pool]]\nname = \"p\"\ndevices = [\"p.pool\"]\n{config}"));
    plan.write().expect("its directories");
    make_pool(&plan.file("p.pool"), size, "1MiB");
    plan
}

/// A command for a node, which succeeds: the output.
pub(crate) fn told(node: &Node, words: &str) -> String {
    let (is_done, text) = tried(node, words);
    assert!(is_done, "vrio {words}: {text}\n{}", node.log_tail());
    text
}

/// A command for a node: whether it succeeds, and its output or its error.
pub(crate) fn tried(node: &Node, words: &str) -> (bool, String) {
    told_to(&node.plan().control(), words)
}

/// A command that must fail with these words.
pub(crate) fn refused(node: &Node, words: &str, wanted: &str) {
    let (done, text) = tried(node, words);
    assert!(!done && text.contains(wanted), "vrio {words}: {text}");
}

/// The same for the node of a control socket, which may be dead.
pub(crate) fn told_to(control: &Path, words: &str) -> (bool, String) {
    let control = control.to_str().expect("a plain path");
    let words: Vec<_> = words.split(' ').chain(["--control", control]).collect();
    let done = vrio(&words);
    let text = if done.status.success() { &done.stdout } else { &done.stderr };
    (done.status.success(), String::from_utf8_lossy(text).into_owned())
}

pub(crate) fn pool(node: &Node) -> Value {
    node.status().expect("it answers")["pools"][0].clone()
}

pub(crate) fn connect(node: &mut Node, disk: &str, mix: Mix, random: &mut Random) -> StandIn {
    let socket = node.wait_for_disk(disk).expect("its socket");
    StandIn::connect(&socket, 2, mix, BLOCKS, random).expect("the guest's disk")
}

pub(crate) fn work_a_while(guest: &mut StandIn, checks: u64) {
    let enough = guest.checker.checked + checks;
    guest.work(|guest| guest.checker.checked >= enough).expect("the promise is kept");
}

/// All of the guest's blocks are what they may be, and nothing is on its way.
pub(crate) fn check(guest: &mut StandIn) {
    guest.drain().expect("all requests end");
    guest.read_all().expect("the promise is kept");
}

#[test]
fn a_pool_is_made_added_and_used_by_commands() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(1);
    let mut node = plan(home.path(), "").start().expect("a node");
    let file = node.plan().file("p.pool");
    make_pool(&file, "128MiB", "1MiB");
    let again = vrio(&["pool", "create", file.to_str().expect("a plain path")]);
    let error = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && error.contains("force it"), "{error}");

    assert!(told(&node, "pool add p --devices p.pool").contains("done: add pool \"p\""));
    told(&node, "volume add a --pool p --size 64MiB --chain meter");
    told(&node, "disk add --volume a --socket a.sock");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut guest, 2000);
    check(&mut guest);

    let shown = told(&node, "pool show p");
    assert!(shown.starts_with("1 pool: all is well"), "{shown}");
    assert!(told(&node, "pool list").contains("ok"), "{shown}");
    assert!(told(&node, "status").contains("POOLS"));
    let used = pool(&node)["used_bytes"].as_u64().expect("a number");
    assert!(used > 1 << 20, "{shown}");

    let grown = told(&node, "volume resize a 80MiB");
    assert!(grown.contains("resize volume \"a\" from 64MiB to 80MiB"), "{grown}");
    work_a_while(&mut guest, 200);
    check(&mut guest);

    // In use by a volume, and the volume by a guest.
    let (done, text) = tried(&node, "pool remove p");
    assert!(!done && text.contains("volume \"a\""), "{text}");
    guest.disconnect();
    told(&node, "disk remove a --force");
    told(&node, "volume remove a --data");
    assert_eq!(told(&node, "volume list"), "no volumes\n");
    told(&node, "pool remove p");
    assert_eq!(told(&node, "pool list"), "no pools\n");
    // It is not in use any more, and the same process can have it again.
    told(&node, "pool add p --devices p.pool");
    node.stop().expect("an orderly end");
}

/// The volume was empty in a snapshot, and full in another one.
fn check_diff(node: &Node) {
    let (_, text) = tried(node, "volume diff a@empty a@full --json");
    let diff: Value = serde_json::from_str(&text).expect("JSON");
    let runs = diff["runs"].as_array().expect("a list");
    let length = |run: &Value| run["length_bytes"].as_u64().expect("a number");
    let data: u64 = runs.iter().filter(|run| run["zeroes"] == false).map(length).sum();
    assert!(data > 1 << 20 && data <= BLOCKS * 4096, "{diff}");
    assert!(told(node, "volume diff a@full").ends_with("of 32MiB\n"));
    assert!(told(node, "volume diff a@full a@full").starts_with("0B of data"));
}

#[test]
fn volumes_have_snapshots_go_back_and_are_cloned() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(2);
    let plan = plan_with_pool(
        home.path(),
        "256MiB",
        "[[volume]]\nname = \"a\"\nbackend = { pool = \"p\", size = \"32MiB\" }\n\
         [[disk]]\nvolume = \"a\"\nsocket = \"a.sock\"\nqueues = 2\n",
    );
    let mut node = plan.start().expect("a node");
    told(&node, "volume snapshot a --name empty");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut guest, 2000);
    check(&mut guest);

    // A clone of the empty disk, beside the first guest: neither sees what the other one writes.
    told(&node, "volume clone a@empty b --size 48MiB");
    told(&node, "disk add --volume b --socket b.sock --queues 2");
    let mut other = connect(&mut node, "b", mix(), &mut random);
    other.read_all().expect("all zeroes");
    work_a_while(&mut other, 2000);
    work_a_while(&mut guest, 2000);
    check(&mut other);
    check(&mut guest);

    // A clone of what the guest has written.
    told(&node, "volume snapshot a b --name full");
    check_diff(&node);
    told(&node, "volume clone a@full c");
    told(&node, "disk add --volume c --socket c.sock --queues 2");
    let mut third = connect(&mut node, "c", mix(), &mut random);
    std::mem::swap(&mut third.checker, &mut guest.checker);
    check(&mut third);
    work_a_while(&mut third, 1000);
    check(&mut third);

    // Back to the empty disk: not while a guest uses it.
    let (done, text) = tried(&node, "volume rollback a empty");
    assert!(!done && text.contains("in use by"), "{text}");
    guest.disconnect();
    told(&node, "disk remove a --force");
    told(&node, "volume rollback a empty");
    told(&node, "disk add --volume a --socket a.sock --queues 2");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    guest.read_all().expect("all zeroes");
    work_a_while(&mut guest, 1000);

    let listed = told(&node, "volume snapshots");
    assert!(["a@empty", "a@full", "b@full"].iter().all(|it| listed.contains(it)), "{listed}");
    let of_a = told(&node, "volume snapshots a --json");
    let of_a: Value = serde_json::from_str(&of_a).expect("JSON");
    assert_eq!(of_a.as_array().map(Vec::len), Some(2), "{of_a}");
    for gone in ["a@empty", "a@full", "b@full"] {
        told(&node, &format!("volume remove {gone}"));
    }
    assert_eq!(told(&node, "volume snapshots"), "no snapshots\n");
    let (done, text) = tried(&node, "volume remove a@full");
    assert!(!done && text.contains("there is no snapshot"), "{text}");
    for guest in [&mut guest, &mut other, &mut third] {
        work_a_while(guest, 500);
        check(guest);
    }
    node.stop().expect("an orderly end");
}

#[test]
fn wrong_commands_say_what_to_do() {
    let home = tempfile::tempdir().expect("a directory");
    let plan = plan_with_pool(
        home.path(),
        "64MiB",
        "[[volume]]\nname = \"a\"\nbackend = { pool = \"p\", size = \"32MiB\" }\n\
         [[volume]]\nname = \"m\"\nbackend = { memory = \"1MiB\" }\n",
    );
    let node = plan.start().expect("a node");
    for (words, wanted) in [
        ("volume add b --pool q --size 1MiB", "has no pool \"q\""),
        ("volume add b --pool p", "write size = \"20GiB\""),
        ("volume add b --pool p --from a@none", "has no snapshot \"a@none\""),
        ("volume snapshot m --name s", "not a volume of a pool"),
        ("volume snapshot a a --name s", "named twice"),
        ("volume snapshot a --name s/t", "is no name"),
        ("volume schedule m 1h:24", "not a volume of a pool"),
        ("volume schedule a 1h", "is no rule for snapshots"),
        ("volume schedule a 1s:5", "from 1min to 3660d"),
        ("volume schedule b 1h:24", "no volume \"b\""),
        ("volume compress m lz4", "not a volume of a pool"),
        ("volume compress a gzip", "is no compression"),
        ("volume add b --pool p --size 1MiB --compression zstd:10", "is no compression"),
        ("volume rollback a none", "has no snapshot \"a@none\""),
        ("volume rollback m none", "not a volume of a pool"),
        ("volume clone a@none b", "there is no snapshot \"a@none\""),
        ("volume diff a@none", "there is no snapshot \"a@none\""),
        ("pool scrub q", "there is no pool \"q\""),
        ("pool scrub p --rate 1G", "is not a size"),
        ("volume remove m --data", "has no data in a pool"),
        ("volume remove p:77", "there is no snapshot"),
        ("pool add q --devices q.pool", "no such file"),
        ("pool add q --devices p.pool", "is a device of pool \"p\""),
        ("pool remove q", "there is no pool \"q\""),
    ] {
        refused(&node, words, wanted);
    }
    told(&node, "volume snapshot a --name s");
    let (done, text) = tried(&node, "volume snapshot a --name s");
    assert!(!done && text.contains("in use"), "{text}");
    node.stop().expect("an orderly end");
}

#[test]
fn a_volume_is_compressed_behind_its_guest() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(4);
    let mut node = plan(home.path(), "").start().expect("a node");
    make_pool(&node.plan().file("p.pool"), "128MiB", "1MiB");
    told(&node, "pool add p --devices p.pool");
    told(&node, "volume add a --pool p --size 32MiB");
    told(&node, "disk add --volume a --socket a.sock");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut guest, 1000);
    let changed = told(&node, "volume compress a lz4");
    assert!(changed.contains("the compression of volume \"a\" is now lz4"), "{changed}");
    let tried = |node: &Node| {
        let counters = &pool(node)["counters"];
        let of = |name: &str| counters[name].as_u64().expect("a counter");
        of("compressed_pages") + of("incompressible_pages")
    };
    guest.drain().expect("all requests end");
    let until = Instant::now() + PATIENCE;
    while tried(&node) < 100 {
        assert!(Instant::now() < until, "an idle pool packs: {}", pool(&node));
    }
    check(&mut guest);
    work_a_while(&mut guest, 200);
    check(&mut guest);
    let shown = pool(&node)["volumes"][0]["compression"].clone();
    assert_eq!(shown, "lz4");
    guest.disconnect();
    node.stop().expect("an orderly end");
}

#[test]
fn snapshots_by_time_are_taken_and_removed_as_the_rules_say() {
    let home = tempfile::tempdir().expect("a directory");
    let rules = "snapshots = [{ every = \"1d\", keep = 2 }]";
    let both = format!(
        "{}[[volume]]\nname = \"b\"\nbackend = {{ pool = \"p\", size = \"1MiB\" }}\n{rules}\n",
        VOLUME.replace("[[disk]]", &format!("{rules}\n[[disk]]"))
    );
    let node = plan_with_pool(home.path(), "128MiB", &both).start().expect("a node");
    let names = |node: &Node| -> Vec<String> {
        let listed = told(node, "volume snapshots --json");
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        let all = listed.as_array().expect("a list").iter();
        all.map(|it| it["name"].as_str().expect("a name").to_owned()).collect()
    };
    let until = |node: &Node, what: &str, is_so: &dyn Fn(&[String]) -> bool| {
        let until = Instant::now() + PATIENCE;
        loop {
            let now = names(node);
            if is_so(&now) {
                return now;
            }
            assert!(Instant::now() < until, "{what}: {now:?}\n{}", node.log_tail());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let taken = until(&node, "one of each", &|all| all.len() >= 2);
    let of = |volume: &str| taken.iter().find_map(|it| it.strip_prefix(volume));
    assert!(of("a@auto-").is_some() && of("a@auto-") == of("b@auto-"), "{taken:?}");
    let shown = told(&node, "volume show a");
    assert!(shown.contains("snapshots by time 1d:2"), "{shown}");

    // The first one of each period stays, and others of the rules' names go. A day ends now and
    // then while this runs.
    told(&node, "volume schedule b --none");
    for name in ["auto-x", "auto-y", "mine"] {
        told(&node, &format!("volume snapshot a b --name {name}"));
    }
    let left = until(&node, "others go", &|all| !all.iter().any(|it| it.starts_with("a@auto-y")));
    assert!(left.contains(&"a@mine".to_owned()), "{left:?}");
    assert!(left.iter().filter(|it| it.starts_with("a@auto-2")).count() >= 1, "{left:?}");
    assert!(left.contains(&"b@auto-y".to_owned()), "{left:?}");

    // A reload brings the file's rules back, and a successor goes on with them.
    told(&node, "node reload --yes");
    let node = node.hand_over().expect("a successor");
    told(&node, "volume snapshot a --name auto-z");
    until(&node, "the successor removes", &|all| !all.contains(&"a@auto-z".to_owned()));
    node.stop().expect("an orderly end");
}

#[test]
fn a_pool_is_scrubbed_and_tells_of_damage() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(9);
    let plan = plan_with_pool(home.path(), "96MiB", VOLUME);
    let mut node = plan.start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut guest, 1000);
    check(&mut guest);
    told(&node, "volume snapshot a --name s");
    let scrubbed = |node: &Node, passes: u64| {
        told(node, "pool scrub p --rate 1GiB");
        let until = Instant::now() + PATIENCE;
        while pool(node)["scrub"]["passes"] != passes {
            assert!(Instant::now() < until, "{}", pool(node));
            std::thread::sleep(Duration::from_millis(20));
        }
        pool(node)["scrub"].clone()
    };
    let scrub = scrubbed(&node, 1);
    assert_eq!((&scrub["damaged_blocks"], &scrub["is_running"]), (&0.into(), &false.into()));
    assert!(scrub["checked_bytes"].as_u64() > Some(1 << 20), "{scrub}");
    let shown = told(&node, "pool show p");
    assert!(shown.contains("scrub: ") && shown.contains("no damage"), "{shown}");
    told(&node, "pool scrub p --rate 4KiB");
    told(&node, "pool scrub p --stop");
    assert_eq!(pool(&node)["scrub"]["is_running"], false);

    // A flipped bit in each block of the guest's, beneath the node.
    let damaged = flip_data(&node.plan().file("p.pool"));
    assert!(damaged > 0);
    let scrub = scrubbed(&node, 2);
    assert!(scrub["damaged_blocks"].as_u64() > Some(0), "{scrub}");
    let found = scrub["found"].as_array().expect("a list");
    assert!(found.iter().any(|it| it.as_str().is_some_and(|it| it.contains("a@s at "))), "{scrub}");
    let status = told(&node, "status");
    assert!(status.contains("pool p has damaged blocks"), "{status}");
}

/// Flips a bit in each block that has a guest's stamp: all data and nothing of the pool's own.
/// Gives how many these are.
fn flip_data(path: &Path) -> usize {
    let bytes = std::fs::read(path).expect("the pool's file");
    let file = File::options().write(true).open(path).expect("the pool's file");
    let is_of_guest = |block: &[u8]| {
        let word = |at: usize| u64::from_le_bytes(block[at * 8..][..8].try_into().expect("eight"));
        word(0) != 0 && read_stamp(word(2), block).is_ok()
    };
    let blocks = bytes.chunks_exact(4096).enumerate();
    let of_guest = blocks.filter(|(_, block)| is_of_guest(block));
    let flipped = of_guest.map(|(at, block)| {
        file.write_all_at(&[block[4095] ^ 1], at as u64 * 4096 + 4095).expect("it is written");
    });
    flipped.count()
}

#[test]
fn snapshots_come_and_go_while_a_guest_works() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(3);
    let plan = plan_with_pool(home.path(), "256MiB", VOLUME);
    let mut node = plan.start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            for round in 0..20 {
                told(&node, &format!("volume snapshot a --name s{round}"));
                if round >= 3 {
                    told(&node, &format!("volume remove a@s{}", round - 3));
                }
            }
            is_over.store(true, Relaxed);
        });
        guest.work(|_| is_over.load(Relaxed) || other.is_finished()).expect("the promise is kept");
        other.join().expect("each snapshot is taken");
    });
    check(&mut guest);
    let snapshots = pool(&node)["volumes"].as_array().map(Vec::len);
    assert!(snapshots >= Some(4), "{}", pool(&node));
    node.stop().expect("an orderly end");
}

#[test]
fn nothing_acknowledged_is_lost_when_the_node_is_killed() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(4);
    let plan = plan_with_pool(home.path(), "96MiB", VOLUME);
    let mut node = plan.start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    for kill in 0..kills() {
        work_a_while(&mut guest, 1000);
        if kill % 3 == 1 {
            told(&node, &format!("volume snapshot a --name s{kill}"));
            // More of them would fill the pool.
            if kill > 4 {
                told(&node, &format!("volume remove a@s{}", kill - 3));
            }
        }
        let enough = guest.checker.checked + 100;
        guest
            .work(|guest| guest.checker.checked >= enough && guest.workload.outstanding() >= 4)
            .expect("the promise is kept");
        node = node.kill().expect("it ran").start().expect("it opens the pool again");
        work_a_while(&mut guest, 200);
    }
    check(&mut guest);
    assert_eq!(guest.reconnects(), kills());
    node.stop().expect("an orderly end");
}

#[test]
fn a_successor_goes_on_with_the_pool() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(5);
    let plan = plan_with_pool(home.path(), "96MiB", VOLUME);
    let mut node = plan.start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    for _ in 0..4 {
        work_a_while(&mut guest, 500);
        let is_over = AtomicBool::new(false);
        node = std::thread::scope(|scope| {
            let next = scope.spawn(|| {
                let next = node.hand_over();
                is_over.store(true, Relaxed);
                next
            });
            guest.work(|_| is_over.load(Relaxed)).expect("the promise is kept");
            next.join().expect("no panic").expect("it is handed over")
        });
    }
    work_a_while(&mut guest, 500);
    check(&mut guest);
    assert_eq!(guest.reconnects(), 0);
    told(&node, "volume snapshot a --name s");
    node.stop().expect("an orderly end");
}

#[test]
fn guests_of_a_full_pool_wait_until_there_is_space() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(6);
    let volume = |name: &str| {
        format!(
            "[[volume]]\nname = \"{name}\"\nbackend = {{ pool = \"p\", size = \"8MiB\" }}\n\
             [[disk]]\nvolume = \"{name}\"\nsocket = \"{name}.sock\"\nqueues = 2\n"
        )
    };
    let mut node = plan_with_pool(home.path(), "48MiB", &volume("a")).start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    std::thread::scope(|scope| {
        let watched = scope.spawn(|| {
            // Each snapshot keeps the guest's old blocks, until there is no space. The guest also
            // discards blocks, so a full pool may have space again for a moment.
            let until = Instant::now() + 2 * PATIENCE;
            let mut taken = 0;
            let mut wait_for = |is_told: &dyn Fn() -> bool| {
                while !is_told() {
                    assert!(Instant::now() < until, "{}", pool(&node));
                    let (done, _) = tried(&node, &format!("volume snapshot a --name s{taken}"));
                    taken += u64::from(done);
                    std::thread::sleep(Duration::from_millis(50));
                }
            };
            wait_for(&|| pool(&node)["state"] == "full");
            wait_for(&|| told(&node, "pool show p").contains("pool p is full"));
            wait_for(&|| told(&node, "status").contains("pool p is full"));
            for at in 0..taken {
                told(&node, &format!("volume remove a@s{at}"));
            }
            while pool(&node)["state"] != "ok" {
                assert!(Instant::now() < until + PATIENCE, "{}", pool(&node));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        guest.work(|_| watched.is_finished()).expect("the promise is kept");
        watched.join().expect("it was full, and then it was not");
    });
    work_a_while(&mut guest, 500);
    check(&mut guest);
    node.stop().expect("an orderly end");
}

#[test]
fn a_pool_that_is_not_there_stops_no_other_volume() {
    let home = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(7);
    let plan = plan(
        home.path(),
        "[[pool]]\nname = \"p\"\ndevices = [\"p.pool\"]\n\
         [[volume]]\nname = \"a\"\nbackend = { pool = \"p\", size = \"16MiB\" }\n\
         [[volume]]\nname = \"b\"\nbackend = { memory = \"16MiB\" }\n\
         [[disk]]\nvolume = \"a\"\nsocket = \"a.sock\"\nqueues = 2\n\
         [[disk]]\nvolume = \"b\"\nsocket = \"b.sock\"\nqueues = 2\n",
    );
    let mut node = plan.start().expect("a node");
    // One ring, so one sidecore: a memory volume copies without a lock, so two writes of two
    // sidecores to the same block at once may leave a mixture of both.
    let socket = node.wait_for_disk("b").expect("its socket");
    let guest = StandIn::connect(&socket, 1, mix(), BLOCKS, &mut random);
    let mut guest = guest.expect("the guest's disk");
    work_a_while(&mut guest, 500);
    check(&mut guest);
    let shown = told(&node, "pool show p");
    assert!(shown.contains("pool p is failed") && shown.contains("no such file"), "{shown}");
    assert!(told(&node, "status").contains("pool p is failed"));
    let volume = told(&node, "volume show a");
    assert!(volume.contains("STOPPED") && volume.contains("no such file"), "{volume}");
    let (done, text) = tried(&node, "volume snapshot a --name s");
    assert!(!done && text.contains("no such file"), "{text}");
    // When it is there, it can be had without a restart.
    make_pool(&node.plan().file("p.pool"), "64MiB", "1MiB");
    told(&node, "pool remove p --force");
    told(&node, "node reload --yes --force");
    let mut other = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut other, 500);
    check(&mut other);
    node.stop().expect("an orderly end");
}

/// A node that root starts as another user: its filters of files and of system calls let a pool
/// work, also a pool that is added later.
#[test]
fn a_node_without_rights_has_pools() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP a_node_without_rights_has_pools: only root can become another user");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(home.path(), mode).expect("ours");
    let mut random = Random::new(8);
    let plan = plan_with_pool(home.path(), "64MiB", VOLUME);
    let plan = NodePlan { config: format!("user = \"nobody\"\n{}", plan.config), ..plan };
    make_pool(&plan.file("q.pool"), "64MiB", "1MiB");
    for path in [&plan.home, &plan.file("p.pool"), &plan.file("q.pool"), &plan.file("")] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root may");
    }
    let mut node = plan.start().expect("a node");
    let mut guest = connect(&mut node, "a", mix(), &mut random);
    work_a_while(&mut guest, 1000);
    told(&node, "volume snapshot a --name s");
    told(&node, "pool add q --devices q.pool");
    told(&node, "volume add b --pool q --size 16MiB");
    told(&node, "disk add --volume b --socket b.sock --queues 2");
    let mut other = connect(&mut node, "b", mix(), &mut random);
    work_a_while(&mut other, 1000);
    work_a_while(&mut guest, 500);
    check(&mut guest);
    check(&mut other);
    node.stop().expect("an orderly end");
}
