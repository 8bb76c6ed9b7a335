//! A page table: its shape, and which numbers are free.
//!
//! The entries are in blocks of 128; the blocks of a level have their own entries in the level
//! above, and the root's entry is in the checkpoint. One bit for each block of level 0 says that it
//! may have free numbers, so that memory for the search stays small: 256 KiB for 1 TiB.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Write;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::page::{MapPage, NumberHash};
use crate::format::{NUMBER_MAX, PageEntry, TableKind};

/// Levels that suffice for all numbers.
const LEVELS_MAX: u8 = 6;

/// Blocks whose pages were freed lately: their numbers are taken first, because they are dirty
/// anyway.
const RECENT_MAX: usize = 64;

/// Numbers that are handed out next without a search, at most: those of some rounds of writes.
const READY_MAX: usize = 4096;

/// A table grows, rather than to look for free numbers in old blocks, until an eighth is free:
/// then such a block has about 16 of them when it is read.
const SPARE_SHARE: u64 = 8;

/// A table does not grow further than to twice its used numbers and these: it goes on growing only
/// while all blocks that it has are damaged.
const DAMAGED_BLOCKS_MAX: u64 = 1 << 20;

/// A record's number is at most so many blocks behind the known ones: more writes are never under
/// way, and a senseless number does not take memory.
const AHEAD_BLOCKS_MAX: u64 = 8192;

/// A page table as a checkpoint has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableState {
    /// Place, check and sequence of the root.
    root: [u64; 3],
    levels: u8,
    /// Blocks of level 0.
    blocks: u64,
    /// Used numbers.
    used: u64,
    /// A hexadecimal digit for four blocks: which may have free numbers.
    free: String,
}

/// Where the entry of a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryPlace {
    /// In the table's state.
    Root,
    /// In this slot of a block.
    In(MapPage, usize),
    /// Nowhere: no such page exists.
    Nowhere,
}

#[derive(Debug)]
pub(super) struct PageTable {
    kind: TableKind,
    /// Entries of a block; fewer in tests.
    fanout: u64,
    pub(super) root: PageEntry,
    levels: u8,
    blocks: u64,
    pub(super) used: u64,
    /// Bits of blocks that may have numbers that are free and not handed out.
    bits: Vec<u64>,
    set_bits: u64,
    cursor: usize,
    recent: VecDeque<u64>,
    /// Free numbers, to be handed out next.
    ready: Vec<u64>,
    /// Numbers that are free in the table, and were handed out or are in `ready` or `late`.
    handed: HashSet<u64, NumberHash>,
    /// Numbers of records that had no effect, and the pass in which they came back. A replay may
    /// give them one, so they are not used before a checkpoint has made it impossible.
    late: VecDeque<(u64, u64)>,
    /// Used numbers that aliases under way are about: how many of these, and whether the number was
    /// freed meanwhile.
    held: HashMap<u64, (u32, bool), NumberHash>,
    /// Numbers were asked for: those of data pages when the replay was done.
    hands_out: bool,
}

impl PageTable {
    pub(super) fn new(kind: TableKind, fanout: u64) -> Self {
        Self {
            kind,
            fanout,
            root: PageEntry::FREE,
            levels: 1,
            blocks: 0,
            used: 0,
            bits: Vec::new(),
            set_bits: 0,
            cursor: 0,
            recent: VecDeque::new(),
            ready: Vec::new(),
            handed: HashSet::default(),
            late: VecDeque::new(),
            held: HashMap::default(),
            hands_out: false,
        }
    }

    pub(super) fn levels(&self) -> u8 {
        self.levels
    }

    /// Blocks of level 0.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// All numbers of the table are lower.
    pub(super) fn numbers(&self) -> u64 {
        self.blocks * self.fanout
    }

    /// The block of level 0 with the entry of this number.
    pub(super) fn block_of(&self, number: u64) -> MapPage {
        self.page(0, number / self.fanout)
    }

    /// The slot of the entry in it.
    pub(super) fn slot_of(&self, number: u64) -> usize {
        (number % self.fanout) as usize
    }

    /// The numbers whose entries are in this block of level 0.
    pub(super) fn numbers_of(&self, block: u64) -> Range<u64> {
        block * self.fanout..(block + 1) * self.fanout
    }

    fn page(&self, level: u8, index: u64) -> MapPage {
        MapPage::Table { kind: self.kind, level, index }
    }

