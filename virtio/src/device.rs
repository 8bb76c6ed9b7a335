//! The trait of devices, whose methods a vhost-user session calls.

use std::error::Error;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::dirty::Logging;
use crate::memory::Memory;
use crate::queue::QueueConfig;

/// Why a device refused to start a queue; the text is for the operator.
pub type DeviceError = Box<dyn Error + Send + Sync>;

/// A device behind a vhost-user socket. All of it is called on the session's own control thread,
/// while the front end (in QEMU: with its main lock held) waits, so nothing waits on storage or
/// a network for longer than is said here.
pub trait Device: Send + fmt::Debug {
    /// The features of the device's own kind; those of rings and of vhost-user are added.
    fn features(&self) -> u64;

    /// The device's configuration space as it is now.
    fn config(&self) -> Vec<u8>;

    /// An eventfd that becomes readable when the configuration space has changed; the front end is
    /// told then, if it wants to know. `None` where it never changes.
    fn config_event(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// The driver wrote `bytes` at `offset` of the configuration space. The device may ignore them,
    /// and goes on in any case.
    fn write_config(&mut self, offset: u32, bytes: &[u8]) {
        let _ = (offset, bytes);
    }

    /// How many queues the device has, at most [`crate::QUEUES_MAX`].
    fn queues_max(&self) -> usize;

    /// The number that a front end gets when it asks for the number of queues. Devices whose queues
    /// come in pairs count pairs.
    fn queues_told(&self) -> u64 {
        self.queues_max() as u64
    }

    /// The features that the driver accepted, ring features included. Called before the first queue
    /// starts, and only while no queue runs.
    fn set_features(&mut self, acked: u64);

    /// A queue starts: everything about it is known and checked as far as a session can. It runs
    /// until `stop` or `disconnected`.
    ///
    /// # Errors
    /// When the ring is unusable or the device cannot serve it. The front end is then dropped.
    fn start(&mut self, queue: QueueConfig) -> Result<(), DeviceError>;

    /// Stops a running queue: it drains for at most 2 s (all queues of the device that are stopped
    /// together share this time) and gives [`crate::Queue::base`]. Unfinished requests then stay in
    /// the inflight region, and the ring is not touched again.
    fn stop(&mut self, index: usize) -> u32;

    /// Queues that run stop, all at once and as by [`Device::stop`], but for at most `drain`. Their
    /// front end stays, and they are started again: by this process or another.
    fn pause(&mut self, queues: &[usize], drain: Duration) -> Vec<u32> {
        let _ = drain;
        queues.iter().map(|&index| self.stop(index)).collect()
    }

    /// Whether a paused queue may have outstanding requests. A process without the inflight region
    /// cannot go on with such a queue.
    fn leaves_requests(&self) -> bool {
        true
    }

    /// The guest's memory changed. When this returns, chains that are taken from now on are
    /// looked up in the new table, by all running queues.
    fn set_memory(&mut self, memory: Arc<Memory>);

    /// A running queue marks other pages as dirty, or in another log, from now on. When this
    /// returns, the former log is not touched any more. Pages that are written for a request are
    /// marked with [`crate::Queue::wrote`] before the request is put.
    fn set_logging(&mut self, index: usize, logging: Logging);

    /// A running queue signals somewhere else from now on.
    fn set_call(&mut self, index: usize, call: Option<OwnedFd>);

    /// A running queue is kicked somewhere else from now on.
    fn set_kick(&mut self, index: usize, kick: Option<OwnedFd>);

    /// The front end went away: all queues stop as they do in `stop`, without a base to give.
    /// Called once per connection, also when no queue was ever started.
    fn disconnected(&mut self);
}
