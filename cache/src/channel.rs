//! One sidecore's way to a cached volume.
//!
//! ```text
//!   read   all blocks present ──▶ cache ──────────────────────────────▶ done
//!          else ──▶ remote volume ──▶ done; the blocks that came are stored meanwhile
//!   change ──▶ blocks busy and hidden ──▶ remote volume ──▶ done; then stored, or discarded
//!   flush  ──▶ remote volume ──▶ done
//! ```
//!
//! The remote volume's channel works in the user's table. Data that is kept goes through a buffer
//! of the channel: guest memory may change at any time, and the cache and the remote volume must
//! have the same bytes. The cache's own requests are in a table of the channel.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use block::attachment::{Attachment, Phase};
use sidecore::{Progress, Services, SlotId, Wake};
use virtio::Segment;
use volume::copy::{Prefetch, gather, scatter};
use volume::{
    Channel, IoId, IoTable, Op, OpenArguments, RANGE_BYTES_MAX, SECTOR_BYTES, Size, Status,
    VolumeInfo, io_table,
};

use crate::counters::CacheCounters;
use crate::gate::Pass;
use crate::map::{BLOCK_BYTES, Blocks};
use crate::plug::{Cache, Plug};
use crate::works::{CacheWork, EVICTIONS_MAX, WorkPhase, Works};

/// How soon a change looks again for blocks that another sidecore works on.
const LOOK_AGAIN_NS: u64 = 100_000;

/// How long a change waits until the keeper has decided whether the content of an earlier process
/// or epoch is right. A decision takes some syncs of the pool. Later the content is given up.
const DECISION_TIME_MAX_NS: u64 = 1_000_000_000;

/// The mark of a request of the cache's own in the owner of a request in the cache.
const OF_WORK: u64 = 1 << 32;

/// Where a request of the user is; by its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stand {
    /// The slot is free.
    #[default]
    Free,
    /// With the remote volume, as the user gave it. `before`: a change that the cache's map has
    /// not, since it was sent before the cache was there.
    Passed { before: bool },
    /// A read with the cache.
    Hit(Hit),
    /// With the remote volume, for a request of the cache's own.
    Worked(SlotId),
    /// A change that waits for its blocks.
    Waiting,
}

/// The state that must still hold when the cache answers a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hit {
    pass: Pass,
    epoch: u64,
    discards: u32,
}

/// The cache's half of a channel.
struct CacheSide {
    cache: Arc<Cache>,
    index: u16,
    channel: Box<dyn Channel>,
    table: IoTable,
    works: Works,
    evictions: u16,
    handed: Vec<IoId>,
    /// Since when changes wait for the keeper's decision about old content.
    closed_since_ns: u64,
}

/// See the module.
pub(crate) struct CachedChannel {
    // Before the buffers of `side`, which it may have pieces of.
    remote: Box<dyn Channel>,
    side: Option<Box<CacheSide>>,
    info: VolumeInfo,
    size: Size,
    attachment: Arc<Attachment>,
    index: u16,
    services: Services,
    depth: u16,
    plug: Arc<Plug>,
    /// The state of the plug that this channel works by.
    seen: u64,
    /// It has told the plug so.
    has_followed: bool,
    /// The cache was taken away, and its last requests have not ended: no other is begun.
    leaves: bool,
    /// The state of the plug whose cache this channel could not open.
    cannot: Option<u64>,
    stands: Vec<Stand>,
    /// Passed changes from before the cache was there.
    before: u32,
    /// Changes that wait for their blocks, oldest first.
    waiting: VecDeque<IoId>,
    returned: Vec<IoId>,
    lets_go: bool,
    now_ns: u64,
}

impl fmt::Debug for CachedChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedChannel")
            .field("remote", &self.remote)
            .field("waiting", &self.waiting.len())
            .field("works", &self.side.as_ref().map(|side| side.works.len()))
            .finish_non_exhaustive()
    }
}

