//! How fast a disk is: one kind of request, several threads, one line of result.

use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crate::buffer::Aligned;
use crate::churn::{ChurnFailure, EXTENT_BLOCKS, open_direct};
use crate::pattern::{self, BLOCK_BYTES};
use crate::random::{Random, mix};

/// Latencies kept per thread. A thread that does more than this in one run keeps the first ones.
const SAMPLES_MAX: usize = 1 << 18;

/// The settings of a measurement.
#[derive(Debug, Clone)]
pub struct Measure {
    /// The disk. Writing destroys its content.
    pub device: PathBuf,
    /// Write instead of read.
    pub write: bool,
    /// Blocks of 4 KiB of each request, at most [`EXTENT_BLOCKS`].
    pub request_blocks: u64,
    /// Requests outstanding: one for each thread.
    pub threads: u64,
    /// How long.
    pub duration: Duration,
}

/// The result.
#[derive(Debug)]
pub struct Speed {
    /// Requests in all.
    pub requests: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// The median latency in microseconds.
    pub p50_us: u64,
    /// 99 of 100 requests were at least as fast as this, in microseconds.
    pub p99_us: u64,
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        let iops = self.requests as f64 / seconds;
        let mib_s = self.bytes as f64 / seconds / (1 << 20) as f64;
        let Self { requests, p50_us, p99_us, .. } = self;
        write!(
            f,
            "requests={requests} iops={iops:.0} mib_s={mib_s:.1} p50_us={p50_us} p99_us={p99_us}"
        )
    }
}

/// Measures random requests at places aligned to their size.
///
/// # Errors
/// The first request that failed, or why the disk is unfit.
pub fn run(measure: &Measure) -> Result<Speed, ChurnFailure> {
    let (file, blocks) = open_direct(&measure.device, 1)?;
    if measure.request_blocks == 0 || measure.request_blocks > EXTENT_BLOCKS {
        return Err(ChurnFailure::Unfit(format!("a request has 1 to {EXTENT_BLOCKS} blocks")));
    }
    let started = Instant::now();
    let results: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..measure.threads)
            .map(|index| {
                let file = &file;
                scope.spawn(move || worker(measure, index, file, blocks, started))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("it does not panic")).collect()
    });
    let elapsed = started.elapsed();
    let mut requests = 0;
    let mut latencies_us = Vec::new();
    for result in results {
        let (done, samples_us) = result?;
        requests += done;
        latencies_us.extend(samples_us);
    }
    latencies_us.sort_unstable();
    Ok(Speed {
        requests,
        bytes: requests * measure.request_blocks * BLOCK_BYTES as u64,
        elapsed,
        p50_us: percentile(&latencies_us, 50),
        p99_us: percentile(&latencies_us, 99),
    })
}

fn worker(
    measure: &Measure,
    index: u64,
    file: &std::fs::File,
    blocks: u64,
    started: Instant,
) -> Result<(u64, Vec<u64>), ChurnFailure> {
    let request_bytes = measure.request_blocks * BLOCK_BYTES as u64;
    let mut random = Random::new(mix(index + 1));
    let mut buffer = Aligned::new(measure.request_blocks);
    for (block, bytes) in buffer.blocks(measure.request_blocks).enumerate() {
        pattern::fill(index, block as u64, 1, bytes);
    }
    let mut requests = 0;
    let mut samples_us = Vec::with_capacity(SAMPLES_MAX);
    while started.elapsed() < measure.duration {
        let offset = random.below(blocks / measure.request_blocks) * request_bytes;
        let sent = Instant::now();
        let done = match measure.write {
            true => file.write_all_at(&buffer, offset),
            false => file.read_exact_at(&mut buffer, offset),
        };
        done.map_err(|error| ChurnFailure::Io(format!("request at byte {offset}"), error))?;
        requests += 1;
        if samples_us.len() < SAMPLES_MAX {
            samples_us.push(sent.elapsed().as_micros() as u64);
        }
    }
    Ok((requests, samples_us))
}

/// The smallest value that at least `percent` of 100 values do not exceed; 0 of nothing.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&values, 50), 100);
        assert_eq!(percentile(&values, 99), 198);
        assert_eq!(percentile(&[7], 50), 7);
        assert_eq!(percentile(&[], 99), 0);
    }

    #[test]
    fn a_speed_is_told_in_one_line() {
        let speed = Speed {
            requests: 500,
            bytes: 500 * 4096,
            elapsed: Duration::from_millis(500),
            p50_us: 10,
            p99_us: 20,
        };
        assert_eq!(speed.to_string(), "requests=500 iops=1000 mib_s=3.9 p50_us=10 p99_us=20");
    }
}
