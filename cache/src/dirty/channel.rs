//! One sidecore's way to a volume with write-back.
//!
//! The dirty volume's requests and those of the volume below are in tables of the channel: each of
//! the user's has one of them at a time, and the round that sends dirty blocks has its own.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use block::attachment::{Attachment, Phase};
use sidecore::{Progress, Services, Wake};
use virtio::Segment;
use volume::{
    Channel, IoId, IoTable, Op, OpenArguments, RANGE_BYTES_MAX, Size, Status, VolumeInfo, io_table,
};

use super::Dirty;
use super::sweep::{RUNS_MAX, Sweep};
use crate::map::{BLOCK_BYTES, Blocks};

/// How soon a request looks again for blocks that another request works on, or for the opening of
/// the dirty volume.
const LOOK_AGAIN_NS: u64 = 100_000;

/// How soon a sidecore that sleeps looks whether a round is due.
const LOOK_FOR_DUE_NS: u64 = 100_000_000;

/// The mark of a request of the round in the owner of a request.
pub(super) const OF_SWEEP: u64 = 1 << 32;

/// Where a request of the user is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    /// The slot is free, or waits for its turn.
    #[default]
    None,
    /// With the volume below, which has all of it.
    Passed,
    /// A read, all of which is dirty.
    ReadHere,
    /// A read with the volume below; dirty blocks come over it.
    ReadBelow,
    /// A read whose dirty blocks are being read.
    ReadOver,
    /// A write into the dirty volume.
    WriteHere,
    /// A change with the volume below.
    ChangeBelow,
    /// Zeroes over dirty blocks, which are flushed in the volume below: the dirty volume gives up
    /// what it has flushed itself.
    ZeroesFlush,
    /// The change of a dirty block, after the volume below.
    ChangeOver,
    /// A flush of the dirty volume.
    FlushHere,
    /// A flush of the volume below.
    FlushBelow,
    /// A durable change, which ends with a flush of the dirty volume: blocks that were discarded
    /// there must not come back.
    Settling,
}

/// A request of the user.
#[derive(Clone, Copy, Debug, Default)]
struct Task {
    stand: Stand,
    /// Its blocks. A change has their busy bits.
    blocks: Blocks,
    /// The blocks that are being read or changed in the dirty volume.
    piece: Blocks,
    /// The dirty volume gives the piece's space back.
    discards_piece: bool,
    /// For a read: see `CacheMap::discards`.
    discards: u32,
    /// For a flush: the changes that it covers.
    covers: u64,
    since_ns: u64,
}

impl Task {
    fn holds_bits(&self) -> bool {
        use Stand::{ChangeBelow, ChangeOver, Settling, WriteHere, ZeroesFlush};
        matches!(self.stand, WriteHere | ChangeBelow | ZeroesFlush | ChangeOver | Settling)
    }
}

/// A request for one of the two volumes.
pub(super) struct SubRequest {
    pub(super) op: Op,
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u64,
    pub(super) durable: bool,
    pub(super) owner: u64,
}

/// The ways to the two volumes, with their tables.
pub(super) struct Ways {
    // Before the memory of rounds, of which it may have pieces.
    pub(super) lower: Box<dyn Channel>,
    below: IoTable,
    local: Option<(u64, Box<dyn Channel>)>,
    here: IoTable,
    pub(super) dirty: Arc<Dirty>,
    pub(super) index: u16,
}

impl Ways {
    fn fill(table: &mut IoTable, it: &SubRequest, pieces: impl Iterator<Item = Segment>) -> IoId {
        let own = table.take().expect("a request for each of the user's and the round's");
        let io = &mut table[own];
        io.reset();
        (io.op, io.owner, io.durable) = (it.op, it.owner, it.durable);
        (io.offset_bytes, io.len_bytes) = (it.offset_bytes, it.len_bytes as u32);
        io.own_memory = it.owner & OF_SWEEP != 0;
        io.segments.extend(pieces);
        own
    }

