//! A device with a volatile cache: it answers late and out of order, and forgets at a power cut
//! what no sync covered.

use std::collections::VecDeque;
use std::rc::Rc;

use random::Random;
use store::block::{BLOCK_BYTES, Block, BlockBuffer};
use store::format::DEVICE_HEADER_BLOCKS;
use store::{DeviceIo, DeviceOp, PoolDeviceError};

use super::plan::DiskFaults;

const SECTOR_BYTES: usize = 512;
const EIO: i32 = 5;

/// A block's content; the memory of a block that was never written is not needed.
type Stored = Option<Rc<[u8; BLOCK_BYTES]>>;

/// How a process or a machine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CrashKind {
    /// The process was killed: the devices keep what they answered.
    Kill,
    /// The power failed: the devices keep what a sync covered, and some of the rest.
    PowerCut,
}

/// The answer of a device.
pub(crate) struct DiskAnswer {
    /// The engine's word for the request.
    pub(crate) token: u64,
    /// Its buffer.
    pub(crate) buffer: Option<BlockBuffer>,
    /// Whether a superblock was written.
    pub(crate) is_superblock: bool,
    /// How it ended.
    pub(crate) result: Result<(), PoolDeviceError>,
}

/// A write that a power cut may take back.
struct Unsynced {
    block: u64,
    content: Rc<[u8; BLOCK_BYTES]>,
}

struct Pending {
    due: u64,
    io: DeviceIo,
    /// For a sync: it covers the blocks that were answered before this count.
    covers: u64,
}

/// The device.
pub(crate) struct SimDisk {
    visible: Vec<Stored>,
    durable: Vec<Stored>,
    /// Answered and not synced, oldest first; `unsynced_from` is the count of the first one.
    unsynced: VecDeque<Unsynced>,
    unsynced_from: u64,
    pending: Vec<Pending>,
    /// How it misbehaves; a new device is good.
    pub(crate) faults: DiskFaults,
    /// The round up to which writes find no space.
    no_space_until: u64,
    /// Blocks that were written since the last superblock but two: the log's tail, and more. The
    /// last one may be lost, and the log of the one before begins at its checkpoint's cut, which
    /// was before that superblock's write.
    tail: [Vec<u64>; 3],
    /// A fault of the medium hit the log's tail: a crash may lose rows that were acknowledged.
    pub(crate) tail_was_hit: bool,
    /// A fault of the medium hit a superblock; the next one would leave no copy.
    header_was_hit: bool,
    /// Rot, and writes that went elsewhere.
    pub(crate) medium_faults: u64,
    /// Requests that were answered.
    pub(crate) answered: u64,
}

impl SimDisk {
    /// An empty device, without faults.
    pub(crate) fn new(blocks: u64) -> Self {
        Self {
            visible: vec![None; blocks as usize],
            durable: vec![None; blocks as usize],
            unsynced: VecDeque::new(),
            unsynced_from: 0,
            pending: Vec::new(),
            faults: DiskFaults::NONE,
            no_space_until: 0,
            tail: Default::default(),
            tail_was_hit: false,
            header_was_hit: false,
            medium_faults: 0,
            answered: 0,
        }
    }

    /// It becomes longer.
    pub(crate) fn grow(&mut self, blocks: u64) {
        self.visible.resize(blocks as usize, None);
        self.durable.resize(blocks as usize, None);
    }

    /// Its length.
    pub(crate) fn blocks(&self) -> u64 {
        self.visible.len() as u64
    }

    /// A block as a power cut leaves it at least.
    pub(crate) fn durable_block(&self, block: u64) -> Block {
        let content = self.durable[block as usize].as_deref();
        content.map_or(Block::ZERO, |content| Block(*content))
    }

    /// Requests that it has not answered.
    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether writes find no space.
    pub(crate) fn has_no_space(&self, round: u64) -> bool {
        round < self.no_space_until
    }

    /// Faults stop, for the end of a run.
    pub(crate) fn calm(&mut self) {
        self.no_space_until = 0;
        let slow = self.faults.delay_max;
        self.faults = DiskFaults { delay_max: slow, ..DiskFaults::NONE };
    }

