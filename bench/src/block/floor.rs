//! `vrio bench floor`: the parts of a remote request that vrio cannot avoid, measured beside the
//! request.
//!
//! ```text
//!   remote adds  =  direct in clear  -  bare echo  -  local
//!   sealing adds =  direct sealed    -  direct in clear        to compare with the cipher alone
//! ```
//!
//! Two threads are busy at a time, on two cores. In `direct` and `local` alike a generator on the
//! client's thread has the disk's place, so the virtqueue and its driver are in neither. The echo
//! takes the links' own code and datagrams as long as a request's.

mod results;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use link::{Link, Shm, ShmDirectory, ShmListener, Udp, UdpConfig};
use serde::Serialize;
use sidecore::{Idle, now_ns};
use transport::{Pool, TransmitBatch};

use super::direct::{LocalLoad, LocalPlan};
use super::{BlockOptions, LinkKind, Path, Volume, WARM_UP};
use crate::load::{Load, LoadOutcome, LoadPattern};
use crate::verdict::{self, Bound, Spread, Verdict};
use testbed::cleanup::{Cleanup, tidily};
use testbed::machine::{Machine, cache_line_round_trip_ns, pin};
use testbed::pair::RoleCores;
use testbed::progress::Progress;
use testbed::stage::Stage;

/// The version of the JSON form.
const FLOOR_VERSION: u32 = 3;

/// The number of the goal that bounds the time which the way to another node adds to an echo and a
/// local read, over shared memory.
pub const REMOTE_GOAL: u8 = 9;
/// The number of the goal that bounds the time which sealing adds.
pub const SEALING_GOAL: u8 = 10;

/// The bounds of the two goals: microseconds, and a multiple of the cipher's own time.
const REMOTE_ADDS_US_MAX: f64 = 1.0;
const SEALING_ADDS_MAX: f64 = 1.1;

/// The bytes of a call to read, and of its answer, without data: the packet's header, the
/// fragment's frame, an acknowledgement and the message's head. A test compares them with the
/// datagrams of a direct client and an IOhost.
const CALL_BYTES: usize = 32 + 20 + 24 + 64;
const ANSWER_BYTES: usize = 32 + 20 + 24 + 64;

/// The longest answer that is one datagram on the loopback device.
const SIZE_BYTES_MAX: u32 = 32 << 10;

/// The most rounds.
const ROUNDS_MAX: u16 = 99;

/// The longest wait for an answer, which counts as lost after it. The wait is long because a thread
/// may be without its core for a good part of it.
const LOST_NS: u64 = 1_000_000_000;

/// Buffers that the cipher uses in turn, as a sidecore with some requests does.
const CIPHER_BUFFERS: usize = 16;

/// The bytes of a packet that are authenticated and not encrypted.
const PLAIN_BYTES: usize = 24;

/// Pool memory for the answers of an echo.
const POOL_BYTES: usize = 4 << 20;

/// The options of `vrio bench floor`.
#[derive(Clone, Debug, Serialize)]
pub struct FloorOptions {
    /// The `vrio` program that the node runs.
    #[serde(skip)]
    pub program: PathBuf,
    /// How datagrams travel: UDP on the loopback device, or shared memory.
    pub link: LinkKind,
    /// Bytes of every request.
    pub size_bytes: u32,
    /// How often each part is measured, in turn.
    pub rounds: u16,
    /// How long each measurement takes.
    pub seconds: f64,
}

impl FloorOptions {
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense, and the values that would.
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

    fn direct(&self, encrypt: bool) -> BlockOptions {
        BlockOptions {
            path: Path::Direct,
            volume: Volume::Memory,
            op: LoadPattern::RandRead,
            size_bytes: self.size_bytes,
            link: self.link,
            encrypt,
            idle: Idle::Spin,
            seconds: self.seconds,
            loopback: true,
            ..BlockOptions::new(self.program.clone())
        }
    }

    fn load(&self) -> Load {
        let duration = Duration::from_secs_f64(self.seconds);
        Load { pattern: LoadPattern::RandRead, depth: 1, duration, interval: None }
    }
}

/// Medians of one round, in microseconds.
#[derive(Clone, Debug, Serialize)]
pub struct FloorRound {
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
    /// Round trips of a cache line between two cores, in nanoseconds: before and after, and around
    /// both direct reads. None with one core.
    pub cache_line_rtts_ns: Vec<u64>,
}

impl FloorRound {
    /// The time that the way to the other node adds to its link and a local read, in microseconds.
    pub fn remote_adds(&self) -> f64 {
        self.clear - self.echo - self.local
    }

    /// The time that sealing adds, as a multiple of the cipher's own time.
    pub fn sealing_adds(&self) -> f64 {
        (self.sealed - self.clear) / self.cipher
    }
}

