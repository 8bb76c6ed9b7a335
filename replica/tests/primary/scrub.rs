//! Scrubs, in single events: a primary, and a backup that is asked for proofs.

use std::collections::BTreeSet;

use replica::{
    BlockProof, Durable, Extent, Fetch, Input, Life, MemberId, Message, Op, Output, ProofQuestion,
    Replica, SCRUB_BLOCKS_MAX, SCRUB_RANGES_MAX, ScrubFinding, ScrubOrder, ScrubReport, ScrubStage,
    VolumeRecord,
};

use super::{Bench, PACING};

/// The sectors of a range.
const RANGE: u64 = SCRUB_BLOCKS_MAX as u64 * 8;

/// The blocks of a range.
const BLOCKS: usize = SCRUB_BLOCKS_MAX as usize;

/// The proof of a block with other content.
const OTHER: BlockProof = Some([5; 16]);

/// Proofs of so many blocks as they must be.
fn all(blocks: usize) -> Vec<BlockProof> {
    vec![Some([1; 16]); blocks]
}

fn block(at: u64) -> Extent {
    Extent::new(at * 8, 8).expect("it has sectors")
}

impl Bench {
    /// Begins a scrub of so many ranges.
    fn scrub(&mut self, ranges: u64) {
        let sectors = ranges * u64::from(SCRUB_BLOCKS_MAX) * 8;
        let (key, bytes_per_s) = ([3; 16], u64::MAX);
        self.out.clear();
        self.step(Input::Scrub(ScrubOrder::Start { key, sectors, bytes_per_s }));
    }

    /// The ranges that this member must prove itself, with the questions.
    fn take_questions(&mut self) -> Vec<(ProofQuestion, Extent)> {
        let questions = self.out.drain(..).filter_map(|output| match output {
            Output::Prove(question, extent, _) => Some((question, extent)),
            _ => None,
        });
        questions.collect()
    }

    /// This member and another member prove a range: these blocks of that member are different.
    fn prove(
        &mut self,
        (id, life): (MemberId, Life),
        of: (ProofQuestion, Extent),
        other: &[usize],
    ) {
        let blocks = of.1.sectors() as usize / 8;
        let mut proofs = all(blocks);
        self.step(Input::Proved(of.0, proofs.clone()));
        other.iter().for_each(|at| proofs[*at] = OTHER);
        self.answer((id, life), of.0, proofs);
    }

    /// Another member has answered a question.
    fn answer(
        &mut self,
        (id, life): (MemberId, Life),
        question: ProofQuestion,
        proofs: Vec<BlockProof>,
    ) {
        let ProofQuestion { reign, number, .. } = question;
        self.hear(id, Message::Proved { life, reign, number, proofs });
    }

    fn report(&self) -> ScrubReport {
        self.member.scrub().expect("it has scrubbed").clone()
    }

    /// How many sectors a scrub has looked at.
    fn looked_at(&self) -> u64 {
        self.report().looked_at
    }
}

/// Few ranges are under way, and an answer counts if it was asked for.
#[test]
fn a_scrub_asks_for_few_ranges_and_believes_no_other_answers() {
    let mut bench = Bench::new();
    bench.admit(1, 7);
    bench.scrub(9);
    let asked = bench.out.iter().filter(|output| matches!(output, Output::Send(1, _))).count();
    let questions = bench.take_questions();
    assert_eq!((questions.len(), asked), (SCRUB_RANGES_MAX, SCRUB_RANGES_MAX));
    let (question, extent) = questions[0];
    bench.step(Input::Proved(question, vec![Some([1; 16]); SCRUB_BLOCKS_MAX as usize]));
    let ProofQuestion { reign, number, .. } = question;
    let proofs = |blocks: u32| vec![None; blocks as usize];
    let whole = SCRUB_BLOCKS_MAX;
    for (from, life, reign, number, blocks) in [
        (1, 8, reign, number, whole),
        (2, 7, reign, number, whole),
        (1, 7, reign + 1, number, whole),
        (1, 7, reign, number + 99, whole),
        (1, 7, reign, number, whole - 1),
        (1, 7, reign, number, 0),
    ] {
        bench.hear(from, Message::Proved { life, reign, number, proofs: proofs(blocks) });
        assert!(bench.out.is_empty() && bench.looked_at() == 0, "{:?}", bench.out);
    }
    bench.prove((1, 7), (question, extent), &[]);
    assert_eq!(bench.looked_at(), RANGE);
    assert_eq!(bench.take_questions()[0].1.first(), RANGE * SCRUB_RANGES_MAX as u64);
    // Ranges that are under way end, and none begins.
    bench.step(Input::Scrub(ScrubOrder::Pause));
    for of in &questions[1..] {
        bench.prove((1, 7), *of, &[]);
    }
    assert!(bench.take_questions().is_empty());
    bench.step(Input::Scrub(ScrubOrder::Stop));
    let report = bench.report();
    assert_eq!((report.stage, report.differed), (ScrubStage::Stopped, 0));
}

