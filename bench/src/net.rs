//! `vrio bench net`: what two guests' nics do for each other, and what that costs.
//!
//! ```text
//!   local    guest ═ virtqueues ═ VMhost: nic ─ switch ─ nic ═ virtqueues ═ guest
//!   remote   guest ═ virtqueues ═ VMhost: nic ═ session ═ IOhost: switch ═ session ═ nic ═ guest
//!   socket   guest ═ virtqueues ═ whoever serves the two sockets ═ virtqueues ═ guest
//! ```
//!
//! Both guests are stand-ins, driven by turns on one thread of this process. Nothing of a guest's
//! network stack is in it: frames are made beforehand, and what comes is counted and not read.

mod flight;
mod packet;
mod place;
pub(crate) mod ports;
mod report;
mod station;
mod traffic;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use sidecore::Idle;

use crate::block::{WARM_UP, as_text};
use crate::measure::Waiting;
use packet::UDP_HEADERS_BYTES;
use place::Place;
use testbed::cleanup::{Cleanup, tidily};
use testbed::events::Role;
use testbed::machine::{Machine, cache_line_round_trip_ns, cores};
use testbed::pair::{Meeting, Seats};
use testbed::progress::Progress;

pub(crate) use packet::TCP_HEADERS_BYTES;
pub(crate) use place::start_nodes;
pub use report::Report;

/// Frames: the shortest that Ethernet has, and the longest that IP has.
const SIZE_BYTES: RangeInclusive<u32> = 64..=FRAME_BYTES_MAX as u32;
const FRAME_BYTES_MAX: usize = 64 << 10;

/// Writes of a stream: several are to fit into a frame.
const WRITE_BYTES: RangeInclusive<u32> = 64..=16 << 10;

/// What a UDP datagram carries that goes in one packet of 1500 bytes: netperf's least, and all.
const PAYLOAD_BYTES: RangeInclusive<u16> = 1..=1472;

/// A run that spent more of itself than this waiting for frames that never came gives no rate: what
/// arrives between two time-outs is as fast as a burst, however few do.
const WAITED_SHARE_MAX: f64 = 0.1;

/// After how long without a frame sidecores are at rest: far longer than they spin.
const REST_BEFORE: Duration = Duration::from_millis(200);

/// Frames under way: what the sender's ring has descriptors for.
pub const DEPTH_MAX: u16 = station::RING_SIZE;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// One guest sends, the other one takes.
    Forward,
    /// One frame goes there and back.
    Bounce,
    /// One guest writes a stream, which goes in frames as long as it came to be meanwhile.
    Stream,
}

/// Who carries frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Two nics of a network of one node.
    Local,
    /// Nics of a VMhost in a network of an IOhost.
    Remote,
    /// Whoever serves these vhost-user sockets.
    Socket(PathBuf, PathBuf),
}

/// How often a frame crosses from node to node on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Crossings {
    /// The other guest is on the IOhost.
    One,
    /// Both are on the VMhost.
    Two,
}

