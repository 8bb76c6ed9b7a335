//! The cables of a network's nics: plugged in unless somebody pulled one, or the network's uplink
//! is away, or the node that has the network. A guest whose network leads nowhere is to know, as it
//! would of a switch without power.

use std::sync::{Mutex, MutexGuard, PoisonError};

use virtio::Closer;

/// See the module's text. Shared with who looks after the uplink, or the way to the other node.
#[derive(Debug, Default)]
pub(super) struct Cables(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    uplink_is_away: bool,
    cables: Vec<Cable>,
}

#[derive(Debug)]
struct Cable {
    nic: String,
    /// As the configuration says.
    link: bool,
    closer: Closer,
}

impl Cable {
    fn apply(&self, uplink_is_away: bool) {
        self.closer.set_closed(uplink_is_away || !self.link);
    }
}

impl Cables {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn uplink_is_away(&self) -> bool {
        self.state().uplink_is_away
    }

    /// The uplink vanished, or is back. Also for sidecores: it takes a lock that nobody keeps, and
    /// two system calls that do not wait.
    pub(super) fn set_uplink(&self, is_there: bool) {
        let mut state = self.state();
        state.uplink_is_away = !is_there;
        state.cables.iter().for_each(|cable| cable.apply(!is_there));
    }

    /// The cable of a nic, which may be there already.
    pub(super) fn set(&self, nic: &str, link: bool, closer: Closer) {
        let mut state = self.state();
        let cable = Cable { nic: nic.to_owned(), link, closer };
        cable.apply(state.uplink_is_away);
        state.cables.retain(|cable| cable.nic != nic);
        state.cables.push(cable);
    }

    pub(super) fn remove(&self, nic: &str) {
        self.state().cables.retain(|cable| cable.nic != nic);
    }
}
