//! A checked guest on a real disk: the stand-in driver, its keeper, a workload and the model.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
pub use virtio::RingKind;
use virtio::driver::{
    Data, DriverOp, DriverRequest, FrontEnd, FrontEndConfig, GuestPlan, Keeper, RequestStatus,
    RingDriver, RingShape, SocketRole,
};

use random::Random;
use workload::checker::{Checker, read_stamp};
use workload::{Mix, Workload};

/// How long the first connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(60);

/// How long the rings may stand still before the disk counts as stuck.
const STUCK: Duration = Duration::from_secs(90);

/// The pause of an idle turn: the nodes need the cores, too.
const PAUSE: Duration = Duration::from_micros(50);

/// A stand-in for a guest at work.
#[derive(Debug)]
pub struct StandIn {
    keeper: Keeper,
    rings: Vec<RingDriver>,
    mix: Mix,
    /// The longest time without a completion while requests were on their way.
    longest_pause: Duration,
    /// The source of its requests.
    pub workload: Workload,
    /// The record of what reads may return.
    pub checker: Checker,
}

impl StandIn {
    /// Connects to a disk's socket with so many queues. The model covers the disk's first `blocks`
    /// blocks, which must be zeroes now.
    ///
    /// # Errors
    /// When no server answers, or the disk is smaller.
    pub fn connect(
        socket: &Path,
        queues: u16,
        mix: Mix,
        blocks: u64,
        random: &mut Random,
    ) -> Result<Self> {
        Self::connect_with(socket, RingKind::Split, queues, mix, blocks, random)
    }

    /// As [`Self::connect`], with rings of a kind.
    ///
    /// # Errors
    /// When no server answers, or the disk is smaller or has no such rings.
    pub fn connect_with(
        socket: &Path,
        kind: RingKind,
        queues: u16,
        mix: Mix,
        blocks: u64,
        random: &mut Random,
    ) -> Result<Self> {
        let mut config = FrontEndConfig::new(SocketRole::Connect(socket.to_owned()));
        let transfer = u32::try_from(mix.blocks_max)? * mix.block_bytes;
        let segments_max = u16::try_from(mix.blocks_max)?;
        config.guest = GuestPlan {
            queues,
            shape: RingShape {
                // Each slot has room for its longest chain, since a disk may not take indirect
                // descriptors.
                size: (mix.depth * (segments_max + 2)).next_power_of_two(),
                slots: mix.depth,
                transfer_bytes_max: transfer,
                segments_max,
            },
            ..config.guest
        };
        config.wanted.packed = kind == RingKind::Packed;
        let mut front_end = FrontEnd::connect(config, CONNECT_WAIT)
            .with_context(|| format!("connecting to {}", socket.display()))?;
        ensure!(front_end.ring_kind() == kind, "the disk has no {kind:?} rings");
        let rings = (0..queues).map(|index| front_end.take_ring(index)).collect();
        Ok(Self {
            keeper: Keeper::new(front_end)?,
            rings,
            mix,
            longest_pause: Duration::ZERO,
            workload: Workload::new(random.fork(), mix),
            checker: Checker::new(blocks),
        })
    }

    /// How often the connection was made again.
    pub fn reconnects(&self) -> u64 {
        self.keeper.counters().reconnects()
    }

    /// A digest of all memory that a device may write.
    pub fn digest(&self) -> u64 {
        self.rings[0].memory().digest()
    }

