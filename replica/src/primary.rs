//! The member that serves: it orders operations, waits for its backups, and admits members.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;

use crate::applied::RequestId;
use crate::extent::{Extent, ExtentSet};
use crate::fetch::{Fetch, Mends};
use crate::flights::Flights;
use crate::follower::{Follower, Joining, Written};
use crate::member::{
    ChangedPart, ClientRequest, Holding, MemberRole, Output, Pacing, Replica, TAIL_RANGES_MAX,
};
use crate::message::{Counter, Message, NOTE_BYTES_MAX, Op, Place};
use crate::record::{Life, MEMBERS_MAX, MemberId, MemberSet};
use crate::rule::Rule;
use crate::scrub::Scrub;

/// How far a new primary is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ReignPhase {
    /// It waits until all backups hear no older primary; these backups do not, and these sectors
    /// may differ.
    Sealing { sealed: BTreeSet<MemberId>, tails: ExtentSet },
    /// It sends its own content of these sectors.
    Equalising { left: ExtentSet, fetching: BTreeSet<Extent>, until: Option<Counter> },
    /// It takes requests.
    Serving,
    /// It takes no more of them, and makes that member the primary when all have ended.
    Moving { to: MemberId },
}

/// A read of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientRead {
    extent: Extent,
    /// It is being fetched, or what was fetched is being mended.
    pub(crate) is_fetched: bool,
    /// How often the storage could not read it since a block was last mended for it.
    pub(crate) failed: u8,
    /// How often each block was mended for it, by the block's first sector.
    pub(crate) mends: BTreeMap<u64, u8>,
}

/// The state of a primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Primary<D> {
    pub(crate) reign: u64,
    phase: ReignPhase,
    /// An operator's record made it the primary, perhaps without its asking: it may have given a
    /// lease to a primary of before until then.
    lets_leases_end: bool,
    pub(crate) counter: Counter,
    /// The last operation that was acknowledged: all members that were needed then have those
    /// before it. A member that is needed since may not have them yet.
    acknowledged: Counter,
    /// The last change of the snapshots.
    snapshot: Counter,
    /// Operations that some member lacks, with the request that waits for each.
    flights: Flights<D>,
    waits: BTreeMap<Counter, RequestId>,
    pub(crate) reads: BTreeMap<RequestId, ClientRead>,
    /// Fetches that the storage could not do.
    pub(crate) mends: Mends,
    /// The scrub that is under way or was the last one, and the looks of all scrubs so far.
    pub(crate) scrub: Option<Box<Scrub>>,
    pub(crate) scrub_looks: u64,
    pub(crate) followers: BTreeMap<MemberId, Follower>,
}

