//! An operator has a member's copy serve: the answers of the other members, and the plan.

use std::collections::{BTreeMap, BTreeSet};

use replica::SwapOutcome;
use replica::{Input, Knowledge, MemberId, Message, Recovery, RecoveryPlan, RecoveryRefusal};

use super::{Outbox, VolumeMember};

/// The answers of other members to a question.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    number: u64,
    /// The epoch of the record that the member knew at the question.
    asked_epoch: u64,
    answers: BTreeMap<MemberId, Knowledge>,
}

/// The part of a member in a recovery, at some moment.
#[derive(Clone, Debug)]
pub struct RecoveryView {
    /// The knowledge of the member itself.
    pub own: Knowledge,
    /// The other members, and the knowledge of members that have answered.
    pub recovery: Recovery,
    /// The plan, or why there is none.
    pub plan: Result<RecoveryPlan, RecoveryRefusal>,
    /// Whether a recovery waits for the end of leases, or for the registry.
    pub goes_on: bool,
    /// Why the registry has not taken the last recovery.
    pub refused: Option<String>,
}

impl VolumeMember {
    /// Asks other members what they know. A question with the number of the last one keeps the
    /// answers that came.
    pub(crate) fn ask(&mut self, number: u64, others: &BTreeSet<MemberId>, out: &mut Outbox) {
        let asked_epoch = self.replica.record().map_or(0, |record| record.epoch);
        if self.survey.number != number {
            self.refused = None;
        }
        // Answers of before a newer record are of no use.
        if (self.survey.number, self.survey.asked_epoch) != (number, asked_epoch) {
            self.survey = Survey { number, asked_epoch, ..Survey::default() };
        }
        let unheard = others.iter().filter(|id| !self.survey.answers.contains_key(id));
        out.messages.extend(unheard.map(|id| (*id, Message::Ask { number })));
    }

    pub(super) fn note_answer(&mut self, from: MemberId, number: u64, knowledge: Knowledge) {
        if self.survey.number == number {
            self.survey.answers.insert(from, knowledge);
        }
    }

    pub(crate) fn recovery(&self, now_ns: u64, members: BTreeSet<MemberId>) -> RecoveryView {
        let Survey { asked_epoch, answers, .. } = self.survey.clone();
        let recovery = Recovery { members, answers, asked_epoch, ..Recovery::default() };
        let plan = self.replica.recovery_plan(now_ns, &recovery);
        let (own, refused) = (self.replica.knowledge(), self.refused.clone());
        RecoveryView { own, recovery, plan, goes_on: self.replica.recovers(), refused }
    }

    /// The registry has not taken a recovery: nothing was changed.
    pub(super) fn not_remade(&mut self, plan: RecoveryPlan, why: String) {
        (self.swapping, self.refused) = (None, Some(why));
        self.inputs.push(Input::Swapped(plan.record, SwapOutcome::Conflict(plan.known)));
    }
}
