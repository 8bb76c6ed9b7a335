//! What may stand between a port and its network: each a port over a port.
//!
//! A stage that looks at frames one by one is a [`Stage`], and [`Staged`] makes a port of it. One
//! that decides when to look at all ([`limit`]) is a port itself.

pub mod filter;
pub mod limit;
pub mod meter;
pub mod mirror;

use std::fmt;
use std::sync::Arc;

use sidecore::{Progress, Wake};

use crate::frame::{BURST_FRAMES_MAX, Burst, Frame};
use crate::port::{Chosen, Port, PortCounters};
use crate::reason::Reason;

pub use filter::{Filter, FilterCore, Rules};
pub use limit::{Limit, LimitCore, Limited};
pub use meter::{Meter, MeterCore};
pub use mirror::{Mirror, MirrorCore};

/// Which way a frame goes, seen from the port's guest, or whoever is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the port into the network.
    Sent,
    /// From the network to the port.
    Received,
}

/// Looks at frames one by one.
pub trait Stage: fmt::Debug {
    /// Whether the frame goes on. Its body is in the burst.
    ///
    /// # Errors
    /// Why not; it is dropped, and counted at the port.
    fn pass(
        &mut self,
        direction: Direction,
        frame: &Frame,
        burst: &Burst,
        now_ns: u64,
    ) -> Result<(), Reason>;

    /// The round is over.
    fn flush(&mut self) {}
}

/// A port whose frames pass a stage, on their way in and out.
#[derive(Debug)]
pub struct Staged<S> {
    stage: S,
    port: Box<dyn Port>,
    /// The port's own.
    counters: Arc<PortCounters>,
    /// What goes on of what was chosen.
    kept: Vec<Chosen>,
}

impl<S: Stage> Staged<S> {
    /// The stage before the port that has these counters.
    pub fn new(stage: S, port: Box<dyn Port>, counters: Arc<PortCounters>) -> Self {
        Self { stage, port, counters, kept: Vec::with_capacity(BURST_FRAMES_MAX) }
    }
}

impl<S: Stage> Port for Staged<S> {
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress {
        let progress = self.port.receive(burst, now_ns);
        for at in 0..burst.frames().len() {
            let frame = &burst.frames()[at];
            if frame.is_dropped() {
                continue;
            }
            if let Err(reason) = self.stage.pass(Direction::Sent, frame, burst, now_ns) {
                self.counters.drops_in.count(reason);
                burst.frames_mut()[at].drop_here();
            }
        }
        progress
    }

    fn release(&mut self, burst: &mut Burst) {
        self.port.release(burst);
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], now_ns: u64) {
        self.kept.clear();
        for chosen in chosen {
            let frame = &burst.frames()[usize::from(chosen.at)];
            match self.stage.pass(Direction::Received, frame, burst, now_ns) {
                Ok(()) => self.kept.push(*chosen),
                Err(reason) => self.counters.drops_out.count(reason),
            }
        }
        self.port.transmit(burst, &self.kept, now_ns);
    }

    fn flush(&mut self) {
        self.stage.flush();
        self.port.flush();
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.port.arm(wake)
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }
}
