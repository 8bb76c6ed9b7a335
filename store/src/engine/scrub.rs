//! Scrubbing: all pages that the page tables refer to are read and proved, at a bounded rate, so
//! that damage is found while a backup is there.
//!
//! A pass goes through both tables in the order of numbers. A page that moves or is freed meanwhile
//! is no damage: the entry is looked up again before it counts. At the end the volumes are searched
//! for the damaged pages.
//!
//! Checkpoints keep a *point* of the pass, behind which all pages are settled, so the pass goes on
//! there when the pool is opened again.

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

/// Blocks of a page table between two points of a pass. At a point no page is being read.
const POINT_BLOCKS: u64 = 16;

/// Blocks of the page table in which aliases of damaged pages are looked for in a round.
const WIDENED_BLOCKS: u64 = 16;

/// Time after which a pass that has come to another point wants a checkpoint. A pass that is
/// interrupted repeats as much.
const SAVE_NS: u64 = 60_000_000_000;

/// A count that no pool reaches: a state with more is damaged or forged.
const COUNT_MAX: u64 = 1 << 48;

/// How fast a pass reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScrubPace {
    /// The most pages in a second.
    pub blocks_per_s_max: u64,
    /// The pass reads as slowly as it can to end within this time, of which only the time counts in
    /// which the pool is open. None: it reads as fast as it may.
    pub within_ns: Option<u64>,
}

impl ScrubPace {
    /// So many pages in a second.
    pub fn of(blocks_per_s: u64) -> Self {
        Self { blocks_per_s_max: blocks_per_s, within_ns: None }
    }

    fn page_ns_min(self) -> u64 {
        1_000_000_000 / self.blocks_per_s_max.clamp(1, 1_000_000_000)
    }
}

/// A pass as a checkpoint keeps it; or the result of the last pass, if none is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScrubState {
    status: ScrubStatus,
    pace: ScrubPace,
    /// Whether the pass is in the table of nodes, and its next block there.
    in_nodes: bool,
    block: u64,
    /// Damaged pages of guests, by their numbers.
    damaged: Vec<u64>,
}

impl ScrubState {
    /// Whether a pool can have written it.
    fn is_possible(&self) -> bool {
        let ScrubStatus { passes, checked_blocks, total_blocks, .. } = self.status;
        let ScrubStatus { unproved_blocks, damaged_blocks, damaged_map_blocks, .. } = self.status;
        let counts = [passes, checked_blocks, total_blocks, unproved_blocks];
        let damaged = [damaged_blocks, damaged_map_blocks];
        counts.into_iter().chain(damaged).all(|count| count < COUNT_MAX)
            && self.block < COUNT_MAX
            && self.status.found.len() <= FOUND_MAX
            && self.damaged.len() <= FOUND_MAX
    }
}

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
    /// Whether that pass rests until it is asked to go on.
    #[serde(default)]
    pub is_paused: bool,
    /// Passes that came to their end.
    pub passes: u64,
    /// Pages that were proved.
    pub checked_blocks: u64,
    /// Pages there were at the start, of guests and of the map.
    pub total_blocks: u64,
    /// Pages of encrypted volumes whose keys were not given: they were read and not proved.
    #[serde(default)]
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
    /// Looks for the aliases of damaged pages, from a block of the page table on.
    Widens(u64),
    /// Looks for damaged pages in the volumes that are left, from a block of the last one on.
    Searches(Vec<VolumeId>, u64),
}

/// Scrubs a pool.
#[derive(Debug, Default)]
pub(crate) struct Scrubber {
    step: ScrubStep,
    pace: ScrubPace,
    /// When the pass must have ended.
    deadline_ns: Option<u64>,
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
    /// The last point of the pass.
    point: ScrubState,
    /// A checkpoint is due: at once, or at a time.
    is_unsaved: bool,
    save_at_ns: u64,
    /// The pool is being closed.
    is_closing: bool,
}

