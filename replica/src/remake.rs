//! A member that makes the volume's record anew, by an operator's word.

use std::fmt::Debug;
use std::hash::Hash;

use crate::member::{MemberRole, Output, Replica};
use crate::message::{Knowledge, Place};
use crate::record::VolumeRecord;
use crate::recovery::{Asker, Recovery, RecoveryPlan, RecoveryRefusal};
use crate::rule::Rule;

/// Patiences for which an operator's record is asked for: 30 s on nodes, some of the registry's
/// own time-outs.
const REMAKE_PATIENCES: u64 = 12;

/// Changes of the record whose outcome a member does not know, besides the last: an operator that
/// has a copy serve again and again, while the registry answers nothing, is not heard for so long.
const SWAPS_BEFORE_MAX: usize = 4;

impl<D: Clone + Debug + Eq + Hash + Ord> Replica<D> {
    /// Its knowledge, for an operator.
    pub fn knowledge(&self) -> Knowledge {
        Knowledge {
            life: self.life,
            promised: self.promised,
            record: self.record.clone(),
            reigns: self.is_primary(),
            asks: self.waits_for_registry() && !self.breaks(Rule::AttemptsAreUnheard),
            filled_since: self.filled_since,
            was_in: if self.breaks(Rule::OlderCopiesByEpoch) { 0 } else { self.was_in },
            cut: self.holding.cuts.last().copied(),
            stored: Place { counter: self.holding.stored, ..self.holding.began },
        }
    }

    /// The steps by which this member's copy would serve.
    ///
    /// # Errors
    /// Why it must not, also if the operator gives writes up.
    pub fn recovery_plan(
        &self,
        now_ns: u64,
        recovery: &Recovery,
    ) -> Result<RecoveryPlan, RecoveryRefusal> {
        let knows = &self.knowledge();
        let asked = self.swaps().map(|it| it.epoch).fold(0, u64::max);
        let (id, has_leases, broken) = (self.id, self.serves(now_ns), self.broken);
        let waits = self.waits_for_registry();
        recovery.plan(&Asker { id, knows, has_leases, asked, waits, broken })
    }

    /// Whether an operator's word waits for the end of leases, or for the registry.
    pub fn recovers(&self) -> bool {
        self.recovery.is_some() || self.remake.is_some()
    }

    /// Whether a change of the record that it has asked for may be told as made: a record that it
    /// does not know now.
    fn waits_for_registry(&self) -> bool {
        self.swap.is_some() && !self.is_void || !self.swaps_before.is_empty()
    }

    /// Asks for an operator's record again, until its outcome is known or for some time. A newer
    /// record that a member has told is not replaced: whether the operator's came before it is
    /// looked at.
    pub(crate) fn remake_again(&self, now_ns: u64, plan: &RecoveryPlan, out: &mut Vec<Output<D>>) {
        let looks = self.has_news(plan) || self.is_remake_over(now_ns);
        out.push(if looks { Output::Look } else { Output::Remake(plan.clone()) });
    }

    /// Whether a member has told a record that the operator did not know.
    fn has_news(&self, plan: &RecoveryPlan) -> bool {
        self.record.as_ref().is_some_and(|it| it.epoch > plan.known.epoch)
    }

    /// Whether an operator's record is asked for no more: by then other copies may have come back,
    /// and the operator has to decide anew. An earlier question may still be answered.
    fn is_remake_over(&self, now_ns: u64) -> bool {
        now_ns >= self.remade_ns + REMAKE_PATIENCES * self.pacing.patience_ns
    }

    /// The registry has this record. An operator's record that was based on an older one is not
    /// made any more.
    pub(crate) fn end_remake(&mut self, record: &VolumeRecord) {
        let is_between = |plan: &RecoveryPlan| {
            record.epoch > plan.known.epoch && record.epoch < plan.record.epoch
        };
        if self.remake.as_ref().is_some_and(is_between) {
            (self.swap, self.remake, self.is_void) = (self.swaps_before.pop(), None, false);
        }
    }

    /// Has this copy serve, as soon as leases are over that it may have given. An earlier word for
    /// which the registry is asked no more is replaced; its answer may still come.
    pub(crate) fn recover(&mut self, now_ns: u64, recovery: Recovery, out: &mut Vec<Output<D>>) {
        let is_free = match &self.remake {
            None => true,
            Some(plan) => self.has_news(plan) || self.is_remake_over(now_ns),
        };
        if is_free && self.swaps_before.len() < SWAPS_BEFORE_MAX {
            self.recovery = Some(recovery);
            self.try_recovery(now_ns, out);
        }
    }

    pub(crate) fn try_recovery(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        // A process that is said to have ended may only stand still.
        let gives_leases = !matches!(self.role, MemberRole::Primary(_));
        if gives_leases && now_ns < self.granted_ns + self.pacing.patience_ns {
            return;
        }
        let Some(recovery) = self.recovery.take() else { return };
        let Ok(plan) = self.recovery_plan(now_ns, &recovery) else { return };
        if plan.loss > recovery.accepts {
            return;
        }
        // A swap without an answer that was asked for before may have come first. Its members are
        // needed until the outcome of this one is known.
        self.swaps_before.extend(self.swap.replace(plan.record.clone()));
        self.is_void = false;
        self.remade_ns = now_ns;
        self.remake = Some(plan.clone());
        out.push(Output::Remake(plan));
    }
}
