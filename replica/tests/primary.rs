//! A primary alone, with other members that the test plays: single events that the small world of
//! `protocol` has no room for.

#[path = "primary/scrub.rs"]
mod scrub;

use std::collections::{BTreeMap, BTreeSet};

use replica::{
    CUTS_MAX, ChangedPart, ClientId, ClientRequest, Counter, Durable, Extent, FILL_BYTES_MAX,
    FLIGHT_BYTES_MAX, Fetch, Input, Life, MEMBERS_MAX, MENDS_MAX, MemberId, Message, Op, Output,
    Pacing, Place, Replica, RequestId, SwapOutcome, VolumeRecord,
};

const PACING: Pacing = Pacing {
    lease_ns: 20,
    patience_ns: 25,
    silence_ns: 10,
    fetch_sectors_max: 2048,
    fetches_max: 4,
    block_sectors: 8,
    members: MEMBERS_MAX,
};

/// The member that is tested.
const OWN: MemberId = 0;

/// A primary whose storage and registry do everything at once.
struct Bench {
    member: Replica<u8>,
    now_ns: u64,
    registry: VolumeRecord,
    /// Outputs that the bench has no answer for, in their order.
    out: Vec<Output<u8>>,
    cuts: BTreeSet<Place>,
    last_stored: Counter,
    /// The registry takes no record with this member.
    refused: Option<MemberId>,
}

impl Bench {
    /// A primary alone, which serves.
    fn new() -> Self {
        Self::of(MEMBERS_MAX)
    }

    /// The same of a volume with so many members.
    fn of(members: usize) -> Self {
        let pacing = Pacing { members, ..PACING };
        let durable = Durable::default();
        let registry = VolumeRecord::first(OWN, BTreeMap::from([(OWN, 1)]));
        let mut bench = Self {
            member: Replica::start(OWN, 1, pacing, durable, BTreeSet::new(), 0),
            now_ns: 100,
            registry: registry.clone(),
            out: Vec::new(),
            cuts: BTreeSet::new(),
            last_stored: 0,
            refused: None,
        };
        bench.step(Input::Seen(registry));
        assert!(bench.member.takes_requests());
        bench
    }

