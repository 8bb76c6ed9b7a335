//! The traffic of two stand-in guests, by turns on one thread.

use std::time::Duration;

use anyhow::{Context, Result};
use sidecore::now_ns;

use super::flight::{Flight, TIME_OUT_NS, Tally};
use super::packet::{Mark, SEGMENT_BYTES, TCP_HEADERS_BYTES};
use super::station::{RING_SIZE, Station};
use crate::load::LoadOutcome;
use crate::measure::WaitMode;

/// Writes of a stream between two looks at the clock. A real writer would not look at the clock at
/// all.
const WRITES_PER_LOOK: u64 = 16;

/// How long a guest that sleeps waits for a frame until it looks at the clock.
const NAP: Duration = Duration::from_millis(10);

/// Waits for something to do, in a guest that waits for a frame.
fn pause(station: &mut Station, waiting: WaitMode) -> Result<()> {
    match waiting {
        WaitMode::Polls => {
            std::hint::spin_loop();
            Ok(())
        }
        WaitMode::Sleeps => station.wait(NAP),
    }
}

/// The result of traffic.
#[derive(Debug)]
pub(super) struct TrafficResult {
    /// The times of frames that bounce, and the duration of the traffic.
    pub(super) outcome: LoadOutcome,
    /// The tally of frames; each way of a frame that bounces counts.
    pub(super) tally: Tally,
    /// Bytes of the frames that arrived; of a stream, bytes of its writes.
    pub(super) bytes: u64,
    /// Writes of a stream.
    pub(super) writes: Option<u64>,
    /// Calls of devices that woke a guest.
    pub(super) calls: u64,
    /// The driver's time, with all waits.
    pub(super) drove: Duration,
}

impl TrafficResult {
    fn new(tally: Tally, bytes: u64) -> Self {
        let (outcome, writes) = (LoadOutcome::new(), None);
        Self { outcome, tally, bytes, writes, calls: 0, drove: Duration::ZERO }
    }
}

/// The duration of traffic that ends with an arrival, without the time that was waited in vain.
#[derive(Debug)]
struct TrafficDuration {
    began_ns: u64,
    until_ns: u64,
    arrived_ns: u64,
    /// The time that had been waited in vain when the last frame came.
    waited_ns: u64,
}

impl TrafficDuration {
    fn new(length: Duration) -> Self {
        let began_ns = now_ns();
        let length_ns = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = began_ns.saturating_add(length_ns);
        Self { began_ns, until_ns, arrived_ns: began_ns, waited_ns: 0 }
    }

    fn is_over(&self, at_ns: u64) -> bool {
        at_ns >= self.until_ns
    }

    fn arrived(&mut self, at_ns: u64, waited_ns: u64) {
        (self.arrived_ns, self.waited_ns) = (at_ns, waited_ns);
    }

    fn took(&self) -> Duration {
        let all_ns = self.arrived_ns.saturating_sub(self.began_ns);
        Duration::from_nanos(all_ns.saturating_sub(self.waited_ns).max(1))
    }
}

/// Keeps frames under way from one station to the other.
pub(super) fn forward(
    from: &mut Station,
    to: &mut Station,
    depth: u16,
    length: Duration,
    waiting: WaitMode,
) -> Result<TrafficResult> {
    // The depth limits frames that have not arrived. The receiver has buffers for as many, and the
    // sender may have its own buffers back before.
    let mut stretch = TrafficDuration::new(length);
    let (mut flight, bytes) = (Flight::new(stretch.began_ns), to.bytes);
    loop {
        let at_ns = now_ns();
        from.reap()?;
        let is_over = stretch.is_over(at_ns);
        while !is_over
            && flight.len() < depth
            && let Some(mark) = from.send()
        {
            flight.sent(mark, at_ns);
        }
        from.show();
        if take(to, &mut flight, at_ns)? {
            stretch.arrived(at_ns, flight.tally.waited_ns);
            continue;
        }
        flight.look(at_ns, from.outstanding())?;
        if is_over && flight.is_empty() {
            break;
        }
        pause(to, waiting)?;
    }
    let mut passed = TrafficResult::new(flight.tally, to.bytes - bytes);
    passed.outcome.took = stretch.took();
    Ok(passed)
}

