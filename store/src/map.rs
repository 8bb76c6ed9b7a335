//! The map of versions: which page each block of a volume or snapshot has, and where pages are.
//!
//! Nothing here does I/O. An operation whose pages are not in memory answers [`MapError::Missing`]
//! and changes nothing; [`PoolMap::next_load`] says what to read, and the operation is tried again.

mod aliases;
mod cache;
mod catalog;
mod diff;
mod history;
mod moments;
mod page;
mod pages;
mod removal;
mod seals;
mod sharing;
mod space;
mod table;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::api::{PoolChange, PoolError, QuotaWait, VolumeId};
use crate::block::Block;
use crate::format::{
    BlockPlace, LogRecord, PageEntry, PageSeal, PayloadPlace, SEAL_SEQUENCE_MAX, SealTag,
    TableKind, ZERO_BLOCKS_MAX,
};
use crate::pack::PageCompression;
use catalog::{PoolCatalog, TreeOwner};
use page::{TABLE_ENTRIES, TreeWord};
use pages::MapPages;
use pool_stream::VOLUME_BLOCKS_MAX;
use removal::RemovalPlan;
use seal::WrappedKey;
use seals::{CONTEXTS_MAX, SealContext, SealContexts};
use table::PageTable;
use tree::{TreeEdit, TreePlan};

pub(crate) use catalog::{CatalogState, SealFamily};
pub use catalog::{PoolSeal, PoolVolume, PoolVolumeKind};
pub use diff::ChangedBlocks;
pub(crate) use moments::{Forgetting, HistoryClock, HistoryWork, MomentRecord};
pub(crate) use page::{
    Applied, LiveBlocks, Located, MapError, MapPage, MapPass, PageAlias, WriteToken,
};
pub use sharing::SharedPages;
pub(crate) use table::TableState;

/// The map, as a checkpoint has it beside its pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MapState {
    catalog: CatalogState,
    data: TableState,
    nodes: TableState,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    contexts: Vec<SealContext>,
    #[serde(default, skip_serializing_if = "SharedPages::is_none")]
    shared: SharedPages,
}

impl MapState {
    /// How many moments the table behind the JSON has.
    pub(crate) fn moments(&self) -> u64 {
        self.catalog.moments
    }

    /// The table of moments that is behind the JSON.
    pub(crate) fn moment_table(&self) -> &[MomentRecord] {
        &self.catalog.table
    }

    /// The same state with the table that was behind it.
    pub(crate) fn with_moments(mut self, table: Vec<MomentRecord>) -> Self {
        self.catalog.table = table;
        self
    }
}

impl Default for MapState {
    fn default() -> Self {
        PoolMap::new([0; 16], 0).state()
    }
}

/// The map of a pool's versions.
pub(crate) struct PoolMap {
    pages: MapPages,
    catalog: PoolCatalog,
    /// No removal can go on before the catalog changes.
    is_removal_idle: bool,
}

impl fmt::Debug for PoolMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolMap")
            .field("versions", &self.catalog.count())
            .field("cached_blocks", &self.cached_blocks())
            .field("dirty_blocks", &self.dirty_blocks())
            .field("used_pages", &self.used_pages())
            .field("used_nodes", &self.used_nodes())
            .field("contradictions", &self.contradictions())
            .finish_non_exhaustive()
    }
}

impl PoolMap {
    /// The map of a new pool.
    pub(crate) fn new(uuid: [u8; 16], cache_blocks_max: usize) -> Self {
        Self::with_fanout(uuid, cache_blocks_max, TABLE_ENTRIES)
    }

    fn with_fanout(uuid: [u8; 16], cache_blocks_max: usize, fanout: u64) -> Self {
        let tables = [TableKind::Data, TableKind::Nodes].map(|kind| PageTable::new(kind, fanout));
        Self {
            pages: MapPages::new(uuid, cache_blocks_max, tables),
            catalog: PoolCatalog::new(),
            is_removal_idle: false,
        }
    }

