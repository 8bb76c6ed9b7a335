//! The bytes of the format, and that nothing else passes for them.

use std::fmt::Write as _;

use crc_fast::{CrcAlgorithm, checksum};
use expect_test::{Expect, expect};
use random::Random;
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::block::{BLOCK_BYTES, Block};

const UUID: [u8; 16] = *b"0123456789abcdef";
const EXTREMES: [u64; 9] = [0, 1, 2, 255, 256, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];

/// The bytes in lines of 16, without lines of zeroes.
fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (line, bytes) in bytes.chunks(16).enumerate().filter(|(_, b)| b.iter().any(|&b| b != 0)) {
        let words = bytes.chunks(4).map(|word| word.iter().map(|b| format!("{b:02x}")).collect());
        writeln!(text, "{:04x}  {}", line * 16, words.collect::<Vec<String>>().join(" ")).unwrap();
    }
    text
}

/// Gives a changed head or superblock the check that its content has.
fn seal(block: &mut Block) {
    block.0[8..16].fill(0);
    let crc = checksum(CrcAlgorithm::Crc64Nvme, &block.0);
    block.0[8..16].copy_from_slice(&crc.to_le_bytes());
}

fn place(device: u8, segment: u32, block: u16) -> BlockPlace {
    BlockPlace { segment: SegmentId::new(device, segment), block }
}

/// One record of each kind.
fn records() -> Vec<LogRecord> {
    let crc = 0x1122_3344_5566_7788;
    vec![
        LogRecord::Write { volume: 7, block: 0x0001_0203_0405, number: 0x0a_0b0c_0d0e, crc },
        LogRecord::Zero { volume: 7, block: 130, blocks: 62 },
        LogRecord::Move {
            number: NUMBER_MAX,
            crc,
            from: place(15, 0x00ab_cdef, 0x1234),
            volume: 0x0708_090a,
            form: PageForm { codec: PageCodec::Zstd, sectors: 5 },
        },
        LogRecord::Lost { number: 1, from: place(0, 0, 0) },
        LogRecord::Change { bytes: 4096, crc, is_copy: true },
        LogRecord::Removal { snapshot: 0x0102_0304, block: 512 },
        LogRecord::Node { number: 2, crc },
        LogRecord::Table { kind: TableKind::Nodes, level: 5, index: 0x0a0b, crc },
        LogRecord::State { index: LogRecord::STATE_INDEX | 3, crc },
        LogRecord::Sealed {
            volume: 7,
            block: 0x0001_0203_0405,
            number: 0x0a_0b0c_0d0e,
            crc,
            tag: *b"the cipher's tag",
            version: 2,
        },
        LogRecord::Resealed {
            number: NUMBER_MAX,
            crc,
            from: place(15, 0x00ab_cdef, 0x1234),
            tag: *b"the cipher's tag",
            version: 3,
        },
        LogRecord::Alias {
            number: 0x0a_0b0c_0d0e,
            from: place(15, 0x00ab_cdef, 0x1234),
            shared: 0x01_0203_0405,
            crc,
        },
        LogRecord::Moment { at_ns: 0x18a0_b1c2_d3e4_f506, volumes: moment_of([7, 9, 0x0102_0304]) },
        LogRecord::Forget { volume: 7, generation: 0x0fff_fffe, is_early: true },
    ]
}

fn moment_of<const N: usize>(of: [u32; N]) -> [u32; MOMENT_VOLUMES_MAX] {
    std::array::from_fn(|at| of.get(at).copied().unwrap_or(NO_VOLUME))
}

fn head() -> RowHead {
    RowHead {
        salt: 0x5a17_5a17_5a17_5a17,
        opening: 3,
        sequence: 1000,
        durable: 990,
        place: place(1, 2, 3),
        stream: 2,
        payload: 8,
        next: SegmentId::new(1, 9),
        previous: Some(RowPosition { sequence: 998, place: place(1, 2, 1), payload: 1 }),
        records: records(),
        previous_records: vec![records()[0], records()[1]],
    }
}

