//! `vrio bench net`: what two guests' nics do for each other, and what that costs.
//!
//! ```text
//!   local    guest ═ virtqueues ═ VMhost: nic ─ switch ─ nic ═ virtqueues ═ guest
//!   socket   guest ═ virtqueues ═ whoever serves the two sockets ═ virtqueues ═ guest
//! ```
//!
//! Both guests are stand-ins, driven by turns on one thread of this process. Nothing of a guest's
//! network stack is in it: frames are made beforehand, and what comes is counted and not read.

mod report;
mod station;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use net::Mac;
use node::status::Status;
use serde::Serialize;
use sidecore::{Idle, now_ns};

use crate::block::events::{Look, Role, Side};
use crate::block::place::Seats;
use crate::block::{WARM_UP, as_text};
use crate::cleanup::Cleanup;
use crate::load::{Outcome, STUCK};
use crate::machine::{Machine, cache_line_round_trip_ns, cores, pin};
use crate::measure::thread_cpu;
use crate::nodes::Node;
use crate::progress::Progress;
use crate::stage::Stage;
use station::{Station, StationPlan};

pub use report::Report;

/// Frames: the shortest that Ethernet has, and the longest that IP has.
const SIZE_BYTES: std::ops::RangeInclusive<u32> = 64..=64 << 10;

/// Frames under way: what the sender's ring has descriptors for.
pub const DEPTH_MAX: u16 = 256;

/// After how long without an arrival the frames that are under way count as lost, when the sender
/// has its buffers back. A thread may be without its core for as long as that.
const LAST_FRAMES_NS: u64 = 500_000_000;

/// How long a frame that bounces may be away until it counts as lost.
const LOST_NS: u64 = 5_000_000_000;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// One guest sends, the other one takes.
    Forward,
    /// One frame goes there and back.
    Bounce,
}

/// Who carries frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Two nics of a network of one node.
    Local,
    /// Whoever serves these vhost-user sockets.
    Socket(PathBuf, PathBuf),
}

/// What is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The `vrio` program that the node runs.
    #[serde(skip)]
    pub program: PathBuf,
    /// Who carries frames.
    pub path: Path,
    /// What is done.
    pub op: Op,
    /// Bytes of every frame. One beyond 1514 bytes is TCP, left to be cut.
    pub size_bytes: u32,
    /// Frames under way, for [`Op::Forward`]; [`Options::depth`] where nobody says.
    pub depth: Option<u16>,
    /// Packed rings instead of split ones.
    pub packed: bool,
    /// What the sidecore does without work.
    #[serde(serialize_with = "as_text")]
    pub idle: Idle,
    /// How long is measured.
    pub seconds: f64,
    /// The processes behind the sockets, for their processor time.
    pub pids: Vec<u32>,
}

impl Options {
    /// Whatever the command line leaves out.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            path: Path::Local,
            op: Op::Forward,
            size_bytes: 64,
            depth: None,
            packed: false,
            idle: Idle::Adaptive,
            seconds: 3.0,
            pids: Vec::new(),
        }
    }

    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// What does not, and what would.
    pub fn check(&self) -> Result<()> {
        let Self { size_bytes, depth, seconds, .. } = *self;
        ensure!(SIZE_BYTES.contains(&size_bytes), "--size {size_bytes}: from 64 bytes to 64k");
        ensure!(
            depth.is_none_or(|depth| (1..=DEPTH_MAX).contains(&depth)),
            "--depth: from 1 to {DEPTH_MAX}"
        );
        ensure!(
            (0.01..=3600.0).contains(&seconds),
            "--seconds {seconds}: from 0.01 to an hour's 3600"
        );
        ensure!(
            self.pids.is_empty() || matches!(self.path, Path::Socket(..)),
            "--pid is for --path socket: our own node's process is known"
        );
        Ok(())
    }
}

impl Options {
    /// Frames that were sent and have not arrived: as many as were asked for, or as the receiver
    /// has buffers for. Then none is lost for want of one, as between stacks that mind each other.
    pub fn depth(&self) -> u16 {
        self.depth.unwrap_or_else(|| station::frames_posted(self.size_bytes as usize))
    }
}

/// What came of a measurement.
#[derive(Debug)]
struct Passed {
    /// Frames that arrived; where one bounces, that came back, with the time that they took.
    outcome: Outcome,
    frames: u64,
    bytes: u64,
    lost: u64,
    /// How long the driver was at it, the wait for the last frames among it.
    drove: Duration,
}

