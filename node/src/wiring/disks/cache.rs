//! Caches of disks that change while the node runs.

use std::sync::Arc;

use config::{Change, Config, DiskConfig, changes, show_size};
use serde_json::Value;
use sidecore::Sidecore;

use super::shown::ServedDisk;
use crate::kinds::Changed;
use crate::wiring::change::{bad, log};
use crate::wiring::inside::Inside;
use crate::wiring::objects::unknown;
use api::{API_VERSION, Done, Refused, RefusedKind};

/// The note for a part of a disk that a command has replaced.
pub(super) const UNTIL_RESTART: &str =
    "this is lost at a restart or a reload of the node; write it into the file to keep it";

impl Inside {
    /// Gives a disk another cache, or none, until the node's restart or reload.
    pub(crate) fn set_disk_cache(&self, name: &str, body: &Value) -> Result<Done, Refused> {
        let cache = Config::cache(body).map_err(|problems| bad(&problems))?;
        let _turn = self.turn()?;
        let running = self.objects().config.clone();
        let mut wanted = running.clone();
        let Some(disk) = wanted.disks.iter_mut().find(|disk| disk.name == name) else {
            return Err(unknown::<DiskConfig>(name, &running));
        };
        disk.cache = cache;
        let problems = wanted.problems();
        if !problems.is_empty() {
            return Err(bad(&problems));
        }
        let changes = changes(&running, &wanted);
        self.check_additions(&changes).map_err(|(_, refused)| refused)?;
        if changes.iter().any(Change::removes) {
            self.refuse_change_of_write_back(name)?;
        }
        let mut done = Done { version: API_VERSION, ..Done::default() };
        for change in changes {
            done.notes.extend(self.apply(&change, false)?);
            done.applied.push(change.to_string());
            done.notes.push(UNTIL_RESTART.to_owned());
        }
        log(&done);
        Ok(done)
    }

    /// Write-back begins and ends with a disk, which is removed and added again for that.
    fn refuse_change_of_write_back(&self, name: &str) -> Result<(), Refused> {
        let (users, shown) = {
            let objects = self.objects();
            (objects.user_of_disk(name), objects.disk(name).cloned())
        };
        let dirty_bytes = shown.map_or(0, |shown| shown.dirty_bytes());
        let way_out = "stop its guest, or unplug the disk; when its writes are written back, give \
                       the command again";
        let error = match (users.is_empty(), dirty_bytes) {
            (true, 0) => return Ok(()),
            (true, _) => format!(
                "disk {name:?} keeps its write-back: {} are only in this node's pool",
                show_size(dirty_bytes)
            ),
            (false, _) => format!(
                "write-back of disk {name:?} does not begin, end or change while it is used by {}",
                users.join(", ")
            ),
        };
        Err(Refused::new(RefusedKind::Conflict, error, way_out))
    }

    /// Makes the cache of a disk what this configuration says.
    pub(crate) fn change_disk_cache(&self, disk: &DiskConfig) -> Changed {
        let shown = self.objects().disk(&disk.name).cloned().expect("the caller has looked");
        let mut notes = Vec::new();
        if let Some(slot) = &shown.cache {
            let pools = self.volumes.stock().pools();
            notes.extend(slot.set(disk.cache.as_ref(), pools, &self.sidecores()).err());
            let is_there = slot.volume().cache().is_some();
            let why = slot.status().filter(|_| !is_there).and_then(|status| status.why_unused);
            notes.extend(why.map(|why| format!("the cache is not there yet: {why}")));
        }
        self.objects().replace(disk);
        Ok(notes)
    }

    /// Gives disks their caches in a pool that is there now.
    pub(crate) fn have_caches(&self, pool: &str) {
        let pools = self.volumes.stock().pools();
        let disks = self.objects().disks.clone();
        disks.iter().filter_map(|it| it.cache.as_ref()).for_each(|it| it.find_pool(pool, pools));
    }

    /// The disks whose writes a pool has, and their volumes have not.
    pub(crate) fn written_back_from(&self, pool: &str) -> Vec<String> {
        let disks = self.objects().disks.clone();
        let uses = |disk: &&Arc<ServedDisk>| {
            disk.cache.as_ref().is_some_and(|slot| slot.writes_back_from(pool))
        };
        let text = |disk: &Arc<ServedDisk>| format!("disk {:?}", disk.config.name);
        disks.iter().filter(uses).map(text).collect()
    }

    /// Takes caches out of a pool that goes. Gives notes.
    pub(crate) fn lose_caches(&self, pool: &str) -> Vec<String> {
        let (pools, sidecores) = (self.volumes.stock().pools(), self.sidecores());
        let disks: Vec<Arc<ServedDisk>> = self.objects().disks.clone();
        let loses = |disk: &&Arc<ServedDisk>| {
            disk.cache.as_ref().is_some_and(|slot| slot.lose_pool(pool, pools, &sidecores))
        };
        let note = |disk: &Arc<ServedDisk>| {
            format!("disk {:?} goes on without its cache", disk.config.name)
        };
        disks.iter().filter(loses).map(note).collect()
    }

    fn sidecores(&self) -> Vec<Sidecore> {
        self.cores.iter().map(|core| core.sidecore.clone()).collect()
    }
}
