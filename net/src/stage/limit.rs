//! Limits a port's rate: frames and bytes, each way.
//!
//! Frames that the port sends beyond the limit stay in its queue: a guest's own queueing then sees
//! a slow card, and nothing is lost. Frames to the port beyond the limit are dropped, for they have
//! no place to wait.

use std::num::NonZeroU64;
use std::sync::Arc;

use sidecore::Counter;

use super::{Direction, FrameStage};
use crate::frame::{Burst, Frame};
use crate::reason::Reason;

const SECOND_NS: u128 = 1_000_000_000;

/// How much may come at once, as the time in which it is allowed to come: long enough that a
/// wake-up every few milliseconds keeps the rate, short enough that no receiver has to hold much.
pub const BURST_NS: u64 = 10_000_000;

/// How fast; nothing is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Frames in a second. A frame that is still to be cut counts as one.
    pub frames_per_s: Option<NonZeroU64>,
    /// Bytes in a second, from the Ethernet header on.
    pub bytes_per_s: Option<NonZeroU64>,
}

/// The counters of a limit. Written by its sidecore only.
#[derive(Debug, Default)]
pub struct LimitCore {
    /// Rounds in which the port had to wait with what it sends.
    pub held_rounds: Counter,
}

/// A token bucket, kept as the time until which all is used up.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    until_ns: u64,
}

impl Bucket {
    fn is_open(&self, now_ns: u64) -> bool {
        self.until_ns <= now_ns.saturating_add(BURST_NS)
    }

    /// Uses some up. A frame that was begun is paid for, of any length.
    fn pay(&mut self, many: u64, per_s: Option<NonZeroU64>, now_ns: u64) {
        let Some(per_s) = per_s else { return };
        let cost_ns = u128::from(many) * SECOND_NS / u128::from(per_s.get());
        let cost_ns = u64::try_from(cost_ns).unwrap_or(u64::MAX);
        self.until_ns = self.until_ns.max(now_ns).saturating_add(cost_ns);
    }
}

/// Both buckets of a direction.
#[derive(Clone, Copy, Debug)]
struct DirectionBuckets {
    limit: Limit,
    frames: Bucket,
    bytes: Bucket,
}

impl DirectionBuckets {
    fn new(limit: Limit) -> Self {
        Self { limit, frames: Bucket::default(), bytes: Bucket::default() }
    }

    fn is_open(&self, now_ns: u64) -> bool {
        self.frames.is_open(now_ns) && self.bytes.is_open(now_ns)
    }

    fn pay(&mut self, bytes: u64, now_ns: u64) {
        self.frames.pay(1, self.limit.frames_per_s, now_ns);
        self.bytes.pay(bytes, self.limit.bytes_per_s, now_ns);
    }

    /// When it is open again.
    fn opens_ns(&self) -> u64 {
        self.frames.until_ns.max(self.bytes.until_ns).saturating_sub(BURST_NS)
    }
}

/// See the module's text. The port asks `Limiter::may_send` before it is asked for frames.
#[derive(Debug)]
pub struct Limiter {
    core: Arc<LimitCore>,
    sent: DirectionBuckets,
    received: DirectionBuckets,
}

impl Limiter {
    /// The limits of what a port sends and receives.
    pub fn new((sent, received): (Limit, Limit), core: Arc<LimitCore>) -> Self {
        Self { core, sent: DirectionBuckets::new(sent), received: DirectionBuckets::new(received) }
    }

    /// Other limits from now on. Their used part stays used.
    pub fn set(&mut self, (sent, received): (Limit, Limit)) {
        (self.sent.limit, self.received.limit) = (sent, received);
    }

    /// Whether the port may send now; counts if not.
    pub(super) fn may_send(&self, now_ns: u64) -> bool {
        let is_open = self.sent.is_open(now_ns);
        if !is_open {
            self.core.held_rounds.add(1);
        }
        is_open
    }

    /// Until when the port has to wait, if it has to.
    pub(super) fn held_until(&self, now_ns: u64) -> Option<u64> {
        (!self.sent.is_open(now_ns)).then(|| self.sent.opens_ns())
    }
}

