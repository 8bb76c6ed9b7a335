//! Nodes that hand over to another process while a checked guest works: nothing fails or is lost,
//! no front end has to connect again, and the pause is short.
//!
//! `HANDOVERS=n` sets their number.

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use random::Random;
use serde_json::json;
use testbed::guest::{self, Guest, VhostDisk, scripts};
use testbed::nodes::{Node, NodeKeys, NodePlan};
use testbed::stand_in::{RingKind, StandIn};
use virtio::driver::{FrontEnd, FrontEndConfig, SocketRole};
use workload::Mix;

/// Hand-overs of one kind in one run.
const HANDOVERS: u64 = 20;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time limit of a guest's work: an emulated guest on a busy machine is slow.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);

/// The disk's blocks of 4 KiB that the guest uses.
const BLOCKS: u64 = 2048;

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok().filter(|text| !text.is_empty());
    text.map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Ports of this test's nodes: apart from each other and from other tests' by process and number.
fn port(number: u16) -> u16 {
    15_000 + (std::process::id() % 70) as u16 * 63 + number * 3
}

struct Pair {
    home: tempfile::TempDir,
    io: u16,
    vm: u16,
    keys: NodeKeys,
    /// The backend of the volume.
    backend: &'static str,
    /// The chain of the volume.
    chain: &'static str,
    /// The IOhost's socket for sessions over shared memory, if the VMhost uses it.
    door: Option<PathBuf>,
    /// More lines for the top of the IOhost's configuration.
    more: String,
    /// The IOhost's sidecores.
    sidecores: u16,
}

impl Pair {
    fn new(number: u16, sealed: bool, backend: &'static str) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let keys = match sealed {
            true => NodeKeys::make(home.path(), &["io1", "vm1"]).expect("keys"),
            false => NodeKeys::plain(),
        };
        let (io, vm) = (port(number), port(number + 1));
        let (chain, door, more) = ("\"meter\"", None, String::new());
        Self { home, io, vm, keys, backend, chain, door, more, sidecores: 2 }
    }

    fn plan(&self, name: &str, config: String) -> NodePlan {
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    fn io_plan(&self) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n{}{}[sidecores]\ncount = {}\nidle = \"adaptive\"\n\
             [[volume]]\nname = \"root\"\nbackend = {}\nchain = [{}]\n{}",
            self.io,
            self.keys.own("io1"),
            self.more,
            self.sidecores,
            self.backend,
            self.chain,
            self.keys.clients(&["vm1"]),
        );
        // The key `allow` follows the volume's other keys.
        let (before, clients) = config.split_at(config.find("[[peer]]").unwrap_or(config.len()));
        let config = format!("{before}{}{clients}", self.keys.allow(&["vm1"]));
        self.plan("io1", config)
    }

    fn vm_plan(&self) -> NodePlan {
        let io1 = match &self.door {
            Some(door) => format!("shm:{}", door.display()),
            None => format!("127.0.0.1:{}", self.io),
        };
        let config = format!(
            "listen = \"127.0.0.1:{}\"\n{}[sidecores]\ncount = 2\nidle = \"adaptive\"\n\
             [[peer]]\nname = \"io1\"\naddress = \"{io1}\"\n{}\
             [[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1/root\"\nqueues = 4\n{}",
            self.vm,
            self.keys.own("vm1"),
            self.keys.peer("io1"),
            self.keys.disk()
        );
        self.plan("vm1", config)
    }
}

const FILE: &str = "{ file = \"root.img\", size = \"64MiB\" }";

/// Works while `f` runs beside it. Gives the result of `f`, and the longest pause up to some
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
    // On two sidecores, two writes of one block at the same time could mix, as on any RAM disk.
    let pair = Pair { sidecores: 1, ..Pair::new(4, true, "{ memory = \"64MiB\" }") };
    both_hand_over(&pair, RingKind::Split, handovers);
}

/// A tenant whose limit holds requests back for longer than any hand-over may take.
#[test]
fn a_limit_holds_nothing_up() {
    let mut pair = Pair::new(18, false, FILE);
    pair.chain = "{ limit = { iops = 100, burst = \"20ms\" } }";
    both_hand_over(&pair, RingKind::Split, 2);
}

