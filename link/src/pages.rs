//! Huge pages for the bodies of messages, where the system has any: fewer entries of the
//! translation cache for what every byte of every request passes through.
//!
//! A region is one huge page and backs two chunks. It is taken from the pages that the operator has
//! reserved (`vm.nr_hugepages`); where there are none, it is ordinary memory with the wish that the
//! kernel make a huge page of it. So nothing is required, and nothing fails.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use transport::{CHUNK_BYTES, ChunkMemory, PoolMemory};

/// A huge page of x86-64.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

const _: () = assert!(HUGE_PAGE_BYTES == 2 * CHUNK_BYTES);

/// Gives a pool its memory in huge pages.
#[derive(Debug, Default)]
pub struct HugePages {
    /// The second half of the last region, until it is asked for.
    spare: Mutex<Option<Half>>,
}

impl PoolMemory for HugePages {
    fn chunk(&self) -> Option<Box<dyn ChunkMemory>> {
        let mut spare = self.spare.lock();
        let half = match spare.take() {
            Some(half) => half,
            None => {
                let [first, second] = HugePage::new().ok()?.halves();
                *spare = Some(second);
                first
            }
        };
        Some(Box::new(half))
    }
}

/// A mapping of one huge page.
#[derive(Debug)]
struct HugePage {
    start: NonNull<u8>,
}

// SAFETY: the mapping belongs to the region, not to a thread; bytes of it are reached through its
// halves only, each of which has one owner.
unsafe impl Send for HugePage {}
// SAFETY: as above; a shared region gives nothing but its address.
unsafe impl Sync for HugePage {}

impl HugePage {
    fn new() -> io::Result<Self> {
        let start = reserved().or_else(|_| wished())?;
        Ok(Self { start: NonNull::new(start).expect("a mapping is not at null") })
    }

    fn halves(self) -> [Half; 2] {
        let region = Arc::new(self);
        [Half { region: Arc::clone(&region), second: false }, Half { region, second: true }]
    }
}

impl Drop for HugePage {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's, and its halves are gone.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), HUGE_PAGE_BYTES) };
        debug_assert!(unmapped.is_ok(), "our own mapping");
    }
}

/// One of the pages that the operator has set aside.
fn reserved() -> io::Result<*mut u8> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
    // SAFETY: a mapping at an address of the kernel's choice touches nothing that exists.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), HUGE_PAGE_BYTES, prot, flags) }?;
    Ok(start.cast())
}

/// Ordinary memory at the address of a huge page.
fn wished() -> io::Result<*mut u8> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let twice = 2 * HUGE_PAGE_BYTES;
    // SAFETY: as above.
    let mapped = unsafe { mmap_anonymous(ptr::null_mut(), twice, prot, MapFlags::PRIVATE) }?;
    let mapped = mapped.cast::<u8>();
    let before = mapped.align_offset(HUGE_PAGE_BYTES);
    let start = mapped.wrapping_add(before);
    let after = twice - before - HUGE_PAGE_BYTES;
    // SAFETY: only the parts before and after the aligned page are unmapped. The mapping was just
    // made, and no other code has its address. A wish that is not granted changes nothing.
    unsafe {
        if before > 0 {
            munmap(mapped.cast(), before)?;
        }
        if after > 0 {
            munmap(start.wrapping_add(HUGE_PAGE_BYTES).cast(), after)?;
        }
        let _ = madvise(start.cast(), HUGE_PAGE_BYTES, Advice::LinuxHugepage);
    }
    Ok(start)
}

/// Half of a region: a chunk.
#[derive(Debug)]
struct Half {
    region: Arc<HugePage>,
    second: bool,
}

impl Half {
    fn start(&self) -> *mut u8 {
        let offset = if self.second { CHUNK_BYTES } else { 0 };
        self.region.start.as_ptr().wrapping_add(offset)
    }
}

impl ChunkMemory for Half {
    fn bytes(&self) -> &[u8] {
        // SAFETY: half of a mapping that lives as long as this; the other half is another's.
        unsafe { std::slice::from_raw_parts(self.start(), CHUNK_BYTES) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and each half of a region has only one value, which is borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start(), CHUNK_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use transport::Pool;

    use super::*;

    #[test]
    fn two_chunks_share_a_page_and_nothing_else() {
        let pages = HugePages::default();
        let mut chunks: Vec<_> = (0..4).map(|_| pages.chunk().expect("memory")).collect();
        for (value, chunk) in chunks.iter_mut().enumerate() {
            assert_eq!(chunk.bytes().len(), CHUNK_BYTES);
            assert!(chunk.bytes().iter().all(|byte| *byte == 0));
            chunk.bytes_mut().fill(value as u8 + 1);
        }
        for (value, chunk) in chunks.iter().enumerate() {
            assert!(chunk.bytes().iter().all(|byte| usize::from(*byte) == value + 1));
        }
        let address = |chunk: usize| chunks[chunk].bytes().as_ptr() as usize;
        assert_eq!((address(0) % HUGE_PAGE_BYTES, address(1)), (0, address(0) + CHUNK_BYTES));
        assert_eq!(address(2) % HUGE_PAGE_BYTES, 0);
        // The first of a pair goes; the second one's memory stays.
        drop(chunks.remove(0));
        assert!(chunks[0].bytes().iter().all(|byte| *byte == 2));
    }

    #[test]
    fn ordinary_memory_will_do() {
        let region =
            HugePage { start: NonNull::new(wished().expect("memory")).expect("a mapping") };
        let [mut first, second] = region.halves();
        assert_eq!(first.start() as usize % HUGE_PAGE_BYTES, 0);
        first.bytes_mut()[CHUNK_BYTES - 1] = 1;
        drop(first);
        assert_eq!(second.bytes()[0], 0);
    }

    #[test]
    fn a_pool_lives_on_them() {
        let mut pool = Pool::with_memory(8 << 20, Some(Arc::new(HugePages::default())));
        let ids: Vec<_> = (0..6).map(|_| pool.alloc(CHUNK_BYTES).expect("room")).collect();
        ids.iter().for_each(|id| pool.bytes_mut(*id).fill(7));
        assert!(pool.bytes(ids[5]).iter().all(|byte| *byte == 7));
    }
}
