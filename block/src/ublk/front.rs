//! From the driver's requests to a channel and back. One per attachment, on one sidecore.
//!
//! ```text
//!   driver ─ask─▶ completion ─▶ descriptor ─▶ io ─▶ channel ─▶ answer ─ask─▶ driver
//! ```
//! A *place* (a queue and a tag) has at most one request, and its own buffer of the largest
//! request's size, so a request is one io with one segment: nothing is cut, nothing allocated.
//!
//! The promise to the driver is the promise to a guest: an answer is the channel's, under the epoch
//! that is held. A client that has lost its epoch answers with errors. The device differs from a
//! guest's rings here: no other client has it, and its users must be told.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use sidecore::{Poll, Progress, Wake};
use virtio::Segment;

use super::abi::{self, Descriptor, op};
use super::device::Shape;
use crate::disk::QueueCounters;
use volume::uring::Completion;
use volume::{Channel, IoId, IoTable, Op, SECTOR_BYTES, Status, VolumeInfo, io_table};

/// How soon to look again while something outside of this sidecore has to happen first.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// The driver, as far as requests go. [`super::UblkDevice`], or a test's stand-in.
pub trait Kernel: fmt::Debug {
    /// Queues and depth.
    fn shape(&self) -> Shape;
    /// Asks for the next request of a place, with the answer to its last one. `false` when there
    /// is no room now.
    fn ask(&mut self, place: u32, answer: Option<i32>) -> bool;
    /// Moves what came into `into`, which is empty: a completion's token is the place.
    fn take(&mut self, into: &mut Vec<Completion>);
    /// Whether there is anything to take.
    fn has_mail(&self) -> bool;
    /// The request that a completion announced.
    fn descriptor(&self, place: u32) -> Descriptor;
    /// A place's buffer, of the largest request's size.
    fn buffer(&self, place: u32) -> *mut u8;
}

/// The state of a front that other threads read.
#[derive(Debug)]
pub struct FrontCore {
    counters: Vec<Arc<QueueCounters>>,
    /// Places that the driver has or will have a command of; when it is 0 again after a stop, the
    /// device can be removed.
    asked: AtomicU32,
    /// Requests that were taken and not answered.
    outstanding: AtomicUsize,
    /// The channel has let go.
    gone: OnceLock<()>,
}

impl FrontCore {
    fn new(queues: u16) -> Arc<Self> {
        Arc::new(Self {
            counters: (0..queues).map(|_| Arc::default()).collect(),
            asked: AtomicU32::new(0),
            outstanding: AtomicUsize::new(0),
            gone: OnceLock::new(),
        })
    }

    /// The counters of each queue.
    pub fn counters(&self) -> &[Arc<QueueCounters>] {
        &self.counters
    }

