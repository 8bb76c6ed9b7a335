//! One user's channel: it enciphers requests on the way down, and deciphers them on the way up.

use std::collections::VecDeque;
use std::sync::Arc;

use sidecore::{Progress, Wake};
use virtio::Segment;

use super::pool::CipherPool;
use super::xts::Cipher;
use super::{Cells, EncryptVolume, EncryptionState, Sizes};
use crate::layer::{Layer, Settled};
use crate::size::Size;
use crate::volume::{Channel, Io, IoId, IoTable, Op, SECTOR_BYTES, Status, Volume, VolumeInfo};

/// Ranges of a channel that are zeroed at once, each a piece at a time; the others wait. Each keeps
/// its memory for all its pieces, and the rest of the pool is for writes.
pub(super) const ZEROES_AT_ONCE_MAX: u16 = 2;

/// How far a range has been zeroed.
#[derive(Clone, Copy, Debug, Default)]
struct Zeroes {
    done_bytes: u32,
    /// The piece that is below, or was below last.
    piece_bytes: u32,
}

/// How far one request has come; by its slot.
#[derive(Debug, Default)]
struct CipherProgress {
    /// Of a write the user's segments while the pool's are in their place. Of a range the pool's,
    /// between two pieces. Empty otherwise.
    aside: Vec<Segment>,
    /// A write whose segments are the pool's.
    is_inside: bool,
    /// A range of which a piece has begun.
    zeroes: Option<Zeroes>,
    /// Numbers submissions, for those that are given back.
    number: u64,
}

impl CipherProgress {
    /// The pool's memory is one piece.
    fn with_room() -> Self {
        Self { aside: Vec::with_capacity(1), ..Self::default() }
    }
}

/// The bytes that the polls of one round have ciphered: of requests that ended below, and of writes
/// that had waited for memory. Either has a share of its own, or a guest that reads all the time
/// would keep writes from beginning.
#[derive(Clone, Copy, Debug, Default)]
struct CipherRound {
    /// The time of the round, which tells it from others.
    now_ns: u64,
    ended_bytes: u64,
    begun_bytes: u64,
}

/// The channel. The channels below are dropped first: they may still read the pool.
#[derive(Debug)]
pub(super) struct EncryptChannel {
    inner: Box<dyn Channel>,
    /// The pieces of ranges to be zeroed. The layer is used while there are such ranges: its
    /// channels have nothing to do for an empty table, and other requests pass without a look at
    /// it.
    pieces: Layer,
    info: VolumeInfo,
    size: Size,
    sizes: Sizes,
    cipher: Cipher,
    pool: CipherPool,
    steps: Vec<CipherProgress>,
    /// Writes that wait for memory, in the order of their submission.
    waiting: VecDeque<IoId>,
    /// The same of zeroes, which also wait for one another.
    waiting_zeroes: VecDeque<IoId>,
    /// Ranges of which a piece has begun.
    zeroing: u16,
    /// Completed below, and left to a later poll: reads that are not deciphered yet, ranges whose
    /// next piece is not begun. Oldest first.
    landed: VecDeque<IoId>,
    /// Writes that have waited have room to begin, but this round has begun enough of them.
    begins_more: bool,
    /// The bytes that this round has ciphered. A disk polls several times in one round.
    round: CipherRound,
    /// The user has abandoned the channel: nothing more is begun.
    lets_go: bool,
    /// Refused here.
    ready: Vec<IoId>,
    /// Ranges whose piece has ended just now.
    settled: Vec<Settled>,
    submissions: u64,
    core: Arc<EncryptionState>,
    cells: Arc<Cells>,
}

impl EncryptChannel {
    pub(super) fn new(
        volume: &EncryptVolume,
        (inner, pieces): (Box<dyn Channel>, Layer),
        cipher: Cipher,
        pool: CipherPool,
        depth: u16,
    ) -> Self {
        let depth = usize::from(depth);
        Self {
            inner,
            pieces,
            info: volume.info(),
            size: volume.size(),
            sizes: volume.sizes,
            cipher,
            pool,
            steps: (0..depth).map(|_| CipherProgress::with_room()).collect(),
            waiting: VecDeque::with_capacity(depth),
            waiting_zeroes: VecDeque::with_capacity(depth),
            zeroing: 0,
            landed: VecDeque::with_capacity(depth),
            begins_more: false,
            round: CipherRound::default(),
            lets_go: false,
            ready: Vec::with_capacity(depth),
            settled: Vec::with_capacity(usize::from(ZEROES_AT_ONCE_MAX)),
            submissions: 0,
            core: Arc::clone(&volume.core),
            cells: volume.core.open(),
        }
    }

