//! What to do when there is nothing to do.

use std::thread;
use std::time::{Duration, Instant};

/// After so many empty polls a rank looks whether another one wants its core, or a sidecore: at
/// first, and where somebody did want it: what a rank waits for may be what that one has to do.
const EMPTY_POLLS: u32 = 64;
const EMPTY_POLLS_SHARED: u32 = 4;
/// At the most where the domain has sidecores of its own. The system call costs about as much as
/// ten polls, MPI's own work included: one in 256 is little, and whoever comes to a core that was
/// a rank's alone waits some 20 us for it, in which a sidecore still takes the rank for one that
/// gives way.
const EMPTY_POLLS_MAX: u32 = 256;
/// Who has no sidecore to wait for and has found nobody by so many does not ask any more.
const EMPTY_POLLS_ALONE: u32 = 2048;
/// A yield that takes so long let somebody else run: this core is shared. One that finds nobody
/// takes 0.45 us; a sidecore that finds nothing to do is done after 2.
const SHARED_CORE: Duration = Duration::from_micros(1);

/// So many polls take less than a tenth of this. A rank that needed longer did not run meanwhile:
/// somebody else did, whose turn came by the kernel's clock.
const PREEMPTED_MIN: Duration = Duration::from_millis(1);

/// Counts polls that found nothing, and says when to let others run. Where nobody wants to, it is
/// asked for ever more rarely, and at last not at all: who has a core to itself polls without a
/// system call, and looks at the clock now and then (which is none) whether that is still so.
#[derive(Debug)]
pub(crate) struct IdlePolls {
    empty_polls: u32,
    yield_after: u32,
    /// When the clock was looked at, if all polls since were empty.
    looked: Option<Instant>,
    /// The domain's messages with other hosts go through sidecores, which may share this core.
    has_sidecores: bool,
}

impl IdlePolls {
    pub(crate) fn new() -> Self {
        Self { empty_polls: 0, yield_after: EMPTY_POLLS, looked: None, has_sidecores: false }
    }

    /// Sidecores of the domain wait for their turn as well: they are to be asked for for ever.
    pub(crate) fn note_sidecores(&mut self) {
        self.has_sidecores = true;
        self.yield_after = EMPTY_POLLS;
    }

    /// A poll found something.
    #[inline]
    pub(crate) fn found_something(&mut self) {
        self.empty_polls = 0;
        if let Some(looked) = self.looked.take() {
            self.found_after(looked, Instant::now());
        }
    }

    /// What was waited for has come. If somebody else had the core meanwhile, it may be just what
    /// that one did: two ranks on one core would else trade whole slices, and never see a gap.
    #[cold]
    fn found_after(&mut self, looked: Instant, now: Instant) {
        if now.duration_since(looked) >= PREEMPTED_MIN {
            self.yield_after = EMPTY_POLLS;
        }
    }

    /// A poll found nothing; whether others should run now (and `yielded` be told).
    #[inline]
    pub(crate) fn found_nothing(&mut self) -> bool {
        self.empty_polls += 1;
        self.empty_polls >= self.yield_after
            && (self.yield_after < EMPTY_POLLS_ALONE || self.was_preempted(Instant::now()))
    }

    /// Whether somebody else had the core since the last look at the clock.
    #[cold]
    fn was_preempted(&mut self, now: Instant) -> bool {
        self.empty_polls = 0;
        let looked = self.looked.replace(now);
        looked.is_some_and(|looked| now.duration_since(looked) >= PREEMPTED_MIN)
    }

    /// How long others ran.
    pub(crate) fn yielded(&mut self, took: Duration) {
        self.empty_polls = 0;
        self.looked = None;
        self.yield_after = if took >= SHARED_CORE {
            EMPTY_POLLS_SHARED
        } else {
            let most = if self.has_sidecores { EMPTY_POLLS_MAX } else { EMPTY_POLLS_ALONE };
            (self.yield_after * 2).min(most)
        };
    }
}

/// Lets others run, and says for how long.
pub(crate) fn let_others_run() -> Duration {
    let begun = Instant::now();
    thread::yield_now();
    begun.elapsed()
}

/// For so long a wait looks as often as it can, before it sleeps between looks.
const EAGER: Duration = Duration::from_micros(50);
/// How long it then sleeps where nothing wakes it.
pub(crate) const NAP: Duration = Duration::from_micros(50);

