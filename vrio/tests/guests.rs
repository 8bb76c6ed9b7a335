//! Real guests on real nodes: a Linux kernel's own driver, file system and habits.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use testbed::guest::{self, BOOT_TIMEOUT, Builder, Guest, Qemu, VhostDisk, scripts};
use testbed::nodes::{Node, NodeKeys, NodePlan};

/// The time limit of a script: an emulated guest on a busy machine is slow.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(300);

/// Times that each of the three kinds of kill strikes the guest with four queues, by tier.
fn kill_rounds() -> usize {
    match std::env::var("VRIO_TIER").as_deref() {
        Ok("long") => 300,
        Ok("nightly") => 30,
        _ => 3,
    }
}

/// Many more than the 16 requests that were outstanding at the last kill, so new requests have
/// passed.
const REQUESTS_BETWEEN_KILLS: u64 = 500;

/// An IOhost with a volume for each guest, which also serves one of them as its own disk; and a
/// VMhost.
struct Pair {
    home: tempfile::TempDir,
    io_port: u16,
    keys: NodeKeys,
}

impl Pair {
    /// `number` keeps the tests' ports apart: every node has one for each of two sidecores. The
    /// ports lie below those that the system gives away while a node is dead.
    fn plain(number: u16) -> Self {
        let io_port = 20_000 + (std::process::id() % 500) as u16 * 24 + number * 4;
        Self { home: tempfile::tempdir().unwrap(), io_port, keys: NodeKeys::plain() }
    }

    fn sealed(number: u16) -> Self {
        let plain = Self::plain(number);
        let keys = NodeKeys::make(plain.home.path(), &["io1", "vm1"]).unwrap();
        Self { keys, ..plain }
    }

    fn plan(&self, name: &str, port: u16, config: &str) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{port}\"\n{}[sidecores]\ncount = 2\nidle = \"adaptive\"\n\
             {config}",
            self.keys.own(name)
        );
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    fn io_plan(&self) -> NodePlan {
        let config = format!(
            "{}[[volume]]\nname = \"far\"\nbackend = {{ file = \"far.img\", size = \"64MiB\" }}\n\
             chain = [\"meter\"]\n{}\
             [[volume]]\nname = \"near\"\nbackend = {{ file = \"near.img\", size = \"64MiB\" }}\n\
             [[disk]]\nsocket = \"near.sock\"\nvolume = \"near\"\n",
            self.keys.clients(&["vm1"]),
            self.keys.allow(&["vm1"])
        );
        self.plan("io1", self.io_port, &config)
    }

    fn vm_plan(&self) -> NodePlan {
        let config = format!(
            "[[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n{}\
             [[disk]]\nsocket = \"far.sock\"\nvolume = \"io1/far\"\nqueues = 4\n{}",
            self.io_port,
            self.keys.peer("io1"),
            self.keys.disk()
        );
        self.plan("vm1", self.io_port + 2, &config)
    }

    fn start(&self) -> (Node, Node) {
        (self.io_plan().start().unwrap(), self.vm_plan().start().unwrap())
    }

    /// Stops a guest that writes and verifies, then its nodes. The guest's digest of its disk must
    /// be that of the image. Gives the guest's report.
    fn end_of_churn(&self, mut guest: Guest, io: Node, vm: Node) -> String {
        let report = guest.ask("stop", "churned", SCRIPT_TIMEOUT).unwrap();
        guest.wait_success(SCRIPT_TIMEOUT).unwrap();
        vm.stop().unwrap();
        io.stop().unwrap();
        let digest = guest::image_digest(&self.io_plan().file("far.img")).unwrap();
        assert!(report.ends_with(&format!("digest={digest:016x}")), "{report}, {digest:016x}");
        report
    }
}

fn on_disk(image: &guest::Image, name: &str, socket: &Path, queues: u16) -> Builder {
    let disk = VhostDisk { socket: socket.to_owned(), queues, packed: false };
    Guest::builder(image).name(name).disk(disk).processors(queues)
}

