//! The only door to memory that is shared with the driver's rings and with the inflight region:
//! all loads, and all stores, each of which is counted; the stores of what a device answers by
//! itself, a request's status above all; and the marks in the log of dirty pages, for rings right
//! after each store.
//!
//! Data that the driver will read is not stored here: a copy or the kernel does it, in no order
//! that matters, since the driver may not look before the chain is used, and a successor does all
//! of it again.
//!
//! The other side may write at any moment, so a load happens once, into a local, and the local is
//! what is checked. Stores are in program order, as the recovery of the inflight region demands:
//! a process that is killed has made all of its stores up to some point and none after it.
//!
//! A test can name that point: [`Stores::stop_after`] lets the first n stores happen and none
//! after, which is what the memory looks like when a process is killed there.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU8, AtomicU16, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use crate::dirty::DirtyLog;
use crate::error::RingError;
use crate::mapping::Mapping;

#[cfg(not(target_endian = "little"))]
compile_error!("rings are little-endian and are read as they are");

/// A range of a mapping that is shared with the other side.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    start: NonNull<u8>,
    len: usize,
    /// The guest address under which stores are marked as dirty; none for what is not the guest's.
    logged_at: Option<u64>,
    /// Keeps the range mapped.
    mapping: Arc<Mapping>,
}

// SAFETY: the range stays mapped as long as the area lives, and is only accessed by atomics.
unsafe impl Send for Area {}

/// One accessor: checks the place, then makes a reference to an atomic there.
macro_rules! atomic {
    ($name:ident, $atomic:ty, $word:ty) => {
        fn $name(&self, at: usize) -> &$atomic {
            const BYTES: usize = size_of::<$word>();
            // Our own mistake if it fails: areas are made as long as their ring is.
            assert!(at <= self.len && self.len - at >= BYTES, "{at} of {}", self.len);
            let word = self.start.as_ptr().wrapping_add(at).cast::<$word>();
            assert!(word.is_aligned(), "an unaligned {} at {at}", stringify!($word));
            // SAFETY: the word lies in the area, which stays mapped while `self` lives, and is
            // aligned (both checked above). This process accesses it by atomics only; the other
            // side is outside of this program and can only change the value.
            unsafe { <$atomic>::from_ptr(word) }
        }
    };
}

impl Area {
    /// `len` bytes of the mapping from `offset` on, or nothing where it is shorter.
    pub(crate) fn new(mapping: &Arc<Mapping>, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        if end > mapping.len() {
            return None;
        }
        // SAFETY: `offset` lies in the mapping's range, checked above.
        let start = unsafe { mapping.start().add(offset) };
        Some(Self { start, len, logged_at: None, mapping: Arc::clone(mapping) })
    }

    /// The same range, which is the guest's: stores into it are marked as if it began at `addr`.
    pub(crate) fn logged_at(self, addr: u64) -> Self {
        Self { logged_at: Some(addr), ..self }
    }

    /// The byte of its file from which on its mapping was lost.
    pub(crate) fn lost_from(&self) -> Option<u64> {
        self.mapping.lost_from()
    }

    /// Whether it begins at a multiple of `align`.
    pub(crate) fn is_aligned_to(&self, align: usize) -> bool {
        self.start.addr().get().is_multiple_of(align)
    }

    atomic!(u8_at, AtomicU8, u8);
    atomic!(u16_at, AtomicU16, u16);
    atomic!(u32_at, AtomicU32, u32);
    atomic!(u64_at, AtomicU64, u64);

    pub(crate) fn load_u8(&self, at: usize) -> u8 {
        self.u8_at(at).load(Relaxed)
    }

    pub(crate) fn load_u16(&self, at: usize) -> u16 {
        self.u16_at(at).load(Relaxed)
    }

    /// Later loads see the stores that the other side made before it stored this value.
    pub(crate) fn load_u16_acquire(&self, at: usize) -> u16 {
        self.u16_at(at).load(Acquire)
    }

    pub(crate) fn load_u32(&self, at: usize) -> u32 {
        self.u32_at(at).load(Relaxed)
    }

    pub(crate) fn load_u64(&self, at: usize) -> u64 {
        self.u64_at(at).load(Relaxed)
    }

    /// Sets bits of a byte. A reader that finds them there sees all stores that were made before.
    pub(crate) fn set_bits(&self, at: usize, bits: u8) {
        self.u8_at(at).fetch_or(bits, AcqRel);
    }

    /// The same as a row of descriptors.
    pub(crate) fn pairs(&self) -> Pairs<'_> {
        Pairs { start: self.start, count: self.len / Pairs::BYTES, mapped: PhantomData }
    }
}

/// Descriptors that are shared with the other side: sixteen bytes each, read as two words. For a
/// short look at a table: it does not count as a user of the mapping.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pairs<'a> {
    start: NonNull<u8>,
    count: usize,
    /// The lender keeps it mapped.
    mapped: PhantomData<&'a Mapping>,
}

impl<'a> Pairs<'a> {
    const BYTES: usize = 16;