impl CachedChannel {
    pub(crate) fn new(
        (remote, info, size): (Box<dyn Channel>, VolumeInfo, Size),
        (attachment, index): (Arc<Attachment>, u16),
        (services, depth): (Services, u16),
        plug: Arc<Plug>,
    ) -> Self {
        plug.enter(index);
        let room = usize::from(depth);
        let mut it = Self {
            remote,
            side: None,
            info,
            size,
            attachment,
            index,
            services,
            depth,
            plug,
            seen: 0,
            has_followed: false,
            leaves: false,
            cannot: None,
            stands: vec![Stand::Free; room],
            before: 0,
            waiting: VecDeque::with_capacity(room),
            returned: Vec::with_capacity(room),
            lets_go: false,
            now_ns: 0,
        };
        it.follow();
        it
    }

    /// Follows a change of the plug, as far as requests under way let it.
    fn follow(&mut self) {
        let (number, cache) = self.plug.now();
        let is_same = match (&self.side, &cache) {
            (Some(side), Some(cache)) => Arc::ptr_eq(&side.cache, cache),
            (None, None) => true,
            _ => false,
        };
        if self.cannot == Some(number) {
            return;
        }
        if !is_same {
            // The old one first, whose requests end; then the new one.
            self.leaves = self.side.as_ref().is_some_and(|side| !side.is_idle());
            if self.leaves {
                return;
            }
            self.side = None;
            if let Some(cache) = cache {
                let passed = |stand: &&mut Stand| matches!(stand, Stand::Passed { .. });
                self.before = 0;
                for stand in self.stands.iter_mut().filter(passed) {
                    (*stand, self.before) = (Stand::Passed { before: true }, self.before + 1);
                }
                cache.gate.begin(&self.attachment);
                let open = OpenArguments { services: &self.services, depth: self.depth };
                match CacheSide::open(cache, self.index, &open) {
                    Ok(side) => self.side = Some(Box::new(side)),
                    Err(error) => {
                        tracing::error!(%error, "a cache is not used by this sidecore");
                        // Its changes would not be in the map: the cache stays closed.
                        (self.seen, self.cannot) = (number, Some(number));
                        return;
                    }
                }
            }
        }
        self.seen = number;
        self.has_followed = self.before == 0;
        if self.has_followed {
            self.plug.has_followed(self.index, number);
        }
    }

    #[inline]
    fn pass(&mut self, ios: &mut IoTable, id: IoId) {
        self.stands[id.index()] = Stand::Passed { before: false };
        self.remote.submit(ios, id);
    }

    /// The blocks of a request that the cache is for; none where the request makes no sense, which
    /// the remote volume will say.
    fn blocks_of(&self, side: &CacheSide, ios: &IoTable, id: IoId) -> Blocks {
        let io = &ios[id];
        let (offset, len) = (io.offset_bytes, u64::from(io.len_bytes));
        let is_sound = self.info.is_whole(offset | len)
            && len <= u64::from(io.op.bytes_max())
            && offset.checked_add(len).is_some_and(|end| end <= self.size.get());
        if !is_sound {
            return Blocks::default();
        }
        side.cache.map.covered(Blocks::around(offset, len))
    }

    fn read(&mut self, ios: &mut IoTable, id: IoId) {
        let Some(side) = self.side.as_ref().filter(|_| !self.leaves) else {
            return self.pass(ios, id);
        };
        let blocks = self.blocks_of(side, ios, id);
        let end_bytes = ios[id].offset_bytes + u64::from(ios[id].len_bytes);
        let is_covered = !blocks.is_empty() && end_bytes <= blocks.end() * BLOCK_BYTES;
        // Not while the volume is out of reach: another client may have it by then.
        if !is_covered || !self.remote.is_open() {
            return self.pass(ios, id);
        }
        let epoch = self.attachment.view().epoch;
        let Some(side) = &mut self.side else { return };
        let Some(pass) = side.cache.gate.pass(epoch) else { return self.pass(ios, id) };
        // First: a block that is hidden between the two looks is not believed.
        let discards = side.cache.map.discards(blocks);
        if side.cache.map.holds(blocks) && side.cache.gate.enter(self.index, pass) {
            side.cache.map.touch(blocks);
            side.counters().hits.add(1);
            self.stands[id.index()] = Stand::Hit(Hit { pass, epoch, discards });
            return side.read(ios, id);
        }
        side.counters().misses.add(1);
        match side.begin_fill(ios, id, pass) {
            Some(work) => {
                self.stands[id.index()] = Stand::Worked(work);
                self.remote.submit(ios, id);
            }
            None => self.pass(ios, id),
        }
    }