    /// Gives the volume below a request.
    pub(super) fn ask_below(&mut self, it: &SubRequest, pieces: impl Iterator<Item = Segment>) {
        let own = Self::fill(&mut self.below, it, pieces);
        self.lower.submit(&mut self.below, own);
    }

    /// Gives the dirty volume a request. It is open.
    pub(super) fn ask_here(&mut self, it: &SubRequest, pieces: impl Iterator<Item = Segment>) {
        let own = Self::fill(&mut self.here, it, pieces);
        self.dirty.enter(self.index);
        let (_, local) = self.local.as_mut().expect("the caller has looked");
        local.submit(&mut self.here, own);
    }

    /// Whether the dirty volume is open for this channel.
    pub(super) fn is_open(&self) -> bool {
        self.local.as_ref().is_some_and(|(number, _)| *number == self.dirty.opening())
    }
}

/// See the module.
pub(crate) struct WriteBackChannel {
    ways: Ways,
    sweep: Sweep,
    info: VolumeInfo,
    size: Size,
    attachment: Arc<Attachment>,
    services: Services,
    tasks: Vec<Task>,
    /// Requests that wait for their turn, oldest first.
    waiting: VecDeque<IoId>,
    ended: Vec<IoId>,
    /// The number of the opening that could not be followed.
    cannot: u64,
    leaves: bool,
    has_let_go: bool,
    now_ns: u64,
}

impl fmt::Debug for WriteBackChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteBackChannel")
            .field("lower", &self.ways.lower)
            .field("waiting", &self.waiting.len())
            .field("is_live", &self.is_live())
            .field("is_open", &self.ways.is_open())
            .finish_non_exhaustive()
    }
}

/// Requests of a round with the volume below: its runs, and a flush.
pub(super) const BELOW_MORE: u16 = RUNS_MAX + 1;

impl WriteBackChannel {
    /// `lower` was opened for `depth` and [`BELOW_MORE`] requests.
    pub(super) fn new(
        (lower, info, size): (Box<dyn Channel>, VolumeInfo, Size),
        (attachment, index): (Arc<Attachment>, u16),
        (services, depth): (Services, u16),
        dirty: Arc<Dirty>,
    ) -> Self {
        dirty.begin(&attachment);
        let room = usize::from(depth);
        let below = io_table(depth.saturating_add(BELOW_MORE));
        let here = io_table(depth.saturating_add(RUNS_MAX));
        Self {
            ended: Vec::with_capacity(below.capacity().max(here.capacity())),
            ways: Ways { lower, below, local: None, here, dirty, index },
            sweep: Sweep::default(),
            info,
            size,
            attachment,
            services,
            tasks: vec![Task::default(); room],
            waiting: VecDeque::with_capacity(room),
            cannot: 0,
            leaves: false,
            has_let_go: false,
            now_ns: 0,
        }
    }

    fn dirty(&self) -> &Dirty {
        &self.ways.dirty
    }

    /// Opens the dirty volume when the keeper has.
    fn follow(&mut self) {
        let number = self.dirty().opening();
        if self.ways.is_open() || number.is_multiple_of(2) || self.cannot == number || self.leaves {
            return;
        }
        let Some((number, volume)) = self.dirty().opened() else { return };
        let depth = self.ways.here.capacity() as u16;
        match volume.open(&OpenArguments { services: &self.services, depth }) {
            Ok(local) => self.ways.local = Some((number, local)),
            Err(error) => {
                self.cannot = number;
                self.dirty().fail(&self.attachment, &error.to_string());
            }
        }
    }

    /// Whether the guest may be answered: no other client has the attachment, as far as is known.
    fn is_live(&self) -> bool {
        matches!(self.attachment.view().phase, Phase::Held | Phase::Unclaimed)
    }

