//! A member that makes the volume's record anew, by an operator's word.

use std::fmt::Debug;
use std::hash::Hash;

use crate::member::{MemberRole, Output, Replica};
use crate::message::Knowledge;
use crate::recovery::{Recovery, RecoveryLoss, RecoveryPlan, RecoveryRefusal};
use crate::rule::Rule;

impl<D: Clone + Debug + Eq + Hash + Ord> Replica<D> {
    /// Its knowledge, for an operator.
    pub fn knowledge(&self) -> Knowledge {
        Knowledge {
            life: self.life,
            promised: self.promised,
            record: self.record.clone(),
            reigns: self.is_primary(),
            filled_since: self.filled_since,
            cut: self.holding.cuts.last().copied(),
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
        let (own, asked) = (self.knowledge(), self.swap.as_ref().map_or(0, |it| it.epoch));
        let mut plan = recovery.plan((self.id, &own), self.serves(now_ns), asked)?;
        if self.breaks(Rule::RecoveredEpochsAreNew) {
            plan.record.epoch = self.record.as_ref().map_or(0, |record| record.epoch) + 1;
            plan.record.reign = plan.record.reign.min(plan.record.epoch);
        }
        Ok(plan)
    }

    /// Has this copy serve, as soon as leases are over that it may have given.
    pub(crate) fn recover(&mut self, now_ns: u64, recovery: Recovery, out: &mut Vec<Output<D>>) {
        if self.remake.is_none() {
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
        if plan.loss > RecoveryLoss::Unflushed && !recovery.gives_up {
            return;
        }
        // A swap without an answer that was asked for before may have come first. Its members are
        // needed until the outcome of this one is known.
        self.swap_before = self.swap.replace(plan.record.clone());
        self.remake = Some(plan.clone());
        out.push(Output::Remake(plan));
    }
}