    /// Begins a change if its blocks are free. `false`: later.
    fn try_change(&mut self, ios: &mut IoTable, id: IoId) -> bool {
        let Some(side) = self.side.as_ref().filter(|_| !self.leaves) else {
            self.pass(ios, id);
            return true;
        };
        let blocks = self.blocks_of(side, ios, id);
        let Some(side) = &mut self.side else { return false };
        if blocks.is_empty() {
            self.pass(ios, id);
            return true;
        }
        let Some(work) = side.begin_change((ios, id), blocks, self.now_ns) else { return false };
        self.stands[id.index()] = Stand::Worked(work);
        self.remote.submit(ios, id);
        true
    }

    /// The remote volume has ended a request.
    fn remote_ended(&mut self, ios: &mut IoTable, id: IoId, done: &mut Vec<IoId>) {
        match std::mem::take(&mut self.stands[id.index()]) {
            Stand::Passed { before } => {
                self.before -= u32::from(before);
            }
            Stand::Worked(work) => {
                if let Some(side) = &mut self.side {
                    side.remote_ended(ios, id, work);
                }
            }
            stand => unreachable!("{stand:?} is not with the remote volume"),
        }
        done.push(id);
    }

    /// Takes the cache's answers.
    fn poll_side(
        &mut self,
        ios: &mut IoTable,
        now_ns: u64,
        mut done: Option<&mut Vec<IoId>>,
    ) -> Progress {
        let Some(side) = &mut self.side else { return Progress::Idle };
        let mut progress = side.channel.poll(&mut side.table, now_ns, &mut side.handed);
        let mut handed = std::mem::take(&mut side.handed);
        for own in handed.drain(..) {
            let Some(id) = side.ended(own, ios) else { continue };
            let Stand::Hit(hit) = std::mem::take(&mut self.stands[id.index()]) else {
                unreachable!("only reads are with the cache");
            };
            let Some(done) = done.as_deref_mut() else { continue };
            if side.is_right(ios, id, hit) && self.attachment.accepts(hit.epoch) {
                done.push(id);
                continue;
            }
            side.counters().redone.add(1);
            ios[id].status = Status::Pending;
            self.stands[id.index()] = Stand::Passed { before: false };
            self.remote.submit(ios, id);
            progress = Progress::Busy;
        }
        side.handed = handed;
        progress
    }

    /// Shows the gate the epoch that is held.
    fn show_epoch(&self) {
        let Some(side) = &self.side else { return };
        let view = self.attachment.view();
        if view.phase == Phase::Held && !side.cache.gate.knows(view.epoch) {
            let is_sole = self.plug.remote.is_sole() == Some(true);
            side.cache.gate.show(&self.attachment, is_sole);
        }
    }

    fn retry(&mut self, ios: &mut IoTable) -> Progress {
        let mut progress = Progress::Idle;
        for _ in 0..self.waiting.len() {
            let Some(id) = self.waiting.pop_front() else { break };
            if self.try_change(ios, id) {
                progress = Progress::Busy;
            } else {
                self.waiting.push_back(id);
            }
        }
        progress
    }
}

