//! The pages of the map: those in memory, and how the others come in.
//!
//! An operation asks for all the pages that it needs, and changes something only when all of them
//! are there. A dirty page's entry is in a page that is in memory, and so on up to the root.

use std::collections::{HashMap, HashSet, VecDeque};

use super::cache::MapCache;
use super::page::{
    LiveBlocks, MapError, MapPage, NumberHash, TreeWord, node_word, set_table_entry, table_entry,
};
use super::seals::SealContexts;
use super::sharing::SharedPages;
use super::table::{EntryPlace, PageTable};
use crate::block::Block;
use crate::format::{PageEntry, TableKind};

/// Damaged pages that are remembered; of more, the oldest are read once more.
const DAMAGED_MAX: usize = 4096;

/// A search for a free number gives up after so many blocks that are damaged or full, and goes on
/// from there the next time.
const DAMAGED_TRIES_MAX: usize = 4096;

/// The place of a node that was never written. No checkpoint has it.
const UNWRITTEN: u64 = 1 << 61;

pub(super) struct MapPages {
    uuid: [u8; 16],
    cache_blocks_max: usize,
    pub(super) cache: MapCache,
    data: PageTable,
    nodes: PageTable,
    wanted: VecDeque<MapPage>,
    is_wanted: HashSet<MapPage, NumberHash>,
    /// Pages that are being read, by the entries that prove them; `None` once the page was freed.
    loading: HashMap<MapPage, Option<PageEntry>, NumberHash>,
    damaged: HashSet<MapPage, NumberHash>,
    damaged_order: VecDeque<MapPage>,
    /// Memory for lists of numbers: a request in a warm map allocates nothing.
    pub(super) lent_freed: Vec<u64>,
    lent_free: Vec<u64>,
    /// Numbers that were freed or used twice: a sign of a damaged map.
    pub(super) contradictions: u64,
    /// The seal contexts that entries of sealed pages refer to.
    pub(super) contexts: SealContexts,
    /// Pages that share their content.
    pub(super) shared: SharedPages,
}

impl MapPages {
    pub(super) fn new(uuid: [u8; 16], cache_blocks_max: usize, tables: [PageTable; 2]) -> Self {
        let [data, nodes] = tables;
        Self {
            uuid,
            cache_blocks_max,
            cache: MapCache::new(),
            data,
            nodes,
            wanted: VecDeque::new(),
            is_wanted: HashSet::default(),
            loading: HashMap::default(),
            damaged: HashSet::default(),
            damaged_order: VecDeque::new(),
            lent_freed: Vec::new(),
            lent_free: Vec::new(),
            contradictions: 0,
            contexts: SealContexts::default(),
            shared: SharedPages::default(),
        }
    }

    pub(super) fn table(&self, kind: TableKind) -> &PageTable {
        match kind {
            TableKind::Data => &self.data,
            TableKind::Nodes => &self.nodes,
        }
    }

    pub(super) fn table_mut(&mut self, kind: TableKind) -> &mut PageTable {
        match kind {
            TableKind::Data => &mut self.data,
            TableKind::Nodes => &mut self.nodes,
        }
    }

    pub(super) fn evict(&mut self) {
        self.cache.evict(self.cache_blocks_max);
    }

    fn entry_place(&self, page: MapPage) -> EntryPlace {
        match page {
            MapPage::Node(number) if self.nodes.reaches(number) => {
                EntryPlace::In(self.nodes.block_of(number), self.nodes.slot_of(number))
            }
            MapPage::Node(_) => EntryPlace::Nowhere,
            MapPage::Table { kind, level, index } => self.table(kind).entry_place(level, index),
        }
    }

    /// Ensures that a page is in memory; its slot there, until a page goes.
    pub(super) fn need(&mut self, page: MapPage) -> Result<u32, MapError> {
        match self.cache.touch(page) {
            Some(at) => Ok(at),
            None => self.need_missing(page),
        }
    }

    fn need_missing(&mut self, page: MapPage) -> Result<u32, MapError> {
        if self.damaged.contains(&page) {
            return Err(MapError::Damaged);
        }
        let entry = self.page_entry(page)?;
        let is_table = matches!(page, MapPage::Table { .. });
        if is_table && entry.is_free() {
            // A block that was never written has no used number.
            return Ok(self.cache.insert(page, Box::new(Block::ZERO)));
        }
        if entry.place().is_none() {
            self.set_damaged(page);
            return Err(MapError::Damaged);
        }
        self.want(page);
        Err(MapError::Missing)
    }

