//! A bounded set of deadlines.

/// All timers are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all timers are in use")]
pub struct TimersFull;

/// Deadlines by key, at most one per key.
///
/// Kept as a sorted array: asking for the next one, as every round does, reads one word; setting
/// and cancelling search and move. That suits the tens of timers that an owner on a sidecore has
/// (time to flush, to retry, to give up), not one timer per request.
#[derive(Debug)]
pub struct Timers<K> {
    /// The latest first, so that the earliest is popped off the end. Of equal deadlines the one set
    /// first is nearer to the end.
    entries: Vec<(u64, K)>,
    capacity: usize,
}

impl<K: Copy + Eq> Timers<K> {
    /// Room for `capacity` keys; never allocates later.
    pub fn new(capacity: usize) -> Self {
        Self { entries: Vec::with_capacity(capacity), capacity }
    }

    /// Sets the deadline of `key`, in place of an earlier one.
    ///
    /// # Errors
    /// When `capacity` other keys are set.
    pub fn set(&mut self, deadline_ns: u64, key: K) -> Result<(), TimersFull> {
        self.cancel(key);
        if self.entries.len() == self.capacity {
            return Err(TimersFull);
        }
        let place = self.entries.partition_point(|entry| entry.0 > deadline_ns);
        self.entries.insert(place, (deadline_ns, key));
        Ok(())
    }

    /// Forgets the deadline of `key`; says whether it had one.
    pub fn cancel(&mut self, key: K) -> bool {
        let place = self.entries.iter().position(|entry| entry.1 == key);
        place.map(|place| self.entries.remove(place)).is_some()
    }

    /// Takes out the earliest key that is due at `now_ns`. Call until `None`.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<K> {
        self.entries.pop_if(|entry| entry.0 <= now_ns).map(|entry| entry.1)
    }

    /// The earliest deadline.
    pub fn next_ns(&self) -> Option<u64> {
        self.entries.last().map(|entry| entry.0)
    }

    /// How many keys are set.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// No key is set.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use random::Random;

    use super::*;

    #[test]
    fn due_keys_come_out_by_deadline_and_then_in_the_order_they_were_set() {
        let mut timers = Timers::new(8);
        for (deadline_ns, key) in [(30, 'c'), (10, 'a'), (20, 'b'), (10, 'A'), (40, 'd')] {
            timers.set(deadline_ns, key).unwrap();
        }
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.next_ns(), Some(10));
        let due: Vec<_> = std::iter::from_fn(|| timers.pop_due(30)).collect();
        assert_eq!(due, ['a', 'A', 'b', 'c']);
        assert_eq!((timers.len(), timers.next_ns()), (1, Some(40)));
    }

    #[test]
    fn setting_again_moves_the_deadline_and_a_full_set_refuses_only_new_keys() {
        let mut timers = Timers::new(2);
        timers.set(10, 1).unwrap();
        timers.set(20, 2).unwrap();
        assert_eq!(timers.set(5, 3), Err(TimersFull));
        timers.set(30, 1).unwrap();
        assert_eq!(timers.next_ns(), Some(20));
        assert!(timers.cancel(2) && !timers.cancel(2));
        assert_eq!(timers.pop_due(u64::MAX), Some(1));
        assert!(timers.is_empty() && timers.next_ns().is_none());
    }

    /// Against a plain list, with many random steps from a fixed seed.
    #[test]
    fn behaves_like_a_list_that_is_searched() {
        let mut timers = Timers::new(16);
        let mut list: Vec<(u64, u64, u8)> = Vec::new();
        let mut numbers = Random::new(1);
        for step in 0..20_000u64 {
            let random = numbers.draw();
            let (key, deadline_ns) = ((random >> 8) as u8 % 20, (random >> 20) % 50);
            match random % 3 {
                0 => {
                    list.retain(|entry| entry.2 != key);
                    let fits = list.len() < 16;
                    assert_eq!(timers.set(deadline_ns, key).is_ok(), fits);
                    if fits {
                        list.push((deadline_ns, step, key));
                    }
                }
                1 => {
                    let before = list.len();
                    list.retain(|entry| entry.2 != key);
                    assert_eq!(timers.cancel(key), list.len() < before);
                }
                _ => {
                    let due = list.iter().min().copied().filter(|due| due.0 <= deadline_ns);
                    list.retain(|entry| Some(entry.2) != due.map(|due| due.2));
                    assert_eq!(timers.pop_due(deadline_ns), due.map(|due| due.2));
                }
            }
            assert_eq!(timers.next_ns(), list.iter().min().map(|entry| entry.0));
        }
    }
}
