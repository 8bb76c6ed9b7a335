//! Snapshots of volumes of a pool: taking them, going back to one, removing one.

use std::sync::Arc;

use config::{VolumeConfig, name_problem, show_size};
use member::is_cut_name;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use store::block::BLOCK_BYTES;
use store::{PoolChange, PoolError, PoolVolume, PoolVolumeKind, VolumeId};
use volume::backend::store::{StorePool, snapshot_of};

use super::timed::{PREFIX, VOLUMES_MAX, now_s};
use crate::wiring::change::log;
use crate::wiring::disks::shown::ServedDisk;
use crate::wiring::inside::Inside;
use crate::wiring::objects::unknown;
use crate::wiring::volumes::ServedVolume;
use crate::wiring::volumes::copy_commands::refuse_replicated;
use crate::wiring::volumes::resize::not_changed;
use api::{API_VERSION, Done, Refused, RefusedKind};

/// A request for a snapshot of some volumes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TakeSnapshot {
    volumes: Vec<String>,
    name: String,
}

/// A request to go back to a snapshot.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RollBack {
    snapshot: String,
}

pub(crate) fn fields<T: DeserializeOwned>(body: &Value, example: &str) -> Result<T, Refused> {
    serde_json::from_value(body.clone()).map_err(|error| {
        Refused::new(RefusedKind::Bad, error.to_string(), format!("send {example}"))
    })
}

/// A refusal of the pool.
pub(super) fn refused(object: &str, error: &PoolError) -> Refused {
    let kind = match error {
        PoolError::NoVolume(_) => RefusedKind::Unknown,
        PoolError::DeviceFailed(_) | PoolError::Closed => RefusedKind::Failed,
        _ => RefusedKind::Conflict,
    };
    Refused::new(kind, format!("{object}: {error}"), "nothing was changed")
}

pub(super) fn done(what: Vec<String>) -> Done {
    let done = Done { version: API_VERSION, applied: what, ..Done::default() };
    log(&done);
    done
}

impl Inside {
    /// Takes a snapshot of volumes of one pool, all at one moment.
    pub(crate) fn take_snapshot(&self, body: &Value) -> Result<Done, Refused> {
        let example = "{\"volumes\": [\"alice\"], \"name\": \"monday\"}";
        let TakeSnapshot { volumes, name } = fields(body, example)?;
        let of_copies = || "is a name that copies of replicated volumes give".to_owned();
        let is_theirs = is_cut_name(&format!("{name}."));
        if let Some(problem) = name_problem(&name).or_else(|| is_theirs.then(of_copies)) {
            let error = format!("{name:?} {problem}");
            return Err(Refused::new(RefusedKind::Bad, error, "choose another name"));
        }
        if volumes.is_empty() || volumes.len() > VOLUMES_MAX {
            let error = format!("a snapshot is of 1 to {VOLUMES_MAX} volumes");
            return Err(Refused::new(RefusedKind::Bad, error, format!("send {example}")));
        }
        let turn = self.turn()?;
        let mut pools: Vec<Arc<StorePool>> = Vec::new();
        let mut ids: Vec<VolumeId> = Vec::new();
        for volume in &volumes {
            let (served, pool, id) = self.pooled(volume)?;
            if let Some(member) = &served.member {
                if volumes.len() > 1 {
                    refuse_replicated(&served, "a snapshot of several volumes has one pool")?;
                }
                let begun = member.take_snapshot(&self.cores, &name, now_s())?;
                drop(turn);
                return begun.wait().inspect(log);
            }
            if ids.contains(&id) {
                let error = format!("volume {volume:?} is named twice");
                return Err(Refused::new(RefusedKind::Bad, error, "name it once"));
            }
            ids.push(id);
            pools.push(pool);
        }
        if let Some(other) = pools.iter().position(|pool| pool.name() != pools[0].name()) {
            let [one, other] = [0, other].map(|at| (&volumes[at], pools[at].name()));
            let error = format!(
                "volume {:?} is in pool {:?}, and {:?} in pool {:?}: a snapshot has one moment in \
                 one pool",
                one.0, one.1, other.0, other.1
            );
            return Err(Refused::new(RefusedKind::Conflict, error, "take one for each pool"));
        }
        let change = PoolChange::Snapshot { volumes: ids, name: name.clone(), at_s: now_s() };
        let taken = pools[0].change(change);
        taken.map_err(|error| refused(&format!("snapshot {name:?}"), &error))?;
        let mut done =
            done(volumes.iter().map(|volume| format!("take snapshot {volume}@{name}")).collect());
        if name.starts_with(PREFIX) {
            done.notes.push(format!(
                "names that begin with {PREFIX:?} are those of snapshots by time: the rules of \
                 `vrio volume schedule` count this snapshot and may remove it"
            ));
        }
        Ok(done)
    }

