//! Guests, mostly real ones, that are changed from outside while they work: they are migrated
//! between two VMhosts, given memory, or served by another process. Their disk is on an IOhost. A
//! guest that is migrated also has a nic in a network of the VMhost. Both VMhosts have a network of
//! that name, with a station that listens in it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use crate::ear::Ear;
use serde_json::json;
use testbed::guest::{
    self, BOOT_TIMEOUT, Builder, Guest, Monitor, VhostDisk, VhostNic, monitor, scripts,
};
use testbed::nodes::{Node, NodeKeys, NodePlan};
use virtio::driver::{
    Data, DriverOp, DriverRequest, FrontEnd, FrontEndConfig, GuestPlan, RequestStatus, RingDriver,
    SocketRole,
};

/// The time limit of a script or a migration: an emulated guest on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(300);

/// How long a guest may stand still. Under emulation its memory changes as fast as it is copied.
const DOWNTIME: Duration = Duration::from_secs(2);

/// The memory that guests begin with.
const BOOT_MIB: u32 = 192;

/// Modules of memory that a guest is given. With the memory that it has, there are more regions
/// than a memory table of vhost-user has room for (8).
const MODULES: u32 = 10;

/// The smallest module that Linux takes.
const MODULE_MIB: u32 = 128;

/// The requests of the guest between two events.
const REQUESTS_BETWEEN: u64 = 300;

/// The Ethernet and IPv4 addresses of the guest, and of the station that listens in its network.
const MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
const ADDRESS: [u8; 4] = [10, 9, 0, 1];
const EAR_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];
const EAR_ADDRESS: [u8; 4] = [10, 9, 0, 9];

/// An IOhost with one volume, and two VMhosts that show it under the same name.
struct Rack {
    home: tempfile::TempDir,
    port: u16,
    keys: NodeKeys,
}

impl Rack {
    /// `number` keeps the tests' ports apart, below the ports that the system gives away.
    fn new(number: u16) -> Self {
        let home = tempfile::tempdir().unwrap();
        let port = 10_000 + (std::process::id() % 300) as u16 * 15 + number * 5;
        let keys = NodeKeys::make(home.path(), &["io1", "vm1", "vm2"]).unwrap();
        Self { home, port, keys }
    }

    fn plan(&self, name: &str, port: u16, config: &str) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:{port}\"\n{}[sidecores]\ncount = 1\nidle = \"adaptive\"\n\
             {config}",
            self.keys.own(name)
        );
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), self.home.path(), name, config)
    }

    fn io(&self) -> NodePlan {
        let config = format!(
            "{}[[volume]]\nname = \"far\"\nbackend = {{ file = \"far.img\", size = \"64MiB\" }}\n\
             {}",
            self.keys.clients(&["vm1", "vm2"]),
            self.keys.allow(&["vm1", "vm2"])
        );
        self.plan("io1", self.port, &config)
    }

    /// Both have the disk `far`, and so the attachment `far`, and the tenant's key.
    fn vm(&self, number: u16) -> NodePlan {
        let config = format!(
            "[[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n{}\
             [[disk]]\nsocket = \"far.sock\"\nvolume = \"io1/far\"\nqueues = 4\n{}\
             [[network]]\nname = \"blue\"\n\
             [[nic]]\nsocket = \"card.sock\"\nnetwork = \"blue\"\nmac = \"52:54:00:00:00:01\"\n\
             [[nic]]\nsocket = \"ear.sock\"\nnetwork = \"blue\"\nmac = \"52:54:00:00:00:09\"\n",
            self.port,
            self.keys.peer("io1"),
            self.keys.disk()
        );
        self.plan(&format!("vm{number}"), self.port + 2 * number, &config)
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A station that listens in a VMhost's network.
    fn ear(&self, number: u16) -> Ear {
        let socket = self.vm(number).socket("ear");
        Ear::new(&socket, EAR_MAC, EAR_ADDRESS, PATIENCE)
    }

    /// The guest's nic there.
    fn card(&self, number: u16) -> VhostNic {
        let socket = self.vm(number).socket("card");
        let mac = "52:54:00:00:00:01".to_owned();
        VhostNic { socket, mac, packed: false, offloads: true, pairs: 1 }
    }
}