/// Nodes on one machine that share memory. The port for metrics goes over as well.
#[test]
fn shared_memory_and_metrics_go_over() {
    let mut pair = Pair::new(6, true, FILE);
    let door = pair.home.path().join("io1/io1.shm");
    pair.door = Some(door.clone());
    let metrics = format!("127.0.0.1:{}", pair.io + 2);
    pair.more = format!("shm = \"io1.shm\"\nmetrics-listen = \"{metrics}\"\n");
    let handovers = number("HANDOVERS", HANDOVERS).div_ceil(3);
    both_hand_over(&pair, RingKind::Split, handovers);
    assert!(!door.exists(), "it is tidied up");
    let io = pair.io_plan().start().expect("the IOhost starts");
    let io = io.hand_over().unwrap_or_else(|error| panic!("{error:#}"));
    let mut stream = std::net::TcpStream::connect(&metrics).expect("somebody listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it takes it");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.contains("vrio_node_draining 0"), "{answer}");
    io.stop().expect("it stops in order");
}

/// A node that is its own IOhost and has no directory for records: they go over as well.
#[test]
fn local_disks_on_memory_go_over() {
    let home = tempfile::tempdir().expect("a directory");
    let config = "[[volume]]\nname = \"a\"\nbackend = { memory = \"64MiB\" }\n\
                  [[disk]]\nsocket = \"alice.sock\"\nvolume = \"a\"\nqueues = 4\n";
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n1", config.to_owned());
    let mut node = NodePlan { volumes: false, ..plan }.start().expect("it starts");
    let socket = node.wait_for_disk("alice").expect("the disk is served");
    let mut random = Random::new(1);
    let guest =
        StandIn::connect_with(&socket, RingKind::Packed, 4, Mix::OF_ALL, BLOCKS, &mut random);
    let mut guest = guest.expect("connects");
    let mut pauses = Vec::new();
    for _ in 0..number("HANDOVERS", HANDOVERS) {
        let pause;
        (node, pause) = hand_over(&mut guest, node);
        pauses.push(pause);
    }
    report("local", &pauses);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!((guest.workload.counts.errors, guest.reconnects()), (0, 0));
    guest.disconnect();
    node.stop().expect("it stops in order");
}

/// Waits until the node serves and gives it, or nothing if it was killed or taken over.
fn settle(guest: &mut StandIn, mut node: Node) -> Option<Node> {
    let until = Instant::now() + PATIENCE;
    let wanted = guest.workload.counts.completed + 100;
    loop {
        let look = Instant::now() + Duration::from_millis(100);
        let done = |guest: &StandIn| guest.workload.counts.completed >= wanted;
        let went_on = guest.work(|guest| done(guest) || Instant::now() >= look);
        went_on.expect("the promise is kept");
        if node.ended().expect("the system says").is_some() {
            return None;
        }
        if done(guest) {
            return Some(node);
        }
        assert!(Instant::now() < until, "nothing moves:\n{}", node.log_tail());
    }
}

/// Successors and nodes are killed at any moment of a hand-over. The survivor goes on, or a new
/// start recovers as after any kill.
#[test]
fn kills_at_any_moment_lose_nothing() {
    let mut random = Random::new(number("KILL_SEED", 1));
    let pair = Pair::new(9, true, FILE);
    let mut nodes = [pair.io_plan(), pair.vm_plan()].map(|plan| plan.start().expect("it starts"));
    let socket = nodes[1].wait_for_disk("alice").expect("the disk is served");
    let guest = StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random);
    let mut guest = guest.expect("connects");
    let (mut went_on, mut taken, mut started) = (0, 0, 0);
    // The time of a hand-over on this machine: the kills come at moments in this time.
    let begun = Instant::now();
    nodes = nodes.map(|node| hand_over(&mut guest, node).0);
    let longest_us = begun.elapsed().as_micros() as u64 / 4;
    for round in 0..2 * number("HANDOVERS", HANDOVERS) {
        let [io, vm] = nodes;
        let (node, other) = if round % 2 == 0 { (io, vm) } else { (vm, io) };
        let plan = node.plan().clone();
        let kills_node = random.below(3) == 0;
        let after = Duration::from_micros(random.below(longest_us));
        let killing = meanwhile_unless_stuck(&mut guest, || {
            let successor = plan.spawn(&["--take-over"]).expect("the program is there");
            std::thread::sleep(after);
            // Killed when dropped.
            if kills_node { (drop(node), successor).1 } else { (drop(successor), node).1 }
        });
        let left = settle(&mut guest, killing);
        match (&left, kills_node) {
            (None, _) => started += 1,
            (Some(_), true) => taken += 1,
            (Some(_), false) => went_on += 1,
        }
        let node = left.unwrap_or_else(|| plan.start().expect("it starts again"));
        nodes = if round % 2 == 0 { [node, other] } else { [other, node] };
    }
    println!("{went_on} nodes went on, {taken} were taken over, {started} were started again");
    assert!(went_on > 0, "no successor was killed before it had it all");
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0, "a kill is a pause, not an error");
    guest.compare_image(&pair.io_plan().file("root.img")).expect("and the image");
    guest.disconnect();
    for node in nodes {
        node.stop().expect("it stops in order");
    }
}

