//! Snapshots by time: a thread takes them as the volumes' rules say, and removes those that no rule
//! keeps.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use config::SnapshotRule;
use store::{PoolChange, PoolVolume, PoolVolumeKind, VolumeId};
use volume::backend::store::StorePool;

use crate::wiring::inside::Inside;

/// The time between two looks: a tenth of the shortest period. A look reads the lists of pools.
const LOOK: Duration = Duration::from_secs(5);

/// The most volumes in a snapshot: the record of it is one block of the pool.
pub(super) const VOLUMES_MAX: usize = 256;

/// The beginning of these snapshots' names. Others are never removed by a rule.
pub(super) const PREFIX: &str = "auto-";

/// The most snapshots of one volume that a look removes: each removal is a sync of the devices.
const REMOVED_MAX: usize = 16;

/// Begins to look after the node's volumes. Without the thread the log says so, and guests are
/// served all the same.
pub(crate) fn start(inside: &Arc<Inside>) {
    let (stop, stopped) = channel();
    let weak = Arc::downgrade(inside);
    let look = move || look_on(&weak, &stopped);
    match std::thread::Builder::new().name("snapshots".to_owned()).spawn(look) {
        Ok(thread) => inside.timed.keep((stop, thread)),
        Err(error) => tracing::error!(%error, "no thread for snapshots by time: none is taken"),
    }
}

fn look_on(inside: &Weak<Inside>, stopped: &Receiver<()>) {
    while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let Some(inside) = inside.upgrade() else { return };
        let now_s = now_s();
        inside.take_timed_snapshots(now_s);
    }
}

/// A volume with rules, in its pool.
struct RuledVolume {
    name: String,
    rules: Vec<SnapshotRule>,
    pool: Arc<StorePool>,
    id: VolumeId,
}

impl Inside {
    /// One look at all volumes with rules.
    fn take_timed_snapshots(&self, now_s: u64) {
        let mut all = self.ruled_volumes();
        self.timed.forget(|name| all.iter().all(|it| it.name != name));
        all.retain(|volume| !self.timed.pauses(&volume.name));
        if all.is_empty() {
            return;
        }
        // A node that stops or is given away takes no snapshots; a full queue is tried again.
        let Ok(_turn) = self.turn() else { return };
        let mut by_pool: BTreeMap<&str, Vec<&RuledVolume>> = BTreeMap::new();
        for volume in &all {
            by_pool.entry(volume.pool.name()).or_default().push(volume);
        }
        for volumes in by_pool.values() {
            let problems = take_due(volumes, now_s);
            for (volume, problem) in volumes.iter().zip(problems) {
                let problem = problem.or_else(|| remove_expired(volume).err());
                self.timed.note(&volume.name, problem);
            }
        }
    }

    fn ruled_volumes(&self) -> Vec<RuledVolume> {
        let objects = self.objects();
        let both = objects.config.volumes.iter().zip(&objects.volumes);
        let ruled = both.filter(|(config, _)| !config.snapshots.is_empty());
        ruled
            .filter_map(|(config, served)| {
                let (pool, id) = served.backend.in_pool()?;
                Some(RuledVolume {
                    name: config.name.clone(),
                    rules: config.snapshots.clone(),
                    pool: Arc::clone(pool),
                    id,
                })
            })
            .collect()
    }
}

/// Takes the snapshots of one pool that are due, all at one moment. It gives the problem of each of
/// the volumes that has one.
fn take_due(volumes: &[&RuledVolume], now_s: u64) -> Vec<Option<String>> {
    let mut problems = vec![None; volumes.len()];
    let Some(first) = volumes.first() else { return problems };
    let all = first.pool.volumes();
    let is_due = |at: &usize| is_due(&volumes[*at].rules, &taken(&all, volumes[*at].id), now_s);
    let due: Vec<_> = (0..volumes.len()).filter(is_due).collect();
    if !due.is_empty() && first.pool.status().is_full {
        // A snapshot would hold what people remove to make room.
        let problem = "the pool is full: no snapshot by time is taken until it has room";
        due.iter().for_each(|at| problems[*at] = Some(problem.to_owned()));
        return problems;
    }
    let name = name_at(now_s);
    for group in due.chunks(VOLUMES_MAX) {
        let ids = group.iter().map(|at| volumes[*at].id).collect();
        let change = PoolChange::Snapshot { volumes: ids, name: name.clone(), at_s: now_s };
        let Err(error) = first.pool.change(change) else { continue };
        // Without the snapshot's name, so that the log has a lasting problem once.
        let problem = format!("no snapshot by time was taken: {error}; it is tried each minute");
        group.iter().for_each(|at| problems[*at] = Some(problem.clone()));
    }
    problems
}

/// Removes the snapshots of a volume that no rule keeps.
fn remove_expired(volume: &RuledVolume) -> Result<(), String> {
    let all = volume.pool.volumes();
    let expired = expired(&volume.rules, &taken(&all, volume.id));
    expired.into_iter().take(REMOVED_MAX).try_for_each(|(id, _)| {
        let removed = volume.pool.change(PoolChange::Remove { volume: id });
        let text = "no old snapshot by time was removed";
        removed.map(drop).map_err(|error| format!("{text}: {error}; it is tried each minute"))
    })
}