    /// Requests that were taken and not answered.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(SeqCst)
    }

    /// Whether the driver has returned every command: the device was stopped.
    pub fn is_stopped(&self) -> bool {
        self.asked.load(SeqCst) == 0
    }

    /// Whether the channel has let go.
    pub fn is_gone(&self) -> bool {
        self.gone.get().is_some()
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Front<K> {
    // The channel goes first: it may still use the kernel's buffers.
    channel: Box<dyn Channel>,
    kernel: Option<K>,
    core: Arc<FrontCore>,
    info: VolumeInfo,
    shape: Shape,
    ios: IoTable,
    /// Places to ask for, with the answers to their last requests, for which there was no room.
    due: VecDeque<(u32, Option<i32>)>,
    taken: Vec<Completion>,
    done: Vec<IoId>,
    letting_go: bool,
    now_ns: u64,
}

impl<K: Kernel> Front<K> {
    /// A front without a device yet: its channel can claim the attachment before the disk appears.
    /// The channel belongs to a volume that is described by `info`, and was opened with
    /// [`Shape::channel_depth`].
    pub fn new(channel: Box<dyn Channel>, info: VolumeInfo, shape: Shape) -> Self {
        let places = shape.places() as usize;
        Self {
            channel,
            kernel: None,
            core: FrontCore::new(shape.queues),
            info,
            shape,
            ios: one_piece_table(shape.channel_depth()),
            due: VecDeque::with_capacity(places),
            taken: Vec::with_capacity(places),
            done: Vec::with_capacity(places),
            letting_go: false,
            now_ns: 0,
        }
    }

    /// Its state for other threads.
    pub fn core(&self) -> Arc<FrontCore> {
        Arc::clone(&self.core)
    }

    /// Serves this device from the next round on: asks for the first request of every place.
    ///
    /// # Panics
    /// When it has one already, or one of another shape.
    pub fn show(&mut self, kernel: K) {
        assert!(self.kernel.is_none(), "a front has one device");
        assert_eq!(kernel.shape(), self.shape, "as its tables were made for");
        self.core.asked.store(self.shape.places(), SeqCst);
        self.due.extend((0..self.shape.places()).map(|place| (place, None)));
        self.kernel = Some(kernel);
    }

    /// Lets go of the channel, after the attachment was closed, and of the device, which was
    /// stopped; see [`FrontCore::is_gone`].
    pub fn let_go(&mut self) {
        self.letting_go = true;
    }

    /// The driver's requests go to the channel, and the channel's answers back.
    fn serve(&mut self, now_ns: u64) -> Progress {
        let mut progress = self.take_all();
        progress |= self.channel.poll(&mut self.ios, now_ns, &mut self.done);
        progress | self.answer_all() | self.ask_all()
    }

    fn take_all(&mut self) -> Progress {
        let Some(kernel) = &mut self.kernel else { return Progress::Idle };
        let mut taken = std::mem::take(&mut self.taken);
        kernel.take(&mut taken);
        let progress = Progress::busy_if(!taken.is_empty());
        // Bounded: a place has at most one completion.
        for Completion { token: place, result } in taken.drain(..) {
            if result == 0 && !self.letting_go {
                self.begin(place);
            } else {
                self.ended(place, result);
            }
        }
        self.taken = taken;
        progress
    }

    /// The driver wants nothing more from this place.
    fn ended(&mut self, place: u32, result: i32) {
        self.core.asked.fetch_sub(1, SeqCst);
        if result != abi::ABORT {
            let error = std::io::Error::from_raw_os_error(-result);
            tracing::error!(place, %error, "ublk refuses a command: its requests will wait");
        }
    }

    fn begin(&mut self, place: u32) {
        let kernel = self.kernel.as_ref().expect("a request came from it");
        let descriptor = kernel.descriptor(place);
        self.counters(place).requests.add(1);
        let asked = match self.check(&descriptor) {
            Ok(asked) => asked,
            Err(errno) => {
                self.counters(place).errors.add(1);
                self.due.push_back((place, Some(-errno)));
                return;
            }
        };
        let addr = self.kernel.as_ref().expect("as above").buffer(place);
        let id = self.ios.take().expect("a slot for each place");
        self.core.outstanding.fetch_add(1, SeqCst);
        let io = &mut self.ios[id];
        io.reset();
        io.op = asked.op;
        io.offset_bytes = asked.offset_bytes;
        io.len_bytes = asked.len_bytes;
        io.durable = descriptor.is_durable() && !matches!(asked.op, Op::Read | Op::Flush);
        io.owner = u64::from(place);
        io.submitted_ns = self.now_ns;
        if matches!(asked.op, Op::Read | Op::Write) {
            io.segments.push(Segment { addr, len: asked.len_bytes });
        }
        self.channel.submit(&mut self.ios, id);
    }

    /// The request of a descriptor. The driver is our own kernel's, and still each length is
    /// checked before it becomes a length of memory.
    fn check(&self, descriptor: &Descriptor) -> Result<UblkRequest, i32> {
        let keeps = descriptor.op_flags & abi::NOUNMAP != 0 || !self.info.zeroing.discard;
        let op = match descriptor.op() {
            op::READ => Op::Read,
            op::WRITE => Op::Write,
            op::FLUSH => return Ok(UblkRequest { op: Op::Flush, offset_bytes: 0, len_bytes: 0 }),
            op::DISCARD => Op::Discard,
            op::WRITE_ZEROES if keeps => Op::WriteZeroes,
            // A discarded range reads as zeroes.
            op::WRITE_ZEROES => Op::Discard,
            _ => return Err(libc::EOPNOTSUPP),
        };
        if op != Op::Read && self.info.read_only {
            return Err(libc::EROFS);
        }
        if op.zeroes() && !self.info.zeroing.can(op) {
            return Err(libc::EOPNOTSUPP);
        }
        let offset = descriptor.start_sector.checked_mul(SECTOR_BYTES).ok_or(libc::EIO)?;
        let len = u64::from(descriptor.nr_sectors) * SECTOR_BYTES;
        let end = offset.checked_add(len).ok_or(libc::EIO)?;
        if len == 0 || len > u64::from(op.bytes_max()) || end > self.info.size_bytes {
            return Err(libc::EIO);
        }
        Ok(UblkRequest { op, offset_bytes: offset, len_bytes: len as u32 })
    }

    fn answer_all(&mut self) -> Progress {
        let progress = Progress::busy_if(!self.done.is_empty());
        let mut done = std::mem::take(&mut self.done);
        for id in done.drain(..) {
            let io = &self.ios[id];
            let place = io.owner as u32;
            let counters = self.counters(place);
            let answer = match io.status {
                Status::Done => io.len_bytes as i32,
                Status::Unsupported => -libc::EOPNOTSUPP,
                Status::Pending | Status::Error | Status::Invalid | Status::Fenced => -libc::EIO,
            };
            let bytes = u64::from(io.len_bytes);
            match (io.op, answer) {
                (_, ..0) => counters.errors.add(1),
                (Op::Read, _) => counters.read_bytes.add(bytes),
                (Op::Write, _) => counters.written_bytes.add(bytes),
                (Op::Flush, _) => counters.flushes.add(1),
                (Op::Discard, _) => counters.discarded_bytes.add(bytes),
                (Op::WriteZeroes, _) => counters.zeroed_bytes.add(bytes),
            }
            let took_ns = self.now_ns.saturating_sub(io.submitted_ns);
            counters.latencies(io.op).record(took_ns);
            self.ios.free(id);
            self.core.outstanding.fetch_sub(1, SeqCst);
            self.due.push_back((place, Some(answer)));
        }
        self.done = done;
        progress
    }

    fn ask_all(&mut self) -> Progress {
        let Some(kernel) = &mut self.kernel else { return Progress::Idle };
        let mut progress = Progress::Idle;
        while let Some(&(place, answer)) = self.due.front() {
            if !kernel.ask(place, answer) {
                break;
            }
            self.due.pop_front();
            progress = Progress::Busy;
        }
        progress
    }

    fn abandon(&mut self) -> Progress {
        if self.core.is_gone() {
            return Progress::Idle;
        }
        let let_go = self.channel.abandon(&mut self.ios, self.now_ns);
        // A device that has commands of ours is not closed, and cannot be removed.
        if !let_go || !self.core.is_stopped() {
            return Progress::Idle;
        }
        // Closes its file; without that the driver would keep the device.
        self.kernel = None;
        let _ = self.core.gone.set(());
        Progress::Busy
    }

    fn counters(&self, place: u32) -> &QueueCounters {
        &self.core.counters[usize::from(self.shape.split(place).0)]
    }
}

/// The request of a checked descriptor.
struct UblkRequest {
    op: Op,
    offset_bytes: u64,
    len_bytes: u32,
}

/// A table whose slots have room for a request's data: one piece.
fn one_piece_table(capacity: u16) -> IoTable {
    let mut ios = io_table(capacity);
    let ids: Vec<_> = std::iter::from_fn(|| ios.take()).collect();
    for id in ids {
        ios[id].segments.reserve(1);
        ios.free(id);
    }
    ios
}

/// A poller of the serving stage.
impl<K: Kernel> Poll for Front<K> {
    fn poll(&mut self, now_ns: u64) -> Progress {
        self.now_ns = now_ns;
        if self.letting_go {
            return self.take_all() | self.ask_all() | self.abandon();
        }
        let mut progress = self.serve(now_ns);
        // A user that follows an answer at once with the next request does not wait for another
        // round.
        if self.kernel.as_ref().is_some_and(Kernel::has_mail) {
            progress |= self.serve(now_ns);
        }
        progress
    }

    /// The ring's own poller wakes for what the driver sends.
    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if self.letting_go {
            if !self.core.is_gone() {
                wake.at(self.now_ns + LOOK_AGAIN_NS);
            }
            return Progress::Idle;
        }
        let mail = self.kernel.as_ref().is_some_and(Kernel::has_mail);
        self.channel.arm(wake) | Progress::busy_if(mail || !self.due.is_empty())
    }

    fn disarm(&mut self) {
        self.channel.disarm();
    }
}
