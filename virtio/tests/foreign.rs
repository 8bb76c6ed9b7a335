//! The stand-in driver against a vhost-user-blk server that is not ours: qemu-storage-daemon.
//!
//! A test that passes here holds for QEMU's front end and our server by transitivity: both ends
//! were tried against a program that knows nothing of us.

mod load;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use load::{Load, PATIENCE, finish, held, loads, run_on};
use virtio::RingKind;
use virtio::driver::{
    Data, DiskInfo, DriverOp, DriverRequest, FrontEnd, FrontEndConfig, FrontEndError, GuestPlan,
    Keeper, Regions, RequestSlot, RequestStatus, RingDriver, RingShape, SocketRole, SubmitError,
    feature, has,
};

/// Size of the disk behind the daemon.
const DISK_BYTES: u64 = 64 << 20;

/// Where Debian puts the daemon (package qemu-system-common) and the usual other places.
fn daemon_binary() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<_> = std::env::split_paths(&path).collect();
    places.extend(["/usr/bin", "/usr/local/bin", "/usr/libexec"].map(PathBuf::from));
    places.into_iter().map(|place| place.join("qemu-storage-daemon")).find(|file| file.is_file())
}

/// A daemon on a file of its own, in a directory of its own; both go with it.
struct Daemon {
    binary: PathBuf,
    directory: tempfile::TempDir,
    queues: u16,
    limit_iops: Option<u32>,
    child: Option<Child>,
}