impl Channel for CachedChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        ios[id].status = Status::Pending;
        match ios[id].op {
            Op::Flush => self.pass(ios, id),
            Op::Read => self.read(ios, id),
            Op::Write | Op::Discard | Op::WriteZeroes => {
                if !self.try_change(ios, id) {
                    self.stands[id.index()] = Stand::Waiting;
                    self.waiting.push_back(id);
                    if let Some(side) = &self.side {
                        side.counters().waited.add(1);
                    }
                }
            }
        }
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        self.now_ns = now_ns;
        self.show_epoch();
        let mut returned = std::mem::take(&mut self.returned);
        let mut progress = self.remote.poll(ios, now_ns, &mut returned);
        for id in returned.drain(..) {
            self.remote_ended(ios, id, done);
        }
        self.returned = returned;
        progress |= self.poll_side(ios, now_ns, Some(done));
        if !self.waiting.is_empty() {
            progress |= self.retry(ios);
        }
        if self.seen != self.plug.number() || (!self.has_followed && self.before == 0) {
            self.follow();
        }
        progress
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if self.seen != self.plug.number() {
            return Progress::Busy;
        }
        let mut progress = self.remote.arm(wake);
        if let Some(side) = &mut self.side {
            let view = self.attachment.view();
            let is_news = view.phase == Phase::Held && !side.cache.gate.knows(view.epoch);
            progress |= Progress::busy_if(is_news);
            progress |= side.channel.arm(&mut *wake);
        }
        if !self.waiting.is_empty() {
            wake.at(self.now_ns + LOOK_AGAIN_NS);
        }
        progress
    }

    fn disarm(&mut self) {
        self.remote.disarm();
        if let Some(side) = &mut self.side {
            side.channel.disarm();
        }
    }

    fn is_open(&self) -> bool {
        self.remote.is_open()
    }

    fn recall(&mut self, _ios: &mut IoTable, back: &mut Vec<IoId>) {
        for id in self.waiting.drain(..) {
            self.stands[id.index()] = Stand::Free;
            back.push(id);
        }
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        self.now_ns = now_ns;
        self.waiting.clear();
        let has_let_go = self.remote.abandon(ios, now_ns);
        if has_let_go && !std::mem::replace(&mut self.lets_go, true) {
            for at in 0..self.stands.len() {
                let Stand::Worked(work) = self.stands[at] else { continue };
                self.stands[at] = Stand::Free;
                let (Some(side), Some(id)) = (&mut self.side, ios.id_at(at)) else { continue };
                // Whether the change arrives is not known.
                ios[id].status = Status::Error;
                side.remote_ended(ios, id, work);
                ios[id].status = Status::Pending;
            }
        }
        let _ = self.poll_side(ios, now_ns, None);
        has_let_go && self.side.as_ref().is_none_or(|side| side.is_idle())
    }
}

impl Drop for CachedChannel {
    fn drop(&mut self) {
        if let Some(side) = &self.side {
            side.cache.gate.forget(self.index, side.is_idle());
        }
        self.plug.leave(self.index);
    }
}

impl CacheSide {
    fn open(
        cache: Arc<Cache>,
        index: u16,
        open: &OpenArguments<'_>,
    ) -> Result<Self, volume::OpenError> {
        // Each request of the user is a read here or has a request of the cache's own.
        let room = open.depth.saturating_mul(2).saturating_add(EVICTIONS_MAX);
        let channel = cache.local.open(&OpenArguments { depth: room, ..*open })?;
        Ok(Self {
            cache,
            index,
            channel,
            table: io_table(room),
            works: Works::new(open.depth),
            evictions: 0,
            closed_since_ns: u64::MAX,
            handed: Vec::with_capacity(usize::from(room)),
        })
    }

    fn counters(&self) -> &CacheCounters {
        self.cache.counters(self.index)
    }

    /// Whether no request is in the cache and no request of its own is under way.
    fn is_idle(&self) -> bool {
        self.table.is_empty() && self.works.is_empty()
    }

    /// Gives the cache a read of the user, whose blocks are present. The gate was entered.
    fn read(&mut self, ios: &mut IoTable, id: IoId) {
        let own = self.table.take().expect("a request for each of the user's");
        let (io, from) = (&mut self.table[own], &mut ios[id]);
        io.reset();
        (io.op, io.owner) = (Op::Read, u64::from(id.to_u32()));
        (io.offset_bytes, io.len_bytes) = (from.offset_bytes, from.len_bytes);
        std::mem::swap(&mut io.segments, &mut from.segments);
        self.channel.submit(&mut self.table, own);
    }

    /// Begins to keep the data that a read will bring, if there is room for it.
    fn begin_fill(&mut self, ios: &mut IoTable, id: IoId, pass: Pass) -> Option<SlotId> {
        if self.cache.map.is_tight() {
            self.evict(pass);
        }
        // Blocks are counted before the cache is emptied, or not at all.
        let began = match self.cache.gate.enter(self.index, pass) {
            true => {
                let began = self.try_fill(ios, id, pass);
                self.cache.gate.leave(self.index);
                began
            }
            false => None,
        };
        if began.is_none() {
            self.counters().fills_skipped.add(1);
        }
        began
    }

