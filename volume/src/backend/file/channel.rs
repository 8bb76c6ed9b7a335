//! One user's way to a file volume from one sidecore.
//!
//! ```text
//!   submit ──▶ waiting (no room in the ring, no aligned memory) ──┐
//!      └──────────────────────────────▶ kernel ◀─────────────────┘
//!                                         │  in part: once more for the rest
//!                     durable, buffered ──┤
//!   zero a range: allocated, then zeroed by the file system; by writing zeroes where it cannot, or
//!     has failed when it may have dropped what was written there before
//!   file in memory: copied here and now ──▶ done_here
//!   flush ──▶ syncing ◀───────────────────┘
//!                └── a sync that began later has ended ──▶ ready ──▶ done
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use io_uring::{opcode, squeue, types};
use rustix::io::Errno;
use sidecore::{Progress, Wake};
use virtio::Segment;

use super::bounce::{BouncePool, Buffer};
use super::shared::{Failure, FileShared, is_no_space};
use super::zeroing;
use crate::copy::{self, Prefetch};
use crate::uring::{ClientId, Completion, Full, Uring};
use crate::volume::{Channel, Durability, IO_BYTES_MAX, Io, IoId, IoTable, Op, Status};

/// Marks the channel's sync among its completions; requests are marked by their slot.
const SYNC_TOKEN: u32 = u32::MAX;

/// How often a request that the system interrupted is tried again before it is an error.
const RETRIES_MAX: u8 = 16;

/// How soon to look again, before sleeping, whether another channel's sync has ended.
const SYNC_LOOK_NS: u64 = 200_000;

/// How many bytes a channel copies in place between two polls, but for the last request: a copy
/// holds up all other channels of the sidecore. As much as a disk's round takes.
pub(super) const HERE_BYTES_MAX: u64 = 2 << 20;

/// How far one request has come; by its slot.
#[derive(Default)]
struct FileProgress {
    id: IoId,
    /// The memory that the kernel fills or reads; stays as it is while the kernel has it.
    vectors: Vec<Vector>,
    /// Vectors before this one are done.
    first: usize,
    done_bytes: u32,
    retries: u8,
    bounce: Option<Buffer>,
    /// The range is zeroed by writing zeroes.
    writes_zeroes: bool,
    /// The range is being given its space, and was not touched yet.
    allocates: bool,
    /// The kernel may have dropped acknowledged writes of the range: only zeroes may follow.
    dropped: bool,
    sync_target: u64,
}

/// `struct iovec`, as the kernel wants it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Vector {
    base: *mut u8,
    len: usize,
}

impl Vector {
    fn of(segment: &Segment) -> Self {
        Self { base: segment.addr, len: segment.len as usize }
    }
}

const _: () = assert!(
    size_of::<Vector>() == size_of::<libc::iovec>()
        && align_of::<Vector>() == align_of::<libc::iovec>()
);

/// The most vectors of a usual request. The first request that needs more makes the room for them.
const VECTORS_USUAL: usize = 4;

impl FileProgress {
    fn with_room() -> Self {
        Self { vectors: Vec::with_capacity(VECTORS_USUAL), ..Self::default() }
    }
}

/// The channel.
pub(super) struct FileChannel {
    shared: Arc<FileShared>,
    uring: Rc<RefCell<Uring>>,
    client: ClientId,
    steps: Vec<FileProgress>,
    /// Requests that go to the kernel as soon as there is room.
    waiting: VecDeque<IoId>,
    /// Requests that end with a sync.
    syncing: VecDeque<IoId>,
    /// This channel's sync is the one that is under way.
    sync_in_kernel: bool,
    ready: Vec<IoId>,
    inbox: Vec<Completion>,
    /// Results of requests that were done in place. The next poll looks at them.
    done_here: Vec<Completion>,
    /// Bytes that were copied in place since the last poll.
    here_bytes: u64,
    pool: BouncePool,
    abandoned: bool,
    now_ns: u64,
}