impl<D> Primary<D> {
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.phase, ReignPhase::Serving | ReignPhase::Moving { .. })
    }

    /// The members that join, with the sector from which on the difference is not known.
    pub(crate) fn filling(&self) -> impl Iterator<Item = (MemberId, Option<u64>)> + '_ {
        let compared = |it: &Follower| Some(it.joining.as_ref()?.compared);
        self.followers.iter().filter_map(move |(id, it)| Some((*id, compared(it)?)))
    }

    /// Whether a member that joins has gone back to the cut, and the difference from it is not
    /// known as a whole yet.
    pub(crate) fn uses(&self, cut: Place) -> bool {
        let joining = self.followers.values().filter_map(|follower| follower.joining.as_ref());
        joining.filter(|joining| joining.compared.is_some()).any(|it| it.cut == Some(cut))
    }

    /// Whether the member joins, by the attempt that began there, and its difference is not known
    /// as a whole yet.
    pub(crate) fn compares(&self, member: MemberId, began: Place) -> bool {
        let follower = self.followers.get(&member);
        follower.is_some_and(|follower| {
            began == (Place { reign: self.reign, counter: follower.began })
                && follower.joining.as_ref().is_some_and(|joining| joining.compared.is_some())
        })
    }

    /// The place of the last change of the snapshots, and the members in sync that have left it
    /// out. `own` is this member, with the last change that it has left out itself.
    pub(crate) fn last_snapshot(&self, own: (MemberId, Counter)) -> Option<(Place, Vec<MemberId>)> {
        let counter = Some(self.snapshot).filter(|counter| *counter > 0)?;
        let in_sync = self.followers.iter().filter(|(_, it)| it.joining.is_none());
        let all = in_sync.map(|(id, it)| (*id, it.left_out)).chain([own]);
        let without = all.filter(|(_, left_out)| *left_out == counter).map(|(id, _)| id).collect();
        Some((Place { reign: self.reign, counter }, without))
    }

    pub(crate) fn takes_requests(&self) -> bool {
        self.phase == ReignPhase::Serving
    }

    pub(crate) fn has_room(&self) -> bool {
        self.flights.has_room()
    }

    pub(crate) fn has_room_to_fill(&self) -> bool {
        self.flights.has_room_to_fill()
    }

    /// The members that join and are about to be admitted.
    fn admitted(&self) -> impl Iterator<Item = MemberId> + '_ {
        let is_equal = |follower: &Follower| {
            follower.joining.as_ref().is_some_and(|joining| joining.acknowledged.is_some())
        };
        self.followers.iter().filter(move |(_, follower)| is_equal(follower)).map(|(id, _)| *id)
    }

    pub(crate) fn age(&mut self, by_ns: u64) {
        self.flights.age(by_ns);
        self.mends.age(by_ns);
        self.scrub.iter_mut().for_each(|scrub| scrub.age(by_ns));
        for follower in self.followers.values_mut() {
            follower.heard_ns = follower.heard_ns.saturating_sub(by_ns);
            let lease_ns = follower.lease_ns.map(|lease_ns| lease_ns.saturating_sub(by_ns));
            follower.lease_ns = lease_ns.filter(|lease_ns| *lease_ns > 0);
        }
    }

    /// Whether a member in sync may lack an operation on the range, if all have the operations up
    /// to `held`.
    pub(crate) fn is_in_flight(&self, extent: Extent, held: Counter) -> bool {
        self.flights.behind(held).any(|(_, op)| match op {
            Op::Write { extent: other, .. } | Op::Equal { extent: other, .. } => {
                other.overlaps(&extent)
            }
            _ => false,
        })
    }
}

impl<D: Clone + Debug + Eq + Hash + Ord> Replica<D> {
    pub(crate) fn primary(&mut self) -> Option<&mut Primary<D>> {
        match &mut self.role {
            MemberRole::Primary(primary) => Some(primary),
            _ => None,
        }
    }

    /// Begins a reign. `is_remade`: by a record that an operator has made.
    pub(crate) fn become_primary(
        &mut self,
        now_ns: u64,
        is_remade: bool,
        out: &mut Vec<Output<D>>,
    ) {
        let Some(record) = &self.record else { return };
        let others = record.in_sync.iter().filter(|(id, _)| **id != self.id);
        let follower = |life| Follower::new(life, 0, now_ns, None);
        let followers = others.map(|(id, life)| (*id, follower(*life))).collect();
        let reign = record.reign;
        let mut counter = 0;
        self.undo_half_equal(out);
        if self.breaks(Rule::NumbersOfOneReign) {
            counter = self.holding.stored;
            self.holding.began = Place { reign, counter: 0 };
        } else {
            self.holding.begin(Place { reign, counter: 0 });
        }
        let tails = self.holding.whole_tail();
        let phase = ReignPhase::Sealing { sealed: BTreeSet::new(), tails };
        self.role = MemberRole::Primary(Box::new(Primary {
            reign,
            phase,
            lets_leases_end: is_remade && !self.breaks(Rule::RemadeReignsLetLeasesEnd),
            counter,
            acknowledged: 0,
            snapshot: 0,
            flights: Flights::default(),
            waits: BTreeMap::new(),
            reads: BTreeMap::new(),
            mends: Mends::default(),
            scrub: None,
            scrub_looks: 0,
            followers,
        }));
        self.send_seals(out);
    }

    /// The record has changed, and this member is still its primary.
    pub(crate) fn record_changed(&mut self, out: &mut Vec<Output<D>>) {
        let Some(record) = self.record.clone() else { return };
        let me = self.id;
        let Some(primary) = self.primary() else { return };
        primary
            .followers
            .retain(|id, follower| record.in_sync.contains_key(id) || follower.joining.is_some());
        let mut has_joined = false;
        for other in record.others(me) {
            if let Some(follower) = primary.followers.get_mut(&other) {
                has_joined |= follower.joining.take().is_some();
            }
        }
        if has_joined && primary.phase == ReignPhase::Serving {
            self.issue(Op::Cut, out);
        }
    }

