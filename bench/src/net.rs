//! `vrio bench net`: the throughput, latency and cost of frames between two guests' nics.
//!
//! ```text
//!   local    guest ═ virtqueues ═ VMhost: nic ─ switch ─ nic ═ virtqueues ═ guest
//!   remote   guest ═ virtqueues ═ VMhost: nic ═ session ═ IOhost: switch ═ session ═ nic ═ guest
//!   socket   guest ═ virtqueues ═ the server of the two sockets ═ virtqueues ═ guest
//! ```
//!
//! Both guests are stand-ins, driven by turns on one thread of this process. They have no network
//! stack: frames are made beforehand, and frames that come are counted and not read.

mod flight;
mod packet;
mod place;
pub mod ports;
mod report;
mod results;
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
use crate::measure::WaitMode;
use packet::UDP_HEADERS_BYTES;
use place::NetSetup;
use testbed::cleanup::{Cleanup, tidily};
use testbed::events::Role;
use testbed::machine::{Machine, cache_line_round_trip_ns, cores};
use testbed::pair::{PairLink, RoleCores};
use testbed::progress::Progress;

pub use packet::TCP_HEADERS_BYTES;
pub(crate) use place::start_nodes;
pub use report::NetReport;

/// The length of frames: the shortest of Ethernet, and the longest of IP.
const SIZE_BYTES: RangeInclusive<u32> = 64..=FRAME_BYTES_MAX as u32;
const FRAME_BYTES_MAX: usize = 64 << 10;

/// The length of a stream's writes: several must fit into a frame.
const WRITE_BYTES: RangeInclusive<u32> = 64..=16 << 10;

/// The payload of a UDP datagram that goes in one packet of 1500 bytes: from netperf's least to a
/// full packet.
const PAYLOAD_BYTES: RangeInclusive<u16> = 1..=1472;

/// A run has no rate if it spent a larger share of itself waiting for frames that never came.
/// Frames that arrive between two time-outs are as fast as a burst, even if they are few.
const WAITED_SHARE_MAX: f64 = 0.1;

/// The time without a frame after which sidecores are at rest: far longer than they spin.
const REST_BEFORE: Duration = Duration::from_millis(200);

/// The most frames under way: as many as the sender's ring has descriptors for.
pub const DEPTH_MAX: u16 = station::RING_SIZE;

/// The traffic between the guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NetOp {
    /// One guest sends frames, the other one takes them.
    Forward,
    /// One frame goes there and back.
    Bounce,
    /// One guest writes a stream. It goes in frames as long as the data that was written meanwhile.
    Stream,
}

/// The way of frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Two nics of a network of one node.
    Local,
    /// Nics of a VMhost in a network of an IOhost.
    Remote,
    /// The server of these vhost-user sockets.
    Socket(PathBuf, PathBuf),
}

/// How often a frame crosses from node to node on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Crossings {
    /// The other guest is on the IOhost.
    One,
    /// Both guests are on the VMhost.
    Two,
}

/// The options of `vrio bench net`.
#[derive(Clone, Debug, Serialize)]
pub struct NetOptions {
    /// The `vrio` program that the nodes run.
    #[serde(skip)]
    pub program: PathBuf,
    /// The way of frames.
    pub path: Path,
    /// The traffic between the guests.
    pub op: NetOp,
    /// Bytes of every frame, or of every write of a stream. A frame beyond 1514 bytes is TCP, left
    /// to be cut.
    pub size_bytes: u32,
    /// Bytes of UDP there and back instead, for [`NetOp::Bounce`].
    pub payload: Option<[u16; 2]>,
    /// Frames under way, where none bounces; by default as [`NetOptions::depth`] says.
    pub depth: Option<u16>,
    /// Where the other guest is, for [`Path::Remote`].
    pub crossings: Crossings,
    /// The cable and the sessions between both nodes.
    #[serde(flatten)]
    pub meeting: PairLink,
    /// Packed rings instead of split ones.
    pub packed: bool,
    /// The behaviour of sidecores without work.
    #[serde(serialize_with = "as_text")]
    pub idle: Idle,
    /// How guests learn of frames. The sender polls by itself, and is called for no frame.
    pub driver: WaitMode,
    /// How long the measurement takes.
    pub seconds: f64,
    /// The processes behind the sockets, for their processor time.
    pub pids: Vec<u32>,
}