/// Works while `f` runs, even if no request completes.
fn meanwhile_unless_stuck<T: Send>(guest: &mut StandIn, f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let other = scope.spawn(f);
        guest.work(|_| other.is_finished()).expect("the promise is kept");
        other.join().expect("no panic")
    })
}

/// The node waits for a successor that stands still in the middle, and then goes on without it.
#[test]
fn a_successor_that_stands_still_is_left_behind() {
    const TRIES: u32 = 20;
    let mut random = Random::new(1);
    let pair = Pair::new(12, false, FILE);
    let io = pair.io_plan().start().expect("the IOhost starts");
    let mut vm = pair.vm_plan().start().expect("the VMhost starts");
    let socket = vm.wait_for_disk("alice").expect("the disk is served");
    let guest = StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random);
    let mut guest = guest.expect("connects");
    let mut left_behind = false;
    for _ in 0..TRIES {
        (vm, left_behind) = stop_successor(&mut guest, vm);
        if left_behind {
            break;
        }
        println!("the successor was quicker than its signal");
    }
    assert!(left_behind, "no successor was stopped before it said that it has it all");
    assert_eq!(guest.reconnects(), 0);
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!(guest.workload.counts.errors, 0);
    guest.disconnect();
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
}

/// Stops a successor in the middle. Gives the process that goes on, and whether it is the node.
fn stop_successor(guest: &mut StandIn, node: Node) -> (Node, bool) {
    let plan = node.plan().clone();
    // The log says "handed over" or "not handed over".
    let log = || std::fs::read_to_string(plan.home.join("log")).expect("a log");
    let decided = || log().matches("handed over").count();
    let before = decided();
    let (mut successor, pause) = meanwhile(guest, || {
        let successor = plan.spawn(&["--take-over"]).expect("the program is there");
        let meeting = plan.home.join(format!("control.take-over.{}", successor.pid()));
        // The socket is there until the node has connected. On a busy machine this loop may miss
        // it. Then this successor is not stopped, and the next one is tried.
        wait_until("the successor waits", || meeting.exists() || decided() > before);
        wait_until("the node has come", || !meeting.exists());
        successor.halt().expect("it runs");
        // A successor that has received everything stands still now, and the guest waits for it.
        wait_until("the node ends, or goes on", || decided() > before);
        successor.resume().expect("it is stopped");
        successor
    });
    println!("a pause of {pause:?}");
    // Either the successor had confirmed that it has everything, or the node goes on.
    match settle(guest, node) {
        Some(node) => {
            wait_until("it gives up", || successor.ended().expect("the system says").is_some());
            assert_eq!(successor.ended().expect("the system says"), Some(false));
            (node, true)
        }
        None => (successor, false),
    }
}

