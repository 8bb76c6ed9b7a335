//! One io_uring per sidecore, shared by every file channel on it.
//!
//! ```text
//!   channels (Stage::Serve)            Uring (Stage::Submit)            kernel
//!   push ──▶ submission ring ─────────▶ one io_uring_enter ───────────▶
//!   take ◀── inbox of each client ◀──── reap ◀──────────────────────────
//! ```
//!
//! Channels push entries while they serve; the ring enters the kernel at most once per round with
//! all of them, and sorts what came back into one inbox per client. The ring never holds more
//! requests than its completion ring has places, so completions cannot overflow, and an inbox has
//! room for all that its client may have outstanding, so nothing is allocated on the way.
//!
//! A sleeping sidecore is woken through an eventfd. The ring's own descriptor would not do: with
//! deferred completions the kernel wakes no process that polls it (seen on Linux 6.18).

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use io_uring::register::Restriction;
use io_uring::{EnterFlags, IoUring, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};
use sidecore::{Local, Poll, PollerId, Progress, RoundStage, Wake};

/// Places in the submission ring: the most entries that a round hands to the kernel. A few disks
/// with full queues take less in a round; entries beyond that wait for the next round.
pub const ENTRIES: u32 = 256;

/// Requests in the kernel at once, over all channels of a sidecore. Bounds the kernel's memory, and
/// is the size of the completion ring.
pub const IN_KERNEL_MAX: u32 = 4096;

/// Ways to set the ring up, best first. Older kernels refuse the first ones.
const MODES: [Mode; 3] = [Mode::Deferred, Mode::Cooperative, Mode::Plain];

/// The opcodes of a node's ring. The node's filter of system calls does not see the ring's
/// operations, and other opcodes open files and connect sockets. The ring takes no further
/// registrations.
const FILE_OPCODES: [u8; 7] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    // For tests.
    opcode::Nop::CODE,
];

/// The opcodes of a direct client's ring: commands of the ublk driver, and no files. A node's ring
/// does not have them, because a command reaches any driver that has commands.
const COMMAND_OPCODES: [u8; 1] = [opcode::UringCmd16::CODE];

/// The purpose of a ring, which permits the opcodes of this purpose only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Volumes in files.
    Files,
    /// The ublk driver; see `block::ublk`.
    Commands,
}

impl Purpose {
    fn opcodes(self) -> &'static [u8] {
        match self {
            Self::Files => &FILE_OPCODES,
            Self::Commands => &COMMAND_OPCODES,
        }
    }
}

/// How completions get from the kernel's interrupt to our ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only when we enter the kernel: nothing interrupts the sidecore (Linux 6.1).
    Deferred,
    /// Whenever we enter the kernel for anything (Linux 5.19).
    Cooperative,
    /// By interrupting the sidecore.
    Plain,
}

sidecore::counters! {
    /// The counters of a ring. Only the ring's sidecore writes them.
    #[repr(align(128))]
    pub struct UringCounters {
        enters: "System calls into the io_uring.",
        submitted: "Requests handed to the kernel's io_uring.",
        completed: "Requests that came back from it.",
        full: "Requests that had to wait because a ring was full.",
        /// They are tried again a round later.
        enter_errors: "System calls that failed and were tried again.",
        /// Also instead of a sleep.
        event_reads: "System calls to take the io_uring's signal, after a sleep.",
    }
}

/// A request that came back from the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The client's own mark of the request.
    pub token: u32,
    /// Bytes done, or a negative error number.
    pub result: i32,
}

/// No room; try again in the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// A user of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(u32);

#[derive(Debug, Default)]
struct UringClient {
    used: bool,
    outstanding_max: u32,
    /// Pushed and not yet in the inbox.
    outstanding: u32,
    inbox: Vec<Completion>,
}

/// The ring. Lives on one sidecore; see [`install`].
pub struct Uring {
    ring: IoUring,
    /// Signalled by the kernel when something comes back, while that is wanted.
    event: OwnedFd,
    mode: Mode,
    clients: Vec<UringClient>,
    /// Pushed and not yet reaped, over all clients.
    in_kernel: u32,
    /// Reaped and not yet taken by the clients.
    unclaimed: usize,
    counters: Arc<UringCounters>,
    #[cfg(test)]
    fault: Option<Box<dyn FnMut(Completion) -> i32 + Send>>,
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring")
            .field("mode", &self.mode)
            .field("in_kernel", &self.in_kernel)
            .finish_non_exhaustive()
    }
}

