//! `[[peer]]` on a running node.

use config::{InPlace, PeerConfig};

use super::{Changed, RunningObject};
use crate::status::PeerStatus;
use crate::wiring::Inside;

impl RunningObject for PeerConfig {
    type Status = PeerStatus;

    fn add(&self, node: &Inside) -> Changed {
        node.set_peer(self)
    }

    fn change(&self, _step: &InPlace, node: &Inside) -> Changed {
        node.set_peer(self)
    }

    fn remove(name: &str, node: &Inside, _force: bool) -> Changed {
        node.remove_peer(name)
    }

    fn status(node: &Inside) -> Vec<PeerStatus> {
        node.peer_status()
    }

    fn status_name(status: &Self::Status) -> &str {
        &status.name
    }
}
