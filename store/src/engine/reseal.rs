//! Sealing anew: when a family has another data key, its pages are opened with the old one and
//! sealed with the new one, in the background. The old key is forgotten when no page needs it.
//!
//! A walk goes through the page table in the order of numbers, as a scrub does. A page that is
//! written, moved or freed meanwhile is left alone: its record has no effect then. How far it is
//! follows from the counts of pages that each seal context has, so a walk needs no place of its
//! own in the pool's state, and another opening begins another walk.

use std::collections::VecDeque;

use super::collect::may_move;
use super::core::{EngineCore, IoPurpose, ResealPage};
use super::reads::is_whole;
use super::rows::{RecordOwner, RowStream};
use crate::api::{PoolChange, PoolDeviceError, VolumeId};
use crate::block::BlockBuffer;
use crate::format::{LogRecord, PageEntry, SealTag, TableKind};
use crate::map::MapError;

/// The most pages that are read or wait to be sealed at once: guests have room beside them.
const PAGES_MAX: usize = 16;

/// Blocks of the page table in a round that have no page of the family.
const TABLE_BLOCKS_MAX: usize = 64;

/// So many walks in a row that gained nothing are the last ones until something has changed.
const FUTILE_MAX: u32 = 4;

#[derive(Clone, Copy, Debug, Default)]
enum ResealStep {
    #[default]
    Rests,
    /// Looks at the blocks of the page table from this one on.
    Walks {
        family: u32,
        volume: VolumeId,
        index: u64,
        /// Pages of the family under old keys when the walk began.
        old: u64,
    },
}

/// Seals pages anew.
#[derive(Debug, Default)]
pub(crate) struct Resealer {
    step: ResealStep,
    /// A family may have pages under an old key.
    is_awake: bool,
    /// Walks in a row that have left as many pages under an old key as there were.
    futile: u32,
    pages: Vec<(u64, PageEntry)>,
    reads: usize,
    ready: VecDeque<(ResealPage, BlockBuffer)>,
    /// Records that are pushed and not applied.
    pub(crate) pushed: usize,
}

impl Resealer {
    /// A key was given or changed: there may be work.
    pub(crate) fn wake(&mut self) {
        self.is_awake = true;
        self.futile = 0;
    }

    /// Takes no more pages.
    pub(crate) fn stop(&mut self) {
        self.is_awake = false;
        self.step = ResealStep::Rests;
        self.pages.clear();
        self.ready.clear();
    }

