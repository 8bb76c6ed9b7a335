//! The idle policy: the step of a sidecore after a round without work.

use std::fmt;
use std::str::FromStr;

use crate::Progress;

/// How a sidecore spends the time without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Idle {
    /// Polls for ever: the lowest latency, a whole core always.
    Spin,
    /// Spins while there is work and a little longer, backs off, then sleeps. Gives way at once
    /// where other threads want the core.
    #[default]
    Adaptive,
    /// Sleeps as soon as a round found nothing: the classic notification-driven back end.
    Sleep,
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spin => "spin",
            Self::Adaptive => "adaptive",
            Self::Sleep => "sleep",
        })
    }
}

/// The word is none of `spin`, `adaptive`, `sleep`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a way to idle; choose \"spin\", \"adaptive\" or \"sleep\"")]
pub struct ParseIdleError(String);

impl FromStr for Idle {
    type Err = ParseIdleError;

    fn from_str(word: &str) -> Result<Self, ParseIdleError> {
        [Self::Spin, Self::Adaptive, Self::Sleep]
            .into_iter()
            .find(|idle| idle.to_string() == word)
            .ok_or_else(|| ParseIdleError(word.to_owned()))
    }
}

/// Adaptive, time without work until when it spins. About what a sleep and a wake-up across cores
/// cost (50 to 85 us were measured in a virtual machine), so that spinning never costs more than
/// twice the better choice; and about the round trip of a remote request, so that a guest with one
/// request at a time does not pay for notifications.
const SPIN_NS: u64 = 100_000;

/// Adaptive, while the sidecore spins: the time between two yields, which show whether other
/// threads want the core. A yield takes half a microsecond when no other thread is waiting. A
/// request whose answer comes within this time is never delayed by a yield.
const ASK_NS: u64 = 20_000;

/// A yield that takes this long or longer let another thread run. A yield takes half of that time
/// when no other thread is waiting, and little more when an MPI rank ran and looked for a message
/// only a few times. If such a rank counted as no thread at all, it would have to wait for
/// [`ASK_NS`] each time.
const OTHERS_NS: u64 = 800;

/// A yield that takes longer than this let a thread run that does more than look for work, such as
/// a guest's processor. Such a thread may halt, and then does not wait for the sidecore's work. The
/// longest series of looks of an MPI rank is 20 us.
const OTHERS_NS_MAX: u64 = 100_000;

/// How long the core counts as shared by threads that yield, once one was seen: they and the
/// sidecore then run by turns, a round each, since what they wait for may be what it has to do.
const SHARED_FOR_NS: u64 = 1_000_000;

/// Adaptive, until when it offers the core to others between rounds.
const YIELD_NS: u64 = 200_000;

/// Adaptive, until when it naps between rounds. Then notifications are armed and it sleeps: work
/// that comes so seldom can pay for a wake-up, and an idle sidecore costs nothing.
const NAP_NS: u64 = 1_000_000;

/// The length of one nap. It adds little to a request in comparison with the pause before the
/// request.
const NAP_EACH_NS: u64 = 20_000;

/// An idle round or a yield that took longer than this was another thread's time, and that thread
/// does not give way: a time slice of the scheduler is a millisecond or more. Threads that poll and
/// yield are back sooner.
const CONTENDED_GAP_NS: u64 = 500_000;

/// How long the core counts as contended after another thread was seen there. The time doubles each
/// time that the thread is seen again, up to the longer time. Spinning afterwards finds out whether
/// the core is still contended, at the price of one time slice: some 3 ms in 50. A thread that is
/// seen once, such as a daemon that had something to do, is gone after the shorter time. Sleeping
/// for longer would cost each message two wake-ups.
const CONTENDED_FOR_MIN_NS: u64 = 1_000_000;
const CONTENDED_FOR_MAX_NS: u64 = 50_000_000;

/// The time is halved for each such period in which no other thread was seen.
const CONTENDED_HALF_NS: u64 = 20_000_000;

/// Adaptive on a contended core: time without work until it sleeps. A few rounds, for an answer
/// that is just arriving.
const CONTENDED_SPIN_NS: u64 = 2_000;

/// The step before the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleStep {
    /// There was work: go on.
    Go,
    /// Look again after a pause of the pipeline.
    Spin,
    /// Let another thread of this core run, if there is one.
    Yield,
    /// Sleep for so many nanoseconds without arming anything.
    Nap(u64),
    /// Arm and sleep until there is something.
    Sleep,
}

