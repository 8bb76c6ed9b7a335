//! The work of a pool beside requests: when a checkpoint is due, a segment is collected or packed,
//! and pages are sealed anew.

use super::PoolEngine;
use super::collect::PackPace;
use super::rows::RowStream;

/// Free segments above the floor of guests below which a checkpoint frees even a single segment.
const FREE_URGENT: usize = 4;

/// Blocks that a checkpoint for space frees, for each page of the map that it writes.
const CHECKPOINT_GAIN: usize = 2;

/// The part of the pool that waits for such a checkpoint at most.
const WAITING_PART: usize = 16;

/// The part of the pool's room, beyond what is alive, that waits for it at most.
const WAITING_SLACK_PART: usize = 2;

/// Checkpoints for space in a row that gain none, before collection rests until guests write: the
/// first frees collected segments, the second the pages of the map that the first has replaced.
const FUTILE_CHECKPOINTS_MAX: u32 = 4;

/// Times that collection goes around all segments and gains none, before it rests.
const FUTILE_ROUNDS_MAX: usize = 2;

impl PoolEngine {
    pub(super) fn checkpoint_if_due(&mut self) {
        let is_long = self.core.log.blocks >= self.options.log_blocks_max;
        let is_dirty = self.core.map.dirty_blocks() > self.options.cache_blocks / 2;
        let is_last = self.is_closing && !self.is_working() && self.core.log.blocks > 0;
        // Moves and removals wait at this floor. A checkpoint with fewer dirty pages needs fewer
        // segments, which lowers the floor, and it frees those that are empty.
        let has_log = self.core.log.blocks > 0 || self.core.map.dirty_blocks() > 0;
        // Collection goes on below it: a checkpoint for each of its rows would take what it gains.
        let collects = self.collector.has_victim() && self.core.has_free_for_collection(2);
        let is_low = self.core.segments.sure_count() <= self.core.moved_floor() + 1;
        let is_short = has_log && is_low && !collects;
        if is_long || is_dirty || is_last || is_short {
            self.checkpointer.want_once();
        }
    }

    /// Has a checkpoint keep how far the pass over all pages is.
    pub(super) fn save_scrub(&mut self) {
        if let Some(state) = self.scrubber.unsaved(self.core.now_ns) {
            self.core.scrub = Some(state);
            self.scrub_saved_by = self.checkpointer.next_number();
            self.checkpointer.want();
        }
    }

    /// Free segments below which collection works.
    pub(super) fn free_target(&self) -> usize {
        let ahead = (self.core.segments.total() / 64).max(4);
        self.core.guest_floor() + ahead + self.checkpoint_batch()
    }

    /// Whether collection works for space. Free segments of a device that is left do not count.
    pub(super) fn is_short(&self) -> bool {
        self.core.segments.free_staying() < self.free_target()
    }

    /// Segments that wait for a checkpoint before it is worth its price, unless guests wait. A pool
    /// that is nearly full has no room to let many of them wait.
    fn checkpoint_batch(&self) -> usize {
        let (total, blocks) = (self.core.segments.total(), self.core.segments.segment_blocks());
        let slack = self.core.usable_blocks().saturating_sub(self.core.segments.live());
        let slack = (slack / u64::from(blocks)) as usize;
        let worth = CHECKPOINT_GAIN * self.core.map.dirty_blocks() / blocks as usize;
        let most = (total / WAITING_PART).min(slack / WAITING_SLACK_PART);
        worth.min(most).max(total / 64).max(1)
    }

    pub(super) fn collect(&mut self) {
        let free = self.core.segments.free_staying();
        let rows = self.core.rewritten();
        let is_short = self.is_short() && self.core.failed.is_none();
        let rests = self.rests_at == Some(rows);
        if is_short && !self.collector.is_busy() && !self.checkpointer.is_busy() && !rests {
            self.begin_collection(free, rows);
        }
        let pace = self.pack(is_short);
        let before = self.collector.moves_under_way;
        if !self.core.is_halted {
            self.collector.poll(&mut self.core, pace);
        }
        // A row of moves stays open until it is full, unless nothing more comes.
        let waits =
            self.collector.moves_under_way == before && !self.collector.is_looking(&self.core);
        if waits || !self.collector.has_victim() {
            self.core.close_row(RowStream::Moved);
        }
    }

    /// Pages of encrypted volumes are sealed anew, and an old key is forgotten at the end.
    pub(super) fn reseal(&mut self) {
        if self.is_closing {
            self.resealer.stop();
            return;
        }
        // The last page under an old key may go by a guest's write or by a removal.
        if self.core.map.take_lost_context() {
            self.resealer.wake();
        }
        if !self.resealer.is_busy() || self.core.is_halted {
            return;
        }
        if let Some(change) = self.resealer.poll(&mut self.core)
            && self.admits_change()
            && let Ok(volume) = self.core.map.check(&change)
        {
            self.push_change(None, volume, change);
        }
    }

    /// Begins to pack a segment if the pool is idle and has room.
    fn pack(&mut self, is_short: bool) -> PackPace {
        if let Some(segment) = self.collector.take_packed() {
            self.packing.packed(segment);
        }
        if is_short || self.is_closing || self.core.failed.is_some() {
            return PackPace::Ends;
        }
        let has_requests = self.requests.len() > 0
            || self.reads.len() > 0
            || self.parts.len() > 0
            || self.differences.len() > 0;
        if !self.packing.is_idle(&self.core, has_requests) {
            return PackPace::Waits;
        }
        if !self.collector.is_busy()
            && !self.checkpointer.is_busy()
            && let Some(segment) = self.packing.next(&self.core)
        {
            self.collector.begin_packing(&mut self.core, segment);
        }
        PackPace::Goes
    }

    /// Segments are short: another one is collected, or a checkpoint frees those that are empty.
    fn begin_collection(&mut self, free: usize, rows: u64) {
        let coming = self.core.segments.coming(self.core.applied);
        // More than ever since the guests' last row: the count goes up and down by the segments
        // of the checkpoints themselves.
        let (most, rows_before) = self.space_before;
        if rows != rows_before || free > most {
            (self.futile_checkpoints, self.futile_victims) = (0, 0);
            self.space_before = (free, rows);
        }
        let gains = self.futile_victims < FUTILE_ROUNDS_MAX * self.core.segments.total();
        if !self.is_closing && gains && free + coming < self.free_target() {
            self.collector.begin(&mut self.core);
        }
        if self.collector.has_victim() {
            self.futile_victims += 1;
            return;
        }
        if self.early.is_waiting() {
            return;
        }
        // A checkpoint frees empty segments, and cleans the pages that hold collection up. It has
        // a price, so it waits until some segments are empty, unless guests wait for them.
        let is_urgent = free < self.core.guest_floor() + FREE_URGENT;
        let batch = self.checkpoint_batch();
        let helps = match is_urgent {
            true => coming > 0 || self.core.log.blocks > 0,
            false => coming >= batch,
        };
        if helps && self.futile_checkpoints < FUTILE_CHECKPOINTS_MAX {
            self.futile_checkpoints += 1;
            self.checkpointer.want_once();
        } else {
            self.futile_checkpoints = 0;
            self.rests_at = Some(rows);
            // Dirty pages hold segments back for their checkpoint: a pool rests without them.
            if is_urgent && self.core.map.dirty_blocks() > 0 {
                self.checkpointer.want_once();
            }
        }
    }
}
