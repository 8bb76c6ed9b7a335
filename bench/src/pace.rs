//! The time that a series of steps takes: planned for an idle machine, and corrected by the time
//! that the ended steps took.

use std::fs;
use std::time::Duration;

use testbed::machine::cores;

/// Steps with the time that each takes on an idle machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// The planned time of the steps that have not ended.
    left: Duration,
    /// The planned time of the steps that have ended, and the time that they took.
    planned: Duration,
    took: Duration,
}

impl Pace {
    /// No step has begun; all steps together are planned to take so long.
    pub fn new(planned: Duration) -> Self {
        Self { left: planned, planned: Duration::ZERO, took: Duration::ZERO }
    }

    /// A step has ended, and took so long.
    pub fn ended(&mut self, planned: Duration, took: Duration) {
        self.left = self.left.saturating_sub(planned);
        self.planned += planned;
        self.took += took;
    }

    /// A step has failed, or was left out: its time says nothing about the others.
    pub fn failed(&mut self, planned: Duration) {
        self.left = self.left.saturating_sub(planned);
    }

    /// How many times longer than planned steps take: those that have ended, and a running step
    /// that is planned to take `planned` and has run for `ran`. The done part of the running step
    /// is not known; it counts as complete.
    pub fn rate(&self, planned: Duration, ran: Duration) -> f64 {
        let of = |planned: Duration, took: Duration| match planned.as_secs_f64() {
            0.0 => None,
            planned => Some(took.as_secs_f64() / planned),
        };
        let ended = of(self.planned, self.took).unwrap_or(1.0);
        of(self.planned + planned, self.took + ran).map_or(ended, |rate| rate.max(ended))
    }

    /// The time that all steps will take from now on, with a step running as in [`Self::rate`].
    pub fn left(&self, planned: Duration, ran: Duration) -> Duration {
        let all = self.left.as_secs_f64() * self.rate(planned, ran);
        let this = planned.as_secs_f64() * self.rate(planned, ran);
        // A step that has run for longer than planned may end at any moment.
        Duration::from_secs_f64((all - ran.as_secs_f64().min(this)).max(0.0))
    }
}

/// Minutes, as people say them.
pub fn minutes(time: Duration) -> String {
    match time.as_secs() {
        0..60 => "less than a minute".to_owned(),
        seconds => format!("about {} min", seconds.div_ceil(60)),
    }
}

/// The sentence before something begins that takes so long on an idle machine. It warns of a longer
/// time if this machine is busy.
pub fn announced(planned: Duration) -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    announced_under(planned, &load, cores().len())
}

/// The same with the load as `/proc/loadavg` has it.
fn announced_under(planned: Duration, load: &str, cores: usize) -> String {
    let said = format!("{} on an idle machine", minutes(planned));
    match runnable(load) {
        Some(tasks) if tasks > cores as f64 => format!(
            "{said}; this one is busy ({tasks:.0} tasks want its {cores} cores): it will take \
             longer"
        ),
        _ => said,
    }
}

/// Tasks that want to run besides the one that reads this: over the last minute, or now.
fn runnable(load: &str) -> Option<f64> {
    let mut words = load.split(' ');
    let minute: f64 = words.next()?.parse().ok()?;
    let now: f64 = words.nth(2)?.split_once('/')?.0.parse().ok()?;
    Some(minute.max(now - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Duration = Duration::ZERO;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn the_remaining_time_is_as_planned_until_a_step_has_ended() {
        let pace = Pace::new(seconds(100));
        assert_eq!(pace.left(NOTHING, NOTHING), seconds(100));
        assert_eq!(pace.left(seconds(20), NOTHING), seconds(100));
        assert_eq!(pace.left(seconds(20), seconds(5)), seconds(95));
    }

    #[test]
    fn a_slow_step_lengthens_the_estimate_of_later_ones() {
        let mut pace = Pace::new(seconds(100));
        pace.ended(seconds(20), seconds(80));
        assert_eq!(pace.left(NOTHING, NOTHING), seconds(320));
        assert_eq!(pace.left(seconds(10), seconds(30)), seconds(290));
        pace.ended(seconds(10), seconds(10));
        assert_eq!(pace.rate(NOTHING, NOTHING), 3.0);
        assert_eq!(pace.left(NOTHING, NOTHING), seconds(210));
    }

    #[test]
    fn a_step_that_does_not_end_corrects_it_while_it_runs() {
        let pace = Pace::new(seconds(100));
        let left = |ran| pace.left(seconds(50), seconds(ran));
        assert_eq!(left(50), seconds(50));
        // Four times longer than planned, so the other half as well.
        assert_eq!(left(200), seconds(200));
        assert_eq!(left(1000), seconds(1000));
    }

    #[test]
    fn an_immediate_failure_does_not_shorten_the_estimate() {
        let mut pace = Pace::new(seconds(100));
        pace.failed(seconds(60));
        assert_eq!(pace.left(NOTHING, NOTHING), seconds(40));
        pace.failed(seconds(60));
        assert_eq!(pace.left(NOTHING, NOTHING), NOTHING);
    }

    #[test]
    fn a_busy_machine_is_said_to_be_one() {
        let said = |load| announced_under(seconds(61), load, 2);
        assert_eq!(said("0.50 20.00 20.00 3/400 1"), "about 2 min on an idle machine");
        let busy = "about 2 min on an idle machine; this one is busy (20 tasks want its 2 cores): \
                    it will take longer";
        assert_eq!(said("20.00 0.50 0.50 1/400 1"), busy);
        assert_eq!(said("0.50 0.50 0.50 21/400 1"), busy);
        assert_eq!(said(""), "about 2 min on an idle machine");
        assert_eq!(minutes(seconds(59)), "less than a minute");
    }
}
