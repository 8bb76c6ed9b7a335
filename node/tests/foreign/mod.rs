//! A front end of another project: the virtio-blk driver of the crate `blkio` on the disks of whole
//! nodes. There is no machine around it: it is a program with queues, and with memory that it maps
//! and unmaps while it works.

use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

use crate::common::{Home, PATIENCE, address, wait_for, wait_for_disk};
use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags, iovec};
use node::Node;
use node::status::DiskState;

const DISK_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: usize = 4096;
/// Requests that a queue is given at once.
const DEPTH: usize = 32;

/// A node with a volume that it shows itself, and exports to `vm1`.
fn near(address: &str) -> String {
    format!(
        r#"
name = "io1"
listen = "{address}"
[sidecores]
count = 2
idle = "adaptive"
[directories]
volumes = "HOME"
sockets = "HOME"
[[volume]]
name = "near"
backend = {{ file = "near.img", size = "1MiB" }}
[[volume]]
name = "far"
backend = {{ file = "far.img", size = "1MiB" }}
chain = ["meter"]
allow = ["vm1"]
[[disk]]
socket = "near.sock"
volume = "near"
queues = 4
"#
    )
}

/// A node with one disk, which is another node's volume.
fn far(here: &str, there: &str) -> String {
    format!(
        r#"
name = "vm1"
listen = "{here}"
[sidecores]
count = 2
idle = "adaptive"
[directories]
sockets = "HOME"
[[peer]]
name = "io1"
address = "{there}"
[[disk]]
socket = "far.sock"
volume = "io1/far"
queues = 4
"#
    )
}

/// The driver, and its queues: the first ones wait for interrupts, the last one polls.
struct Client {
    // They are dropped before their owner: blkio asks for that order.
    queues: Vec<Blkioq>,
    blkio: Blkio,
}

impl Client {
    fn connect(socket: PathBuf) -> Self {
        let mut blkio = Blkio::new("virtio-blk-vhost-user").unwrap();
        blkio.set_str("path", socket.to_str().unwrap()).unwrap();
        blkio.connect().unwrap();
        assert_eq!(blkio.get_i32("max-queues").unwrap(), 4);
        blkio.set_i32("num-queues", 3).unwrap();
        blkio.set_i32("num-poll-queues", 1).unwrap();
        blkio.set_i32("queue-size", 128).unwrap();
        let started = blkio.start().unwrap();
        let queues = started.queues.into_iter().chain(started.poll_queues).collect();
        Self { queues, blkio }
    }

    /// Maps memory, which the server may use from now on.
    fn map(&mut self, blocks: usize) -> Memory {
        let region = self.blkio.alloc_mem_region(blocks * BLOCK_BYTES).unwrap();
        self.blkio.map_mem_region(&region).unwrap();
        Memory(region)
    }

    /// Unmaps memory: the server may not use it any more.
    fn unmap(&mut self, memory: Memory) {
        self.blkio.unmap_mem_region(&memory.0);
        self.blkio.free_mem_region(&memory.0);
    }

    /// Writes blocks of one queue, each with contents of its own, makes them durable, and reads
    /// them back.
    fn write_and_verify(&mut self, queue: usize, first_block: usize, memory: Memory, seed: u64) {
        let queue = &mut self.queues[queue];
        for at in 0..DEPTH {
            memory.fill(at, seed + at as u64);
            let flags = if at % 8 == 0 { ReqFlags::FUA } else { ReqFlags::empty() };
            queue.write(place(first_block + at), memory.block(at), BLOCK_BYTES, at, flags);
        }
        all_done(queue, DEPTH);
        queue.flush(0, ReqFlags::empty());
        all_done(queue, 1);
        for at in 0..DEPTH {
            memory.fill(at, !0);
            let to = memory.block(at);
            queue.read(place(first_block + at), to, BLOCK_BYTES, at, ReqFlags::empty());
        }
        all_done(queue, DEPTH);
        for at in 0..DEPTH {
            memory.check(at, seed + at as u64);
        }
    }
}

