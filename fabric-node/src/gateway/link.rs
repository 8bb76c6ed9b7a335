//! One direction between two gateways. Batches are numbered, kept until the other side has taken
//! them, and sent again in the next session. This is logic without I/O and without a clock.

use std::collections::{BTreeMap, VecDeque};

/// Batches that are sent and not known to have been taken.
pub(super) const WINDOW: usize = 32;

/// Batches that wait to be sent before producers are told to hold back: 1 MiB of them.
const QUEUE_HOLD: usize = 16;

/// Batches that wait when producers may go on.
const QUEUE_RELEASE: usize = 4;

/// Most batches that wait: 32 MiB of them. Producers that hold back when they are told to come to
/// about half of it, all cells of the ring with a full buffer each. From other producers no cell is
/// taken beyond it.
const QUEUE_MAX: usize = 512;

/// Most batches that wait if the rest are answers, which are not held back. A host that keeps the
/// rules does not cause so many.
pub(super) const QUEUE_FLOODED: usize = 2 * QUEUE_MAX;

/// The form in which a batch is kept while it is on its way.
pub(super) trait Keep {
    /// How long it is.
    fn bytes(&self) -> usize;
}

/// A batch that has no number yet, and to which more may come.
#[derive(Debug)]
pub(super) enum OpenBatch<B> {
    /// In memory of its own.
    Gathered(Vec<u8>),
    /// As it is kept: it is not copied any more.
    Kept(B),
}

impl<B: Keep> OpenBatch<B> {
    fn bytes(&self) -> usize {
        match self {
            Self::Gathered(bytes) => bytes.len(),
            Self::Kept(kept) => kept.bytes(),
        }
    }
}

/// The batches to send.
#[derive(Debug)]
pub(super) struct Outbox<B> {
    /// Not numbered yet.
    queue: VecDeque<OpenBatch<B>>,
    /// From `first` on, without a gap.
    sent: VecDeque<B>,
    first: u64,
    /// How many of those went out in this session.
    out: usize,
    /// The other side has no room: one is sent at a time, until it takes that.
    is_probing: bool,
    held: bool,
    /// The next number, when it was asked last whether anything was sent.
    seen: u64,
}

impl<B: Keep> Outbox<B> {
    pub(super) fn new() -> Self {
        let (queue, sent, first) = (VecDeque::new(), VecDeque::new(), 0);
        Self { queue, sent, first, out: 0, is_probing: false, held: false, seen: 0 }
    }

    /// The outbox of another process: the batches that were numbered, from `first` on, and those
    /// that were not.
    pub(super) fn adopt(first: u64, sent: Vec<B>, queue: Vec<Vec<u8>>, held: bool) -> Self {
        let (sent, queue) = (sent.into(), queue.into_iter().map(OpenBatch::Gathered).collect());
        let mut outbox = Self { queue, sent, first, held, ..Self::new() };
        outbox.seen = outbox.next();
        outbox
    }

    /// The batches that are numbered and may not have been taken, and those without a number.
    pub(super) fn content(
        &self,
    ) -> (impl Iterator<Item = &B>, impl Iterator<Item = &OpenBatch<B>>) {
        let begun = |batch: &&OpenBatch<B>| batch.bytes() > 0;
        (self.sent.iter(), self.queue.iter().filter(begun))
    }

    /// Whether producers were told to wait.
    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// The last batch of the queue, if it has room for so many bytes more, or a new one.
    pub(super) fn room(
        &mut self,
        bytes: usize,
        batch_bytes_max: usize,
        spare: &mut Vec<Vec<u8>>,
    ) -> &mut OpenBatch<B> {
        let fits = |batch: &OpenBatch<B>| match batch.bytes() {
            0 => true,
            used => used + bytes <= batch_bytes_max,
        };
        if !self.queue.back().is_some_and(fits) {
            self.queue.push_back(OpenBatch::Gathered(spare.pop().unwrap_or_default()));
        }
        self.queue.back_mut().expect("one was just made")
    }