/// Measures once. Says on standard error what it does, on a terminal.
///
/// # Errors
/// What cannot be measured, or went wrong meanwhile.
pub fn run(options: &Options) -> Result<Report> {
    let cleanup = Cleanup::default();
    cleanup.on_signals()?;
    let progress = Progress::quiet();
    let measured = measure(options, &cleanup, &progress);
    progress.end();
    if measured.is_err() {
        cleanup.yield_to_interruption();
    }
    cleanup.remove();
    measured
}

fn measure(options: &Options, cleanup: &Cleanup, progress: &Progress) -> Result<Report> {
    options.check()?;
    progress.doing("starting what is measured");
    let mut place = Place::start(options, cleanup)?;
    let measured = (|| -> Result<Report> {
        progress.doing("warming up");
        place.pass(WARM_UP)?;
        let rtt_before_ns = cache_line_round_trip_ns();
        let before = place.look()?;
        progress.doing(format!("measuring for {} s", options.seconds));
        let passed = place.pass(Duration::from_secs_f64(options.seconds))?;
        let events = place.look()?.since(&before);
        let rtts_ns = [rtt_before_ns, cache_line_round_trip_ns()];
        ensure!(passed.frames > 0, "not one of {} frames arrived", passed.lost);
        Ok(Report::new(options, &passed, &events, rtts_ns, Machine::look()))
    })();
    drop(place.stations);
    let stopped = place.node.map(Node::stop).transpose();
    let report = measured.context("measuring")?;
    stopped.context("stopping what was measured")?;
    Ok(report)
}

/// Everything that runs for a measurement.
struct Place {
    stations: [Station; 2],
    node: Option<Node>,
    /// Keeps the node's folder.
    _stage: Option<Stage>,
    options: Options,
    core: Option<usize>,
}

impl Place {
    fn start(options: &Options, cleanup: &Cleanup) -> Result<Self> {
        let seats = Seats::new(&cores(), 1, 0, 1);
        let (sockets, node, stage) = match &options.path {
            Path::Socket(one, two) => ([one.clone(), two.clone()], None, None),
            Path::Local => {
                let stage = Stage::new("bench", options.program.clone(), false, cleanup.clone())?;
                let plan = stage.plan("vm1", &config(options, &seats));
                let node = stage.start(&plan)?;
                (["one", "two"].map(|nic| plan.socket(nic)), Some(node), Some(stage))
            }
        };
        let station = |socket: &PathBuf, mac, to| {
            let (socket, packed) = (socket.clone(), options.packed);
            let frame_bytes = options.size_bytes as usize;
            Station::connect(&StationPlan { socket, mac, to, frame_bytes, packed })
        };
        let stations =
            [station(&sockets[0], MACS[0], MACS[1])?, station(&sockets[1], MACS[1], MACS[0])?];
        let (options, core) = (options.clone(), seats.driver());
        Ok(Self { stations, node, _stage: stage, options, core })
    }

    fn look(&self) -> Result<Look> {
        let mut side = Side::default();
        if let Some(node) = &self.node {
            let status: Status = serde_json::from_value(node.status()?)?;
            side = Side::of_node(&status)?;
        }
        for pid in &self.options.pids {
            side.add_threads(Side::of_process(*pid)?);
        }
        Ok(Look { at: Instant::now(), sides: [(Role::Vmhost, side)].into() })
    }

    /// Has frames pass for so long, on a thread of its own.
    fn pass(&mut self, duration: Duration) -> Result<Passed> {
        let (core, options) = (self.core, &self.options);
        let [one, two] = &mut self.stations;
        let drive = || -> Result<Passed> {
            core.inspect(|core| pin(*core));
            let (began, began_ns) = (thread_cpu(), now_ns());
            let (kicks, bytes) = (one.kicks + two.kicks, one.bytes + two.bytes);
            let mut passed = match options.op {
                Op::Forward => forward(one, two, options.depth(), duration)?,
                Op::Bounce => bounce(one, two, duration)?,
            };
            passed.outcome.kicks = one.kicks + two.kicks - kicks;
            passed.bytes = one.bytes + two.bytes - bytes;
            passed.outcome.driver_cpu.push(thread_cpu().saturating_sub(began));
            passed.drove = Duration::from_nanos(now_ns() - began_ns);
            Ok(passed)
        };
        std::thread::scope(|scope| scope.spawn(drive).join())
            .map_err(|_| anyhow::anyhow!("the driving thread panicked"))?
    }
}

