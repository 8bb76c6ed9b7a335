//! Random sequences of everything that the map does, against plain trees.

use std::collections::{BTreeMap, BTreeSet};

use random::Random;

use super::medium::Medium;
use crate::api::{PoolChange, VolumeId};
use crate::map::{Applied, MapError, PoolVolumeKind};
use pool_stream::VOLUME_BLOCKS_MAX;

#[derive(Clone)]
struct ModelVersion {
    is_snapshot: bool,
    blocks: u64,
    /// The line of snapshots that it comes from.
    line: Vec<VolumeId>,
    content: BTreeMap<u64, u64>,
}

struct Model {
    medium: Medium,
    random: Random,
    versions: BTreeMap<VolumeId, ModelVersion>,
    lost: BTreeSet<u64>,
    /// Blocks at edges of groups, leaves and nodes.
    blocks: Vec<u64>,
    names: u64,
    contents: u64,
    /// With few volumes more happens to each of them.
    few: usize,
    /// Pages of the map are damaged now and then.
    is_damaging: bool,
}

/// A block that a failed write may or may not have changed.
const UNKNOWN: u64 = u64::MAX;

impl Model {
    fn new(seed: u64, is_damaging: bool) -> Self {
        let mut random = Random::new(seed);
        let cache = if random.one_in(3) { 512 } else { random.between(40, 120) } as usize;
        let fanout = if random.one_in(3) { 128 } else { random.between(6, 12) };
        let mut blocks = vec![VOLUME_BLOCKS_MAX - 1];
        for edge in [0, 64, 512, 1024, 512 * 512, 512 * 512 + 512, 1 << 27, 3 << 27] {
            for _ in 0..random.between(1, 6) {
                let near = [1, 3, 70, 500][random.below(4) as usize];
                blocks.push((edge + random.below(near)).saturating_sub(random.below(near)));
            }
        }
        let few = random.between(1, 8) as usize;
        let medium = Medium::new(random.draw(), cache, fanout);
        Self {
            medium,
            random,
            versions: BTreeMap::new(),
            lost: BTreeSet::new(),
            blocks,
            names: 0,
            contents: 0,
            few,
            is_damaging,
        }
    }

    fn pick(&mut self, is_snapshot: bool) -> Option<VolumeId> {
        let ids: Vec<_> = self
            .versions
            .iter()
            .filter(|(_, version)| version.is_snapshot == is_snapshot)
            .map(|(&id, _)| id)
            .collect();
        (!ids.is_empty()).then(|| ids[self.random.below(ids.len() as u64) as usize])
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("name-{}", self.names)
    }

    fn some_block(&mut self) -> u64 {
        self.blocks[self.random.below(self.blocks.len() as u64) as usize]
    }

    fn size(&mut self) -> u64 {
        match self.random.below(3) {
            0 => VOLUME_BLOCKS_MAX,
            1 => self.some_block() + 1,
            _ => self.some_block().max(1),
        }
    }

    fn create(&mut self) {
        let (name, blocks) = (self.name(), self.size());
        let id = self.medium.change(PoolChange::Create { name, blocks });
        let content = BTreeMap::new();
        let new = ModelVersion { is_snapshot: false, blocks, line: Vec::new(), content };
        assert!(self.versions.insert(id, new).is_none());
    }

    fn write(&mut self) {
        let Some(id) = self.pick(false) else { return };
        let block = self.some_block();
        self.contents += 1;
        let version = self.versions.get_mut(&id).unwrap();
        let result = self.medium.try_write(id, block, self.contents);
        if block >= version.blocks {
            assert_eq!(result, Ok(Applied::Dropped));
        } else if result == Err(MapError::Damaged) {
            assert!(self.is_damaging);
            version.content.insert(block, UNKNOWN);
        } else {
            assert_eq!(result, Ok(Applied::Done));
            version.content.insert(block, self.contents);
        }
    }

