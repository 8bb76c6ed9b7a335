//! Segments that are free without a checkpoint.
//!
//! The durable checkpoint refers to pages in a segment, and rows behind it have freed or moved all
//! of these. A recovery reads none of them: it reads the map's pages and the log, and both are in
//! other segments. So the segment may be written again as soon as those rows are durable. A
//! checkpoint would cost a write of nearly all dirty pages of the map.

use super::PoolEngine;
use crate::format::SegmentId;

/// Segments that will be free when rows are durable.
#[derive(Debug, Default)]
pub(super) struct EarlySegments {
    waiting: Vec<SegmentId>,
    /// The last row that may have emptied such a segment.
    up_to: u64,
}

impl EarlySegments {
    /// Whether segments wait for a sync.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }
}

impl PoolEngine {
    /// Frees segments that the log has emptied, when space is short.
    pub(super) fn release_early(&mut self) {
        let Self { core, early, checkpointer, .. } = self;
        // A checkpoint under way frees what is empty at its cut.
        if checkpointer.is_busy() || self.is_closing || core.segments.has_leaving() {
            early.waiting.clear();
            return;
        }
        if early.is_waiting() {
            if core.durable < early.up_to {
                return;
            }
            core.segments.release_early(&early.waiting, core.checkpointed);
            early.waiting.clear();
        }
        // A row that is applied in part may have emptied a segment.
        if !self.is_short() || self.core.log.is_inside_row() {
            return;
        }
        let Self { core, early, .. } = self;
        early.waiting.extend(core.segments.emptied_by_log(core.checkpointed));
        early.up_to = core.applied;
        if early.is_waiting() && core.durable < early.up_to {
            core.syncs.ticket();
        }
    }
}
