//! Changes of a member's own volume as a whole: cuts, the way back to one, and differences.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{SystemTime, UNIX_EPOCH};

use replica::wire::SECTOR_BYTES;
use replica::{CUTS_MAX, ChangedPart, Extent, MemberId, Place, SnapshotChange};
use store::block::BLOCK_BYTES;
use store::stream::is_name;
use store::{PoolChange, PoolError, PoolVolume, PoolVolumeKind, VolumeId};
use volume::backend::store::StorePool;

use crate::queue::{VolumeTask, VolumeTaskEnd};
use crate::snapshots::snapshot_name;

/// Snapshots for people of one copy: a pool has places for cuts of all its volumes beside them.
const SNAPSHOTS_MAX: usize = 256;

/// The beginning of the names of cuts, which are snapshots of the member's volume.
const CUT_NAME: &str = "cut.";

/// The beginning of the names of a member's own cuts.
const OWN_CUT_NAME: &str = "cut.own.";

/// The newer side of a difference: a snapshot of the volume as it is.
const NOW_NAME: &str = "cut.now";

/// Sectors of a block of a pool.
const SECTORS: u64 = BLOCK_BYTES as u64 / SECTOR_BYTES;

/// Growths by a command during one way back: an agent gives one command in a round of seconds, so
/// there are fewer.
const GROWTHS_MAX: usize = 16;

/// The longest range of a difference: longer runs are several ranges.
const RANGE_BLOCKS_MAX: u64 = 1 << 20;

/// Does tasks on a member's volume, on a thread that may wait.
pub trait VolumeTasks: Send {
    /// The cuts that the volume has: the newest of them, and such as an earlier process had for
    /// itself. Called once, before the member starts.
    ///
    /// # Errors
    /// The reason why they cannot be listed.
    fn cuts(&mut self) -> Result<BTreeSet<Place>, String>;

    /// Does a task.
    fn carry_out(&mut self, task: VolumeTask) -> VolumeTaskEnd;
}

/// A volume of a pool. Its cuts are snapshots with names of their own, so they outlive the process.
#[derive(Debug)]
pub struct PoolTasks {
    pool: Arc<StorePool>,
    volume: VolumeId,
    /// The difference that is being looked for, and the snapshot of its newer side.
    now: Option<((MemberId, Place), VolumeId)>,
    /// The size that the volume must have after a way back. It is the largest one that it had at
    /// one, since a try that has ended between the way back and the growth is followed by another
    /// one; or a larger one that a command wants.
    wanted_bytes: Arc<AtomicU64>,
}

impl PoolTasks {
    /// Tasks on this volume of a pool.
    pub fn new(pool: Arc<StorePool>, volume: VolumeId) -> Self {
        Self { pool, volume, now: None, wanted_bytes: Arc::default() }
    }

    /// The size that the volume must have. A command raises it before the volume grows, since a way
    /// back to a cut at the same moment would undo the growth.
    pub fn wanted_bytes(&self) -> &Arc<AtomicU64> {
        &self.wanted_bytes
    }

    fn snapshots(&self) -> impl Iterator<Item = PoolVolume> {
        let volume = self.volume;
        let all = self.pool.volumes().into_iter();
        all.filter(move |it| it.kind == PoolVolumeKind::Snapshot && it.of == Some(volume))
    }

    fn size_bytes(&self) -> u64 {
        let found = self.pool.volumes().into_iter().find(|it| it.id == self.volume);
        found.map_or(0, |it| it.blocks * BLOCK_BYTES as u64)
    }

    /// The volume gets the size that it must have, which is read after the way back, and again
    /// after each growth: a command has the volume grow at the same time.
    fn grow(&self) -> Result<(), PoolError> {
        for _ in 0..GROWTHS_MAX {
            let wanted_bytes = self.wanted_bytes.load(SeqCst);
            if self.size_bytes() >= wanted_bytes {
                break;
            }
            let (volume, blocks) = (self.volume, wanted_bytes / BLOCK_BYTES as u64);
            self.pool.change(PoolChange::Resize { volume, blocks })?;
        }
        Ok(())
    }

    fn all_cuts(&self) -> BTreeMap<Place, VolumeId> {
        self.snapshots().filter_map(|it| Some((place_of(&it.name)?, it.id))).collect()
    }

    fn remove(&self, snapshot: VolumeId) -> Result<(), PoolError> {
        self.pool.change(PoolChange::Remove { volume: snapshot }).map(drop)
    }

    fn remove_named(&self, name: &str) -> Result<(), PoolError> {
        let found = self.snapshots().find(|it| it.name == name);
        found.map_or(Ok(()), |it| self.remove(it.id))
    }

