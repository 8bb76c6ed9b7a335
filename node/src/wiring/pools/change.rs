//! Pools that come and go while the node runs.

use config::{InPlace, PoolConfig, VolumeConfig};
use sidecore::CounterText;

use super::report;
use crate::kinds::{Changed, RunningObject};
use crate::wiring::change::refuse_used;
use crate::wiring::inside::Inside;
use crate::wiring::objects::Objects;
use api::status::{Status, StoragePoolStatus};
use api::{Refused, RefusedKind};

impl RunningObject for PoolConfig {
    type Status = StoragePoolStatus;

    fn metrics() -> Vec<CounterText> {
        report::metrics()
    }

    fn check_addition(&self, node: &Inside) -> Result<(), Refused> {
        node.volumes.stock().check(self).map_err(|error| not_added(self, &error))
    }

    fn add(&self, node: &Inside) -> Changed {
        node.add_pool(self)
    }

    fn change(&self, step: &InPlace, node: &Inside) -> Changed {
        if step.step == Self::DEDUPLICATION {
            node.change_deduplication(self);
        }
        node.objects().replace(self);
        Ok(Vec::new())
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_pool(name, force)
    }

    fn users(name: &str, node: &Inside, goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        let volumes = node.volumes_of_pool(name);
        let mut users: Vec<_> = volumes.iter().map(|volume| object(volume)).collect();
        users.extend(node.written_back_from(name));
        users.retain(|user| !goes(user));
        users
    }

    fn status(node: &Inside, objects: &Objects) -> Vec<StoragePoolStatus> {
        report::status(node.volumes.stock().pools(), objects)
    }

    fn report(found: Vec<StoragePoolStatus>, status: &mut Status) {
        status.pools = found;
    }
}

fn not_added(pool: &PoolConfig, error: &str) -> Refused {
    let error = format!("pool {:?}: {error}", pool.name);
    Refused::new(RefusedKind::Failed, error, "nothing was changed; try again afterwards")
}

fn object(volume: &str) -> String {
    format!("volume {volume:?}")
}

impl Inside {
    /// The names of the volumes that this node serves from a pool.
    pub(crate) fn volumes_of_pool(&self, pool: &str) -> Vec<String> {
        let objects = self.objects();
        let is_of =
            |volume: &&VolumeConfig| volume.backend.pool().is_some_and(|of| of.name == pool);
        let volumes = objects.config.volumes.iter().filter(is_of);
        volumes.map(|volume| volume.name.clone()).collect()
    }

    pub(crate) fn add_pool(&self, pool: &PoolConfig) -> Changed {
        let stock = self.volumes.stock();
        let opened = stock.open(pool).map_err(|error| not_added(pool, &error))?;
        stock.pools().insert(&pool.name, Ok(opened));
        self.have_caches(&pool.name);
        self.objects().note(pool);
        Ok(Vec::new())
    }

    /// A pool that is not open hears of it when it is opened.
    fn change_deduplication(&self, pool: &PoolConfig) {
        if let Some(Ok(opened)) = self.volumes.stock().pools().get(&pool.name) {
            opened.set_dedup(pool.dedup_bytes());
        }
    }

    pub(crate) fn remove_pool(&self, name: &str, force: bool) -> Changed {
        let volumes = self.volumes_of_pool(name);
        let users: Vec<_> = volumes.iter().map(|volume| object(volume)).collect();
        refuse_used(&format!("pool {name:?}"), &users, force, "remove those first")?;
        // Also with `force`: the guests were told that their writes are there.
        let users = self.written_back_from(name);
        if !users.is_empty() {
            let error = format!("pool {name:?} has writes of {}, or may have", users.join(", "));
            let way_out = "remove these disks first; to open a pool that has failed again, restart \
                           the node";
            return Err(Refused::new(RefusedKind::Conflict, error, way_out));
        }
        let mut notes = Vec::new();
        for volume in volumes {
            notes.extend(self.remove_volume(&volume, true)?);
            notes.push(format!("volume {volume:?} was removed with its pool, which still has it"));
        }
        notes.extend(self.lose_caches(name));
        if let Some(Ok(pool)) = self.volumes.stock().pools().remove(name) {
            pool.close();
        }
        self.objects().forget::<PoolConfig>(name);
        Ok(notes)
    }
}
