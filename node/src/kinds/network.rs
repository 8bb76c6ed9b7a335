//! `[[network]]` on a running node.

use config::{InPlace, NetworkConfig};

use super::{Changed, RunningObject};
use crate::status::NetworkStatus;
use crate::wiring::Inside;

impl RunningObject for NetworkConfig {
    type Status = NetworkStatus;

    fn add(&self, node: &Inside) -> Changed {
        node.add_network(self)
    }

    fn change(&self, _step: &InPlace, node: &Inside) -> Changed {
        node.change_network(self)
    }

    fn readmit(&self, node: &Inside) {
        node.open_network(self);
    }

    fn remove(name: &str, node: &Inside, force: bool) -> Changed {
        node.remove_network(name, force)
    }

    fn status(node: &Inside) -> Vec<NetworkStatus> {
        node.network_status()
    }

    fn status_name(status: &Self::Status) -> &str {
        &status.name
    }
}
