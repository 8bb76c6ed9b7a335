//! Tests of a channel's bounds: its work in one round, and the memory that it keeps.

use sidecore::Wake;

use super::pool::IDLE_NS;
use super::tests::{AT_ONCE_MAX, MIB, key, memory, secret, submit_zeroes, text};
use super::*;
use crate::contract::held::HeldVolume;
use crate::contract::{self, Buffer, ChannelBench};
use crate::volume::{IO_BYTES_MAX, IoId, Op, Status};

/// So small that a few pages come to every limit.
const SMALL: Sizes = Sizes { pool_bytes: 16 << 10, zeroes_bytes: 1024, round_bytes: 2048 };

fn small(inner: Arc<dyn Volume>) -> EncryptVolume {
    EncryptVolume::new(inner, key(1)).with_sizes(SMALL)
}

/// A channel of that kind over a volume that answers when it is told to.
fn held(depth: u16) -> (HeldVolume, EncryptVolume, ChannelBench) {
    let held = HeldVolume::new(64 << 20);
    let volume = small(Arc::new(held.clone()));
    let bench = ChannelBench::new(&volume, depth);
    (held, volume, bench)
}

fn may_sleep(bench: &mut ChannelBench) -> bool {
    let progress = bench.channel.arm(&mut Wake::new());
    bench.channel.disarm();
    !progress.is_busy()
}

#[test]
fn a_small_one_keeps_the_contract() {
    // The longest request of that suite is as long as the longest that there is.
    let sizes = Sizes { pool_bytes: IO_BYTES_MAX, ..SMALL };
    contract::check_all(&EncryptVolume::new(memory(MIB as u64), key(1)).with_sizes(sizes));
}

/// All of a deep queue completes at once; the sidecore has others to serve.
#[test]
fn a_round_deciphers_a_bounded_part_of_what_has_landed_and_the_rest_later() {
    const READS: usize = 20;
    for (sizes, len) in [(SMALL, 4096), (Sizes::STANDARD, MIB)] {
        let inner = memory((READS * len) as u64);
        let volume = EncryptVolume::new(inner.clone(), key(1)).with_sizes(sizes);
        let mut bench = ChannelBench::new(&volume, 64);
        let written = text(READS * len / 512);
        for (at, part) in written.chunks(len).enumerate() {
            assert_eq!(bench.write((at * len) as u64, part), Status::Done);
        }
        let buffers: Vec<_> = (0..READS).map(|_| Buffer::new(len, 0)).collect();
        let read = |(at, buffer)| bench.submit(Op::Read, (at * len) as u64, Some(buffer));
        let reads: Vec<_> = buffers.iter().enumerate().map(read).collect();
        let flush = bench.submit(Op::Flush, 0, None);
        let mut before = volume.counted();
        assert_eq!((before.deciphered_bytes, before.put_off), (0, 0));
        for round in 0.. {
            bench.round();
            if round == 0 {
                assert!(bench.done.contains(&flush), "work without cost does not wait");
            }
            // A disk polls several times in a round; there is no more in it for that.
            let now_ns = bench.now_ns - 5_000;
            let _ = bench.channel.poll(&mut bench.ios, now_ns, &mut bench.done);
            let counted = volume.counted();
            let deciphered = counted.deciphered_bytes - before.deciphered_bytes;
            assert!(deciphered < u64::from(sizes.round_bytes) + len as u64, "{deciphered}");
            assert_eq!(may_sleep(&mut bench), bench.done.len() > READS);
            if deciphered == 0 {
                break;
            }
            before = counted;
        }
        assert!(before.put_off >= READS as u64 - 2, "{before:?}");
        assert_eq!(before.deciphered_bytes, (READS * len) as u64, "each once");
        assert_eq!(bench.done.len(), READS + 1);
        for (at, (id, buffer)) in reads.into_iter().zip(&buffers).enumerate() {
            assert_eq!(bench.wait(id), Status::Done);
            assert!(buffer.bytes() == written[at * len..][..len], "read {at} of {len} bytes");
        }
    }
}