    fn send_seals(&self, out: &mut Vec<Output<D>>) {
        let (MemberRole::Primary(primary), Some(record)) = (&self.role, &self.record) else {
            return;
        };
        let ReignPhase::Sealing { sealed, .. } = &primary.phase else { return };
        for other in record.others(self.id).filter(|other| !sealed.contains(other)) {
            out.push(Output::Send(other, Message::Seal { record: record.clone() }));
        }
    }

    /// The members that an operation needs besides this one: those of each record that may be the
    /// registry's.
    fn needed(&self) -> MemberSet {
        let Some(record) = &self.record else { return MemberSet::default() };
        let mut needed: MemberSet = record.others(self.id).collect();
        if let MemberRole::Primary(primary) = &self.role {
            primary.admitted().for_each(|id| needed.insert(id));
        }
        for target in self.swaps() {
            if self.breaks(Rule::SwapBeforeAcknowledging) {
                needed = needed.only(|id| target.in_sync.contains_key(&id));
            }
            target.others(self.id).for_each(|id| needed.insert(id));
        }
        needed
    }

    /// Whether reads may be answered: no other member can be the primary at this time.
    pub(crate) fn may_read(&self, now_ns: u64) -> bool {
        let moves = self.swaps().any(|target| target.primary != self.id);
        (self.has_leases(now_ns) || self.breaks(Rule::ReadsNeedLeases))
            && (!moves || self.breaks(Rule::MovedPrimariesAreSilent))
    }

    fn has_leases(&self, now_ns: u64) -> bool {
        let MemberRole::Primary(primary) = &self.role else { return false };
        self.needed().iter().all(|id| {
            let lease_ns = primary.followers.get(&id).and_then(|follower| follower.lease_ns);
            lease_ns.is_some_and(|lease_ns| now_ns < lease_ns + self.pacing.lease_ns)
        })
    }

    pub(crate) fn primary_timer(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        let Some(record) = self.record.clone() else { return };
        let (Pacing { silence_ns, patience_ns, .. }, held) = (self.pacing, self.least_held());
        let asked: MemberSet = self.swaps().flat_map(|it| it.in_sync.keys().copied()).collect();
        self.send_seals(out);
        self.ask_again(out);
        let Some(primary) = self.primary() else { return };
        let mut silent = Vec::new();
        for (id, follower) in &primary.followers {
            // A slow member holds requests back until it has stored some operations. One that joins
            // and stores none begins again.
            let is_stuck = follower.joining.as_ref().is_some_and(|joining| !joining.prepares)
                && primary.flights.are_stuck(now_ns, follower.held, patience_ns);
            // While there is room no operation waits for a member that is filled: it may be silent
            // for longer, or a slow host would begin anew without end.
            let is_filled = |it: &Joining| it.acknowledged.is_none();
            let is_waited_for =
                !follower.joining.as_ref().is_some_and(is_filled) || !primary.flights.has_room();
            let longer_ns = if is_waited_for { 0 } else { patience_ns };
            if now_ns >= follower.heard_ns + silence_ns + longer_ns || is_stuck {
                silent.push(*id);
            }
            let life = follower.life;
            out.push(Output::Send(*id, follower.ping(&record, now_ns, held)));
            if let Some(joining) = &follower.joining {
                out.push(Output::Send(*id, joining.message(&record, life, follower.began)));
            }
            let sent = follower.takes_operations();
            for (counter, op) in primary.flights.behind(follower.held).filter(|_| sent) {
                out.push(Output::Send(*id, follower.append(record.epoch, counter, op.clone())));
            }
        }
        // A member of an older release refuses a proof, and its session begins anew: its ping comes
        // before.
        self.scrub_timer(now_ns, out);
        for id in silent {
            // A member that joins begins again when it is back.
            if record.in_sync.contains_key(&id) {
                self.ask_for(record.without(id), out);
            } else if !asked.iter().any(|member| member == id)
                && let Some(primary) = self.primary()
            {
                primary.followers.remove(&id);
            }
        }
        self.go_on(now_ns, out);
    }

