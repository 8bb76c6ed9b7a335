//! The pages of the map in memory.
//!
//! Clean pages are in a list by their last use, and the oldest go first. Dirty pages are in none:
//! they wait in queues, one for each pass of a checkpoint. A page with a dirty page below it counts
//! as dirty, because the write of that page will change it; so all that a checkpoint needs is in
//! memory when it begins.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::page::{MapPage, MapPass, NumberHash};
use crate::block::Block;

/// Entries of a queue that may be out of date before the queue is gone through.
const STALE_MAX: usize = 1024;

const NONE: u32 = u32::MAX;

struct MapSlot {
    page: MapPage,
    block: Box<Block>,
    /// The page or one below it will be written.
    is_dirty: bool,
    /// The page differs from its last copy on the medium, or from the copy that is being written.
    is_changed: bool,
    /// The copy that is being written.
    writing: Option<u64>,
    /// Dirty pages whose entries are in this one.
    dirty_below: u32,
    /// The pass in which it became dirty.
    pass: u64,
    /// Its valid entry in the queue; 0 for none.
    ticket: u64,
    /// Neighbours in the list of clean pages.
    newer: u32,
    older: u32,
    /// The count of moves in the list when it was moved to its newest end.
    moved: u64,
}

/// Pages in memory.
pub(super) struct MapCache {
    slots: Vec<MapSlot>,
    by_page: HashMap<MapPage, u32, NumberHash>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    clean: usize,
    /// Moves to the newest end of the list.
    moves: u64,
    queues: BTreeMap<MapPass, VecDeque<Queued>>,
    dirty: BTreeMap<MapPass, usize>,
    pass: u64,
    tickets: u64,
}

struct Queued {
    pass: u64,
    ticket: u64,
    page: MapPage,
}

impl MapCache {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            by_page: HashMap::default(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            clean: 0,
            moves: 0,
            queues: BTreeMap::new(),
            dirty: BTreeMap::new(),
            pass: 1,
            tickets: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.by_page.len()
    }

    pub(super) fn dirty_len(&self) -> usize {
        self.by_page.len() - self.clean
    }

    #[cfg(test)]
    pub(super) fn has_dirty(&self, pass: MapPass) -> bool {
        self.dirty.get(&pass).is_some_and(|&count| count > 0)
    }

    pub(super) fn contains(&self, page: MapPage) -> bool {
        self.by_page.contains_key(&page)
    }

    /// Whether the page of a slot counts as dirty.
    pub(super) fn is_dirty_at(&self, at: u32) -> bool {
        self.slots[at as usize].is_dirty
    }

    pub(super) fn is_dirty(&self, page: MapPage) -> bool {
        self.by_page.get(&page).is_some_and(|&at| self.is_dirty_at(at))
    }

    /// The slot of a page that is here, which was used now. It is valid until a page goes.
    pub(super) fn touch(&mut self, page: MapPage) -> Option<u32> {
        let at = *self.by_page.get(&page)?;
        let slot = &self.slots[at as usize];
        // A page in the newest eighth of the list stays where it is: a move writes to three other
        // slots, and none of them is in the processor's cache.
        if !slot.is_dirty && self.moves - slot.moved > self.clean as u64 / 8 {
            self.unlink(at);
            self.link(at);
        }
        Some(at)
    }

    /// The content of a slot.
    pub(super) fn block_at(&self, at: u32) -> &Block {
        &self.slots[at as usize].block
    }

    /// The slot of a page that is marked as changed.
    pub(super) fn marked(&self, page: MapPage) -> Option<u32> {
        let at = *self.by_page.get(&page)?;
        let slot = &self.slots[at as usize];
        (slot.is_changed && slot.is_dirty).then_some(at)
    }

    /// The content of such a slot, to be changed.
    pub(super) fn block_mut_at(&mut self, at: u32) -> &mut Block {
        let slot = &mut self.slots[at as usize];
        assert!(slot.is_changed && slot.is_dirty, "a page is marked before it is changed");
        &mut slot.block
    }

    pub(super) fn get(&self, page: MapPage) -> Option<&Block> {
        self.by_page.get(&page).map(|&at| &*self.slots[at as usize].block)
    }

    /// A page that is here.
    pub(super) fn block(&self, page: MapPage) -> &Block {
        self.get(page).expect("the page was ensured to be in memory")
    }

    fn slot_mut(&mut self, page: MapPage) -> &mut MapSlot {
        let at = *self.by_page.get(&page).expect("the page was ensured to be in memory");
        &mut self.slots[at as usize]
    }

    /// A clean page comes in; its slot.
    pub(super) fn insert(&mut self, page: MapPage, block: Box<Block>) -> u32 {
        let slot = MapSlot {
            page,
            block,
            is_dirty: false,
            is_changed: false,
            writing: None,
            dirty_below: 0,
            pass: 0,
            ticket: 0,
            newer: NONE,
            older: NONE,
            moved: 0,
        };
        let at = if let Some(at) = self.free.pop() {
            self.slots[at as usize] = slot;
            at
        } else {
            self.slots.push(slot);
            (self.slots.len() - 1) as u32
        };
        let before = self.by_page.insert(page, at);
        assert!(before.is_none(), "a page is in memory once");
        self.link(at);
        self.clean += 1;
        at
    }

    /// A page goes, whether it is clean or not. Returns whether it was dirty.
    pub(super) fn remove(&mut self, page: MapPage) -> bool {
        let Some(at) = self.by_page.remove(&page) else { return false };
        let slot = &self.slots[at as usize];
        let was_dirty = slot.is_dirty;
        if was_dirty {
            *self.dirty.entry(page.pass()).or_default() -= 1;
        } else {
            self.unlink(at);
            self.clean -= 1;
        }
        self.slots[at as usize].ticket = 0;
        self.free.push(at);
        was_dirty
    }

