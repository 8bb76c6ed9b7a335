//! A map with a medium in memory: it serves loads, counts live blocks, and writes checkpoints.

use std::collections::{BTreeMap, BTreeSet};

use random::Random;

use crate::api::{PoolChange, VolumeId};
use crate::block::Block;
use crate::format::{
    BlockPlace, LogRecord, PageEntry, PageForm, PayloadPlace, SegmentId, TableKind,
};
use crate::map::page::{NODE_WORDS, TreeWord, node_word};
use crate::map::{
    Applied, LiveBlocks, Located, MapError, MapPage, MapPass, MapState, PoolMap, WriteToken,
};
use pool_stream::VOLUME_BLOCKS_MAX;

/// Places that are referred to. Each is there once.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(super) struct Live(pub(super) BTreeSet<u64>);

impl LiveBlocks for Live {
    fn gain(&mut self, place: BlockPlace, _: u8) {
        assert!(self.0.insert(place.word()), "{place:?} is live twice");
    }

    fn lose(&mut self, place: BlockPlace, _: u8) {
        assert!(self.0.remove(&place.word()), "{place:?} is not live");
    }
}

/// A record as it was applied, for a replay.
#[derive(Clone, Debug)]
struct Logged {
    record: LogRecord,
    place: BlockPlace,
    sequence: u64,
    change: Option<PoolChange>,
}

struct Written {
    page: MapPage,
    token: WriteToken,
    entry: PageEntry,
}

/// The last checkpoint.
struct Kept {
    state: String,
    live: Live,
    log: Vec<Logged>,
}

pub(super) struct Medium {
    pub(super) map: PoolMap,
    pub(super) live: Live,
    pub(super) random: Random,
    uuid: [u8; 16],
    fanout: u64,
    cache_blocks_max: usize,
    pages: BTreeMap<u64, Block>,
    /// Places whose pages are damaged.
    pub(super) damaged: BTreeSet<u64>,
    /// Loads of pages that were begun.
    pub(super) loads: u64,
    /// Those that are under way.
    loading: Vec<(MapPage, u64)>,
    places: u64,
    sequence: u64,
    kept: Kept,
    /// Writes of a checkpoint's first part that are under way.
    writes: Vec<Written>,
    is_fuzzy: bool,
}

impl Medium {
    pub(super) fn new(seed: u64, cache_blocks_max: usize, fanout: u64) -> Self {
        let uuid = [7; 16];
        let map = PoolMap::with_fanout(uuid, cache_blocks_max, fanout);
        let state = serde_json::to_string(&map.state()).unwrap();
        Self {
            map,
            live: Live::default(),
            random: Random::new(seed),
            uuid,
            fanout,
            cache_blocks_max,
            pages: BTreeMap::new(),
            damaged: BTreeSet::new(),
            loads: 0,
            loading: Vec::new(),
            places: 0,
            sequence: 0,
            kept: Kept { state, live: Live::default(), log: Vec::new() },
            writes: Vec::new(),
            is_fuzzy: false,
        }
    }

    fn next_place(&mut self) -> BlockPlace {
        self.places += 1;
        BlockPlace { segment: SegmentId((self.places >> 16) as u32), block: self.places as u16 }
    }

    /// Does an operation, with loads as long as pages are missing.
    pub(super) fn run<T>(
        &mut self,
        mut operation: impl FnMut(&mut PoolMap, &mut Live) -> Result<T, MapError>,
    ) -> Result<T, MapError> {
        for _ in 0..2000 {
            match operation(&mut self.map, &mut self.live) {
                Err(MapError::Missing) => {}
                result => return result,
            }
            while let Some((page, entry)) = self.map.next_load() {
                let place = entry.place().expect("a page to load has a place").word();
                self.loading.push((page, place));
                self.loads += 1;
            }
            assert!(!self.loading.is_empty(), "a page is missing, and none is wanted");
            for _ in 0..self.random.between(1, self.loading.len() as u64) {
                self.answer_load();
            }
        }
        panic!("an operation never has all its pages");
    }

    /// Some load is done; those that began earlier may be under way still.
    pub(super) fn answer_load(&mut self) {
        if self.loading.is_empty() {
            return;
        }
        let at = self.random.below(self.loading.len() as u64) as usize;
        let (page, place) = self.loading.swap_remove(at);
        let content = self.pages.get(&place).filter(|_| !self.damaged.contains(&place));
        self.map.loaded(page, content);
    }

