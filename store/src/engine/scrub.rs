//! Scrubbing: all pages that the page tables refer to are read and proved, at a bounded rate, so
//! that damage is found while a backup is there.
//!
//! A pass goes through both tables in the order of numbers. A page that moves or is freed meanwhile
//! is no damage: the entry is looked up again before it counts. At the end the volumes are searched
//! for the damaged pages.

use serde::{Deserialize, Serialize};

use super::core::{EngineCore, IoPurpose, ScrubPage};
use super::reads::is_whole;
use crate::api::{PoolDeviceError, VolumeId};
use crate::block::BlockBuffer;
use crate::format::{PageEntry, TableKind, TagDomain, tag_crc};
use crate::map::{MapError, PoolVolumeKind};

/// The most reads of a pass at once: a device has room for guests beside them.
const READS_MAX: usize = 8;

/// Time that a pass may catch up after a pause.
const CATCH_UP_NS: u64 = 10_000_000;

/// The most damaged pages, and the most blocks that have one, of which a pass says the place.
const FOUND_MAX: usize = 64;

/// A block whose content is damaged on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedBlock {
    /// The volume or snapshot; others may share the page.
    pub volume: VolumeId,
    /// The block.
    pub block: u64,
}

/// The pass under way, or the last one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// Whether a pass is under way.
    pub is_running: bool,
    /// Passes that came to their end since the pool was opened.
    pub passes: u64,
    /// Pages that were proved.
    pub checked_blocks: u64,
    /// Pages there were at the start, of guests and of the map.
    pub total_blocks: u64,
    /// Pages of encrypted volumes whose keys were not given: they were read and not proved.
    pub unproved_blocks: u64,
    /// Damaged pages of guests.
    pub damaged_blocks: u64,
    /// Damaged pages of the map.
    pub damaged_map_blocks: u64,
    /// The first blocks of volumes and snapshots that have damaged pages, at the end of the pass.
    pub found: Vec<DamagedBlock>,
}

#[derive(Debug, Default)]
enum ScrubStep {
    #[default]
    Rests,
    /// Reads the pages of a block of a page table, then the next block.
    Reads(TableKind, u64),
    /// Looks for damaged pages in the volumes that are left, from a block of the last one on.
    Searches(Vec<VolumeId>, u64),
}

/// Scrubs a pool.
#[derive(Debug, Default)]
pub(crate) struct Scrubber {
    step: ScrubStep,
    /// The time for a page.
    page_ns: u64,
    next_ns: u64,
    /// Pages of the block of the table, to be read.
    pages: Vec<(u64, PageEntry)>,
    under_way: usize,
    /// Pages that did not match twice.
    suspects: Vec<ScrubPage>,
    /// Damaged pages of guests, by their numbers.
    damaged: Vec<u64>,
    status: ScrubStatus,
}

impl Scrubber {
    /// Begins a pass, or changes the rate of the pass under way.
    pub(crate) fn start(&mut self, core: &EngineCore, blocks_per_s: u64) {
        self.page_ns = 1_000_000_000 / blocks_per_s.clamp(1, 1_000_000_000);
        self.next_ns = core.now_ns;
        if !matches!(self.step, ScrubStep::Rests) {
            return;
        }
        self.step = ScrubStep::Reads(TableKind::Data, 0);
        self.damaged.clear();
        self.status = ScrubStatus {
            is_running: true,
            passes: self.status.passes,
            total_blocks: core.map.used_pages() + core.map.used_nodes(),
            ..ScrubStatus::default()
        };
    }

    /// Ends the pass early.
    pub(crate) fn stop(&mut self) {
        self.step = ScrubStep::Rests;
        self.pages.clear();
        self.suspects.clear();
        self.status.is_running = false;
    }

    /// Whether a pass is under way.
    pub(crate) fn is_running(&self) -> bool {
        self.status.is_running
    }

    /// The pass under way, or the last one.
    pub(crate) fn status(&self) -> &ScrubStatus {
        &self.status
    }

    /// Goes on: some reads, or the search in one leaf.
    pub(crate) fn poll(&mut self, core: &mut EngineCore) {
        if core.failed.is_some() {
            self.stop();
        }
        self.look_up_suspects(core);
        match std::mem::take(&mut self.step) {
            ScrubStep::Rests => {}
            ScrubStep::Reads(kind, index) => self.read(core, kind, index),
            ScrubStep::Searches(volumes, start) => self.search(core, volumes, start),
        }
    }

