//! `vrio bench floor`: what lies under a remote request and cannot be less, measured beside it.
//!
//! ```text
//!   remote adds  =  direct in clear  -  bare echo  -  local
//!   sealing adds =  direct sealed    -  direct in clear        to compare with the cipher alone
//! ```
//!
//! Two threads are busy at a time, on two cores. In `direct` and `local` alike a generator on the
//! client's thread has the disk's place, so the virtqueue and its driver are in neither. The echo
//! takes the links' own code and datagrams as long as a request's.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use link::{Door, Link, Places, Shm, Udp, UdpConfig};
use serde::Serialize;
use sidecore::{Idle, now_ns};
use transport::{Pool, TransmitBatch};

use super::direct::LocalLoad;
use super::place::Seats;
use super::{LinkKind, Options, Path, Volume, WARM_UP};
use crate::cleanup::Cleanup;
use crate::load::{Load, Outcome, Pattern};
use crate::machine::{cache_line_round_trip_ns, pin};
use crate::progress::Progress;
use crate::stage::Stage;

/// What a call to read and the answer to it have beside data: the packet's header, the fragment's
/// frame, an acknowledgement and the message's head.
const CALL_BYTES: usize = 32 + 20 + 24 + 64;
const ANSWER_BYTES: usize = 32 + 20 + 24 + 64;

/// The longest answer that is one datagram on the loopback device.
const SIZE_BYTES_MAX: u32 = 32 << 10;

/// The most rounds.
const ROUNDS_MAX: u16 = 99;

/// The longest that is waited for an answer until it counts as lost.
const LOST_NS: u64 = 100_000_000;

/// Buffers that the cipher goes through in turn, as a sidecore with some requests does.
const CIPHER_BUFFERS: usize = 16;

/// What is authenticated and not encrypted of a packet.
const PLAIN_BYTES: usize = 24;

/// Pool memory for the answers of an echo.
const POOL_BYTES: usize = 4 << 20;

/// What is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct FloorOptions {
    /// The `vrio` program that the node runs.
    #[serde(skip)]
    pub program: std::path::PathBuf,
    /// How datagrams travel: UDP on the loopback device, or shared memory.
    pub link: LinkKind,
    /// Bytes of every request.
    pub size_bytes: u32,
    /// How often each thing is measured, in turn.
    pub rounds: u16,
    /// How long each time.
    pub seconds: f64,
}

impl FloorOptions {
    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// What does not, and what would.
    pub fn check(&self) -> Result<()> {
        let Self { size_bytes, rounds, .. } = *self;
        ensure!(self.link != LinkKind::Xdp, "--link xdp: the floor of udp or shm is measured");
        ensure!(
            size_bytes <= SIZE_BYTES_MAX,
            "--size {size_bytes}: at most 32 KiB, which are one datagram"
        );
        ensure!((1..=ROUNDS_MAX).contains(&rounds), "--rounds {rounds}: from 1 to {ROUNDS_MAX}");
        self.direct(false).check()
    }

    fn direct(&self, encrypt: bool) -> Options {
        Options {
            path: Path::Direct,
            volume: Volume::Memory,
            op: Pattern::RandRead,
            size_bytes: self.size_bytes,
            link: self.link,
            encrypt,
            idle: Idle::Spin,
            seconds: self.seconds,
            loopback: true,
            ..Options::new(self.program.clone())
        }
    }

    fn load(&self) -> Load {
        let duration = Duration::from_secs_f64(self.seconds);
        Load { pattern: Pattern::RandRead, depth: 1, duration }
    }
}

/// Medians of one round, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// A datagram as long as a call to read, and one as long as its answer, there and back.
    pub echo: f64,
    /// AES-256-GCM over both, sealed once and opened once.
    pub cipher: f64,
    /// A read from memory on the same thread.
    pub local: f64,
    /// A read by a direct client, in clear.
    pub clear: f64,
    /// The same, sealed.
    pub sealed: f64,
    /// How long a cache line took between two cores and back, before and after, in nanoseconds.
    pub cache_line_rtts_ns: [Option<u64>; 2],
}

impl Round {
    /// What the way to the other node adds to its link and to a local read.
    pub fn remote_adds(&self) -> f64 {
        self.clear - self.echo - self.local
    }