    /// The map of a checkpoint.
    ///
    /// # Errors
    /// If a field of the state has a value that it cannot have.
    pub(crate) fn from_state(
        uuid: [u8; 16],
        cache_blocks_max: usize,
        state: MapState,
    ) -> Result<Self, String> {
        Self::with_state(uuid, cache_blocks_max, state, TABLE_ENTRIES)
    }

    fn with_state(
        uuid: [u8; 16],
        cache_blocks_max: usize,
        state: MapState,
        fanout: u64,
    ) -> Result<Self, String> {
        let data = PageTable::from_state(TableKind::Data, fanout, &state.data)?;
        let nodes = PageTable::from_state(TableKind::Nodes, fanout, &state.nodes)?;
        let catalog = PoolCatalog::from_state(state.catalog, nodes.numbers())?;
        let mut pages = MapPages::new(uuid, cache_blocks_max, [data, nodes]);
        pages.contexts = SealContexts::from_state(state.contexts)?;
        pages.shared = state.shared;
        Ok(Self { pages, catalog, is_removal_idle: false })
    }

    /// The state for a checkpoint, once all dirty pages are written.
    pub(crate) fn state(&self) -> MapState {
        MapState {
            catalog: self.catalog.state(),
            data: self.pages.table(TableKind::Data).state(),
            nodes: self.pages.table(TableKind::Nodes).state(),
            contexts: self.pages.contexts.state(),
            shared: self.pages.shared,
        }
    }

    /// Finds a block of a volume or snapshot. A block that is not there is a hole.
    ///
    /// # Errors
    /// If a page is missing or damaged.
    pub(crate) fn locate(&mut self, volume: VolumeId, block: u64) -> Result<Located, MapError> {
        let Some(version) = self.catalog.visible(volume.0) else { return Ok(Located::Hole) };
        if block >= version.blocks {
            return Ok(Located::Hole);
        }
        let root = TreeWord(version.root);
        tree::locate(&mut self.pages, root, block)
    }

    /// The blocks from `start` on that differ between two versions; without `from`, those that the
    /// version has. A part of them, whose work is bounded.
    ///
    /// # Errors
    /// If a page is missing or damaged.
    pub(crate) fn changed(
        &mut self,
        from: Option<VolumeId>,
        to: VolumeId,
        start: u64,
    ) -> Result<ChangedBlocks, MapError> {
        let root = |version: VolumeId| self.catalog.visible(version.0);
        let from = from.and_then(root).map_or(TreeWord::HOLE, |version| TreeWord(version.root));
        let Some(to) = root(to) else { return Ok(ChangedBlocks::default()) };
        let roots = (from, TreeWord(to.root));
        diff::changed(&mut self.pages, roots, start, to.blocks)
    }

    /// Blocks of a volume or snapshot that have one of these pages, from `start` on, in one leaf.
    /// Returns where to go on; `None` at the end.
    ///
    /// # Errors
    /// If a page is missing.
    pub(crate) fn blocks_of(
        &mut self,
        version: VolumeId,
        numbers: &[u64],
        start: u64,
        found: &mut dyn FnMut(u64),
    ) -> Result<Option<u64>, MapError> {
        let Some(version) = self.catalog.visible(version.0) else { return Ok(None) };
        let (root, end) = (TreeWord(version.root), version.blocks);
        let next = diff::blocks_of(&mut self.pages, root, numbers, start, found)?;
        Ok((next < end).then_some(next))
    }

    /// Blocks of level 0 of a page table.
    pub(crate) fn table_blocks(&self, kind: TableKind) -> u64 {
        self.pages.table(kind).blocks()
    }

    /// The pages that are on devices and have their entries in a block of level 0.
    ///
    /// # Errors
    /// If the block is missing or damaged.
    pub(crate) fn pages_of(
        &mut self,
        kind: TableKind,
        index: u64,
    ) -> Result<Vec<(u64, PageEntry)>, MapError> {
        let mut pages = Vec::new();
        for number in self.pages.table(kind).numbers_of(index) {
            if !self.pages.table(kind).reaches(number) {
                break;
            }
            let entry = self.pages.entry(kind, number)?;
            if entry.place().is_some() {
                pages.push((number, entry));
            }
        }
        Ok(pages)
    }

