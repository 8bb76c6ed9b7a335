//! The loop of a sidecore.
//!
//! ```text
//!   round:  clock ─ mail ─ Receive ─ Serve ─ Submit ─ Transmit ─ later
//!   idle:   spin ─ yield ─ nap ─ arm all ─ still nothing? ─ ppoll ─ disarm all
//! ```

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFlags, Timespec};
use rustix::io::Errno;

use crate::idle::{Backoff, IdleStep};
use crate::pulse::Pulse;
use crate::sidecore::{Inbox, SidecoreShared};
use crate::turns::{self, PollerTurns, TurnClocks};
use crate::{Idle, Poll, Progress, RoundStage, Services, Wake, Waker};

/// How many rounds without work go by one look at the clock, at most, while spinning: looking at
/// the clock takes about as long as looking at a queue, and what arrives meanwhile waits for it.
const ROUNDS_PER_LOOK_MAX: u32 = 8;

/// How late the clock may be for that, by the time the last looks were apart: rounds that take
/// longer, because they ask the kernel, have a look each. A thread that the system takes its core
/// from is later by that, as it also is within one round.
const CLOCK_LATE_NS: u64 = 800;

/// The most closures that may wait for the end of a round: far more than a control action makes.
const LATER_MAX: usize = 1024;

/// Names a poller on its sidecore. Never used twice there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PollerId {
    stage: RoundStage,
    number: u64,
}

/// A poller in its stage.
struct Polled {
    number: u64,
    poller: Box<dyn Poll>,
    /// How much of its sidecore's time it owes its neighbours.
    owed_ns: u64,
}

/// The inside of a sidecore, which a posted closure gets.
pub struct Local {
    index: usize,
    now_ns: u64,
    poller_next: u64,
    /// By stage. Dropped before the services.
    pollers: [Vec<Polled>; RoundStage::ALL.len()],
    turns: PollerTurns,
    later: Later,
    services: Services,
    /// Says what is done, for a watchdog.
    pulse: Arc<Pulse>,
}

impl Local {
    /// A `Local` without a thread, for simulations and tests. The test or the simulation calls
    /// [`Local::round`].
    pub fn detached(index: usize, services: Services) -> Self {
        Self::new(index, services, Arc::new(Pulse::new()))
    }

    fn new(index: usize, services: Services, pulse: Arc<Pulse>) -> Self {
        let pollers = [const { Vec::new() }; RoundStage::ALL.len()];
        let (turns, later) = (PollerTurns::new(TurnClocks::SYSTEM), Later::default());
        Self { index, now_ns: 0, poller_next: 0, pollers, turns, later, services, pulse }
    }

    /// Says for a watchdog what the posted closure that runs changes, such as `disk "alice"`,
    /// before it touches what may not answer. Says nothing while pollers are polled, which have
    /// labels.
    pub fn changes(&self, label: impl FnOnce() -> String) {
        self.pulse.changes(label);
    }

    /// Polls `poller` from the next stage or round on, after those already in its stage.
    pub fn add(&mut self, stage: RoundStage, poller: Box<dyn Poll>) -> PollerId {
        let number = self.poller_next;
        self.poller_next += 1;
        self.pulse.named(number, poller.label());
        self.pollers[stage as usize].push(Polled { number, poller, owed_ns: 0 });
        PollerId { stage, number }
    }

    /// Takes a poller out; `None` when it is gone already.
    pub fn remove(&mut self, id: PollerId) -> Option<Box<dyn Poll>> {
        let pollers = &mut self.pollers[id.stage as usize];
        let place = pollers.iter().position(|polled| polled.number == id.number)?;
        self.pulse.forget(id.number);
        Some(pollers.remove(place).poller)
    }

    /// The values that the pollers of this sidecore share.
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// A way for pollers to change this sidecore: see [`Later`].
    pub fn later(&self) -> Later {
        self.later.clone()
    }

    /// The sidecore's index in its node.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The clock of this round.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Polls everyone once, in order.
    pub fn round(&mut self, now_ns: u64) -> Progress {
        self.now_ns = now_ns;
        let mut progress = Progress::Idle;
        let measured = self.turns.are_measured() && self.begin_turns();
        for (stage, pollers) in self.pollers.iter_mut().enumerate() {
            // Only this stage's pollers are one user's each; those of the others serve all users.
            let by_turns = measured && stage == RoundStage::Serve as usize;
            for polled in pollers {
                let Polled { number, poller, owed_ns } = polled;
                if by_turns && self.turns.must_wait(*number, owed_ns) {
                    // It may have work, so the sidecore must not sleep.
                    progress = Progress::Busy;
                    continue;
                }
                self.pulse.polls(*number);
                let found = poller.poll(now_ns);
                if by_turns {
                    self.turns.had(*number, found, owed_ns);
                }
                progress |= found;
            }
        }
        if !self.later.queue.borrow().is_empty() {
            self.pulse.runs_later();
            for action in self.later.queue.take() {
                action(self);
            }
            progress = Progress::Busy;
        }
        progress
    }

