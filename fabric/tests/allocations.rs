//! What runs for each message allocates nothing once it is warm, and many addresses take little.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;

use counting::{allocations, held_bytes};
use fabric::matcher::{Envelope, Matcher, Pattern};
use fabric::{
    Address, AddressTable, Class, Context, Endpoint, EndpointOptions, Message, Part, Process,
    Receive, Region, RegionOptions,
};

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
    // Its hash tables grow once more, by chance, until entries that were removed fit beside the
    // rest.
    (0..2000).for_each(|number| round(&mut matcher, number));
    let before = allocations();
    (2000..12_000).for_each(|number| round(&mut matcher, number));
    assert_eq!(allocations(), before);
    // The count itself counts.
    drop(std::hint::black_box(Box::new(before)));
    assert!(allocations() > before);
}

/// Sends and receives messages of every length, expected and (short ones) not.
fn exchange(sender: &mut Endpoint, receiver: &mut Endpoint, memory: &mut [u8], tag: u64) {
    let to = receiver.address();
    for len in [0, 8, 200, 3000, 60_000] {
        let part = |bytes: &mut [u8]| Part { start: bytes.as_mut_ptr(), bytes: len };
        let (sent, got) = memory.split_at_mut(60_000);
        let (class, data, context) = (Class::Tagged, Some(tag), Some(Context(tag)));
        let message = Message { to, class, tag, data, context, inject: false };
        let (source, ignore, context) = (Some(sender.address()), 0, Context(tag));
        let receive = Receive { class, source, tag, ignore, context, multi_min_bytes: None };
        for expected in [true, false] {
            if !expected && len > 8 {
                // These are kept on the heap until they are asked for.
                continue;
            }
            // SAFETY: the memory outlives what is asked for here, all of which ends below.
            unsafe {
                if expected {
                    receiver.receive(&receive, &[part(got)]).expect("sound");
                }
                sender.send(&message, &[part(sent)]).expect("room");
                if !expected {
                    receiver.progress();
                    receiver.receive(&receive, &[part(got)]).expect("sound");
                }
            }
            while receiver.completion().is_none() {
                sender.progress();
            }
            while sender.completion().is_none() {}
        }
    }
}

#[test]
fn a_warm_endpoint_allocates_nothing() {
    for single_copy_bytes_min in [0, usize::MAX] {
        let (keeper, _fd) = Region::create(&RegionOptions::default()).expect("memory");
        let options = EndpointOptions { single_copy_bytes_min, ..EndpointOptions::default() };
        let [mut one, mut other] = [(); 2].map(|()| {
            let (slot, incarnation) = keeper.take_slot(std::process::id()).expect("a slot");
            let region = keeper.region().clone();
            let endpoint = Endpoint::new(region, slot, incarnation, 1, &options);
            let mut endpoint = endpoint.expect("an endpoint");
            endpoint.ask_processes(|_, _| Process::Is(std::process::id()));
            endpoint
        });
        let mut memory = vec![1; 120_000];
        (0..300).for_each(|tag| exchange(&mut one, &mut other, &mut memory, tag));
        let before = allocations();
        (300..3000).for_each(|tag| exchange(&mut one, &mut other, &mut memory, tag));
        // Empty looks, and looks for the dead.
        (0..100_000).for_each(|_| one.progress());
        assert_eq!(allocations(), before, "single copy from {single_copy_bytes_min}");
    }
}

/// A job of 64 K processes on 4,096 hosts: 9 bytes for each address, 17 once one was asked for.
#[test]
fn a_table_of_all_addresses_of_a_large_job_takes_little() {
    const PROCESSES: u64 = 1 << 16;
    let before = held_bytes();
    let mut table = AddressTable::default();
    for process in 0..PROCESSES {
        let (host, slot) = (process / 16 + 1, (process % 16) as u16);
        let number = table.insert(Address { host, incarnation: 1, slot });
        assert_eq!(number.map(u64::from), Ok(process));
    }
    let takes = |table: &AddressTable, bytes: i64| {
        let held = held_bytes() - before;
        assert_eq!(held, table.held_bytes() as i64);
        assert!(held <= bytes * PROCESSES as i64, "{held} bytes of {PROCESSES} addresses");
    };
    takes(&table, 9);
    let last = Address { host: PROCESSES / 16, incarnation: 1, slot: 15 };
    assert_eq!(table.number(&last).map(u64::from), Some(PROCESSES - 1));
    takes(&table, 17);
}