impl fmt::Debug for FileChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileChannel")
            .field("shared", &self.shared)
            .field("waiting", &self.waiting.len())
            .field("syncing", &self.syncing.len())
            .field("abandoned", &self.abandoned)
            .finish_non_exhaustive()
    }
}

impl FileChannel {
    pub(super) fn new(shared: Arc<FileShared>, uring: Rc<RefCell<Uring>>, depth: u16) -> Self {
        // The sync has a place of its own.
        let outstanding_max = u32::from(depth) + 1;
        let client = uring.borrow_mut().add_client(outstanding_max);
        let depth = usize::from(depth);
        Self {
            shared,
            uring,
            client,
            steps: (0..depth).map(|_| FileProgress::with_room()).collect(),
            waiting: VecDeque::with_capacity(depth),
            syncing: VecDeque::with_capacity(depth),
            sync_in_kernel: false,
            ready: Vec::with_capacity(depth),
            inbox: Vec::with_capacity(outstanding_max as usize),
            done_here: Vec::with_capacity(depth),
            here_bytes: 0,
            pool: BouncePool::default(),
            abandoned: false,
            now_ns: 0,
        }
    }

    fn finish(&mut self, ios: &mut IoTable, id: IoId, status: Status) {
        if let Some(buffer) = self.steps[id.index()].bounce.take() {
            if status == Status::Done && ios[id].op == Op::Read {
                // SAFETY: the kernel is done with the buffer, which is as long as any request;
                // the user keeps the segments mapped until the completion.
                unsafe { copy::scatter(buffer.start(), &ios[id].segments, Prefetch::NONE) };
            }
            self.pool.give(buffer);
        }
        ios[id].status = status;
        self.ready.push(id);
    }

    /// Whether the request must be durable when it completes.
    fn is_durable(&self, io: &Io) -> bool {
        io.durable || self.shared.info.durability == Durability::WriteThrough
    }

    /// Whether the kernel makes the request durable while it does it: direct writes. Buffered, the
    /// sync is a step of its own, so that its failure can be told from the write's; and a range
    /// that the file system zeroes has no other way.
    fn syncs_itself(&self, io: &Io, id: IoId) -> bool {
        let writes = io.op == Op::Write || self.steps[id.index()].writes_zeroes;
        writes && self.shared.direct && self.is_durable(io)
    }

    /// Hands a read, a write or a range to the kernel; `Full` when it has to wait.
    fn start(&mut self, ios: &IoTable, id: IoId) -> Result<(), Full> {
        let io = &ios[id];
        if io.op.zeroes() {
            return self.start_zeroing(io, id);
        }
        if self.steps[id.index()].vectors.is_empty() {
            let misaligned = self.is_misaligned(io);
            let step = &mut self.steps[id.index()];
            if misaligned {
                let buffer = self.pool.take().ok_or(Full)?;
                if io.op == Op::Write {
                    // SAFETY: the buffer is as long as any request; the user keeps the segments
                    // mapped until the completion.
                    unsafe { copy::gather(&io.segments, buffer.start(), Prefetch::NONE) };
                }
                self.shared.counters.bounced.fetch_add(1, Relaxed);
                step.vectors.push(Vector { base: buffer.start(), len: io.len_bytes as usize });
                step.bounce = Some(buffer);
            } else {
                step.vectors.extend(io.segments.iter().map(Vector::of));
            }
        }
        self.push(ios, id)
    }

