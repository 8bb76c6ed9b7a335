//! Caches of remote volumes with real processes: guests at work, caches that come and go, kills of
//! both nodes, restarts, hand-overs, a pool that fails to be there, and a volume that another node
//! takes.
//!
//! `POOL_KILLS=n` sets the number of kills.

use std::time::{Duration, Instant};

use random::Random;
use serde_json::Value;
use testbed::nodes::{Node, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;

use crate::pools::{kills, make_pool, refused, told};

/// The disk's blocks of 4 KiB that the guest uses: more than the cache has room for.
const BLOCKS: u64 = 6144;

/// Two ports for each node, one for each of its sidecores: apart from other tests' by process.
fn port(number: u16) -> u16 {
    28_000 + (std::process::id() % 100) as u16 * 36 + number * 2
}

pub(crate) struct Pair {
    home: tempfile::TempDir,
    number: u16,
}

impl Pair {
    /// Nodes with ports of this number, and a pool for each VMhost.
    pub(crate) fn new(number: u16) -> Self {
        let pair = Self { home: tempfile::tempdir().expect("a directory"), number: number * 3 };
        for name in ["vm1", "vm2"] {
            let plan = pair.vm(name, "");
            plan.write().expect("its directories");
            make_pool(&plan.file("local.pool"), "128MiB", "1MiB");
        }
        pair
    }

    fn plan(&self, name: &str, config: String) -> NodePlan {
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    pub(crate) fn io(&self) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n[sidecores]\ncount = 2\nidle = \"adaptive\"\n\
             [[volume]]\nname = \"root\"\nbackend = {{ file = \"root.img\", size = \"256MiB\" }}\n\
             allow = [\"vm1\", \"vm2\"]\n",
            port(self.number)
        );
        self.plan("io1", config)
    }

    /// The same with the volume in a pool, which has snapshots.
    fn io_with_pool(&self) -> NodePlan {
        let in_file = "file = \"root.img\", ";
        let plan = self.io();
        assert!(plan.config.contains(in_file));
        let config = plan.config.replace(in_file, "pool = \"p\", ");
        let config = config.replace(
            "[[volume]]",
            "[[pool]]\nname = \"p\"\n\
             devices = [\"p.pool\"]\n[[volume]]",
        );
        let plan = NodePlan { config, ..plan };
        plan.write().expect("its directories");
        make_pool(&plan.file("p.pool"), "512MiB", "1MiB");
        plan
    }

    pub(crate) fn vm(&self, name: &str, cache: &str) -> NodePlan {
        let listen = port(self.number + if name == "vm1" { 1 } else { 2 });
        let config = format!(
            "listen = \"127.0.0.1:{listen}\"\n[sidecores]\ncount = 2\nidle = \"adaptive\"\n\
             [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n\
             [[pool]]\nname = \"local\"\ndevices = [\"local.pool\"]\n\
             [[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1/root\"\nqueues = 2\n{cache}",
            port(self.number)
        );
        self.plan(name, config)
    }

    fn compare(&self, guest: &mut StandIn) {
        guest.read_all().expect("all of the disk is as promised");
        guest.compare_image(&self.io().file("root.img")).expect("the IOhost has the same");
    }
}

/// The cache of the file.
pub(crate) const CACHE: &str = "cache = { pool = \"local\", size = \"16MiB\" }\n";

pub(crate) fn cache(node: &Node) -> Value {
    node.status().expect("it answers")["disks"][0]["cache"].clone()
}

fn count(node: &Node, name: &str) -> u64 {
    cache(node)[name].as_u64().unwrap_or_default()
}

/// Works until the cache has answered so many more reads.
pub(crate) fn work_with_hits(guest: &mut StandIn, node: &Node, hits: u64) {
    let (wanted, began) = (count(node, "hits") + hits, Instant::now());
    while count(node, "hits") < wanted {
        let checked = guest.checker.checked + 200;
        guest.work(|guest| guest.checker.checked >= checked).expect("the promise is kept");
        let waits = began.elapsed() < Duration::from_secs(60);
        assert!(waits, "{}: {}", cache(node), node.log_tail());
    }
}