    /// Works with full queues until `done` returns true.
    ///
    /// # Errors
    /// When the promise about data is broken, or nothing moves for a long time.
    pub fn work(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<()> {
        let mut moved = Instant::now();
        while !done(self) {
            if self.turn(true)? > 0 {
                self.longest_pause = self.longest_pause.max(moved.elapsed());
                moved = Instant::now();
            } else {
                self.look_out(moved)?;
            }
        }
        Ok(())
    }

    /// The longest time without a completion during work, since the last call.
    pub fn take_longest_pause(&mut self) -> Duration {
        std::mem::take(&mut self.longest_pause)
    }

    /// Waits until no request is on its way.
    ///
    /// # Errors
    /// As [`Self::work`].
    pub fn drain(&mut self) -> Result<()> {
        let mut moved = Instant::now();
        while self.workload.outstanding() > 0 {
            if self.turn(false)? > 0 {
                moved = Instant::now();
            } else {
                self.look_out(moved)?;
            }
        }
        Ok(())
    }

    /// Takes completed requests and, with `work`, fills the queues. Gives the number of completed
    /// requests.
    fn turn(&mut self, work: bool) -> Result<usize> {
        let mut reaped = 0;
        for ring in &mut self.rings {
            reaped += self.workload.reap(ring, &mut self.checker)?;
            if work {
                self.workload.submit(ring, &mut self.checker, usize::from(self.mix.depth))?;
            }
        }
        Ok(reaped)
    }

    fn look_out(&self, moved: Instant) -> Result<()> {
        if moved.elapsed() > STUCK {
            let outstanding = self.workload.outstanding();
            let failure = self.keeper.counters().failure();
            bail!("{outstanding} requests stand still for {STUCK:?}; connection: {failure:?}");
        }
        thread::sleep(PAUSE);
        Ok(())
    }

    /// Reads every block of the model once more, through the disk.
    ///
    /// # Errors
    /// When a block holds data that the model does not allow.
    pub fn read_all(&mut self) -> Result<()> {
        self.drain()?;
        let mut first = 0;
        while first < self.checker.blocks() {
            let blocks = self.mix.blocks_max.min(self.checker.blocks() - first);
            self.read(first, blocks)?;
            first += blocks;
        }
        Ok(())
    }

    fn read(&mut self, first_block: u64, blocks: u64) -> Result<()> {
        let block_bytes = self.mix.block_bytes;
        let len = u32::try_from(blocks)? * block_bytes;
        let ring = &mut self.rings[0];
        let slot = ring.take_slot().context("an idle ring has a slot")?;
        let began = self.checker.begin_read();
        let sector = first_block * u64::from(block_bytes) / 512;
        let data = Data::Whole(len);
        ring.submit(&DriverRequest { slot, op: DriverOp::Read, sector, data, token: u64::MAX })?;
        ring.publish();
        let asked = Instant::now();
        let done = loop {
            if let Some(done) = ring.complete()? {
                break done;
            }
            ensure!(asked.elapsed() < STUCK, "a read stands still for {STUCK:?}");
            thread::sleep(PAUSE);
        };
        ensure!(done.status == RequestStatus::Ok, "block {first_block} cannot be read");
        let mut bytes = vec![0; len as usize];
        ring.read(slot, 0, &mut bytes);
        ring.release(slot);
        self.checker.end_read(began, first_block, &bytes, block_bytes as usize)?;
        Ok(())
    }

    /// Compares the volume's file, block by block, with the contents that the model allows.
    ///
    /// # Errors
    /// When a block differs.
    pub fn compare_image(&self, path: &Path) -> Result<()> {
        let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
        let mut bytes = vec![0; self.mix.block_bytes as usize];
        for block in 0..self.checker.blocks() {
            file.read_exact_at(&mut bytes, block * u64::from(self.mix.block_bytes))?;
            let found = read_stamp(block, &bytes)?;
            let allowed = self.checker.allowed(block);
            ensure!(
                allowed.contains(&found),
                "{}: block {block} holds write {found}, allowed are {allowed:?}",
                path.display()
            );
        }
        Ok(())
    }

    /// The blocks of the disk as it is now, if it has said that it has changed.
    ///
    /// # Errors
    /// When the disk does not answer.
    pub fn look_at_size(self) -> Result<(Self, Option<u64>)> {
        // The thread that keeps the connection has it alone.
        let mut front_end = self.keeper.stop();
        let has_changed = front_end.disk_changed()?;
        let blocks = front_end.disk().capacity_sectors * 512 / u64::from(self.mix.block_bytes);
        let this = Self { keeper: Keeper::new(front_end)?, ..self };
        Ok((this, has_changed.then_some(blocks)))
    }

    /// Ends the connection.
    pub fn disconnect(self) {
        drop(self.keeper.stop());
    }
}
