//! Histories of volumes. A *moment* is a snapshot without a name that the pool takes by itself: it
//! has its place among the versions, and a number that no volume and no snapshot with a name has.
//!
//! ```text
//! snapshot 1 ── moment ── moment ── snapshot 2 ── moment ── volume 0 (head)
//! ```
//!
//! Lists and limits of snapshots leave moments out: there are many of them.

use super::{GENERATION_MAX, PoolCatalog, PoolVolume, PoolVolumeKind, Version};
use crate::api::{PoolError, VolumeId};
use crate::format::{MOMENT_VOLUMES_MAX, NO_VOLUME};
use crate::history::{HistoryOptions, HistoryRest, PoolHistory, PoolMoment, VolumeHistory};
use crate::map::moments::{
    Forgetting, HistoryClock, HistoryWork, MOMENT_FIRST, VolumeMoments, is_moment,
};
use crate::map::space::VersionSpace;

/// Generations that are kept for snapshots with a name when moments have used up the others.
const GENERATIONS_KEPT: u64 = 1 << 20;

/// The most moments that a record removes: each is looked up, while guests wait.
const FORGET_MAX: usize = 256;

/// A full pool takes no more moments at once than these, or than free so many blocks.
const GIVE_WAY_MOMENTS_MAX: usize = 16;
const GIVE_WAY_BLOCKS: u64 = 256;

/// Blocks below a volume's limit at which its history gives way, and the part of a small limit.
const LIMIT_SLACK_BLOCKS: u64 = 2048;
const LIMIT_SLACK_PART: u64 = 16;

impl PoolCatalog {
    /// How many moments there are, with those that are being removed.
    pub(in crate::map) fn moments(&self) -> usize {
        self.moments
    }

    /// Whether there is a history to look after.
    pub(in crate::map) fn has_history(&self) -> bool {
        !self.histories.is_empty()
    }

    /// Versions that are no moments.
    pub(super) fn named(&self) -> impl Iterator<Item = &Version> {
        self.versions.range(..MOMENT_FIRST).map(|(_, version)| version)
    }

    /// This ancestor or, if it is being removed or a moment, the next one.
    pub(super) fn named_ancestor(&self, ancestor: Option<u32>) -> Option<u32> {
        let mut ancestor = self.visible_ancestor(ancestor);
        while let Some(id) = ancestor.filter(|&id| is_moment(id)) {
            ancestor = self.visible_ancestor(self.versions[&id].parent);
        }
        ancestor
    }

    /// A version is there.
    pub(super) fn open_history(&mut self, version: &Version) {
        if version.history.is_some() {
            self.histories.entry(version.id).or_default();
        }
        let (true, Some(of)) = (is_moment(version.id), version.of) else { return };
        self.moments += 1;
        let moments = self.histories.entry(of).or_default();
        moments.count += 1;
        moments.held += version.held;
        if version.kind == PoolVolumeKind::Snapshot {
            moments.kept.insert(version.generation, version.id);
        }
    }

    /// A version is gone; `parent` was its parent.
    pub(super) fn close_history(&mut self, version: &Version, parent: Option<u32>) {
        let (true, Some(of)) = (is_moment(version.id), version.of) else {
            return self.drop_empty_history(version.id);
        };
        self.moments -= 1;
        let moments = self.histories.get_mut(&of).expect("a moment's history is there");
        moments.count -= 1;
        moments.held = moments.held.saturating_sub(version.held);
        // Its parent has the rest of them.
        if let Some(parent) = parent.filter(|&parent| is_moment(parent)) {
            self.hold(parent, version.held, 0);
        }
        self.drop_empty_history(of);
    }

    fn drop_empty_history(&mut self, volume: u32) {
        let has_options = self.volume(volume).is_some_and(|head| head.history.is_some());
        if !has_options && self.histories.get(&volume).is_some_and(|moments| moments.count == 0) {
            self.histories.remove(&volume);
        }
    }

    /// A moment is being removed, and cannot be asked for any more.
    pub(super) fn leave_history(&mut self, id: u32) {
        let version = &self.versions[&id];
        let (true, Some(of)) = (is_moment(id), version.of) else { return };
        let generation = version.generation;
        self.histories.entry(of).or_default().kept.remove(&generation);
    }

