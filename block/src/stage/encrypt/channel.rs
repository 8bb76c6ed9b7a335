//! One user's channel: what it enciphers on the way down, and deciphers on the way up.

use std::collections::VecDeque;
use std::sync::Arc;

use sidecore::{Progress, Wake};
use virtio::Segment;

use super::pool::Pool;
use super::xts::Cipher;
use super::{Cells, Core, EncryptVolume, Sizes};
use crate::size::Size;
use crate::volume::{Channel, IoId, IoTable, Op, SECTOR_BYTES, Status, Volume, VolumeInfo};

/// Ranges of a channel that are zeroed at once; the others wait. Each keeps its memory for all its
/// pieces, and the rest of the pool is for writes.
pub(super) const ZEROES_AT_ONCE_MAX: usize = 2;

/// What a range that is zeroed is really about, while a piece of it is below.
#[derive(Clone, Copy, Debug)]
struct Zeroes {
    offset_bytes: u64,
    len_bytes: u32,
    done_bytes: u32,
}

/// How far one request has come; by its slot.
#[derive(Debug, Default)]
struct Step {
    /// The user's segments while the pool's are in their place; empty otherwise.
    aside: Vec<Segment>,
    is_inside: bool,
    zeroes: Option<Zeroes>,
    /// Numbers submissions, for those that are given back.
    number: u64,
}

impl Step {
    /// The pool's memory is one piece.
    fn with_room() -> Self {
        Self { aside: Vec::with_capacity(1), ..Self::default() }
    }
}

/// What a round of the sidecore has ciphered by polls: of what has ended below, and of what had
/// waited for memory. Either has its share, or a guest that reads all the time would keep writes
/// from beginning.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// By which rounds are told apart.
    now_ns: u64,
    ended_bytes: u64,
    begun_bytes: u64,
}

/// The channel. What is below goes first when it is dropped: it may still read the pool.
#[derive(Debug)]
pub(super) struct EncryptChannel {
    inner: Box<dyn Channel>,
    info: VolumeInfo,
    size: Size,
    sizes: Sizes,
    cipher: Cipher,
    pool: Pool,
    steps: Vec<Step>,
    /// Writes that wait for memory, in the order of their submission.
    waiting: VecDeque<IoId>,
    /// The same of zeroes, which also wait for one another.
    waiting_zeroes: VecDeque<IoId>,
    /// Ranges of which a piece is below.
    zeroing: usize,
    /// Completed below, and left to a later poll: reads that are not deciphered yet, ranges whose
    /// next piece is not begun. Oldest first.
    landed: VecDeque<IoId>,
    /// Writes that have waited could begin, but that this round has begun enough of them.
    begins_more: bool,
    /// What this round has ciphered. A disk polls several times in one.
    round: Round,
    /// The user has: nothing more is begun.
    lets_go: bool,
    /// Refused here.
    ready: Vec<IoId>,
    submissions: u64,
    core: Arc<Core>,
    cells: Arc<Cells>,
}

impl EncryptChannel {
    pub(super) fn new(
        volume: &EncryptVolume,
        inner: Box<dyn Channel>,
        cipher: Cipher,
        pool: Pool,
        depth: u16,
    ) -> Self {
        let depth = usize::from(depth);
        Self {
            inner,
            info: volume.info(),
            size: volume.size(),
            sizes: volume.sizes,
            cipher,
            pool,
            steps: (0..depth).map(|_| Step::with_room()).collect(),
            waiting: VecDeque::with_capacity(depth),
            waiting_zeroes: VecDeque::with_capacity(depth),
            zeroing: 0,
            landed: VecDeque::with_capacity(depth),
            begins_more: false,
            round: Round::default(),
            lets_go: false,
            ready: Vec::with_capacity(depth),
            submissions: 0,
            core: Arc::clone(&volume.core),
            cells: volume.core.open(),
        }
    }

    fn refuse(&mut self, ios: &mut IoTable, id: IoId, status: Status) {
        ios[id].status = status;
        self.ready.push(id);
    }

