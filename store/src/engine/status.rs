//! The state of a pool, for people and programs.

use serde::{Deserialize, Serialize};

use super::PoolEngine;
use super::core::PoolCounters;
use super::devices::PoolDevice;
use super::scrub::ScrubStatus;
use super::segments::SegmentCounts;

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
    /// The state of the pool.
    pub fn status(&self) -> PoolStatus {
        let core = &self.core;
        let (packed_pages, packed_blocks) = core.segments.packed();
        PoolStatus {
            size_blocks: core.usable_blocks(),
            used_blocks: core.segments.live(),
            data_blocks: core.map.used_pages(),
            packed_pages,
            packed_blocks,
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
}
