//! Histories of volumes, for the engine.

use super::page::Applied;
use super::{Forgetting, HistoryClock, HistoryWork, PoolMap, PoolVolume};
use crate::api::VolumeId;
use crate::format::NO_VOLUME;
use crate::history::PoolMoment;

impl PoolMap {
    /// A moment of each of these volumes, whose list ends at the first that is none.
    pub(super) fn take_moments(&mut self, at_ns: u64, volumes: &[u32]) -> Applied {
        let count = volumes.iter().take_while(|&&volume| volume != NO_VOLUME).count();
        match self.catalog.take_moments(at_ns, &volumes[..count]) {
            true => Applied::Done,
            false => Applied::Dropped,
        }
    }

    /// Moments of a volume are removed.
    pub(super) fn forget(&mut self, forgetting: Forgetting) -> Applied {
        self.is_removal_idle = false;
        match self.catalog.forget(forgetting) {
            true => Applied::Done,
            false => Applied::Dropped,
        }
    }

    /// Whether there is a history to look after.
    pub(crate) fn has_history(&self) -> bool {
        self.catalog.has_history()
    }

    /// How many moments there are, with those that are being removed.
    pub(crate) fn moments(&self) -> usize {
        self.catalog.moments()
    }

    /// The work on histories that is due now: a bounded part of it.
    pub(crate) fn history_work(&self, clock: HistoryClock) -> HistoryWork {
        self.catalog.history_work(clock)
    }

    /// The last moment of a volume at this time or before it.
    pub(crate) fn moment_at(&self, volume: VolumeId, at_ns: u64) -> Option<PoolMoment> {
        self.catalog.moment_at(volume.0, at_ns)
    }

    /// A moment that can be cloned.
    pub(crate) fn moment(&self, id: VolumeId) -> Option<PoolVolume> {
        self.catalog.moment(id)
    }

    /// All moments of a volume, the oldest first.
    pub(crate) fn moments_of(&self, volume: VolumeId) -> Vec<PoolMoment> {
        self.catalog.moments_of(volume.0)
    }
}