/// The snapshots of a volume that rules have taken, with their times.
fn taken(all: &[PoolVolume], volume: VolumeId) -> Vec<(VolumeId, u64)> {
    let is_taken = |it: &&PoolVolume| {
        it.kind == PoolVolumeKind::Snapshot
            && it.of == Some(volume)
            && it.name.starts_with(PREFIX)
            && it.at_s > 0
    };
    all.iter().filter(is_taken).map(|it| (it.id, it.at_s)).collect()
}

/// The name of a snapshot of this time, in UTC: it sorts by time.
fn name_at(at_s: u64) -> String {
    let at = i64::try_from(at_s).ok().and_then(|at_s| jiff::Timestamp::from_second(at_s).ok());
    let text = at.map_or_else(|| at_s.to_string(), |at| at.to_string());
    format!("{PREFIX}{}", text.replace(':', "."))
}

/// Whether the period of a rule has no snapshot yet. A clock that is put back makes a period come
/// again, which has its snapshot; a clock that is put forward skips periods.
fn is_due(rules: &[SnapshotRule], taken: &[(VolumeId, u64)], now_s: u64) -> bool {
    rules
        .iter()
        .any(|rule| taken.iter().all(|(_, at_s)| at_s / rule.every_s != now_s / rule.every_s))
}

/// The snapshots that no rule keeps, the oldest first. A rule keeps the first snapshot of each
/// period, of as many of the newest periods as it says. It counts snapshots and never asks for the
/// time: so a wrong clock or a long pause of the node does not make all of them old at once.
fn expired(rules: &[SnapshotRule], taken: &[(VolumeId, u64)]) -> Vec<(VolumeId, u64)> {
    let mut kept: Vec<VolumeId> = Vec::new();
    for rule in rules {
        let mut firsts: BTreeMap<u64, (u64, VolumeId)> = BTreeMap::new();
        for (id, at_s) in taken {
            let first = firsts.entry(at_s / rule.every_s).or_insert((*at_s, *id));
            *first = (*first).min((*at_s, *id));
        }
        kept.extend(firsts.values().rev().take(rule.keep as usize).map(|(_, id)| *id));
    }
    let mut others: Vec<_> = taken.iter().copied().filter(|(id, _)| !kept.contains(id)).collect();
    others.sort_by_key(|(id, at_s)| (*at_s, *id));
    others
}

pub(super) fn now_s() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    const HOUR_S: u64 = 3600;
    const DAY_S: u64 = 24 * HOUR_S;

    fn rule(every_s: u64, keep: u32) -> SnapshotRule {
        SnapshotRule { every_s, keep }
    }

    /// The times that are left after looks each `step_s` seconds from `from_s` to `to_s`.
    fn run(rules: &[SnapshotRule], from_s: u64, to_s: u64, step_s: u64) -> Vec<u64> {
        let mut taken = Vec::new();
        for (number, now_s) in (from_s..to_s).step_by(step_s as usize).enumerate() {
            look(rules, &mut taken, number as u32, now_s);
        }
        taken.into_iter().map(|(_, at_s)| at_s).collect()
    }

    fn look(rules: &[SnapshotRule], taken: &mut Vec<(VolumeId, u64)>, number: u32, now_s: u64) {
        if is_due(rules, taken, now_s) {
            taken.push((VolumeId(number), now_s));
        }
        let gone = expired(rules, taken);
        taken.retain(|it| !gone.contains(it));
    }

    #[test]
    fn each_rule_keeps_its_newest_periods() {
        let rules = [rule(HOUR_S, 3), rule(DAY_S, 2)];
        // From midnight of a day on, for three days and five and a half hours.
        let begin_s = 20_000 * DAY_S;
        let end_s = begin_s + 3 * DAY_S + 5 * HOUR_S + 1800;
        let left = run(&rules, begin_s, end_s, 60);
        let day = |day: u64, hour: u64| begin_s + day * DAY_S + hour * HOUR_S;
        assert_eq!(left, [day(2, 0), day(3, 0), day(3, 3), day(3, 4), day(3, 5)]);
    }

    #[test]
    fn a_period_that_has_begun_has_its_snapshot_at_the_first_look() {
        let rules = [rule(DAY_S, 2)];
        assert!(is_due(&rules, &[], 20_000 * DAY_S + 77));
        let taken = [(VolumeId(1), 20_000 * DAY_S + 77)];
        assert!(!is_due(&rules, &taken, 20_001 * DAY_S - 1));
        assert!(is_due(&rules, &taken, 20_001 * DAY_S));
    }

    #[test]
    fn a_jump_of_the_clock_removes_no_more_than_one_snapshot_at_a_time() {
        let rules = [rule(HOUR_S, 4)];
        let mut random = Random::new(7);
        let mut taken = Vec::new();
        for number in 0..500 {
            let before = taken.len();
            let now_s = 1_700_000_000 + random.below(1 << 40);
            look(&rules, &mut taken, number, now_s);
            assert!(taken.len() >= before && taken.len() <= 4, "{taken:?}");
        }
        assert_eq!(taken.len(), 4);
    }

    #[test]
    fn names_sort_by_time_and_are_names() {
        assert_eq!(name_at(1_764_320_400), "auto-2025-11-28T09.00.00Z");
        assert!(config::name_problem(&name_at(1_764_320_400)).is_none());
        assert!(config::name_problem(&name_at(u64::MAX)).is_none());
    }
}