    /// What sealing adds, as a multiple of what the cipher takes.
    pub fn sealing_adds(&self) -> f64 {
        (self.sealed - self.clear) / self.cipher
    }
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct FloorReport {
    /// What was asked for.
    pub asked: FloorOptions,
    /// What each round gave.
    pub rounds: Vec<Round>,
    /// The median of what the way to the other node adds, in microseconds.
    pub remote_adds_us: f64,
    /// The median of what sealing adds, as a multiple of what the cipher takes.
    pub sealing_adds: f64,
}

/// Measures it all in turn.
///
/// # Errors
/// What cannot be measured, or went wrong meanwhile.
pub fn run(options: &FloorOptions) -> Result<FloorReport> {
    options.check()?;
    let cleanup = Cleanup::default();
    cleanup.on_signals()?;
    let progress = Progress::quiet();
    let measured = (0..options.rounds)
        .map(|round| {
            progress.doing(format!("round {} of {}", round + 1, options.rounds));
            measure(options, &cleanup, &progress)
        })
        .collect::<Result<Vec<_>>>();
    progress.end();
    if measured.is_err() {
        cleanup.yield_to_interruption();
    }
    cleanup.remove();
    let rounds = measured?;
    Ok(FloorReport {
        asked: options.clone(),
        remote_adds_us: median(rounds.iter().map(Round::remote_adds)),
        sealing_adds: median(rounds.iter().map(Round::sealing_adds)),
        rounds,
    })
}

fn measure(options: &FloorOptions, cleanup: &Cleanup, progress: &Progress) -> Result<Round> {
    let before = cache_line_round_trip_ns();
    let direct = |encrypt| {
        let report = super::measure(&options.direct(encrypt), cleanup, progress)?;
        Ok::<_, anyhow::Error>(report.latency_us.p50)
    };
    Ok(Round {
        echo: echo(options, cleanup)?,
        cipher: cipher(options)?,
        local: local(options)?,
        clear: direct(false)?,
        sealed: direct(true)?,
        cache_line_rtts_ns: [before, cache_line_round_trip_ns()],
    })
}

/// The two ends of a link, and where the second one is found.
fn ends(options: &FloorOptions, stage: &Stage) -> Result<(Ends, std::net::SocketAddr)> {
    let bind = || Udp::bind(UdpConfig::new(([127, 0, 0, 1], 0).into()));
    let (one, two) = (bind()?, bind()?);
    if options.link == LinkKind::Udp {
        let to = two.local_addr();
        return Ok((Ends { ends: [Box::new(one), Box::new(two)], door: None }, to));
    }
    let path = stage.path("echo.shm");
    let (door, mut callers) = Door::open(&path, &[1]).context("opening a door")?;
    let places = Places::default();
    let to = places.address(&path)?;
    let one = Shm::new(one, places.clone(), None)?;
    let two = Shm::new(two, places, callers.pop())?;
    Ok((Ends { ends: [Box::new(one), Box::new(two)], door: Some(door) }, to))
}

struct Ends {
    ends: [Box<dyn Link + Send>; 2],
    door: Option<Door>,
}

/// How long a call's datagram and its answer's take, between two threads that spin.
fn echo(options: &FloorOptions, cleanup: &Cleanup) -> Result<f64> {
    let stage = Stage::new("floor", options.program.clone(), false, cleanup.clone())?;
    let (Ends { ends: [mut one, mut two], door }, to) = ends(options, &stage)?;
    let (size, stop) = (options.size_bytes as usize, AtomicBool::new(false));
    let seats = Seats::of(&options.direct(false));
    let (here, there) = (seats.driver(), seats.iohost());
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            there.inspect(|&core| pin(core));
            answer(&mut *two, size, &stop);
        });
        let asking = scope.spawn(|| {
            here.inspect(|&core| pin(core));
            let warm_up = ask(&mut *one, to, size, WARM_UP);
            let outcome = warm_up.and_then(|_| ask(&mut *one, to, size, options.load().duration));
            stop.store(true, Relaxed);
            outcome
        });
        asking.join().map_err(|_| anyhow!("the echo panicked"))?
    });
    drop(door);
    Ok(outcome?.quantile_us(0.5))
}

fn answer(link: &mut dyn Link, size: usize, stop: &AtomicBool) {
    let (mut pool, mut batch) = (Pool::new(POOL_BYTES), TransmitBatch::new(1));
    let body = pool.alloc(size).expect("a pool's smallest size has room for it");
    while !stop.load(Relaxed) {
        let mut asker = None;
        link.receive(now_ns(), &mut |arrival| asker = Some(arrival.from));
        let Some(to) = asker else { continue };
        batch.put(&mut pool, to, &[0; ANSWER_BYTES], Some((body, size)));
        send(link, &mut batch, &pool);
    }
}

fn ask(
    link: &mut dyn Link,
    to: std::net::SocketAddr,
    size: usize,
    duration: Duration,
) -> Result<Outcome> {
    let (mut pool, mut batch) = (Pool::new(POOL_BYTES), TransmitBatch::new(1));
    let mut outcome = Outcome::new();
    let until_ns = now_ns() + u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut lost = 0;
    while now_ns() < until_ns {
        let began_ns = now_ns();
        batch.put(&mut pool, to, &[0; CALL_BYTES], None);
        send(link, &mut batch, &pool);
        let (mut came, mut at_ns) = (0, began_ns);
        while came == 0 && at_ns < began_ns + LOST_NS {
            link.receive(at_ns, &mut |arrival| came += arrival.bytes.len());
            at_ns = now_ns();
        }
        match came {
            0 => lost += 1,
            _ => outcome.note(at_ns - began_ns),
        }
        ensure!(came == 0 || came == size + ANSWER_BYTES, "an answer of {came} bytes");
    }
    if outcome.requests() == 0 {
        bail!("no datagram was answered, {lost} were lost");
    }
    Ok(outcome)
}