    fn step(&mut self, input: Input<u8>) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut out = Vec::new();
            self.member.step(self.now_ns, input, &mut out);
            let mut follow = Vec::new();
            for output in out {
                match output {
                    Output::Store(place, op) => {
                        if op == Op::Cut {
                            self.cuts.insert(place);
                        }
                        self.last_stored = place.counter;
                        follow.push(Input::Stored(place));
                    }
                    Output::Drop(cut) => assert!(self.cuts.remove(&cut), "it was there"),
                    Output::Swap(target) => {
                        assert_eq!(target.epoch, self.registry.epoch + 1);
                        if self.refused.is_some_and(|it| target.in_sync.contains_key(&it)) {
                            let same = SwapOutcome::Conflict(self.registry.clone());
                            follow.push(Input::Swapped(target, same));
                            continue;
                        }
                        self.registry = target.clone();
                        follow.push(Input::Swapped(target, SwapOutcome::Done));
                    }
                    Output::Keep(_) | Output::Look => {}
                    output => self.out.push(output),
                }
            }
            inputs.extend(follow.into_iter().rev());
        }
    }

    fn hear(&mut self, from: MemberId, message: Message<u8>) {
        self.step(Input::Message(from, message));
    }

    fn epoch(&self) -> u64 {
        self.registry.epoch
    }

    fn reign(&self) -> u64 {
        self.registry.reign
    }

    /// A member asks to join, and goes back. Gives the operation that its attempt begins behind,
    /// and the cut that it went back to.
    fn join(&mut self, id: MemberId, life: Life, cuts: BTreeSet<Place>) -> (Place, Option<Place>) {
        self.out.clear();
        self.hear(id, Message::Join { epoch: self.epoch(), life, cuts });
        let found = self.out.iter().find_map(|output| match output {
            Output::Send(to, Message::GoBack { began, cut, .. }) if *to == id => {
                Some((*began, *cut))
            }
            _ => None,
        });
        let (counter, cut) = found.expect("it is sent back");
        let began = Place { reign: self.reign(), counter };
        self.held(id, life, began, counter);
        (began, cut)
    }

    fn held(&mut self, id: MemberId, life: Life, began: Place, counter: Counter) {
        self.hear(id, Message::Held { life, began, counter, left_out: 0 });
    }

    /// The last operation that was sent to a member.
    fn last_sent(&self, id: MemberId) -> Counter {
        let counter = |output: &Output<u8>| match output {
            Output::Send(to, Message::Append { counter, .. }) if *to == id => Some(*counter),
            _ => None,
        };
        self.out.iter().rev().find_map(counter).expect("there is one")
    }

    /// The last operation that was stored.
    fn last_counter(&self) -> Counter {
        self.last_stored
    }

    /// A client of this number writes once.
    fn write(&mut self, number: u64, first: u64, sectors: u32) {
        let client = ClientId { attachment: 9, channel: 0, slot: number as u16 };
        let extent = Extent::new(first, sectors).expect("it has sectors");
        let request = ClientRequest::Write(extent, 0);
        let incarnation = self.registry.incarnation;
        self.step(Input::Request(RequestId { client, number: 1 }, incarnation, request));
    }

    /// Whether something was sent to a member.
    fn sends(&self, id: MemberId) -> bool {
        self.out.iter().any(|output| matches!(output, Output::Send(to, _) if *to == id))
    }

    fn take_fetches(&mut self) -> Vec<(Fetch, Extent)> {
        let fetches = self.out.drain(..).filter_map(|output| match output {
            Output::Fetch(fetch, extent) => Some((fetch, extent)),
            _ => None,
        });
        fetches.collect()
    }

    /// The blocks that a member is asked for, each with the number of the question.
    fn take_asked(&mut self, id: MemberId) -> Vec<(Counter, Extent)> {
        let asked = self.out.drain(..).filter_map(|output| match output {
            Output::Send(to, Message::Lend { counter, extent, .. }) if to == id => {
                Some((counter, extent))
            }
            _ => None,
        });
        asked.collect()
    }

    /// A client reads once, and the storage cannot do it: gives the read's fetch.
    fn read_damage(&mut self, slot: u16, first: u64, sectors: u32) -> (Fetch, Extent) {
        let client = ClientId { attachment: 9, channel: 1, slot };
        let extent = Extent::new(first, sectors).expect("it has sectors");
        let request = ClientRequest::Read(extent);
        let incarnation = self.registry.incarnation;
        self.out.clear();
        self.step(Input::Request(RequestId { client, number: 1 }, incarnation, request));
        let fetch = *self.take_fetches().last().expect("it is fetched");
        self.step(Input::Unread(fetch.0, fetch.1));
        fetch
    }

    /// Members that lack nothing join, are admitted, and let it serve. Gives the operation that a
    /// member began behind.
    fn admit(&mut self, id: MemberId, life: Life) -> Place {
        let (began, _) = self.join(id, life, BTreeSet::new());
        self.step(Input::Changed(id, began, ChangedPart::default()));
        self.held(id, life, began, self.last_sent(id));
        assert!(self.registry.has(id, life), "it was admitted");
        self.held(id, life, began, self.last_sent(id));
        self.grant(id, life);
        began
    }

    fn grant(&mut self, id: MemberId, life: Life) {
        let pong = Message::Pong { epoch: self.epoch(), life, sent_ns: self.now_ns };
        self.hear(id, pong);
    }

    fn lent(&mut self, id: MemberId, life: Life, asked: (Counter, Extent), data: Option<u8>) {
        let place = Place { reign: self.reign(), counter: asked.0 };
        self.hear(id, Message::Lent { life, place, extent: asked.1, data });
    }

    fn compares(&self, id: MemberId) -> Vec<(Option<Place>, u64)> {
        let compare = |output: &Output<u8>| match output {
            Output::Compare(to, _, cut, from) if *to == id => Some((*cut, *from)),
            _ => None,
        };
        self.out.iter().filter_map(compare).collect()
    }

    /// A member that lacks nothing joins, is admitted, and goes for good: a cut is made.
    fn come_and_go(&mut self, id: MemberId, life: Life) {
        let (began, _) = self.join(id, life, BTreeSet::new());
        self.step(Input::Changed(id, began, ChangedPart::default()));
        self.held(id, life, began, self.last_sent(id));
        assert!(self.registry.has(id, life), "it was admitted");
        self.held(id, life, began, self.last_sent(id));
        self.step(Input::Evicted(id));
        assert!(!self.registry.in_sync.contains_key(&id), "it has gone");
    }
}

