//! Write-back with real processes: nodes that are killed, handed over and stopped with writes that
//! only the VMhost has, an IOhost that is away, and a volume that another node takes.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use random::Random;
use serde_json::json;
use testbed::nodes::{self, Node, NodeKeys, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;
use workload::checker::Checker;

use crate::caches::{CACHE, Pair, cache, connect, connect_with, work_with_hits};
use crate::churn::{ask, done};
use crate::pools::{PATIENCE, make_pool, refused, told, told_to, tried};

/// Nothing is sent before an hour has passed, or half of 64 MiB is dirty: more than the guest has.
const LATE: &str = "cache = { pool = \"local\", size = \"16MiB\", mode = \"write-back\", \
                    dirty = \"64MiB\", dirty-age = \"1h\" }\n";

/// All of it fits, and is sent soon.
const SOON: &str = "cache = { pool = \"local\", size = \"16MiB\", mode = \"write-back\", \
                    dirty = \"64MiB\", dirty-age = \"100ms\" }\n";

/// Everything is sent at once.
const EARLY: &str = "cache = { pool = \"local\", size = \"16MiB\", mode = \"write-back\", \
                     dirty = \"1MiB\", dirty-age = \"1ms\" }\n";

fn dirty_bytes(node: &Node) -> u64 {
    cache(node)["write_back"]["dirty_bytes"].as_u64().expect("it has write-back")
}

/// Writes of whole blocks and flushes: all that a VMhost can do alone.
const WRITES: Mix =
    Mix { blocks_max: 16, depth: 8, reads_ppm: 0, zeroes_ppm: 0, hot_blocks: 512, ..Mix::OF_ALL };

fn work_writes(guest: &mut StandIn, writes: u64) {
    let wanted = guest.workload.counts.writes + writes;
    guest.work(|guest| guest.workload.counts.writes >= wanted).expect("the promise is kept");
}

/// The number in the pool of the volume that has the dirty blocks.
fn dirty_volume(node: &Node) -> u64 {
    volume_of(node, |name| !name.contains(".round."))
}

/// The same of the volume whose name has the number of the last round.
fn round_volume(node: &Node) -> u64 {
    volume_of(node, |name| name.contains(".round."))
}

fn volume_of(node: &Node, is: impl Fn(&str) -> bool) -> u64 {
    let status = node.status().expect("it answers");
    let volumes = status["pools"][0]["volumes"].as_array().cloned().unwrap_or_default();
    let is_it = |it: &&serde_json::Value| {
        let name = it["name"].as_str().unwrap_or_default();
        name.starts_with("dirty.") && is(name)
    };
    let found = volumes.iter().find(is_it).unwrap_or_else(|| panic!("{status}"));
    found["number"].as_u64().expect("a number")
}

/// A text without its ends of lines.
fn unfolded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A command that must fail with these words, which may be in two lines.
fn refused_in_lines(node: &Node, words: &str, wanted: &str) {
    let (is_done, text) = tried(node, words);
    assert!(!is_done && unfolded(&text).contains(wanted), "vrio {words}: {text}");
}

fn stranded(node: &Node) -> usize {
    cache(node)["write_back"]["stranded"].as_array().map_or(0, Vec::len)
}

#[test]
fn writes_that_only_the_vmhost_has_are_there_after_kills_and_go_back_at_a_stop() {
    let (pair, mut random) = (Pair::new(3), Random::new(4));
    let mut io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    for turn in 0..4 {
        work_with_hits(&mut guest, &vm, 100);
        assert!(dirty_bytes(&vm) > 0, "{}", cache(&vm));
        match turn {
            0 => vm = vm.kill().expect("it ran").start().expect("it starts again"),
            1 => vm = vm.hand_over().expect("it hands over"),
            2 => io = io.kill().expect("it ran").start().expect("it starts again"),
            _ => vm = vm.kill().expect("it ran").start().expect("it starts again"),
        }
    }
    guest.read_all().expect("all of the disk is as promised");
    work_with_hits(&mut guest, &vm, 100);
    assert!(dirty_bytes(&vm) > 0 && stranded(&vm) == 0, "{}", cache(&vm));
    let shown = told(&vm, "disk show alice");
    assert!(shown.contains("only on this host"), "{shown}");
    refused(&vm, "pool remove local --force", "alice");
    let (is_done, text) = tried(&vm, "disk cache alice pool=local,size=16MiB");
    assert!(!is_done && text.contains("while it is used by a guest"), "{text}");
    assert!(!text.contains("--force") && !text.contains("remove"), "{text}");
    assert_eq!(guest.workload.counts.errors, 0, "a kill is a pause, not an error");
    vm.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn writes_go_back_while_the_guest_works() {
    let (pair, mut random) = (Pair::new(4), Random::new(5));
    let mut io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", EARLY).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    for _ in 0..2 {
        work_with_hits(&mut guest, &vm, 200);
        io = io.kill().expect("it ran").start().expect("it starts again");
        work_with_hits(&mut guest, &vm, 200);
        vm = vm.kill().expect("it ran").start().expect("it starts again");
    }
    guest.read_all().expect("all of the disk is as promised");
    vm.wait_until("nothing is dirty", |vm| dirty_bytes(vm) == 0).expect("it is sent");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    // The guest goes. A drained node would not add the disk again, so a change does not remove it.
    guest.disconnect();
    let has_guest = |vm: &Node| {
        let status = vm.status().expect("it answers");
        status["disks"][0]["state"] == "running"
    };
    vm.wait_until("it sees that its front end is gone", |vm| !has_guest(vm)).expect("it is");
    told(&vm, "node drain");
    refused(&vm, "disk cache alice --none", "the node is drained");
    pair.vm("vm1", CACHE).write().expect("the file");
    refused(&vm, "node reload --yes", "the node is drained");
    assert!(told(&vm, "disk list").contains("alice"));
    told(&vm, "node drain --undo");
    // The disk goes with its volumes.
    told(&vm, "disk remove alice");
    let pool = told(&vm, "pool show local");
    assert!(!pool.contains("dirty.alice") && !pool.contains("cache.alice"), "{pool}");
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn writes_that_come_too_late_are_kept_and_not_written_over_another_nodes() {
    let (pair, mut random) = (Pair::new(5), Random::new(6));
    let io = pair.io().start().expect("the IOhost starts");
    let mut first = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut second = pair.vm("vm2", LATE).start().expect("the other VMhost starts");
    // The first node is killed with writes that only it has, and its guest is gone.
    let mut guest = connect(&mut first, &mut random);
    let checked = guest.checker.checked + 300;
    guest.work(|guest| guest.checker.checked >= checked).expect("the promise is kept");
    assert!(dirty_bytes(&first) > 0);
    let killed = first.kill().expect("it ran");
    drop(guest);
    // Nothing was sent, so the guest on the other node finds zeroes, and fills the disk anew.
    let mut other = connect(&mut second, &mut random);
    told(&second, "disk take alice");
    work_with_hits(&mut other, &second, 100);
    other.read_all().expect("all of the disk is as promised");
    other.checker.settle();
    second.stop().expect("the other VMhost stops in order");
    other.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    // Back on the first node: its old writes are put aside.
    let mut first = killed.start().expect("it starts again");
    first.wait_for_disk("alice").expect("the disk is served");
    assert!(dirty_bytes(&first) > 0, "{}", cache(&first));
    let status = unfolded(&told(&first, "status"));
    assert!(status.contains("of a guest that is gone are only in this host's pool"), "{status}");
    let mut guest = connect(&mut first, &mut random);
    std::mem::swap(&mut other.checker, &mut guest.checker);
    told(&first, "disk take alice");
    work_with_hits(&mut guest, &first, 100);
    guest.read_all().expect("all of the disk is as the other guest left it");
    assert_eq!(stranded(&first), 1, "{}", cache(&first));
    assert!(told(&first, "status").contains("were not written back"));
    assert!(told(&first, "pool show local").contains("rest.alice.1"));
    first.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_guest_goes_on_while_the_iohost_is_away_and_the_iohost_gets_all_of_it() {
    let (pair, mut random) = (Pair::new(6), Random::new(7));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", SOON).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, WRITES, &mut random);
    work_writes(&mut guest, 300);
    // A flush covers all that an earlier process may have sent.
    guest.drain().expect("all requests end");
    let mut io = Some(io);
    for is_killed in [false, true] {
        let stopped = io.take().expect("it runs");
        let stopped = match is_killed {
            true => stopped.kill().expect("it ran"),
            false => stopped.stop().expect("it stops in order"),
        };
        work_writes(&mut guest, 1000);
        assert!(dirty_bytes(&vm) > 0, "{}", cache(&vm));
        if is_killed {
            // Both are away, and the guest's writes are in the pool alone.
            vm = vm.kill().expect("it ran").start().expect("it starts again");
        }
        io = Some(stopped.start().expect("it starts again"));
        work_writes(&mut guest, 300);
    }
    guest.read_all().expect("all of the disk is as promised");
    vm.wait_until("nothing is dirty", |vm| dirty_bytes(vm) == 0).expect("it is sent");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    assert_eq!(guest.workload.counts.errors, 0);
    assert_eq!(stranded(&vm), 0, "{}", cache(&vm));
    vm.stop().expect("the VMhost stops in order");
    io.expect("it runs").stop().expect("the IOhost stops in order");
}

/// Starts a node again when the disk of another node can take no more.
fn start_when_full(vm: &Node, io: NodePlan) -> thread::JoinHandle<Node> {
    let control = vm.plan().control();
    thread::spawn(move || {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = nodes::status(&control).expect("it answers");
            let it = &status["disks"][0]["cache"]["write_back"];
            let bytes = |name: &str| it[name].as_u64().expect("a number");
            // The longest request does not fit any more.
            if bytes("dirty_bytes") + 16 * 4096 > bytes("dirty_bytes_max") {
                return io.start().expect("it starts again");
            }
            assert!(Instant::now() < until, "{status}");
            thread::sleep(Duration::from_millis(5));
        }
    })
}

#[test]
fn a_guest_waits_when_too_much_is_dirty_and_goes_on_with_the_iohost() {
    let (pair, mut random) = (Pair::new(7), Random::new(8));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", EARLY).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, WRITES, &mut random);
    work_writes(&mut guest, 100);
    let started = start_when_full(&vm, io.kill().expect("it ran"));
    // 3000 requests of 8 blocks on average: far more than 1 MiB.
    work_writes(&mut guest, 3000);
    let io = started.join().expect("it starts the node");
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0);
    vm.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

/// The text of the disk's state in the status.
fn detail(node: &Node) -> String {
    let status = node.status().expect("it answers");
    status["disks"][0]["detail"].as_str().unwrap_or_default().to_owned()
}

/// The disk is not served, and says this.
fn not_served(mut vm: Node, why: &str) -> NodePlan {
    vm.wait_until(why, |vm| detail(vm).contains(why)).expect("it is refused");
    vm.stop().expect("it stops in order")
}

#[test]
fn an_operator_cannot_lose_dirty_blocks_by_mistake() {
    let (pair, mut random) = (Pair::new(8), Random::new(9));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, WRITES, &mut random);
    work_writes(&mut guest, 300);
    let number = dirty_volume(&vm);
    refused(&vm, &format!("volume remove local:{number} --data"), "disk \"alice\"");
    refused(&vm, "pool remove local --force", "disk \"alice\"");
    refused(&vm, "disk remove alice", "a guest");
    // Its dirty blocks have the name of its list of peers.
    done(&vm, "POST", "/v1/peers", &json!({ "name": "io9", "address": "127.0.0.1:9" }));
    let peers = json!({ "peers": ["io1", "io9"] });
    let (code, why) = ask(&vm, "PUT", "/v1/disks/alice/peers", &peers);
    assert!(code == 400 && why.contains("has write-back"), "{why}");
    // Another mode, size or bound by the file, at work: the guest is named.
    for cache in [CACHE, SOON, ""] {
        pair.vm("vm1", cache).write().expect("the file");
        refused(&vm, "node reload --yes", "guests use the objects");
    }
    // By the file, behind the back of a node that was killed: the disk waits until it is told.
    vm.kill().expect("it ran");
    let left = "has writes of this disk";
    for cache in [CACHE, ""] {
        not_served(pair.vm("vm1", cache).start().expect("it starts"), left);
    }
    let mut vm = pair.vm("vm1", LATE).start().expect("it starts with write-back");
    work_writes(&mut guest, 1000);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0);
    // The IOhost is away, and the guest goes: its writes stay, and the disk with them.
    let io = io.stop().expect("it stops in order");
    work_writes(&mut guest, 100);
    guest.drain().expect("all requests end");
    guest.checker.settle();
    let mut checker = std::mem::replace(&mut guest.checker, Checker::new(0));
    guest.disconnect();
    let is_kept = |vm: &Node| tried(vm, "disk remove alice").1.contains("only in this node's pool");
    vm.wait_until("the guest is gone", is_kept).expect("the disk stays");
    assert!(dirty_bytes(&vm) > 0, "{}", cache(&vm));
    let removed = told(&vm, "disk remove alice --force");
    assert!(removed.contains("were not written back"), "{removed}");
    let io = io.start().expect("it starts again");
    told(&vm, "node reload --yes");
    // The disk is there again, and has them.
    let mut guest = connect(&mut vm, &mut random);
    std::mem::swap(&mut checker, &mut guest.checker);
    guest.read_all().expect("all of the disk is as promised");
    work_with_hits(&mut guest, &vm, 50);
    vm.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    // Nothing is dirty: without write-back the disk is served.
    let vm = pair.vm("vm1", CACHE).start().expect("it starts");
    work_with_hits(&mut guest, &vm, 50);
    assert!(!told(&vm, "pool show local").contains("dirty.alice"));
    guest.read_all().expect("all of the disk is as promised");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn an_older_copy_of_the_pool_is_not_written_over_newer_writes() {
    let (pair, mut random) = (Pair::new(9), Random::new(10));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, WRITES, &mut random);
    work_writes(&mut guest, 300);
    assert!(dirty_bytes(&vm) > 0, "{}", cache(&vm));
    let killed = vm.kill().expect("it ran");
    let pool = killed.file("local.pool");
    let copy = pool.with_extension("old");
    std::fs::copy(&pool, &copy).expect("a copy of the pool");
    // Newer writes to the same blocks go to the IOhost, at a stop and by rounds.
    for (round, plan) in [LATE, SOON].map(|cache| pair.vm("vm1", cache)).into_iter().enumerate() {
        plan.write().expect("the file");
        let vm = plan.start().expect("it starts again");
        work_writes(&mut guest, 600);
        guest.drain().expect("all requests end");
        let killed = if round == 0 {
            guest.checker.settle();
            vm.stop().expect("it stops in order")
        } else {
            let mut vm = vm;
            vm.wait_until("nothing is dirty", |vm| dirty_bytes(vm) == 0).expect("it is sent");
            vm.kill().expect("it ran")
        };
        std::fs::copy(&copy, &pool).expect("the copy is put back");
        let mut vm = killed.start().expect("it starts again");
        if round == 1 {
            // After a kill the pool may have had more.
            let is_told = |vm: &Node| detail(vm).contains("has not got the last writes");
            vm.wait_until("its writes are missed", is_told).expect("it is refused");
            told(&vm, "disk remove alice --force");
            told(&vm, "node reload --yes");
        }
        vm.wait_until("the older writes are kept", |vm| stranded(vm) == 1).expect("it is served");
        guest.read_all().expect("all of the disk is as promised");
        assert!(told(&vm, "pool show local").contains("rest.alice.1"));
        let status = unfolded(&told(&vm, "status"));
        assert!(status.contains("an older copy of the pool had"), "{status}");
        vm.stop().expect("the VMhost stops in order");
        guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
        std::fs::copy(&copy, &pool).expect("the copy is put back");
    }
    assert_eq!(guest.workload.counts.errors, 0);
    io.stop().expect("the IOhost stops in order");
}

