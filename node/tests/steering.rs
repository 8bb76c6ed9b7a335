//! Queues of whole nodes that go over to other sidecores: by command, a thousand times under load,
//! and by load.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::common::{Home, PATIENCE, address, wait_for, wait_for_disk};
use node::Node;
use node::api::RefusedKind;
use node::status::{DiskState, DiskStatus, Status};
use virtio::driver::{
    Data, DriverOp, DriverRequest, FrontEnd, FrontEndConfig, GuestPlan, RequestStatus as Outcome,
    RingDriver, RingShape, SocketRole, UsedFeatures,
};

/// The depth of the moved queue.
const DEPTH: u16 = 32;

/// How often it is moved.
const MOVES: u64 = 1_000;

const BLOCK_BYTES: u32 = 4096;

/// A VMhost with a disk of a volume in its own file.
const LOCAL: &str = r#"
name = "vm1"
[sidecores]
count = 2
[directories]
volumes = "HOME"
sockets = "HOME"
[[volume]]
name = "a"
backend = { file = "a.img", size = "1MiB" }
[[disk]]
socket = "a.sock"
volume = "a"
queues = 2
"#;

/// A VMhost with a disk of a peer's volume.
const REMOTE: &str = r#"
name = "vm1"
listen = "HERE"
[sidecores]
count = 2
[directories]
sockets = "HOME"
[[peer]]
name = "io1"
address = "THERE"
[[disk]]
socket = "a.sock"
volume = "io1/a"
queues = 2
"#;

const IOHOST: &str = r#"
name = "io1"
listen = "THERE"
[directories]
volumes = "HOME"
sockets = "HOME"
[[volume]]
name = "a"
backend = { file = "a.img", size = "1MiB" }
allow = ["vm1"]
"#;

/// Connects a stand-in guest.
fn connect(socket: PathBuf, packed: bool, transfer_bytes_max: u32) -> FrontEnd {
    let shape = RingShape { size: 128, slots: DEPTH, transfer_bytes_max, segments_max: 2 };
    let guest = GuestPlan { queues: 2, shape, ..GuestPlan::default() };
    let wanted = UsedFeatures { packed, ..UsedFeatures::default() };
    let config =
        FrontEndConfig { guest, wanted, ..FrontEndConfig::new(SocketRole::Connect(socket)) };
    FrontEnd::connect(config, PATIENCE).expect("a disk")
}

/// A ring with a request under way in each slot, all the time: a write of a block of its own, then
/// a read of it that is compared, and now and then a flush.
struct Load {
    ring: RingDriver,
    /// The content of each slot's block.
    fills: Vec<u64>,
    next: u64,
    completed: u64,
}

impl Load {
    fn new(ring: RingDriver) -> Self {
        Self { ring, fills: vec![0; usize::from(DEPTH)], next: 1, completed: 0 }
    }

    fn submit(&mut self, op: DriverOp, slot: virtio::driver::RequestSlot) {
        let block = slot.index();
        if op == DriverOp::Write {
            self.fills[block] = self.next;
            self.next += 1;
        }
        // The buffer of a read holds other bytes than those that the read must bring.
        let fill = if op == DriverOp::Write { self.fills[block] } else { u64::MAX };
        self.ring.fill(slot, BLOCK_BYTES, fill);
        let data = if op == DriverOp::Flush { Data::None } else { Data::Whole(BLOCK_BYTES) };
        let sector = block as u64 * u64::from(BLOCK_BYTES / 512);
        let request = DriverRequest { slot, op, sector, data, token: 0 };
        self.ring.submit(&request).expect("room for every slot");
    }

    /// Runs at its depth until `stop` is set, then until no request is under way.
    fn run(&mut self, stop: &AtomicBool) {
        while let Some(slot) = self.ring.take_slot() {
            self.submit(DriverOp::Write, slot);
        }
        self.ring.publish();
        while self.ring.outstanding() > 0 {
            assert!(self.ring.wait(PATIENCE).expect("no breach"), "a request never ended");
            while let Some(done) = self.ring.complete().expect("no breach") {
                assert_eq!(done.status, Outcome::Ok);
                self.completed += 1;
                let (block, slot) = (done.slot.index(), done.slot);
                if done.op == DriverOp::Read {
                    let fill = self.fills[block];
                    assert_eq!(self.ring.mismatch(slot, BLOCK_BYTES, fill), None, "block {block}");
                }
                let op = match done.op {
                    DriverOp::Write => DriverOp::Read,
                    DriverOp::Read if self.completed.is_multiple_of(50) => DriverOp::Flush,
                    _ => DriverOp::Write,
                };
                if stop.load(Relaxed) {
                    self.ring.release(slot);
                } else {
                    self.submit(op, slot);
                }
            }
            self.ring.publish();
        }
    }
}

