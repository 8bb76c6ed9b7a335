//! A member that is not in sync: how it finds the primary, and what it does until it is admitted.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;

use crate::member::{Member, Output, Role};
use crate::message::{Counter, Cut, Message};
use crate::record::{Life, MemberId, Record};
use crate::rule::Rule;

/// The state of a member that is not in sync.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Outside {
    /// It has gone back to a cut of the primary's, and stores what comes.
    pub(crate) joins: bool,
    /// When the primary was heard last.
    pub(crate) heard_ns: u64,
    /// The lives of members that the record has in sync, as they said them.
    lives: BTreeMap<MemberId, Life>,
}

impl<D: Clone + Debug + Eq + Hash + Ord> Member<D> {
    /// Is not in sync any more, or not with this primary.
    pub(crate) fn leave(&mut self) {
        self.role = Role::Outside(Outside::default());
        self.holding.admission += 1;
    }

    pub(crate) fn outside_timer(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        let Role::Outside(outside) = &self.role else { return };
        let Some(record) = self.record.clone() else { return out.push(Output::Look) };
        if outside.joins {
            if now_ns >= outside.heard_ns + self.timing.patience_ns {
                self.leave();
            }
            return;
        }
        out.push(Output::Look);
        if record.primary != self.id {
            let join = Message::Join {
                epoch: record.epoch,
                life: self.life,
                admission: self.holding.admission,
                cuts: self.holding.cuts.clone(),
            };
            out.push(Output::Send(record.primary, join));
        }
        let is_patient = now_ns < self.granted_ns + self.timing.patience_ns;
        if self.breaks(Rule::OnlyMembersInSyncServe) && !is_patient {
            return self.ask_for(record.restarted(self.id, self.life), out);
        }
        if record.in_sync.contains_key(&self.id) {
            self.restart_alone(&record, out);
            for other in record.others(self.id) {
                out.push(Output::Send(other, Message::Hello));
            }
        }
    }

    /// A member has said its life.
    pub(crate) fn alive(
        &mut self,
        now_ns: u64,
        from: MemberId,
        life: Life,
        record: Option<Record>,
        out: &mut Vec<Output<D>>,
    ) {
        if let Some(record) = record {
            self.adopt(now_ns, record, out);
        }
        let Some(record) = self.record.clone() else { return };
        if let Role::Outside(outside) = &mut self.role {
            outside.lives.insert(from, life);
            self.restart_alone(&record, out);
        }
    }

    /// Goes on alone if all members in sync have said that they were restarted. What was flushed is
    /// here; what was not may be lost, so the incarnation changes.
    fn restart_alone(&mut self, record: &Record, out: &mut Vec<Output<D>>) {
        let Role::Outside(outside) = &self.role else { return };
        let was_in = record.in_sync.get(&self.id).is_some_and(|life| *life != self.life);
        let is_restarted = |other: MemberId| {
            outside.lives.get(&other).is_some_and(|life| !record.has(other, *life))
        };
        if was_in && record.others(self.id).all(is_restarted) {
            self.ask_for(record.restarted(self.id, self.life), out);
        }
    }

    /// Goes back to a cut that the primary has as well, and stores what comes from now on.
    pub(crate) fn go_back(
        &mut self,
        now_ns: u64,
        record: Record,
        (life, admission): (Life, u32),
        cut: Option<Cut>,
        counter: Counter,
        out: &mut Vec<Output<D>>,
    ) {
        if record.epoch < self.promised || life != self.life {
            return;
        }
        let reign = record.reign;
        self.adopt(now_ns, record, out);
        let Role::Outside(outside) = &mut self.role else { return };
        if outside.joins || admission != self.holding.admission {
            return;
        }
        (outside.joins, outside.heard_ns) = (true, now_ns);
        self.holding.begin(reign, counter);
        self.holding.old_tail.clear();
        self.holding.applied.clear();
        // Later cuts have what the members in sync may lack.
        self.holding.cuts.retain(|kept| cut.is_some_and(|cut| *kept <= cut));
        out.push(Output::GoBack(cut));
        self.say_held(out);
    }
}
