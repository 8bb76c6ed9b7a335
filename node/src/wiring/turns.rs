//! One change at a time, in the order in which they were asked for.

use parking_lot::{Condvar, Mutex, MutexGuard};

/// How many changes may wait for their turn. People and scripts ask for changes, one at a time;
/// each takes milliseconds, at worst a few seconds.
pub(crate) const WAITING_MAX: usize = 16;

/// Why there is no turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoTurn {
    #[error("{WAITING_MAX} changes wait for their turn already")]
    Full,
    #[error("the node is stopping")]
    Closed,
    #[error("another process has taken this node over")]
    GivenAway,
}

#[derive(Debug, Default)]
struct TurnState {
    /// The ticket that the next caller gets.
    next: u64,
    /// The ticket whose turn it is.
    serving: u64,
    closed: bool,
    /// The turn that is under way never ends, since another process has the node.
    given_away: bool,
}

/// The queue of changes.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    state: Mutex<TurnState>,
    moved: Condvar,
}

/// A turn. Dropping it begins the next caller's turn.
#[derive(Debug)]
pub(crate) struct ChangeTurn<'t>(&'t Turns);

impl Turns {
    /// Waits for a turn.
    ///
    /// # Errors
    /// When too many wait, or no more changes are taken.
    pub(crate) fn take(&self) -> Result<ChangeTurn<'_>, NoTurn> {
        let mut state = self.state();
        if state.given_away {
            return Err(NoTurn::GivenAway);
        }
        if state.closed {
            return Err(NoTurn::Closed);
        }
        let mine = state.next;
        if mine - state.serving > WAITING_MAX as u64 {
            return Err(NoTurn::Full);
        }
        state.next += 1;
        while state.serving != mine && !state.given_away {
            self.moved.wait(&mut state);
        }
        if state.given_away {
            return Err(NoTurn::GivenAway);
        }
        let turn = ChangeTurn(self);
        // The turn is dropped without use, so that the next caller does not wait for ever.
        if state.closed {
            drop(state);
            drop(turn);
            return Err(NoTurn::Closed);
        }
        Ok(turn)
    }

    /// Takes no more changes, and waits for the one that is under way. Waiting callers are refused.
    /// `false`: another process has the node, and this process must not touch it.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state();
        state.closed = true;
        while state.serving != state.next && !state.given_away {
            self.moved.wait(&mut state);
        }
        !state.given_away
    }

    fn state(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock()
    }
}

impl ChangeTurn<'_> {
    /// No other turn comes after this one, since another process has the node. Waiting callers are
    /// refused.
    pub(crate) fn give_away(self) {
        self.0.state().given_away = true;
        self.0.moved.notify_all();
        std::mem::forget(self);
    }
}

impl Drop for ChangeTurn<'_> {
    fn drop(&mut self) {
        self.0.state().serving += 1;
        self.0.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    fn wait_until(turns: &Turns, waiting: u64) {
        let enough = || {
            let state = turns.state();
            state.next - state.serving >= waiting
        };
        while !enough() {
            thread::yield_now();
        }
    }

    #[test]
    fn turns_come_in_order_and_one_at_a_time() {
        let (turns, order) = (Turns::default(), Mutex::new(Vec::new()));
        let first = turns.take().unwrap();
        thread::scope(|scope| {
            for number in 0..WAITING_MAX {
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    let turn = turns.take().unwrap();
                    order.lock().unwrap().push(number);
                    drop(turn);
                });
                // The next one asks after this one.
                wait_until(turns, number as u64 + 2);
            }
            assert_eq!(turns.take().unwrap_err(), NoTurn::Full);
            assert!(order.lock().unwrap().is_empty(), "the first has its turn");
            drop(first);
        });
        assert_eq!(*order.lock().unwrap(), (0..WAITING_MAX).collect::<Vec<_>>());
        drop(turns.take().unwrap());
    }

    #[test]
    fn closing_waits_for_the_one_under_way_and_refuses_the_others() {
        let turns = Turns::default();
        let first = turns.take().unwrap();
        thread::scope(|scope| {
            let second = scope.spawn(|| turns.take().err());
            wait_until(&turns, 2);
            let closing = scope.spawn(|| turns.close());
            while !turns.state().closed {
                thread::yield_now();
            }
            assert!(!closing.is_finished(), "the first is under way");
            drop(first);
            assert!(closing.join().unwrap());
            assert_eq!(second.join().unwrap(), Some(NoTurn::Closed));
        });
        assert_eq!(turns.take().unwrap_err(), NoTurn::Closed);
    }

    #[test]
    fn a_turn_that_was_given_away_is_not_waited_for() {
        let turns = Turns::default();
        let first = turns.take().unwrap();
        thread::scope(|scope| {
            let second = scope.spawn(|| turns.take().err());
            wait_until(&turns, 2);
            let closing = scope.spawn(|| turns.close());
            first.give_away();
            assert!(!closing.join().unwrap());
            assert_eq!(second.join().unwrap(), Some(NoTurn::GivenAway));
        });
        assert_eq!(turns.take().unwrap_err(), NoTurn::GivenAway);
    }
}