/// The guest drives the rings, but QEMU speaks vhost-user, connects again and shares the memory,
/// and its versions differ in this. This is Debian 12's own version.
#[test]
fn an_older_qemu_lives_through_kills_of_its_node() {
    const TEST: &str = "an_older_qemu_lives_through_kills_of_its_node";
    let qemu = Qemu::older();
    let Some(image) = guest::available_with(TEST, &qemu) else { return };
    let version = qemu.version().unwrap();
    assert!(version.contains("version 7.2"), "{version}");
    let pair = Pair::plain(4);
    let (io, mut vm) = pair.start();
    let socket = vm.wait_for_disk("far").unwrap();
    let builder = on_disk(&image, "older", &socket, 2).qemu(&qemu);
    let mut guest = builder.script(scripts::CHURN).start().unwrap();
    let shape = guest.wait_for("churn", BOOT_TIMEOUT).unwrap();
    assert_eq!(shape, "queues=2 processors=2 packed=0");
    let mut requests = 0;
    for _ in 0..kill_rounds() {
        requests = wait_for_requests(&mut guest, requests + REQUESTS_BETWEEN_KILLS);
        vm = vm.kill().unwrap().start().unwrap();
    }
    wait_for_requests(&mut guest, requests + REQUESTS_BETWEEN_KILLS);
    println!("{version}: {}", pair.end_of_churn(guest, io, vm));
}

/// Waits until the guest has completed so many requests, and gives the number by then.
fn wait_for_requests(guest: &mut Guest, wanted: u64) -> u64 {
    loop {
        let line = guest.wait_for("progress churn", SCRIPT_TIMEOUT).unwrap();
        let requests: u64 = line.strip_prefix("requests=").unwrap().parse().unwrap();
        if requests >= wanted {
            return requests;
        }
    }
}

#[test]
fn file_systems_of_two_guests_read_back_over_a_local_and_a_remote_disk() {
    const TEST: &str = "file_systems_of_two_guests_read_back_over_a_local_and_a_remote_disk";
    let Some(image) = guest::available(TEST) else { return };
    let pair = Pair::plain(0);
    let (mut io, mut vm) = pair.start();
    let near = io.wait_for_disk("near").unwrap();
    let far = vm.wait_for_disk("far").unwrap();
    let start = |name: &str, socket: &Path| {
        on_disk(&image, name, socket, 1).script(scripts::FILESYSTEM).start().unwrap()
    };
    let (mut near_guest, mut far_guest) = (start("near", &near), start("far", &far));
    for guest in [&mut near_guest, &mut far_guest] {
        guest.wait_for("booted", BOOT_TIMEOUT).unwrap();
        guest.wait_for("filesystem done", SCRIPT_TIMEOUT).unwrap();
    }
    near_guest.wait_success(SCRIPT_TIMEOUT).unwrap();
    far_guest.wait_success(SCRIPT_TIMEOUT).unwrap();
    // Synced data survives the restart of the nodes, and another boot of the guests.
    vm.stop().unwrap();
    io.stop().unwrap();
    let (_io, _vm) = pair.start();
    for (name, socket) in [("near again", &near), ("far again", &far)] {
        let guest = on_disk(&image, name, socket, 1).script(scripts::VERIFY).start().unwrap();
        guest.wait_success(BOOT_TIMEOUT).unwrap();
    }
}

#[test]
fn four_queues_of_a_guest_survive_kills_of_either_node() {
    survive_kills("four_queues_of_a_guest_survive_kills_of_either_node", 1, false);
}

#[test]
fn four_packed_queues_of_a_guest_survive_kills_of_either_node() {
    survive_kills("four_packed_queues_of_a_guest_survive_kills_of_either_node", 2, true);
}

