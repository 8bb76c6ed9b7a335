//! The state of a pool, for people and programs.

use serde::{Deserialize, Serialize};

use super::PoolEngine;
use super::core::PoolCounters;
use super::devices::PoolDevice;
use super::scrub::ScrubStatus;
use super::segments::SegmentCounts;
use crate::api::{QuotaWait, VolumeId};
use crate::map::SharedPages;

/// The search for pages with the same content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupStatus {
    /// Whether pages are looked for.
    pub is_on: bool,
    /// Pages whose content is in the index.
    pub index_pages: u64,
    /// The most that it has room for.
    pub index_pages_max: u64,
    /// Segments that the walk of the idle pool has come past, of all; the number of all when no
    /// walk is due.
    pub walked_segments: u64,
}

/// The state of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Blocks that volumes, snapshots and the map can have together.
    pub size_blocks: u64,
    /// Blocks that are alive: guests' pages and the map.
    pub used_blocks: u64,
    /// Guests' pages, which may take less than a block each.
    pub data_blocks: u64,
    /// Those that are packed.
    pub packed_pages: u64,
    /// Blocks that the packed pages take, with the heads of their rows.
    pub packed_blocks: u64,
    /// Pages that share their content.
    pub shared: SharedPages,
    /// The search for pages with the same content.
    pub dedup: DedupStatus,
    /// Moments of volumes' histories, with those that are being removed.
    pub moments: u64,
    /// Segments of each sort.
    pub segments: SegmentCounts,
    /// The devices.
    pub devices: Vec<PoolDevice>,
    /// Blocks of a segment.
    pub segment_blocks: u32,
    /// Writes wait for room.
    pub is_full: bool,
    /// The host has no space under a device.
    pub no_space: bool,
    /// The device error that stopped changes.
    pub failed: Option<String>,
    /// The durable checkpoint.
    pub checkpoint: u64,
    /// Blocks of rows since then, which a recovery would read.
    pub log_blocks: u64,
    /// Pages of the map in memory.
    pub cached_blocks: u64,
    /// Those that changed since the checkpoint.
    pub dirty_blocks: u64,
    /// Whether a removed volume or snapshot is being freed.
    pub is_removing: bool,
    /// Whether a segment is being collected.
    pub is_collecting: bool,
    /// The last pass over all pages.
    pub scrub: ScrubStatus,
    /// Counts since the pool was opened.
    pub counters: PoolCounters,
}

impl PoolEngine {
    fn dedup_status(&self) -> DedupStatus {
        let (index_pages, index_pages_max) = self.core.contents.pages();
        let is_on = self.core.contents.is_on();
        let walked_segments = if is_on { self.packing.walked(&self.core) as u64 } else { 0 };
        DedupStatus { is_on, index_pages, index_pages_max, walked_segments }
    }

    /// The state of the pool.
    pub fn status(&self) -> PoolStatus {
        let core = &self.core;
        let (packed_pages, packed_blocks) = core.segments.packed();
        PoolStatus {
            size_blocks: core.usable_blocks(),
            used_blocks: core.segments.live(),
            data_blocks: core.map.used_pages() - core.map.shared().kept.min(core.map.used_pages()),
            packed_pages,
            packed_blocks,
            shared: core.map.shared(),
            dedup: self.dedup_status(),
            moments: core.map.moments() as u64,
            segments: core.segments.counts(core.applied),
            devices: self.devices(),
            segment_blocks: core.segments.segment_blocks(),
            is_full: core.no_space || !core.has_room(self.refused_blocks.max(1)),
            no_space: core.no_space,
            failed: core.failed.map(|error| error.to_string()),
            checkpoint: self.checkpointer.number(),
            log_blocks: core.log.blocks,
            cached_blocks: core.map.cached_blocks() as u64,
            dirty_blocks: core.map.dirty_blocks() as u64,
            is_removing: core.map.has_removal(),
            is_collecting: self.collector.is_busy(),
            scrub: self.scrubber.status().clone(),
            counters: core.counters,
        }
    }

    /// The reason for which a volume's last write was refused, as long as it would be refused
    /// again.
    pub fn quota_wait(&self, volume: VolumeId) -> Option<QuotaWait> {
        self.core.map.wait_of(volume, self.core.room())
    }
}
