//! A pool in memory, and a model of its volumes and snapshots.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use random::Random;
use store::block::Block;
use store::format::{BlockPlace, DEVICE_HEADER_BLOCKS, RowHead, Superblock, superblock_blocks};
use store::{
    Admission, CACHE_BLOCKS_MIN, DedupOptions, DeviceLayout, DeviceOp, HistoryOptions,
    PageCompression, PoolChange, PoolCompletion, PoolDevices, PoolEngine, PoolError, PoolLayout,
    PoolMoment, PoolOptions, PoolVolumeKind, RequestTag, SEGMENTS_MIN, SealEntropy, VolumeId,
    WrappingKey, format_pool,
};

use crate::memory::MemoryDevices;

/// The time when a pool begins.
const EPOCH_NS: u64 = 1_790_000_000_000_000_000;

pub(crate) const UUID: [u8; 16] = *b"a pool to read.!";
pub(crate) const SEGMENT_BLOCKS: u32 = 32;
pub(crate) const DEVICE_BLOCKS: u64 = DEVICE_HEADER_BLOCKS + 80 * SEGMENT_BLOCKS as u64 + 5;
pub(crate) const DEVICES: usize = 2;
pub(crate) const VOLUME_BLOCKS_MAX: u64 = 700;
pub(crate) const VERSIONS_MAX: usize = 7;

impl MemoryDevices {
    pub(crate) fn save(&self, folder: &Path) -> Vec<PathBuf> {
        let save = |(index, blocks): (usize, &Vec<Block>)| {
            let path = folder.join(format!("device{index}"));
            let bytes: Vec<u8> = blocks.iter().flat_map(|block| block.0).collect();
            std::fs::write(&path, bytes).unwrap();
            path
        };
        self.blocks.iter().enumerate().map(save).collect()
    }

    pub(crate) fn at(&mut self, place: BlockPlace) -> &mut Block {
        let first = DEVICE_HEADER_BLOCKS as usize
            + place.segment.index() as usize * SEGMENT_BLOCKS as usize;
        &mut self.blocks[usize::from(place.segment.device())][first + usize::from(place.block)]
    }

    pub(crate) fn superblock(&self) -> Superblock {
        let blocks = [0, 1].into_iter().flat_map(superblock_blocks);
        let found = blocks.filter_map(|at| Superblock::decode(&self.blocks[0][at as usize]).ok());
        found.max_by_key(|superblock| superblock.checkpoint.get()).unwrap()
    }

    /// The heads of the rows of guests behind the checkpoint, by their sequence.
    pub(crate) fn log(&self) -> Vec<RowHead> {
        self.log_of(0)
    }

    /// The same of a stream.
    pub(crate) fn log_of(&self, stream: u8) -> Vec<RowHead> {
        let superblock = self.superblock();
        let blocks = self.blocks.iter().flatten();
        let heads = blocks.filter_map(|block| RowHead::decode(&UUID, block).ok());
        let mut log: Vec<RowHead> = heads
            .filter(|head| head.opening == superblock.opening.get() && head.stream == stream)
            .filter(|head| head.sequence > superblock.sequence.get())
            .collect();
        log.sort_by_key(|head| head.sequence);
        log
    }
}

/// The content of a volume or snapshot, as it must be.
pub(crate) type Content = Vec<Option<Rc<Block>>>;

/// A pool, and a model of its volumes and snapshots.
pub(crate) struct MediaPool {
    pub(crate) devices: MemoryDevices,
    pub(crate) engine: PoolEngine,
    pub(crate) model: BTreeMap<VolumeId, Content>,
    pub(crate) random: Random,
    pub(crate) tags: u64,
    pub(crate) now_ns: u64,
    /// Pages with the same content share it, and contents repeat.
    shares: bool,
    /// Volumes get histories, and the clock goes on.
    pub(crate) keeps_history: bool,
}

impl MediaPool {
    pub(crate) fn new(seed: u64) -> Self {
        Self::on(MemoryDevices::new(DEVICES, DEVICE_BLOCKS), seed)
    }

    /// A pool of few segments, which uses each of them again soon.
    pub(crate) fn small(seed: u64) -> Self {
        let segments = (SEGMENTS_MIN + 12) * u64::from(SEGMENT_BLOCKS);
        Self::on(MemoryDevices::new(1, DEVICE_HEADER_BLOCKS + segments), seed)
    }

    fn on(mut devices: MemoryDevices, seed: u64) -> Self {
        let device = |(index, blocks)| DeviceLayout { uuid: [index; 16], blocks };
        let layout = PoolLayout {
            uuid: UUID,
            segment_blocks: SEGMENT_BLOCKS,
            devices: (0..).zip(devices.sizes()).map(device).collect(),
        };
        format_pool(&mut devices, &layout).unwrap();
        let engine = open(&mut devices, seed);
        Self::with(devices, engine, seed)
    }