/// So many bytes take longer to a slow IOhost than a stop without progress may take.
const SLOW_BYTES: u64 = 7 << 20;

/// An IOhost that takes half a MiB in a second.
fn slow(io: NodePlan) -> NodePlan {
    let limit = "chain = [{ limit = { bytes-per-second = \"512KiB\" } }]\nallow";
    NodePlan { config: io.config.replace("allow", limit), ..io }
}

#[test]
fn a_stop_that_makes_progress_goes_on_until_all_is_written_back() {
    let (pair, mut random) = (Pair::new(10), Random::new(11));
    let io = slow(pair.io()).start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, Mix { hot_blocks: 0, ..WRITES }, &mut random);
    while dirty_bytes(&vm) < SLOW_BYTES {
        work_writes(&mut guest, 50);
    }
    guest.drain().expect("all requests end");
    vm.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_disk_that_was_renamed_is_not_served_without_its_writes() {
    let (pair, mut random) = (Pair::new(11), Random::new(12));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, WRITES, &mut random);
    work_writes(&mut guest, 300);
    assert!(dirty_bytes(&vm) > 0, "{}", cache(&vm));
    vm.kill().expect("it ran");
    for cache in [LATE, CACHE, ""] {
        let named = format!("name = \"bob\"\n{cache}");
        let renamed = pair.vm("vm1", &named).start().expect("it starts");
        not_served(renamed, "has writes to the same volume by disk \"alice\"");
    }
    let mut vm = pair.vm("vm1", LATE).start().expect("it starts");
    work_writes(&mut guest, 300);
    guest.read_all().expect("all of the disk is as promised");
    vm.wait_for_disk("alice").expect("the disk is served");
    vm.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_disk_whose_line_was_changed_is_not_served_without_its_writes() {
    let (pair, mut random) = (Pair::new(18), Random::new(19));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, WRITES, &mut random);
    work_writes(&mut guest, 300);
    assert!(dirty_bytes(&vm) > 0, "{}", cache(&vm));
    vm.kill().expect("it ran");
    let line = "volume = \"io1/root\"\n";
    let peer = "[[peer]]\nname = \"io9\"\naddress = \"127.0.0.1:9\"\n[[pool]]";
    let with = |cache: &str, other: &str| {
        let plan = pair.vm("vm1", cache);
        assert!(plan.config.contains(line));
        let config = plan.config.replace(line, other).replace("[[pool]]", peer);
        NodePlan { config, ..plan }
    };
    let attachment = format!("{line}attachment = \"att\"\n");
    let lines = ["volume = \"io1,io9/root\"\n", "volume = \"io9,io1/root\"\n", &attachment];
    for (line, cache) in lines.into_iter().zip([LATE, CACHE, ""]) {
        let vm = with(cache, line).start().expect("it starts");
        not_served(vm, "has writes of this disk to another volume, by another list of peers");
    }
    // With the name changed, and a pool that has nothing of it, the node's memory is left.
    let (pool, right) = put_aside(&pair.vm("vm1", LATE));
    make_anew(&pool);
    let renamed = pair.vm("vm1", "name = \"bob\"\n").start().expect("it starts");
    not_served(renamed, "by the attachment \"alice\", and no open pool");
    let listed = with("name = \"bob\"\n", lines[0]).start().expect("it starts");
    not_served(listed, "this node had write-back to \"io1/root\"");
    std::fs::rename(&right, &pool).expect("the right pool is back");
    let mut vm = pair.vm("vm1", LATE).start().expect("it starts");
    work_writes(&mut guest, 300);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(stranded(&vm), 0, "{}", cache(&vm));
    // By a reload: without --force the guest is named, and with it the writes go first.
    with(LATE, lines[0]).write().expect("the file");
    refused(&vm, "node reload --yes", "guests use the objects");
    told(&vm, "node reload --yes --force");
    vm.wait_for_disk("alice").expect("the disk is served");
    guest.checker.settle();
    vm.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