    pub(crate) fn pong(
        &mut self,
        now_ns: u64,
        from: MemberId,
        epoch: u64,
        life: Life,
        sent_ns: u64,
        out: &mut Vec<Output<D>>,
    ) {
        let from_receipt = self.breaks(Rule::LeasesCountFromSending);
        let reign = self.record.as_ref().map_or(0, |record| record.reign);
        let Some(follower) = self.primary().and_then(|primary| primary.followers.get_mut(&from))
        else {
            return;
        };
        // No ping was sent after now.
        if life != follower.life || epoch < reign || sent_ns > now_ns {
            return;
        }
        follower.heard_ns = now_ns;
        let since_ns = if from_receipt { now_ns } else { sent_ns };
        follower.lease_ns = follower.lease_ns.max(Some(since_ns));
        self.go_on(now_ns, out);
    }

    pub(crate) fn sealed(
        &mut self,
        now_ns: u64,
        from: MemberId,
        epoch: u64,
        life: Life,
        tail: ExtentSet,
        out: &mut Vec<Output<D>>,
    ) {
        let skips = self.breaks(Rule::EqualTails);
        let reign = self.record.as_ref().map_or(0, |record| record.reign);
        let Some(primary) = self.primary() else { return };
        let Some(follower) = primary.followers.get_mut(&from) else { return };
        let ReignPhase::Sealing { sealed, tails } = &mut primary.phase else { return };
        if life != follower.life || epoch < reign {
            return;
        }
        follower.heard_ns = now_ns;
        sealed.insert(from);
        if !skips {
            tail.ranges().for_each(|(first, end)| tails.insert(first, end));
            tails.coarsen(TAIL_RANGES_MAX);
        }
        self.go_on(now_ns, out);
    }

    pub(crate) fn held(
        &mut self,
        now_ns: u64,
        from: MemberId,
        life: Life,
        began: Place,
        (counter, left_out): (Counter, Counter),
        out: &mut Vec<Output<D>>,
    ) {
        let checks = !self.breaks(Rule::AnswersOfOneAdmission);
        let Some(primary) = self.primary() else { return };
        let Some(follower) = primary.followers.get_mut(&from) else { return };
        let is_old = life != follower.life || began.counter != follower.began;
        if began.reign != primary.reign || checks && is_old || counter > primary.counter {
            return;
        }
        follower.heard_ns = now_ns;
        follower.held = follower.held.max(counter);
        follower.left_out = follower.left_out.max(left_out);
        if let Some(joining) = &mut follower.joining
            && !joining.has_gone_back
        {
            let has_missed = primary.counter > follower.began;
            if std::mem::take(&mut joining.prepares) && has_missed {
                self.begin_operations(from, out);
            } else {
                joining.has_gone_back = true;
                self.fill(from, out);
            }
        }
        self.go_on(now_ns, out);
    }

    /// A member that joins has gone back: from now on it gets all operations. It goes back once
    /// more, where it is already, since it has missed some.
    fn begin_operations(&mut self, to: MemberId, out: &mut Vec<Output<D>>) {
        let Some(record) = self.record.clone() else { return };
        let Some(primary) = self.primary() else { return };
        let Some(follower) = primary.followers.get_mut(&to) else { return };
        let Some(joining) = &follower.joining else { return };
        (follower.began, follower.held) = (primary.counter, primary.counter);
        let go_back = joining.message(&record, follower.life, follower.began);
        out.push(Output::Send(to, go_back));
    }