    /// Whether the tables have an entry for this page.
    pub(super) fn exists(&self, page: MapPage) -> bool {
        self.entry_place(page) != EntryPlace::Nowhere
    }

    /// The entry of a page of the map.
    pub(super) fn page_entry(&mut self, page: MapPage) -> Result<PageEntry, MapError> {
        match self.entry_place(page) {
            EntryPlace::Nowhere => Err(MapError::Damaged),
            EntryPlace::Root => Ok(self.root_of(page)),
            EntryPlace::In(parent, slot) => {
                let at = self.need(parent)?;
                Ok(table_entry(self.cache.block_at(at), slot))
            }
        }
    }

    fn root_of(&self, page: MapPage) -> PageEntry {
        match page {
            MapPage::Node(_) => PageEntry::FREE,
            MapPage::Table { kind, .. } => self.table(kind).root,
        }
    }

    /// Ensures that a page is in memory and can be changed: the pages with its entry and with the
    /// entries of those are in memory as well.
    pub(super) fn need_to_change(&mut self, page: MapPage) -> Result<(), MapError> {
        let mut slot = self.need(page)?;
        let mut at = page;
        while !self.cache.is_dirty_at(slot)
            && let EntryPlace::In(parent, _) = self.entry_place(at)
        {
            slot = self.need(parent)?;
            at = parent;
        }
        Ok(())
    }

    /// A page's content is about to change.
    pub(super) fn change(&mut self, page: MapPage) -> &mut Block {
        let at = match self.cache.marked(page) {
            Some(at) => at,
            None => {
                self.mark(page);
                self.cache.marked(page).expect("it was marked just now")
            }
        };
        self.cache.block_mut_at(at)
    }

    fn mark(&mut self, page: MapPage) {
        let mut at = page;
        while self.cache.set_dirty(at)
            && let EntryPlace::In(parent, _) = self.entry_place(at)
        {
            self.cache.add_dirty_below(parent);
            at = parent;
        }
        self.cache.set_changed(page);
    }

    /// The entry of a page by its number.
    pub(super) fn entry(&mut self, kind: TableKind, number: u64) -> Result<PageEntry, MapError> {
        if !self.table(kind).reaches(number) {
            return Err(MapError::Damaged);
        }
        let at = self.need(self.table(kind).block_of(number))?;
        Ok(table_entry(self.cache.block_at(at), self.table(kind).slot_of(number)))
    }

    /// Ensures that the entry of a number can be changed.
    pub(super) fn need_entry(&mut self, kind: TableKind, number: u64) -> Result<(), MapError> {
        if !self.table(kind).reaches(number) {
            return Err(MapError::Damaged);
        }
        self.need_to_change(self.table(kind).block_of(number))
    }

    /// Changes the entry of a number, whose block was ensured.
    pub(super) fn set_entry(
        &mut self,
        kind: TableKind,
        number: u64,
        entry: PageEntry,
        live: &mut dyn LiveBlocks,
    ) {
        let (page, slot) = (self.table(kind).block_of(number), self.table(kind).slot_of(number));
        let block = self.change(page);
        let old = table_entry(block, slot);
        set_table_entry(block, slot, entry);
        replace_live(old, entry, live);
        if kind == TableKind::Data {
            self.shared.replaced(&old, &entry);
        }
        // Before the old one: a context that loses its last page and gains one stays.
        if let Some(seal) = entry.seal() {
            self.contexts.gain(seal.context);
        }
        if let Some(seal) = old.seal() {
            self.contexts.lose(seal.context);
        }
        match (old.is_free(), entry.is_free()) {
            (true, false) => self.table_mut(kind).used(number),
            (false, true) => self.table_mut(kind).freed(number),
            (true, true) => self.contradictions += 1,
            (false, false) => {}
        }
    }

    /// A node that is in memory.
    pub(super) fn node(&self, number: u64) -> &Block {
        self.cache.block(MapPage::Node(number))
    }