    fn try_fill(&mut self, ios: &mut IoTable, id: IoId, pass: Pass) -> Option<SlotId> {
        let (offset, len) = (ios[id].offset_bytes, ios[id].len_bytes);
        let blocks = self.cache.map.covered(Blocks::inside(offset, u64::from(len)));
        if blocks.is_empty() || !self.works.has_bounce(len) {
            return None;
        }
        let work = self.works.begin()?;
        let map = &self.cache.map;
        if !map.acquire(blocks) {
            self.works.end(work);
            return None;
        }
        let was = map.count(blocks);
        if !map.reserve(blocks.count - was) {
            map.release(blocks);
            self.works.end(work);
            return None;
        }
        map.hide(blocks);
        let it = self.works.get(work);
        (it.blocks, it.kept, it.pass, it.reads) = (blocks, blocks, pass, true);
        (it.space, it.was) = (blocks.count, was);
        let start_bytes = blocks.first * BLOCK_BYTES;
        let len_bytes = (blocks.count * BLOCK_BYTES) as u32;
        it.bytes = ((start_bytes - offset) as usize, start_bytes, len_bytes);
        self.lend(ios, id, work);
        Some(work)
    }

    /// Begins a change of these blocks: hides them, and lends the remote volume a copy of the data
    /// if the cache will keep it. Nothing where another request works on one of the blocks.
    fn begin_change(
        &mut self,
        (ios, id): (&mut IoTable, IoId),
        blocks: Blocks,
        now_ns: u64,
    ) -> Option<SlotId> {
        let work = self.works.begin()?;
        let cache = Arc::clone(&self.cache);
        let map = &cache.map;
        if !map.acquire(blocks) {
            self.works.end(work);
            return None;
        }
        let pass = cache.gate.present();
        let io = &ios[id];
        let (op, offset, len) = (io.op, io.offset_bytes, io.len_bytes);
        if !cache.gate.enter(self.index, pass) {
            // With the busy bits: no block is shown before the change has ended.
            let is_late = now_ns >= self.closed_since_ns.saturating_add(DECISION_TIME_MAX_NS);
            if !cache.gate.may_change(is_late) {
                self.closed_since_ns = self.closed_since_ns.min(now_ns);
                map.release(blocks);
                self.works.end(work);
                return None;
            }
            let it = self.works.get(work);
            (it.blocks, it.pass) = (blocks, pass);
            return Some(work);
        }
        self.closed_since_ns = u64::MAX;
        if map.is_tight() && op == Op::Write {
            self.evict(pass);
        }
        let was = map.count(blocks);
        let mut kept = Blocks::default();
        if op == Op::Write && self.works.has_bounce(len) {
            kept = kept_of(&cache, blocks, offset, u64::from(len));
            if !map.reserve(kept.count - was.min(kept.count)) {
                kept = Blocks::default();
            }
        }
        map.hide(blocks);
        cache.gate.leave(self.index);
        let it = self.works.get(work);
        (it.blocks, it.kept, it.pass, it.was) = (blocks, kept, pass, was);
        it.space = if kept.is_empty() { was } else { kept.count };
        if kept.is_empty() {
            if was > 0 {
                self.counters().drops.add(1);
            }
            return Some(work);
        }
        let start_bytes = offset.max(kept.first * BLOCK_BYTES);
        let end_bytes = (offset + u64::from(len)).min(kept.end() * BLOCK_BYTES);
        let bytes = (end_bytes - start_bytes) as u32;
        it.bytes = ((start_bytes - offset) as usize, start_bytes, bytes);
        self.lend(ios, id, work);
        let to = self.works.piece(work, 0, len).addr;
        // SAFETY: the user keeps the pieces mapped until the completion, their total is the
        // request's length, which the buffer has room for, and no guest has the buffer.
        unsafe { gather(&self.works.get(work).guest, to, Prefetch::NONE) };
        self.counters().bytes_copied.add(u64::from(len));
        Some(work)
    }

    /// Gives the request a buffer instead of the user's pieces.
    fn lend(&mut self, ios: &mut IoTable, id: IoId, work: SlotId) {
        self.works.take_bounce(work);
        let piece = self.works.piece(work, 0, ios[id].len_bytes);
        let it = self.works.get(work);
        std::mem::swap(&mut it.guest, &mut ios[id].segments);
        ios[id].segments.push(piece);
    }