    /// The entry of a page of this table.
    ///
    /// # Errors
    /// If a block of the table is missing or damaged.
    pub(crate) fn entry_of(&mut self, kind: TableKind, number: u64) -> Result<PageEntry, MapError> {
        self.pages.entry(kind, number)
    }

    /// How the pages that a version has written are compressed when they move.
    pub(crate) fn compression(&self, version: VolumeId) -> Option<PageCompression> {
        self.catalog.compression(version.0)
    }

    /// How many versions have a compression, and how often that has changed since the opening.
    pub(crate) fn compressions(&self) -> (usize, u64) {
        self.catalog.compressions()
    }

    /// Whether this is a snapshot.
    pub(crate) fn is_snapshot(&self, version: VolumeId) -> bool {
        let found = self.catalog.visible(version.0);
        found.is_some_and(|version| version.kind == PoolVolumeKind::Snapshot)
    }

    /// The entry of a page of data.
    ///
    /// # Errors
    /// If a block of the page table is missing or damaged.
    pub(crate) fn entry(&mut self, number: u64) -> Result<PageEntry, MapError> {
        self.pages.entry(TableKind::Data, number)
    }

    /// A free number for a page of data. No other call gives it, until it is given back or a page
    /// that has it was freed.
    ///
    /// # Errors
    /// If a block of the page table is missing.
    pub(crate) fn take_number(&mut self) -> Result<u64, MapError> {
        self.pages.take_number()
    }

    /// Makes the change of one record of a row. `at` is the place of the record's payload, or that
    /// of the row's head if it has none. A removal may be done in part when a page is missing, and
    /// goes on with the next call; all else is done as a whole or not at all.
    ///
    /// # Errors
    /// [`MapError::Missing`]: load pages and call again. [`MapError::Damaged`]: the record has no
    /// effect, now and in the same row's replay, except that a written block may read as lost.
    pub(crate) fn apply(
        &mut self,
        record: &LogRecord,
        at: PayloadPlace,
        sequence: u64,
        change: Option<&PoolChange>,
        live: &mut dyn LiveBlocks,
    ) -> Result<Applied, MapError> {
        let place = at.place;
        match *record {
            LogRecord::Write { volume, block, number, crc } => {
                let entry = PageEntry::at(place, crc, sequence);
                self.write(VolumeId(volume), block, number, entry, live)
            }
            LogRecord::Sealed { volume, block, number, tag, version, .. } => {
                let volume = VolumeId(volume);
                let family = self.catalog.volume(volume.0).and_then(|version| version.family);
                let entry = self.sealed_at(family, version, (place, sequence), tag);
                let Some(entry) = entry else {
                    self.give_back_late(number);
                    return Ok(Applied::Dropped);
                };
                self.write(volume, block, number, entry, live)
            }
            LogRecord::Resealed { number, from, tag, version, .. } => {
                let old = self.pages.entry(TableKind::Data, number)?.seal();
                let family = old.and_then(|seal| self.context(seal.context));
                let family = family.map(|context| context.family);
                match self.sealed_at(family, version, (place, sequence), tag) {
                    Some(entry) => self.replace(number, from, |_| entry, live),
                    None => Ok(Applied::Dropped),
                }
            }
            LogRecord::Zero { volume, block, blocks } => {
                self.zero(VolumeId(volume), block, u64::from(blocks), live)
            }
            LogRecord::Move { number, crc, from, form, .. } => {
                let moved = |old: PageEntry| match old.seal() {
                    // Its tag and nonce stay what they are.
                    Some(_) => old.moved_to(place),
                    None => PageEntry::at(place, crc, sequence)
                        .in_form(form, at.offset)
                        .with_shares(old.shares()),
                };
                self.replace(number, from, moved, live)
            }
            LogRecord::Lost { number, from } => {
                let lost = |old: PageEntry| PageEntry::lost().with_shares(old.shares());
                self.replace(number, from, lost, live)
            }
            LogRecord::Alias { number, from, shared, crc } => {
                self.alias((number, from), (shared, crc), live)
            }
            LogRecord::Removal { snapshot, block } => self.remove(snapshot, block, live),
            LogRecord::Moment { at_ns, volumes } => Ok(self.take_moments(at_ns, &volumes)),
            LogRecord::Forget { volume, generation, is_early } => {
                Ok(self.forget(Forgetting { volume, generation, is_early }))
            }
            LogRecord::Change { .. } => match change {
                Some(change) => self.change(change, live),
                None => Ok(Applied::Dropped),
            },
            LogRecord::Node { .. } | LogRecord::Table { .. } | LogRecord::State { .. } => {
                Ok(Applied::Dropped)
            }
        }
    }

