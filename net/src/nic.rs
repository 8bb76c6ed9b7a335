//! The virtio-net nic: a [`virtio::Device`] on the control side, and a [`Port`](crate::Port) of its
//! network's [`Bridge`](crate::bridge::Bridge) that does the work.
//!
//! ```text
//!   session thread: Nic ── call ──▶ sidecore: NicQueues ◀── NicPort ◀── Bridge
//! ```
//!
//! Queue `2 i` brings frames to the guest, queue `2 i + 1` from it. All of them are served where
//! the network lives.

mod announce;
mod header;
mod port;
mod queues;
mod receiver;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use sidecore::{CallError, Counter, Local, Sidecore};
use virtio::{Device, DeviceError, Logging, Memory, Queue, QueueConfig, RingKind};

use crate::ether::Mac;
use crate::network::{AttachError, Attached, Network};
use crate::port::{Port, PortCounters};
use crate::stage::{Staged, Stages};
use crate::switch::{PortOptions, Vlans};

use announce::Announced;
pub(crate) use header::header_bytes;
pub use header::{feature, features};
pub use port::NicPort;
pub use queues::NicQueues;

/// The most pairs of queues of a nic: what virtio-net and vhost-user can name, a control queue
/// included, and more than a guest has processors.
pub const PAIRS_MAX: u16 = 127;

/// Ethernet's usual MTU in bytes.
pub const MTU: u16 = 1500;

/// The largest MTU in bytes: 64 KiB of IP, less what fits 16 bits.
pub const MTU_MAX: u16 = 65_535;

/// The smallest MTU in bytes: IPv4's, which virtio demands as well.
pub const MTU_MIN: u16 = 68;

/// Numbers for nics; never used twice in a process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// What a nic is made of.
#[derive(Clone, Debug)]
pub struct NicOptions {
    /// Its name, for the log and for status.
    pub name: String,
    /// The guest's address.
    pub mac: Mac,
    /// The largest packet in bytes that is not to be cut.
    pub mtu: u16,
    /// Pairs of queues that the guest may use.
    pub pairs: u16,
    /// Checksums and segments may be left to others.
    pub offloads: bool,
    /// Its part in the network.
    pub port: PortOptions,
}

impl NicOptions {
    /// A nic with one pair of queues, that may do all.
    pub fn new(name: impl Into<String>, mac: Mac) -> Self {
        let port = PortOptions::of_guest(mac);
        Self { name: name.into(), mac, mtu: MTU, pairs: 1, offloads: true, port }
    }
}

/// Why a queue was not started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueStartError {
    /// The nic has fewer queues.
    #[error("nic {nic} has {pairs} pairs of queues: give the guest no more")]
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

/// One nic, seen from anywhere.
#[derive(Debug)]
pub struct NicCore {
    name: String,
    counters: Arc<PortCounters>,
    /// Written by its sidecore only.
    tolerated: Counter,
    broken: AtomicBool,
    link: AtomicBool,
    /// Queues that run.
    queues: AtomicU64,
    /// Told when what the guest reads of its nic has changed.
    changes: Option<Arc<OwnedFd>>,
    /// Control path only.
    story: Mutex<NicStory>,
}

#[derive(Debug, Default)]
struct NicStory {
    broken: Option<String>,
    /// How often the guest broke which rule: as many entries as there are names.
    failures: BTreeMap<&'static str, u64>,
}

impl NicCore {
    /// A nic called `name` that has counted nothing yet.
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            counters: Arc::default(),
            tolerated: Counter::default(),
            broken: AtomicBool::new(false),
            link: AtomicBool::new(true),
            queues: AtomicU64::new(0),
            changes: watch(name),
            story: Mutex::default(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it counted.
    pub fn counters(&self) -> &Arc<PortCounters> {
        &self.counters
    }

    /// Descriptors of what the guest sent that break a rule which does not matter there, and were
    /// taken all the same: marked as to be written, or of no bytes.
    pub fn tolerated(&self) -> u64 {
        self.tolerated.get()
    }

    /// How many of its queues run.
    pub fn queues(&self) -> u64 {
        self.queues.load(Relaxed)
    }

    /// Whether the guest is told that its cable is plugged in.
    pub fn link(&self) -> bool {
        self.link.load(SeqCst)
    }

    /// Plugs the guest's cable in, or out. A front end that keeps the configuration itself, as QEMU
    /// does for nics, does not show that to its guest.
    pub fn set_link(&self, up: bool) {
        if self.link.swap(up, SeqCst) != up
            && let Some(changes) = &self.changes
        {
            // It does not block; a counter that is full is a change that was not looked at yet.
            let _ = rustix::io::write(changes, &1u64.to_ne_bytes());
        }
    }

    /// The guest handed over garbage, and the nic stopped until it is started anew.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    /// What the garbage was.
    pub fn broken_why(&self) -> Option<String> {
        self.story().broken.clone()
    }

    /// How often the guest handed over which kind of garbage, over all its starts.
    pub fn failures(&self) -> Vec<(&'static str, u64)> {
        self.story().failures.iter().map(|(name, count)| (*name, *count)).collect()
    }

    /// Stops the nic, and only the nic. `name` is the kind of garbage, for the counters.
    fn broke(&self, queue: usize, name: &'static str, garbage: &dyn fmt::Display) {
        let mut story = self.story();
        let times = story.failures.entry(name).or_default();
        *times += 1;
        let times = *times;
        if story.broken.is_some() {
            return;
        }
        story.broken = Some(format!("queue {queue}: {garbage}"));
        self.broken.store(true, SeqCst);
        drop(story);
        // A guest that does it again and again does not get a line each time.
        if times.is_power_of_two() {
            tracing::error!(
                nic = %self.name,
                queue,
                times,
                error = %garbage,
                "a ring of the guest's cannot be used any more: this nic stops until the guest \
                 restarts it; nothing else is affected"
            );
        }
    }

    /// A new start of the guest is a new chance.
    pub fn mend(&self) {
        self.story().broken = None;
        self.broken.store(false, SeqCst);
    }

    fn story(&self) -> MutexGuard<'_, NicStory> {
        // Nothing that holds this lock can leave the story half-told.
        self.story.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn watch(nic: &str) -> Option<Arc<OwnedFd>> {
    match eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) {
        Ok(event) => Some(Arc::new(event)),
        Err(error) => {
            tracing::warn!(nic, %error, "its guest will not be told when its link changes");
            None
        }
    }
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
            let counters = Arc::clone(&shared.counters);
            let queues = Rc::new(RefCell::new(NicQueues::new(shared, queues, mtu)));
            let stages = Rc::<RefCell<Stages>>::default();
            let port = Staged::new(NicPort::new(Rc::clone(&queues)), Rc::clone(&stages), counters);
            let announces = Rc::<Cell<bool>>::default();
            // No rule of the guest's filter is about what its host says of it.
            let port = Announced::new(port, mac, Rc::clone(&announces));
            nics(local).borrow_mut().0.insert(id, NicParts { queues, stages, announces });
            Box::new(port) as Box<dyn Port>
        };
        let counters = Arc::clone(&core.counters);
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
            local.changes(|| format!("nic {:?}", core.name));
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
                self.core.queues.fetch_add(1, Relaxed);
                if came {
                    self.announce();
                }
                Ok(())
            }
            Ok(Err(source)) => {
                *self.core.story().failures.entry(source.name()).or_default() += 1;
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
        self.core.queues.fetch_sub(1, Relaxed);
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
        self.core.changes.clone()
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