impl Uring {
    /// Sets a ring up for the calling thread, which must be the only one ever to use it.
    ///
    /// # Errors
    /// When the kernel has no io_uring or the administrator has switched it off
    /// (`kernel.io_uring_disabled`), or memory is short.
    pub fn new() -> io::Result<Self> {
        Self::for_purpose(Purpose::Files)
    }

    /// The same for another purpose.
    ///
    /// # Errors
    /// As [`Uring::new`].
    pub fn for_purpose(purpose: Purpose) -> io::Result<Self> {
        let mut refusal = None;
        for mode in MODES {
            match Self::with_mode_for(mode, purpose) {
                Ok(uring) => return Ok(uring),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refusal = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(refusal.expect("there is at least one mode"))
    }

    /// Sets a ring up in a given mode.
    ///
    /// # Errors
    /// As [`Uring::new`], and `EINVAL` when the kernel is too old for the mode.
    pub fn with_mode(mode: Mode) -> io::Result<Self> {
        Self::with_mode_for(mode, Purpose::Files)
    }

    fn with_mode_for(mode: Mode, purpose: Purpose) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(IN_KERNEL_MAX).setup_r_disabled();
        match mode {
            Mode::Deferred => {
                builder.setup_submit_all().setup_taskrun_flag();
                builder.setup_single_issuer().setup_defer_taskrun();
            }
            Mode::Cooperative => {
                builder.setup_submit_all().setup_taskrun_flag();
                builder.setup_coop_taskrun();
            }
            Mode::Plain => {}
        }
        let mut ring = builder.build(ENTRIES)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let mut allowed: Vec<_> =
            purpose.opcodes().iter().map(|&code| Restriction::sqe_op(code)).collect();
        ring.submitter().register_restrictions(&mut allowed)?;
        ring.submitter().register_enable_rings()?;
        // Not while we poll.
        ring.completion().disable_eventfd();
        Ok(Self {
            ring,
            event,
            mode,
            clients: Vec::new(),
            in_kernel: 0,
            unclaimed: 0,
            counters: Arc::default(),
            #[cfg(test)]
            fault: None,
        })
    }

    /// How completions arrive.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The ring's counters, which any thread may read.
    pub fn counters(&self) -> Arc<UringCounters> {
        Arc::clone(&self.counters)
    }

    /// Adds a user with at most `outstanding_max` requests at once.
    pub fn add_client(&mut self, outstanding_max: u32) -> ClientId {
        let client = UringClient {
            used: true,
            outstanding_max,
            outstanding: 0,
            inbox: Vec::with_capacity(outstanding_max as usize),
        };
        match self.clients.iter().position(|client| !client.used) {
            Some(place) => {
                self.clients[place] = client;
                ClientId(place as u32)
            }
            None => {
                self.clients.push(client);
                ClientId(self.clients.len() as u32 - 1)
            }
        }
    }

    /// Removes a user.
    ///
    /// # Panics
    /// When the kernel still works for it: its buffers would be lost sight of.
    pub fn remove_client(&mut self, id: ClientId) {
        let client = self.client(id);
        assert_eq!(client.outstanding, 0, "a client leaves after its last completion");
        self.unclaimed -= self.clients[id.0 as usize].inbox.len();
        self.clients[id.0 as usize] = UringClient::default();
    }

    /// The number of a client's requests in the kernel: pushed and not yet in its inbox.
    pub fn outstanding(&self, id: ClientId) -> u32 {
        self.client(id).outstanding
    }

    /// Whether [`Uring::push`] would find room.
    pub fn has_room(&mut self) -> bool {
        self.in_kernel < IN_KERNEL_MAX && !self.ring.submission().is_full()
    }

    /// Queues a request for the next entry into the kernel.
    ///
    /// # Errors
    /// [`Full`] when a ring is full; counted.
    ///
    /// # Safety
    /// The descriptor and all memory that `entry` names (buffers, and the io vectors) stay valid
    /// until the completion with `token` was in the client's inbox, or the ring is gone.
    pub unsafe fn push(
        &mut self,
        id: ClientId,
        token: u32,
        entry: squeue::Entry,
    ) -> Result<(), Full> {
        if !self.has_room() {
            self.counters.full.add(1);
            return Err(Full);
        }
        let client = &mut self.clients[id.0 as usize];
        assert!(client.used && client.outstanding < client.outstanding_max, "bounded by its table");
        let entry = entry.user_data(u64::from(id.0) << 32 | u64::from(token));
        // SAFETY: the caller keeps what the entry names valid.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| Full)?;
        client.outstanding += 1;
        self.in_kernel += 1;
        Ok(())
    }

    /// Moves the completions of a user into `into`, which must be empty; the two swap their room.
    pub fn take(&mut self, id: ClientId, into: &mut Vec<Completion>) {
        debug_assert!(into.is_empty());
        let client = &mut self.clients[id.0 as usize];
        self.unclaimed -= client.inbox.len();
        std::mem::swap(&mut client.inbox, into);
    }

    /// Whether a user has completions to take.
    pub fn has_mail(&self, id: ClientId) -> bool {
        !self.client(id).inbox.is_empty()
    }

    /// One round: at most one entry into the kernel, then the completions.
    pub fn round(&mut self) -> Progress {
        let submission = self.ring.submission();
        let pending = submission.len() as u32;
        let nudged = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        if pending > 0 || nudged {
            self.enter(pending, 0);
        }
        let reaped = self.reap();
        Progress::busy_if(pending > 0 || reaped > 0)
    }

    /// Blocks until the kernel has done everything for one user. Only for tearing down: its
    /// buffers are about to go.
    pub fn wait_for(&mut self, id: ClientId) {
        while self.outstanding(id) > 0 {
            let pending = self.ring.submission().len() as u32;
            self.enter(pending, 1);
            self.reap();
        }
    }

    /// The descriptor that the kernel signals while that is asked for.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Asks the kernel for signals. The caller looks for completions once more afterwards.
    pub(crate) fn ask_for_signals(&mut self) {
        self.ring.completion().enable_eventfd();
        // We ask and then look; the kernel completes and then looks whether we ask.
        fence(Ordering::SeqCst);
    }

    /// Asks for no more signals.
    pub(crate) fn stop_signals(&mut self) {
        self.ring.completion().disable_eventfd();
    }

    fn client(&self, id: ClientId) -> &UringClient {
        let client = &self.clients[id.0 as usize];
        assert!(client.used, "the client was removed");
        client
    }

    fn enter(&mut self, pending: u32, completions_min: u32) {
        // With GETEVENTS the same system call also runs the deferred completions.
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: `pending` entries are in the ring, and there is no argument.
        let entered = unsafe {
            self.ring.submitter().enter::<libc::sigset_t>(pending, completions_min, flags, None)
        };
        self.counters.enters.add(1);
        match entered {
            Ok(submitted) => self.counters.submitted.add(submitted as u64),
            // Interrupted or short of memory: the entries stay in the ring for the next round.
            Err(_) => self.counters.enter_errors.add(1),
        }
    }

    fn reap(&mut self) -> usize {
        let mut reaped = 0;
        for entry in self.ring.completion() {
            let client = &mut self.clients[(entry.user_data() >> 32) as usize];
            let completion = Completion { token: entry.user_data() as u32, result: entry.result() };
            #[cfg(test)]
            let completion = match &mut self.fault {
                Some(fault) => Completion { result: fault(completion), ..completion },
                None => completion,
            };
            client.outstanding -= 1;
            client.inbox.push(completion);
            reaped += 1;
        }
        self.in_kernel -= reaped as u32;
        self.unclaimed += reaped;
        self.counters.completed.add(reaped as u64);
        reaped
    }

    /// Replaces results as they are reaped.
    #[cfg(test)]
    pub(crate) fn set_fault(&mut self, fault: impl FnMut(Completion) -> i32 + Send + 'static) {
        self.fault = Some(Box::new(fault));
    }
}

/// Sets a ring up on a sidecore: as a service for volumes that are opened there, and as a poller.
///
/// # Errors
/// As [`Uring::new`].
pub fn install(local: &mut Local) -> io::Result<PollerId> {
    install_for(local, Purpose::Files)
}

/// The same for another purpose.
///
/// # Errors
/// As [`Uring::new`].
pub fn install_for(local: &mut Local, purpose: Purpose) -> io::Result<PollerId> {
    let uring = Rc::new(RefCell::new(Uring::for_purpose(purpose)?));
    local.services().insert(Rc::clone(&uring));
    Ok(local.add(RoundStage::Submit, Box::new(uring)))
}

/// Its channels and the sidecore share it.
impl Poll for Uring {
    fn label(&self) -> String {
        "files (io_uring)".to_owned()
    }

    fn poll(&mut self, _now_ns: u64) -> Progress {
        self.round()
    }

    /// Asks the kernel for signals, and looks once more.
    fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.ask_for_signals();
        wake.on_readable(self.event());
        self.round() | Progress::busy_if(self.unclaimed > 0)
    }

    fn disarm(&mut self) {
        self.stop_signals();
        self.counters.event_reads.add(1);
        // Nothing to take is fine: the descriptor does not block.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }
}

#[cfg(test)]
mod tests;
