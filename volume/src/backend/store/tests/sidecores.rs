//! Several sidecores at one pool: threads that poll, and threads that sleep.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use random::Random;
use sidecore::Wake;

use super::*;

/// Random requests of one channel on its own part of the volume, against a model.
fn stress(volume: &StoreVolume, seed: u64, base: u64, steps: u64) {
    const PART_BYTES: u64 = 512 << 10;
    let mut random = Random::new(seed);
    let mut bench = ChannelBench::new(volume, 8);
    let mut model = bench.read(base, PART_BYTES as usize).expect("there");
    for step in 0..steps {
        let sectors = PART_BYTES / 512;
        let first = random.below(sectors);
        let count = (1 + random.below(200)).min(sectors - first);
        let (at, len) = (first as usize * 512, count as usize * 512);
        let offset = base + at as u64;
        match random.below(8) {
            0 => assert_eq!(bench.flush(), Status::Done),
            1 => {
                assert_eq!(bench.zero(Op::Discard, false, offset, len as u64), Status::Done);
                model[at..at + len].fill(0);
            }
            2..5 => {
                bench.piece = [usize::MAX, 512, 1536][random.below(3) as usize];
                let bytes: Vec<_> = (0..len).map(|i| (i as u64 / 64 + step) as u8).collect();
                let status = if random.below(5) == 0 {
                    bench.write_durable(offset, &bytes)
                } else {
                    bench.write(offset, &bytes)
                };
                assert_eq!(status, Status::Done);
                model[at..at + len].copy_from_slice(&bytes);
            }
            _ => {
                let read = bench.read(offset, len).expect("inside");
                assert!(read == model[at..at + len], "seed {seed} step {step}");
            }
        }
    }
    assert_eq!(bench.read(base, PART_BYTES as usize), Ok(model));
    bench.abandon();
}

