//! Which message belongs to which receive.
//!
//! One matcher has one space of one endpoint: the receives that are *posted* and wait for a
//! message, and the messages that came *unexpected* and wait for a receive. MPI's rules: a message
//! goes to the receive that was posted first among those that it fits, a receive takes the message
//! that came first among those that fit it. So messages of one source are never received out of
//! order, whatever mixture of wildcards asks for them.
//!
//! Posted receives are in queues by (source, tag), where both are given, and by (anyone, tag),
//! where only the tag is; those that ignore bits of the tag are in one list. A message looks at
//! the first of two queues and goes down the list until it meets one that fits or one that was
//! posted later than what it has. Unexpected messages are in three orders at once: of arrival, by
//! (source, tag) and by tag, so that only a receive that ignores bits of the tag searches. What
//! wildcards cost is what is waiting; all else is constant ([`Matcher::probes`] counts).
//!
//! Nothing is allocated but what grows with the most that ever waited at once. Pure: no memory
//! that is shared, no clock; what is kept with a receive or a message is the caller's (`R`, `U`).

pub(crate) mod store;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};

use self::store::{Id, List, Store};
use crate::{Address, Context};

/// The messages that a receive, or a look, is content with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// From this endpoint only.
    pub source: Option<Address>,
    /// The tag, but for the bits of `ignore`.
    pub tag: u64,
    /// Bits of the tag that do not matter.
    pub ignore: u64,
}

/// What a message is told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// From whom.
    pub source: Address,
    /// Its tag; zero in the space without tags.
    pub tag: u64,
}

impl Pattern {
    /// Whether a message fits.
    pub fn fits(&self, envelope: &Envelope) -> bool {
        (self.tag ^ envelope.tag) & !self.ignore == 0
            && self.source.is_none_or(|source| source == envelope.source)
    }

    /// The queue that it has, if it ignores no bit.
    fn key(&self) -> Option<Key> {
        (self.ignore == 0).then_some(Key { source: self.source, tag: self.tag })
    }
}

/// A posted receive, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostedId(Id);

/// An unexpected message, until it is removed or claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnexpectedId(Id);

/// What a queue has in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    source: Option<Address>,
    tag: u64,
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.tag);
        if let Some(Address { host, incarnation, slot }) = self.source {
            state.write_u64(host);
            state.write_u64(u64::from(incarnation) << 16 | u64::from(slot));
        }
    }
}

#[derive(Debug)]
struct Posted<R> {
    /// Which of all that were ever posted here: orders queues and list against each other.
    turn: u64,
    pattern: Pattern,
    context: Context,
    receive: R,
}

#[derive(Debug)]
struct Unexpected<U> {
    envelope: Envelope,
    message: U,
}

#[derive(Debug)]
struct Claimed<U> {
    context: Context,
    envelope: Envelope,
    message: U,
}

type Queues = HashMap<Key, List, Seeds>;

/// In every list of entries: the order in which they came.
const ALL: usize = 0;
/// Posted: the queue of its key, or the list of those that ignore bits. Unexpected: of its source
/// and tag.
const OWN: usize = 1;
/// Unexpected: of its tag, from anyone.
const ANYONE: usize = 2;

/// See the module.
#[derive(Debug)]
pub struct Matcher<R, U> {
    posted: Store<Posted<R>, 2>,
    /// All, in order.
    posted_all: List,
    posted_queues: Queues,
    /// Those that ignore bits of the tag, in order.
    posted_loose: List,
    /// How many of the posted ones are in queues of anyone's.
    posted_anyone: usize,
    next_turn: u64,

    unexpected: Store<Unexpected<U>, 3>,
    unexpected_all: List,
    unexpected_queues: Queues,
    /// Few at any time: a program that claims a message takes it next.
    claimed: Vec<Claimed<U>>,

    probes: u64,
}

impl<R, U> Matcher<R, U> {
    /// With room for so many receives and as many messages, before anything grows.
    pub fn new(capacity: usize) -> Self {
        let seeds = Seeds(RandomState::new().build_hasher().finish());
        Self {
            posted: Store::new(capacity),
            posted_all: List::EMPTY,
            posted_queues: HashMap::with_capacity_and_hasher(capacity, seeds),
            posted_loose: List::EMPTY,
            posted_anyone: 0,
            next_turn: 0,
            unexpected: Store::new(capacity),
            unexpected_all: List::EMPTY,
            unexpected_queues: HashMap::with_capacity_and_hasher(2 * capacity, seeds),
            claimed: Vec::new(),
            probes: 0,
        }
    }

