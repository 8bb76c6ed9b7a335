//! The flows that have something under way: a round looks at these, and at a few of the others.
//!
//! So the cost of a round is in proportion to the work, however many channels peers hold open. A
//! channel without requests may have something to do all the same: its chain was replaced, or a
//! stage gives memory back. Before the sidecore sleeps, every channel says whether it has work;
//! while the sidecore is busy, each gets its turn.

use std::ops::Bound::{Excluded, Unbounded};

use sidecore::{Progress, Wake};
use transport::{Endpoint, SessionId};

use super::{FlowStep, LOOK_AGAIN_NS, Server};

/// Channels without requests that a round looks at, in turn: all that there may be in 2,048 rounds.
const OTHERS_PER_ROUND: usize = 2;

type FlowKey = (SessionId, u16);

/// Whether a flow is in the list; it lives with the flow.
#[derive(Debug, Default)]
pub(super) struct Listed(bool);

/// See the module. In the order in which they came, so that a simulated run is the same each time.
#[derive(Debug, Default)]
pub(super) struct List {
    keys: Vec<FlowKey>,
    /// Whether any of them has a step; as of this round's [`Server::poll_flows`].
    has_steps: bool,
    /// Which of the others was looked at last.
    last: Option<FlowKey>,
}

impl List {
    pub(super) fn add(&mut self, key: FlowKey, listed: &mut Listed) {
        if !std::mem::replace(&mut listed.0, true) {
            self.keys.push(key);
        }
    }

    /// Takes out a flow that goes.
    pub(super) fn remove(&mut self, key: FlowKey, listed: &Listed) {
        if listed.0 {
            self.keys.retain(|other| *other != key);
        }
    }

    /// Those among which are flows with a step: none in most rounds.
    pub(super) fn with_steps(&self) -> &[FlowKey] {
        if self.has_steps { &self.keys } else { &[] }
    }
}

impl Server {
    /// Moves on what the flows at work have on their way, and those out of the list that have
    /// nothing more.
    pub(super) fn poll_flows(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        let mut progress = Progress::Idle;
        let Self { flows, at_work, counters, .. } = self;
        counters.looked_at.add(at_work.keys.len() as u64);
        at_work.has_steps = false;
        let has_steps = &mut at_work.has_steps;
        at_work.keys.retain(|key| {
            let Some(flow) = flows.get_mut(key) else { return false };
            if let Some(lane) = &mut flow.lane {
                progress |= lane.poll(now_ns, endpoint);
            }
            *has_steps |= flow.step.is_some();
            flow.listed.0 = flow.is_at_work();
            flow.listed.0
        });
        for _ in 0..OTHERS_PER_ROUND {
            let after = at_work.last.map_or(Unbounded, Excluded);
            let Some((key, flow)) = flows.range_mut((after, Unbounded)).next() else {
                // From the first on, in the next round.
                at_work.last = None;
                break;
            };
            at_work.last = Some(*key);
            if let Some(lane) = flow.lane.as_mut().filter(|_| !flow.listed.0) {
                counters.looked_at.add(1);
                progress |= lane.poll(now_ns, endpoint);
            }
        }
        progress
    }

    /// Asks every flow, also one without requests: nothing else would wake the sidecore for it, and
    /// a sidecore that is about to sleep has the time.
    pub(super) fn arm_flows(&mut self, wake: &mut Wake, now_ns: u64) -> Progress {
        let mut progress = Progress::Idle;
        let is_due = |wake: &Wake| wake.deadline_ns().is_some_and(|at_ns| at_ns <= now_ns);
        for (key, flow) in &mut self.flows {
            if let Some(lane) = &mut flow.lane {
                let was_due = is_due(wake);
                let found = lane.arm(wake);
                if found.is_busy() || (is_due(wake) && !was_due) {
                    self.at_work.add(*key, &mut flow.listed);
                }
                progress |= found;
            }
            let Some((step, _)) = &mut flow.step else { continue };
            wake.at(now_ns + LOOK_AGAIN_NS);
            progress |= match step {
                FlowStep::Claim(claim) => claim.arm(wake),
                FlowStep::Close(closing) => closing.arm(wake, now_ns),
                FlowStep::Open(..) => Progress::Idle,
            };
        }
        progress
    }
}
