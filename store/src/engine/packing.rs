//! Packing while the pool is idle: pages of volumes with a compression move through the codec,
//! segment by segment. Without it, a pool that never has to collect would never compress.

use super::core::EngineCore;
use crate::format::SegmentId;

/// The time without a request after which the pool is idle.
const IDLE_NS: u64 = 50_000_000;

/// A walk over the segments whose last rows are behind `from`, up to `to`.
#[derive(Clone, Copy, Debug)]
struct PackPass {
    from: u64,
    to: u64,
    /// The last segment that was packed.
    at: Option<SegmentId>,
}

/// Whether an idle pool looks at pages, and how often the reasons for it have changed.
fn wishes(core: &EngineCore) -> (bool, u64) {
    let (compressions, changes) = core.map.compressions();
    (compressions > 0 || core.contents.is_on(), changes + core.contents.changes())
}

/// Chooses the segments that are packed.
#[derive(Debug, Default)]
pub(crate) struct IdlePacking {
    pass: Option<PackPass>,
    /// Segments whose last row is not behind this sequence have been walked over.
    done: u64,
    /// Blocks that guests had written when the last pass began.
    written: u64,
    /// Changes of volumes' compressions that it has seen.
    changes: u64,
    idle_since_ns: Option<u64>,
}

impl IdlePacking {
    /// Whether the pool has had no request for a while; `has_requests` says whether it has some.
    pub(crate) fn is_idle(&mut self, core: &EngineCore, has_requests: bool) -> bool {
        if has_requests {
            self.idle_since_ns = None;
            return false;
        }
        let since = *self.idle_since_ns.get_or_insert(core.now_ns);
        core.now_ns.saturating_sub(since) >= IDLE_NS
    }

    /// Whether there is something to walk over.
    pub(crate) fn is_due(&self, core: &EngineCore) -> bool {
        let (wanted, changes) = wishes(core);
        // Less than half a segment is not worth a walk of its own.
        let written = core.counters.guest_blocks - self.written;
        let has_news = written > u64::from(core.segments.segment_blocks()) / 2;
        let is_first = self.done == 0;
        wanted && (self.pass.is_some() || self.changes != changes || has_news || is_first)
    }

    /// The segment that comes next, if the walk is due and not at its end.
    pub(crate) fn next(&mut self, core: &EngineCore) -> Option<SegmentId> {
        if !self.is_due(core) {
            return None;
        }
        let (_, changes) = wishes(core);
        if self.changes != changes {
            (self.changes, self.done, self.pass) = (changes, 0, None);
        }
        let (from, to) = (self.done, core.applied);
        let pass = *self.pass.get_or_insert_with(|| {
            self.written = core.counters.guest_blocks;
            PackPass { from, to, at: None }
        });
        let next = core.segments.next_written(pass.at, pass.from, pass.to);
        if next.is_none() {
            // A pool without a row has been walked over as well.
            self.done = pass.to.max(1);
            self.pass = None;
        }
        next
    }

    /// Segments that the walk has come past, of all of the pool.
    pub(crate) fn walked(&self, core: &EngineCore) -> usize {
        match self.pass {
            _ if !self.is_due(core) => core.segments.total(),
            Some(PackPass { at: Some(at), .. }) => core.segments.position(at) + 1,
            _ => 0,
        }
    }

    /// A segment was packed to its end.
    pub(crate) fn packed(&mut self, segment: SegmentId) {
        if let Some(pass) = &mut self.pass {
            pass.at = Some(segment);
        }
    }
}
