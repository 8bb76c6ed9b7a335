//! Liveness of the node, as a word of the region: a process inside of a VM has no other way to see
//! that the node has ended. A heartbeat would not do, because a node that is stopped for a while
//! does not renew it either. But the kernel knows which threads have ended, and writes that into
//! shared memory.
//!
//! It does so for a *robust* futex (<https://docs.kernel.org/locking/robust-futexes.html>), a word
//! with the number of the thread that holds it. A thread of the node holds the region's word and
//! does nothing else. When the thread ends, by itself or with its process, the kernel clears the
//! number and sets a bit. If the word has another number by then, that of a successor, the kernel
//! leaves it alone.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use fabric::Region;

/// The stack of the thread, which only waits.
const STACK_BYTES: usize = 64 << 10;

/// `struct robust_list_head`: the kernel looks at it when a thread ends. In addresses.
#[derive(Debug)]
#[repr(C)]
struct Robust {
    /// The list of locks that are held: a circle, with nothing in it but this.
    next: usize,
    /// From an entry to its word.
    offset: libc::c_long,
    /// A lock that is about to be taken or given back, and counts like the rest. No real entry
    /// stands here: with the offset it is the word, and the kernel looks at nothing but the word. 0
    /// for none.
    pending: AtomicUsize,
}

/// The liveness word of one region, held while the node serves the region to VMs.
#[derive(Debug)]
pub(crate) struct NodeLiveness {
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// The list that the kernel reads, and the memory that it writes to, until the thread has
    /// ended.
    kept: (Box<Robust>, Arc<Region>),
}

impl NodeLiveness {
    /// Holds the word: from now on the region says that this process lives.
    ///
    /// # Errors
    /// When no thread can be started, or the kernel refuses.
    pub(crate) fn hold(region: Arc<Region>) -> io::Result<Self> {
        let (end, ends) = channel();
        let (begin, begun) = channel();
        let theirs = Arc::clone(&region);
        let thread = std::thread::Builder::new()
            .name("fabric-liveness".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || run(&theirs, &begin, &ends))?;
        // The thread answers before it waits.
        let robust = begun.recv().map_err(io::Error::other)??;
        Ok(Self { end: Some(end), thread: Some(thread), kept: (robust, region) })
    }

    /// Ends the thread and leaves the word as it is: another process takes the region over, or this
    /// one holds the word again. If both end before that, members do not see it.
    pub(crate) fn release(self) {
        self.kept.0.pending.store(0, SeqCst);
    }
}

impl Drop for NodeLiveness {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The thread.
fn run(region: &Region, begin: &Sender<io::Result<Box<Robust>>>, ends: &Receiver<()>) {
    let pending = AtomicUsize::new(region.node_word().addr().get());
    let mut robust = Box::new(Robust { next: 0, offset: 0, pending });
    robust.next = std::ptr::from_ref(&*robust).expose_provenance();
    let held = set_robust_list(&robust).map(|()| robust);
    let is_held = held.is_ok();
    if is_held {
        let number = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        region.set_node(u64::from(number));
    }
    let _ = begin.send(held);
    if is_held {
        // The other end is dropped when the thread has to end; that is an error here.
        let _ = ends.recv();
    }
}

/// Gives the kernel this list for the end of the thread, instead of the C library's, which is for
/// robust mutexes; this process has none.
fn set_robust_list(robust: &Robust) -> io::Result<()> {
    let (head, bytes) = (std::ptr::from_ref(robust), size_of::<Robust>());
    // SAFETY: the head has the form that the kernel wants, its list is empty, and the word that it
    // names, of four bytes and aligned, lies in a mapping. Both are the [`NodeLiveness`]'s, which
    // keeps them until the thread has ended; if its process ends instead they are there as well.
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
        let first = NodeLiveness::hold(Arc::clone(&region)).expect("a thread");
        assert!(!region.is_orphaned());
        // A successor takes it over, whose it is when the first one ends.
        let second = NodeLiveness::hold(Arc::clone(&region)).expect("a thread");
        drop(first);
        assert!(!region.is_orphaned());
        drop(second);
        assert!(region.is_orphaned());
    }

    #[test]
    fn a_member_that_leaves_it_to_another_says_nothing() {
        let region = region();
        NodeLiveness::hold(Arc::clone(&region)).expect("a thread").release();
        assert!(!region.is_orphaned());
        drop(NodeLiveness::hold(Arc::clone(&region)).expect("a thread"));
        assert!(region.is_orphaned());
    }

    #[test]
    fn writes_of_a_member_harm_its_domain_alone() {
        let region = region();
        let liveness = NodeLiveness::hold(Arc::clone(&region)).expect("a thread");
        region.set_node(u64::MAX);
        drop(liveness);
        assert!(region.is_orphaned(), "as it was written");
    }
}
