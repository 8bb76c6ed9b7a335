//! The virtio-net nic: a [`virtio::Device`] on the control side, and a [`Port`] of its
//! network's [`Bridge`](crate::bridge::Bridge) that does the work.
//!
//! ```text
//!   session thread: Nic ── call ──▶ sidecore: NicQueues ◀── NicPort ◀── Bridge
//! ```
//!
//! Queue `2 i` brings frames to the guest, queue `2 i + 1` from it. All of them are served where
//! the network lives.

mod announce;
mod core;
mod header;
mod options;
mod port;
mod queues;
mod receiver;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use sidecore::{CallError, Local, Sidecore};
use virtio::{Device, DeviceError, Logging, Memory, Queue, QueueConfig, RingKind};

use crate::network::{AttachError, Attached, Network};
use crate::port::Port;
use crate::stage::{Staged, Stages};
use crate::switch::Vlans;

pub use self::core::NicCore;
use announce::Announced;
pub(crate) use header::header_bytes;
pub use header::{feature, features};
pub use options::{MTU, MTU_MAX, MTU_MIN, NicOptions, PAIRS_MAX};
pub use port::NicPort;
pub use queues::NicQueues;

/// Numbers for nics; never used twice in a process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Why a queue was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueStartError {
    /// The nic has fewer queues.
    #[error("nic {nic} has {pairs} pairs of queues; the guest must not get more")]
    NoSuchQueue {
        /// The nic.
        nic: String,
        /// The number of pairs that the nic has.
        pairs: u16,
    },
    /// The ring is unusable.
    #[error("nic {nic}: {source}")]
    Ring {
        /// The nic.
        nic: String,
        /// The ring's fault.
        r#source: virtio::RingError,
    },
    /// The sidecore is gone.
    #[error("nic {nic}: {source}")]
    Sidecore {
        /// The nic.
        nic: String,
        /// The sidecore's error.
        r#source: CallError,
    },
}

/// A nic. Hand it to [`virtio::serve`]; keep its [`NicCore`] to see what it does.
#[derive(Debug)]
pub struct Nic {
    options: NicOptions,
    core: Arc<NicCore>,
    id: u64,
    acked: u64,
    /// Which queues run.
    running: Vec<bool>,
    /// Its place in the network.
    attached: Attached,
}

impl Nic {
    /// A nic in a network, without queues yet and without stages.
    ///
    /// # Errors
    /// When the network does not take it.
    ///
    /// # Panics
    /// When there are no queues or more than [`PAIRS_MAX`] pairs; the configuration checks that.
    pub fn new(options: NicOptions, network: &Network) -> Result<Self, AttachError> {
        assert!((1..=PAIRS_MAX).contains(&options.pairs), "{} pairs of queues", options.pairs);
        let core = NicCore::new(&options.name);
        let id = NEXT.fetch_add(1, Relaxed);
        let queues = 2 * usize::from(options.pairs);
        let (shared, mtu, mac) = (Arc::clone(&core), options.mtu, options.mac);
        let make = move |local: &mut Local| {
            let counters = Arc::clone(shared.counters());
            let queues = Rc::new(RefCell::new(NicQueues::new(shared, queues, mtu)));
            let stages = Rc::<RefCell<Stages>>::default();
            let port = Staged::new(NicPort::new(Rc::clone(&queues)), Rc::clone(&stages), counters);
            let announces = Rc::<Cell<bool>>::default();
            // No rule of the guest's filter is about what its host says of it.
            let port = Announced::new(port, mac, Rc::clone(&announces));
            nics(local).borrow_mut().0.insert(id, NicParts { queues, stages, announces });
            Box::new(port) as Box<dyn Port>
        };
        let counters = Arc::clone(core.counters());
        let attached = network.attach(options.port.clone(), counters, make)?;
        Ok(Self { options, core, id, acked: 0, running: vec![false; queues], attached })
    }

    /// The way to its stages, from anywhere and as long as the nic is there.
    pub fn chain(&self) -> NicChain {
        NicChain { sidecore: self.attached.network().sidecore().clone(), id: self.id }
    }

    /// The nic's state and counts, for observers.
    pub fn core(&self) -> Arc<NicCore> {
        Arc::clone(&self.core)
    }

