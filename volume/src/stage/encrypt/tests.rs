use std::num::NonZeroU64;

use super::*;
use crate::backend::{FileOptions, FileVolume, MemoryVolume};
use crate::chain::{Chain, ChainError};
use crate::contract::held::HeldVolume;
use crate::contract::{self, Buffer, ChannelBench};
use crate::stage::{Limit, Metering, StageConfig};
use crate::volume::{Durability, IO_BYTES_MAX, IoId, Op, RANGE_BYTES_MAX, Status};

pub(super) const MIB: usize = 1 << 20;

pub(super) const AT_ONCE_MAX: usize = ZEROES_AT_ONCE_MAX as usize;

/// The number of the channel below that has the pieces of ranges.
const PIECES: usize = 1;

const ZEROES_BYTES_MAX: u32 = Sizes::STANDARD.zeroes_bytes;

pub(super) fn secret(seed: u8) -> [u8; VolumeKey::BYTES] {
    std::array::from_fn(|at| (at as u8).wrapping_mul(7) ^ seed)
}

pub(super) fn key(seed: u8) -> Arc<VolumeKey> {
    let key = VolumeKey::from_bytes(&secret(seed));
    Arc::new(key.expect("two different halves"))
}

pub(super) fn memory(bytes: u64) -> Arc<MemoryVolume> {
    Arc::new(MemoryVolume::new(bytes).expect("memory"))
}

fn over(inner: Arc<dyn Volume>) -> EncryptVolume {
    EncryptVolume::new(inner, key(1))
}

/// Text that compresses well: any of its sectors would be found again.
pub(super) fn text(sectors: usize) -> Vec<u8> {
    let line = b"what a guest writes is nobody else's. ";
    line.iter().copied().cycle().take(sectors * 512).collect()
}

fn encrypt() -> StageConfig {
    StageConfig::Encrypt(Encryption { key: "/nowhere".into() })
}

/// A channel over a volume that answers when it is told to.
fn held(depth: u16) -> (HeldVolume, EncryptVolume, ChannelBench) {
    let held = HeldVolume::new(64 << 20);
    let volume = over(Arc::new(held.clone()));
    let bench = ChannelBench::new(&volume, depth);
    (held, volume, bench)
}

#[test]
fn keeps_the_contract() {
    contract::check_all(&over(memory(MIB as u64)));
    let through = MemoryVolume::new(MIB as u64).expect("memory");
    let through = through.with_durability(Durability::WriteThrough);
    contract::check_all(&over(Arc::new(through)));
    let stages = [
        StageConfig::Meter(Metering),
        encrypt(),
        StageConfig::Limit(Limit { iops: NonZeroU64::new(1 << 30), ..Limit::default() }),
    ];
    contract::check_all(
        &*Chain::build(memory(MIB as u64), &stages, Some(&key(1))).expect("a chain").volume,
    );
}

#[test]
fn keeps_the_contract_over_files_of_both_kinds() {
    let Some(services) = contract::services_with_uring("encrypt over files") else { return };
    let home = tempfile::tempdir().expect("a directory");
    for (direct, durability) in
        [(false, Durability::Flush), (true, Durability::Flush), (true, Durability::WriteThrough)]
    {
        let mut options = FileOptions::new(home.path().join(format!("{direct}{durability:?}")));
        (options.size_bytes, options.direct) = (Some(MIB as u64), direct);
        options.durability = durability;
        let file = match FileVolume::open(&options) {
            Ok(file) => file,
            Err(error) => {
                println!("SKIP direct: {error}");
                continue;
            }
        };
        contract::check_all_with(&over(Arc::new(file)), &services);
    }
}

#[test]
fn below_it_is_the_ciphertext_of_dm_crypt_and_never_a_block_of_plaintext() {
    let inner = memory(4 * MIB as u64);
    let volume = over(inner.clone());
    let (mut above, mut below) = (ChannelBench::new(&volume, 8), ChannelBench::new(&*inner, 8));
    let written = text(1000);
    for piece in [usize::MAX, 4096, 512, 700] {
        (above.piece, above.skew) = (piece, piece % 13);
        assert_eq!(above.write(9 * 512, &written), Status::Done);
        let raw = below.read(9 * 512, written.len()).expect("all of it");
        for (number, (raw, plain)) in raw.chunks(512).zip(written.chunks(512)).enumerate() {
            let book = xts::tests::by_the_book(&secret(1), 9 + number as u64, plain);
            assert!(raw == book, "sector {number}, pieces of {piece}");
        }
        assert!(above.read(9 * 512, written.len()) == Ok(written.clone()), "pieces of {piece}");
    }
    // The same block in two places is not the same below.
    assert_eq!(above.write(0, &[5; 512]), Status::Done);
    assert_eq!(above.write(512, &[5; 512]), Status::Done);
    assert_ne!(below.read(0, 512), below.read(512, 512));
}