/// A node stands still before its last message: it or its successor goes on, and not both.
#[test]
fn a_node_that_stands_still_has_one_heir() {
    let home = tempfile::tempdir().expect("a directory");
    let config = "[[volume]]\nname = \"a\"\nbackend = { memory = \"64MiB\" }\n\
                  [[disk]]\nsocket = \"alice.sock\"\nvolume = \"a\"\nqueues = 4\n";
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n1", config.to_owned());
    let mut node = plan.start().expect("it starts");
    let socket = node.wait_for_disk("alice").expect("the disk is served");
    let mut random = Random::new(1);
    let guest = StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random);
    let mut guest = guest.expect("connects");
    let (mut successor, _) = meanwhile(&mut guest, || {
        // A node that runs may connect to the socket before this loop sees it.
        node.halt().expect("it runs");
        let successor = plan.spawn(&["--take-over"]).expect("the program is there");
        let meeting = plan.home.join(format!("control.take-over.{}", successor.pid()));
        wait_until("the successor waits", || meeting.exists());
        node.resume().expect("it is stopped");
        wait_until("the node has come", || !meeting.exists());
        // The node sends its state, and waits for an answer.
        successor.halt().expect("it runs");
        std::thread::sleep(Duration::from_secs(1));
        node.halt().expect("it runs");
        successor.resume().expect("it is stopped");
        // The answer is there, and the successor has waited too long.
        std::thread::sleep(Duration::from_secs(7));
        node.resume().expect("it is stopped");
        successor
    });
    wait_until("one of them ends", || {
        [&mut node, &mut successor].into_iter().any(|it| it.ended().expect("it says").is_some())
    });
    let left = match node.ended().expect("the system says") {
        Some(_) => successor,
        None => node,
    };
    let left = settle(&mut guest, left).expect("the other one serves");
    guest.read_all().expect("all of the disk is as promised");
    assert_eq!((guest.workload.counts.errors, guest.reconnects()), (0, 0));
    guest.disconnect();
    left.stop().expect("it stops in order");
}

/// An IOhost that was away comes back as if its host had lost its power. A guest that lost nothing
/// by that goes on, whichever process serves it now. Else its disk fails, and the status says why.
#[test]
fn a_vmhost_hands_over_while_its_iohost_is_away() {
    let reads = Mix { reads_ppm: 1_000_000, flushes_ppm: 0, zeroes_ppm: 0, ..Mix::OF_ALL };
    let writes = Mix { reads_ppm: 0, flushes_ppm: 0, zeroes_ppm: 0, ..Mix::OF_ALL };
    for (mix, is_lost) in [(reads, false), (writes, true)] {
        let mut random = Random::new(1);
        let mut pair = Pair::new(11, true, FILE);
        pair.vm = port(14);
        let io = pair.io_plan().start().expect("the IOhost starts");
        let mut vm = pair.vm_plan().start().expect("the VMhost starts");
        let socket = vm.wait_for_disk("alice").expect("the disk is served");
        let guest = StandIn::connect(&socket, 4, mix, BLOCKS, &mut random);
        let mut guest = guest.expect("connects");
        meanwhile(&mut guest, || ());
        let plan = io.kill().expect("it runs");
        // The same content in another file is another incarnation.
        let (image, copy) = (plan.file("root.img"), plan.file("copy.img"));
        std::fs::copy(&image, &copy).expect("it is there");
        std::fs::rename(&copy, &image).expect("it is there");
        let mut vm = meanwhile_unless_stuck(&mut guest, || vm.hand_over().expect("it goes over"));
        let io = plan.start().expect("it starts again");
        if is_lost {
            let lost =
                |vm: &Node| vm.status().is_ok_and(|it| it.to_string().contains("may be lost"));
            vm.wait_until("its guest is told", lost).expect("not in silence");
        } else {
            vm = settle(&mut guest, vm).expect("it runs");
            guest.read_all().expect("all of the disk is as promised");
            assert_eq!(guest.workload.counts.errors, 0);
        }
        assert_eq!(guest.reconnects(), 0);
        guest.disconnect();
        vm.stop().expect("the VMhost stops in order");
        io.stop().expect("the IOhost stops in order");
    }
}

fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Asks a node to hand over, and does not wait for an answer.
fn say(control: &Path, fields: &serde_json::Value) -> UnixStream {
    let mut stream = UnixStream::connect(control).expect("the node answers");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let (body, head) = (fields.to_string(), "POST /v1/hand-over HTTP/1.0\r\nHost: vrio");
    let length = body.len();
    write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").expect("it takes it");
    stream
}

/// Asks a node to hand over, as a successor does. Gives the code and the text of the answer.
fn ask(control: &Path, fields: &serde_json::Value) -> (u16, String) {
    let mut stream = say(control, fields);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let code = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
    (code.expect("a code"), answer)
}

/// FNV-1a, as `docs/protocol.md` has it.
fn digest(path: &Path) -> u64 {
    let bytes = std::fs::read(path).expect("it is there");
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A node with a disk on memory.
fn memory_plan(home: &Path) -> NodePlan {
    let config = "[[volume]]\nname = \"a\"\nbackend = { memory = \"1MiB\" }\n\
                  [[disk]]\nsocket = \"a.sock\"\nvolume = \"a\"\n";
    NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home, "n1", config.to_owned())
}