    /// How many receives wait.
    pub fn posted_count(&self) -> usize {
        self.posted.len()
    }

    /// How many messages wait, those that are claimed not among them.
    pub fn unexpected_count(&self) -> usize {
        self.unexpected.len()
    }

    /// How many queues and entries were looked at so far.
    pub fn probes(&self) -> u64 {
        self.probes
    }

    /// Posts a receive behind all others. What has come already is not looked at: ask
    /// [`Matcher::unexpected_for`] first.
    pub fn post(&mut self, pattern: Pattern, context: Context, receive: R) -> PostedId {
        let turn = self.next_turn;
        self.next_turn += 1;
        let id = self.posted.keep(Posted { turn, pattern, context, receive });
        self.posted.append(&mut self.posted_all, ALL, id);
        match pattern.key() {
            Some(key) => {
                let queue = self.posted_queues.entry(key).or_insert(List::EMPTY);
                self.posted.append(queue, OWN, id);
                self.posted_anyone += usize::from(key.source.is_none());
            }
            None => self.posted.append(&mut self.posted_loose, OWN, id),
        }
        PostedId(id)
    }

    /// The receive that a message belongs to that has come now. It stays posted, in its place,
    /// until it is removed: several messages may share a buffer.
    pub fn posted_for(&mut self, envelope: &Envelope) -> Option<PostedId> {
        let &Envelope { source, tag } = envelope;
        let mut found = self.first_of(Key { source: Some(source), tag });
        if self.posted_anyone > 0 {
            let other = self.first_of(Key { source: None, tag });
            found = [found, other].into_iter().flatten().min_by_key(|(turn, _)| *turn);
        }
        let mut next = self.posted.first(self.posted_loose);
        while let Some(id) = next {
            self.probes += 1;
            let posted = self.posted.get(id)?;
            if found.is_some_and(|(turn, _)| turn < posted.turn) {
                break;
            }
            if posted.pattern.fits(envelope) {
                return Some(PostedId(id));
            }
            next = self.posted.after(OWN, id);
        }
        found.map(|(_, id)| PostedId(id))
    }

    /// The first of a queue of receives, and when it was posted.
    fn first_of(&mut self, key: Key) -> Option<(u64, Id)> {
        self.probes += 1;
        let id = self.posted.first(*self.posted_queues.get(&key)?)?;
        Some((self.posted.get(id)?.turn, id))
    }

    /// What is kept with a receive; none once it is removed.
    pub fn posted_mut(&mut self, id: PostedId) -> Option<&mut R> {
        self.posted.get_mut(id.0).map(|posted| &mut posted.receive)
    }

    /// Takes a receive out.
    pub fn remove_posted(&mut self, id: PostedId) -> Option<(Context, R)> {
        let PostedId(id) = id;
        let pattern = self.posted.get(id)?.pattern;
        self.posted.leave(&mut self.posted_all, ALL, id);
        match pattern.key() {
            Some(key) => {
                leave(&mut self.posted, &mut self.posted_queues, key, OWN, id);
                self.posted_anyone -= usize::from(key.source.is_none());
            }
            None => self.posted.leave(&mut self.posted_loose, OWN, id),
        }
        self.posted.give_up(id).map(|posted| (posted.context, posted.receive))
    }

    /// The oldest receive that was posted with this context: what a cancellation means. Looks at
    /// all that are posted.
    pub fn posted_by(&mut self, context: Context) -> Option<PostedId> {
        self.posted_where(|posted| posted.context == context)
    }

    /// The oldest receive that waits for this source alone: what is lost with it. Looks at all that
    /// are posted.
    pub fn posted_from(&mut self, source: Address) -> Option<PostedId> {
        self.posted_where(|posted| posted.pattern.source == Some(source))
    }

    fn posted_where(&mut self, is_meant: impl Fn(&Posted<R>) -> bool) -> Option<PostedId> {
        let mut next = self.posted.first(self.posted_all);
        while let Some(id) = next {
            self.probes += 1;
            if is_meant(self.posted.get(id)?) {
                return Some(PostedId(id));
            }
            next = self.posted.after(ALL, id);
        }
        None
    }

