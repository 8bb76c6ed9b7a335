//! Whether the node is there, as a word of the region: processes inside of VMs have nothing else by
//! which they could see that. Whatever a node would have to renew says as much of one that is
//! stopped for a while; but the kernel knows who has ended, and writes it into shared memory.
//!
//! It does so for a *robust* futex (<https://docs.kernel.org/locking/robust-futexes.html>), a word
//! with the number of the thread that holds it. A thread here holds the region's, and does nothing
//! else: when it ends, by itself or with its process, however that ends, the kernel takes the
//! number out and sets a bit. A word that by then has another number, a successor's, it leaves
//! alone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fabric::Region;

/// What a thread needs that waits.
const STACK_BYTES: usize = 64 << 10;

/// `struct robust_list_head`: what the kernel looks at when a thread ends. In addresses.
#[derive(Debug)]
#[repr(C)]
struct Robust {
    /// What is held: a circle, with nothing in it but this.
    next: usize,
    /// From an entry to its word.
    offset: libc::c_long,
    /// What is about to be taken or given back, and counts like the rest. An entry that is none:
    /// with the offset it is the word, and nothing but the word is looked at. 0 for none.
    pending: AtomicUsize,
}

/// Held while the node serves a region to VMs.
#[derive(Debug)]
pub(crate) struct Vigil {
    /// Dropped to end it.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// What the kernel looks at, and the memory that it writes to, until the thread has ended.
    kept: (Box<Robust>, Arc<Region>),
}

impl Vigil {
    /// Begins it: from now on the region says that this process is there.
    ///
    /// # Errors
    /// When there is no thread to be had, or the kernel does not do it.
    pub(crate) fn keep(region: Arc<Region>) -> io::Result<Self> {
        let (end, ends) = channel();
        let (begin, begun) = channel();
        let theirs = Arc::clone(&region);
        let thread = std::thread::Builder::new()
            .name("fabric-vigil".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || keep(&theirs, &begin, &ends))?;
        // It says so before it waits for its end.
        let robust = begun.recv().map_err(io::Error::other)??;
        Ok(Self { end: Some(end), thread: Some(thread), kept: (robust, region) })
    }

    /// Ends it and leaves the region as it is: another process goes on with it, or this one does
    /// with another vigil. Should both end before that begins, nobody hears of it.
    pub(crate) fn leave(self) {
        self.kept.0.pending.store(0, SeqCst);
    }
}

impl Drop for Vigil {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread.
fn keep(region: &Region, begin: &Sender<io::Result<Box<Robust>>>, ends: &Receiver<()>) {
    let pending = AtomicUsize::new(region.node_word().addr().get());
    let mut robust = Box::new(Robust { next: 0, offset: 0, pending });
    robust.next = std::ptr::from_ref(&*robust).expose_provenance();
    let held = hold(&robust).map(|()| robust);
    let is_held = held.is_ok();
    if is_held {
        let number = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        region.set_node(u64::from(number));
    }
    let _ = begin.send(held);
    if is_held {
        // An error: the other end is dropped, which is what is waited for.
        let _ = ends.recv();
    }
}

/// Has the kernel look at this when the thread ends, instead of what the C library gave it: that is
/// for mutexes of a kind that nobody here has.
fn hold(robust: &Robust) -> io::Result<()> {
    let (head, bytes) = (std::ptr::from_ref(robust), size_of::<Robust>());
    // SAFETY: the head has the form that the kernel wants, its list is empty, and the word that it
    // names, of four bytes and aligned, lies in a mapping. Both are the [`Vigil`]'s, which keeps
    // them until the thread has ended; if its process ends instead they are there as well.
    let answer = unsafe { libc::syscall(libc::SYS_set_robust_list, head, bytes) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::RegionOptions;

    fn region() -> Arc<Region> {
        let options = RegionOptions { slots: 1, cells: 16, ..RegionOptions::default() };
        Arc::new(Region::create(&options).expect("memory").0)
    }

    #[test]
    fn a_region_says_whether_its_node_is_there() {
        let region = region();
        assert!(!region.is_orphaned(), "nobody has said anything");
        let first = Vigil::keep(Arc::clone(&region)).expect("a thread");
        assert!(!region.is_orphaned());
        // A successor takes it over, whose it is when the first one ends.
        let second = Vigil::keep(Arc::clone(&region)).expect("a thread");
        drop(first);
        assert!(!region.is_orphaned());
        drop(second);
        assert!(region.is_orphaned());
    }

    #[test]
    fn who_leaves_it_to_another_one_says_nothing() {
        let region = region();
        Vigil::keep(Arc::clone(&region)).expect("a thread").leave();
        assert!(!region.is_orphaned());
        drop(Vigil::keep(Arc::clone(&region)).expect("a thread"));
        assert!(region.is_orphaned());
    }

    #[test]
    fn what_a_member_writes_there_harms_nobody_but_its_domain() {
        let region = region();
        let vigil = Vigil::keep(Arc::clone(&region)).expect("a thread");
        region.set_node(u64::MAX);
        drop(vigil);
        assert!(region.is_orphaned(), "as it was written");
    }
}
