//! A registry that loses the volume's record, and an operator that has a copy serve.

use std::collections::BTreeMap;

use replica::{
    Input, Knowledge, MemberId, Recovery, RecoveryLoss, RecoveryPlan, RecoveryRefusal, SwapOutcome,
};

use super::action::Action;
use super::{Case, Post, World};

impl World {
    /// It is another registry: a swap that was sent to the old registry never arrives.
    pub(crate) fn forget_swaps(&mut self) {
        let is_other = |post: &Post| !matches!(post, Post::Swap(..) | Post::Remake(..));
        self.wire.retain(is_other);
        self.held.retain(is_other);
    }

    pub(crate) fn lose_record(&mut self) {
        self.budget.losses -= 1;
        self.has_lost = true;
        self.asked = None;
        self.forget_swaps();
    }

    /// The answers of the members that a member reaches.
    pub(crate) fn survey(&self, asker: MemberId) -> BTreeMap<MemberId, Knowledge> {
        let is_heard = |id: &MemberId| {
            let is_cut = self.cut.contains(&(asker, *id)) || self.cut.contains(&(*id, asker));
            *id != asker && self.nodes[usize::from(*id)].runs() && !is_cut
        };
        let heard = self.ids().filter(is_heard);
        heard.map(|id| (id, self.nodes[usize::from(id)].member.knowledge())).collect()
    }

    fn word(
        &self,
        id: MemberId,
        answers: BTreeMap<MemberId, Knowledge>,
        gives_up: bool,
    ) -> Recovery {
        let members = (0..self.nodes.len() as MemberId).filter(|other| *other != id).collect();
        Recovery { members, answers, gives_up }
    }

    fn plan(
        &self,
        case: &Case,
        id: MemberId,
        recovery: &Recovery,
    ) -> Result<RecoveryPlan, RecoveryRefusal> {
        self.nodes[usize::from(id)].member.recovery_plan(case.now(), recovery)
    }

    pub(crate) fn recover(&mut self, case: &Case, gives_up: bool) {
        self.budget.recoveries -= 1;
        let Some((id, answers)) = self.asked.take() else { return };
        let recovery = self.word(id, answers, gives_up);
        self.step(case, id, Input::Recover(recovery));
    }

    /// Whether no process has this member: an operator says so of members that have not answered.
    fn has_ended(&self, id: MemberId) -> bool {
        let node = &self.nodes[usize::from(id)];
        node.is_gone || node.is_stopped
    }

    /// The steps of an operator that may come now.
    pub(crate) fn recoveries(&self, case: &Case, actions: &mut Vec<Action>) {
        // Answers of members while the registry had the record say nothing about a lost one.
        let is_first = self.budget.recoveries == case.budget.recoveries;
        if is_first && self.budget.losses > 0 && !self.has_lost && !self.is_restored {
            actions.push(Action::LoseRecord);
        }
        if self.budget.recoveries == 0 || self.is_restored {
            return;
        }
        let runs = |id: &MemberId| self.nodes[usize::from(*id)].runs();
        actions.extend(self.ids().filter(runs).map(Action::Ask));
        let Some((id, answers)) = self.asked.as_ref().filter(|(id, _)| runs(id)) else { return };
        actions.push(Action::Recover(false));
        let mut others = (0..self.nodes.len() as MemberId).filter(|other| other != id);
        if others.all(|other| answers.contains_key(&other) || self.has_ended(other)) {
            actions.push(Action::Recover(true));
        }
    }

    /// The registry makes the record anew, if no node of a member that was not heard is present.
    pub(crate) fn remake(&mut self, _: &Case, plan: &RecoveryPlan) -> SwapOutcome {
        let RecoveryPlan { known, record, unheard, loss } = plan;
        if !self.has_lost && self.registry == *record {
            return SwapOutcome::Done;
        }
        if !self.has_lost && self.registry.epoch > known.epoch {
            return SwapOutcome::Conflict(self.registry.clone());
        }
        if unheard.iter().any(|id| !self.has_ended(*id)) {
            return SwapOutcome::Conflict(known.clone());
        }
        let gives_up = *loss > RecoveryLoss::Unflushed;
        let id = record.primary;
        let is_whole = |id: &MemberId| !self.nodes[usize::from(*id)].disk.is_mixed;
        let heard = self.ids().filter(|other| *other != id && !unheard.contains(other));
        let has_other = heard.into_iter().any(|other| is_whole(&other));
        if !is_whole(&id) && has_other && self.broken.is_none() {
            self.broken = Some("a copy that is being filled was chosen".to_owned());
        }
        if *loss > RecoveryLoss::Nothing {
            // A member that the registry alone has admitted counts as out of sync.
            let known = self.nodes.iter().filter_map(|node| node.member.record());
            let newest = known.max_by_key(|record| record.epoch);
            let keeps = |id: &MemberId| {
                let node = &self.nodes[usize::from(*id)];
                !node.is_gone && newest.is_some_and(|it| it.has(*id, node.member.life()))
            };
            if !gives_up && self.ids().any(|id| keeps(&id)) && self.broken.is_none() {
                self.broken = Some("an operator gave up a member that lost nothing".to_owned());
            }
            self.lose(id, gives_up);
        }
        if gives_up {
            // Epochs of clients that only the lost copies knew.
            self.claims.clear();
            self.granted.clear();
        }
        self.has_lost = false;
        self.put(record);
        SwapOutcome::Done
    }

    /// An operator asks all members, and has the copy with the least loss serve.
    pub(crate) fn recover_fairly(&mut self, case: &Case) {
        for gives_up in [false, true] {
            for id in self.ids() {
                let recovery = self.word(id, self.survey(id), gives_up);
                let plan = self.plan(case, id, &recovery);
                if plan.is_ok_and(|plan| gives_up || plan.loss <= RecoveryLoss::Unflushed) {
                    return self.step(case, id, Input::Recover(recovery));
                }
            }
        }
    }
}