fn on_disk(image: &guest::Image, name: &str, disk: &Path) -> Builder {
    let disk = VhostDisk { socket: disk.to_owned(), queues: 1, packed: false };
    Guest::builder(image).name(name).disk(disk).memory_mib(BOOT_MIB)
}

/// One QEMU with the guest, or one that waits for it.
struct Host {
    guest: Guest,
    monitor: Monitor,
}

impl Host {
    /// Starts QEMU on the VMhost of this number, with that VMhost's disk.
    fn start(
        image: &guest::Image,
        rack: &Rack,
        name: &str,
        (number, disk): (u16, &Path),
        waits: bool,
    ) -> Self {
        let monitor_socket = rack.socket(&format!("{name}.qmp"));
        let mut arguments = monitor::arguments(&monitor_socket).to_vec();
        if waits {
            arguments.extend(["-incoming".to_owned(), monitor::uri(&rack.socket(name))]);
        }
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let builder = on_disk(image, name, disk).nic(rack.card(number)).script(scripts::CHURN);
        let address = std::net::Ipv4Addr::from(ADDRESS);
        Self::boot(builder.set("ADDRESS", address), &arguments, &monitor_socket)
    }

    fn boot(builder: Builder, arguments: &[&str], monitor_socket: &Path) -> Self {
        let guest = builder.arguments(arguments).set("THREADS", 8).start().unwrap();
        Self { guest, monitor: Monitor::connect(monitor_socket).unwrap() }
    }

    /// Waits until the guest has completed so many requests more than `before`.
    fn work(&mut self, before: u64) -> u64 {
        loop {
            let line = self.guest.wait_for("progress churn", PATIENCE).unwrap();
            let requests: u64 = line.strip_prefix("requests=").unwrap().parse().unwrap();
            if requests >= before + REQUESTS_BETWEEN {
                return requests;
            }
        }
    }
}

/// The state of a node's only disk.
fn state(node: &Node) -> String {
    node.status().unwrap()["disks"][0]["state"].as_str().unwrap().to_owned()
}

/// A host is stopped before it could let go of the guest, and wakes when the guest works elsewhere.
/// It touches neither the guest's memory nor the volume.
#[test]
fn a_host_that_wakes_after_its_guest_has_moved_writes_nothing() {
    let rack = Rack::new(1);
    let io = rack.io().start().unwrap();
    let (mut vm1, mut vm2) = (rack.vm(1).start().unwrap(), rack.vm(2).start().unwrap());
    let roles =
        [&mut vm1, &mut vm2].map(|vm| SocketRole::Connect(vm.wait_for_disk("far").unwrap()));
    let mut front_end = FrontEnd::connect(FrontEndConfig::new(roles[0].clone()), PATIENCE).unwrap();
    let mut ring = front_end.take_ring(0);
    write_all(&mut ring, 1);
    wait_for_all(&mut ring);
    let log = front_end.start_log().unwrap();
    vm1.halt().unwrap();
    write_all(&mut ring, 2);
    // The source has not let go of the volume, so an operator has to say that the guest is here
    // now.
    take(&vm2);
    front_end.redirect(roles[1].clone()).unwrap();
    front_end.reconnect(PATIENCE).unwrap();
    wait_for_all(&mut ring);
    assert!(!log.take().is_empty(), "the new host marks what it writes");
    // The new host asks for kicks before it sleeps, and stores that into the ring.
    std::thread::sleep(Duration::from_millis(500));
    let (memory, volume) = (front_end.memory().digest(), std::fs::read(far(&rack)).unwrap());
    vm1.resume().unwrap();
    vm1.wait_until("it sees that its front end is gone", |vm1| state(vm1) != "running").unwrap();
    // Longer than the two seconds for which queues that are stopped drain.
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(front_end.memory().digest(), memory, "guest memory was written");
    assert!(std::fs::read(far(&rack)).unwrap() == volume, "the volume was written");
    write_all(&mut ring, 3);
    wait_for_all(&mut ring);
    vm2.stop().unwrap();
    io.stop().unwrap();
}