/// A block that an operation changes between question and answers is looked at again.
#[test]
fn proofs_of_a_block_that_was_written_meanwhile_are_none() {
    let mut bench = Bench::new();
    let began = bench.admit(1, 7);
    bench.scrub(1);
    let of = bench.take_questions()[0];
    bench.write(1, 17, 2);
    bench.held(1, 7, began, bench.last_counter());
    bench.out.clear();
    // The third block: one member has read it before the write, and the other member behind it.
    bench.prove((1, 7), of, &[2, 4]);
    let found = Output::Found(ScrubFinding {
        block: block(4),
        differ: vec![1],
        unread: vec![],
        agree: 1,
        is_unsettled: false,
    });
    assert!(bench.out.contains(&found), "{:?}", bench.out);
    let (repair, extent) = bench.take_fetches()[0];
    assert_eq!((extent, bench.looked_at()), (block(4), RANGE - 16));
    // So is a block with a repair that an operation overtakes.
    bench.write(2, 32, 8);
    bench.held(1, 7, began, bench.last_counter());
    bench.out.clear();
    bench.step(Input::Fetched(repair, extent, 3));
    assert!(bench.out.is_empty(), "{:?}", bench.out);
    bench.step(Input::Timer);
    let questions = bench.take_questions();
    assert_eq!(questions.iter().map(|of| of.1).collect::<Vec<_>>(), [block(2), block(4)]);
    bench.prove((1, 7), questions[0], &[]);
    bench.prove((1, 7), questions[1], &[0]);
    let (repair, extent) = bench.take_fetches()[0];
    bench.step(Input::Fetched(repair, extent, 3));
    let repairs = |output: &Output<u8>| match output {
        Output::Send(1, Message::Append { op, .. }) => {
            *op == Op::Equal { extent: block(4), data: 3 }
        }
        _ => false,
    };
    assert!(bench.out.iter().any(repairs), "{:?}", bench.out);
    let report = bench.report();
    assert_eq!((report.stage, report.looked_at), (ScrubStage::Done, RANGE));
    assert_eq!((report.differed, report.repaired, report.busy), (1, 0, 0));
}

/// A block with an operation that a member never stores is counted, and the scrub goes on.
#[test]
fn a_block_that_is_busy_for_long_is_counted() {
    let mut bench = Bench::new();
    bench.admit(1, 7);
    bench.write(1, 17, 2);
    bench.scrub(1);
    assert!(bench.take_questions().is_empty(), "a member may lack an operation");
    let mut asked = 0;
    while bench.report().stage == ScrubStage::Runs {
        assert!(bench.now_ns < 1000, "it ends");
        bench.now_ns += 3;
        bench.grant(1, 7);
        bench.step(Input::Timer);
        for of in bench.take_questions() {
            asked += 1;
            bench.prove((1, 7), of, &[]);
        }
        bench.step(Input::Timer);
        for of in bench.take_questions() {
            asked += 1;
            bench.prove((1, 7), of, &[]);
        }
    }
    let report = bench.report();
    assert_eq!((report.busy, report.looked_at, asked), (1, RANGE, SCRUB_BLOCKS_MAX - 1));
}

/// A storage that fails each block again behind its mend does not hold a scrub up.
#[test]
fn a_block_that_fails_behind_each_mend_is_counted() {
    let mut bench = Bench::new();
    bench.admit(1, 7);
    bench.scrub(1);
    let (question, _) = bench.take_questions()[0];
    let mut own = all(BLOCKS);
    own[2] = None;
    bench.step(Input::Proved(question, own));
    bench.answer((1, 7), question, all(BLOCKS));
    let mut fetched = 0;
    while bench.report().stage == ScrubStage::Runs {
        assert!(fetched < 20, "it is fetched again and again");
        let (fetch, extent) = bench.take_fetches()[0];
        assert_eq!(extent, block(2));
        match fetch {
            Fetch::Mend(..) => bench.step(Input::Fetched(fetch, extent, 0)),
            _ => bench.step(Input::Unread(fetch, extent)),
        }
        fetched += 1;
    }
    let report = bench.report();
    assert_eq!((report.lost, report.repaired, report.looked_at), (1, 0, RANGE));
}