impl NetOptions {
    /// The defaults of the command line.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            path: Path::Local,
            op: NetOp::Forward,
            size_bytes: 64,
            payload: None,
            depth: None,
            crossings: Crossings::Two,
            meeting: PairLink::default(),
            packed: false,
            idle: Idle::Adaptive,
            driver: WaitMode::Polls,
            seconds: 3.0,
            pids: Vec::new(),
        }
    }

    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense, and the values that would.
    pub fn check(&self) -> Result<()> {
        let Self { op, size_bytes, depth, seconds, .. } = *self;
        if op == NetOp::Stream {
            let fits = WRITE_BYTES.contains(&size_bytes);
            ensure!(fits, "--size {size_bytes}: a write has from 64 bytes to 16k");
        } else {
            let fits = SIZE_BYTES.contains(&size_bytes);
            ensure!(fits, "--size {size_bytes}: from 64 bytes to 64k");
        }
        ensure!(
            self.payload.is_none() || op == NetOp::Bounce,
            "--payload is for --op bounce: a request and its answer"
        );
        ensure!(
            self.payload.iter().flatten().all(|bytes| PAYLOAD_BYTES.contains(bytes)),
            "--payload: from {} to {} bytes each",
            PAYLOAD_BYTES.start(),
            PAYLOAD_BYTES.end()
        );
        ensure!(
            depth.is_none_or(|depth| op != NetOp::Bounce && (1..=DEPTH_MAX).contains(&depth)),
            "--depth: from 1 to {DEPTH_MAX}; of frames that bounce there is one at a time"
        );
        ensure!(
            (0.01..=3600.0).contains(&seconds),
            "--seconds {seconds}: from 0.01 to an hour's 3600"
        );
        ensure!(
            op != NetOp::Stream || self.driver == WaitMode::Polls,
            "--driver sleeps is for --op forward and bounce: a guest that writes a stream is never \
             idle"
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

    /// Frames that were sent and have not arrived: as many as the option says, or as the receiver
    /// has buffers for. Then no frame is lost for want of a buffer, as between stacks that control
    /// their flow.
    pub fn depth(&self) -> u16 {
        self.depth.unwrap_or_else(|| station::frames_posted(self.frame_bytes_max()))
    }

    /// Whether each thread that is busy has a core to itself.
    pub fn has_seats(&self) -> bool {
        self.seats() != RoleCores::default()
    }

    /// Seats for the sidecores of the nodes and the one driver.
    fn seats(&self) -> RoleCores {
        RoleCores::new(&cores(), 1, usize::from(self.path == Path::Remote), 1)
    }

    /// Bytes of the longest frame.
    fn frame_bytes_max(&self) -> usize {
        match (self.op, self.payload) {
            (NetOp::Stream, _) => {
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

/// Measures once. The progress goes to standard error, if that is a terminal.
///
/// # Errors
/// When the options cannot be measured, or a node or a guest fails meanwhile.
pub fn run(options: &NetOptions) -> Result<NetReport> {
    let progress = Progress::quiet();
    tidily(&progress, |cleanup| measure(options, cleanup, &progress))
}

/// The same as a part of a longer measurement.
pub fn measure(options: &NetOptions, cleanup: &Cleanup, progress: &Progress) -> Result<NetReport> {
    let [report] = measure_ops(options, [options.op], cleanup, progress)?;
    Ok(report)
}

/// The same for several kinds of traffic, one after the other, with frames of one length.
pub(crate) fn measure_ops<const N: usize>(
    options: &NetOptions,
    ops: [NetOp; N],
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<[NetReport; N]> {
    options.check()?;
    progress.doing("starting what is measured");
    let mut place = NetSetup::start(options, cleanup, progress)?;
    let once = |op| measure_once(options, op, &mut place, progress);
    let measured: Result<Vec<NetReport>> = ops.into_iter().map(once).collect();
    let stopped = place.stop();
    let reports = measured.context("measuring")?;
    stopped.context("stopping what was measured")?;
    Ok(reports.try_into().expect("a report of each"))
}

fn measure_once(
    options: &NetOptions,
    op: NetOp,
    place: &mut NetSetup,
    progress: &Progress,
) -> Result<NetReport> {
    // There is one frame that bounces.
    let depth = options.depth.filter(|_| op != NetOp::Bounce);
    let options = &NetOptions { op, depth, ..options.clone() };
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
    Ok(NetReport::new(options, place.network(), &passed, &events, rtts_ns, Machine::look()))
}

/// The share of a run that was spent waiting for frames that never came. None if the share is small
/// enough for the run to have a rate.
pub fn disturbed(waited_s: f64, rest_s: f64) -> Option<f64> {
    let share = waited_s / (waited_s + rest_s);
    (share > WAITED_SHARE_MAX).then_some(share)
}

/// The processor time of a node whose nics have guests and no frames: the share of a core, for all
/// of its threads together.
pub fn measure_rest(options: &NetOptions, cleanup: &Cleanup) -> Result<f64> {
    options.check()?;
    let mut place = NetSetup::start(options, cleanup, &Progress::silent())?;
    let measured = (|| -> Result<f64> {
        // Both guests have been at work before.
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
    fn invalid_options_are_refused_by_name() {
        let options = NetOptions::new(PathBuf::from("vrio"));
        options.check().unwrap();
        let refused = |wrong: NetOptions, word: &str| {
            let text = wrong.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        };
        refused(NetOptions { size_bytes: 63, ..options.clone() }, "--size 63");
        refused(NetOptions { size_bytes: 65537, ..options.clone() }, "--size 65537");
        let stream = NetOptions { op: NetOp::Stream, ..options.clone() };
        stream.check().unwrap();
        refused(NetOptions { size_bytes: 32 << 10, ..stream.clone() }, "a write has");
        refused(NetOptions { driver: WaitMode::Sleeps, ..stream.clone() }, "--driver");
        refused(NetOptions { payload: Some([1, 1]), ..stream }, "--op bounce");
        let bounce = NetOptions { op: NetOp::Bounce, ..options.clone() };
        NetOptions { payload: Some([1, 1472]), ..bounce.clone() }.check().unwrap();
        refused(NetOptions { payload: Some([1, 1473]), ..bounce.clone() }, "1472");
        refused(NetOptions { payload: Some([0, 1]), ..bounce.clone() }, "--payload");
        refused(NetOptions { depth: Some(2), ..bounce }, "one at a time");
        refused(NetOptions { depth: Some(0), ..options.clone() }, "--depth");
        refused(NetOptions { seconds: 0.0, ..options.clone() }, "--seconds 0");
        refused(NetOptions { pids: vec![1], ..options.clone() }, "--pid");
        refused(NetOptions { crossings: Crossings::One, ..options.clone() }, "--path remote");
        let meeting = PairLink { mtu: Some(1), ..PairLink::default() };
        refused(NetOptions { meeting, ..options }, "--mtu");
    }

    #[test]
    fn as_many_are_under_way_as_the_receiver_has_buffers_for() {
        let options = NetOptions::new(PathBuf::from("vrio"));
        let depth = |size_bytes| NetOptions { size_bytes, ..options.clone() }.depth();
        assert_eq!([64, 1500, 64 << 10].map(depth), [256, 256, 15]);
        let stream = NetOptions { op: NetOp::Stream, ..options.clone() };
        assert_eq!((stream.depth(), stream.writes_per_frame()), (15, 1023));
        assert_eq!(stream.frame_bytes_max(), 1023 * 64 + 54);
    }
}