    /// Begins a round whose turns are measured; false when that has ended, with all debts.
    fn begin_turns(&mut self) -> bool {
        let measured = self.turns.begin_round();
        if !measured {
            self.pollers.iter_mut().flatten().for_each(|polled| polled.owed_ns = 0);
        }
        measured
    }

    /// The last round took so long, without time asleep or given to other threads.
    pub(crate) fn round_took(&mut self, took_ns: u64, now_ns: u64) {
        if took_ns > turns::LONG_ROUND_NS {
            self.turns.measure(now_ns);
        }
    }

    /// How many turns pollers waited for since this was last asked.
    pub(crate) fn take_skipped(&mut self) -> u64 {
        self.turns.take_skipped()
    }

    #[cfg(test)]
    pub(crate) fn set_clocks(&mut self, clocks: TurnClocks) {
        self.turns = PollerTurns::new(clocks);
    }

    fn needs_clock(&self) -> bool {
        self.pollers[RoundStage::Receive as usize].iter().any(|polled| polled.poller.needs_clock())
    }

    /// Arms pollers until one finds work; says how many were armed.
    fn arm(&mut self, wake: &mut Wake) -> (Progress, usize) {
        let mut armed = 0;
        for polled in self.pollers.iter_mut().flatten() {
            armed += 1;
            self.pulse.polls(polled.number);
            if polled.poller.arm(wake).is_busy() {
                return (Progress::Busy, armed);
            }
        }
        (Progress::Idle, armed)
    }

    fn disarm(&mut self, armed: usize) {
        for polled in self.pollers.iter_mut().flatten().take(armed) {
            self.pulse.polls(polled.number);
            polled.poller.disarm();
        }
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<_> = self.pollers.iter().map(Vec::len).collect();
        f.debug_struct("Local").field("index", &self.index).field("pollers", &counts).finish()
    }
}

type Action = Box<dyn FnOnce(&mut Local)>;

/// Lets a poller, which is itself inside the round, change its sidecore at the round's end: add
/// pollers or remove some, itself included. For control, not for the hot path.
#[derive(Clone, Default)]
pub struct Later {
    queue: Rc<RefCell<Vec<Action>>>,
}

impl Later {
    /// Runs `action` at the end of this round.
    ///
    /// # Panics
    /// When a thousand actions wait already: the caller asks in a loop.
    pub fn run(&self, action: impl FnOnce(&mut Local) + 'static) {
        let mut queue = self.queue.borrow_mut();
        assert!(queue.len() < LATER_MAX, "more than {LATER_MAX} actions in one round");
        queue.push(Box::new(action));
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Later({})", self.queue.borrow().len())
    }
}

/// A sidecore's thread.
pub(crate) struct SidecoreThread {
    local: Local,
    inbox: Inbox,
    shared: Arc<SidecoreShared>,
    backoff: Backoff,
    wake: Wake,
    /// Rounds without work for one look at the clock.
    rounds_per_look: u32,
    /// How long others had the core after the last round, which gave way to them.
    given_ns: u64,
    /// When the last nap or sleep ended.
    woke_ns: u64,
}

impl SidecoreThread {
    pub(crate) fn new(index: usize, idle: Idle, inbox: Inbox, shared: Arc<SidecoreShared>) -> Self {
        let services = Services::new();
        // For channels that other sidecores answer.
        services.insert(Rc::new(RefCell::new(Waker::new(Arc::clone(&shared.bell)))));
        Self {
            local: Local::new(index, services, Arc::clone(&shared.pulse)),
            inbox,
            shared,
            backoff: Backoff::new(idle, crate::now_ns()),
            wake: Wake::new(),
            rounds_per_look: 1,
            given_ns: 0,
            woke_ns: 0,
        }
    }

    pub(crate) fn run(mut self) {
        let mut last_ns = crate::now_ns();
        while !self.shared.is_stopping() {
            let now_ns = crate::now_ns();
            let began_ns = last_ns.max(self.woke_ns);
            let took_ns = now_ns.saturating_sub(began_ns).saturating_sub(self.given_ns);
            crate::foreign::round_took(took_ns, now_ns);
            self.local.round_took(took_ns, now_ns);
            // Clocks of two cores may differ by nanoseconds where a hypervisor moves the thread.
            let passed_ns = now_ns.saturating_sub(last_ns);
            self.count_time(passed_ns);
            self.set_rounds_per_look(passed_ns);
            last_ns = now_ns;
            if self.backoff.begin(now_ns) {
                self.shared.counters.contended.add(1);
            }
            let progress = self.rounds(now_ns);
            if progress.is_busy() {
                self.shared.counters.rounds_busy.add(1);
            }
            match self.backoff.end(progress, now_ns) {
                IdleStep::Go => {}
                IdleStep::Spin => std::hint::spin_loop(),
                IdleStep::Yield => self.give_way(),
                IdleStep::Nap(length_ns) => self.nap(length_ns),
                IdleStep::Sleep => self.sleep(),
            }
        }
    }

