//! The matcher: which message belongs to which receive.
//!
//! One matcher has one space of one endpoint: the receives that are *posted* and wait for a
//! message, and the messages that came *unexpected* and wait for a receive. MPI's rules: a message
//! goes to the receive that was posted first among those that it fits, and a receive takes the
//! message that came first among those that fit it. So messages of one source are never received
//! out of order, with any mixture of wildcards.
//!
//! A pattern has a *shape*: which bits of the tag it ignores, and whether it names a source. MPIs
//! have few shapes (they always ignore some bits), so the first `SHAPES_MAX` that are used are
//! hashed. Posted receives are in queues by shape, source and the bits of the tag that matter. A
//! message looks at the first receive of one queue for each shape that a receive waits in. Numbers
//! keep the order between queues. Unexpected messages are in a queue for each shape, and in the
//! order in which they came. Patterns of further shapes are in a list and search; all else costs
//! the same however much waits ([`Matcher::probes`] counts).
//!
//! While no more than `UNHASHED_MAX` messages wait they are not hashed. Receives are not hashed,
//! however many wait, until a message fits none of the first `UNHASHED_MAX`: a window of receives
//! that are taken in order is never hashed. Entries that are not hashed are looked at one by one,
//! in order.
//!
//! Memory is allocated only when more entries wait at once than ever before. The matcher is pure:
//! it has no shared memory and no clock. The caller's data for a receive or a message is of its own
//! types (`R`, `U`).

pub(crate) mod store;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};

use self::store::{Id, ListEnds, MatchStore};
use crate::{Address, RequestContext};

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

/// The source and the tag of a message, which patterns are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender.
    pub source: Address,
    /// Its tag; zero in the space without tags.
    pub tag: u64,
}

impl Pattern {
    /// Whether a message fits.
    #[inline]
    pub fn fits(&self, envelope: &Envelope) -> bool {
        (self.tag ^ envelope.tag) & !self.ignore == 0
            && self.source.is_none_or(|source| source == envelope.source)
    }

    fn shape(&self) -> PatternShape {
        PatternShape { ignore: self.ignore, directed: self.source.is_some() }
    }
}

/// Shapes that are hashed. Open MPI has six of them in one endpoint: the tag as it is, without the
/// bits of its protocol, and without those of MPI's tag, each from one source and from anyone.
/// MPICH has five.
const SHAPES_MAX: usize = 8;

/// As many entries are looked at one by one as fast as one entry is hashed.
const UNHASHED_MAX: usize = 8;

/// A shape: the common part of patterns that share a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PatternShape {
    ignore: u64,
    directed: bool,
}

impl PatternShape {
    /// The queue of this shape, which has this number, in which a tag of this source is.
    fn key(self, number: usize, source: Address, tag: u64) -> QueueKey {
        let source = self.directed.then_some(source);
        QueueKey { shape: number as u8, source, tag: tag & !self.ignore }
    }
}

/// A posted receive, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PostedId(Id);

/// An unexpected message, until it is removed or claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnexpectedId(Id);

/// The common part of a queue's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct QueueKey {
    shape: u8,
    source: Option<Address>,
    tag: u64,
}

impl Hash for QueueKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.tag);
        let shape = u64::from(self.shape) << 48;
        if let Some(Address { host, incarnation, slot }) = self.source {
            state.write_u64(host);
            state.write_u64(shape | u64::from(incarnation) << 16 | u64::from(slot));
        } else {
            state.write_u64(shape);
        }
    }
}

#[derive(Debug)]
struct Posted<R> {
    /// Which of all that were ever posted here: orders queues and list against each other.
    turn: u64,
    pattern: Pattern,
    /// The number of its shape, once it is in that one's queue.
    shape: Option<u8>,
    context: RequestContext,
    receive: R,
}

impl<R> Posted<R> {
    /// Its queue, if its shape is hashed.
    fn key(&self) -> Option<QueueKey> {
        let number = self.shape?;
        let Pattern { source, tag, ignore } = self.pattern;
        Some(QueueKey { shape: number, source, tag: tag & !ignore })
    }
}

#[derive(Debug)]
struct Unexpected<U> {
    envelope: Envelope,
    message: U,
}

#[derive(Debug)]
struct Claimed<U> {
    context: RequestContext,
    envelope: Envelope,
    message: U,
}

