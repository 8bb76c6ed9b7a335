//! `[[volume]]` on a running node.

use config::{InPlace, VolumeConfig};

use super::{Changed, RunningObject};
use crate::status::VolumeStatus;
use crate::wiring::Inside;

impl RunningObject for VolumeConfig {
    type Status = VolumeStatus;

    fn add(&self, node: &Inside) -> Changed {
        node.add_volume(self)
    }

    fn change(&self, step: &InPlace, node: &Inside) -> Changed {
        match step.step {
            Self::ALLOW => node.change_allow(self),
            Self::SIZE => node.change_size(self),
            _ => node.change_chain(self),
        }
    }

    fn readmit(&self, node: &Inside) {
        node.readmit_to_volume(self);
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_volume(name, force)
    }

    fn users(name: &str, node: &Inside, goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        let mut users = node.users_of_volume(name);
        users.retain(|user| !goes(user));
        users
    }

    fn status(node: &Inside) -> Vec<VolumeStatus> {
        node.volume_status()
    }

    fn status_name(status: &Self::Status) -> &str {
        &status.name
    }
}
