//! The fixed schedule without faults: the promise for the time after the last fault.

use replica::MemberId;

use super::disk::Loss;
use super::{Case, World};

/// Ticks after which all members serve the volume again and all requests are answered, once faults
/// have ended: leases that end, a take-over, a member that is restarted alone, the admission of
/// each other member, and each request of the clients.
pub(crate) const FAIR_TICKS: u32 = 60;

impl World {
    /// Ends all faults. Entries that were held back are lost.
    pub(crate) fn heal(&mut self, case: &Case) {
        self.is_away = false;
        self.held.clear();
        self.cut.clear();
        for node in &mut self.nodes {
            node.is_paused = false;
        }
        for id in self.ids() {
            if self.node(id).is_stopped {
                self.restart(case, id, Loss::Nothing);
            }
        }
        if self.is_restored {
            self.rebuild();
        }
        self.asked = None;
    }

    /// One tick of the schedule.
    pub(crate) fn fair_tick(&mut self, case: &Case) {
        self.settle(case);
        for gone in 0..self.nodes.len() {
            let id = gone as MemberId;
            if self.nodes[gone].is_gone && self.registry.in_sync.contains_key(&id) {
                self.evict(case, id);
            }
        }
        if self.has_lost {
            self.recover_fairly(case);
        }
        for index in 0..self.clients.len() {
            let to = self.registry.primary;
            if self.clients[index].next < case.plans[index].len()
                && !self.nodes[usize::from(to)].is_gone
            {
                self.send(case, index, to);
            }
        }
        self.settle(case);
        self.scrub_fairly(case);
        self.settle(case);
        self.tick(case);
        self.settle(case);
    }

    /// Whether the volume is served by all its members and nothing is left to do.
    pub(crate) fn is_well(&self, case: &Case) -> bool {
        let in_sync = self.registry.in_sync.len();
        let is_whole = !self.has_lost && in_sync == self.ids().count();
        self.servers(case) == 1 && is_whole && self.is_done(case) && self.is_proved(case)
    }

    /// Whether the volume can not come back: no member that is there had what was acknowledged.
    pub(crate) fn is_lost(&self) -> bool {
        let is_there = |id: &MemberId| !self.nodes[usize::from(*id)].is_gone;
        !self.registry.in_sync.keys().any(is_there)
    }

    /// The ticks until all is well.
    pub(crate) fn fair(&mut self, case: &Case) -> Result<u32, String> {
        self.heal(case);
        for ticks in 0..FAIR_TICKS {
            if let Some(breach) = self.breach(case) {
                return Err(format!("{breach} (after the last fault)"));
            }
            if self.is_well(case) || self.is_lost() || self.is_spoiled(case) {
                return Ok(ticks);
            }
            self.fair_tick(case);
        }
        Err(format!("all is not well after {FAIR_TICKS} ticks"))
    }
}
