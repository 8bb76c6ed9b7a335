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
use crate::rule::Rule;

/// The epochs that are left out above all that is known, for changes that no member that was heard
/// has heard of: more than a volume has in its life.
pub const RECOVERY_MARGIN: u64 = 1 << 20;

/// Multiples of the margin that a recovery draws at most: seconds until the year 2242, each with
/// 256 draws. A later recovery has the larger epoch so, also if it knows nothing of the earlier
/// one, and the changes behind them have different epochs as well.
const RECOVERY_DRAWS: u64 = 1 << 41;

/// An operator's word that a member's copy serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Recovery {
    /// The other members of the volume, as the node of this member knows them. A list may be old:
    /// members of records that are told count as well.
    pub members: BTreeSet<MemberId>,
    /// The knowledge of members that have answered.
    pub answers: BTreeMap<MemberId, Knowledge>,
    /// The epoch of the record that this member knew when it asked them; 0 for none. Answers of
    /// before a newer record say nothing about the members of that record.
    pub asked_epoch: u64,
    /// The largest loss that the operator accepts. If it is more than unflushed writes, the
    /// processes of members that have not answered have ended, as the operator says.
    pub accepts: RecoveryLoss,
    /// The seconds since 1970 and eight random bits behind them: the epoch depends on it.
    pub draw: u64,
}

/// The member with which a recovery goes on.
pub(crate) struct Asker<'a> {
    pub(crate) id: MemberId,
    pub(crate) knows: &'a Knowledge,
    /// It is a primary and its leases hold: no other member can be a primary then.
    pub(crate) has_leases: bool,
    /// The newest epoch that it has asked the registry for.
    pub(crate) asked: u64,
    /// It waits for the outcome of a change of its own: it cannot keep members that the change may
    /// have taken out.
    pub(crate) waits: bool,
    pub(crate) broken: Option<Rule>,
}

/// The writes that may be lost by a recovery, from none to most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecoveryLoss {
    /// None.
    Nothing,
    /// Writes that were not flushed: all members in sync have lost their volatile state.
    #[default]
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
    /// The members that were heard. The registry may know of further members, which were not. None
    /// if the leases of the primary hold: no other member matters then.
    pub heard: Option<Vec<MemberId>>,
    /// The members that have not answered, or wait for an answer of the registry: an answer that
    /// comes late makes such a member the primary of a record of before.
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
    /// This member serves by a record that is older than the newest one, and needs no member that
    /// has heard of a newer one: its copy may have been made anew.
    ServesOlder(MemberId),
    /// This member has answered, and its copy has more.
    Better(MemberId),
    /// A member says that it knows an epoch that no volume has.
    NoEpochLeft,
    /// This member has heard of another record since the members were asked.
    News,
}

/// How much a copy has, from least to most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CopyRank {
    /// The member knows no record: its copy has nothing of the volume.
    Empty,
    /// It is being filled since this place, or never was, with this cut and all operations up to
    /// this place. A copy without content never was, and has neither.
    Mixed(Place, Option<Place>, Place),
    /// In sync by this epoch last, with this cut, and with all operations up to this place. A cut
    /// is made when a member joins, so that two older copies may have the same.
    Older(u64, Option<Place>, Place),
    Flushed,
    Whole,
}

impl CopyRank {
    fn of(member: MemberId, it: &Knowledge, newest: &VolumeRecord) -> Self {
        let own = it.record.as_ref().and_then(|record| record.in_sync.get(&member));
        let is_news = it.record.as_ref().is_some_and(|record| record.epoch < newest.epoch);
        match newest.in_sync.get(&member) {
            Some(life) if *life == it.life => Self::Whole,
            // Another copy of that number was in sync.
            _ if it.record.is_none() => Self::Empty,
            found => match (it.filled_since, found) {
                // The newer record is of its admission, of which it has not heard.
                (Some(since), Some(_)) if since != Place::default() && is_news => Self::Flushed,
                (Some(since), _) => Self::Mixed(since, it.cut, it.stored),
                // A copy that was made anew has the number, and not the life.
                (None, Some(life)) if own == Some(life) => Self::Flushed,
                (None, _) => Self::Older(it.was_in, it.cut, it.stored),
            },
        }
    }

    fn loss(self, is_proved: bool) -> RecoveryLoss {
        match self {
            Self::Whole if is_proved => RecoveryLoss::Nothing,
            Self::Flushed if is_proved => RecoveryLoss::Unflushed,
            Self::Whole | Self::Flushed => RecoveryLoss::Unheard,
            Self::Older(..) => RecoveryLoss::Newer,
            Self::Mixed(..) | Self::Empty => RecoveryLoss::Mixed,
        }
    }
}