    pub(super) fn apply(
        &mut self,
        record: LogRecord,
        change: Option<PoolChange>,
    ) -> Result<Applied, MapError> {
        self.sequence += 1;
        let logged = Logged { record, place: self.next_place(), sequence: self.sequence, change };
        let result = self.apply_logged(&logged);
        self.kept.log.push(logged);
        result
    }

    fn apply_logged(&mut self, logged: &Logged) -> Result<Applied, MapError> {
        let Logged { record, place, sequence, change } = logged;
        let at = PayloadPlace { place: *place, offset: 0 };
        self.run(|map, live| map.apply(record, at, *sequence, change.as_ref(), live))
    }

    /// Makes a change, and says the id that it made or was about.
    pub(super) fn change(&mut self, change: PoolChange) -> VolumeId {
        let id = self.map.check(&change).unwrap_or_else(|error| panic!("{change:?}: {error}"));
        let record = LogRecord::Change { bytes: 0, crc: 0, is_copy: false };
        assert_eq!(self.apply(record, Some(change)), Ok(Applied::Done));
        id
    }

    /// Writes a block. Its content is its check.
    pub(super) fn write(&mut self, volume: VolumeId, block: u64, content: u64) {
        assert_eq!(self.try_write(volume, block, content), Ok(Applied::Done));
    }

    pub(super) fn try_write(
        &mut self,
        volume: VolumeId,
        block: u64,
        content: u64,
    ) -> Result<Applied, MapError> {
        let number = self.run(|map, _| map.take_number()).expect("damaged numbers are left out");
        let record = LogRecord::Write { volume: volume.0, block, number, crc: content };
        self.apply(record, None)
    }

    pub(super) fn try_zero(
        &mut self,
        volume: VolumeId,
        block: u64,
        blocks: u16,
    ) -> Result<Applied, MapError> {
        self.apply(LogRecord::Zero { volume: volume.0, block, blocks }, None)
    }

    /// The content of a block; `None` for zeroes, `Some(0)` for a lost page.
    pub(super) fn read(&mut self, volume: VolumeId, block: u64) -> Result<Option<u64>, MapError> {
        Ok(match self.run(|map, _| map.locate(volume, block))? {
            Located::Hole => None,
            Located::Page { entry, .. } => {
                let place = entry.place().expect("a page has a place");
                assert!(self.live.0.contains(&place.word()), "a page's place is live");
                Some(entry.crc.get())
            }
            Located::Lost => Some(0),
        })
    }

    /// Moves the page of a block, or loses it.
    pub(super) fn move_page(&mut self, volume: VolumeId, block: u64, is_lost: bool) {
        let located = self.run(|map, _| map.locate(volume, block));
        let Ok(Located::Page { number, entry, .. }) = located else { return };
        let (crc, from) = (entry.crc.get(), entry.place().unwrap());
        let record = if is_lost {
            LogRecord::Lost { number, from }
        } else {
            let (volume, form) = (volume.0, PageForm::PLAIN);
            LogRecord::Move { number, crc, from, volume, form }
        };
        let old = LogRecord::Write { volume: volume.0, block, number, crc };
        assert_eq!(self.run(|map, _| map.is_live(&old, from)), Ok(true));
        let result = self.apply(record, None);
        if result == Err(MapError::Damaged) {
            assert!(!self.damaged.is_empty());
            return;
        }
        assert_eq!(result, Ok(Applied::Done));
        assert_eq!(self.run(|map, _| map.is_live(&old, from)), Ok(false));
        assert_eq!(self.apply(record, None), Ok(Applied::Dropped), "the page is not there");
    }

    /// A step of a removal, if one can go on.
    pub(super) fn remove_more(&mut self) -> bool {
        let is_short = self.random.one_in(2);
        let unit = 64 << self.random.below(24);
        self.remove_a_bit(if is_short { unit } else { VOLUME_BLOCKS_MAX })
    }

    /// The same, and it ends at a multiple of `unit`: more steps have more writes between them.
    pub(super) fn remove_a_bit(&mut self, unit: u64) -> bool {
        let step = self.run(|map, _| map.removal_step()).expect("damage does not stop a removal");
        let Some(LogRecord::Removal { snapshot, block }) = step else {
            assert!(step.is_none() && !self.map.has_removal());
            return false;
        };
        assert!(self.map.has_removal());
        let at = self.map.catalog.removal().unwrap().at;
        let block = block.min((at / unit + 1) * unit);
        let record = LogRecord::Removal { snapshot, block };
        assert_eq!(self.apply(record, None), Ok(Applied::Done));
        true
    }

