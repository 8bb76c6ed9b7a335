//! Histories of volumes: which moments the pool has, what each of them must hold, and which of them
//! may go. The pool takes and removes moments by itself, so the model follows what it says.

use std::collections::{BTreeMap, BTreeSet};

use store::{HistoryOptions, PoolChange, PoolError, PoolVolume, VolumeId};

use super::Failure;
use super::life::{Ask, World};
use super::model::{Model, ModelVolume};

/// The most that the clock goes on in a round, and that it jumps.
const ROUND_NS_MAX: u64 = 60_000_000;
const JUMP_NS_MAX: u64 = 3_000_000_000;

/// The clock jumps once in so many rounds.
const JUMP_ROUNDS: u64 = 200;

/// A moment that the model has removed. A crash may take the removal back.
pub(crate) struct GoneMoment {
    volume: ModelVolume,
    /// Versions whose parent it was.
    children: Vec<VolumeId>,
}

/// A moment as the pool has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundMoment {
    of: VolumeId,
    at_ns: u64,
    blocks: u64,
}

impl World {
    /// The time goes on, or jumps.
    pub(crate) fn tell_time(&mut self) {
        if self.plan.history.is_none() || !self.follows_moments {
            return;
        }
        let jump = self.random.below(JUMP_NS_MAX);
        match self.random.below(JUMP_ROUNDS) {
            0 => self.utc_ns -= jump,
            1 => self.utc_ns += jump,
            _ => self.utc_ns += self.random.below(ROUND_NS_MAX),
        }
        self.utc_ns_max = self.utc_ns_max.max(self.utc_ns);
        self.engine.as_mut().expect("a turn has an engine").set_time(self.utc_ns);
    }

    fn found_moments(&self) -> BTreeMap<VolumeId, FoundMoment> {
        let engine = self.engine.as_ref().expect("a turn has an engine");
        let known = self.model.volumes.iter();
        let of: BTreeSet<VolumeId> = known.map(|(&id, volume)| volume.of.unwrap_or(id)).collect();
        let moments = of.into_iter().flat_map(|of| {
            let moments = engine.moments_of(of).into_iter();
            moments.map(move |moment| {
                let (id, at_ns) = (moment.id, moment.at_ns);
                let blocks = engine.moment(id).map_or(0, |moment| moment.blocks);
                (id, FoundMoment { of, at_ns, blocks })
            })
        });
        moments.collect()
    }

    /// Looks which moments there are: after each round, before its ends are looked at.
    pub(crate) fn follow_moments(&mut self) -> Result<(), Failure> {
        if self.plan.history.is_none() || !self.follows_moments {
            return Ok(());
        }
        let found = self.found_moments();
        let gone = self.model.gone_moments(&found);
        if !gone.is_empty() {
            let list = self.engine.as_ref().expect("a turn has an engine").volumes();
            for &id in &gone {
                self.model.check_gone(id, &list, self.utc_ns_max)?;
                self.model.note_gone(id);
                self.note(|| format!("the moment {id:?} is gone"));
            }
        }
        self.model.forget_reaches_before();
        self.tally.add("moments that went", gone.len() as u64);
        let taken = self.model.follow_moments(&found, &gone);
        self.tally.add("moments", taken);
        Ok(())
    }

    /// After an opening: records under way may have happened, or were undone. The
    /// pool knows no time until all is verified, and takes no moments of a content that the model
    /// does not know.
    pub(crate) fn find_moments(&mut self) {
        if self.plan.history.is_none() {
            return;
        }
        let found = self.found_moments();
        let gone = self.model.gone_moments(&found);
        let returned = self.model.bring_back(&found);
        self.tally.add("moments that came back", returned);
        self.tally.add("moments that a crash took", gone.len() as u64);
        let taken = self.model.follow_moments(&found, &gone);
        // The order of a moment and a change that were both under way is not known.
        self.model.is_vague |= taken > 0;
        // The opening's checkpoint has all of it.
        self.model.graves.clear();
    }

    /// Another history for a volume, or none.
    pub(crate) fn change_history(&mut self) {
        let Some(options) = self.plan.history else { return };
        let Some(volume) = self.pick(false) else { return };
        let history = (!self.random.one_in(5)).then(|| HistoryOptions {
            reach_ms: options.reach_ms * self.random.between(1, 3),
            ..options
        });
        if self.model.volumes[&volume].reach != history {
            self.change(PoolChange::History { volume, history });
        }
    }