/// What is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The `vrio` program that the nodes run.
    #[serde(skip)]
    pub program: PathBuf,
    /// Who carries frames.
    pub path: Path,
    /// What is done.
    pub op: Op,
    /// Bytes of every frame, or of every write of a stream. A frame beyond 1514 bytes is TCP, left
    /// to be cut.
    pub size_bytes: u32,
    /// Bytes of UDP there and back instead, for [`Op::Bounce`].
    pub payload: Option<[u16; 2]>,
    /// Frames under way, where none bounces; [`Options::depth`] where nobody says.
    pub depth: Option<u16>,
    /// Where the other guest is, for [`Path::Remote`].
    pub crossings: Crossings,
    /// How the two nodes meet.
    #[serde(flatten)]
    pub meeting: Meeting,
    /// Packed rings instead of split ones.
    pub packed: bool,
    /// What sidecores do without work.
    #[serde(serialize_with = "as_text")]
    pub idle: Idle,
    /// How guests learn of frames. Who sends looks by itself, and is called for no frame.
    pub driver: Waiting,
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
            payload: None,
            depth: None,
            crossings: Crossings::Two,
            meeting: Meeting::default(),
            packed: false,
            idle: Idle::Adaptive,
            driver: Waiting::Polls,
            seconds: 3.0,
            pids: Vec::new(),
        }
    }

    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// What does not, and what would.
    pub fn check(&self) -> Result<()> {
        let Self { op, size_bytes, depth, seconds, .. } = *self;
        if op == Op::Stream {
            let fits = WRITE_BYTES.contains(&size_bytes);
            ensure!(fits, "--size {size_bytes}: a write has from 64 bytes to 16k");
        } else {
            let fits = SIZE_BYTES.contains(&size_bytes);
            ensure!(fits, "--size {size_bytes}: from 64 bytes to 64k");
        }
        ensure!(
            self.payload.is_none() || op == Op::Bounce,
            "--payload is for --op bounce: a request and its answer"
        );
        ensure!(
            self.payload.iter().flatten().all(|bytes| PAYLOAD_BYTES.contains(bytes)),
            "--payload: from {} to {} bytes each",
            PAYLOAD_BYTES.start(),
            PAYLOAD_BYTES.end()
        );
        ensure!(
            depth.is_none_or(|depth| op != Op::Bounce && (1..=DEPTH_MAX).contains(&depth)),
            "--depth: from 1 to {DEPTH_MAX}; of frames that bounce there is one at a time"
        );
        ensure!(
            (0.01..=3600.0).contains(&seconds),
            "--seconds {seconds}: from 0.01 to an hour's 3600"
        );
        ensure!(
            op != Op::Stream || self.driver == Waiting::Polls,
            "--driver sleeps is for --op forward and bounce: who writes a stream is never idle"
        );
        ensure!(
            self.crossings == Crossings::Two || self.path == Path::Remote,
            "--crossings is for --path remote: nothing else has two nodes"
        );
        ensure!(
            self.pids.is_empty() || matches!(self.path, Path::Socket(..)),
            "--pid is for --path socket: our own nodes' processes are known"
        );
        self.meeting.check()
    }

    /// Frames that were sent and have not arrived: as many as were asked for, or as the receiver
    /// has buffers for. Then none is lost for want of one, as between stacks that mind each other.
    pub fn depth(&self) -> u16 {
        self.depth.unwrap_or_else(|| station::frames_posted(self.frame_bytes_max()))
    }

    /// Whether each thread that is busy has a core to itself.
    pub(crate) fn has_seats(&self) -> bool {
        self.seats() != Seats::default()
    }

    /// Seats for the sidecores of the nodes and the one driver.
    fn seats(&self) -> Seats {
        Seats::new(&cores(), 1, usize::from(self.path == Path::Remote), 1)
    }

    /// Bytes of the longest frame.
    fn frame_bytes_max(&self) -> usize {
        match (self.op, self.payload) {
            (Op::Stream, _) => {
                TCP_HEADERS_BYTES + self.size_bytes as usize * self.writes_per_frame()
            }
            (_, Some(payload)) => UDP_HEADERS_BYTES + usize::from(payload[0].max(payload[1])),
            (_, None) => self.size_bytes as usize,
        }
    }

    /// Writes of a stream that fit into one frame.
    fn writes_per_frame(&self) -> usize {
        (FRAME_BYTES_MAX - TCP_HEADERS_BYTES) / self.size_bytes as usize
    }
}

/// Measures once. Says on standard error what it does, on a terminal.
///
/// # Errors
/// What cannot be measured, or went wrong meanwhile.
pub fn run(options: &Options) -> Result<Report> {
    let progress = Progress::quiet();
    tidily(&progress, |cleanup| measure(options, cleanup, &progress))
}

/// The same as a part of something longer.
pub(crate) fn measure(options: &Options, cleanup: &Cleanup, progress: &Progress) -> Result<Report> {
    let [report] = measure_ops(options, [options.op], cleanup, progress)?;
    Ok(report)
}