    /// Takes a request.
    ///
    /// # Errors
    /// If it reaches beyond the device, or races with another one: a text.
    pub(crate) fn take(
        &mut self,
        io: DeviceIo,
        round: u64,
        random: &mut Random,
    ) -> Result<(), String> {
        if let Some((from, to)) = range(&io.op) {
            if to > self.blocks() || from >= to {
                return Err(format!("a request reaches from block {from} to {to}"));
            }
            let is_write = matches!(io.op, DeviceOp::Write { .. });
            let races = self.pending.iter().find(|other| {
                let other_writes = matches!(other.io.op, DeviceOp::Write { .. });
                let overlaps = range(&other.io.op).is_some_and(|(a, b)| a < to && from < b);
                (is_write || other_writes) && overlaps
            });
            if let Some(other) = races {
                return Err(format!("{:?} races with {:?}", io.op, other.io.op));
            }
        }
        let mut delay = random.between(0, self.faults.delay_max);
        if random.one_in(64) {
            delay += self.faults.delay_max * 16;
        }
        let covers = self.unsynced_from + self.unsynced.len() as u64;
        self.pending.push(Pending { due: round + delay, io, covers });
        Ok(())
    }

    /// The next answer of this round, in no order.
    pub(crate) fn answer(&mut self, round: u64, random: &mut Random) -> Option<DiskAnswer> {
        let due: Vec<usize> =
            (0..self.pending.len()).filter(|&at| self.pending[at].due <= round).collect();
        if due.is_empty() {
            return None;
        }
        let chosen = due[random.below(due.len() as u64) as usize];
        let Pending { io, covers, .. } = self.pending.swap_remove(chosen);
        self.answered += 1;
        let is_superblock =
            matches!(io.op, DeviceOp::Write { block, .. } if block < DEVICE_HEADER_BLOCKS);
        let (buffer, result) = match io.op {
            DeviceOp::Read { block, mut buffer, blocks } => {
                let result = self.read(block, &mut buffer, blocks, random);
                (Some(buffer), result)
            }
            DeviceOp::Write { block, buffer, blocks } => {
                let result = self.write(block, &buffer, blocks, round, random);
                (Some(buffer), result)
            }
            DeviceOp::Sync => (None, self.sync(covers, random)),
        };
        Some(DiskAnswer { token: io.token, buffer, is_superblock, result })
    }

    /// Reads at once.
    pub(crate) fn read(
        &mut self,
        block: u64,
        buffer: &mut BlockBuffer,
        blocks: u32,
        random: &mut Random,
    ) -> Result<(), PoolDeviceError> {
        if random.hits(self.faults.read_error_ppm) {
            return Err(PoolDeviceError::Failed(EIO));
        }
        let stored = &self.visible[block as usize..];
        let into = &mut buffer.blocks_mut()[..blocks as usize];
        for (into, stored) in into.iter_mut().zip(stored) {
            match stored {
                Some(content) => into.0 = **content,
                None => *into = Block::ZERO,
            }
        }
        Ok(())
    }

    /// Writes at once, into the cache.
    pub(crate) fn write(
        &mut self,
        block: u64,
        buffer: &BlockBuffer,
        blocks: u32,
        round: u64,
        random: &mut Random,
    ) -> Result<(), PoolDeviceError> {
        let length = u64::from(blocks);
        if random.hits(self.faults.no_space_ppm) {
            self.no_space_until = round + random.between(10, 400);
        }
        let fails = random.hits(self.faults.write_error_ppm);
        if self.has_no_space(round) || fails {
            let some = random.between(0, length) as usize;
            self.put(block, &buffer.blocks()[..some]);
            let error = if fails { PoolDeviceError::Failed(EIO) } else { PoolDeviceError::NoSpace };
            return Err(error);
        }
        let mut at = block;
        if random.hits(self.faults.misdirect_ppm) && self.may_hit(block, length) {
            let target = random.below(self.blocks() - length);
            if self.may_hit(target, length) {
                self.note_hit(block, length);
                self.note_hit(target, length);
                self.tail_was_hit |= block >= DEVICE_HEADER_BLOCKS;
                at = target;
            }
        }
        if block >= DEVICE_HEADER_BLOCKS {
            self.tail[0].extend(block..block + length);
        } else if block < DEVICE_HEADER_BLOCKS / 2 {
            // The first of the two copies of a superblock.
            self.tail.rotate_right(1);
            self.tail[0].clear();
        }
        self.put(at, &buffer.blocks()[..blocks as usize]);
        Ok(())
    }

    /// Makes durable what was answered.
    pub(crate) fn sync_all(&mut self, random: &mut Random) -> Result<(), PoolDeviceError> {
        self.sync(self.unsynced_from + self.unsynced.len() as u64, random)
    }

    fn sync(&mut self, covers: u64, random: &mut Random) -> Result<(), PoolDeviceError> {
        if random.hits(self.faults.write_error_ppm) {
            return Err(PoolDeviceError::Failed(EIO));
        }
        while self.unsynced_from < covers {
            let write = self.unsynced.pop_front().expect("the count covers no more than there is");
            self.durable[write.block as usize] = Some(write.content);
            self.unsynced_from += 1;
        }
        Ok(())
    }

    fn put(&mut self, block: u64, blocks: &[Block]) {
        for (at, content) in (block..).zip(blocks) {
            self.put_one(at, Rc::new(content.0));
        }
    }

