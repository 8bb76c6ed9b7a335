//! Guest memory in a file that shrinks.
//!
//! A file that is not sealed can be truncated while it is mapped, and the next access beyond its
//! new end raises SIGBUS, which would end this process and with it everybody's devices. So there
//! is a handler: where the address lies in a mapping that is watched here, the lost part is
//! replaced by empty private memory, the mapping is marked as lost, and the access goes on (it
//! reads zeroes). A queue that finds its memory lost fails ([`crate::RingError::MemoryLost`]).
//! Requests that were under way may have read zeroes: whoever truncates a running guest's memory
//! gets what a guest gets that writes zeroes.
//!
//! SIGBUS for any other reason goes to whoever handled it before.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How many mappings can be watched: as many as Linux lets a process have (`vm.max_map_count`,
/// 65530 unless somebody raises it). Untouched slots cost no memory.
const SLOTS: usize = 65536;

/// One watched range. Written by whoever owns the mapping, read by the handler.
struct Slot {
    taken: AtomicBool,
    /// First address; zero while the slot is not in use.
    start: AtomicUsize,
    len: AtomicUsize,
    /// Pages of the mapping, in bytes.
    page: AtomicUsize,
    lost: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; SLOTS];

/// Slots beyond this were never used.
static SLOTS_USED: AtomicUsize = AtomicUsize::new(0);

/// How often memory was lost.
static LOSSES: AtomicU64 = AtomicU64::new(0);

/// Who handled the signal before.
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
        let free = |slot: &Slot| !slot.taken.swap(true, Ordering::Relaxed);
        let slot = TABLE.iter().position(free)?;
        SLOTS_USED.fetch_max(slot + 1, Ordering::Relaxed);
        let entry = &TABLE[slot];
        entry.lost.store(false, Ordering::Relaxed);
        entry.len.store(len, Ordering::Relaxed);
        entry.page.store(page, Ordering::Relaxed);
        entry.start.store(start, Ordering::Release);
        Some(Self { slot })
    }

    /// Whether a part of it was lost.
    pub(crate) fn is_lost(&self) -> bool {
        TABLE[self.slot].lost.load(Ordering::Acquire)
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
    // SAFETY: asks for the present action, then sets ours: both pointers are to valid structures,
    // and nobody reads PREVIOUS before the second call.
    let results = unsafe {
        let previous = PREVIOUS.0.get().cast::<libc::sigaction>();
        let asked = libc::sigaction(libc::SIGBUS, ptr::null(), previous);
        (asked, libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()))
    };
    assert_eq!(results, (0, 0), "sigaction of a signal that exists");
}

/// The range that has the address: its slot, the beginning of the lost page, and how much is left
/// from there.
fn find(addr: usize) -> Option<(&'static Slot, usize, usize)> {
    TABLE[..SLOTS_USED.load(Ordering::Relaxed)].iter().find_map(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        let end = start + slot.len.load(Ordering::Relaxed);
        let page = addr & !(slot.page.load(Ordering::Relaxed).max(1) - 1);
        (start != 0 && (start..end).contains(&addr)).then(|| (slot, page, end - page))
    })
}

/// Only atomics and one system call, as a signal handler must.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel gives a valid siginfo to a handler that was installed with SA_SIGINFO.
    let (addr, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    // A signal that somebody sent has a code that is not positive, and no address.
    if code > 0
        && let Some((slot, page, len)) = find(addr)
        && replace(page, len)
    {
        slot.lost.store(true, Ordering::Release);
        LOSSES.fetch_add(1, Ordering::Relaxed);
        return;
    }
    hand_on(signal, info, context);
}

/// Puts empty private memory there; what was mapped there is gone already.
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

/// To whoever handled the signal before; by default the process ends.
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