fn send(link: &mut dyn Link, batch: &mut TransmitBatch, pool: &Pool) {
    while link.send(batch, pool).left > 0 {
        std::hint::spin_loop();
    }
}

/// How long AES-256-GCM takes for the bytes of a request, both ways, sealed and opened.
fn cipher(options: &FloorOptions) -> Result<f64> {
    let key = UnboundKey::new(&AES_256_GCM, &[7; 32]).map_err(|_| anyhow!("a key of 32 bytes"))?;
    let key = LessSafeKey::new(key);
    let answer = options.size_bytes as usize + ANSWER_BYTES - PLAIN_BYTES;
    let mut calls = vec![vec![1; CALL_BYTES - PLAIN_BYTES]; CIPHER_BUFFERS];
    let mut answers = vec![vec![1; answer]; CIPHER_BUFFERS];
    let mut outcome = Outcome::new();
    let until_ns = now_ns() + u64::try_from(options.load().duration.as_nanos())?;
    let plain = [0; PLAIN_BYTES];
    while now_ns() < until_ns {
        for (call, answer) in calls.iter_mut().zip(&mut answers) {
            let began_ns = now_ns();
            for bytes in [call, answer] {
                let nonce = || Nonce::assume_unique_for_key([3; NONCE_LEN]);
                let aad = || Aad::from(plain);
                let sealed = key.seal_in_place_separate_tag(nonce(), aad(), bytes);
                let tag = sealed.map_err(|_| anyhow!("sealing"))?;
                bytes.extend_from_slice(tag.as_ref());
                let opened = key.open_in_place(nonce(), aad(), bytes);
                let len = opened.map_err(|_| anyhow!("opening"))?.len();
                bytes.truncate(len);
            }
            outcome.note(now_ns() - began_ns);
        }
    }
    Ok(outcome.quantile_us(0.5))
}

/// How long a read takes that stays on its thread.
fn local(options: &FloorOptions) -> Result<f64> {
    let core = Seats::of(&options.direct(false)).driver();
    let mut local = LocalLoad::start(options.size_bytes, core)?;
    let measured = (|| {
        local.fill()?;
        local.run(Load { duration: WARM_UP, ..options.load() })?;
        local.run(options.load())
    })();
    local.stop();
    Ok(measured?.quantile_us(0.5))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl fmt::Display for FloorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, of: &dyn Fn(&Round) -> f64| {
            let values = || self.rounds.iter().map(of);
            let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
            writeln!(f, "{name:<40}{:>9.2}   ({least:.2} to {most:.2})", median(values()))
        };
        writeln!(f, "medians of {} rounds, in microseconds", self.rounds.len())?;
        row(f, "bare echo of a read's datagrams", &|round| round.echo)?;
        row(f, "read from memory on the same thread", &|round| round.local)?;
        row(f, "read by a direct client, in clear", &|round| round.clear)?;
        row(f, "the same, sealed", &|round| round.sealed)?;
        row(f, "AES-256-GCM alone, sealed and opened", &|round| round.cipher)?;
        writeln!(f, "remote adds {:.2} us to echo and local read", self.remote_adds_us)?;
        writeln!(f, "sealing adds {:.2} times what the cipher takes", self.sealing_adds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_what_is_left() {
        let rtts = [Some(50), None];
        let round = Round {
            echo: 7.0,
            cipher: 2.0,
            local: 0.5,
            clear: 10.0,
            sealed: 13.0,
            cache_line_rtts_ns: rtts,
        };
        assert_eq!((round.remote_adds(), round.sealing_adds()), (2.5, 1.5));
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
    }

    #[test]
    fn what_has_no_floor_is_refused_by_name() {
        let options = FloorOptions {
            program: "vrio".into(),
            link: LinkKind::Udp,
            size_bytes: 4096,
            rounds: 1,
            seconds: 0.1,
        };
        options.check().unwrap();
        let refused = |wrong: FloorOptions, word: &str| {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        refused(FloorOptions { link: LinkKind::Xdp, ..options.clone() }, "--link xdp");
        refused(FloorOptions { size_bytes: 64 << 10, ..options.clone() }, "--size 65536");
        refused(FloorOptions { rounds: 0, ..options.clone() }, "--rounds 0");
        refused(FloorOptions { seconds: 0.0, ..options }, "--seconds 0");
    }
}
