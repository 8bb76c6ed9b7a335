//! The handle of a sidecore, as other threads see it.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::CpuSet;

use crate::core::{Local, SidecoreThread};
use crate::pulse::{Pulse, PulseView};
use crate::waker::{Bell, EarlyWaker, Waker};
use crate::{CoreCounters, Idle, Padded, Progress};

/// The most posted closures that may wait. They are control (attach, detach, status), a few per
/// device; data goes through [`crate::mailbox`].
pub const MAIL_MAX: usize = 1024;

/// The most posted closures run in one round, so that a burst of control does not hold up I/O.
const MAILS_PER_ROUND: u64 = 16;

/// How long [`Sidecore::ask`] waits for an answer. A sidecore answers between two rounds; a
/// watchdog needs less to find one stuck.
const ASK_TIME_MAX: Duration = Duration::from_secs(1);

/// How often it is looked meanwhile whether a watchdog has found the sidecore stuck.
const ASK_LOOK: Duration = Duration::from_millis(50);

/// The settings of a new sidecore.
#[derive(Clone, Debug)]
pub struct SidecoreConfig {
    /// The thread's name; the system shows its first 15 bytes.
    pub name: String,
    /// The sidecore's index in its node: 0, 1, 2...
    pub index: usize,
    /// The core to run on; `None` leaves it to the scheduler.
    pub core: Option<usize>,
    /// The policy for time without work.
    pub idle: Idle,
    /// The waker that parts have already, if there are any.
    pub early: Option<EarlyWaker>,
}

impl SidecoreConfig {
    /// Sidecore `index`, adaptive, on any core.
    pub fn new(index: usize) -> Self {
        let name = format!("sidecore-{index}");
        Self { name, index, core: None, idle: Idle::default(), early: None }
    }
}

/// Too many closures wait at this sidecore; this one was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the sidecore's mailbox is full")]
pub struct MailboxFull;

/// Why a call to a sidecore gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// It stopped first.
    #[error("the sidecore has stopped")]
    Stopped,
    /// It is stuck, or too busy to answer a question in time. [`Sidecore::ask`] says so;
    /// [`Sidecore::call`] waits.
    #[error("the sidecore does not answer")]
    Stuck,
}

thread_local! {
    static ON_SIDECORE: Cell<bool> = const { Cell::new(false) };
}

type Mail = Box<dyn FnOnce(&mut Local) + Send>;

/// State that the thread and the handles share.
pub(crate) struct SidecoreShared {
    pub(crate) bell: Arc<Bell>,
    pub(crate) counters: Arc<CoreCounters>,
    pub(crate) pulse: Arc<Pulse>,
    /// How many closures were ever posted. The loop looks at this number instead of the queue.
    posted: Padded<AtomicU64>,
    stopping: AtomicBool,
}

impl SidecoreShared {
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// The receiving end of the posted closures.
pub(crate) struct Inbox {
    mails: Receiver<Mail>,
    taken: u64,
    shared: Arc<SidecoreShared>,
}

impl Inbox {
    pub(crate) fn has_mail(&self) -> bool {
        // A closure may be taken just before it is counted: then this says yes once in vain.
        self.shared.posted.load(Ordering::Acquire) != self.taken
    }