#[test]
fn a_write_never_changes_its_buffer_and_the_users_segments_come_back() {
    for status in [Status::Done, Status::Error, Status::Fenced] {
        let (held, volume, mut bench) = held(4);
        bench.piece = 1000;
        let buffer = Buffer::filled(&text(8), 5);
        let id = bench.submit(Op::Write, 4096, Some(&buffer));
        let own: Vec<_> = buffer.segments(1000).iter().map(|it| it.addr).collect();
        bench.round();
        let asked = held.answer(status);
        let places = asked.places.iter().map(|(addr, _)| *addr);
        assert!(places.clone().all(|addr| own.iter().all(|own| own.addr() != addr)));
        assert!(places.clone().all(|addr| addr.is_multiple_of(4096)), "direct I/O takes it");
        bench.round();
        assert_eq!(bench.done, [id]);
        let io = &bench.ios[id];
        assert_eq!((io.op, io.offset_bytes, io.len_bytes), (Op::Write, 4096, 4096));
        assert_eq!(io.segments.iter().map(|it| it.addr).collect::<Vec<_>>(), own);
        assert_eq!(buffer.bytes(), text(8));
        assert_eq!(volume.counted().enciphered_bytes, 4096);
    }
}

#[test]
fn a_read_that_failed_is_not_deciphered() {
    let (held, volume, mut bench) = held(4);
    let buffer = Buffer::filled(&[9; 512], 0);
    let id = bench.submit(Op::Read, 0, Some(&buffer));
    held.answer(Status::Error);
    assert_eq!(bench.wait(id), Status::Error);
    assert_eq!((buffer.bytes(), volume.counted()), (vec![9; 512], Ciphered::default()));
}

#[test]
fn a_full_pool_holds_writes_back_in_their_order_and_reads_pass() {
    let (held, volume, mut bench) = held(64);
    let (long, short) = (Buffer::new(MIB, 0), Buffer::new(512, 0));
    let fit = POOL_BYTES_MAX as usize / MIB;
    let mut ids: Vec<_> =
        (0..=fit).map(|at| bench.submit(Op::Write, (at * MIB) as u64, Some(&long))).collect();
    // There would be room for a short one now and then; it waits behind the long one.
    ids.push(bench.submit(Op::Write, 0, Some(&short)));
    let read = bench.submit(Op::Read, 512, Some(&short));
    let flush = bench.submit(Op::Flush, 0, None);
    bench.round();
    assert_eq!((held.asked(0), volume.counted().waited), (fit + 2, 2));
    let order: Vec<_> = (0..fit)
        .map(|_| {
            let asked = held.answer(Status::Done);
            bench.round();
            (asked.op, asked.offset_bytes)
        })
        .collect();
    assert!(order.iter().zip(0u64..).all(|(it, at)| *it == (Op::Write, at << 20)));
    let rest: Vec<_> = (0..4).map(|_| held.answer(Status::Done).op).collect();
    assert_eq!(rest, [Op::Read, Op::Flush, Op::Write, Op::Write]);
    for id in ids.into_iter().chain([read, flush]) {
        assert_eq!(bench.wait(id), Status::Done);
    }
    assert_eq!(held.asked(0), 0);
}

#[test]
fn impossible_requests_are_refused_and_hold_up_no_other() {
    let (held, _, mut bench) = held(8);
    let huge = Buffer::new(IO_BYTES_MAX as usize + 512, 0);
    let id = bench.submit(Op::Write, 0, Some(&huge));
    assert_eq!(bench.wait(id), Status::Invalid);
    assert_eq!(bench.write(64 << 20, &[1; 512]), Status::Invalid);
    assert_eq!(bench.zero(Op::WriteZeroes, false, 100, 512), Status::Invalid);
    assert_eq!(bench.zero(Op::Discard, false, 0, 512), Status::Unsupported);
    assert_eq!(held.asked(0), 0, "nothing of it came below");
    let read_only = over(Arc::new(MemoryVolume::new(MIB as u64).expect("memory").read_only()));
    assert_eq!(read_only.info().zeroing, Zeroing::default());
    let mut bench = ChannelBench::new(&read_only, 4);
    assert_eq!(bench.write(0, &[1; 512]), Status::Invalid);
    assert_eq!(bench.zero(Op::WriteZeroes, false, 0, 512), Status::Invalid);
}