/// The same of two guests that do one thing after the other, with frames of one length.
pub(crate) fn measure_ops<const N: usize>(
    options: &Options,
    ops: [Op; N],
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<[Report; N]> {
    options.check()?;
    progress.doing("starting what is measured");
    let mut place = Place::start(options, cleanup, progress)?;
    let once = |op| measure_once(options, op, &mut place, progress);
    let measured: Result<Vec<Report>> = ops.into_iter().map(once).collect();
    let stopped = place.stop();
    let reports = measured.context("measuring")?;
    stopped.context("stopping what was measured")?;
    Ok(reports.try_into().expect("a report of each"))
}

fn measure_once(
    options: &Options,
    op: Op,
    place: &mut Place,
    progress: &Progress,
) -> Result<Report> {
    // Of frames that bounce there is one.
    let depth = options.depth.filter(|_| op != Op::Bounce);
    let options = &Options { op, depth, ..options.clone() };
    progress.doing("warming up");
    place.pass(options, WARM_UP)?;
    let rtt_before_ns = cache_line_round_trip_ns();
    let before = place.look()?;
    progress.doing(format!("measuring for {} s", options.seconds));
    let passed = place.pass(options, Duration::from_secs_f64(options.seconds))?;
    let events = place.look()?.since(&before);
    let rtts_ns = [rtt_before_ns, cache_line_round_trip_ns()];
    if options.path == Path::Remote {
        options.meeting.check_way(&events)?;
    }
    let lost = passed.tally.lost;
    ensure!(passed.tally.arrived > 0, "not one of {lost} frames arrived");
    Ok(Report::new(options, place.network(), &passed, &events, rtts_ns, Machine::look()))
}

/// The share of a run that it waited for what never came, if that was so much that what is left of
/// the run is no figure.
pub(crate) fn disturbed(waited_s: f64, rest_s: f64) -> Option<f64> {
    let share = waited_s / (waited_s + rest_s);
    (share > WAITED_SHARE_MAX).then_some(share)
}

/// What a node needs whose nics have guests and no frames: the share of a core, of all of its
/// threads together.
pub(crate) fn measure_rest(options: &Options, cleanup: &Cleanup) -> Result<f64> {
    options.check()?;
    let mut place = Place::start(options, cleanup, &Progress::silent())?;
    let measured = (|| -> Result<f64> {
        // Both guests have been at work.
        place.pass(options, WARM_UP)?;
        sleep(REST_BEFORE);
        let before = place.look()?;
        sleep(Duration::from_secs_f64(options.seconds));
        let events = place.look()?.since(&before);
        let cpu = events.cpu(Role::Vmhost).context("the node's processor time")?;
        Ok(cpu.as_secs_f64() / events.took.as_secs_f64())
    })();
    let stopped = place.stop();
    let share = measured.context("measuring")?;
    stopped.context("stopping what was measured")?;
    Ok(share)
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
        let stream = Options { op: Op::Stream, ..options.clone() };
        stream.check().unwrap();
        refused(Options { size_bytes: 32 << 10, ..stream.clone() }, "a write has");
        refused(Options { driver: Waiting::Sleeps, ..stream.clone() }, "--driver");
        refused(Options { payload: Some([1, 1]), ..stream }, "--op bounce");
        let bounce = Options { op: Op::Bounce, ..options.clone() };
        Options { payload: Some([1, 1472]), ..bounce.clone() }.check().unwrap();
        refused(Options { payload: Some([1, 1473]), ..bounce.clone() }, "1472");
        refused(Options { payload: Some([0, 1]), ..bounce.clone() }, "--payload");
        refused(Options { depth: Some(2), ..bounce }, "one at a time");
        refused(Options { depth: Some(0), ..options.clone() }, "--depth");
        refused(Options { seconds: 0.0, ..options.clone() }, "--seconds 0");
        refused(Options { pids: vec![1], ..options.clone() }, "--pid");
        refused(Options { crossings: Crossings::One, ..options.clone() }, "--path remote");
        let meeting = Meeting { mtu: Some(1), ..Meeting::default() };
        refused(Options { meeting, ..options }, "--mtu");
    }

    #[test]
    fn as_many_are_under_way_as_the_receiver_has_buffers_for() {
        let options = Options::new(PathBuf::from("vrio"));
        let depth = |size_bytes| Options { size_bytes, ..options.clone() }.depth();
        assert_eq!([64, 1500, 64 << 10].map(depth), [256, 256, 15]);
        let stream = Options { op: Op::Stream, ..options.clone() };
        assert_eq!((stream.depth(), stream.writes_per_frame()), (15, 1023));
        assert_eq!(stream.frame_bytes_max(), 1023 * 64 + 54);
    }
}
