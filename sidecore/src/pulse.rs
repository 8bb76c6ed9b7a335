//! A sidecore's report to a watchdog: one word, stored before each call of a poller.
//!
//! A sidecore that hangs in a system call or a page fault cannot report any more. So it reports the
//! poller beforehand, for each call: a relaxed store to a cache line that no other thread writes.
//! The count of rounds and this word show another thread that a round does not end, and in which
//! poller.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};

use crate::Padded;

/// Waits for a descriptor, a deadline or its bell, with nothing to do.
const ASLEEP: u64 = u64::MAX;
/// Runs a closure that was posted to it.
const MAIL: u64 = u64::MAX - 1;
/// Runs what a poller left for the end of the round.
const LATER: u64 = u64::MAX - 2;
/// Runs a closure that has said what it changes.
const NAMED_MAIL: u64 = u64::MAX - 4;
/// Between two rounds: the idle policy, and the loop itself.
const BETWEEN: u64 = u64::MAX - 3;

/// The present activity of a sidecore. Pollers are numbered from 0; a number never reaches 2^64 -
/// 5.
#[derive(Debug)]
pub(crate) struct Pulse {
    doing: Padded<AtomicU64>,
    /// The labels of pollers, by number, and the object that the last named closure changes.
    /// Changed when pollers come and go, read by a watchdog.
    labels: Mutex<BTreeMap<u64, String>>,
    /// The system's number of the thread; 0 before it runs.
    pub(crate) thread: AtomicI32,
    /// A watchdog has found that the round does not end.
    pub(crate) stuck: AtomicBool,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self {
            doing: Padded(AtomicU64::new(BETWEEN)),
            labels: Mutex::default(),
            thread: AtomicI32::new(0),
            stuck: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn polls(&self, number: u64) {
        self.doing.store(number, Relaxed);
    }

    pub(crate) fn sleeps(&self) {
        self.doing.store(ASLEEP, Relaxed);
    }

    pub(crate) fn runs_mail(&self) {
        self.doing.store(MAIL, Relaxed);
    }

    /// Says what the closure that runs changes; nothing elsewhere.
    pub(crate) fn changes(&self, label: impl FnOnce() -> String) {
        if self.doing.load(Relaxed) == MAIL {
            self.named(NAMED_MAIL, label());
            self.doing.store(NAMED_MAIL, Relaxed);
        }
    }

    pub(crate) fn runs_later(&self) {
        self.doing.store(LATER, Relaxed);
    }

    pub(crate) fn is_between(&self) {
        self.doing.store(BETWEEN, Relaxed);
    }

    pub(crate) fn named(&self, number: u64, label: String) {
        self.labels().insert(number, label);
    }

    pub(crate) fn forget(&self, number: u64) {
        self.labels().remove(&number);
    }

    pub(crate) fn look(&self, rounds: u64, has_mail: bool) -> PulseView {
        PulseView { rounds, doing: self.doing.load(Relaxed), has_mail }
    }

    /// A look in words.
    pub(crate) fn explain(&self, look: &PulseView) -> String {
        match look.doing {
            ASLEEP => "sleeping and not waking for its mail".to_owned(),
            MAIL => "in a change of its pollers".to_owned(),
            NAMED_MAIL => format!("in a change to {}", self.label(NAMED_MAIL).unwrap_or_default()),
            LATER => "at the end of a round".to_owned(),
            BETWEEN => "between two rounds".to_owned(),
            number => {
                let label = self.label(number);
                format!("serving {}", label.as_deref().unwrap_or("a poller that was removed since"))
            }
        }
    }

    fn label(&self, number: u64) -> Option<String> {
        self.labels().get(&number).cloned()
    }

    fn labels(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        self.labels.lock()
    }
}

/// The state of a sidecore that another thread sees at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PulseView {
    rounds: u64,
    doing: u64,
    has_mail: bool,
}

impl PulseView {
    /// Whether nothing moved between the two. Mail comes without the sidecore's doing.
    fn is_as(&self, other: &Self) -> bool {
        (self.rounds, self.doing) == (other.rounds, other.doing)
    }

    /// Whether it sleeps with nothing to do, as it may for ever.
    pub fn is_at_rest(&self) -> bool {
        self.doing == ASLEEP && !self.has_mail
    }
}

/// The system's report on a sidecore's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLook {
    /// The thread has a core or waits for the scheduler to give it one.
    pub runnable: bool,
    /// How long it has had a core since it was started.
    pub ran_ns: u64,
}

/// How many looks one after the other have to find a thread blocked in the same round. Looks are
/// counted, not time: while the whole process is stopped, or the watchdog itself gets no core, no
/// looks are made.
const BLOCKED_LOOKS_MAX: u32 = 5;

/// How long a thread may have a core within one round: a thousand times what the longest rounds
/// take. Time in which the scheduler gives the core to others does not count.
const RAN_NS_MAX: u64 = 1_000_000_000;

/// A watchdog's judgement of a sidecore after a look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// Its rounds end, or not enough looks say otherwise.
    Moving,
    /// Its round does not end: the thread is blocked.
    Blocked,
    /// Its round does not end, and the thread runs.
    Endless,
}

