//! The one test suite that every backend, stage and chain passes: all that `Volume` and `Channel`
//! promise. The tests of the crate `block` use its parts as well (feature `contract`).

pub mod held;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use random::Random;
use sidecore::Services;
use virtio::Segment;

use crate::uring::Uring;
use crate::volume::{
    Channel, IO_BYTES_MAX, Io, IoId, IoTable, Op, OpenArguments, RANGE_BYTES_MAX, Status, Volume,
    io_table,
};

/// How far the fake clock moves between two rounds.
const ROUND_NS: u64 = 5_000;

/// Far more rounds than any step of these tests takes, even where a real kernel works for it.
const ROUNDS_MAX: u64 = 200_000_000;

/// Stands in for guest memory: aligned to a page, or off by `skew` bytes.
#[derive(Debug)]
pub struct Buffer {
    base: *mut u8,
    layout: Layout,
    skew: usize,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` bytes, all zero, `skew` bytes behind the start of a page.
    pub fn new(len: usize, skew: usize) -> Self {
        let layout = Layout::from_size_align(len + skew + 1, 4096).expect("a small buffer");
        // SAFETY: the layout has a size.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            handle_alloc_error(layout);
        }
        Self { base, layout, skew, len }
    }

    /// A buffer with these bytes, `skew` bytes behind the start of a page.
    pub fn filled(bytes: &[u8], skew: usize) -> Self {
        let buffer = Self::new(bytes.len(), skew);
        // SAFETY: the buffer is as long as the bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.start(), bytes.len()) };
        buffer
    }

    /// The same byte everywhere. No request may be using the buffer.
    pub fn fill(&self, byte: u8) {
        // SAFETY: the bytes are inside the allocation, which no request uses now.
        unsafe { std::ptr::write_bytes(self.start(), byte, self.len) };
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: the allocation has room for the skew.
        unsafe { self.base.add(self.skew) }
    }

    /// A copy of the bytes. No request may be using the buffer.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: no request changes the buffer while a test looks at it.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }.to_vec()
    }

    /// The buffer in pieces of `piece` bytes.
    pub fn segments(&self, piece: usize) -> Vec<Segment> {
        (0..self.len)
            .step_by(piece.max(1))
            .map(|at| Segment {
                // SAFETY: inside the buffer.
                addr: unsafe { self.start().add(at) },
                len: piece.min(self.len - at) as u32,
            })
            .collect()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// Services with an io_uring, or `None` with a line that says why not.
pub fn services_with_uring(test: &str) -> Option<Services> {
    let services = Services::new();
    match Uring::new() {
        Ok(uring) => services.insert(Rc::new(RefCell::new(uring))),
        Err(error) => {
            println!("SKIP {test}: no io_uring here: {error}");
            return None;
        }
    }
    Some(services)
}

/// A channel with its user's table and clock.
#[derive(Debug)]
pub struct ChannelBench {
    /// The open channel.
    pub channel: Box<dyn Channel>,
    /// The requests.
    pub ios: IoTable,
    /// The clock, in nanoseconds; each round moves it.
    pub now_ns: u64,
    /// Completions that were not asked for yet.
    pub done: Vec<IoId>,
    uring: Option<Rc<RefCell<Uring>>>,
    /// How far the clock moves between two rounds.
    pub round_ns: u64,
    /// Cuts buffers into pieces of this many bytes.
    pub piece: usize,
    /// Where buffers begin: bytes behind the start of a page.
    pub skew: usize,
}

impl ChannelBench {
    /// Opens a channel for `depth` requests on a sidecore without services.
    pub fn new(volume: &dyn Volume, depth: u16) -> Self {
        Self::with_services(volume, depth, &Services::new())
    }

    /// Opens a channel for `depth` requests on a sidecore with these services.
    pub fn with_services(volume: &dyn Volume, depth: u16, services: &Services) -> Self {
        Self {
            channel: volume.open(&OpenArguments { services, depth }).expect("the volume opens"),
            ios: io_table(depth),
            now_ns: 1,
            done: Vec::with_capacity(usize::from(depth)),
            uring: services.get::<Uring>(),
            round_ns: ROUND_NS,
            piece: usize::MAX,
            skew: 0,
        }
    }

    /// Submits one request; the buffer must live until it is done.
    pub fn submit(&mut self, op: Op, offset_bytes: u64, buffer: Option<&Buffer>) -> IoId {
        let id = self.ios.take().expect("the test keeps to its depth");
        let io: &mut Io = &mut self.ios[id];
        io.reset();
        io.op = op;
        io.offset_bytes = offset_bytes;
        io.submitted_ns = self.now_ns;
        if let Some(buffer) = buffer {
            io.len_bytes = buffer.len as u32;
            io.segments.extend(buffer.segments(self.piece));
        }
        self.channel.submit(&mut self.ios, id);
        id
    }

    /// One round of the sidecore.
    pub fn round(&mut self) {
        let _ = self.channel.poll(&mut self.ios, self.now_ns, &mut self.done);
        if let Some(uring) = &self.uring
            && !uring.borrow_mut().round().is_busy()
        {
            std::thread::yield_now();
        }
        self.now_ns += self.round_ns;
    }

    /// Waits for one request and gives its status; its slot is free afterwards.
    pub fn wait(&mut self, id: IoId) -> Status {
        for _ in 0..ROUNDS_MAX {
            if let Some(place) = self.done.iter().position(|done| *done == id) {
                self.done.swap_remove(place);
                let status = self.ios[id].status;
                self.ios.free(id);
                return status;
            }
            self.round();
        }
        panic!("request {id:?} was never completed");
    }

    /// Writes and waits.
    pub fn write(&mut self, offset_bytes: u64, bytes: &[u8]) -> Status {
        let buffer = Buffer::filled(bytes, self.skew);
        let id = self.submit(Op::Write, offset_bytes, Some(&buffer));
        self.wait(id)
    }

    /// Writes, to be durable at completion, and waits.
    pub fn write_durable(&mut self, offset_bytes: u64, bytes: &[u8]) -> Status {
        let buffer = Buffer::filled(bytes, self.skew);
        let id = self.ios.take().expect("the test keeps to its depth");
        let segments = buffer.segments(self.piece);
        let io = &mut self.ios[id];
        io.reset();
        (io.op, io.durable, io.offset_bytes) = (Op::Write, true, offset_bytes);
        io.len_bytes = bytes.len() as u32;
        io.segments.extend(segments);
        self.channel.submit(&mut self.ios, id);
        self.wait(id)
    }

    /// Reads and waits.
    pub fn read(&mut self, offset_bytes: u64, len: usize) -> Result<Vec<u8>, Status> {
        let buffer = Buffer::filled(&vec![0xee; len], self.skew);
        let id = self.submit(Op::Read, offset_bytes, Some(&buffer));
        match self.wait(id) {
            Status::Done => Ok(buffer.bytes()),
            status => Err(status),
        }
    }

    /// A range that is zeroed; `durable` where it must be at once.
    pub fn zero(&mut self, op: Op, durable: bool, offset_bytes: u64, len: u64) -> Status {
        let id = self.submit_range(op, durable, offset_bytes, len);
        self.wait(id)
    }

    /// Submits a request without data; `durable` where it must be at once.
    pub fn submit_range(&mut self, op: Op, durable: bool, offset_bytes: u64, len: u64) -> IoId {
        let id = self.ios.take().expect("the test keeps to its depth");
        let io = &mut self.ios[id];
        io.reset();
        (io.op, io.durable, io.offset_bytes) = (op, durable, offset_bytes);
        io.len_bytes = u32::try_from(len).expect("the test's own length");
        self.channel.submit(&mut self.ios, id);
        id
    }

    /// Flushes and waits.
    pub fn flush(&mut self) -> Status {
        let id = self.submit(Op::Flush, 0, None);
        self.wait(id)
    }

    /// Lets go and gives everything back.
    pub fn abandon(&mut self) {
        for _ in 0..ROUNDS_MAX {
            if self.channel.abandon(&mut self.ios, self.now_ns) {
                return;
            }
            self.round();
        }
        panic!("the channel never let go");
    }
}

/// Everything below, for a volume that keeps what is written.
pub fn check_all(volume: &dyn Volume) {
    check_all_with(volume, &Services::new());
}

/// Everything below, on a sidecore with these services.
pub fn check_all_with(volume: &dyn Volume, services: &Services) {
    check_bounds_with(volume, services);
    check_read_your_write(volume, services);
    check_one_completion_each_with(volume, services);
    check_abandon_with(volume, services);
}

/// [`check_bounds_with`] on a sidecore without services.
pub fn check_bounds(volume: &dyn Volume) {
    check_bounds_with(volume, &Services::new());
}

/// Requests that make no sense are refused, and the volume goes on.
pub fn check_bounds_with(volume: &dyn Volume, services: &Services) {
    let info = volume.info();
    let block = u64::from(info.block_bytes);
    let mut bench = ChannelBench::with_services(volume, 4, services);
    let zeroes = vec![0; info.block_bytes as usize];
    assert!(bench.read(info.size_bytes - block, block as usize).is_ok(), "the last block");
    for offset in [info.size_bytes, info.size_bytes - block + 1, 1, u64::MAX - block + 1] {
        assert_eq!(bench.read(offset, block as usize), Err(Status::Invalid), "read at {offset}");
        assert_eq!(bench.write(offset, &zeroes), Status::Invalid, "write at {offset}");
    }
    for op in [Op::Discard, Op::WriteZeroes].into_iter().filter(|op| info.zeroing.can(*op)) {
        for offset in [info.size_bytes, info.size_bytes - block + 1, 1, u64::MAX - block + 1] {
            assert_eq!(bench.zero(op, false, offset, block), Status::Invalid, "{op:?} at {offset}");
        }
        let long = u64::from(RANGE_BYTES_MAX) + block;
        assert_eq!(bench.zero(op, false, 0, long), Status::Invalid, "{op:?} of {long}");
        assert_eq!(bench.zero(op, false, info.size_bytes - block, 2 * block), Status::Invalid);
        assert_eq!(bench.zero(op, false, info.size_bytes - block, block), Status::Done);
    }
    assert_eq!(bench.read(0, block as usize - 1), Err(Status::Invalid), "half a block");
    let huge = IO_BYTES_MAX as usize + block as usize;
    assert_eq!(bench.read(0, huge), Err(Status::Invalid), "longer than the longest");
    assert_eq!(bench.read(0, 0), Ok(vec![]), "nothing is a whole number of blocks");
    assert_eq!(bench.flush(), Status::Done);
    assert!(bench.read(0, block as usize).is_ok());
    assert!(bench.ios.is_empty() && bench.done.is_empty(), "one completion each");
    bench.abandon();
}

/// A read gives the bytes that were written, and zeroes where a range was zeroed, however the
/// requests are cut into pieces, with or without flushes in between.
pub fn check_read_your_write(volume: &dyn Volume, services: &Services) {
    let info = volume.info();
    let block = info.block_bytes as usize;
    let blocks = (info.size_bytes / block as u64).min(256);
    let mut bench = ChannelBench::with_services(volume, 8, services);
    let mut random = Random::new(0x5eed);
    let mut model = bench.read(0, blocks as usize * block).expect("the whole area");
    for step in 0..200u64 {
        bench.piece = [usize::MAX, block, 512, block * 3][random.below(4) as usize];
        let first = random.below(blocks);
        let count = (1 + random.below(24)).min(blocks - first);
        let at = first as usize * block..(first + count) as usize * block;
        match random.below(10) {
            0 => assert_eq!(bench.flush(), Status::Done),
            zeroes @ 8.. => {
                let op = if zeroes == 8 { Op::Discard } else { Op::WriteZeroes };
                if info.zeroing.can(op) {
                    let len = at.len() as u64;
                    let status = bench.zero(op, step % 3 == 0, at.start as u64, len);
                    assert_eq!(status, Status::Done, "{op:?}");
                    model[at].fill(0);
                }
            }
            1..4 => {
                let bytes: Vec<u8> = at.clone().map(|i| (i as u64 * 31 + step * 7) as u8).collect();
                let status = if step % 5 == 0 {
                    bench.write_durable(at.start as u64, &bytes)
                } else {
                    bench.write(at.start as u64, &bytes)
                };
                assert_eq!(status, Status::Done);
                model[at].copy_from_slice(&bytes);
            }
            _ => {
                let read = bench.read(at.start as u64, at.len()).expect("inside the volume");
                assert!(read == model[at.clone()], "step {step}: blocks {first}+{count}");
            }
        }
    }
    bench.abandon();
}

/// [`check_one_completion_each_with`] on a sidecore without services.
pub fn check_one_completion_each(volume: &dyn Volume) {
    check_one_completion_each_with(volume, &Services::new());
}

/// A full table of requests of all kinds gives exactly one completion each.
pub fn check_one_completion_each_with(volume: &dyn Volume, services: &Services) {
    const DEPTH: u16 = 64;
    let block = volume.info().block_bytes as usize;
    let mut bench = ChannelBench::with_services(volume, DEPTH, services);
    let buffers: Vec<_> = (0..DEPTH).map(|_| Buffer::new(block, 0)).collect();
    for turn in 0..3 {
        let mut missing = HashSet::new();
        for (place, buffer) in buffers.iter().enumerate() {
            let offset = (place * block) as u64;
            missing.insert(match (place + turn) % 3 {
                0 => bench.submit(Op::Read, offset, Some(buffer)),
                1 => bench.submit(Op::Write, offset, Some(buffer)),
                _ => bench.submit(Op::Flush, 0, None),
            });
        }
        while !missing.is_empty() {
            bench.round();
            for id in std::mem::take(&mut bench.done) {
                assert!(missing.remove(&id), "{id:?} was completed twice");
                assert_eq!(bench.ios[id].status, Status::Done);
                bench.ios.free(id);
            }
        }
    }
    for _ in 0..10 {
        bench.round();
    }
    assert!(bench.done.is_empty());
    bench.abandon();
}

/// [`check_abandon_with`] on a sidecore without services.
pub fn check_abandon(volume: &dyn Volume) {
    check_abandon_with(volume, &Services::new());
}

/// A channel that lets go gives no further completions, touches no buffer, and can do so with
/// requests outstanding, at once or after the kernel has let go too.
pub fn check_abandon_with(volume: &dyn Volume, services: &Services) {
    let block = volume.info().block_bytes as usize;
    for rounds in 0..3 {
        let mut bench = ChannelBench::with_services(volume, 16, services);
        let buffers: Vec<_> = (0..8).map(|_| Buffer::new(block, 0)).collect();
        for (place, buffer) in buffers.iter().enumerate() {
            let op = if place % 2 == 0 { Op::Read } else { Op::Write };
            bench.submit(op, (place * block) as u64, Some(buffer));
        }
        bench.submit(Op::Flush, 0, None);
        for _ in 0..rounds {
            bench.round();
        }
        bench.done.clear();
        bench.abandon();
        for _ in 0..10 {
            bench.round();
        }
        assert!(bench.done.is_empty(), "a completion after letting go");
        assert!(bench.channel.abandon(&mut bench.ios, bench.now_ns), "it stays true");
    }
    // The volume is unharmed.
    let mut bench = ChannelBench::with_services(volume, 4, services);
    assert!(bench.read(0, block).is_ok());
}