    /// The same, but never one that is already as it is kept.
    pub(super) fn gather(
        &mut self,
        bytes: usize,
        batch_bytes_max: usize,
        spare: &mut Vec<Vec<u8>>,
    ) -> &mut Vec<u8> {
        if matches!(self.queue.back(), Some(OpenBatch::Kept(_))) {
            self.queue.push_back(OpenBatch::Gathered(spare.pop().unwrap_or_default()));
        }
        match self.room(bytes, batch_bytes_max, spare) {
            OpenBatch::Gathered(batch) => batch,
            OpenBatch::Kept(_) => unreachable!("a new one is gathered"),
        }
    }

    /// Whether what is added now goes out as soon as it can, with room for it on the other side for
    /// all that is known: it may have a buffer that others want as well.
    pub(super) fn is_swift(&self) -> bool {
        self.queue.len() <= QUEUE_HOLD && self.sent.len() < WINDOW && !self.is_probing
    }

    /// Whether producers have to wait, where that has changed.
    pub(super) fn hold(&mut self) -> Option<bool> {
        let held = self.queue.len() > if self.held { QUEUE_RELEASE } else { QUEUE_HOLD };
        (held != std::mem::replace(&mut self.held, held)).then_some(held)
    }

    /// How many batches wait.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether no more may be taken from producers.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE_MAX
    }

    /// Whether nothing more can be kept for the other side at all.
    pub(super) fn is_flooded(&self) -> bool {
        self.queue.len() >= QUEUE_FLOODED
    }

    /// Whether there is nothing that the other side does not have. A batch that was begun for a
    /// cell that could not be read is nothing.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.iter().all(|batch| batch.bytes() == 0) && self.sent.is_empty()
    }

    /// Whether nothing of the queue was sent since this was asked last.
    pub(super) fn is_quiet(&mut self) -> bool {
        let next = self.next();
        std::mem::replace(&mut self.seen, next) == next
    }

    /// The number of the next batch.
    fn next(&self) -> u64 {
        self.first + self.sent.len() as u64
    }

    /// A batch that was never in the queue; it has the next number.
    pub(super) fn send_beside(&mut self, kept: B) {
        self.sent.push_back(kept);
        self.seen += 1;
    }

    /// The next batch that has not been numbered, if there is room for it.
    pub(super) fn front(&self) -> Option<&OpenBatch<B>> {
        self.queue.front().filter(|batch| self.sent.len() < WINDOW && batch.bytes() > 0)
    }

    /// The next batch has the next number, and is kept as this from now on if it has been gathered:
    /// its bytes.
    pub(super) fn keep(&mut self, gathered: Option<B>) -> Option<Vec<u8>> {
        match (self.queue.pop_front().expect("its front was looked at"), gathered) {
            (OpenBatch::Gathered(bytes), Some(kept)) => {
                self.sent.push_back(kept);
                Some(bytes)
            }
            (OpenBatch::Kept(kept), None) => {
                self.sent.push_back(kept);
                None
            }
            _ => panic!("its front was looked at"),
        }
    }

    /// The batch that goes out next in this session: its number, and the batch as it is kept.
    pub(super) fn next_out(&self) -> Option<(u64, &B)> {
        if self.is_probing && self.out > 0 {
            return None;
        }
        Some((self.first + self.out as u64, self.sent.get(self.out)?))
    }

    /// Keeps the batch that goes out next in this form from now on.
    pub(super) fn keep_next_as(&mut self, kept: B) {
        self.sent[self.out] = kept;
    }

    /// That went out.
    pub(super) fn went_out(&mut self) {
        self.out += 1;
    }

    /// The other side has all batches before `received`: returns them as they were kept. `None`:
    /// the other side cannot have them.
    pub(super) fn taken(&mut self, received: u64) -> Option<Vec<B>> {
        let count = received.saturating_sub(self.first);
        if count > self.sent.len() as u64 {
            return None;
        }
        let count = count as usize;
        self.is_probing &= count == 0;
        self.first += count as u64;
        self.out = self.out.saturating_sub(count);
        Some(self.sent.drain(..count).collect())
    }

    /// A new session: all that was not taken goes out again.
    pub(super) fn begin_again(&mut self) {
        (self.out, self.is_probing) = (0, false);
    }

    /// The other side does not keep what went out: it goes out again, one for a beginning.
    pub(super) fn begin_slowly(&mut self) {
        (self.out, self.is_probing) = (0, true);
    }

    /// Whether it is not known that the other side has room.
    pub(super) fn is_probing(&self) -> bool {
        self.is_probing
    }

    /// Nothing was sent for long: lets go of what only a burst needed.
    pub(super) fn rest(&mut self) {
        self.queue.shrink_to(0);
        // The sign of life that comes next.
        self.sent.shrink_to(1);
    }

    /// The memory that the outbox takes, without buffers of others.
    pub(super) fn state_bytes(&self) -> usize {
        let waiting = self.queue.iter().map(|batch| match batch {
            OpenBatch::Gathered(bytes) => bytes.capacity(),
            OpenBatch::Kept(_) => 0,
        });
        self.queue.capacity() * size_of::<OpenBatch<B>>()
            + self.sent.capacity() * size_of::<B>()
            + waiting.sum::<usize>()
    }

    /// Everything is given up.
    pub(super) fn clear(&mut self) -> Vec<B> {
        let Self { sent, queue, .. } = std::mem::replace(self, Self::new());
        let open = queue.into_iter().filter_map(|batch| match batch {
            OpenBatch::Gathered(_) => None,
            OpenBatch::Kept(kept) => Some(kept),
        });
        sent.into_iter().chain(open).collect()
    }

    /// The first that is not known to have been taken.
    pub(super) fn first(&self) -> u64 {
        self.first
    }
}