#[test]
fn a_successor_that_is_none_is_refused_by_name() {
    let home = tempfile::tempdir().expect("a directory");
    let plan = memory_plan(home.path());
    let mut node = plan.start().expect("it starts");
    node.wait_for_disk("a").expect("the disk is served");
    let control = plan.control();
    let pid = std::process::id();
    let right = json!({
        "state_version": 7, "release": "9", "node": "n1", "pid": pid,
        "config_digest": digest(&plan.home.join("node.toml")),
    });
    let with = |key: &str, value: serde_json::Value| {
        let mut fields = right.clone();
        fields[key] = value;
        ask(&control, &fields)
    };
    for (key, value, code, says) in [
        ("state_version", json!(1), 409, "speaks version 1 of the hand-over, this node"),
        ("node", json!("n2"), 409, "this is node \\\"n1\\\", not \\\"n2\\\""),
        ("config_digest", json!(7), 409, "the successor's configuration is not the file"),
        ("pid", json!(pid), 400, "the successor does not answer at"),
    ] {
        let (got, text) = with(key, value);
        assert!(got == code && text.contains(says), "{key}: {text}");
    }
    // The socket belongs to another process.
    let meeting = plan.home.join("control.take-over.1");
    let _stranger = UnixListener::bind(&meeting).expect("a socket");
    let (code, text) = with("pid", json!(1));
    assert!(code == 400 && text.contains("must be process 1 of this node's user"), "{text}");

    // A second successor is refused. The first one ends without an answer, and the node goes on.
    let listener = UnixListener::bind(plan.home.join(format!("control.take-over.{pid}")));
    let listener = listener.expect("a socket");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| ask(&control, &right));
        let (connection, _) = listener.accept().expect("the node comes");
        let (code, text) = ask(&control, &right);
        assert!(code == 503 && text.contains("another process is taking this node"), "{text}");
        drop(connection);
        let (code, text) = first.join().expect("no panic");
        assert!(code == 500 && text.contains("the successor is lost"), "{text}");
    });
    node.stop().expect("it stops in order");
}

#[test]
fn a_node_that_cannot_hand_over_says_why_and_goes_on() {
    let home = tempfile::tempdir().expect("a directory");
    let plan = memory_plan(home.path());
    let vrio = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_vrio"));
        let config = plan.home.join("node.toml");
        let output = command.args(words).arg("--config").arg(config).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let take_over = || vrio(&["node", "--take-over"]);
    plan.write().expect("a configuration");
    let (code, text) = take_over();
    assert!(code == Some(3) && text.contains("no node answers"), "{text}");
    let mut node = plan.start().expect("it starts");
    node.wait_for_disk("a").expect("the disk is served");
    vrio(&["disk", "add", "x", "--volume", "a", "--socket", "x.sock"]);
    let (code, text) = take_over();
    let says = "the node is not what its file says: disk \"x\" was added by a command";
    assert!(code == Some(1) && text.contains(says), "{text}");
    vrio(&["disk", "remove", "x"]);
    vrio(&["node", "drain"]);
    let (code, text) = take_over();
    assert!(code == Some(1) && text.contains("the node is drained"), "{text}");
    vrio(&["node", "drain", "--undo"]);
    let node = node.hand_over().unwrap_or_else(|error| panic!("{error:#}"));
    node.stop().expect("it stops in order");
}

/// A front end of raw bytes connects and leaves often, and then stops in the middle of a message.
#[test]
fn a_front_end_that_ends_no_message_holds_nothing_up() {
    let home = tempfile::tempdir().expect("a directory");
    let plan = memory_plan(home.path());
    let mut node = plan.start().expect("it starts");
    let socket = node.wait_for_disk("a").expect("the disk is served");
    for number in 0..1000 {
        let mut front_end = UnixStream::connect(&socket).expect("the disk is served");
        // Every fiftieth connection sends garbage, which costs the front end a pause.
        let bytes = if number % 50 == 0 { &b"garbage"[..] } else { &[] };
        front_end.write_all(bytes).expect("it takes it");
    }
    let mut front_end = UnixStream::connect(&socket).expect("the disk is served");
    front_end.set_read_timeout(Some(PATIENCE)).expect("it can be bounded");
    let is_answered = |mut front_end: &UnixStream| {
        let mut answer = [0; 20];
        front_end.read_exact(&mut answer).expect("it answers");
        assert_eq!(answer[..12], [1, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0]);
    };
    // GET_FEATURES, and the same without its last word, which goes to the next process.
    let message = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    front_end.write_all(&message).expect("it takes it");
    is_answered(&front_end);
    front_end.write_all(&message[..8]).expect("it takes it");
    node = node.hand_over().unwrap_or_else(|error| panic!("{error:#}"));
    front_end.write_all(&message[8..]).expect("it takes it");
    is_answered(&front_end);
    node.stop().expect("it stops in order");
    // The log has no more lines than one minute may have, or some minutes on a busy machine.
    let log = std::fs::read_to_string(home.path().join("n1/log")).expect("it is there");
    let lines = log.lines().filter(|line| line.contains("front end")).count();
    assert!((1..=100).contains(&lines), "{lines} lines: {log}");
}

