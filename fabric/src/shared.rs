//! All access to the region's memory: every load, every store and every copy.
//!
//! Other processes write there at any moment. So there are no references to plain data, words are
//! atomics, a word is loaded once into a local, and the local is what is checked.
//!
//! A test can end a process between two stores: `stop::after` lets so many of this thread's
//! stores happen and unwinds at the next. The memory then looks as if the process was killed there.
//! (A copy counts as one store: no process may look at its bytes before the store after it.)

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

#[cfg(not(target_endian = "little"))]
compile_error!("a region is little-endian and is read as it is");

/// The bytes of a word.
pub(crate) const WORD: usize = 8;

/// A memory file, mapped shared and writable as a whole.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
    /// Whole ones.
    words: usize,
    /// The only process that has it, if its children do not.
    owner: Option<u32>,
}

// SAFETY: a mapping is an address range that is valid on every thread until it is dropped; it is
// accessed by atomics and by copies whose callers argue for them.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing here needs `&mut`.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn at(start: NonNull<u8>, bytes: usize) -> Self {
        Self { start, bytes, words: bytes / WORD, owner: None }
    }

    /// Maps the first `bytes` of a file that cannot be made shorter (the caller checks its seals).
    pub(crate) fn of_file(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Errno> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing of ours.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, fd.as_fd(), 0) }?;
        Ok(Self::at(NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, bytes))
    }

    /// Maps a range of addresses to two files: `fd` up to byte number `from`, then `data`, as whole
    /// large pages, which a device may insist on. Both stay as long as they are.
    pub(crate) fn of_two(
        fd: BorrowedFd<'_>,
        (data, from): (BorrowedFd<'_>, usize),
        bytes: usize,
    ) -> Result<Self, Errno> {
        const LARGE: usize = 2 << 20;
        assert!(from.is_multiple_of(LARGE) && from < bytes, "{from} of {bytes}");
        let bytes = bytes.next_multiple_of(LARGE);
        let (nothing, private) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
        let null = std::ptr::null_mut();
        // SAFETY: new addresses at a place of the kernel's choice touch nothing of ours.
        let all = unsafe { mmap_anonymous(null, bytes + LARGE, nothing, private) }?.cast::<u8>();
        let skipped = all.addr().next_multiple_of(LARGE) - all.addr();
        let start = all.wrapping_add(skipped);
        // SAFETY: the rests of our own new addresses before and after the aligned part, which
        // nothing refers to.
        unsafe {
            if skipped > 0 {
                munmap(all.cast(), skipped)?;
            }
            if skipped < LARGE {
                munmap(start.wrapping_add(bytes).cast(), LARGE - skipped)?;
            }
        }
        let start_of = NonNull::new(start).ok_or(Errno::NOMEM)?;
        let mapping = Self::at(start_of, bytes);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: both lie in the addresses that were made above for nothing else.
        unsafe {
            mmap(start.cast(), from, protection, flags, fd, 0)?;
            let rest = start.wrapping_add(from);
            mmap(rest.cast(), bytes - from, protection, flags, data, 0)?;
        }
        Ok(mapping)
    }

    /// The address of a range, which lies in the mapping.
    #[inline]
    fn place(&self, at: usize, bytes: usize) -> *mut u8 {
        // Our own mistake if it fails: places are computed from the layout and checked indices.
        if at > self.bytes || self.bytes - at < bytes {
            outside(at, bytes, self.bytes);
        }
        self.start.as_ptr().wrapping_add(at)
    }

    /// The address of a word, for the kernel: the caller keeps the mapping while the kernel has it.
    pub(crate) fn address_of(&self, at: usize) -> NonNull<u8> {
        NonNull::from(self.word(at)).cast()
    }

    /// Keeps it from children of this process: they would store under its name.
    pub(crate) fn keep_from_children(&mut self) -> Result<(), Errno> {
        let start = self.start.as_ptr().cast();
        // SAFETY: it is our own mapping, of this length, and stays as it is for this process.
        unsafe { madvise(start, self.bytes, Advice::LinuxDontFork)? };
        self.owner = Some(std::process::id());
        Ok(())
    }

    /// Whether this process has it: not a child that its parent has kept it from.
    pub(crate) fn is_here(&self) -> bool {
        self.owner.is_none_or(|owner| owner == std::process::id())
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.span(at, 1).0[0]
    }

    /// So many words from a place on, which is checked for all of them.
    #[inline]
    pub(crate) fn span(&self, at: usize, words: usize) -> WordSpan<'_> {
        // The number of the first word; one that is not aligned has bits at its upper end, and is
        // beyond all there are.
        let first = at.rotate_right(WORD.trailing_zeros());
        // Our own mistake if it fails: places are computed from the layout and checked indices.
        if first >= self.words || self.words - first < words {
            outside(at, words * WORD, self.bytes);
        }
        let start = self.start.as_ptr().wrapping_add(at).cast::<AtomicU64>();
        // SAFETY: the words lie in the mapping, which stays while `self` lives (checked above), and
        // are aligned: the mapping begins at a page, and `at` is a multiple of a word (checked with
        // it). This process accesses them by atomics, and by copies only where the ring's rules
        // give the place to one side; other processes can only change the values.
        WordSpan(unsafe { std::slice::from_raw_parts(start, words) })
    }

    #[inline]
    pub(crate) fn load(&self, at: usize, order: Ordering) -> u64 {
        self.word(at).load(order)
    }

    #[inline]
    pub(crate) fn store(&self, at: usize, value: u64, order: Ordering) {
        step();
        self.word(at).store(value, order);
    }

    /// `Err` with what is there instead of `current`.
    #[inline]
    pub(crate) fn exchange(&self, at: usize, current: u64, new: u64) -> Result<(), u64> {
        step();
        exchange(self.word(at), current, new)
    }

    /// Copies `bytes` into the region.
    ///
    /// # Safety
    /// They are readable at `from`.
    #[inline(always)]
    pub(crate) unsafe fn copy_in(&self, at: usize, from: *const u8, bytes: usize) {
        step();
        let place = self.place(at, bytes);
        // SAFETY: `place` has room (checked), `from` is readable (the caller's word). The two do
        // not overlap: callers' memory is not part of this mapping, which is nobody's but ours.
        // That another process reads or writes there meanwhile yields bytes that it may see or may
        // have written; nothing is concluded from them here.
        unsafe { copy(from, place, bytes) };
    }

    /// Copies `bytes` out of the region.
    ///
    /// # Safety
    /// They are writable at `to`.
    #[inline(always)]
    pub(crate) unsafe fn copy_out(&self, at: usize, to: *mut u8, bytes: usize) {
        let place = self.place(at, bytes);
        // SAFETY: as in `copy_in`, the other way. Bytes that are overwritten meanwhile come as some
        // mixture, each of which their writer could have written anyway.
        unsafe { copy(place, to, bytes) };
    }
}