    fn put_one(&mut self, block: u64, content: Rc<[u8; BLOCK_BYTES]>) {
        self.visible[block as usize] = Some(Rc::clone(&content));
        self.unsynced.push_back(Unsynced { block, content });
    }

    /// A block at rest rots, at the rate of the plan.
    pub(crate) fn age(&mut self, random: &mut Random) {
        if !random.hits(self.faults.rot_ppm) {
            return;
        }
        // A block that was never written cannot rot: there are some tries to find another.
        let tries: Vec<u64> = (0..8).map(|_| random.below(self.blocks())).collect();
        let written = |block: &u64| self.durable[*block as usize].as_ref().map(|c| (*block, c));
        let Some((block, content)) = tries.iter().find_map(written) else { return };
        // A block that is still in the cache is not at rest.
        let is_at_rest =
            self.visible[block as usize].as_ref().is_some_and(|v| Rc::ptr_eq(v, content));
        if !is_at_rest || !self.may_hit(block, 1) {
            return;
        }
        let mut rotten = **content;
        let bit = random.below(8 * BLOCK_BYTES as u64) as usize;
        rotten[bit / 8] ^= 1 << (bit % 8);
        self.note_hit(block, 1);
        let rotten = Some(Rc::new(rotten));
        self.durable[block as usize] = rotten.clone();
        self.visible[block as usize] = rotten;
    }

    /// One block of the superblocks may be lost, and not more: there are copies of it.
    fn may_hit(&self, block: u64, length: u64) -> bool {
        let is_header = block < DEVICE_HEADER_BLOCKS;
        !is_header || !self.header_was_hit && length == 1
    }

    fn note_hit(&mut self, block: u64, length: u64) {
        self.medium_faults += 1;
        self.header_was_hit |= block < DEVICE_HEADER_BLOCKS;
        let hit = block..block + length;
        self.tail_was_hit |= self.tail.iter().flatten().any(|block| hit.contains(block));
    }

    /// The process or the machine ends. Each block under way is written, torn or lost.
    pub(crate) fn crash(&mut self, kind: CrashKind, random: &mut Random) {
        let kept = [0, 100_000, 500_000, 900_000, 1_000_000][random.below(5) as usize];
        let torn = [0, 0, 100_000, 500_000][random.below(4) as usize];
        if kind == CrashKind::PowerCut {
            self.visible.clone_from(&self.durable);
            self.unsynced_from += self.unsynced.len() as u64;
            for write in std::mem::take(&mut self.unsynced) {
                self.maybe(write.block, &write.content, kept, torn, random);
            }
        }
        for pending in std::mem::take(&mut self.pending) {
            if let DeviceOp::Write { block, buffer, blocks } = pending.io.op {
                let blocks = &buffer.blocks()[..blocks as usize];
                // Some requests did not reach the device at all.
                if random.hits(kept.max(100_000)) {
                    self.maybe_all(block, blocks, kept, torn, random);
                }
            }
        }
        if kind == CrashKind::PowerCut {
            // After the cut the disk has the medium's content alone.
            self.durable.clone_from(&self.visible);
            self.unsynced_from += self.unsynced.len() as u64;
            self.unsynced.clear();
        }
    }

    /// A write that was under way at a crash, by parts.
    pub(crate) fn maybe_all(
        &mut self,
        block: u64,
        blocks: &[Block],
        kept: u64,
        torn: u64,
        random: &mut Random,
    ) {
        for (at, content) in (block..).zip(blocks) {
            self.maybe(at, &Rc::new(content.0), kept, torn, random);
        }
    }

    fn maybe(
        &mut self,
        block: u64,
        content: &Rc<[u8; BLOCK_BYTES]>,
        kept: u64,
        torn: u64,
        random: &mut Random,
    ) {
        if random.hits(torn) {
            let mut mixed = self.visible[block as usize].as_deref().copied();
            let mixed = mixed.get_or_insert([0; BLOCK_BYTES]);
            for from in (0..BLOCK_BYTES).step_by(SECTOR_BYTES) {
                if random.one_in(2) {
                    let sector = from..from + SECTOR_BYTES;
                    mixed[sector.clone()].copy_from_slice(&content[sector]);
                }
            }
            self.put_one(block, Rc::new(*mixed));
        } else if random.hits(kept) {
            self.put_one(block, Rc::clone(content));
        }
    }
}

fn range(op: &DeviceOp) -> Option<(u64, u64)> {
    match op {
        DeviceOp::Read { block, blocks, .. } | DeviceOp::Write { block, blocks, .. } => {
            Some((*block, block + u64::from(*blocks)))
        }
        DeviceOp::Sync => None,
    }
}