fn requests_on(disk: &DiskStatus, sidecore: usize) -> u64 {
    let share = disk.by_sidecore.iter().find(|share| share.sidecore == sidecore);
    share.map_or(0, |share| share.counters["requests"])
}

/// The thousand moves of a queue under load, on a node whose disk is ready.
fn move_a_thousand_times(node: &Node, home: &Home, packed: bool) {
    let mut guest = connect(home.path("a.sock"), packed, BLOCK_BYTES);
    let mut load = Load::new(guest.take_ring(0));
    let (stop, refused) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| load.run(&stop));
        wait_for_disk(node, DiskState::Running, "");
        let mut moves = 0;
        while moves < MOVES {
            let to = usize::from(moves % 2 == 0);
            match node.move_queue("a", 0, to) {
                Ok(_) => moves += 1,
                // It did not drain in time again and again: the machine is busy.
                Err(error) if error.kind == RefusedKind::Busy => {
                    refused.fetch_add(1, Relaxed);
                    assert!(refused.load(Relaxed) < MOVES, "{error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            // Later requests are served on the new sidecore.
            if moves % 10 == 0 {
                let before = requests_on(&node.status().disks[0], to);
                wait_for(node, "requests over there", |status| {
                    requests_on(&status.disks[0], to) > before
                });
            }
        }
        stop.store(true, Relaxed);
    });
    let disk = node.status().disks.remove(0);
    let queue = &disk.by_queue[0];
    assert_eq!((queue.queue, queue.running, queue.sidecore), (0, true, 0));
    assert_eq!(queue.counters["moves"], MOVES);
    assert_eq!(queue.counters["requests"], load.completed);
    assert_eq!(disk.counters["errors"], 0);
    let (first, second) = (requests_on(&disk, 0), requests_on(&disk, 1));
    assert_eq!(first + second, load.completed, "each is counted where it was served");
    assert!(first > 0 && second > 0);
    let stayed = queue.counters["moves_refused"];
    println!("{MOVES} moves, {stayed} stayed; requests: {first} on 0, {second} on 1");
    // Nothing moves any more: the first sidecore serves everything.
    let mut load = Load { completed: 0, ..load };
    load.run(&AtomicBool::new(true));
    let disk = node.status().disks.remove(0);
    assert_eq!((requests_on(&disk, 0) - first, requests_on(&disk, 1)), (load.completed, second));
}

#[test]
fn a_queue_of_a_local_disk_at_depth_32_is_moved_a_thousand_times() {
    for packed in [false, true] {
        let home = Home::new();
        let node = home.start(LOCAL);
        wait_for_disk(&node, DiskState::Ready, "a.sock");
        move_a_thousand_times(&node, &home, packed);
        node.stop();
    }
}

#[test]
fn a_queue_of_a_remote_disk_at_depth_32_is_moved_a_thousand_times() {
    for packed in [false, true] {
        let home = Home::new();
        let (there, here) = (address(), address());
        let put = |text: &str| text.replace("THERE", &there).replace("HERE", &here);
        let io1 = home.start(&put(IOHOST));
        let node = home.start(&put(REMOTE));
        wait_for_disk(&node, DiskState::Ready, "a.sock");
        move_a_thousand_times(&node, &home, packed);
        node.stop();
        io1.stop();
    }
}

/// A node is stopped while one of its queues is moved all the time; its guest goes on with the next
/// node.
#[test]
fn a_node_stops_while_a_queue_is_moved() {
    let home = Home::new();
    for turn in 0..5 {
        let node = home.start(LOCAL);
        wait_for_disk(&node, DiskState::Ready, "a.sock");
        let mut guest = crate::common::Guest::connect(home.path("a.sock"), 2);
        for block in 0..10 {
            assert_eq!(guest.write(0, block, 10 * turn + block), Outcome::Ok);
        }
        assert_eq!(guest.flush(0), Outcome::Ok);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                let mut moves = 0;
                while !stop.load(Relaxed) && node.move_queue("a", 0, (moves + 1) % 2).is_ok() {
                    moves += 1;
                }
                moves
            });
            wait_for(&node, "moves", |status| status.disks[0].counters["moves"] > 20);
            for block in 0..10 {
                assert_eq!(guest.check(0, block, 10 * turn + block), Outcome::Ok);
            }
            // The front end hangs up under it, too.
            guest.0.hang_up();
            stop.store(turn % 2 == 0, Relaxed);
            assert!(mover.join().expect("no panic") > 20);
        });
        node.stop();
        let node = home.start(LOCAL);
        guest.0.reconnect(PATIENCE).expect("the same disk");
        for block in 0..10 {
            assert_eq!(guest.check(0, block, 10 * turn + block), Outcome::Ok);
        }
        drop(guest);
        node.stop();
    }
}