    fn refuse(&mut self, ios: &mut IoTable, id: IoId, status: Status) {
        ios[id].status = status;
        self.ready.push(id);
    }

    /// Enciphers a write, or the first piece of a range of zeroes, and hands it on: how many bytes.
    /// `None` when there is no memory.
    fn start(&mut self, ios: &mut IoTable, id: IoId) -> Option<u32> {
        if ios[id].op == Op::WriteZeroes {
            let may_begin = self.zeroing < ZEROES_AT_ONCE_MAX;
            let piece_bytes = may_begin.then(|| self.start_piece(ios, id)).flatten()?;
            self.zeroing += 1;
            return Some(piece_bytes);
        }
        let io = &mut ios[id];
        let step = &mut self.steps[id.index()];
        if !self.pool.take(io.len_bytes as usize, &mut step.aside) {
            return None;
        }
        let first = io.offset_bytes / SECTOR_BYTES;
        // SAFETY: the user keeps the segments mapped until the completion. The memory from the pool
        // is as long as they are, which `submit` has found to be whole blocks, and in one piece.
        unsafe { self.cipher.encipher(first, &io.segments, &step.aside) };
        self.cells.enciphered_bytes.add(u64::from(io.len_bytes));
        std::mem::swap(&mut io.segments, &mut step.aside);
        step.is_inside = true;
        self.inner.submit(ios, id);
        Some(ios[id].len_bytes)
    }

    /// The next piece of a range, a write of its sectors: its length. `None` when there is no
    /// memory, or nothing is begun any more.
    fn start_piece(&mut self, ios: &IoTable, id: IoId) -> Option<u32> {
        let (io, step) = (&ios[id], &mut self.steps[id.index()]);
        debug_assert!(io.segments.is_empty(), "zeroes have no data");
        let done_bytes = step.zeroes.unwrap_or_default().done_bytes;
        let offset_bytes = io.offset_bytes + u64::from(done_bytes);
        let piece_bytes = (io.len_bytes - done_bytes).min(self.sizes.zeroes_bytes);
        let (pool, cipher) = (&mut self.pool, &mut self.cipher);
        pool.give(&mut step.aside);
        let begins = self.pieces.begin(0, Some(id), |piece| {
            if !pool.take(piece_bytes as usize, &mut piece.segments) {
                return false;
            }
            // SAFETY: the pool's, given just now: whole blocks in one piece.
            unsafe { cipher.encipher_zeroes(offset_bytes / SECTOR_BYTES, &piece.segments) };
            (piece.op, piece.offset_bytes, piece.len_bytes) =
                (Op::Write, offset_bytes, piece_bytes);
            (piece.durable, piece.submitted_ns) = (io.durable, io.submitted_ns);
            true
        });
        if !begins {
            return None;
        }
        self.cells.enciphered_bytes.add(u64::from(piece_bytes));
        step.zeroes = Some(Zeroes { done_bytes, piece_bytes });
        Some(piece_bytes)
    }

    /// Ends, or goes on with, the ranges of which a piece has ended.
    fn end_pieces(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let (steps, mut settled) = (&mut self.steps, std::mem::take(&mut self.settled));
        // Its memory stays the range's.
        let keep = |range: Option<IoId>, piece: &mut Io| {
            let step = range.map(|range| &mut steps[range.index()]);
            step.into_iter().for_each(|step| step.aside.append(&mut piece.segments));
        };
        let progress = self.pieces.poll(now_ns, keep, &mut settled);
        for Settled { parent: id, status } in settled.drain(..) {
            ios[id].status = status;
            let zeroes = self.steps[id.index()].zeroes.as_mut().expect("it had a piece below");
            zeroes.done_bytes += zeroes.piece_bytes;
            if status == Status::Done && zeroes.done_bytes < ios[id].len_bytes {
                if self.is_for_later(ios, id) {
                    self.cells.put_off.add(1);
                    self.landed.push_back(id);
                } else if self.ended(ios, id) {
                    done.push(id);
                }
            } else {
                self.end_range(id);
                done.push(id);
            }
        }
        self.settled = settled;
        progress
    }

    /// Nothing more of a range is written.
    fn end_range(&mut self, id: IoId) {
        let step = &mut self.steps[id.index()];
        self.pool.give(&mut step.aside);
        step.zeroes = None;
        self.zeroing -= 1;
    }