type Queues = HashMap<QueueKey, ListEnds, Seeds>;

/// In every list of entries: the order in which they came.
const ALL: usize = 0;
/// Posted: the queue of its shape, or the list of those whose shape is not hashed. Unexpected: the
/// queue of the first shape, which those of the others follow.
const OWN: usize = 1;

/// See the module.
#[derive(Debug)]
pub struct Matcher<R, U> {
    /// Those that are hashed, and how many of the posted ones are in queues of each.
    shapes: Vec<(PatternShape, usize)>,

    posted: MatchStore<Posted<R>, 2>,
    /// All, in order.
    posted_all: ListEnds,
    /// Whether queues and list are in use; they are until nothing is posted any more.
    posted_hashed: bool,
    posted_queues: Queues,
    /// Those whose shape is not hashed, in order.
    posted_loose: ListEnds,
    next_turn: u64,

    unexpected: MatchStore<Unexpected<U>, { OWN + SHAPES_MAX }>,
    unexpected_all: ListEnds,
    unexpected_hashed: bool,
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
            shapes: Vec::with_capacity(SHAPES_MAX),
            posted: MatchStore::new(capacity),
            posted_all: ListEnds::EMPTY,
            posted_hashed: false,
            posted_queues: HashMap::with_capacity_and_hasher(capacity, seeds),
            posted_loose: ListEnds::EMPTY,
            next_turn: 0,
            unexpected: MatchStore::new(capacity),
            unexpected_all: ListEnds::EMPTY,
            unexpected_hashed: false,
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

    /// How many queues and entries were looked at so far, by searches.
    pub fn probes(&self) -> u64 {
        self.probes
    }

    /// The number of a shape, if it is hashed; from now on, where there is room for one more.
    fn shape_of(&mut self, pattern: &Pattern) -> Option<u8> {
        let shape = pattern.shape();
        let known = self.shapes.iter().position(|(known, _)| *known == shape);
        if let Some(number) = known {
            return Some(number as u8);
        }
        let number = self.shapes.len();
        if number == SHAPES_MAX {
            return None;
        }
        self.shapes.push((shape, 0));
        if self.unexpected_hashed {
            self.for_all_unexpected(|this, id, envelope| {
                this.hash_unexpected(number, id, envelope)
            });
        }
        Some(number as u8)
    }

    /// Posts a receive behind all others. It does not look at messages that have come already: ask
    /// [`Matcher::unexpected_for`] first.
    #[inline(always)]
    pub fn post(&mut self, pattern: Pattern, context: RequestContext, receive: R) -> PostedId {
        let turn = self.next_turn;
        self.next_turn += 1;
        let id = self.posted.keep(Posted { turn, pattern, shape: None, context, receive });
        self.posted.append(&mut self.posted_all, ALL, id);
        if self.posted_hashed {
            self.hash_posted(id);
        }
        PostedId(id)
    }

    #[cold]
    fn hash_all_posted(&mut self) {
        self.posted_hashed = true;
        let mut next = self.posted.first(self.posted_all);
        while let Some(id) = next {
            self.hash_posted(id);
            next = self.posted.after(ALL, id);
        }
    }

    fn hash_posted(&mut self, id: Id) {
        let pattern = self.posted.get(id).expect("it is posted").pattern;
        let shape = self.shape_of(&pattern);
        let posted = self.posted.get_mut(id).expect("it is posted");
        posted.shape = shape;
        let Some(key) = posted.key() else {
            return self.posted.append(&mut self.posted_loose, OWN, id);
        };
        self.shapes[usize::from(key.shape)].1 += 1;
        let queue = self.posted_queues.entry(key).or_insert(ListEnds::EMPTY);
        self.posted.append(queue, OWN, id);
    }

    /// The receive that a message belongs to that has come now. It stays posted, in its place,
    /// until it is removed: several messages may share a buffer.
    #[inline(always)]
    pub fn posted_for(&mut self, envelope: &Envelope) -> Option<PostedId> {
        // Most messages come in the order of their receives: nothing is before the first one.
        let first = self.posted.first(self.posted_all)?;
        if self.posted.get(first)?.pattern.fits(envelope) {
            self.probes += 1;
            return Some(PostedId(first));
        }
        let next = self.posted.after(ALL, first)?;
        self.posted_behind(next, envelope).map(PostedId)
    }

