//! Throughput and latency of a disk, measured with the stand-in driver on one queue.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use serde::Serialize;
use virtio::driver::{
    Data, FrontEnd, FrontEndConfig, GuestPlan, Op, Request, RingDriver, RingShape, Role,
    SECTOR_BYTES, Status,
};

use crate::sim::Random;

/// Bytes of every request: a page, as file systems and databases ask for.
pub const REQUEST_BYTES: u32 = 4096;

/// Requests that can be outstanding.
pub const DEPTH_MAX: u16 = 32;

/// How long the first connection may take.
const CONNECT_WAIT: Duration = Duration::from_secs(60);

/// How long the ring may stand still before the disk is thought to be stuck.
const STUCK: Duration = Duration::from_secs(60);

/// Significant decimal digits: finer than any run repeats.
const HISTOGRAM_DIGITS: u8 = 3;

/// How the driver learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It looks all the time: the shortest latency, for machines with a core to spare.
    Polls,
    /// It sleeps until the device calls, as a guest does.
    Sleeps,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Writes instead of reads.
    pub write: bool,
    /// Requests outstanding, at most [`DEPTH_MAX`].
    pub depth: u16,
    /// For how long.
    pub duration: Duration,
}

/// What was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    /// Requests per second.
    pub iops: f64,
    /// The median latency in microseconds.
    pub p50_us: f64,
    /// The latency in microseconds that one request in a hundred exceeds.
    pub p99_us: f64,
}

/// A disk that is measured. Nothing else may use it meanwhile: it is overwritten.
#[derive(Debug)]
pub struct Bench {
    /// Keeps the connection open.
    _front_end: FrontEnd,
    ring: RingDriver,
    blocks: u64,
    waiting: Waiting,
    random: Random,
    /// When each slot's request was submitted.
    submitted: [Instant; DEPTH_MAX as usize],
}

impl Bench {
    /// Connects to a disk's socket. Requests go to random blocks of the disk's first `blocks`.
    ///
    /// # Errors
    /// When nobody answers.
    pub fn connect(socket: &Path, blocks: u64, waiting: Waiting) -> Result<Self> {
        let mut config = FrontEndConfig::new(Role::Connect(socket.to_owned()));
        config.guest = GuestPlan {
            shape: RingShape {
                // Three descriptors a request, should the disk not take indirect ones.
                size: (DEPTH_MAX * 4).next_power_of_two(),
                slots: DEPTH_MAX,
                transfer_bytes_max: REQUEST_BYTES,
                segments_max: 1,
            },
            ..config.guest
        };
        let mut front_end = FrontEnd::connect(config, CONNECT_WAIT)
            .with_context(|| format!("connecting to {}", socket.display()))?;
        let mut ring = front_end.take_ring(0);
        if waiting == Waiting::Polls {
            ring.disarm_calls();
        }
        let submitted = [Instant::now(); DEPTH_MAX as usize];
        let random = Random::new(1);
        Ok(Self { _front_end: front_end, ring, blocks, waiting, random, submitted })
    }

    /// Writes every block once, so that none is a hole.
    ///
    /// # Errors
    /// When a request fails, or nothing moves for a long time.
    pub fn fill(&mut self) -> Result<()> {
        let mut next = 0;
        let mut histogram = histogram();
        let blocks = self.blocks;
        self.drive(true, DEPTH_MAX, &mut histogram, |_| {
            let block = next;
            next += 1;
            (block < blocks).then_some(block)
        })?;
        Ok(())
    }

    /// Measures.
    ///
    /// # Errors
    /// When a request fails, or nothing moves for a long time.
    pub fn run(&mut self, load: Load) -> Result<Speed> {
        let mut histogram = histogram();
        let until = Instant::now() + load.duration;
        let mut random = self.random.fork();
        let blocks = self.blocks;
        let took = self.drive(load.write, load.depth, &mut histogram, |now| {
            (now < until).then(|| random.below(blocks))
        })?;
        let us = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Ok(Speed {
            iops: histogram.len() as f64 / took.as_secs_f64(),
            p50_us: us(0.5),
            p99_us: us(0.99),
        })
    }

    /// Keeps `depth` requests outstanding until `next` gives no more blocks; says how long it took.
    fn drive(
        &mut self,
        write: bool,
        depth: u16,
        histogram: &mut Histogram<u64>,
        mut next: impl FnMut(Instant) -> Option<u64>,
    ) -> Result<Duration> {
        assert!((1..=DEPTH_MAX).contains(&depth), "a depth of {depth}");
        let began = Instant::now();
        let (mut moved, mut more) = (began, true);
        loop {
            let now = Instant::now();
            while more && self.ring.outstanding() < depth {
                match next(now) {
                    Some(block) => self.submit(write, block)?,
                    None => more = false,
                }
            }
            self.ring.publish();
            if self.reap(histogram)? > 0 {
                moved = now;
            } else if self.ring.outstanding() == 0 {
                return Ok(began.elapsed());
            } else {
                self.wait(moved)?;
            }
        }
    }

    fn submit(&mut self, write: bool, block: u64) -> Result<()> {
        let slot = self.ring.take_slot().context("a slot for each request")?;
        let op = if write { Op::Write } else { Op::Read };
        let sector = block * u64::from(REQUEST_BYTES) / SECTOR_BYTES;
        self.submitted[slot.index()] = Instant::now();
        let data = Data::Whole(REQUEST_BYTES);
        self.ring.submit(&Request { slot, op, sector, data, token: 0 })?;
        Ok(())
    }

    fn reap(&mut self, histogram: &mut Histogram<u64>) -> Result<usize> {
        let mut reaped = 0;
        while let Some(done) = self.ring.complete()? {
            if done.status != Status::Ok {
                bail!("a request failed while the disk was measured: {:?}", done.status);
            }
            let took = self.submitted[done.slot.index()].elapsed();
            histogram.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            self.ring.release(done.slot);
            reaped += 1;
        }
        Ok(reaped)
    }

    fn wait(&mut self, moved: Instant) -> Result<()> {
        if moved.elapsed() > STUCK {
            bail!("{} requests stand still for {STUCK:?}", self.ring.outstanding());
        }
        match self.waiting {
            Waiting::Polls => std::hint::spin_loop(),
            Waiting::Sleeps => {
                self.ring.wait(STUCK)?;
            }
        }
        Ok(())
    }
}

fn histogram() -> Histogram<u64> {
    let max_ns = u64::try_from(STUCK.as_nanos()).expect("a minute fits");
    Histogram::new_with_bounds(1, max_ns, HISTOGRAM_DIGITS).expect("bounds that make sense")
}

/// The middle of some runs, for each number by itself.
///
/// # Panics
/// Without any run.
pub fn median(runs: &[Speed]) -> Speed {
    let middle = |number: fn(&Speed) -> f64| {
        let mut numbers: Vec<_> = runs.iter().map(number).collect();
        numbers.sort_by(f64::total_cmp);
        numbers[numbers.len() / 2]
    };
    Speed {
        iops: middle(|run| run.iops),
        p50_us: middle(|run| run.p50_us),
        p99_us: middle(|run| run.p99_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_taken_of_each_number() {
        let speed = |iops, p50_us, p99_us| Speed { iops, p50_us, p99_us };
        let middle = median(&[speed(3.0, 1.0, 9.0), speed(1.0, 5.0, 7.0), speed(2.0, 3.0, 8.0)]);
        assert_eq!((middle.iops, middle.p50_us, middle.p99_us), (2.0, 3.0, 8.0));
    }
}