    /// The table's root.
    pub(super) fn root_page(&self) -> MapPage {
        self.page(self.levels - 1, 0)
    }

    /// Blocks that a level can have without another level above.
    fn blocks_max(&self, level: u8) -> u64 {
        self.fanout.pow(u32::from(self.levels - 1 - level))
    }

    /// Where the entry of a block of this table is.
    pub(super) fn entry_place(&self, level: u8, index: u64) -> EntryPlace {
        if level >= self.levels || index >= self.blocks_max(level) {
            EntryPlace::Nowhere
        } else if level + 1 == self.levels {
            EntryPlace::Root
        } else {
            EntryPlace::In(self.page(level + 1, index / self.fanout), self.slot_of(index))
        }
    }

    /// Whether the entry of a number has a place.
    pub(super) fn reaches(&self, number: u64) -> bool {
        number / self.fanout < self.blocks_max(0)
    }

    pub(super) fn can_grow(&self) -> bool {
        self.levels < LEVELS_MAX
    }

    /// One level more: the new root, which will have the entry of the old one.
    pub(super) fn grow(&mut self) -> PageEntry {
        self.levels += 1;
        assert!(self.levels <= LEVELS_MAX, "{LEVELS_MAX} levels are checked");
        std::mem::replace(&mut self.root, PageEntry::FREE)
    }

    /// Makes a number of a record known. `false` for an impossible number.
    pub(super) fn admit(&mut self, number: u64) -> bool {
        let block = number / self.fanout;
        let is_possible =
            (1..=NUMBER_MAX).contains(&number) && block <= self.blocks + AHEAD_BLOCKS_MAX;
        while is_possible && block >= self.blocks {
            self.extend();
        }
        is_possible
    }

    fn extend(&mut self) -> u64 {
        let block = self.blocks;
        assert!(block <= NUMBER_MAX / self.fanout, "a pool has fewer blocks than numbers");
        self.blocks += 1;
        if self.bits.len() * 64 < self.blocks as usize {
            self.bits.push(0);
        }
        self.set_bit(block);
        block
    }

    fn has_bit(&self, block: u64) -> bool {
        self.bits[(block / 64) as usize] >> (block % 64) & 1 == 1
    }

    fn set_bit(&mut self, block: u64) {
        if !self.has_bit(block) {
            self.bits[(block / 64) as usize] |= 1 << (block % 64);
            self.set_bits += 1;
        }
    }

    /// The block has no more numbers to hand out.
    pub(super) fn exhausted(&mut self, block: u64) {
        if self.has_bit(block) {
            self.bits[(block / 64) as usize] &= !(1 << (block % 64));
            self.set_bits -= 1;
        }
        self.recent.retain(|&recent| recent != block);
    }

    /// A number's entry was freed.
    pub(super) fn freed(&mut self, number: u64) {
        let block = number / self.fanout;
        self.used = self.used.saturating_sub(1);
        if let Some((_, is_freed)) = self.held.get_mut(&number) {
            *is_freed = true;
            self.handed.insert(number);
            return;
        }
        // Its block is in memory and dirty: no other number is cheaper. A replay has none to hand
        // out: its next record may name this number.
        if self.hands_out && self.ready.len() < READY_MAX && self.handed.insert(number) {
            self.ready.push(number);
            return;
        }
        self.set_bit(block);
        if self.recent.back() == Some(&block) {
            return;
        }
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(block);
    }

    /// A number's entry was set that was free.
    pub(super) fn used(&mut self, number: u64) {
        self.used += 1;
        self.handed.remove(&number);
    }

    /// The block in which free numbers are looked for next. It stays the same until it is
    /// exhausted, or `freed` names another. `None` if so many blocks are damaged that the table
    /// must not grow.
    pub(super) fn pick(&mut self) -> Option<u64> {
        if let Some(&block) = self.recent.back() {
            return Some(block);
        }
        let wanted = self.used / self.fanout;
        if self.set_bits == 0 && self.blocks >= 2 * wanted + DAMAGED_BLOCKS_MAX {
            return None;
        }
        let block = if self.set_bits == 0 || self.blocks < wanted + wanted / SPARE_SHARE {
            self.extend()
        } else {
            self.next_bit()
        };
        self.recent.push_back(block);
        Some(block)
    }

    fn next_bit(&mut self) -> u64 {
        while self.bits[self.cursor] == 0 {
            self.cursor = (self.cursor + 1) % self.bits.len();
        }
        self.cursor as u64 * 64 + u64::from(self.bits[self.cursor].trailing_zeros())
    }