    /// Hands a range to the kernel, or zeroes for it.
    fn start_zeroing(&mut self, io: &Io, id: IoId) -> Result<(), Full> {
        let step = &mut self.steps[id.index()];
        let instead =
            step.dropped || io.op == Op::WriteZeroes && self.shared.cannot_zero.load(Relaxed);
        let zeroes = if instead { self.shared.zeroes.get() } else { None };
        if let Some(zeroes) = zeroes
            && step.vectors.is_empty()
        {
            step.writes_zeroes = true;
            let base = zeroes.start();
            let len = |at: u32| (io.len_bytes - at).min(IO_BYTES_MAX) as usize;
            let starts = (0..io.len_bytes).step_by(IO_BYTES_MAX as usize);
            step.vectors.extend(starts.map(|at| Vector { base, len: len(at) }));
            self.shared.counters.zeroes_written.fetch_add(1, Relaxed);
        }
        if step.writes_zeroes {
            return self.push_with(io, id);
        }
        let file = types::Fd(self.shared.file.as_raw_fd());
        let how = if step.allocates { zeroing::ALLOCATE } else { zeroing::how(io.op) };
        let entry = zeroing::entry(how, file, io.offset_bytes, io.len_bytes);
        // SAFETY: names no memory, and the file is open as long as `shared`.
        unsafe { self.uring.borrow_mut().push(self.client, id.index() as u32, entry) }
    }

    /// Whether direct I/O cannot take the request's buffers as they are.
    fn is_misaligned(&self, io: &Io) -> bool {
        let (align, block) = (self.shared.align_bytes as usize, self.shared.info.block_bytes);
        self.shared.direct
            && io.segments.iter().any(|segment| {
                !segment.addr.addr().is_multiple_of(align) || !segment.len.is_multiple_of(block)
            })
    }

    /// Hands what is left of a request to the kernel.
    fn push(&mut self, ios: &IoTable, id: IoId) -> Result<(), Full> {
        let io = &ios[id];
        if io.op.zeroes() { self.start_zeroing(io, id) } else { self.push_with(io, id) }
    }

    fn push_with(&mut self, io: &Io, id: IoId) -> Result<(), Full> {
        let step = &self.steps[id.index()];
        let sync = self.syncs_itself(io, id);
        let flags = if sync { libc::RWF_DSYNC } else { 0 };
        let file = types::Fd(self.shared.file.as_raw_fd());
        let offset = io.offset_bytes + u64::from(step.done_bytes);
        let mut vectors = &step.vectors[step.first..];
        if self.shared.in_memory {
            if self.here_bytes >= HERE_BYTES_MAX {
                return Err(Full);
            }
            if step.writes_zeroes {
                // A range is longer than any other request: piece by piece, at each poll.
                vectors = &vectors[..1];
            }
            self.here_bytes += vectors.iter().map(|vector| vector.len as u64).sum::<u64>();
            // SAFETY: as below; the vectors are as long as the buffers that they name.
            let result = unsafe { transfer_now(io.op, file, vectors, offset, flags) };
            self.done_here.push(Completion { token: id.index() as u32, result });
            return Ok(());
        }
        let entry = transfer(io.op, file, vectors, offset, flags);
        // SAFETY: the segments (or the bounce buffer, or the zeroes, which live as long as the
        // volume and are only read) and the vectors stay as they are until the
        // completion: `Drop` waits for the kernel, and the user keeps the segments mapped until
        // the request is completed or `abandon` is true. The file is open as long as `shared`.
        unsafe { self.uring.borrow_mut().push(self.client, id.index() as u32, entry) }
    }

    fn note(&self, io: &Io, error: Errno) -> Failure {
        let what = match io.op {
            Op::Read => "read",
            Op::Discard => "discard",
            Op::WriteZeroes => "write zeroes",
            Op::Write | Op::Flush => "write",
        };
        let (offset_bytes, len_bytes) = (io.offset_bytes, io.len_bytes);
        let failure = Failure { what, offset_bytes, len_bytes, error };
        self.shared.note(failure, self.now_ns);
        failure
    }