    /// `len` bytes of the mapping from `offset` on, or nothing where it is shorter.
    pub(crate) fn new(mapping: &'a Mapping, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > mapping.len() {
            return None;
        }
        // SAFETY: `offset` lies in the mapping's range, checked above.
        let start = unsafe { mapping.start().add(offset) };
        Some(Self { start, count: len / Self::BYTES, mapped: PhantomData })
    }

    /// The two words of one of them. An indirect table need not be aligned.
    #[inline]
    pub(crate) fn load(&self, index: u16) -> [u64; 2] {
        let index = usize::from(index);
        // A failure is our own mistake: the reader of a table knows its length.
        assert!(index < self.count, "{index} of {}", self.count);
        let at = self.start.as_ptr().wrapping_add(index * Self::BYTES);
        if !at.addr().is_multiple_of(align_of::<u64>()) {
            return Self::load_bytes(at);
        }
        let word = |at: *mut u64| {
            // SAFETY: the word lies in the table, which stays mapped as long as `'a`, and is
            // aligned (both checked above). This process accesses it by atomics only; the other
            // side is outside of this program and can only change the value.
            unsafe { AtomicU64::from_ptr(at) }.load(Relaxed)
        };
        let at = at.cast::<u64>();
        [word(at), word(at.wrapping_add(1))]
    }

    /// As `load`, from an address that is not aligned but in the table.
    #[cold]
    fn load_bytes(at: *mut u8) -> [u64; 2] {
        let byte = |i| {
            // SAFETY: as above; a byte is always aligned.
            unsafe { AtomicU8::from_ptr(at.wrapping_add(i)) }.load(Relaxed)
        };
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| byte(at + i)));
        [word(0), word(8)]
    }
}

/// Stores into areas, counted. One per queue.
#[derive(Debug)]
pub(crate) struct Stores {
    made: u64,
    /// The log in which pages are marked as dirty, if there is one.
    log: Option<DirtyLog>,
    /// Whether stores into rings are marked.
    logs_rings: bool,
    /// The first page that could not be marked.
    unmarked: Option<RingError>,
    #[cfg(any(test, feature = "stopping-points"))]
    limit: u64,
}

/// One kind of store. Release, so that no store is moved before an earlier one; that costs nothing
/// where the processor keeps stores in order.
macro_rules! store {
    ($name:ident, $accessor:ident, $word:ty) => {
        pub(crate) fn $name(&mut self, area: &Area, at: usize, value: $word) {
            if self.goes_ahead() {
                area.$accessor(at).store(value, Release);
            }
            if self.logs_rings {
                self.mark_area(area, at, size_of::<$word>());
            }
        }
    };
}

impl Stores {
    pub(crate) fn new() -> Self {
        Self {
            made: 0,
            log: None,
            logs_rings: false,
            unmarked: None,
            #[cfg(any(test, feature = "stopping-points"))]
            limit: u64::MAX,
        }
    }

    store!(u8, u8_at, u8);
    store!(u16, u16_at, u16);
    store!(u32, u32_at, u32);
    store!(u64, u64_at, u64);

    /// Stores a byte of a chain's own memory, which is no part of a ring: a status.
    ///
    /// # Safety
    /// `at` must lie in a segment that is still valid; see [`crate::Segment`].
    pub(crate) unsafe fn byte(&mut self, at: *mut u8, value: u8) {
        if self.goes_ahead() {
            // SAFETY: the caller's promise. Volatile, since the guest may look at any time; the
            // stores that publish the chain are release stores and come later.
            unsafe { at.write_volatile(value) };
        }
    }

    /// From now on pages are marked here, or nowhere; those of rings only if so.
    pub(crate) fn set_log(&mut self, log: Option<DirtyLog>, rings: bool) {
        self.logs_rings = rings && log.is_some();
        self.log = log;
    }

    pub(crate) fn log(&self) -> Option<&DirtyLog> {
        self.log.as_ref()
    }

    /// Marks the pages of `len` bytes, not none, at a guest address: a stopping point, too.
    pub(crate) fn mark(&mut self, addr: u64, len: u64) {
        if !self.goes_ahead() {
            return;
        }
        if let Some(log) = &self.log
            && !log.mark(addr, len)
        {
            self.unmarked.get_or_insert(RingError::LogTooShort { addr, len });
        }
    }

    /// Marks a part of an area, if that is the guest's.
    fn mark_area(&mut self, area: &Area, at: usize, len: usize) {
        let Some(start) = area.logged_at else { return };
        // Where a hostile front end says that its ring is may be anywhere.
        self.mark(start.saturating_add(at as u64), len as u64);
    }

    /// Marks all of an area: a predecessor may have died between a store and its mark.
    pub(crate) fn mark_all(&mut self, area: &Area) {
        if self.logs_rings {
            self.mark_area(area, 0, area.len);
        }
    }

    /// The first page that could not be marked.
    pub(crate) fn unmarked(&self) -> Option<RingError> {
        self.unmarked
    }

    /// How many stores there were; with a stopping point, how many there would have been.
    pub(crate) fn made(&self) -> u64 {
        self.made
    }

    /// From now on only the first `limit` stores since the queue was made happen.
    #[cfg(any(test, feature = "stopping-points"))]
    pub(crate) fn stop_after(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Whether the stopping point is behind us; then nothing at all may leave the device.
    pub(crate) fn stopped(&self) -> bool {
        #[cfg(any(test, feature = "stopping-points"))]
        return self.made > self.limit;
        #[cfg(not(any(test, feature = "stopping-points")))]
        false
    }

    /// Counts something that leaves the device without being a store (a signal): a stopping point
    /// like any other. Whether it may happen.
    pub(crate) fn effect(&mut self) -> bool {
        self.goes_ahead()
    }

    fn goes_ahead(&mut self) -> bool {
        self.made += 1;
        !self.stopped()
    }
}

#[cfg(test)]
impl Area {
    /// Sixteen bytes from anywhere, as two words.
    pub(crate) fn load_pair(&self, at: usize) -> [u64; 2] {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| self.load_u8(at + i)));
        [word(at), word(at + 8)]
    }

    /// All bytes, for comparing.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        (0..self.len).map(|at| self.load_u8(at)).collect()
    }
}
