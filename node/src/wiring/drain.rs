//! A drained node: it takes no new users, and lists those that it still has.
//!
//! A volume with copies on other nodes is given to one of them as soon as that has all writes.
//! Users that are there stay for as long as they like. Their guests migrate or are shut down, and
//! then the host can be serviced. The drain lasts until it is undone or the node is restarted.

use super::inside::Inside;
use api::{API_VERSION, Drain, Refused};

impl Inside {
    /// Whether the node is drained, and the users that it has.
    pub(crate) fn drain(&self) -> Drain {
        let objects = self.objects().clone();
        let disks = objects.config.disks.iter().flat_map(|disk| {
            let users = objects.user_of_disk(&disk.name).into_iter();
            users.map(|user| format!("disk {:?}: {user}", disk.name))
        });
        let volumes = objects.config.volumes.iter().flat_map(|volume| {
            let others = objects.others_of_volume(&volume.name).into_iter();
            others.map(|other| format!("volume {:?}: {other}", volume.name))
        });
        let domains = objects.config.domains.iter().flat_map(|domain| {
            let users = self.domains.users_of(&domain.name).into_iter();
            users.map(|user| format!("domain {:?}: {user}", domain.name))
        });
        let users = disks.chain(volumes).chain(self.nics().users()).chain(domains).collect();
        Drain { version: API_VERSION, draining: objects.draining, users }
    }

    /// Takes no new users from now on, or takes them again.
    pub(crate) fn set_draining(&self, draining: bool) -> Result<Drain, Refused> {
        let _turn = self.turn()?;
        let objects = {
            let mut objects = self.objects();
            objects.draining = draining;
            objects.clone()
        };
        let (copied, alone): (Vec<_>, Vec<_>) =
            objects.volumes.iter().partition(|served| served.member.is_some());
        alone.iter().for_each(|served| served.export.set_draining(draining));
        // A volume with copies elsewhere goes there. If it must be served here, its guests come
        // over: to refuse them would stop them.
        let members: Vec<_> = copied.iter().filter_map(|served| served.member.as_ref()).collect();
        copies::set_drained(&members, &self.cores, draining);
        objects.disks.iter().for_each(|shown| shown.set_turning_away(draining));
        self.nics().set_turning_away(draining);
        self.domains.set_turning_away(draining);
        let drain = self.drain();
        match draining {
            true => {
                tracing::info!(users = drain.users.len(), "drained: the node takes no new users")
            }
            false => tracing::info!("no longer drained"),
        }
        Ok(drain)
    }
}
