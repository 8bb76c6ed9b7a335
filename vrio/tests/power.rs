//! An IOhost that loses power: a whole machine, its page cache and all, in a guest that is ended
//! in the middle of its work. What was flushed is there; what was not is never lost in silence.

use std::fs::File;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};

use bench::checker::Checker;
use bench::guest::{self, BOOT_TIMEOUT, Guest, scripts};
use bench::nodes::{Node, NodePlan};
use bench::sim::Random;
use bench::stand_in::StandIn;
use bench::workload::Mix;

/// Of the IOhost's own disk: room for the volume and a file system around it.
const MACHINE_DISK_BYTES: u64 = 128 << 20;
/// Blocks of 4 KiB that are worked on: half of the volume.
const BLOCKS: u64 = 2048;
/// How many requests end before the power is cut, and after it came back.
const REQUESTS: u64 = 300;

/// Small steps: often nothing is at stake.
const QUIET: Mix = Mix {
    block_bytes: 4096,
    blocks_max: 8,
    depth: 1,
    reads_ppm: 200_000,
    flushes_ppm: 300_000,
    hot_blocks: 64,
};
const BUSY: Mix = Mix { depth: 16, flushes_ppm: 20_000, ..QUIET };

/// The machine that is an IOhost, and the port of this host that leads to it.
struct Machine {
    image: guest::Image,
    disk: PathBuf,
    port: u16,
}

impl Machine {
    fn new(image: guest::Image, folder: &Path) -> Self {
        let disk = folder.join("machine.img");
        File::create(&disk).unwrap().set_len(MACHINE_DISK_BYTES).unwrap();
        // Free now, and nobody else's a moment later: QEMU says so if it is taken after all.
        let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { image, disk, port }
    }

    /// Starts it and waits until its node serves.
    fn power_on(&self) -> Guest {
        let config = "name = \"io1\"\nlisten = \"10.0.2.15:4870\"\ntrust = \"network\"\n\
             [sidecores]\ncount = 1\nidle = \"adaptive\"\n\
             [directories]\nvolumes = \"/mnt\"\n\
             [[volume]]\nname = \"root\"\nbackend = { file = \"root.img\", size = \"16MiB\" }\n\
             allow = [\"vm1\"]\n";
        let drive = format!("file={},if=none,id=disk,format=raw", self.disk.display());
        let network = format!("user,id=net,hostfwd=udp:127.0.0.1:{}-10.0.2.15:4870", self.port);
        let machine = Guest::builder(&self.image)
            .name("io1")
            .memory_mib(512)
            .arguments(&["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"])
            .arguments(&["-netdev", &network, "-device", "virtio-net-pci,netdev=net,romfile="])
            .program(Path::new(env!("CARGO_BIN_EXE_vrio")))
            .unwrap();
        let script = machine.set("CONFIG", config).script(scripts::IOHOST);
        let mut machine = script.start().unwrap();
        machine.wait_for("serving", BOOT_TIMEOUT).unwrap();
        machine
    }

    fn vm_plan(&self, folder: &Path) -> NodePlan {
        NodePlan {
            program: PathBuf::from(env!("CARGO_BIN_EXE_vrio")),
            name: "vm1".to_owned(),
            home: folder.join("vm1"),
            config: format!(
                "listen = \"127.0.0.1:0\"\n[sidecores]\ncount = 1\nidle = \"adaptive\"\n\
                 [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n\
                 [[disk]]\nsocket = \"root.sock\"\nvolume = \"io1/root\"\nqueues = 2\n",
                self.port
            ),
            namespace: None,
        }
    }
}

fn connect(vm: &mut Node, queues: u16, mix: Mix, random: &mut Random) -> StandIn {
    let socket = vm.wait_for_disk("root").unwrap();
    StandIn::connect(&socket, queues, mix, BLOCKS, random).unwrap()
}

/// Ends a guest; what it knew of the disk is for the next one.
fn end(mut guest: StandIn) -> Checker {
    let checker = std::mem::replace(&mut guest.checker, Checker::new(1));
    guest.disconnect();
    checker
}

#[test]
fn what_was_flushed_survives_the_iohosts_power() {
    let Some(image) = guest::available("what_was_flushed_survives_the_iohosts_power") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(image, folder.path());
    let mut random = Random::new(1);
    let mut io = machine.power_on();
    let mut vm = machine.vm_plan(folder.path()).start().unwrap();

    // Nothing is at stake when the power is cut: the disk goes on as if there had been a pause.
    let mut quiet = connect(&mut vm, 1, QUIET, &mut random);
    quiet.work(|guest| guest.workload.counts.completed >= REQUESTS).unwrap();
    while quiet.checker.unflushed() {
        let before = quiet.workload.counts.completed;
        quiet.work(|guest| guest.workload.counts.completed > before).unwrap();
        quiet.drain().unwrap();
    }
    io.kill();
    let mut io = machine.power_on();
    let before = quiet.workload.counts.completed;
    quiet.work(|guest| guest.workload.counts.completed >= before + REQUESTS).unwrap();
    quiet.read_all().unwrap();
    assert_eq!(quiet.workload.counts.errors, 0, "nothing was lost, so nothing may fail");

    // Acknowledged writes are not flushed: the disk fails, and says why.
    let checker = end(quiet);
    let mut busy = connect(&mut vm, 2, BUSY, &mut random);
    busy.checker = checker;
    busy.work(|guest| {
        let enough = guest.workload.counts.completed >= REQUESTS;
        enough && guest.checker.unflushed() && guest.workload.outstanding() >= 16
    })
    .unwrap();
    busy.checker.power_cut();
    io.kill();
    let _io = machine.power_on();
    busy.drain().unwrap();
    assert!(busy.workload.counts.errors > 0, "a loss must not be silent");
    let status = vm.status().unwrap()["disks"][0].to_string();
    assert!(status.contains("incarnation"), "{status}");

    // The guest starts afresh, as after a power cut of its own: every flush was kept.
    busy.checker.settle();
    busy.checker.lose();
    let checker = end(busy);
    let mut vm = vm.kill().unwrap().start().unwrap();
    let mut again = connect(&mut vm, 1, BUSY, &mut random);
    again.checker = checker;
    again.read_all().unwrap();
    again.work(|guest| guest.workload.counts.completed >= REQUESTS).unwrap();
    again.read_all().unwrap();
    assert_eq!(again.workload.counts.errors, 0);
    again.disconnect();
}
