//! Nodes that hand over to another process while a checked guest works: nothing fails, nothing is
//! lost, nobody has to connect again, and the pause is short.
//!
//! `HANDOVERS=n` asks for more.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bench::nodes::{Keys, Node, NodePlan};
use bench::sim::Random;
use bench::stand_in::{RingKind, StandIn};
use bench::workload::Mix;

/// Hand-overs of one kind in one run.
const HANDOVERS: u64 = 10;

/// Blocks of 4 KiB that are worked on.
const BLOCKS: u64 = 2048;

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Ports of this test's nodes: apart from each other and from other tests' by process and number.
fn port(number: u16) -> u16 {
    15_000 + (std::process::id() % 150) as u16 * 30 + number * 3
}

struct Pair {
    home: tempfile::TempDir,
    io: u16,
    vm: u16,
    keys: Keys,
    /// What holds the blocks.
    backend: &'static str,
}

impl Pair {
    fn new(number: u16, sealed: bool, backend: &'static str) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let keys = match sealed {
            true => Keys::make(home.path(), &["io1", "vm1"]).expect("keys"),
            false => Keys::plain(),
        };
        Self { home, io: port(number), vm: port(number + 1), keys, backend }
    }

    fn plan(&self, name: &str, config: String) -> NodePlan {
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    fn io_plan(&self) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n{}[sidecores]\ncount = 2\nidle = \"adaptive\"\n\
             [[volume]]\nname = \"root\"\nbackend = {}\nchain = [\"meter\"]\n{}",
            self.io,
            self.keys.own("io1"),
            self.backend,
            self.keys.clients(&["vm1"]),
        );
        // The list of who may comes behind the volume's other keys.
        let (before, clients) = config.split_at(config.find("[[peer]]").unwrap_or(config.len()));
        let config = format!("{before}{}{clients}", self.keys.allow(&["vm1"]));
        self.plan("io1", config)
    }

    fn vm_plan(&self) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n{}[sidecores]\ncount = 2\nidle = \"adaptive\"\n\
             [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n{}\
             [[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1/root\"\nqueues = 4\n{}",
            self.vm,
            self.keys.own("vm1"),
            self.io,
            self.keys.peer("io1"),
            self.keys.disk()
        );
        self.plan("vm1", config)
    }
}

const FILE: &str = "{ file = \"root.img\", size = \"64MiB\" }";

/// Works while `f` runs beside it; gives what `f` gives and the longest pause until some
/// completions after its end.
fn meanwhile<T: Send>(guest: &mut StandIn, f: impl FnOnce() -> T + Send) -> (T, Duration) {
    let done = AtomicBool::new(false);
    guest.work(|guest| guest.workload.outstanding() > 0).expect("the promise is kept");
    guest.take_longest_pause();
    let got = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let got = f();
            done.store(true, Relaxed);
            got
        });
        guest.work(|_| done.load(Relaxed) || other.is_finished()).expect("the promise is kept");
        other.join().expect("no panic")
    });
    let completed = guest.workload.counts.completed + 100;
    let went_on = guest.work(|guest| guest.workload.counts.completed >= completed);
    went_on.expect("the promise is kept");
    (got, guest.take_longest_pause())
}

fn hand_over(guest: &mut StandIn, node: Node) -> (Node, Duration) {
    let (node, pause) = meanwhile(guest, || node.hand_over());
    (node.unwrap_or_else(|error| panic!("{error:#}")), pause)
}

fn report(what: &str, pauses: &[Duration]) {
    let mut sorted = pauses.to_vec();
    sorted.sort();
    let ms = |at: usize| sorted[at].as_secs_f64() * 1e3;
    println!(
        "{what}: {} hand-overs, longest pause {:.1} ms, median {:.1} ms",
        sorted.len(),
        ms(sorted.len() - 1),
        ms(sorted.len() / 2)
    );
}

fn both_hand_over(pair: &Pair, kind: RingKind, handovers: u64) {
    let mut random = Random::new(1);
    let mut io = pair.io_plan().start().expect("the IOhost starts");
    let mut vm = pair.vm_plan().start().expect("the VMhost starts");
    let socket = vm.wait_for_disk("alice").expect("the disk is served");
    let guest = StandIn::connect_with(&socket, kind, 4, Mix::OF_ALL, BLOCKS, &mut random);
    let mut guest = guest.expect("connects");
    let (mut io_pauses, mut vm_pauses) = (Vec::new(), Vec::new());
    for _ in 0..handovers {
        let pause;
        (io, pause) = hand_over(&mut guest, io);
        io_pauses.push(pause);
        let pause;
        (vm, pause) = hand_over(&mut guest, vm);
        vm_pauses.push(pause);
    }
    report("IOhost", &io_pauses);
    report("VMhost", &vm_pauses);
    guest.read_all().expect("all of the disk is as promised");
    let counts = guest.workload.counts;
    println!("{} requests, {} blocks checked", counts.completed, counts.blocks_checked);
    assert_eq!(counts.errors, 0, "nothing fails");
    assert_eq!(guest.reconnects(), 0, "the front end's connection is the same");
    if pair.backend == FILE {
        guest.compare_image(&pair.io_plan().file("root.img")).expect("and the image");
    }
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
    assert!(!pair.vm_plan().control().exists() && !socket.exists(), "all is tidied up");
}

#[test]
fn nothing_is_noticed_but_a_pause() {
    let handovers = number("HANDOVERS", HANDOVERS);
    both_hand_over(&Pair::new(0, true, FILE), RingKind::Split, handovers);
}

#[test]
fn nothing_is_noticed_of_packed_rings_and_plain_sessions() {
    let handovers = number("HANDOVERS", HANDOVERS);
    both_hand_over(&Pair::new(2, false, FILE), RingKind::Packed, handovers);
}

#[test]
fn memory_outlives_its_process() {
    let handovers = number("HANDOVERS", HANDOVERS).div_ceil(3);
    both_hand_over(&Pair::new(4, true, "{ memory = \"64MiB\" }"), RingKind::Split, handovers);
}
