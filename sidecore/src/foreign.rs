//! Eventfds that another process made or holds too: those of front ends, and of peers on this
//! machine.
//!
//! Whether write(2) waits is said by a flag of what all holders share, `O_NONBLOCK`. A hostile
//! holder clears the flag and fills the counter, at any moment, and the next write sleeps in the
//! kernel for as long as that holder likes. No call writes to an eventfd and says by itself that
//! it must not wait: `pwritev2` with `RWF_NOWAIT` is refused (`EOPNOTSUPP`, up to Linux 6.18 at
//! least), and an io_uring's write looks at the same flag.
//!
//! But when the kernel signals an eventfd itself it never waits: it adds one, and leaves a counter
//! that is full as it is. So the kernel is made to signal: by an asynchronous read of nothing from
//! an empty memory file, which ends before `io_submit` returns, and whose end is told to the
//! eventfd (`IOCB_FLAG_RESFD`). That is one system call, as the write was. Why not another way, and
//! what it costs: `docs/decisions/045-foreign-memory.md`.

mod allowance;

use std::cell::OnceCell;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

pub(crate) use allowance::round_took;
pub use allowance::{Allowance, SPENT_NS_MAX};

/// Ends of reads that a context keeps until they are collected. Each is collected late, by one
/// call for all, so more make that call rarer; `fs.aio-max-nr` (65536 unless raised) bounds the sum
/// of all contexts of the machine, and 65 contexts of a large node are a sixteenth of it.
const ENDS_MAX: usize = 64;

/// How many ends of reads one call collects. The kernel rounds the capacity of a context up by the
/// number of processors. The next call collects the ends that this call leaves.
const COLLECT_MAX: usize = 256;

/// How often one signal makes room. Once is enough for a context of one thread; in the shared
/// context other threads may take the room first, and each of them needs a whole collected batch
/// of signals to do that.
const ROOMS_MAX: usize = 16;

/// "Where the file stands", for files that have no place.
const NO_OFFSET: u64 = u64::MAX;

/// The values of libaio's IOCB_CMD_PREAD and IOCB_FLAG_RESFD.
const PREAD: u16 = 0;
const RESFD: u32 = 1;

/// Why this process cannot signal other processes' eventfds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForeignError {
    /// Other programs have all asynchronous requests of this machine.
    #[error(
        "the system has no asynchronous requests left, which signals to guests need; raise \
         fs.aio-max-nr (sysctl), or stop a program that has many"
    )]
    Exhausted,
    /// The kernel has no asynchronous requests, or they are forbidden.
    #[error(
        "the system gives no asynchronous requests (io_setup: {0}), which signals to guests need; \
         the kernel needs CONFIG_AIO, and a container's seccomp profile must allow io_setup"
    )]
    Setup(Errno),
    /// The system gives no memory file.
    #[error("the system gives no memory file ({0}), which signals to guests need")]
    File(Errno),
}

/// Where reads of nothing are submitted.
#[derive(Debug)]
struct ReadContext {
    id: libc::c_ulong,
    /// An empty file of this process alone, so that no other process can make a read of it wait.
    empty: OwnedFd,
}

/// For threads that have none of their own.
static SHARED: OnceLock<Result<ReadContext, ForeignError>> = OnceLock::new();

thread_local! {
    /// A sidecore's own: it shares no lock with another.
    static OWN: OnceCell<ReadContext> = const { OnceCell::new() };
}

impl ReadContext {
    fn new() -> Result<Self, ForeignError> {
        // No file that has a name: a node has given up most of those when it comes here.
        let empty = memfd_create("vrio-empty", MemfdFlags::CLOEXEC).map_err(ForeignError::File)?;
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel stores the context's name into `id`, which is of the kernel's type.
        let made = unsafe { libc::syscall(libc::SYS_io_setup, ENDS_MAX, &raw mut id) };
        match (made, last_errno()) {
            (0, _) => Ok(Self { id, empty }),
            (_, Errno::AGAIN) => Err(ForeignError::Exhausted),
            (_, errno) => Err(ForeignError::Setup(errno)),
        }
    }

    fn ring(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut done = self.submit(eventfd);
        // All ends are kept: once in a few hundred times.
        for _ in 0..ROOMS_MAX {
            if done != Err(Errno::AGAIN) {
                break;
            }
            self.collect();
            done = self.submit(eventfd);
        }
        done
    }