    /// Whether pages are being sealed anew.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_awake || self.has_pages()
    }

    /// Whether a page is under way to or from a device.
    pub(crate) fn is_working(&self) -> bool {
        self.reads + self.pushed > 0
    }

    fn has_pages(&self) -> bool {
        self.is_working() || !self.ready.is_empty()
    }

    /// Goes on. A walk that has left no page under an old key gives the change that says so.
    pub(crate) fn poll(&mut self, core: &mut EngineCore) -> Option<PoolChange> {
        if core.failed.is_some() {
            self.stop();
        }
        self.push_ready(core);
        let ResealStep::Walks { family, volume, mut index, old } = self.step else {
            self.begin(core);
            return None;
        };
        let mut looks = 0;
        while self.reads + self.ready.len() < PAGES_MAX {
            if let Some((number, known)) = self.pages.pop() {
                // The page may have moved since its block of the table was looked at, and its place
                // be free.
                match core.map.entry(number) {
                    Err(MapError::Missing) => {
                        self.pages.push((number, known));
                        break;
                    }
                    Ok(entry) => self.read(core, family, (number, entry)),
                    Err(MapError::Damaged) => {}
                }
                continue;
            }
            if index == core.map.table_blocks(TableKind::Data) {
                return self.end(core, (family, volume), old);
            }
            looks += 1;
            match core.map.pages_of(TableKind::Data, index) {
                Err(MapError::Missing) => break,
                Ok(pages) if looks <= TABLE_BLOCKS_MAX => self.pages = pages,
                Ok(_) => break,
                Err(MapError::Damaged) => {}
            }
            index += 1;
        }
        self.step = ResealStep::Walks { family, volume, index, old };
        None
    }

    fn begin(&mut self, core: &mut EngineCore) {
        if !self.is_awake || self.has_pages() {
            return;
        }
        let mut families = core.map.resealing().into_iter();
        let found = families.find(|&(_, volume)| core.lock_of(volume).is_none());
        let Some((family, volume)) = found else {
            self.is_awake = false;
            return;
        };
        let old = core.map.old_pages(family);
        self.step = ResealStep::Walks { family, volume, index: 0, old };
    }

    /// The end of the page table.
    fn end(
        &mut self,
        core: &EngineCore,
        (family, volume): (u32, VolumeId),
        old: u64,
    ) -> Option<PoolChange> {
        if self.has_pages() {
            self.step = ResealStep::Walks {
                family,
                volume,
                index: core.map.table_blocks(TableKind::Data),
                old,
            };
            return None;
        }
        self.step = ResealStep::Rests;
        let left = core.map.old_pages(family);
        if left > 0 {
            // Pages that moved meanwhile are found by another walk; damaged ones stay.
            self.futile = if left < old { 0 } else { self.futile + 1 };
            self.is_awake = self.futile < FUTILE_MAX;
            return None;
        }
        let version = core.map.family(family)?.keys.first()?.version;
        Some(PoolChange::Resealed { volume, version })
    }

    fn read(&mut self, core: &mut EngineCore, family: u32, (number, entry): (u64, PageEntry)) {
        let context = entry.seal().and_then(|seal| core.map.context(seal.context));
        let is_old = context.is_some_and(|context| {
            context.family == family && Some(context.version) != core.map.newest_key(family)
        });
        // Without a context for its new key, a page would stay as it is.
        let is_old = is_old && core.may_seal(family);
        let place = entry.place().filter(|&place| is_old && core.segments.has(place));
        let Some(place) = place else { return };
        self.reads += 1;
        core.segments.pin(place.segment);
        let buffer = core.buffer(1);
        let page = ResealPage { number, entry, family };
        core.submit_read(place, buffer, 1, IoPurpose::Reseal(page));
    }

    /// A device's answer for a page.
    pub(crate) fn answered(
        &mut self,
        core: &mut EngineCore,
        page: ResealPage,
        buffer: Option<BlockBuffer>,
        result: Result<(), PoolDeviceError>,
    ) {
        let mut buffer = buffer.expect("a read's buffer comes back");
        let place = page.entry.place().expect("a page that was read has a place");
        self.reads -= 1;
        core.segments.unpin(place.segment);
        let key = core.key_of(&page.entry);
        let block = &mut buffer.blocks_mut()[0];
        // A page that does not open stays as it is: its readers and a scrub say that it is damaged.
        let is_whole =
            result.is_ok() && is_whole(&core.uuid, key.as_deref(), page.number, &page.entry, block);
        if is_whole {
            self.ready.push_back((page, buffer));
        } else {
            core.recycle(buffer);
        }
    }

    fn push_ready(&mut self, core: &mut EngineCore) {
        // A page that is sealed anew takes a place before it leaves one. Collection's reserve is
        // not for it, or a full pool could not be collected any more.
        while !core.is_halted && !self.ready.is_empty() && may_move(core) && core.has_room(1) {
            let now = core.map.entry(self.ready[0].0.number);
            if now == Err(MapError::Missing) {
                break;
            }
            let (page, buffer) = self.ready.pop_front().expect("one is ready");
            // While it waited for room, the page may have been freed, and its number and its place
            // be another page's.
            if now != Ok(page.entry) {
                core.recycle(buffer);
                continue;
            }
            let (key, from) = (core.newest_key(page.family), page.entry.place());
            if let (Some(key), Some(from)) = (key, from) {
                let (number, crc, tag, version) = (page.number, 0, SealTag::default(), 0);
                let record = LogRecord::Resealed { number, crc, from, tag, version };
                self.pushed += 1;
                core.push_sealed(RowStream::Moved, record, RecordOwner::Reseal, key, |block| {
                    block.0.copy_from_slice(&buffer.blocks()[0].0);
                });
            }
            core.recycle(buffer);
        }
    }
}