/// The content that a copy would lend may be wrong, and would be written over the right one.
#[test]
fn a_block_that_the_primary_cannot_read_and_copies_have_differently_is_named_and_left() {
    let unsettled = Output::Found(ScrubFinding {
        block: block(3),
        differ: vec![],
        unread: vec![0],
        agree: 0,
        is_unsettled: true,
    });
    let (mut own, mut other) = (all(BLOCKS), all(BLOCKS));
    (own[3], other[3]) = (None, OTHER);
    // The primary cannot read it at once, or when it must be written.
    for is_late in [false, true] {
        let mut bench = Bench::new();
        bench.admit(1, 7);
        bench.admit(2, 8);
        bench.scrub(1);
        let (question, _) = bench.take_questions()[0];
        bench.step(Input::Proved(question, if is_late { all(BLOCKS) } else { own.clone() }));
        bench.answer((1, 7), question, other.clone());
        bench.answer((2, 8), question, all(BLOCKS));
        if is_late {
            let (repair, extent) = bench.take_fetches()[0];
            bench.step(Input::Unread(repair, extent));
            assert!(bench.out.is_empty(), "no copy lends it: {:?}", bench.out);
            bench.step(Input::Timer);
            let (question, _) = bench.take_questions()[0];
            bench.step(Input::Proved(question, vec![None]));
            bench.answer((1, 7), question, vec![OTHER]);
            bench.answer((2, 8), question, all(1));
        }
        assert_eq!(bench.out, std::slice::from_ref(&unsettled));
        let report = bench.report();
        assert_eq!((report.stage, report.looked_at), (ScrubStage::Done, RANGE));
        assert_eq!((report.unsettled, report.lost, report.differed), (1, 0, 0));
    }
}

/// A repair counts when it is an operation: a scrub may be stopped before.
#[test]
fn repairs_are_counted_when_they_are_written() {
    let mut bench = Bench::new();
    let began = bench.admit(1, 7);
    let find = |bench: &mut Bench| {
        bench.scrub(1);
        let (question, _) = bench.take_questions()[0];
        let mut other = all(BLOCKS);
        (other[1], other[2]) = (None, OTHER);
        bench.step(Input::Proved(question, all(BLOCKS)));
        bench.answer((1, 7), question, other);
        let report = bench.report();
        assert_eq!((report.repaired, report.differed), (0, 0));
        bench.take_fetches()
    };
    find(&mut bench);
    bench.step(Input::Scrub(ScrubOrder::Stop));
    let report = bench.report();
    assert_eq!((report.repaired, report.differed, report.stage), (0, 0, ScrubStage::Stopped));
    let fetches = find(&mut bench);
    // A client writes one of the blocks before.
    bench.write(1, 8, 8);
    bench.held(1, 7, began, bench.last_counter());
    for (fetch, extent) in fetches {
        bench.step(Input::Fetched(fetch, extent, 3));
    }
    let report = bench.report();
    assert_eq!((report.repaired, report.differed), (0, 1));
    bench.held(1, 7, began, bench.last_counter());
    bench.out.clear();
    bench.step(Input::Timer);
    let of = bench.take_questions()[0];
    bench.prove((1, 7), of, &[]);
    let report = bench.report();
    assert_eq!((report.repaired, report.differed, report.stage), (1, 1, ScrubStage::Done));
}

/// A volume that ends before the range cannot mend it either.
#[test]
fn a_range_beyond_the_end_of_the_primary_is_busy() {
    let mut bench = Bench::new();
    bench.admit(1, 7);
    bench.scrub(1);
    let (question, _) = bench.take_questions()[0];
    bench.answer((1, 7), question, all(BLOCKS));
    bench.step(Input::Proved(question, Vec::new()));
    assert!(bench.out.is_empty(), "it is neither read nor written: {:?}", bench.out);
    let report = bench.report();
    assert_eq!((report.busy, report.lost), (u64::from(SCRUB_BLOCKS_MAX), 0));
    assert_eq!((report.stage, report.looked_at), (ScrubStage::Done, RANGE));
}

