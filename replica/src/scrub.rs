//! A scrub of a primary: which ranges are looked at, how far each is, and what its proofs say.

use std::collections::{BTreeMap, VecDeque};

use crate::extent::Extent;
use crate::fetch::MENDS_OF_A_READ_MAX;
use crate::message::SECTOR_BYTES;
use crate::proof::{
    BlockProof, SCRUB_BLOCKS_MAX, SCRUB_SILENT_LOOKS_MAX, ScrubFinding, ScrubKey, ScrubReport,
    ScrubStage,
};
use crate::record::{Life, MemberId, VolumeRecord};

/// How much later than its rate a scrub may begin ranges: the time between two looks at the clock.
const BURST_NS: u64 = 100_000_000;

/// The aim of a look at a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LookAim {
    /// All members prove it.
    Compare,
    /// It is one block, which the primary could not read: is it mended?
    Mend,
    /// It is one block, and all members write it.
    Write,
}

/// A range that is looked at, or will be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ScrubLook {
    pub(crate) extent: Extent,
    pub(crate) aim: LookAim,
    /// When it was looked at first.
    pub(crate) since_ns: u64,
    /// It was mended before.
    pub(crate) is_mended: bool,
    /// How often the primary could not read it, for its mend or its write.
    pub(crate) failed: u8,
    /// It is in a finding already.
    pub(crate) is_found: bool,
    /// The backups that could not read it, and the backups that had other content, when they proved
    /// it last.
    pub(crate) unread: u64,
    pub(crate) differ: u64,
}

/// How far a look is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LookStep {
    /// Some member may lack an operation on it.
    Waits,
    /// Members were asked. It has the own proofs, the proofs of other members, and the blocks that
    /// operations have changed since, as bits.
    Asked {
        own: Option<Vec<BlockProof>>,
        answers: BTreeMap<MemberId, Vec<BlockProof>>,
        changed: u64,
    },
    /// It is being read, and an operation has changed it since.
    Fetching { is_changed: bool },
}

const _: () = assert!(SCRUB_BLOCKS_MAX <= u64::BITS, "a bit for each block");

/// A scrub of a primary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Scrub {
    pub(crate) key: ScrubKey,
    pub(crate) bytes_per_s: u64,
    pub(crate) report: ScrubReport,
    pub(crate) members: BTreeMap<MemberId, Life>,
    /// Looks that ended without an answer of a member since its last answer.
    pub(crate) silent: BTreeMap<MemberId, u32>,
    /// The first sector that was not looked at, and when the next range may begin.
    pub(crate) next: u64,
    pub(crate) next_ns: u64,
    pub(crate) under_way: BTreeMap<u64, (ScrubLook, LookStep)>,
    /// Looks that begin as soon as there is room: blocks of ranges that were under way.
    pub(crate) waiting: VecDeque<ScrubLook>,
    /// Looks that begin behind the next tick: operations come again and again at once.
    pub(crate) again: Vec<ScrubLook>,
}

impl Scrub {
    /// A scrub of these backups.
    pub(crate) fn new(
        key: ScrubKey,
        (sectors, bytes_per_s): (u64, u64),
        members: BTreeMap<MemberId, Life>,
        now_ns: u64,
    ) -> Self {
        let of = members.keys().copied().collect();
        Self {
            key,
            bytes_per_s,
            report: ScrubReport { sectors, members: of, ..ScrubReport::default() },
            members,
            silent: BTreeMap::new(),
            next: 0,
            next_ns: now_ns,
            under_way: BTreeMap::new(),
            waiting: VecDeque::new(),
            again: Vec::new(),
        }
    }

