//! Scrub: all members in sync prove their content, and the primary compares the proofs.
//!
//! ```text
//!   a range ──▶ each member reads it, and gives a digest of each block ──▶ all are equal: proved
//!      ▲                             │
//!      │                             ├─▶ a backup cannot read a block, or has other content:
//!      │                             │     the primary reads it, and all members write that
//!      ├── it is looked at again ◀───┴─▶ the primary cannot read it: a member lends it,
//!      └── it is named, and left so ◀──────unless backups differ in it
//! ```
//!
//! Proofs are of one version of a block because of two rules:
//!
//! - Members are asked when all of them have all operations on the range. An operation on a block
//!   that the primary gives out before it has all answers makes that block's answers worthless:
//!   the block is looked at again ([`Rule::ProofsAreOfNow`]).
//! - The write that repairs a block is an operation ([`Op::Equal`]) like all operations, so order,
//!   tails and durability are as of all operations. Its content is what the primary has behind
//!   all operations that it has given out. If another operation on the block comes before the
//!   content was read, the block is looked at again ([`Rule::RepairsAreOfNow`]).
//!
//! The primary's content is what clients read, so it is the truth: members do not vote. A digest
//! has a key that the primary draws for each scrub, so that a copy which is wrong has another
//! digest.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;

use crate::extent::Extent;
use crate::fetch::Fetch;
use crate::member::{MemberRole, Output, Replica};
use crate::message::{Message, Op};
use crate::primary::Primary;
use crate::proof::{
    BlockProof, ProofQuestion, SCRUB_BLOCKS_MAX, SCRUB_RANGES_MAX, ScrubKey, ScrubOrder,
    ScrubReport, ScrubStage,
};
use crate::record::{Life, MemberId};
use crate::rule::Rule;
use crate::scrub::{LookAim, LookStep, Scrub, ScrubLook, blocks_of};

impl<D: Clone + Debug + Eq + Hash + Ord> Replica<D> {
    /// The scrub of this primary that is under way, or the last one of this reign.
    pub fn scrub(&self) -> Option<&ScrubReport> {
        let MemberRole::Primary(primary) = &self.role else { return None };
        primary.scrub.as_ref().map(|scrub| &scrub.report)
    }

    /// An operator's word about a scrub.
    pub(crate) fn order_scrub(&mut self, now_ns: u64, order: ScrubOrder, out: &mut Vec<Output<D>>) {
        let (me, record) = (self.id, self.record.clone());
        let Some(primary) = self.primary() else { return };
        // The other orders hold while the primary moves: it may go on to serve.
        let serves = primary.takes_requests();
        let present = primary.scrub.as_mut().filter(|scrub| scrub.is_under_way());
        match (order, present) {
            (ScrubOrder::Start { key, sectors, bytes_per_s }, None) if serves => {
                let others = record.iter().flat_map(|record| record.others(me));
                let life = |id| Some((id, primary.followers.get(&id)?.life));
                let members: BTreeMap<_, _> = others.filter_map(life).collect();
                let scrub = Scrub::new(key, (sectors, bytes_per_s), members, now_ns);
                primary.scrub = Some(Box::new(scrub));
            }
            (ScrubOrder::Pause, Some(scrub)) => scrub.report.stage = ScrubStage::Paused,
            (ScrubOrder::GoOn { bytes_per_s }, Some(scrub)) => {
                scrub.report.stage = ScrubStage::Runs;
                scrub.bytes_per_s = bytes_per_s.unwrap_or(scrub.bytes_per_s);
                scrub.next_ns = now_ns;
            }
            (ScrubOrder::Stop, Some(scrub)) => {
                scrub.report.stage = ScrubStage::Stopped;
                scrub.under_way.clear();
            }
            _ => {}
        }
        self.go_on(now_ns, out);
    }

    /// Goes on with a scrub.
    pub(crate) fn scrub_on(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        let (me, held, unit) = (self.id, self.least_held(), self.pacing.block_sectors);
        let Some(record) = self.record.clone() else { return };
        let Some(primary) = self.primary().filter(|primary| primary.takes_requests()) else {
            return;
        };
        let Some(mut scrub) = primary.scrub.take() else { return };
        if scrub.is_under_way() {
            scrub.keep_members(&record, |id, life| {
                let follower = primary.followers.get(&id);
                follower.is_some_and(|it| it.life == life && it.joining.is_none())
            });
            let numbers: Vec<u64> = scrub.under_way.keys().copied().collect();
            let mut found = Vec::new();
            numbers.into_iter().for_each(|number| scrub.compare(me, number, unit, &mut found));
            out.extend(found.into_iter().map(Output::Found));
            primary.begin_looks(now_ns, &mut scrub, unit, out);
            primary.ask_for_proofs((me, record.epoch), held, &mut scrub, out);
            let is_over = scrub.next >= scrub.report.sectors
                && scrub.under_way.is_empty()
                && scrub.waiting.is_empty()
                && scrub.again.is_empty();
            if is_over {
                scrub.report.stage = ScrubStage::Done;
            }
        }
        primary.scrub = Some(scrub);
    }

