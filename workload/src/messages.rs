//! The checker of the promise about messages of a domain. A message is matched by one receive, is
//! as it was sent, and messages of one sender are matched by receives in the order in which they
//! were sent. No message is lost while both endpoints live, and neither was told that the other is
//! gone.
//!
//! A message's number in its pair of endpoints is its tag. The caller names endpoints as it likes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// The bytes of a message of this number. They tell where they belong.
pub fn content(number: u64, bytes: usize) -> Vec<u8> {
    let byte = |at: u64| (number.wrapping_mul(31) + at * 7 + at / 251) as u8;
    (0..bytes as u64).map(byte).collect()
}

/// The fault of a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageBreach {
    /// The sender has not sent it.
    #[error("{pair}: message {number} was received and never sent")]
    NeverSent {
        /// Sender and receiver.
        pair: String,
        /// The message.
        number: u64,
    },
    /// Its bytes are others.
    #[error("{pair}: message {number} is not as it was sent")]
    Changed {
        /// Sender and receiver.
        pair: String,
        /// The message.
        number: u64,
    },
    /// Two receives have it, or they have it and another message in the wrong order.
    #[error("{pair}: message {number} was received twice or out of order: {near:?}")]
    OutOfOrder {
        /// Sender and receiver.
        pair: String,
        /// The message.
        number: u64,
        /// The numbers that the receives before and after this one have.
        near: [Option<u64>; 2],
    },
    /// It never came.
    #[error("{pair}: of {sent} messages {received} came, though both endpoints live")]
    Lost {
        /// Sender and receiver.
        pair: String,
        /// How many were sent.
        sent: usize,
        /// How many of them were received.
        received: usize,
    },
    /// An operation has failed, and no failure explains it.
    #[error("{pair}: an operation has failed without a cause")]
    NoCause {
        /// Sender and receiver.
        pair: String,
    },
}

/// The messages from one endpoint to another one.
#[derive(Clone, Debug, Default)]
struct MessagePair {
    /// The length of each.
    sent: Vec<usize>,
    /// By receive, in the order in which receives were posted: the number of its message. Receives
    /// may end in another order.
    received: BTreeMap<u64, u64>,
}

/// See the module. `E` names an endpoint.
#[derive(Clone, Debug)]
pub struct MessageChecker<E> {
    pairs: BTreeMap<(E, E), MessagePair>,
    dead: BTreeSet<E>,
    /// Two endpoints of which one may be told, or was told, that the other one is gone.
    parted: BTreeSet<(E, E)>,
    count: u64,
}

impl<E> Default for MessageChecker<E> {
    fn default() -> Self {
        let (pairs, dead, parted) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { pairs, dead, parted, count: 0 }
    }
}

impl<E: Copy + Ord + Debug> MessageChecker<E> {
    /// The number of the next message of a pair.
    pub fn next(&self, from: E, to: E) -> u64 {
        self.pairs.get(&(from, to)).map_or(0, |pair| pair.sent.len() as u64)
    }

    /// The pair's next message was sent: [`content`] of so many bytes.
    pub fn sent(&mut self, from: E, to: E, bytes: usize) {
        self.pairs.entry((from, to)).or_default().sent.push(bytes);
    }

    /// A receive has ended with a message of this number. `receive` counts the receives of this
    /// endpoint in the order in which they were posted.
    ///
    /// # Errors
    /// When the promise is broken.
    pub fn received(
        &mut self,
        (from, to): (E, E),
        receive: u64,
        number: u64,
        bytes: &[u8],
    ) -> Result<(), MessageBreach> {
        let name = || format!("{from:?} to {to:?}");
        let pair = self.pairs.get_mut(&(from, to));
        let sent = pair.and_then(|pair| Some((*pair.sent.get(number as usize)?, pair)));
        let Some((length, pair)) = sent else {
            return Err(MessageBreach::NeverSent { pair: name(), number });
        };
        if bytes.len() != length || bytes != content(number, length) {
            return Err(MessageBreach::Changed { pair: name(), number });
        }
        let before = pair.received.range(..receive).next_back().map(|(_, number)| *number);
        let after = pair.received.range(receive..).next().map(|(_, number)| *number);
        if before.is_some_and(|it| it >= number) || after.is_some_and(|it| it <= number) {
            let near = [before, after];
            return Err(MessageBreach::OutOfOrder { pair: name(), number, near });
        }
        pair.received.insert(receive, number);
        self.count += 1;
        Ok(())
    }