    /// An open pool, of whose content nothing is known.
    pub(crate) fn with(devices: MemoryDevices, engine: PoolEngine, seed: u64) -> Self {
        let random = Random::new(seed);
        let (model, shares, keeps_history) = (BTreeMap::new(), false, false);
        Self { devices, engine, model, random, tags: 0, now_ns: 0, shares, keeps_history }
    }

    /// The engine is gone without a word, and another one opens the pool.
    pub(crate) fn crash_and_open(&mut self) {
        let salt = self.random.draw();
        self.engine = open(&mut self.devices, salt);
        if self.shares {
            self.share();
        }
    }

    /// From here on pages with the same content share it, and contents repeat.
    pub(crate) fn share(&mut self) {
        self.shares = true;
        let options = DedupOptions { memory_bytes: 1 << 16, hash_bits: 64 };
        self.engine.set_dedup(Some(options));
    }

    /// One round of the engine with devices that answer at once.
    pub(crate) fn completions(&mut self) -> Vec<PoolCompletion> {
        self.now_ns += 1_000_000;
        if self.keeps_history {
            self.engine.set_time(EPOCH_NS + 20 * self.now_ns);
        }
        self.engine.poll(self.now_ns);
        self.devices.serve(&mut self.engine);
        std::iter::from_fn(|| self.engine.next_completion()).collect()
    }

    /// The ends of requests in a round.
    pub(crate) fn round(&mut self) -> Vec<(RequestTag, Result<VolumeId, PoolError>)> {
        let done = |completion| match completion {
            PoolCompletion::Done { tag, result } => Some((tag, result)),
            PoolCompletion::Data { .. } => None,
        };
        self.completions().into_iter().filter_map(done).collect()
    }

    /// Offers a request until it is taken, and waits for its end.
    pub(crate) fn ask(
        &mut self,
        mut offer: impl FnMut(&mut PoolEngine, RequestTag) -> Admission,
    ) -> Result<VolumeId, PoolError> {
        self.tags += 1;
        let tag = RequestTag(self.tags);
        let mut is_taken = false;
        for _ in 0..100_000 {
            is_taken = is_taken || offer(&mut self.engine, tag) == Admission::Taken;
            if let Some((_, result)) = self.round().into_iter().find(|end| end.0 == tag) {
                return result;
            }
        }
        panic!("the request does not end: {:?}", self.engine.status());
    }

    pub(crate) fn change(&mut self, change: &PoolChange) -> Option<VolumeId> {
        self.ask(|engine, tag| engine.change(tag, change.clone())).ok()
    }

    pub(crate) fn flush(&mut self) {
        self.ask(PoolEngine::flush).unwrap();
    }