    pub(super) fn remove_all(&mut self) {
        for _ in 0..10_000 {
            if !self.remove_more() {
                return;
            }
        }
        panic!("a removal never ends");
    }

    fn copy_out(&mut self, page: MapPage) -> Written {
        let mut block = Block::ZERO;
        let token = self.map.copy_out(page, &mut block);
        let place = self.next_place();
        // Rows of the map have a counter of their own.
        let sequence = self.places;
        let crc = page.crc(&self.uuid, sequence, &block);
        self.pages.insert(place.word(), block);
        Written { page, token, entry: PageEntry::at(place, crc, sequence) }
    }

    fn written(&mut self, written: Written) {
        let Written { page, token, entry } = written;
        self.map.written(page, token, entry, &mut self.live);
    }

    /// A bit of a checkpoint's first part, in which changes go on.
    pub(super) fn write_fuzzily(&mut self) {
        if !self.is_fuzzy {
            self.map.begin_pass();
            self.is_fuzzy = true;
        }
        for _ in 0..self.random.below(4) {
            // Blocks of tables have no need to be written now, and may be.
            let pass = if self.random.one_in(20) { MapPass::Tables(0) } else { MapPass::Nodes };
            if let Some(page) = self.map.next_dirty(pass).unwrap() {
                assert_eq!(self.map.next_dirty(pass), Ok(Some(page)));
                let written = self.copy_out(page);
                self.writes.push(written);
            }
        }
        for _ in 0..self.random.below(4).min(self.writes.len() as u64) {
            let at = self.random.below(self.writes.len() as u64) as usize;
            let written = self.writes.swap_remove(at);
            self.written(written);
        }
    }

    /// A whole checkpoint.
    pub(super) fn checkpoint(&mut self) {
        for written in std::mem::take(&mut self.writes) {
            self.written(written);
        }
        self.map.begin_pass();
        self.is_fuzzy = false;
        let tables = (0..self.map.tables_levels()).map(MapPass::Tables);
        for pass in [MapPass::Nodes].into_iter().chain(tables) {
            let mut written = Vec::new();
            while let Some(page) = self.map.next_dirty(pass).unwrap() {
                assert_eq!(page.pass(), pass);
                written.push(self.copy_out(page));
            }
            while !written.is_empty() {
                let at = self.random.below(written.len() as u64) as usize;
                let one = written.swap_remove(at);
                self.written(one);
            }
            assert!(!self.map.is_dirty(pass), "the pass has written all that was dirty");
        }
        assert_eq!(self.map.dirty_blocks(), 0);
        let state = serde_json::to_string(&self.map.state()).unwrap();
        self.kept = Kept { state, live: self.live.clone(), log: Vec::new() };
    }

    /// A map of this state, over the pages of this medium.
    pub(super) fn open(&mut self, state: MapState) -> Result<PoolMap, String> {
        self.loading.clear();
        PoolMap::with_state(self.uuid, self.cache_blocks_max, state, self.fanout)
    }

    /// A crash: the map is that of the checkpoint, with the records behind it.
    pub(super) fn open_again(&mut self) {
        let state: MapState = serde_json::from_str(&self.kept.state).unwrap();
        self.map = self.open(state).expect("a state that was written can be read");
        let live = std::mem::replace(&mut self.live, self.kept.live.clone());
        self.writes.clear();
        self.is_fuzzy = false;
        for logged in self.kept.log.clone() {
            let _ = self.apply_logged(&logged);
            if self.random.one_in(10) {
                self.map.evict();
            }
        }
        let of_map = |place: &&u64| self.pages.contains_key(place);
        let data = |live: &Live| -> BTreeSet<u64> {
            live.0.iter().filter(|place| !of_map(place)).copied().collect()
        };
        if self.damaged.is_empty() {
            assert_eq!(data(&live), data(&self.live), "a replay has the same live pages");
        }
    }

    pub(super) fn evict(&mut self, blocks_max: usize) {
        self.map.pages.cache.evict(blocks_max);
    }

    fn page(&mut self, page: MapPage) -> Block {
        self.run(|map, _| map.pages.need(page)).expect("nothing is damaged here");
        self.map.pages.cache.block(page).clone()
    }