    fn submit(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        // SAFETY: all-zero is a valid request: of no bytes, so that no buffer is written.
        let mut request: libc::iocb = unsafe { std::mem::zeroed() };
        request.aio_lio_opcode = PREAD;
        // Descriptors are not negative.
        request.aio_fildes = self.empty.as_raw_fd().cast_unsigned();
        request.aio_flags = RESFD;
        request.aio_resfd = eventfd.as_raw_fd().cast_unsigned();
        let mut requests = [&raw mut request];
        // SAFETY: one pointer to a request that lives until the call returns; the kernel keeps no
        // pointer to it, and notes its address only to hand it back.
        let done = unsafe { libc::syscall(libc::SYS_io_submit, self.id, 1, requests.as_mut_ptr()) };
        if done == 1 { Ok(()) } else { Err(last_errno()) }
    }

    /// Collects the ends of reads, to make room for more. Their contents do not matter.
    fn collect(&self) {
        // An `io_event` is four words.
        let mut ends = [[0_u64; 4]; COLLECT_MAX];
        let mut at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel stores at most as many ends as there is room for.
        let _ = unsafe {
            let (ends, at_once) = (ends.as_mut_ptr(), &raw mut at_once);
            libc::syscall(libc::SYS_io_getevents, self.id, 0, COLLECT_MAX, ends, at_once)
        };
    }
}

impl Drop for ReadContext {
    fn drop(&mut self) {
        // SAFETY: the context is this value's own, and no request of it is under way.
        let _ = unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Makes what [`ring`] needs, once for the process. After that a thread can always ring.
///
/// # Errors
/// Why the system does not give it, and what to do.
pub fn ready() -> Result<(), ForeignError> {
    SHARED.get_or_init(ReadContext::new).as_ref().map(|_| ()).map_err(|error| *error)
}

/// Gives this thread a context of its own. Without one it shares the process's.
pub(crate) fn ready_on_this_thread() {
    OWN.with(|own| {
        if own.get().is_none()
            && let Ok(context) = ReadContext::new()
        {
            let _ = own.set(context);
        }
    });
}

/// Signals an eventfd of another process. It never waits, and no holder of the eventfd can make it
/// wait. A full counter is as good as a signal.
///
/// # Errors
/// `EINVAL`: it is no eventfd. Anything else: why [`ready`] failed, as the system said it.
pub fn ring(eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
    OWN.with(|own| match own.get() {
        Some(context) => context.ring(eventfd),
        None => match SHARED.get_or_init(ReadContext::new) {
            Ok(context) => context.ring(eventfd),
            Err(ForeignError::Setup(errno) | ForeignError::File(errno)) => Err(*errno),
            Err(ForeignError::Exhausted) => Err(Errno::NOMEM),
        },
    })
}

/// Empties the counter of an eventfd of another process's, so that it does not wake a sleeper
/// again. Never waits: the call says so itself. `false`: there was nothing to take.
pub fn silence(eventfd: BorrowedFd<'_>) -> bool {
    let mut count = [0; 8];
    let into = &mut [IoSliceMut::new(&mut count)];
    preadv2(eventfd, into, NO_OFFSET, ReadWriteFlags::NOWAIT).is_ok()
}

/// Whether this descriptor is an eventfd. A descriptor of another kind can make readers wait and
/// takes no signal. The answer comes from /proc; the file behind the descriptor is not touched.
pub fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    std::fs::read_link(link).is_ok_and(|name| name.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
    use rustix::fs::{OFlags, fcntl_setfl};

    fn is_ready(fd: &OwnedFd) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&at_once)).unwrap() > 0
    }

    fn count(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        rustix::io::read(fd, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    /// Each call here would wait for ever if it were a plain read or write.
    #[test]
    fn a_holder_that_clears_the_flag_and_fills_the_counter_is_not_waited_for() {
        ready().unwrap();
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        fcntl_setfl(&fd, OFlags::empty()).unwrap();
        assert!(!silence(fd.as_fd()), "nothing to take");
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        (0..3).for_each(|_| ring(fd.as_fd()).unwrap());
        assert!(is_ready(&fd) && silence(fd.as_fd()) && !is_ready(&fd));
        ring(fd.as_fd()).unwrap();
        assert_eq!(count(&fd), 1);
    }

    /// Also beyond what a context keeps, and on threads with and without a context.
    #[test]
    fn no_signal_is_lost() {
        const RINGS: u64 = 20_000;
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let rings = |own: bool| {
            if own {
                ready_on_this_thread();
            }
            (0..RINGS).for_each(|_| ring(fd.as_fd()).unwrap());
        };
        std::thread::scope(|scope| {
            for own in [true, true, false, false] {
                scope.spawn(move || rings(own));
            }
        });
        assert_eq!(count(&fd), 4 * RINGS);
    }

    #[test]
    fn only_an_eventfd_is_one() {
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC);
        for other in [pipe, epoll.unwrap()] {
            assert!(!is_eventfd(other.as_fd()));
            assert_eq!(ring(other.as_fd()), Err(Errno::INVAL));
        }
        assert!(is_eventfd(eventfd(0, EventfdFlags::CLOEXEC).unwrap().as_fd()));
    }
}