    pub(crate) fn request(
        &mut self,
        now_ns: u64,
        id: RequestId,
        incarnation: u64,
        request: ClientRequest<D>,
        out: &mut Vec<Output<D>>,
    ) {
        let now = self.record.as_ref().map_or(0, |record| record.incarnation);
        let applied = self.holding.applied.has(id) && !self.breaks(Rule::RequestsOnce);
        let has_place = self.holding.applied.takes(id.client);
        let is_behind = incarnation > now && !self.breaks(Rule::RefusalsAreOfThePast);
        let Some(primary) = self.primary() else { return };
        if primary.phase != ReignPhase::Serving {
            return;
        }
        // Another member reigns, and a copy of the request may be with it: this member is behind.
        if is_behind {
            return out.push(Output::Look);
        }
        if incarnation != now {
            return out.push(Output::Refuse(id, now));
        }
        match request {
            ClientRequest::Read(extent) => {
                let mends = BTreeMap::new();
                let read = ClientRead { extent, is_fetched: false, failed: 0, mends };
                primary.reads.entry(id).or_insert(read);
                self.fetch_reads(now_ns, out);
            }
            _ if applied => {
                // It was sent again. It waits for the operation, or that has ended.
                let of_it = primary.flights.behind(0).find(|(_, op)| match op {
                    Op::Write { id: other, .. }
                    | Op::Flush { id: other }
                    | Op::Note { id: other, .. }
                    | Op::Snapshot { id: other, .. } => *other == id,
                    _ => false,
                });
                match of_it.map(|(counter, _)| counter) {
                    Some(counter) => _ = primary.waits.insert(counter, id),
                    None => out.push(Output::Answer(id, None)),
                }
            }
            _ if !has_place || primary.flights.is_over() => out.push(Output::Full(id)),
            ClientRequest::Write(extent, data) => {
                let counter = self.issue(Op::Write { id, extent, data }, out);
                self.wait_for(counter, id);
            }
            ClientRequest::Flush => {
                let counter = self.issue(Op::Flush { id }, out);
                self.wait_for(counter, id);
            }
            ClientRequest::Note(note) => {
                debug_assert!(note.len() <= NOTE_BYTES_MAX, "a note fits a message");
                let counter = self.issue(Op::Note { id, note }, out);
                self.wait_for(counter, id);
            }
            ClientRequest::Snapshot(change) => {
                let counter = self.issue(Op::Snapshot { id, change }, out);
                if let Some(primary) = self.primary() {
                    primary.snapshot = counter;
                }
                self.wait_for(counter, id);
            }
        }
    }

    /// No request of the attachment comes any more.
    pub(crate) fn forget(&mut self, attachment: u128, out: &mut Vec<Output<D>>) {
        let applied = &self.holding.applied;
        let is_known = applied.requests().any(|id| id.client.attachment == attachment);
        let Some(primary) = self.primary() else { return };
        primary.reads.retain(|id, _| id.client.attachment != attachment);
        if is_known && primary.phase == ReignPhase::Serving {
            self.issue(Op::Forget(attachment), out);
        }
    }

    fn wait_for(&mut self, counter: Counter, id: RequestId) {
        if let Some(primary) = self.primary() {
            primary.waits.insert(counter, id);
        }
    }

    /// Gives an operation its place, stores it and sends it.
    pub(crate) fn issue(&mut self, op: Op<D>, out: &mut Vec<Output<D>>) -> Counter {
        let epoch = self.record.as_ref().map_or(0, |record| record.epoch);
        let Some(primary) = self.primary() else { return 0 };
        primary.counter += 1;
        let counter = primary.counter;
        primary.flights.insert(counter, op.clone());
        let taking = primary.followers.iter_mut().filter(|(_, it)| it.takes_operations());
        for (id, follower) in taking {
            if let (Some(joining), Op::Write { extent, .. }) = (&mut follower.joining, &op) {
                joining.written(extent);
            }
            out.push(Output::Send(*id, follower.append(epoch, counter, op.clone())));
        }
        let changed = match &op {
            Op::Write { extent, .. } | Op::Equal { extent, .. } => Some(*extent),
            _ => None,
        };
        self.take(counter, op, out);
        if let Some(extent) = changed {
            self.mend_anew(extent, out);
            self.scrub_anew(extent);
        }
        counter
    }

    /// The last operation that all needed members have.
    pub(crate) fn least_held(&self) -> Counter {
        let MemberRole::Primary(primary) = &self.role else { return 0 };
        let of = |id| primary.followers.get(&id).map_or(0, |follower| follower.held);
        self.needed().iter().map(of).fold(self.holding.stored, Counter::min)
    }

    /// Does what has become possible.
    pub(crate) fn go_on(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        let held = self.least_held();
        let Some(primary) = self.primary() else { return };
        primary.acknowledged = primary.acknowledged.max(held);
        // A member that joins gets what it lacks by these as well.
        let taking = primary.followers.values().filter(|follower| follower.takes_operations());
        let sent = taking.map(|follower| follower.held).fold(held, u64::min);
        let later = primary.waits.split_off(&(held + 1));
        let done = std::mem::replace(&mut primary.waits, later);
        out.extend(done.into_values().map(|id| Output::Answer(id, None)));
        primary.flights.all_have(now_ns, sent);
        self.holding.all_have(held);
        self.go_on_with_phase(now_ns, held, out);
        self.fill_further(out);
        self.admit(out);
        self.mend(now_ns, out);
        self.fetch_reads(now_ns, out);
        self.scrub_on(now_ns, out);
    }

