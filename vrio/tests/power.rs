//! An IOhost that loses power: a whole machine with its page cache, in a guest whose QEMU gets
//! SIGKILL in the middle of its work. Flushed writes are kept, and a loss is never silent.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use random::Random;
use testbed::guest::{self, BOOT_TIMEOUT, Guest, scripts};
use testbed::nodes::{Node, NodePlan};
use testbed::stand_in::StandIn;
use virtio::driver::{
    Data, DriverOp, DriverRequest, FrontEnd, FrontEndConfig, RequestStatus, SocketRole,
};
use workload::checker::Checker;
use workload::{Mix, Workload};

/// The bytes of the IOhost's own disk: room for the volume and a file system around it.
const MACHINE_DISK_BYTES: u64 = 128 << 20;
/// The blocks of 4 KiB that the guest uses: half of the volume.
const BLOCKS: u64 = 2048;
/// How many requests end before the power is cut, and after it came back.
const REQUESTS: u64 = 300;
/// Requests on their way when the power is cut.
const OUTSTANDING_MIN: usize = 16;
/// The time limit of one answer of a disk, under emulation.
const WAIT: Duration = Duration::from_secs(60);
/// The time limit of the node's start in the guest, once the guest is booted.
const SERVE_TIMEOUT: Duration = Duration::from_secs(120);

/// Small steps: often no write lacks a flush.
const QUIET: Mix = Mix {
    block_bytes: 4096,
    blocks_max: 8,
    depth: 1,
    reads_ppm: 200_000,
    flushes_ppm: 300_000,
    zeroes_ppm: 20_000,
    hot_blocks: 64,
};
const BUSY: Mix = Mix { depth: 16, flushes_ppm: 20_000, hot_blocks: 0, ..QUIET };
/// No flushes: every acknowledged write may be lost.
const CARELESS: Mix = Mix { flushes_ppm: 0, ..BUSY };

/// The machine that is an IOhost, and the port of this host that leads to it.
struct Machine {
    image: guest::Image,
    disk: PathBuf,
    port: u16,
    encrypted: bool,
}

impl Machine {
    fn new(image: guest::Image, folder: &Path, encrypted: bool) -> Self {
        let disk = folder.join("machine.img");
        File::create(&disk).unwrap().set_len(MACHINE_DISK_BYTES).unwrap();
        // Not one of the ports that the system gives to others while the machine is off.
        let port = 16_000 + (std::process::id() % 16_000) as u16;
        Self { image, disk, port, encrypted }
    }

    /// Starts the machine and waits until its node serves. Gives the incarnation of the volume,
    /// too. There is one sidecore: QEMU forwards a single port, and this host knows that port by
    /// another number.
    fn power_on(&self, format: bool) -> (Guest, String) {
        let chain = if self.encrypted {
            "chain = [{ encrypt = { key = \"/mnt/root.xts\" } }]\n"
        } else {
            ""
        };
        let config = "name = \"io1\"\nlisten = \"10.0.2.15:4870\"\ntrust = \"network\"\n\
             [sidecores]\ncount = 1\nidle = \"adaptive\"\n\
             [directories]\nvolumes = \"/mnt\"\n\
             [[volume]]\nname = \"root\"\n\
             backend = { file = \"root.img\", size = \"16MiB\", direct = false }\n\
             allow = [\"vm1\"]\n";
        let config = &format!("{config}{chain}");
        // Writes of the guest's kernel stay in this host's page cache: only QEMU is killed.
        let disk = self.disk.display();
        let drive = format!("file={disk},if=none,id=disk,format=raw,cache=writeback");
        let network = format!("user,id=net,hostfwd=udp:127.0.0.1:{}-10.0.2.15:4870", self.port);
        let machine = Guest::builder(&self.image)
            .name("io1")
            .memory_mib(512)
            .arguments(&["-drive", &drive, "-device", "virtio-blk-pci,drive=disk"])
            .arguments(&["-netdev", &network, "-device", "virtio-net-pci,netdev=net,romfile="])
            .program(Path::new(env!("CARGO_BIN_EXE_vrio")))
            .unwrap()
            .set("CONFIG", config)
            .set("FORMAT", u8::from(format))
            .set("KEY", u8::from(self.encrypted));
        let mut machine = machine.script(scripts::IOHOST).start().unwrap();
        machine.wait_for("booted", BOOT_TIMEOUT).unwrap();
        let incarnation = machine.wait_for("serving", SERVE_TIMEOUT).unwrap();
        assert!(!incarnation.is_empty(), "the IOhost's status tells its volume's incarnation");
        (machine, incarnation)
    }