    fn zero(&mut self) {
        let Some(id) = self.pick(false) else { return };
        let mut block = self.some_block();
        let mut blocks = self.random.between(1, 64 - block % 64);
        if self.random.one_in(3) {
            (block, blocks) = (block / 64 * 64, 64);
        }
        let version = self.versions.get_mut(&id).unwrap();
        if block < version.blocks {
            let result = self.medium.try_zero(id, block, blocks as u16);
            if result == Err(MapError::Damaged) {
                assert!(self.is_damaging);
                return;
            }
            assert_eq!(result, Ok(Applied::Done));
            version.content.retain(|&at, _| !(block..block + blocks).contains(&at));
        }
    }

    fn snapshot(&mut self) {
        let mut volumes: Vec<_> =
            (0..self.random.between(1, 3)).filter_map(|_| self.pick(false)).collect();
        volumes.sort();
        volumes.dedup();
        if volumes.is_empty() || self.versions.len() > 4 * self.few {
            return;
        }
        let name = self.name();
        let change = PoolChange::Snapshot { volumes: volumes.clone(), name, at_s: 1 };
        let first = self.medium.change(change);
        for (at, volume) in volumes.into_iter().enumerate() {
            let id = VolumeId(first.0 + at as u32);
            let head = self.versions.get_mut(&volume).unwrap();
            let snapshot = ModelVersion { is_snapshot: true, ..head.clone() };
            head.line.push(id);
            assert!(self.versions.insert(id, snapshot).is_none());
        }
    }

    fn clone_of(&mut self) {
        let Some(snapshot) = self.pick(true).filter(|_| self.versions.len() < 3 * self.few) else {
            return;
        };
        let name = self.name();
        let id = self.medium.change(PoolChange::Clone { snapshot, name });
        let mut version = ModelVersion { is_snapshot: false, ..self.versions[&snapshot].clone() };
        version.line.push(snapshot);
        assert!(self.versions.insert(id, version).is_none());
    }

    fn rollback(&mut self) {
        let Some(volume) = self.pick(false) else { return };
        let line = &self.versions[&volume].line;
        let line: Vec<_> =
            line.iter().filter(|id| self.versions.contains_key(id)).copied().collect();
        if line.is_empty() {
            return;
        }
        let snapshot = line[self.random.below(line.len() as u64) as usize];
        assert_eq!(self.medium.change(PoolChange::Rollback { volume, snapshot }), volume);
        let mut version = ModelVersion { is_snapshot: false, ..self.versions[&snapshot].clone() };
        version.line.push(snapshot);
        self.versions.insert(volume, version);
    }

    fn remove(&mut self) {
        let is_snapshot = !self.random.one_in(4);
        let Some(volume) = self.pick(is_snapshot) else { return };
        assert_eq!(self.medium.change(PoolChange::Remove { volume }), volume);
        self.versions.remove(&volume);
    }

    /// Removes the snapshot that a volume comes from.
    fn remove_last(&mut self) {
        let Some(volume) = self.pick(false) else { return };
        let line = &self.versions[&volume].line;
        let last = line.iter().rev().find(|id| self.versions.contains_key(id));
        if let Some(&volume) = last {
            self.medium.change(PoolChange::Remove { volume });
            self.versions.remove(&volume);
        }
    }

    fn clear(&mut self) {
        let Some(volume) = self.pick(false) else { return };
        self.medium.change(PoolChange::Clear { volume });
        self.versions.get_mut(&volume).unwrap().content.clear();
    }

    fn resize(&mut self) {
        let Some(volume) = self.pick(false) else { return };
        let blocks = self.size();
        self.resize_to(volume, blocks);
    }

    fn resize_to(&mut self, volume: VolumeId, blocks: u64) {
        self.medium.change(PoolChange::Resize { volume, blocks });
        let version = self.versions.get_mut(&volume).unwrap();
        version.blocks = blocks;
        version.content.retain(|&at, _| at < blocks);
    }

