//! Streams from pool to pool, with kills in between, against the content of the source.

use random::Random;
use store::stream::{StreamError, StreamHeader, StreamTally};
use store::{PoolError, PoolVolume};

use super::*;

const VOLUME_BYTES: u64 = 20 << 20;

/// The content of a snapshot.
fn content(pool: &Arc<StorePool>, id: VolumeId) -> Vec<u8> {
    let volume = volume_with(pool, id, Durability::Flush, true).expect("it is there");
    let mut bench = ChannelBench::new(&volume, 4);
    let size = volume.info().size_bytes;
    let step = 1 << 20;
    let read = (0..size).step_by(step).map(|at| {
        let length = (size - at).min(step as u64) as usize;
        bench.read(at, length).expect("it is read")
    });
    let bytes = read.collect::<Vec<_>>().concat();
    bench.abandon();
    bytes
}

fn find(pool: &StorePool, id: VolumeId) -> PoolVolume {
    pool.volumes().into_iter().find(|it| it.id == id).expect("it is listed")
}

fn named(pool: &StorePool, volume: &str, snapshot: &str) -> VolumeId {
    let of = pool.volume_named(volume).expect("it is there").id;
    let all = pool.volumes();
    let found = all.iter().find(|it| it.of == Some(of) && it.name == snapshot);
    found.expect("it is listed").id
}

/// Random writes and zeroes.
fn change_some(volume: &StoreVolume, random: &mut Random, count: u64) {
    let mut bench = ChannelBench::new(volume, 4);
    let blocks = volume.info().size_bytes / BLOCK_BYTES as u64;
    for _ in 0..count {
        let first = random.below(blocks);
        let length = (1 + random.below(200)).min(blocks - first) * BLOCK_BYTES as u64;
        let offset = first * BLOCK_BYTES as u64;
        let status = match random.below(4) {
            0 => bench.zero(Op::Discard, false, offset, length),
            _ => bench.write(offset, &vec![random.between(1, 255) as u8; length as usize]),
        };
        assert_eq!(status, Status::Done);
    }
    bench.abandon();
}

/// The header and the parts of a stream.
fn send(
    pool: &StorePool,
    base: Option<VolumeId>,
    to: VolumeId,
    start: u64,
) -> (StreamHeader, Vec<Vec<u8>>) {
    let base = base.map(|base| find(pool, base));
    let header = pool.stream_header(base.as_ref(), &find(pool, to), start).expect("a header");
    let (mut tally, mut parts) = (StreamTally::new(&header), Vec::new());
    while !tally.is_complete() {
        let base = base.as_ref().map(|base| base.id);
        let part = pool.stream_part(base, to, &header.id, tally.next_block()).expect("a part");
        tally.part(&part).expect("it is the next one");
        parts.push(part);
    }
    assert_eq!(tally.counts().data_blocks, header.expected_blocks);
    (header, parts)
}

#[test]
fn copies_are_as_their_originals_after_any_kill() {
    let Some(home) = Home::new("copies_are_as_their_originals_after_any_kill") else { return };
    let mut random = Random::new(31);
    let source = open(&home.create(&["a"], 128 << 20));
    let paths = home.create(&["b"], 128 << 20);
    let mut target = Some(open(&paths));
    let id = make_volume(&source, "v", VOLUME_BYTES);
    let (mut base, mut kills) = (None, 0);
    for round in 0..6 {
        let volume = volume(&source, id);
        change_some(&volume, &mut random, if round == 0 { 150 } else { 12 });
        let size = VOLUME_BYTES / BLOCK_BYTES as u64;
        let blocks = size - random.below(300);
        source.change(PoolChange::Resize { volume: id, blocks }).expect("another size");
        let name = format!("s{round}");
        let to = snapshot(&source, id, &name);
        let (header, parts) = send(&source, base, to, 0);
        assert!(round > 0 || parts.len() > 1, "a stream of several parts");
        let pool = target.as_ref().expect("open");
        pool.begin_receive("copy", &header).expect("it begins");
        for part in &parts {
            let pool = target.as_ref().expect("open");
            let state = pool.receive_part("copy", part).expect("it is received");
            assert!(!state.is_complete);
            if random.below(2) == 0 {
                // As after a kill: no checkpoint is written, and the log is read.
                drop(target.take());
                target = Some(open(&paths));
                kills += 1;
                let pool = target.as_ref().expect("open");
                let again = pool.begin_receive("copy", &header).expect("it goes on");
                assert_eq!(again, state, "an acknowledged part is kept");
                assert_eq!(pool.receive_part("copy", part), Ok(state), "and has no effect again");
            }
        }
        let pool = target.as_ref().expect("open");
        assert!(pool.end_receive("copy", &header).expect("it is complete").is_complete);
        assert!(pool.end_receive("copy", &header).expect("once more").is_complete);
        let copy = named(pool, "copy", &name);
        assert!(content(&source, to) == content(pool, copy), "round {round}");
        assert_eq!(pool.identity(&find(pool, copy)), header.id.origin);
        base = Some(to);
    }
    assert!(kills > 2);
    // A resumed stream begins where it is told to, and the copy of a copy has the same identity.
    let pool = target.as_ref().expect("open");
    let last = named(pool, "copy", "s5");
    let (header, parts) = send(pool, None, last, 0);
    source.begin_receive("back", &header).expect("it begins");
    let state = source.receive_part("back", &parts[0]).expect("it is received");
    let (rest, parts) = send(pool, None, last, state.token.next_block);
    source.begin_receive("back", &rest).expect("it goes on");
    for part in &parts {
        source.receive_part("back", part).expect("it is received");
    }
    source.end_receive("back", &header).expect("it is complete");
    assert!(content(&source, named(&source, "back", "s5")) == content(pool, last));
}