/// Decides the steps. Pure: the clock comes in.
#[derive(Debug)]
pub(crate) struct Backoff {
    idle: Idle,
    /// The round before this one: when it began and what followed it.
    last_ns: u64,
    last_step: IdleStep,
    was_busy: bool,
    idle_since_ns: u64,
    contended_until_ns: u64,
    contended_for_ns: u64,
    shared_until_ns: u64,
    /// When it is looked next whether others want the core.
    ask_ns: u64,
}

impl Backoff {
    pub(crate) fn new(idle: Idle, now_ns: u64) -> Self {
        Self {
            idle,
            last_ns: now_ns,
            last_step: IdleStep::Sleep,
            was_busy: false,
            idle_since_ns: now_ns,
            contended_until_ns: 0,
            contended_for_ns: 0,
            shared_until_ns: 0,
            ask_ns: now_ns + ASK_NS,
        }
    }

    /// A round begins. Says whether another thread was seen on this core since the last one.
    pub(crate) fn begin(&mut self, now_ns: u64) -> bool {
        let gap_ns = now_ns.saturating_sub(self.last_ns);
        let awake_and_idle =
            matches!(self.last_step, IdleStep::Spin | IdleStep::Yield) && !self.was_busy;
        let contended = awake_and_idle && gap_ns > CONTENDED_GAP_NS;
        if contended {
            self.leave(now_ns);
        }
        self.last_ns = now_ns;
        if self.was_busy {
            // The round with work may have been a long one, so the idle time starts here.
            (self.idle_since_ns, self.ask_ns) = (now_ns, now_ns + ASK_NS);
        }
        contended
    }

    /// Another thread had the core for long. It now has the core to itself for a while.
    fn leave(&mut self, now_ns: u64) {
        let free_ns = now_ns.saturating_sub(self.contended_until_ns);
        let halves = (free_ns / CONTENDED_HALF_NS).min(63);
        let for_ns = (2 * self.contended_for_ns) >> halves;
        self.contended_for_ns = for_ns.clamp(CONTENDED_FOR_MIN_NS, CONTENDED_FOR_MAX_NS);
        self.contended_until_ns = now_ns + self.contended_for_ns;
    }

    /// The round that began at `now_ns` has ended.
    pub(crate) fn end(&mut self, progress: Progress, now_ns: u64) -> IdleStep {
        self.was_busy = progress.is_busy();
        if self.was_busy {
            // A thread that waits for the result runs at once, not after a round that finds
            // nothing.
            let takes_turns = self.idle == Idle::Adaptive
                && (self.contended_until_ns..self.shared_until_ns).contains(&now_ns);
            self.last_step = if takes_turns { IdleStep::Yield } else { IdleStep::Go };
            return self.last_step;
        }
        let idle_ns = now_ns.saturating_sub(self.idle_since_ns);
        let step = match self.idle {
            Idle::Spin => IdleStep::Spin,
            Idle::Sleep => IdleStep::Sleep,
            Idle::Adaptive => self.adapt(idle_ns, now_ns),
        };
        self.last_step = step;
        step
    }

    /// A yield has let others run for so long, until `now_ns`. Says whether one of them keeps the
    /// core, where the next round cannot see that, since there was work in the last one.
    pub(crate) fn yielded(&mut self, took_ns: u64, now_ns: u64) -> bool {
        self.ask_ns = now_ns + ASK_NS;
        if (OTHERS_NS..OTHERS_NS_MAX).contains(&took_ns) {
            self.shared_until_ns = now_ns + SHARED_FOR_NS;
        }
        let contended = self.was_busy && took_ns > CONTENDED_GAP_NS;
        if contended {
            self.leave(now_ns);
        }
        contended
    }

    fn adapt(&self, idle_ns: u64, now_ns: u64) -> IdleStep {
        if now_ns < self.contended_until_ns {
            return if idle_ns < CONTENDED_SPIN_NS { IdleStep::Spin } else { IdleStep::Sleep };
        }
        match idle_ns {
            // Two that wait for each other's threads alone would else never sleep.
            ..NAP_NS if now_ns < self.shared_until_ns => IdleStep::Yield,
            ..SPIN_NS if now_ns >= self.ask_ns => IdleStep::Yield,
            ..SPIN_NS => IdleStep::Spin,
            SPIN_NS..YIELD_NS => IdleStep::Yield,
            YIELD_NS..NAP_NS => IdleStep::Nap(NAP_EACH_NS),
            NAP_NS.. => IdleStep::Sleep,
        }
    }

    /// Whether nothing but looking again follows a round without work.
    pub(crate) fn is_spinning(&self) -> bool {
        self.last_step == IdleStep::Spin
    }

    /// Whether the last round had work.
    pub(crate) fn was_busy(&self) -> bool {
        self.was_busy
    }