    /// The first that fits from one on that is behind some that do not.
    fn posted_behind(&mut self, next: Id, envelope: &Envelope) -> Option<Id> {
        if !self.posted_hashed {
            let mut next = next;
            for _ in 1..UNHASHED_MAX {
                self.probes += 1;
                if self.posted.get(next)?.pattern.fits(envelope) {
                    return Some(next);
                }
                next = self.posted.after(ALL, next)?;
            }
            self.hash_all_posted();
        }
        self.posted_in_queues(envelope)
    }

    fn posted_in_queues(&mut self, envelope: &Envelope) -> Option<Id> {
        let mut found: Option<(u64, Id)> = None;
        for number in 0..self.shapes.len() {
            let (shape, waiting) = self.shapes[number];
            if waiting > 0 {
                let first = self.first_of(shape.key(number, envelope.source, envelope.tag));
                found = [found, first].into_iter().flatten().min_by_key(|(turn, _)| *turn);
            }
        }
        let before = found.map_or(u64::MAX, |(turn, _)| turn);
        let loose = self.posted_among(self.posted_loose, OWN, envelope, before);
        loose.or(found.map(|(_, id)| id))
    }

    /// The first of a list that fits, if it was posted before that turn.
    fn posted_among(
        &mut self,
        list: ListEnds,
        lane: usize,
        envelope: &Envelope,
        before: u64,
    ) -> Option<Id> {
        let mut next = self.posted.first(list);
        while let Some(id) = next {
            let posted = self.posted.get(id)?;
            if posted.turn > before {
                return None;
            }
            self.probes += 1;
            if posted.pattern.fits(envelope) {
                return Some(id);
            }
            next = self.posted.after(lane, id);
        }
        None
    }

    /// The first of a queue of receives, and when it was posted.
    fn first_of(&mut self, key: QueueKey) -> Option<(u64, Id)> {
        self.probes += 1;
        let id = self.posted.first(*self.posted_queues.get(&key)?)?;
        Some((self.posted.get(id)?.turn, id))
    }

    /// A receive and what is kept with it; none once it is removed.
    #[inline(always)]
    pub fn posted(&self, id: PostedId) -> Option<(RequestContext, &R)> {
        self.posted.get(id.0).map(|posted| (posted.context, &posted.receive))
    }

    /// The caller's data of a receive; none once it is removed.
    #[inline(always)]
    pub fn posted_mut(&mut self, id: PostedId) -> Option<&mut R> {
        self.posted.get_mut(id.0).map(|posted| &mut posted.receive)
    }

    /// Takes a receive out.
    pub fn remove_posted(&mut self, id: PostedId) -> Option<(RequestContext, R)> {
        self.unlink_posted(id);
        let posted = self.posted.give_up(id.0)?;
        self.posted_hashed &= self.posted.len() > 0;
        Some((posted.context, posted.receive))
    }

    /// The same for a caller that has seen to its data: nothing is moved.
    #[inline(always)]
    pub fn drop_posted(&mut self, id: PostedId) {
        self.unlink_posted(id);
        self.posted.discard(id.0);
        self.posted_hashed &= self.posted.len() > 0;
    }

    /// Takes a receive out of all lists, if there is such a receive.
    #[inline(always)]
    fn unlink_posted(&mut self, PostedId(id): PostedId) {
        let Some(posted) = self.posted.get(id) else { return };
        if self.posted_hashed {
            let key = posted.key();
            self.leave_queue(key, id);
        }
        self.posted.leave(&mut self.posted_all, ALL, id);
    }

    /// Takes a receive out of its queue, or of the list of those without one.
    fn leave_queue(&mut self, key: Option<QueueKey>, id: Id) {
        match key {
            Some(key) => {
                leave(&mut self.posted, &mut self.posted_queues, key, OWN, id);
                self.shapes[usize::from(key.shape)].1 -= 1;
            }
            None => self.posted.leave(&mut self.posted_loose, OWN, id),
        }
    }

    /// The oldest receive that was posted with this context, for a cancellation. Looks at all that
    /// are posted.
    pub fn posted_by(&mut self, context: RequestContext) -> Option<PostedId> {
        self.posted_where(|posted| posted.context == context)
    }