#[test]
fn zeroes_are_written_as_their_ciphertext_in_bounded_pieces() {
    let inner = memory(2 * u64::from(RANGE_BYTES_MAX));
    let volume = over(inner.clone());
    let info = volume.info();
    assert!(info.zeroing.write_zeroes && !info.zeroing.discard);
    let mut bench = ChannelBench::new(&volume, 4);
    assert_eq!(bench.zero(Op::WriteZeroes, false, 512, u64::from(RANGE_BYTES_MAX)), Status::Done);
    let mut below = ChannelBench::new(&*inner, 4);
    for at in [512, MIB as u64, u64::from(RANGE_BYTES_MAX)] {
        assert_eq!(bench.read(at, 512), Ok(vec![0; 512]));
        let book = xts::tests::by_the_book(&secret(1), at / 512, &[0; 512]);
        assert_eq!(below.read(at, 512), Ok(book));
    }
    assert_eq!(below.read(0, 512), Ok(vec![0; 512]), "nothing before it");
    assert_eq!(below.read(u64::from(RANGE_BYTES_MAX) + 512, 512), Ok(vec![0; 512]), "nor after");

    let (held, _, mut bench) = held(4);
    let id = bench.ios.take().expect("room");
    let len = 2 * ZEROES_BYTES_MAX + 512;
    let io = &mut bench.ios[id];
    io.reset();
    (io.op, io.durable, io.offset_bytes, io.len_bytes) = (Op::WriteZeroes, true, 1024, len);
    bench.channel.submit(&mut bench.ios, id);
    let mut next = 1024;
    for piece in [ZEROES_BYTES_MAX, ZEROES_BYTES_MAX, 512] {
        assert!(bench.done.is_empty());
        assert_eq!(held.asked_of_all(), 1, "one at a time");
        let asked = held.answer_oldest(Status::Done);
        assert_eq!((asked.op, asked.durable), (Op::Write, true));
        assert_eq!((asked.offset_bytes, asked.len_bytes), (next, piece));
        assert_eq!(asked.places.len(), 1);
        next += u64::from(piece);
        bench.round();
    }
    let io = &bench.ios[id];
    assert_eq!((bench.done.as_slice(), io.status), (&[id][..], Status::Done));
    assert_eq!((io.op, io.offset_bytes, io.len_bytes), (Op::WriteZeroes, 1024, len));
    assert!(io.segments.is_empty());
}

/// Submits the zeroing of a range.
pub(super) fn submit_zeroes(bench: &mut ChannelBench, offset_bytes: u64, len_bytes: u32) -> IoId {
    let id = bench.ios.take().expect("room");
    let io = &mut bench.ios[id];
    io.reset();
    (io.op, io.offset_bytes, io.len_bytes) = (Op::WriteZeroes, offset_bytes, len_bytes);
    bench.channel.submit(&mut bench.ios, id);
    id
}

