use super::*;
use pool_format::block::BLOCK_BYTES;

fn origin(id: u32) -> SnapshotOrigin {
    SnapshotOrigin { pool: [7; 16], id, generation: 3, at_s: 1_790_000_000 }
}

fn header() -> StreamHeader {
    let id = StreamId { origin: origin(5), base: Some(origin(2)), blocks: 100 };
    StreamHeader { id, name: "monday".to_owned(), start_block: 0, expected_blocks: 3 }
}

fn run(block: u64, blocks: u64, is_hole: bool) -> ChangedRun {
    ChangedRun { block, blocks, is_hole }
}

/// A part with these runs, whose blocks of data have their numbers in each byte.
fn part(id: &StreamId, start: u64, end: u64, runs: &[ChangedRun]) -> Vec<u8> {
    let mut builder = PartBuilder::new(start);
    assert!(runs.iter().all(|run| builder.push(run).is_none()));
    let data = runs.iter().filter(|run| !run.is_hole);
    let blocks = data.flat_map(|run| run.block..run.block + run.blocks);
    let data: Vec<u8> = blocks.flat_map(|block| [block as u8; BLOCK_BYTES]).collect();
    builder.finish(id, end, &data)
}

/// The pieces of a short stream.
fn pieces() -> Vec<Vec<u8>> {
    let header = header();
    let mut tally = StreamTally::new(&header);
    let parts = [
        part(&header.id, 0, 40, &[run(3, 1, false), run(4, 30, true)]),
        part(&header.id, 40, 41, &[]),
        part(&header.id, 41, 100, &[run(98, 2, false)]),
    ];
    parts.iter().for_each(|part| assert!(tally.part(part).is_ok()));
    assert!(tally.is_complete());
    let [first, second, third] = parts;
    vec![header.to_bytes().to_vec(), first, second, third, tally.end().to_vec()]
}

/// Reads a stream: its counts, and the data of each block that it has.
fn read(mut bytes: &[u8]) -> Result<(StreamCounts, Vec<(u64, u8)>), StreamError> {
    let (mut decoder, mut seen) = (StreamDecoder::new(), Vec::new());
    loop {
        let space = decoder.space();
        let Some((now, rest)) = bytes.split_at_checked(space.len()) else {
            return Err(decoder.cut());
        };
        space.copy_from_slice(now);
        bytes = rest;
        match decoder.filled()? {
            None | Some(StreamItem::Header(_)) => {}
            Some(StreamItem::Part(part, _)) => {
                let data = part.runs.iter().filter(|run| !run.is_hole);
                let blocks = data.flat_map(|run| run.block..run.block + run.blocks);
                seen.extend(blocks.zip(part.data.iter().step_by(BLOCK_BYTES).copied()));
            }
            Some(StreamItem::End(counts)) if bytes.is_empty() => return Ok((counts, seen)),
            Some(StreamItem::End(_)) => return Err(StreamError::Trailing),
        }
    }
}

#[test]
fn a_stream_is_read_as_it_was_made() {
    let counts = StreamCounts { parts: 3, data_blocks: 3, zero_blocks: 30 };
    assert_eq!(read(&pieces().concat()), Ok((counts, vec![(3, 3), (98, 98), (99, 99)])));
    let bytes = header().to_bytes();
    assert_eq!(StreamHeader::read(&bytes), Ok(header()));
}

#[test]
fn each_flipped_byte_is_refused() {
    let whole = pieces().concat();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        assert!(read(&bytes).is_err(), "byte {at}");
    }
}

#[test]
fn a_stream_that_is_cut_anywhere_says_so() {
    let whole = pieces().concat();
    for length in 0..whole.len() {
        let error = read(&whole[..length]).expect_err("it is cut");
        let is_named = matches!(error, StreamError::Cut(_) | StreamError::NoStream);
        assert!(is_named, "{length}: {error}");
    }
}