#[test]
fn a_failed_move_has_a_reason() {
    let home = Home::new();
    let node = home.start(LOCAL);
    wait_for_disk(&node, DiskState::Ready, "a.sock");
    let refused = |disk: &str, queue, to| {
        let refused = node.move_queue(disk, queue, to).expect_err("it cannot be");
        (refused.kind, refused.to_string())
    };
    let (kind, text) = refused("a", 0, 1);
    assert_eq!(kind, RefusedKind::Conflict);
    assert!(text.contains("its guest has not started it"), "{text}");
    let mut guest = crate::common::Guest::connect(home.path("a.sock"), 2);
    assert_eq!(guest.write(0, 0, 1), Outcome::Ok);
    assert_eq!(refused("b", 0, 1).0, RefusedKind::Unknown);
    let (kind, text) = refused("a", 2, 1);
    assert_eq!(kind, RefusedKind::Bad);
    assert!(text.contains("its queues are 0 to 1"), "{text}");
    let (kind, text) = refused("a", 0, 2);
    assert_eq!(kind, RefusedKind::Bad);
    assert!(text.contains("there is no sidecore 2: there are 2"), "{text}");
    let done = node.move_queue("a", 0, 1).expect("it can be");
    assert_eq!(done.applied, ["move queue 0 of disk \"a\" to 1"]);
    assert_eq!(guest.check(0, 0, 1), Outcome::Ok);
    drop(guest);
    node.stop();
}

/// How often the load is checked. A check costs the one thread that keeps the sidecores busy about
/// as long as they need for all its requests.
const LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Two queues at depth 32, of which each alone saturates a sidecore: its work is copying.
fn saturate(rings: &mut [RingDriver; 2], bytes: u32, until: impl Fn() -> bool) {
    let (began, mut looked) = (Instant::now(), Instant::now());
    loop {
        if looked.elapsed() > LOOK_PERIOD {
            if until() {
                return;
            }
            looked = Instant::now();
        }
        assert!(began.elapsed() < PATIENCE, "never, under load");
        for ring in rings.iter_mut() {
            while let Some(slot) = ring.take_slot() {
                let request = DriverRequest {
                    slot,
                    op: DriverOp::Read,
                    sector: 0,
                    data: Data::Whole(bytes),
                    token: 0,
                };
                ring.submit(&request).expect("room");
            }
            ring.publish();
        }
        for ring in rings.iter_mut() {
            assert!(ring.wait(PATIENCE).expect("no breach"), "a request never ended");
            while let Some(done) = ring.complete().expect("no breach") {
                assert_eq!(done.status, Outcome::Ok);
                ring.release(done.slot);
            }
        }
    }
}

fn active(status: &Status) -> usize {
    status.sidecores.iter().filter(|core| core.counters["active_now"] == 1).count()
}

#[test]
fn active_sidecores_follow_the_load() {
    const BYTES: u32 = 256 << 10;
    let home = Home::new();
    let memory = LOCAL
        .replace("count = 2", "count = 2\nmin = 1")
        .replace("{ file = \"a.img\", size = \"1MiB\" }", "{ memory = \"4MiB\" }");
    let node = home.start(&memory);
    wait_for_disk(&node, DiskState::Ready, "a.sock");
    let mut guest = connect(home.path("a.sock"), false, BYTES);
    let mut rings = [guest.take_ring(0), guest.take_ring(1)];
    saturate(&mut rings, BYTES, || node.status().disks[0].by_queue.len() == 2);
    let places = |status: &Status| -> Vec<_> {
        status.disks[0].by_queue.iter().map(|queue| queue.sidecore).collect()
    };
    saturate(&mut rings, BYTES, || {
        let status = node.status();
        let apart = places(&status).iter().sum::<usize>() == 1;
        active(&status) == 2 && apart
    });
    // The guest rests.
    let status = wait_for(&node, "gathered", |status| {
        active(status) == 1 && places(status).iter().all(|place| *place == 0)
    });
    // The queues were apart, by a move or from their start, and are together now.
    assert!(status.disks[0].counters["moves"] >= 1);
    assert!(status.sidecores.iter().all(|core| core.counters.contains_key("load_permille_now")));
    drop(guest);
    node.stop();
}
