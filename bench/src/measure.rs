//! Drives a disk as fast as it goes, through its vhost-user socket, with the stand-in driver.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use sidecore::now_ns;
use virtio::driver::{
    Data, FrontEnd, FrontEndConfig, GuestPlan, Op, Request, RingDriver, RingShape, Role,
    SECTOR_BYTES, Status,
};

use crate::load::{Load, Outcome, Pattern, Places, STUCK};
use crate::machine::pin;

/// How long the first connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(60);

/// Rounds without a completion between two looks at the clock, while polling.
const LOOK_AT_CLOCK: u32 = 4096;

/// How the driver learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Waiting {
    /// It looks all the time: the shortest latency, for machines with a core to spare.
    Polls,
    /// It sleeps until the device calls, as a guest does.
    Sleeps,
}

/// How a disk is driven.
#[derive(Clone, Debug)]
pub struct DriverPlan {
    /// The disk's vhost-user socket.
    pub socket: PathBuf,
    /// Queues, each driven by a thread of its own.
    pub jobs: u16,
    /// Bytes of every request.
    pub size_bytes: u32,
    /// The most requests that will be outstanding, of each job.
    pub depth_max: u16,
    /// Packed rings instead of split ones.
    pub packed: bool,
    /// How completions are learned of.
    pub waiting: Waiting,
    /// The cores of the driving threads, by turns; anywhere if there are none.
    pub cores: Vec<usize>,
}

impl DriverPlan {
    /// Polls one queue of this socket, anywhere, with pages of 4 KiB.
    pub fn new(socket: &Path) -> Self {
        Self {
            socket: socket.to_owned(),
            jobs: 1,
            size_bytes: 4096,
            depth_max: 32,
            packed: false,
            waiting: Waiting::Polls,
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

/// A disk that is measured. Nothing else may use it meanwhile: it is overwritten.
#[derive(Debug)]
pub struct Bench {
    /// Keeps the connection open.
    _front_end: FrontEnd,
    jobs: Vec<Job>,
}

impl Bench {
    /// Connects to the disk. Requests go to its first `bytes`, or all of it.
    ///
    /// # Errors
    /// When nobody answers, or the disk is too small.
    pub fn connect(plan: &DriverPlan, bytes: Option<u64>) -> Result<Self> {
        let mut config = FrontEndConfig::new(Role::Connect(plan.socket.clone()));
        config.guest = GuestPlan { queues: plan.jobs, shape: plan.shape(), ..config.guest };
        config.wanted.packed = plan.packed;
        let mut front_end = FrontEnd::connect(config, CONNECT_WAIT)
            .with_context(|| format!("connecting to {}", plan.socket.display()))?;
        let disk_bytes = front_end.disk().capacity_sectors * SECTOR_BYTES;
        let places =
            bytes.map_or(disk_bytes, |bytes| bytes.min(disk_bytes)) / u64::from(plan.size_bytes);
        if places < u64::from(plan.jobs) {
            bail!("a disk of {disk_bytes} bytes has no room for {} jobs", plan.jobs);
        }
        let job = |index| Job::new(plan, index, front_end.take_ring(index), places);
        let jobs = (0..plan.jobs).map(job).collect();
        Ok(Self { _front_end: front_end, jobs })
    }

    /// Writes every place once, so that none is a hole.
    ///
    /// # Errors
    /// When a request fails, or nothing moves for a long time.
    pub fn fill(&mut self) -> Result<()> {
        self.each(|job| job.fill()).map(drop)
    }

    /// Measures.
    ///
    /// # Errors
    /// When a request fails, or nothing moves for a long time.
    pub fn run(&mut self, load: Load) -> Result<Outcome> {
        self.each(|job| job.run(load))
    }

    /// Runs `work` for each job at once, each on a thread.
    fn each(&mut self, work: impl Fn(&mut Job) -> Result<Outcome> + Sync) -> Result<Outcome> {
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> = self
                .jobs
                .iter_mut()
                .map(|job| {
                    scope.spawn(move || {
                        job.core.inspect(|core| pin(*core));
                        let began = thread_cpu();
                        let mut outcome = work(job)?;
                        outcome.driver_cpu.push(thread_cpu().saturating_sub(began));
                        Ok(outcome)
                    })
                })
                .collect();
            let mut all = Outcome::new();
            for thread in threads {
                let outcome: Result<Outcome> =
                    thread.join().map_err(|_| anyhow!("a driving thread panicked"))?;
                all.add(&outcome?);
            }
            Ok(all)
        })
    }
}

/// Processor time of the calling thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// One queue and who drives it.
#[derive(Debug)]
struct Job {
    ring: RingDriver,
    places: Places,
    size_bytes: u32,
    waiting: Waiting,
    core: Option<usize>,
    /// When each slot's request was submitted.
    submitted_ns: Vec<u64>,
}

impl Job {
    fn new(plan: &DriverPlan, index: u16, mut ring: RingDriver, places: u64) -> Self {
        if plan.waiting == Waiting::Polls {
            ring.disarm_calls();
        }
        let mut cores = plan.cores.iter().cycle().skip(usize::from(index));
        Self {
            ring,
            places: Places::new(index, plan.jobs, places),
            size_bytes: plan.size_bytes,
            waiting: plan.waiting,
            core: cores.next().copied(),
            submitted_ns: vec![0; usize::from(plan.depth_max)],
        }
    }