    /// The entry of a page that was sealed with a family's data key, of whose count the record has
    /// the lowest bits; `None` if the family or the row cannot have such a page.
    fn sealed_at(
        &mut self,
        family: Option<u32>,
        version: u8,
        (place, sequence): (BlockPlace, u64),
        tag: SealTag,
    ) -> Option<PageEntry> {
        let family = family?;
        let version = self.catalog.key_of_low_bits(family, version)?;
        let context = self.pages.contexts.number(family, version)?;
        let seal = PageSeal { context, sequence, tag };
        (sequence <= SEAL_SEQUENCE_MAX).then(|| PageEntry::sealed(place, seal))
    }

    /// Asks for the pages that a record will need first, as far as they are known yet. It need not
    /// be called, and more than these may be missing.
    pub(crate) fn ask_for(&mut self, record: &LogRecord) {
        // A missing page is noted, and a damaged one comes up again when the record is applied.
        match *record {
            LogRecord::Write { volume, block, number, .. }
            | LogRecord::Sealed { volume, block, number, .. } => {
                let _ = self.locate(VolumeId(volume), block);
                let _ = self.pages.entry(TableKind::Data, number);
            }
            LogRecord::Zero { volume, block, .. } => {
                let _ = self.locate(VolumeId(volume), block);
            }
            LogRecord::Alias { number, shared, .. } => {
                let _ = self.pages.entry(TableKind::Data, number);
                let _ = self.pages.entry(TableKind::Data, shared);
            }
            LogRecord::Move { number, .. }
            | LogRecord::Resealed { number, .. }
            | LogRecord::Lost { number, .. } => {
                let _ = self.pages.entry(TableKind::Data, number);
            }
            _ => {}
        }
    }

    fn write(
        &mut self,
        volume: VolumeId,
        block: u64,
        number: u64,
        entry: PageEntry,
        live: &mut dyn LiveBlocks,
    ) -> Result<Applied, MapError> {
        let birth = self.catalog.generation();
        let Some((root, owner)) = self.volume_with(volume, block) else {
            self.give_back_late(number);
            return Ok(Applied::Dropped);
        };
        let number_is = self.pages.need_number(TableKind::Data, number);
        let word = match number_is {
            // The write may be durable already, so its block must not read as it was before.
            Err(MapError::Damaged) => TreeWord::lost(birth),
            _ => TreeWord::new(birth, number),
        };
        let plan = TreePlan::new(&mut self.pages, root, owner, TreeEdit::write(block, word));
        if plan.as_ref().err().copied().or(number_is.err()) == Some(MapError::Missing) {
            return Err(MapError::Missing);
        }
        if let Ok(plan) = plan {
            self.catalog.note_change(volume.0, u64::from(number_is.is_ok()), plan.gone);
            self.commit(volume, plan, birth, live);
        } else {
            self.give_back_late(number);
            return Err(MapError::Damaged);
        }
        if number_is.is_ok() {
            self.pages.set_entry(TableKind::Data, number, entry, live);
            return Ok(Applied::Done);
        }
        self.give_back_late(number);
        Err(MapError::Damaged)
    }