    /// Makes a snapshot, in place of one that an earlier process has left under the name.
    fn snapshot(&self, name: &str) -> Result<VolumeId, PoolError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        self.snapshot_of(name, since.map_or(0, |since| since.as_secs()))
    }

    fn snapshot_of(&self, name: &str, at_s: u64) -> Result<VolumeId, PoolError> {
        self.remove_named(name)?;
        let (volumes, name) = (vec![self.volume], name.to_owned());
        self.pool.change(PoolChange::Snapshot { volumes, name, at_s })
    }

    /// The content becomes that of a cut. The cut may be of a time before the volume grew, and the
    /// volume keeps its size.
    fn go_back(&mut self, cut: Option<Place>) -> Result<VolumeTaskEnd, PoolError> {
        let cuts = self.all_cuts();
        self.wanted_bytes.fetch_max(self.size_bytes(), SeqCst);
        let change = match cut {
            None => PoolChange::Clear { volume: self.volume },
            Some(place) => {
                let Some(snapshot) = cuts.get(&place).copied() else {
                    return Ok(VolumeTaskEnd::Failed(missing(place)));
                };
                PoolChange::Rollback { volume: self.volume, snapshot }
            }
        };
        self.pool.change(change)?;
        self.grow()?;
        let mut newer = cuts.iter().filter(|(place, _)| cut.is_none_or(|cut| **place > cut));
        newer.try_for_each(|(_, id)| self.remove(*id))?;
        Ok(VolumeTaskEnd::Done)
    }

    /// A part of the difference, from a sector on. The newer side is a snapshot that is made with
    /// the first part and stays until the last one: the member that joins gets writes of
    /// this time as operations.
    fn changed(
        &mut self,
        of: (MemberId, Place),
        cut: Option<Place>,
        from: u64,
    ) -> Result<VolumeTaskEnd, PoolError> {
        let cuts = self.all_cuts();
        let older = cut.map(|place| cuts.get(&place).copied());
        if older == Some(None) {
            return Ok(VolumeTaskEnd::CutGone);
        }
        let known = self.now.filter(|(known, _)| *known == of && from > 0);
        let now = match known {
            Some((_, id)) => id,
            None => self.snapshot(NOW_NAME)?,
        };
        self.now = Some((of, now));
        let found = self.pool.changed(older.flatten(), now, from / SECTORS)?;
        let extents = found.runs.iter().flat_map(|run| ranges(run.block, run.blocks)).collect();
        let next = found.next_block.map(|block| block * SECTORS);
        if next.is_none() {
            self.remove(now)?;
            self.now = None;
        }
        Ok(VolumeTaskEnd::Changed(ChangedPart { extents, next }))
    }

    /// The newer side of a difference goes, if it is still there.
    fn end_compare(&mut self, of: (MemberId, Place)) -> Result<(), PoolError> {
        if let Some((_, now)) = self.now.filter(|(known, _)| *known == of) {
            self.remove(now)?;
            self.now = None;
        }
        Ok(())
    }

    /// Takes or removes a snapshot for people. The content does not depend on it, so a pool without
    /// a place for it leaves it out, and keeps no write waiting.
    fn change_snapshot(&self, place: Place, change: &SnapshotChange) -> VolumeTaskEnd {
        let (name, at_s) = match change {
            SnapshotChange::Take { name, at_s } => (snapshot_name(name, place), Some(*at_s)),
            SnapshotChange::Remove { name } => (name.clone(), None),
        };
        let why = match at_s {
            // A name that a hostile node has sent.
            _ if is_cut_name(&name) || !is_name(&name) => {
                Some(format!("{name:?} is no name of a snapshot"))
            }
            Some(_) => self.no_room_for_snapshot(),
            None => None,
        };
        let changed = match (why, at_s) {
            (Some(why), _) => Err(why),
            (None, Some(at_s)) => self.snapshot_of(&name, at_s).map(drop).map_err(text_of),
            (None, None) => self.remove_named(&name).map_err(text_of),
        };
        match changed {
            Ok(()) => VolumeTaskEnd::Done,
            Err(why) => {
                tracing::warn!(name, why, "a copy leaves a change of its snapshots out");
                VolumeTaskEnd::LeftOut(why)
            }
        }
    }

    /// Why the pool takes no snapshot for people now. A change of a full pool would wait, and all
    /// requests of the volume with it.
    fn no_room_for_snapshot(&self) -> Option<String> {
        let count = self.snapshots().filter(|it| place_of(&it.name).is_none()).count();
        match () {
            () if self.pool.status().is_full => Some("its pool is full".to_owned()),
            () if count >= SNAPSHOTS_MAX => {
                Some(format!("it has {SNAPSHOTS_MAX} snapshots, the most that a copy has"))
            }
            () => None,
        }
    }

    fn try_task(&mut self, task: VolumeTask) -> Result<VolumeTaskEnd, PoolError> {
        match task {
            VolumeTask::Cut(place) => self.snapshot(&name_of(place)).map(drop)?,
            VolumeTask::Drop(place) => self.remove_named(&name_of(place))?,
            VolumeTask::GoBack(cut) => return self.go_back(cut),
            VolumeTask::Compare(member, began, cut, from) => {
                return self.changed((member, began), cut, from);
            }
            VolumeTask::EndCompare(member, began) => self.end_compare((member, began))?,
            VolumeTask::Snapshot(place, change) => {
                return Ok(self.change_snapshot(place, &change));
            }
        }
        Ok(VolumeTaskEnd::Done)
    }
}

