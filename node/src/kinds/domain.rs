//! `[[domain]]` on a running node.

use config::{DomainConfig, InPlace};

use super::{Changed, RunningObject};
use crate::status::DomainStatus;
use crate::wiring::Inside;

impl RunningObject for DomainConfig {
    type Status = DomainStatus;

    fn add(&self, node: &Inside) -> Changed {
        node.add_domain(self)
    }

    fn change(&self, _step: &InPlace, node: &Inside) -> Changed {
        node.change_domain(self)
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_domain(name, force)
    }

    fn users(name: &str, node: &Inside, _goes: &dyn Fn(&str) -> bool) -> Vec<String> {
        node.users_of_domain(name)
    }

    fn status(node: &Inside) -> Vec<DomainStatus> {
        node.domain_status()
    }

    fn status_name(status: &Self::Status) -> &str {
        &status.name
    }
}
