//! The optimum of a network card: two threads and the kernel's own UDP between them, both of which
//! sleep until a datagram comes.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use sidecore::now_ns;

use super::block::NO_INJECTION;
use super::cell::{Alone, Count, Counts, Many, ModelSample};
use super::options::{DEPTH, ModelsOptions};
use crate::block::WARM_UP;
use crate::load::LoadOutcome;
use crate::measure::thread_cpu;
use testbed::machine::{cores, pin};

/// The length of datagrams, as long as the frames of guests.
const BYTES: usize = 64;

/// A datagram that ends its receiver.
const END: [u8; 1] = [0];

/// The longest wait for a datagram, which on the loopback device is never lost.
const LOST_AFTER: Duration = Duration::from_secs(10);

/// The result of an echo.
struct Echoed {
    outcome: LoadOutcome,
    /// How often a thread of the two slept until it was woken.
    sleeps: u64,
    cpu: Duration,
}

impl Echoed {
    /// Frames that were carried; each way counts.
    fn frames(&self) -> f64 {
        2.0 * self.outcome.requests() as f64
    }

    fn counts(&self) -> Counts {
        let woken = Count::Of(self.sleeps as f64 / self.frames());
        [Count::Nobody, woken, Count::Empty(NO_INJECTION), Count::Nobody, Count::Nobody]
    }

    fn cpu_us(&self) -> Option<f64> {
        Some(self.cpu.as_secs_f64() * 1e6 / self.frames())
    }
}

/// Measures the echo once.
pub(super) fn sample(options: &ModelsOptions) -> Result<ModelSample> {
    let length = Duration::from_secs_f64(options.seconds);
    echo(1, WARM_UP)?;
    let (one, many) = (echo(1, length)?, echo(DEPTH, length)?);
    let [p50_us, p99_us] = [0.5, 0.99].map(|share| one.outcome.quantile_us(share));
    let per_s = 2.0 * many.outcome.iops();
    Ok(ModelSample {
        one: one.counts(),
        alone: Ok(Alone { p50_us, p99_us, cpu_us: one.cpu_us() }),
        many: Ok(Many { counts: many.counts(), per_s, cpu_us: many.cpu_us() }),
    })
}

/// Keeps so many datagrams on their way there and back.
fn echo(depth: u16, length: Duration) -> Result<Echoed> {
    let socket = || -> Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_read_timeout(Some(LOST_AFTER))?;
        Ok(socket)
    };
    let (near, far) = (socket()?, socket()?);
    let to = far.local_addr()?;
    let cores = cores();
    let (first, last) = (cores.first().copied(), cores.last().copied());
    thread::scope(|scope| {
        let answering = scope.spawn(|| {
            first.inspect(|core| pin(*core));
            counted(|| answer(&far))
        });
        let asking = scope.spawn(|| {
            last.inspect(|core| pin(*core));
            let asked = counted(|| ask(&near, to, depth, length));
            // The other end waits, so it must be ended also after a failure.
            near.send_to(&END, to)?;
            asked
        });
        let panicked = |_| anyhow!("the echo panicked");
        let asked = asking.join().map_err(panicked)??;
        let answered = answering.join().map_err(panicked)??;
        Ok(Echoed {
            outcome: asked.result,
            sleeps: asked.sleeps + answered.sleeps,
            cpu: asked.cpu + answered.cpu,
        })
    })
}

/// The result of a function, and what its thread did meanwhile.
struct CountedRun<T> {
    result: T,
    /// How often the thread slept.
    sleeps: u64,
    /// Its processor time.
    cpu: Duration,
}

fn counted<T>(f: impl FnOnce() -> Result<T>) -> Result<CountedRun<T>> {
    let (slept, cpu) = (sleeps()?, thread_cpu());
    let result = f()?;
    let (sleeps, cpu) = (sleeps()? - slept, thread_cpu().saturating_sub(cpu));
    Ok(CountedRun { result, sleeps, cpu })
}

/// The number of times that this thread has given its core away because it had to wait.
fn sleeps() -> Result<u64> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.context("the kernel counts a thread's sleeps")?.trim().parse().context("a number")
}

fn answer(socket: &UdpSocket) -> Result<()> {
    let mut bytes = [0; BYTES];
    loop {
        let (len, from) = socket.recv_from(&mut bytes).context("waiting for a datagram")?;
        if len != BYTES {
            return Ok(());
        }
        socket.send_to(&bytes, from)?;
    }
}

fn ask(socket: &UdpSocket, to: SocketAddr, depth: u16, length: Duration) -> Result<LoadOutcome> {
    let mut outcome = LoadOutcome::new();
    let (began, mut bytes) = (Instant::now(), [0; BYTES]);
    let mut under_way = 0;
    loop {
        while under_way < depth && began.elapsed() < length {
            bytes[..8].copy_from_slice(&now_ns().to_le_bytes());
            socket.send_to(&bytes, to)?;
            under_way += 1;
        }
        if under_way == 0 {
            break;
        }
        let len = socket.recv(&mut bytes).context("waiting for a datagram's answer")?;
        let sent_ns = bytes.first_chunk().map(|it| u64::from_le_bytes(*it));
        let Some(sent_ns) = sent_ns.filter(|_| len == BYTES) else { bail!("{len} bytes came") };
        outcome.note(now_ns().saturating_sub(sent_ns));
        under_way -= 1;
    }
    outcome.took = began.elapsed();
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datagram_comes_back_and_wakes_its_receiver() {
        let echoed = echo(1, Duration::from_millis(20)).unwrap();
        assert!(echoed.outcome.requests() > 0 && echoed.cpu > Duration::ZERO);
        assert!(echoed.sleeps > 0, "whoever waits for an answer sleeps");
        assert!(echo(DEPTH, Duration::from_millis(20)).unwrap().outcome.requests() > 0);
    }
}
