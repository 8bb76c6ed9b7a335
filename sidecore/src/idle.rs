//! What a sidecore does when a round found nothing.

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

/// Adaptive, while it spins: so often it looks whether others want the core. A system call that
/// finds nobody takes half a microsecond; who answers within this time is never kept waiting by it.
const ASK_NS: u64 = 20_000;

/// A yield that takes so long let another thread run. One that finds nobody takes half of it.
const OTHERS_NS: u64 = 1_000;

/// How long the core counts as shared by threads that yield, once one was seen: they and the
/// sidecore then run by turns, a round each, since what they wait for may be what it has to do.
const SHARED_FOR_NS: u64 = 1_000_000;

/// Adaptive, until when it offers the core to others between rounds.
const YIELD_NS: u64 = 200_000;

/// Adaptive, until when it naps between rounds. Then notifications are armed and it sleeps: work
/// that comes so seldom can pay for a wake-up, and an idle sidecore costs nothing.
const NAP_NS: u64 = 1_000_000;

/// One nap: what it adds to a request is small beside the pause that came before.
const NAP_EACH_NS: u64 = 20_000;

/// An idle round, or a yield, that took longer than this was another thread's that does not give
/// way: what a scheduler gives away at a time is a millisecond and more. Threads that poll and
/// yield are back sooner.
const CONTENDED_GAP_NS: u64 = 500_000;

/// How long the core counts as contended once another thread was seen there. Spinning again after
/// that finds out whether it still is, at the price of one time slice: some 3 ms in 50.
const CONTENDED_FOR_NS: u64 = 50_000_000;

/// Adaptive on a contended core: time without work until it sleeps. A few rounds, for an answer
/// that is just arriving.
const CONTENDED_SPIN_NS: u64 = 2_000;

/// What to do before the next round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
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
    last_step: Step,
    idle_since_ns: u64,
    contended_until_ns: u64,
    shared_until_ns: u64,
    /// When it is looked next whether others want the core.
    ask_ns: u64,
}

impl Backoff {
    pub(crate) fn new(idle: Idle, now_ns: u64) -> Self {
        Self {
            idle,
            last_ns: now_ns,
            last_step: Step::Go,
            idle_since_ns: now_ns,
            contended_until_ns: 0,
            shared_until_ns: 0,
            ask_ns: now_ns + ASK_NS,
        }
    }

    /// A round begins. Says whether another thread was seen on this core since the last one.
    pub(crate) fn begin(&mut self, now_ns: u64) -> bool {
        let gap_ns = now_ns.saturating_sub(self.last_ns);
        let awake_and_idle = matches!(self.last_step, Step::Spin | Step::Yield);
        let contended = awake_and_idle && gap_ns > CONTENDED_GAP_NS;
        if contended {
            self.contended_until_ns = now_ns + CONTENDED_FOR_NS;
        }
        self.last_ns = now_ns;
        contended
    }

    /// The round that began at `now_ns` has ended.
    pub(crate) fn end(&mut self, progress: Progress, now_ns: u64) -> Step {
        if progress.is_busy() {
            (self.idle_since_ns, self.ask_ns) = (now_ns, now_ns + ASK_NS);
            self.last_step = Step::Go;
            return Step::Go;
        }
        let idle_ns = now_ns.saturating_sub(self.idle_since_ns);
        let step = match self.idle {
            Idle::Spin => Step::Spin,
            Idle::Sleep => Step::Sleep,
            Idle::Adaptive => self.adapt(idle_ns, now_ns),
        };
        self.last_step = step;
        step
    }

    /// A yield has let others run for so long, until `now_ns`.
    pub(crate) fn yielded(&mut self, took_ns: u64, now_ns: u64) {
        self.ask_ns = now_ns + ASK_NS;
        if (OTHERS_NS..CONTENDED_GAP_NS).contains(&took_ns) {
            self.shared_until_ns = now_ns + SHARED_FOR_NS;
        }
    }

    fn adapt(&self, idle_ns: u64, now_ns: u64) -> Step {
        if now_ns < self.contended_until_ns {
            return if idle_ns < CONTENDED_SPIN_NS { Step::Spin } else { Step::Sleep };
        }
        match idle_ns {
            // Two that wait for each other's threads alone would else never sleep.
            ..NAP_NS if now_ns < self.shared_until_ns => Step::Yield,
            ..SPIN_NS if now_ns >= self.ask_ns => Step::Yield,
            ..SPIN_NS => Step::Spin,
            SPIN_NS..YIELD_NS => Step::Yield,
            YIELD_NS..NAP_NS => Step::Nap(NAP_EACH_NS),
            NAP_NS.. => Step::Sleep,
        }
    }

    /// Whether nothing but looking again follows a round without work.
    pub(crate) fn is_spinning(&self) -> bool {
        self.last_step == Step::Spin
    }

