//! Disks that come and go while the node runs.

use block::disk::QueueCounters;
use cache::CacheSlot;
use config::{Config, DiskConfig, InPlace, show_size};
use sessions::ObjectError;
use sidecore::CounterText;

use super::report::{self, DISK_METRICS};
use super::shown::ServedDisk;
use crate::kinds::{Changed, RunningObject, with_prefix};
use crate::wiring::change::{refuse_used, takes_restart};
use crate::wiring::inside::Inside;
use crate::wiring::objects::Objects;
use api::status::{DiskStatus, Status};
use api::{Refused, RefusedKind};

impl RunningObject for DiskConfig {
    type Status = DiskStatus;

    fn metrics() -> Vec<CounterText> {
        let own = DISK_METRICS.iter().chain(QueueCounters::DECLARED).copied();
        let cache = CacheSlot::counters().flat_map(|it| with_prefix("cache_", it));
        let dirty = CacheSlot::dirty_counters().flat_map(|it| with_prefix("write_back_", it));
        own.chain(cache).chain(dirty).collect()
    }

    fn check_addition(&self, node: &Inside) -> Result<(), Refused> {
        node.check_disk(self)
    }

    fn add(&self, node: &Inside) -> Changed {
        node.add_disk(self)
    }

    fn change(&self, step: &InPlace, node: &Inside) -> Changed {
        match step.step {
            Self::PEERS => node.change_disk_peers(self),
            _ => node.change_disk_cache(self),
        }
    }

    fn end_users(name: &str, node: &Inside, force: bool) -> Result<Option<u64>, Refused> {
        node.end_guest(name, force)
    }

    fn number(name: &str, node: &Inside) -> Option<u64> {
        node.objects().disk(name).map(|shown| shown.number)
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_disk(name, force)
    }

    fn users(name: &str, node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        node.user_of_disk(name)
    }

    fn start(node: &Inside, config: &Config) -> Result<(), Vec<ObjectError>> {
        node.show_disks(config)
    }

    fn status(_node: &Inside, objects: &Objects) -> Vec<DiskStatus> {
        report::status(objects)
    }

    fn report(found: Vec<DiskStatus>, status: &mut Status) {
        status.disks = found;
    }
}

impl Inside {
    fn check_disk(&self, disk: &DiskConfig) -> Result<(), Refused> {
        self.refuse_while_drained()?;
        let home = self.objects().config.directories.sockets.clone();
        if home.is_none_or(|home| !disk.socket.starts_with(home)) {
            return Err(takes_restart("its socket is in another directory", "[directories]"));
        }
        Ok(())
    }

    pub(crate) fn add_disk(&self, disk: &DiskConfig) -> Result<Vec<String>, Refused> {
        self.check_disk(disk)?;
        let source = self.objects().source(disk);
        let source = source.map_err(|error| {
            let error = format!("{}: {}", error.object, error.text);
            Refused::new(RefusedKind::Failed, error, "nothing was changed; try again afterwards")
        })?;
        let shown = self.disks.show(disk, source).map_err(|text| {
            let way_out = "nothing was changed; try again when that is done";
            Refused::new(RefusedKind::Failed, format!("disk {:?}: {text}", disk.name), way_out)
        })?;
        self.objects().add_disk(disk, shown);
        Ok(Vec::new())
    }

    /// Ends the guest of a disk that will be removed. With write-back this may take minutes, so the
    /// caller has no turn; the disk is in no other guest's reach from then on. Gives the number of
    /// the disk.
    fn end_guest(&self, name: &str, force: bool) -> Result<Option<u64>, Refused> {
        let shown = {
            let _turn = self.turn()?;
            // The removal says that there is none.
            let Some(shown) = self.objects().disk(name).cloned() else { return Ok(None) };
            self.refuse_removal(&shown, force)?;
            shown
        };
        if shown.cache.as_ref().is_some_and(CacheSlot::has_write_back) {
            shown.take_away();
        }
        Ok(Some(shown.number))
    }

    fn refuse_removal(&self, shown: &ServedDisk, force: bool) -> Result<(), Refused> {
        let name = &shown.config.name;
        let users = self.objects().user_of_disk(name);
        refuse_used(&format!("disk {name:?}"), &users, force, "stop the guest or unplug the disk")?;
        let pools = self.volumes.stock().pools();
        if !force && shown.cache.as_ref().is_some_and(|it| it.misses_writes(pools)) {
            let error = format!(
                "disk {name:?} is not served since no open pool has the last writes that its \
                 guest was told of: its removal would give them up"
            );
            let way_out = "open the pool that has these writes; or use --force (force=true)";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        // A guest that is there is drained; without a guest nothing is written back.
        let dirty_bytes = shown.cache.as_ref().map_or(0, CacheSlot::dirty_bytes);
        if users.is_empty() && dirty_bytes > 0 && !force {
            let error =
                format!("{} of disk {name:?} are only in this node's pool", show_size(dirty_bytes));
            let is_damaged = shown.cache.as_ref().is_some_and(|it| it.damaged_blocks() > 0);
            let way_out = match is_damaged {
                true => {
                    "the pool cannot read some of them: have its guest write or discard these; or \
                     use --force (force=true): they stay in the pool, in volume dirty.DISK.*, \
                     which can be removed then"
                }
                false => {
                    "start its guest, so that they are written back; or use --force (force=true): \
                     they stay in the pool, and the disk finds them when it is added again"
                }
            };
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        Ok(())
    }

    pub(crate) fn remove_disk(&self, name: &str, force: bool) -> Result<Vec<String>, Refused> {
        let shown = self.objects().disk(name).cloned().expect("the caller has looked");
        if !shown.is_leaving() {
            self.refuse_removal(&shown, force)?;
        }
        let mut notes = Vec::new();
        let pools = self.volumes.stock().pools();
        let given_up = shown.cache.as_ref().filter(|_| force).map(|it| it.give_up_missing(pools));
        if given_up.transpose().map_err(|why| {
            let way_out = "nothing was changed; give \"state\" of [directories] to the node's user";
            Refused::new(RefusedKind::Failed, why, way_out)
        })? == Some(true)
        {
            tracing::warn!(disk = name, "writes that no pool of this node has are given up");
            notes.push(format!("disk {name:?}: the writes that no pool has are given up"));
        }
        notes.extend(self.disks.remove(&shown));
        self.objects().remove_disk(name);
        Ok(notes)
    }

    pub(crate) fn user_of_disk(&self, disk: &str) -> Vec<String> {
        self.objects().user_of_disk(disk)
    }
}
