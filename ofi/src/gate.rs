//! One lock around everything of a domain, which costs nothing where the program promises to make
//! one call at a time.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Something that one call at a time may use.
///
/// A program that asked for `FI_THREAD_DOMAIN` promised that; any other is held to it by a lock.
#[derive(Debug)]
pub(crate) struct CallGate<T> {
    lock: Option<Mutex<()>>,
    /// Finds programs that break the promise. Plain loads and stores: it is not the lock.
    inside: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through `with` alone, one thread at a time (by the lock or by the
// program's promise, which is libfabric's contract), so that it only has to be fit to be moved.
unsafe impl<T: Send> Sync for CallGate<T> {}

impl<T> CallGate<T> {
    /// With a lock unless the program `promises` to make one call at a time.
    pub(crate) fn new(value: T, promises: bool) -> Self {
        Self {
            lock: (!promises).then(Mutex::default),
            inside: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Does something with it. Not to be called from within.
    #[inline]
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // A panic under it has ended the process before anyone could find it poisoned.
        let lock = self.lock.as_ref();
        let _held = lock.map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        if self.inside.load(Ordering::Relaxed) {
            two_at_once();
        }
        self.inside.store(true, Ordering::Relaxed);
        // SAFETY: we are the only ones here, as argued at `Sync`, and `work` cannot get here again
        // without meeting `inside`.
        let result = work(unsafe { &mut *self.value.get() });
        self.inside.store(false, Ordering::Relaxed);
        result
    }
}

/// Memory would be torn: better a word than that.
#[cold]
fn two_at_once() -> ! {
    eprintln!(
        "libvrio-fi.so: two threads use one domain at once, though the program asked for \
         FI_THREAD_DOMAIN and so promised not to. Let it ask for FI_THREAD_SAFE (in MPI: \
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