/// Shared memory in blocks. A reader or writer of a block waits for the block's requests first.
#[derive(Clone, Copy)]
struct Memory(MemoryRegion);

impl Memory {
    fn block(self, index: usize) -> *mut u8 {
        assert!((index + 1) * BLOCK_BYTES <= self.0.len);
        (self.0.addr + index * BLOCK_BYTES) as *mut u8
    }

    fn fill(self, index: usize, seed: u64) {
        let words = self.block(index).cast::<u64>();
        for at in 0..BLOCK_BYTES / 8 {
            // SAFETY: the word is inside the region, which is mapped until it is freed, and aligned
            // as pages are; the server writes only what a request names.
            unsafe { words.add(at).write_volatile(seed << 16 | at as u64) };
        }
    }

    fn words(self, index: usize) -> Vec<u64> {
        let words = self.block(index).cast::<u64>();
        // SAFETY: as in `fill`.
        (0..BLOCK_BYTES / 8).map(|at| unsafe { words.add(at).read_volatile() }).collect()
    }

    fn check(self, index: usize, seed: u64) {
        let wanted: Vec<_> = (0..BLOCK_BYTES / 8).map(|at| seed << 16 | at as u64).collect();
        assert_eq!(self.words(index), wanted, "block {index}");
    }
}

fn place(block: usize) -> u64 {
    (block * BLOCK_BYTES) as u64
}

/// Waits for so many completions; returns their results by the number of each request.
fn results(queue: &mut Blkioq, count: usize) -> Vec<(usize, i32)> {
    let mut completions: Vec<_> = (0..count).map(|_| MaybeUninit::<Completion>::uninit()).collect();
    let done = queue.do_io(&mut completions, count, Some(&mut PATIENCE.clone()), None).unwrap();
    assert_eq!(done, count);
    // SAFETY: so many were filled in.
    let completions = completions.iter().map(|it| unsafe { it.assume_init_ref() });
    completions.map(|it| (it.user_data, it.ret)).collect()
}

/// Each of the requests 0 to `count` is completed once, and well.
fn all_done(queue: &mut Blkioq, count: usize) {
    let mut results = results(queue, count);
    results.sort_unstable();
    assert_eq!(results, (0..count).map(|at| (at, 0)).collect::<Vec<_>>());
}

/// The contents of a volume's file.
fn blocks_on_disk(file: &Path) -> Vec<Vec<u64>> {
    let bytes = std::fs::read(file).unwrap();
    let words = |block: &[u8]| {
        block.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    };
    bytes.chunks(BLOCK_BYTES).map(words).collect()
}

fn what_it_is(client: &Client) {
    let blkio = &client.blkio;
    assert_eq!(blkio.get_u64("capacity").unwrap(), DISK_BYTES);
    for limit in ["max-discard-len", "max-write-zeroes-len"] {
        assert!(blkio.get_u64(limit).unwrap() >= DISK_BYTES, "{limit}");
    }
    assert!(blkio.get_bool("flush-needed").unwrap());
    assert_eq!(blkio.get_i32("request-alignment").unwrap(), 512);
    assert_eq!(blkio.get_i32("optimal-io-alignment").unwrap(), BLOCK_BYTES as i32);
    assert!(blkio.get_i32("max-segments").unwrap() >= 16);
    assert!(blkio.get_u64("max-mem-regions").unwrap() > 8);
}