/// Gives the path of the pool, and where it is now.
fn put_aside(plan: &NodePlan) -> (PathBuf, PathBuf) {
    let pool = plan.file("local.pool");
    let right = pool.with_extension("right");
    std::fs::rename(&pool, &right).expect("the pool is put aside");
    (pool, right)
}

fn make_anew(pool: &Path) {
    let _ = std::fs::remove_file(pool);
    make_pool(pool, "128MiB", "1MiB");
}

/// A VMhost whose disk names a placed volume alone, and its IOhost. The nodes of the placement are
/// in the file that the VMhost's agent keeps.
struct PlacedPair {
    io: NodePlan,
    vm: NodePlan,
}

impl PlacedPair {
    fn new(pair: &Pair, keys: &NodeKeys) -> Self {
        let with = |plan: NodePlan, changes: &[(&str, String)]| {
            let config = changes.iter().fold(plan.config.clone(), |config, (from, to)| {
                assert!(config.contains(from), "{from} in {config}");
                config.replace(from, to)
            });
            NodePlan { config, ..plan }
        };
        let own = |name: &str| ("[sidecores]", format!("{}[sidecores]", keys.own(name)));
        let clients = format!("{}[[volume]]", keys.clients(&["vm1"]));
        let allow = (", \"vm2\"", String::new());
        let io = with(pair.io(), &[own("io1"), allow, ("[[volume]]", clients)]);
        let away = format!(
            "{}[[peer]]\nname = \"io9\"\naddress = \"127.0.0.1:9\"\n{}[[pool]]",
            keys.peer("io1"),
            keys.peer("io9")
        );
        let volume = ("\"io1/root\"", "\"root\"".to_owned());
        let mut vm = with(pair.vm("vm1", LATE), &[own("vm1"), ("[[pool]]", away), volume]);
        vm.config = format!("{}[cluster]\ndirectory = {:?}\n", vm.config, vm.home.join("of-vm1"));
        vm.directories = Some(format!(
            "volumes = [{:?}]\nsockets = {:?}\nstate = {:?}\n",
            vm.home.join("volumes"),
            vm.home,
            vm.home.join("state")
        ));
        Self { io, vm }
    }

