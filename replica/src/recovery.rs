//! Recovery: an operator has a member's copy serve again, when the registry has lost the volume's
//! record, or when the copies with newer writes are lost for good.
//!
//! The operator's tool asks all members what they know. The newest record that any of them knows
//! says which copies have each acknowledged write: a primary acknowledges nothing under a record
//! before it has kept it. So if all members have answered, a copy in sync by that record lacks
//! nothing. If some have not, their processes must have ended: a primary that is cut off and needs
//! no member that was heard would go on acknowledging.

use std::collections::{BTreeMap, BTreeSet};

use crate::message::{Knowledge, NUMBER_END, Place};
use crate::record::{MemberId, VolumeRecord};

/// The epochs that are left out above all that is known, for changes that no member that was heard
/// has heard of: more than a volume has in its life.
pub const RECOVERY_MARGIN: u64 = 1 << 20;

/// An operator's word that a member's copy serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Recovery {
    /// The other members of the volume.
    pub members: BTreeSet<MemberId>,
    /// The knowledge of members that have answered.
    pub answers: BTreeMap<MemberId, Knowledge>,
    /// Acknowledged and flushed writes may be lost. The operator says that the processes of members
    /// that have not answered have ended.
    pub gives_up: bool,
}

/// The writes that may be lost by a recovery, from none to most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecoveryLoss {
    /// None.
    Nothing,
    /// Writes that were not flushed: all members in sync have lost their volatile state.
    Unflushed,
    /// The copy was in sync by the newest record that is known; a member that has not answered may
    /// know a newer record, and have newer writes.
    Unheard,
    /// The writes since the copy was in sync.
    Newer,
    /// The copy was being filled: it has old and new blocks beside each other, a state that the
    /// volume never had.
    Mixed,
}

/// The steps of a recovery.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecoveryPlan {
    /// The newest record that a member knows. The registry must have none that is newer.
    pub known: VolumeRecord,
    /// The record that takes its place.
    pub record: VolumeRecord,
    /// The members that have not answered.
    pub unheard: Vec<MemberId>,
    /// The writes that may be lost.
    pub loss: RecoveryLoss,
}

/// Why there is no recovery with a member's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecoveryRefusal {
    /// No member that has answered knows a record.
    NothingKnown,
    /// This member serves, or is about to: it makes the record anew and loses nothing.
    Serves(MemberId),
    /// This member has answered, and its copy has more.
    Better(MemberId),
    /// A member says that it knows an epoch that no volume has.
    NoEpochLeft,
}

/// How much a copy has, from least to most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CopyRank {
    Mixed,
    /// In sync at this cut, and perhaps after it.
    Older(Option<Place>),
    Flushed,
    Whole,
}

impl CopyRank {
    fn of(member: MemberId, it: &Knowledge, newest: &VolumeRecord) -> Self {
        match newest.in_sync.get(&member) {
            Some(life) if *life == it.life => Self::Whole,
            Some(_) => Self::Flushed,
            None if it.filled_since.is_none() => Self::Older(it.cut),
            None => Self::Mixed,
        }
    }

    fn loss(self, is_proved: bool) -> RecoveryLoss {
        match self {
            Self::Whole if is_proved => RecoveryLoss::Nothing,
            Self::Flushed if is_proved => RecoveryLoss::Unflushed,
            Self::Whole | Self::Flushed => RecoveryLoss::Unheard,
            Self::Older(_) => RecoveryLoss::Newer,
            Self::Mixed => RecoveryLoss::Mixed,
        }
    }
}

impl Recovery {
    /// The steps by which a member's copy would serve. `leases` says that the member is a primary
    /// whose leases hold: no other member can be one then. Epochs from `asked` on are free for all
    /// that the member itself has asked the registry for.
    pub(crate) fn plan(
        &self,
        (id, own): (MemberId, &Knowledge),
        leases: bool,
        asked: u64,
    ) -> Result<RecoveryPlan, RecoveryRefusal> {
        let all = || [(id, own)].into_iter().chain(self.answers());
        let records = || all().filter_map(|(_, it)| it.record.as_ref());
        let newest = records().max_by_key(|record| record.epoch);
        let newest = newest.ok_or(RecoveryRefusal::NothingKnown)?;
        let is_first = own.reigns && own.record.as_ref() == Some(newest);
        // A primary of an older record needs members that have gone on without it.
        let reigns = |it: &Knowledge| it.reigns && it.record.as_ref() == Some(newest);
        if let Some((other, _)) = self.answers().find(|(_, it)| reigns(it) && !is_first) {
            return Err(RecoveryRefusal::Serves(other));
        }
        let rank = CopyRank::of(id, own, newest);
        let others = self.answers().map(|(id, it)| (CopyRank::of(id, it, newest), id));
        if let Some((_, other)) = others.max().filter(|(other, _)| *other > rank) {
            return Err(RecoveryRefusal::Better(other));
        }
        let unheard: Vec<_> = self.unheard().collect();
        let serves = is_first && leases;
        let is_forked = records().any(|it| it.epoch == newest.epoch && it != newest);
        let loss = rank.loss(serves || unheard.is_empty() && !is_forked);
        let epochs = all().map(|(_, it)| it.promised).chain(records().map(|it| it.epoch));
        let epoch = epochs.fold(asked, u64::max).saturating_add(RECOVERY_MARGIN + 1);
        if epoch >= NUMBER_END {
            return Err(RecoveryRefusal::NoEpochLeft);
        }
        let record = match loss {
            RecoveryLoss::Nothing if serves => VolumeRecord { epoch, ..newest.clone() },
            // No incarnation is larger than its epoch, so this one is new to each client.
            _ => VolumeRecord {
                epoch,
                reign: epoch,
                incarnation: if loss > RecoveryLoss::Nothing { epoch } else { newest.incarnation },
                primary: id,
                in_sync: BTreeMap::from([(id, own.life)]),
            },
        };
        Ok(RecoveryPlan { known: newest.clone(), record, unheard, loss })
    }

    fn answers(&self) -> impl Iterator<Item = (MemberId, &Knowledge)> {
        self.answers.iter().map(|(member, it)| (*member, it))
    }

    fn unheard(&self) -> impl Iterator<Item = MemberId> {
        self.members.iter().copied().filter(|member| !self.answers.contains_key(member))
    }
}