    fn move_page(&mut self) {
        let is_snapshot = self.random.one_in(2);
        let Some(id) = self.pick(is_snapshot) else { return };
        let block = self.some_block();
        let is_lost = self.random.one_in(20);
        self.medium.move_page(id, block, is_lost);
        if let Some(&content) = self.versions[&id].content.get(&block).filter(|_| is_lost) {
            self.lost.insert(content);
        }
    }

    fn step(&mut self) {
        if self.is_damaging && self.random.one_in(300) {
            self.medium.damage_some();
        }
        match self.random.below(100) {
            0..3 => {
                if self.versions.len() < self.few
                    || self.random.one_in(4) && self.versions.len() < 3 * self.few
                {
                    self.create();
                }
            }
            3..45 => self.write(),
            45..52 => self.zero(),
            52..58 => self.snapshot(),
            58..61 => self.clone_of(),
            61..63 => self.rollback(),
            63..68 => self.remove(),
            68 => self.clear(),
            69 => self.resize(),
            70..74 => self.move_page(),
            74..82 => drop(self.medium.remove_more()),
            82..92 => self.medium.write_fuzzily(),
            92 => self.medium.checkpoint(),
            93 if self.random.one_in(2) => self.medium.open_again(),
            94 if self.random.one_in(4) => self.medium.collect_page(),
            95 if self.random.one_in(4) => {
                self.medium.remove_all();
                self.check_tables();
            }
            95..98 => {
                let max = self.random.below(50);
                self.medium.evict(max as usize);
            }
            98 => self.medium.answer_load(),
            _ => self.medium.map.evict(),
        }
    }

    fn check_some(&mut self) {
        let is_snapshot = self.random.one_in(2);
        if let Some(id) = self.pick(is_snapshot) {
            self.check_version(id);
        }
    }

    fn check_version(&mut self, id: VolumeId) {
        let version = &self.versions[&id];
        assert_eq!(self.medium.map.volume_blocks(id), Some(version.blocks));
        for &block in &self.blocks {
            let content = version.content.get(&block).copied();
            let content =
                content.map(|content| if self.lost.contains(&content) { 0 } else { content });
            let found = self.medium.read(id, block);
            if self.is_damaging
                && ([Some(UNKNOWN), Some(0)].contains(&content)
                    || found == Ok(Some(0))
                    || found.is_err())
            {
                continue;
            }
            assert_eq!(found, Ok(content), "block {block} of {id:?}");
        }
    }

    /// The difference of two versions has each block that differs, and no others.
    fn check_difference(&mut self) {
        let (from_kind, to_kind) = (self.random.one_in(2), self.random.one_in(2));
        let Some(to) = self.pick(to_kind) else { return };
        let from = self.pick(from_kind).filter(|_| !self.random.one_in(4));
        let old = from.map(|from| self.versions[&from].content.clone()).unwrap_or_default();
        let new = &self.versions[&to];
        let mut differ: BTreeMap<u64, bool> = BTreeMap::new();
        for (&block, content) in new.content.iter().filter(|(block, _)| **block < new.blocks) {
            if old.get(&block) != Some(content) {
                differ.insert(block, false);
            }
        }
        for &block in old.keys().filter(|&&block| block < new.blocks) {
            if !new.content.contains_key(&block) {
                differ.insert(block, true);
            }
        }
        let size = new.blocks;
        let (mut start, mut found) = (0, BTreeMap::new());
        loop {
            let part = match self.medium.run(|map, _| map.changed(from, to, start)) {
                Err(MapError::Damaged) if self.is_damaging => return,
                part => part.unwrap(),
            };
            for run in part.runs {
                let (block, end) = (run.block, run.block + run.blocks);
                assert!(block >= start && end > block && end <= size);
                // A long run of zeroes has the blocks that are no holes in the old version.
                let blocks = self.blocks.iter().filter(|&at| (block..end).contains(at));
                let was = |at: &&u64| !run.is_hole || old.contains_key(at);
                found.extend(blocks.filter(was).map(|&at| (at, run.is_hole)));
            }
            match part.next_block {
                Some(next) => {
                    assert!(next > start);
                    start = next;
                }
                None => break,
            }
        }
        if !self.is_damaging {
            assert_eq!(found, differ, "from {from:?} to {to:?}");
        }
    }

