//! A volume's size, which may change while it is used.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

#[derive(Debug)]
struct Inner {
    bytes: AtomicU64,
    /// Eventfds of the watchers. Control path only.
    watchers: Mutex<Vec<Weak<OwnedFd>>>,
}

/// A size in bytes, which all clones share. A checker of requests reads it once a round.
#[derive(Clone, Debug)]
pub struct Size(Arc<Inner>);

impl Size {
    /// So many bytes at first.
    pub fn new(bytes: u64) -> Self {
        let (bytes, watchers) = (AtomicU64::new(bytes), Mutex::default());
        Self(Arc::new(Inner { bytes, watchers }))
    }

    /// The size now.
    pub fn get(&self) -> u64 {
        self.0.bytes.load(SeqCst)
    }

    /// Changes the size. Watchers are told if it differs from before.
    pub fn set(&self, bytes: u64) {
        if self.0.bytes.swap(bytes, SeqCst) == bytes {
            return;
        }
        let mut watchers = self.0.watchers.lock();
        watchers.retain(|watcher| match watcher.upgrade() {
            // It fails only when the counter is full, and then it is readable already.
            Some(event) => {
                let _ = rustix::io::write(&event, &1u64.to_ne_bytes());
                true
            }
            None => false,
        });
    }

    /// Makes an eventfd readable whenever the size changes, for as long as it is kept.
    pub fn watch(&self, event: &Arc<OwnedFd>) {
        let mut watchers = self.0.watchers.lock();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        watchers.push(Arc::downgrade(event));
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_watcher_is_told_of_each_change_and_of_nothing_else() {
        let event = || Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor"));
        let told = |event: &Arc<OwnedFd>| rustix::io::read(event, &mut [0u8; 8]).is_ok();
        let (size, one, other) = (Size::new(512), event(), event());
        size.watch(&one);
        size.clone().watch(&other);
        size.set(512);
        assert!(!told(&one), "it is what it was");
        drop(other);
        size.clone().set(1024);
        assert_eq!(size.get(), 1024);
        assert!(told(&one) && !told(&one));
    }
}
