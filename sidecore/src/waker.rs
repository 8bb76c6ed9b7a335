//! How other threads end a sidecore's sleep.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use crate::counter::Padded;
use crate::handshake::Handshake;

/// The sleeping flag and the descriptor that a sleeping sidecore waits on.
#[derive(Debug)]
pub(crate) struct Bell {
    handshake: Padded<Handshake>,
    eventfd: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { handshake: Padded(Handshake::new()), eventfd })
    }

    /// Before the last look for work.
    pub(crate) fn announce_sleep(&self) {
        self.handshake.announce();
    }

    /// After the sleep, or instead of it.
    pub(crate) fn awake(&self) {
        self.handshake.retract();
    }

    /// Takes the signal, so that the next sleep does not end at once.
    pub(crate) fn silence(&self) {
        // Nothing to take is fine: the descriptor does not block.
        let _ = rustix::io::read(&self.eventfd, &mut [0u8; 8]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    fn ring(&self) {
        if self.handshake.must_signal() {
            // It can only fail when the counter is full, and then it is readable anyhow.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }
}

/// Ends the sleep of one sidecore. First put the work where its pollers look, then call
/// [`Waker::wake`]: a fence and a load while the sidecore is awake, a system call when it sleeps.
#[derive(Clone)]
pub struct Waker {
    bell: Option<Arc<Bell>>,
}

impl Waker {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Self { bell: Some(bell) }
    }

    /// A waker without a sidecore, for tests and simulations.
    pub fn none() -> Self {
        Self { bell: None }
    }

    /// Makes the sidecore look for work soon, if it sleeps.
    pub fn wake(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

/// A waker of a sidecore that is started later, for parts that are made before it.
#[derive(Clone, Debug)]
pub struct EarlyWaker(pub(crate) Arc<Bell>);

impl EarlyWaker {
    /// A waker of a new sidecore; see [`crate::SidecoreConfig::early`].
    ///
    /// # Errors
    /// When the system refuses a descriptor.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Bell::new()?)))
    }

    /// The sidecore's waker.
    pub fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.0))
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.bell.is_some() { "Waker" } else { "Waker(none)" })
    }
}