    /// All that is used is what some version reaches, and it is live; a removal that has begun must
    /// have ended.
    pub(super) fn check_tables(&mut self) {
        let mut reached = [BTreeSet::new(), BTreeSet::new()];
        for root in self.map.catalog.roots() {
            self.reach(root, 4, &mut reached);
        }
        let mut live = BTreeSet::new();
        for (kind, reached) in [TableKind::Data, TableKind::Nodes].into_iter().zip(reached) {
            let numbers = self.map.pages.table(kind).numbers();
            let mut used = BTreeSet::new();
            for number in 1..numbers {
                if !self.map.pages.table(kind).reaches(number) {
                    break;
                }
                let entry = self.run(|map, _| map.pages.entry(kind, number)).unwrap();
                live.extend(entry.place().map(BlockPlace::word));
                if !entry.is_free() {
                    used.insert(number);
                }
            }
            assert_eq!(used, reached, "{kind:?}: used, and reached");
            assert_eq!(self.map.pages.table(kind).used, used.len() as u64, "{kind:?}");
            let levels = self.map.pages.table(kind).levels();
            for level in 0..levels {
                let blocks = numbers.div_ceil(self.fanout.pow(u32::from(level) + 1));
                for index in 0..blocks {
                    let page = MapPage::Table { kind, level, index };
                    if self.map.pages.exists(page) {
                        let entry = self.run(|map, _| map.pages.page_entry(page)).unwrap();
                        live.extend(entry.place().map(BlockPlace::word));
                    }
                }
            }
        }
        assert_eq!(self.live.0, live, "live, and referred to");
        assert_eq!(self.map.contradictions(), 0);
    }

    fn reach(&mut self, word: TreeWord, level: usize, reached: &mut [BTreeSet<u64>; 2]) {
        if word.is_hole() {
            return;
        }
        let is_new = reached[usize::from(level > 0)].insert(word.number());
        if level == 0 || !is_new {
            return;
        }
        let node = self.page(MapPage::Node(word.number()));
        let words: Vec<_> = (0..NODE_WORDS).map(|at| node_word(&node, at)).collect();
        assert!(words.iter().any(|word| !word.is_hole()), "no node is empty");
        for word in words {
            self.reach(word, level - 1, reached);
        }
    }

    /// The place of a page of the map on the medium, if it was written.
    pub(super) fn place_of(&mut self, page: MapPage) -> Option<u64> {
        let entry = self.run(|map, _| map.pages.page_entry(page)).ok()?;
        entry.place().map(BlockPlace::word)
    }

    /// A random place of a page of the map that is live.
    fn some_page(&mut self) -> Option<u64> {
        let live: Vec<u64> =
            self.pages.keys().filter(|place| self.live.0.contains(place)).copied().collect();
        (!live.is_empty()).then(|| live[self.random.below(live.len() as u64) as usize])
    }

    /// Damages a random page of the map.
    pub(super) fn damage_some(&mut self) {
        if let Some(place) = self.some_page() {
            self.damaged.insert(place);
        }
    }

    /// Collects a random page of the map: it must move with the next checkpoint.
    pub(super) fn collect_page(&mut self) {
        let Some((page, place)) = self.some_page().and_then(|place| self.page_at(place)) else {
            return;
        };
        let record = page.record(0);
        assert_eq!(self.run(|map, _| map.is_live(&record, place)), Ok(true));
        let result = self.run(|map, _| map.make_dirty(&record, place));
        if result == Err(MapError::Damaged) {
            assert!(!self.damaged.is_empty());
            return;
        }
        assert_eq!(result, Ok(true));
        self.checkpoint();
        assert!(!self.live.0.contains(&place.word()), "the page has moved");
        assert_eq!(self.run(|map, _| map.make_dirty(&record, place)), Ok(false));
    }

    /// The page of the map that is at a place.
    fn page_at(&mut self, word: u64) -> Option<(MapPage, BlockPlace)> {
        for kind in [TableKind::Data, TableKind::Nodes] {
            let numbers = self.map.pages.table(kind).numbers();
            for number in (1..numbers).filter(|_| kind == TableKind::Nodes) {
                if self.place_of(MapPage::Node(number)) == Some(word) {
                    return BlockPlace::from_word(word).map(|place| (MapPage::Node(number), place));
                }
            }
            for level in 0..self.map.pages.table(kind).levels() {
                for index in 0..numbers.div_ceil(self.fanout.pow(u32::from(level) + 1)) {
                    let page = MapPage::Table { kind, level, index };
                    if self.place_of(page) == Some(word) {
                        return BlockPlace::from_word(word).map(|place| (page, place));
                    }
                }
            }
        }
        assert!(!self.damaged.is_empty(), "a live place has a page");
        None
    }
}