    pub(super) fn is_handed(&self, number: u64) -> bool {
        self.handed.contains(&number)
    }

    /// Free numbers, the next one last.
    pub(super) fn ready(&self) -> &[u64] {
        &self.ready
    }

    /// Free numbers of a block become ready. The lowest is taken first.
    pub(super) fn put_ready(&mut self, numbers: impl Iterator<Item = u64>) {
        self.hands_out = true;
        let from = self.ready.len();
        self.ready.extend(numbers);
        self.ready[from..].reverse();
        self.handed.extend(&self.ready[from..]);
    }

    pub(super) fn take_ready(&mut self) -> Option<u64> {
        self.ready.pop()
    }

    /// A ready number whose block is damaged: it is never used.
    pub(super) fn lose_ready(&mut self, number: u64) {
        self.ready.retain(|&ready| ready != number);
        self.handed.remove(&number);
    }

    /// A used number is not given to another page from here on.
    pub(super) fn hold(&mut self, number: u64) {
        self.held.entry(number).or_default().0 += 1;
    }

    /// The end of [`Self::hold`].
    pub(super) fn release(&mut self, number: u64) {
        let Some((count, is_freed)) = self.held.get_mut(&number) else { return };
        *count -= 1;
        let (is_last, is_freed) = (*count == 0, *is_freed);
        if is_last {
            self.held.remove(&number);
        }
        if is_last && is_freed {
            self.ready.push(number);
        }
    }

    pub(super) fn give_back_late(&mut self, number: u64, pass: u64) {
        if self.handed.contains(&number) {
            self.late.push_back((pass, number));
        }
    }

    /// A checkpoint has two passes: four passes later, one was whole.
    pub(super) fn begin_pass(&mut self, pass: u64) {
        while let Some(&(since, number)) = self.late.front()
            && since + 4 <= pass
        {
            self.late.pop_front();
            self.ready.push(number);
        }
    }

    pub(super) fn state(&self) -> TableState {
        let mut bits = self.bits.clone();
        for number in &self.handed {
            let block = number / self.fanout;
            bits[(block / 64) as usize] |= 1 << (block % 64);
        }
        let mut free = String::with_capacity(bits.len() * 16);
        for word in bits {
            write!(free, "{:016x}", word.reverse_bits()).expect("a text takes all");
        }
        free.truncate(self.blocks.div_ceil(4) as usize);
        let root = [self.root.place.get(), self.root.crc.get(), self.root.sequence.get()];
        let (levels, blocks, used) = (self.levels, self.blocks, self.used);
        TableState { root, levels, blocks, used, free }
    }

    /// The table of a checkpoint.
    ///
    /// # Errors
    /// If a field has a value that it cannot have.
    pub(super) fn from_state(
        kind: TableKind,
        fanout: u64,
        state: &TableState,
    ) -> Result<Self, String> {
        let ensure = |holds: bool, field: &str| {
            let text = || format!("the checkpoint's table of {kind:?} has an impossible {field}");
            if holds { Ok(()) } else { Err(text()) }
        };
        let mut table = Self::new(kind, fanout);
        ensure((1..=LEVELS_MAX).contains(&state.levels), "count of levels")?;
        table.levels = state.levels;
        let digits = state.free.len() as u64;
        ensure(digits == state.blocks.div_ceil(4), "list of free blocks")?;
        ensure(state.blocks <= NUMBER_MAX / fanout, "count of blocks")?;
        ensure(state.used <= state.blocks * fanout, "count of used numbers")?;
        let [place, crc, sequence] = state.root;
        let root = (place.into(), crc.into(), sequence.into());
        let (place, crc, sequence) = root;
        table.root = PageEntry { place, crc, sequence, ..PageEntry::FREE };
        ensure(table.root.is_free() || table.root.place().is_some(), "root")?;
        table.bits = vec![0; state.blocks.div_ceil(64) as usize];
        (table.blocks, table.used) = (state.blocks, state.used);
        for (at, digit) in state.free.bytes().enumerate() {
            let value = char::from(digit).to_digit(16);
            ensure(value.is_some(), "list of free blocks")?;
            let value = value.unwrap_or(0);
            for bit in (0..4).filter(|bit| value >> (3 - bit) & 1 == 1) {
                let block = at as u64 * 4 + bit;
                ensure(block < state.blocks, "list of free blocks")?;
                table.set_bit(block);
            }
        }
        Ok(table)
    }
}
