//! The costs of a node without work: resident memory and wake-ups, of real processes.
//!
//! The kernel counts wake-ups (voluntary switches of all threads) and the time on a core. A thread
//! that waits for a core is charged nothing, so a busy machine changes neither number. The share of
//! a core is that of the node's own instructions, with the costs of cold caches and a stolen core.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use random::Random;
use testbed::nodes::{Node, NodeKeys, NodePlan};
use testbed::stand_in::StandIn;
use workload::Mix;

/// The most resident memory of a node at rest.
const NODE_BYTES_MAX: u64 = 64 << 20;

/// The most resident memory that a further disk at rest may add.
const DISK_BYTES_MAX: i64 = 1 << 20;

/// Less than this would mean that the node was looked at too early: a disk's queues, meters and
/// histograms alone are more. A disk with its volume had 262 KiB, and a guest added 197 KiB.
const DISK_BYTES_MIN: i64 = 16 << 10;

/// The disks that are added to see the cost of one.
const DISKS: u64 = 16;

/// How often a node with connected, idle disks may wake in a second, over all threads. A session
/// looks after itself a few times a second; at 50 us each this would be 0.2 % of a core.
const WAKEUPS_PER_SECOND_MAX: f64 = 40.0;

/// The most rounds that its sidecores may begin in a second: those of the wake-ups. A sidecore that
/// spins would begin a hundred thousand.
const ROUNDS_PER_SECOND_MAX: f64 = 200.0;

/// How long both are counted: two keep-alives of a session. These are the rarest thing that a node
/// at rest does more than once a minute.
const WATCHED: Duration = Duration::from_secs(10);

/// The most of a core that a node with connected, idle disks may take: 100 ms of the time above. It
/// took 4 ms when this was written, some 50 us for each wake-up. With as many wake-ups as are
/// allowed, each would have to cost 250 us.
const CORE_SHARE_MAX: f64 = 0.01;

struct Pair {
    home: tempfile::TempDir,
    keys: NodeKeys,
    port: u16,
}

impl Pair {
    fn new(number: u16) -> Self {
        let port = 17_000 + (std::process::id() % 1_500) as u16 * 10 + number * 2;
        let home = tempfile::tempdir().expect("a directory");
        let keys = NodeKeys::make(home.path(), &["io1", "vm1"]).expect("keys");
        Self { home, keys, port }
    }

    fn plan(&self, name: &str, config: String) -> NodePlan {
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    fn io1(&self) -> Node {
        let port = self.port;
        let plan = self.plan(
            "io1",
            format!(
                "listen = \"127.0.0.1:{port}\"\n{}[sidecores]\nidle = \"adaptive\"\n{}\
                 [[volume]]\nname = \"far\"\nchain = [\"meter\"]\n\
                 backend = {{ file = \"far.img\", size = \"16MiB\" }}\n{}",
                self.keys.own("io1"),
                self.keys.clients(&["vm1"]),
                self.keys.allow(&["vm1"])
            ),
        );
        plan.start().expect("the IOhost starts")
    }

    /// A node with a remote disk and so many local ones, all served.
    fn vm1(&self, locals: u64) -> Node {
        let mut config = format!(
            "listen = \"127.0.0.1:{}\"\n{}[sidecores]\nidle = \"adaptive\"\n\
             [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n{}\
             [[disk]]\nsocket = \"far.sock\"\nvolume = \"io1/far\"\n{}",
            self.port + 1,
            self.keys.own("vm1"),
            self.port,
            self.keys.peer("io1"),
            self.keys.disk()
        );
        for local in 0..locals {
            config += &format!(
                "[[volume]]\nname = \"v{local}\"\nchain = [\"meter\", {{ limit = {{ iops = 1000 }} \
                 }}]\nbackend = {{ file = \"v{local}.img\", size = \"16MiB\" }}\n\
                 [[disk]]\nsocket = \"d{local}.sock\"\nvolume = \"v{local}\"\n"
            );
        }
        let mut node = self.plan("vm1", config).start().expect("the VMhost starts");
        node.wait_for_disk("far").expect("the remote disk is served");
        node
    }
}

/// The sum of fields of `/proc/PID/status` in bytes.
fn resident_bytes(node: &Node, fields: &[&str]) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let kib = fields.iter().map(|field| {
        let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a field");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    });
    kib.sum::<u64>() << 10
}

/// The resident memory of a node, without the memory of its guests.
fn own_bytes(node: &Node) -> u64 {
    resident_bytes(node, &["RssAnon:", "RssFile:"])
}

/// Wake-ups and time on a core of each thread.
fn activity(pid: u32) -> BTreeMap<OsString, (u64, u64)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    let look = |task: fs::DirEntry| {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).ok();
        let (status, ran) = (read("status")?, read("schedstat")?);
        let mut lines = status.lines();
        let wakeups = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        let ran_ns = ran.split(' ').next()?.parse().ok()?;
        Some((task.file_name(), (wakeups.trim().parse().ok()?, ran_ns)))
    };
    tasks.filter_map(look).collect()
}