    /// Makes a volume again what it was at a snapshot.
    pub(crate) fn roll_back(&self, volume: &str, body: &Value) -> Result<Done, Refused> {
        let RollBack { snapshot } = fields(body, "{\"snapshot\": \"alice@monday\"}")?;
        let snapshot = match snapshot.contains(['@', ':']) {
            true => snapshot,
            false => format!("{volume}@{snapshot}"),
        };
        let _turn = self.turn()?;
        let (served, pool, id) = self.pooled(volume)?;
        refuse_replicated(&served, "the copies of other nodes would not be rolled back")?;
        let found = find(&pool, &snapshot)?;
        let change = PoolChange::Rollback { volume: id, snapshot: found.id };
        // Before an epoch is taken for it.
        let not = |error| refused(&format!("volume {volume:?}"), &error);
        pool.check(&change).map_err(not)?;
        let changed = served.export.while_unused(|| pool.change(change)).map_err(|why| {
            let what = "its content cannot change beneath them";
            let otherwise = "try again; or clone the snapshot to a new volume";
            not_changed(volume, what, otherwise, &why)
        })?;
        changed.map_err(not)?;
        self.volumes.tell_changed(&served, &self.cores);
        Ok(done(vec![format!("roll volume {volume:?} back to {snapshot}")]))
    }