fn encoded(head: &RowHead) -> Block {
    // The buffer's old content does not reach the medium.
    let mut block = Block([0xee; BLOCK_BYTES]);
    head.encode(&UUID, &mut block);
    block
}

fn superblock() -> Superblock {
    let mut superblock = Superblock::new(UUID, 8192);
    superblock.device = 1;
    superblock.devices = 2;
    superblock.opening = 3.into();
    superblock.salt = 0x1234_5678_9abc_def0_5a17_5a17_5a17_5a17.into();
    superblock.checkpoint = 4.into();
    superblock.sequence = 999.into();
    superblock.state = [
        PageEntry::at(place(0, 1, 2), 0x0123_4567_89ab_cdef, 998),
        PageEntry::at(place(1, 1, 2), 0xfedc_ba98_7654_3210, 999),
    ];
    superblock.state_bytes = 100_000.into();
    superblock.streams[0] = StreamPosition::new(5, 17, 6);
    superblock.streams[2] = StreamPosition::new(SegmentId::new(1, 2).0, 0, NO_SEGMENT);
    superblock.device_table[0] = DeviceRecord::new(*b"device 0 of pool", 100);
    superblock.device_table[1] = DeviceRecord::new(*b"device 1 of pool", 200);
    superblock
}

fn encoded_superblock(superblock: &Superblock) -> Block {
    let mut block = Block([0xee; BLOCK_BYTES]);
    superblock.encode(&mut block);
    block
}

fn check(bytes: &[u8], expected: &Expect) {
    expected.assert_eq(&dump(bytes));
}