#[test]
fn parts_that_are_lost_repeated_exchanged_or_of_another_stream_are_named() {
    let all = pieces();
    let of = |order: &[usize]| {
        read(&order.iter().flat_map(|&at| all[at].clone()).collect::<Vec<u8>>()).expect_err("wrong")
    };
    assert_eq!(of(&[0, 2, 3, 4]), StreamError::NotNext { wanted: 0, found: 40 });
    assert_eq!(of(&[0, 1, 1, 2, 3, 4]), StreamError::NotNext { wanted: 40, found: 0 });
    assert_eq!(of(&[0, 1, 3, 2, 4]), StreamError::NotNext { wanted: 40, found: 41 });
    assert_eq!(of(&[0, 1, 2, 4]), StreamError::Damaged(StreamPlace::End));
    assert_eq!(of(&[0, 1, 2, 3, 4, 0]), StreamError::Trailing);
    assert_eq!(of(&[0, 1, 2, 3, 4, 4]), StreamError::Trailing);
    assert_eq!(of(&[0, 0]), StreamError::Damaged(StreamPlace::Part(0)));
    assert_eq!(of(&[1]), StreamError::NoStream);
    assert_eq!(of(&[4]), StreamError::NoStream);

    let other = StreamId { base: None, ..header().id };
    let foreign = [&all[0][..], &part(&other, 0, 40, &[])].concat();
    assert_eq!(read(&foreign), Err(StreamError::Damaged(StreamPlace::Part(0))));
    // An end that fits to the parts before it, although others are missing.
    let mut tally = StreamTally::new(&header());
    tally.part(&all[1]).expect("the first part");
    let early = [&all[0][..], &all[1], &tally.end()].concat();
    assert_eq!(read(&early), Err(StreamError::Cut(40)));
}

/// Bytes with a check that matches.
fn checked(front: &[u8], mut bytes: Vec<u8>) -> Vec<u8> {
    let check = check_of(front, &bytes);
    bytes[CHECK].copy_from_slice(&check.to_le_bytes());
    bytes
}

#[test]
fn a_hostile_part_with_right_checks_is_refused() {
    let id = header().id;
    let good = part(&id, 10, 40, &[run(12, 1, false), run(20, 5, true)]);
    let put = |at: usize, word: u64| {
        let mut bytes = good.clone();
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        StreamPart::read(&id, &checked(&id.front(), bytes)).map(|_| ())
    };
    assert_eq!(put(32, 40), Ok(()));
    let wrong = |start, field| Err(StreamError::Impossible(StreamPlace::Part(start), field));
    assert_eq!(put(24, 40), wrong(40, "range"));
    assert_eq!(put(24, u64::MAX), wrong(u64::MAX, "range"));
    assert_eq!(put(32, 101), wrong(10, "range"));
    assert_eq!(put(32, 24), wrong(10, "run"));
    assert_eq!(put(40, 9), wrong(10, "run"));
    assert_eq!(put(40, u64::MAX), wrong(10, "run"));
    assert_eq!(put(48, 0), wrong(10, "run"));
    assert_eq!(put(48, u64::MAX >> 1), wrong(10, "run"));
    assert_eq!(put(48, 2), wrong(10, "length"));
    assert_eq!(put(64, 1 << 63 | u64::MAX), wrong(10, "run"));
    let length = good.len() as u64;
    assert_eq!(put(16, length | 3000 << 32), wrong(10, "count of runs"));
    assert_eq!(put(16, length | u64::from(u32::MAX) << 32), wrong(10, "count of runs"));
    for length in [0, 39, length - 1, length + 1, u64::from(u32::MAX)] {
        let damaged = StreamError::Damaged(StreamPlace::Part(10));
        assert_eq!(put(16, length | 2 << 32), Err(damaged), "{length}");
    }
    // A length is looked at before a reader makes room for it.
    let mut decoder = StreamDecoder::new();
    decoder.space().copy_from_slice(&header().to_bytes());
    decoder.filled().expect("a header");
    let mut head = good[..40].to_vec();
    head[16..20].copy_from_slice(&u32::MAX.to_le_bytes());
    decoder.space().copy_from_slice(&head);
    assert_eq!(decoder.filled(), Err(StreamError::Damaged(StreamPlace::Part(10))));

    let large = StreamId { blocks: 1 << 36, ..id };
    let zeroes = part(&large, 0, 1 << 36, &[run(0, PART_ZERO_BLOCKS_MAX, true)]);
    assert!(StreamPart::read(&large, &zeroes).is_ok());
    let mut more = zeroes;
    more[48..56].copy_from_slice(&(1u64 << 63 | (PART_ZERO_BLOCKS_MAX + 1)).to_le_bytes());
    let more = checked(&large.front(), more);
    let refused = StreamPart::read(&large, &more).map(|_| ());
    assert_eq!(refused, wrong(0, "count of zeroes"));
}

