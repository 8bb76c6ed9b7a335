//! The state that the control thread and the main thread of a node share.

use std::sync::Arc;
use std::time::Instant;

use copies::ClusterView;
use link::ShmListener;
use parking_lot::{Mutex, MutexGuard};
use sessions::{LinkedSidecore, keys::SidecoreKeys, sidecores};

use super::disks::Disks;
use super::disks::shown::ServedDisk;
use super::disks::steerer::Steerer;
use super::fabric::Domains;
use super::hand_over::fds::HandoverFds;
use super::networks::Nics;
use super::objects::Objects;
use super::pools::schedule::TimedSnapshots;
use super::strangers::Watcher;
use super::turns::Turns;
use super::volumes::Volumes;
use super::watchdog::Watchdog;

/// The state that the control thread and the main thread share.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) started: Instant,
    pub(crate) keys: SidecoreKeys,
    pub(crate) volumes: Volumes,
    pub(crate) cores: Vec<LinkedSidecore>,
    /// Kept until the node goes: callers get no answer then.
    pub(crate) door: Option<ShmListener>,
    pub(crate) disks: Disks,
    /// Removed as a whole, at the end.
    pub(crate) nics: Mutex<Nics>,
    /// The fabric.
    pub(crate) domains: Domains,
    pub(crate) steerer: Steerer,
    pub(crate) watchdog: Watchdog,
    pub(crate) timed: TimedSnapshots,
    pub(crate) cluster: ClusterView,
    /// Works until it is dropped.
    pub(crate) _strangers: Watcher,
    /// A thread that changes something waits for its turn first.
    pub(crate) turns: Turns,
    /// Held for as long as it takes to look or to note; never while something is started.
    pub(crate) objects: Mutex<Objects>,
    pub(crate) handover_fds: HandoverFds,
}

impl Inside {
    pub(crate) fn objects(&self) -> MutexGuard<'_, Objects> {
        // A panic of a thread leaves whole contents: each change notes its result in one step.
        self.objects.lock()
    }

    pub(crate) fn nics(&self) -> MutexGuard<'_, Nics> {
        // The same holds here: readers only look, and the nics are removed as a whole.
        self.nics.lock()
    }

    /// Refuses further changes, and ends disks, sessions and sidecores.
    pub(crate) fn stop(&self) {
        if !self.turns.close() {
            return;
        }
        self.watchdog.stop();
        self.steerer.stop();
        self.timed.stop();
        let disks: Vec<Arc<ServedDisk>> = self.objects().disks.clone();
        self.disks.stop(&disks);
        self.nics().stop();
        self.domains.stop();
        let volumes = self.objects().volumes.clone();
        let members: Vec<_> = volumes.iter().filter_map(|served| served.member.as_ref()).collect();
        copies::end_in_order(&members, &self.cores, &self.cluster);
        // From here on the registry is not needed, and no thread waits for it.
        self.cluster.close();
        for member in members {
            let doors = self.volumes.seats().doors();
            if let Err(error) = member.stop(&self.cores, doors, &self.cluster) {
                tracing::error!(error, "a copy of a replicated volume does not end");
            }
        }
        sidecores::stop(&self.cores);
        self.volumes.stock().close_all();
    }
}