    fn vm_plan(&self, folder: &Path) -> NodePlan {
        let config = format!(
            "listen = \"127.0.0.1:0\"\n[sidecores]\ncount = 1\nidle = \"adaptive\"\n\
             [[peer]]\nname = \"io1\"\naddress = \"127.0.0.1:{}\"\n\
             [[disk]]\nsocket = \"root.sock\"\nvolume = \"io1/root\"\nqueues = 2\n",
            self.port
        );
        NodePlan::new(env!("CARGO_BIN_EXE_vrio"), folder, "vm1", config)
    }
}

impl Machine {
    /// A guest that works on the disk.
    fn connect(&self, vm: &mut Node, queues: u16, mix: Mix, random: &mut Random) -> StandIn {
        let socket = vm.wait_for_disk("root").unwrap();
        let mut guest = StandIn::connect(&socket, queues, mix, BLOCKS, random).unwrap();
        guest.workload.discards = !self.encrypted;
        guest
    }
}

/// Disconnects the guest. The next guest of the same disk takes over its checker.
fn end(mut guest: StandIn) -> Checker {
    let checker = std::mem::replace(&mut guest.checker, Checker::new(1));
    guest.disconnect();
    checker
}

/// Every request ends in an error, and the status says why.
fn assert_failed(guest: &mut StandIn, vm: &mut Node, incarnation: &str) {
    let before = guest.workload.counts;
    guest.work(|guest| guest.workload.counts.errors >= before.errors + REQUESTS).unwrap();
    guest.drain().unwrap();
    assert_eq!(guest.workload.counts.completed, before.completed, "the disk must not go on");
    let disk = &vm.status().unwrap()["disks"][0];
    let detail = disk["detail"].as_str().unwrap();
    assert_eq!(disk["state"], "failed", "{disk}");
    assert!(detail.contains("may be lost") && detail.contains(incarnation), "{disk}");
}

/// Works until every acknowledged write is flushed, and no request is on its way.
fn work_until_flushed(guest: &mut StandIn) {
    guest.work(|guest| guest.workload.counts.completed >= REQUESTS).unwrap();
    guest.drain().unwrap();
    while guest.checker.unflushed() {
        let before = guest.workload.counts.completed;
        guest.work(|guest| guest.workload.counts.completed > before).unwrap();
        guest.drain().unwrap();
    }
}

fn allowed(checker: &Checker) -> Vec<Vec<u64>> {
    (0..BLOCKS).map(|block| checker.allowed(block)).collect()
}

/// The number of blocks with a content, after the loss, that they could not have without a loss.
fn count_lost(before: &[Vec<u64>], after: &[Vec<u64>]) -> usize {
    let lost = |(before, after): &(&Vec<u64>, &Vec<u64>)| {
        // Two writes may have left the same, such as zeroes.
        assert!(after.iter().all(|content| *content == after[0]), "every block was read");
        !before.contains(&after[0])
    };
    before.iter().zip(after).filter(lost).count()
}

/// Zeroes the blocks that the guest uses, durably: an encrypted volume that was never written is
/// noise.
fn zero(vm: &mut Node) {
    let socket = vm.wait_for_disk("root").unwrap();
    let mut guest =
        FrontEnd::connect(FrontEndConfig::new(SocketRole::Connect(socket)), WAIT).unwrap();
    let sectors = u32::try_from(BLOCKS * 4096 / 512).unwrap().to_le_bytes();
    let mut range = [0; 16];
    range[8..12].copy_from_slice(&sectors);
    for (op, data) in [(DriverOp::WriteZeroes, Data::Whole(16)), (DriverOp::Flush, Data::None)] {
        let ring = guest.ring(0);
        let slot = ring.take_slot().unwrap();
        ring.write(slot, 0, &range);
        ring.submit(&DriverRequest { slot, op, sector: 0, data, token: 0 }).unwrap();
        ring.publish();
        assert!(ring.wait(WAIT).unwrap(), "no answer to {op:?}");
        let done = ring.complete().unwrap().unwrap();
        assert_eq!(done.status, RequestStatus::Ok, "{op:?}");
        ring.release(slot);
    }
}