/// The wake-ups and the time on a core since an earlier look, of the threads that there are now.
fn activity_since(pid: u32, before: &BTreeMap<OsString, (u64, u64)>) -> (u64, u64) {
    let mut sum = (0, 0);
    for (thread, (wakeups, ran_ns)) in activity(pid) {
        let (wakeups_then, ran_then_ns) = before.get(&thread).copied().unwrap_or_default();
        sum = (sum.0 + wakeups - wakeups_then, sum.1 + ran_ns - ran_then_ns);
    }
    sum
}

/// Rounds that all sidecores of a node have begun.
fn rounds(node: &Node) -> u64 {
    let status = node.status().expect("it answers");
    let cores = status["sidecores"].as_array().expect("a list").iter();
    cores.map(|core| core["counters"]["rounds"].as_u64().expect("a number")).sum()
}

/// A guest that has worked for a moment and then has nothing to do.
fn idle_guest(socket: &Path, random: &mut Random) -> StandIn {
    let mut guest = StandIn::connect(socket, 4, Mix::OF_ALL, 512, random).expect("connects");
    let until = Instant::now() + Duration::from_millis(100);
    guest.work(|_| Instant::now() >= until).expect("the promise is kept");
    guest.drain().expect("everything is answered");
    guest
}

#[test]
fn a_node_at_rest_is_small_and_a_further_disk_costs_little() {
    let pair = Pair::new(0);
    let io = pair.io1();
    let one = pair.vm1(1);
    let whole = own_bytes(&one);
    println!("resident: {} KiB with a local and a remote disk", whole >> 10);
    println!("resident: {} KiB, the IOhost", own_bytes(&io) >> 10);
    assert!(whole < NODE_BYTES_MAX, "{whole}");
    assert!(own_bytes(&io) < NODE_BYTES_MAX);
    one.stop().expect("it stops in order");
    let many = pair.vm1(1 + DISKS);
    let each = (own_bytes(&many) as i64 - whole as i64) / DISKS as i64;
    println!("resident: {} KiB for each further disk with its volume", each >> 10);
    assert!((DISK_BYTES_MIN..DISK_BYTES_MAX).contains(&each), "{each}");
    // The same when guests are there.
    let mut random = Random::new(1);
    let before = own_bytes(&many);
    let guests: Vec<_> = (0..DISKS)
        .map(|disk| idle_guest(&many.plan().socket(&format!("d{disk}")), &mut random))
        .collect();
    let each = (own_bytes(&many) as i64 - before as i64) / DISKS as i64;
    println!("resident: {} KiB more for each that a guest has used", each >> 10);
    assert!((DISK_BYTES_MIN..DISK_BYTES_MAX).contains(&each), "{each}");
    drop(guests);
    many.stop().expect("it stops in order");
    io.stop().expect("it stops in order");
}

#[test]
fn connected_idle_disks_let_their_node_sleep() {
    let pair = Pair::new(1);
    let io = pair.io1();
    let vm = pair.vm1(1);
    let mut random = Random::new(1);
    let guests = ["far", "d0"].map(|disk| idle_guest(&vm.plan().socket(disk), &mut random));
    // Waits for the rest of the work to end: acknowledgements, and the adaptive sidecores'
    // spinning.
    sleep(Duration::from_secs(1));
    let rounds_before = [&io, &vm].map(rounds);
    let before = [&io, &vm].map(|node| activity(node.pid()));
    let started = Instant::now();
    sleep(WATCHED);
    let elapsed_s = started.elapsed().as_secs_f64();
    for (node, before) in [&io, &vm].into_iter().zip(rounds_before) {
        let per_second = (rounds(node) - before) as f64 / elapsed_s;
        let name = &node.plan().name;
        println!("{name}: {per_second:.1} rounds a second");
        assert!(per_second <= ROUNDS_PER_SECOND_MAX, "{name}: {per_second} rounds a second");
    }
    for (node, before) in [&io, &vm].into_iter().zip(before) {
        let (wakeups, ran_ns) = activity_since(node.pid(), &before);
        let per_second = wakeups as f64 / elapsed_s;
        let share = ran_ns as f64 / 1e9 / elapsed_s;
        let name = &node.plan().name;
        println!("{name}: {per_second:.1} wake-ups a second, {:.3} % of a core", share * 100.0);
        assert!(per_second <= WAKEUPS_PER_SECOND_MAX, "{name} wakes {per_second} times a second");
        assert!(share < CORE_SHARE_MAX, "{name} takes {share} of a core");
    }
    drop(guests);
    vm.stop().expect("it stops in order");
    io.stop().expect("it stops in order");
}
