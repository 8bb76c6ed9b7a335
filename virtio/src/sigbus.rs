//! Mapped memory that goes away.
//!
//! A mapped page may not be there when it is touched: its file was truncated, or has a hole and the
//! system no (huge) page for it, or its file system could not read it, or the page is damaged. Then
//! the access raises SIGBUS, which would end this process and with it all of its devices. No seal
//! of a file excludes that. So there is a handler: where the address lies in a mapping that is
//! watched here, the lost part is replaced by empty private memory, the mapping is marked as lost,
//! and the access goes on (it reads zeroes). A queue that finds its memory lost fails
//! ([`crate::RingError::MemoryLost`]). Requests that were under way may have read zeroes: a front
//! end that takes a running guest's memory away gets what a guest gets that writes zeroes.
//!
//! The lost part is all from the page of the fault to the mapping's end, so that a mapping becomes
//! two at most, however often it faults: a process that has as many mappings as it may
//! (`vm.max_map_count`) could replace nothing. Of a damaged page only that page is lost, for damage
//! is the machine's fault, rare, and the guest's other pages are sound. Nothing outside of the
//! mapping is ever replaced, even if its pages are said to be larger.
//!
//! SIGBUS for any other reason goes to the former handler.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How many mappings can be watched: as many as Linux lets a process have (`vm.max_map_count`,
/// 65530 unless it is raised). Untouched slots cost no memory.
const SLOTS: usize = 65536;

/// The smallest page.
const PAGE_BYTES: usize = 4096;

/// Where a `siginfo_t` of SIGBUS has the binary logarithm of the damaged length, behind the address
/// at 16 (`si_addr_lsb`, which the `libc` crate does not name).
const ADDR_LSB_AT: usize = 24;

/// One watched range. Written by the owner of the mapping, read by the handler.
struct WatchSlot {
    taken: AtomicBool,
    /// First address; zero while the slot is not in use.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Pages of the mapping, in bytes.
    page: AtomicUsize,
    lost: AtomicBool,
    /// How far from the start on it was lost first.
    lost_from: AtomicUsize,
}

static TABLE: [WatchSlot; SLOTS] = [const {
    WatchSlot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
        lost_from: AtomicUsize::new(0),
    }
}; SLOTS];

/// Slots beyond this were never used.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);

/// How often memory was lost.
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// The former handler of the signal.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written once, before the handler that reads it is installed.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::zeroed()));
static INSTALL: Once = Once::new();

/// A number that changes whenever memory was lost somewhere.
pub(crate) fn losses() -> u64 {
    LOSSES.load(Ordering::Relaxed)
}

/// A range that is watched as long as this lives.
#[derive(Debug)]
pub(crate) struct Watch {
    slot: usize,
}

impl Watch {
    /// Watches the mapping of `len` bytes at `start`, whose pages have `page` bytes. Nothing if
    /// there are more mappings than a process can have.
    pub(crate) fn new(start: usize, len: usize, page: usize) -> Option<Self> {
        INSTALL.call_once(install);
        let free = |slot: &WatchSlot| !slot.taken.swap(true, Ordering::Relaxed);
        let slot = TABLE.iter().position(free)?;
        SLOTS_USED.fetch_max(slot + 1, Ordering::Relaxed);
        let entry = &TABLE[slot];
        entry.lost.store(false, Ordering::Relaxed);
        entry.lost_from.store(usize::MAX, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.page.store(page, Ordering::Relaxed);
        entry.start.store(start, Ordering::Release);
        Some(Self { slot })
    }

    /// Whether a part of it was lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost_from().is_some()
    }

    /// How far from its start on it was lost.
    pub(crate) fn lost_from(&self) -> Option<usize> {
        let entry = &TABLE[self.slot];
        entry.lost.load(Ordering::Acquire).then(|| entry.lost_from.load(Ordering::Relaxed))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let entry = &TABLE[self.slot];
        entry.start.store(0, Ordering::Relaxed);
        entry.taken.store(false, Ordering::Release);
    }
}

fn install() {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigbus;
    // SAFETY: all-zero is a valid `sigaction` (no handler, no flags, an empty mask).
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: asks for the present action, then sets ours: both pointers lead to valid structures,
    // and PREVIOUS is not read before the second call.
    let results = unsafe {
        let previous = PREVIOUS.0.get().cast::<libc::sigaction>();
        let asked = libc::sigaction(libc::SIGBUS, ptr::null(), previous);
        (asked, libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()))
    };
    assert_eq!(results, (0, 0), "sigaction of a signal that exists");
}

/// The part of a watched range that is lost.
struct LostRange {
    slot: &'static WatchSlot,
    start: usize,
    len: usize,
}

/// The lost part of the range that has the address. A damaged place has a length of its own.
fn find(addr: usize, damaged: Option<usize>) -> Option<LostRange> {
    TABLE[..SLOTS_USED.load(Ordering::Relaxed)].iter().find_map(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        let end = start.saturating_add(slot.len.load(Ordering::Relaxed));
        if start == 0 || !(start..end).contains(&addr) {
            return None;
        }
        let page = slot.page.load(Ordering::Relaxed);
        let (from, to) = lost_part(start..end, page, addr, damaged);
        Some(LostRange { slot, start: from, len: to - from })
    })
}

/// The part of a mapping that is replaced when the access to an address of it fails. It is never
/// outside of the mapping and never empty: `page` and `damaged` are only believed as far as the
/// mapping goes.
fn lost_part(
    mapping: Range<usize>,
    page: usize,
    addr: usize,
    damaged: Option<usize>,
) -> (usize, usize) {
    let size = damaged.unwrap_or(0).max(page);
    // The least that can be mapped, where that is no size of pages.
    let size = if size.is_power_of_two() { size.max(PAGE_BYTES) } else { PAGE_BYTES };
    let from = addr & !(size - 1);
    let to = if damaged.is_some() { from.saturating_add(size) } else { mapping.end };
    (from.max(mapping.start), to.min(mapping.end))
}

