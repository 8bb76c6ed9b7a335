//! The matcher against a model that scans, and what its searches cost.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A step that both the matcher and the model take.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A receive is asked for; `shared` stays posted when a message takes it.
    Receive {
        pattern: Pattern,
        shared: bool,
    },
    Arrive(Envelope),
    Peek(Pattern),
    /// A look that claims, and whether the message is taken at once or with all others at the end.
    Claim {
        pattern: Pattern,
        at_once: bool,
    },
    /// Of the receive that was asked for so many receives ago.
    Cancel {
        back: u64,
    },
    Lose(Address),
}

/// The outcome of a step, in the same words from both: which receive, which message.
#[derive(Debug, PartialEq, Eq)]
enum Effect {
    Waits,
    Matched { receive: u64, message: u64 },
    Found(Option<u64>),
    Cancelled(bool),
    Lost(Vec<u64>),
}

/// Few sources, few tags, so that they meet.
fn source() -> impl Strategy<Value = Address> {
    (1_u64..3, 1_u32..3, 0_u16..2).prop_map(|(host, incarnation, slot)| Address {
        host,
        incarnation,
        slot,
    })
}

/// A program's use of tags: the bits that a receive ignores, and the tags of messages.
#[derive(Clone, Debug)]
struct Dialect {
    /// Masks that its receives ignore.
    ignores: Vec<u64>,
    /// Bits that differ from message to message.
    bits: Vec<u64>,
}

/// Open MPI's (4.1, by FI_REMOTE_CQ_DATA): a communicator, two bits of its protocol, MPI's tag. A
/// receive ignores the protocol's bit (later releases: both), for MPI_ANY_TAG also all tags that
/// are not negative; a receive of an acknowledgement ignores nothing.
fn open_mpi() -> Dialect {
    let (sync, ack, negative) = (1 << 32, 1 << 33, 1 << 31);
    let (any_tag, both) = (0x7fff_ffff, sync | ack);
    let ignores = vec![0, sync, sync | any_tag, both, both | any_tag];
    Dialect { ignores, bits: vec![1, 2, sync, ack, negative, 1 << 34] }
}

/// MPICH's (ch4:ofi, with the source as data): protocol in the topmost bits, a communicator, a tag.
fn mpich() -> Dialect {
    let (protocol, any_tag) = (0xf << 60, 0x7fff_ffff);
    let ignores = vec![0, protocol, protocol | any_tag];
    Dialect { ignores, bits: vec![1, 2, 1 << 61, 1 << 63, 1 << 40] }
}

/// Nobody's: more masks than are hashed.
fn anything() -> Dialect {
    let ignores = vec![0, 1, 2, 3, 4, 5, 6, 7, u64::MAX, 1 << 63];
    Dialect { ignores, bits: vec![1, 2, 4] }
}

impl Dialect {
    fn tag(&self) -> impl Strategy<Value = u64> + use<> {
        proptest::sample::subsequence(self.bits.clone(), 0..=self.bits.len())
            .prop_map(|bits| bits.into_iter().sum())
    }

    fn pattern(&self) -> impl Strategy<Value = Pattern> + use<> {
        let ignore = proptest::sample::select(self.ignores.clone());
        (proptest::option::of(source()), self.tag(), ignore)
            .prop_map(|(source, tag, ignore)| Pattern { source, tag, ignore })
    }