/// The batches that came. `C` is a batch that is not taken yet.
#[derive(Debug)]
pub(super) struct LinkInbox<C> {
    next: u64,
    /// The batch of that number, if it is there: most come in their turn.
    now: Option<C>,
    early: BTreeMap<u64, C>,
}

/// The use of a batch that came.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BatchVerdict<C> {
    /// It is kept for its turn, or has it now: [`LinkInbox::next`].
    Kept,
    /// It has been taken before.
    Again(C),
    /// No honest gateway sends so far ahead.
    TooFar(C),
}

impl<C> LinkInbox<C> {
    /// One that has taken all before this number.
    pub(super) fn new(next: u64) -> Self {
        Self { next, now: None, early: BTreeMap::new() }
    }

    /// All before this one have been taken.
    pub(super) fn received(&self) -> u64 {
        self.next
    }

    pub(super) fn arrive(&mut self, number: u64, batch: C) -> BatchVerdict<C> {
        let is_there = number == self.next && self.now.is_some();
        if number < self.next || is_there || self.early.contains_key(&number) {
            return BatchVerdict::Again(batch);
        }
        if number - self.next >= WINDOW as u64 {
            return BatchVerdict::TooFar(batch);
        }
        if number == self.next {
            self.now = Some(batch);
        } else {
            self.early.insert(number, batch);
        }
        BatchVerdict::Kept
    }

    /// The batch whose turn it is.
    pub(super) fn take(&mut self) -> Option<C> {
        let batch = self.now.take()?;
        self.next += 1;
        self.now = self.early.remove(&self.next);
        if self.now.is_some() && self.early.is_empty() {
            // An empty map keeps room for eleven.
            self.early = BTreeMap::new();
        }
        Some(batch)
    }

    /// Whether there is one.
    pub(super) fn has_next(&self) -> bool {
        self.now.is_some()
    }

    /// All but the first so many; they come again.
    pub(super) fn forget_beyond(&mut self, kept: usize) -> Vec<C> {
        let Some(kept) = kept.checked_sub(usize::from(self.now.is_some())) else {
            return self.forget_early();
        };
        let beyond = self.early.keys().nth(kept).copied();
        beyond.map_or_else(Vec::new, |at| self.early.split_off(&at).into_values().collect())
    }