    /// Runs a bounded number of closures.
    pub(crate) fn run(&mut self, local: &mut Local) -> Progress {
        let mut count = 0;
        while count < MAILS_PER_ROUND && self.has_mail() {
            let Ok(mail) = self.mails.try_recv() else { break };
            self.taken += 1;
            count += 1;
            // Counted first, so that a caller that waits for the mail's answer finds it counted.
            self.shared.counters.mails.add(1);
            self.shared.pulse.runs_mail();
            mail(local);
        }
        Progress::busy_if(count > 0)
    }
}

/// Starts a sidecore.
///
/// A panic on a sidecore aborts the process, in every build: a node that has lost a part of itself
/// would hold its guests' disks for ever, while a dead one is restarted and its guests go on.
///
/// # Errors
/// When the core does not exist or is not ours to use, or the system refuses a thread.
pub fn spawn(config: SidecoreConfig) -> io::Result<Sidecore> {
    let (mails_in, mails) = sync_channel(MAIL_MAX);
    let early = config.early.clone().map_or_else(EarlyWaker::new, Ok)?;
    let shared = Arc::new(SidecoreShared {
        bell: early.0,
        counters: Arc::new(CoreCounters::default()),
        pulse: Arc::new(Pulse::new()),
        posted: Padded::default(),
        stopping: AtomicBool::new(false),
    });
    let inbox = Inbox { mails, taken: 0, shared: Arc::clone(&shared) };
    let (ready_in, ready) = sync_channel(1);
    let name = config.name.clone();
    let on_thread = {
        let shared = Arc::clone(&shared);
        move || {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            shared.pulse.thread.store(thread, Ordering::Relaxed);
            let prepared = prepare(&config);
            let failed = prepared.is_err();
            let told = ready_in.send(prepared);
            if !failed && told.is_ok() {
                let _abort = AbortOnPanic;
                SidecoreThread::new(config.index, config.idle, inbox, shared).run();
            }
        }
    };
    let thread = std::thread::Builder::new().name(name).spawn(on_thread)?;
    ready.recv().map_err(|_| io::Error::other("the sidecore's thread died at once"))??;
    let thread_id = thread.thread().id();
    let owner = Owner { shared, mails_in, thread_id, thread: Mutex::new(Some(thread)) };
    Ok(Sidecore { owner: Arc::new(owner) })
}

/// Runs on the new thread, before the first round.
fn prepare(config: &SidecoreConfig) -> io::Result<()> {
    ON_SIDECORE.set(true);
    crate::foreign::ready().map_err(io::Error::other)?;
    crate::foreign::ready_on_this_thread();
    // Naps and deadlines are tens of microseconds; the system's default slack is 50 of them.
    if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1)) {
        tracing::warn!(%error, "short sleeps will be longer: the timer slack stays as it is");
    }
    let Some(core) = config.core else { return Ok(()) };
    let refuse = |why: &dyn fmt::Display| {
        io::Error::other(format!("cannot run sidecore {} on core {core}: {why}", config.index))
    };
    if core >= CpuSet::MAX_CPU {
        return Err(refuse(&"there is no such core"));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    rustix::thread::sched_setaffinity(None, &cores).map_err(|error| refuse(&error))
}

struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a sidecore panicked: the process ends here");
            std::process::abort();
        }
    }
}

/// Stops the thread when the last handle goes.
struct Owner {
    shared: Arc<SidecoreShared>,
    mails_in: SyncSender<Mail>,
    thread_id: ThreadId,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Owner {
    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        Waker::new(Arc::clone(&self.shared.bell)).wake();
        if std::thread::current().id() == self.thread_id {
            return;
        }
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            // It cannot have panicked: that would have ended the process.
            let _ = thread.join();
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A running sidecore, seen from other threads. Clones name the same one; it stops when the last
/// is dropped.
#[derive(Clone)]
pub struct Sidecore {
    owner: Arc<Owner>,
}

impl Sidecore {
    /// Runs `f` on the sidecore, between two rounds; does not wait. A sidecore that has stopped
    /// drops it, as one that stops does with what it has not come to.
    ///
    /// # Errors
    /// When too many closures wait already; `f` is dropped.
    pub fn post(&self, f: impl FnOnce(&mut Local) + Send + 'static) -> Result<(), MailboxFull> {
        match self.owner.mails_in.try_send(Box::new(f)) {
            Ok(()) => self.posted(),
            Err(TrySendError::Full(_)) => return Err(MailboxFull),
            Err(TrySendError::Disconnected(_)) => {}
        }
        Ok(())
    }

    /// Runs `f` on the sidecore and waits for what it gives. For control threads: waits also for
    /// room in the mailbox.
    ///
    /// # Errors
    /// When the sidecore stops before it has answered.
    ///
    /// # Panics
    /// When called on a sidecore, which must never wait.
    pub fn call<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Local) -> R + Send + 'static,
    ) -> Result<R, CallError> {
        assert!(!ON_SIDECORE.get(), "a sidecore must not wait for a sidecore");
        let (answer_in, answer) = sync_channel(1);
        let mail = Box::new(move |local: &mut Local| {
            // The caller waits below.
            let _ = answer_in.send(f(local));
        });
        self.owner.mails_in.send(mail).map_err(|_| CallError::Stopped)?;
        self.posted();
        answer.recv().map_err(|_| CallError::Stopped)
    }

