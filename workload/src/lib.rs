//! A guest's work on a disk, checked as it goes: random reads, writes, discards, write-zeroes and
//! flushes on several rings, each fed to the [`Checker`].

pub mod checker;
pub mod frames;
pub mod messages;

use std::collections::HashMap;

use virtio::driver::{Data, DriverOp, DriverRequest, RequestSlot, RequestStatus, RingDriver};

use crate::checker::{Began, Breach, Checker, stamp};
use random::Random;

/// Bytes of a sector on the ring.
const SECTOR_BYTES: u64 = 512;

/// Bytes of a range in the list of a discard or write-zeroes.
const RANGE_BYTES: usize = 16;

/// The mix of requests of a workload.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// The checker's block.
    pub block_bytes: u32,
    /// The longest request, in blocks.
    pub blocks_max: u64,
    /// Requests outstanding on a ring.
    pub depth: u16,
    /// Reads and flushes in a million requests; the rest are writes.
    pub reads_ppm: u64,
    /// See `reads_ppm`.
    pub flushes_ppm: u64,
    /// Discards and write-zeroes, half of each, in a million requests.
    pub zeroes_ppm: u64,
    /// Blocks that most requests go to, so that they overlap; 0 for all alike.
    pub hot_blocks: u64,
}

impl Mix {
    /// Requests of all kinds, many of them overlapping: the mix for a disk in tests of nodes.
    pub const OF_ALL: Self = Self {
        block_bytes: 4096,
        blocks_max: 16,
        depth: 16,
        reads_ppm: 400_000,
        flushes_ppm: 20_000,
        zeroes_ppm: 20_000,
        hot_blocks: 64,
    };
}

/// The guest's view of its requests, as counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkloadCounts {
    /// Requests submitted.
    pub submitted: u64,
    /// Requests completed without error.
    pub completed: u64,
    /// Writes among them: each acknowledged.
    pub writes: u64,
    /// Discards and write-zeroes among them: each acknowledged.
    pub zeroed: u64,
    /// Requests completed with an error.
    pub errors: u64,
    /// Blocks read and checked.
    pub blocks_checked: u64,
}

/// Why a run has failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Failure {
    /// The data is not what was promised.
    #[error("data: {0}")]
    Data(Breach),
    /// The device broke the ring's protocol.
    #[error("ring {ring}: {what}")]
    Ring {
        /// Which.
        ring: u16,
        /// The device's fault.
        what: String,
    },
}

impl From<Breach> for Failure {
    fn from(breach: Breach) -> Self {
        Self::Data(breach)
    }
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Write { number: u64 },
    Zero { number: u64 },
    Read { began: Began, first_block: u64, blocks: u64 },
    Flush { began: Began },
}

/// One guest's work on all its rings.
#[derive(Debug)]
pub struct Workload {
    random: Random,
    mix: Mix,
    doing: HashMap<u64, Doing>,
    next_token: u64,
    buffer: Vec<u8>,
    /// Whether it discards at all; not every disk can. Otherwise it writes zeroes.
    pub discards: bool,
    /// The counts so far.
    pub counts: WorkloadCounts,
}

impl Workload {
    /// A workload from a seed.
    pub fn new(random: Random, mix: Mix) -> Self {
        let bytes = usize::try_from(mix.blocks_max * u64::from(mix.block_bytes)).expect("small");
        Self {
            random,
            mix,
            doing: HashMap::new(),
            next_token: 0,
            buffer: vec![0; bytes],
            discards: true,
            counts: WorkloadCounts::default(),
        }
    }

    /// Requests on their way.
    pub fn outstanding(&self) -> usize {
        self.doing.len()
    }

    /// Stages requests until the ring has its depth or `requests` were staged, and shows them to
    /// the device. Gives how many.
    ///
    /// # Errors
    /// When the device broke the ring.
    pub fn submit(
        &mut self,
        ring: &mut RingDriver,
        checker: &mut Checker,
        requests: usize,
    ) -> Result<usize, Failure> {
        let mut staged = 0;
        while staged < requests && ring.outstanding() < self.mix.depth {
            let Some(slot) = ring.take_slot() else { break };
            self.submit_one(ring, checker, slot)?;
            staged += 1;
        }
        ring.publish();
        Ok(staged)
    }