    fn read(&mut self, core: &mut EngineCore, kind: TableKind, mut index: u64) {
        let now_ns = core.now_ns;
        self.next_ns = self.next_ns.max(now_ns.saturating_sub(CATCH_UP_NS));
        while self.under_way < READS_MAX && self.next_ns <= now_ns {
            let Some((number, entry)) = self.pages.pop() else {
                if index == core.map.table_blocks(kind) {
                    self.step = self.end_of(core, kind, index);
                    return;
                }
                match core.map.pages_of(kind, index) {
                    Ok(pages) => self.pages = pages,
                    Err(MapError::Missing) => break,
                    Err(MapError::Damaged) => self.status.damaged_map_blocks += 1,
                }
                index += 1;
                // A block without pages takes its time as well, so that a round has an end.
                self.next_ns += self.page_ns;
                continue;
            };
            // The page may have moved since its block of the table was looked at.
            let now = core.map.entry_of(kind, number);
            if now == Err(MapError::Missing) {
                self.pages.push((number, entry));
                break;
            }
            self.next_ns += self.page_ns;
            if let Ok(entry) = now
                && entry.place().is_some()
            {
                self.submit(core, ScrubPage { kind, number, entry, is_second: false });
            }
        }
        self.step = ScrubStep::Reads(kind, index);
    }

    /// The step behind the last block of a table, once all of its pages are known.
    fn end_of(&mut self, core: &EngineCore, kind: TableKind, index: u64) -> ScrubStep {
        if self.under_way > 0 || !self.suspects.is_empty() {
            return ScrubStep::Reads(kind, index);
        }
        if kind == TableKind::Data {
            return ScrubStep::Reads(TableKind::Nodes, 0);
        }
        let visible = core.map.volumes().into_iter();
        let visible = visible.filter(|volume| volume.kind != PoolVolumeKind::Removing);
        ScrubStep::Searches(visible.map(|volume| volume.id).collect(), 0)
    }

    fn submit(&mut self, core: &mut EngineCore, page: ScrubPage) {
        let Some(place) = core.segments.place_of(&page.entry) else {
            self.suspects.push(page);
            return;
        };
        self.under_way += 1;
        core.segments.pin(place.segment);
        let span = page.entry.span();
        let buffer = core.buffer(span as usize);
        core.submit_read(place, buffer, span, IoPurpose::Scrub(page));
    }

    /// A device's answer for a page.
    pub(crate) fn answered(
        &mut self,
        core: &mut EngineCore,
        page: ScrubPage,
        buffer: Option<BlockBuffer>,
        result: Result<(), PoolDeviceError>,
    ) {
        let mut buffer = buffer.expect("a read's buffer comes back");
        let key = core.key_of(&page.entry);
        let is_sealed = page.kind == TableKind::Data && page.entry.seal().is_some();
        let is_unproved = is_sealed && key.is_none() && result.is_ok();
        let is_page = if is_sealed {
            let block = &mut buffer.blocks_mut()[0];
            is_whole(&core.uuid, key.as_deref(), page.number, &page.entry, block)
        } else {
            let domain = match page.kind {
                TableKind::Data => TagDomain::Data,
                TableKind::Nodes => TagDomain::Node,
            };
            // The stored bytes are proved, packed or not.
            let content = page.entry.bytes_in(buffer.blocks());
            let sequence = page.entry.sequence.get();
            tag_crc(&core.uuid, domain, page.number, sequence, content) == page.entry.crc.get()
        };
        let is_whole = result.is_ok() && is_page;
        let place = page.entry.place().expect("a page that was read has a place");
        core.recycle(buffer);
        core.segments.unpin(place.segment);
        self.under_way -= 1;
        if is_unproved {
            self.status.unproved_blocks += 1;
        } else if is_whole {
            self.status.checked_blocks += 1;
        } else if page.is_second {
            self.suspects.push(page);
        } else {
            self.submit(core, ScrubPage { is_second: true, ..page });
        }
    }

    /// A page that does not match is damaged if its entry is still the same.
    fn look_up_suspects(&mut self, core: &mut EngineCore) {
        for page in std::mem::take(&mut self.suspects) {
            match core.map.entry_of(page.kind, page.number) {
                Err(MapError::Missing) => self.suspects.push(page),
                Ok(entry) if entry == page.entry => self.count_damaged(core, page),
                Ok(_) | Err(MapError::Damaged) => {}
            }
        }
    }

    fn count_damaged(&mut self, core: &mut EngineCore, page: ScrubPage) {
        core.counters.damaged_blocks += 1;
        match page.kind {
            TableKind::Nodes => self.status.damaged_map_blocks += 1,
            TableKind::Data => {
                self.status.damaged_blocks += 1;
                if self.damaged.len() < FOUND_MAX {
                    self.damaged.push(page.number);
                }
            }
        }
    }

    fn search(&mut self, core: &mut EngineCore, mut volumes: Vec<VolumeId>, start: u64) {
        let volume = volumes.last().copied();
        let volume = volume.filter(|_| !self.damaged.is_empty() && self.has_room());
        let Some(volume) = volume else {
            self.stop();
            self.status.passes += 1;
            return;
        };
        let found = &mut self.status.found;
        let mut push = |block| {
            if found.len() < FOUND_MAX {
                found.push(DamagedBlock { volume, block });
            }
        };
        let next = match core.map.blocks_of(volume, &self.damaged, start, &mut push) {
            Err(_) => Some(start),
            Ok(next) => next,
        };
        if next.is_none() {
            volumes.pop();
        }
        self.step = ScrubStep::Searches(volumes, next.unwrap_or(0));
    }

    fn has_room(&self) -> bool {
        self.status.found.len() < FOUND_MAX
    }
}
