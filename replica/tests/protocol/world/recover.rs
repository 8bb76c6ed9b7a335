//! A registry that loses the volume's record, and an operator that has a copy serve.

use std::collections::{BTreeMap, BTreeSet};

use replica::{
    Input, Knowledge, MemberId, Place, Recovery, RecoveryLoss, RecoveryPlan, RecoveryRefusal,
    SwapOutcome, VolumeRecord,
};

use super::action::Action;
use super::disk::{Disk, Loss};
use super::{Case, Post, World};

impl World {
    /// It is another registry: a swap that was sent to the old registry never arrives.
    pub(crate) fn forget_swaps(&mut self) {
        let is_other = |post: &Post| !matches!(post, Post::Swap(..) | Post::Remake(..));
        self.wire.retain(is_other);
        self.held.retain(is_other);
    }

    /// No process hears an answer of the registry to the process before it.
    pub(crate) fn forget_answers(&mut self, id: MemberId) {
        let is_other = |post: &Post| !matches!(post, Post::Swapped(of, ..) if *of == id);
        self.wire.retain(is_other);
        self.held.retain(is_other);
    }

    /// Whether an answer of the registry is on its way.
    pub(crate) fn is_answered(&self, id: MemberId, target: &VolumeRecord) -> bool {
        let mut posts = self.wire.iter().chain(&self.held);
        posts.any(|post| matches!(post, Post::Swapped(of, _, it, _) if of == &id && it == target))
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

    /// A later recovery has a larger draw, and known epochs are in between.
    fn draw(&self) -> u64 {
        4 * (16 - u64::from(self.budget.recoveries))
    }

    pub(crate) fn word(
        &self,
        id: MemberId,
        answers: BTreeMap<MemberId, Knowledge>,
        gives_up: bool,
    ) -> Recovery {
        let accepts = if gives_up { RecoveryLoss::Mixed } else { RecoveryLoss::Unflushed };
        let members = (0..self.nodes.len() as MemberId).filter(|other| *other != id).collect();
        let known = self.nodes[usize::from(id)].member.record();
        let asked_epoch = known.map_or(0, |record| record.epoch);
        Recovery { members, answers, asked_epoch, accepts, draw: self.draw() }
    }

    pub(crate) fn plan(
        &self,
        case: &Case,
        id: MemberId,
        recovery: &Recovery,
    ) -> Result<RecoveryPlan, RecoveryRefusal> {
        self.nodes[usize::from(id)].member.recovery_plan(case.now(), recovery)
    }

    pub(crate) fn recover(&mut self, case: &Case, gives_up: bool) {
        self.budget.recoveries -= 1;
        let Some((id, asked)) = self.asked.take() else { return };
        let asked_epoch = asked.asked_epoch;
        let recovery = Recovery { asked_epoch, ..self.word(id, asked.answers, gives_up) };
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
        let Some((id, asked)) = self.asked.as_ref().filter(|(id, _)| runs(id)) else { return };
        actions.push(Action::Recover(false));
        let mut others = (0..self.nodes.len() as MemberId).filter(|other| other != id);
        if others.all(|other| asked.answers.contains_key(&other) || self.has_ended(other)) {
            actions.push(Action::Recover(true));
        }
    }

    /// The registry makes the record anew, if no node of a member that was not heard is present.
    pub(crate) fn remake(&mut self, plan: &RecoveryPlan) -> SwapOutcome {
        let RecoveryPlan { known, record, heard, unheard, loss } = plan;
        if !self.has_lost && self.registry == *record {
            return SwapOutcome::Done;
        }
        if !self.has_lost && self.registry.epoch > known.epoch {
            return SwapOutcome::Conflict(self.registry.clone());
        }
        let is_asked = |id: &MemberId| heard.as_ref().is_none_or(|heard| heard.contains(id));
        let mut others: BTreeSet<_> = self.ids().filter(|id| !is_asked(id)).collect();
        let has_more = unheard.is_empty() && !others.is_empty();
        others.extend(unheard);
        if has_more || others.iter().any(|id| !self.has_ended(*id)) {
            return SwapOutcome::Conflict(known.clone());
        }
        self.check_choice(plan);
        let gives_up = *loss > RecoveryLoss::Unflushed;
        let id = record.primary;
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
            let runs_on = plan.known.has(id, self.nodes[usize::from(id)].member.life());
            self.incarnation = record.incarnation;
            self.lose(id, (gives_up, runs_on));
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

    /// A copy serves while no copy that was heard has more.
    fn check_choice(&mut self, plan: &RecoveryPlan) {
        let RecoveryPlan { known, record, unheard, loss, .. } = plan;
        // A member may know of an admission of which the admitted member has not heard. A copy that
        // never began to be filled is empty, also if a record has it: an operator had it serve, and
        // it was restarted before it heard of that (seed 108955).
        let has_begun = |disk: &Disk| {
            disk.durable_of_member.filled_since.is_some_and(|since| since != Place::default())
        };
        let is_mixed = |id: &MemberId, disk: &Disk| {
            disk.is_mixed && !(has_begun(disk) && known.in_sync.contains_key(id))
        };
        let disk = |id: &MemberId| &self.nodes[usize::from(*id)].disk;
        let id = record.primary;
        let heard = self.ids().filter(|other| *other != id && !unheard.contains(other));
        let (mut breach, own) = (None, disk(&id));
        for other in heard {
            let its = disk(&other);
            if is_mixed(&id, own) && !is_mixed(&other, its) {
                breach = Some("a copy that is being filled was chosen");
            }
            // A copy that was to go back, and whose process ended before it has, is marked all the
            // same: nothing tells it from a copy that is half filled (seed 1288556).
            let is_whole = !is_mixed(&other, its) && !has_begun(its);
            // Since its answer the other copy may have heard that it was the primary in a life that
            // has ended (seed 1873111).
            if *loss == RecoveryLoss::Newer && is_whole && its.held_in > own.was_in {
                breach = Some("an older copy was chosen while a newer one has answered");
            }
        }
        if let Some(breach) = breach {
            self.broken.get_or_insert(breach.to_owned());
        }
    }

    /// An operator asks all members, and has the copy with the least loss serve. A member that
    /// serves by an older record is stopped first, as the command says.
    pub(crate) fn recover_fairly(&mut self, case: &Case) {
        let mut older = None;
        for gives_up in [false, true] {
            for id in self.ids() {
                let recovery = self.word(id, self.survey(id), gives_up);
                let plan = self.plan(case, id, &recovery);
                if let Err(RecoveryRefusal::ServesOlder(other)) = plan {
                    older = Some(other);
                }
                if plan.is_ok_and(|plan| gives_up || plan.loss <= RecoveryLoss::Unflushed) {
                    return self.step(case, id, Input::Recover(recovery));
                }
            }
        }
        if let Some(other) = older {
            self.restart(case, other, Loss::Nothing);
        }
    }
}