    fn step(&self) -> impl Strategy<Value = Step> + use<> {
        let envelope = (source(), self.tag()).prop_map(|(source, tag)| Envelope { source, tag });
        prop_oneof![
            6 => (self.pattern(), proptest::bool::weighted(0.1))
                .prop_map(|(pattern, shared)| Step::Receive { pattern, shared }),
            7 => envelope.prop_map(Step::Arrive),
            1 => self.pattern().prop_map(Step::Peek),
            1 => (self.pattern(), any::<bool>())
                .prop_map(|(pattern, at_once)| Step::Claim { pattern, at_once }),
            1 => (0_u64..8).prop_map(|back| Step::Cancel { back }),
            1 => source().prop_map(Step::Lose),
        ]
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::sample::select(vec![open_mpi(), mpich(), anything()])
        .prop_flat_map(|dialect| vec(dialect.step(), 0..300))
}

/// MPI's rules, and nothing else.
#[derive(Default)]
struct Model {
    posted: Vec<(u64, Pattern, bool)>,
    unexpected: Vec<(u64, Envelope)>,
    claimed: VecDeque<u64>,
}

impl Model {
    fn apply(&mut self, step: Step, number: u64) -> Effect {
        match step {
            Step::Receive { pattern, shared } => match self.take(&pattern) {
                Some(message) if !shared => Effect::Matched { receive: number, message },
                // One that is shared would go on taking: here it takes one, and is posted.
                taken => {
                    self.posted.push((number, pattern, shared));
                    taken.map_or(Effect::Waits, |message| Effect::Matched {
                        receive: number,
                        message,
                    })
                }
            },
            Step::Arrive(envelope) => {
                match self.posted.iter().position(|(_, pattern, _)| pattern.fits(&envelope)) {
                    Some(place) => {
                        let (receive, _, shared) = self.posted[place];
                        if !shared {
                            self.posted.remove(place);
                        }
                        Effect::Matched { receive, message: number }
                    }
                    None => {
                        self.unexpected.push((number, envelope));
                        Effect::Waits
                    }
                }
            }
            Step::Peek(pattern) => Effect::Found(self.find(&pattern).map(|i| self.unexpected[i].0)),
            Step::Claim { pattern, .. } => {
                let message = self.take(&pattern);
                self.claimed.extend(message);
                Effect::Found(message)
            }
            Step::Cancel { back } => {
                let place =
                    self.posted.iter().position(|(n, ..)| Some(*n) == number.checked_sub(back));
                Effect::Cancelled(place.map(|place| self.posted.remove(place)).is_some())
            }
            Step::Lose(source) => {
                let is_lost = |posted: &(u64, Pattern, bool)| posted.1.source == Some(source);
                let lost =
                    self.posted.iter().filter(|posted| is_lost(posted)).map(|p| p.0).collect();
                self.posted.retain(|posted| !is_lost(posted));
                Effect::Lost(lost)
            }
        }
    }

    fn find(&self, pattern: &Pattern) -> Option<usize> {
        self.unexpected.iter().position(|(_, envelope)| pattern.fits(envelope))
    }