impl Scrubber {
    /// Goes on with the pass that a checkpoint has. A state that is not possible is forgotten.
    pub(crate) fn resumed(state: Option<ScrubState>, now_ns: u64) -> Self {
        let Some(mut state) = state.filter(ScrubState::is_possible) else {
            return Self::default();
        };
        let mut scrubber = Self::default();
        if state.status.is_running {
            // They are searched for again.
            state.status.found.clear();
            let table = if state.in_nodes { TableKind::Nodes } else { TableKind::Data };
            scrubber.step = ScrubStep::Reads(table, state.block);
            scrubber.set_pace(state.pace, now_ns);
            scrubber.save_at_ns = now_ns.saturating_add(SAVE_NS);
        }
        scrubber.damaged.clone_from(&state.damaged);
        scrubber.status = state.status.clone();
        scrubber.point = state;
        scrubber
    }

    /// Begins a pass; or has the pass under way go on, at this pace or its own.
    pub(crate) fn start(&mut self, core: &EngineCore, pace: Option<ScrubPace>) {
        if !self.status.is_running {
            self.step = ScrubStep::Reads(TableKind::Data, 0);
            self.damaged.clear();
            self.status = ScrubStatus {
                is_running: true,
                passes: self.status.passes,
                total_blocks: core.map.stored_pages() + core.map.used_nodes(),
                ..ScrubStatus::default()
            };
            self.note_point(TableKind::Data, 0);
            self.set_pace(pace.unwrap_or_default(), core.now_ns);
        } else if let Some(pace) = pace {
            self.set_pace(pace, core.now_ns);
        }
        self.status.is_paused = false;
        self.is_unsaved = true;
        self.next_ns = core.now_ns;
    }

    fn set_pace(&mut self, pace: ScrubPace, now_ns: u64) {
        self.pace = pace;
        self.page_ns = pace.page_ns_min();
        self.next_ns = now_ns;
        self.deadline_ns = pace.within_ns.map(|within_ns| now_ns.saturating_add(within_ns));
    }

    /// The pass rests, until it is started again.
    pub(crate) fn pause(&mut self) {
        if self.status.is_running {
            self.status.is_paused = true;
            self.is_unsaved = true;
        }
    }

    /// Ends the pass early.
    pub(crate) fn stop(&mut self) {
        self.is_unsaved |= self.status.is_running;
        self.step = ScrubStep::Rests;
        self.pages.clear();
        self.suspects.clear();
        self.status.is_running = false;
        self.status.is_paused = false;
    }

    /// Reads nothing more, since the pool is being closed: its last checkpoint keeps the pass.
    pub(crate) fn close(&mut self) {
        self.is_closing = true;
        self.is_unsaved |= self.status.is_running;
    }

    /// Whether a pass goes on.
    pub(crate) fn works(&self) -> bool {
        self.status.is_running && !self.status.is_paused && !self.is_closing
    }

    /// Whether the next round wants a checkpoint.
    pub(crate) fn is_unsaved(&self) -> bool {
        self.is_unsaved
    }

    /// The state that a checkpoint should have, if the last one has an old state for too long.
    pub(crate) fn unsaved(&mut self, now_ns: u64) -> Option<ScrubState> {
        let is_due = self.status.is_running && now_ns >= self.save_at_ns;
        if !self.is_unsaved && !is_due {
            return None;
        }
        self.is_unsaved = false;
        self.save_at_ns = now_ns.saturating_add(SAVE_NS);
        let mut state = ScrubState { status: self.status.clone(), ..ScrubState::default() };
        if self.status.is_running {
            let ScrubStatus { is_running, is_paused, .. } = self.status;
            state = self.point.clone();
            state.status = ScrubStatus { is_running, is_paused, ..state.status };
            let within_ns = self.deadline_ns.map(|deadline_ns| deadline_ns.saturating_sub(now_ns));
            state.pace = ScrubPace { within_ns, ..self.pace };
        }
        Some(state)
    }

    /// All pages before this block are settled.
    fn note_point(&mut self, kind: TableKind, block: u64) {
        self.point = ScrubState {
            status: self.status.clone(),
            in_nodes: kind == TableKind::Nodes,
            block,
            damaged: self.damaged.clone(),
            ..ScrubState::default()
        };
    }