    /// A replay may find a damaged path whole and use the number, so others must not have it yet.
    fn give_back_late(&mut self, number: u64) {
        let pass = self.pages.cache.pass();
        self.pages.table_mut(TableKind::Data).give_back_late(number, pass);
    }

    fn zero(
        &mut self,
        volume: VolumeId,
        block: u64,
        blocks: u64,
        live: &mut dyn LiveBlocks,
    ) -> Result<Applied, MapError> {
        let Some((root, owner)) = self.volume_with(volume, block) else {
            return Ok(Applied::Dropped);
        };
        if block % ZERO_BLOCKS_MAX + blocks > ZERO_BLOCKS_MAX {
            return Ok(Applied::Dropped);
        }
        let end = self.volume_blocks(volume).unwrap_or(0).min(block + blocks);
        let edit = TreeEdit::zero(block, end - block);
        let plan = TreePlan::new(&mut self.pages, root, owner, edit)?;
        self.catalog.note_change(volume.0, 0, plan.gone);
        self.commit(volume, plan, self.catalog.generation(), live);
        Ok(Applied::Done)
    }

    /// The root of a volume that has this block, and its owner.
    fn volume_with(&self, volume: VolumeId, block: u64) -> Option<(TreeWord, TreeOwner)> {
        let version = self.catalog.volume(volume.0).filter(|version| block < version.blocks)?;
        Some((TreeWord(version.root), self.catalog.owner(version)))
    }

    fn commit(&mut self, volume: VolumeId, plan: TreePlan, birth: u64, live: &mut dyn LiveBlocks) {
        if let Some(root) = plan.commit(&mut self.pages, birth, live) {
            self.catalog.set_root(volume.0, root);
        }
    }

    /// Another entry for a page of data that is still at `from`.
    fn replace(
        &mut self,
        number: u64,
        from: BlockPlace,
        entry: impl FnOnce(PageEntry) -> PageEntry,
        live: &mut dyn LiveBlocks,
    ) -> Result<Applied, MapError> {
        let old = self.pages.entry(TableKind::Data, number)?;
        if old.place() != Some(from) {
            return Ok(Applied::Dropped);
        }
        self.pages.need_entry(TableKind::Data, number)?;
        self.pages.set_entry(TableKind::Data, number, entry(old), live);
        Ok(Applied::Done)
    }

    fn remove(
        &mut self,
        snapshot: u32,
        block: u64,
        live: &mut dyn LiveBlocks,
    ) -> Result<Applied, MapError> {
        let is_place = block <= VOLUME_BLOCKS_MAX && block.is_multiple_of(ZERO_BLOCKS_MAX);
        let mut target = self.catalog.removal_of(snapshot).filter(|target| target.at < block);
        if !is_place || target.is_none() {
            return Ok(Applied::Dropped);
        }
        // The trees may differ more than when the record was made, and then one step is not enough.
        // The record ends at its block in any case: a replay must come to the same place.
        while let Some(step) = target {
            let plan = RemovalPlan::new(&mut self.pages, step, block)?;
            self.catalog.note_freed(snapshot, plan.freed);
            self.catalog.removed(snapshot, plan.at);
            let is_done = plan.at >= block;
            plan.commit(&mut self.pages, live);
            self.is_removal_idle = false;
            target = if is_done { None } else { self.catalog.removal_of(snapshot) };
        }
        Ok(Applied::Done)
    }