    /// Keeps a message behind all others. Receives that wait are not looked at: ask
    /// [`Matcher::posted_for`] first.
    pub fn arrive(&mut self, envelope: Envelope, message: U) -> UnexpectedId {
        let id = self.unexpected.keep(Unexpected { envelope, message });
        self.unexpected.append(&mut self.unexpected_all, ALL, id);
        for (lane, key) in keys_of(&envelope) {
            let queue = self.unexpected_queues.entry(key).or_insert(List::EMPTY);
            self.unexpected.append(queue, lane, id);
        }
        UnexpectedId(id)
    }

    /// The message that a receive takes that is asked for now; also what a look finds. It stays
    /// until it is removed or claimed.
    pub fn unexpected_for(&mut self, pattern: &Pattern) -> Option<UnexpectedId> {
        if self.unexpected.len() == 0 {
            return None;
        }
        if let Some(key) = pattern.key() {
            self.probes += 1;
            return self.unexpected.first(*self.unexpected_queues.get(&key)?).map(UnexpectedId);
        }
        let mut next = self.unexpected.first(self.unexpected_all);
        while let Some(id) = next {
            self.probes += 1;
            if pattern.fits(&self.unexpected.get(id)?.envelope) {
                return Some(UnexpectedId(id));
            }
            next = self.unexpected.after(ALL, id);
        }
        None
    }

    /// What is kept with a message; none once it is removed or claimed.
    pub fn unexpected_mut(&mut self, id: UnexpectedId) -> Option<(&Envelope, &mut U)> {
        let Unexpected { envelope, message } = self.unexpected.get_mut(id.0)?;
        Some((&*envelope, message))
    }

    /// Takes a message out.
    pub fn remove_unexpected(&mut self, id: UnexpectedId) -> Option<(Envelope, U)> {
        let UnexpectedId(id) = id;
        let envelope = self.unexpected.get(id)?.envelope;
        self.unexpected.leave(&mut self.unexpected_all, ALL, id);
        for (lane, key) in keys_of(&envelope) {
            leave(&mut self.unexpected, &mut self.unexpected_queues, key, lane, id);
        }
        self.unexpected.give_up(id).map(|unexpected| (unexpected.envelope, unexpected.message))
    }

    /// Sets a message aside for who asks for it by this context: no receive and no look finds it.
    /// `false`: it was not there.
    pub fn claim(&mut self, id: UnexpectedId, context: Context) -> bool {
        let Some((envelope, message)) = self.remove_unexpected(id) else { return false };
        self.claimed.push(Claimed { context, envelope, message });
        true
    }

    /// Hands over what was claimed by this context; of several the oldest.
    pub fn take_claimed(&mut self, context: Context) -> Option<(Envelope, U)> {
        let place = self.claimed.iter().position(|claimed| claimed.context == context)?;
        let Claimed { envelope, message, .. } = self.claimed.remove(place);
        Some((envelope, message))
    }
}

/// The queues of an unexpected message, each with the lane of its links.
fn keys_of(envelope: &Envelope) -> [(usize, Key); 2] {
    let &Envelope { source, tag } = envelope;
    [(OWN, Key { source: Some(source), tag }), (ANYONE, Key { source: None, tag })]
}

/// Takes an entry out of its queue; a queue that is empty is no more, so that queues are never more
/// than entries.
fn leave<T, const LANES: usize>(
    store: &mut Store<T, LANES>,
    queues: &mut Queues,
    key: Key,
    lane: usize,
    id: Id,
) {
    let queue = queues.get_mut(&key).expect("an entry's queue is there for as long as it is");
    store.leave(queue, lane, id);
    if queue.is_empty() {
        queues.remove(&key);
    }
}

/// Makes the hashes of one matcher: no other process knows the seed, so none can choose tags that
/// meet in one place.
#[derive(Clone, Copy, Debug)]
struct Seeds(u64);

impl BuildHasher for Seeds {
    type Hasher = Fold;

    fn build_hasher(&self) -> Fold {
        Fold(self.0)
    }
}

/// A word at a time: multiplied to twice its width, and the halves folded together. A key has at
/// most three words, and is looked up twice for each message: the standard hash takes longer than
/// all else here.
#[derive(Clone, Copy, Debug)]
struct Fold(u64);

impl Hasher for Fold {
    fn write_u64(&mut self, word: u64) {
        // An odd number with about as many ones as zeroes: the golden ratio's.
        const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ word) * FACTOR;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
