//! The memory in which ciphertext waits for the storage. Each channel has its own, in chunks.
//! Chunks that were never used cost no memory, and chunks that are idle for a while go back to the
//! system.

use std::io;
use std::ptr::{self, NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use virtio::Segment;

use crate::volume::{IO_BYTES_MAX, Io, Op};

/// The smallest piece that is given out: a page, so that the storage takes it under direct I/O.
pub(super) const CHUNK_BYTES: usize = 4096;

/// Ciphertext of one channel on its way to the storage: four of the longest writes, or a thousand
/// of 4 KiB. More would not make a storage faster, and each of a node's channels may have as much.
pub(super) const POOL_BYTES_MAX: u32 = 4 << 20;

/// Memory that was idle for so long goes back. A guest that writes more often than this keeps it,
/// so that it is not fetched anew each time.
pub(super) const IDLE_NS: u64 = 1_000_000_000;

/// Chunks of the longest request.
const IO_CHUNKS_MAX: usize = IO_BYTES_MAX as usize / CHUNK_BYTES;

const _: () = assert!(IO_BYTES_MAX <= POOL_BYTES_MAX);

/// Bits of a word of the map.
const WORD_BITS: usize = u64::BITS as usize;

/// The memory.
#[derive(Debug)]
pub(super) struct CipherPool {
    base: NonNull<u8>,
    chunks: usize,
    /// A bit for each chunk that is given out, and for those of the last word that are not there.
    used: Vec<u64>,
    given: usize,
    /// Chunks from the beginning on that were used. The system has given no memory to others,
    /// except where it gives huge pages.
    resident: usize,
    /// The resident chunks when [`Self::tend`] last answered.
    told: usize,
    was_used: bool,
    /// When it was last seen in use.
    used_ns: u64,
}

impl CipherPool {
    /// For a channel of so many requests at once, of at most so much memory.
    ///
    /// # Errors
    /// When the system has no address space.
    pub(super) fn new(depth: u16, bytes_max: u32) -> io::Result<Self> {
        let chunks_max = (bytes_max as usize / CHUNK_BYTES).max(1);
        let chunks = (usize::from(depth.max(1)) * IO_CHUNKS_MAX).min(chunks_max);
        let used = vec![0; chunks.div_ceil(WORD_BITS)];
        let bytes = chunks * CHUNK_BYTES;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), bytes, protection, flags)? };
        let base = NonNull::new(base.cast()).expect("a mapping is never at zero");
        let (given, resident, told) = (0, 0, 0);
        let (was_used, used_ns) = (false, 0);
        let mut pool = Self { base, chunks, used, given, resident, told, was_used, used_ns };
        pool.reset();
        Ok(pool)
    }

    /// Makes every chunk free, also those that are given out.
    pub(super) fn reset(&mut self) {
        self.used.fill(0);
        let beyond = self.used.len() * WORD_BITS - self.chunks;
        if let Some(last) = self.used.last_mut().filter(|_| beyond > 0) {
            *last = u64::MAX << (WORD_BITS - beyond);
        }
        self.given = 0;
    }

    /// Whether a write of this length fits in, once all chunks are free.
    pub(super) fn holds(&self, op: Op, io: &Io) -> bool {
        op != Op::Write || io.len_bytes as usize <= self.chunks * CHUNK_BYTES
    }

    /// Memory that was used and not given back yet.
    pub(super) fn memory_bytes(&self) -> u64 {
        (self.resident * CHUNK_BYTES) as u64
    }

    /// When idle memory must be given back, if nothing happens until then.
    pub(super) fn due_ns(&self) -> Option<u64> {
        (self.resident > 0 && self.given == 0).then_some(self.used_ns + IDLE_NS)
    }

    /// Gives memory back that was idle for a while. `true` when there is more or less of it than
    /// when this was last asked.
    pub(super) fn tend(&mut self, now_ns: u64) -> bool {
        if self.resident == 0 {
            return false;
        }
        if std::mem::take(&mut self.was_used) || self.given > 0 {
            self.used_ns = now_ns;
        } else if now_ns.saturating_sub(self.used_ns) >= IDLE_NS {
            let bytes = self.resident * CHUNK_BYTES;
            // SAFETY: the beginning of the pool's own mapping, of which no chunk is given out. It
            // reads as zeroes when it is used again.
            let done = unsafe { madvise(self.base.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
            debug_assert!(done.is_ok());
            self.resident = 0;
        }
        std::mem::replace(&mut self.told, self.resident) != self.resident
    }

    /// Puts memory of this length, in one piece, into `into`, which is empty. It is the first that
    /// is free, because memory that is used often stays in the caches. `false` when there is none.
    pub(super) fn take(&mut self, len_bytes: usize, into: &mut Vec<Segment>) -> bool {
        debug_assert!(into.is_empty() && len_bytes <= IO_BYTES_MAX as usize);
        if len_bytes == 0 {
            return true;
        }
        let chunks = len_bytes.div_ceil(CHUNK_BYTES);
        let Some(first) = self.find(chunks) else { return false };
        self.mark(first, chunks, true);
        self.given += chunks;
        self.resident = self.resident.max(first + chunks);
        self.was_used = true;
        let addr = self.base.as_ptr().wrapping_add(first * CHUNK_BYTES);
        into.push(Segment { addr, len: len_bytes as u32 });
        true
    }

    /// Takes back what [`Self::take`] gave, and empties it.
    pub(super) fn give(&mut self, taken: &mut Vec<Segment>) {
        for segment in taken.drain(..) {
            let first = (segment.addr.addr() - self.base.as_ptr().addr()) / CHUNK_BYTES;
            let chunks = (segment.len as usize).div_ceil(CHUNK_BYTES);
            self.mark(first, chunks, false);
            self.given -= chunks;
        }
    }

    /// The first of so many free chunks in a row.
    fn find(&self, chunks: usize) -> Option<usize> {
        let (mut first, mut at) = (0, 0);
        while at < self.used.len() * WORD_BITS {
            let (word, bit) = (self.used[at / WORD_BITS], at % WORD_BITS);
            let free = (word >> bit).trailing_zeros() as usize;
            if free > 0 {
                // Beyond the word's end there are no ones to stop at.
                at += free.min(WORD_BITS - bit);
                if at - first >= chunks {
                    return Some(first);
                }
            } else {
                at += (word >> bit).trailing_ones() as usize;
                first = at;
            }
        }
        None
    }

    fn mark(&mut self, first: usize, chunks: usize, used: bool) {
        for chunk in first..first + chunks {
            let (word, bit) = (&mut self.used[chunk / WORD_BITS], 1 << (chunk % WORD_BITS));
            debug_assert_eq!(*word & bit == 0, used, "given out once, given back once");
            *word ^= bit;
        }
    }
}

impl Drop for CipherPool {
    fn drop(&mut self) {
        let bytes = self.chunks * CHUNK_BYTES;
        // SAFETY: our own mapping; the channel lets go of the storage before it drops this.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use random::Random;

    #[test]
    fn it_is_bounded_and_nothing_is_given_twice() {
        let mut pool = CipherPool::new(u16::MAX, POOL_BYTES_MAX).expect("some megabytes");
        let mut random = Random::new(3);
        let mut taken: Vec<Vec<Segment>> = Vec::new();
        let mut refused = 0;
        for _ in 0..5000 {
            let len = [512, 4096, 4608, 64 << 10, 1 << 20][random.below(5) as usize];
            let mut into = Vec::new();
            if pool.take(len, &mut into) {
                let [segment] = into[..] else { panic!("one piece") };
                assert_eq!(segment.len as usize, len);
                assert!(segment.addr.addr().is_multiple_of(CHUNK_BYTES));
                taken.push(into);
            } else {
                refused += 1;
                assert!(into.is_empty());
                let at = random.below(taken.len() as u64) as usize;
                pool.give(&mut taken.swap_remove(at));
            }
            let mut places: Vec<_> =
                taken.iter().map(|it| (it[0].addr.addr(), it[0].len as usize)).collect();
            places.sort_unstable();
            assert!(places.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
            assert!(places.iter().map(|(_, len)| len).sum::<usize>() <= POOL_BYTES_MAX as usize);
        }
        assert!(refused > 100, "it was full: {refused}");
        taken.iter_mut().for_each(|taken| pool.give(taken));
        for _ in 0..POOL_BYTES_MAX / IO_BYTES_MAX {
            assert!(pool.take(IO_BYTES_MAX as usize, &mut Vec::new()), "all of it is there again");
        }
        assert!(!pool.take(512, &mut Vec::new()));
        pool.reset();
        assert!(pool.take(512, &mut Vec::new()));
    }

    #[test]
    fn the_latest_free_buffer_is_used_next() {
        let mut pool = CipherPool::new(1, POOL_BYTES_MAX).expect("a megabyte");
        let mut places = (0..3).map(|_| {
            let mut into = Vec::new();
            assert!(pool.take(4096, &mut into));
            let place = into[0].addr;
            pool.give(&mut into);
            place
        });
        let first = places.next();
        assert!(places.all(|place| Some(place) == first));
        let mut nothing = Vec::new();
        assert!(pool.take(0, &mut nothing) && nothing.is_empty());
    }

    #[test]
    fn a_small_one_has_as_much_as_it_says() {
        for chunks in [1, 4, 63, 64, 65] {
            let mut pool = CipherPool::new(9, chunks * CHUNK_BYTES as u32).expect("some pages");
            for _ in 0..2 {
                for _ in 0..chunks {
                    assert!(pool.take(CHUNK_BYTES, &mut Vec::new()), "{chunks}");
                }
                assert!(!pool.take(1, &mut Vec::new()), "{chunks}");
                pool.reset();
            }
            let whole = Io { op: Op::Write, len_bytes: chunks * 4096, ..Io::default() };
            assert!(pool.holds(Op::Write, &whole));
            let longer = Io { len_bytes: whole.len_bytes + 512, ..whole };
            assert!(!pool.holds(Op::Write, &longer) && pool.holds(Op::WriteZeroes, &longer));
            assert!(pool.take(chunks as usize * CHUNK_BYTES, &mut Vec::new()), "in one piece");
        }
    }

    /// Of a mapping's pages those that have memory, by the kernel.
    fn pages_in_memory(pool: &CipherPool) -> usize {
        let mut pages = vec![0_u8; pool.chunks];
        let bytes = pool.chunks * CHUNK_BYTES;
        // SAFETY: a mapping of this length, and room for a byte of each of its pages.
        let asked =
            unsafe { libc::mincore(pool.base.as_ptr().cast(), bytes, pages.as_mut_ptr().cast()) };
        assert_eq!(asked, 0);
        pages.iter().filter(|page| **page & 1 != 0).count()
    }

    #[test]
    fn idle_memory_goes_back_and_used_memory_stays() {
        let mut pool = CipherPool::new(4, POOL_BYTES_MAX).expect("some megabytes");
        assert_eq!((pool.tend(1), pool.due_ns()), (false, None));
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert!(pool.take(1 << 20, &mut first) && pool.take(4096, &mut second));
        for segment in first.iter().chain(&second) {
            // SAFETY: the pool's, and ours for now.
            unsafe { ptr::write_bytes(segment.addr, 7, segment.len as usize) };
        }
        assert!(pool.tend(5) && !pool.tend(6));
        assert_eq!(pool.memory_bytes(), (1 << 20) + 4096);
        // More where the system gives huge pages to all processes.
        assert!(pages_in_memory(&pool) >= 257);
        pool.give(&mut first);
        assert!(!pool.tend(10 * IDLE_NS), "some of it is out");
        assert!(pool.due_ns().is_none() && pages_in_memory(&pool) >= 257);
        pool.give(&mut second);
        assert_eq!(pool.due_ns(), Some(11 * IDLE_NS));
        assert!(!pool.tend(11 * IDLE_NS - 1));
        assert!(pages_in_memory(&pool) >= 257);
        assert!(pool.tend(11 * IDLE_NS));
        assert_eq!((pool.memory_bytes(), pool.due_ns(), pages_in_memory(&pool)), (0, None, 0));
        // Used in between, if only for a moment, it is not idle.
        assert!(pool.take(4096, &mut first) && pool.tend(12 * IDLE_NS));
        pool.give(&mut first);
        assert!(pool.take(4096, &mut first));
        pool.give(&mut first);
        assert!(!pool.tend(13 * IDLE_NS));
        assert_eq!(pool.due_ns(), Some(14 * IDLE_NS));
    }
}