    /// Enciphers a write, or a piece of zeroes, and hands it on; `false` when there is no memory.
    fn start(&mut self, ios: &mut IoTable, id: IoId) -> bool {
        let io = &mut ios[id];
        let step = &mut self.steps[id.index()];
        if io.op == Op::WriteZeroes {
            let (offset_bytes, len_bytes) = (io.offset_bytes, io.len_bytes);
            let zeroes = Zeroes { offset_bytes, len_bytes, done_bytes: 0 };
            let starts = self.zeroing < ZEROES_AT_ONCE_MAX && self.start_zeroes(ios, id, zeroes);
            self.zeroing += usize::from(starts);
            return starts;
        }
        if !self.pool.take(io.len_bytes as usize, &mut step.aside) {
            return false;
        }
        let first = io.offset_bytes / SECTOR_BYTES;
        // SAFETY: the user keeps the segments mapped until the completion. What the pool gave
        // just now is as long, which `submit` has found to be whole blocks, and in one piece.
        unsafe { self.cipher.encipher(first, &io.segments, &step.aside) };
        self.cells.enciphered_bytes.add(u64::from(io.len_bytes));
        std::mem::swap(&mut io.segments, &mut step.aside);
        step.is_inside = true;
        self.inner.submit(ios, id);
        true
    }

    /// The next piece of a range. A write of the range's sectors, as far as what is below sees.
    fn start_zeroes(&mut self, ios: &mut IoTable, id: IoId, zeroes: Zeroes) -> bool {
        let (io, step) = (&mut ios[id], &mut self.steps[id.index()]);
        let len_bytes = (zeroes.len_bytes - zeroes.done_bytes).min(self.sizes.zeroes_bytes);
        debug_assert!(io.segments.is_empty(), "zeroes have no data");
        if !self.pool.take(len_bytes as usize, &mut step.aside) {
            return false;
        }
        io.op = Op::Write;
        io.offset_bytes = zeroes.offset_bytes + u64::from(zeroes.done_bytes);
        io.len_bytes = len_bytes;
        io.status = Status::Pending;
        // SAFETY: the pool's, given just now: whole blocks in one piece.
        unsafe { self.cipher.encipher_zeroes(io.offset_bytes / SECTOR_BYTES, &step.aside) };
        std::mem::swap(&mut io.segments, &mut step.aside);
        self.cells.enciphered_bytes.add(u64::from(len_bytes));
        step.zeroes = Some(zeroes);
        step.is_inside = true;
        self.inner.submit(ios, id);
        true
    }

    /// Makes a request what its user submitted, and gives the pool its memory back.
    fn restore(&mut self, ios: &mut IoTable, id: IoId) -> Option<Zeroes> {
        let (io, step) = (&mut ios[id], &mut self.steps[id.index()]);
        if !std::mem::take(&mut step.is_inside) {
            return None;
        }
        self.pool.give(&mut io.segments);
        std::mem::swap(&mut io.segments, &mut step.aside);
        let zeroes = step.zeroes.take()?;
        io.op = Op::WriteZeroes;
        (io.offset_bytes, io.len_bytes) = (zeroes.offset_bytes, zeroes.len_bytes);
        Some(zeroes)
    }

    /// What is below has ended something; `true` when the request as a whole has ended.
    fn ended(&mut self, ios: &mut IoTable, id: IoId) -> bool {
        let io = &ios[id];
        if io.op == Op::Read {
            if io.status == Status::Done {
                // SAFETY: the user keeps the segments mapped until the completion, which it has
                // not been told of; what is below has found the request to be whole blocks.
                unsafe { self.cipher.decipher(io.offset_bytes / SECTOR_BYTES, &io.segments) };
                self.cells.deciphered_bytes.add(u64::from(io.len_bytes));
            }
            return true;
        }
        let (status, len_bytes) = (io.status, io.len_bytes);
        let Some(zeroes) = self.restore(ios, id) else { return true };
        let zeroes = Zeroes { done_bytes: zeroes.done_bytes + len_bytes, ..zeroes };
        let is_over = status != Status::Done || zeroes.done_bytes == zeroes.len_bytes;
        if is_over || self.lets_go {
            if !is_over {
                ios[id].status = Status::Error;
            }
            self.zeroing -= 1;
            return true;
        }
        // At least as much memory was given back just now.
        assert!(self.start_zeroes(ios, id, zeroes), "the next piece is no longer");
        false
    }