    fn take(&mut self, pattern: &Pattern) -> Option<u64> {
        self.find(pattern).map(|place| self.unexpected.remove(place).0)
    }
}

/// As an endpoint uses it; the data are the number of the step, and whether the receive is shared.
type Ours = Matcher<(u64, bool), u64>;

fn apply(matcher: &mut Ours, step: Step, number: u64) -> Effect {
    match step {
        Step::Receive { pattern, shared } => {
            let taken = matcher.unexpected_for(&pattern);
            let taken = taken.map(|id| matcher.remove_unexpected(id).unwrap().1);
            if taken.is_none() || shared {
                matcher.post(pattern, RequestContext(number), (number, shared));
            }
            taken.map_or(Effect::Waits, |message| Effect::Matched { receive: number, message })
        }
        Step::Arrive(envelope) => match matcher.posted_for(&envelope) {
            Some(id) => {
                let (receive, shared) = *matcher.posted_mut(id).unwrap();
                if !shared {
                    assert_eq!(
                        matcher.remove_posted(id),
                        Some((RequestContext(receive), (receive, shared)))
                    );
                    assert_eq!(matcher.posted_mut(id), None, "its place may be another's");
                }
                Effect::Matched { receive, message: number }
            }
            None => {
                matcher.arrive(envelope, number);
                Effect::Waits
            }
        },
        Step::Peek(pattern) => {
            let id = matcher.unexpected_for(&pattern);
            Effect::Found(id.map(|id| *matcher.unexpected_mut(id).unwrap().1))
        }
        Step::Claim { pattern, at_once } => {
            let Some(id) = matcher.unexpected_for(&pattern) else { return Effect::Found(None) };
            let message = *matcher.unexpected_mut(id).unwrap().1;
            assert!(matcher.claim(id, RequestContext(message)));
            assert!(!matcher.claim(id, RequestContext(message)), "it is claimed already");
            if at_once {
                assert_eq!(matcher.take_claimed(RequestContext(message)).unwrap().1, message);
                assert_eq!(matcher.take_claimed(RequestContext(message)), None);
            }
            Effect::Found(Some(message))
        }
        Step::Cancel { back } => {
            let context = RequestContext(number.wrapping_sub(back));
            let id = matcher.posted_by(context);
            Effect::Cancelled(id.and_then(|id| matcher.remove_posted(id)).is_some())
        }
        Step::Lose(source) => {
            let mut lost = Vec::new();
            while let Some(id) = matcher.posted_from(source) {
                lost.push(matcher.remove_posted(id).unwrap().1.0);
            }
            Effect::Lost(lost)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn matches_as_a_scan_in_order_does(steps in steps()) {
        let (mut model, mut matcher) = (Model::default(), Ours::new(4));
        for (number, &step) in (0..).zip(&steps) {
            prop_assert_eq!(apply(&mut matcher, step, number), model.apply(step, number));
            prop_assert_eq!(matcher.posted_count(), model.posted.len());
            prop_assert_eq!(matcher.unexpected_count(), model.unexpected.len());
            let queues = matcher.posted_queues.len();
            prop_assert!(queues <= matcher.posted_count(), "empty queues are dropped");
        }
        // The rest is all there, and in order.
        for (message, envelope) in model.unexpected {
            let pattern = Pattern { source: None, tag: 0, ignore: u64::MAX };
            let id = matcher.unexpected_for(&pattern).unwrap();
            prop_assert_eq!(matcher.remove_unexpected(id), Some((envelope, message)));
        }
        for (receive, pattern, shared) in model.posted {
            prop_assert_eq!(
                matcher.posted_by(RequestContext(receive)).and_then(|id| matcher.remove_posted(id)),
                Some((RequestContext(receive), (receive, shared))),
                "{:?}", pattern
            );
        }
        prop_assert!(matcher.posted_queues.is_empty() && matcher.unexpected_queues.is_empty());
        prop_assert!(matcher.posted_loose.is_empty());
        prop_assert!(matcher.shapes.iter().all(|(_, waiting)| *waiting == 0));
    }
}

const MANY: u64 = 10_000;
const PEER: Address = Address { host: 1, incarnation: 1, slot: 7 };
const OTHER: Address = Address { host: 1, incarnation: 1, slot: 8 };

/// A tag of which the masks of an MPI leave this, with all bits set that they ignore.
fn noisy(ignore: u64, tag: u64) -> u64 {
    ignore | tag << 34
}

/// Every mask of both MPIs that leaves something of the tag, from one source and from anyone.
fn masks() -> impl Iterator<Item = (u64, Option<Address>)> {
    let mut masks = [open_mpi().ignores, mpich().ignores].concat();
    masks.sort_unstable();
    masks.dedup();
    masks.into_iter().flat_map(|ignore| [(ignore, Some(PEER)), (ignore, None)])
}

#[test]
fn unexpected_messages_of_many_tags_cost_the_same_each() {
    for (ignore, source) in masks() {
        let mut matcher = Ours::new(0);
        for tag in 0..MANY {
            let envelope = Envelope { source: PEER, tag: noisy(ignore, tag) };
            assert_eq!(matcher.posted_for(&envelope), None);
            matcher.arrive(envelope, tag);
        }
        // The last ones first, so that a search from the front would cost most.
        for tag in (0..MANY).rev() {
            let pattern = Pattern { source, tag: noisy(0, tag), ignore };
            let id = matcher.unexpected_for(&pattern).unwrap();
            assert_eq!(matcher.remove_unexpected(id).unwrap().1, tag);
        }
        assert_eq!(matcher.unexpected_count(), 0);
        assert_eq!(matcher.probes(), MANY, "one queue for each that is taken: {ignore:#x}");
    }
}

#[test]
fn posted_receives_of_many_tags_cost_the_same_each() {
    for (ignore, source) in masks() {
        let mut matcher = Ours::new(0);
        for tag in 0..MANY {
            let source = if tag % 2 == 0 { source } else { None };
            let pattern = Pattern { source, tag: noisy(0, tag), ignore };
            matcher.post(pattern, RequestContext(tag), (tag, false));
        }
        for tag in (0..MANY).rev() {
            let envelope = Envelope { source: PEER, tag: noisy(ignore, tag) };
            let id = matcher.posted_for(&envelope).unwrap();
            assert_eq!(matcher.remove_posted(id).unwrap().0, RequestContext(tag));
        }
        // Beside those in order, before anything is hashed.
        let most = 2 * MANY + UNHASHED_MAX as u64;
        assert!(matcher.probes() <= most, "{} for {ignore:#x}", matcher.probes());
    }
}

/// As an MPI program with all of its shapes in use at once.
#[test]
fn ten_thousand_posted_beside_ten_thousand_unexpected_cost_a_queue_for_each_shape() {
    let mut matcher = Ours::new(0);
    let sync = 1 << 32;
    let ignores = [0, sync, sync | 0x7fff_ffff];
    let shapes = ignores.map(|ignore| [(ignore, None), (ignore, Some(OTHER))]).concat();
    // In communicators of their own, so that nothing that comes fits.
    for (number, &(ignore, source)) in (0..MANY).zip(shapes.iter().cycle()) {
        let pattern = Pattern { source, tag: number << 34, ignore };
        matcher.post(pattern, RequestContext(number), (number, false));
    }
    assert_eq!(matcher.probes(), 0);
    for number in 0..MANY {
        let envelope = Envelope { source: PEER, tag: (MANY + number) << 34 | sync };
        assert_eq!(matcher.posted_for(&envelope), None);
        matcher.arrive(envelope, number);
    }
    let few = UNHASHED_MAX as u64 - 1;
    assert_eq!(matcher.probes(), shapes.len() as u64 * MANY + few, "once in order, then hashed");
    let before = matcher.probes();
    for number in (0..MANY).rev() {
        let ignore = ignores[1 + number as usize % 2];
        let pattern = Pattern { source: None, tag: (MANY + number) << 34, ignore };
        let id = matcher.unexpected_for(&pattern).unwrap();
        assert_eq!(matcher.remove_unexpected(id).unwrap().1, number);
    }
    assert_eq!(matcher.probes() - before, MANY);
    assert_eq!(matcher.posted_count() as u64, MANY);
}

#[test]
fn a_shape_too_many_searches_and_finds() {
    let mut matcher = Ours::new(0);
    for number in 0..2 * SHAPES_MAX as u64 {
        let pattern = Pattern { source: None, tag: 0, ignore: 1 << (32 + number) };
        matcher.post(pattern, RequestContext(number), (number, false));
    }
    for number in (0..2 * SHAPES_MAX as u64).rev() {
        let envelope = Envelope { source: PEER, tag: 1 << (32 + number) };
        let id = matcher.posted_for(&envelope).unwrap();
        assert_eq!(matcher.remove_posted(id).unwrap().0, RequestContext(number));
    }
    assert_eq!(matcher.shapes.len(), SHAPES_MAX);
    assert!(!matcher.posted_hashed && matcher.posted_loose.is_empty());
}

#[test]
fn a_flood_of_one_source_hides_no_other() {
    let mut matcher = Ours::new(0);
    for number in 0..MANY {
        matcher.arrive(Envelope { source: PEER, tag: 5 }, number);
    }
    matcher.arrive(Envelope { source: OTHER, tag: 5 }, MANY);
    let before = matcher.probes();
    let id = matcher.unexpected_for(&Pattern { source: Some(OTHER), tag: 5, ignore: 0 }).unwrap();
    assert_eq!(matcher.remove_unexpected(id).unwrap().1, MANY);
    let id = matcher.unexpected_for(&Pattern { source: None, tag: 5, ignore: 0 }).unwrap();
    assert_eq!(matcher.remove_unexpected(id).unwrap().1, 0, "in order of arrival");
    assert_eq!(matcher.probes() - before, 2);
}

#[test]
fn a_window_that_is_taken_in_order_is_never_hashed() {
    let mut matcher = Ours::new(0);
    let pattern = |tag| Pattern { source: Some(PEER), tag, ignore: 0 };
    for tag in 0..MANY {
        matcher.post(pattern(tag), RequestContext(tag), (tag, false));
    }
    for tag in 0..MANY {
        let id = matcher.posted_for(&Envelope { source: PEER, tag }).unwrap();
        assert_eq!(matcher.remove_posted(id).unwrap().0, RequestContext(tag));
        assert!(!matcher.posted_hashed);
    }
    assert_eq!(matcher.probes(), MANY);
}