/// A guest is started afresh on another host, since its own host is silent. Then its own host is
/// started again, with the old guest, which resumes with old writes under way. Only an operator
/// gives the volume back to the old guest.
#[test]
fn a_guest_that_was_replaced_takes_nothing_back() {
    let rack = Rack::new(2);
    let io = rack.io().start().unwrap();
    let (mut vm1, mut vm2) = (rack.vm(1).start().unwrap(), rack.vm(2).start().unwrap());
    let roles =
        [&mut vm1, &mut vm2].map(|vm| SocketRole::Connect(vm.wait_for_disk("far").unwrap()));
    let [at_vm1, at_vm2] = roles.map(FrontEndConfig::new);
    let mut old = FrontEnd::connect(at_vm1, PATIENCE).unwrap();
    let mut old_ring = old.take_ring(0);
    write_all(&mut old_ring, 1);
    wait_for_all(&mut old_ring);
    // A node that is killed and started again serves its guest as before.
    let mut vm1 = vm1.kill().unwrap().start().unwrap();
    vm1.wait_for_disk("far").unwrap();
    old.reconnect(PATIENCE).unwrap();
    write_all(&mut old_ring, 2);
    wait_for_all(&mut old_ring);
    vm1.halt().unwrap();
    write_all(&mut old_ring, 3);
    let left = old_ring.outstanding();

    let mut new = FrontEnd::connect(at_vm2, PATIENCE).unwrap();
    let mut new_ring = new.take_ring(0);
    write_all(&mut new_ring, 4);
    says(&mut vm2, "vm1 holds attachment far");
    assert_eq!(new_ring.outstanding(), left, "the other one may come back any moment");
    // The new guest gets the volume when the old host was silent for long enough.
    wait_for_all(&mut new_ring);
    let volume = std::fs::read(far(&rack)).unwrap();
    let mut vm1 = vm1.kill().unwrap().start().unwrap();
    vm1.wait_for_disk("far").unwrap();
    old.reconnect(PATIENCE).unwrap();
    says(&mut vm1, "a successor on vm2 took attachment far");
    assert!(old_ring.complete().unwrap().is_none(), "an old request was answered");
    assert!(std::fs::read(far(&rack)).unwrap() == volume, "an old write overwrote a newer one");
    write_all(&mut new_ring, 5);
    wait_for_all(&mut new_ring);

    take(&vm1);
    old.hang_up();
    old.reconnect(PATIENCE).unwrap();
    wait_for_all(&mut old_ring);
    // A disk that was running all the time learns of its successor by its next request.
    write_all(&mut new_ring, 6);
    says(&mut vm2, "a successor on vm1 took attachment far");
    vm1.stop().unwrap();
    drop(vm2);
    io.stop().unwrap();
}

/// A VMhost without volumes, with each of the directories that it may name. It remembers how it
/// held the volume, also after it gave its rights up, as it does by default. Else a guest that was
/// replaced would have the volume again as soon as its successor has closed.
#[test]
fn a_guest_takes_nothing_back_with_any_directories_of_its_host() {
    for layout in ["sockets = \"HOME\"\n", "sockets = \"HOME\"\nstate = \"HOME/state\"\n"] {
        let rack = Rack::new(2);
        let io = rack.io().start().unwrap();
        let mut vm1 = bare(&rack, layout).start().unwrap();
        let at_vm1 = FrontEndConfig::new(SocketRole::Connect(vm1.wait_for_disk("far").unwrap()));
        let mut old = FrontEnd::connect(at_vm1, PATIENCE).unwrap();
        let mut old_ring = old.take_ring(0);
        write_all(&mut old_ring, 1);
        wait_for_all(&mut old_ring);
        let status = vm1.status().unwrap().to_string();
        assert!(!status.contains("cannot record"), "{layout}: {status}");
        let plan = vm1.kill().unwrap();
        write_all(&mut old_ring, 2);

        let mut vm2 = rack.vm(2).start().unwrap();
        let at_vm2 = FrontEndConfig::new(SocketRole::Connect(vm2.wait_for_disk("far").unwrap()));
        take(&vm2);
        let mut new = FrontEnd::connect(at_vm2, PATIENCE).unwrap();
        let mut new_ring = new.take_ring(0);
        write_all(&mut new_ring, 3);
        wait_for_all(&mut new_ring);
        vm2.stop().unwrap();
        let volume = std::fs::read(far(&rack)).unwrap();

        let mut vm1 = plan.start().unwrap();
        vm1.wait_for_disk("far").unwrap();
        old.reconnect(PATIENCE).unwrap();
        says(&mut vm1, "a successor on vm2 took attachment far");
        assert!(old_ring.complete().unwrap().is_none(), "{layout}: an old request was answered");
        assert!(std::fs::read(far(&rack)).unwrap() == volume, "{layout}: an old write was done");
        drop((old, new));
        drop(vm1);
        io.stop().unwrap();
    }
}