impl Recovery {
    /// The steps by which a member's copy would serve.
    pub(crate) fn plan(&self, asker: &Asker<'_>) -> Result<RecoveryPlan, RecoveryRefusal> {
        let Asker { id, knows: own, broken, .. } = *asker;
        if own.record.as_ref().map_or(0, |it| it.epoch) != self.asked_epoch {
            return Err(RecoveryRefusal::News);
        }
        let all = || [(id, own)].into_iter().chain(self.answers());
        let records = || all().filter_map(|(_, it)| it.record.as_ref());
        // Of two records of one epoch all members choose the same.
        let newest = records().max().ok_or(RecoveryRefusal::NothingKnown)?;
        let is_first = own.reigns && own.record.as_ref() == Some(newest);
        if let Some(refusal) = self.primary_besides(asker, newest) {
            return Err(refusal);
        }
        let rank = CopyRank::of(id, own, newest);
        let others = self.answers().map(|(id, it)| (CopyRank::of(id, it, newest), id));
        if let Some((_, other)) = others.max().filter(|(other, _)| *other > rank) {
            return Err(RecoveryRefusal::Better(other));
        }
        let serves = is_first && asker.has_leases;
        let told = records().flat_map(|it| it.in_sync.keys().copied().chain([it.primary]));
        let unheard = if serves { Vec::new() } else { self.unheard(id, told) };
        let is_heard = |other: &MemberId| !unheard.contains(other);
        let heard = all().map(|(member, _)| member).filter(is_heard).collect();
        let is_forked = records().any(|it| it.epoch == newest.epoch && it != newest);
        let loss = rank.loss(serves || unheard.is_empty() && !is_forked);
        let epochs = all().map(|(_, it)| it.promised).chain(records().map(|it| it.epoch));
        let most = epochs.fold(asker.asked, u64::max);
        let margins = (most / RECOVERY_MARGIN + 1).max(self.draw % RECOVERY_DRAWS);
        let mut epoch = margins * RECOVERY_MARGIN + most % RECOVERY_MARGIN;
        if broken == Some(Rule::RecoveredEpochsAreNew) {
            epoch = own.record.as_ref().map_or(0, |record| record.epoch) + 1;
        }
        if epoch >= NUMBER_END {
            return Err(RecoveryRefusal::NoEpochLeft);
        }
        let record = match loss {
            RecoveryLoss::Nothing if serves && !asker.waits => {
                VolumeRecord { epoch, ..newest.clone() }
            }
            // No incarnation is larger than its epoch, so this one is new to each client.
            _ => VolumeRecord {
                epoch,
                reign: epoch,
                incarnation: if loss > RecoveryLoss::Nothing { epoch } else { newest.incarnation },
                primary: id,
                in_sync: BTreeMap::from([(id, own.life)]),
            },
        };
        let heard = (!serves).then_some(heard);
        Ok(RecoveryPlan { known: newest.clone(), record, heard, unheard, loss })
    }

    /// Another member that takes itself for the primary, and may go on as one.
    fn primary_besides(&self, asker: &Asker<'_>, newest: &VolumeRecord) -> Option<RecoveryRefusal> {
        let all = || [(asker.id, asker.knows)].into_iter().chain(self.answers());
        // A primary of an older record can do nothing without a member that has promised not to
        // hear it any more. A primary without such a member is alone by a record of its own.
        let is_blocked = |member: MemberId, record: &VolumeRecord| {
            let needs = |other: &MemberId| *other != member && record.in_sync.contains_key(other);
            all().any(|(other, its)| needs(&other) && its.promised > record.epoch)
        };
        let goes_on = |(member, it): &(MemberId, &Knowledge)| {
            let record = it.record.as_ref().filter(|_| it.reigns);
            record.is_some_and(|record| {
                record == newest
                    || !is_blocked(*member, record)
                        && asker.broken != Some(Rule::OlderPrimariesMayGoOn)
            })
        };
        let (member, it) = self.answers().find(goes_on)?;
        Some(match it.record.as_ref() == Some(newest) {
            true => RecoveryRefusal::Serves(member),
            false => RecoveryRefusal::ServesOlder(member),
        })
    }

    fn answers(&self) -> impl Iterator<Item = (MemberId, &Knowledge)> {
        self.answers.iter().map(|(member, it)| (*member, it))
    }

    /// The members, and those of the records that were told, that have not answered, or whose
    /// answer of the registry is still to come.
    fn unheard(&self, id: MemberId, told: impl Iterator<Item = MemberId>) -> Vec<MemberId> {
        let all: BTreeSet<_> = self.members.iter().copied().chain(told).collect();
        let is_heard = |member: &MemberId| self.answers.get(member).is_some_and(|it| !it.asks);
        all.into_iter().filter(|member| *member != id && !is_heard(member)).collect()
    }
}
