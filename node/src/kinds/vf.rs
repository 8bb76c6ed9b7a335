//! `[[vf]]` on a running node.

use config::VfConfig;

use super::{Changed, RunningObject};
use crate::status::VfStatus;
use crate::wiring::Inside;

impl RunningObject for VfConfig {
    type Status = VfStatus;

    fn add(&self, node: &Inside) -> Changed {
        node.add_vf(self)
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_vf(name, force)
    }

    fn users(name: &str, node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        node.user_of_vf(name)
    }

    fn status(node: &Inside) -> Vec<VfStatus> {
        node.vf_status()
    }

    fn status_name(status: &Self::Status) -> &str {
        &status.name
    }
}