/// The result of `vrio bench floor`.
#[derive(Clone, Debug, Serialize)]
pub struct FloorReport {
    /// The version of this form.
    pub version: u32,
    /// The options of this run.
    pub asked: FloorOptions,
    /// The datagrams of the echo: as long as a call to read, and as its answer.
    pub echo_bytes: [usize; 2],
    /// The medians of each round.
    pub rounds: Vec<FloorRound>,
    /// The rounds that count: they are of one level.
    pub counted: Vec<usize>,
    /// The time that the way to the other node adds, in microseconds.
    pub remote_adds_us: Spread,
    /// The time that sealing adds, as a multiple of the cipher's own time.
    pub sealing_adds: Spread,
    /// Whether the goals were reached.
    pub goals: Vec<Verdict>,
    /// The machine of the measurement.
    pub machine: Machine,
}

impl FloorReport {
    fn new(asked: FloorOptions, rounds: Vec<FloorRound>) -> Self {
        let counted = counted(&rounds);
        let moved = counted.is_empty();
        let of = |number: fn(&FloorRound) -> f64| of_counted(&rounds, &counted, number);
        let (remote, sealing) = (of(FloorRound::remote_adds), of(FloorRound::sealing_adds));
        let bound = Bound::AtMost(SEALING_ADDS_MAX);
        let name = "sealing adds, of the cipher's time";
        let mut goals = vec![Verdict::of(SEALING_GOAL, name, bound, &sealing, moved)];
        // The goal is about shared memory alone: over UDP the kernel adds its own time.
        if asked.link == LinkKind::Shm {
            let bound = Bound::AtMost(REMOTE_ADDS_US_MAX);
            goals.push(Verdict::of(REMOTE_GOAL, "remote adds, us", bound, &remote, moved));
        }
        Self {
            version: FLOOR_VERSION,
            echo_bytes: [CALL_BYTES, asked.size_bytes as usize + ANSWER_BYTES],
            asked,
            rounds,
            counted,
            remote_adds_us: Spread::of(remote),
            sealing_adds: Spread::of(sealing),
            goals,
            machine: Machine::look(),
        }
    }

    /// A number of each round that counts; of all rounds, where cores moved in each.
    pub fn of(&self, number: fn(&FloorRound) -> f64) -> Vec<f64> {
        of_counted(&self.rounds, &self.counted, number)
    }

    /// The round trips of a cache line in the rounds that count.
    pub fn trips(&self) -> Option<Spread> {
        let is_of = |at: &usize| self.counted.is_empty() || self.counted.contains(at);
        let rounds = self.rounds.iter().enumerate().filter(|(at, _)| is_of(at));
        let trips = rounds.flat_map(|(_, round)| round.cache_line_rtts_ns.iter().copied());
        verdict::of_trips(&trips.collect::<Vec<_>>())
    }
}

fn counted(rounds: &[FloorRound]) -> Vec<usize> {
    let trips: Vec<_> = rounds.iter().map(|round| round.cache_line_rtts_ns.clone()).collect();
    verdict::of_one_level(&trips)
}

fn of_counted(
    rounds: &[FloorRound],
    counted: &[usize],
    number: fn(&FloorRound) -> f64,
) -> Vec<f64> {
    match counted {
        [] => rounds.iter().map(number).collect(),
        counted => counted.iter().map(|&at| number(&rounds[at])).collect(),
    }
}

/// Measures everything in turn.
///
/// # Errors
/// When the options cannot be measured, or a node or a read fails meanwhile.
pub fn run(options: &FloorOptions) -> Result<FloorReport> {
    let progress = Progress::quiet();
    tidily(&progress, |cleanup| measure_rounds(options, cleanup, &progress))
}