/// Sends a frame, waits for its answer, and sends again.
pub(super) fn bounce(
    near: &mut Station,
    far: &mut Station,
    length: Duration,
    waiting: WaitMode,
) -> Result<TrafficResult> {
    let stretch = TrafficDuration::new(length);
    let (mut outcome, mut tally) = (LoadOutcome::new(), Tally::default());
    let (bytes, mut at_ns) = (near.bytes + far.bytes, stretch.began_ns);
    while !stretch.is_over(at_ns) {
        near.reap()?;
        let (asked, sent_ns) = (send_one(near)?, at_ns);
        let mut answer = None;
        loop {
            if answer.is_none() && comes(far, asked, &mut tally)? {
                far.reap()?;
                answer = Some(send_one(far)?);
            }
            let is_back = match answer {
                Some(answer) => comes(near, answer, &mut tally)?,
                None => false,
            };
            at_ns = now_ns();
            if is_back {
                outcome.note(at_ns - sent_ns);
                break;
            }
            if at_ns - sent_ns > TIME_OUT_NS {
                tally.lost += 1;
                tally.time_outs += 1;
                tally.waited_ns += at_ns - sent_ns;
                break;
            }
            // The answer is on its way, or the question still is.
            pause(if answer.is_some() { near } else { far }, waiting)?;
        }
    }
    let all_ns = at_ns - stretch.began_ns;
    outcome.took = Duration::from_nanos(all_ns.saturating_sub(tally.waited_ns).max(1));
    Ok(TrafficResult { outcome, ..TrafficResult::new(tally, near.bytes + far.bytes - bytes) })
}

fn send_one(station: &mut Station) -> Result<Mark> {
    let mark = station.send().context("no room for one frame: none was given back")?;
    station.show();
    Ok(mark)
}

/// Whether this frame came; every other frame is strange.
fn comes(station: &mut Station, wanted: Mark, tally: &mut Tally) -> Result<bool> {
    let mut is_here = false;
    station.receive(|mark| {
        let is_it = mark == wanted && !is_here;
        if is_it {
            is_here = true;
            tally.arrived += 1;
        } else {
            tally.strange += 1;
        }
    })?;
    Ok(is_here)
}

/// Writes a stream. It goes in frames when a TCP would send it, and is acknowledged for each batch
/// of frames that came.
pub(super) fn stream(
    from: &mut Station,
    to: &mut Station,
    depth: u16,
    length: Duration,
) -> Result<TrafficResult> {
    let mut stretch = TrafficDuration::new(length);
    let mut at_ns = stretch.began_ns;
    let (mut data, mut answers) = (Flight::new(at_ns), Flight::new(at_ns));
    let (mut writes, mut turns, bytes) = (0, 0_u64, to.bytes);
    loop {
        if turns.is_multiple_of(WRITES_PER_LOOK) {
            at_ns = now_ns();
        }
        turns += 1;
        let is_over = stretch.is_over(at_ns);
        from.reap()?;
        let has_written = !is_over && from.write();
        writes += u64::from(has_written);
        let is_quiet = data.is_empty() && answers.is_empty();
        if data.len() < depth
            && is_due(from, is_quiet)
            && let Some(mark) = from.push()
        {
            data.sent(mark, at_ns);
            from.show();
        }
        let any = take(to, &mut data, at_ns)?;
        if any {
            stretch.arrived(at_ns, data.tally.waited_ns);
            to.reap()?;
            if answers.len() < RING_SIZE
                && let Some(mark) = to.send()
            {
                answers.sent(mark, at_ns);
                to.show();
            }
        }
        take(from, &mut answers, at_ns)?;
        if has_written || any {
            continue;
        }
        at_ns = now_ns();
        data.look(at_ns, from.outstanding())?;
        to.reap()?;
        answers.look(at_ns, to.outstanding())?;
        if is_over && data.is_empty() && answers.is_empty() && from.written_bytes() == 0 {
            break;
        }
        std::hint::spin_loop();
    }
    let (mut tally, answers) = (data.tally, answers.tally);
    let headers = TCP_HEADERS_BYTES as u64 * tally.arrived;
    tally.lost += answers.lost;
    tally.strange += answers.strange;
    tally.time_outs += answers.time_outs;
    tally.waited_ns += answers.waited_ns;
    let mut passed = TrafficResult::new(tally, (to.bytes - bytes).saturating_sub(headers));
    passed.outcome.took = stretch.took();
    passed.writes = Some(writes);
    Ok(passed)
}

/// Notes the frames that came. The result is whether any did.
fn take(station: &mut Station, flight: &mut Flight, at_ns: u64) -> Result<bool> {
    let mut any = false;
    station.receive(|mark| {
        flight.came(mark, at_ns);
        any = true;
    })?;
    Ok(any)
}

/// Whether the written data goes now, as in Linux. A full frame goes. Less than a segment goes only
/// when nothing is unacknowledged (Nagle's rule). Data between the two waits until the device has
/// taken the frames that were sent before (corking).
fn is_due(from: &Station, is_quiet: bool) -> bool {
    let written = from.written_bytes();
    let is_taken = written >= SEGMENT_BYTES && from.outstanding() == 0;
    written > 0 && (from.is_full() || is_quiet || is_taken)
}
