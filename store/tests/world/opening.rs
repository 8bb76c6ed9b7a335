//! Opening a pool, with crashes in the middle of it.

use random::Random;
use store::block::BlockBuffer;
use store::{PoolDeviceError, PoolDevices, PoolEngine, PoolOpenError};

use super::Failure;
use super::disk::{CrashKind, SimDisk};
use super::life::World;

/// The most openings in a row that a crash or a device's error ends.
const OPENINGS_MAX: u64 = 40;

const EIO: i32 = 5;

/// The devices while the pool is being opened. After so many requests the process is dead.
pub(crate) struct OpeningDisks<'a> {
    disks: &'a mut [SimDisk],
    random: &'a mut Random,
    round: u64,
    left: Option<u64>,
    /// Reads do not count for it.
    counts_writes: bool,
    is_dead: bool,
    requests: u64,
    counted: u64,
}

impl<'a> OpeningDisks<'a> {
    fn new(world: &'a mut World, left: Option<u64>) -> Self {
        let World { disks, random, round, plan, .. } = world;
        let counts_writes = plan.stop.is_none() && random.one_in(2);
        let (is_dead, requests, counted) = (false, 0, 0);
        Self { disks, random, round: *round, left, counts_writes, is_dead, requests, counted }
    }

    /// Devices of a process that lives on.
    pub(crate) fn healthy(world: &'a mut World) -> Self {
        Self::new(world, None)
    }

    /// Whether this request is done; `Err` for the one at which the process dies, and all later.
    fn step(&mut self, is_read: bool) -> Result<(), PoolDeviceError> {
        self.requests += 1;
        self.round += 1;
        self.counted += u64::from(!is_read || !self.counts_writes);
        self.is_dead |= self.left == Some(self.counted);
        if self.is_dead { Err(PoolDeviceError::Failed(EIO)) } else { Ok(()) }
    }
}

impl PoolDevices for OpeningDisks<'_> {
    fn read(
        &mut self,
        device: u8,
        block: u64,
        buffer: &mut BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        self.step(true)?;
        self.disks[usize::from(device)].read(block, buffer, blocks, self.random)
    }

    fn write(
        &mut self,
        device: u8,
        block: u64,
        buffer: &BlockBuffer,
        blocks: u32,
    ) -> Result<(), PoolDeviceError> {
        let was_dead = self.is_dead;
        let alive = self.step(false);
        let disk = &mut self.disks[usize::from(device)];
        if alive.is_err() && !was_dead {
            let blocks = &buffer.blocks()[..blocks as usize];
            disk.maybe_all(block, blocks, 500_000, 200_000, self.random);
        }
        alive?;
        disk.write(block, buffer, blocks, self.round, self.random)
    }

    fn sync(&mut self, device: u8) -> Result<(), PoolDeviceError> {
        self.step(false)?;
        self.disks[usize::from(device)].sync_all(self.random)
    }
}

/// How an opening went.
pub(crate) enum Opened {
    /// The pool is open.
    Open,
    /// A medium is damaged, and the pool says so.
    Refused,
}

impl World {
    /// Opens the pool; crashes may come first.
    pub(crate) fn open(&mut self) -> Result<Opened, Failure> {
        let sizes = self.device_sizes();
        for _ in 0..OPENINGS_MAX {
            let left = match self.plan.stop {
                Some(_) => self.stop_opening_at.take(),
                None => self.random.one_in(3).then(|| self.random.between(1, 40)),
            };
            let salt = self.random.draw();
            let (options, now_ns) = (self.plan.options, self.now_ns);
            let mut disks = OpeningDisks::new(self, left);
            let result = PoolEngine::open(&mut disks, &sizes, options, salt.into(), now_ns);
            let (is_dead, requests, round) = (disks.is_dead, disks.requests, disks.round);
            self.round = round;
            self.tally.add("requests of openings", requests);
            if is_dead {
                if result.is_ok() {
                    let text = "the process died, and the opening ended well".to_owned();
                    return Err(Failure::new("an error is overlooked", text));
                }
                let kind = self.crash_kind();
                self.note(|| format!("opening: {kind:?} at request {requests}"));
                self.tally.add("crashes in openings", 1);
                self.crash_disks(kind);
                continue;
            }
            match result {
                Ok(mut engine) => {
                    engine.set_dedup(self.plan.dedup);
                    self.follows_moments = false;
                    self.note(|| format!("opened with {requests} requests"));
                    self.engine = Some(engine);
                    return Ok(Opened::Open);
                }
                Err(error) if self.may_refuse(&error) => {
                    self.note(|| format!("opening refused: {error}"));
                    if !matches!(error, PoolOpenError::Device { .. }) {
                        self.tally.add("pools refused", 1);
                        return Ok(Opened::Refused);
                    }
                    self.round += 500;
                }
                Err(error) => return Err(Failure::new("not opened", format!("{error}"))),
            }
        }
        self.calm();
        Err(Failure::new("not opened", format!("after {OPENINGS_MAX} tries")))
    }

    /// Whether a fault of a device that the plan has explains the error.
    fn may_refuse(&self, error: &PoolOpenError) -> bool {
        let faults = self.plan.faults;
        let medium = self.disks.iter().any(|disk| disk.medium_faults > 0);
        match error {
            PoolOpenError::Device { error: PoolDeviceError::NoSpace, .. } => {
                faults.no_space_ppm > 0
            }
            PoolOpenError::Device { .. } => faults.read_error_ppm + faults.write_error_ppm > 0,
            PoolOpenError::Damaged(_)
            | PoolOpenError::Superblock { .. }
            | PoolOpenError::Devices(_) => medium,
            PoolOpenError::NoRoom => false,
        }
    }

    /// The devices after a crash; the model has noted it.
    pub(crate) fn crash_disks(&mut self, kind: CrashKind) {
        for disk in &mut self.disks {
            disk.crash(kind, &mut self.random);
        }
        self.model.crash(kind);
    }
}