    fn change(
        &mut self,
        change: &PoolChange,
        live: &mut dyn LiveBlocks,
    ) -> Result<Applied, MapError> {
        if self.check(change).is_err() {
            return Ok(Applied::Dropped);
        }
        let cut = match change {
            PoolChange::Resize { volume, blocks } => {
                let version = self.catalog.volume(volume.0);
                version
                    .filter(|version| *blocks < version.blocks)
                    .map(|version| (*volume, TreeWord(version.root), TreeEdit::cut(*blocks)))
            }
            _ => None,
        };
        let cut = match cut {
            Some((volume, root, edit)) => {
                let plan = TreePlan::new(&mut self.pages, root, TreeOwner::NOTHING, edit)?;
                Some((volume, plan))
            }
            None => None,
        };
        self.catalog.change(change);
        if let Some((volume, plan)) = cut {
            // The words that go are in nodes that are not in memory.
            self.catalog.forget_refers(volume.0);
            self.commit(volume, plan, self.catalog.generation(), live);
        }
        self.is_removal_idle = false;
        Ok(Applied::Done)
    }

    /// The id that a change will make or is about.
    ///
    /// # Errors
    /// If the change is not possible.
    pub(crate) fn check(&self, change: &PoolChange) -> Result<VolumeId, PoolError> {
        if let PoolChange::Resealed { volume, .. } = change
            && self.family_of(*volume).is_some_and(|family| self.old_pages(family) > 0)
        {
            let text = "blocks of the volume are still sealed with the old key";
            return Err(PoolError::Invalid(text.to_owned()));
        }
        self.catalog.check(change)
    }

    /// Whether the map still refers to the payload of this record at this place.
    ///
    /// # Errors
    /// If a block of a page table is missing or damaged.
    pub(crate) fn is_live(
        &mut self,
        record: &LogRecord,
        place: BlockPlace,
    ) -> Result<bool, MapError> {
        let entry = match *record {
            LogRecord::Write { number, .. }
            | LogRecord::Sealed { number, .. }
            | LogRecord::Resealed { number, .. }
            | LogRecord::Move { number, .. } => {
                if !self.pages.table(TableKind::Data).reaches(number) {
                    return Ok(false);
                }
                self.entry(number)?
            }
            _ => match MapPage::of_record(record) {
                Some(page) if self.pages.exists(page) => self.pages.page_entry(page)?,
                _ => return Ok(false),
            },
        };
        Ok(entry.place() == Some(place))
    }

    /// Takes care that the next checkpoint writes a page of the map elsewhere. `false` if the map
    /// does not refer to this place.
    ///
    /// # Errors
    /// If the page is missing or damaged.
    pub(crate) fn make_dirty(
        &mut self,
        record: &LogRecord,
        place: BlockPlace,
    ) -> Result<bool, MapError> {
        let Some(page) = MapPage::of_record(record) else { return Ok(false) };
        if !self.is_live(record, place)? {
            return Ok(false);
        }
        self.pages.need_to_change(page)?;
        if !self.pages.cache.will_be_written(page) {
            self.pages.change(page);
        }
        Ok(true)
    }

    /// The next step of a removal; `None` if none can go on.
    ///
    /// # Errors
    /// If a page is missing.
    pub(crate) fn removal_step(&mut self) -> Result<Option<LogRecord>, MapError> {
        if self.is_removal_idle {
            return Ok(None);
        }
        let Some(target) = self.catalog.removal() else {
            self.is_removal_idle = true;
            return Ok(None);
        };
        let plan = RemovalPlan::new(&mut self.pages, target, VOLUME_BLOCKS_MAX)?;
        Ok(Some(LogRecord::Removal { snapshot: target.id, block: plan.at }))
    }

    /// Whether a removal can go on.
    pub(crate) fn has_removal(&self) -> bool {
        !self.is_removal_idle && self.catalog.removal().is_some()
    }

    /// The next page to read, and the entry that says where it is: each page once, until
    /// [`Self::loaded`] is called for it.
    pub(crate) fn next_load(&mut self) -> Option<(MapPage, PageEntry)> {
        self.pages.next_load()
    }

    /// A page was read, or could not be. A page that does not match its entry is damaged.
    pub(crate) fn loaded(&mut self, page: MapPage, content: Option<&Block>) {
        self.pages.loaded(page, content);
    }