pub(crate) fn connect(node: &mut Node, random: &mut Random) -> StandIn {
    connect_with(node, Mix { blocks_max: 16, depth: 8, hot_blocks: 512, ..Mix::OF_ALL }, random)
}

pub(crate) fn connect_with(node: &mut Node, mix: Mix, random: &mut Random) -> StandIn {
    let socket = node.wait_for_disk("alice").expect("the disk is served");
    StandIn::connect(&socket, 2, mix, BLOCKS, random).expect("connects")
}

#[test]
fn a_guest_reads_from_a_cache_that_comes_and_goes_while_it_works() {
    let (pair, mut random) = (Pair::new(0), Random::new(1));
    let io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", "").start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    assert!(cache(&vm).is_null());
    for _ in 0..3 {
        told(&vm, "disk cache alice pool=local,size=16MiB");
        work_with_hits(&mut guest, &vm, 300);
        let shown = told(&vm, "disk show alice");
        assert!(shown.contains("its cache: used") && shown.contains("pool local"), "{shown}");
        assert!(told(&vm, "pool show local").contains("cache.alice"));
        let (has, most) = (count(&vm, "cached_bytes"), count(&vm, "size_bytes"));
        assert!(has > 0 && has <= most, "{has} of {most}");
        told(&vm, "disk cache alice --none");
        assert!(cache(&vm).is_null());
        assert!(!told(&vm, "pool show local").contains("cache.alice"));
        let checked = guest.checker.checked + 500;
        guest.work(|guest| guest.checker.checked >= checked).expect("the promise is kept");
    }
    // Without room in the pool the guest goes on, and the status says why there is no cache.
    told(&vm, "disk cache alice pool=local,size=1GiB");
    let status = told(&vm, "status");
    assert!(status.contains("works without its cache"), "{status}");
    refused(&vm, "disk cache alice pool=none,size=16MiB", "no pool \"none\"");
    let write_back = "disk cache alice pool=local,size=16MiB,mode=write-back,dirty=1MiB";
    refused(&vm, write_back, "alice");
    told(&vm, "disk cache alice pool=local,size=16MiB");
    work_with_hits(&mut guest, &vm, 300);
    // The pool goes: the guest goes on.
    let removed = told(&vm, "pool remove local");
    assert!(removed.contains("goes on without its cache"), "{removed}");
    let checked = guest.checker.checked + 500;
    guest.work(|guest| guest.checker.checked >= checked).expect("the promise is kept");
    told(&vm, "pool add local --devices local.pool");
    work_with_hits(&mut guest, &vm, 300);
    pair.compare(&mut guest);
    assert_eq!(guest.workload.counts.errors, 0);
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_cache_goes_on_after_restarts_and_hand_overs_and_begins_empty_after_kills() {
    let (pair, mut random) = (Pair::new(1), Random::new(2));
    let mut io = pair.io().start().expect("the IOhost starts");
    let mut vm = pair.vm("vm1", CACHE).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    work_with_hits(&mut guest, &vm, 300);
    assert_eq!(count(&vm, "emptied"), 1, "it was new");
    // The IOhost is killed: the same guest goes on, and no other client came.
    io = io.kill().expect("it ran").start().expect("it starts again");
    work_with_hits(&mut guest, &vm, 300);
    assert_eq!(count(&vm, "emptied"), 1, "{}", vm.log_tail());
    // Another process of the node.
    for restarts in [false, true] {
        let before = count(&vm, "cached_bytes");
        vm = match restarts {
            false => vm.hand_over().expect("it hands over"),
            true => vm.stop().expect("it stops in order").start().expect("it starts again"),
        };
        guest.work(|guest| guest.workload.outstanding() > 0).expect("the guest is there");
        work_with_hits(&mut guest, &vm, 300);
        assert_eq!(count(&vm, "emptied"), 0, "restart: {restarts}; {}", vm.log_tail());
        assert!(before > 0);
    }
    for kill in 0..kills() {
        let checked = guest.checker.checked + random.between(50, 1000);
        guest.work(|guest| guest.checker.checked >= checked).expect("the promise is kept");
        if kill % 3 == 2 {
            io = io.kill().expect("it ran").start().expect("it starts again");
            continue;
        }
        vm = vm.kill().expect("it ran").start().expect("it starts again");
        work_with_hits(&mut guest, &vm, 100);
        assert_eq!(count(&vm, "emptied"), 1, "{}", vm.log_tail());
    }
    pair.compare(&mut guest);
    assert_eq!(guest.workload.counts.errors, 0, "a kill is a pause, not an error");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

#[test]
fn a_cache_is_empty_when_another_node_has_had_the_volume() {
    let (pair, mut random) = (Pair::new(2), Random::new(3));
    let io = pair.io().start().expect("the IOhost starts");
    let mut first = pair.vm("vm1", CACHE).start().expect("the VMhost starts");
    let mut second = pair.vm("vm2", CACHE).start().expect("the other VMhost starts");
    let mut guest = connect(&mut first, &mut random);
    work_with_hits(&mut guest, &first, 300);
    // The other node takes the volume from a guest at work, and changes most of it.
    let mut other = connect(&mut second, &mut random);
    guest.checker.settle();
    guest.workload.forget();
    std::mem::swap(&mut other.checker, &mut guest.checker);
    told(&second, "disk take alice");
    work_with_hits(&mut other, &second, 300);
    drop(guest);
    other.drain().expect("all requests end");
    other.checker.settle();
    // And back: the first guest starts afresh.
    let emptied = count(&first, "emptied");
    let mut guest = connect(&mut first, &mut random);
    std::mem::swap(&mut other.checker, &mut guest.checker);
    drop(other);
    told(&first, "disk take alice");
    work_with_hits(&mut guest, &first, 300);
    assert!(count(&first, "emptied") > emptied, "{}", first.log_tail());
    pair.compare(&mut guest);
    guest.disconnect();
    first.stop().expect("the VMhost stops in order");
    second.stop().expect("the other VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

/// A guest waits for its node, which has stopped in order with its cache, and the volume goes back
/// meanwhile: neither the cache nor the guest's memory is right for what the volume is now.
#[test]
fn no_guest_goes_on_with_a_cache_over_a_volume_that_was_rolled_back() {
    let (pair, mut random) = (Pair::new(9), Random::new(10));
    let io = pair.io_with_pool().start().expect("the IOhost starts");
    told(&io, "volume snapshot root --name empty");
    let mut vm = pair.vm("vm1", CACHE).start().expect("the VMhost starts");
    let mut guest = connect(&mut vm, &mut random);
    work_with_hits(&mut guest, &vm, 300);
    refused(&io, "volume rollback root empty", "in use by");
    let ended = vm.stop().expect("it stops in order");
    // It takes the answers that came before the stop.
    let turns = std::cell::Cell::new(0);
    let is_over = |_: &StandIn| turns.replace(turns.get() + 1) > 1000;
    guest.work(is_over).expect("it waits");
    told(&io, "volume rollback root empty");
    let mut vm = ended.start().expect("it starts again");
    let is_refused = |vm: &Node| {
        let status = vm.status().expect("it answers");
        let detail = status["disks"][0]["detail"].as_str().unwrap_or_default();
        detail.contains("was rolled back or made smaller")
    };
    vm.wait_until("the guest is refused", is_refused).expect("it is refused by name");
    // Nothing is answered, from the cache neither.
    let before = (guest.checker.checked, guest.workload.counts.writes);
    turns.set(0);
    guest.work(is_over).expect("it waits, or has errors");
    assert_eq!((guest.checker.checked, guest.workload.counts.writes), before);
    guest.disconnect();
    // A guest that starts afresh finds what the volume is now.
    let mut guest = connect(&mut vm, &mut random);
    guest.read_all().expect("all zeroes");
    work_with_hits(&mut guest, &vm, 100);
    guest.read_all().expect("all of the disk is as promised");
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}