    /// Lets the work in the background end.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.engine.is_busy() {
                return;
            }
            self.round();
        }
        panic!("the pool has no rest: {:?}", self.engine.status());
    }

    pub(crate) fn new_block(&mut self) -> Rc<Block> {
        let mut random = self.random.fork();
        if self.shares && random.one_in(2) {
            random = Random::new(random.below(30));
            if random.one_in(8) {
                return Rc::new(Block::ZERO);
            }
        }
        let mut block = Block::ZERO;
        // From a block that is packed into a sector to a block that is not packed at all. No sector
        // is zero, as the lost sectors of a torn block are.
        let (noise, rest) = (random.below(600) as usize, random.draw());
        for (at, word) in block.0.chunks_exact_mut(8).enumerate() {
            let value = if at < noise { random.draw() } else { rest };
            word.copy_from_slice(&value.to_le_bytes());
        }
        Rc::new(block)
    }

    /// A volume, and a range of its blocks.
    pub(crate) fn range(&mut self, blocks_max: u64) -> Option<(VolumeId, u64, u64)> {
        let volume = self.pick(PoolVolumeKind::Volume)?;
        let size = self.model[&volume].len() as u64;
        let block = self.random.below(size);
        Some((volume, block, self.random.between(1, blocks_max.min(size - block))))
    }

    pub(crate) fn pick(&mut self, kind: PoolVolumeKind) -> Option<VolumeId> {
        let list = self.engine.volumes();
        let ids: Vec<_> = list.iter().filter(|volume| volume.kind == kind).collect();
        (!ids.is_empty()).then(|| ids[self.random.below(ids.len() as u64) as usize].id)
    }

    pub(crate) fn write(&mut self, volume: VolumeId, block: u64, blocks: u64) {
        let pages: Vec<_> = (0..blocks).map(|_| self.new_block()).collect();
        let done = self.ask(|engine, tag| {
            engine.write(tag, volume, block, blocks as u32, &mut |index, page| {
                page.clone_from(&pages[index as usize]);
            })
        });
        done.unwrap();
        let content = self.model.get_mut(&volume).unwrap();
        content.iter_mut().skip(block as usize).zip(pages).for_each(|(at, page)| *at = Some(page));
    }

    pub(crate) fn write_part(&mut self) {
        let Some((volume, block, _)) = self.range(1) else { return };
        let (from, bytes) = (self.random.below(4000) as usize, [0xb7; 96]);
        self.ask(|engine, tag| engine.write_part(tag, volume, block, from, &bytes)).unwrap();
        let at = &mut self.model.get_mut(&volume).unwrap()[block as usize];
        let mut whole = at.as_ref().map_or(Block::ZERO, |block| Block::clone(block));
        whole.0[from..from + bytes.len()].copy_from_slice(&bytes);
        *at = Some(Rc::new(whole));
    }

    pub(crate) fn zero(&mut self) {
        let Some((volume, block, blocks)) = self.range(200) else { return };
        self.ask(|engine, tag| engine.zero(tag, volume, block, blocks as u32)).unwrap();
        let content = self.model.get_mut(&volume).unwrap();
        content[block as usize..][..blocks as usize].fill(None);
    }

    pub(crate) fn create(&mut self, blocks: u64) -> VolumeId {
        let change = PoolChange::Create { name: format!("v{}", self.tags), blocks };
        let id = self.change(&change).unwrap();
        self.model.insert(id, vec![None; blocks as usize]);
        if self.keeps_history {
            self.keep_history(id);
        }
        if self.random.one_in(2) {
            let compression = Some(PageCompression::Lz4);
            self.change(&PoolChange::Compression { volume: id, compression }).unwrap();
        }
        id
    }

    /// The volume has a short history.
    pub(crate) fn keep_history(&mut self, volume: VolumeId) {
        let history = Some(HistoryOptions { reach_ms: 2_000, step_ms: 100 });
        self.change(&PoolChange::History { volume, history }).unwrap();
    }

    /// The moments that the reader must give: those of volumes that are not removed.
    pub(crate) fn moments(&self) -> String {
        let volumes = self.engine.volumes().into_iter().filter(|volume| volume.history.is_some());
        let mut lines: Vec<String> = Vec::new();
        for volume in volumes {
            let moments = self.engine.moments_of(volume.id).into_iter();
            let line =
                |moment: PoolMoment| format!("{} {} {}\n", volume.id, moment.id, moment.at_ns);
            lines.extend(moments.map(line));
        }
        lines.sort();
        lines.concat()
    }

    /// The content of a volume or moment, read block by block.
    pub(crate) fn content_of(&mut self, volume: VolumeId, blocks: u64) -> Content {
        (0..blocks).map(|block| self.block_of(volume, block)).collect()
    }

    fn block_of(&mut self, volume: VolumeId, block: u64) -> Option<Rc<Block>> {
        self.tags += 1;
        let tag = RequestTag(self.tags);
        assert_eq!(self.engine.read(tag, volume, block, 1), Admission::Taken);
        let mut found = None;
        for _ in 0..100_000 {
            for completion in self.completions() {
                match completion {
                    PoolCompletion::Data { buffer: Some(buffer), .. } => {
                        found = Some(Rc::new(buffer.blocks()[0].clone()));
                        self.engine.recycle(buffer);
                    }
                    PoolCompletion::Done { tag: its, result } if its == tag => {
                        result.unwrap();
                        return found;
                    }
                    _ => {}
                }
            }
        }
        panic!("the read does not end: {:?}", self.engine.status());
    }

    fn entropy(&mut self) -> SealEntropy {
        let mut bytes = [0; SealEntropy::BYTES];
        bytes.iter_mut().for_each(|byte| *byte = self.random.draw() as u8);
        SealEntropy::new(bytes.into())
    }

    /// Another data key for an encrypted volume.
    fn change_key(&mut self, volume: VolumeId) -> Option<()> {
        let entropy = self.entropy();
        let change = self.engine.rekeyed(volume, &wrapping(), &entropy).ok()?;
        self.change(&change).map(drop)
    }

    /// An encrypted volume, under the key of [`key_file`].
    pub(crate) fn create_sealed(&mut self, blocks: u64) -> VolumeId {
        let entropy = self.entropy();
        let change =
            self.engine.sealed_volume(&format!("v{}", self.tags), blocks, &wrapping(), &entropy);
        let id = self.change(&change).unwrap();
        self.engine.unlock(id, &wrapping()).unwrap();
        self.model.insert(id, vec![None; blocks as usize]);
        id
    }

    pub(crate) fn snapshot_or_clone(&mut self) -> Option<()> {
        let name = format!("s{}", self.tags);
        let (change, of) = if self.random.one_in(3) {
            let snapshot = self.pick(PoolVolumeKind::Snapshot)?;
            (PoolChange::Clone { snapshot, name }, snapshot)
        } else {
            let volume = self.pick(PoolVolumeKind::Volume)?;
            (PoolChange::Snapshot { volumes: vec![volume], name, at_s: 1_790_000_000 }, volume)
        };
        let id = self.change(&change)?;
        self.model.insert(id, self.model[&of].clone());
        Some(())
    }

    pub(crate) fn replace(&mut self) -> Option<()> {
        let volume = self.pick(PoolVolumeKind::Volume)?;
        match self.random.below(6) {
            4 | 5 => self.change_key(volume)?,
            0 => {
                let snapshot = self.pick(PoolVolumeKind::Snapshot)?;
                self.change(&PoolChange::Rollback { volume, snapshot })?;
                self.model.insert(volume, self.model[&snapshot].clone());
            }
            1 => {
                self.change(&PoolChange::Clear { volume })?;
                self.model.get_mut(&volume)?.fill(None);
            }
            2 => {
                let name = format!("r{}", self.tags);
                self.change(&PoolChange::Rename { volume, name })?;
            }
            _ => {
                let blocks = self.random.between(1, VOLUME_BLOCKS_MAX);
                self.change(&PoolChange::Resize { volume, blocks })?;
                self.model.get_mut(&volume)?.resize(blocks as usize, None);
            }
        }
        Some(())
    }

    pub(crate) fn remove(&mut self) {
        let is_volume = self.random.one_in(2);
        let kind = if is_volume { PoolVolumeKind::Volume } else { PoolVolumeKind::Snapshot };
        let Some(volume) = self.pick(kind) else { return };
        self.change(&PoolChange::Remove { volume }).unwrap();
        self.model.remove(&volume);
    }

    pub(crate) fn step(&mut self) {
        match self.random.below(40) {
            1 | 7 if self.model.len() < VERSIONS_MAX => {
                let _ = self.snapshot_or_clone();
            }
            0 if self.model.len() < VERSIONS_MAX => {
                let blocks = self.random.between(1, VOLUME_BLOCKS_MAX);
                match self.random.one_in(2) {
                    true => self.create_sealed(blocks),
                    false => self.create(blocks),
                };
            }
            0 | 1 => self.remove(),
            2 => drop(self.replace()),
            3 => self.flush(),
            4 => self.write_part(),
            5 | 6 => self.zero(),
            _ => {
                if let Some((volume, block, blocks)) = self.range(30) {
                    self.write(volume, block, blocks);
                } else {
                    self.create(VOLUME_BLOCKS_MAX);
                }
            }
        }
    }

    /// The power goes while a row is written: only the first half of its blocks is there.
    pub(crate) fn tear(&mut self, volume: VolumeId) {
        let block = self.new_block();
        let taken = self.engine.write(RequestTag(0), volume, 0, 1, &mut |_, page| {
            page.clone_from(&block);
        });
        assert_eq!(taken, Admission::Taken);
        self.engine.poll(self.now_ns);
        while let Some(io) = self.engine.next_io() {
            if let DeviceOp::Write { block, buffer, blocks } = io.op {
                self.devices.write(io.device, block, &buffer, blocks / 2).unwrap();
            }
        }
    }

    /// The list that the reader must give.
    pub(crate) fn list(&self) -> String {
        let list = self.engine.volumes();
        let mut lines: Vec<_> = list
            .iter()
            .filter(|volume| volume.kind != PoolVolumeKind::Removing)
            .map(|volume| {
                let is_volume = volume.kind == PoolVolumeKind::Volume;
                let kind = if is_volume { "volume" } else { "snapshot" };
                format!("{} {kind} {} {}\n", volume.id.0, volume.blocks, volume.name)
            })
            .collect();
        lines.sort();
        lines.concat()
    }
}

pub(crate) fn open(devices: &mut MemoryDevices, salt: u64) -> PoolEngine {
    let options = PoolOptions { cache_blocks: CACHE_BLOCKS_MIN, log_blocks_max: 1000 };
    let sizes = devices.sizes();
    let mut engine = PoolEngine::open(devices, &sizes, options, salt.into(), 0).unwrap();
    for volume in engine.volumes().iter().filter(|volume| volume.seal.is_some()) {
        // A removed volume is listed as well, and has no key any more.
        let _ = engine.unlock(volume.id, &wrapping());
    }
    engine
}

/// The secret of the pool's key.
const SECRET: [u8; 64] = [7; 64];

fn wrapping() -> WrappingKey {
    WrappingKey::new("media", &SECRET)
}

/// The same key as a file of a node.
pub(crate) fn key_file() -> String {
    // 21 times three bytes, and one more.
    format!("vrio volume key\nsecret: {}Bw==\ncheck: media\n", "BwcH".repeat(21))
}
