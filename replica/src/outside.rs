//! A member that is not in sync: how it finds the primary, and what it does until it is admitted.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;

use crate::member::{MemberRole, Output, Replica};
use crate::message::{Counter, Message, Place};
use crate::record::{Life, MemberId, VolumeRecord};
use crate::rule::Rule;

/// The state of a member that is not in sync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Outside {
    /// It has gone back to a cut of the primary's, and stores what comes.
    pub(crate) joins: bool,
    /// When the primary was heard last.
    pub(crate) heard_ns: u64,
    /// The lives of members that the record has in sync, as they said them; none for a member
    /// whose copy is gone for good.
    lives: BTreeMap<MemberId, Option<Life>>,
}

impl<D: Clone + Debug + Eq + Hash + Ord> Replica<D> {
    pub(crate) fn outside_timer(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        let MemberRole::Outside(outside) = &self.role else { return };
        if outside.joins && now_ns < outside.heard_ns + self.pacing.patience_ns {
            return;
        }
        out.push(Output::Look);
        let Some(record) = self.record.clone() else { return };
        // A member that joins stays as it is: it may have been admitted and not know it yet.
        if record.primary != self.id {
            let (life, cuts) = (self.life, self.holding.cuts.clone());
            let join = Message::Join { epoch: record.epoch, life, cuts };
            out.push(Output::Send(record.primary, join));
        }
        let is_patient = now_ns < self.granted_ns + self.pacing.patience_ns;
        if self.breaks(Rule::OnlyMembersInSyncServe) && !is_patient {
            return self.ask_for(record.restarted(self.id, self.life), out);
        }
        if record.in_sync.contains_key(&self.id) {
            for other in record.others(self.id) {
                let hello = Message::Hello { life: self.life, epoch: record.epoch };
                out.push(Output::Send(other, hello));
            }
            self.restart_alone(now_ns, &record, out);
        }
    }

    /// A member has said its life.
    pub(crate) fn alive(
        &mut self,
        now_ns: u64,
        from: MemberId,
        life: Life,
        record: Option<VolumeRecord>,
        answers: Option<(Life, u64)>,
        out: &mut Vec<Output<D>>,
    ) {
        if let Some(record) = record {
            self.adopt_told(now_ns, record, out);
        }
        let Some(record) = self.record.clone() else { return };
        // An older answer may be of a life that the record is newer than.
        let is_old = answers != Some((self.life, record.epoch));
        if is_old && !self.breaks(Rule::LivesOnRequest) {
            return;
        }
        if let MemberRole::Outside(outside) = &mut self.role {
            outside.lives.insert(from, Some(life));
            self.restart_alone(now_ns, &record, out);
        }
    }

    /// A member's copy is gone for good, says an operator.
    pub(crate) fn evicted(&mut self, now_ns: u64, member: MemberId, out: &mut Vec<Output<D>>) {
        let Some(record) = self.record.clone() else { return };
        if !record.in_sync.contains_key(&member) || member == self.id {
            return;
        }
        match &mut self.role {
            MemberRole::Outside(outside) => {
                outside.lives.insert(member, None);
                self.restart_alone(now_ns, &record, out);
            }
            // The primary's silence ends its leases.
            MemberRole::Backup => {}
            MemberRole::Primary(_) => self.ask_for(record.without(member), out),
        }
    }

    /// Goes on alone if all members in sync were restarted, or are gone. Flushed data is here;
    /// other data may be lost, so the incarnation changes.
    fn restart_alone(&mut self, now_ns: u64, record: &VolumeRecord, out: &mut Vec<Output<D>>) {
        let MemberRole::Outside(outside) = &self.role else { return };
        let was_in = record.in_sync.get(&self.id).is_some_and(|life| *life != self.life);
        let is_over = |other: MemberId| {
            let life = outside.lives.get(&other);
            life.is_some_and(|life| life.is_none_or(|life| !record.has(other, life)))
        };
        // A primary that only seems to be gone may have a lease of this member's last life.
        let leases_end_ns = self.granted_ns + self.pacing.patience_ns;
        let is_late = now_ns >= leases_end_ns || self.breaks(Rule::RestartsLetLeasesEnd);
        if was_in && is_late && record.others(self.id).all(is_over) {
            self.ask_for(record.restarted(self.id, self.life), out);
        }
    }

    /// Goes back to a cut that the primary has as well, and stores what comes from now on.
    pub(crate) fn go_back(
        &mut self,
        now_ns: u64,
        from: MemberId,
        (record, life): (VolumeRecord, Life),
        cut: Option<Place>,
        began: Counter,
        out: &mut Vec<Output<D>>,
    ) {
        let is_past = record.epoch < self.promised || self.is_past(record.epoch);
        if is_past || record.primary != from || life != self.life {
            return;
        }
        let began = Place { reign: record.reign, counter: began };
        self.adopt(now_ns, record, out);
        // An old message must not undo an admission: each attempt to join begins later.
        let is_old = began <= self.holding.began && !self.breaks(Rule::AdmissionsAreNotUndone);
        let MemberRole::Outside(outside) = &mut self.role else { return };
        if is_old {
            return;
        }
        (outside.joins, outside.heard_ns) = (true, now_ns);
        // The operator has decided on the content of before.
        (self.resumed, self.recovery) = (None, None);
        self.holding.begin(began);
        self.holding.old_tail.clear();
        self.holding.applied.clear();
        self.holding.own_cut = None;
        // Later cuts have what the members in sync may lack.
        self.holding.cuts.retain(|kept| cut.is_some_and(|cut| *kept <= cut));
        // Before any of it: content between the old state and the new one is neither.
        if !self.breaks(Rule::FillsAreMarked) {
            self.filled_since = Some(began);
            self.keep(out);
        }
        out.push(Output::GoBack(cut));
        self.say_held(out);
    }
}