impl FrameStage for Limiter {
    fn pass(
        &mut self,
        direction: Direction,
        frame: &Frame,
        _burst: &Burst,
        now_ns: u64,
    ) -> Result<(), Reason> {
        let bytes = frame.len_bytes() as u64;
        match direction {
            // A frame that the port was let send is paid for, and not refused.
            Direction::Sent => self.sent.pay(bytes, now_ns),
            Direction::Received if self.received.is_open(now_ns) => {
                self.received.pay(bytes, now_ns);
            }
            Direction::Received => return Err(Reason::Limited),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use sidecore::{Progress, Wake};

    use super::*;
    use crate::maker::FrameMaker;
    use crate::port::{Chosen, Port, PortCounters};
    use crate::stage::{Staged, Stages};
    use crate::testing::pushed;

    /// Always has a full burst, and takes everything.
    #[derive(Debug, Default)]
    struct Endless {
        taken: Arc<Counter>,
    }

    impl Port for Endless {
        fn receive(&mut self, burst: &mut Burst, _now_ns: u64) -> Progress {
            for _ in 0..10 {
                pushed(burst, &FrameMaker::udp4().payload(958).build(), 1000);
            }
            Progress::Busy
        }

        fn release(&mut self, burst: &mut Burst) {
            burst.clear();
        }

        fn transmit(&mut self, _burst: &Burst, chosen: &[Chosen], _now_ns: u64) {
            self.taken.add(chosen.len() as u64);
        }

        fn flush(&mut self) {}
    }

    fn limited(each: Limit, counters: &Arc<PortCounters>) -> (Staged<Endless>, Arc<Counter>) {
        let (core, taken) = (Arc::<LimitCore>::default(), Arc::<Counter>::default());
        let limit = Some(Limiter::new((each, each), core));
        let stages = Rc::new(RefCell::new(Stages { limit, ..Stages::default() }));
        let port = Endless { taken: Arc::clone(&taken) };
        (Staged::new(port, stages, Arc::clone(counters)), taken)
    }

    fn limit(frames_per_s: u64, bytes_per_s: u64) -> Limit {
        Limit {
            frames_per_s: NonZeroU64::new(frames_per_s),
            bytes_per_s: NonZeroU64::new(bytes_per_s),
        }
    }

    #[test]
    fn the_rate_is_kept_both_ways_and_only_receiving_loses() {
        for (each, expected) in [(limit(10_000, 0), 10_000), (limit(0, 5_000_000), 5_000)] {
            let counters = Arc::<PortCounters>::default();
            let (mut limited, taken) = limited(each, &counters);
            let (mut burst, mut sent) = (Burst::new(), 0);
            // A second in steps of 100 us.
            for step in 0..10_000 {
                let now_ns = step * 100_000;
                if limited.receive(&mut burst, now_ns).is_busy() {
                    sent += burst.frames().len() as u64;
                } else {
                    pushed(&mut burst, &FrameMaker::udp4().payload(958).build(), 1000);
                    let mut wake = Wake::new();
                    assert!(!limited.arm(&mut wake).is_busy());
                    assert!(wake.deadline_ns().is_some_and(|at| at > now_ns));
                }
                limited.transmit(&burst, &[Chosen { at: 0, tci: 0 }; 5], now_ns);
                limited.release(&mut burst);
            }
            let right = expected..expected * 102 / 100 + 10;
            assert!(right.contains(&sent), "{sent} for {each:?}");
            assert!(right.contains(&taken.get()), "{} for {each:?}", taken.get());
            let lost = counters.drops_out.get(Reason::Limited);
            assert_eq!((taken.get() + lost, counters.drops_in.total()), (50_000, 0));
        }
    }

    #[test]
    fn no_limit_is_none() {
        let (mut limited, _) = limited(Limit::default(), &Arc::default());
        let mut burst = Burst::new();
        for _ in 0..1000 {
            assert!(limited.receive(&mut burst, 0).is_busy());
            limited.release(&mut burst);
        }
    }
}
