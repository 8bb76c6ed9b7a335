//! Messages between sidecores: a bounded ring with one sender and one receiver that wakes the
//! receiver's sidecore.

use std::fmt;

use crate::Waker;

/// The mailbox had no room; here is the message back.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the mailbox is full")]
pub struct Full<T>(pub T);

impl<T> fmt::Debug for Full<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Full")
    }
}

/// Makes a mailbox for `capacity` messages. `waker` wakes the sidecore where the receiver is
/// polled; that poller's `arm` looks at [`Receiver::is_empty`].
pub fn channel<T>(capacity: usize, waker: Waker) -> (Sender<T>, Receiver<T>) {
    let (producer, consumer) = rtrb::RingBuffer::new(capacity);
    (Sender { producer, waker }, Receiver { consumer })
}

/// The sending end.
pub struct Sender<T> {
    producer: rtrb::Producer<T>,
    waker: Waker,
}

impl<T> Sender<T> {
    /// Puts a message in and wakes the receiver.
    ///
    /// # Errors
    /// Gives the message back when the mailbox is full.
    pub fn send(&mut self, message: T) -> Result<(), Full<T>> {
        self.put(message)?;
        self.waker.wake();
        Ok(())
    }

    /// Puts a message in without waking: for a batch, which ends with [`Sender::wake`].
    ///
    /// # Errors
    /// Gives the message back when the mailbox is full.
    pub fn put(&mut self, message: T) -> Result<(), Full<T>> {
        self.producer.push(message).map_err(|rtrb::PushError::Full(message)| Full(message))
    }

    /// Wakes the receiver.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// The receiver is gone: messages would never be read.
    pub fn is_abandoned(&self) -> bool {
        self.producer.is_abandoned()
    }

    /// How many more messages fit now.
    pub fn room(&self) -> usize {
        self.producer.slots()
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sender({} free)", self.room())
    }
}

/// The receiving end.
pub struct Receiver<T> {
    consumer: rtrb::Consumer<T>,
}

impl<T> Receiver<T> {
    /// Takes the oldest message. A poller takes a bounded number per round.
    pub fn receive(&mut self) -> Option<T> {
        self.consumer.pop().ok()
    }

    /// There is no message now.
    pub fn is_empty(&self) -> bool {
        self.consumer.is_empty()
    }

    /// Whether the sender is gone. Its messages can still be taken.
    pub fn is_abandoned(&self) -> bool {
        self.consumer.is_abandoned()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Receiver({} waiting)", self.consumer.slots())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_mailbox_gives_the_message_back_and_order_is_kept() {
        let (mut sender, mut receiver) = channel(2, Waker::none());
        sender.send("a".to_owned()).unwrap();
        sender.put("b".to_owned()).unwrap();
        sender.wake();
        let Err(Full(back)) = sender.send("c".to_owned()) else { panic!("there was room") };
        assert_eq!((back.as_str(), sender.room()), ("c", 0));
        assert_eq!(receiver.receive().as_deref(), Some("a"));
        sender.send(back).unwrap();
        assert_eq!(receiver.receive().as_deref(), Some("b"));
        assert_eq!(receiver.receive().as_deref(), Some("c"));
        assert!(receiver.receive().is_none() && receiver.is_empty());
    }

    #[test]
    fn each_end_notices_that_the_other_is_gone() {
        let (mut sender, mut receiver) = channel(1, Waker::none());
        sender.send(5).unwrap();
        assert!(!receiver.is_abandoned());
        drop(sender);
        assert!(receiver.is_abandoned());
        assert_eq!(receiver.receive(), Some(5));
        let (sender, receiver) = channel::<u8>(1, Waker::none());
        drop(receiver);
        assert!(sender.is_abandoned());
    }
}