    fn check(&mut self) {
        let ids: Vec<_> = self.versions.keys().copied().collect();
        for id in ids {
            self.check_version(id);
        }
        let list = self.medium.map.volumes();
        let seen: Vec<_> = list
            .iter()
            .filter(|one| one.kind != PoolVolumeKind::Removing)
            .map(|one| (one.id, one.kind == PoolVolumeKind::Snapshot))
            .collect();
        let here: Vec<_> = self.versions.iter().map(|(&id, one)| (id, one.is_snapshot)).collect();
        assert_eq!(seen, here);
    }

    fn check_tables(&mut self) {
        if !self.is_damaging {
            self.medium.check_tables();
        }
    }

    fn end(&mut self) {
        self.check();
        self.medium.remove_all();
        self.check();
        self.check_tables();
        while let Some(id) = self.pick(true).or_else(|| self.pick(false)) {
            self.medium.change(PoolChange::Remove { volume: id });
            self.versions.remove(&id);
        }
        self.medium.remove_all();
        self.check_tables();
        let map = &self.medium.map;
        assert_eq!(map.volume_count(), 0);
        // Below a damaged node nothing is freed.
        assert!(self.is_damaging || (map.used_pages(), map.used_nodes()) == (0, 0));
    }
}

fn run_seed(seed: u64, steps: u64, is_damaging: bool) {
    let mut model = Model::new(seed, is_damaging);
    for step in 0..steps {
        model.step();
        if step % 16 == 0 {
            model.check_some();
            model.check_difference();
        }
        if step % 200 == 0 {
            model.check();
        }
    }
    model.end();
}

/// Removals in small steps, and writes between them to the volumes that come from the snapshots.
fn run_removal(seed: u64) {
    let mut model = Model::new(seed, false);
    model.blocks = (0..4).flat_map(|leaf| (0..30).map(move |at| leaf * 512 + at * 17)).collect();
    model.few = 6;
    for _ in 0..80 {
        if model.pick(false).is_none() {
            model.create();
            let volume = model.pick(false).unwrap();
            model.resize_to(volume, 4096);
            (0..200).for_each(|_| model.write());
        }
        match model.random.below(24) {
            0 => model.clone_of(),
            1 => model.rollback(),
            2 => model.clear(),
            3 => model.resize(),
            4 => model.medium.checkpoint(),
            5 => model.medium.open_again(),
            6 => model.remove(),
            7..15 => model.snapshot(),
            _ => model.remove_last(),
        }
        for _ in 0..model.random.below(32) {
            model.medium.remove_a_bit(64 << model.random.below(4));
            (0..model.random.below(3)).for_each(|_| model.write());
            if model.random.one_in(20) {
                model.zero();
            }
        }
        model.check();
    }
    model.end();
}

#[test]
fn writes_between_the_steps_of_a_removal_free_each_page_once() {
    run_seeds(100, run_removal);
}

/// Runs `MAP_SEEDS` seeds from `MAP_SEED` on, or so many.
fn run_seeds(default: u64, run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number of seeds"))
    };
    let first = number("MAP_SEED", 0);
    for seed in first..first + number("MAP_SEEDS", default) {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "the seed {seed} fails: MAP_SEED={seed} MAP_SEEDS=1 repeats it");
    }
}

#[test]
fn every_version_reads_as_it_was_written() {
    run_seeds(60, |seed| run_seed(seed, 1500, false));
}

#[test]
fn a_damaged_map_has_no_wrong_content_and_does_not_stop() {
    run_seeds(40, |seed| run_seed(seed, 1500, true));
}