/// The same as a part of a longer measurement. Where cores move, there are more rounds than
/// `options` asks for.
pub fn measure_rounds(
    options: &FloorOptions,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<FloorReport> {
    options.check()?;
    let mut rounds = Vec::new();
    while verdict::wants_more(options.rounds, rounds.len(), counted(&rounds).len()) {
        let round = rounds.len() + 1;
        progress.doing(format!("floor: round {round} of {}", options.rounds));
        rounds.push(measure(options, cleanup, &Progress::silent())?);
    }
    Ok(FloorReport::new(options.clone(), rounds))
}

fn measure(options: &FloorOptions, cleanup: &Cleanup, progress: &Progress) -> Result<FloorRound> {
    let mut trips = vec![cache_line_round_trip_ns()];
    let mut direct = |encrypt| {
        let report = super::measure(&options.direct(encrypt), cleanup, progress)?;
        trips.extend(report.cache_line_rtts_ns);
        Ok::<_, anyhow::Error>(report.latency_us.p50)
    };
    let (clear, sealed) = (direct(false)?, direct(true)?);
    let (echo, cipher, local) = (echo(options, cleanup)?, cipher(options)?, local(options)?);
    trips.push(cache_line_round_trip_ns());
    let cache_line_rtts_ns = trips.into_iter().flatten().collect();
    Ok(FloorRound { echo, cipher, local, clear, sealed, cache_line_rtts_ns })
}

/// The two ends of a link, and where the second one is found.
fn ends(link: LinkKind, stage: &Stage) -> Result<(EchoLinks, std::net::SocketAddr)> {
    let bind = || Udp::bind(UdpConfig::new(([127, 0, 0, 1], 0).into()));
    let (one, two) = (bind()?, bind()?);
    if link == LinkKind::Udp {
        let to = two.local_addr();
        return Ok((EchoLinks { ends: [Box::new(one), Box::new(two)], door: None }, to));
    }
    let path = stage.path("echo.shm");
    let (door, mut callers) = ShmListener::open(&path, &[1]).context("opening a door")?;
    let places = ShmDirectory::default();
    let to = places.address(&path)?;
    let one = Shm::new(one, places.clone(), None)?;
    let two = Shm::new(two, places, callers.pop())?;
    Ok((EchoLinks { ends: [Box::new(one), Box::new(two)], door: Some(door) }, to))
}

struct EchoLinks {
    ends: [Box<dyn Link + Send>; 2],
    door: Option<ShmListener>,
}

/// The time of a call's datagram and its answer's, between two threads that spin.
fn echo(options: &FloorOptions, cleanup: &Cleanup) -> Result<f64> {
    let stage = Stage::new("floor", options.program.clone(), false, cleanup.clone())?;
    let seats = options.direct(false).seats();
    let bytes =
        Datagrams { ask: CALL_BYTES, answer: ANSWER_BYTES, body: options.size_bytes as usize };
    echo_of(options.link, bytes, options.load().duration, &seats, &stage)
}

/// The lengths of an echo's datagrams: both heads, and the body behind the answer's.
#[derive(Clone, Copy, Debug)]
pub struct Datagrams {
    /// The head of the datagram there.
    pub ask: usize,
    /// The head of the datagram back.
    pub answer: usize,
    /// The body behind the answer's head.
    pub body: usize,
}

/// The median of a datagram there and one back, between two threads that spin, in microseconds.
pub fn echo_of(
    link: LinkKind,
    bytes: Datagrams,
    length: Duration,
    seats: &RoleCores,
    stage: &Stage,
) -> Result<f64> {
    let (EchoLinks { ends: [mut one, mut two], door }, to) = ends(link, stage)?;
    let stop = AtomicBool::new(false);
    let (here, there) = (seats.driver(), seats.iohost());
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            there.inspect(|&core| pin(core));
            answer(&mut *two, bytes, &stop);
        });
        let asking = scope.spawn(|| {
            here.inspect(|&core| pin(core));
            let warm_up = ask(&mut *one, to, bytes, WARM_UP);
            let outcome = warm_up.and_then(|_| ask(&mut *one, to, bytes, length));
            stop.store(true, Relaxed);
            outcome
        });
        asking.join().map_err(|_| anyhow!("the echo panicked"))?
    });
    drop(door);
    Ok(outcome?.quantile_us(0.5))
}

fn answer(link: &mut dyn Link, bytes: Datagrams, stop: &AtomicBool) {
    let (mut pool, mut batch) = (Pool::new(POOL_BYTES), TransmitBatch::new(1));
    let room = "a pool's smallest size has room for it";
    let body = (bytes.body > 0).then(|| (pool.alloc(bytes.body).expect(room), bytes.body));
    let head = vec![0; bytes.answer];
    while !stop.load(Relaxed) {
        let mut asker = None;
        link.receive(now_ns(), &mut |arrival| asker = Some(arrival.from));
        let Some(to) = asker else { continue };
        batch.put(&mut pool, to, &head, body);
        send(link, &mut batch, &pool);
    }
}

