//! The kernel's TCP over the same virtual cable that our nodes have between them: one connection, a
//! thread at each end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::options::CardsOptions;
use crate::contest::TurnSample;
use bench::block::WARM_UP;
use bench::measure::thread_cpu;
use bench::net::TCP_HEADERS_BYTES;
use testbed::cleanup::Cleanup;
use testbed::machine::{cache_line_round_trip_ns, cores, pin};
use testbed::pair::{PairLink, RoleCores};
use testbed::progress::Progress;
use testbed::stage::{Stage, inside};

/// How long a reader waits for the rest of the written data.
const PATIENCE: Duration = Duration::from_secs(5);

/// Measures a stream of writes. Each write has the length of the payload of a frame of so many
/// bytes, and counts as a frame when it was read.
pub(super) fn measure(
    options: &CardsOptions,
    frame_bytes: u32,
    cleanup: &Cleanup,
) -> Result<TurnSample> {
    let trip_before_ns = cache_line_round_trip_ns();
    let meeting = PairLink { encrypt: false, ..PairLink::default() };
    let stage = meeting.stage(options.plan.program.clone(), cleanup, &Progress::silent())?;
    ensure!(stage.has_namespaces(), "only root makes a virtual cable");
    let write_bytes = frame_bytes as usize - TCP_HEADERS_BYTES;
    let length = Duration::from_secs_f64(options.plan.seconds);
    let [_, passed] = pass(connect(&stage)?, write_bytes, length)?;
    drop(stage);
    let frames = passed.bytes as f64 / write_bytes as f64;
    Ok(TurnSample {
        rate: frames / passed.took.as_secs_f64(),
        p50_us: None,
        p99_us: None,
        cpu_us: Some(passed.cpu.as_secs_f64() * 1e6 / frames),
        core_share: None,
        waited_share: None,
        trips_ns: [trip_before_ns, cache_line_round_trip_ns()],
    })
}

/// The ends of a connection over the stage's cable: the writer in the VMhost's place, the reader in
/// the IOhost's.
pub(crate) fn connect(stage: &Stage) -> Result<[TcpStream; 2]> {
    let mut at: SocketAddr = stage.io_listen.parse().context("an address of the stage")?;
    at.set_port(0);
    let listener = inside(stage.namespace_of("io1").as_deref(), || TcpListener::bind(at))??;
    let at = listener.local_addr()?;
    let from = inside(stage.namespace_of("vm1").as_deref(), || TcpStream::connect(at))??;
    let (to, _) = listener.accept()?;
    to.set_read_timeout(Some(PATIENCE))?;
    Ok([from, to])
}

/// The work of a thread since the end of its warm-up.
pub(crate) struct ThreadWork {
    pub(crate) bytes: u64,
    /// The same with those of the warm-up.
    pub(crate) bytes_of_all: u64,
    /// System calls that moved them.
    pub(crate) calls: u64,
    took: Duration,
    /// The thread's own processor time, without that of the kernel's threads.
    cpu: Duration,
}

/// Counts the bytes that `step` moves, for so long, after a warm-up.
fn counted(
    core: Option<usize>,
    length: Duration,
    mut step: impl FnMut() -> Result<usize>,
) -> Result<ThreadWork> {
    core.inspect(|core| pin(*core));
    let warm = Instant::now() + WARM_UP;
    let mut warmed = 0;
    while Instant::now() < warm {
        warmed += step()? as u64;
    }
    let (began, cpu, mut bytes, mut calls) = (Instant::now(), thread_cpu(), 0, 0);
    while began.elapsed() < length {
        bytes += step()? as u64;
        calls += 1;
    }
    let (took, cpu) = (began.elapsed(), thread_cpu().saturating_sub(cpu));
    Ok(ThreadWork { bytes, bytes_of_all: warmed + bytes, calls, took, cpu })
}

/// Writes and reads for so long: the work of the writer, and of the reader with the processor time
/// of both.
pub(crate) fn pass(
    [mut from, mut to]: [TcpStream; 2],
    write_bytes: usize,
    length: Duration,
) -> Result<[ThreadWork; 2]> {
    let seats = RoleCores::new(&cores(), 0, 1, 1);
    let (here, there) = (seats.driver(), seats.iohost());
    let write = move || {
        let bytes = vec![7; write_bytes];
        // The connection ends when this end is dropped.
        counted(here, length, || Ok(from.write_all(&bytes).map(|()| bytes.len())?))
    };
    let read = move || {
        let mut room = vec![0; write_bytes];
        let read = counted(there, length, || Ok(to.read(&mut room)?));
        // The rest of the data must be read, or the writer would wait.
        while to.read(&mut room)? > 0 {}
        read
    };
    let (wrote, read) = thread::scope(|scope| {
        let (write, read) = (scope.spawn(write), scope.spawn(read));
        (write.join(), read.join())
    });
    let panicked = |_| anyhow!("a thread of the TCP panicked");
    let (wrote, read) = (wrote.map_err(panicked)??, read.map_err(panicked)??);
    ensure!(read.bytes > 0, "not a byte arrived");
    let read = ThreadWork { cpu: read.cpu + wrote.cpu, ..read };
    Ok([wrote, read])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_read_and_cost_both_sides_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let from = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (to, _) = listener.accept().unwrap();
        let [wrote, counted] = pass([from, to], 65_482, Duration::from_millis(50)).unwrap();
        assert!(wrote.calls > 0 && counted.calls > 0, "both are counted");
        assert!(counted.bytes > 65_482 && counted.took >= Duration::from_millis(50));
        assert!(counted.cpu > Duration::ZERO);
    }
}