    /// The blocks of a request that can be dirty; none where the request makes no sense, which the
    /// volume below will say.
    fn blocks_of(&self, ios: &IoTable, id: IoId) -> Blocks {
        let io = &ios[id];
        let (offset, len) = (io.offset_bytes, u64::from(io.len_bytes));
        let is_sound = self.info.is_whole(offset | len)
            && len <= u64::from(io.op.bytes_max())
            && offset.checked_add(len).is_some_and(|end| end <= self.size.get());
        if !is_sound {
            return Blocks::default();
        }
        self.dirty().map.blocks.covered(Blocks::around(offset, len))
    }

    /// All of the user's request, for one of the volumes.
    fn whole(ios: &IoTable, id: IoId) -> SubRequest {
        let io = &ios[id];
        SubRequest {
            op: io.op,
            offset_bytes: io.offset_bytes,
            len_bytes: u64::from(io.len_bytes),
            durable: io.durable,
            owner: u64::from(id.to_u32()),
        }
    }

    /// A flush on behalf of a request.
    fn flush(ios: &IoTable, id: IoId) -> SubRequest {
        let (op, durable) = (Op::Flush, false);
        SubRequest { op, durable, offset_bytes: 0, len_bytes: 0, ..Self::whole(ios, id) }
    }

    fn ask_below(&mut self, ios: &IoTable, id: IoId, stand: Stand) {
        self.tasks[id.index()].stand = stand;
        self.ways.ask_below(&Self::whole(ios, id), ios[id].segments.iter().copied());
    }

    fn ask_here(&mut self, ios: &IoTable, id: IoId, stand: Stand) {
        self.tasks[id.index()].stand = stand;
        self.ways.ask_here(&Self::whole(ios, id), ios[id].segments.iter().copied());
    }

    /// Begins a request. `false`: later.
    fn begin(&mut self, ios: &mut IoTable, id: IoId) -> bool {
        if !self.is_live() {
            // The volume below says why.
            self.ask_below(ios, id, Stand::Passed);
            return true;
        }
        if !self.ways.is_open() {
            return false;
        }
        match ios[id].op {
            Op::Read => self.read(ios, id),
            Op::Flush => {
                self.tasks[id.index()].covers = self.dirty().passed.load(SeqCst);
                self.ask_here(ios, id, Stand::FlushHere);
            }
            Op::Write | Op::Discard | Op::WriteZeroes => return self.change(ios, id),
        }
        true
    }

    fn read(&mut self, ios: &mut IoTable, id: IoId) {
        let blocks = self.blocks_of(ios, id);
        let map = &self.dirty().map.blocks;
        // First: a block that becomes clean between the two looks is noticed.
        let discards = map.discards(blocks);
        let dirty = map.count(blocks);
        let end_bytes = ios[id].offset_bytes + u64::from(ios[id].len_bytes);
        let is_covered = end_bytes <= blocks.end() * BLOCK_BYTES;
        let task = &mut self.tasks[id.index()];
        (task.blocks, task.discards) = (blocks, discards);
        task.piece = Blocks { first: blocks.first, count: 0 };
        if dirty == 0 {
            self.ask_below(ios, id, Stand::Passed);
        } else if dirty == blocks.count && is_covered {
            self.ask_here(ios, id, Stand::ReadHere);
        } else {
            self.ways.dirty.counters(self.ways.index).mixed.add(1);
            self.ask_below(ios, id, Stand::ReadBelow);
        }
    }