    /// The remote volume has ended the user's request of a request of the cache's own, or has let
    /// go of it.
    fn remote_ended(&mut self, ios: &mut IoTable, id: IoId, work: SlotId) {
        let is_done = ios[id].status == Status::Done;
        let len = ios[id].len_bytes;
        if self.works.get(work).bounce.is_some() {
            let it = self.works.get(work);
            std::mem::swap(&mut it.guest, &mut ios[id].segments);
            it.guest.clear();
            if it.reads && is_done {
                let from: *const u8 = self.works.piece(work, 0, len).addr;
                // SAFETY: the user keeps the pieces mapped until the completion, which it has not
                // been told of; their total is the request's length, which the buffer holds, and
                // no guest has the buffer.
                unsafe { scatter(from, &ios[id].segments, Prefetch::NONE) };
                self.counters().bytes_copied.add(u64::from(len));
            }
        }
        let it = self.works.get(work);
        let pass = it.pass;
        let is_kept = is_done && !it.kept.is_empty();
        let discards = !is_kept && it.was > 0;
        // A cache that was closed meanwhile has forgotten the blocks, or will.
        if !(is_kept || discards) || !self.cache.gate.enter(self.index, pass) {
            return self.end_work(work, 0);
        }
        match is_kept {
            true => self.store(work),
            false => self.discard(work),
        }
    }

    /// Writes the kept blocks into the cache. The gate was entered.
    fn store(&mut self, work: SlotId) {
        let (at, offset_bytes, len_bytes) = self.works.get(work).bytes;
        let piece = self.works.piece(work, at, len_bytes);
        self.works.get(work).phase = WorkPhase::Storing;
        self.submit(work, Op::Write, (offset_bytes, len_bytes), Some(piece));
    }

    /// Discards all of its blocks in the cache. The gate was entered.
    fn discard(&mut self, work: SlotId) {
        let it = self.works.get(work);
        (it.phase, it.left) = (WorkPhase::Discarding, it.blocks);
        self.cache.map.note_discard(it.blocks);
        self.discard_next(work);
    }

    /// The next piece of them: a range that begins inside of a block has one block more than the
    /// longest discard.
    fn discard_next(&mut self, work: SlotId) {
        let it = self.works.get(work);
        let count = it.left.count.min(u64::from(RANGE_BYTES_MAX) / BLOCK_BYTES);
        let bytes = (it.left.first * BLOCK_BYTES, (count * BLOCK_BYTES) as u32);
        it.left = Blocks { first: it.left.first + count, count: it.left.count - count };
        self.submit(work, Op::Discard, bytes, None);
    }

    fn submit(&mut self, work: SlotId, op: Op, bytes: (u64, u32), piece: Option<Segment>) {
        let own = self.table.take().expect("a request for each of the cache's own");
        let io = &mut self.table[own];
        io.reset();
        (io.op, io.owner) = (op, OF_WORK | u64::from(work.to_u32()));
        (io.offset_bytes, io.len_bytes) = bytes;
        io.segments.extend(piece);
        self.channel.submit(&mut self.table, own);
    }

    /// The cache has ended a request: the user's read, if it was one.
    fn ended(&mut self, own: IoId, ios: &mut IoTable) -> Option<IoId> {
        let (owner, status) = (self.table[own].owner, self.table[own].status);
        let mut read = None;
        if owner & OF_WORK == 0 {
            let id = IoId::from_u32(owner as u32);
            std::mem::swap(&mut ios[id].segments, &mut self.table[own].segments);
            ios[id].status = status;
            read = Some(id);
        }
        self.table.free(own);
        if read.is_none() {
            self.worked(SlotId::from_u32(owner as u32), status);
        }
        // Last: the cache is not emptied while a block is being shown.
        self.cache.gate.leave(self.index);
        read
    }