    /// A moment alone has more or fewer blocks.
    pub(super) fn hold(&mut self, id: u32, more: u64, fewer: u64) {
        let Some(version) = self.versions.get_mut(&id).filter(|_| is_moment(id)) else { return };
        let before = version.held;
        version.held = before.saturating_add(more).saturating_sub(fewer);
        let (after, of) = (version.held, version.of);
        if let Some(moments) = of.and_then(|of| self.histories.get_mut(&of)) {
            moments.held = moments.held.saturating_add(after).saturating_sub(before);
        }
    }

    /// The volume leaves its whole tree to its parent.
    pub(super) fn leave_all(&mut self, volume: u32) {
        let head = &self.versions[&volume];
        let Some(parent) = head.parent.filter(|&parent| is_moment(parent)) else { return };
        let (has_snapshot, moment) = (head.snapshot_floor > 0, &self.versions[&parent]);
        let left = match moment.space.refers {
            Some(refers) if !has_snapshot => refers,
            _ => moment.space.owned,
        };
        let left = left.saturating_sub(moment.held);
        self.hold(parent, left, 0);
    }

    /// A volume gets a history, or another history, or no history.
    pub(super) fn set_history(&mut self, volume: u32, options: Option<HistoryOptions>) {
        let head = self.get_mut(volume);
        let shortened_ns = head.history.map_or(0, |history| history.shortened_ns);
        head.history = options.map(|options| VolumeHistory::new(options, shortened_ns));
        self.histories.entry(volume).or_default();
        self.drop_empty_history(volume);
    }

    pub(super) fn check_history(
        &self,
        volume: VolumeId,
        options: Option<&HistoryOptions>,
    ) -> Result<VolumeId, PoolError> {
        self.head(volume)?;
        options.map_or(Ok(()), HistoryOptions::check).map_err(PoolError::Invalid)?;
        Ok(volume)
    }

    /// Takes a moment of each volume that may have one; whether there was one.
    pub(in crate::map) fn take_moments(&mut self, at_ns: u64, volumes: &[u32]) -> bool {
        let mut is_taken = false;
        for &volume in volumes {
            is_taken |= self.may_have_moment(volume) && self.take_moment(at_ns, volume);
        }
        self.generation += u64::from(is_taken);
        is_taken
    }

    fn has_generations(&self) -> bool {
        self.generation < GENERATION_MAX - GENERATIONS_KEPT
    }

    fn may_have_moment(&self, volume: u32) -> bool {
        let head = self.volume(volume);
        let is_right = |head: &Version| head.history.is_some() && head.receive.is_none();
        let kept = self.histories.get(&volume).map_or(0, |moments| moments.kept.len());
        self.has_generations()
            && head.is_some_and(is_right)
            && (kept as u64) < HistoryOptions::MOMENTS_MAX
            && (self.moments as u64) < HistoryOptions::POOL_MOMENTS_MAX
    }

    fn take_moment(&mut self, at_ns: u64, volume: u32) -> bool {
        let Some(id) = self.next_moment() else { return false };
        // After a clock was set back, moments stay in their order.
        let at_ns = at_ns.max(self.newest(volume).map_or(0, |newest| newest.at_ns));
        self.split_into(id, volume, PoolVolumeKind::Snapshot);
        self.set_parent(volume, Some(id));
        self.last_moment = id;
        let moment = self.get_mut(id);
        moment.at_ns = at_ns;
        true
    }

    /// A number that no moment has. All of them were used after years; then they begin anew.
    fn next_moment(&self) -> Option<u32> {
        let after = self.last_moment.checked_add(1).filter(|&id| id != NO_VOLUME);
        let from = after.unwrap_or(MOMENT_FIRST).max(MOMENT_FIRST);
        let is_free = |id: &u32| !self.versions.contains_key(id);
        (from..NO_VOLUME).chain(MOMENT_FIRST..from).find(is_free)
    }

    /// The moments of a volume up to a generation are removed; whether there were any.
    pub(in crate::map) fn forget(&mut self, forgetting: Forgetting) -> bool {
        let Forgetting { volume, generation, is_early } = forgetting;
        let Some(moments) = self.histories.get(&volume) else { return false };
        let gone: Vec<u32> = moments.kept.range(..=generation).map(|(_, &id)| id).collect();
        let Some(last) = gone.last() else { return false };
        let at_ns = self.versions[last].at_ns;
        for id in gone {
            self.begin_removal(id);
        }
        if is_early
            && let Some(head) = self.versions.get_mut(&volume)
            && let Some(history) = &mut head.history
        {
            history.shortened_ns = at_ns;
        }
        true
    }