    /// Makes a write what its user submitted, and gives the pool its memory back.
    fn restore(&mut self, ios: &mut IoTable, id: IoId) {
        let (io, step) = (&mut ios[id], &mut self.steps[id.index()]);
        if std::mem::take(&mut step.is_inside) {
            self.pool.give(&mut io.segments);
            std::mem::swap(&mut io.segments, &mut step.aside);
        }
    }

    /// A request has ended below; `true` when the user's request as a whole has ended.
    fn ended(&mut self, ios: &mut IoTable, id: IoId) -> bool {
        let io = &ios[id];
        if self.steps[id.index()].zeroes.is_some() {
            if !self.lets_go {
                // At least as much memory is given back for it.
                self.start_piece(ios, id).expect("the next piece is no longer");
                return false;
            }
            ios[id].status = Status::Error;
            self.end_range(id);
        } else if io.op == Op::Read {
            if io.status == Status::Done {
                // SAFETY: the user keeps the segments mapped until the completion, which has not
                // been reported yet. The channel below has found the request to be whole blocks.
                unsafe { self.cipher.decipher(io.offset_bytes / SECTOR_BYTES, &io.segments) };
                self.cells.deciphered_bytes.add(u64::from(io.len_bytes));
            }
        } else {
            self.restore(ios, id);
        }
        true
    }

    /// Whether the next of the waiting requests is a range of zeroes. The oldest request goes
    /// first, but ranges beyond the number that may be zeroed at once hold up no other request.
    /// `None` when none may begin.
    fn zeroes_are_next(&self) -> Option<bool> {
        let may_zero = self.zeroing < ZEROES_AT_ONCE_MAX;
        let zeroes = self.waiting_zeroes.front().filter(|_| may_zero);
        match (self.waiting.front(), zeroes) {
            (None, None) => None,
            (Some(_), None) => Some(false),
            (None, Some(_)) => Some(true),
            (Some(write), Some(zeroes)) => {
                let number = |id: &IoId| self.steps[id.index()].number;
                Some(number(zeroes) < number(write))
            }
        }
    }

    /// Whether the round has ciphered enough for what ends; if not, this is counted.
    fn is_for_later(&mut self, ios: &IoTable, id: IoId) -> bool {
        let is_full = self.round.ended_bytes >= u64::from(self.sizes.round_bytes);
        if !is_full {
            let piece = self.steps[id.index()].zeroes.map(|it| it.piece_bytes);
            self.round.ended_bytes += u64::from(piece.unwrap_or(ios[id].len_bytes));
        }
        is_full
    }

    /// Ends the requests that completed below: first those that an earlier round has left, then the
    /// new ones. It leaves the rest when it has ciphered enough. A request without data to cipher
    /// never waits.
    fn end_all(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let mut progress = Progress::Idle;
        while let Some(&id) = self.landed.front()
            && !self.is_for_later(ios, id)
        {
            progress = Progress::Busy;
            self.landed.pop_front();
            if self.ended(ios, id) {
                done.push(id);
            }
        }
        let earlier = done.len();
        progress |= self.inner.poll(ios, now_ns, done);
        let mut kept = earlier;
        for at in earlier..done.len() {
            let id = done[at];
            let costs = ios[id].op == Op::Read && ios[id].status == Status::Done;
            if costs && self.is_for_later(ios, id) {
                self.cells.put_off.add(1);
                self.landed.push_back(id);
            } else if self.ended(ios, id) {
                done[kept] = id;
                kept += 1;
            }
        }
        done.truncate(kept);
        if self.zeroing > 0 {
            progress |= self.end_pieces(ios, now_ns, done);
        }
        progress
    }

    /// Counts the requests that are abandoned before their end, once.
    fn count_interrupted(&mut self) {
        if !self.lets_go {
            let in_the_middle =
                |step: &&CipherProgress| step.zeroes.is_some_and(|it| it.done_bytes > 0);
            let ranges = self.steps.iter().filter(in_the_middle).count();
            let waiting = self.waiting.len() + self.waiting_zeroes.len();
            self.cells.interrupted.add((ranges + waiting) as u64);
        }
    }

    fn tend_pool(&mut self, now_ns: u64) {
        if self.pool.tend(now_ns) {
            self.cells.memory_bytes.set(self.pool.memory_bytes());
        }
    }