    /// A clone of a volume as it was at some time.
    pub(crate) fn clone_at(&mut self) -> Result<(), Failure> {
        // A clone of a moment that has ended may have held back that the moment is gone.
        self.follow_moments()?;
        let Some(volume) = self.pick(false) else { return Ok(()) };
        let Some((oldest, newest)) = self.model.reach_of(volume) else { return Ok(()) };
        // A moment that is being cloned may be gone already.
        if self.model.moments_of(volume).any(|(id, _)| self.model.volumes[&id].is_changing) {
            return Ok(());
        }
        let (from, to) = (oldest.saturating_sub(ROUND_NS_MAX), newest + ROUND_NS_MAX);
        let at_ns = self.random.between(from, to);
        let wanted = self.model.moment_at(volume, at_ns);
        let engine = self.engine.as_ref().expect("the pool is open");
        let found = engine.moment_at(volume, at_ns);
        let is_right = match (&found, wanted) {
            (Ok(found), Some(wanted)) => found.id == wanted,
            (Err(PoolError::BeforeHistory { oldest_ns }), None) => *oldest_ns == oldest,
            _ => false,
        };
        if !is_right {
            let text = format!("{volume:?} at {at_ns}: {found:?}, and it must be {wanted:?}");
            return Err(Failure::new("the wrong moment", text));
        }
        if let Some(snapshot) = wanted.filter(|id| self.model.volumes[id].unknown().is_empty()) {
            let name = self.free_name("v");
            if self.change(PoolChange::Clone { snapshot, name }) {
                self.tally.add("clones of moments", 1);
            }
        }
        Ok(())
    }

    /// Whether a read is of a moment whose volume goes.
    pub(crate) fn reads_gone_moment(&self, ask: &Ask) -> bool {
        let Ask::Read { volume, .. } = ask else { return false };
        volume.0 >> 31 == 1
            && self.model.volumes.get(volume).is_none_or(|it| !self.model.is_readable(it))
    }

    /// Whether this was a moment, which the model may have for longer while it is cloned.
    pub(crate) fn lacks_moment(&self, id: VolumeId) -> bool {
        let engine = self.engine.as_ref().expect("it answered");
        id.0 >> 31 == 1 && engine.moment(id).is_none()
    }

    /// A moment that can be read.
    pub(super) fn pick_moment(&mut self) -> Option<VolumeId> {
        let moments = self
            .model
            .volumes
            .iter()
            .filter(|(_, moment)| moment.at_ns.is_some() && self.model.is_readable(moment));
        let moments: Vec<VolumeId> = moments.map(|(&id, _)| id).collect();
        let at = self.random.below(moments.len().max(1) as u64) as usize;
        moments.get(at).copied()
    }
}

impl Model {
    /// Whether a moment's volume is there, so that its key is there as well.
    pub(crate) fn is_readable(&self, moment: &ModelVolume) -> bool {
        let of = moment.of.and_then(|of| self.volumes.get(&of));
        !moment.is_hidden && of.is_some_and(|of| !of.is_hidden && !of.is_quiet)
    }

    /// Moments of a volume by their numbers, which are in the order of their times.
    fn moments_of(&self, volume: VolumeId) -> impl Iterator<Item = (VolumeId, u64)> {
        let of_volume = move |it: &&ModelVolume| it.of == Some(volume) && !it.is_hidden;
        let moments = self.volumes.iter();
        moments.filter_map(move |(&id, it)| Some((id, of_volume(&it).then_some(it.at_ns?)?)))
    }

    fn reach_of(&self, volume: VolumeId) -> Option<(u64, u64)> {
        let times: Vec<u64> = self.moments_of(volume).map(|(_, at_ns)| at_ns).collect();
        Some((*times.first()?, *times.last()?))
    }

    fn moment_at(&self, volume: VolumeId, at_ns: u64) -> Option<VolumeId> {
        let before = self.moments_of(volume).filter(|(_, its)| *its <= at_ns);
        before.last().map(|(id, _)| id)
    }

    /// Moments that the pool has no more. Moments of a change under way are looked at later.
    fn gone_moments(&self, found: &BTreeMap<VolumeId, FoundMoment>) -> Vec<VolumeId> {
        let moments = self.volumes.iter().filter(|(id, moment)| {
            let is_there = found.contains_key(id);
            moment.at_ns.is_some() && !moment.is_hidden && !moment.is_changing && !is_there
        });
        moments.map(|(&id, _)| id).collect()
    }