    /// Whether a volume has a moment of this generation that is not being removed.
    pub(super) fn has_moment_of(&self, volume: u32, generation: u64) -> bool {
        let moments = self.histories.get(&volume);
        moments.is_some_and(|moments| moments.kept.contains_key(&generation))
    }

    /// Whether a later moment of a volume never has an earlier time.
    pub(super) fn are_moments_in_order(&self) -> bool {
        self.histories.values().all(|moments| {
            let times = moments.kept.values().map(|id| self.versions[id].at_ns);
            times.is_sorted()
        })
    }

    fn newest(&self, volume: u32) -> Option<&Version> {
        let (_, id) = self.histories.get(&volume)?.kept.last_key_value()?;
        self.versions.get(id)
    }

    /// A moment that can be cloned, as a list would have it.
    pub(in crate::map) fn moment(&self, id: VolumeId) -> Option<PoolVolume> {
        let moment = self.snapshot(id).ok().filter(|moment| is_moment(moment.id))?;
        let compression = self.compression(moment.of?);
        Some(PoolVolume { compression, ..self.entry(moment, (u64::MAX, 0)) })
    }

    /// The last moment of a volume at this time or before it.
    pub(in crate::map) fn moment_at(&self, volume: u32, at_ns: u64) -> Option<PoolMoment> {
        let kept = &self.histories.get(&volume)?.kept;
        let moments = kept.values().rev().map(|id| &self.versions[id]);
        let mut moments = moments.map(|it| PoolMoment { id: VolumeId(it.id), at_ns: it.at_ns });
        moments.find(|moment| moment.at_ns <= at_ns)
    }

    /// All moments of a volume, the oldest first.
    pub(in crate::map) fn moments_of(&self, volume: u32) -> Vec<PoolMoment> {
        let kept =
            self.histories.get(&volume).into_iter().flat_map(|moments| moments.kept.values());
        let moments = kept.map(|id| &self.versions[id]);
        moments.map(|it| PoolMoment { id: VolumeId(it.id), at_ns: it.at_ns }).collect()
    }

    /// The history of a volume, if it has one.
    pub(super) fn history_of(&self, id: u32) -> Option<PoolHistory> {
        let head = self.volume(id)?;
        // A moment that a clone was made of stays as a hidden version of that clone.
        let moments = self.histories.get(&id)?;
        if head.history.is_none() && moments.kept.is_empty() {
            return None;
        }
        let at_ns = |found: Option<(&u64, &u32)>| found.map_or(0, |it| self.versions[it.1].at_ns);
        let rests = match head.history {
            None => None,
            Some(_) if head.receive.is_some() => Some(HistoryRest::Receiving),
            Some(_) if !self.has_generations() => Some(HistoryRest::Generations),
            Some(_) if self.is_near_limit(head) => Some(HistoryRest::Limit),
            Some(_) => None,
        };
        Some(PoolHistory {
            options: head.history.map(|history| history.options()),
            moments: moments.kept.len() as u64,
            oldest_ns: at_ns(moments.kept.first_key_value()),
            newest_ns: at_ns(moments.kept.last_key_value()),
            blocks: moments.held,
            shortened_ns: head.history.map_or(0, |history| history.shortened_ns),
            rests,
        })
    }

    /// Whether a volume is so near its limit that its history gives way.
    fn is_near_limit(&self, head: &Version) -> bool {
        let VersionSpace { limit: Some(limit), .. } = head.space else { return false };
        let Some(account) = self.accounts.get(&head.id) else { return false };
        let slack = LIMIT_SLACK_BLOCKS.min(limit / LIMIT_SLACK_PART).max(1);
        account.owned + account.under_way + slack > limit
    }

    /// The work that is due now: a bounded part of it.
    pub(in crate::map) fn history_work(&self, clock: HistoryClock) -> HistoryWork {
        let mut work = HistoryWork::default();
        for (&volume, moments) in &self.histories {
            let head = self.volume(volume).filter(|head| head.history.is_some());
            if work.forget.is_none() {
                work.forget = self.forgetting(volume, moments, head, clock);
            }
            if let Some(head) = head
                && work.due.len() < MOMENT_VOLUMES_MAX
                && !clock.is_low
                && self.may_have_moment(volume)
                && !self.is_near_limit(head)
                && self.is_due(head, clock)
            {
                work.due.push(volume);
            }
        }
        if work.forget.is_none() {
            work.forget = self.over_the_bound(clock);
        }
        work
    }

