//! Damage: if a primary's storage cannot read a range, a member in sync lends its content.
//!
//! ```text
//!   a fetch fails ──▶ each block of it is read alone ──▶ a member in sync lends the damaged ones
//!         ▲                                                            │
//!         └─── the fetch is done again ◀── they are written here ◀─────┘
//! ```
//!
//! Written content is no operation: it is what this member has under the present version already,
//! so no other member hears of it. That is true because of two rules:
//!
//! - A member is asked when all members in sync have all operations on the block
//!   ([`Rule::MendsWaitForOperations`]). A member that follows the reign lends what it has behind
//!   all operations that it was given, so its content has them.
//! - An operation on the block that the primary gives out later makes the answer worthless: the
//!   block is looked at anew ([`Rule::MendsAreOfNow`]). Until then the content is the newest one,
//!   and its write is given out before any later operation on the block.
//!
//! Neither needs a lease: no client is answered with lent content. A read that has met damage is
//! fetched again, and answered by the rules of each read.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::Hash;

use crate::extent::Extent;
use crate::fetch::{Fetch, MENDS_MAX, MENDS_OF_A_READ_MAX, Mend, MendStep, Mends};
use crate::member::{MemberRole, Output, Replica};
use crate::message::{Counter, Message, Place};
use crate::primary::Primary;
use crate::record::{Life, MemberId};
use crate::rule::Rule;

impl Mend {
    /// Has the block read alone.
    fn probe<D>(&mut self, as_fetch: Fetch, out: &mut Vec<Output<D>>) {
        self.step = MendStep::Probing { again: false };
        out.push(Output::Fetch(as_fetch, self.block));
    }
}

impl<D> Primary<D> {
    /// Whether the content of a failed fetch is still wanted.
    fn wants(&self, fetch: Fetch) -> bool {
        match fetch {
            Fetch::Read(id, reign) => reign == self.reign && self.reads.contains_key(&id),
            Fetch::Fill(to, began) => self.followers.get(&to).is_some_and(|follower| {
                let place = Place { reign: self.reign, counter: follower.began };
                follower.joining.is_some() && began == place
            }),
            Fetch::Scrub(number, reign) => {
                let scrub = self.scrub.as_ref().filter(|_| reign == self.reign);
                scrub.is_some_and(|scrub| scrub.wants(number))
            }
            Fetch::Equal(_) | Fetch::Mend(..) | Fetch::Lend(..) => false,
        }
    }
}

/// The block with a sector.
fn block_at(sector: u64, block_sectors: u32) -> Extent {
    let sectors = block_sectors.max(1);
    let first = sector / u64::from(sectors) * u64::from(sectors);
    Extent::new(first, sectors).expect("sectors of a range are far from the last number")
}

impl<D: Clone + Debug + Eq + Hash + Ord> Replica<D> {
    /// The storage of this member could not read a range.
    pub(crate) fn unread(
        &mut self,
        now_ns: u64,
        fetch: Fetch,
        extent: Extent,
        out: &mut Vec<Output<D>>,
    ) {
        let may = self.may_read(now_ns);
        match fetch {
            Fetch::Lend(to, place) => return self.lend_content(to, place, extent, None, out),
            Fetch::Mend(number, reign) => {
                let Some(primary) = self.primary() else { return };
                let mend = primary.mends.under_way.get_mut(&number);
                if let Some(mend) = mend.filter(|_| reign == primary.reign)
                    && let MendStep::Probing { again } = mend.step
                {
                    mend.step = MendStep::Asking { damaged: BTreeMap::new(), asked: None };
                    if again {
                        mend.probe(fetch, out);
                    }
                }
            }
            Fetch::Read(..) | Fetch::Fill(..) | Fetch::Scrub(..) => {
                let Some(primary) = self.primary() else { return };
                if !primary.wants(fetch) {
                    return;
                }
                if let Fetch::Read(id, _) = fetch
                    && let Some(read) = primary.reads.get_mut(&id)
                {
                    read.failed = read.failed.saturating_add(1);
                    let is_worn = read.mends.values().any(|mends| *mends >= MENDS_OF_A_READ_MAX);
                    if (is_worn || read.failed > MENDS_OF_A_READ_MAX) && may {
                        primary.reads.remove(&id);
                        return out.push(Output::Unreadable(id));
                    }
                }
                if let Fetch::Scrub(number, _) = fetch
                    && !primary.mends_look(number)
                {
                    return self.go_on(now_ns, out);
                }
                primary.mends.waiting.push_back((fetch, extent));
            }
            Fetch::Equal(_) => {}
        }
        self.mend(now_ns, out);
    }