    fn go_on_with_phase(&mut self, now_ns: u64, held: Counter, out: &mut Vec<Output<D>>) {
        let gave_leases = now_ns < self.granted_ns + self.pacing.patience_ns;
        let needed = self.needed();
        let (skips, has_swap) = (self.breaks(Rule::EqualTails), self.swap.is_some());
        let record = self.record.clone();
        let Some(primary) = self.primary() else { return };
        match &mut primary.phase {
            ReignPhase::Sealing { sealed, tails } => {
                let is_sealed = needed.iter().all(|id| sealed.contains(&id));
                if !is_sealed || primary.lets_leases_end && gave_leases {
                    return;
                }
                let left = if skips { ExtentSet::default() } else { std::mem::take(tails) };
                let fetching = BTreeSet::new();
                primary.phase = ReignPhase::Equalising { left, fetching, until: None };
                self.equalise(out);
            }
            ReignPhase::Equalising { until: None, .. } => self.equalise(out),
            ReignPhase::Equalising { until: Some(until), .. } if held >= *until => {
                primary.phase = ReignPhase::Serving;
                self.issue(Op::Cut, out);
            }
            ReignPhase::Moving { to } if !has_swap && held == primary.counter => {
                let to = *to;
                match record.filter(|record| record.in_sync.contains_key(&to)) {
                    Some(record) => {
                        // All have all: nothing is left to be made equal in the next reign.
                        for (id, it) in &primary.followers {
                            out.push(Output::Send(*id, it.ping(&record, now_ns, held)));
                        }
                        self.ask_for(record.moved_to(to), out);
                    }
                    None => primary.phase = ReignPhase::Serving,
                }
            }
            _ => {}
        }
    }

    /// Fetches sectors that may differ. When all of them were sent, the applied requests follow.
    fn equalise(&mut self, out: &mut Vec<Output<D>>) {
        let pacing = self.pacing;
        let Some(primary) = self.primary() else { return };
        let ReignPhase::Equalising { left, fetching, until: None } = &mut primary.phase else {
            return;
        };
        while fetching.len() < pacing.fetches_max
            && primary.flights.has_room_to_fill()
            && let Some(extent) = left.take_first(pacing.fetch_sectors_max)
        {
            fetching.insert(extent);
            out.push(Output::Fetch(Fetch::Equal(primary.reign), extent));
        }
        if fetching.is_empty() && left.is_empty() {
            let applied = self.applied();
            let counter = self.issue(applied, out);
            let Some(primary) = self.primary() else { return };
            let (left, fetching) = (ExtentSet::default(), BTreeSet::new());
            primary.phase = ReignPhase::Equalising { left, fetching, until: Some(counter) };
        }
    }

    fn applied(&self) -> Op<D> {
        let Holding { applied, note, .. } = &self.holding;
        Op::Applied { applied: applied.clone(), note: note.clone() }
    }

    /// Reads see operations up to here.
    fn read_bound(&self) -> Counter {
        match self.breaks(Rule::ReadsWaitForBackups) {
            true => Counter::MAX - 1,
            false => self.least_held(),
        }
    }

    /// Fetches the ranges that clients read, unless some member may lack their content.
    fn fetch_reads(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        let (may, held) = (self.may_read(now_ns), self.read_bound());
        let Some(primary) = self.primary() else { return };
        if !may || !primary.is_serving() {
            return;
        }
        let mut reads = std::mem::take(&mut primary.reads);
        for (id, read) in &mut reads {
            if !read.is_fetched && !primary.is_in_flight(read.extent, held) {
                read.is_fetched = true;
                out.push(Output::Fetch(Fetch::Read(*id, primary.reign), read.extent));
            }
        }
        primary.reads = reads;
    }