    /// The oldest receive that waits for this source alone, which ends with the source. Looks at
    /// all that are posted.
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
        if self.unexpected_hashed {
            (0..self.shapes.len()).for_each(|number| self.hash_unexpected(number, id, envelope));
        } else if self.unexpected.len() > UNHASHED_MAX {
            self.unexpected_hashed = true;
            self.for_all_unexpected(|this, id, envelope| {
                (0..this.shapes.len())
                    .for_each(|number| this.hash_unexpected(number, id, envelope));
            });
        }
        UnexpectedId(id)
    }

    fn for_all_unexpected(&mut self, each: impl Fn(&mut Self, Id, Envelope)) {
        let mut next = self.unexpected.first(self.unexpected_all);
        while let Some(id) = next {
            let envelope = self.unexpected.get(id).expect("it waits").envelope;
            each(self, id, envelope);
            next = self.unexpected.after(ALL, id);
        }
    }

    /// Puts a message into its queue of one shape.
    fn hash_unexpected(&mut self, number: usize, id: Id, envelope: Envelope) {
        let key = self.shapes[number].0.key(number, envelope.source, envelope.tag);
        let queue = self.unexpected_queues.entry(key).or_insert(ListEnds::EMPTY);
        self.unexpected.append(queue, OWN + number, id);
    }

    /// The message that a receive takes that is asked for now; also what a look finds. It stays
    /// until it is removed or claimed.
    #[inline(always)]
    pub fn unexpected_for(&mut self, pattern: &Pattern) -> Option<UnexpectedId> {
        if self.unexpected.len() == 0 {
            return None;
        }
        self.unexpected_among_some(pattern)
    }

    fn unexpected_among_some(&mut self, pattern: &Pattern) -> Option<UnexpectedId> {
        if self.unexpected_hashed
            && let Some(shape) = self.shape_of(pattern)
        {
            self.probes += 1;
            let key =
                QueueKey { shape, source: pattern.source, tag: pattern.tag & !pattern.ignore };
            return self.unexpected.first(*self.unexpected_queues.get(&key)?).map(UnexpectedId);
        }
        self.unexpected_among_all(pattern)
    }

    fn unexpected_among_all(&mut self, pattern: &Pattern) -> Option<UnexpectedId> {
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

    /// The caller's data of a message; none once it is removed or claimed.
    pub fn unexpected_mut(&mut self, id: UnexpectedId) -> Option<(&Envelope, &mut U)> {
        let Unexpected { envelope, message } = self.unexpected.get_mut(id.0)?;
        Some((&*envelope, message))
    }

    /// Takes a message out.
    pub fn remove_unexpected(&mut self, id: UnexpectedId) -> Option<(Envelope, U)> {
        let UnexpectedId(id) = id;
        let envelope = self.unexpected.get(id)?.envelope;
        if self.unexpected_hashed {
            for (number, (shape, _)) in self.shapes.iter().enumerate() {
                let key = shape.key(number, envelope.source, envelope.tag);
                leave(&mut self.unexpected, &mut self.unexpected_queues, key, OWN + number, id);
            }
        }
        self.unexpected.leave(&mut self.unexpected_all, ALL, id);
        let unexpected = self.unexpected.give_up(id)?;
        self.unexpected_hashed &= self.unexpected.len() > 0;
        Some((unexpected.envelope, unexpected.message))
    }

    /// Sets a message aside for a caller that asks for it by this context: no receive and no look
    /// finds it. `false`: it was not there.
    pub fn claim(&mut self, id: UnexpectedId, context: RequestContext) -> bool {
        let Some((envelope, message)) = self.remove_unexpected(id) else { return false };
        self.claimed.push(Claimed { context, envelope, message });
        true
    }

    /// Hands over what was claimed by this context; of several the oldest.
    pub fn take_claimed(&mut self, context: RequestContext) -> Option<(Envelope, U)> {
        let place = self.claimed.iter().position(|claimed| claimed.context == context)?;
        let Claimed { envelope, message, .. } = self.claimed.remove(place);
        Some((envelope, message))
    }
}

/// Takes an entry out of its queue; a queue that is empty is no more, so that queues are never more
/// than entries.
fn leave<T, const LANES: usize>(
    store: &mut MatchStore<T, LANES>,
    queues: &mut Queues,
    key: QueueKey,
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
/// most three words, and there are several to look up for each message: the standard hash takes
/// longer than all else here.
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
