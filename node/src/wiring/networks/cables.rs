//! The cables of a network's nics. A cable is plugged in unless an operator pulled it, or the
//! network's uplink is away, or the node that has the network is away. A guest must see that its
//! network leads nowhere, as it would with a switch that has no power.

use parking_lot::{Mutex, MutexGuard};
use virtio::Closer;

/// See the module. Shared with the code that watches the uplink, or the way to the other node.
#[derive(Debug, Default)]
pub(crate) struct Cables(Mutex<CablesState>);

#[derive(Debug, Default)]
struct CablesState {
    uplink_is_away: bool,
    cables: Vec<Cable>,
}

#[derive(Debug)]
struct Cable {
    nic: String,
    /// The state that the configuration gives.
    link: bool,
    closer: Closer,
}

impl Cable {
    fn apply(&self, uplink_is_away: bool) {
        self.closer.set_closed(uplink_is_away || !self.link);
    }
}

impl Cables {
    fn state(&self) -> MutexGuard<'_, CablesState> {
        // Each change is made as a whole.
        self.0.lock()
    }

    pub(crate) fn uplink_is_away(&self) -> bool {
        self.state().uplink_is_away
    }

    /// Notes that the uplink vanished, or is back. Sidecores may call it, too: its lock is never
    /// held for long, and its two system calls do not wait.
    pub(crate) fn set_uplink(&self, is_there: bool) {
        let mut state = self.state();
        state.uplink_is_away = !is_there;
        state.cables.iter().for_each(|cable| cable.apply(!is_there));
    }

    /// Sets the cable of a nic, which may exist already.
    pub(crate) fn set(&self, nic: &str, link: bool, closer: Closer) {
        let mut state = self.state();
        let cable = Cable { nic: nic.to_owned(), link, closer };
        cable.apply(state.uplink_is_away);
        state.cables.retain(|cable| cable.nic != nic);
        state.cables.push(cable);
    }

    pub(crate) fn remove(&self, nic: &str) {
        self.state().cables.retain(|cable| cable.nic != nic);
    }
}