    /// Whether the next of those that wait is a range of zeroes: the oldest goes first, but that
    /// ranges beyond those which may be zeroed at once hold up nobody. `None` when none may begin.
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

    /// Whether there is something to cipher before what was completed below has ended.
    fn costs(&self, ios: &IoTable, id: IoId) -> bool {
        let is_piece = self.steps[id.index()].zeroes.is_some();
        ios[id].status == Status::Done && (ios[id].op == Op::Read || is_piece)
    }

    /// Whether the round has ciphered enough for what ends; if not, this is counted.
    fn is_for_later(&mut self, ios: &IoTable, id: IoId) -> bool {
        let is_full = self.round.ended_bytes >= u64::from(self.sizes.round_bytes);
        if !is_full {
            self.round.ended_bytes += u64::from(ios[id].len_bytes);
        }
        is_full
    }

    /// Ends what was completed below: first what an earlier round has left, then what came now, and
    /// leaves the rest when it has ciphered enough. What costs nothing never waits.
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
            if self.costs(ios, id) && self.is_for_later(ios, id) {
                self.cells.put_off.add(1);
                self.landed.push_back(id);
            } else if self.ended(ios, id) {
                done[kept] = id;
                kept += 1;
            }
        }
        done.truncate(kept);
        progress
    }

    /// What is let go of before its end, once.
    fn count_interrupted(&mut self) {
        if !self.lets_go {
            let in_the_middle = |step: &&Step| step.zeroes.is_some_and(|it| it.done_bytes > 0);
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
            if !self.start(ios, id) {
                break;
            }
            self.round.begun_bytes += u64::from(ios[id].len_bytes);
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
            // What is too long would wait for ever, and sectors that are not there have no number.
            op if !self.info.admits_within(self.size.get(), io) || !self.pool.holds(op, io) => {
                self.refuse(ios, id, Status::Invalid);
            }
            op => {
                if self.zeroes_are_next().is_some() || !self.start(ios, id) {
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
            self.round = Round { now_ns, ..Round::default() };
        }
        let mut progress = self.end_all(ios, now_ns, done);
        progress |= Progress::busy_if(!self.ready.is_empty());
        done.append(&mut self.ready);
        progress |= self.start_waiting(ios);
        self.tend_pool(now_ns);
        progress
    }

    /// What waits for memory is woken for by those that have it: they are below.
    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if let Some(due_ns) = self.pool.due_ns() {
            wake.at(due_ns);
        }
        let has_more = !self.ready.is_empty() || !self.landed.is_empty() || self.begins_more;
        self.inner.arm(wake) | Progress::busy_if(has_more)
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn is_open(&self) -> bool {
        self.inner.is_open()
    }

    /// A range of which some pieces were zeroed is given back as a whole: it is zeroed once more.
    fn recall(&mut self, ios: &mut IoTable, back: &mut Vec<IoId>) {
        let earlier = back.len();
        self.inner.recall(ios, back);
        let steps = &self.steps;
        let between = |id: &IoId| steps[id.index()].zeroes.is_some();
        back.extend(self.landed.iter().filter(|id| between(id)));
        self.landed.retain(|id| !between(id));
        for &id in &back[earlier..] {
            self.zeroing -= usize::from(self.restore(ios, id).is_some());
        }
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
        // Who lets go may not poll any more.
        self.tend_pool(now_ns);
        if !self.inner.abandon(ios, now_ns) {
            return false;
        }
        // Nobody reads it any more. The user's slots hold places of it, and are done with.
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