#[test]
fn records_have_these_bytes() {
    let bytes: Vec<u8> = records()
        .iter()
        .flat_map(|record| [record.encode().as_slice(), &[0; 8]].concat())
        .collect();
    check(
        &bytes,
        &expect![[r#"
            0000  01000000 07000000 05040302 01000000
            0010  0e0d0c0b 0a000000 88776655 44332211
            0030  02003e00 07000000 82000000 00000000
            0060  03020500 0a090807 00000000 00000000
            0070  ffffffff 0f000000 88776655 44332211
            0080  3412efcd ab0f0080 00000000 00000000
            0090  04000000 00000000 00000000 00000000
            00a0  01000000 00000000 00000000 00000000
            00b0  00000000 00000080 00000000 00000000
            00c0  05010010 00000000 00000000 00000000
            00d0  00000000 00000000 88776655 44332211
            00f0  06000000 04030201 00020000 00000000
            0120  07000000 00000000 00000000 00000000
            0130  02000000 00000000 88776655 44332211
            0150  08010000 05000000 00000000 00000000
            0160  0b0a0000 00000000 88776655 44332211
            0180  09000000 00000000 00000000 00000000
            0190  03000000 00000080 88776655 44332211
            01b0  0a020700 00000504 0302010e 0d0c0b0a
            01c0  88776655 44332211 74686520 63697068
            01d0  65722773 20746167 00000000 00000000
            01e0  0b033412 efcdab0f ffffffff 0f000000
            01f0  88776655 44332211 74686520 63697068
            0200  65722773 20746167 00000000 00000000
            0210  0d000000 00000000 05040302 01000000
            0220  0e0d0c0b 0a000000 88776655 44332211
            0230  3412efcd ab0f0080 00000000 00000000
            0240  0c000000 06f5e4d3 c2b1a018 07000000
            0250  09000000 04030201 ffffffff ffffffff
            0260  ffffffff ffffffff 00000000 00000000
            0270  0e010000 07000000 00000000 00000000
            0280  feffff0f 00000000 00000000 00000000
        "#]],
    );
}

#[test]
fn a_head_has_these_bytes() {
    check(
        &encoded(&head()).0,
        &expect![[r#"
            0000  7672696f 2d726f77 fa0d4ae6 ae2ef6ee
            0010  30313233 34353637 38396162 63646566
            0020  175a175a 175a175a 03000000 00000000
            0030  e8030000 00000000 de030000 00000000
            0040  02000001 03000208 09000001 0e020101
            0050  01000200 00010080 e6030000 00000000
            0060  01000000 07000000 05040302 01000000
            0070  0e0d0c0b 0a000000 88776655 44332211
            0080  00000000 00000000 02003e00 07000000
            0090  82000000 00000000 00000000 00000000
            00b0  03020500 0a090807 00000000 00000000
            00c0  ffffffff 0f000000 88776655 44332211
            00d0  3412efcd ab0f0080 04000000 00000000
            00e0  00000000 00000000 01000000 00000000
            00f0  00000000 00000000 00000000 00000080
            0100  05010010 00000000 00000000 00000000
            0110  00000000 00000000 88776655 44332211
            0120  00000000 00000000 06000000 04030201
            0130  00020000 00000000 00000000 00000000
            0150  07000000 00000000 00000000 00000000
            0160  02000000 00000000 88776655 44332211
            0170  00000000 00000000 08010000 05000000
            0180  00000000 00000000 0b0a0000 00000000
            0190  88776655 44332211 00000000 00000000
            01a0  09000000 00000000 00000000 00000000
            01b0  03000000 00000080 88776655 44332211
            01c0  00000000 00000000 0a020700 00000504
            01d0  0302010e 0d0c0b0a 88776655 44332211
            01e0  74686520 63697068 65722773 20746167
            01f0  0b033412 efcdab0f ffffffff 0f000000
            0200  88776655 44332211 74686520 63697068
            0210  65722773 20746167 0d000000 00000000
            0220  05040302 01000000 0e0d0c0b 0a000000
            0230  88776655 44332211 3412efcd ab0f0080
            0240  0c000000 06f5e4d3 c2b1a018 07000000
            0250  09000000 04030201 ffffffff ffffffff
            0260  ffffffff ffffffff 0e010000 07000000
            0270  00000000 00000000 feffff0f 00000000
            0290  01000000 07000000 05040302 01000000
            02a0  0e0d0c0b 0a000000 88776655 44332211
            02b0  00000000 00000000 02003e00 07000000
            02c0  82000000 00000000 00000000 00000000
        "#]],
    );
}

#[test]
fn a_superblock_has_these_bytes() {
    check(
        &encoded_superblock(&superblock()).0,
        &expect![[r#"
            0000  7672696f 506f6f6c 450cbc21 f11870e8
            0010  05000000 00200000 30313233 34353637
            0020  38396162 63646566 01020000 00000000
            0030  03000000 00000000 175a175a 175a175a
            0040  f0debc9a 78563412 04000000 00000000
            0050  e7030000 00000000 02000100 00000080
            0060  efcdab89 67452301 e6030000 00000000
            0070  00000000 00000000 02000100 00010080
            0080  10325476 98badcfe e7030000 00000000
            0090  00000000 00000000 a0860100 00000000
            00a0  05000000 11000000 06000000 00000000
            00b0  ffffffff 00000000 ffffffff 00000000
            00c0  02000001 00000000 ffffffff 00000000
            00d0  64657669 63652030 206f6620 706f6f6c
            00e0  64000000 00000000 64657669 63652031
            00f0  206f6620 706f6f6c c8000000 00000000
        "#]],
    );
}

#[test]
fn entries_of_a_page_table_have_these_bytes() {
    let entry = PageEntry::at(place(15, 0x00ab_cdef, 0x1234), 0x1122_3344_5566_7788, 1000);
    let shares = PageShares { aliases: 0x0102_0304, is_kept: true };
    let shared = entry.with_shares(shares);
    let alias = PageEntry::alias(0x0a_0b0c_0d0e, 0x1122_3344_5566_7788);
    let entries = [entry, PageEntry::lost(), shared, alias];
    let bytes = entries.map(|entry| entry.as_bytes().to_vec()).concat();
    assert_eq!((shared.shares(), shared.place(), shared.seal()), (shares, entry.place(), None));
    assert_eq!(
        (alias.alias_of(), alias.place(), alias.is_free()),
        (Some(0x0a_0b0c_0d0e), None, false)
    );
    check(
        &bytes,
        &expect![[r#"
            0000  3412efcd ab0f0080 88776655 44332211
            0010  e8030000 00000000 00000000 00000000
            0020  00000000 00000040 00000000 00000000
            0040  3412efcd ab0f0080 88776655 44332211
            0050  e8030000 00000000 04030201 00800000
            0060  0e0d0c0b 0a000010 88776655 44332211
        "#]],
    );
    assert_eq!(PageEntry::FREE.as_bytes(), [0; 32]);
}

#[test]
fn tags_are_these() {
    let page: Vec<u8> = (0..BLOCK_BYTES).map(|at| at as u8).collect();
    let mut text = String::new();
    for domain in [
        TagDomain::Data,
        TagDomain::Node,
        TagDomain::Table(0),
        TagDomain::Table(5),
        TagDomain::State,
        TagDomain::Change,
        TagDomain::Alias,
    ] {
        let crc = tag_crc(&UUID, domain, 0x0a_0b0c_0d0e, 1000, &page);
        writeln!(text, "{domain:?} {:04x} {crc:016x}", domain.word()).unwrap();
    }
    writeln!(text, "check {:016x}", checksum(CrcAlgorithm::Crc64Nvme, b"123456789")).unwrap();
    expect![[r#"
        Data 0001 3423e6e7737fe5bb
        Node 0002 326af506103dcef1
        Table(0) 0003 dc1ae668068ea6ee
        Table(5) 0503 fc8c9da2edf7560b
        State 0004 3ef8d2c4d6b99865
        Change 0005 d088c1aac00af07a
        Alias 0006 d6c1d24ba348db30
        check ae8b14860a799888
    "#]]
    .assert_eq(&text);
}

#[test]
fn superblocks_of_two_checkpoints_lie_apart() {
    assert_eq!(superblock_blocks(4), [0, 8]);
    assert_eq!(superblock_blocks(5), [4, 12]);
    assert!([4, 5].iter().flat_map(|&n| superblock_blocks(n)).all(|b| b < DEVICE_HEADER_BLOCKS));
}

fn any_place(random: &mut Random) -> BlockPlace {
    let segment = random.below(SEGMENTS_PER_DEVICE_MAX.into()) as u32;
    place(random.below(DEVICES_MAX as u64) as u8, segment, random.below(8192) as u16)
}

fn any_form(random: &mut Random) -> PageForm {
    let codec = [PageCodec::Plain, PageCodec::Lz4, PageCodec::Zstd][random.below(3) as usize];
    match codec {
        PageCodec::Plain => PageForm::PLAIN,
        codec => PageForm { codec, sectors: random.between(1, BLOCK_SECTORS.into()) as u8 },
    }
}

fn any_record(random: &mut Random) -> LogRecord {
    let number = random.between(1, NUMBER_MAX);
    let (crc, block, volume) = (random.draw(), random.draw(), random.draw() as u32);
    let (tag, version) = (*b"0123456789abcdef", random.draw() as u8);
    match random.below(14) {
        13 => {
            let mut volumes = [NO_VOLUME; MOMENT_VOLUMES_MAX];
            let count = random.between(1, MOMENT_VOLUMES_MAX as u64) as usize;
            volumes[..count].fill_with(|| random.draw() as u32 >> 1);
            volumes.sort_unstable();
            let is_once = volumes[..count].windows(2).all(|pair| pair[0] < pair[1]);
            let volumes = if is_once { volumes } else { moment_of([volume >> 1]) };
            LogRecord::Moment { at_ns: random.draw(), volumes }
        }
        12 => {
            let (generation, is_early) = (random.draw(), random.one_in(2));
            LogRecord::Forget { volume, generation, is_early }
        }
        11 => {
            let shared = random.below(NUMBER_MAX);
            let shared = if shared == number { 0 } else { shared };
            let crc = if shared == 0 { 0 } else { crc };
            LogRecord::Alias { number, from: any_place(random), shared, crc }
        }
        9 => LogRecord::Sealed { volume, block: block >> 24, number, crc, tag, version },
        10 => LogRecord::Resealed { number, crc, from: any_place(random), tag, version },
        0 => LogRecord::Write { volume, block, number, crc },
        1 => {
            let blocks = random.between(1, ZERO_BLOCKS_MAX - block % ZERO_BLOCKS_MAX) as u16;
            LogRecord::Zero { volume, block, blocks }
        }
        2 => {
            let form = any_form(random);
            LogRecord::Move { number, crc, from: any_place(random), volume, form }
        }
        3 => LogRecord::Lost { number, from: any_place(random) },
        4 => LogRecord::Change {
            bytes: random.between(0, 4096) as u16,
            crc,
            is_copy: random.one_in(2),
        },
        5 => LogRecord::Removal { snapshot: volume, block },
        6 => LogRecord::Node { number, crc },
        7 => {
            let kind = if random.one_in(2) { TableKind::Data } else { TableKind::Nodes };
            LogRecord::Table { kind, level: random.below(6) as u8, index: number, crc }
        }
        _ => LogRecord::State { index: random.draw(), crc },
    }
}

/// Records of a row: not more than it has room for, payload included.
fn any_records(random: &mut Random) -> (Vec<LogRecord>, u8) {
    let mut records = Vec::new();
    for _ in 0..random.between(0, RECORDS_MAX as u64) {
        let record = any_record(random);
        if payload_blocks(&records) < ROW_PAYLOAD_MAX as u32 || !record.has_payload() {
            records.push(record);
        }
    }
    let payload = payload_blocks(&records) as u8;
    (records, payload)
}

fn any_head(random: &mut Random) -> RowHead {
    let (records, payload) = any_records(random);
    let sequence = random.between(2, COUNT_MAX);
    let mut head = RowHead {
        salt: random.draw(),
        opening: random.draw(),
        sequence,
        durable: random.below(sequence),
        place: any_place(random),
        stream: random.below(STREAMS as u64) as u8,
        payload,
        next: any_place(random).segment,
        previous: None,
        records,
        previous_records: Vec::new(),
    };
    if random.one_in(2) {
        let (records, payload) = any_records(random);
        let sequence = random.between(1, sequence - 1);
        head.previous = Some(RowPosition { sequence, place: any_place(random), payload });
        head.previous_records = records;
    }
    head
}

#[test]
fn heads_and_records_come_back_as_they_were() {
    let mut random = Random::new(67);
    for _ in 0..2000 {
        let head = any_head(&mut random);
        assert_eq!(RowHead::decode(&UUID, &encoded(&head)), Ok(head));
        let record = any_record(&mut random);
        assert_eq!(LogRecord::decode(&record.encode()), Ok(record));
        let place = any_place(&mut random);
        assert_eq!(BlockPlace::from_word(place.word()), Some(place));
    }
}

#[test]
fn a_superblock_comes_back_as_it_was() {
    let there = superblock();
    assert_eq!(Superblock::decode(&encoded_superblock(&there)), Ok(there));
    let mut empty = Superblock::new(UUID, SEGMENT_BLOCKS_MIN);
    empty.devices = 1;
    assert_eq!(Superblock::decode(&encoded_superblock(&empty)), Ok(empty));
}

#[test]
fn a_head_with_a_flipped_bit_is_refused() {
    let mut block = encoded(&head());
    for bit in 0..BLOCK_BYTES * 8 {
        block.0[bit / 8] ^= 1 << (bit % 8);
        let expected = match bit / 8 {
            0..8 | 16..32 => HeadError::NoHead,
            _ => HeadError::Damaged,
        };
        assert_eq!(RowHead::decode(&UUID, &block), Err(expected), "bit {bit}");
        block.0[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_superblock_with_a_flipped_bit_is_refused() {
    let mut block = encoded_superblock(&superblock());
    for bit in 0..BLOCK_BYTES * 8 {
        block.0[bit / 8] ^= 1 << (bit % 8);
        let expected = match bit / 8 {
            0..8 => SuperblockError::NoPool,
            _ => SuperblockError::Damaged,
        };
        assert_eq!(Superblock::decode(&block), Err(expected), "bit {bit}");
        block.0[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_head_of_another_pool_is_none() {
    let block = encoded(&head());
    assert_eq!(RowHead::decode(b"another pool's 1", &block), Err(HeadError::NoHead));
    assert_eq!(RowHead::decode(&UUID, &Block::ZERO), Err(HeadError::NoHead));
}

/// Writes a value of `width` bytes at each byte of the first `end`, and hands the sealed block out.
fn each_extreme(block: &Block, end: usize, mut decode: impl FnMut(&Block)) {
    for (at, width) in (0..end).flat_map(|at| [1, 2, 4, 8].map(|width| (at, width))) {
        for value in EXTREMES {
            let mut block = block.clone();
            block.0[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            seal(&mut block);
            decode(&block);
        }
    }
}

/// A hostile medium has right checks as well. A head that passes could have been written, and has
/// these bytes alone.
#[test]
fn hostile_heads_are_refused_or_have_one_encoding() {
    let decode = |block: &Block| {
        if let Ok(head) = RowHead::decode(&UUID, block) {
            assert_eq!(encoded(&head).0, block.0);
            assert!(head.durable < u64::MAX / 2 && head.sequence < u64::MAX / 2);
        }
    };
    each_extreme(&encoded(&head()), 96 + 2 * RECORD_BYTES, decode);
    let mut random = Random::new(4096);
    for _ in 0..5000 {
        let mut block = encoded(&any_head(&mut random));
        for _ in 0..random.between(1, 4) {
            let end = if random.one_in(2) { 96 } else { BLOCK_BYTES as u64 };
            block.0[random.below(end) as usize] = random.draw() as u8;
        }
        seal(&mut block);
        decode(&block);
    }
}

/// A superblock that passes names nothing that its own pool does not have.
#[test]
fn hostile_superblocks_are_refused_or_make_sense() {
    each_extreme(&encoded_superblock(&superblock()), size_of::<Superblock>(), |block| {
        let Ok(found) = Superblock::decode(block) else { return };
        assert!(found.device < found.devices && usize::from(found.devices) <= DEVICES_MAX);
        assert!((SEGMENT_BLOCKS_MIN..=SEGMENT_BLOCKS_MAX).contains(&found.segment_blocks.get()));
        let counts = [found.opening, found.checkpoint, found.sequence];
        assert!(counts.iter().all(|count| count.get() < u64::MAX / 2));
        for entry in found.state.iter().filter(|entry| !entry.is_free()) {
            assert!(entry.place().is_some_and(|place| found.has_place(place)));
        }
        for stream in &found.streams {
            for segment in [stream.segment.get(), stream.next.get()] {
                assert!(segment == NO_SEGMENT || found.has_segment(SegmentId(segment)));
            }
        }
    });
}

fn head_error(change: impl FnOnce(&mut Block)) -> Option<HeadError> {
    let mut block = encoded(&head());
    change(&mut block);
    seal(&mut block);
    RowHead::decode(&UUID, &block).err()
}

#[test]
fn values_that_no_head_has_are_named() {
    let invalid = |field, value| Some(HeadError::Invalid { field, value });
    for (at, value, field) in [
        (70, 3, "stream"),
        (71, 7, "payload"),
        (71, 50, "payload"),
        (67, 16, "segment"),
        (75, 16, "next"),
        (76, 51, "records"),
        (77, 51, "previous records"),
        (76, 15, "kind of record"),
        (77, 1, "bytes behind the records"),
        (78, 2, "previous payload"),
        (79, 2, "has previous"),
        (79, 0, "previous records"),
        (87, 0, "previous place"),
        (96, 15, "kind of record"),
        (4095, 1, "bytes behind the records"),
    ] {
        let error = head_error(|block| block.0[at] = value);
        let Some(HeadError::Invalid { field: found, .. }) = error else {
            panic!("byte {at} with {value} passes: {error:?}");
        };
        assert_eq!(found, field, "byte {at} with {value}");
    }
    let word = |at: usize, value: u64| {
        head_error(move |block| block.0[at..at + 8].copy_from_slice(&value.to_le_bytes()))
    };
    assert_eq!(word(56, u64::MAX), invalid("durable", u64::MAX));
    assert_eq!(word(48, 0), invalid("previous sequence", 998));
    assert_eq!(word(48, u64::MAX), invalid("sequence", u64::MAX));
    let error = head_error(|block| {
        block.0[56..64].copy_from_slice(&1000_u64.to_le_bytes());
        block.0[70] = 0;
    });
    assert_eq!(error, invalid("durable", 1000));
    assert_eq!(word(88, 1000), invalid("previous sequence", 1000));
}

#[test]
fn fields_that_a_record_does_not_have_are_refused() {
    for record in records() {
        let bytes = record.encode();
        let mut other = 0;
        for bit in 8..RECORD_BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Ok(found) = LogRecord::decode(&changed) {
                assert_ne!(found, record, "bit {bit}");
                assert_eq!(found.encode(), changed, "bit {bit}");
                other += 1;
            }
        }
        // A page that is sealed in a volume leaves no byte of its record free.
        let is_full = matches!(record, LogRecord::Sealed { .. });
        assert!(is_full || other < RECORD_BYTES * 8 - 8, "{record:?} has fields that mean nothing");
    }
    for kind in [0, 12, 255] {
        let mut bytes = records()[0].encode();
        bytes[0] = kind;
        assert_eq!(LogRecord::decode(&bytes), Err(RecordError { kind }));
    }
}

fn moved(number: u64, from: BlockPlace) -> LogRecord {
    LogRecord::Move { number, crc: 5, from, volume: 1, form: PageForm::PLAIN }
}

/// Forms that no page has: a codec that is unknown, a packed page without one, nine sectors.
#[test]
fn forms_that_no_page_has_are_refused() {
    let bytes = moved(1, place(0, 0, 0)).encode();
    for (codec, sectors) in [(0, 1), (0, 8), (1, 8), (1, 256), (2, 9), (3, 0), (3, 1), (255, 7)] {
        let mut bytes = bytes;
        bytes[1] = codec;
        bytes[2..4].copy_from_slice(&u16::to_le_bytes(sectors));
        assert!(LogRecord::decode(&bytes).is_err(), "codec {codec}, {sectors} sectors");
    }
    let entry = PageEntry::at(place(1, 2, 3), 4, 5);
    for bits in [0x001, 0x008, 0x0c0, 0x0c8, 0x100, 0x3fff] {
        let word = entry.place.get() | bits << 48;
        let entry = PageEntry { place: word.into(), ..entry };
        assert_eq!((entry.place(), entry.form()), (None, None), "{bits:#x}");
    }
}

#[test]
fn an_entry_says_the_form_of_its_page() {
    let mut random = Random::new(25);
    for _ in 0..1000 {
        let (place, form) = (any_place(&mut random), any_form(&mut random));
        let offset = if form.is_packed() { random.below(8) as u8 } else { 0 };
        let entry = PageEntry::at(place, 4, 5).in_form(form, offset);
        assert_eq!((entry.place(), entry.form()), (Some(place), Some((form, offset))));
        let sectors = u32::from(offset + form.sectors);
        assert_eq!(entry.span(), if sectors > 8 { 2 } else { 1 });
    }
}

#[test]
fn payloads_of_a_row_do_not_overlap_and_fill_it() {
    let mut random = Random::new(26);
    for _ in 0..1000 {
        let head = place(1, 2, random.below(60_000) as u16);
        let (records, payload) = any_records(&mut random);
        let begin = (u64::from(head.block) + 1) * 8;
        let mut used = vec![false; usize::from(payload) * 8];
        for (record, at) in records.iter().zip(payload_places(head, &records)) {
            let Some(form) = record.form() else {
                assert_eq!(at, PayloadPlace { place: head, offset: 0 });
                continue;
            };
            let first = u64::from(at.place.block) * 8 + u64::from(at.offset) - begin;
            for sector in &mut used[first as usize..][..usize::from(form.sectors)] {
                assert!(!std::mem::replace(sector, true), "{record:?} overlaps another");
            }
        }
        let unused = used.iter().rev().take_while(|used| !**used).count();
        assert!(unused < 8 && used.iter().filter(|used| !**used).count() == unused);
    }
}

#[test]
fn values_that_no_record_has_are_refused() {
    let crc = 5;
    for record in [
        LogRecord::Write { volume: 1, block: 1, number: 0, crc },
        LogRecord::Write { volume: 1, block: 1, number: NUMBER_MAX + 1, crc },
        moved(0, place(0, 0, 0)),
        moved(1, BlockPlace { segment: SegmentId(1 << 28), block: 0 }),
        LogRecord::Lost { number: 0, from: place(0, 0, 0) },
        LogRecord::Node { number: 0, crc },
        LogRecord::Zero { volume: 1, block: 0, blocks: 0 },
        LogRecord::Zero { volume: 1, block: 0, blocks: 65 },
        LogRecord::Zero { volume: 1, block: 63, blocks: 2 },
        LogRecord::Zero { volume: 1, block: u64::MAX, blocks: 2 },
        LogRecord::Change { bytes: 4097, crc, is_copy: false },
    ] {
        assert!(LogRecord::decode(&record.encode()).is_err(), "{record:?} passes");
    }
}

#[test]
fn words_that_name_no_place_are_refused() {
    let word = place(15, SEGMENTS_PER_DEVICE_MAX - 1, u16::MAX).word();
    assert!(BlockPlace::from_word(word).is_some());
    for bit in 44..64 {
        let changed = BlockPlace::from_word(word ^ 1 << bit);
        assert!(changed.is_none() || bit < 44, "bit {bit}");
    }
    assert_eq!(PageEntry::lost().place(), None);
    assert_eq!(PageEntry::FREE.place(), None);
    assert!(!PageEntry::lost().is_free());
}

/// An entry of a page table comes from a block that was proved; junk in it names no place.
#[test]
fn any_bytes_are_an_entry() {
    let mut random = Random::new(24);
    for _ in 0..1000 {
        let words = [random.draw(), random.draw(), random.draw(), random.draw()];
        let entry = PageEntry::read_from_bytes(words.as_bytes()).unwrap();
        if let (Some(place), Some((form, offset))) = (entry.place(), entry.form()) {
            let named = PageEntry::at(place, 0, 0).in_form(form, offset);
            assert_eq!(named.place, entry.place);
        }
    }
}

#[test]
fn a_tag_depends_on_each_of_its_inputs() {
    let page = [0xa5; 512];
    let tag = tag_crc(&UUID, TagDomain::Data, 5, 6, &page);
    for bit in 0..UUID.len() * 8 {
        let mut uuid = UUID;
        uuid[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(tag_crc(&uuid, TagDomain::Data, 5, 6, &page), tag);
    }
    for bit in 0..64 {
        assert_ne!(tag_crc(&UUID, TagDomain::Data, 5 ^ 1 << bit, 6, &page), tag);
        assert_ne!(tag_crc(&UUID, TagDomain::Data, 5, 6 ^ 1 << bit, &page), tag);
    }
    for bit in 0..page.len() * 8 {
        let mut page = page;
        page[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(tag_crc(&UUID, TagDomain::Data, 5, 6, &page), tag);
    }
    assert_ne!(tag_crc(&UUID, TagDomain::Data, 6, 5, &page), tag);
    let tables = (0..=u8::MAX).map(TagDomain::Table);
    let others = [TagDomain::Data, TagDomain::Node, TagDomain::State, TagDomain::Change];
    let mut words: Vec<u64> = tables.chain(others).map(TagDomain::word).collect();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), 256 + 4);
}

/// Two blocks of a pool's map never have the same domain and number.
#[test]
fn blocks_of_the_two_tables_have_tags_of_their_own() {
    let crc = 0;
    let tag = |kind, level, index| tag_of(&LogRecord::Table { kind, level, index, crc });
    assert_eq!(tag(TableKind::Data, 2, 5), (TagDomain::Table(2), 10));
    assert_eq!(tag(TableKind::Nodes, 2, 5), (TagDomain::Table(2), 11));
    let state = |index| tag_of(&LogRecord::State { index, crc });
    assert_ne!(state(3), state(LogRecord::STATE_INDEX | 3));
    let moved = moved(7, place(0, 0, 0));
    let written = LogRecord::Write { volume: 1, block: 2, number: 7, crc };
    assert_eq!(tag_of(&moved), tag_of(&written));
}