/// A member that joins needs the cut that it went back to until the last part of the difference is
/// known, however often the record changes meanwhile.
#[test]
fn a_cut_that_a_join_uses_is_not_dropped() {
    let mut bench = Bench::new();
    let first = *bench.cuts.first().expect("a reign begins with a cut");
    let (began, cut) = bench.join(1, 7, BTreeSet::from([first]));
    assert_eq!((cut, bench.compares(1)), (Some(first), vec![(Some(first), 0)]));
    for life in 1..=2 * CUTS_MAX as u64 {
        bench.come_and_go(2, life);
        assert!(bench.cuts.contains(&first), "dropped at change {life}");
        assert!(bench.cuts.len() <= CUTS_MAX);
    }
    bench.out.clear();
    let part = ChangedPart { extents: Vec::new(), next: Some(9) };
    bench.step(Input::Changed(1, began, part));
    assert_eq!(bench.compares(1), [(Some(first), 9)]);
    bench.come_and_go(2, 100);
    assert!(bench.cuts.contains(&first));
    // All of the difference is known: the cut is one of many from now on.
    bench.step(Input::Changed(1, began, ChangedPart::default()));
    bench.come_and_go(2, 101);
    assert!(!bench.cuts.contains(&first));
}

/// Each cut holds the space of all that was written since. While all members are in sync, no member
/// is away that could need an old one.
#[test]
fn few_cuts_are_kept_while_all_members_are_in_sync() {
    let mut bench = Bench::of(2);
    for life in 1..=2 * CUTS_MAX as u64 {
        bench.come_and_go(1, life);
        assert!(bench.cuts.len() <= 2, "{:?} at change {life}", bench.cuts);
    }
    let last = *bench.cuts.last().expect("each admission has a cut");
    let (_, cut) = bench.join(1, 100, BTreeSet::from([last]));
    assert_eq!(cut, Some(last), "a member that comes back goes on from it");
    // Of three members one is away all the time, and may need an old cut.
    let mut bench = Bench::of(3);
    (1..=4).for_each(|life| bench.come_and_go(1, life));
    assert_eq!(bench.cuts.len(), 5);
}

/// A cut that is gone, by a mistake of an operator, ends one attempt to join, and the next one
/// begins from another cut.
#[test]
fn a_cut_that_is_gone_ends_the_attempt_to_join_from_it() {
    let mut bench = Bench::new();
    let first = *bench.cuts.first().expect("a reign begins with a cut");
    let (began, cut) = bench.join(1, 7, BTreeSet::from([first]));
    assert_eq!(cut, Some(first));
    // An answer to an attempt that is over ends nothing.
    let old = Place { counter: began.counter + 1, ..began };
    bench.step(Input::CutGone(1, old));
    bench.cuts.remove(&first);
    bench.step(Input::CutGone(1, began));
    assert!(bench.out.contains(&Output::EndCompare(1, began)));
    assert!(bench.member.takes_requests());
    bench.write(1, 0, 1);
    let (again, cut) = bench.join(1, 7, BTreeSet::from([first]));
    assert!(again > began && cut.is_none());
    assert_eq!(bench.compares(1), [(None, 0)]);
    bench.step(Input::Changed(1, again, ChangedPart::default()));
    bench.held(1, 7, again, bench.last_sent(1));
    assert!(bench.registry.has(1, 7), "it is admitted");
}

