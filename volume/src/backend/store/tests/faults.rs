//! Devices that fail, and pools that stop and go on.

use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

use store::block::BlockBuffer;
use store::{DeviceIo, DeviceOp};

use super::super::signs::InKernel;
use super::*;
use crate::backend::BackendVolume;

/// Has the ring's answers replaced by this error as long as it is not 0.
fn fault(pool: &StorePool) -> Arc<AtomicI32> {
    let error = Arc::new(AtomicI32::new(0));
    let seen = Arc::clone(&error);
    let mut drive = pool.inside().lock_drive();
    drive.ring().set_fault(move |completion| match seen.load(SeqCst) {
        0 => completion.result,
        error => -error,
    });
    error
}

#[test]
fn an_interrupted_request_of_a_device_is_begun_again() {
    let Some(home) = Home::new("an_interrupted_request_of_a_device") else { return };
    let pool = open(&home.create(&["a"], POOL_BYTES));
    let volume = volume(&pool, make_volume(&pool, "v", 1 << 20));
    let mut bench = ChannelBench::new(&volume, 8);
    for errno in [libc::EINTR, libc::EAGAIN, libc::ECANCELED] {
        let mut left = 3;
        pool.inside().lock_drive().ring().set_fault(move |completion| {
            left -= 1;
            if left >= 0 { -errno } else { completion.result }
        });
        assert_eq!(bench.write(0, &[errno as u8; 8192]), Status::Done);
        assert_eq!(bench.read(0, 8192), Ok(vec![errno as u8; 8192]));
    }
    assert!(!volume.has_failed());
}

/// The kernel ends a request in the thread that began it, so its sidecore must know of it until the
/// end, also when another sidecore's round begins the request again.
#[test]
fn a_sidecore_knows_how_many_of_its_requests_the_kernel_has() {
    let Some(home) = Home::new("a_sidecore_knows_how_many") else { return };
    let pool = open(&home.create(&["a"], POOL_BYTES));
    let (first, second) = (Arc::new(InKernel::default()), Arc::new(InKernel::default()));
    let mut drive = pool.inside().lock_drive();
    // Once in the first sidecore's round, then in the second one's.
    let mut interrupted = false;
    drive.ring().set_fault(move |completion| match std::mem::replace(&mut interrupted, true) {
        false => -libc::EINTR,
        true => completion.result,
    });
    let (ring, files) = drive.ring_and_files().expect("it is open");
    let op = DeviceOp::Read { block: 0, buffer: BlockBuffer::new(1), blocks: 1 };
    ring.begin(files, DeviceIo { token: 7, device: 0, op }, Some(&first));
    assert!(first.has_some());
    let mut answered = Vec::new();
    while first.has_some() {
        ring.round(files, &mut answered, Some(&second));
    }
    assert!(second.has_some() && answered.is_empty(), "it was begun again, by the other sidecore");
    while answered.is_empty() {
        ring.round(files, &mut answered, Some(&first));
    }
    assert!(!first.has_some() && !second.has_some());
    assert_eq!((answered[0].token, answered[0].result), (7, Ok(())));
}

#[test]
fn a_device_that_fails_fails_the_pool_and_says_so() {
    let Some(home) = Home::new("a_device_that_fails_fails_the_pool") else { return };
    let paths = home.create(&["a"], POOL_BYTES);
    let pool = open(&paths);
    let id = make_volume(&pool, "v", 1 << 20);
    let failing = volume(&pool, id);
    let mut bench = ChannelBench::new(&failing, 8);
    assert_eq!(bench.write(0, &[1; 4096]), Status::Done);
    let error = fault(&pool);
    error.store(libc::EIO, SeqCst);
    assert_eq!(bench.write(0, &[2; 4096]), Status::Error);
    error.store(0, SeqCst);
    assert_eq!(bench.write(4096, &[2; 4096]), Status::Error, "it takes no changes any more");
    assert!(failing.has_failed() && failing.describe().contains("FAILED"));
    assert!(pool.status().failed.is_some());
    pool.stop().expect("nothing is under way");
    let refused = pool.go_on().expect_err("acknowledged writes may be lost");
    assert!(refused.to_string().contains("restart the node"), "{refused}");
    pool.close();
    drop((bench, failing, pool));
    let pool = open(&paths);
    let volume = volume(&pool, id);
    let read = ChannelBench::new(&volume, 8).read(0, 4096).expect("it is whole");
    assert!(read == vec![1; 4096] || read == vec![2; 4096]);
}

