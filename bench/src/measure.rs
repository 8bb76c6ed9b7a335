//! Drives disks as fast as they go, through their vhost-user sockets, with the stand-in driver.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use sidecore::now_ns;
use virtio::driver::{
    Data, DriverOp, DriverRequest, FrontEnd, FrontEndConfig, GuestPlan, RequestStatus, RingDriver,
    RingShape, SECTOR_BYTES, SocketRole,
};

pub use virtio::driver::Reuse;

use crate::load::{Load, LoadOutcome, LoadPattern, Places, STUCK};
use testbed::machine::pin;

/// The size of disks of memory and of files, of vrio and of other programs. It is more than
/// caches hold, except where nothing that is measured counts: in a build without optimisations.
pub const DISK_BYTES: u64 = if cfg!(debug_assertions) { 64 << 20 } else { 512 << 20 };

/// How long the first connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(60);

/// Rounds without a completion between two looks at the clock, while polling.
const LOOK_AT_CLOCK: u32 = 4096;

/// Writes a disk's blocks, none of them zero, down to the storage. Blocks that were never written
/// would cost nothing to read, and blocks that the kernel writes back later would cost the next
/// turn.
///
/// # Errors
/// The system's, such as no room.
pub fn fill_disk(path: &Path) -> io::Result<()> {
    static BLOCK: [u8; 1 << 20] = [0xa5; 1 << 20];
    let mut file = File::create(path)?;
    for _ in 0..DISK_BYTES / BLOCK.len() as u64 {
        file.write_all(&BLOCK)?;
    }
    file.sync_all()
}

/// How the driver learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitMode {
    /// It polls: the shortest latency, for machines with a core to spare.
    Polls,
    /// It sleeps until the device calls, as a guest does.
    Sleeps,
}

/// How a disk is driven.
#[derive(Clone, Debug)]
pub struct DriverPlan {
    /// The vhost-user sockets of the disks, one for each guest.
    pub sockets: Vec<PathBuf>,
    /// How many of the disks have work, the first of them; all by default.
    pub busy: Option<u16>,
    /// Queues of each disk.
    pub jobs: u16,
    /// Threads that drive the queues of all disks, by turns where there are fewer than queues. None
    /// means one thread for each queue.
    pub threads: Option<usize>,
    /// Bytes of every request.
    pub size_bytes: u32,
    /// The most requests that will be outstanding, of each job.
    pub depth_max: u16,
    /// Packed rings instead of split ones.
    pub packed: bool,
    /// Which slots and descriptors the driver takes next.
    pub reuse: Reuse,
    /// How the driver learns of completions.
    pub waiting: WaitMode,
    /// The cores of the driving threads, by turns; no thread is pinned if there are none.
    pub cores: Vec<usize>,
}

impl DriverPlan {
    /// Polls one queue of this socket, anywhere, with pages of 4 KiB.
    pub fn new(socket: &Path) -> Self {
        Self {
            sockets: vec![socket.to_owned()],
            busy: None,
            jobs: 1,
            threads: None,
            size_bytes: 4096,
            depth_max: 32,
            packed: false,
            reuse: Reuse::InOrder,
            waiting: WaitMode::Polls,
            cores: Vec::new(),
        }
    }

    fn shape(&self) -> RingShape {
        RingShape {
            // Three descriptors a request, should the disk not take indirect ones.
            size: (self.depth_max * 4).next_power_of_two().max(16),
            slots: self.depth_max,
            transfer_bytes_max: self.size_bytes,
            segments_max: 1,
        }
    }
}

/// Disks that are measured. They are overwritten, so no other process may use them meanwhile.
#[derive(Debug)]
pub struct MeasuredDisks {
    /// Keep the connections open.
    _front_ends: Vec<FrontEnd>,
    threads: Vec<Thread>,
}