/// Reads that complete faster than they are deciphered leave writes their share.
#[test]
fn writes_that_have_waited_begin_beside_reads_without_end() {
    let (held, volume, mut bench) = held(64);
    let page = Buffer::new(4096, 0);
    let mut writes: Vec<_> =
        (0..4).map(|at| bench.submit(Op::Write, at << 12, Some(&page))).collect();
    writes.extend((4..8).map(|at| bench.submit(Op::Write, at << 12, Some(&page))));
    assert_eq!((held.asked(0), volume.counted().waited), (4, 4));
    let buffers: Vec<_> = (0..40).map(|_| Buffer::new(4096, 0)).collect();
    let reads: Vec<_> =
        buffers.iter().map(|buffer| bench.submit(Op::Read, 0, Some(buffer))).collect();
    while held.asked(0) > 0 {
        held.answer(Status::Done);
    }
    for _ in 0..5 {
        bench.round();
    }
    assert!(volume.counted().deciphered_bytes < 40 * 4096, "there is more of them");
    assert_eq!(held.asked(0), 4, "all writes that waited have begun");
    assert!(writes[..4].iter().all(|id| bench.done.contains(id)));
    (0..4).for_each(|_| drop(held.answer(Status::Done)));
    for id in writes.into_iter().chain(reads) {
        assert_eq!(bench.wait(id), Status::Done);
    }
}

#[test]
fn writes_that_wait_begin_a_bounded_part_at_a_time() {
    let (held, _, mut bench) = held(64);
    let (page, sector) = (Buffer::new(16 << 10, 0), Buffer::new(1024, 0));
    let first = bench.submit(Op::Write, 0, Some(&page));
    let rest: Vec<_> = (0..4).map(|at| bench.submit(Op::Write, at << 10, Some(&sector))).collect();
    held.answer(Status::Done);
    bench.round();
    assert_eq!(held.asked(0), 2, "a round's share of them");
    assert!(!may_sleep(&mut bench), "the others only wait for the next round");
    bench.round();
    assert_eq!(held.asked(0), 4);
    (0..4).for_each(|_| drop(held.answer(Status::Done)));
    for id in rest.into_iter().chain([first]) {
        assert_eq!(bench.wait(id), Status::Done);
    }
    assert!(may_sleep(&mut bench));
}

/// Two ranges whose pieces have been written, and reads before them: all landed at once.
fn landed(
    held: &HeldVolume,
    bench: &mut ChannelBench,
    buffers: &[Buffer],
) -> (Vec<IoId>, Vec<IoId>) {
    let reads = buffers.iter().map(|buffer| bench.submit(Op::Read, 0, Some(buffer))).collect();
    let ranges = (0..2).map(|at| submit_zeroes(bench, at << 20, 4096)).collect();
    assert_eq!(held.asked_of_all(), buffers.len() + AT_ONCE_MAX);
    while held.asked_of_all() > 0 {
        held.answer_oldest(Status::Done);
    }
    bench.round();
    (reads, ranges)
}

fn deciphered(cipher_text: &[u8]) -> Vec<u8> {
    let inner = memory(cipher_text.len() as u64);
    assert_eq!(ChannelBench::new(&*inner, 1).write(0, cipher_text), Status::Done);
    let read = ChannelBench::new(&EncryptVolume::new(inner, key(1)), 1).read(0, cipher_text.len());
    read.expect("memory does not fail")
}