#[test]
fn writes_do_not_wait_for_a_disk_that_is_wiped() {
    let (held, volume, mut bench) = held(64);
    let pieces = RANGE_BYTES_MAX / ZEROES_BYTES_MAX;
    let ranges: Vec<_> =
        (0..3).map(|at| submit_zeroes(&mut bench, at << 24, RANGE_BYTES_MAX)).collect();
    assert_eq!((held.asked_of_all(), volume.counted().waited), (AT_ONCE_MAX, 1));
    let long = Buffer::new(MIB, 0);
    let writes: Vec<_> = (0..3).map(|at| bench.submit(Op::Write, at << 20, Some(&long))).collect();
    assert_eq!(held.asked_of_all(), AT_ONCE_MAX + 3, "they have begun at once");
    // One that finds no memory is before the third range, which came earlier and is held up by
    // its own kind, and before all later ones.
    let late = bench.submit(Op::Write, 3 << 20, Some(&long));
    let last = submit_zeroes(&mut bench, 0, 512);
    assert_eq!((held.asked_of_all(), volume.counted().waited), (AT_ONCE_MAX + 3, 3));
    let mut seen = Vec::new();
    while held.asked_of_all() > 0 {
        let asked = held.answer_oldest(Status::Done);
        seen.push((asked.offset_bytes, asked.len_bytes));
        bench.round();
        assert!(held.asked_of_all() <= AT_ONCE_MAX + 4);
    }
    let place = |it: (u64, u32)| seen.iter().position(|seen| *seen == it).expect("it came");
    let third = place((2 << 24, ZEROES_BYTES_MAX));
    assert!(place((3 << 20, 1 << 20)) < third, "{seen:?}");
    assert_eq!(seen.len(), 4 + 3 * pieces as usize + 1);
    for id in ranges.into_iter().chain(writes).chain([late, last]) {
        assert_eq!(bench.wait(id), Status::Done);
    }
}

#[test]
fn zeroes_of_which_a_piece_is_below_are_given_back_or_let_go_of_as_a_whole() {
    // The first piece is through the limit, the second is held in it.
    let slow = Limit { iops: NonZeroU64::new(1), burst_ns: 0, ..Limit::default() };
    let stages = [encrypt(), StageConfig::Limit(slow)];
    let chain = Chain::build(memory(64 << 20), &stages, Some(&key(1))).expect("a chain");
    let mut bench = ChannelBench::new(&*chain.volume, 8);
    let id = submit_zeroes(&mut bench, 512, 2 * ZEROES_BYTES_MAX);
    for _ in 0..8 {
        bench.round();
    }
    let mut back = Vec::new();
    bench.channel.recall(&mut bench.ios, &mut back);
    assert_eq!(back, [id]);
    let io = &bench.ios[id];
    let whole = (Op::WriteZeroes, 512, 2 * ZEROES_BYTES_MAX);
    assert_eq!((io.op, io.offset_bytes, io.len_bytes), whole);
    assert!(io.segments.is_empty());

    // An abandoned channel begins no further piece, also while the storage has one.
    let (held, _, mut bench) = held(8);
    submit_zeroes(&mut bench, 0, RANGE_BYTES_MAX);
    held.with(PIECES, |state| state.in_kernel = true);
    assert!(!bench.channel.abandon(&mut bench.ios, 1));
    held.answer_oldest(Status::Done);
    bench.round();
    assert_eq!(held.asked_of_all(), 0, "the next piece was begun");
}

#[test]
fn zeroes_that_fail_in_the_middle_have_failed() {
    let (held, _, mut bench) = held(4);
    let id = bench.ios.take().expect("room");
    let io = &mut bench.ios[id];
    io.reset();
    (io.op, io.len_bytes) = (Op::WriteZeroes, RANGE_BYTES_MAX);
    bench.channel.submit(&mut bench.ios, id);
    held.answer_oldest(Status::Done);
    bench.round();
    held.answer_oldest(Status::Error);
    assert_eq!(bench.wait(id), Status::Error);
    assert_eq!(held.asked_of_all(), 0);
    // The memory is there again: as much as there is.
    let long = Buffer::new(MIB, 0);
    for _ in 0..4 {
        bench.submit(Op::Write, 0, Some(&long));
    }
    assert_eq!(held.asked_of_all(), 4);
}

#[test]
fn the_wrong_key_reads_noise_and_the_right_one_still_reads() {
    let inner = memory(MIB as u64);
    let right = over(inner.clone());
    assert_eq!(ChannelBench::new(&right, 4).write(0, &text(16)), Status::Done);
    let wrong = EncryptVolume::new(inner, key(2));
    let noise = ChannelBench::new(&wrong, 4).read(0, 16 * 512).expect("noise is no error");
    let all = text(16);
    assert!(noise.chunks(512).zip(all.chunks(512)).all(|(noise, plain)| noise != plain));
    assert_eq!(ChannelBench::new(&right, 4).read(0, 16 * 512), Ok(all));
}