    /// The kernel gave a request back.
    fn transferred(&mut self, ios: &mut IoTable, id: IoId, result: i32) {
        let io = &ios[id];
        let step = &mut self.steps[id.index()];
        let Ok(moved) = u32::try_from(result) else {
            return self.refused(ios, id, Errno::from_raw_os_error(-result));
        };
        if std::mem::take(&mut step.allocates) {
            return self.resume(ios, id);
        }
        // A range that was zeroed was zeroed as a whole.
        let whole = io.op.zeroes() && !step.writes_zeroes;
        step.done_bytes += if whole { io.len_bytes } else { moved };
        assert!(step.done_bytes <= io.len_bytes, "the kernel moves no more than it is given");
        if step.done_bytes < io.len_bytes {
            if moved == 0 {
                // The end of a file that another process has shortened.
                let (dropped, failure) = (step.dropped, self.note(io, Errno::NXIO));
                if dropped {
                    self.shared.fail(failure);
                }
                return self.finish(ios, id, Status::Error);
            }
            step.skip(moved as usize);
            self.shared.counters.continued.fetch_add(1, Relaxed);
            return self.resume(ios, id);
        }
        if io.op.changes() && self.is_durable(io) && !self.syncs_itself(io, id) {
            return self.await_sync(id);
        }
        self.finish(ios, id, Status::Done);
    }

    /// The kernel did not do it.
    fn refused(&mut self, ios: &mut IoTable, id: IoId, error: Errno) {
        let step = &mut self.steps[id.index()];
        if matches!(error, Errno::AGAIN | Errno::INTR) && step.retries < RETRIES_MAX {
            step.retries += 1;
            return self.resume(ios, id);
        }
        let io = &ios[id];
        if io.op.zeroes() && !step.writes_zeroes {
            let allocated = std::mem::take(&mut step.allocates);
            // A file system says so first; a device is asked when the pages have gone.
            let untouched = !self.shared.drops_pages()
                || allocated
                || error == Errno::OPNOTSUPP && !self.shared.is_block_device;
            if !untouched {
                return self.zeroes_instead(ios, id, error);
            }
            if error == Errno::OPNOTSUPP {
                return self.zeroes_otherwise(ios, id);
            }
        }
        let (dropped, syncs_itself) = (step.dropped, self.syncs_itself(io, id));
        let failure = self.note(io, error);
        // A write and its sync in one: the error may be the sync's, and then it is about earlier
        // writes too. Only these cannot be: no space, and a request that makes no sense.
        let is_own = is_no_space(error) || error == Errno::INVAL;
        if dropped || syncs_itself && !is_own {
            self.shared.fail(failure);
        }
        self.finish(ios, id, Status::Error);
    }

    /// The kernel dropped the pages of the range, with acknowledged writes that had not reached the
    /// storage, and then failed: an older value would come back. Zeroes are written over it, and if
    /// they cannot be, the volume has failed.
    fn zeroes_instead(&mut self, ios: &mut IoTable, id: IoId, error: Errno) {
        self.steps[id.index()].dropped = true;
        if self.shared.has_zeroes() {
            return self.resume(ios, id);
        }
        let failure = self.note(&ios[id], error);
        self.shared.fail(failure);
        self.finish(ios, id, Status::Error);
    }

    /// The file system cannot zero the range itself: zeroes are written from now on. A discard is
    /// refused, because zeroes that take space help no guest.
    fn zeroes_otherwise(&mut self, ios: &mut IoTable, id: IoId) {
        if ios[id].op == Op::Discard {
            return self.finish(ios, id, Status::Unsupported);
        }
        if self.shared.has_zeroes() {
            self.shared.cannot_zero.store(true, Relaxed);
            return self.resume(ios, id);
        }
        self.note(&ios[id], Errno::NOMEM);
        self.finish(ios, id, Status::Error);
    }

    /// Once more for what is left, before those that have not begun: it may hold aligned memory
    /// that they wait for.
    fn resume(&mut self, ios: &IoTable, id: IoId) {
        if self.push(ios, id).is_err() {
            self.waiting.push_front(id);
        }
    }

    /// Sends those that wait, in order, until there is no room.
    fn send_waiting(&mut self, ios: &IoTable) {
        while let Some(&id) = self.waiting.front() {
            if self.start(ios, id).is_err() {
                return;
            }
            self.waiting.pop_front();
        }
    }