    /// Time has passed: asks again for proofs that have not come, and gives up looks that wait for
    /// too long.
    pub(crate) fn scrub_timer(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        let (patience_ns, unit) = (self.pacing.patience_ns, self.pacing.block_sectors);
        let epoch = self.record.as_ref().map_or(0, |record| record.epoch);
        let Some(scrub) = self.primary().and_then(|primary| primary.scrub.as_mut()) else { return };
        if !scrub.is_under_way() {
            return;
        }
        for look in std::mem::take(&mut scrub.again) {
            match now_ns >= look.since_ns + patience_ns {
                true => scrub.is_busy(&look, unit),
                false => scrub.waiting.push_back(look),
            }
        }
        let mut over = Vec::new();
        for (number, (look, step)) in &scrub.under_way {
            let is_late = now_ns >= look.since_ns + patience_ns;
            match step {
                LookStep::Waits if is_late || look.extent.sectors() > unit => over.push(*number),
                // The own storage is waited for: it would get ever more to do.
                LookStep::Asked { own: Some(_), .. } if is_late => over.push(*number),
                LookStep::Asked { answers, .. } => {
                    let silent = scrub.members.iter().filter(|(id, _)| !answers.contains_key(id));
                    for (id, life) in silent {
                        out.push(prove(*id, (epoch, *life), *number, look.extent, scrub.key));
                    }
                }
                LookStep::Waits | LookStep::Fetching { .. } => {}
            }
        }
        for number in over {
            let Some((look, step)) = scrub.under_way.remove(&number) else { continue };
            if step == LookStep::Waits && look.extent.sectors() > unit {
                // One block of it may have operations at all times.
                let blocks = blocks_of(look.extent, unit);
                let looks = blocks.map(|block| ScrubLook { extent: block, ..look.clone() });
                scrub.waiting.extend(looks);
                continue;
            }
            scrub.is_busy(&look, unit);
            if let LookStep::Asked { answers, .. } = step {
                scrub.lacks_answers(&answers);
            }
        }
    }

    /// An operation on the sectors was given out.
    pub(crate) fn scrub_anew(&mut self, extent: Extent) {
        let unit = self.pacing.block_sectors;
        let broken = (self.breaks(Rule::ProofsAreOfNow), self.breaks(Rule::RepairsAreOfNow));
        if let Some(scrub) = self.primary().and_then(|primary| primary.scrub.as_mut()) {
            scrub.changed(extent, unit, broken);
        }
    }

    /// A block was read for a scrub: it was mended, or all members write it.
    pub(crate) fn scrub_fetched(
        &mut self,
        now_ns: u64,
        (number, reign): (u64, u64),
        data: D,
        out: &mut Vec<Output<D>>,
    ) {
        let Some(primary) = self.primary().filter(|primary| primary.reign == reign) else { return };
        let serves = primary.takes_requests();
        let Some(scrub) = primary.scrub.as_mut().filter(|scrub| scrub.wants(number)) else {
            return;
        };
        let Some((look, step)) = scrub.under_way.remove(&number) else { return };
        let is_changed = step == LookStep::Fetching { is_changed: true };
        if look.aim == LookAim::Write && !is_changed && serves {
            scrub.settled(&look);
            self.issue(Op::Equal { extent: look.extent, data }, out);
        } else {
            let is_mended = look.aim == LookAim::Mend;
            scrub.report.repaired += u64::from(is_mended);
            let is_mended = look.is_mended || is_mended;
            scrub.again.push(ScrubLook { aim: LookAim::Compare, is_mended, ..look });
        }
        self.go_on(now_ns, out);
    }

    /// A primary asks for proofs of a range. This member gives them behind all operations that it
    /// was given.
    pub(crate) fn prove(
        &mut self,
        from: MemberId,
        (epoch, life): (u64, Life),
        number: u64,
        (extent, key): (Extent, ScrubKey),
        out: &mut Vec<Output<D>>,
    ) {
        let Some(record) = &self.record else { return };
        let is_known = record.epoch == epoch && record.primary == from && life == self.life;
        let is_backup = self.role == MemberRole::Backup && self.follows(record);
        let unit = self.pacing.block_sectors;
        let is_range = extent.first().is_multiple_of(u64::from(unit.max(1)))
            && extent.sectors() <= SCRUB_BLOCKS_MAX.saturating_mul(unit);
        let question = ProofQuestion { asker: from, reign: record.reign, number };
        // A question that came again has one answer, and so many are under way at most.
        let is_new = !self.proving.contains(&question) && self.proving.len() < SCRUB_RANGES_MAX;
        if is_known && is_backup && is_range && !self.is_past(epoch) && is_new {
            self.proving.insert(question);
            out.push(Output::Prove(question, extent, key));
        }
    }