#[test]
fn wrong_streams_and_volumes_are_refused_by_name() {
    let Some(home) = Home::new("wrong_streams_and_volumes_are_refused_by_name") else { return };
    let mut random = Random::new(32);
    let source = open(&home.create(&["a"], 64 << 20));
    let target = open(&home.create(&["b"], 64 << 20));
    let id = make_volume(&source, "v", 1 << 20);
    let mut snapshots = Vec::new();
    for name in ["s0", "s1", "s2"] {
        change_some(&volume(&source, id), &mut random, 3);
        snapshots.push(snapshot(&source, id, name));
    }
    let receive = |(header, parts): &(StreamHeader, Vec<Vec<u8>>)| {
        target.begin_receive("copy", header)?;
        parts.iter().try_for_each(|part| target.receive_part("copy", part).map(|_| ()))?;
        target.end_receive("copy", header)
    };
    let whole = send(&source, None, snapshots[0], 0);
    let second = send(&source, Some(snapshots[0]), snapshots[1], 0);
    let third = send(&source, Some(snapshots[1]), snapshots[2], 0);
    let copy = || "copy".to_owned();
    assert_eq!(receive(&second), Err(ReceiveError::NoBase(copy())));
    let nothing = Err(ReceiveError::NotReceiving(copy()));
    assert_eq!(target.receive_part("copy", &whole.1[0]), nothing);
    receive(&whole).expect("the first");
    // A part that comes when all of its stream is there, and one after the stream was given up.
    let ended = Err(ReceiveError::Ended(copy()));
    assert_eq!(target.receive_part("copy", &whole.1[0]), ended);
    assert_eq!(receive(&third), Err(ReceiveError::NoBase(copy())));
    let other = send(&source, None, snapshots[1], 0);
    assert_eq!(receive(&other), Err(ReceiveError::Exists(copy())));

    // Half of a difference is given up, and the volume is as before. Nothing can be done with it
    // meanwhile.
    target.begin_receive("copy", &second.0).expect("it begins");
    let of = target.volume_named("copy").expect("it is there").id;
    let opened = volume_with(&target, of, Durability::Flush, false);
    assert!(opened.expect_err("it is closed").contains("a stream is being received"));
    let change = PoolChange::Snapshot { volumes: vec![of], name: "x".to_owned(), at_s: 0 };
    assert_eq!(target.change(change), Err(PoolError::BeingReceived(of)));
    let refused = receive(&third).expect_err("another stream");
    assert!(matches!(refused, ReceiveError::OtherStream { .. }), "{refused}");
    let foreign = target.receive_part("copy", &third.1[0]).expect_err("another stream's");
    assert!(matches!(foreign, ReceiveError::Stream(StreamError::Damaged(_))), "{foreign}");
    target.receive_part("copy", &second.1[0]).expect("it is received");
    assert_eq!(target.give_up_receive("copy"), Ok(true));
    assert_eq!(target.give_up_receive("copy"), Err(ReceiveError::Ended(copy())));
    assert_eq!(target.receive_part("copy", &second.1[0]), Err(ReceiveError::Ended(copy())));
    let before = content(&target, named(&target, "copy", "s0"));
    assert!(content(&target, of) == before, "the volume is as its snapshot");
    receive(&second).expect("the second");

    // A guest of the copy writes.
    let written = volume(&target, of);
    let mut bench = ChannelBench::new(&written, 1);
    assert_eq!(bench.write(0, &[1; BLOCK_BYTES]), Status::Done);
    bench.abandon();
    let changed = ReceiveError::Pool(PoolError::ChangedSinceBase(of));
    assert_eq!(receive(&third), Err(changed));
    let snapshot = named(&target, "copy", "s1");
    target.change(PoolChange::Rollback { volume: of, snapshot }).expect("back");
    receive(&third).expect("the third");
    let [first, last] = [(&source, snapshots[2]), (&target, named(&target, "copy", "s2"))];
    assert!(content(first.0, first.1) == content(last.0, last.1));

    target.begin_receive("new", &whole.0).expect("it begins");
    assert_eq!(target.give_up_receive("new"), Ok(false));
    assert_eq!(target.volume_named("new"), None);
}