/// The placement of the volume does not have the member any more, so its record never will. Before,
/// the member was waited for without end.
#[test]
fn a_member_that_the_registry_does_not_admit_is_not_waited_for() {
    let mut bench = Bench::new();
    bench.refused = Some(1);
    let (began, _) = bench.join(1, 7, BTreeSet::new());
    bench.step(Input::Changed(1, began, ChangedPart::default()));
    bench.held(1, 7, began, bench.last_sent(1));
    bench.write(1, 0, 1);
    assert!(bench.out.iter().any(|it| matches!(it, Output::Answer(..))), "it waits for no member");
    assert!(bench.member.serves(bench.now_ns), "reads are answered");
    // Another member joins as ever.
    let (began, _) = bench.join(2, 8, BTreeSet::new());
    bench.step(Input::Changed(2, began, ChangedPart::default()));
    bench.held(2, 8, began, bench.last_sent(2));
    assert!(bench.registry.has(2, 8), "it is admitted");
    // A member that leaves ends its attempt before.
    bench.refused = None;
    let (began, _) = bench.join(3, 9, BTreeSet::new());
    bench.step(Input::Left(3));
    bench.out.clear();
    bench.step(Input::Changed(3, began, ChangedPart::default()));
    bench.held(3, 9, began, began.counter + 1);
    assert!(!bench.sends(3) && !bench.registry.has(3, 9));
    bench.step(Input::Left(2));
    assert!(bench.registry.has(2, 8), "a member in sync goes by a change of the record alone");
}

/// The owner of the volume keeps a snapshot for a difference until its last part, and must hear of
/// each attempt that ends before.
#[test]
fn an_attempt_to_join_that_ends_ends_its_difference() {
    let part = || ChangedPart { extents: Vec::new(), next: Some(9) };
    let ends = |bench: &Bench, began| {
        bench.out.iter().filter(|it| **it == Output::EndCompare(1, began)).count()
    };
    // Silence.
    let mut bench = Bench::new();
    let (first, _) = bench.join(1, 7, BTreeSet::new());
    bench.step(Input::Changed(1, first, part()));
    bench.now_ns += PACING.silence_ns;
    bench.step(Input::Timer);
    assert_eq!(ends(&bench, first), 0, "no operation waits for it, so it has longer");
    bench.now_ns += PACING.patience_ns;
    bench.step(Input::Timer);
    assert_eq!(ends(&bench, first), 1);
    // A restart of the member.
    let (second, _) = bench.join(1, 7, BTreeSet::new());
    bench.write(1, 0, 1);
    let (third, _) = bench.join(1, 8, BTreeSet::new());
    assert_eq!((ends(&bench, second), ends(&bench, third)), (1, 0));
    // The last part ends a difference by itself.
    bench.step(Input::Changed(1, third, part()));
    bench.step(Input::Changed(1, third, ChangedPart::default()));
    bench.now_ns += PACING.silence_ns + PACING.patience_ns;
    bench.step(Input::Timer);
    assert_eq!(ends(&bench, third), 0);
    // Another member is the primary.
    bench.write(1, 0, 1);
    let (fourth, _) = bench.join(1, 8, BTreeSet::new());
    let next = bench.registry.with(2, 1).moved_to(2);
    bench.step(Input::Seen(next));
    assert!(!bench.member.is_primary());
    assert_eq!(ends(&bench, fourth), 1);
}

/// A read of a client that has gone is not fetched later, and costs nothing until then.
#[test]
fn reads_of_a_forgotten_attachment_are_forgotten() {
    let mut bench = Bench::new();
    let (began, _) = bench.join(1, 7, BTreeSet::new());
    bench.step(Input::Changed(1, began, ChangedPart::default()));
    bench.held(1, 7, began, bench.last_sent(1));
    assert!(bench.registry.has(1, 7));
    // Without a lease of the member a read waits.
    let read = |attachment, number| {
        let client = ClientId { attachment, channel: 0, slot: 0 };
        let id = RequestId { client, number };
        Input::Request(id, 1, ClientRequest::Read(Extent::new(0, 1).expect("a sector")))
    };
    bench.step(read(5, 1));
    bench.step(read(6, 1));
    bench.step(Input::Forget(5));
    bench.out.clear();
    let (epoch, life) = (bench.epoch(), 7);
    bench.held(1, life, began, bench.last_counter());
    bench.hear(1, Message::Pong { epoch, life, sent_ns: bench.now_ns });
    let fetched: Vec<u128> = bench
        .take_fetches()
        .into_iter()
        .filter_map(|(fetch, _)| match fetch {
            Fetch::Read(id, _) => Some(id.client.attachment),
            _ => None,
        })
        .collect();
    assert_eq!(fetched, [6]);
}