/// How much is damaged where the machine says that memory is; none for any other fault.
///
/// # Safety
/// `info` is what the kernel gave to a handler of SIGBUS.
unsafe fn damaged_bytes(info: *const libc::siginfo_t, code: i32) -> Option<usize> {
    if !matches!(code, libc::BUS_MCEERR_AR | libc::BUS_MCEERR_AO) {
        return None;
    }
    // SAFETY: the caller's promise; the field is inside the structure, behind the address, and
    // filled for these codes.
    let bits = unsafe { info.byte_add(ADDR_LSB_AT).cast::<libc::c_short>().read_unaligned() };
    1_usize.checked_shl(u32::try_from(bits).ok()?)
}

/// Only atomics and one system call, as a signal handler must.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a valid siginfo to a handler that was installed with SA_SIGINFO.
    let (addr, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    // SAFETY: as above.
    let damaged = unsafe { damaged_bytes(info, code) };
    // A signal that another process sent has a code that is not positive, and no address.
    if code > 0
        && let Some(LostRange { slot, start: page, len }) = find(addr, damaged)
        && replace(page, len)
    {
        let from = page.saturating_sub(slot.start.load(Ordering::Relaxed));
        slot.lost_from.fetch_min(from, Ordering::Relaxed);
        slot.lost.store(true, Ordering::Release);
        LOSSES.fetch_add(1, Ordering::Relaxed);
        return;
    }
    hand_on(signal, info, context);
}

/// Puts empty private memory there; the former memory is gone already.
fn replace(page: usize, len: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the range belongs to a mapping of ours that is alive, since it was just accessed,
    // and whose users expect its bytes to change at any time. errno is the thread's own and is
    // put back, for the interrupted code may be about to read it.
    unsafe {
        let errno = *libc::__errno_location();
        let at = ptr::with_exposed_provenance_mut(page);
        let result = libc::mmap(at, len, protection, flags, -1, 0);
        *libc::__errno_location() = errno;
        result != libc::MAP_FAILED
    }
}

/// Calls the former handler of the signal; by default the process ends.
fn hand_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: PREVIOUS was filled before this handler was installed. A handler that is neither the
    // default nor "ignore" is a function of the signature that its flags say.
    unsafe {
        let previous = PREVIOUS.0.get().cast::<libc::sigaction>().read();
        match previous.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // The access is made again and ends the process, as it should.
                libc::signal(signal, libc::SIG_DFL);
            }
            handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                type Full = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
                std::mem::transmute::<libc::sighandler_t, Full>(handler)(signal, info, context);
            }
            handler => {
                type Plain = extern "C" fn(libc::c_int);
                std::mem::transmute::<libc::sighandler_t, Plain>(handler)(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

    use super::*;

    const PAGE: usize = 4096;

    /// Sizes of pages that a hostile file system may claim.
    const CLAIMS: [usize; 7] = [0, 1, PAGE, 3 * PAGE, 2 << 20, 1 << 30, usize::MAX];

    #[test]
    fn replaced_pages_lie_in_the_mapping() {
        let mapping = 7 * PAGE..12 * PAGE;
        for page in CLAIMS {
            for damaged in [None].into_iter().chain(CLAIMS.map(Some)) {
                for addr in [7 * PAGE, 9 * PAGE + 5, 12 * PAGE - 1] {
                    let (from, to) = lost_part(mapping.clone(), page, addr, damaged);
                    assert!(mapping.start <= from && from <= addr, "{page} {damaged:?} {addr}");
                    assert!(addr < to && to <= mapping.end, "{page} {damaged:?} {addr}");
                }
            }
        }
        assert_eq!(lost_part(mapping.clone(), PAGE, 9 * PAGE + 5, None), (9 * PAGE, 12 * PAGE));
        let damaged = lost_part(mapping, PAGE, 9 * PAGE + 5, Some(PAGE));
        assert_eq!(damaged, (9 * PAGE, 10 * PAGE));
    }

    /// Three mappings of a page lie side by side; the one in the middle is lost, and says that its
    /// pages are as large as a file system may claim.
    #[test]
    fn a_lost_mapping_leaves_its_neighbours_alone() {
        let file = rustix::fs::memfd_create("lost", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        for page in CLAIMS {
            rustix::fs::ftruncate(&file, PAGE as u64).unwrap();
            let fixed = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: a fresh range of three pages, whose second becomes the file's: nothing else
            // is touched.
            let base = unsafe {
                let none = ptr::null_mut();
                let base = mmap_anonymous(none, 3 * PAGE, protection, MapFlags::PRIVATE).unwrap();
                let middle = base.byte_add(PAGE);
                mmap(middle, PAGE, protection, fixed, file.as_fd(), 0).unwrap();
                base.cast::<u8>()
            };
            let watch = Watch::new(base.expose_provenance() + PAGE, PAGE, page).unwrap();
            rustix::fs::ftruncate(&file, 0).unwrap();
            // SAFETY: all three pages are mapped and this thread's; the second is lost, which is
            // what the handler is for.
            unsafe {
                base.write_volatile(7);
                base.add(2 * PAGE).write_volatile(9);
                assert_eq!(base.add(PAGE + 5).read_volatile(), 0);
                assert!(watch.is_lost());
                assert_eq!((base.read_volatile(), base.add(2 * PAGE).read_volatile()), (7, 9));
                drop(watch);
                munmap(base.cast(), 3 * PAGE).unwrap();
            }
        }
    }
}