    /// Whether a volume was written since its last moment, and the step has passed.
    fn is_due(&self, head: &Version, clock: HistoryClock) -> bool {
        let Some(history) = head.history else { return false };
        let Some(newest) = self.newest(head.id) else { return true };
        let (step_ns, at_ns) = (history.options().step_ns(), newest.at_ns);
        // Steps are those of the clock, so that volumes with the same step share generations.
        let has_passed = match clock.utc_ns >= at_ns {
            true => clock.utc_ns / step_ns > at_ns / step_ns,
            false => clock.since_ns >= step_ns,
        };
        has_passed && (newest.root, newest.blocks) != (head.root, head.blocks)
    }

    /// Moments that are too old, or of a volume without a history, or over its limit.
    fn forgetting(
        &self,
        volume: u32,
        moments: &VolumeMoments,
        head: Option<&Version>,
        clock: HistoryClock,
    ) -> Option<Forgetting> {
        let kept = &moments.kept;
        let Some((head, history)) = head.and_then(|head| Some((head, head.history?))) else {
            let bounded = kept.iter().nth(FORGET_MAX - 1).or_else(|| kept.last_key_value());
            let (&generation, _) = bounded?;
            return Some(Forgetting { volume, generation, is_early: false });
        };
        // A moment is what the volume was until the next one: that must be too old.
        let reach_ns = history.options().reach_ns();
        let is_old =
            |next: &u32| self.versions[next].at_ns.saturating_add(reach_ns) <= clock.utc_ns;
        let pairs = kept.iter().zip(kept.values().skip(1)).take(FORGET_MAX);
        let old = pairs.take_while(|(_, next)| is_old(next)).last();
        if let Some(((&generation, _), _)) = old {
            return Some(Forgetting { volume, generation, is_early: false });
        }
        let is_full = kept.len() as u64 >= HistoryOptions::MOMENTS_MAX;
        let gives_way = is_full || self.is_near_limit(head) && !self.is_freeing(volume);
        gives_way.then(|| self.oldest_of(volume, moments)).flatten()
    }

    /// The moments of a volume that give way first. The last one goes only if it has blocks that
    /// the volume has not.
    fn oldest_of(&self, volume: u32, moments: &VolumeMoments) -> Option<Forgetting> {
        let head = self.volume(volume);
        let mut blocks = 0;
        let mut found = None;
        let mut left = moments.kept.len();
        for (&generation, id) in moments.kept.iter().take(GIVE_WAY_MOMENTS_MAX) {
            let moment = &self.versions[id];
            let is_same =
                head.is_some_and(|it| (it.root, it.blocks) == (moment.root, moment.blocks));
            if blocks >= GIVE_WAY_BLOCKS || left == 1 && is_same {
                break;
            }
            blocks += moment.held;
            left -= 1;
            found = Some(Forgetting { volume, generation, is_early: true });
        }
        found
    }

    /// Of a pool with little room, its oldest moments; of a pool with too many moments, some of the
    /// volume that has the most.
    fn over_the_bound(&self, clock: HistoryClock) -> Option<Forgetting> {
        let histories = || self.histories.iter();
        if clock.is_low && !self.has_removal() {
            let oldest = histories().filter_map(|(&volume, moments)| {
                let found = self.oldest_of(volume, moments)?;
                let (_, id) = moments.kept.first_key_value()?;
                Some((self.versions[id].at_ns, found))
            });
            return oldest.min_by_key(|(at_ns, _)| *at_ns).map(|(_, found)| found);
        }
        if self.moments as u64 + 1 < HistoryOptions::POOL_MOMENTS_MAX || self.has_removal() {
            return None;
        }
        let (&volume, moments) = histories().max_by_key(|(_, moments)| moments.kept.len())?;
        self.oldest_of(volume, moments)
    }

    fn has_removal(&self) -> bool {
        self.removal().is_some()
    }

    /// Whether moments of a volume are being removed, and their space comes back soon.
    fn is_freeing(&self, volume: u32) -> bool {
        let moments = self.removing.range(MOMENT_FIRST..);
        let mut of_volume = moments.filter(|id| self.versions[id].of == Some(volume));
        of_volume.any(|&id| !self.waits(id))
    }
}