/// A request of a newer incarnation says that the reign is over: a word of this member would be
/// taken for the end of a request that the new primary may carry out later. The member looks for
/// the newer record instead. A request of an older incarnation ends.
#[test]
fn a_member_that_is_behind_refuses_no_request() {
    let mut bench = Bench::new();
    let client = ClientId { attachment: 5, channel: 0, slot: 0 };
    let id = RequestId { client, number: 1 };
    let mut outputs_for = |incarnation| {
        let write = ClientRequest::Write(Extent::new(0, 1).expect("a sector"), 0);
        let mut out = Vec::new();
        bench.member.step(bench.now_ns, Input::Request(id, incarnation, write), &mut out);
        out
    };
    assert_eq!(outputs_for(2), [Output::Look]);
    assert_eq!(outputs_for(0), [Output::Refuse(id, 1)]);
}

/// Sectors of a mebibyte, which is the longest content.
const MIB_SECTORS: u32 = 2048;

/// A member that joins and is slow holds requests back, by the bytes that are under way, and is not
/// dropped for it. One that stores nothing more is dropped, so that it does not hold the volume up.
/// A way back of a large volume takes long. Requests go on meanwhile, and the member begins with
/// the requests that come when it has gone back.
#[test]
fn a_member_that_goes_back_for_long_holds_nothing_back_and_is_not_dropped() {
    let mut bench = Bench::new();
    let (epoch, life) = (bench.epoch(), 7);
    bench.hear(1, Message::Join { epoch, life, cuts: BTreeSet::new() });
    let began = |bench: &Bench| {
        let began = |output: &Output<u8>| match output {
            Output::Send(1, Message::GoBack { began, .. }) => Some(*began),
            _ => None,
        };
        bench.out.iter().rev().find_map(began).expect("it is sent back")
    };
    let first = Place { reign: bench.reign(), counter: began(&bench) };
    for number in 1..=8 * (FLIGHT_BYTES_MAX >> 20) {
        bench.write(number, 0, MIB_SECTORS);
        assert!(bench.member.has_room(), "the member holds requests back");
        bench.now_ns += PACING.silence_ns / 2;
        bench.hear(1, Message::Pong { epoch, life, sent_ns: bench.now_ns });
        bench.step(Input::Timer);
    }
    let is_append = |output: &Output<u8>| matches!(output, Output::Send(1, Message::Append { .. }));
    assert!(!bench.out.iter().any(is_append), "it could store none");
    bench.out.clear();
    bench.held(1, life, first, first.counter);
    let second = Place { counter: began(&bench), ..first };
    assert_eq!(second.counter, bench.last_counter());
    assert!(bench.compares(1).is_empty(), "it goes back once more");
    bench.held(1, life, first, first.counter);
    assert!(bench.compares(1).is_empty(), "an answer of before says nothing");
    bench.held(1, life, second, second.counter);
    assert_eq!(bench.compares(1).len(), 1);
    bench.write(9000, 0, 1);
    assert_eq!(bench.last_sent(1), second.counter + 1);
}