fn survive_kills(test: &str, number: u16, packed: bool) {
    let Some(image) = guest::available(test) else { return };
    let pair = Pair::sealed(number);
    let (mut io, mut vm) = pair.start();
    let socket = vm.wait_for_disk("far").unwrap();
    let boot = || {
        let disk = VhostDisk { socket: socket.clone(), queues: 4, packed };
        let builder = Guest::builder(&image).name("churn").disk(disk).processors(4);
        let mut guest = builder.script(scripts::CHURN).start().unwrap();
        let shape = guest.wait_for("churn", BOOT_TIMEOUT);
        (guest, shape)
    };
    let (mut guest, mut shape) = boot();
    for _ in 0..BOOTS_MAX {
        let Err(error) = &shape else { break };
        let error = error.to_string();
        assert!(error.contains(QEMU_RACE), "{error}");
        println!("QEMU aborted while the guest began: {error}");
        (guest, shape) = boot();
    }
    let shape = shape.unwrap();
    assert_eq!(shape, format!("queues=4 processors=4 packed={}", u8::from(packed)));
    let mut requests = 0;
    for round in 0..kill_rounds() * 3 {
        requests = wait_for_requests(&mut guest, requests + REQUESTS_BETWEEN_KILLS);
        if round % 3 != 0 {
            vm = vm.kill().unwrap().start().unwrap();
        }
        if round % 3 != 1 {
            io = io.kill().unwrap().start().unwrap();
        }
    }
    wait_for_requests(&mut guest, requests + REQUESTS_BETWEEN_KILLS);
    // The last VMhost has served each queue.
    let status = vm.status().unwrap();
    let queues = status["disks"][0]["by_queue"].as_array().unwrap();
    let used = queues.iter().filter(|queue| queue["counters"]["requests"].as_u64() > Some(0));
    assert_eq!(used.count(), 4, "{queues:?}");
    println!("{}", pair.end_of_churn(guest, io, vm));
}

/// An assertion of QEMU 10 that fails now and then when several emulated processors run while
/// devices are mapped, before the guest has touched its disk.
const QEMU_RACE: &str = "iotlb_to_section";

/// How often a guest may be started again after this assertion.
const BOOTS_MAX: usize = 3;

/// Space that a file takes, in MiB.
fn stored_mib(file: &Path) -> u64 {
    std::fs::metadata(file).unwrap().blocks() * 512 / (1 << 20)
}

#[test]
fn a_guest_gives_space_back_and_sees_its_remote_disk_grow() {
    const TEST: &str = "a_guest_gives_space_back_and_sees_its_remote_disk_grow";
    const FILL_MIB: u64 = 40;
    let Some(image) = guest::available(TEST) else { return };
    let pair = Pair::sealed(3);
    let (io, mut vm) = pair.start();
    let socket = vm.wait_for_disk("far").unwrap();
    let file = pair.io_plan().file("far.img");
    let script = format!("FILL_MIB={FILL_MIB}\n{}", scripts::TRIM);
    let mut guest = on_disk(&image, "trim", &socket, 1).script(&script).start().unwrap();
    let queue = guest.wait_for("queue", BOOT_TIMEOUT).unwrap();
    assert_eq!(queue, "discard=16777216 zeroes=16777216 physical=4096");
    guest.wait_for("step filled", SCRIPT_TIMEOUT).unwrap();
    assert!(stored_mib(&file) >= FILL_MIB, "{}", stored_mib(&file));
    guest.ask("discard", "step discarded", SCRIPT_TIMEOUT).unwrap();
    assert!(stored_mib(&file) <= 1, "{} MiB after blkdiscard", stored_mib(&file));
    guest.ask("file", "step used", SCRIPT_TIMEOUT).unwrap();
    let used_mib = stored_mib(&file);
    assert!(used_mib >= FILL_MIB, "{used_mib}");
    guest.ask("trim", "step trimmed", SCRIPT_TIMEOUT).unwrap();
    let trimmed_mib = stored_mib(&file);
    assert!(trimmed_mib + FILL_MIB / 2 < used_mib, "from {used_mib} MiB to {trimmed_mib}");

    let resize = |options: &[&str]| {
        let vrio = Command::new(env!("CARGO_BIN_EXE_vrio"))
            .args(["volume", "resize", "far"])
            .args(options)
            .arg("--control")
            .arg(io.plan().control())
            .output()
            .unwrap();
        let text = [vrio.stdout, vrio.stderr].concat();
        (vrio.status.success(), String::from_utf8(text).unwrap())
    };
    let (done, text) = resize(&["32MiB", "--shrink"]);
    assert!(!done && text.contains("in use by attachment \"far\""), "{text}");
    let (done, text) = resize(&["96MiB"]);
    assert!(done && text.contains("from 64MiB to 96MiB"), "{text}");
    let sizes = guest.ask("resize", "step resized", SCRIPT_TIMEOUT).unwrap();
    assert_eq!(sizes, "sectors=131072 to 196608");
    guest.wait_success(SCRIPT_TIMEOUT).unwrap();
    println!("{used_mib} MiB before fstrim, {trimmed_mib} MiB after it; {sizes}");
    vm.stop().unwrap();
    io.stop().unwrap();
}