#[test]
fn a_pool_that_stops_keeps_its_requests_until_it_goes_on() {
    let Some(home) = Home::new("a_pool_that_stops_keeps_its_requests") else { return };
    let paths = home.create(&["a"], POOL_BYTES);
    let pool = open(&paths);
    let made = make_volume(&pool, "v", 1 << 20);
    let volume = volume(&pool, made);
    let mut bench = ChannelBench::new(&volume, 8);
    assert_eq!(bench.write(0, &[1; 4096]), Status::Done);
    let incarnation = volume.info().incarnation;
    for turn in 0..3_u8 {
        let buffer = contract::Buffer::filled(&[turn + 2; 4096], 0);
        let id = bench.submit(Op::Write, 8192, Some(&buffer));
        pool.stop().expect("it stops");
        assert!(!bench.channel.is_open());
        let later = bench.submit(Op::Flush, 0, None);
        (0..100).for_each(|_| bench.round());
        assert!(!bench.done.contains(&later), "there is no engine");
        // The devices are free for a successor meanwhile.
        let successor = open(&paths);
        let there = volume_with(&successor, made, Durability::Flush, true).expect("it is there");
        assert_eq!(there.info().incarnation, incarnation);
        drop(there);
        successor.close();
        pool.go_on().expect("it goes on");
        assert!(bench.channel.is_open());
        assert_eq!((bench.wait(id), bench.wait(later)), (Status::Done, Status::Done));
        assert_eq!(bench.read(8192, 4096), Ok(vec![turn + 2; 4096]));
    }
    let buffer = contract::Buffer::new(4096, 0);
    pool.close();
    let id = bench.submit(Op::Read, 0, Some(&buffer));
    assert_eq!(bench.wait(id), Status::Error, "it is closed for good");
}

#[test]
fn a_full_pool_holds_writes_back_and_goes_on_when_there_is_space() {
    let Some(home) = Home::new("a_full_pool_holds_writes_back") else { return };
    let pool = open(&home.create(&["a"], 16 << 20));
    let volume = volume(&pool, make_volume(&pool, "v", 64 << 20));
    let mut bench = ChannelBench::new(&volume, 8);
    let buffer = contract::Buffer::filled(&vec![7; 256 << 10], 0);
    let mut offset = 0;
    let held = loop {
        let id = bench.submit(Op::Write, offset, Some(&buffer));
        let mut rounds = 0;
        let until = std::time::Instant::now() + Duration::from_millis(1500);
        while !bench.done.contains(&id) && (rounds < 1000 || std::time::Instant::now() < until) {
            bench.round();
            rounds += 1;
        }
        if !bench.done.contains(&id) {
            break id;
        }
        assert_eq!(bench.wait(id), Status::Done);
        offset += 256 << 10;
        assert!(offset < 16 << 20, "more than it has");
    };
    let status = pool.status();
    assert!(status.is_full && offset > 4 << 20, "{offset}: {status:?}");
    assert!(volume.describe().contains("FULL"), "{}", volume.describe());
    assert_eq!(bench.read(0, 4096), Ok(vec![7; 4096]), "reads go on");
    assert_eq!(bench.flush(), Status::Done);
    assert_eq!(bench.zero(Op::Discard, false, 0, 4 << 20), Status::Done);
    assert_eq!(bench.wait(held), Status::Done);
    assert_eq!(bench.read(offset, 256 << 10), Ok(vec![7; 256 << 10]));
}