/// The report of a scrub with a member that answers these questions alone.
fn scrub_with(ranges: u64, answers: impl Fn(u64) -> bool) -> ScrubReport {
    let mut bench = Bench::new();
    bench.admit(1, 7);
    bench.admit(2, 8);
    bench.scrub(ranges);
    let mut asked = 0;
    while bench.report().stage == ScrubStage::Runs {
        assert!(bench.now_ns < 10_000, "it ends");
        for (question, _) in bench.take_questions() {
            bench.step(Input::Proved(question, all(BLOCKS)));
            bench.answer((2, 8), question, all(BLOCKS));
            asked += 1;
            if answers(asked) {
                bench.answer((1, 7), question, all(BLOCKS));
            }
        }
        bench.now_ns += 3;
        bench.grant(1, 7);
        bench.grant(2, 8);
        bench.step(Input::Timer);
    }
    let report = bench.report();
    assert_eq!(report.looked_at, ranges * RANGE);
    report
}

/// Each of its ranges would be waited for. An answer now and then is enough.
#[test]
fn a_member_that_answers_no_question_is_left_out() {
    let ranges = |report: &ScrubReport| report.busy / u64::from(SCRUB_BLOCKS_MAX);
    let report = scrub_with(100, |asked| asked < 10);
    assert_eq!((&report.left, &report.members), (&vec![1], &vec![2]));
    assert!((8..12).contains(&ranges(&report)), "{report:?}");
    let report = scrub_with(100, |asked| asked % 4 == 0);
    assert_eq!((&report.left, &report.members), (&vec![], &vec![1, 2]));
    assert_eq!(ranges(&report), 75);
}

/// A move that waits for an operation may be given up, so a scrub that was stopped has ended.
#[test]
fn a_scrub_rests_and_ends_while_the_primary_moves() {
    let mut bench = Bench::new();
    bench.admit(1, 7);
    bench.scrub(9);
    bench.write(1, 0, 8);
    bench.step(Input::Move(1));
    assert!(bench.member.scrub().is_some() && !bench.member.takes_requests());
    bench.step(Input::Scrub(ScrubOrder::Pause));
    assert_eq!(bench.report().stage, ScrubStage::Paused);
    bench.step(Input::Scrub(ScrubOrder::Stop));
    assert_eq!(bench.report().stage, ScrubStage::Stopped);
    bench.scrub(1);
    assert_eq!((bench.report().stage, bench.report().sectors), (ScrubStage::Stopped, 9 * RANGE));
}

/// A backup proves ranges for the primary that it follows, few at a time.
#[test]
fn a_backup_proves_few_ranges_and_for_its_primary_alone() {
    let record = VolumeRecord::first(0, [(0, 1), (1, 7)].into());
    let mut member = Replica::<u8>::start(1, 7, PACING, Durable::default(), BTreeSet::new(), 0);
    let mut step = |input| {
        let mut out = Vec::new();
        member.step(100, input, &mut out);
        out
    };
    step(Input::Seen(record.clone()));
    step(Input::Message(0, Message::Seal { record: record.clone() }));
    let question = |number| ProofQuestion { asker: 0, reign: record.reign, number };
    let extent = |first, sectors| Extent::new(first, sectors).expect("it has sectors");
    let range = extent(RANGE, RANGE as u32);
    let ask =
        |epoch, life, number, extent| Message::Prove { epoch, life, number, extent, key: [3; 16] };
    for (from, message) in [
        (0, ask(record.epoch + 1, 7, 1, range)),
        (0, ask(record.epoch - 1, 7, 1, range)),
        (0, ask(record.epoch, 8, 1, range)),
        (2, ask(record.epoch, 7, 1, range)),
        (0, ask(record.epoch, 7, 1, extent(RANGE + 1, 8))),
        (0, ask(record.epoch, 7, 1, extent(RANGE, RANGE as u32 + 1))),
    ] {
        let out = step(Input::Message(from, message.clone()));
        assert!(out.is_empty(), "{from}: {message:?}: {out:?}");
    }
    for number in 1..=SCRUB_RANGES_MAX as u64 {
        let out = step(Input::Message(0, ask(record.epoch, 7, number, range)));
        assert_eq!(out, [Output::Prove(question(number), range, [3; 16])]);
        // It has come once more.
        assert_eq!(step(Input::Message(0, ask(record.epoch, 7, number, range))), []);
    }
    let next = SCRUB_RANGES_MAX as u64 + 1;
    assert_eq!(step(Input::Message(0, ask(record.epoch, 7, next, range))), []);
    // There is room again when one is proved.
    let out = step(Input::Proved(question(1), all(BLOCKS)));
    let (life, reign, number, proofs) = (7, record.reign, 1, all(BLOCKS));
    assert_eq!(out, [Output::Send(0, Message::Proved { life, reign, number, proofs })]);
    let out = step(Input::Message(0, ask(record.epoch, 7, next, range)));
    assert_eq!(out, [Output::Prove(question(next), range, [3; 16])]);
}
