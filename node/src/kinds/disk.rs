//! `[[disk]]` on a running node.

use config::DiskConfig;

use super::{Changed, RunningObject};
use crate::status::DiskStatus;
use crate::wiring::Inside;

impl RunningObject for DiskConfig {
    type Status = DiskStatus;

    fn add(&self, node: &Inside) -> Changed {
        node.add_disk(self)
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_disk(name, force)
    }

    fn users(name: &str, node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        node.user_of_disk(name)
    }

    fn status(node: &Inside) -> Vec<DiskStatus> {
        node.disk_status()
    }

    fn status_name(status: &Self::Status) -> &str {
        &status.name
    }
}