    /// An endpoint is dead. Messages to it and from it may be lost from now on.
    pub fn died(&mut self, endpoint: E) {
        self.dead.insert(endpoint);
    }

    /// Two endpoints may be told that the other one is gone: their hosts were out of each other's
    /// reach for long.
    pub fn parted(&mut self, one: E, other: E) {
        self.parted.insert(ordered(one, other));
    }

    /// Whether a message between the two may be lost.
    pub fn may_be_lost(&self, one: E, other: E) -> bool {
        let is_dead = self.dead.contains(&one) || self.dead.contains(&other);
        is_dead || self.parted.contains(&ordered(one, other))
    }

    /// An operation between the two has failed because the other endpoint is gone.
    ///
    /// # Errors
    /// When nothing explains it.
    pub fn failed(&self, me: E, other: E) -> Result<(), MessageBreach> {
        if self.may_be_lost(me, other) {
            return Ok(());
        }
        Err(MessageBreach::NoCause { pair: format!("{me:?} with {other:?}") })
    }

    /// Messages that were received.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Whether all has come that must come.
    pub fn is_complete(&self) -> bool {
        self.finish().is_ok()
    }

    /// Nothing is under way any more.
    ///
    /// # Errors
    /// When a message was lost.
    pub fn finish(&self) -> Result<(), MessageBreach> {
        for ((from, to), pair) in &self.pairs {
            let (sent, received) = (pair.sent.len(), pair.received.len());
            if received < sent && !self.may_be_lost(*from, *to) {
                let pair = format!("{from:?} to {to:?}");
                return Err(MessageBreach::Lost { pair, sent, received });
            }
        }
        Ok(())
    }
}

fn ordered<E: Ord>(one: E, other: E) -> (E, E) {
    if one < other { (one, other) } else { (other, one) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checker(messages: usize) -> MessageChecker<char> {
        let mut checker = MessageChecker::default();
        (0..messages).for_each(|at| checker.sent('a', 'b', at * 10));
        checker
    }

    fn receive(
        checker: &mut MessageChecker<char>,
        receive: u64,
        number: u64,
    ) -> Result<(), MessageBreach> {
        let bytes = content(number, number as usize * 10);
        checker.received(('a', 'b'), receive, number, &bytes)
    }

    #[test]
    fn receives_end_in_any_order_and_take_messages_in_theirs() {
        let mut checker = checker(3);
        assert_eq!(receive(&mut checker, 8, 1), Ok(()));
        assert_eq!(receive(&mut checker, 5, 0), Ok(()));
        assert!(matches!(checker.finish(), Err(MessageBreach::Lost { received: 2, .. })));
        assert_eq!(receive(&mut checker, 9, 2), Ok(()));
        assert_eq!((checker.finish(), checker.count()), (Ok(()), 3));
    }

    #[test]
    fn each_breach_has_its_name() {
        let mut checker = checker(3);
        assert_eq!(receive(&mut checker, 5, 1), Ok(()));
        for (at, number) in [(6, 1), (6, 0), (4, 2)] {
            let breach = receive(&mut checker, at, number);
            assert!(matches!(breach, Err(MessageBreach::OutOfOrder { .. })), "{breach:?}");
        }
        assert!(matches!(receive(&mut checker, 9, 3), Err(MessageBreach::NeverSent { .. })));
        let changed = checker.received(('a', 'b'), 9, 2, &content(1, 20));
        assert!(matches!(changed, Err(MessageBreach::Changed { .. })));
        assert!(matches!(checker.failed('b', 'a'), Err(MessageBreach::NoCause { .. })));
    }

    #[test]
    fn messages_of_dead_and_parted_endpoints_may_be_lost() {
        let mut dead = checker(3);
        dead.died('b');
        assert_eq!((dead.finish(), dead.failed('a', 'b')), (Ok(()), Ok(())));
        let mut parted = checker(3);
        parted.parted('b', 'a');
        assert_eq!((parted.finish(), parted.failed('a', 'b')), (Ok(()), Ok(())));
    }
}
