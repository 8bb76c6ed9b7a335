//! Frames on their way from one guest to the other: those that came, and those that are lost.

use std::collections::VecDeque;

use anyhow::{Result, bail};

use super::packet::Mark;
use super::station::RING_SIZE;
use crate::load::STUCK;

/// The time without an arrival after which all frames under way count as lost, once the sender has
/// its buffers back. It is long because a thread may be without its core for a good part of it.
pub(super) const TIME_OUT_NS: u64 = 500_000_000;

/// Frames of one sender. Every way keeps their order. So a frame is lost as soon as a later one
/// comes before it, and not only when the time is up.
#[derive(Debug)]
pub(super) struct Flight {
    /// The marks of frames, in the order in which the frames were sent.
    under_way: VecDeque<Mark>,
    /// The time since which no frame came.
    silent_since_ns: u64,
    pub(super) tally: Tally,
}

/// The fate of frames that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) arrived: u64,
    pub(super) lost: u64,
    /// Frames that came twice, after all were given up, or from another sender.
    pub(super) strange: u64,
    /// The number of times that all frames under way were given up.
    pub(super) time_outs: u64,
    /// The time spent on these waits.
    pub(super) waited_ns: u64,
}

impl Flight {
    pub(super) fn new(now_ns: u64) -> Self {
        let under_way = VecDeque::with_capacity(usize::from(RING_SIZE));
        Self { under_way, silent_since_ns: now_ns, tally: Tally::default() }
    }

    pub(super) fn len(&self) -> u16 {
        self.under_way.len() as u16
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A frame was sent.
    pub(super) fn sent(&mut self, mark: Mark, now_ns: u64) {
        if self.under_way.is_empty() {
            self.silent_since_ns = now_ns;
        }
        self.under_way.push_back(mark);
    }

    /// A frame came.
    pub(super) fn came(&mut self, mark: Mark, now_ns: u64) {
        self.silent_since_ns = now_ns;
        let tally = &mut self.tally;
        if self.under_way.front() == Some(&mark) {
            self.under_way.pop_front();
            tally.arrived += 1;
            return;
        }
        match self.under_way.iter().position(|it| *it == mark) {
            Some(before) => {
                self.under_way.drain(..=before);
                tally.lost += before as u64;
                tally.arrived += 1;
            }
            // The frame was given up, and comes after all.
            None if tally.lost > 0 => {
                tally.lost -= 1;
                tally.arrived += 1;
            }
            None => tally.strange += 1,
        }
    }

    /// Looks for frames that do not come, and gives them up when their time is up. The sender's
    /// device still has `outstanding` frames.
    ///
    /// # Errors
    /// When the device keeps them for far too long.
    pub(super) fn look(&mut self, now_ns: u64, outstanding: u16) -> Result<()> {
        let silent_ns = now_ns.saturating_sub(self.silent_since_ns);
        if silent_ns <= TIME_OUT_NS {
            return Ok(());
        }
        if outstanding > 0 {
            if u128::from(silent_ns) > STUCK.as_nanos() {
                bail!("{outstanding} frames stand still for {STUCK:?}");
            }
        } else if !self.is_empty() {
            self.tally.lost += self.under_way.len() as u64;
            self.tally.time_outs += 1;
            self.tally.waited_ns += silent_ns;
            self.under_way.clear();
            self.silent_since_ns = now_ns;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(marks: std::ops::RangeInclusive<Mark>) -> Flight {
        let mut flight = Flight::new(0);
        marks.for_each(|mark| flight.sent(mark, 0));
        flight
    }

    #[test]
    fn frames_that_were_overtaken_count_as_lost_at_once() {
        let mut flight = sent(0..=9);
        flight.came(0, 1);
        flight.came(4, 2);
        let tally = Tally { arrived: 2, lost: 3, ..Tally::default() };
        assert_eq!((flight.tally, flight.len()), (tally, 5));
        // One lost frame comes after all, and one frame comes twice.
        flight.came(2, 3);
        (5..=9).for_each(|mark| flight.came(mark, 4));
        let tally = Tally { arrived: 8, lost: 2, ..tally };
        assert_eq!((flight.tally, flight.len()), (tally, 0));
        let mut whole = sent(0..=0);
        whole.came(0, 1);
        whole.came(0, 1);
        assert_eq!(whole.tally, Tally { arrived: 1, strange: 1, ..Tally::default() });
    }

    #[test]
    fn marks_go_round() {
        let mut flight = sent(200..=255);
        (0..200).for_each(|mark| flight.sent(mark, 0));
        assert_eq!(flight.len(), RING_SIZE);
        (200..=255).chain(0..200).for_each(|mark| flight.came(mark, 1));
        assert_eq!(flight.tally, Tally { arrived: 256, ..Tally::default() });
    }

    #[test]
    fn time_is_up_once_for_all_that_is_under_way_and_the_wait_is_told() {
        let mut flight = sent(0..=9);
        flight.came(0, 100);
        flight.look(100 + TIME_OUT_NS, 0).unwrap();
        assert_eq!((flight.len(), flight.tally.lost), (9, 0), "not yet");
        flight.look(101 + TIME_OUT_NS, 1).unwrap();
        assert_eq!(flight.len(), 9, "the sender's device has one of them still");
        flight.look(101 + TIME_OUT_NS, 0).unwrap();
        let waited_ns = 1 + TIME_OUT_NS;
        let tally = Tally { arrived: 1, lost: 9, time_outs: 1, waited_ns, strange: 0 };
        assert_eq!((flight.tally, flight.len()), (tally, 0));
        // The next frame has all of its time.
        let later_ns = 10 * TIME_OUT_NS;
        flight.sent(10, later_ns);
        flight.look(later_ns + TIME_OUT_NS, 0).unwrap();
        assert_eq!(flight.tally, tally);
        let stuck_ns = later_ns + 2 * STUCK.as_nanos() as u64;
        let why = flight.look(stuck_ns, 3).unwrap_err().to_string();
        assert!(why.contains("3 frames stand still"), "{why}");
    }
}