    /// Drops the clean pages that were used longest ago, as far as there are too many pages. Half
    /// of the limit is for clean pages, however many are dirty: one record needs fewer.
    pub(super) fn evict(&mut self, blocks_max: usize) {
        while self.by_page.len() > blocks_max && self.clean > blocks_max / 2 {
            let page = self.slots[self.oldest as usize].page;
            self.remove(page);
        }
    }

    fn link(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        self.moves += 1;
        let slot = &mut self.slots[at as usize];
        (slot.newer, slot.older, slot.moved) = (NONE, before, self.moves);
        match before {
            NONE => self.oldest = at,
            before => self.slots[before as usize].newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let MapSlot { newer, older, .. } = self.slots[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }

    /// The page counts as dirty from here on. Returns whether it did not before.
    pub(super) fn set_dirty(&mut self, page: MapPage) -> bool {
        let at = *self.by_page.get(&page).expect("the page was ensured to be in memory");
        if self.slots[at as usize].is_dirty {
            return false;
        }
        self.unlink(at);
        self.clean -= 1;
        *self.dirty.entry(page.pass()).or_default() += 1;
        let slot = &mut self.slots[at as usize];
        (slot.is_dirty, slot.pass) = (true, self.pass);
        true
    }

    pub(super) fn add_dirty_below(&mut self, page: MapPage) {
        self.slot_mut(page).dirty_below += 1;
    }

    /// A page below is clean or gone. The page itself has changed with that.
    pub(super) fn drop_dirty_below(&mut self, page: MapPage) {
        let slot = self.slot_mut(page);
        assert!(slot.is_changed, "the entry of the page below has changed");
        slot.dirty_below -= 1;
    }

    /// The content of a dirty page changes.
    pub(super) fn set_changed(&mut self, page: MapPage) {
        let pass = self.pass;
        let slot = self.slot_mut(page);
        if slot.is_changed {
            return;
        }
        slot.is_changed = true;
        if slot.writing.is_some() {
            slot.pass = pass;
        } else {
            self.enqueue(page);
        }
    }

    fn enqueue(&mut self, page: MapPage) {
        self.tickets += 1;
        let ticket = self.tickets;
        let slot = self.slot_mut(page);
        slot.ticket = ticket;
        let pass = slot.pass;
        let stale_max = STALE_MAX + 2 * self.dirty.get(&page.pass()).copied().unwrap_or(0);
        let is_old = pass < self.pass;
        let queue = self.queues.entry(page.pass()).or_default();
        // The pages that the pass under way has to write come first.
        if is_old {
            queue.push_front(Queued { pass, ticket, page });
        } else {
            queue.push_back(Queued { pass, ticket, page });
        }
        if queue.len() > stale_max {
            let (by_page, slots) = (&self.by_page, &self.slots);
            queue.retain(|queued| is_valid(by_page, slots, queued));
        }
    }

    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    /// The pages that are dirty now are given by [`Self::next_dirty`].
    pub(super) fn begin_pass(&mut self) {
        self.pass += 1;
    }

    pub(super) fn pass(&self) -> u64 {
        self.pass
    }

    /// Whether the next checkpoint writes the page, or a write of it is under way.
    pub(super) fn will_be_written(&self, page: MapPage) -> bool {
        self.by_page.get(&page).is_some_and(|&at| {
            let slot = &self.slots[at as usize];
            slot.is_changed || slot.writing.is_some() || slot.dirty_below > 0
        })
    }

    /// A page that was dirty when the pass began.
    pub(super) fn next_dirty(&mut self, pass: MapPass) -> Option<MapPage> {
        let queue = self.queues.get_mut(&pass)?;
        while let Some(front) = queue.front() {
            if is_valid(&self.by_page, &self.slots, front) {
                return (front.pass < self.pass).then_some(front.page);
            }
            queue.pop_front();
        }
        None
    }

    /// Copies a dirty page for a write. Returns the copy's token.
    pub(super) fn copy_out(&mut self, page: MapPage, into: &mut Block) -> u64 {
        self.tickets += 1;
        let token = self.tickets;
        let slot = self.slot_mut(page);
        assert!(slot.is_dirty && slot.writing.is_none(), "a dirty page is written once at a time");
        into.0.copy_from_slice(&slot.block.0);
        slot.writing = Some(token);
        slot.is_changed = false;
        slot.ticket = 0;
        token
    }

    pub(super) fn is_written_as(&self, page: MapPage, token: u64) -> bool {
        let at = self.by_page.get(&page);
        at.is_some_and(|&at| self.slots[at as usize].writing == Some(token))
    }

    /// A write is done. Returns whether the page is clean now.
    pub(super) fn finish_write(&mut self, page: MapPage) -> bool {
        let at = *self.by_page.get(&page).expect("the write was looked up");
        let pass = self.pass;
        let slot = &mut self.slots[at as usize];
        slot.writing = None;
        if slot.is_changed {
            self.enqueue(page);
            return false;
        }
        if slot.dirty_below > 0 {
            slot.pass = pass;
            return false;
        }
        slot.is_dirty = false;
        *self.dirty.entry(page.pass()).or_default() -= 1;
        self.link(at);
        self.clean += 1;
        true
    }
}

fn is_valid(
    by_page: &HashMap<MapPage, u32, NumberHash>,
    slots: &[MapSlot],
    queued: &Queued,
) -> bool {
    by_page.get(&queued.page).is_some_and(|&at| slots[at as usize].ticket == queued.ticket)
}