    fn place(&self, nodes: &[&str]) {
        let copies: Vec<_> = nodes.iter().map(|it| json!({ "node": it, "pool": "p" })).collect();
        let kept = json!({ "version": 1, "volumes": { "root": { "copies": copies } } });
        let directory = self.vm.home.join("state/own.cluster");
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&directory).expect("ours");
        std::fs::write(directory.join("placements.json"), kept.to_string()).expect("ours");
    }
}

#[test]
fn dirty_blocks_of_a_placed_volume_are_found_when_it_has_other_nodes() {
    let (pair, mut random) = (Pair::new(23), Random::new(24));
    let folder = tempfile::tempdir().expect("a directory");
    let keys = NodeKeys::make(folder.path(), &["io1", "io9", "vm1"]).expect("keys");
    let placed = PlacedPair::new(&pair, &keys);
    placed.place(&["io1"]);
    let io = placed.io.start().expect("the IOhost starts");
    let mut vm = placed.vm.start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, WRITES, &mut random);
    work_writes(&mut guest, 300);
    // The running disk gets the nodes, and the file that the agent keeps has them.
    placed.place(&["io1", "io9"]);
    done(&vm, "PUT", "/v1/disks/alice/peers", &json!({ "peers": ["io1", "io9"] }));
    let is = |vm: &Node, volume: &str| {
        let status = vm.status().expect("it answers");
        let disk = &status["disks"][0];
        assert_eq!((&disk["volume"], &disk["placed"]), (&json!(volume), &json!(true)));
    };
    is(&vm, "io1,io9/root");
    let reloaded = told(&vm, "node reload --yes");
    assert!(reloaded.contains("nothing to change"), "{reloaded}");
    work_writes(&mut guest, 300);
    assert!(dirty_bytes(&vm) > 0, "{}", cache(&vm));
    // A node that starts with other nodes of the volume finds its dirty blocks, and its guest.
    vm.kill().expect("it ran");
    placed.place(&["io9", "io1"]);
    let mut vm = placed.vm.start().expect("it starts");
    work_writes(&mut guest, 300);
    is(&vm, "io9,io1/root");
    // By a reload the running disk has them as well.
    placed.place(&["io1"]);
    let changed = told(&vm, "node reload --yes");
    assert!(changed.contains("its volume is now io1/root"), "{changed}");
    work_writes(&mut guest, 300);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!((stranded(&vm), guest.workload.counts.errors), (0, 0), "{}", cache(&vm));
    is(&vm, "io1/root");
    guest.checker.settle();
    vm.wait_for_disk("alice").expect("the disk is served");
    vm.stop().expect("the VMhost stops in order");
    guest.compare_image(&placed.io.file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_pool_without_the_writes_that_only_the_right_pool_has_is_noticed() {
    let (pair, mut random) = (Pair::new(12), Random::new(13));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    work_with_hits(&mut guest, &vm, 100);
    assert!(dirty_bytes(&vm) > 0, "{}", cache(&vm));
    let (pool, right) = put_aside(&vm.kill().expect("it ran"));
    let vm = pair.vm("vm1", LATE).start().expect("it starts without the pool");
    let shown = unfolded(&told(&vm, "pool show local"));
    assert!(shown.contains("restart the node: disk \"alice\" writes back from it"), "{shown}");
    let (is_done, text) = tried(&vm, "pool remove local --force");
    assert!(!is_done && text.contains("disk \"alice\"") && !text.contains("--force"), "{text}");
    vm.stop().expect("it stops in order");
    make_anew(&pool);
    // Not once only, and in no mode: the first start must not make the pool one that passes.
    for (cache, why) in [
        (LATE, "the pool has not got the last writes"),
        (LATE, "the pool has not got the last writes"),
        (CACHE, "no open pool of this node has the last writes"),
        ("", "no open pool of this node has the last writes"),
    ] {
        not_served(pair.vm("vm1", cache).start().expect("it starts"), why);
    }
    std::fs::rename(&right, &pool).expect("the right pool is back");
    let vm = pair.vm("vm1", LATE).start().expect("it starts");
    work_with_hits(&mut guest, &vm, 100);
    guest.read_all().expect("all of the disk is as promised");
    guest.checker.settle();
    let stopped = vm.stop().expect("it stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    // After a stop in order the pool has nothing that is missed.
    make_anew(&pool);
    let mut vm = stopped.start().expect("it starts");
    work_with_hits(&mut guest, &vm, 100);
    guest.read_all().expect("all of the disk is as promised");
    // A guest that has gone leaves nothing that is missed either.
    guest.checker.settle();
    guest.disconnect();
    let is_ready = |vm: &Node| vm.status().expect("it answers")["disks"][0]["state"] == "ready";
    vm.wait_until("the disk waits for a guest", is_ready).expect("its attachment is closed");
    vm.kill().expect("it ran");
    std::fs::remove_file(&pool).expect("the pool is lost");
    let mut vm = pair.vm("vm1", "").start().expect("it starts without a pool");
    vm.wait_for_disk("alice").expect("the disk is served");
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn writes_of_a_pool_that_is_lost_are_given_up_by_the_operator() {
    let (pair, mut random) = (Pair::new(16), Random::new(17));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, WRITES, &mut random);
    work_writes(&mut guest, 300);
    let killed = vm.kill().expect("it ran");
    drop(guest);
    make_anew(&killed.file("local.pool"));
    let mut vm = killed.start().expect("it starts");
    let is_told = |vm: &Node| detail(vm).contains("`vrio disk remove DISK --force`");
    vm.wait_until("the way out", is_told).expect("it is refused");
    refused_in_lines(&vm, "disk remove alice", "its removal would give them up");
    let removed = told(&vm, "disk remove alice --force");
    assert!(unfolded(&removed).contains("the writes that no pool has are given up"), "{removed}");
    told(&vm, "node reload --yes");
    // Nothing was sent, so the next guest finds zeroes.
    let mut guest = connect(&mut vm, &mut random);
    work_with_hits(&mut guest, &vm, 100);
    guest.read_all().expect("all of the disk is as promised");
    guest.checker.settle();
    vm.stop().expect("it stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn writes_in_a_pool_are_given_up_by_force_alone() {
    let (pair, mut random) = (Pair::new(13), Random::new(14));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, WRITES, &mut random);
    work_writes(&mut guest, 300);
    guest.drain().expect("all requests end");
    drop(guest);
    vm.kill().expect("it ran");
    // Without write-back the disk is not served, and its volume is not in use.
    let mut vm = pair.vm("vm1", "").start().expect("it starts");
    let is_told = |vm: &Node| detail(vm).contains("has writes of this disk");
    vm.wait_until("the writes are named", is_told).expect("it is refused");
    refused_in_lines(&vm, "pool remove local", "has writes of disk \"alice\"");
    let round = format!("volume remove local:{} --data", round_volume(&vm));
    refused_in_lines(&vm, &round, "has the number of the last round of disk \"alice\"");
    let number = dirty_volume(&vm);
    let remove = format!("volume remove local:{number} --data");
    let (is_done, text) = tried(&vm, &remove);
    let text = unfolded(&text);
    assert!(!is_done && text.contains("of writes of disk \"alice\""), "{text}");
    assert!(text.contains("MiB") || text.contains("KiB"), "{text}");
    assert!(text.contains("io1/root has not got them") && text.contains("--force"), "{text}");
    told(&vm, &format!("{remove} --force"));
    // They were given up: nothing is missed.
    vm.wait_for_disk("alice").expect("the disk is served");
    refused(&vm, "volume remove nosuch --data", "there is no such volume");
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn other_commands_go_on_while_a_disk_is_removed_and_written_back() {
    let (pair, mut random) = (Pair::new(14), Random::new(15));
    let io = slow(pair.io()).start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, Mix { hot_blocks: 0, ..WRITES }, &mut random);
    while dirty_bytes(&vm) < SLOW_BYTES {
        work_writes(&mut guest, 50);
    }
    guest.drain().expect("all requests end");
    let control = vm.plan().control();
    let removing = thread::spawn(move || told_to(&control, "disk remove alice --force"));
    let is_leaving = |vm: &Node| detail(vm).contains("it is being removed");
    vm.wait_until("it is written back", is_leaving).expect("the disk is there meanwhile");
    told(&vm, "volume add extra --pool local --size 1MiB");
    assert!(told(&vm, "disk list").contains("alice"), "the removal goes on");
    let (is_done, text) = removing.join().expect("it ends");
    assert!(is_done && !told(&vm, "disk list").contains("alice"), "{text}");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_removal_that_waits_does_not_remove_a_new_disk_of_the_name() {
    let (pair, mut random) = (Pair::new(19), Random::new(20));
    let io = slow(pair.io()).start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    let mut guest = connect_with(&mut vm, Mix { hot_blocks: 0, ..WRITES }, &mut random);
    while dirty_bytes(&vm) < SLOW_BYTES {
        work_writes(&mut guest, 50);
    }
    guest.drain().expect("all requests end");
    let control = vm.plan().control();
    let removing = thread::spawn(move || told_to(&control, "disk remove alice --force"));
    let is_leaving = |vm: &Node| detail(vm).contains("it is being removed");
    vm.wait_until("it is written back", is_leaving).expect("the disk is there meanwhile");
    pair.vm("vm1", SOON).write().expect("the file");
    told(&vm, "node reload --yes --force");
    let (is_done, text) = removing.join().expect("it ends");
    assert!(!is_done && unfolded(&text).contains("there is no such disk any more"), "{text}");
    vm.wait_for_disk("alice").expect("the new disk stays");
    vm.stop().expect("the VMhost stops in order");
    guest.compare_image(&pair.io().file("root.img")).expect("the IOhost has all of it");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_reload_that_could_not_add_a_disk_again_does_not_remove_it() {
    let pair = Pair::new(15);
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", LATE).start().expect("the VMhost starts");
    vm.wait_for_disk("alice").expect("the disk is served");
    let outside = tempfile::tempdir().expect("a directory");
    let pool = outside.path().join("other.pool");
    make_pool(&pool, "128MiB", "1MiB");
    let other = LATE.replace("\"local\"", "\"other\"");
    let config = format!("{other}[[pool]]\nname = \"other\"\ndevices = [{pool:?}]\n");
    pair.vm("vm1", &config).write().expect("the file");
    refused(&vm, "node reload --yes", "outside the directories");
    assert_eq!(cache(&vm)["pool"], "local");
    vm.wait_for_disk("alice").expect("the disk is served");
    // The same for a socket in a place that takes a restart.
    let (volumes, sockets) = (vm.plan().home.join("volumes"), outside.path());
    let directories = Some(format!("volumes = [{volumes:?}]\nsockets = {sockets:?}\n"));
    NodePlan { directories, ..pair.vm("vm1", CACHE) }.write().expect("the file");
    refused(&vm, "node reload --yes", "its socket is in another directory");
    vm.wait_for_disk("alice").expect("the disk is served");
    assert!(cache(&vm)["write_back"].is_object(), "{}", cache(&vm));
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}