    /// Drops pages that were not used lately, until the limit is kept or only dirty pages and the
    /// last used ones are left.
    pub(crate) fn evict(&mut self) {
        self.pages.evict();
    }

    /// Begins a pass: pages that are dirty now are given by [`Self::next_dirty`]. Those that become
    /// dirty later come after the next call.
    pub(crate) fn begin_pass(&mut self) {
        self.pages.begin_pass();
    }

    /// A page to be written in this pass. The answer is the same until the page was copied out.
    ///
    /// # Errors
    /// None: all that a dirty page needs is in memory.
    pub(crate) fn next_dirty(&mut self, pass: MapPass) -> Result<Option<MapPage>, MapError> {
        Ok(self.pages.cache.next_dirty(pass))
    }

    /// Copies a page for a write.
    ///
    /// # Panics
    /// If [`Self::next_dirty`] did not give it.
    pub(crate) fn copy_out(&mut self, page: MapPage, into: &mut Block) -> WriteToken {
        WriteToken(self.pages.cache.copy_out(page, into))
    }

    /// A page was written, and this is its new entry. Without effect if the page was freed.
    pub(crate) fn written(
        &mut self,
        page: MapPage,
        token: WriteToken,
        entry: PageEntry,
        live: &mut dyn LiveBlocks,
    ) {
        self.pages.written(page, token.0, entry, live);
    }

    /// Whether a page of this pass is dirty or is being written.
    #[cfg(test)]
    pub(crate) fn is_dirty(&self, pass: MapPass) -> bool {
        self.pages.cache.has_dirty(pass)
    }

    /// Pages that a checkpoint would write.
    pub(crate) fn dirty_blocks(&self) -> usize {
        self.pages.cache.dirty_len()
    }

    /// Pages in memory.
    pub(crate) fn cached_blocks(&self) -> usize {
        self.pages.cache.len()
    }

    /// The levels of the higher one of the two page tables.
    pub(crate) fn tables_levels(&self) -> u8 {
        let levels = |kind| self.pages.table(kind).levels();
        levels(TableKind::Data).max(levels(TableKind::Nodes))
    }

    /// All volumes and snapshots, and those that are being removed, of a pool that has `room` for
    /// so many blocks.
    pub(crate) fn volumes_with(&self, room: u64) -> Vec<PoolVolume> {
        let mut list = self.catalog.list((room, self.shared().saved()));
        for volume in &mut list {
            if let (Some(seal), Some(family)) = (&mut volume.seal, self.family_of(volume.id))
                && seal.is_resealing
            {
                seal.old_blocks = self.old_pages(family);
            }
        }
        list
    }

    /// The same where it does not matter whether writes wait.
    pub(crate) fn volumes(&self) -> Vec<PoolVolume> {
        self.volumes_with(u64::MAX)
    }

    /// How many [`Self::volumes`] has.
    pub(crate) fn volume_count(&self) -> usize {
        self.catalog.count()
    }

    /// The size of a volume or snapshot.
    pub(crate) fn volume_blocks(&self, volume: VolumeId) -> Option<u64> {
        self.catalog.visible(volume.0).map(|version| version.blocks)
    }

    /// Whether this is a volume, which may be written.
    pub(crate) fn is_head(&self, volume: VolumeId) -> bool {
        self.catalog.volume(volume.0).is_some()
    }

    /// Blocks that are kept free for volumes with a reservation.
    pub(crate) fn promised(&self) -> u64 {
        self.catalog.promised() + self.catalog.lent(self.shared().saved(), None)
    }

    /// The same if a volume had another reservation.
    pub(crate) fn promised_with(&self, volume: VolumeId, reservation: u64) -> u64 {
        let lent = self.catalog.lent(self.shared().saved(), Some((volume, reservation)));
        self.catalog.promised_with(volume, reservation) + lent
    }

