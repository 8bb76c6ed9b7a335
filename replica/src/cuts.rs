//! The cuts of a member's content: how many it keeps, and the cut that is its own.

use std::fmt::Debug;
use std::hash::Hash;

use crate::extent::Extent;
use crate::member::{Holding, MemberRole, Output, Replica, TAIL_RANGES_MAX};
use crate::message::{Counter, Op, Place};
use crate::record::MEMBERS_MAX;
use crate::rule::Rule;

/// Cuts that a member keeps. There is one for each change of the members in sync; a member that
/// missed more of them gets the whole volume.
pub const CUTS_MAX: usize = 8;

/// Cuts that a member keeps while all members are in sync: no member is away that could need an
/// older cut than the newest. A member that was just admitted may have left the newest cut out,
/// and has the cut before.
const CUTS_WHOLE_MAX: usize = 2;

// A primary's other members may all join, each from a cut of its own, when a cut is made.
const _: () = assert!(MEMBERS_MAX - 1 < CUTS_MAX);

/// The counter of own cuts. No operation has it: operations count from 1 on.
const OWN_CUT: Counter = 0;

impl Place {
    /// The place of a member's own cut in a reign.
    pub fn own_cut(reign: u64) -> Self {
        Self { reign, counter: OWN_CUT }
    }

    /// Whether a cut of this place is one member's own: no other member has a cut of this name with
    /// the same content.
    pub fn is_own(&self) -> bool {
        self.counter == OWN_CUT
    }
}

impl<D: Clone + Debug + Eq + Hash + Ord> Replica<D> {
    /// A backup that begins to be made equal has a cut of its content first. The content and the
    /// table of applied requests change by several operations, of which the last may never come:
    /// until then a member goes on with the state of before. On the way back its content differs
    /// from that of all members that have the operation, also when all of them have it.
    pub(crate) fn prepare_equal(&mut self, extent: Extent, out: &mut Vec<Output<D>>) {
        let holding = &mut self.holding;
        let reign = holding.began.reign;
        let is_whole = self.role != MemberRole::Backup || holding.equal_in == reign;
        if holding.own_cut.is_none() && !is_whole {
            let cut = Place::own_cut(reign);
            holding.own_cut = Some(cut);
            out.push(Output::Store(cut, Op::Cut));
        }
        if holding.own_cut.is_some() {
            holding.old_tail.insert(extent.first(), extent.end());
            holding.old_tail.coarsen(TAIL_RANGES_MAX);
        }
    }

    /// A member that takes over with content that is half equal to the content of a primary of
    /// before has its state of before again: requests are in both the content and the table of
    /// applied requests, or in neither.
    pub(crate) fn undo_half_equal(&mut self, out: &mut Vec<Output<D>>) {
        let Some(cut) = self.holding.own_cut.take() else { return };
        if !self.breaks(Rule::HalfEqualMembersGoBack) {
            out.push(Output::GoBack(Some(cut)));
        }
        out.push(Output::Drop(cut));
    }

    /// Drops the oldest cuts of too many, but for cuts that joins use: each member that joins uses
    /// one at most, so there is another cut.
    pub(crate) fn drop_surplus_cuts(&mut self, out: &mut Vec<Output<D>>) {
        let in_sync = self.record.as_ref().map_or(0, |record| record.in_sync.len());
        let is_whole = in_sync >= self.pacing.members;
        let cuts_max = if is_whole { CUTS_WHOLE_MAX } else { CUTS_MAX };
        let Holding { cuts, .. } = &mut self.holding;
        let surplus = cuts.len().saturating_sub(cuts_max);
        let is_used = |cut: &Place| match &self.role {
            MemberRole::Primary(primary) => primary.uses(*cut),
            _ => false,
        };
        let dropped: Vec<_> =
            cuts.iter().copied().filter(|cut| !is_used(cut)).take(surplus).collect();
        for cut in dropped {
            cuts.remove(&cut);
            out.push(Output::Drop(cut));
        }
    }
}