    pub(crate) fn fetched(
        &mut self,
        now_ns: u64,
        fetch: Fetch,
        extent: Extent,
        data: D,
        out: &mut Vec<Output<D>>,
    ) {
        let (may, held) = (self.may_read(now_ns), self.read_bound());
        match fetch {
            Fetch::Lend(to, place) => {
                return self.lend_content(to, place, extent, Some(data), out);
            }
            Fetch::Mend(number, reign) => return self.probed(now_ns, (number, reign), out),
            Fetch::Scrub(number, reign) => {
                return self.scrub_fetched(now_ns, (number, reign), data, out);
            }
            Fetch::Read(..) | Fetch::Fill(..) | Fetch::Equal(_) => {}
        }
        let Some(primary) = self.primary() else { return };
        match fetch {
            // The leases are looked at after the range was read.
            Fetch::Read(id, reign) => {
                if reign != primary.reign {
                    return;
                }
                if may && !primary.is_in_flight(extent, held) {
                    if primary.reads.remove(&id).is_some() {
                        out.push(Output::Answer(id, Some(data)));
                    }
                } else if let Some(read) = primary.reads.get_mut(&id) {
                    read.is_fetched = false;
                }
            }
            Fetch::Equal(reign) => {
                let ReignPhase::Equalising { fetching, .. } = &mut primary.phase else { return };
                if reign == primary.reign && fetching.remove(&extent) {
                    self.issue(Op::Equal { extent, data }, out);
                    self.equalise(out);
                }
            }
            Fetch::Fill(to, began) => {
                let Some(follower) = primary.followers.get_mut(&to) else { return };
                let Some(joining) = &mut follower.joining else { return };
                if began != (Place { reign: primary.reign, counter: follower.began }) {
                    return;
                }
                let Some(written) = joining.fetched(extent) else { return };
                if written == Written::Nothing {
                    self.issue(Op::Fill { to, extent, data }, out);
                }
                self.fill(to, out);
            }
            Fetch::Lend(..) | Fetch::Mend(..) | Fetch::Scrub(..) => {}
        }
    }

    /// A member asks to be admitted.
    pub(crate) fn join(
        &mut self,
        now_ns: u64,
        from: MemberId,
        epoch: u64,
        life: Life,
        cuts: &BTreeSet<Place>,
        out: &mut Vec<Output<D>>,
    ) {
        let Some(record) = self.record.clone() else { return };
        let (own, has_swap) = (self.holding.cuts.clone(), self.swap.is_some());
        if epoch > record.epoch {
            out.push(Output::Look);
        }
        let Some(primary) = self.primary() else { return };
        if epoch < record.epoch {
            // The message may be one of an earlier life.
            return self.say_life(from, None, out);
        }
        if primary.phase != ReignPhase::Serving || has_swap || epoch != record.epoch {
            return;
        }
        match record.in_sync.get(&from) {
            // It has not heard yet that it is in.
            Some(in_sync) if *in_sync == life => return self.say_life(from, None, out),
            // It was restarted.
            Some(_) => return self.ask_for(record.without(from), out),
            None => {}
        }
        if primary.followers.get(&from).is_some_and(|follower| follower.life == life) {
            return;
        }
        // It waits until another member has gone.
        let is_full = primary.followers.len() + 1 >= MEMBERS_MAX;
        if is_full && !primary.followers.contains_key(&from) {
            return;
        }
        let (cut, began) = (own.intersection(cuts).max().copied(), primary.counter);
        let joining = Joining::new(cut);
        let go_back = joining.message(&record, life, began);
        let follower = Follower::new(life, began, now_ns, Some(joining));
        primary.followers.insert(from, follower);
        out.push(Output::Send(from, go_back));
    }

    /// A part of the difference is known that a member lacks.
    pub(crate) fn changed(
        &mut self,
        to: MemberId,
        began: Place,
        part: ChangedPart,
        out: &mut Vec<Output<D>>,
    ) {
        let Some(primary) = self.primary() else { return };
        let Some(follower) = primary.followers.get_mut(&to) else { return };
        if began != (Place { reign: primary.reign, counter: follower.began }) {
            return;
        }
        let Some(joining) = &mut follower.joining else { return };
        if std::mem::take(&mut joining.is_comparing) {
            joining.lacks(part.extents);
            joining.compared = part.next;
            if part.next.is_none() {
                // It has ended by itself.
                self.differences.remove(&to);
            }
        }
        self.fill(to, out);
    }

    /// Ends the attempts of members to join, but for a member in a record that was asked for.
    pub(crate) fn end_joins(&mut self, ends: impl Fn(MemberId) -> bool) {
        let records = self.record.iter().chain(self.swaps());
        let kept: MemberSet = records.flat_map(|it| it.in_sync.keys().copied()).collect();
        let Some(primary) = self.primary() else { return };
        primary.followers.retain(|id, _| !ends(*id) || kept.iter().any(|member| member == *id));
    }