/// A driving thread and its queues.
#[derive(Debug)]
struct Thread {
    jobs: Vec<DrivenQueue>,
    waiting: WaitMode,
    core: Option<usize>,
}

impl MeasuredDisks {
    /// Connects to the disks. Requests go to the first `bytes` of each, or all of it.
    ///
    /// # Errors
    /// When no server answers, or a disk is too small.
    pub fn connect(plan: &DriverPlan, bytes: Option<u64>) -> Result<Self> {
        let (mut front_ends, mut jobs) = (Vec::new(), Vec::new());
        for (guest, socket) in plan.sockets.iter().enumerate() {
            let mut config = FrontEndConfig::new(SocketRole::Connect(socket.clone()));
            config.guest = GuestPlan { queues: plan.jobs, shape: plan.shape(), ..config.guest };
            config.wanted.packed = plan.packed;
            config.reuse = plan.reuse;
            let mut front_end = FrontEnd::connect(config, CONNECT_WAIT)
                .with_context(|| format!("connecting to {}", socket.display()))?;
            let disk_bytes = front_end.disk().capacity_sectors * SECTOR_BYTES;
            let used_bytes = bytes.map_or(disk_bytes, |bytes| bytes.min(disk_bytes));
            let places = used_bytes / u64::from(plan.size_bytes);
            if places < u64::from(plan.jobs) {
                bail!("a disk of {disk_bytes} bytes has no room for {} jobs", plan.jobs);
            }
            let is_busy = plan.busy.is_none_or(|busy| guest < usize::from(busy));
            let job = |index| DrivenQueue {
                is_busy,
                ..DrivenQueue::new(plan, index, front_end.take_ring(index), places)
            };
            jobs.extend((0..plan.jobs).map(job));
            front_ends.push(front_end);
        }
        Ok(Self { _front_ends: front_ends, threads: plan.share(jobs) })
    }

    /// Writes every place once, so that no place is a hole.
    ///
    /// # Errors
    /// When a request fails, or no request completes for a long time.
    pub fn fill(&mut self) -> Result<()> {
        self.each(|job| job.fill()).map(drop)
    }

    /// Measures.
    ///
    /// # Errors
    /// When a request fails, or no request completes for a long time.
    pub fn run(&mut self, load: Load) -> Result<LoadOutcome> {
        let until_ns = now_ns() + u64::try_from(load.duration.as_nanos()).unwrap_or(u64::MAX);
        // A job without work ends before it begins.
        self.each(|job| job.load(load, if job.is_busy { until_ns } else { 0 }))
    }

    /// Lets every job do the work that `begin` gives it, all jobs at once.
    fn each(
        &mut self,
        begin: impl Fn(&mut DrivenQueue) -> Drive<'_> + Sync,
    ) -> Result<LoadOutcome> {
        let begin = &begin;
        thread::scope(|scope| {
            let run = |thread: &'_ mut Thread| -> Result<LoadOutcome> {
                thread.core.inspect(|core| pin(*core));
                let began = thread_cpu();
                let mut outcome = thread.drive(begin)?;
                outcome.driver_cpu.push(thread_cpu().saturating_sub(began));
                Ok(outcome)
            };
            let threads = self.threads.iter_mut();
            let threads: Vec<_> = threads.map(|thread| scope.spawn(move || run(thread))).collect();
            let mut all = LoadOutcome::new();
            for thread in threads {
                let outcome: Result<LoadOutcome> =
                    thread.join().map_err(|_| anyhow!("a driving thread panicked"))?;
                all.add(&outcome?);
            }
            Ok(all)
        })
    }
}

