//! A backup: operations that it stores, promises that it gives, and when it takes over.

use std::fmt::Debug;
use std::hash::Hash;

use crate::member::{MemberRole, Output, Replica};
use crate::message::{Counter, Message, Op, Place};
use crate::record::{Life, MemberId, VolumeRecord};
use crate::recovery::RECOVERY_MARGIN;
use crate::rule::Rule;

impl<D: Clone + Debug + Eq + Hash + Ord> Replica<D> {
    /// Takes over from a primary that was silent for too long.
    pub(crate) fn backup_timer(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        let Some(record) = &self.record else { return };
        if self.is_past_reign(record.reign) {
            // The primary may have gone on without this member, and then says nothing to it.
            out.push(Output::Look);
        }
        // A primary whose process ended in order has given no lease since it became the primary,
        // unless an operator's record made it the primary without its asking.
        let is_remade = record.reign.saturating_sub(self.holding.began.reign) >= RECOVERY_MARGIN;
        let lets_leases_end = is_remade && !self.breaks(Rule::RemadeReignsLetLeasesEnd);
        let was_primary = record.primary == self.id && !lets_leases_end;
        let is_patient = now_ns < self.granted_ns + self.pacing.patience_ns;
        if is_patient && !was_primary || self.swap.is_some() {
            return;
        }
        self.take_over(out);
    }

    /// A process of another member has ended: it uses no lease any more, so that no member has to
    /// wait for one.
    pub(crate) fn over(&mut self, member: MemberId, life: Life, out: &mut Vec<Output<D>>) {
        let Some(record) = &self.record else { return };
        // The member may have come back with another life.
        let is_its = record.has(member, life)
            || self.breaks(Rule::ProofsAreOfOneLife) && record.in_sync.contains_key(&member);
        if member == self.id || !is_its || self.swap.is_some() {
            return;
        }
        match &self.role {
            MemberRole::Primary(_) => self.ask_for(record.without(member), out),
            MemberRole::Backup if record.primary == member => self.take_over(out),
            MemberRole::Backup | MemberRole::Outside(_) => {}
        }
    }

    fn take_over(&mut self, out: &mut Vec<Output<D>>) {
        let Some(record) = &self.record else { return };
        let target = match record.primary == self.id {
            true => record.moved_to(self.id),
            false => record.taken_by(self.id),
        };
        // From now on the old primary gets no lease here.
        self.promised = self.promised.max(target.epoch);
        self.keep(out);
        self.ask_for(target, out);
        out.push(Output::Look);
    }

    /// Whether a message of this epoch is too old to be heard.
    pub(crate) fn is_past(&self, epoch: u64) -> bool {
        // While an operator's record is asked for, no primary of before gets anything here.
        let remade = self.remake.as_ref().map_or(0, |plan| plan.record.epoch);
        !self.breaks(Rule::KeepPromises) && epoch < self.promised.max(remade)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(crate) fn ping(
        &mut self,
        now_ns: u64,
        from: MemberId,
        record: VolumeRecord,
        life: Life,
        sent_ns: u64,
        held: Counter,
        out: &mut Vec<Output<D>>,
    ) {
        let (epoch, reign) = (record.epoch, record.reign);
        if self.is_past(epoch) || record.primary != from {
            // The primary of before may learn of the newer record in no other way.
            if self.record.as_ref().is_some_and(|known| known.epoch > epoch) {
                self.say_life(from, None, out);
            }
            return;
        }
        self.adopt(now_ns, record, out);
        if matches!(self.role, MemberRole::Primary(_)) || life != self.life {
            return;
        }
        if let MemberRole::Outside(outside) = &mut self.role {
            outside.heard_ns = now_ns;
        }
        (self.granted_ns, self.recovery) = (now_ns, None);
        if self.role == MemberRole::Backup && self.is_past_reign(reign) {
            return;
        }
        if self.holding.began.reign == reign {
            self.holding.all_have(held);
        }
        out.push(Output::Send(from, Message::Pong { epoch, life, sent_ns }));
        self.say_held(out);
    }

    /// Hears no older primary any more, and says which sectors it may have that other members lack.
    pub(crate) fn seal(
        &mut self,
        now_ns: u64,
        from: MemberId,
        record: VolumeRecord,
        out: &mut Vec<Output<D>>,
    ) {
        let (epoch, reign) = (record.epoch, record.reign);
        if self.is_past(epoch) || record.primary != from {
            return;
        }
        self.adopt(now_ns, record, out);
        let is_backup = self.role == MemberRole::Backup && !self.is_past_reign(reign);
        if !is_backup || self.holding.stored != self.holding.issued {
            return;
        }
        if self.holding.began.reign != reign {
            let began = Place { reign, counter: 0 };
            match self.breaks(Rule::NumbersOfOneReign) {
                true => self.holding.began = began,
                false => self.holding.begin(began),
            }
        }
        self.granted_ns = now_ns;
        let (life, tail) = (self.life, self.holding.whole_tail());
        out.push(Output::Send(from, Message::Sealed { epoch, life, tail }));
    }

    /// Stores an operation of the primary, if it is the next one.
    pub(crate) fn append(
        &mut self,
        from: MemberId,
        (epoch, life, began): (u64, Life, Counter),
        counter: Counter,
        op: Op<D>,
        out: &mut Vec<Output<D>>,
    ) {
        let Some(record) = &self.record else { return };
        let is_known =
            record.epoch == epoch && record.primary == from || self.breaks(Rule::KeepPromises);
        let is_attempt =
            self.holding.began.counter == began || self.breaks(Rule::AnswersOfOneAdmission);
        let follows = self.follows(record) && is_attempt;
        if !is_known || !follows || self.is_past(epoch) || life != self.life {
            return;
        }
        if counter == self.holding.issued + 1 && self.has_place(&op) {
            self.take(counter, op, out);
        } else if counter <= self.holding.stored {
            self.say_held(out);
        }
    }

    /// Whether the table of applied requests has a place for it. A primary that keeps to the
    /// protocol sends no other operation.
    fn has_place(&self, op: &Op<D>) -> bool {
        match op {
            Op::Write { id, .. }
            | Op::Flush { id }
            | Op::Note { id, .. }
            | Op::Snapshot { id, .. } => self.holding.applied.takes(id.client),
            _ => true,
        }
    }

    /// Whether it stores the operations of the record's primary.
    pub(crate) fn follows(&self, record: &VolumeRecord) -> bool {
        let joins = match &self.role {
            MemberRole::Outside(outside) => outside.joins,
            MemberRole::Backup => !self.is_past_reign(record.reign),
            MemberRole::Primary(_) => false,
        };
        joins && self.holding.began.reign == record.reign
    }

    /// Says up to which operation all are stored.
    pub(crate) fn say_held(&self, out: &mut Vec<Output<D>>) {
        let Some(record) = self.record.as_ref().filter(|record| self.follows(record)) else {
            return;
        };
        let (life, began, counter) = (self.life, self.holding.began, self.holding.stored);
        let held = Message::Held { life, began, counter, left_out: self.holding.left_out };
        out.push(Output::Send(record.primary, held));
    }
}