/// A guest that broke its ring holds nothing up, and may begin anew with the next process.
#[test]
fn a_guest_that_broke_its_ring_holds_nothing_up() {
    let home = tempfile::tempdir().expect("a directory");
    let mut node = memory_plan(home.path()).start().expect("it starts");
    let socket = node.wait_for_disk("a").expect("the disk is served");
    let config = FrontEndConfig::new(SocketRole::Connect(socket.clone()));
    let mut hostile = FrontEnd::connect(config, PATIENCE).expect("the disk is served");
    hostile.ring(0).set_available_index(0x7fff);
    hostile.ring(0).kick();
    wait_until("its disk stops", || {
        let status = node.status().expect("it answers");
        status["disks"][0]["counters"]["broken_index_jump"].as_u64() == Some(1)
    });
    node = node.hand_over().unwrap_or_else(|error| panic!("{error:#}"));
    wait_until("it is left", || hostile.hung_up());
    drop(hostile);
    let mut random = Random::new(1);
    let mut guest = StandIn::connect(&socket, 1, Mix::OF_ALL, 200, &mut random).expect("connects");
    guest.work(|guest| guest.workload.counts.completed > 100).expect("it works");
    guest.disconnect();
    node.stop().expect("it stops in order");
}

fn listener_path(plan: &NodePlan) -> PathBuf {
    plan.home.join(format!("control.take-over.{}", std::process::id()))
}

/// The test as a successor: its request, and the socket where it waits.
fn pose(plan: &NodePlan) -> (serde_json::Value, UnixListener) {
    let pid = std::process::id();
    let listener = UnixListener::bind(listener_path(plan));
    let wanted = json!({
        "state_version": 7, "release": "9", "node": "n1", "pid": pid,
        "config_digest": digest(&plan.home.join("node.toml")),
    });
    (wanted, listener.expect("a socket"))
}

/// Waits for a message of the hand-over. Plain reads drop its descriptors.
fn receive(stream: &mut UnixStream) -> serde_json::Value {
    let mut head = [0; 16];
    stream.read_exact(&mut head).expect("a message");
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four"));
    let mut json = vec![0; word(8) as usize];
    stream.read_exact(&mut json).expect("its text");
    let mut batches = vec![0; word(12).div_ceil(128) as usize];
    stream.read_exact(&mut batches).expect("its descriptors");
    serde_json::from_slice(&json).expect("JSON")
}

/// A successor's message.
fn message(json: &serde_json::Value) -> Vec<u8> {
    let text = json.to_string();
    let head = [text.len() as u32, 0].map(u32::to_le_bytes);
    [&b"vrio-ho\n"[..], head.as_flattened(), text.as_bytes()].concat()
}

/// A node that is told to stop during a hand-over finishes it first, and then removes nothing.
#[test]
fn a_stop_comes_after_a_hand_over() {
    let home = tempfile::tempdir().expect("a directory");
    let plan = memory_plan(home.path());
    for hand_over in [true, false] {
        let mut node = plan.start().expect("it starts");
        node.wait_for_disk("a").expect("the disk is served");
        let (wanted, listener) = pose(&plan);
        let control = plan.control();
        let _asks = say(&control, &wanted);
        let (mut channel, _) = listener.accept().expect("the node comes");
        assert_eq!(receive(&mut channel)["disks"][0]["name"], "a");
        node.signal(rustix::process::Signal::TERM).expect("it runs");
        let log = || std::fs::read_to_string(plan.home.join("log")).expect("a log");
        wait_until("it is told", || log().contains("stopping"));
        if hand_over {
            channel.write_all(&message(&json!("Have"))).expect("it listens");
            receive(&mut channel);
        }
        drop(channel);
        let begun = Instant::now();
        wait_until("it ends", || node.ended().expect("the system says").is_some());
        println!("ended after {:?}", begun.elapsed());
        assert_eq!(node.ended().expect("the system says"), Some(true), "{}", node.log_tail());
        // A node that was handed over removes none of its files.
        assert_eq!((control.exists(), plan.socket("a").exists()), (hand_over, hand_over));
        std::fs::remove_file(plan.home.join("log")).expect("a log");
        std::fs::remove_file(listener_path(&plan)).expect("a socket");
    }
}