#[test]
fn postponed_requests_are_recalled_where_possible() {
    let (held, _, mut bench) = held(16);
    let cipher_text = text(8);
    let buffers: Vec<_> = (0..3).map(|_| Buffer::filled(&cipher_text, 0)).collect();
    let (reads, ranges) = landed(&held, &mut bench, &buffers);
    assert_eq!((&bench.done[..], held.asked_of_all()), (&reads[..1], 0), "one read fills a round");
    let mut back = Vec::new();
    bench.channel.recall(&mut bench.ios, &mut back);
    assert_eq!(back, ranges, "their next pieces have not begun");
    for (at, id) in ranges.iter().enumerate() {
        let io = &bench.ios[*id];
        let whole = (Op::WriteZeroes, (at as u64) << 20, 4096);
        assert_eq!((io.op, io.offset_bytes, io.len_bytes), whole);
        assert!(io.segments.is_empty());
        bench.ios.free(*id);
    }
    // A request in the storage's hands cannot be recalled. It still ends, and is deciphered once.
    for (id, buffer) in reads.into_iter().zip(&buffers) {
        assert_eq!(bench.wait(id), Status::Done);
        assert!(buffer.bytes() == deciphered(&cipher_text));
    }
    // And the ranges' memory is there again: all of it.
    let whole = Buffer::new(SMALL.pool_bytes as usize, 0);
    bench.submit(Op::Write, 0, Some(&whole));
    assert_eq!(held.asked(0), 1);
}

#[test]
fn postponed_requests_are_not_touched_after_the_channel_has_ended() {
    let (held, volume, mut bench) = held(16);
    let cipher_text = text(8);
    let buffers: Vec<_> = (0..3).map(|_| Buffer::filled(&cipher_text, 0)).collect();
    landed(&held, &mut bench, &buffers);
    held.with(0, |state| state.in_kernel = true);
    assert!(!bench.channel.abandon(&mut bench.ios, bench.now_ns));
    // Until then it may go on.
    bench.round();
    assert_eq!(volume.counted().deciphered_bytes, 2 * 4096);
    held.with(0, |state| state.in_kernel = false);
    assert!(bench.channel.abandon(&mut bench.ios, bench.now_ns));
    for _ in 0..4 {
        bench.round();
    }
    assert_eq!((held.asked_of_all(), volume.counted().deciphered_bytes), (0, 2 * 4096));
    assert!(buffers[2].bytes() == cipher_text, "it was touched afterwards");
    assert!(may_sleep(&mut bench));
}

/// The pool of a disk that wrote and then rests goes back to the system, also while its sidecore
/// sleeps.
#[test]
fn memory_for_ciphertext_is_given_back_by_a_channel_that_rests() {
    let inner = memory(MIB as u64);
    let volume = EncryptVolume::new(inner.clone(), key(1));
    let mut bench = ChannelBench::new(&volume, 8);
    assert_eq!(volume.counted().memory_bytes, 0);
    for turn in 1..4 {
        assert_eq!(bench.write(0, &[turn; 8192]), Status::Done);
        bench.round();
        assert_eq!(volume.counted().memory_bytes, 8192);
        let mut wake = Wake::new();
        assert!(!bench.channel.arm(&mut wake).is_busy());
        let due_ns = wake.deadline_ns().expect("it has something to give back");
        assert!(due_ns > bench.now_ns && due_ns <= bench.now_ns + IDLE_NS);
        bench.now_ns = due_ns;
        bench.round();
        assert_eq!(volume.counted().memory_bytes, 0);
        wake.clear();
        assert!(!bench.channel.arm(&mut wake).is_busy() && wake.deadline_ns().is_none());
        // It works on with memory that is new.
        assert_eq!(bench.read(0, 8192), Ok(vec![turn; 8192]));
    }
    assert_eq!(bench.write(0, &[9; 512]), Status::Done);
    let book = xts::tests::by_the_book(&secret(1), 0, &[9; 512]);
    assert_eq!(ChannelBench::new(&*inner, 1).read(0, 512), Ok(book));
    bench.round();
    assert!(volume.counted().memory_bytes > 0);
    drop(bench);
    let counted = volume.counted();
    assert_eq!((counted.memory_bytes, counted.enciphered_bytes), (0, 3 * 8192 + 512));
}

#[test]
fn a_write_that_never_fits_is_refused() {
    let (held, _, mut bench) = held(4);
    let longer = vec![1; SMALL.pool_bytes as usize + 512];
    assert_eq!(bench.write(0, &longer), Status::Invalid);
    assert_eq!(held.asked(0), 0);
}