    fn change(&mut self, ios: &mut IoTable, id: IoId) -> bool {
        let blocks = self.blocks_of(ios, id);
        if blocks.is_empty() || self.info.read_only {
            self.ask_below(ios, id, Stand::Passed);
            return true;
        }
        let dirty = Arc::clone(&self.ways.dirty);
        let map = &dirty.map;
        if !map.blocks.acquire(blocks) {
            return false;
        }
        // With the busy bits no block becomes dirty or clean.
        let before = map.blocks.count(blocks);
        let op = ios[id].op;
        if op.zeroes() && before > 0 && map.is_sent(blocks) {
            // Content that is on its way would come after the zeroes.
            map.blocks.release(blocks);
            return false;
        }
        let task = &mut self.tasks[id.index()];
        (task.blocks, task.piece) = (blocks, Blocks { first: blocks.first, count: 0 });
        let counters = dirty.counters(self.ways.index);
        let more = blocks.count - before;
        let is_kept =
            op == Op::Write && self.can_be_dirty(ios, id, blocks) && map.blocks.reserve(more);
        if is_kept && !dirty.is_marked() {
            // This request came after the drain of its guest.
            map.blocks.give_back(more);
            map.blocks.release(blocks);
            dirty.ask_mark();
            return false;
        }
        if is_kept {
            counters.kept.add(1);
            self.ask_here(ios, id, Stand::WriteHere);
        } else {
            counters.passed.add(1);
            map.overtake(blocks);
            self.ask_below(ios, id, Stand::ChangeBelow);
        }
        true
    }

    /// Whether the dirty volume would have all of these blocks after the write.
    fn can_be_dirty(&self, ios: &IoTable, id: IoId, blocks: Blocks) -> bool {
        let (offset, len) = (ios[id].offset_bytes, u64::from(ios[id].len_bytes));
        let (inside, map) = (Blocks::inside(offset, len), &self.dirty().map.blocks);
        let has = |block| map.holds(Blocks { first: block, count: 1 });
        offset + len <= blocks.end() * BLOCK_BYTES
            && (inside.first == blocks.first || has(blocks.first))
            && (inside.end() == blocks.end() || has(blocks.end() - 1))
            && !self.dirty().through.load(SeqCst)
    }

    /// The volume below has ended a request of the user.
    fn below_ended(&mut self, ios: &mut IoTable, id: IoId, status: Status, done: &mut Vec<IoId>) {
        let task = self.tasks[id.index()];
        let is_done = status == Status::Done;
        if ios[id].op.changes() && matches!(task.stand, Stand::Passed | Stand::ChangeBelow) {
            // Also of a change that failed: its effect may be there.
            self.dirty().passed.fetch_add(1, SeqCst);
        }
        match task.stand {
            Stand::ReadBelow if is_done => self.read_over(ios, id, done),
            Stand::ChangeBelow if is_done => {
                let covers = self.dirty().passed.load(SeqCst);
                let is_dirty = self.dirty().map.blocks.count(task.blocks) > 0;
                if !(ios[id].op.zeroes() && is_dirty) {
                    return self.change_over(ios, id, done);
                }
                let task = &mut self.tasks[id.index()];
                (task.stand, task.covers) = (Stand::ZeroesFlush, covers);
                self.ways.ask_below(&Self::flush(ios, id), std::iter::empty());
            }
            Stand::ZeroesFlush if is_done => {
                self.dirty().flushed.fetch_max(task.covers, SeqCst);
                self.change_over(ios, id, done);
            }
            Stand::FlushBelow if is_done => {
                self.dirty().flushed.fetch_max(task.covers, SeqCst);
                self.end(ios, id, status, done);
            }
            Stand::Passed
            | Stand::ReadBelow
            | Stand::ChangeBelow
            | Stand::ZeroesFlush
            | Stand::FlushBelow => self.end(ios, id, status, done),
            stand => unreachable!("{stand:?} is not with the volume below"),
        }
    }