    /// Why a volume may not write so many blocks now, if the pool has `room` for so many more. The
    /// volume waits for this from here on, or does not wait any more.
    pub(crate) fn quota_wait(
        &mut self,
        volume: VolumeId,
        blocks: u64,
        room: u64,
    ) -> Option<QuotaWait> {
        let wait = self.catalog.quota_wait(volume, blocks, (room, self.shared().saved()));
        self.catalog.set_refused(volume, wait.map(|wait| (wait, blocks)));
        wait
    }

    /// The reason for which a volume waits, if the pool has `room` for so many blocks.
    pub(crate) fn wait_of(&self, volume: VolumeId, room: u64) -> Option<QuotaWait> {
        self.catalog.wait_of(volume, (room, self.shared().saved()))
    }

    /// A write of a block was admitted.
    pub(crate) fn write_begins(&mut self, volume: VolumeId) {
        self.catalog.write_begins(volume);
    }

    /// A write of a block was applied.
    pub(crate) fn write_ends(&mut self, volume: VolumeId) {
        self.catalog.write_ends(volume);
    }

    /// The rows that are applied from here on are of the opening with this salt.
    pub(crate) fn set_salt(&mut self, salt: u128) {
        self.pages.contexts.set_salt(salt);
    }

    /// A seal context.
    pub(crate) fn context(&self, number: u16) -> Option<&SealContext> {
        self.pages.contexts.get(number)
    }

    /// Whether a seal context has lost its last page since this was asked: an old data key may not
    /// be needed any more.
    pub(crate) fn take_lost_context(&mut self) -> bool {
        self.pages.contexts.take_lost_last()
    }

    /// How many families of encrypted volumes there are.
    pub(crate) fn families(&self) -> usize {
        self.catalog.families()
    }

    /// How many seal contexts there are.
    pub(crate) fn contexts(&self) -> usize {
        self.pages.contexts.len()
    }

    /// Whether a page can be sealed with this data key: its context is there, or has room.
    pub(crate) fn may_seal(&self, family: u32, version: u32, spare: usize) -> bool {
        let contexts = &self.pages.contexts;
        contexts.has_current(family, version) || contexts.len() + spare < CONTEXTS_MAX
    }

    /// Pages of a family that are not sealed with its newest key.
    pub(crate) fn old_pages(&self, family: u32) -> u64 {
        let newest = self.catalog.newest_key(family).unwrap_or(0);
        self.pages.contexts.live_of_others(family, newest)
    }

    /// The family of an encrypted volume or snapshot.
    pub(crate) fn family_of(&self, volume: VolumeId) -> Option<u32> {
        self.catalog.visible(volume.0)?.family
    }

    /// The version of a family's newest data key; `None` after it was shredded.
    pub(crate) fn newest_key(&self, family: u32) -> Option<u32> {
        self.catalog.newest_key(family)
    }

    /// A family.
    pub(crate) fn family(&self, family: u32) -> Option<&SealFamily> {
        self.catalog.family(family)
    }

    /// Whether a family has a data key of this version.
    pub(crate) fn keeps_key(&self, family: u32, version: u32) -> bool {
        let keys = self.catalog.family(family).map_or(&[][..], |family| &family.keys);
        keys.iter().any(|key| key.version == version)
    }

    /// Whether a family has this data key.
    pub(crate) fn has_key(&self, family: u32, key: &WrappedKey) -> bool {
        self.catalog.family(family).is_some_and(|family| family.keys.contains(key))
    }

    /// Families that still have an old data key, and a volume or snapshot of each.
    pub(crate) fn resealing(&self) -> Vec<(u32, VolumeId)> {
        self.catalog.resealing()
    }

    /// Pages of data that the map has.
    pub(crate) fn used_pages(&self) -> u64 {
        self.pages.table(TableKind::Data).used
    }

    /// Nodes that the map has.
    pub(crate) fn used_nodes(&self) -> u64 {
        self.pages.table(TableKind::Nodes).used
    }

    /// Numbers that were free when they were freed: other than 0 only after damage.
    pub(crate) fn contradictions(&self) -> u64 {
        self.pages.contradictions
    }
}
