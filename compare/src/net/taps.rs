//! Two taps on a bridge of the kernel, in a network namespace of their own: the means of a host
//! that has no switch for its guests beside the kernel's.
//!
//! One thread writes and reads at their descriptors, with one system call for each frame, as the
//! kernel demands. Before each frame is the header that names the work which is left to do on it:
//! the checksum, and cutting. There is no ring and no back end, which a guest would need besides.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use net::maker::FrameMaker;
use net::nic::MTU;
use net::offload::HEADER_BYTES;
use net::uplink::tap::open_frames;
use net::{Cut, FRAME_BYTES_MAX, Mac, Offload};
use rustix::io::{Errno, read, write};
use sidecore::now_ns;

use super::frames::Frames;
use super::peers::WHOLE_BYTES_MAX;
use crate::contest::TurnSample;
use bench::block::WARM_UP;
use bench::load::LoadOutcome;
use bench::measure::thread_cpu;
use bench::net::NetOp;
use testbed::cleanup::Cleanup;
use testbed::machine::{cache_line_round_trip_ns, cores, pin};
use testbed::stage::{inside, ip};

/// Interfaces of the namespace.
const BRIDGE: &str = "bridge";
const TAPS: [&str; 2] = ["one", "two"];

/// Frames under way, as many as our driver has of short ones. The kernel keeps twice as many for
/// the reader of a tap.
const UNDER_WAY: u64 = 256;

/// TCP and IPv4 without options, and where TCP has its checksum.
const HEADERS_BYTES: u16 = 40;
const TCP_CHECKSUM_AT: u16 = 16;

/// How long a frame may be under way until it counts as lost.
const LOST_NS: u64 = 1_000_000_000;

/// Whether this process may make taps and a bridge.
pub(super) fn may_be_made() -> bool {
    rustix::process::geteuid().is_root()
}

/// Both taps; the namespace goes when this is dropped.
struct Taps<'a> {
    ends: [Tap; 2],
    cleanup: &'a Cleanup,
}

impl Drop for Taps<'_> {
    fn drop(&mut self) {
        self.cleanup.remove_stage();
    }
}

/// Measures frames of one kind for so long.
pub(super) fn measure(case: &Frames, seconds: f64, cleanup: &Cleanup) -> Result<TurnSample> {
    let taps = Taps::open(case.size_bytes, cleanup);
    let mut taps = taps.inspect_err(|_| cleanup.remove_stage())?;
    let mut pass = |length: Duration| {
        let drive = || {
            // The same core as our driver of rings has.
            cores().get(1..).and_then(<[usize]>::last).inspect(|core| pin(**core));
            let began = thread_cpu();
            let passed = match case.op {
                NetOp::Bounce => taps.bounce(length),
                _ => taps.forward(length),
            };
            passed.map(|(frames, outcome)| (frames, outcome, thread_cpu().saturating_sub(began)))
        };
        let joined = thread::scope(|scope| scope.spawn(drive).join());
        joined.map_err(|_| anyhow!("the driving thread panicked"))?
    };
    pass(WARM_UP)?;
    let trip_before_ns = cache_line_round_trip_ns();
    let (frames, outcome, cpu) = pass(Duration::from_secs_f64(seconds))?;
    ensure!(frames > 0, "not one frame arrived");
    let latency = |share| (case.op == NetOp::Bounce).then(|| outcome.quantile_us(share));
    Ok(TurnSample {
        rate: frames as f64 / outcome.took.as_secs_f64(),
        p50_us: latency(0.5),
        p99_us: latency(0.99),
        cpu_us: Some(cpu.as_secs_f64() * 1e6 / frames as f64),
        core_share: None,
        waited_share: None,
        trips_ns: [trip_before_ns, cache_line_round_trip_ns()],
    })
}

impl<'a> Taps<'a> {
    /// Makes the namespace and both taps, and the frame that each tap sends to the other.
    fn open(frame_bytes: u32, cleanup: &'a Cleanup) -> Result<Self> {
        // An interruption waits until the clean-up knows of everything.
        let _starting = cleanup.start();
        let namespace = format!("vrio-taps-{}", std::process::id());
        cleanup.namespace(&namespace);
        ip(&["netns", "add", &namespace])?;
        let within = |words: &[&str]| ip(&[&["-n", &namespace][..], words].concat());
        within(&["link", "add", "name", BRIDGE, "type", "bridge"])?;
        within(&["link", "set", BRIDGE, "up"])?;
        let [one, two] = inside(Some(&namespace), || TAPS.map(open_frames))?;
        let (one, two) = (one?, two?);
        for tap in TAPS {
            within(&["link", "set", tap, "master", BRIDGE])?;
        }
        let [a, b] = [1, 2].map(|last| Mac([0x52, 0x54, 0, 0, 0, last]));
        let bytes = frame_bytes as usize;
        Ok(Self { ends: [Tap::new(one, [a, b], bytes), Tap::new(two, [b, a], bytes)], cleanup })
    }

