//! How many sidecores take queues, and how busy they are.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use config::Sidecores;
use parking_lot::{Mutex, MutexGuard};

/// The thread that steers, and the channel that ends it.
pub(crate) type SteeringThread = (Sender<()>, JoinHandle<()>);

/// The state of steering that other threads read.
#[derive(Debug)]
pub(crate) struct Steerer {
    /// The number of sidecores that have queues, from the first.
    pub(crate) active: Arc<AtomicUsize>,
    /// Thousandths of each sidecore's time; empty where nothing is steered.
    loads: Mutex<Vec<u32>>,
    looker: Mutex<Option<SteeringThread>>,
}

impl Steerer {
    /// Queues start on as few sidecores as the configuration permits.
    pub(crate) fn new(config: &Sidecores) -> Self {
        Self::with(if config.steers() { config.min } else { config.cores.len() })
    }

    /// Queues start on as many as it permits, since their guests have been at work.
    pub(crate) fn taking_over(config: &Sidecores) -> Self {
        Self::with(if config.steers() { config.max } else { config.cores.len() })
    }

    fn with(active: usize) -> Self {
        let active = Arc::new(AtomicUsize::new(active));
        Self { active, loads: Mutex::default(), looker: Mutex::default() }
    }

    /// The number of sidecores that take queues, for code that starts queues.
    pub(crate) fn active(&self) -> &Arc<AtomicUsize> {
        &self.active
    }

    /// How busy each sidecore is, in thousandths of its time; empty where nothing is steered.
    pub(crate) fn loads(&self) -> Vec<u32> {
        lock(&self.loads).clone()
    }

    /// Ends `looker` when steering is stopped.
    pub(crate) fn keep(&self, looker: SteeringThread) {
        *lock(&self.looker) = Some(looker);
    }

    /// Notes how busy each sidecore is.
    pub(crate) fn set_loads(&self, loads: &[u32]) {
        loads.clone_into(&mut lock(&self.loads));
    }

    /// Ends the thread. A second call has no effect.
    pub(crate) fn stop(&self) {
        let looker = lock(&self.looker).take();
        if let Some((stop, thread)) = looker {
            drop(stop);
            if thread.join().is_err() {
                tracing::error!("the thread that steers panicked");
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