impl DriverPlan {
    /// Gives each thread its jobs.
    fn share(&self, jobs: Vec<DrivenQueue>) -> Vec<Thread> {
        // A thread that sleeps until one queue's device calls can drive no other queue.
        let alone = self.threads.is_none() || self.waiting == WaitMode::Sleeps;
        let count = self.threads.filter(|_| !alone).unwrap_or(jobs.len()).clamp(1, jobs.len());
        let thread = |index: usize| {
            let mut cores = self.cores.iter().cycle().skip(index);
            let core = cores.next().copied();
            Thread { jobs: Vec::new(), waiting: self.waiting, core }
        };
        let mut threads: Vec<_> = (0..count).map(thread).collect();
        for (index, job) in jobs.into_iter().enumerate() {
            threads[index % count].jobs.push(job);
        }
        threads
    }
}

impl Thread {
    /// Turns to its jobs until all are done.
    fn drive(&mut self, begin: impl Fn(&mut DrivenQueue) -> Drive<'_>) -> Result<LoadOutcome> {
        let waiting = self.waiting;
        let mut drives: Vec<_> = self.jobs.iter_mut().map(begin).collect();
        let mut looked = 0;
        loop {
            let (mut moved, mut over) = (false, true);
            for drive in &mut drives {
                moved |= drive.turn()?;
                over &= drive.is_over();
            }
            if over {
                break;
            }
            if moved {
                looked = 0;
                continue;
            }
            looked += 1;
            if looked % LOOK_AT_CLOCK == 0 {
                drives.iter().try_for_each(Drive::check)?;
            }
            match (waiting, &mut drives[..]) {
                (WaitMode::Sleeps, [alone]) => alone.sleep()?,
                _ => std::hint::spin_loop(),
            }
        }
        let mut all = LoadOutcome::new();
        drives.into_iter().for_each(|drive| all.add(&drive.end()));
        Ok(all)
    }
}

/// Processor time of the calling thread.
pub fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A job: one queue of a disk.
#[derive(Debug)]
struct DrivenQueue {
    ring: RingDriver,
    places: Places,
    size_bytes: u32,
    is_busy: bool,
    /// The time at which each slot's request was submitted, or was due.
    submitted_ns: Vec<u64>,
}

impl DrivenQueue {
    fn new(plan: &DriverPlan, index: u16, mut ring: RingDriver, places: u64) -> Self {
        if plan.waiting == WaitMode::Polls {
            ring.disarm_calls();
        }
        Self {
            ring,
            places: Places::new(index, plan.jobs, places),
            size_bytes: plan.size_bytes,
            is_busy: true,
            submitted_ns: vec![0; usize::from(plan.depth_max)],
        }
    }

    fn fill(&mut self) -> Drive<'_> {
        let (depth, left) = (self.submitted_ns.len() as u16, self.places.count());
        Drive { left, ..Drive::new(self, LoadPattern::Write, depth, u64::MAX) }
    }

    fn load(&mut self, load: Load, until_ns: u64) -> Drive<'_> {
        let mut drive = Drive::new(self, load.pattern, load.depth, until_ns);
        drive.pace = load.interval.map(|interval| Schedule {
            due_ns: drive.began_ns,
            interval_ns: u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX).max(1),
        });
        drive
    }
}

/// The times at which requests are due, if not as soon as there is room for them.
#[derive(Debug)]
struct Schedule {
    /// The next one.
    due_ns: u64,
    interval_ns: u64,
}

/// A queue that is kept at its depth, or at its schedule.
struct Drive<'a> {
    job: &'a mut DrivenQueue,
    pattern: LoadPattern,
    op: DriverOp,
    depth: u16,
    /// Requests are submitted until then, or until so many were.
    until_ns: u64,
    left: u64,
    pace: Option<Schedule>,
    began_ns: u64,
    /// The time of the last completion; with a schedule, also of the last look at an empty queue.
    moved_ns: u64,
    kicks_before: u64,
    outcome: LoadOutcome,
}