    /// A moment that is being cloned is looked at when the clone is there: its volume may have got
    /// another history meanwhile.
    fn forget_reaches_before(&mut self) {
        let moments = self.volumes.values().filter(|it| it.at_ns.is_some() && it.is_changing);
        let waiting: Vec<VolumeId> = moments.filter_map(|moment| moment.of).collect();
        for (_, head) in self.volumes.iter_mut().filter(|(id, _)| !waiting.contains(id)) {
            head.reach_before = None;
        }
    }

    /// The moment has gone when it might go.
    fn note_gone(&mut self, id: VolumeId) {
        let of = self.volumes.get(&id).and_then(|moment| moment.of);
        if let Some(head) = of.and_then(|of| self.volumes.get_mut(&of)) {
            head.last_gone = head.last_gone.max(Some(id));
        }
    }

    /// A moment goes when the next one is as old as the history reaches back; or when the pool says
    /// that it was short of room. The oldest goes first, so a moment may be gone if a newer moment
    /// might go: while it is cloned it is not looked at, and newer moments may go meanwhile.
    fn check_gone(&self, id: VolumeId, list: &[PoolVolume], utc_ns: u64) -> Result<(), Failure> {
        let moment = &self.volumes[&id];
        let (of, at_ns) = (moment.of.expect("a moment is of a volume"), moment.at_ns.unwrap_or(0));
        let Some(head) = self.volumes.get(&of).filter(|head| !head.is_hidden && !head.is_changing)
        else {
            return Ok(());
        };
        let Some(reach) = head.reach else { return Ok(()) };
        let next = self.moments_of(of).find(|(other, _)| *other > id);
        let before_ms = head.reach_before.map_or(u64::MAX, |before| before.reach_ms);
        let reach_ns = reach.reach_ms.min(before_ms) * 1_000_000;
        let is_old = next.is_some_and(|(_, at_ns)| at_ns + reach_ns <= utc_ns);
        let entry = list.iter().find(|entry| entry.id == of);
        let history = entry.and_then(|entry| entry.history);
        let gave_way = history.is_some_and(|history| history.shortened_ns >= at_ns);
        if is_old || gave_way || head.last_gone > Some(id) {
            return Ok(());
        }
        let text = format!("{id:?} of {of:?} at {at_ns}, next {next:?}, now {utc_ns}: {history:?}");
        Err(Failure::new("a moment is gone too early", text))
    }

    /// The model has the moments that the pool has; how many are new.
    fn follow_moments(
        &mut self,
        found: &BTreeMap<VolumeId, FoundMoment>,
        gone: &[VolumeId],
    ) -> u64 {
        let stamp = self.looked;
        let mut taken = 0;
        for (&id, moment) in found {
            if !self.volumes.contains_key(&id) && self.volumes.contains_key(&moment.of) {
                self.snapshot(stamp, "", &[(moment.of, id)]);
                // A change of the volume's size may be under way.
                let FoundMoment { at_ns, blocks, .. } = *moment;
                let made = self.volumes.get_mut(&id).expect("it was made");
                made.at_ns = Some(at_ns);
                made.cut_to(blocks);
                taken += 1;
            }
        }
        for &id in gone {
            self.remove(id);
        }
        self.unwatch(stamp);
        self.looked = self.tick();
        self.watch(self.looked);
        taken
    }

    /// A moment leaves the model.
    pub(super) fn bury(&mut self, id: VolumeId, volume: ModelVolume, children: Vec<VolumeId>) {
        if volume.at_ns.is_some() {
            self.graves.push((id, GoneMoment { volume, children }));
        }
    }

    /// Moments whose removal was taken back: the moment that went last comes back first.
    fn bring_back(&mut self, found: &BTreeMap<VolumeId, FoundMoment>) -> u64 {
        let mut returned = 0;
        for (&id, volume) in &mut self.volumes {
            if volume.is_hidden && found.contains_key(&id) {
                volume.is_hidden = false;
                returned += 1;
            }
        }
        while let Some((id, gone)) = self.graves.pop() {
            if !found.contains_key(&id) || self.volumes.contains_key(&id) {
                continue;
            }
            returned += 1;
            let GoneMoment { mut volume, children } = gone;
            volume.is_hidden = false;
            for child in children {
                match self.volumes.get_mut(&child).filter(|it| it.parent == volume.parent) {
                    Some(child) => child.parent = Some(id),
                    None => self.is_vague = true,
                }
            }
            self.volumes.insert(id, volume);
        }
        returned
    }
}