    pub(crate) fn age(&mut self, by_ns: u64) {
        self.next_ns = self.next_ns.saturating_sub(by_ns);
        let under_way = self.under_way.values_mut().map(|(look, _)| look);
        for look in under_way.chain(&mut self.waiting).chain(&mut self.again) {
            look.since_ns = look.since_ns.saturating_sub(by_ns);
        }
    }

    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self.report.stage, ScrubStage::Runs | ScrubStage::Paused)
    }

    /// Whether the content of this fetch is wanted.
    pub(crate) fn wants(&self, number: u64) -> bool {
        let look = self.under_way.get(&number);
        look.is_some_and(|(_, step)| matches!(step, LookStep::Fetching { .. }))
    }

    pub(crate) fn looked_at(&mut self, extent: Extent) {
        self.report.looked_at += u64::from(extent.sectors());
    }

    /// All members have the block, by a write of this scrub or of a client.
    pub(crate) fn settled(&mut self, look: &ScrubLook) {
        self.report.repaired += look.unread;
        self.report.differed += look.differ;
        self.looked_at(look.extent);
    }

    /// A look has ended without a proof.
    pub(crate) fn is_busy(&mut self, look: &ScrubLook, block_sectors: u32) {
        self.report.busy += blocks_of(look.extent, block_sectors).count() as u64;
        self.looked_at(look.extent);
    }

    /// No member in sync can read the block of this fetch.
    pub(crate) fn lost(&mut self, number: u64) {
        if let Some((look, _)) = self.under_way.remove(&number) {
            self.report.lost += 1;
            self.looked_at(look.extent);
        }
    }

    /// The storage could not read the block of this fetch. Whether it is mended. A block that must
    /// be written is compared before: other copies may differ in it.
    pub(crate) fn is_mended_further(&mut self, number: u64) -> bool {
        let Some((look, _)) = self.under_way.get_mut(&number) else { return false };
        look.failed += 1;
        if look.failed > MENDS_OF_A_READ_MAX {
            self.lost(number);
            return false;
        }
        let is_mend = look.aim == LookAim::Mend;
        if !is_mend && let Some((look, _)) = self.under_way.remove(&number) {
            self.again.push(ScrubLook { aim: LookAim::Compare, ..look });
        }
        is_mend
    }

    /// The next range to be looked at.
    pub(crate) fn take_next(&mut self, now_ns: u64, block_sectors: u32) -> Option<ScrubLook> {
        if let Some(look) = self.waiting.pop_front() {
            return Some(look);
        }
        let left = self.report.sectors.saturating_sub(self.next);
        if self.report.stage != ScrubStage::Runs || !self.again.is_empty() || now_ns < self.next_ns
        {
            return None;
        }
        let sectors = u32::try_from(left).unwrap_or(u32::MAX);
        let extent = Extent::new(self.next, sectors.min(SCRUB_BLOCKS_MAX * block_sectors.max(1)))?;
        self.next = extent.end();
        let bytes = u64::from(extent.sectors()) * SECTOR_BYTES;
        let takes_ns = (bytes * 1_000_000_000).checked_div(self.bytes_per_s).unwrap_or(0);
        self.next_ns = self.next_ns.max(now_ns.saturating_sub(BURST_NS)) + takes_ns;
        Some(ScrubLook {
            extent,
            aim: LookAim::Compare,
            since_ns: now_ns,
            is_mended: false,
            failed: 0,
            is_found: false,
            unread: 0,
            differ: 0,
        })
    }

    /// Members that are not in sync any more, or began again, are not compared further.
    pub(crate) fn keep_members(
        &mut self,
        record: &VolumeRecord,
        is_there: impl Fn(MemberId, Life) -> bool,
    ) {
        self.keep(|id, life| record.has(id, life) && is_there(id, life));
    }

    /// A look has ended with these answers alone. A member that does not answer looks one after the
    /// other is not compared further: each of them would be waited for.
    pub(crate) fn lacks_answers(&mut self, answers: &BTreeMap<MemberId, Vec<BlockProof>>) {
        for id in self.members.keys().filter(|id| !answers.contains_key(id)) {
            *self.silent.entry(*id).or_default() += 1;
        }
        let silent = std::mem::take(&mut self.silent);
        self.keep(|id, _| silent.get(&id).is_none_or(|looks| *looks < SCRUB_SILENT_LOOKS_MAX));
        self.silent = silent;
    }

    fn keep(&mut self, stays: impl Fn(MemberId, Life) -> bool) {
        let (members, report) = (&mut self.members, &mut self.report);
        members.retain(|id, life| {
            let stays = stays(*id, *life);
            if !stays {
                report.left.push(*id);
            }
            stays
        });
        report.members.retain(|id| members.contains_key(id));
    }

    /// An operation on the sectors was given out.
    pub(crate) fn changed(
        &mut self,
        extent: Extent,
        block_sectors: u32,
        (proofs, repairs): (bool, bool),
    ) {
        for (look, step) in self.under_way.values_mut() {
            match step {
                LookStep::Asked { changed, .. } if !proofs => {
                    let blocks = (0_u64..).zip(blocks_of(look.extent, block_sectors));
                    let touched = blocks.filter(|(_, block)| block.overlaps(&extent));
                    touched.for_each(|(at, _)| *changed |= 1 << at);
                }
                LookStep::Fetching { is_changed } if !repairs => {
                    *is_changed |= look.extent.overlaps(&extent);
                }
                _ => {}
            }
        }
    }

    /// A range has all answers: its blocks are proved, or are looked at further.
    pub(crate) fn compare(
        &mut self,
        me: MemberId,
        number: u64,
        unit: u32,
        found: &mut Vec<ScrubFinding>,
    ) {
        let all_in = |(_, step): &(ScrubLook, LookStep)| match step {
            LookStep::Asked { own: Some(_), answers, .. } => {
                self.members.keys().all(|id| answers.contains_key(id))
            }
            _ => false,
        };
        if !self.under_way.get(&number).is_some_and(all_in) {
            return;
        }
        let Some((look, LookStep::Asked { own: Some(own), answers, changed })) =
            self.under_way.remove(&number)
        else {
            return;
        };
        for (at, block) in blocks_of(look.extent, unit).enumerate() {
            let look = ScrubLook { extent: block, ..look.clone() };
            let proof = own.get(at).copied().flatten();
            if changed & 1 << at != 0 {
                self.again.push(look);
                continue;
            }
            let others =
                self.members.keys().map(|id| (*id, answers[id].get(at).copied().flatten()));
            let (unread, read): (Vec<_>, Vec<_>) = others.partition(|(_, proof)| proof.is_none());
            let unread: Vec<_> = unread.into_iter().map(|(id, _)| id).collect();
            if proof.is_none() && read.iter().any(|(_, other)| *other != read[0].1) {
                self.unsettled(&look, [vec![me], unread].concat(), found);
                continue;
            }
            let differ = read.iter().filter(|(_, other)| proof.is_some() && *other != proof);
            let differ: Vec<_> = differ.map(|(id, _)| *id).collect();
            let agree = read.len() - differ.len() + usize::from(proof.is_some());
            self.settle_block(me, look, proof.is_some(), (differ, unread, agree), found);
        }
    }

    /// Backups differ in a block that the primary cannot read. No copy is known to be right, so the
    /// block is neither mended nor written.
    fn unsettled(
        &mut self,
        look: &ScrubLook,
        unread: Vec<MemberId>,
        found: &mut Vec<ScrubFinding>,
    ) {
        let (block, differ) = (look.extent, Vec::new());
        found.push(ScrubFinding { block, differ, unread, agree: 0, is_unsettled: true });
        self.report.unsettled += 1;
        self.looked_at(block);
    }

    /// A block was proved, or some copies do not have it as the primary has it.
    fn settle_block(
        &mut self,
        me: MemberId,
        look: ScrubLook,
        is_read: bool,
        (differ, unread, agree): (Vec<MemberId>, Vec<MemberId>, usize),
        found: &mut Vec<ScrubFinding>,
    ) {
        let block = look.extent;
        let finding =
            |differ, unread| ScrubFinding { block, differ, unread, agree, is_unsettled: false };
        if !is_read {
            // It is compared when it is mended. A block that cannot be read then either is lost.
            if look.is_mended {
                self.report.lost += 1;
                return self.looked_at(block);
            }
            found.push(finding(Vec::new(), vec![me]));
            self.waiting.push_back(ScrubLook { aim: LookAim::Mend, ..look });
        } else if differ.is_empty() && unread.is_empty() {
            self.settled(&look);
        } else {
            let counts = (unread.len() as u64, differ.len() as u64);
            if !look.is_found {
                found.push(finding(differ, unread));
            }
            let ((unread, differ), aim) = (counts, LookAim::Write);
            let look = ScrubLook { aim, is_found: true, unread, differ, ..look };
            self.waiting.push_back(look);
        }
    }
}

/// The blocks of a range that begins with a block.
pub(crate) fn blocks_of(extent: Extent, block_sectors: u32) -> impl Iterator<Item = Extent> {
    let unit = block_sectors.max(1);
    let firsts = (extent.first()..extent.end()).step_by(unit as usize);
    firsts.filter_map(move |first| {
        let left = u32::try_from(extent.end() - first).unwrap_or(unit);
        Extent::new(first, left.min(unit))
    })
}