/// Each request that the driver can make, and the answers when it asks for too much.
fn every_request(client: &mut Client, memory: Memory) {
    let queue = &mut client.queues[0];
    let none = ReqFlags::empty();
    // Three pieces in different places.
    let piece = |index| iovec { iov_base: memory.block(index).cast(), iov_len: BLOCK_BYTES };
    for index in 0..6 {
        memory.fill(index, 70 + index as u64);
    }
    queue.writev(place(200), [piece(0), piece(2), piece(4)].as_ptr(), 3, 0, none);
    all_done(queue, 1);
    queue.readv(place(200), [piece(5), piece(3), piece(1)].as_ptr(), 3, 0, none);
    all_done(queue, 1);
    for (index, seed) in [(5, 70), (3, 72), (1, 74)] {
        memory.check(index, seed);
    }
    // The block in the middle is erased, in each of the three ways.
    for way in 0..3 {
        queue.writev(place(200), [piece(1), piece(3), piece(5)].as_ptr(), 3, 0, none);
        all_done(queue, 1);
        match way {
            0 => queue.discard(place(201), place(1), 0, none),
            1 => queue.write_zeroes(place(201), place(1), 0, none),
            _ => queue.write_zeroes(place(201), place(1), 0, ReqFlags::NO_UNMAP),
        }
        all_done(queue, 1);
        memory.fill(0, !0);
        queue.readv(place(200), [piece(0), piece(2), piece(4)].as_ptr(), 3, 0, none);
        all_done(queue, 1);
        memory.check(0, 74);
        assert!(memory.words(2).iter().all(|word| *word == 0), "way {way}");
        memory.check(4, 70);
    }
    let beyond = DISK_BYTES - 512;
    queue.read(beyond, memory.block(0), BLOCK_BYTES, 1, none);
    queue.write(beyond, memory.block(0), BLOCK_BYTES, 2, none);
    queue.discard(beyond, 1024, 3, none);
    queue.write_zeroes(DISK_BYTES, 512, 4, none);
    let mut refused = results(queue, 4);
    refused.sort_unstable();
    let error = -rustix::io::Errno::IO.raw_os_error();
    assert_eq!(refused, (1..=4).map(|request| (request, error)).collect::<Vec<_>>());
    queue.flush(0, none);
    all_done(queue, 1);
}

/// Four queues one after the other and all at once; returns the content of the disk after that.
fn every_queue(client: &mut Client, memory: Memory) -> Vec<u64> {
    for queue in 0..client.queues.len() {
        client.write_and_verify(queue, queue * DEPTH, memory, 1000 * queue as u64);
    }
    let none = ReqFlags::empty();
    for (index, queue) in client.queues.iter_mut().enumerate() {
        for at in 0..DEPTH {
            let block = index * DEPTH + at;
            memory.fill(block, 5000 + block as u64);
            queue.write(place(block), memory.block(block), BLOCK_BYTES, at, none);
        }
        // The request is sent, and its completion is not awaited.
        assert!(queue.do_io(&mut [], 0, None, None).is_ok());
    }
    client.queues.iter_mut().for_each(|queue| all_done(queue, DEPTH));
    (0..client.queues.len() * DEPTH).map(|block| 5000 + block as u64).collect()
}

fn drive(socket: PathBuf, file: &Path) {
    let mut client = Client::connect(socket);
    what_it_is(&client);
    let memory = client.map(4 * DEPTH);
    let seeds = every_queue(&mut client, memory);
    every_request(&mut client, memory);
    let stored = blocks_on_disk(file);
    for (block, seed) in seeds.iter().enumerate() {
        assert!(stored[block].iter().enumerate().all(|(at, word)| *word == seed << 16 | at as u64));
    }
    client.unmap(memory);
}

#[test]
fn a_foreign_driver_works_on_a_local_disk() {
    let home = Home::new();
    let node = home.start(&near(&address()));
    wait_for(&node, "ready", |status| status.disks[0].state == DiskState::Ready);
    drive(home.path("near.sock"), &home.path("near.img"));
    nothing_was_broken(&node);
    node.stop();
}

#[test]
fn a_foreign_driver_works_on_a_remote_disk() {
    let home = Home::new();
    let (there, here) = (address(), address());
    let io1 = home.start(&near(&there));
    let vm1 = home.start(&far(&here, &there));
    wait_for_disk(&vm1, DiskState::Ready, "far.sock");
    drive(home.path("far.sock"), &home.path("far.img"));
    nothing_was_broken(&vm1);
    vm1.stop();
    io1.stop();
}