    /// Keeps frames under way from one tap to the other. The first number is of those that arrived.
    fn forward(&mut self, length: Duration) -> Result<(u64, LoadOutcome)> {
        let [from, to] = &mut self.ends;
        let most =
            (UNDER_WAY * u64::from(MTU)).div_ceil(from.frame.len() as u64).clamp(1, UNDER_WAY);
        let began_ns = now_ns();
        let until_ns = began_ns + length.as_nanos() as u64;
        let (mut sent, mut frames, mut arrived_ns) = (0, 0, began_ns);
        loop {
            let at_ns = now_ns();
            let is_over = at_ns >= until_ns;
            while !is_over && sent - frames < most && from.send()? {
                sent += 1;
            }
            if to.receive()? {
                (frames, arrived_ns) = (frames + 1, at_ns);
            } else if is_over && (sent == frames || at_ns - arrived_ns > LOST_NS) {
                break;
            }
            ensure!(at_ns - arrived_ns <= 2 * LOST_NS, "frames between the taps are lost");
        }
        let mut outcome = LoadOutcome::new();
        outcome.took = Duration::from_nanos((arrived_ns - began_ns).max(1));
        Ok((frames, outcome))
    }

    /// Sends a frame, has it sent back, and again. The first number counts arrivals of both ways.
    fn bounce(&mut self, length: Duration) -> Result<(u64, LoadOutcome)> {
        let [near, far] = &mut self.ends;
        let began_ns = now_ns();
        let until_ns = began_ns + length.as_nanos() as u64;
        let (mut outcome, mut at_ns) = (LoadOutcome::new(), began_ns);
        while at_ns < until_ns {
            let sent_ns = at_ns;
            cross(near, far, sent_ns)?;
            cross(far, near, sent_ns)?;
            at_ns = now_ns();
            outcome.note(at_ns - sent_ns);
        }
        outcome.took = Duration::from_nanos((at_ns - began_ns).max(1));
        Ok((2 * outcome.requests(), outcome))
    }
}

/// Sends a frame and waits until it has come.
fn cross(from: &Tap, to: &mut Tap, sent_ns: u64) -> Result<()> {
    ensure!(from.send()?, "a tap has no room for one frame");
    while !to.receive()? {
        ensure!(now_ns() - sent_ns <= LOST_NS, "a frame that bounces is lost");
    }
    Ok(())
}

/// One tap.
struct Tap {
    fd: OwnedFd,
    mac: Mac,
    /// The bytes that it sends: a header, and a frame.
    frame: Vec<u8>,
    /// Room for a frame that arrives.
    buffer: Vec<u8>,
}

impl Tap {
    fn new(fd: OwnedFd, [mac, to]: [Mac; 2], bytes: usize) -> Self {
        let buffer = vec![0; HEADER_BYTES + FRAME_BYTES_MAX];
        Self { fd, mac, frame: frame([mac, to], bytes), buffer }
    }

    /// Sends the frame; `false` when there is no room.
    fn send(&self) -> Result<bool> {
        match write(&self.fd, &self.frame) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno).context("writing a frame to a tap"),
        }
    }

    /// Receives a frame. `false` for a frame that is not for this tap: the kernel asks for routers
    /// and groups by itself.
    fn receive(&mut self) -> Result<bool> {
        match read(&self.fd, &mut self.buffer[..]) {
            Ok(len) => {
                let frame = self.buffer[..len].get(HEADER_BYTES..);
                Ok(frame.is_some_and(|frame| frame.starts_with(&self.mac.0)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno).context("reading a frame from a tap"),
        }
    }
}

/// A frame behind its header: UDP, or TCP that is left to be cut if it is long.
fn frame([from, to]: [Mac; 2], bytes: usize) -> Vec<u8> {
    let is_whole = bytes <= WHOLE_BYTES_MAX as usize;
    let maker = if is_whole { FrameMaker::udp4() } else { FrameMaker::tcp4().partial() };
    let maker = maker.from(from).to(to);
    let above_at = maker.above_at() as u16;
    let payload = bytes.saturating_sub(maker.header_bytes());
    let frame = maker.payload(payload).build();
    let offload = Offload {
        needs_checksum: !is_whole,
        checksum_start: above_at,
        checksum_offset: TCP_CHECKSUM_AT,
        cut: if is_whole { Cut::None } else { Cut::Tcp4 },
        segment_bytes: MTU - HEADERS_BYTES,
        ..Offload::default()
    };
    let mut header = [0; HEADER_BYTES];
    offload.write(&frame, 0, &mut header);
    [&header[..], &frame].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_the_wanted_length_and_says_whether_it_must_be_cut() {
        for bytes in [64, 1500, 1514, 1515, 64 << 10] {
            let frame = frame([1, 2].map(|last| Mac([0x52, 0x54, 0, 0, 0, last])), bytes);
            assert_eq!(frame.len(), HEADER_BYTES + bytes);
            let offload = Offload::read(frame.first_chunk().unwrap()).unwrap();
            assert_eq!(offload.cut == Cut::Tcp4, bytes > 1514);
            assert_eq!(
                frame[HEADER_BYTES..][..12],
                [0x52, 0x54, 0, 0, 0, 2, 0x52, 0x54, 0, 0, 0, 1]
            );
        }
    }

    #[test]
    fn frames_cross_a_bridge_both_ways() {
        if !may_be_made() {
            println!("SKIP frames_cross_a_bridge_both_ways: only root makes taps");
            return;
        }
        let cleanup = Cleanup::default();
        for (op, size_bytes) in
            [(NetOp::Forward, 64), (NetOp::Forward, 64 << 10), (NetOp::Bounce, 64)]
        {
            let sample = measure(&Frames { op, size_bytes }, 0.05, &cleanup).unwrap();
            assert!(sample.rate > 0.0, "{sample:?}");
            assert_eq!(sample.p50_us.is_some(), op == NetOp::Bounce);
        }
        cleanup.remove();
    }
}