    /// The cut from which a member joins is gone here. The attempt ends, and the next one begins
    /// from another cut.
    pub(crate) fn cut_gone(&mut self, to: MemberId, began: Place) {
        let Some(primary) = self.primary() else { return };
        let Some(follower) = primary.followers.get(&to) else { return };
        let Some(joining) = &follower.joining else { return };
        let cut = joining.cut;
        // A member whose difference is not known is in no record that was asked for.
        if began == (Place { reign: primary.reign, counter: follower.began }) {
            primary.followers.remove(&to);
            self.holding.cuts.retain(|kept| Some(*kept) != cut);
        }
    }

    /// Goes on with members that join whose fills were held back.
    fn fill_further(&mut self, out: &mut Vec<Output<D>>) {
        let fetches_max = self.pacing.fetches_max;
        let Some(primary) = self.primary() else { return };
        let waits = |follower: &Follower| {
            follower.joining.as_ref().is_some_and(|joining| joining.may_fetch(fetches_max))
        };
        let waiting = primary.followers.iter().filter(|(_, follower)| waits(follower));
        let waiting: MemberSet = waiting.map(|(id, _)| *id).collect();
        waiting.iter().for_each(|id| self.fill(id, out));
    }

    /// Goes on with a member that joins: fetches what it lacks, looks for the next part of the
    /// difference, and when all was sent the applied requests follow.
    fn fill(&mut self, to: MemberId, out: &mut Vec<Output<D>>) {
        let pacing = self.pacing;
        let Some(primary) = self.primary() else { return };
        let Some(follower) = primary.followers.get_mut(&to) else { return };
        let began = Place { reign: primary.reign, counter: follower.began };
        let Some(joining) = &mut follower.joining else { return };
        if !joining.has_gone_back {
            return;
        }
        while primary.flights.has_room_to_fill()
            && let Some(extent) = joining.next_fetch(pacing.fetch_sectors_max, pacing.fetches_max)
        {
            out.push(Output::Fetch(Fetch::Fill(to, began), extent));
        }
        if joining.until.is_some() || !joining.is_filled() || joining.is_comparing {
            return;
        }
        if let Some(from) = joining.compared {
            joining.is_comparing = true;
            out.push(Output::Compare(to, began, joining.cut, from));
            self.differences.insert(to, began);
            return;
        }
        let applied = self.applied();
        let counter = self.issue(applied, out);
        if let Some(follower) = self.primary().and_then(|primary| primary.followers.get_mut(&to))
            && let Some(joining) = &mut follower.joining
        {
            joining.until = Some(counter);
        }
    }

    /// Admits a member that has all that it lacked.
    fn admit(&mut self, out: &mut Vec<Output<D>>) {
        let Some(record) = self.record.clone() else { return };
        // Under load a member is always a bit behind what is acknowledged without it. So operations
        // wait for it first, and it is admitted when it has those that did not.
        let (ignores, has_swap) = (self.breaks(Rule::AdmittedWithAll), self.swap.is_some());
        let Some(primary) = self.primary() else { return };
        let acknowledged = if ignores { 0 } else { primary.acknowledged };
        if has_swap || primary.phase != ReignPhase::Serving {
            return;
        }
        let mut target = None;
        for (id, follower) in &mut primary.followers {
            let Some(joining) = &mut follower.joining else { continue };
            if joining.until.is_some_and(|until| follower.held >= until) {
                joining.acknowledged.get_or_insert(acknowledged);
            }
            if joining.acknowledged.is_some_and(|acknowledged| follower.held >= acknowledged) {
                target = Some(record.with(*id, follower.life));
            }
        }
        if let Some(target) = target {
            self.ask_for(target, out);
        }
    }

    /// An operator makes another member the primary.
    pub(crate) fn start_move(&mut self, now_ns: u64, to: MemberId, out: &mut Vec<Output<D>>) {
        let is_in = self.record.as_ref().is_some_and(|record| record.in_sync.contains_key(&to));
        let me = self.id;
        let Some(primary) = self.primary() else { return };
        if is_in && to != me && primary.phase == ReignPhase::Serving {
            primary.phase = ReignPhase::Moving { to };
            self.go_on(now_ns, out);
        }
    }
}
