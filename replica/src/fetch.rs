//! Fetches: ranges that a member reads from its storage, and fetches of a primary that have failed.

use std::collections::{BTreeMap, VecDeque};

use crate::applied::RequestId;
use crate::extent::Extent;
use crate::message::{Counter, Place};
use crate::record::{Life, MemberId};

/// Failed fetches that are mended at a time: each has one block under way. Further ones wait.
pub const MENDS_MAX: usize = 32;

/// How often a block is mended for one read, and how often the read is fetched again while no block
/// of it is. A storage that fails a block which it has just taken is not mended by another write.
pub(crate) const MENDS_OF_A_READ_MAX: u8 = 3;

/// The purpose of a fetched range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fetch {
    /// A client reads it, in this reign.
    Read(RequestId, u64),
    /// A member that joins, and began behind this operation, lacks it.
    Fill(MemberId, Place),
    /// Members may differ in it, at the begin of this reign.
    Equal(u64),
    /// It is a block of a failed fetch, by its number in this reign: can it be read?
    Mend(u64, u64),
    /// The primary cannot read it, and has asked for it here.
    Lend(MemberId, Place),
    /// A scrub repairs it: a block, by the number of the look at it in this reign.
    Scrub(u64, u64),
}

/// How far a block is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MendStep {
    /// It is read alone, to see whether it is damaged; and once more if an operation was given out
    /// since, which may have mended it.
    Probing { again: bool },
    /// It is damaged. Members that have it damaged as well, by their lives, and the member that is
    /// asked, with the number of the question.
    Asking { damaged: BTreeMap<MemberId, Life>, asked: Option<(MemberId, Life, Counter)> },
    /// No member in sync has it. A member that joins waits, so it is tried again.
    Lost { since_ns: u64 },
}

/// A fetch that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mend {
    pub(crate) fetch: Fetch,
    pub(crate) extent: Extent,
    /// The block that is being looked at. Earlier blocks can be read.
    pub(crate) block: Extent,
    pub(crate) step: MendStep,
}

/// The fetches of a primary that have failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mends {
    pub(crate) under_way: BTreeMap<u64, Mend>,
    /// They are as many as reads of clients, fetches of members that join, and blocks of a scrub at
    /// most.
    pub(crate) waiting: VecDeque<(Fetch, Extent)>,
    pub(crate) count: u64,
}

impl Mends {
    pub(crate) fn age(&mut self, by_ns: u64) {
        for mend in self.under_way.values_mut() {
            if let MendStep::Lost { since_ns } = &mut mend.step {
                *since_ns = since_ns.saturating_sub(by_ns);
            }
        }
    }

    /// Fetches that go on now. A lost block is tried again much later.
    pub(crate) fn active(&self) -> usize {
        let mends = self.under_way.values();
        mends.filter(|mend| !matches!(mend.step, MendStep::Lost { .. })).count()
    }

    /// Whether no fetch has failed, as is usual.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty() && self.waiting.is_empty()
    }
}