    /// A word of a node; it is read if it is not in memory.
    pub(super) fn word(&mut self, node: TreeWord, at: usize) -> Result<TreeWord, MapError> {
        let slot = self.need(MapPage::Node(node.number()))?;
        Ok(node_word(self.cache.block_at(slot), at))
    }

    /// A new node; the block of its entry was ensured.
    pub(super) fn create_node(
        &mut self,
        number: u64,
        content: Box<Block>,
        live: &mut dyn LiveBlocks,
    ) {
        let unwritten = PageEntry { place: UNWRITTEN.into(), ..PageEntry::FREE };
        self.set_entry(TableKind::Nodes, number, unwritten, live);
        self.forget_node(number);
        self.cache.insert(MapPage::Node(number), content);
        self.change(MapPage::Node(number));
    }

    /// Frees a node; the block of its entry was ensured.
    pub(super) fn free_node(&mut self, number: u64, live: &mut dyn LiveBlocks) {
        self.set_entry(TableKind::Nodes, number, PageEntry::FREE, live);
        self.forget_node(number);
    }

    fn forget_node(&mut self, number: u64) {
        let page = MapPage::Node(number);
        if self.cache.remove(page)
            && let EntryPlace::In(parent, _) = self.entry_place(page)
        {
            self.cache.drop_dirty_below(parent);
        }
        self.damaged.remove(&page);
        if let Some(loading) = self.loading.get_mut(&page) {
            *loading = None;
        }
    }

    /// Ensures a number that a record names: the table reaches it, and its entry can be changed.
    pub(super) fn need_number(&mut self, kind: TableKind, number: u64) -> Result<(), MapError> {
        if !self.table_mut(kind).admit(number) {
            return Err(MapError::Damaged);
        }
        while !self.table(kind).reaches(number) {
            if !self.table(kind).can_grow() {
                return Err(MapError::Damaged);
            }
            self.grow(kind);
        }
        self.need_entry(kind, number)
    }

    /// One level more for a table. All entries stay as they are, so this is no change of the state.
    fn grow(&mut self, kind: TableKind) {
        let below = self.table(kind).root_page();
        let entry = self.table_mut(kind).grow();
        let page = self.table(kind).root_page();
        let mut block = Box::new(Block::ZERO);
        set_table_entry(&mut block, 0, entry);
        self.cache.insert(page, block);
        if self.cache.is_dirty(below) {
            self.cache.add_dirty_below(page);
        }
        self.change(page);
    }

    /// Ensures that `count` numbers are ready, if there is no other reason, to be used at once.
    pub(super) fn need_ready(&mut self, kind: TableKind, count: usize) -> Result<(), MapError> {
        loop {
            while self.table(kind).ready().len() < count {
                self.find_free(kind)?;
            }
            let (mut answer, mut damaged) = (Ok(()), None);
            for at in 1..=count {
                let ready = self.table(kind).ready();
                let number = ready[ready.len() - at];
                match self.need_number(kind, number) {
                    Err(MapError::Damaged) => damaged = Some(number),
                    result => answer = answer.and(result),
                }
            }
            // In place of a damaged number another one comes up, which must be ensured as well.
            let Some(damaged) = damaged else { return answer };
            self.table_mut(kind).lose_ready(damaged);
        }
    }

    /// Hands out a free number of a data page. The table is not changed.
    pub(super) fn take_number(&mut self) -> Result<u64, MapError> {
        let kind = TableKind::Data;
        loop {
            let Some(&number) = self.data.ready().last() else {
                self.find_free(kind)?;
                continue;
            };
            match self.look_up(kind, number) {
                Err(MapError::Missing) => return Err(MapError::Missing),
                Err(MapError::Damaged) => self.data.lose_ready(number),
                Ok(()) => return Ok(self.data.take_ready().expect("one was ready")),
            }
        }
    }

    /// Ensures the block with the entry of a number, if the table has grown to it.
    fn look_up(&mut self, kind: TableKind, number: u64) -> Result<(), MapError> {
        let table = self.table(kind);
        if table.reaches(number) { self.need(table.block_of(number)).map(drop) } else { Ok(()) }
    }