    /// Goes on with failed fetches.
    pub(crate) fn mend(&mut self, now_ns: u64, out: &mut Vec<Output<D>>) {
        let (me, pacing, may) = (self.id, self.pacing, self.may_read(now_ns));
        if self.primary().is_none_or(|primary| primary.mends.is_empty()) {
            return;
        }
        let held = match self.breaks(Rule::MendsWaitForOperations) {
            true => Counter::MAX - 1,
            false => self.least_held(),
        };
        let Some(record) = self.record.clone() else { return };
        let Some(primary) = self.primary() else { return };
        let mut mends = std::mem::take(&mut primary.mends);
        mends.under_way.retain(|_, mend| primary.wants(mend.fetch));
        mends.waiting.retain(|(fetch, _)| primary.wants(*fetch));
        while mends.active() < MENDS_MAX
            && let Some((fetch, extent)) = mends.waiting.pop_front()
        {
            if primary.wants(fetch) {
                let block = block_at(extent.first(), pacing.block_sectors);
                mends.count += 1;
                let step = MendStep::Probing { again: false };
                let mut mend = Mend { fetch, extent, block, step };
                mend.probe(Fetch::Mend(mends.count, primary.reign), out);
                mends.under_way.insert(mends.count, mend);
            }
        }
        for (number, mend) in &mut mends.under_way {
            match &mut mend.step {
                MendStep::Probing { .. } => {}
                MendStep::Lost { since_ns } => {
                    if now_ns >= *since_ns + pacing.patience_ns {
                        mend.probe(Fetch::Mend(*number, primary.reign), out);
                    }
                }
                MendStep::Asking { damaged, asked } => {
                    let life_of = |id: &MemberId| Some(primary.followers.get(id)?.life);
                    let is_in =
                        |id: MemberId, life| record.has(id, life) && life_of(&id) == Some(life);
                    if asked.is_some_and(|(id, life, _)| is_in(id, life))
                        || primary.is_in_flight(mend.block, held)
                    {
                        continue;
                    }
                    let lives = record.others(me).filter_map(|id| Some((id, life_of(&id)?)));
                    let may_lend = |(id, life): &(MemberId, Life)| damaged.get(id) != Some(life);
                    let Some((id, life)) = lives.into_iter().find(may_lend) else {
                        out.push(Output::Lost(mend.block));
                        match mend.fetch {
                            // Without leases another member may have become the primary, and the
                            // block may have been written since (seed 1047155).
                            Fetch::Read(id, _) if may => {
                                primary.reads.remove(&id);
                                out.push(Output::Unreadable(id));
                            }
                            Fetch::Scrub(number, _) => primary.block_lost(number),
                            _ => {}
                        }
                        mend.step = MendStep::Lost { since_ns: now_ns };
                        continue;
                    };
                    let counter = primary.counter;
                    *asked = Some((id, life, counter));
                    let (epoch, extent) = (record.epoch, mend.block);
                    out.push(Output::Send(id, Message::Lend { epoch, life, counter, extent }));
                }
            }
        }
        mends.under_way.retain(|_, mend| primary.wants(mend.fetch));
        primary.mends = mends;
    }

    /// Asks again for what was not lent: a message may be lost, or the member may not have known
    /// the record.
    pub(crate) fn ask_again(&self, out: &mut Vec<Output<D>>) {
        let (MemberRole::Primary(primary), Some(record)) = (&self.role, &self.record) else {
            return;
        };
        for mend in primary.mends.under_way.values() {
            if let MendStep::Asking { asked: Some((id, life, counter)), .. } = mend.step {
                let (epoch, extent) = (record.epoch, mend.block);
                out.push(Output::Send(id, Message::Lend { epoch, life, counter, extent }));
            }
        }
    }

    /// An operation on the sectors was given out: damaged blocks that it touches are looked at
    /// anew, behind it.
    pub(crate) fn mend_anew(&mut self, extent: Extent, out: &mut Vec<Output<D>>) {
        if self.breaks(Rule::MendsAreOfNow) {
            return;
        }
        let Some(primary) = self.primary() else { return };
        for (number, mend) in &mut primary.mends.under_way {
            match &mut mend.step {
                _ if !mend.block.overlaps(&extent) => {}
                MendStep::Probing { again } => *again = true,
                _ => mend.probe(Fetch::Mend(*number, primary.reign), out),
            }
        }
    }