    fn submit_one(
        &mut self,
        ring: &mut RingDriver,
        checker: &mut Checker,
        slot: RequestSlot,
    ) -> Result<(), Failure> {
        let (first_block, blocks) = self.pick(checker.blocks());
        let block_bytes = self.mix.block_bytes;
        let mut len = u32::try_from(blocks).expect("small") * block_bytes;
        let dice = self.random.below(1_000_000);
        let (op, doing) = if dice < self.mix.reads_ppm {
            (DriverOp::Read, Doing::Read { began: checker.begin_read(), first_block, blocks })
        } else if dice < self.mix.reads_ppm + self.mix.flushes_ppm {
            (DriverOp::Flush, Doing::Flush { began: checker.begin_flush() })
        } else if dice < self.mix.reads_ppm + self.mix.flushes_ppm + self.mix.zeroes_ppm {
            let number = checker.begin_zeroing(first_block, blocks);
            // Drawn in any case, so that a seed means the same on both kinds of disks.
            let discards = self.random.hits(500_000) & self.discards;
            let list = self.ranges(first_block, blocks, discards);
            if list.len() > RANGE_BYTES {
                checker.in_parts(number);
            }
            ring.write(slot, 0, &list);
            len = u32::try_from(list.len()).expect("small");
            let op = if discards { DriverOp::Discard } else { DriverOp::WriteZeroes };
            (op, Doing::Zero { number })
        } else {
            let number = checker.begin_write(first_block, blocks);
            let bytes = &mut self.buffer[..len as usize];
            for (block, piece) in (first_block..).zip(bytes.chunks_mut(block_bytes as usize)) {
                stamp(block, number, piece);
            }
            ring.write(slot, 0, bytes);
            (DriverOp::Write, Doing::Write { number })
        };
        let data = match op {
            DriverOp::Flush => Data::None,
            DriverOp::Discard | DriverOp::WriteZeroes => Data::Whole(len),
            _ if self.random.hits(500_000) => Data::Cut { len, piece_bytes: block_bytes },
            _ => Data::Whole(len),
        };
        let token = self.next_token;
        self.next_token += 1;
        let sector = first_block * u64::from(block_bytes) / SECTOR_BYTES;
        let has_sector = matches!(op, DriverOp::Read | DriverOp::Write);
        let sector = if has_sector { sector } else { 0 };
        let index = ring.layout().index;
        ring.submit(&DriverRequest { slot, op, sector, data, token })
            .map_err(|error| Failure::Ring { ring: index, what: error.to_string() })?;
        self.doing.insert(token, doing);
        self.counts.submitted += 1;
        Ok(())
    }

    /// Blocks as the ranges of a discard or write-zeroes: one, or two that meet.
    fn ranges(&mut self, first_block: u64, blocks: u64, discards: bool) -> Vec<u8> {
        let sectors = u64::from(self.mix.block_bytes) / SECTOR_BYTES;
        let first = self.random.between(1, blocks);
        let pieces = [(first_block, first), (first_block + first, blocks - first)];
        let mut list = Vec::new();
        for (block, blocks) in pieces.into_iter().filter(|(_, blocks)| *blocks > 0) {
            let unmap = u32::from(!discards && self.random.hits(500_000));
            list.extend((block * sectors).to_le_bytes());
            list.extend(u32::try_from(blocks * sectors).expect("small").to_le_bytes());
            list.extend(unmap.to_le_bytes());
        }
        list
    }

    fn pick(&mut self, all: u64) -> (u64, u64) {
        let hot = self.mix.hot_blocks;
        let range = if hot > 0 && self.random.hits(800_000) { hot.min(all) } else { all };
        let first = self.random.below(range);
        (first, self.random.between(1, self.mix.blocks_max.min(all - first)))
    }

    /// Takes what the device has completed and checks it. Gives how many.
    ///
    /// # Errors
    /// When data is not what was promised, or the device broke the ring.
    pub fn reap(&mut self, ring: &mut RingDriver, checker: &mut Checker) -> Result<usize, Failure> {
        let index = ring.layout().index;
        let broken = |what: String| Failure::Ring { ring: index, what };
        let mut reaped = 0;
        while let Some(done) = ring.complete().map_err(|breach| broken(breach.to_string()))? {
            let doing = self.doing.remove(&done.token);
            let doing = doing.ok_or_else(|| broken(format!("token {} ended twice", done.token)))?;
            self.check(ring, checker, doing, done.slot, done.status)?;
            ring.release(done.slot);
            reaped += 1;
        }
        Ok(reaped)
    }

    fn check(
        &mut self,
        ring: &RingDriver,
        checker: &mut Checker,
        doing: Doing,
        slot: RequestSlot,
        status: RequestStatus,
    ) -> Result<(), Failure> {
        let ok = status == RequestStatus::Ok;
        if ok {
            self.counts.completed += 1;
        } else {
            self.counts.errors += 1;
        }
        match doing {
            Doing::Write { number } => {
                self.counts.writes += u64::from(ok);
                checker.end_write(number, ok);
            }
            Doing::Zero { number } => {
                self.counts.zeroed += u64::from(ok);
                checker.end_write(number, ok);
            }
            Doing::Flush { began } if ok => checker.end_flush(began),
            Doing::Flush { .. } => {}
            Doing::Read { began, .. } if !ok => checker.drop_read(began),
            Doing::Read { began, first_block, blocks } => {
                let block_bytes = self.mix.block_bytes as usize;
                let len = usize::try_from(blocks).expect("small") * block_bytes;
                ring.read(slot, 0, &mut self.buffer[..len]);
                checker.end_read(began, first_block, &self.buffer[..len], block_bytes)?;
                self.counts.blocks_checked += blocks;
            }
        }
        Ok(())
    }

    /// Forgets what is on its way: the guest is gone. Settle the checker as well.
    pub fn forget(&mut self) {
        self.doing.clear();
    }
}