/// Looks until there is something, or for `timeout_ms` (for ever if it is negative). Between looks
/// it has `sleep` wait, for that long at most, once it seems that this takes a while.
pub(crate) fn wait_for<R>(
    timeout_ms: i32,
    mut look: impl FnMut() -> Option<R>,
    mut sleep: impl FnMut(Option<Duration>),
) -> Option<R> {
    let begun = Instant::now();
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        let waited = begun.elapsed();
        if timeout.is_some_and(|timeout| waited >= timeout) {
            return None;
        }
        if waited < EAGER {
            thread::yield_now();
        } else {
            sleep(timeout.map(|timeout| timeout - waited));
        }
    }
}

/// Sleeps where nothing wakes it.
pub(crate) fn nap(left: Option<Duration>) {
    thread::sleep(left.map_or(NAP, |left| left.min(NAP)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls_until_yield(idle: &mut IdlePolls) -> u32 {
        (1..).find(|_| idle.found_nothing()).expect("some day")
    }

    #[test]
    fn who_is_alone_on_a_core_yields_ever_more_rarely_and_who_is_not_often() {
        let mut idle = IdlePolls::new();
        assert_eq!(polls_until_yield(&mut idle), EMPTY_POLLS);
        idle.yielded(Duration::from_nanos(300));
        assert_eq!(polls_until_yield(&mut idle), 2 * EMPTY_POLLS);
        idle.yielded(SHARED_CORE);
        assert_eq!(polls_until_yield(&mut idle), EMPTY_POLLS_SHARED);
    }

    #[test]
    fn who_has_messages_by_sidecores_asks_for_ever() {
        let mut idle = IdlePolls::new();
        idle.note_sidecores();
        (0..20).for_each(|_| idle.yielded(Duration::from_nanos(300)));
        assert_eq!(polls_until_yield(&mut idle), EMPTY_POLLS_MAX);
    }

    #[test]
    fn who_has_a_core_to_itself_yields_when_somebody_else_had_it() {
        let mut idle = IdlePolls::new();
        (0..20).for_each(|_| idle.yielded(Duration::from_nanos(300)));
        assert_eq!(idle.yield_after, EMPTY_POLLS_ALONE);
        let (start, soon) = (Instant::now(), PREEMPTED_MIN / 10);
        assert!((0..100).all(|look| !idle.was_preempted(start + look * soon)), "nobody had");
        let late = start + 99 * soon + PREEMPTED_MIN;
        assert!(idle.was_preempted(late));
        idle.yielded(SHARED_CORE);
        assert_eq!(polls_until_yield(&mut idle), EMPTY_POLLS_SHARED);
        // What it did itself since the last look took time as well.
        (0..20).for_each(|_| idle.yielded(Duration::from_nanos(300)));
        assert!(!idle.was_preempted(late));
        idle.found_something();
        assert!(!idle.was_preempted(late + 2 * PREEMPTED_MIN));
    }

    #[test]
    fn what_comes_after_a_gap_begins_the_yields_anew() {
        let mut idle = IdlePolls::new();
        let start = Instant::now();
        (0..20).for_each(|_| idle.yielded(Duration::from_nanos(300)));
        idle.found_after(start, start + PREEMPTED_MIN / 2);
        assert_eq!(idle.yield_after, EMPTY_POLLS_ALONE);
        idle.found_after(start, start + PREEMPTED_MIN);
        assert_eq!(polls_until_yield(&mut idle), EMPTY_POLLS);
    }

    #[test]
    fn work_begins_the_count_anew() {
        let mut idle = IdlePolls::new();
        for _ in 1..EMPTY_POLLS {
            assert!(!idle.found_nothing());
        }
        idle.found_something();
        assert!(!idle.found_nothing());
    }

    #[test]
    fn a_wait_ends_with_what_it_waits_for_or_in_time() {
        let mut looks = 0;
        let look = || {
            looks += 1;
            (looks == 100).then_some("it")
        };
        assert_eq!(wait_for(-1, look, nap), Some("it"));
        assert_eq!(wait_for(1, || None::<()>, nap), None);
        assert_eq!(wait_for(0, || Some(1), nap), Some(1), "looks at least once");
        let mut longest = Duration::ZERO;
        let sleep = |left: Option<Duration>| longest = longest.max(left.expect("it has an end"));
        assert_eq!(wait_for(2, || None::<()>, sleep), None);
        assert!(longest <= Duration::from_millis(2));
    }
}