#[test]
fn a_slow_member_that_joins_holds_requests_back_and_a_stuck_one_is_dropped() {
    let mut bench = Bench::new();
    let (began, _) = bench.join(1, 7, BTreeSet::new());
    let mut writes = 0;
    while bench.member.has_room() {
        assert!(writes < 1000, "it takes any number of bytes");
        writes += 1;
        bench.write(writes, 0, MIB_SECTORS);
    }
    assert_eq!(writes, FLIGHT_BYTES_MAX >> 20);
    // Content that it lacks has room of its own.
    let lacked = Extent::new(0, MIB_SECTORS).expect("sectors");
    let part = ChangedPart { extents: vec![lacked], next: Some(9) };
    bench.step(Input::Changed(1, began, part));
    assert_eq!(bench.take_fetches().len(), 1);
    // As much again may be on its way already, and no more.
    while !bench.out.iter().any(|output| matches!(output, Output::Full(_))) {
        assert!(writes < 1000, "it takes any number of bytes");
        writes += 1;
        bench.write(writes, 0, MIB_SECTORS);
    }
    assert_eq!(writes, 2 * (FLIGHT_BYTES_MAX >> 20) + 1);
    let (epoch, life) = (bench.epoch(), 7);
    let pong = |bench: &mut Bench| {
        bench.now_ns += 5;
        bench.out.clear();
        bench.hear(1, Message::Pong { epoch, life, sent_ns: bench.now_ns });
        bench.step(Input::Timer);
    };
    // An operation in half of the patience is slow, and it goes on.
    let mut held = began.counter;
    while !bench.member.has_room() {
        held += 1;
        bench.held(1, life, began, held);
        pong(&mut bench);
        pong(&mut bench);
        assert!(bench.sends(1), "it is not dropped at {held}");
    }
    assert!(held > began.counter + (FLIGHT_BYTES_MAX >> 20));
    bench.write(1000, 0, MIB_SECTORS);
    assert!(!bench.member.has_room());
    for _ in 0..PACING.patience_ns / 5 {
        assert!(!bench.member.has_room());
        pong(&mut bench);
    }
    pong(&mut bench);
    assert!(bench.member.has_room() && !bench.sends(1), "it is dropped");
}

/// The content for a member that joins does not come faster than the member stores it.
#[test]
fn a_fill_goes_on_as_it_is_stored_and_keeps_the_room_for_requests() {
    let mut bench = Bench::new();
    let (began, _) = bench.join(1, 7, BTreeSet::new());
    let mebibytes = 200_u64;
    let all = Extent::new(0, MIB_SECTORS * mebibytes as u32).expect("sectors");
    let part = ChangedPart { extents: vec![all], next: None };
    bench.step(Input::Changed(1, began, part));
    let (mut held, mut fetched) = (began.counter, 0);
    loop {
        for (fetch, extent) in bench.take_fetches() {
            bench.step(Input::Fetched(fetch, extent, 0));
            fetched += 1;
        }
        if !bench.out.iter().any(|output| matches!(output, Output::Fetch(..))) {
            let under_way = began.counter + fetched - held;
            let bound = (FILL_BYTES_MAX >> 20) + PACING.fetches_max as u64;
            assert!(under_way <= bound, "{under_way} MiB");
            assert!(bench.member.has_room(), "requests are not held back by it");
            if fetched == mebibytes {
                break;
            }
            assert!(held < began.counter + fetched, "it goes on");
            held += 1;
            bench.held(1, 7, began, held);
        }
    }
    bench.held(1, 7, began, bench.last_counter());
    assert!(bench.registry.has(1, 7), "it is admitted");
}

/// A read over four blocks of which two are damaged: both are mended from the members that have
/// them, and the read is fetched again.
#[test]
fn damaged_blocks_of_a_read_come_from_the_members_that_have_them() {
    let mut bench = Bench::new();
    bench.admit(1, 7);
    bench.admit(2, 8);
    bench.grant(1, 7);
    let read = bench.read_damage(1, 12, 20);
    let block = |at: u64| Extent::new(at * 8, 8).expect("it has sectors");
    for at in 1..4 {
        let [(probe, extent)] = bench.take_fetches()[..] else { panic!("one block at a time") };
        assert_eq!(extent, block(at));
        if at == 1 {
            bench.step(Input::Fetched(probe, extent, 0));
            continue;
        }
        bench.step(Input::Unread(probe, extent));
        // One member has it damaged as well, and the other member lends it.
        let asked = bench.take_asked(1);
        assert_eq!(asked.iter().map(|(_, extent)| *extent).collect::<Vec<_>>(), [block(at)]);
        bench.lent(1, 7, asked[0], None);
        let asked = bench.take_asked(2)[0];
        // Content of another question, or of another life, is none.
        bench.lent(2, 9, asked, Some(5));
        bench.lent(2, 8, (asked.0 + 1, asked.1), Some(5));
        bench.lent(2, 8, (asked.0, block(9)), Some(5));
        assert!(!bench.out.iter().any(|output| matches!(output, Output::Mend(..))));
        bench.lent(2, 8, asked, Some(5));
        assert!(bench.out.contains(&Output::Mend(block(at), 5)), "{:?}", bench.out);
    }
    let (again, extent) = bench.take_fetches()[0];
    assert_eq!((again, extent), read);
    bench.step(Input::Fetched(again, extent, 3));
    assert!(matches!(bench.out[..], [Output::Answer(_, Some(3))]), "{:?}", bench.out);
}

