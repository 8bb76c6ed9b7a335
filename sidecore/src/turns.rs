//! Turns by time: a poller that had its sidecore for long leaves it to its neighbours for as long.
//!
//! Each poller does a bounded batch of work in a round, but bounds count requests and bytes, and
//! the time of these is in part the user's choice: a read into memory that was never touched takes
//! the kernel several microseconds for each page. So a poller whose turn was long owes that time.
//! It waits, round by round, until its neighbours could have used as much, or until no neighbour
//! has had a short turn with work for a while. Pollers whose turns are all long need no wait for
//! one another, so a sidecore that serves busy pollers alone loses nothing.
//!
//! Looking at the clock between all pollers would cost each round some 25 ns for each of them. So
//! turns are measured only for a while after a round that was long as a whole.

use rustix::time::{ClockId, clock_gettime};

use crate::Progress;

/// A round of this length has turns measured: with shorter ones a neighbour that waits for each
/// of its requests has thousands of them a second.
pub(crate) const LONG_ROUND_NS: u64 = 100_000;

/// For how long turns are measured after a long round or a long turn.
const MEASURED_NS: u64 = 50_000_000;

/// A turn up to this length owes nothing: a batch of requests of usual lengths.
const TURN_NS: u64 = 50_000;

/// The longest time that a poller owes: a slow request of a disk must not stop the poller for long.
const OWED_NS_MAX: u64 = 20_000_000;

/// A neighbour that had a short turn with work within this time counts as active: the time between
/// two requests of a client that waits for each of them, over a network as well.
const ACTIVE_NS: u64 = 200_000;

/// The clocks by which turns are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnClocks {
    /// The monotonic clock.
    pub now_ns: fn() -> u64,
    /// The processor time of this thread. A poller does not owe the time in which the system gave
    /// the core to another thread.
    pub cpu_ns: fn() -> u64,
}

impl TurnClocks {
    pub(crate) const SYSTEM: Self = Self { now_ns: crate::now_ns, cpu_ns: thread_cpu_ns };
}

/// Processor time of this thread, in nanoseconds. A system call.
pub(crate) fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // Neither part is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The turns of one sidecore's pollers.
#[derive(Debug)]
pub(crate) struct PollerTurns {
    clocks: TurnClocks,
    /// Turns are measured until then; 0 when they are not.
    until_ns: u64,
    /// When the present turn began.
    began_ns: u64,
    /// When the present round began.
    round_ns: u64,
    /// How long its turns took that are owed.
    long_ns: u64,
    /// How long the round before it took without these: the time that neighbours could use.
    passed_ns: u64,
    /// Processor time when it was looked at last.
    cpu_ns: u64,
    /// The two pollers that had short turns with work last, and when: if a poller has such a
    /// neighbour, one is here.
    active: [(u64, u64); 2],
    /// Turns that pollers waited for since this was last taken.
    skipped: u64,
}

impl PollerTurns {
    pub(crate) const fn new(clocks: TurnClocks) -> Self {
        let (never, none) = (0, u64::MAX);
        Self {
            clocks,
            until_ns: 0,
            began_ns: 0,
            round_ns: 0,
            long_ns: 0,
            passed_ns: 0,
            cpu_ns: 0,
            active: [(none, never); 2],
            skipped: 0,
        }
    }

    /// Whether turns are measured now.
    pub(crate) fn are_measured(&self) -> bool {
        self.until_ns != 0
    }

    /// Measures turns for a while.
    pub(crate) fn measure(&mut self, now_ns: u64) {
        if !self.are_measured() {
            (self.round_ns, self.long_ns) = (now_ns, 0);
        }
        self.until_ns = now_ns + MEASURED_NS;
    }

    /// Begins a round that is measured; false when turns are measured no longer, and nothing is
    /// owed any more.
    pub(crate) fn begin_round(&mut self) -> bool {
        let now_ns = (self.clocks.now_ns)();
        if now_ns >= self.until_ns {
            self.until_ns = 0;
            return false;
        }
        let long_ns = std::mem::take(&mut self.long_ns);
        self.passed_ns = (now_ns - self.round_ns).saturating_sub(long_ns);
        (self.round_ns, self.began_ns) = (now_ns, now_ns);
        self.cpu_ns = (self.clocks.cpu_ns)();
        true
    }

    /// Whether the poller lets this turn go by, since it owes time and a neighbour may want it.
    pub(crate) fn must_wait(&mut self, number: u64, owed_ns: &mut u64) -> bool {
        *owed_ns = owed_ns.saturating_sub(self.passed_ns);
        let is_active = |&(other, at_ns): &(u64, u64)| {
            other != u64::MAX && other != number && self.began_ns - at_ns < ACTIVE_NS
        };
        if *owed_ns == 0 || !self.active.iter().any(is_active) {
            *owed_ns = 0;
            return false;
        }
        self.skipped += 1;
        true
    }

    /// The poller had its turn.
    pub(crate) fn had(&mut self, number: u64, progress: Progress, owed_ns: &mut u64) {
        let now_ns = (self.clocks.now_ns)();
        let took_ns = now_ns - std::mem::replace(&mut self.began_ns, now_ns);
        if took_ns > TURN_NS {
            let cpu_ns = (self.clocks.cpu_ns)();
            let used_ns = cpu_ns - std::mem::replace(&mut self.cpu_ns, cpu_ns);
            let used_ns = used_ns.min(took_ns);
            if used_ns > TURN_NS {
                *owed_ns = used_ns.min(OWED_NS_MAX);
                self.long_ns += took_ns;
                self.until_ns = now_ns + MEASURED_NS;
                return;
            }
        }
        if progress.is_busy() {
            if self.active[0].0 != number {
                self.active[1] = self.active[0];
            }
            self.active[0] = (number, now_ns);
        }
    }