    /// A range was read for proofs, here.
    pub(crate) fn proved_here(
        &mut self,
        now_ns: u64,
        question: ProofQuestion,
        proofs: Vec<BlockProof>,
        out: &mut Vec<Output<D>>,
    ) {
        let ProofQuestion { asker, reign, number } = question;
        if asker == self.id {
            return self.proved(now_ns, (self.id, self.life), (reign, number), proofs, out);
        }
        self.proving.remove(&question);
        let life = self.life;
        out.push(Output::Send(asker, Message::Proved { life, reign, number, proofs }));
    }

    /// A member has proved a range.
    pub(crate) fn proved(
        &mut self,
        now_ns: u64,
        (from, life): (MemberId, Life),
        (reign, number): (u64, u64),
        proofs: Vec<BlockProof>,
        out: &mut Vec<Output<D>>,
    ) {
        let (me, unit) = (self.id, self.pacing.block_sectors);
        let Some(primary) = self.primary().filter(|primary| primary.reign == reign) else { return };
        let Some(scrub) = &mut primary.scrub else { return };
        let is_its = scrub.members.get(&from) == Some(&life);
        let Some((look, LookStep::Asked { own, answers, .. })) = scrub.under_way.get_mut(&number)
        else {
            return;
        };
        let is_whole = proofs.len() == blocks_of(look.extent, unit).count();
        if from == me && is_whole {
            *own = Some(proofs);
        } else if from == me {
            // Its volume ends before the range, so a mend of it would fail too.
            let look = look.clone();
            scrub.under_way.remove(&number);
            scrub.is_busy(&look, unit);
        } else if is_its && is_whole {
            answers.insert(from, proofs);
            scrub.silent.remove(&from);
        } else {
            return;
        }
        self.go_on(now_ns, out);
    }
}

fn prove<D>(
    to: MemberId,
    (epoch, life): (u64, Life),
    number: u64,
    extent: Extent,
    key: ScrubKey,
) -> Output<D> {
    Output::Send(to, Message::Prove { epoch, life, number, extent, key })
}

impl<D> Primary<D> {
    /// The storage could not read the block of this look. Whether it is mended.
    pub(crate) fn mends_look(&mut self, number: u64) -> bool {
        self.scrub.as_mut().is_some_and(|scrub| scrub.is_mended_further(number))
    }

    /// No member in sync can read the block of this look.
    pub(crate) fn block_lost(&mut self, number: u64) {
        if let Some(scrub) = &mut self.scrub {
            scrub.lost(number);
        }
    }

    /// Begins looks while there is room.
    fn begin_looks(&mut self, now_ns: u64, scrub: &mut Scrub, unit: u32, out: &mut Vec<Output<D>>) {
        while scrub.under_way.len() < SCRUB_RANGES_MAX
            && self.has_room_to_fill()
            && let Some(look) = scrub.take_next(now_ns, unit)
        {
            self.scrub_looks += 1;
            let number = self.scrub_looks;
            let step = match look.aim {
                LookAim::Compare => LookStep::Waits,
                LookAim::Mend | LookAim::Write => {
                    out.push(Output::Fetch(Fetch::Scrub(number, self.reign), look.extent));
                    LookStep::Fetching { is_changed: false }
                }
            };
            scrub.under_way.insert(number, (look, step));
        }
    }

    /// Asks members for proofs of ranges on which all of them have all operations.
    fn ask_for_proofs(
        &self,
        (me, epoch): (MemberId, u64),
        held: u64,
        scrub: &mut Scrub,
        out: &mut Vec<Output<D>>,
    ) {
        let Scrub { under_way, members, key, .. } = scrub;
        for (number, (look, step)) in under_way {
            if *step != LookStep::Waits || self.is_in_flight(look.extent, held) {
                continue;
            }
            *step = LookStep::Asked { own: None, answers: BTreeMap::new(), changed: 0 };
            let question = ProofQuestion { asker: me, reign: self.reign, number: *number };
            out.push(Output::Prove(question, look.extent, *key));
            for (id, life) in &*members {
                out.push(prove(*id, (epoch, *life), *number, look.extent, *key));
            }
        }
    }
}