    /// A block of a failed fetch can be read: the next block follows, or the fetch is done again.
    pub(crate) fn probed(
        &mut self,
        now_ns: u64,
        (number, reign): (u64, u64),
        out: &mut Vec<Output<D>>,
    ) {
        let Some(primary) = self.primary().filter(|primary| primary.reign == reign) else { return };
        if let Some(mend) = primary.mends.under_way.get(&number)
            && matches!(mend.step, MendStep::Probing { .. })
        {
            self.go_to_next_block(number, out);
        }
        self.go_on(now_ns, out);
    }

    /// A block is mended for a fetch. A read counts this by block: new damage of another block is
    /// no sign of a storage that fails what it has just taken.
    fn count_mend(&mut self, number: u64) {
        let Some(primary) = self.primary() else { return };
        let Some(mend) = primary.mends.under_way.get(&number) else { return };
        if let Fetch::Read(id, _) = mend.fetch
            && let Some(read) = primary.reads.get_mut(&id)
        {
            read.failed = 0;
            let mends = read.mends.entry(mend.block.first()).or_default();
            *mends = mends.saturating_add(1);
        }
    }

    fn go_to_next_block(&mut self, number: u64, out: &mut Vec<Output<D>>) {
        let block_sectors = self.pacing.block_sectors;
        let Some(primary) = self.primary() else { return };
        let Some(mend) = primary.mends.under_way.get_mut(&number) else { return };
        if mend.block.end() < mend.extent.end() {
            mend.block = block_at(mend.block.end(), block_sectors);
            return mend.probe(Fetch::Mend(number, primary.reign), out);
        }
        let (fetch, extent) = (mend.fetch, mend.extent);
        primary.mends.under_way.remove(&number);
        match fetch {
            // It waits for operations that some member may lack, as each read does.
            Fetch::Read(id, _) => {
                if let Some(read) = primary.reads.get_mut(&id) {
                    read.is_fetched = false;
                }
            }
            _ => out.push(Output::Fetch(fetch, extent)),
        }
    }

    /// A primary cannot read a range. This member lends what it has behind all operations that it
    /// was given.
    pub(crate) fn lend(
        &mut self,
        from: MemberId,
        (epoch, life): (u64, Life),
        counter: Counter,
        extent: Extent,
        out: &mut Vec<Output<D>>,
    ) {
        let Some(record) = &self.record else { return };
        let is_known = record.epoch == epoch && record.primary == from && life == self.life;
        let is_backup = self.role == MemberRole::Backup && self.follows(record);
        let is_block = extent.sectors() == self.pacing.block_sectors;
        let place = Place { reign: record.reign, counter };
        // A question that came again has one answer, and so many questions are under way at most.
        let is_new = !self.lending.contains(&(place, extent)) && self.lending.len() < MENDS_MAX;
        if is_known && is_backup && is_block && !self.is_past(epoch) && is_new {
            self.lending.insert((place, extent));
            out.push(Output::Fetch(Fetch::Lend(from, place), extent));
        }
    }

    /// The content that a primary has asked for was read, or cannot be read here either.
    pub(crate) fn lend_content(
        &mut self,
        to: MemberId,
        place: Place,
        extent: Extent,
        data: Option<D>,
        out: &mut Vec<Output<D>>,
    ) {
        self.lending.remove(&(place, extent));
        let life = self.life;
        out.push(Output::Send(to, Message::Lent { life, place, extent, data }));
    }

    /// A member has lent a block, or cannot.
    pub(crate) fn lent(
        &mut self,
        now_ns: u64,
        (from, life): (MemberId, Life),
        place: Place,
        (extent, data): (Extent, Option<D>),
        out: &mut Vec<Output<D>>,
    ) {
        let Some(primary) = self.primary().filter(|it| it.reign == place.reign) else { return };
        let answers = |mend: &Mend| match mend.step {
            MendStep::Asking { asked, .. } => {
                mend.block == extent && asked == Some((from, life, place.counter))
            }
            _ => false,
        };
        let Mends { under_way, .. } = &mut primary.mends;
        let answered: Vec<u64> =
            under_way.iter().filter(|(_, mend)| answers(mend)).map(|(number, _)| *number).collect();
        if answered.is_empty() {
            return;
        }
        if data.is_none() {
            for number in &answered {
                if let Some(mend) = under_way.get_mut(number)
                    && let MendStep::Asking { damaged, asked } = &mut mend.step
                {
                    damaged.insert(from, life);
                    *asked = None;
                }
            }
        }
        if let Some(data) = data {
            out.push(Output::Mend(extent, data));
            for number in answered {
                self.count_mend(number);
                self.go_to_next_block(number, out);
            }
            // Other fetches of the block may have asked a member that is gone by the time of its
            // answer.
            self.mend_anew(extent, out);
        }
        self.go_on(now_ns, out);
    }
}