/// Checks that no ring of its disk was broken.
fn nothing_was_broken(node: &Node) {
    let counters = &node.status().disks[0].counters;
    assert!(counters["requests"] > 0, "{counters:?}");
    let broken = counters.iter().filter(|(name, _)| name.starts_with("broken_"));
    assert_eq!(broken.map(|(_, count)| count).sum::<u64>(), 0, "{counters:?}");
}

/// Memory comes and goes while another queue's requests are under way in memory that stays.
#[test]
fn memory_is_shown_and_taken_back_while_requests_are_under_way() {
    let home = Home::new();
    let node = home.start(&near(&address()));
    wait_for(&node, "ready", |status| status.disks[0].state == DiskState::Ready);
    let mut client = Client::connect(home.path("near.sock"));
    let stays = client.map(DEPTH);
    let none = ReqFlags::empty();
    for round in 0..100 {
        for at in 0..DEPTH {
            stays.fill(at, round * 100 + at as u64);
            client.queues[1].write(place(64 + at), stays.block(at), BLOCK_BYTES, at, none);
        }
        assert!(client.queues[1].do_io(&mut [], 0, None, None).is_ok());
        let comes = client.map(DEPTH);
        client.write_and_verify(0, 0, comes, round);
        client.unmap(comes);
        all_done(&mut client.queues[1], DEPTH);
    }
    // As many regions as there may be: two are the rings and `stays`.
    let slots = client.blkio.get_u64("max-mem-regions").unwrap() as usize;
    let many: Vec<_> = (2..slots).map(|_| client.map(DEPTH)).collect();
    for (round, memory) in many.iter().enumerate() {
        client.write_and_verify(round % 4, 0, *memory, round as u64);
    }
    nothing_was_broken(&node);
    // One more region ends the conversation, and harms no later client.
    let region = client.blkio.alloc_mem_region(BLOCK_BYTES).unwrap();
    assert!(client.blkio.map_mem_region(&region).is_err(), "{slots} regions and one more");
    drop(client);
    let mut next = Client::connect(home.path("near.sock"));
    let memory = next.map(DEPTH);
    next.write_and_verify(0, 0, memory, 7);
    drop(next);
    node.stop();
}

/// blkio does not connect again. The next client finds all data that the last client was told to be
/// durable, whether its server was restarted or the last client left in the middle of its requests.
#[test]
fn a_foreign_driver_finds_its_data_after_a_restart() {
    let home = Home::new();
    let text = near(&address());
    let mut node = home.start(&text);
    for round in 0..6 {
        wait_for(&node, "ready", |status| status.disks[0].state == DiskState::Ready);
        let mut client = Client::connect(home.path("near.sock"));
        let memory = client.map(DEPTH);
        if round > 0 {
            for at in 0..DEPTH {
                let to = memory.block(at);
                client.queues[0].read(place(at), to, BLOCK_BYTES, at, ReqFlags::empty());
            }
            all_done(&mut client.queues[0], DEPTH);
            (0..DEPTH).for_each(|at| memory.check(at, (round - 1) * 100 + at as u64));
        }
        client.write_and_verify(round as usize % 4, 0, memory, round * 100);
        if round % 2 == 0 {
            node.stop();
            let region = client.blkio.alloc_mem_region(BLOCK_BYTES).unwrap();
            assert!(client.blkio.map_mem_region(&region).is_err(), "there is no node");
            node = home.start(&text);
        } else {
            for at in 0..DEPTH {
                let (to, queue) = (memory.block(at), &mut client.queues[1]);
                queue.read(place(at), to, BLOCK_BYTES, at, ReqFlags::empty());
            }
            assert!(client.queues[1].do_io(&mut [], 0, None, None).is_ok());
        }
        drop(client);
    }
    node.stop();
}