    fn await_sync(&mut self, id: IoId) {
        self.steps[id.index()].sync_target = self.shared.syncs.target();
        self.syncing.push_back(id);
    }

    /// Ends the flushes that a sync has answered, and begins the next sync if there are others.
    fn sync(&mut self, ios: &mut IoTable) {
        // In this order, because a sidecore that ends a sync tells of a failure first.
        let now = self.shared.syncs.now();
        let status = if self.shared.has_failed() { Status::Error } else { Status::Done };
        while let Some(&id) = self.syncing.front()
            && (status == Status::Error || now >= self.steps[id.index()].sync_target)
        {
            self.syncing.pop_front();
            self.finish(ios, id, status);
        }
        if self.syncing.is_empty() || self.sync_in_kernel || !self.uring.borrow_mut().has_room() {
            return;
        }
        if self.shared.syncs.try_begin() {
            let file = types::Fd(self.shared.file.as_raw_fd());
            let entry = opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build();
            // SAFETY: names no memory, and the file is open as long as `shared`.
            let pushed = unsafe { self.uring.borrow_mut().push(self.client, SYNC_TOKEN, entry) };
            pushed.expect("there was room");
            self.sync_in_kernel = true;
            self.shared.counters.syncs.fetch_add(1, Relaxed);
        }
    }

    /// This channel's sync is back from the kernel.
    fn synced(&mut self, result: i32) {
        self.sync_in_kernel = false;
        if result >= 0 {
            return self.shared.syncs.end();
        }
        let error = Errno::from_raw_os_error(-result);
        if matches!(error, Errno::AGAIN | Errno::INTR) {
            return self.shared.syncs.cancel();
        }
        let failure = Failure { what: "flush", offset_bytes: 0, len_bytes: 0, error };
        self.shared.note(failure, self.now_ns);
        self.shared.fail(failure);
        self.shared.syncs.end();
    }

    /// Takes what came back from the kernel.
    fn receive(&mut self, ios: Option<&mut IoTable>) {
        let mut inbox = std::mem::take(&mut self.inbox);
        self.uring.borrow_mut().take(self.client, &mut inbox);
        if !self.done_here.is_empty() {
            self.shared.counters.in_place.fetch_add(self.done_here.len() as u64, Relaxed);
            // A request is in one of the two only: there is room.
            inbox.append(&mut self.done_here);
        }
        let mut ios = ios.filter(|_| !self.abandoned);
        for Completion { token, result } in inbox.drain(..) {
            match &mut ios {
                _ if token == SYNC_TOKEN => self.synced(result),
                Some(ios) => {
                    let id = self.steps[token as usize].id;
                    self.transferred(ios, id, result);
                }
                None => {}
            }
        }
        self.inbox = inbox;
    }

    fn is_in_kernel(&self) -> bool {
        self.uring.borrow().outstanding(self.client) > 0
    }
}

impl FileProgress {
    fn begin(&mut self, id: IoId) {
        self.id = id;
        self.vectors.clear();
        (self.first, self.done_bytes, self.retries) = (0, 0, 0);
        (self.writes_zeroes, self.allocates, self.dropped) = (false, false, false);
        debug_assert!(self.bounce.is_none(), "given back when the last request ended");
    }

    /// Leaves out the first `len` bytes of what is left.
    fn skip(&mut self, mut len: usize) {
        while len > 0 {
            let vector = &mut self.vectors[self.first];
            let part = len.min(vector.len);
            vector.base = vector.base.wrapping_add(part);
            vector.len -= part;
            len -= part;
            if vector.len == 0 {
                self.first += 1;
            }
        }
    }
}