impl<'a> Drive<'a> {
    fn new(job: &'a mut DrivenQueue, pattern: LoadPattern, depth: u16, until_ns: u64) -> Self {
        assert!((1..=job.submitted_ns.len()).contains(&usize::from(depth)), "depth {depth}");
        let (began_ns, kicks_before) = (now_ns(), job.ring.counters().kicks);
        let op = if pattern.writes() { DriverOp::Write } else { DriverOp::Read };
        Self {
            job,
            pattern,
            op,
            depth,
            until_ns,
            left: u64::MAX,
            pace: None,
            began_ns,
            moved_ns: began_ns,
            kicks_before,
            outcome: LoadOutcome::new(),
        }
    }

    /// Takes completed requests, and submits the next ones. The result is whether any request was
    /// completed. One look at the clock serves all of it.
    fn turn(&mut self) -> Result<bool> {
        let moved = self.reap()?;
        while self.goes_on() && self.job.ring.outstanding() < self.depth {
            let Some(since_ns) = self.due_ns() else { break };
            self.submit(since_ns)?;
        }
        self.job.ring.publish();
        Ok(moved)
    }

    fn goes_on(&self) -> bool {
        let next_ns = self.pace.as_ref().map_or(self.moved_ns, |pace| pace.due_ns);
        self.left > 0 && next_ns < self.until_ns
    }

    /// The time from which on the next request waits; none if it is not due yet.
    fn due_ns(&mut self) -> Option<u64> {
        let Some(pace) = &mut self.pace else { return Some(self.moved_ns) };
        let now_ns = now_ns();
        if self.job.ring.outstanding() == 0 {
            self.moved_ns = now_ns;
        }
        let due_ns = pace.due_ns;
        (due_ns <= now_ns).then(|| {
            pace.due_ns += pace.interval_ns;
            due_ns
        })
    }

    fn is_over(&self) -> bool {
        self.job.ring.outstanding() == 0 && !self.goes_on()
    }

    /// Submits a request, whose latency counts from `since_ns` on.
    fn submit(&mut self, since_ns: u64) -> Result<()> {
        let DrivenQueue { ring, places, size_bytes, submitted_ns, .. } = &mut *self.job;
        let slot = ring.take_slot().context("a slot for each request")?;
        let sector = places.next(self.pattern) * u64::from(*size_bytes) / SECTOR_BYTES;
        submitted_ns[slot.index()] = since_ns;
        let data = Data::Whole(*size_bytes);
        ring.submit(&DriverRequest { slot, op: self.op, sector, data, token: 0 })?;
        self.left -= 1;
        Ok(())
    }

    fn reap(&mut self) -> Result<bool> {
        let mut at_ns = None;
        let DrivenQueue { ring, submitted_ns, .. } = &mut *self.job;
        while let Some(done) = ring.complete()? {
            if done.status != RequestStatus::Ok {
                bail!("a request failed while the disk was measured: {:?}", done.status);
            }
            let now = *at_ns.get_or_insert_with(now_ns);
            self.outcome.note(now.saturating_sub(submitted_ns[done.slot.index()]));
            ring.release(done.slot);
        }
        self.moved_ns = at_ns.unwrap_or(self.moved_ns);
        Ok(at_ns.is_some())
    }

    /// Sleeps until the device calls.
    fn sleep(&mut self) -> Result<()> {
        if !self.job.ring.wait(STUCK)? {
            bail!("no call for {STUCK:?}");
        }
        Ok(())
    }

    /// Looks whether the queue stands still.
    fn check(&self) -> Result<()> {
        let still_ns = now_ns().saturating_sub(self.moved_ns);
        if !self.is_over() && u128::from(still_ns) > STUCK.as_nanos() {
            bail!("{} requests stand still for {STUCK:?}", self.job.ring.outstanding());
        }
        Ok(())
    }

    fn end(mut self) -> LoadOutcome {
        let took_ns = self.moved_ns.saturating_sub(self.began_ns).max(1);
        self.outcome.took = Duration::from_nanos(took_ns);
        self.outcome.kicks = self.job.ring.counters().kicks - self.kicks_before;
        self.outcome
    }
}