/// The ranges of a run of blocks.
fn ranges(first: u64, blocks: u64) -> impl Iterator<Item = Extent> {
    let starts = (0..blocks).step_by(RANGE_BLOCKS_MAX as usize);
    starts.filter_map(move |at| {
        let sectors = (blocks - at).min(RANGE_BLOCKS_MAX) * SECTORS;
        Extent::new((first + at) * SECTORS, u32::try_from(sectors).ok()?)
    })
}

fn missing(place: Place) -> String {
    format!(
        "the snapshot {}, which the member made, is gone; start the node again, and the member \
         gets all that it lacks",
        name_of(place)
    )
}

/// The name of a cut. A release before own cuts takes the name of an own cut for no cut.
fn name_of(place: Place) -> String {
    let Place { reign, counter } = place;
    match place.is_own() {
        true => format!("{OWN_CUT_NAME}{reign}"),
        false => format!("{CUT_NAME}{reign}.{counter}"),
    }
}

/// Whether a snapshot's name is a name that members give. A user must make no such snapshot: a
/// member would take it for a cut.
pub fn is_cut_name(name: &str) -> bool {
    name.starts_with(CUT_NAME)
}

/// The cut that a snapshot is, by its name.
fn place_of(name: &str) -> Option<Place> {
    let place = match name.strip_prefix(OWN_CUT_NAME) {
        Some(reign) => Place::own_cut(reign.parse().ok()?),
        None => {
            let (reign, counter) = name.strip_prefix(CUT_NAME)?.split_once('.')?;
            Place { reign: reign.parse().ok()?, counter: counter.parse().ok()? }
        }
    };
    (name_of(place) == name).then_some(place)
}

impl VolumeTasks for PoolTasks {
    fn cuts(&mut self) -> Result<BTreeSet<Place>, String> {
        let mut cuts = self.all_cuts();
        self.remove_named(NOW_NAME).map_err(text_of)?;
        // A process that ended may have left more of them.
        while cuts.len() > CUTS_MAX
            && let Some((_, oldest)) = cuts.pop_first()
        {
            self.remove(oldest).map_err(text_of)?;
        }
        Ok(cuts.into_keys().collect())
    }

    fn carry_out(&mut self, task: VolumeTask) -> VolumeTaskEnd {
        self.try_task(task).unwrap_or_else(|error| match is_passing(&error) {
            true => VolumeTaskEnd::Waits(text_of(error)),
            false => VolumeTaskEnd::Failed(text_of(error)),
        })
    }
}

/// Whether a change that ended so may succeed later, when there is room in the pool, or when an
/// operator has made some. The texts and names in a member's changes are right, so a pool that
/// calls one of them invalid took none at all for a while.
fn is_passing(error: &PoolError) -> bool {
    matches!(
        error,
        PoolError::Invalid(_)
            | PoolError::TooMany(_)
            | PoolError::NoPromise { .. }
            | PoolError::BeingReceived(_)
    )
}

fn text_of(error: PoolError) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use store::PoolDeviceError;

    use super::*;

    /// A full pool gets room again; a device that failed, or a volume that is gone, does not come
    /// back by itself.
    #[test]
    fn a_full_pool_is_waited_for_and_a_failed_one_is_not() {
        for passing in [
            PoolError::Invalid("the pool took no request within 30 s".to_owned()),
            PoolError::TooMany("snapshots"),
            PoolError::NoPromise { free_bytes: 1 },
        ] {
            assert!(is_passing(&passing), "{passing}");
        }
        for lasting in [
            PoolError::DeviceFailed(PoolDeviceError::Failed(5)),
            PoolError::Closed,
            PoolError::NoVolume(VolumeId(1)),
            PoolError::MapDamaged,
        ] {
            assert!(!is_passing(&lasting), "{lasting}");
        }
    }
}