/// Apart from where it is found, so that nothing is made ready for it there.
#[cold]
fn outside(at: usize, bytes: usize, of: usize) -> ! {
    panic!("{bytes} bytes at {at} of {of}");
}

/// Words of a mapping, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordSpan<'a>(&'a [AtomicU64]);

impl<'a> WordSpan<'a> {
    #[inline]
    pub(crate) fn load(&self, index: usize, order: Ordering) -> u64 {
        self.0[index].load(order)
    }

    #[inline]
    pub(crate) fn store(&self, index: usize, value: u64, order: Ordering) {
        step();
        self.0[index].store(value, order);
    }

    /// As [`Mapping::exchange`].
    #[inline]
    pub(crate) fn exchange(&self, index: usize, current: u64, new: u64) -> Result<(), u64> {
        step();
        exchange(&self.0[index], current, new)
    }

    /// Some of them, as many as its reader knows of.
    #[inline]
    pub(crate) fn row<const WORDS: usize>(&self, first: usize) -> WordRow<'a, WORDS> {
        let words = self.0.get(first..).and_then(|words| words.first_chunk());
        WordRow(words.expect("a row lies within its words"))
    }
}

/// As many words as its reader knows of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordRow<'a, const WORDS: usize>(&'a [AtomicU64; WORDS]);

impl<const WORDS: usize> WordRow<'_, WORDS> {
    #[inline]
    pub(crate) fn load(&self, index: usize, order: Ordering) -> u64 {
        self.0[index].load(order)
    }

    #[inline]
    pub(crate) fn store(&self, index: usize, value: u64, order: Ordering) {
        step();
        self.0[index].store(value, order);
    }
}

/// `Err` with what is there instead of `current`.
#[inline]
fn exchange(word: &AtomicU64, current: u64, new: u64) -> Result<(), u64> {
    let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
    word.compare_exchange(current, new, success, failure).map(|_| ())
}

/// Of one call. For more than 2,112 bytes glibc takes `rep movsb` where the processor says that it
/// is fast, and AMD's Zen 3 takes five times as long by it.
const PIECE: usize = 2048;

/// Copies a few bytes without a call, as most messages are that short, and many in pieces.
///
/// # Safety
/// As of [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    /// Copies the first so many bytes and the last, which meet or overlap in between.
    ///
    /// # Safety
    /// As of [`copy`], and `bytes` is at least `END` and at most twice that.
    #[inline]
    unsafe fn ends<const END: usize>(from: *const u8, to: *mut u8, bytes: usize) {
        let last = bytes - END;
        // SAFETY: both ends lie in the `bytes` that may be read and written (the caller's); where
        // they overlap the same bytes are written twice.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, END);
            std::ptr::copy_nonoverlapping(from.add(last), to.add(last), END);
        }
    }
    // SAFETY: the caller's; lengths are as each arm's pattern has them.
    unsafe {
        match bytes {
            8..=16 => ends::<8>(from, to, bytes),
            4..8 => ends::<4>(from, to, bytes),
            0..=PIECE => std::ptr::copy_nonoverlapping(from, to, bytes),
            _ => in_pieces(from, to, bytes),
        }
    }
}