/// A node that cannot remember says so from its start on. The node of its volume is not there.
#[test]
fn a_host_that_cannot_remember_says_so_and_what_to_do() {
    let rack = Rack::new(2);
    let plan = bare(&rack, "sockets = \"HOME\"\n");
    std::fs::create_dir_all(&plan.home).unwrap();
    std::fs::write(plan.home.join(".vrio"), "in the way").unwrap();
    let mut vm1 = plan.start().unwrap();
    says(&mut vm1, "cannot record how it holds the volume");
    says(&mut vm1, "name another one as");
    let log = std::fs::read_to_string(plan.home.join("log")).unwrap();
    assert!(log.contains("a guest that was replaced may take the volume back"), "{log}");
    let status = Command::new(env!("CARGO_BIN_EXE_vrio"))
        .args(["status", "--control"])
        .arg(plan.control())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(printed.contains("cannot record"), "{printed}");
    drop(vm1);
}

/// The first VMhost with this in `[directories]`, and nothing else.
fn bare(rack: &Rack, directories: &str) -> NodePlan {
    let plan = rack.vm(1);
    let home = plan.home.to_str().unwrap();
    NodePlan { directories: Some(directories.replace("HOME", home)), ..plan }
}

/// A host stood still while its guest had nothing to do, and was replaced meanwhile. It reports
/// this although its guest sends no request for the volume, and it answers not even requests that
/// need no volume.
#[test]
fn an_idle_host_that_was_replaced_leaves_its_guest_alone() {
    let rack = Rack::new(3);
    let io = rack.io().start().unwrap();
    let (mut vm1, mut vm2) = (rack.vm(1).start().unwrap(), rack.vm(2).start().unwrap());
    let roles =
        [&mut vm1, &mut vm2].map(|vm| SocketRole::Connect(vm.wait_for_disk("far").unwrap()));
    let guest = GuestPlan { queues: 2, ..GuestPlan::default() };
    let [at_vm1, at_vm2] = roles.map(|role| FrontEndConfig { guest, ..FrontEndConfig::new(role) });
    let mut old = FrontEnd::connect(at_vm1, PATIENCE).unwrap();
    let (mut idle, mut curious) = (old.take_ring(0), old.take_ring(1));
    write_all(&mut idle, 1);
    wait_for_all(&mut idle);
    // Waits until it sleeps: it asks for kicks before that.
    std::thread::sleep(Duration::from_millis(500));
    vm1.halt().unwrap();
    take(&vm2);
    let mut new = FrontEnd::connect(at_vm2, PATIENCE).unwrap();
    let mut new_ring = new.take_ring(0);
    write_all(&mut new_ring, 2);
    wait_for_all(&mut new_ring);
    let slot = curious.take_slot().unwrap();
    let request =
        DriverRequest { slot, op: DriverOp::GetId, sector: 0, data: Data::Whole(20), token: 0 };
    curious.submit(&request).unwrap();
    curious.publish();
    let memory = old.memory().digest();
    // Only a standstill of more than a second counts as a pause.
    std::thread::sleep(Duration::from_secs(2));
    vm1.resume().unwrap();
    says(&mut vm1, "a successor on vm2 took attachment far");
    assert_eq!(old.memory().digest(), memory, "guest memory was written");
    assert!(curious.complete().unwrap().is_none(), "the serial number was given");
    vm2.stop().unwrap();
    drop(vm1);
    io.stop().unwrap();
}

/// Waits until the node's status has this text.
fn says(node: &mut Node, text: &str) {
    node.wait_until(text, |node| node.status().is_ok_and(|it| it.to_string().contains(text)))
        .unwrap();
}

