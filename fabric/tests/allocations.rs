//! The code that runs for each message allocates nothing once it is warm, and many addresses take
//! little.

#[path = "../../sidecore/tests/counting/mod.rs"]
mod counting;

use counting::{allocations, held_bytes};
use fabric::matcher::{Envelope, Matcher, Pattern};
use fabric::{
    Address, AddressTable, Class, Endpoint, EndpointOptions, EndpointProcess, MemoryPiece, Message,
    Receive, RegionOptions, RequestContext,
};
use fabric_node::SlotTable;

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
        matcher.post(Pattern { ignore, ..pattern(tag) }, RequestContext(tag), tag);
    }
    for tag in tags().rev() {
        let id = matcher.posted_for(&Envelope { source: SOURCE, tag }).expect("it is posted");
        assert_eq!(matcher.remove_posted(id), Some((RequestContext(tag), tag)));
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

/// Lengths of messages: three in the cell, one in a buffer, one that is offered.
const LENGTHS: [usize; 5] = [0, 8, 200, 3000, 60_000];

/// Those of them that come before they are asked for as well: longer ones are kept on the heap.
const UNEXPECTED_BYTES_MAX: usize = 8;

/// So many bytes from here on as three pieces, the first of them with all bytes if there must be
/// one only.
fn pieces(start: *mut u8, bytes: usize, count: usize) -> [MemoryPiece; 3] {
    let each = bytes / count;
    [0, 1, 2].map(|at| {
        let bytes = if at + 1 == count { bytes - at * each } else { each };
        MemoryPiece { start: start.wrapping_add(at * each), bytes }
    })
}

/// Sends and receives messages of every length, expected and (short ones) not, in so many pieces:
/// one, or three.
fn exchange(
    [sender, receiver]: &mut [Endpoint; 2],
    memory: &mut [u8],
    pieces_of_each: usize,
    tag: u64,
) {
    let to = receiver.address();
    for len in LENGTHS {
        let (sent, got) = memory.split_at_mut(60_000);
        let [sent, got] = [sent, got].map(|at| pieces(at.as_mut_ptr(), len, pieces_of_each));
        let (sent, got) = (&sent[..pieces_of_each], &got[..pieces_of_each]);
        let (class, data, context) = (Class::Tagged, Some(tag), Some(RequestContext(tag)));
        let message = Message { to, class, tag, data, context, inject: false };
        let (source, ignore, context) = (Some(sender.address()), 0, RequestContext(tag));
        let receive = Receive { class, source, tag, ignore, context, multi_min_bytes: None };
        for expected in [true, false] {
            if !expected && len > UNEXPECTED_BYTES_MAX {
                continue;
            }
            // SAFETY: the memory outlives what is asked for here, all of which ends below.
            unsafe {
                if expected {
                    receiver.receive(&receive, got).expect("sound");
                }
                sender.send(&message, sent).expect("room");
                if !expected {
                    receiver.progress();
                    receiver.receive(&receive, got).expect("sound");
                }
            }
            while receiver.completion().is_none() {
                sender.progress();
            }
            while sender.completion().is_none() {}
        }
    }
}

/// A region, and two endpoints of this process in it.
fn pair(single_copy_bytes_min: usize) -> (SlotTable, [Endpoint; 2]) {
    let (table, _fd) = SlotTable::create(&RegionOptions::default()).expect("memory");
    let options = EndpointOptions { single_copy_bytes_min, ..EndpointOptions::default() };
    let pair = [(); 2].map(|()| {
        let (slot, incarnation) = table.take_slot(std::process::id()).expect("a slot");
        let region = table.region().clone();
        let endpoint = Endpoint::new(region, slot, incarnation, 1, &options);
        let mut endpoint = endpoint.expect("an endpoint");
        endpoint.ask_processes(|_, _| EndpointProcess::Is(std::process::id()));
        endpoint
    });
    (table, pair)
}

#[test]
fn a_warm_endpoint_allocates_nothing() {
    for single_copy_bytes_min in [0, usize::MAX] {
        let (_table, mut pair) = pair(single_copy_bytes_min);
        let mut memory = vec![1; 120_000];
        (0..300).for_each(|tag| exchange(&mut pair, &mut memory, 1, tag));
        let before = allocations();
        (300..3000).for_each(|tag| exchange(&mut pair, &mut memory, 1, tag));
        // Empty looks, and looks for the dead.
        (0..100_000).for_each(|_| pair[0].progress());
        assert_eq!(allocations(), before, "single copy from {single_copy_bytes_min}");
    }
}

/// Pieces are kept on the heap, in one place for each receive of several and one for each offer;
/// where the sender's memory is read, what of a receive's pieces the message fills and what of that
/// is left before the call are two more. A message in a cell or a buffer costs its sender nothing.
#[test]
fn a_message_of_several_pieces_allocates_for_what_has_to_wait() {
    const TURNS: u64 = 700;
    for single_copy_bytes_min in [0, usize::MAX] {
        let (_table, mut pair) = pair(single_copy_bytes_min);
        let mut memory = vec![1; 120_000];
        (0..300).for_each(|tag| exchange(&mut pair, &mut memory, 3, tag));
        let counted = |[sender, receiver]: &[Endpoint; 2]| {
            [sender.counters().rendezvous_sends, receiver.counters().single_copies]
        };
        let (before, counted_before) = (allocations(), counted(&pair));
        (300..300 + TURNS).for_each(|tag| exchange(&mut pair, &mut memory, 3, tag));
        let allocated = allocations() - before;
        let [offers, reads] = [0, 1].map(|at| counted(&pair)[at] - counted_before[at]);
        let unexpected = LENGTHS.iter().filter(|&&len| len <= UNEXPECTED_BYTES_MAX).count();
        let receives = TURNS * (LENGTHS.len() + unexpected) as u64;
        assert_eq!(offers, TURNS);
        assert_eq!(allocated, receives + offers + 2 * reads, "{receives}, {offers}, {reads}");
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