    /// Makes the free numbers of one block ready.
    fn find_free(&mut self, kind: TableKind) -> Result<(), MapError> {
        for _ in 0..DAMAGED_TRIES_MAX {
            let index = self.table_mut(kind).pick().ok_or(MapError::Damaged)?;
            let numbers = self.table(kind).numbers_of(index);
            match self.look_up(kind, numbers.start) {
                Err(MapError::Missing) => return Err(MapError::Missing),
                Err(MapError::Damaged) => {
                    self.table_mut(kind).exhausted(index);
                    continue;
                }
                Ok(()) => {}
            }
            let mut free = std::mem::take(&mut self.lent_free);
            let table = self.table(kind);
            let block = self.cache.get(table.block_of(numbers.start));
            let is_free = |&number: &u64| {
                let slot = table.slot_of(number);
                number > 0
                    && block.is_none_or(|block| table_entry(block, slot).is_free())
                    && !table.is_handed(number)
            };
            free.extend(numbers.filter(is_free));
            let table = self.table_mut(kind);
            table.exhausted(index);
            let has_some = !free.is_empty();
            table.put_ready(free.drain(..));
            self.lent_free = free;
            if has_some {
                return Ok(());
            }
        }
        Err(MapError::Damaged)
    }

    fn want(&mut self, page: MapPage) {
        if !self.loading.contains_key(&page) && self.is_wanted.insert(page) {
            self.wanted.push_back(page);
        }
    }

    /// The next page to be read, and the entry that says where it is.
    pub(super) fn next_load(&mut self) -> Option<(MapPage, PageEntry)> {
        while let Some(page) = self.wanted.pop_front() {
            self.is_wanted.remove(&page);
            if self.cache.contains(page) || self.loading.contains_key(&page) {
                continue;
            }
            // The page with the entry may be gone again; then it is wanted first, and the
            // operation asks for this page once more.
            let Ok(entry) = self.page_entry(page) else { continue };
            if entry.place().is_some() {
                self.loading.insert(page, Some(entry));
                return Some((page, entry));
            }
        }
        None
    }

    /// A page was read, or could not be.
    pub(super) fn loaded(&mut self, page: MapPage, content: Option<&Block>) {
        let Some(Some(entry)) = self.loading.remove(&page) else { return };
        if self.cache.contains(page) {
            return;
        }
        let is_whole = |content: &&Block| {
            page.crc(&self.uuid, entry.sequence.get(), content) == entry.crc.get()
        };
        match content.filter(is_whole) {
            Some(content) => {
                self.cache.insert(page, Box::new(content.clone()));
            }
            None => self.set_damaged(page),
        }
    }

    fn set_damaged(&mut self, page: MapPage) {
        if !self.damaged.insert(page) {
            return;
        }
        self.damaged_order.push_back(page);
        if self.damaged_order.len() > DAMAGED_MAX
            && let Some(oldest) = self.damaged_order.pop_front()
        {
            self.damaged.remove(&oldest);
        }
    }

    /// A page of a checkpoint is written, if this copy of it still counts.
    pub(super) fn written(
        &mut self,
        page: MapPage,
        token: u64,
        entry: PageEntry,
        live: &mut dyn LiveBlocks,
    ) {
        if !self.cache.is_written_as(page, token) {
            return;
        }
        let place = self.entry_place(page);
        let old = match (place, page) {
            (EntryPlace::In(parent, slot), _) => {
                let block = self.change(parent);
                let old = table_entry(block, slot);
                set_table_entry(block, slot, entry);
                old
            }
            (EntryPlace::Root, MapPage::Table { kind, .. }) => {
                std::mem::replace(&mut self.table_mut(kind).root, entry)
            }
            _ => unreachable!("a page in memory has a place for its entry"),
        };
        replace_live(old, entry, live);
        if self.cache.finish_write(page)
            && let EntryPlace::In(parent, _) = place
        {
            self.cache.drop_dirty_below(parent);
        }
    }

    pub(super) fn begin_pass(&mut self) {
        self.cache.begin_pass();
        let pass = self.cache.pass();
        self.data.begin_pass(pass);
        self.nodes.begin_pass(pass);
    }
}

fn replace_live(old: PageEntry, new: PageEntry, live: &mut dyn LiveBlocks) {
    let page = |entry: &PageEntry| Some((entry.place()?, entry.form()?.0.sectors));
    if let Some((place, sectors)) = page(&new) {
        live.gain(place, sectors);
    }
    if let Some((place, sectors)) = page(&old) {
        live.lose(place, sectors);
    }
}