    /// Hands on what waited, as far as there is memory.
    fn start_waiting(&mut self, ios: &mut IoTable) -> Progress {
        let mut progress = Progress::Idle;
        self.begins_more = false;
        while let Some(zeroes) = self.zeroes_are_next() {
            if self.round.begun_bytes >= u64::from(self.sizes.round_bytes) {
                self.begins_more = true;
                break;
            }
            let queue = if zeroes { &self.waiting_zeroes } else { &self.waiting };
            let id = *queue.front().expect("it is next");
            let Some(begun_bytes) = self.start(ios, id) else { break };
            self.round.begun_bytes += u64::from(begun_bytes);
            let queue = if zeroes { &mut self.waiting_zeroes } else { &mut self.waiting };
            queue.pop_front();
            progress = Progress::Busy;
        }
        progress
    }
}

impl Channel for EncryptChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        let step = &mut self.steps[id.index()];
        debug_assert!(step.aside.is_empty() && !step.is_inside, "its slot was free");
        step.number = self.submissions;
        self.submissions += 1;
        let io = &mut ios[id];
        io.status = Status::Pending;
        match io.op {
            Op::Read | Op::Flush => self.inner.submit(ios, id),
            Op::Discard => self.refuse(ios, id, Status::Unsupported),
            // A write that is longer than the pool would wait for ever, and a sector beyond the end
            // has no number.
            op if !self.info.admits_within(self.size.get(), io) || !self.pool.holds(op, io) => {
                self.refuse(ios, id, Status::Invalid);
            }
            op => {
                if self.zeroes_are_next().is_some() || self.start(ios, id).is_none() {
                    self.cells.waited.add(1);
                    let zeroes = op == Op::WriteZeroes;
                    let queue = if zeroes { &mut self.waiting_zeroes } else { &mut self.waiting };
                    queue.push_back(id);
                }
            }
        }
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        if self.round.now_ns != now_ns {
            self.round = CipherRound { now_ns, ..CipherRound::default() };
        }
        let mut progress = self.end_all(ios, now_ns, done);
        progress |= Progress::busy_if(!self.ready.is_empty());
        done.append(&mut self.ready);
        progress |= self.start_waiting(ios);
        self.tend_pool(now_ns);
        progress
    }

    /// Requests that wait for memory need no wake-up of their own: the requests that have the
    /// memory are below, and their completion wakes the sidecore.
    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if let Some(due_ns) = self.pool.due_ns() {
            wake.at(due_ns);
        }
        let has_more = !self.ready.is_empty() || !self.landed.is_empty() || self.begins_more;
        let pieces = if self.zeroing > 0 { self.pieces.arm(wake) } else { Progress::Idle };
        self.inner.arm(wake) | pieces | Progress::busy_if(has_more)
    }

    fn disarm(&mut self) {
        self.inner.disarm();
        self.pieces.disarm();
    }

    fn is_open(&self) -> bool {
        self.inner.is_open() && self.pieces.is_open()
    }

    /// A range of which some pieces were zeroed is given back as a whole: it is zeroed once more.
    fn recall(&mut self, ios: &mut IoTable, back: &mut Vec<IoId>) {
        let earlier = back.len();
        self.inner.recall(ios, back);
        back[earlier..].iter().for_each(|&id| self.restore(ios, id));
        let ranges = back.len();
        let pool = &mut self.pool;
        self.pieces.recall(|_, piece| pool.give(&mut piece.segments), back);
        let steps = &self.steps;
        let between = |id: &IoId| steps[id.index()].zeroes.is_some();
        back.extend(self.landed.iter().filter(|id| between(id)));
        self.landed.retain(|id| !between(id));
        back[ranges..].iter().for_each(|&id| self.end_range(id));
        back.extend(self.waiting.drain(..));
        back.extend(self.waiting_zeroes.drain(..));
        // Reads and flushes have passed writes that wait.
        back[earlier..].sort_unstable_by_key(|id| self.steps[id.index()].number);
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        self.count_interrupted();
        self.waiting.clear();
        self.waiting_zeroes.clear();
        self.ready.clear();
        self.lets_go = true;
        // The user may not poll after this.
        self.tend_pool(now_ns);
        // Both are asked, so that both let go at once.
        let pieces = self.pieces.abandon(now_ns);
        if !self.inner.abandon(ios, now_ns) || !pieces {
            return false;
        }
        // No request below reads the pool now. The user's slots still name places in it, but are
        // done with.
        self.pool.reset();
        self.landed.clear();
        (self.zeroing, self.lets_go) = (0, false);
        self.steps.iter_mut().for_each(|step| {
            step.aside.clear();
            (step.is_inside, step.zeroes) = (false, None);
        });
        true
    }
}

impl Drop for EncryptChannel {
    fn drop(&mut self) {
        self.count_interrupted();
        self.core.close(&self.cells);
    }
}