/// A caller at the socket for shared memory is answered only after it is decided which process goes
/// on. The node does not wait for a successor that sends its answer byte by byte.
#[test]
fn callers_wait_and_a_slow_successor_holds_up_no_guest() {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};

    let home = tempfile::tempdir().expect("a directory");
    let config = format!("listen = \"127.0.0.1:{}\"\nshm = \"n1.shm\"\n", port(20));
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n1", config);
    let node = plan.start().expect("it starts");
    let (wanted, listener) = pose(&plan);
    let _asks = say(&plan.control(), &wanted);
    let (mut channel, _) = listener.accept().expect("the node comes");
    receive(&mut channel);
    let caller = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
    let caller = caller.expect("a socket");
    let door = SocketAddrUnix::new(plan.home.join("n1.shm")).expect("a path");
    rustix::net::connect(&caller, &door).expect("its queue is there");
    rustix::net::send(&caller, b"?", SendFlags::empty()).expect("it is not full");
    // A process that answers a wrong greeting such as this one hangs up.
    let answered = || {
        let heard = rustix::net::recv(&caller, &mut [0; 1], RecvFlags::DONTWAIT);
        !matches!(heard, Err(rustix::io::Errno::AGAIN))
    };
    let (mut said, word) = (0, message(&json!({ "Cannot": "x".repeat(100) })));
    for byte in &word {
        if channel.write_all(&[*byte]).is_err() {
            break;
        }
        said += 1;
        assert!(said > 5 || !answered(), "nobody answers while nothing moves");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(said < word.len(), "it was waited for");
    wait_until("the node answers again", answered);
    std::fs::remove_file(listener_path(&plan)).expect("a socket");
    node.stop().expect("it stops in order");
}

/// A node that has nearly no descriptors left says so, wherever in the hand-over they run out. Its
/// guests notice nothing but pauses.
#[test]
fn without_descriptors_everything_is_as_before() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

    const MORE_MAX: u64 = 200;
    let home = tempfile::tempdir().expect("a directory");
    let disk = |name| {
        format!(
            "[[volume]]\nname = \"{name}\"\nbackend = {{ memory = \"64MiB\" }}\n\
             [[disk]]\nsocket = \"{name}.sock\"\nvolume = \"{name}\"\nqueues = 4\n"
        )
    };
    let config = ["a", "b"].map(disk).concat();
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n1", config);
    let mut node = plan.start().expect("it starts");
    let mut random = Random::new(1);
    let mut guests = ["a", "b"].map(|name| {
        let socket = node.wait_for_disk(name).expect("the disk is served");
        StandIn::connect(&socket, 4, Mix::OF_ALL, BLOCKS, &mut random).expect("connects")
    });
    let descriptors = format!("/proc/{}/fd", node.pid());
    let open = || std::fs::read_dir(&descriptors).expect("it runs").count() as u64;
    let pid = Pid::from_raw(node.pid() as i32);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let (mut refusals, mut more) = (0, 1);
    let successor = loop {
        for guest in &mut guests {
            meanwhile(guest, || ());
            guest.drain().expect("the promise is kept");
        }
        let limit = Rlimit { current: Some(open() + more), maximum };
        prlimit(pid, Resource::Nofile, limit).expect("it runs");
        let (successor, _) = meanwhile(&mut guests[refusals % 2], || {
            let mut successor = plan.spawn(&["--take-over"]).expect("the program is there");
            wait_until("one of them ends", || {
                [&mut node, &mut successor].into_iter().any(|it| !matches!(it.ended(), Ok(None)))
            });
            successor
        });
        if node.ended().expect("the system says").is_some() {
            break successor;
        }
        let said = successor.log_tail();
        assert!(said.contains("Too many open files"), "{said}");
        (refusals, more) = (refusals + 1, more + 2);
        assert!(more < MORE_MAX, "it never does");
    };
    println!("{refusals} hand-overs were refused");
    assert!(refusals > 10, "each of its steps");
    for guest in &mut guests {
        guest.read_all().expect("all of the disk is as promised");
        assert_eq!((guest.workload.counts.errors, guest.reconnects()), (0, 0));
    }
    guests.into_iter().for_each(StandIn::disconnect);
    successor.stop().expect("it stops in order");
}