    /// Runs `f` on the nic's queues, where they are.
    fn with<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut NicQueues) -> R + Send + 'static,
    ) -> Result<R, CallError> {
        let (id, core) = (self.id, Arc::clone(&self.core));
        let found = self.attached.network().sidecore().call(move |local| {
            local.changes(|| format!("nic {:?}", core.name()));
            let queues = nics(local).borrow().0.get(&id).map(|parts| Rc::clone(&parts.queues));
            queues.map(|queues| f(&mut queues.borrow_mut()))
        })?;
        found.ok_or(CallError::Stopped)
    }

    fn start_queue(&mut self, mut config: QueueConfig) -> Result<(), QueueStartError> {
        let nic = self.options.name.clone();
        let index = config.index;
        if index >= self.running.len() {
            return Err(QueueStartError::NoSuchQueue { nic, pairs: self.options.pairs });
        }
        let is_first = !self.running.contains(&true);
        if is_first {
            self.core.mend();
        }
        // The ring was used before: the guest may have come from another host.
        let came = is_first && is_used(config.kind, config.base);
        let acked = self.acked;
        // No frame outlives its round, and the nic writes nothing into frames that a guest sends.
        (config.in_order, config.reads_only) = (true, index % 2 == 1);
        let add = move |queues: &mut NicQueues| {
            Queue::new(config).map(|queue| queues.add_queue(queue, acked))
        };
        match self.with(add) {
            Ok(Ok(())) => {
                self.running[index] = true;
                self.core.queue_started();
                if came {
                    self.announce();
                }
                Ok(())
            }
            Ok(Err(source)) => {
                self.core.count_failure(source.name());
                Err(QueueStartError::Ring { nic, source })
            }
            Err(source) => Err(QueueStartError::Sidecore { nic, source }),
        }
    }

    /// Has the network hear where the guest is, unless frames without a tag go nowhere.
    fn announce(&self) {
        if matches!(self.options.port.vlans, Vlans::Trunk { native: None, .. }) {
            return;
        }
        let id = self.id;
        // Without the sidecore there is no port that could announce.
        let _ = self.attached.network().sidecore().call(move |local| {
            if let Some(parts) = nics(local).borrow().0.get(&id) {
                parts.announces.set(true);
            }
        });
    }

    fn stop_queue(&mut self, index: usize) -> u32 {
        if !self.running.get_mut(index).is_some_and(std::mem::take) {
            return 0;
        }
        self.core.queue_stopped();
        self.with(move |queues| queues.remove_queue(index)).ok().flatten().unwrap_or(0)
    }

    /// Runs `f` on a running queue.
    fn change(&self, index: usize, f: impl FnOnce(&mut Queue) + Send + 'static) {
        // Without the sidecore there is nothing to change.
        let _ = self.with(move |queues| queues.queue(index).map(f));
    }
}

impl Device for Nic {
    fn features(&self) -> u64 {
        features(&self.options)
    }

    fn config(&self) -> Vec<u8> {
        header::config(&self.options, self.core.link())
    }

    fn config_event(&self) -> Option<Arc<OwnedFd>> {
        self.core.changes()
    }

    fn queues_max(&self) -> usize {
        self.running.len()
    }

    /// A front end asks for pairs.
    fn queues_told(&self) -> u64 {
        u64::from(self.options.pairs)
    }

    fn set_features(&mut self, acked: u64) {
        self.acked = acked;
    }

    fn start(&mut self, queue: QueueConfig) -> Result<(), DeviceError> {
        Ok(self.start_queue(queue)?)
    }

    /// No frame is kept from one round to the next, so there is nothing to drain.
    fn stop(&mut self, index: usize) -> u32 {
        self.stop_queue(index)
    }

    fn leaves_requests(&self) -> bool {
        false
    }

    fn set_memory(&mut self, memory: Arc<Memory>) {
        let _ = self.with(move |queues| queues.set_memory(&memory));
    }

    fn set_logging(&mut self, index: usize, logging: Logging) {
        self.change(index, |queue| queue.set_logging(logging));
    }

    fn set_call(&mut self, index: usize, call: Option<OwnedFd>) {
        self.change(index, |queue| queue.set_call(call));
    }

    fn set_kick(&mut self, index: usize, kick: Option<OwnedFd>) {
        self.change(index, |queue| queue.set_kick(kick));
    }

    fn disconnected(&mut self) {
        (0..self.running.len()).for_each(|index| {
            self.stop_queue(index);
        });
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        self.disconnected();
        let id = self.id;
        let _ = self.attached.network().sidecore().call(move |local| {
            nics(local).borrow_mut().0.remove(&id);
        });
    }
}

/// Whether a ring that starts here was used: it does not start at its first place. Of a packed one
/// some front ends leave out how often its ends have come by, which is beside the places.
fn is_used(kind: RingKind, base: u32) -> bool {
    match kind {
        RingKind::Split => base != 0,
        RingKind::Packed => base & 0x7fff_7fff != 0,
    }
}

/// The way to a nic's stages.
#[derive(Clone, Debug)]
pub struct NicChain {
    sidecore: Sidecore,
    id: u64,
}

impl NicChain {
    /// Runs `f` on the stages between two rounds, when no frame is on its way through them.
    ///
    /// # Errors
    /// When the nic or its sidecore is gone.
    pub fn change<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Stages) -> R + Send + 'static,
    ) -> Result<R, CallError> {
        let id = self.id;
        let changed = self.sidecore.call(move |local| {
            let stages = nics(local).borrow().0.get(&id).map(|parts| Rc::clone(&parts.stages));
            stages.map(|stages| f(&mut stages.borrow_mut()))
        })?;
        changed.ok_or(CallError::Stopped)
    }
}

/// The parts of a nic that are on its sidecore, beside its port.
struct NicParts {
    queues: Rc<RefCell<NicQueues>>,
    stages: Rc<RefCell<Stages>>,
    /// Set, its guest is announced.
    announces: Rc<Cell<bool>>,
}

/// All nics on a sidecore, by number: how closures from control threads find theirs.
#[derive(Default)]
struct Nics(HashMap<u64, NicParts>);

fn nics(local: &Local) -> Rc<RefCell<Nics>> {
    local.services().get::<Nics>().unwrap_or_else(|| {
        let nics = Rc::new(RefCell::new(Nics::default()));
        local.services().insert(Rc::clone(&nics));
        nics
    })
}