    fn fill(&mut self) -> Result<Outcome> {
        let mut left = self.places.count();
        let depth = self.submitted_ns.len() as u16;
        let mut places = self.places.clone();
        self.drive(Op::Write, depth, |_| {
            left = left.checked_sub(1)?;
            Some(places.next(Pattern::Write))
        })
    }

    fn run(&mut self, load: Load) -> Result<Outcome> {
        let op = if load.pattern.writes() { Op::Write } else { Op::Read };
        let until_ns = now_ns() + u64::try_from(load.duration.as_nanos()).unwrap_or(u64::MAX);
        let mut places = self.places.clone();
        let next = |now_ns: u64| (now_ns < until_ns).then(|| places.next(load.pattern));
        let outcome = self.drive(op, load.depth, next);
        self.places = places;
        outcome
    }

    /// Keeps `depth` requests outstanding until `next` gives no more places. One look at the clock
    /// for a batch of completions and the submissions that follow from it.
    fn drive(
        &mut self,
        op: Op,
        depth: u16,
        mut next: impl FnMut(u64) -> Option<u64>,
    ) -> Result<Outcome> {
        assert!((1..=self.submitted_ns.len()).contains(&usize::from(depth)), "depth {depth}");
        let mut outcome = Outcome::new();
        let kicks = self.ring.counters().kicks;
        let began_ns = now_ns();
        let (mut now, mut moved_ns, mut looked, mut more) = (began_ns, began_ns, 0, true);
        loop {
            while more && self.ring.outstanding() < depth {
                match next(now) {
                    Some(place) => self.submit(op, place, now)?,
                    None => more = false,
                }
            }
            self.ring.publish();
            if let Some(at_ns) = self.reap(&mut outcome)? {
                (now, moved_ns, looked) = (at_ns, at_ns, 0);
                continue;
            }
            if self.ring.outstanding() == 0 {
                break;
            }
            looked += 1;
            if looked % LOOK_AT_CLOCK == 0 && self.is_stuck(moved_ns) {
                bail!("{} requests stand still for {STUCK:?}", self.ring.outstanding());
            }
            match self.waiting {
                Waiting::Polls => std::hint::spin_loop(),
                Waiting::Sleeps if self.ring.wait(STUCK)? => {}
                Waiting::Sleeps => bail!("no call for {STUCK:?}"),
            }
        }
        outcome.took = Duration::from_nanos(moved_ns.saturating_sub(began_ns).max(1));
        outcome.kicks = self.ring.counters().kicks - kicks;
        Ok(outcome)
    }

    fn is_stuck(&self, moved_ns: u64) -> bool {
        u128::from(now_ns().saturating_sub(moved_ns)) > STUCK.as_nanos()
    }

    fn submit(&mut self, op: Op, place: u64, now_ns: u64) -> Result<()> {
        let slot = self.ring.take_slot().context("a slot for each request")?;
        let sector = place * u64::from(self.size_bytes) / SECTOR_BYTES;
        self.submitted_ns[slot.index()] = now_ns;
        let data = Data::Whole(self.size_bytes);
        self.ring.submit(&Request { slot, op, sector, data, token: 0 })?;
        Ok(())
    }

    /// Takes what is completed; when that was, if there was anything.
    fn reap(&mut self, outcome: &mut Outcome) -> Result<Option<u64>> {
        let mut at_ns = None;
        while let Some(done) = self.ring.complete()? {
            if done.status != Status::Ok {
                bail!("a request failed while the disk was measured: {:?}", done.status);
            }
            let now = *at_ns.get_or_insert_with(now_ns);
            outcome.note(now.saturating_sub(self.submitted_ns[done.slot.index()]));
            self.ring.release(done.slot);
        }
        Ok(at_ns)
    }
}