    /// Forgets batches before their turn: their session is over, and they come again.
    pub(super) fn forget_early(&mut self) -> Vec<C> {
        self.now.take().into_iter().chain(std::mem::take(&mut self.early).into_values()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Keep for u64 {
        fn bytes(&self) -> usize {
            size_of::<Self>()
        }
    }

    /// Every third is as it is kept from the beginning.
    fn put(outbox: &mut Outbox<u64>, value: u64, spare: &mut Vec<Vec<u8>>) {
        let room = outbox.room(8, 8, spare);
        match room {
            OpenBatch::Gathered(_) if value.is_multiple_of(3) => *room = OpenBatch::Kept(value),
            OpenBatch::Gathered(bytes) => bytes.extend_from_slice(&value.to_le_bytes()),
            OpenBatch::Kept(_) => panic!("it is full"),
        }
    }

    fn keep_one(outbox: &mut Outbox<u64>) {
        let is_gathered = matches!(outbox.queue.front(), Some(OpenBatch::Gathered(_)));
        outbox.keep(is_gathered.then_some(0));
    }

    /// Numbers what waits, as far as there is room.
    fn number(outbox: &mut Outbox<u64>, spare: &mut Vec<Vec<u8>>) {
        while let Some(batch) = outbox.front() {
            let gathered = match batch {
                OpenBatch::Gathered(bytes) => {
                    Some(u64::from_le_bytes(bytes[..].try_into().expect("one value")))
                }
                OpenBatch::Kept(_) => None,
            };
            if let Some(mut batch) = outbox.keep(gathered) {
                batch.clear();
                spare.push(batch);
            }
        }
    }

    proptest! {
        /// Batches overtake each other, are sent back for want of room, answers are lost with their
        /// sessions; each value is taken once and in order.
        #[test]
        fn all_is_taken_once_and_in_order(steps in prop::collection::vec(0_u8..8, 1..2000)) {
            let (mut outbox, mut inbox) = (Outbox::new(), LinkInbox::new(0));
            let (mut way, mut answers) = (Vec::new(), Vec::new());
            let (mut spare, mut said, mut heard) = (Vec::new(), 0_u64, 0_u64);
            let mut laters = 0;
            let tail = std::iter::repeat_n([1, 2, 5, 6, 7], 4000).flatten();
            for (at, step) in steps.iter().copied().chain(tail).enumerate() {
                match step {
                    0 => {
                        put(&mut outbox, said, &mut spare);
                        said += 1;
                    }
                    1 => {
                        number(&mut outbox, &mut spare);
                        while let Some((number, value)) = outbox.next_out() {
                            way.push((number, *value));
                            outbox.went_out();
                        }
                    }
                    2 if !way.is_empty() => {
                        let (number, value) = way.swap_remove(at * 7 % way.len());
                        let verdict = inbox.arrive(number, value);
                        prop_assert!(!matches!(verdict, BatchVerdict::TooFar(_)));
                        if at < steps.len() && at % 3 == 0 {
                            // There is no room; the answers are on their way.
                            laters += inbox.forget_beyond(1).len();
                            continue;
                        }
                        while let Some(value) = inbox.take() {
                            prop_assert_eq!(value, heard);
                            heard += 1;
                        }
                        answers.push(inbox.received());
                    }
                    3 => {
                        way.clear();
                        answers.clear();
                        laters = 0;
                        inbox.forget_early();
                        prop_assert!(outbox.taken(inbox.received()).is_some());
                        outbox.begin_again();
                    }
                    4 | 5 if !answers.is_empty() => {
                        let received = answers.swap_remove(at * 5 % answers.len());
                        prop_assert!(outbox.taken(received).is_some());
                    }
                    6 if laters > 0 => {
                        laters -= 1;
                        outbox.begin_slowly();
                    }
                    7 => {
                        // There is room again; and it is tried again.
                        while let Some(value) = inbox.take() {
                            prop_assert_eq!(value, heard);
                            heard += 1;
                            answers.push(inbox.received());
                        }
                        if outbox.is_probing() {
                            outbox.begin_slowly();
                        }
                    }
                    _ => {}
                }
            }
            prop_assert_eq!(heard, said);
            prop_assert!(outbox.front().is_none() && outbox.next_out().is_none());
        }
    }

    #[test]
    fn a_full_queue_holds_producers_up_until_it_has_drained() {
        let (mut outbox, mut spare) = (Outbox::new(), Vec::new());
        for value in 0..=QUEUE_HOLD as u64 {
            assert_eq!((outbox.hold(), outbox.is_swift()), (None, true));
            put(&mut outbox, value, &mut spare);
        }
        put(&mut outbox, 99, &mut spare);
        assert!(!outbox.is_swift());
        keep_one(&mut outbox);
        assert_eq!((outbox.hold(), outbox.hold()), (Some(true), None));
        while outbox.queue.len() > QUEUE_RELEASE {
            assert_eq!(outbox.hold(), None);
            assert_eq!(outbox.is_swift(), outbox.queue.len() <= QUEUE_HOLD);
            keep_one(&mut outbox);
        }
        assert_eq!(outbox.hold(), Some(false));
        assert!(!outbox.is_idle() && !outbox.is_full());
        assert_eq!(outbox.taken(99), None, "no host has unsent messages");
        // Batches that wait in the form in which they are kept are given up as well.
        let as_kept =
            outbox.queue.iter().filter(|batch| matches!(batch, OpenBatch::Kept(_))).count();
        assert_eq!(outbox.clear().len(), QUEUE_HOLD + 2 - QUEUE_RELEASE + as_kept);
        assert!(as_kept > 0);
        assert!(outbox.is_idle());
    }

    #[test]
    fn a_sign_is_due_when_nothing_is_there_and_nothing_was_sent_for_a_while() {
        let (mut outbox, mut spare) = (Outbox::new(), Vec::new());
        assert!(outbox.is_idle() && outbox.is_quiet());
        // One that was begun for a cell that could not be read.
        outbox.room(8, 8, &mut spare);
        assert!(outbox.is_idle() && outbox.is_quiet());
        outbox.send_beside(7_u64);
        assert!(!outbox.is_idle());
        assert!(outbox.taken(1).is_some() && outbox.is_idle());
        assert!(outbox.is_quiet(), "the sign itself does not count");
        put(&mut outbox, 1, &mut spare);
        assert!(!outbox.is_idle());
        number(&mut outbox, &mut spare);
        assert!(outbox.taken(2).is_some() && outbox.is_idle());
        assert!(!outbox.is_quiet() && outbox.is_quiet(), "then it is for a while");
    }

    #[test]
    fn there_is_an_end_to_what_waits() {
        let (mut outbox, mut spare) = (Outbox::<u64>::new(), Vec::new());
        let at = |value, outbox: &mut Outbox<u64>, spare: &mut Vec<_>| {
            put(outbox, value, spare);
            (outbox.is_full(), outbox.is_flooded())
        };
        let ends: Vec<_> =
            (1..=QUEUE_FLOODED as u64).map(|value| at(value, &mut outbox, &mut spare)).collect();
        let count = |is: fn(&(bool, bool)) -> bool| ends.iter().filter(|it| is(it)).count();
        assert_eq!(count(|it| it.0), QUEUE_FLOODED - QUEUE_MAX + 1);
        assert_eq!((count(|it| it.1), ends.last()), (1, Some(&(true, true))));
    }

    #[test]
    fn a_sender_too_far_ahead_is_found_out() {
        let mut inbox = LinkInbox::new(0);
        assert_eq!(inbox.arrive(WINDOW as u64, 'a'), BatchVerdict::TooFar('a'));
        assert_eq!(inbox.arrive(WINDOW as u64 - 1, 'b'), BatchVerdict::Kept);
        assert_eq!(inbox.arrive(WINDOW as u64 - 1, 'c'), BatchVerdict::Again('c'));
        assert!(!inbox.has_next());
        assert_eq!(inbox.arrive(0, 'd'), BatchVerdict::Kept);
        assert_eq!(inbox.arrive(0, 'e'), BatchVerdict::Again('e'));
        assert!(inbox.forget_beyond(2).is_empty());
        assert_eq!(inbox.forget_beyond(1), ['b']);
        assert_eq!(inbox.forget_beyond(0), ['d']);
        assert_eq!(inbox.arrive(1, 'f'), BatchVerdict::Kept);
        assert_eq!((inbox.take(), inbox.forget_early()), (None, vec!['f']));
    }

    #[test]
    fn a_rest_gives_back_what_a_burst_took() {
        let (mut outbox, mut spare) = (Outbox::new(), Vec::new());
        for value in 0..20 {
            put(&mut outbox, value, &mut spare);
        }
        while !outbox.queue.is_empty() {
            keep_one(&mut outbox);
        }
        assert_eq!(outbox.taken(20).map(|taken| taken.len()), Some(20));
        assert!(outbox.is_idle() && outbox.state_bytes() > 500);
        outbox.rest();
        assert!(outbox.state_bytes() <= size_of::<u64>());
    }
}