/// Requests that a limit below, or the pool, holds back come back to the user as they were
/// submitted.
#[test]
fn requests_that_were_not_begun_are_given_back_oldest_first() {
    let slow = Limit { iops: NonZeroU64::new(1), burst_ns: 0, ..Limit::default() };
    let stages = [encrypt(), StageConfig::Limit(slow)];
    let chain = Chain::build(memory(64 << 20), &stages, Some(&key(1))).expect("a chain");
    let mut bench = ChannelBench::new(&*chain.volume, 64);
    let (long, short) = (Buffer::filled(&text(2048), 0), Buffer::new(512, 0));
    let mut submitted: Vec<_> =
        (0..6).map(|at| bench.submit(Op::Write, (at * MIB) as u64, Some(&long))).collect();
    submitted.push(bench.submit(Op::Read, 0, Some(&short)));
    let zeroes = bench.ios.take().expect("room");
    let io = &mut bench.ios[zeroes];
    io.reset();
    (io.op, io.len_bytes) = (Op::WriteZeroes, RANGE_BYTES_MAX);
    bench.channel.submit(&mut bench.ios, zeroes);
    let mut back = Vec::new();
    bench.channel.recall(&mut bench.ios, &mut back);
    let all: Vec<_> = submitted.into_iter().chain([zeroes]).collect();
    assert_eq!(back, all);
    for (at, id) in back.iter().enumerate().take(6) {
        let io = &bench.ios[*id];
        assert_eq!((io.op, io.offset_bytes, io.len_bytes), (Op::Write, (at * MIB) as u64, 1 << 20));
        assert_eq!(io.segments[0].addr, long.segments(MIB)[0].addr);
    }
    assert_eq!(bench.ios[zeroes].op, Op::WriteZeroes);
    assert_eq!(bench.ios[zeroes].len_bytes, RANGE_BYTES_MAX);
    assert!(bench.ios[zeroes].segments.is_empty());
    assert_eq!(long.bytes(), text(2048));
}

#[test]
fn letting_go_waits_for_the_storage_that_reads_the_pool() {
    let (held, _, mut bench) = held(8);
    let long = Buffer::new(MIB, 0);
    for at in 0..6 {
        bench.submit(Op::Write, at << 20, Some(&long));
    }
    held.with(0, |state| state.in_kernel = true);
    assert!(!bench.channel.abandon(&mut bench.ios, 1));
    assert!(!bench.channel.abandon(&mut bench.ios, 2));
    held.with(0, |state| state.in_kernel = false);
    assert!(bench.channel.abandon(&mut bench.ios, 3));
    bench.round();
    assert_eq!((held.asked(0), bench.done.len()), (4, 0), "nothing was begun after it");
}

#[test]
fn a_chain_keeps_its_encryption_when_it_is_replaced_and_no_other_comes_in() {
    let encrypt = encrypt();
    let first = Chain::build(memory(MIB as u64), std::slice::from_ref(&encrypt), Some(&key(1)))
        .expect("a chain");
    assert_eq!(ChannelBench::new(&*first.volume, 4).write(0, &text(4)), Status::Done);
    let next = first.rebuilt(
        &[StageConfig::Meter(Metering), encrypt.clone(), StageConfig::Meter(Metering)],
        Some(&key(1)),
        0,
    );
    let next = next.expect("the same encryption");
    assert_eq!(ChannelBench::new(&*next.volume, 4).read(0, 4 * 512), Ok(text(4)));
    let counted = next.stages.encrypts.first().expect("it is there").counted();
    assert_eq!((counted.enciphered_bytes, counted.deciphered_bytes), (2048, 2048));
    let one = std::slice::from_ref(&encrypt);
    for (stages, key) in
        [(&[][..], key(1)), (&[StageConfig::Meter(Metering)], key(1)), (one, key(2))]
    {
        let error = next.rebuilt(stages, Some(&key), 0).err();
        assert_eq!(error, Some(ChainError::OtherEncryption));
    }
    assert_eq!(next.rebuilt(one, None, 0).err(), Some(ChainError::OtherEncryption));
    let plain = Chain::build(memory(MIB as u64), &[], Some(&key(1))).expect("a chain");
    let late = plain.rebuilt(std::slice::from_ref(&encrypt), Some(&key(1)), 0).err();
    assert_eq!(late, Some(ChainError::OtherEncryption));
    let twice = Chain::build(memory(MIB as u64), &[encrypt.clone(), encrypt], Some(&key(1))).err();
    assert_eq!(twice, Some(ChainError::EncryptedTwice { stages: 2 }));
}