    /// The step that followed the last round.
    pub(crate) fn last_step(&self) -> IdleStep {
        self.last_step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle_round(backoff: &mut Backoff, now_ns: u64) -> IdleStep {
        backoff.begin(now_ns);
        backoff.end(Progress::Idle, now_ns)
    }

    #[test]
    fn adaptive_spins_yields_naps_and_sleeps_and_starts_over_after_work() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        let mut now_ns = 0;
        let mut seen = Vec::new();
        loop {
            let step = idle_round(&mut backoff, now_ns);
            if step == IdleStep::Yield {
                backoff.yielded(OTHERS_NS / 2, now_ns);
            }
            if step == IdleStep::Yield && now_ns < SPIN_NS {
                // It asks whether others want the core.
            } else if seen.last() != Some(&step) {
                seen.push(step);
            }
            if step == IdleStep::Sleep {
                break;
            }
            now_ns += 1_000;
        }
        assert_eq!(
            seen,
            [IdleStep::Spin, IdleStep::Yield, IdleStep::Nap(NAP_EACH_NS), IdleStep::Sleep]
        );
        assert_eq!(now_ns, NAP_NS);
        assert_eq!(backoff.end(Progress::Busy, now_ns), IdleStep::Go);
        assert_eq!(idle_round(&mut backoff, now_ns + 1_000), IdleStep::Spin);
    }