#[test]
fn a_hostile_header_with_a_right_check_is_refused() {
    let wrong = |field| Err(StreamError::Impossible(StreamPlace::Header, field));
    let put = |at: usize, bytes: &[u8]| {
        let mut header = header().to_bytes().to_vec();
        header[at..at + bytes.len()].copy_from_slice(bytes);
        StreamHeader::read(&checked(&[], header)).map(|_| ())
    };
    assert_eq!(put(16, &[2, 0, 0, 0]), Err(StreamError::Version(2)));
    assert_eq!(put(44, &[1]), wrong("snapshot"));
    assert_eq!(put(84, &[1]), wrong("base"));
    assert_eq!(put(104, &[0; 8]), wrong("size"));
    assert_eq!(put(104, &[255; 8]), wrong("size"));
    assert_eq!(put(112, &[0; 8]), wrong("name"));
    assert_eq!(put(112, b"../etc"), wrong("name"));
    assert_eq!(put(112, &[255]), wrong("name"));
    assert_eq!(put(114, &[0]), wrong("name"));
    assert_eq!(put(176, &[101]), wrong("start"));
    assert_eq!(put(184, &[101]), wrong("forecast"));
    assert_eq!(put(20, &[1]), wrong("reserved byte"));
    assert_eq!(put(255, &[1]), wrong("reserved byte"));
    assert_eq!(put(0, b"x"), Err(StreamError::NoStream));
}

#[test]
fn a_full_part_says_where_the_next_one_begins() {
    let mut builder = PartBuilder::new(0);
    assert_eq!(builder.push(&run(0, 2000, false)), None);
    assert_eq!(builder.push(&run(2000, PART_ZERO_BLOCKS_MAX + 1, true)), Some(2000 + (1 << 20)));
    let mut builder = PartBuilder::new(0);
    assert_eq!(builder.push(&run(7, 5000, false)), Some(7 + 2048));
    assert_eq!(builder.push(&run(5007, 1, false)), Some(5007));
    assert_eq!((builder.data_bytes(), builder.runs().len()), (8 << 20, 1));
    // Runs that go on are one, so that a reader makes few requests.
    let mut builder = PartBuilder::new(0);
    for at in 0..PART_DATA_BLOCKS_MAX as u64 {
        assert_eq!(builder.push(&run(at, 1, false)), None);
    }
    assert_eq!(builder.runs(), [run(0, PART_DATA_BLOCKS_MAX as u64, false)]);
    assert_eq!(builder.push(&run(2048, 1, false)), Some(2048));
    assert_eq!(builder.push(&run(2048, 1, true)), None);
    let mut builder = PartBuilder::new(0);
    for at in 0..PART_RUNS_MAX as u64 {
        assert_eq!(builder.push(&run(2 * at, 1, at % 2 == 0)), None);
    }
    assert_eq!(builder.push(&run(5000, 1, true)), Some(5000));
}

#[test]
fn a_token_is_read_as_it_was_printed_and_no_other_text_is_one() {
    for base in [None, Some(origin(9))] {
        let token = StreamToken { origin: origin(5), base, next_block: 1 << 35 };
        let text = token.to_string();
        assert_eq!(text.parse(), Ok(token));
        assert_eq!(format!(" {text}\n").parse(), Ok(token));
        for at in 0..text.len() {
            let mut wrong = text.clone().into_bytes();
            wrong[at] ^= 1;
            let wrong = String::from_utf8(wrong).expect("ASCII");
            assert_eq!(wrong.parse::<StreamToken>(), Err(StreamTokenError), "{at}");
            assert_eq!(text[..at].parse::<StreamToken>(), Err(StreamTokenError), "{at}");
        }
    }
    let odd = "vrio1-\u{e9}".to_owned() + &"0".repeat(190);
    assert_eq!(odd.parse::<StreamToken>(), Err(StreamTokenError));
}
