//! A consumer that falls asleep and a producer that wakes it, in two processes at once and on real
//! processors: the producer stores and loads without a fence, the consumer has the kernel make one.

use std::env;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{Ordering::SeqCst, compiler_fence, fence};
use std::time::{Duration, Instant};

use super::*;
use crate::endpoint::sleep::barrier_for_all;

/// Says to this test that it is the other process; the region is its standard input.
const OTHER: &str = "VRIO_TEST_BARRIER";
const NAME: &str = "endpoint::tests::barrier::a_sleeper_and_its_waker_do_not_miss_each_other";
/// Rounds at most.
const ROUNDS: u64 = 100_000;
/// For how long rounds with a barrier are made.
const TIME: Duration = Duration::from_secs(3);
/// How long it may take until a round without a barrier misses the other process: on a machine with
/// much else to do, both processes seldom run at the same moment.
const MISS_TIME: Duration = Duration::from_secs(60);
/// After so many looks, a minute or so, the other process will not come.
const LOOKS_MAX: u64 = 1 << 30;
/// The round that ends it.
const END: u64 = u64::MAX;

/// Slots whose words they use: of the one that sleeps, and two to meet by.
const SLEEPER: u16 = 1;
const MEET: u16 = 2;

/// Waits until a word is something else than this.
fn await_other(word: impl Fn() -> u64, than: u64) -> u64 {
    for look in 1..LOOKS_MAX {
        let now = word();
        if now != than {
            return now;
        }
        if look.is_multiple_of(256) {
            // The other one may want this very core.
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
    panic!("the other process is not there any more");
}

fn dawdle(random: &mut Random) {
    (0..random.below(128)).for_each(|_| std::hint::spin_loop());
}

/// Publishes in each round, and looks whether the other one sleeps.
fn publish(region: &Region) {
    assert_eq!(Barriers::ask_for(), Barriers::Sleepers, "membarrier(2) is refused here");
    let (sleeper, meet) = (region.ring(SLEEPER), region.ring(MEET));
    let (mut random, mut round) = (Random::new(1), 0);
    loop {
        round = await_other(|| meet.tail(), round);
        if round == END {
            return;
        }
        dawdle(&mut random);
        sleeper.set_stamp(0, round);
        compiler_fence(SeqCst);
        let asleep = sleeper.asleep();
        meet.set_stamp(0, asleep);
        meet.set_head(round);
    }
}

/// Falls asleep in each round by this barrier: in how many neither has seen the other one, until
/// that are so many.
fn fall_asleep(region: &Region, first: u64, most: u64, time: Duration, barrier: impl Fn()) -> u64 {
    let (sleeper, meet) = (region.ring(SLEEPER), region.ring(MEET));
    let (mut random, mut missed, begun) = (Random::new(2), 0, Instant::now());
    for round in first..first + ROUNDS {
        meet.set_tail(round);
        dawdle(&mut random);
        sleeper.set_asleep(round);
        barrier();
        let is_seen = sleeper.stamp(0) == round;
        await_other(|| meet.head(), round - 1);
        missed += u64::from(!is_seen && meet.stamp(0) != round);
        if missed >= most || begun.elapsed() > time {
            // Goes on from another round that both know.
            meet.set_head(first + ROUNDS - 1);
            break;
        }
    }
    missed
}

#[test]
fn a_sleeper_and_its_waker_do_not_miss_each_other() {
    if env::var_os(OTHER).is_some() {
        let region = Region::map(std::io::stdin().as_fd()).expect("the test's");
        return publish(&region);
    }
    let options = RegionOptions { slots: 4, cells: 16, ..RegionOptions::default() };
    let (region, fd) = Region::create(&options).expect("memory");
    let region = &region;
    let me = env::current_exe().expect("it is one");
    let mut other = Command::new(me);
    other.args(["--exact", NAME]).env(OTHER, "1").stdin(Stdio::from(fd)).stdout(Stdio::null());
    let mut other = other.spawn().expect("it can be run");
    // The test without the barrier must miss a wake-up: only then the test with it shows something.
    let missed = fall_asleep(region, 1, 1, MISS_TIME, || fence(SeqCst));
    let with = fall_asleep(region, 1 + ROUNDS, u64::MAX, TIME, || assert!(barrier_for_all()));
    region.ring(MEET).set_tail(END);
    assert!(other.wait().expect("it was begun").success());
    if missed == 0 {
        println!("SKIP {NAME}: nothing is missed here without a barrier (has it two processors?)");
    }
    assert_eq!(with, 0, "rounds in which no sleeper is woken");
}