/// The kernel's request for a read or a write of these vectors.
fn transfer(
    op: Op,
    file: types::Fd,
    vectors: &[Vector],
    offset: u64,
    flags: libc::c_int,
) -> squeue::Entry {
    // A single buffer saves the kernel a copy of the vectors.
    if let [Vector { base, len }] = *vectors {
        // At most IO_BYTES_MAX.
        let len = len as u32;
        return match op {
            Op::Read => opcode::Read::new(file, base, len).offset(offset).build(),
            _ => opcode::Write::new(file, base, len).offset(offset).rw_flags(flags).build(),
        };
    }
    let (first, count) = (vectors.as_ptr().cast::<libc::iovec>(), vectors.len() as u32);
    match op {
        Op::Read => opcode::Readv::new(file, first, count).offset(offset).build(),
        _ => opcode::Writev::new(file, first, count).offset(offset).rw_flags(flags).build(),
    }
}

/// The same without the ring: bytes moved, or a negative error number.
///
/// # Safety
/// The vectors name memory that is valid.
unsafe fn transfer_now(
    op: Op,
    file: types::Fd,
    vectors: &[Vector],
    offset: u64,
    flags: libc::c_int,
) -> i32 {
    let (first, count) = (vectors.as_ptr().cast::<libc::iovec>(), vectors.len() as libc::c_int);
    // The volume ends before what a file offset can be.
    let offset = offset as libc::off_t;
    // SAFETY: the caller's promise, and the descriptor is open.
    let moved = unsafe {
        match op {
            Op::Read => libc::preadv2(file.0, first, count, offset, flags),
            _ => libc::pwritev2(file.0, first, count, offset, flags),
        }
    };
    if moved >= 0 {
        return moved as i32;
    }
    -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

impl Channel for FileChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        debug_assert!(!self.abandoned, "a channel that let go takes nothing");
        let io = &ios[id];
        let step = &mut self.steps[id.index()];
        step.begin(id);
        step.allocates = io.op == Op::WriteZeroes && self.shared.allocates_first();
        if self.shared.has_failed() {
            return self.finish(ios, id, Status::Error);
        }
        if !self.shared.info.admits_within(self.shared.size.get(), io) {
            return self.finish(ios, id, Status::Invalid);
        }
        if io.op == Op::Flush {
            self.await_sync(id);
            // Together with those that are submitted in the same round, at the next poll.
            return;
        }
        if io.len_bytes == 0 {
            return self.finish(ios, id, Status::Done);
        }
        if !self.waiting.is_empty() || self.start(ios, id).is_err() {
            self.shared.counters.waited.fetch_add(1, Relaxed);
            self.waiting.push_back(id);
        }
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        self.now_ns = now_ns;
        self.here_bytes = 0;
        self.receive(Some(ios));
        if self.abandoned {
            return Progress::Idle;
        }
        self.send_waiting(ios);
        self.sync(ios);
        let progress = Progress::busy_if(!self.ready.is_empty() || !self.done_here.is_empty());
        done.append(&mut self.ready);
        progress
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let others_sync = !self.syncing.is_empty() && !self.sync_in_kernel;
        if others_sync {
            // It ends on another sidecore, which does not know this channel.
            wake.at(self.now_ns + SYNC_LOOK_NS);
        }
        // The kernel tells nothing of requests that wait to be copied in place.
        let waits_here = self.shared.in_memory && !self.waiting.is_empty();
        let here = !self.ready.is_empty() || !self.done_here.is_empty() || waits_here;
        Progress::busy_if(here || self.uring.borrow().has_mail(self.client))
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        true
    }

    /// A request that has not begun waits for room in the ring, which other requests will make
    /// soon.
    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    fn abandon(&mut self, _ios: &mut IoTable, _now_ns: u64) -> bool {
        self.abandoned = true;
        self.waiting.clear();
        self.syncing.clear();
        self.ready.clear();
        self.receive(None);
        !self.is_in_kernel()
    }
}

impl Drop for FileChannel {
    fn drop(&mut self) {
        // The kernel still owns buffers only if the user did not wait for `abandon`; then this
        // does, because they are about to go.
        self.abandoned = true;
        self.uring.borrow_mut().wait_for(self.client);
        self.receive(None);
        self.uring.borrow_mut().remove_client(self.client);
    }
}