    #[test]
    fn a_wake_up_without_work_sleeps_again_at_once() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        assert_eq!(idle_round(&mut backoff, NAP_NS), IdleStep::Sleep);
        assert_eq!(idle_round(&mut backoff, 70 * NAP_NS), IdleStep::Sleep);
    }

    #[test]
    fn on_a_contended_core_adaptive_sleeps_almost_at_once_and_later_tries_again() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        assert_eq!(idle_round(&mut backoff, 10_000), IdleStep::Spin);
        let seen_ns = 10_000 + 3_000_000;
        assert!(backoff.begin(seen_ns), "3 ms were lost in an idle round");
        assert_eq!(backoff.end(Progress::Busy, seen_ns), IdleStep::Go);
        assert_eq!(idle_round(&mut backoff, seen_ns + 1_000), IdleStep::Spin);
        assert_eq!(idle_round(&mut backoff, seen_ns + 1_000 + CONTENDED_SPIN_NS), IdleStep::Sleep);
        let later_ns = seen_ns + CONTENDED_FOR_MIN_NS;
        assert!(!backoff.begin(later_ns), "time asleep is not a sign of others");
        assert_eq!(backoff.end(Progress::Busy, later_ns), IdleStep::Go);
        assert_eq!(idle_round(&mut backoff, later_ns + CONTENDED_SPIN_NS), IdleStep::Spin);
    }

    #[test]
    fn a_thread_seen_again_has_the_core_for_longer_each_time() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        let mut now_ns = 0;
        let mut seen = |pause_ns: u64| {
            now_ns += pause_ns;
            assert_eq!(backoff.end(Progress::Busy, now_ns), IdleStep::Go);
            assert_eq!(idle_round(&mut backoff, now_ns + 1), IdleStep::Spin);
            now_ns += 3_000_000;
            assert!(backoff.begin(now_ns));
            let left_ns = backoff.contended_until_ns - now_ns;
            now_ns += left_ns;
            left_ns
        };
        let longer: Vec<_> = (0..8).map(|_| seen(1_000)).collect();
        let ms = |ms: u64| ms * 1_000_000;
        assert_eq!(longer, [1, 2, 4, 8, 16, 32, 50, 50].map(ms));
        assert_eq!(seen(2 * CONTENDED_HALF_NS), ms(25), "it was gone for a while");
        assert_eq!(seen(200 * CONTENDED_HALF_NS), CONTENDED_FOR_MIN_NS, "and for long");
    }

    #[test]
    fn on_a_core_of_threads_that_yield_it_takes_turns_with_them() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        assert_eq!(idle_round(&mut backoff, ASK_NS - 1), IdleStep::Spin);
        assert_eq!(idle_round(&mut backoff, ASK_NS), IdleStep::Yield, "it asks");
        backoff.yielded(OTHERS_NS / 2, ASK_NS + 500);
        assert_eq!(idle_round(&mut backoff, ASK_NS + 600), IdleStep::Spin, "nobody");
        let seen_ns = 3 * ASK_NS;
        assert_eq!(idle_round(&mut backoff, seen_ns), IdleStep::Yield);
        backoff.yielded(OTHERS_NS, seen_ns);
        assert_eq!(idle_round(&mut backoff, seen_ns + 1), IdleStep::Yield, "somebody");
        // Until none was seen for a while, and with work in between never less.
        let later_ns = seen_ns + SPIN_NS;
        assert_eq!(backoff.end(Progress::Busy, later_ns), IdleStep::Yield, "a round each");
        assert!(!backoff.yielded(OTHERS_NS / 2, later_ns));
        assert_eq!(idle_round(&mut backoff, later_ns + 1), IdleStep::Yield);
        let over_ns = seen_ns + SHARED_FOR_NS;
        assert_eq!(backoff.end(Progress::Busy, over_ns), IdleStep::Go);
        assert_eq!(idle_round(&mut backoff, over_ns), IdleStep::Spin);
        // Nor for ever, if there is nothing to do.
        backoff.yielded(OTHERS_NS, over_ns + NAP_NS - 1);
        assert_eq!(backoff.end(Progress::Idle, over_ns + NAP_NS - 1), IdleStep::Yield);
        assert_eq!(backoff.end(Progress::Idle, over_ns + NAP_NS), IdleStep::Sleep);
    }

    #[test]
    fn a_thread_that_keeps_the_core_after_a_round_is_seen() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        assert!(!backoff.yielded(OTHERS_NS, 1));
        backoff.begin(10);
        assert_eq!(backoff.end(Progress::Busy, 10), IdleStep::Yield);
        // The round itself took long; others did not.
        assert!(!backoff.yielded(OTHERS_NS, 2 * CONTENDED_GAP_NS));
        assert!(!backoff.begin(2 * CONTENDED_GAP_NS));
        let busy_ns = 2 * CONTENDED_GAP_NS;
        assert_eq!(backoff.end(Progress::Busy, busy_ns), IdleStep::Yield);
        assert!(backoff.yielded(3_000_000, busy_ns + 3_000_000));
        let after_ns = busy_ns + 3_000_000;
        assert!(!backoff.begin(after_ns), "it was seen already");
        assert_eq!(backoff.end(Progress::Busy, after_ns), IdleStep::Go, "no turns with that one");
    }

    #[test]
    fn a_long_round_with_work_is_not_a_sign_of_others() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        backoff.begin(0);
        assert_eq!(backoff.end(Progress::Busy, 0), IdleStep::Go);
        assert!(!backoff.begin(CONTENDED_GAP_NS * 10));
    }

    #[test]
    fn after_a_long_round_with_work_the_next_request_has_its_time() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        for begun_ns in [0, 2 * SPIN_NS] {
            backoff.begin(begun_ns);
            assert_eq!(backoff.end(Progress::Busy, begun_ns), IdleStep::Go);
            let ended_ns = begun_ns + SPIN_NS + ASK_NS;
            assert_eq!(idle_round(&mut backoff, ended_ns), IdleStep::Spin);
            assert_eq!(idle_round(&mut backoff, ended_ns + ASK_NS - 1), IdleStep::Spin);
            assert_eq!(idle_round(&mut backoff, ended_ns + ASK_NS), IdleStep::Yield, "it asks");
            backoff.yielded(OTHERS_NS / 2, ended_ns + ASK_NS);
        }
    }

    #[test]
    fn a_thread_that_runs_long_and_halts_does_not_take_turns() {
        for (took_ns, step) in
            [(OTHERS_NS_MAX - 1, IdleStep::Yield), (OTHERS_NS_MAX, IdleStep::Spin)]
        {
            let mut backoff = Backoff::new(Idle::Adaptive, 0);
            assert_eq!(idle_round(&mut backoff, ASK_NS), IdleStep::Yield);
            backoff.yielded(took_ns, ASK_NS + 1);
            assert_eq!(idle_round(&mut backoff, ASK_NS + 2), step, "{took_ns}");
        }
    }

    #[test]
    fn spin_never_sleeps_and_sleep_never_spins() {
        let mut spin = Backoff::new(Idle::Spin, 0);
        let mut sleep = Backoff::new(Idle::Sleep, 0);
        for now_ns in (0..10 * NAP_NS).step_by(10_000) {
            assert_eq!(idle_round(&mut spin, now_ns), IdleStep::Spin);
            assert_eq!(idle_round(&mut sleep, now_ns), IdleStep::Sleep);
        }
    }

    #[test]
    fn the_three_words_are_read_and_others_are_named() {
        for idle in [Idle::Spin, Idle::Adaptive, Idle::Sleep] {
            assert_eq!(idle.to_string().parse(), Ok(idle));
        }
        let error = "doze".parse::<Idle>().unwrap_err();
        assert!(error.to_string().contains("`doze`"));
    }
}