    /// Removes a snapshot, or a volume that this node does not serve, from its pool; with `force`
    /// also writes of a disk that are in no other place.
    pub(crate) fn remove_from_pool(
        &self,
        pool: &str,
        number: u32,
        force: bool,
    ) -> Result<Done, Refused> {
        let turn = self.turn()?;
        let pool = self.open_pool(pool)?;
        let (all, id) = (pool.volumes(), VolumeId(number));
        let is_it = |it: &&PoolVolume| it.id == id && it.kind != PoolVolumeKind::Removing;
        let Some(found) = all.iter().find(is_it) else {
            let error = format!("pool {:?} has no volume or snapshot {number}", pool.name());
            let way_out = format!("`vrio pool show {}` lists them", pool.name());
            return Err(Refused::new(RefusedKind::Unknown, error, way_out));
        };
        let served = self.objects().volumes.clone();
        let has = |it: &ServedVolume, wanted: Option<VolumeId>| {
            let (of, its) = it.backend.in_pool().unzip();
            of.is_some_and(|of| Arc::ptr_eq(of, &pool)) && its == wanted
        };
        if let Some(served) = served.iter().find(|it| has(it, Some(id))) {
            let error = format!("this node serves it as volume {:?}", served.export.name());
            let way_out = "remove that volume first; `vrio volume remove --data` does both";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        let of_copy = served.iter().find(|it| it.member.is_some() && has(it, found.of));
        if let Some(served) = of_copy.filter(|_| is_cut_name(&found.name)) {
            let (cut, of) = (&found.name, served.export.name());
            let error = format!(
                "{cut:?} is a cut of the copy of volume {of:?}: a join or a take-over may need it"
            );
            let way_out = "the copy removes it by itself when it needs it no more";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        let disks = self.objects().disks.clone();
        let has = |disk: &&Arc<ServedDisk>| {
            disk.cache.as_ref().is_some_and(|slot| slot.is_in(pool.name(), &found.name))
        };
        if let Some(disk) = disks.iter().find(has) {
            let error = format!("disk {:?} has its cache or its writes in it", disk.config.name);
            let way_out = "remove that disk first, or take its cache away with `vrio disk cache \
                           --none`";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        if !force {
            self.refuse_loss(&pool, found)?;
        }
        let what = format!("remove {} {:?} from pool {:?}", kind(found), found.name, pool.name());
        let change = PoolChange::Remove { volume: id };
        pool.check(&change).map_err(|error| refused(&what, &error))?;
        let member = of_copy.and_then(|served| served.member.as_ref());
        if let Some(member) = member.filter(|member| member.is_primary()) {
            let begun = member.remove_snapshot(&self.cores, &found.name)?;
            drop(turn);
            return begun.wait().inspect(log);
        }
        let state = self.objects().config.directories.state.clone();
        copies::forget(state.as_deref(), (pool.uuid(), number))
            .map_err(|text| Refused::new(RefusedKind::Failed, text, "nothing was removed"))?;
        let removed = pool.change(change);
        removed.map_err(|error| refused(&what, &error))?;
        Ok(done(vec![what]))
    }

    /// Refuses to remove writes of a disk that its volume has not got.
    fn refuse_loss(&self, pool: &StorePool, found: &PoolVolume) -> Result<(), Refused> {
        let is_volume = found.kind == PoolVolumeKind::Volume;
        if let Some(disk) = cache::numbers_rounds_of(&found.name).filter(|_| is_volume) {
            let error = format!(
                "volume {:?} of pool {:?} has the number of the last round of disk {disk:?}: \
                 without it this pool passes for an older copy, and writes that only it has are \
                 given up",
                found.name,
                pool.name()
            );
            let way_out = "leave it there while the disk has write-back in this pool, or writes; \
                           or use --force (force=true)";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        let blocks = found.referred_blocks;
        let is_empty = found.kind != PoolVolumeKind::Volume || blocks == Some(0);
        let Some(disk) = cache::kept_for(&found.name).filter(|_| !is_empty) else {
            return Ok(());
        };
        let size = blocks.map(|it| format!("{} of ", show_size(it * BLOCK_BYTES as u64)));
        let writes = size.unwrap_or_default() + "writes";
        let objects = self.objects();
        let of = objects.config.disks.iter().find(|it| it.name == disk);
        let volume = of.map_or_else(|| "the disk's volume".to_owned(), |it| it.volume.to_string());
        let error = format!(
            "volume {:?} of pool {:?} has {writes} of disk {disk:?}, of which its guest was told, \
             and {volume} has not got them",
            found.name,
            pool.name()
        );
        let way_out = "docs/pools.md says how they are looked at, and written back where they can \
                       be; or use --force (force=true), which gives them up";
        Err(Refused::new(RefusedKind::Conflict, error, way_out))
    }

    /// A volume of a pool, with its pool and its number there.
    pub(super) fn pooled(
        &self,
        name: &str,
    ) -> Result<(Arc<ServedVolume>, Arc<StorePool>, VolumeId), Refused> {
        let objects = self.objects();
        let Some(served) = objects.volume(name) else {
            return Err(unknown::<VolumeConfig>(name, &objects.config));
        };
        if let Some((pool, id)) = served.backend.in_pool() {
            return Ok((Arc::clone(served), Arc::clone(pool), id));
        }
        let error = match served.backend.absent() {
            Some(why) => format!("volume {name:?} is not served: {why}"),
            None => format!("volume {name:?} is not a volume of a pool and has no snapshots"),
        };
        let way_out = "docs/pools.md says how volumes get into a pool, and what to do if one fails";
        Err(Refused::new(RefusedKind::Conflict, error, way_out))
    }
}

fn find(pool: &StorePool, snapshot: &str) -> Result<PoolVolume, Refused> {
    let all = pool.volumes();
    let found = snapshot_of(pool.name(), &all, snapshot).cloned();
    found.map_err(|error| Refused::new(RefusedKind::Unknown, error, "nothing was changed"))
}

fn kind(volume: &PoolVolume) -> &'static str {
    if volume.kind == PoolVolumeKind::Snapshot { "snapshot" } else { "volume" }
}