impl Daemon {
    /// Nothing when it is not installed; says so.
    fn find(test: &str, queues: u16, limit_iops: Option<u32>) -> Option<Self> {
        let Some(binary) = daemon_binary() else {
            println!("SKIP {test}: qemu-storage-daemon not installed");
            return None;
        };
        let directory = tempfile::tempdir().unwrap();
        File::create(directory.path().join("disk")).unwrap().set_len(DISK_BYTES).unwrap();
        let mut daemon = Self { binary, directory, queues, limit_iops, child: None };
        daemon.start();
        Some(daemon)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn disk(&self) -> File {
        File::open(self.path("disk")).unwrap()
    }

    fn start(&mut self) {
        let show = |path: &Path| path.display().to_string();
        let mut command = Command::new(&self.binary);
        let disk = show(&self.path("disk"));
        command.args([
            "--blockdev",
            &format!("driver=file,node-name=file,discard=unmap,filename={disk}"),
        ]);
        let mut node = "file";
        if let Some(iops) = self.limit_iops {
            let group = format!("throttle-group,id=limit,x-iops-total={iops}");
            command.args(["--object", &group, "--blockdev"]);
            command.arg("driver=throttle,node-name=slow,throttle-group=limit,file=file");
            node = "slow";
        }
        let (socket, queues) = (show(&self.path("socket")), self.queues);
        command.arg("--export").arg(format!(
            "type=vhost-user-blk,id=export,node-name={node},addr.type=unix,addr.path={socket},\
             writable=on,num-queues={queues}"
        ));
        let _ = std::fs::remove_file(self.path("socket"));
        self.child = Some(command.stdin(Stdio::null()).spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn config(&self) -> FrontEndConfig {
        let shape =
            RingShape { size: 128, slots: 64, transfer_bytes_max: 32 << 10, segments_max: 8 };
        let mut config = FrontEndConfig::new(SocketRole::Connect(self.path("socket")));
        config.guest = GuestPlan { queues: self.queues, shape, ..GuestPlan::default() };
        config
    }

    fn connect(&self, config: FrontEndConfig) -> FrontEnd {
        let front_end = FrontEnd::connect(config, PATIENCE).unwrap();
        let DiskInfo { capacity_sectors, .. } = *front_end.disk();
        assert_eq!(capacity_sectors * 512, DISK_BYTES);
        front_end
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Submits and waits for the one completion.
fn one(
    ring: &mut RingDriver,
    slot: RequestSlot,
    op: DriverOp,
    sector: u64,
    data: Data<'_>,
) -> RequestStatus {
    ring.submit(&DriverRequest { slot, op, sector, data, token: sector }).unwrap();
    ring.publish();
    assert!(ring.wait(PATIENCE).unwrap(), "no completion of {op:?}");
    let done = ring.complete().unwrap().expect("announced");
    assert_eq!((done.slot, done.token, done.op), (slot, sector, op));
    assert_eq!(ring.complete().unwrap(), None);
    done.status
}

/// Writes, flushes and reads back on one ring, one request at a time and then many.
fn write_and_verify(ring: &mut RingDriver, base_sector: u64) {
    let cut = Data::Cut { len: 16 << 10, piece_bytes: 4096 };
    let slot = ring.take_slot().unwrap();
    ring.fill(slot, 16 << 10, base_sector);
    assert_eq!(one(ring, slot, DriverOp::Write, base_sector, cut), RequestStatus::Ok);
    assert_eq!(one(ring, slot, DriverOp::Flush, 0, Data::None), RequestStatus::Ok);
    ring.fill(slot, 16 << 10, !base_sector);
    assert_eq!(
        one(ring, slot, DriverOp::Read, base_sector, Data::Whole(16 << 10)),
        RequestStatus::Ok
    );
    assert_eq!(ring.mismatch(slot, 16 << 10, base_sector), None);
    ring.release(slot);

    let mut written = Vec::new();
    for (op, seed) in [(DriverOp::Write, 7), (DriverOp::Read, 0)] {
        let mut pending = 0;
        while let Some(slot) = ring.take_slot() {
            let sector = match op {
                DriverOp::Write => base_sector + slot.index() as u64 * 8,
                _ => written[pending % written.len()],
            };
            ring.fill(slot, 4096, sector * seed);
            let data = Data::Cut { len: 4096, piece_bytes: 2048 };
            match ring.submit(&DriverRequest { slot, op, sector, data, token: sector }) {
                Ok(()) if op == DriverOp::Write => written.push(sector),
                Ok(()) => {}
                Err(SubmitError::Full { .. }) => {
                    ring.release(slot);
                    break;
                }
                Err(error) => panic!("{error}"),
            }
            pending += 1;
        }
        assert!(pending >= 16, "{pending} at once");
        ring.publish();
        while pending > 0 {
            assert!(ring.wait(PATIENCE).unwrap(), "{pending} of {op:?} missing");
            while let Some(done) = ring.complete().unwrap() {
                assert_eq!(done.status, RequestStatus::Ok);
                if op == DriverOp::Read {
                    assert_eq!(ring.mismatch(done.slot, 4096, done.token * 7), None);
                }
                ring.release(done.slot);
                pending -= 1;
            }
        }
    }
    assert_eq!(ring.outstanding(), 0);
}

fn say_what_is_offered(test: &str, front_end: &FrontEnd) {
    let mut ways = vec![format!("inflight region: {}", front_end.has_inflight())];
    for (name, bit) in [
        ("EVENT_IDX", feature::EVENT_IDX),
        ("INDIRECT", feature::INDIRECT_DESC),
        ("RING_PACKED", feature::RING_PACKED),
    ] {
        ways.push(format!("{name}: {}", has(front_end.features(), bit)));
    }
    println!("{test}: {}; protocol {:#x}", ways.join(", "), front_end.protocol_features());
}

/// Packed rings are asked for in half of them. QEMU's servers have none up to 10.0, and a driver
/// whose wish is not granted has to go on with a split ring.
#[test]
fn foreign_one_queue_in_every_way() {
    let test = "foreign_one_queue_in_every_way";
    let Some(daemon) = Daemon::find(test, 1, None) else { return };
    for (round, bits) in (0..16).enumerate() {
        let mut config = daemon.config();
        config.wanted.event_idx = bits & 1 != 0;
        config.wanted.indirect = bits & 2 != 0;
        config.wanted.memory_slots = bits & 4 != 0;
        config.wanted.packed = bits & 8 != 0;
        config.guest.regions = [Regions::One, Regions::Adjoining(3), Regions::Apart(4)][round % 3];
        let mut front_end = daemon.connect(config);
        if bits == 15 {
            say_what_is_offered(test, &front_end);
        }
        let packed = has(front_end.features(), feature::RING_PACKED);
        assert_eq!(front_end.ring_kind() == RingKind::Packed, packed);
        write_and_verify(front_end.ring(0), round as u64 * 4096);
        let (base, ring) = (front_end.stop_ring(0).unwrap(), front_end.ring(0));
        assert_eq!(base, ring.base());
        if !packed {
            assert_eq!(u64::from(base), ring.counters().completed);
        }
    }
}

#[test]
fn foreign_errors_and_unknown_requests() {
    let test = "foreign_errors_and_unknown_requests";
    let Some(daemon) = Daemon::find(test, 1, None) else { return };
    let mut front_end = daemon.connect(daemon.config());
    let ring = front_end.ring(0);
    let slot = ring.take_slot().unwrap();
    assert_eq!(one(ring, slot, DriverOp::GetId, 0, Data::Whole(20)), RequestStatus::Ok);
    let beyond = DISK_BYTES / 512;
    assert_eq!(one(ring, slot, DriverOp::Read, beyond, Data::Whole(4096)), RequestStatus::IoError);
    assert_eq!(one(ring, slot, DriverOp::Unknown(77), 0, Data::None), RequestStatus::Unsupported);
}

/// One range for a discard or a write-zeroes, as it is in memory.
fn range(sector: u64, sectors: u32, unmap: bool) -> [u8; 16] {
    let mut range = [0; 16];
    range[..8].copy_from_slice(&sector.to_le_bytes());
    range[8..12].copy_from_slice(&sectors.to_le_bytes());
    range[12] = u8::from(unmap);
    range
}

#[test]
fn foreign_space_is_given_back_and_zeroed() {
    let test = "foreign_space_is_given_back_and_zeroed";
    const LEN: u32 = 4096;
    let Some(daemon) = Daemon::find(test, 1, None) else { return };
    let mut front_end = daemon.connect(daemon.config());
    let info = *front_end.disk();
    assert!(info.discard_sectors_max >= 8 && info.write_zeroes_sectors_max >= 8, "{info:?}");
    let ring = front_end.ring(0);
    let slot = ring.take_slot().unwrap();
    let ways =
        [(DriverOp::Discard, false), (DriverOp::WriteZeroes, false), (DriverOp::WriteZeroes, true)];
    for (sector, (op, unmap)) in (64..).step_by(64).zip(ways) {
        // Three blocks, of which the one in the middle goes.
        for block in 0..3 {
            ring.fill(slot, LEN, sector + block);
            let at = sector + block * 8;
            assert_eq!(one(ring, slot, DriverOp::Write, at, Data::Whole(LEN)), RequestStatus::Ok);
        }
        ring.write(slot, 0, &range(sector + 8, 8, unmap));
        assert_eq!(one(ring, slot, op, 0, Data::Whole(16)), RequestStatus::Ok, "{op:?}");
        for block in 0..3 {
            let at = sector + block * 8;
            assert_eq!(one(ring, slot, DriverOp::Read, at, Data::Whole(LEN)), RequestStatus::Ok);
            if block == 1 {
                let mut bytes = [1; LEN as usize];
                ring.read(slot, 0, &mut bytes);
                assert!(bytes.iter().all(|byte| *byte == 0), "{op:?}, unmap: {unmap}");
            } else {
                assert_eq!(ring.mismatch(slot, LEN, sector + block), None, "{op:?}");
            }
        }
    }
    ring.write(slot, 0, &range(DISK_BYTES / 512, 8, false));
    assert_eq!(one(ring, slot, DriverOp::WriteZeroes, 0, Data::Whole(16)), RequestStatus::IoError);
}

#[test]
fn foreign_four_queues_at_once() {
    let test = "foreign_four_queues_at_once";
    let Some(daemon) = Daemon::find(test, 4, None) else { return };
    let mut front_end = daemon.connect(daemon.config());
    assert_eq!(front_end.disk().queues, 4);
    let rings: Vec<_> = (0..4).map(|index| front_end.take_ring(index)).collect();
    std::thread::scope(|scope| {
        for (index, mut ring) in rings.into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..8 {
                    ring.set_indirect(round % 2 == 0);
                    write_and_verify(&mut ring, (index as u64 * 8 + round) * 1024);
                }
            });
        }
    });
}

/// Runs the load, kills the daemon in the middle and starts it again.
fn kill_under_load(daemon: &mut Daemon, loads: &mut [Load]) {
    run_on(loads, 100);
    daemon.kill();
    held(loads);
    daemon.start();
}

/// With an inflight region the guest notices nothing; without one (QEMU 7.2 and 10.0 have none)
/// going on is refused by name, since requests may be lost.
#[test]
fn foreign_killed_under_load() {
    let test = "foreign_killed_under_load";
    let Some(mut daemon) = Daemon::find(test, 2, Some(3000)) else { return };
    let mut front_end = daemon.connect(daemon.config());
    say_what_is_offered(test, &front_end);
    let mut loads = loads(&mut front_end, 2);
    loads.iter_mut().for_each(Load::fill);
    if !front_end.has_inflight() {
        kill_under_load(&mut daemon, &mut loads);
        let error = front_end.reconnect(PATIENCE).unwrap_err();
        assert!(matches!(error, FrontEndError::ResumeUnsafe { .. }), "{error}");
        println!("{test}: {error}");
        return;
    }
    let keeper = Keeper::new(front_end).unwrap();
    for kill in 1..=5 {
        kill_under_load(&mut daemon, &mut loads);
        run_on(&mut loads, 100);
        assert_eq!(keeper.counters().hang_ups(), kill);
    }
    finish(&mut loads, &daemon.disk());
    assert_eq!(keeper.counters().reconnects(), 5);
    assert!(keeper.counters().resumed() > 0);
    println!("{test}: {} requests outstanding at 5 kills", keeper.counters().resumed());
}

/// An idle guest lives through the daemon's death, with all features of the daemon: indexes go on
/// where they were.
#[test]
fn foreign_killed_while_idle() {
    let test = "foreign_killed_while_idle";
    let Some(mut daemon) = Daemon::find(test, 2, None) else { return };
    let mut front_end = daemon.connect(daemon.config());
    let mut loads = loads(&mut front_end, 2);
    let keeper = Keeper::new(front_end).unwrap();
    for kills in 1..=3 {
        loads.iter_mut().for_each(Load::fill);
        finish(&mut loads, &daemon.disk());
        daemon.kill();
        daemon.start();
        let deadline = Instant::now() + PATIENCE;
        while keeper.counters().reconnects() < kills {
            assert!(Instant::now() < deadline, "{:?}", keeper.counters().failure());
            std::thread::yield_now();
        }
    }
    loads.iter_mut().for_each(Load::fill);
    finish(&mut loads, &daemon.disk());
    assert_eq!(keeper.stop().disk().capacity_sectors, DISK_BYTES / 512);
}