/// An operator makes this node's disk `far` take its volume.
fn take(node: &Node) {
    let words = ["disk", "take", "far", "--control"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    let done = command.args(words).arg(node.plan().control()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

fn far(rack: &Rack) -> PathBuf {
    rack.io().file("far.img")
}

/// Makes every slot of a ring write 4 KiB of its own.
fn write_all(ring: &mut RingDriver, seed: u64) {
    while let Some(slot) = ring.take_slot() {
        let block = slot.index() as u64;
        ring.fill(slot, 4096, seed << 32 | block);
        let (sector, data) = (block * 8, Data::Whole(4096));
        let request = DriverRequest { slot, op: DriverOp::Write, sector, data, token: block };
        ring.submit(&request).unwrap();
    }
    ring.publish();
}

fn wait_for_all(ring: &mut RingDriver) {
    while ring.outstanding() > 0 {
        assert!(ring.wait(PATIENCE).unwrap(), "it never answered");
        while let Some(done) = ring.complete().unwrap() {
            assert_eq!(done.status, RequestStatus::Ok);
            ring.release(done.slot);
        }
    }
}

#[test]
fn a_guest_migrates_under_load_there_and_back() {
    const TEST: &str = "a_guest_migrates_under_load_there_and_back";
    let Some(image) = guest::available(TEST) else { return };
    let rack = Rack::new(0);
    let io = rack.io().start().unwrap();
    let (mut vm1, mut vm2) = (rack.vm(1).start().unwrap(), rack.vm(2).start().unwrap());
    let sockets = [vm1.wait_for_disk("far").unwrap(), vm2.wait_for_disk("far").unwrap()];

    let mut ears = [1, 2].map(|number| rack.ear(number));
    let mut first = Host::start(&image, &rack, "first", (1, &sockets[0]), false);
    first.guest.wait_for("churn", BOOT_TIMEOUT).unwrap();
    let mut requests = first.work(0);
    assert_eq!(ears[0].ping(ADDRESS, PATIENCE), Some(MAC));
    // The destination has its disk long before it has the guest, and this does not disturb the
    // source.
    let mut second = Host::start(&image, &rack, "second", (2, &sockets[1]), true);
    requests = first.work(requests);
    let states = |vm1, vm2| (state(vm1), state(vm2));
    assert_eq!(states(&vm1, &vm2), ("running".to_owned(), "ready".to_owned()));
    let told = first.monitor.migrate(&rack.socket("second"), DOWNTIME, PATIENCE).unwrap();
    println!("to vm2: downtime {} ms of {} ms", told["downtime"], told["total-time"]);
    // The whole network hears of the guest's new place before another station asks for it; and the
    // guest answers.
    ears[1].wait_for_announcements(MAC, PATIENCE);
    assert_eq!(ears[1].ping(ADDRESS, PATIENCE), Some(MAC));
    requests = second.work(requests);
    assert_eq!(states(&vm1, &vm2), ("ready".to_owned(), "running".to_owned()));
    drop(first);

    // And back. The VMhost that the guest leaves is killed as soon as the guest is gone.
    let mut third = Host::start(&image, &rack, "third", (1, &sockets[0]), true);
    requests = second.work(requests);
    ears[0].hear();
    let told = second.monitor.migrate(&rack.socket("third"), DOWNTIME, PATIENCE).unwrap();
    vm2.kill().unwrap();
    println!("to vm1: downtime {} ms of {} ms", told["downtime"], told["total-time"]);
    ears[0].wait_for_announcements(MAC, PATIENCE);
    assert_eq!(ears[0].ping(ADDRESS, PATIENCE), Some(MAC));
    third.work(requests);
    drop(second);
    let report = third.guest.ask("stop", "churned", PATIENCE).unwrap();
    third.guest.wait_success(PATIENCE).unwrap();
    vm1.stop().unwrap();
    io.stop().unwrap();
    let digest = guest::image_digest(&rack.io().file("far.img")).unwrap();
    assert!(report.ends_with(&format!("digest={digest:016x}")), "{report}, image {digest:016x}");
    println!("{report}");
}

/// Pings from one station to the other, which hears meanwhile. Gives whether the other one answers.
fn pings(one: &mut Ear, other: &mut Ear, wait: Duration) -> bool {
    let (is_over, address) = (AtomicBool::new(false), other.address());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                other.hear();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mac = one.ping(address, wait);
        is_over.store(true, Relaxed);
        mac.is_some()
    })
}

/// A node hands over to another process, and its guest's filter still knows the guest's
/// conversations.
#[test]
fn the_conversations_of_a_filter_go_over_with_its_node() {
    let home = tempfile::tempdir().unwrap();
    let nic = |name: &str, last: u8, rest: &str| {
        format!(
            "[[nic]]\nsocket = \"{name}.sock\"\nnetwork = \"blue\"\n\
             mac = \"52:54:00:00:00:0{last}\"\n{rest}\n"
        )
    };
    let filter =
        "filter = { default = \"deny\", rules = [\"allow arp\", \"allow sent icmp keep\"] }";
    let config = format!(
        "[sidecores]\ncount = 1\nidle = \"adaptive\"\n[[network]]\nname = \"blue\"\n{}{}",
        nic("one", 1, filter),
        nic("ear", 9, "")
    );
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "vm1", config);
    let node = plan.start().unwrap();
    let mut one = Ear::new(&plan.socket("one"), MAC, ADDRESS, PATIENCE);
    let mut other = Ear::new(&plan.socket("ear"), EAR_MAC, EAR_ADDRESS, PATIENCE);
    assert!(!pings(&mut other, &mut one, Duration::from_secs(2)), "it may not begin");
    assert!(pings(&mut one, &mut other, PATIENCE));
    assert!(pings(&mut other, &mut one, PATIENCE), "they talk");
    let node = node.hand_over().unwrap();
    assert!(pings(&mut other, &mut one, PATIENCE), "they talk still");
    node.stop().unwrap();
}