    /// Whether the pass is at a point, or could be if nothing were under way.
    fn is_at_point(&self, kind: TableKind, block: u64) -> bool {
        (self.point.in_nodes, self.point.block) == (kind == TableKind::Nodes, block)
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
        if !self.works() {
            return;
        }
        match std::mem::take(&mut self.step) {
            ScrubStep::Rests => {}
            ScrubStep::Reads(kind, index) => self.read(core, kind, index),
            ScrubStep::Widens(index) => self.widen(core, index),
            ScrubStep::Searches(volumes, start) => self.search(core, volumes, start),
        }
    }

    fn read(&mut self, core: &mut EngineCore, kind: TableKind, mut index: u64) {
        let now_ns = core.now_ns;
        self.next_ns = self.next_ns.max(now_ns.saturating_sub(CATCH_UP_NS));
        while self.under_way < READS_MAX && self.next_ns <= now_ns {
            let Some((number, entry)) = self.pages.pop() else {
                if index >= core.map.table_blocks(kind) {
                    self.step = self.end_of(kind, index);
                    return;
                }
                if index.is_multiple_of(POINT_BLOCKS) && !self.is_at_point(kind, index) {
                    if self.under_way > 0 || !self.suspects.is_empty() {
                        break;
                    }
                    self.note_point(kind, index);
                }
                self.keep_deadline(core, kind, index);
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
    fn end_of(&mut self, kind: TableKind, index: u64) -> ScrubStep {
        if self.under_way > 0 || !self.suspects.is_empty() {
            return ScrubStep::Reads(kind, index);
        }
        if kind == TableKind::Data {
            self.note_point(TableKind::Nodes, 0);
            return ScrubStep::Reads(TableKind::Nodes, 0);
        }
        self.note_point(TableKind::Nodes, index);
        ScrubStep::Widens(0)
    }

    /// A damaged page costs its aliases as well: their blocks are found with the others.
    fn widen(&mut self, core: &mut EngineCore, mut index: u64) {
        let has_aliases = !self.damaged.is_empty() && core.map.shared().aliases > 0;
        let end = if has_aliases { core.map.table_blocks(TableKind::Data) } else { 0 };
        for _ in 0..WIDENED_BLOCKS {
            if index >= end || self.damaged.len() >= FOUND_MAX {
                self.step = self.begin_search(core);
                return;
            }
            match core.map.aliases_in(index, &self.damaged) {
                Err(MapError::Missing) => break,
                Ok(aliases) => self.damaged.extend(aliases),
                Err(MapError::Damaged) => {}
            }
            index += 1;
        }
        self.damaged.truncate(FOUND_MAX);
        self.step = ScrubStep::Widens(index);
    }

    fn begin_search(&mut self, core: &EngineCore) -> ScrubStep {
        self.damaged.truncate(FOUND_MAX);
        let visible = core.map.volumes().into_iter();
        let visible = visible.filter(|volume| volume.kind != PoolVolumeKind::Removing);
        ScrubStep::Searches(visible.map(|volume| volume.id).collect(), 0)
    }

    /// Shares the time that is left among the pages that are left: the pool's pages are spread over
    /// the blocks of both tables.
    fn keep_deadline(&mut self, core: &EngineCore, kind: TableKind, index: u64) {
        let Some(deadline_ns) = self.deadline_ns else { return };
        let blocks = [TableKind::Data, TableKind::Nodes].map(|kind| core.map.table_blocks(kind));
        let passed = if kind == TableKind::Nodes { blocks[0] + index } else { index };
        let all = blocks[0] + blocks[1];
        let left = u128::from(all.saturating_sub(passed));
        let pages = u128::from(core.map.stored_pages() + core.map.used_nodes());
        let left = (pages * left / u128::from(all.max(1))).max(1) as u64;
        let page_ns = deadline_ns.saturating_sub(core.now_ns) / left;
        self.page_ns = page_ns.max(self.pace.page_ns_min());
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
                Ok(entry) if entry.is_same_page(&page.entry) => self.count_damaged(core, page),
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