/// A block that no member has ends its read. Further damage waits for its turn, and a member that
/// joins waits for the block.
#[test]
fn a_block_that_no_member_has_ends_the_read() {
    let mut bench = Bench::new();
    for slot in 0..MENDS_MAX as u16 + 9 {
        bench.read_damage(slot, u64::from(slot) * 8, 8);
    }
    assert!(bench.take_fetches().is_empty(), "the last one waits for its turn");
    let mut ended = 0;
    for number in 1..=MENDS_MAX as u64 + 9 {
        let block = Extent::new((number - 1) * 8, 8).expect("it has sectors");
        bench.step(Input::Unread(Fetch::Mend(number, bench.reign()), block));
        let is_end = |output: &&Output<u8>| matches!(output, Output::Unreadable(_));
        ended = bench.out.iter().filter(is_end).count() as u64;
        assert_eq!(ended, number, "{:?}", bench.out);
        assert!(bench.out.contains(&Output::Lost(block)));
    }
    assert_eq!(ended, MENDS_MAX as u64 + 9);
    // A member that joins lacks such a block.
    let (began, _) = bench.join(1, 7, BTreeSet::new());
    let lost = Extent::new(0, 8).expect("it has sectors");
    bench.step(Input::Changed(1, began, ChangedPart { extents: vec![lost], next: None }));
    let (fill, extent) = bench.take_fetches()[0];
    bench.step(Input::Unread(fill, extent));
    let (probe, block) = bench.take_fetches()[0];
    bench.step(Input::Unread(probe, block));
    assert_eq!(bench.out, [Output::Lost(block)]);
    bench.out.clear();
    // It is tried again after a while, or when a client writes it.
    bench.step(Input::Timer);
    assert!(bench.take_fetches().is_empty());
    bench.write(1, 0, 8);
    let (probe, block) = bench.take_fetches()[0];
    bench.step(Input::Fetched(probe, block, 0));
    assert_eq!(bench.take_fetches(), [(fill, extent)]);
}

/// A primary without leases may have a successor, in which the block was written since: it
/// says nothing of the block until it has leases (seed 1047155).
#[test]
fn a_primary_without_leases_ends_no_read_of_a_lost_block() {
    let mut bench = Bench::new();
    bench.admit(1, 7);
    bench.grant(1, 7);
    bench.read_damage(1, 0, 8);
    let (probe, block) = bench.take_fetches()[0];
    bench.step(Input::Unread(probe, block));
    let asked = bench.take_asked(1)[0];
    bench.now_ns += PACING.lease_ns;
    bench.lent(1, 7, asked, None);
    let ends = |bench: &Bench| bench.out.iter().any(|it| matches!(it, Output::Unreadable(_)));
    assert!(!ends(&bench), "{:?}", bench.out);
    // With leases it looks again, and says so.
    bench.now_ns += PACING.patience_ns;
    bench.grant(1, 7);
    bench.step(Input::Timer);
    let (probe, block) = bench.take_fetches()[0];
    bench.step(Input::Unread(probe, block));
    let asked = bench.take_asked(1)[0];
    bench.lent(1, 7, asked, None);
    assert!(ends(&bench), "{:?}", bench.out);
}

/// A storage that fails each block again is not asked without end.
#[test]
fn a_read_is_mended_some_times() {
    let mut bench = Bench::new();
    let (read, extent) = bench.read_damage(1, 0, 8);
    for _ in 0..20 {
        if bench.out.iter().any(|output| matches!(output, Output::Unreadable(_))) {
            return;
        }
        let (fetch, block) = bench.take_fetches()[0];
        match fetch {
            Fetch::Mend(..) => bench.step(Input::Fetched(fetch, block, 0)),
            _ => bench.step(Input::Unread(read, extent)),
        }
    }
    panic!("it is fetched again and again");
}