    /// A round, and more of them while there is nothing to do but to look again at once.
    fn rounds(&mut self, now_ns: u64) -> Progress {
        let mut progress = self.round(now_ns);
        if self.backoff.is_spinning() {
            let mut left = self.rounds_per_look;
            while left > 1 && !progress.is_busy() && !self.local.needs_clock() {
                std::hint::spin_loop();
                progress = self.round(now_ns);
                left -= 1;
            }
        }
        progress
    }

    /// Between the last two looks at the clock there was so much time.
    fn set_rounds_per_look(&mut self, took_ns: u64) {
        if took_ns > CLOCK_LATE_NS {
            self.rounds_per_look = (self.rounds_per_look / 2).max(1);
        } else if took_ns < CLOCK_LATE_NS / 2 {
            self.rounds_per_look = (self.rounds_per_look * 2).min(ROUNDS_PER_LOOK_MAX);
        }
    }

    fn round(&mut self, now_ns: u64) -> Progress {
        self.local.now_ns = now_ns;
        self.shared.counters.rounds.add(1);
        let progress = self.inbox.run(&mut self.local) | self.local.round(now_ns);
        if self.local.turns.are_measured() {
            self.shared.counters.turns_skipped.add(self.local.take_skipped());
        }
        progress
    }

    fn give_way(&mut self) {
        self.shared.counters.yields.add(1);
        let began_ns = crate::now_ns();
        rustix::thread::sched_yield();
        let now_ns = crate::now_ns();
        self.given_ns = now_ns.saturating_sub(began_ns);
        if self.backoff.yielded(self.given_ns, now_ns) {
            self.shared.counters.contended.add(1);
        }
    }

    fn nap(&mut self, length_ns: u64) {
        self.shared.counters.naps.add(1);
        std::thread::sleep(Duration::from_nanos(length_ns));
        self.woke_ns = crate::now_ns();
    }

    /// Announces the sleep, looks everywhere once more with notifications on, then sleeps.
    fn sleep(&mut self) {
        let bell = Arc::clone(&self.shared.bell);
        bell.announce_sleep();
        self.wake.clear();
        self.wake.on_readable(bell.fd());
        let mailed = self.inbox.has_mail() || self.shared.is_stopping();
        let (found, armed) =
            if mailed { (Progress::Busy, 0) } else { self.local.arm(&mut self.wake) };
        if found.is_busy() {
            self.shared.counters.sleeps_refused.add(1);
        } else {
            self.wait();
            self.woke_ns = crate::now_ns();
        }
        bell.awake();
        self.local.disarm(armed);
    }

    /// One ppoll over everything that was armed.
    fn wait(&mut self) {
        let timeout = self.wake.deadline_ns().map(|at_ns| {
            let left_ns = at_ns.saturating_sub(crate::now_ns());
            Timespec {
                tv_sec: (left_ns / 1_000_000_000) as i64,
                tv_nsec: (left_ns % 1_000_000_000) as i64,
            }
        });
        self.shared.counters.sleeps.add(1);
        let fds = self.wake.poll_fds();
        self.shared.pulse.sleeps();
        let polled = rustix::event::poll(fds, timeout.as_ref());
        self.shared.pulse.is_between();
        match polled {
            Ok(0) | Err(Errno::INTR) => return,
            Ok(_) => self.shared.counters.wakeups.add(1),
            Err(error) => panic!("ppoll on {} descriptors: {error}", fds.len()),
        }
        let closed = fds.iter().any(|fd| fd.revents().contains(PollFlags::NVAL));
        assert!(!closed, "a poller armed a descriptor and closed it before it was disarmed");
        if !fds[0].revents().is_empty() {
            self.shared.counters.bell_reads.add(1);
            self.shared.bell.silence();
        }
    }

    fn count_time(&mut self, round_ns: u64) {
        let counters = &self.shared.counters;
        let given_ns = std::mem::take(&mut self.given_ns).min(round_ns);
        match self.backoff.last_step() {
            _ if self.backoff.was_busy() => {
                counters.busy_ns.add(round_ns - given_ns);
                counters.idle_ns.add(given_ns);
            }
            IdleStep::Go => counters.busy_ns.add(round_ns),
            IdleStep::Spin | IdleStep::Yield => counters.idle_ns.add(round_ns),
            IdleStep::Nap(_) | IdleStep::Sleep => counters.asleep_ns.add(round_ns),
        }
    }
}