/// # Safety
/// As of [`copy`].
#[inline(never)]
unsafe fn in_pieces(from: *const u8, to: *mut u8, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        let piece = PIECE.min(bytes - done);
        // SAFETY: `done` and `piece` are no more than `bytes`, which the caller speaks for.
        unsafe { std::ptr::copy_nonoverlapping(from.add(done), to.add(done), piece) };
        done += piece;
    }
}

/// A device's registers of 4 bytes, mapped.
#[derive(Debug)]
pub(crate) struct Registers {
    mapping: Mapping,
}

impl Registers {
    /// Maps the first `bytes` of a device's file.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, Errno> {
        Mapping::of_file(fd, bytes).map(|mapping| Self { mapping })
    }

    fn register(&self, at: usize) -> *mut u32 {
        let register = self.mapping.place(at, size_of::<u32>()).cast::<u32>();
        assert!(register.is_aligned(), "an unaligned register at {at}");
        register
    }

    pub(crate) fn load(&self, at: usize) -> u32 {
        // SAFETY: in the mapping and aligned (checked); a device's registers are nobody's memory.
        unsafe { self.register(at).read_volatile() }
    }

    pub(crate) fn store(&self, at: usize, value: u32) {
        // SAFETY: as in `load`; any effect of the store is the device's.
        unsafe { self.register(at).write_volatile(value) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_here() {
            // Something else may be there by now.
            return;
        }
        // SAFETY: our own mapping, made in `of_file`; no address in it outlives `self` (`word`
        // borrows).
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "our own mapping");
    }
}

#[inline]
fn step() {
    #[cfg(test)]
    stop::step();
}

/// Ends a "process" of a test before one of its stores.
#[cfg(test)]
pub(crate) mod stop {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    struct Stopped;

    thread_local! {
        static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    pub(super) fn step() {
        LEFT.with(|left| match left.get() {
            u64::MAX => {}
            0 => {
                left.set(u64::MAX);
                resume_unwind(Box::new(Stopped));
            }
            more => left.set(more - 1),
        });
    }

    /// Runs `work` of another process of the test, which is not stopped.
    pub(crate) fn apart<T>(work: impl FnOnce() -> T) -> T {
        let left = LEFT.replace(u64::MAX);
        let value = work();
        LEFT.set(left);
        value
    }

    /// Runs `work` until it wants to store for the `stores` + 1st time. `None`: it was stopped.
    pub(crate) fn after<T>(stores: u64, work: impl FnOnce() -> T) -> Option<T> {
        LEFT.set(stores);
        let result = catch_unwind(AssertUnwindSafe(work));
        LEFT.set(u64::MAX);
        match result {
            Ok(value) => Some(value),
            Err(reason) if reason.is::<Stopped>() => None,
            Err(reason) => resume_unwind(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_every_short_length_are_whole_and_no_longer() {
        let from: [u8; 64] = std::array::from_fn(|at| at as u8 + 1);
        for bytes in 0..=64 {
            let mut to = [0; 64];
            // SAFETY: both have this length.
            unsafe { copy(from.as_ptr(), to.as_mut_ptr(), bytes) };
            assert_eq!((&to[..bytes], &to[bytes..]), (&from[..bytes], &[0; 64][bytes..]));
        }
    }

    #[test]
    fn copies_in_pieces_are_whole_and_no_longer() {
        let from: Vec<u8> = (0..3 * PIECE + 9).map(|at| (at % 251) as u8 + 1).collect();
        for whole in [PIECE, 2 * PIECE, 3 * PIECE] {
            for bytes in whole - 2..=whole + 8 {
                let mut to = vec![0; from.len()];
                // SAFETY: both have more than that.
                unsafe { copy(from.as_ptr(), to.as_mut_ptr(), bytes) };
                assert_eq!(to[..bytes], from[..bytes]);
                assert!(to[bytes..].iter().all(|byte| *byte == 0), "{bytes}");
            }
        }
    }

    #[test]
    fn words_that_are_not_all_in_the_mapping_are_refused() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let fd = rustix::fs::memfd_create("words", flags).expect("memory");
        rustix::fs::ftruncate(&fd, 4096).expect("sized");
        let mapping = Mapping::of_file(fd.as_fd(), 4096).expect("addresses");
        let refused = |at| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                mapping.span(at, 4).load(0, Ordering::Relaxed)
            }))
        };
        assert_eq!(refused(4096 - 32).ok(), Some(0));
        for at in [4096 - 24, 4096, 1, 4, 8 + 7, usize::MAX - 7, usize::MAX] {
            assert!(refused(at).is_err(), "{at}");
        }
    }
}
