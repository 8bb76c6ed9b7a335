//! `[[nic]]` on a running node.

use config::{InPlace, NicConfig};

use super::{Changed, RunningObject};
use crate::status::NicStatus;
use crate::wiring::Inside;

impl RunningObject for NicConfig {
    type Status = NicStatus;

    fn add(&self, node: &Inside) -> Changed {
        node.add_nic(self)
    }

    fn change(&self, _step: &InPlace, node: &Inside) -> Changed {
        node.change_nic(self)
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_nic(name, force)
    }

    fn users(name: &str, node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        node.user_of_nic(name)
    }

    fn status(node: &Inside) -> Vec<NicStatus> {
        node.nic_status()
    }

    fn status_name(status: &Self::Status) -> &str {
        &status.name
    }
}