/// Gives the guest one module of memory more.
fn plug(monitor: &mut Monitor, number: u32) {
    let (id, size) = (format!("module{number}"), u64::from(MODULE_MIB) << 20);
    let backend = json!({
        "qom-type": "memory-backend-memfd", "id": id, "size": size, "share": true,
    });
    monitor.run("object-add", &backend).unwrap();
    let device = json!({ "driver": "pc-dimm", "id": format!("dimm{number}"), "memdev": id });
    monitor.run("device_add", &device).unwrap();
}

#[test]
fn a_guest_is_given_memory_while_it_works_and_works_in_it() {
    const TEST: &str = "a_guest_is_given_memory_while_it_works_and_works_in_it";
    let Some(image) = guest::available(TEST) else { return };
    let rack = Rack::new(2);
    let io = rack.io().start().unwrap();
    let mut vm = rack.vm(1).start().unwrap();
    let disk = vm.wait_for_disk("far").unwrap();
    let monitor_socket = rack.socket("memory.qmp");
    let [qmp, at] = monitor::arguments(&monitor_socket);
    // QEMU joins this option with the `-m` that sets the memory at the start.
    let room = format!("slots={MODULES},maxmem=4G");
    let builder = on_disk(&image, "memory", &disk).script(scripts::MEMORY);
    let builder = builder.set("BOOT_MIB", BOOT_MIB);
    let mut host = Host::boot(builder, &[&qmp, &at, "-m", &room], &monitor_socket);
    host.guest.wait_for("booted", BOOT_TIMEOUT).unwrap();
    let mut requests = host.work(0);
    for number in 0..MODULES {
        plug(&mut host.monitor, number);
        if number % 4 == 0 {
            requests = host.work(requests);
        }
    }
    let wanted_mib = MODULES * MODULE_MIB;
    let mut memory_mib: u32 = 0;
    for _ in 0..100 {
        let told = host.guest.ask("memory", "memory", PATIENCE).unwrap();
        memory_mib = told.parse().unwrap();
        if memory_mib > wanted_mib {
            break;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(memory_mib > wanted_mib, "{memory_mib} MiB");
    host.work(requests);
    host.guest.ask("stop", "churned", PATIENCE).unwrap();
    let report = host.guest.wait_for("churned", PATIENCE).unwrap();
    host.guest.wait_success(PATIENCE).unwrap();
    vm.stop().unwrap();
    io.stop().unwrap();
    let digest = guest::image_digest(&far(&rack)).unwrap();
    assert!(report.ends_with(&format!("digest={digest:016x}")), "{report}, image {digest:016x}");
    println!("{memory_mib} MiB; {report}");
}
