//! The gate of a domain: the lock around all its objects. Where the program promises to make one
//! call at a time there is no lock, and the gate costs nothing.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// A value that calls use one at a time.
///
/// A program that asks for `FI_THREAD_DOMAIN` promises that. Calls of other programs wait for each
/// other at a lock.
#[derive(Debug)]
pub(crate) struct CallGate<T> {
    lock: Option<Mutex<()>>,
    /// A call uses the value. This finds programs that break the promise. It is not a lock: loads
    /// and stores are plain.
    is_used: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: only `with` gives access to the value, to one thread at a time (by the lock, or by the
// program's promise, which is libfabric's contract). So it is enough that the value may move
// between threads.
unsafe impl<T: Send> Sync for CallGate<T> {}

impl<T> CallGate<T> {
    /// A gate with a lock, unless the program `promises` to make one call at a time.
    pub(crate) fn new(value: T, promises: bool) -> Self {
        Self {
            lock: (!promises).then(Mutex::default),
            is_used: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Calls `work` with the value. `work` must not call this again.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // The lock is never poisoned: a panic ends the process.
        let lock = self.lock.as_ref();
        let _held = lock.map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        if self.is_used.load(Ordering::Relaxed) {
            abort_concurrent_use();
        }
        self.is_used.store(true, Ordering::Relaxed);
        // SAFETY: no other thread is here, as argued at `Sync`, and a second call from `work` would
        // find `is_used` set.
        let result = work(unsafe { &mut *self.value.get() });
        self.is_used.store(false, Ordering::Relaxed);
        result
    }
}

/// Ends the process with a message, since two threads that change the state at once would destroy
/// it.
#[cold]
fn abort_concurrent_use() -> ! {
    eprintln!(
        "libvrio-fi.so: two threads use one domain at once, although the program asked for \
         FI_THREAD_DOMAIN, which forbids this. It must ask for FI_THREAD_SAFE (in MPI: \
         MPI_THREAD_MULTIPLE)."
    );
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn without_the_promise_a_lock_keeps_threads_apart() {
        const ROUNDS: usize = 20_000;
        let gate = CallGate::new(0_usize, false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        gate.with(|value| {
                            let seen = std::hint::black_box(*value);
                            *value = seen + 1;
                        });
                    }
                });
            }
        });
        assert_eq!(gate.with(|value| *value), 2 * ROUNDS);
    }

    #[test]
    fn with_the_promise_there_is_no_lock() {
        assert!(CallGate::new((), true).lock.is_none());
        assert_eq!(CallGate::new(7, true).with(|value| *value), 7);
    }
}