    /// What followed the last round.
    pub(crate) fn last_step(&self) -> Step {
        self.last_step
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle_round(backoff: &mut Backoff, now_ns: u64) -> Step {
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
            if step == Step::Yield {
                backoff.yielded(OTHERS_NS / 2, now_ns);
            }
            if step == Step::Yield && now_ns < SPIN_NS {
                // It asks whether others want the core.
            } else if seen.last() != Some(&step) {
                seen.push(step);
            }
            if step == Step::Sleep {
                break;
            }
            now_ns += 1_000;
        }
        assert_eq!(seen, [Step::Spin, Step::Yield, Step::Nap(NAP_EACH_NS), Step::Sleep]);
        assert_eq!(now_ns, NAP_NS);
        assert_eq!(backoff.end(Progress::Busy, now_ns), Step::Go);
        assert_eq!(idle_round(&mut backoff, now_ns + 1_000), Step::Spin);
    }

    #[test]
    fn a_wake_up_without_work_sleeps_again_at_once() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        assert_eq!(idle_round(&mut backoff, NAP_NS), Step::Sleep);
        assert_eq!(idle_round(&mut backoff, 70 * NAP_NS), Step::Sleep);
    }

    #[test]
    fn on_a_contended_core_adaptive_sleeps_almost_at_once_and_later_tries_again() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        assert_eq!(idle_round(&mut backoff, 10_000), Step::Spin);
        let seen_ns = 10_000 + 3_000_000;
        assert!(backoff.begin(seen_ns), "3 ms were lost in an idle round");
        assert_eq!(backoff.end(Progress::Busy, seen_ns), Step::Go);
        assert_eq!(idle_round(&mut backoff, seen_ns + 1_000), Step::Spin);
        assert_eq!(idle_round(&mut backoff, seen_ns + CONTENDED_SPIN_NS), Step::Sleep);
        let later_ns = seen_ns + CONTENDED_FOR_NS;
        assert!(!backoff.begin(later_ns), "time asleep is not a sign of others");
        assert_eq!(backoff.end(Progress::Busy, later_ns), Step::Go);
        assert_eq!(idle_round(&mut backoff, later_ns + CONTENDED_SPIN_NS), Step::Spin);
    }

    #[test]
    fn on_a_core_of_threads_that_yield_it_takes_turns_with_them() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        assert_eq!(idle_round(&mut backoff, ASK_NS - 1), Step::Spin);
        assert_eq!(idle_round(&mut backoff, ASK_NS), Step::Yield, "it asks");
        backoff.yielded(OTHERS_NS / 2, ASK_NS + 500);
        assert_eq!(idle_round(&mut backoff, ASK_NS + 600), Step::Spin, "nobody");
        let seen_ns = 3 * ASK_NS;
        assert_eq!(idle_round(&mut backoff, seen_ns), Step::Yield);
        backoff.yielded(OTHERS_NS, seen_ns);
        assert_eq!(idle_round(&mut backoff, seen_ns + 1), Step::Yield, "somebody");
        // Until none was seen for a while, and with work in between never less.
        let later_ns = seen_ns + SPIN_NS;
        assert_eq!(backoff.end(Progress::Busy, later_ns), Step::Go);
        assert_eq!(backoff.end(Progress::Idle, later_ns + 1), Step::Yield);
        let over_ns = seen_ns + SHARED_FOR_NS;
        assert_eq!(backoff.end(Progress::Busy, over_ns), Step::Go);
        assert_eq!(backoff.end(Progress::Idle, over_ns + 1), Step::Spin);
        // Nor for ever, if there is nothing to do.
        backoff.yielded(OTHERS_NS, over_ns + NAP_NS - 1);
        assert_eq!(backoff.end(Progress::Idle, over_ns + NAP_NS - 1), Step::Yield);
        assert_eq!(backoff.end(Progress::Idle, over_ns + NAP_NS), Step::Sleep);
    }

    #[test]
    fn a_long_round_with_work_is_not_a_sign_of_others() {
        let mut backoff = Backoff::new(Idle::Adaptive, 0);
        backoff.begin(0);
        assert_eq!(backoff.end(Progress::Busy, 0), Step::Go);
        assert!(!backoff.begin(CONTENDED_GAP_NS * 10));
    }

    #[test]
    fn spin_never_sleeps_and_sleep_never_spins() {
        let mut spin = Backoff::new(Idle::Spin, 0);
        let mut sleep = Backoff::new(Idle::Sleep, 0);
        for now_ns in (0..10 * NAP_NS).step_by(10_000) {
            assert_eq!(idle_round(&mut spin, now_ns), Step::Spin);
            assert_eq!(idle_round(&mut sleep, now_ns), Step::Sleep);
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