/// The two guests' addresses.
const MACS: [Mac; 2] = [Mac([0x52, 0x54, 0, 0, 0, 1]), Mac([0x52, 0x54, 0, 0, 0, 2])];

fn config(options: &Options, seats: &Seats) -> String {
    let cores = match &seats.vmhost[..] {
        [] => "count = 1".to_owned(),
        cores => format!("cores = {cores:?}"),
    };
    let nic = |name: &str, mac: Mac| {
        format!("[[nic]]\nsocket = \"{name}.sock\"\nnetwork = \"bench\"\nmac = \"{mac}\"\n")
    };
    format!(
        "[sidecores]\n{cores}\nidle = \"{}\"\n[[network]]\nname = \"bench\"\n{}{}",
        options.idle,
        nic("one", MACS[0]),
        nic("two", MACS[1])
    )
}

/// Keeps frames under way from one to the other.
fn forward(from: &mut Station, to: &mut Station, depth: u16, length: Duration) -> Result<Passed> {
    let began_ns = now_ns();
    let until_ns = began_ns + u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    // What counts is what has not arrived: the receiver has buffers for that, and the sender may
    // have its own back before.
    let (mut under_way, mut frames, mut lost, mut arrived_ns) = (0, 0, 0, began_ns);
    loop {
        let at_ns = now_ns();
        from.reap()?;
        let is_over = at_ns >= until_ns;
        while !is_over && under_way < u64::from(depth) && from.send() {
            under_way += 1;
        }
        from.show();
        let arrived = to.receive()?;
        if arrived > 0 {
            (frames, arrived_ns) = (frames + arrived, at_ns);
            // One that was given up may come after all.
            under_way = under_way.saturating_sub(arrived);
            continue;
        }
        let silent_ns = at_ns.saturating_sub(arrived_ns);
        if silent_ns > LAST_FRAMES_NS && from.outstanding() == 0 {
            (lost, under_way) = (lost + under_way, 0);
        }
        if is_over && under_way == 0 {
            break;
        }
        if u128::from(silent_ns) > STUCK.as_nanos() {
            bail!("{} frames stand still for {STUCK:?}", from.outstanding());
        }
        std::hint::spin_loop();
    }
    let mut outcome = Outcome::new();
    outcome.took = Duration::from_nanos(arrived_ns.saturating_sub(began_ns).max(1));
    Ok(Passed { outcome, frames, bytes: 0, lost, drove: length })
}

/// Sends a frame, has it sent back, and again.
fn bounce(near: &mut Station, far: &mut Station, length: Duration) -> Result<Passed> {
    let began_ns = now_ns();
    let until_ns = began_ns + u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
    let (mut outcome, mut at_ns) = (Outcome::new(), began_ns);
    while at_ns < until_ns {
        near.reap()?;
        ensure!(near.send(), "no room for one frame");
        near.show();
        let sent_ns = at_ns;
        loop {
            let there = far.receive()?;
            ensure!(there <= 1, "{there} frames came of one that was sent");
            if there == 1 {
                far.reap()?;
                ensure!(far.send(), "no room for one frame");
                far.show();
            }
            let back = near.receive()? > 0;
            at_ns = now_ns();
            if back {
                outcome.note(at_ns - sent_ns);
                break;
            }
            // Were it to come later, it would answer the next one.
            ensure!(at_ns - sent_ns <= LOST_NS, "a frame that bounces is lost");
            std::hint::spin_loop();
        }
    }
    outcome.took = Duration::from_nanos((at_ns - began_ns).max(1));
    Ok(Passed { frames: 2 * outcome.requests(), outcome, bytes: 0, lost: 0, drove: length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let options = Options::new(PathBuf::from("vrio"));
        options.check().unwrap();
        let refused = |wrong: Options, word: &str| {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        refused(Options { size_bytes: 63, ..options.clone() }, "--size 63");
        refused(Options { size_bytes: 65537, ..options.clone() }, "--size 65537");
        refused(Options { depth: Some(0), ..options.clone() }, "--depth");
        refused(Options { seconds: 0.0, ..options.clone() }, "--seconds 0");
        refused(Options { pids: vec![1], ..options.clone() }, "--pid");
        assert_eq!(
            [64, 1500, 64 << 10]
                .map(|size_bytes| Options { size_bytes, ..options.clone() }.depth()),
            [256, 256, 15]
        );
    }
}