fn ask(
    link: &mut dyn Link,
    to: std::net::SocketAddr,
    bytes: Datagrams,
    duration: Duration,
) -> Result<LoadOutcome> {
    let (mut pool, mut batch) = (Pool::new(POOL_BYTES), TransmitBatch::new(1));
    let (mut outcome, head) = (LoadOutcome::new(), vec![0; bytes.ask]);
    let until_ns = now_ns() + u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let mut lost = 0;
    while now_ns() < until_ns {
        let began_ns = now_ns();
        batch.put(&mut pool, to, &head, None);
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
        ensure!(came == 0 || came == bytes.answer + bytes.body, "an answer of {came} bytes");
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

/// The time of AES-256-GCM for the bytes of a request, both ways, sealed and opened.
fn cipher(options: &FloorOptions) -> Result<f64> {
    let key = UnboundKey::new(&AES_256_GCM, &[7; 32]).map_err(|_| anyhow!("a key of 32 bytes"))?;
    let key = LessSafeKey::new(key);
    let answer = options.size_bytes as usize + ANSWER_BYTES - PLAIN_BYTES;
    let mut calls = vec![vec![1; CALL_BYTES - PLAIN_BYTES]; CIPHER_BUFFERS];
    let mut answers = vec![vec![1; answer]; CIPHER_BUFFERS];
    let mut outcome = LoadOutcome::new();
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

/// The time of a read that stays on its thread.
fn local(options: &FloorOptions) -> Result<f64> {
    let core = options.direct(false).seats().driver();
    let (volume, size_bytes, idle) = (&Volume::Memory, options.size_bytes, Idle::Spin);
    let mut local = LocalLoad::start(&LocalPlan { volume, chain: &[], size_bytes, idle, core })?;
    let measured = (|| {
        local.fill()?;
        local.run(Load { duration: WARM_UP, ..options.load() })?;
        local.run(options.load())
    })();
    local.stop();
    Ok(measured?.quantile_us(0.5))
}

impl fmt::Display for FloorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, spread: Spread| {
            let Spread { median, min, max } = spread;
            writeln!(f, "{name:<40}{median:>9.2}   ({min:.2} to {max:.2})")
        };
        let of = |number: fn(&FloorRound) -> f64| Spread::of(self.of(number));
        let (all, counted) = (self.rounds.len(), self.counted.len());
        writeln!(f, "medians of {all} rounds, in microseconds")?;
        row(f, "bare echo of a read's datagrams", of(|round| round.echo))?;
        row(f, "read from memory on the same thread", of(|round| round.local))?;
        row(f, "read by a direct client, in clear", of(|round| round.clear))?;
        row(f, "the same, sealed", of(|round| round.sealed))?;
        row(f, "AES-256-GCM alone, sealed and opened", of(|round| round.cipher))?;
        row(f, "remote adds to echo and local read", self.remote_adds_us)?;
        row(f, "sealing adds, times what the cipher takes", self.sealing_adds)?;
        self.goals.iter().try_for_each(|verdict| writeln!(f, "{verdict}"))?;
        if let Some(Spread { min, max, .. }) = self.trips() {
            let level = match counted {
                0 => "; the cores MOVED in every round".to_owned(),
                _ if counted < all => format!("; of {all} rounds {counted} are of one level"),
                _ => String::new(),
            };
            writeln!(f, "cache line round trips {min:.0} to {max:.0} ns{level}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn options(link: LinkKind) -> FloorOptions {
        FloorOptions { program: "vrio".into(), link, size_bytes: 4096, rounds: 1, seconds: 0.1 }
    }

    pub(super) fn round(clear: f64, sealed: f64, trips: [u64; 2]) -> FloorRound {
        let cache_line_rtts_ns = trips.to_vec();
        FloorRound { echo: 7.0, cipher: 2.0, local: 0.5, clear, sealed, cache_line_rtts_ns }
    }

    #[test]
    fn the_added_time_is_the_difference() {
        let round = round(10.0, 13.0, [50, 50]);
        assert_eq!((round.remote_adds(), round.sealing_adds()), (2.5, 1.5));
    }

    #[test]
    fn only_rounds_of_one_level_are_judged() {
        let mut rounds = vec![round(8.0, 10.0, [107, 110]); 3];
        rounds.push(round(20.0, 30.0, [107, 485]));
        let report = FloorReport::new(options(LinkKind::Shm), rounds);
        assert_eq!(report.counted, [0, 1, 2]);
        assert_eq!((report.remote_adds_us.max, report.sealing_adds.max), (0.5, 1.0));
        let said = report.to_string();
        assert!(said.contains("goal 9, remote adds, us <= 1.00: holds"), "{said}");
        assert!(said.contains("goal 10, sealing adds, of the cipher's time <= 1.10: holds"));
        assert!(said.contains("107 to 110 ns; of 4 rounds 3 are of one level"), "{said}");
        let moved = vec![round(8.0, 10.0, [50, 485]); 3];
        let report = FloorReport::new(options(LinkKind::Udp), moved);
        let [sealing] = &report.goals[..] else { panic!("{report}") };
        assert_eq!(sealing.standing, verdict::GoalState::Undecided);
        assert!(report.to_string().contains("MOVED in every round"));
    }

    #[test]
    fn options_without_a_floor_are_refused_by_name() {
        let options = options(LinkKind::Udp);
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