    /// The dirty volume has ended a request of the user.
    fn here_ended(&mut self, ios: &mut IoTable, id: IoId, status: Status, done: &mut Vec<IoId>) {
        let task = self.tasks[id.index()];
        let is_done = status == Status::Done;
        let map = &self.ways.dirty.map;
        match task.stand {
            Stand::WriteHere if is_done => {
                map.written(task.blocks);
                self.ways.dirty.note_dirty(self.now_ns);
            }
            Stand::ChangeOver if is_done && task.discards_piece => {
                map.blocks.give_back(task.piece.count);
            }
            Stand::ChangeOver if is_done => map.written(task.piece),
            Stand::ReadHere | Stand::ReadOver | Stand::FlushHere | Stand::Settling => {}
            Stand::WriteHere | Stand::ChangeOver => {
                let why = "its pool has failed a write";
                self.dirty().fail(&self.attachment, why);
            }
            stand => unreachable!("{stand:?} is not with the dirty volume"),
        }
        if !is_done {
            self.ways.dirty.counters(self.ways.index).errors.add(1);
            return self.end(ios, id, Status::Error, done);
        }
        if !self.is_live() || self.leaves {
            return self.let_below_say(ios, id);
        }
        match task.stand {
            Stand::ReadHere | Stand::ReadOver => self.read_over(ios, id, done),
            Stand::ChangeOver => self.change_over(ios, id, done),
            Stand::FlushHere if self.dirty().flushed.load(SeqCst) < task.covers => {
                self.ask_below(ios, id, Stand::FlushBelow);
            }
            _ => self.end(ios, id, Status::Done, done),
        }
    }

    /// The attachment is lost: the volume below ends the request as it should be ended.
    fn let_below_say(&mut self, ios: &mut IoTable, id: IoId) {
        self.release(id);
        if self.leaves {
            self.tasks[id.index()].stand = Stand::None;
        } else {
            self.ask_below(ios, id, Stand::Passed);
        }
    }

    /// Reads the next dirty blocks over what the volume below has given; the end of a read.
    fn read_over(&mut self, ios: &mut IoTable, id: IoId, done: &mut Vec<IoId>) {
        let task = self.tasks[id.index()];
        let is_here = task.stand == Stand::ReadHere;
        if !is_here && self.ask_piece(ios, id, Stand::ReadOver) {
            return;
        }
        if self.dirty().map.blocks.discards(task.blocks) == task.discards {
            return self.end(ios, id, Status::Done, done);
        }
        // A dirty block became clean, and may have been looked for on the wrong side.
        self.ways.dirty.counters(self.ways.index).redone.add(1);
        self.read(ios, id);
    }

    /// Changes the next dirty blocks as the volume below has been changed; the end of a change.
    fn change_over(&mut self, ios: &mut IoTable, id: IoId, done: &mut Vec<IoId>) {
        if self.ask_piece(ios, id, Stand::ChangeOver) {
            return;
        }
        if !ios[id].durable {
            return self.end(ios, id, Status::Done, done);
        }
        self.tasks[id.index()].stand = Stand::Settling;
        self.ways.ask_here(&Self::flush(ios, id), std::iter::empty());
    }

    /// Asks the dirty volume for the next piece of a request. `false`: there is none.
    fn ask_piece(&mut self, ios: &IoTable, id: IoId, stand: Stand) -> bool {
        let io = &ios[id];
        let task = &mut self.tasks[id.index()];
        let next = task.piece.end();
        let left = Blocks { first: next, count: task.blocks.end() - next };
        let map = &self.ways.dirty.map;
        let Some(run) = map.first_dirty(left, u64::from(RANGE_BYTES_MAX) / BLOCK_BYTES) else {
            return false;
        };
        let end_bytes = io.offset_bytes + u64::from(io.len_bytes);
        let mut it = SubRequest { durable: false, ..Self::whole(ios, id) };
        task.piece = run;
        task.discards_piece = false;
        if io.op.zeroes() {
            let inside = Blocks::inside(io.offset_bytes, u64::from(io.len_bytes));
            if (inside.first..inside.end()).contains(&run.first) {
                task.piece.count = run.end().min(inside.end()) - run.first;
                task.discards_piece = true;
                map.clean(task.piece);
                it.op = Op::Discard;
            } else {
                (task.piece.count, it.op) = (1, Op::WriteZeroes);
            }
        }
        it.offset_bytes = io.offset_bytes.max(task.piece.first * BLOCK_BYTES);
        it.len_bytes = end_bytes.min(task.piece.end() * BLOCK_BYTES) - it.offset_bytes;
        task.stand = stand;
        let (at, len) = (it.offset_bytes - io.offset_bytes, it.len_bytes);
        let data = if io.op.moves_data() { io.segments.as_slice() } else { &[] };
        self.ways.ask_here(&it, pieces_of(data, at, len));
        true
    }