    /// The cache has ended a request of its own.
    fn worked(&mut self, work: SlotId, status: Status) {
        let CacheWork { phase, kept, blocks, left, pass, reads, space, evicts, .. } =
            *self.works.get(work);
        let is_valid = self.cache.gate.is_valid(pass);
        match (phase, status) {
            (WorkPhase::Storing, Status::Done) if is_valid => {
                self.cache.map.show(kept);
                let counters = self.counters();
                if reads {
                    counters.fills.add(1)
                } else {
                    counters.updates.add(1)
                }
                self.end_work(work, kept.count);
            }
            (WorkPhase::Storing, _) if is_valid && self.cache.gate.enter(self.index, pass) => {
                self.counters().errors.add(1);
                self.discard(work);
            }
            (WorkPhase::Discarding, Status::Done)
                if !left.is_empty() && self.cache.gate.enter(self.index, pass) =>
            {
                self.discard_next(work);
            }
            (WorkPhase::Discarding, Status::Done) | (WorkPhase::Storing, _) => {
                if evicts {
                    self.counters().evicted_blocks.add(space);
                }
                self.end_work(work, 0);
            }
            (WorkPhase::Discarding | WorkPhase::Remote, _) => {
                self.counters().errors.add(1);
                self.cache.gate.fail(format!(
                    "its pool failed to discard block {} and {} more",
                    blocks.first,
                    blocks.count - 1
                ));
                self.end_work(work, 0);
            }
        }
    }

    /// Ends a request of the cache's own, of whose blocks so many have space from now on.
    fn end_work(&mut self, work: SlotId, shown: u64) {
        let CacheWork { blocks, space, pass, evicts, .. } = *self.works.get(work);
        // A cache that was closed counts anew.
        if space > shown && self.cache.gate.enter(self.index, pass) {
            self.cache.map.give_back(space - shown);
            self.cache.gate.leave(self.index);
        }
        self.cache.map.release(blocks);
        self.evictions -= u16::from(evicts);
        self.works.end(work);
    }

    /// Begins to make room.
    fn evict(&mut self, pass: Pass) {
        if self.evictions == EVICTIONS_MAX || !self.cache.gate.enter(self.index, pass) {
            return;
        }
        let work = self.works.begin();
        let victim = work.and_then(|_| self.cache.map.take_victim());
        let (Some(work), Some((blocks, count))) = (work, victim) else {
            work.into_iter().for_each(|work| self.works.end(work));
            return self.cache.gate.leave(self.index);
        };
        let it = self.works.get(work);
        (it.blocks, it.pass, it.evicts) = (blocks, pass, true);
        (it.space, it.was) = (count, count);
        self.evictions += 1;
        self.discard(work);
    }

    /// Whether the cache's answer to a read is right.
    fn is_right(&mut self, ios: &IoTable, id: IoId, hit: Hit) -> bool {
        let io = &ios[id];
        let blocks = Blocks::around(io.offset_bytes, u64::from(io.len_bytes));
        if io.status == Status::Done {
            return self.cache.gate.is_valid(hit.pass)
                && self.cache.map.discards(blocks) == hit.discards;
        }
        self.counters().errors.add(1);
        // Blocks that cannot be read go, and come again from the remote volume.
        self.give_up(blocks, hit.pass);
        false
    }

    /// Discards blocks, unless a request works on them.
    fn give_up(&mut self, blocks: Blocks, pass: Pass) {
        let Some(work) = self.works.begin() else { return };
        if !self.cache.map.acquire(blocks) {
            return self.works.end(work);
        }
        let was = self.cache.map.hide(blocks);
        let it = self.works.get(work);
        (it.blocks, it.pass, it.space, it.was) = (blocks, pass, was, was);
        match self.cache.gate.enter(self.index, pass) {
            true => self.discard(work),
            false => self.end_work(work, 0),
        }
    }
}

/// The blocks that the cache can keep of a write: all that it has in full, and blocks of which it
/// has a part if the cache has the rest.
fn kept_of(cache: &Cache, blocks: Blocks, offset: u64, len: u64) -> Blocks {
    let has = |block| cache.map.holds(Blocks { first: block, count: 1 });
    let (mut first, mut end) = (blocks.first, blocks.end());
    if !offset.is_multiple_of(BLOCK_BYTES) && !has(first) {
        first += 1;
    }
    let is_cut = end * BLOCK_BYTES > offset + len;
    if end > first && is_cut && !has(end - 1) {
        end -= 1;
    }
    debug_assert!(len.is_multiple_of(SECTOR_BYTES));
    Blocks { first, count: end.saturating_sub(first) }
}
