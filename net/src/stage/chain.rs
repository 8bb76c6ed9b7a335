//! All stages between a port and its network in one: each stage at most once, in an order that is
//! the same for all.
//!
//! ```text
//!   sent      port ─▶ meter ─▶ mirror ─▶ filter ─▶ limit ─▶ switch
//!   received  port ◀─ meter ◀─ mirror ◀─ limit ◀─ filter ◀─ switch
//! ```
//! Meter and mirror see the frames that the port sent, and those that it really got. A frame that
//! may not pass is not paid for.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sidecore::{Progress, Wake};

use super::{Direction, Filter, FrameStage, Limiter, Meter, Mirror};
use crate::frame::{BURST_FRAMES_MAX, Burst, Frame};
use crate::port::{Chosen, Port, PortCounters};
use crate::reason::Reason;

/// The stages of a port; none unless they are put here. They come and go between two rounds.
#[derive(Debug, Default)]
pub struct Stages {
    /// Counts.
    pub meter: Option<Meter>,
    /// Copies.
    pub mirror: Option<Mirror>,
    /// Drops by rules.
    pub filter: Option<Filter>,
    /// Holds a rate.
    pub limit: Option<Limiter>,
}

impl Stages {
    fn is_empty(&self) -> bool {
        self.meter.is_none()
            && self.mirror.is_none()
            && self.filter.is_none()
            && self.limit.is_none()
    }

    /// Whether the port may send now.
    fn may_send(&self, now_ns: u64) -> bool {
        self.limit.as_ref().is_none_or(|limit| limit.may_send(now_ns))
    }

    fn pass(
        &mut self,
        direction: Direction,
        frame: &Frame,
        burst: &Burst,
        now_ns: u64,
    ) -> Result<(), Reason> {
        let Self { meter, mirror, filter, limit } = self;
        let is_sent = direction == Direction::Sent;
        if is_sent {
            ask(meter, direction, frame, burst, now_ns)?;
            ask(mirror, direction, frame, burst, now_ns)?;
        }
        ask(filter, direction, frame, burst, now_ns)?;
        ask(limit, direction, frame, burst, now_ns)?;
        if !is_sent {
            ask(mirror, direction, frame, burst, now_ns)?;
            ask(meter, direction, frame, burst, now_ns)?;
        }
        Ok(())
    }
}

/// A stage that is not there lets everything pass.
fn ask(
    stage: &mut Option<impl FrameStage>,
    direction: Direction,
    frame: &Frame,
    burst: &Burst,
    now_ns: u64,
) -> Result<(), Reason> {
    stage.as_mut().map_or(Ok(()), |stage| stage.pass(direction, frame, burst, now_ns))
}

/// A port behind its stages.
#[derive(Debug)]
pub struct Staged<P> {
    port: P,
    stages: Rc<RefCell<Stages>>,
    /// The port's own.
    counters: Arc<PortCounters>,
    /// The chosen frames that go on.
    kept: Vec<Chosen>,
    now_ns: u64,
}

impl<P: Port> Staged<P> {
    /// The port that has these counters, behind these stages.
    pub fn new(port: P, stages: Rc<RefCell<Stages>>, counters: Arc<PortCounters>) -> Self {
        Self { port, stages, counters, kept: Vec::with_capacity(BURST_FRAMES_MAX), now_ns: 0 }
    }
}

impl<P: Port> Port for Staged<P> {
    fn receive(&mut self, burst: &mut Burst, now_ns: u64) -> Progress {
        let mut stages = self.stages.borrow_mut();
        if stages.is_empty() {
            return self.port.receive(burst, now_ns);
        }
        self.now_ns = now_ns;
        if !stages.may_send(now_ns) {
            return Progress::Idle;
        }
        let progress = self.port.receive(burst, now_ns);
        for at in 0..burst.frames().len() {
            let frame = &burst.frames()[at];
            if frame.is_dropped() {
                continue;
            }
            if let Err(reason) = stages.pass(Direction::Sent, frame, burst, now_ns) {
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
        let mut stages = self.stages.borrow_mut();
        if stages.is_empty() {
            return self.port.transmit(burst, chosen, now_ns);
        }
        self.kept.clear();
        for chosen in chosen {
            let frame = &burst.frames()[usize::from(chosen.at)];
            match stages.pass(Direction::Received, frame, burst, now_ns) {
                Ok(()) => self.kept.push(*chosen),
                Err(reason) => self.counters.drops_out.count(reason),
            }
        }
        self.port.transmit(burst, &self.kept, now_ns);
    }

    fn flush(&mut self) {
        self.port.flush();
    }

    /// While it may not send there is nothing to be woken for but the time when it may.
    fn arm(&mut self, wake: &mut Wake) -> Progress {
        match self.stages.borrow().limit.as_ref().and_then(|it| it.held_until(self.now_ns)) {
            Some(at_ns) => {
                wake.at(at_ns);
                Progress::Idle
            }
            None => self.port.arm(wake),
        }
    }

    fn disarm(&mut self) {
        self.port.disarm();
    }
}