    /// Asks the sidecore a question and returns the answer, as [`Sidecore::call`] does, but waits
    /// for a bounded time. The sidecore skips a question whose caller has given up. Such a caller
    /// does not know whether `f` ran, so `f` must change nothing.
    ///
    /// # Errors
    /// When the sidecore has stopped, is stuck, or does not come to answer in time.
    ///
    /// # Panics
    /// When called on a sidecore, which must never wait.
    pub fn ask<R: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Local) -> R + Send + 'static,
    ) -> Result<R, CallError> {
        assert!(!ON_SIDECORE.get(), "a sidecore must not wait for a sidecore");
        // Questions to one that is stuck would fill its mailbox.
        if self.is_stuck() {
            return Err(CallError::Stuck);
        }
        let (answer_in, answer) = sync_channel(1);
        let waits = Arc::new(AtomicBool::new(true));
        let still_waits = Arc::clone(&waits);
        let posted = self.post(move |local| {
            if still_waits.load(Ordering::Relaxed) {
                // The caller may have given up just now.
                let _ = answer_in.send(f(local));
            }
        });
        posted.map_err(|MailboxFull| CallError::Stuck)?;
        let until = Instant::now() + ASK_TIME_MAX;
        loop {
            match answer.recv_timeout(ASK_LOOK) {
                Ok(answer) => return Ok(answer),
                Err(RecvTimeoutError::Disconnected) => return Err(CallError::Stopped),
                Err(RecvTimeoutError::Timeout) if self.is_stuck() || Instant::now() >= until => {
                    waits.store(false, Ordering::Relaxed);
                    return Err(CallError::Stuck);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The sidecore's present activity, for a [`Watch`](crate::Watch).
    pub fn look(&self) -> PulseView {
        let shared = &self.owner.shared;
        let (counters, posted) = (&shared.counters, shared.posted.load(Ordering::Relaxed));
        shared.pulse.look(counters.rounds.get(), posted > counters.mails.get())
    }

    /// A look in words, such as `serving disk "alice"`.
    pub fn explain(&self, look: &PulseView) -> String {
        self.owner.shared.pulse.explain(look)
    }

    /// The system's number of its thread.
    pub fn thread(&self) -> i32 {
        self.owner.shared.pulse.thread.load(Ordering::Relaxed)
    }

    /// Notes what a watchdog has found: [`Sidecore::ask`] does not wait for one that is stuck.
    pub fn set_stuck(&self, stuck: bool) {
        self.owner.shared.pulse.stuck.store(stuck, Ordering::Relaxed);
    }

    /// Whether a watchdog has found it stuck.
    pub fn is_stuck(&self) -> bool {
        self.owner.shared.pulse.stuck.load(Ordering::Relaxed)
    }

    fn posted(&self) {
        self.owner.shared.posted.fetch_add(1, Ordering::Release);
        self.waker().wake();
    }

    /// Something to wake it with.
    pub fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.owner.shared.bell))
    }

    /// The sidecore's counters.
    pub fn counters(&self) -> Arc<CoreCounters> {
        Arc::clone(&self.owner.shared.counters)
    }

    /// Ends the thread after its present round, drops its pollers and then its services there, and
    /// waits for that. Called on the sidecore itself it does not wait.
    pub fn stop(&self) {
        self.owner.stop();
    }
}

impl fmt::Debug for Sidecore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sidecore({:?})", self.owner.thread_id)
    }
}