    /// Gives back the busy bits of a request that has them.
    fn release(&mut self, id: IoId) {
        let task = self.tasks[id.index()];
        if task.holds_bits() {
            self.dirty().map.blocks.release(task.blocks);
        }
    }

    fn end(&mut self, ios: &mut IoTable, id: IoId, status: Status, done: &mut Vec<IoId>) {
        self.release(id);
        self.tasks[id.index()].stand = Stand::None;
        ios[id].status = status;
        done.push(id);
    }

    /// Shows the epoch that is held.
    fn show_epoch(&self) {
        let view = self.attachment.view();
        if view.phase == Phase::Held && !self.dirty().knows(view.epoch) {
            self.dirty().show(&self.attachment);
        }
    }

    fn retry(&mut self, ios: &mut IoTable, done: &mut Vec<IoId>) -> Progress {
        let mut progress = Progress::Idle;
        let patience_ns = self.attachment.options().error_after_ns.unwrap_or(u64::MAX);
        for _ in 0..self.waiting.len() {
            let Some(id) = self.waiting.pop_front() else { break };
            if self.begin(ios, id) {
                progress = Progress::Busy;
                continue;
            }
            let since_ns = self.tasks[id.index()].since_ns;
            let is_late = self.now_ns.saturating_sub(since_ns) >= patience_ns;
            if is_late && !self.ways.lower.is_open() {
                self.end(ios, id, Status::Error, done);
                progress = Progress::Busy;
            } else {
                self.waiting.push_back(id);
            }
        }
        progress
    }

    /// Takes the answers of the dirty volume.
    fn poll_here(&mut self, ios: &mut IoTable, done: &mut Vec<IoId>) -> Progress {
        let Some((_, local)) = &mut self.ways.local else { return Progress::Idle };
        let progress = local.poll(&mut self.ways.here, self.now_ns, &mut self.ended);
        let mut ended = std::mem::take(&mut self.ended);
        for own in ended.drain(..) {
            let (owner, status) = (self.ways.here[own].owner, self.ways.here[own].status);
            self.ways.here.free(own);
            if owner & OF_SWEEP == 0 {
                self.here_ended(ios, IoId::from_u32(owner as u32), status, done);
            } else {
                let is_over = !self.is_live() || self.leaves;
                let failed = self.sweep.here_ended(&mut self.ways, owner, status, is_over);
                if failed {
                    self.dirty().fail(&self.attachment, "its pool has failed a discard");
                }
            }
            // Last: the volume is not quiet while a block is being shown.
            self.ways.dirty.leave(self.ways.index);
        }
        self.ended = ended;
        progress
    }

    /// Takes the answers of the volume below.
    fn poll_below(&mut self, ios: &mut IoTable, done: &mut Vec<IoId>) -> Progress {
        let progress = self.ways.lower.poll(&mut self.ways.below, self.now_ns, &mut self.ended);
        let mut ended = std::mem::take(&mut self.ended);
        for own in ended.drain(..) {
            let (owner, status) = (self.ways.below[own].owner, self.ways.below[own].status);
            self.ways.below.free(own);
            if owner & OF_SWEEP == 0 {
                self.below_ended(ios, IoId::from_u32(owner as u32), status, done);
            } else {
                self.sweep.below_ended(&mut self.ways, owner, status);
            }
        }
        self.ended = ended;
        progress
    }
}

