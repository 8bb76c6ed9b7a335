//! Histories: moments of volumes are taken when they are due, and go when they are old, or when
//! their space is needed.

use super::PoolEngine;
use super::keeper::LOOK_NS;
use super::rows::RecordOwner;
use crate::api::{PoolError, VolumeId};
use crate::format::{LogRecord, MOMENT_VOLUMES_MAX, NO_VOLUME};
use crate::history::{HistoryRest, PoolMoment};
use crate::map::{Forgetting, HistoryClock, HistoryWork, PoolVolume};

/// The same while guests wait for room.
const REFUSED_LOOK_NS: u64 = 1_000_000;

/// The part of the pool below which histories give way, and rest.
const LOW_PART: u64 = 32;

impl PoolEngine {
    /// Whether a volume has a history, and the pool needs [`Self::set_time`] before each round.
    pub fn keeps_history(&self) -> bool {
        self.core.map.has_history()
    }

    /// Tells the pool the time, in nanoseconds since 1970. It may jump: moments stay in their
    /// order.
    pub fn set_time(&mut self, utc_ns: u64) {
        self.history.utc_ns = utc_ns;
    }

    /// The last moment of a volume's history at this time or before it.
    ///
    /// # Errors
    /// If the volume has no history, or none that reaches so far back.
    pub fn moment_at(&self, volume: VolumeId, at_ns: u64) -> Result<PoolMoment, PoolError> {
        if !self.core.map.is_head(volume) {
            return Err(PoolError::NoVolume(volume));
        }
        let Some(&oldest) = self.core.map.moments_of(volume).first() else {
            return Err(PoolError::NoHistory(volume));
        };
        let found = self.core.map.moment_at(volume, at_ns);
        found.ok_or(PoolError::BeforeHistory { oldest_ns: oldest.at_ns })
    }

    /// A moment by its number, as a list would have it.
    pub fn moment(&self, id: VolumeId) -> Option<PoolVolume> {
        self.core.map.moment(id)
    }

    /// The moments of a volume's history, the oldest first.
    pub fn moments_of(&self, volume: VolumeId) -> Vec<PoolMoment> {
        self.core.map.moments_of(volume)
    }

    /// A record of a history was applied.
    pub(super) fn history_applied(&mut self) {
        self.history.under_way -= 1;
    }

    /// Whether there is work on histories for the next rounds.
    pub(super) fn has_history_work(&self) -> bool {
        self.history.has_more && self.history.utc_ns > 0 && self.keeps_history() && !self.is_closing
    }

    /// Whether there is so little room that histories give way before guests must wait.
    fn is_low(&self) -> bool {
        let low = self.core.usable_blocks() / LOW_PART;
        let low = low.max(self.core.segments.payload_blocks().into());
        self.core.room().saturating_sub(self.core.map.promised()) < low
    }

    /// Notes in a list why no moments are taken.
    pub(super) fn note_rest(&self, list: &mut [PoolVolume]) {
        if self.keeps_history() && self.is_low() {
            let histories = list.iter_mut().filter_map(|volume| volume.history.as_mut());
            histories
                .filter(|history| history.options.is_some())
                .for_each(|history| history.rests = Some(HistoryRest::PoolFull));
        }
    }

    /// Takes moments that are due, and has old ones removed: a bounded part of them.
    pub(super) fn keep_history(&mut self) {
        let now_ns = self.core.now_ns;
        let may_work = self.keeps_history()
            && self.history.utc_ns > 0
            && !self.history.is_working()
            && !self.requests.has_change
            && !self.is_closing
            && !self.core.is_halted
            && self.core.failed.is_none();
        let refusals = self.core.counters.quota_refusals + self.core.counters.full_refusals;
        let is_refused = refusals != self.history.refusals
            && now_ns >= self.history.looked_at_ns + REFUSED_LOOK_NS;
        if !may_work || !(is_refused || self.history.is_time(now_ns)) || !self.admits_freeing(2) {
            return;
        }
        let since_ns = now_ns.saturating_sub(self.history.taken_at_ns);
        let (utc_ns, is_low) = (self.history.utc_ns, self.is_low());
        let HistoryWork { due, forget } =
            self.core.map.history_work(HistoryClock { utc_ns, since_ns, is_low });
        (self.history.refusals, self.history.looked_at_ns) = (refusals, now_ns);
        if let Some(Forgetting { volume, generation, is_early }) = forget {
            let record = LogRecord::Forget { volume, generation, is_early };
            self.push(record, RecordOwner::History, |_| {});
            self.history.under_way += 1;
        }
        if !due.is_empty() {
            let volumes = std::array::from_fn(|at| due.get(at).copied().unwrap_or(NO_VOLUME));
            self.push(LogRecord::Moment { at_ns: utc_ns, volumes }, RecordOwner::History, |_| {});
            self.history.under_way += 1;
            self.history.taken_at_ns = now_ns;
        }
        self.history.has_more = due.len() == MOMENT_VOLUMES_MAX || forget.is_some();
        if !self.history.has_more {
            self.history.look_at_ns = now_ns + LOOK_NS;
            self.history.look_at_utc_ns = utc_ns + LOOK_NS;
        }
    }
}
