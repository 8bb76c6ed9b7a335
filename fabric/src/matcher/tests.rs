//! The matcher against a model that scans, and what its searches cost.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// What is done to both.
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

/// What a step did, in the same words from both: which receive, which message.
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

fn pattern() -> impl Strategy<Value = Pattern> {
    let ignore = prop_oneof![3 => Just(0_u64), 1 => Just(1), 1 => Just(u64::MAX), 1 => Just(2)];
    (proptest::option::of(source()), 0_u64..4, ignore).prop_map(|(source, tag, ignore)| Pattern {
        source,
        tag,
        ignore,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let envelope = (source(), 0_u64..4).prop_map(|(source, tag)| Envelope { source, tag });
    prop_oneof![
        6 => (pattern(), proptest::bool::weighted(0.1))
            .prop_map(|(pattern, shared)| Step::Receive { pattern, shared }),
        7 => envelope.prop_map(Step::Arrive),
        1 => pattern().prop_map(Step::Peek),
        1 => (pattern(), any::<bool>())
            .prop_map(|(pattern, at_once)| Step::Claim { pattern, at_once }),
        1 => (0_u64..8).prop_map(|back| Step::Cancel { back }),
        1 => source().prop_map(Step::Lose),
    ]
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

/// As an endpoint uses it; what is kept is the number of the step, and whether it is shared.
type Ours = Matcher<(u64, bool), u64>;

fn apply(matcher: &mut Ours, step: Step, number: u64) -> Effect {
    match step {
        Step::Receive { pattern, shared } => {
            let taken = matcher.unexpected_for(&pattern);
            let taken = taken.map(|id| matcher.remove_unexpected(id).unwrap().1);
            if taken.is_none() || shared {
                matcher.post(pattern, Context(number), (number, shared));
            }
            taken.map_or(Effect::Waits, |message| Effect::Matched { receive: number, message })
        }
        Step::Arrive(envelope) => match matcher.posted_for(&envelope) {
            Some(id) => {
                let (receive, shared) = *matcher.posted_mut(id).unwrap();
                if !shared {
                    assert_eq!(
                        matcher.remove_posted(id),
                        Some((Context(receive), (receive, shared)))
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
            assert!(matcher.claim(id, Context(message)));
            assert!(!matcher.claim(id, Context(message)), "it is claimed already");
            if at_once {
                assert_eq!(matcher.take_claimed(Context(message)).unwrap().1, message);
                assert_eq!(matcher.take_claimed(Context(message)), None);
            }
            Effect::Found(Some(message))
        }
        Step::Cancel { back } => {
            let context = Context(number.wrapping_sub(back));
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
    fn matches_as_a_scan_in_order_does(steps in vec(step(), 0..200)) {
        let (mut model, mut matcher) = (Model::default(), Ours::new(4));
        for (number, &step) in (0..).zip(&steps) {
            prop_assert_eq!(apply(&mut matcher, step, number), model.apply(step, number));
            prop_assert_eq!(matcher.posted_count(), model.posted.len());
            prop_assert_eq!(matcher.unexpected_count(), model.unexpected.len());
            let queues = matcher.posted_queues.len();
            prop_assert!(queues <= matcher.posted_count(), "empty queues are dropped");
        }
        // What is left is all there, and in order.
        for (message, envelope) in model.unexpected {
            let pattern = Pattern { source: None, tag: 0, ignore: u64::MAX };
            let id = matcher.unexpected_for(&pattern).unwrap();
            prop_assert_eq!(matcher.remove_unexpected(id), Some((envelope, message)));
        }
        for (receive, pattern, shared) in model.posted {
            prop_assert_eq!(
                matcher.posted_by(Context(receive)).and_then(|id| matcher.remove_posted(id)),
                Some((Context(receive), (receive, shared))),
                "{:?}", pattern
            );
        }
        prop_assert!(matcher.posted_queues.is_empty() && matcher.unexpected_queues.is_empty());
        prop_assert!(matcher.posted_loose.is_empty() && matcher.posted_anyone == 0);
    }
}

const MANY: u64 = 100_000;
const PEER: Address = Address { host: 1, incarnation: 1, slot: 7 };
const OTHER: Address = Address { host: 1, incarnation: 1, slot: 8 };

/// Searches that `MANY` messages of distinct tags cost, each taken by one of the `patterns`.
fn probes_of(patterns: impl Fn(u64) -> Pattern) -> u64 {
    let mut matcher = Ours::new(0);
    for tag in 0..MANY {
        assert_eq!(matcher.posted_for(&Envelope { source: PEER, tag }), None);
        matcher.arrive(Envelope { source: PEER, tag }, tag);
    }
    // The last ones first, so that a search from the front would cost most.
    for tag in (0..MANY).rev() {
        let id = matcher.unexpected_for(&patterns(tag)).unwrap();
        assert_eq!(matcher.remove_unexpected(id).unwrap().1, tag);
    }
    assert_eq!(matcher.unexpected_count(), 0);
    matcher.probes()
}

#[test]
fn unexpected_messages_of_many_tags_cost_the_same_each() {
    let exact = probes_of(|tag| Pattern { source: Some(PEER), tag, ignore: 0 });
    assert_eq!(exact, 2 * MANY, "one queue when it comes, one when it is taken");
    let anyone = probes_of(|tag| Pattern { source: None, tag, ignore: 0 });
    assert_eq!(anyone, 2 * MANY);
}

#[test]
fn posted_receives_of_many_tags_cost_the_same_each() {
    let mut matcher = Ours::new(0);
    for tag in 0..MANY {
        let source = (tag % 2 == 0).then_some(PEER);
        matcher.post(Pattern { source, tag, ignore: 0 }, Context(tag), (tag, false));
    }
    for tag in (0..MANY).rev() {
        let id = matcher.posted_for(&Envelope { source: PEER, tag }).unwrap();
        assert_eq!(matcher.remove_posted(id).unwrap().0, Context(tag));
    }
    assert!(matcher.probes() <= 2 * MANY, "{}", matcher.probes());
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