    /// How many turns pollers waited for since this was last asked.
    pub(crate) fn take_skipped(&mut self) -> u64 {
        std::mem::take(&mut self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Local, Poll, RoundStage, Services};
    use std::cell::Cell;
    use std::rc::Rc;

    thread_local! {
        static NOW_NS: Cell<u64> = const { Cell::new(1) };
        static CPU_NS: Cell<u64> = const { Cell::new(0) };
    }

    const CLOCKS: TurnClocks = TurnClocks { now_ns: || NOW_NS.get(), cpu_ns: || CPU_NS.get() };

    /// Time goes by, with the core or without it.
    fn pass(ns: u64, with_core: bool) {
        NOW_NS.set(NOW_NS.get() + ns);
        CPU_NS.set(CPU_NS.get() + if with_core { ns } else { 0 });
    }

    /// Has work of a length each `every_ns`, and counts its turns with work.
    struct Worker {
        turn_ns: u64,
        with_core: bool,
        every_ns: u64,
        next_ns: u64,
        turns: Rc<Cell<u64>>,
    }

    impl Poll for Worker {
        fn poll(&mut self, _now_ns: u64) -> Progress {
            if NOW_NS.get() < self.next_ns {
                return Progress::Idle;
            }
            pass(self.turn_ns, self.with_core);
            self.next_ns = NOW_NS.get() + self.every_ns;
            self.turns.set(self.turns.get() + 1);
            Progress::Busy
        }
    }

    struct Rig(Local);

    impl Rig {
        fn new() -> Self {
            let mut local = Local::detached(0, Services::new());
            local.set_clocks(CLOCKS);
            Self(local)
        }

        fn add(&mut self, turn_ns: u64, with_core: bool, every_ns: u64) -> Rc<Cell<u64>> {
            let turns = Rc::new(Cell::new(0));
            let worker =
                Worker { turn_ns, with_core, every_ns, next_ns: 0, turns: Rc::clone(&turns) };
            self.0.add(RoundStage::Serve, Box::new(worker));
            turns
        }

        /// Rounds of which each takes 200 ns by itself, as the sidecore's loop makes them.
        fn run(&mut self, length_ns: u64) {
            let until_ns = NOW_NS.get() + length_ns;
            while NOW_NS.get() < until_ns {
                let began_ns = NOW_NS.get();
                pass(200, true);
                let _ = self.0.round(NOW_NS.get());
                self.0.round_took(NOW_NS.get() - began_ns, NOW_NS.get());
            }
        }
    }

    #[test]
    fn a_neighbour_of_long_turns_has_half_of_the_time() {
        let mut rig = Rig::new();
        let long = rig.add(1_000_000, true, 0);
        // A client that waits for each request, and takes 20 us to send the next one.
        let short = rig.add(2_000, true, 20_000);
        rig.run(1_000_000_000);
        // Alone the neighbour would have 45,000 turns, and beside turns without a limit 1,000.
        assert!((400..600).contains(&long.get()), "{}", long.get());
        assert!((20_000..25_000).contains(&short.get()), "{}", short.get());
    }

    #[test]
    fn a_poller_without_active_neighbours_never_waits() {
        let mut rig = Rig::new();
        let long = rig.add(1_000_000, true, 0);
        let rare = rig.add(2_000, true, 100_000_000);
        rig.run(1_000_000_000);
        assert!(long.get() > 980, "{}", long.get());
        assert!(rare.get() >= 9, "{}", rare.get());
        assert!(rig.0.take_skipped() < 12_000);
    }

    #[test]
    fn pollers_with_long_turns_alone_do_not_wait_for_one_another() {
        let mut rig = Rig::new();
        let long: Vec<_> = (0..2).map(|_| rig.add(1_000_000, true, 0)).collect();
        rig.run(1_000_000_000);
        for turns in &long {
            assert!(turns.get() > 490, "{}", turns.get());
        }
        assert_eq!(rig.0.take_skipped(), 0);
    }

    #[test]
    fn several_with_long_turns_share_with_a_neighbour() {
        let mut rig = Rig::new();
        let long: Vec<_> = (0..3).map(|_| rig.add(1_000_000, true, 0)).collect();
        let short = rig.add(2_000, true, 20_000);
        rig.run(1_000_000_000);
        for turns in &long {
            assert!((150..350).contains(&turns.get()), "{}", turns.get());
        }
        assert!(short.get() > 9_000, "{}", short.get());
    }

    #[test]
    fn time_without_the_core_is_not_owed() {
        let mut rig = Rig::new();
        let long = rig.add(1_000_000, false, 0);
        let _short = rig.add(2_000, true, 20_000);
        rig.run(1_000_000_000);
        assert!(long.get() > 950, "{}", long.get());
        assert_eq!(rig.0.take_skipped(), 0);
    }

    #[test]
    fn one_long_turn_is_owed_up_to_a_limit() {
        let mut rig = Rig::new();
        let long = rig.add(500_000_000, true, 0);
        let short = rig.add(2_000, true, 20_000);
        rig.run(2_000_000_000);
        // 20 ms of each 520 are the neighbour's.
        assert!((3..5).contains(&long.get()), "{}", long.get());
        assert!((1_500..4_000).contains(&short.get()), "{}", short.get());
    }
}