#[test]
fn channels_on_two_threads_and_snapshots_meanwhile() {
    let Some(home) = Home::new("channels_on_two_threads_and_snapshots") else { return };
    let paths = home.create(&["a", "b"], POOL_BYTES);
    let pool = open(&paths);
    let id = make_volume(&pool, "v", 2 << 20);
    let volume = volume(&pool, id);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..2_u64)
            .map(|at| {
                let volume = &volume;
                scope.spawn(move || stress(volume, at + 1, at << 20, 600))
            })
            .collect();
        let control = scope.spawn(|| {
            let mut kept: Vec<VolumeId> = Vec::new();
            for turn in 0.. {
                if ends.load(SeqCst) {
                    break;
                }
                kept.push(snapshot(&pool, id, &format!("s{turn}")));
                if kept.len() > 3 {
                    let volume = kept.remove(0);
                    pool.change(PoolChange::Remove { volume }).expect("it goes");
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let worked: Vec<_> = workers.into_iter().map(|it| it.join()).collect();
        ends.store(true, SeqCst);
        control.join().expect("no change failed");
        worked.into_iter().for_each(|it| it.expect("the model holds"));
    });
    let (before, status) = (pool.volumes(), pool.status());
    assert_eq!(status.failed, None);
    assert_eq!(status.counters.damaged_blocks, 0);
    let all = ChannelBench::new(&volume, 4).read(0, 1 << 20);
    pool.close();
    drop((volume, pool));
    let pool = open(&paths);
    let kept = |all: Vec<store::PoolVolume>| {
        let there = all.into_iter().filter(|it| it.kind != store::PoolVolumeKind::Removing);
        there.map(|it| (it.id, it.name)).collect::<Vec<_>>()
    };
    assert_eq!(kept(pool.volumes()), kept(before));
    let volume = super::volume(&pool, id);
    assert_eq!(ChannelBench::new(&volume, 4).read(0, 1 << 20), all);
}

/// A sidecore that sleeps whenever it may is woken for each answer, by the pool's thread.
#[test]
fn a_sidecore_that_sleeps_is_woken() {
    let Some(home) = Home::new("a_sidecore_that_sleeps_is_woken") else { return };
    let pool = open(&home.create(&["a"], POOL_BYTES));
    let volume = volume(&pool, make_volume(&pool, "v", 1 << 20));
    let mut bench = ChannelBench::new(&volume, 8);
    for turn in 0..50_u64 {
        let bytes = [turn as u8 + 1; 6144];
        let buffer = contract::Buffer::filled(&bytes, 0);
        let op = [Op::Write, Op::Read, Op::Flush][turn as usize % 3];
        let data = (op != Op::Flush).then_some(&buffer);
        let id = bench.submit(op, 1024, data);
        while !bench.done.contains(&id) {
            let (now_ns, ios) = (sidecore::now_ns(), &mut bench.ios);
            let progress = bench.channel.poll(ios, now_ns, &mut bench.done);
            let mut wake = Wake::new();
            if !progress.is_busy() && !bench.channel.arm(&mut wake).is_busy() {
                assert!(wake.fd_count() == 1 && wake.deadline_ns().is_none());
                // No sidecore polls: the thread has to bring the answer, and to ring.
                let until = std::time::Instant::now() + Duration::from_secs(20);
                let mut rang = false;
                while !rang && std::time::Instant::now() < until {
                    thread::sleep(Duration::from_micros(100));
                    rang = pool.inside().lock_drive().has_any_mail();
                }
                assert!(rang, "turn {turn}: the answer came");
            }
            bench.channel.disarm();
        }
        assert_eq!(bench.wait(id), Status::Done);
    }
}

/// A sidecore that is busy elsewhere, or was taken off its processor, does not hold up the pool.
#[test]
fn the_thread_does_the_work_of_a_sidecore_that_does_not_come_again() {
    let Some(home) = Home::new("the_thread_does_the_work") else { return };
    let pool = open(&home.create(&["a"], POOL_BYTES));
    let volume = volume(&pool, make_volume(&pool, "v", 1 << 20));
    for turn in 0..4_u64 {
        // From its deepest sleep, and from a short one.
        thread::sleep(Duration::from_millis(if turn % 2 == 0 { 150 } else { 1 }));
        let mut bench = ChannelBench::new(&volume, 8);
        let buffer = contract::Buffer::filled(&[turn as u8 + 1; 4096], 0);
        let id = bench.submit(Op::Write, 0, Some(&buffer));
        bench.round();
        let until = std::time::Instant::now() + Duration::from_secs(20);
        while bench.done.is_empty() && !pool.inside().lock_drive().has_any_mail() {
            assert!(std::time::Instant::now() < until, "turn {turn}");
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(bench.wait(id), Status::Done);
        bench.abandon();
    }
}

#[test]
fn a_channel_that_is_dropped_leaves_a_pool_that_goes_on() {
    let Some(home) = Home::new("a_channel_that_is_dropped_leaves") else { return };
    let pool = open(&home.create(&["a"], POOL_BYTES));
    let volume = volume(&pool, make_volume(&pool, "v", 1 << 20));
    for rounds in 0..20 {
        let leaves = || {
            let mut bench = ChannelBench::new(&volume, 8);
            let buffers: Vec<_> =
                (0..8).map(|at| contract::Buffer::filled(&vec![at; 65_536], 0)).collect();
            for (at, buffer) in buffers.iter().enumerate() {
                let op = [Op::Write, Op::Read, Op::Flush][at % 3];
                let data = (op != Op::Flush).then_some(buffer);
                bench.submit(op, at as u64 * 65_536, data);
            }
            (0..rounds).for_each(|_| bench.round());
        };
        // The kernel cancels requests of a thread that ends.
        thread::scope(|scope| scope.spawn(leaves).join().expect("it leaves"));
    }
    let mut bench = ChannelBench::new(&volume, 8);
    assert_eq!(bench.write(0, &[9; 4096]), Status::Done);
    assert_eq!(bench.read(0, 4096), Ok(vec![9; 4096]));
    drop(bench);
    pool.stop().expect("all of it has ended");
}
