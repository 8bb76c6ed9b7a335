//! Polls that find nothing: when a rank gives its core to other threads, and waits that end in
//! time.

use std::thread;
use std::time::{Duration, Instant};

/// A rank yields its core after so many empty polls: at first, and again when another thread has
/// had the core.
const EMPTY_POLLS: u32 = 64;
/// The same on a core that is shared: the rank may wait for work of the other thread.
const EMPTY_POLLS_SHARED: u32 = 4;
/// The same at most, where the domain has sidecores. The system call costs about as much as ten
/// polls with MPI's own work, so one yield in 256 polls is cheap. A sidecore that comes to the
/// rank's core waits some 20 us for it, which is short enough for the sidecore to see that the rank
/// yields.
const EMPTY_POLLS_MAX: u32 = 256;
/// Where the domain has no sidecores, a rank whose yields have become as rare as this yields no
/// more. After so many empty polls it looks at the clock instead.
const EMPTY_POLLS_ALONE: u32 = 2048;
/// If a yield takes so long, another thread ran: the core is shared. A yield that finds no other
/// thread takes 0.45 us. A sidecore that finds nothing to do gives the core back after 2 us.
const SHARED_CORE: Duration = Duration::from_micros(1);

/// If [`EMPTY_POLLS_ALONE`] polls take so long, the kernel has given the core to another thread
/// meanwhile: the polls themselves take less than a tenth of it.
const PREEMPTED_MIN: Duration = Duration::from_millis(1);

/// Counts polls that found nothing, and says when the rank yields its core. While no other thread
/// wants the core, yields get ever rarer and stop at last. A rank that has a core to itself polls
/// without a system call. It looks at the clock now and then, which is no system call, whether
/// another thread has had the core.
#[derive(Debug)]
pub(crate) struct IdlePolls {
    empty_polls: u32,
    /// The number of empty polls before the next yield.
    yield_after: u32,
    /// The time of the last look at the clock, if all polls since were empty.
    looked: Option<Instant>,
    /// The domain's messages with other hosts go through sidecores, which may share this core.
    has_sidecores: bool,
}

impl IdlePolls {
    pub(crate) fn new() -> Self {
        Self { empty_polls: 0, yield_after: EMPTY_POLLS, looked: None, has_sidecores: false }
    }

    /// The domain has sidecores, which may wait for this core: the rank never stops yielding.
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

    /// A poll found something after polls in vain. If another thread had the core meanwhile, it may
    /// have made just this: then the rank yields again. Else two ranks on one core would take
    /// turns by the kernel's time slices, and [`Self::was_preempted`] would see no gap.
    #[cold]
    fn found_after(&mut self, looked: Instant, now: Instant) {
        if now.duration_since(looked) >= PREEMPTED_MIN {
            self.yield_after = EMPTY_POLLS;
        }
    }

    /// A poll found nothing. Returns whether the rank yields now; the caller passes the time that
    /// the yield took to [`Self::yielded`].
    #[inline]
    pub(crate) fn found_nothing(&mut self) -> bool {
        self.empty_polls += 1;
        self.empty_polls >= self.yield_after
            && (self.yield_after < EMPTY_POLLS_ALONE || self.was_preempted(Instant::now()))
    }

    /// Whether another thread had the core since the last look at the clock.
    #[cold]
    fn was_preempted(&mut self, now: Instant) -> bool {
        self.empty_polls = 0;
        let looked = self.looked.replace(now);
        looked.is_some_and(|looked| now.duration_since(looked) >= PREEMPTED_MIN)
    }

    /// The rank has yielded, and had its core back after so long.
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

/// Yields the core, and returns how long other threads had it.
pub(crate) fn yield_core() -> Duration {
    let begun = Instant::now();
    thread::yield_now();
    begun.elapsed()
}

/// A wait looks as often as it can for so long. After that it sleeps between looks.
const POLL_BEFORE_SLEEP: Duration = Duration::from_micros(50);
/// How long a wait sleeps between looks where nothing wakes it.
pub(crate) const NAP: Duration = Duration::from_micros(50);

/// Looks until `look` finds something, or for `timeout_ms` (for ever if it is negative). After the
/// first looks it calls `sleep` between looks, with the time that is left.
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
        if waited < POLL_BEFORE_SLEEP {
            thread::yield_now();
        } else {
            sleep(timeout.map(|timeout| timeout - waited));
        }
    }
}

/// Sleeps between two looks where nothing wakes the thread.
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
    fn a_rank_alone_on_a_core_yields_ever_more_rarely_and_others_often() {
        let mut idle = IdlePolls::new();
        assert_eq!(polls_until_yield(&mut idle), EMPTY_POLLS);
        idle.yielded(Duration::from_nanos(300));
        assert_eq!(polls_until_yield(&mut idle), 2 * EMPTY_POLLS);
        idle.yielded(SHARED_CORE);
        assert_eq!(polls_until_yield(&mut idle), EMPTY_POLLS_SHARED);
    }

    #[test]
    fn a_rank_with_sidecores_never_stops_yielding() {
        let mut idle = IdlePolls::new();
        idle.note_sidecores();
        (0..20).for_each(|_| idle.yielded(Duration::from_nanos(300)));
        assert_eq!(polls_until_yield(&mut idle), EMPTY_POLLS_MAX);
    }

    #[test]
    fn a_rank_alone_on_a_core_yields_when_another_thread_had_it() {
        let mut idle = IdlePolls::new();
        (0..20).for_each(|_| idle.yielded(Duration::from_nanos(300)));
        assert_eq!(idle.yield_after, EMPTY_POLLS_ALONE);
        let (start, soon) = (Instant::now(), PREEMPTED_MIN / 10);
        assert!(
            (0..100).all(|look| !idle.was_preempted(start + look * soon)),
            "no other thread had it"
        );
        let late = start + 99 * soon + PREEMPTED_MIN;
        assert!(idle.was_preempted(late));
        idle.yielded(SHARED_CORE);
        assert_eq!(polls_until_yield(&mut idle), EMPTY_POLLS_SHARED);
        // Time in which the rank worked since the last look is no preemption.
        (0..20).for_each(|_| idle.yielded(Duration::from_nanos(300)));
        assert!(!idle.was_preempted(late));
        idle.found_something();
        assert!(!idle.was_preempted(late + 2 * PREEMPTED_MIN));
    }

    #[test]
    fn a_message_after_a_gap_begins_the_yields_anew() {
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
    fn a_wait_ends_with_a_find_or_in_time() {
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
