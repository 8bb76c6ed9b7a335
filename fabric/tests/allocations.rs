//! What runs for each message allocates nothing once it is warm.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;

use counting::allocations;
use fabric::matcher::{Envelope, Matcher, Pattern};
use fabric::{Address, Context};

/// Messages and receives that wait at once.
const DEPTH: u64 = 64;

const SOURCE: Address = Address { host: 1, incarnation: 1, slot: 3 };

/// Fills a matcher with messages and empties it, then the same with receives; every tag is new.
fn round(matcher: &mut Matcher<u64, u64>, number: u64) {
    let tags = || number * DEPTH..(number + 1) * DEPTH;
    let pattern = |tag| Pattern { source: (tag % 3 > 0).then_some(SOURCE), tag, ignore: 0 };
    for tag in tags() {
        matcher.arrive(Envelope { source: SOURCE, tag }, tag);
    }
    for tag in tags().rev() {
        let id = matcher.unexpected_for(&pattern(tag)).expect("it has come");
        assert_eq!(matcher.remove_unexpected(id).map(|(_, kept)| kept), Some(tag));
    }
    for tag in tags() {
        let ignore = if tag % 5 == 0 { 1 << 63 } else { 0 };
        matcher.post(Pattern { ignore, ..pattern(tag) }, Context(tag), tag);
    }
    for tag in tags().rev() {
        let id = matcher.posted_for(&Envelope { source: SOURCE, tag }).expect("it is posted");
        assert_eq!(matcher.remove_posted(id), Some((Context(tag), tag)));
    }
}

#[test]
fn a_warm_matcher_allocates_nothing() {
    let mut matcher = Matcher::new(0);
    (0..100).for_each(|number| round(&mut matcher, number));
    let before = allocations();
    (100..10_000).for_each(|number| round(&mut matcher, number));
    assert_eq!(allocations(), before);
    // The count itself counts.
    drop(std::hint::black_box(Box::new(before)));
    assert!(allocations() > before);
}