/// Decides by looks at a sidecore whether it is stuck. It reads no clock and no file.
#[derive(Debug, Default)]
pub struct Watch {
    last: Option<PulseView>,
    blocked_looks: u32,
    /// When the round was first seen twice, its thread had run for so long.
    ran_ns: Option<u64>,
}

impl Watch {
    /// Whether the last look was the first one at its round.
    pub fn is_new(&self) -> bool {
        self.blocked_looks == 0 && self.ran_ns.is_none()
    }

    /// One look more. `thread` is only asked about a round that the last look saw as well; `None`
    /// where the system does not tell, which counts as blocked.
    pub fn look(&mut self, look: PulseView, thread: impl FnOnce() -> Option<ThreadLook>) -> Health {
        let has_moved = self.last.is_none_or(|last| !last.is_as(&look));
        if has_moved || look.is_at_rest() {
            *self = Self { last: Some(look), ..Self::default() };
            return Health::Moving;
        }
        match thread() {
            Some(ThreadLook { runnable: true, ran_ns }) => {
                let since_ns = *self.ran_ns.get_or_insert(ran_ns);
                if ran_ns.saturating_sub(since_ns) >= RAN_NS_MAX {
                    return Health::Endless;
                }
            }
            _ => self.blocked_looks = (self.blocked_looks + 1).min(BLOCKED_LOOKS_MAX),
        }
        match self.blocked_looks >= BLOCKED_LOOKS_MAX {
            true => Health::Blocked,
            false => Health::Moving,
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Moving => "moving",
            Self::Blocked => "blocked",
            Self::Endless => "running for ever",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: PulseView = PulseView { rounds: 7, doing: 3, has_mail: false };

    fn blocked() -> Option<ThreadLook> {
        Some(ThreadLook { runnable: false, ran_ns: 5 })
    }

    fn runs(ran_ns: u64) -> impl FnOnce() -> Option<ThreadLook> {
        move || Some(ThreadLook { runnable: true, ran_ns })
    }

    #[test]
    fn a_round_that_is_blocked_is_found_after_five_looks_and_forgiven_when_it_ends() {
        let mut watch = Watch::default();
        let healths: Vec<_> = (0..6).map(|_| watch.look(ROUND, blocked)).collect();
        assert_eq!(healths, [[Health::Moving; 5].as_slice(), &[Health::Blocked]].concat());
        assert_eq!(watch.look(ROUND, || None), Health::Blocked);
        let next = PulseView { rounds: 8, ..ROUND };
        assert_eq!(watch.look(next, blocked), Health::Moving);
        // The next poller of the same round is progress as well.
        assert_eq!(watch.look(PulseView { doing: 4, ..next }, blocked), Health::Moving);
    }

    #[test]
    fn mail_that_arrives_meanwhile_makes_no_round_a_new_one() {
        let mut watch = Watch::default();
        let last = (0..6).map(|_| watch.look(ROUND, blocked)).last();
        assert_eq!(last, Some(Health::Blocked));
        let with_mail = PulseView { has_mail: true, ..ROUND };
        assert_eq!(watch.look(with_mail, blocked), Health::Blocked);
    }

    #[test]
    fn a_thread_that_is_not_scheduled_is_not_stuck_however_often_it_is_looked_at() {
        let mut watch = Watch::default();
        for look in 0..10_000 {
            // It gets a little of the core each time, and less than a second in all.
            assert_eq!(watch.look(ROUND, runs(look * 90_000)), Health::Moving);
        }
        assert_eq!(watch.look(ROUND, runs(9_999 * 90_000 + RAN_NS_MAX)), Health::Endless);
    }

    #[test]
    fn a_sidecore_that_sleeps_is_stuck_only_if_its_mail_waits() {
        let mut watch = Watch::default();
        let asleep = PulseView { rounds: 7, doing: ASLEEP, has_mail: false };
        for _ in 0..100 {
            assert_eq!(watch.look(asleep, || panic!("not to be asked")), Health::Moving);
        }
        let waits = PulseView { has_mail: true, ..asleep };
        let last = (0..6).map(|_| watch.look(waits, blocked)).last();
        assert_eq!(last, Some(Health::Blocked));
    }

    #[test]
    fn its_activity_is_told_in_words() {
        let pulse = Pulse::new();
        pulse.named(3, "disk \"alice\"".to_owned());
        pulse.polls(3);
        let look = pulse.look(1, false);
        assert_eq!(pulse.explain(&look), "serving disk \"alice\"");
        pulse.forget(3);
        assert_eq!(pulse.explain(&look), "serving a poller that was removed since");
        pulse.runs_mail();
        assert_eq!(pulse.explain(&pulse.look(1, false)), "in a change of its pollers");
        pulse.changes(|| "disk \"bob\"".to_owned());
        assert_eq!(pulse.explain(&pulse.look(1, false)), "in a change to disk \"bob\"");
        pulse.runs_mail();
        assert_eq!(pulse.explain(&pulse.look(1, false)), "in a change of its pollers");
        pulse.polls(3);
        pulse.changes(|| panic!("no closure runs"));
    }
}