impl Channel for WriteBackChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        ios[id].status = Status::Pending;
        self.tasks[id.index()] = Task { since_ns: self.now_ns, ..Task::default() };
        if !self.begin(ios, id) {
            self.waiting.push_back(id);
            self.ways.dirty.counters(self.ways.index).waited.add(1);
        }
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        self.now_ns = now_ns;
        self.show_epoch();
        self.follow();
        let mut progress = self.poll_below(ios, done);
        progress |= self.poll_here(ios, done);
        if !self.waiting.is_empty() {
            progress |= self.retry(ios, done);
        }
        if self.is_live() && self.ways.is_open() {
            progress |= self.sweep.step(&mut self.ways, now_ns);
        }
        progress
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        let view = self.attachment.view();
        let is_news = view.phase == Phase::Held && !self.dirty().knows(view.epoch);
        let mut progress = self.ways.lower.arm(wake) | Progress::busy_if(is_news);
        if let Some((_, local)) = &mut self.ways.local {
            progress |= local.arm(&mut *wake);
        }
        if !self.waiting.is_empty() || self.sweep.waits_for_blocks() {
            wake.at(self.now_ns + LOOK_AGAIN_NS);
        } else if self.dirty().map.blocks.used() > 0 {
            wake.at(self.now_ns + LOOK_FOR_DUE_NS);
        }
        progress
    }

    fn disarm(&mut self) {
        self.ways.lower.disarm();
        if let Some((_, local)) = &mut self.ways.local {
            local.disarm();
        }
    }

    fn is_open(&self) -> bool {
        self.ways.lower.is_open()
    }

    fn recall(&mut self, _ios: &mut IoTable, back: &mut Vec<IoId>) {
        back.extend(self.waiting.drain(..));
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        (self.now_ns, self.leaves) = (now_ns, true);
        self.waiting.clear();
        if !self.has_let_go {
            // Requests in the dirty volume end by themselves, and no other is begun.
            let _ = self.poll_here(ios, &mut Vec::new());
            if !self.ways.here.is_empty() {
                return false;
            }
            self.has_let_go = true;
            for task in std::mem::take(&mut self.tasks) {
                if task.holds_bits() {
                    self.ways.dirty.map.blocks.release(task.blocks);
                }
            }
            self.sweep.end(&mut self.ways, now_ns);
        }
        if !self.dirty().is_clean() {
            // The remote volume is not what the guest was told of: no other client may have it.
            self.attachment.withhold();
        }
        self.ways.lower.abandon(&mut self.ways.below, now_ns)
    }
}

impl Drop for WriteBackChannel {
    fn drop(&mut self) {
        if self.ways.here.is_empty() {
            self.sweep.end(&mut self.ways, self.now_ns);
        } else {
            // Whether the pool has the change that was under way is not known.
            self.dirty().end();
        }
    }
}

/// So many bytes of some pieces of memory, from a place on.
fn pieces_of(segments: &[Segment], at: u64, len: u64) -> impl Iterator<Item = Segment> + '_ {
    let mut from = 0;
    segments.iter().filter_map(move |segment| {
        let (start, end) = (from, from + u64::from(segment.len));
        from = end;
        let (first, last) = (start.max(at), end.min(at + len));
        (first < last).then(|| Segment {
            addr: segment.addr.wrapping_add((first - start) as usize),
            len: (last - first) as u32,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_some_pieces_is_cut_out() {
        let mut memory = [0_u8; 100];
        let base = memory.as_mut_ptr();
        let segment = |at: usize, len| Segment { addr: base.wrapping_add(at), len };
        let all = [segment(0, 10), segment(50, 20), segment(80, 5)];
        let cut = |at, len| -> Vec<_> {
            let pieces = pieces_of(&all, at, len);
            pieces.map(|it| (it.addr as usize - base as usize, it.len)).collect()
        };
        assert_eq!(cut(0, 35), [(0, 10), (50, 20), (80, 5)]);
        assert_eq!(cut(4, 10), [(4, 6), (50, 4)]);
        assert_eq!(cut(30, 5), [(80, 5)]);
        assert_eq!(cut(10, 1), [(50, 1)]);
    }
}