#[test]
fn flushed_data_survives_a_power_cut_of_the_iohost() {
    survives("flushed_data_survives_a_power_cut_of_the_iohost", false);
}

/// The same on an encrypted volume, only in the nightly tier: it takes some boots of a guest, and
/// the simulation cuts the power of such volumes in any tier.
#[test]
fn encrypted_and_flushed_data_survives_a_power_cut_of_the_iohost() {
    if matches!(std::env::var("VRIO_TIER").as_deref(), Ok("nightly" | "long")) {
        survives("encrypted_and_flushed_data_survives_a_power_cut_of_the_iohost", true);
    }
}

fn survives(test: &str, encrypted: bool) {
    let Some(image) = guest::available(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let machine = Machine::new(image, folder.path(), encrypted);
    let mut random = Random::new(1);
    let (mut io, first) = machine.power_on(true);
    let mut vm = machine.vm_plan(folder.path()).start().unwrap();
    if encrypted {
        zero(&mut vm);
    }

    // Every write is flushed when the power is cut: the disk goes on as if there had been a pause.
    let mut quiet = machine.connect(&mut vm, 1, QUIET, &mut random);
    work_until_flushed(&mut quiet);
    io.kill();
    let (mut io, second) = machine.power_on(false);
    assert_ne!(first, second, "another boot, another incarnation");
    let before = quiet.workload.counts.completed;
    quiet.read_all().unwrap();
    quiet.work(|guest| guest.workload.counts.completed >= before + REQUESTS).unwrap();
    quiet.read_all().unwrap();
    assert_eq!(quiet.workload.counts.errors, 0, "nothing was lost, so nothing may fail");
    let checker = end(quiet);

    // Acknowledged writes are not flushed: the disk fails, and says why.
    let mut busy = machine.connect(&mut vm, 2, BUSY, &mut random);
    busy.checker = checker;
    busy.work(|guest| guest.workload.counts.completed >= REQUESTS).unwrap();
    busy.drain().unwrap();
    busy.workload = Workload::new(random.fork(), CARELESS);
    busy.workload.discards = !encrypted;
    busy.work(|guest| {
        guest.workload.counts.completed >= REQUESTS
            && guest.workload.outstanding() >= OUTSTANDING_MIN
    })
    .unwrap();
    assert!(busy.checker.unflushed());
    busy.checker.power_cut();
    io.kill();
    let (_io, third) = machine.power_on(false);
    assert_ne!(second, third, "another boot, another incarnation");
    busy.drain().unwrap();
    assert!(busy.workload.counts.errors > 0, "a loss must not be silent");
    assert_failed(&mut busy, &mut vm, &third);

    // A new VMhost does not clear the failure: the guest still counts on its acknowledged writes.
    let mut vm = vm.kill().unwrap().start().unwrap();
    assert_failed(&mut busy, &mut vm, &third);

    // The guest starts afresh, as after a power cut of its own: all flushed writes were kept.
    let mut checker = end(busy);
    let before = allowed(&checker);
    checker.settle();
    checker.lose();
    let mut again = machine.connect(&mut vm, 2, BUSY, &mut random);
    again.checker = checker;
    again.read_all().unwrap();
    let lost = count_lost(&before, &allowed(&again.checker));
    again.work(|guest| guest.workload.counts.completed >= REQUESTS).unwrap();
    again.read_all().unwrap();
    assert_eq!(again.workload.counts.errors, 0);
    println!("incarnations {first}, {second}, {third}; {lost} of {BLOCKS} blocks lost writes");
    assert!(lost > 0, "nothing was lost with the power, so nothing was tried");
    again.disconnect();
}