/// The node tells the service manager its successor's number, and the successor reports from then.
#[test]
fn the_service_manager_is_told_of_the_successor() {
    let home = tempfile::tempdir().expect("a directory");
    let manager = UnixDatagram::bind(home.path().join("notify")).expect("a socket");
    manager.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n1", String::new());
    let config = plan.write().expect("a configuration");
    let start = |words: &[&str]| {
        let mut command = std::process::Command::new(&plan.program);
        command.arg("node").arg("--config").arg(&config).args(words);
        command.env("NOTIFY_SOCKET", home.path().join("notify")).spawn().expect("it runs")
    };
    let heard = || {
        let mut bytes = [0; 64];
        let length = manager.recv(&mut bytes).expect("somebody speaks");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let mut old = start(&[]);
    assert_eq!(heard(), "READY=1");
    let mut new = start(&["--take-over"]);
    let mut both = [heard(), heard()];
    both.sort();
    let follows = format!("MAINPID={}\nWATCHDOG_USEC=0\nREADY=1", new.id());
    assert_eq!(both, [follows, "READY=1".to_owned()]);
    assert!(old.wait().expect("it ends").success());
    let pid = rustix::process::Pid::from_child(&new);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
    assert_eq!(heard(), "STOPPING=1");
    assert!(new.wait().expect("it ends").success());
}

/// A Linux guest under QEMU, which notices nothing but pauses.
#[test]
fn a_linux_guest_keeps_its_connection() {
    const TEST: &str = "a_linux_guest_keeps_its_connection";
    let Some(image) = guest::available(TEST) else { return };
    let pair = Pair::new(15, true, FILE);
    let mut io = pair.io_plan().start().expect("the IOhost starts");
    let mut vm = pair.vm_plan().start().expect("the VMhost starts");
    let socket = vm.wait_for_disk("alice").expect("the disk is served");
    let disk = VhostDisk { socket, queues: 2, packed: false };
    let builder = Guest::builder(&image).name("handover").disk(disk).processors(2);
    let mut guest = builder.script(scripts::CHURN).start().expect("it boots");
    guest.wait_for("churn", guest::BOOT_TIMEOUT).expect("it works");
    let front_end = |vm: &Node| {
        let status = vm.status().expect("it answers");
        status["disks"][0]["front_end_pid"].as_u64().expect("QEMU is there")
    };
    let qemu = front_end(&vm);
    // The connections so far: one that looked whether the disk is there, and QEMU's.
    let connected = || {
        let log = std::fs::read_to_string(pair.vm_plan().home.join("log")).expect("a log");
        log.matches("front end connected").count()
    };
    let before = connected();
    for _ in 0..3 {
        requests(&mut guest);
        io = io.hand_over().unwrap_or_else(|error| panic!("{error:#}"));
        requests(&mut guest);
        vm = vm.hand_over().unwrap_or_else(|error| panic!("{error:#}"));
    }
    requests(&mut guest);
    assert_eq!(front_end(&vm), qemu);
    assert_eq!(connected(), before);
    let report = guest.ask("stop", "churned", SCRIPT_TIMEOUT).expect("it is content");
    guest.wait_success(SCRIPT_TIMEOUT).expect("it ends well");
    vm.stop().expect("the VMhost stops in order");
    io.stop().expect("the IOhost stops in order");
    let digest = guest::image_digest(&pair.io_plan().file("root.img")).expect("the image");
    assert!(report.ends_with(&format!("digest={digest:016x}")), "{report}, image {digest:016x}");
    println!("{report}");
}

/// Waits for two reports of the guest's progress: all requests on their way have come through.
fn requests(guest: &mut Guest) {
    for _ in 0..2 {
        guest.wait_for("progress churn", SCRIPT_TIMEOUT).expect("it goes on");
    }
}
