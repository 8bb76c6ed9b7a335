//! Sidecores that share a core with each other: none starves, and an idle one costs about nothing.
//!
//! The tests compare the processor time of threads that run side by side, never wall time.

use std::sync::mpsc;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sidecore::{Idle, Local, Poll, Progress, RoundStage, Sidecore, SidecoreConfig, spawn};

/// Only ever waited for in full when a thread is starved.
const PATIENCE: Duration = Duration::from_secs(120);

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn cpu_ns(core: &Sidecore) -> u64 {
    core.call(|_| thread_cpu_ns()).unwrap()
}

/// Always has work, until it has used up its share of processor time.
struct Glutton {
    until_cpu_ns: u64,
    done: Option<mpsc::Sender<()>>,
}

impl Poll for Glutton {
    fn poll(&mut self, _now_ns: u64) -> Progress {
        let Some(done) = &self.done else { return Progress::Idle };
        if thread_cpu_ns() >= self.until_cpu_ns {
            // The receiver may be gone.
            let _ = done.send(());
            self.done = None;
        }
        Progress::Busy
    }
}

fn feed(core: &Sidecore, share_ns: u64) -> mpsc::Receiver<()> {
    let (done_in, done) = mpsc::channel();
    let add = move |local: &mut Local| {
        let until_cpu_ns = thread_cpu_ns() + share_ns;
        local.add(RoundStage::Serve, Box::new(Glutton { until_cpu_ns, done: Some(done_in) }));
    };
    core.call(add).unwrap();
    done
}

/// Two sidecores on one core, or `None` where that core is not ours to use.
fn pair(idle: Idle) -> Option<[Sidecore; 2]> {
    let start = |index| spawn(SidecoreConfig { core: Some(0), idle, ..SidecoreConfig::new(index) });
    match (start(0), start(1)) {
        (Ok(a), Ok(b)) => Some([a, b]),
        (a, b) => {
            println!("SKIP sharing_a_core: {:?} {:?}", a.err(), b.err());
            None
        }
    }
}

#[test]
fn two_that_always_have_work_share_their_core() {
    let Some([a, b]) = pair(Idle::Adaptive) else { return };
    let (done_a, done_b) = (feed(&a, 200_000_000), feed(&b, u64::MAX / 2));
    done_a.recv_timeout(PATIENCE).expect("a is not starved");
    let (used_a, used_b) = (cpu_ns(&a), cpu_ns(&b));
    assert!(used_b > used_a / 5, "{used_a} ns against {used_b} ns");
    drop(done_b);
}

#[test]
fn an_idle_adaptive_sidecore_leaves_the_core_to_a_busy_one() {
    let Some([busy, idle]) = pair(Idle::Adaptive) else { return };
    let idle_before_ns = cpu_ns(&idle);
    feed(&busy, 300_000_000).recv_timeout(PATIENCE).expect("it is not starved");
    let idle_ns = cpu_ns(&idle) - idle_before_ns;
    assert!(idle_ns < 15_000_000, "{idle_ns} ns of 300 ms without any work");
}

/// Gets a message now and then, which makes an adaptive sidecore spin for a while each time.
#[test]
fn one_with_little_work_does_not_take_the_core_from_a_busy_one() {
    let Some([busy, light]) = pair(Idle::Adaptive) else { return };
    let light_before_ns = cpu_ns(&light);
    let done = feed(&busy, 300_000_000);
    let mut messages = 0;
    while done.recv_timeout(Duration::from_millis(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
        light.call(|_| ()).unwrap();
        messages += 1;
        assert!(messages < 100_000, "the busy one is starved");
    }
    let light_ns = cpu_ns(&light) - light_before_ns;
    println!("{light_ns} ns beside 300 ms for {messages} messages; {:?}", light.counters());
    assert!(light_ns < 150_000_000, "{light_ns} ns beside 300 ms for {messages} messages");
}

#[test]
fn an_idle_sidecore_stops_making_rounds() {
    let idle = spawn(SidecoreConfig::new(0)).unwrap();
    let worker = spawn(SidecoreConfig { idle: Idle::Spin, ..SidecoreConfig::new(1) }).unwrap();
    while idle.counters().sleeps.get() == 0 {
        std::thread::yield_now();
    }
    let asleep = idle.counters().rounds.get();
    feed(&worker, 50_000_000).recv_timeout(PATIENCE).expect("it is not starved");
    assert_eq!(idle.counters().rounds.get(), asleep, "it sleeps until there is something");
}

/// Uses the core for a while at each poll, as a request that is slow in the kernel does.
struct SlowTurns(mpsc::SyncSender<()>);

impl Poll for SlowTurns {
    fn poll(&mut self, _now_ns: u64) -> Progress {
        let until_ns = thread_cpu_ns() + 1_000_000;
        while thread_cpu_ns() < until_ns {}
        // The test may have seen enough.
        let _ = self.0.try_send(());
        Progress::Busy
    }
}

#[test]
fn a_poller_with_slow_turns_leaves_its_neighbour_as_much_time() {
    let core = spawn(SidecoreConfig::new(0)).unwrap();
    let neighbour = feed(&core, u64::MAX / 2);
    let (turn_in, turns) = mpsc::sync_channel(1);
    core.call(|local: &mut Local| {
        local.add(RoundStage::Serve, Box::new(SlowTurns(turn_in)));
    })
    .unwrap();
    const SLOW_TURNS: u64 = 100;
    let before = core.counters().rounds.get();
    for _ in 0..SLOW_TURNS {
        turns.recv_timeout(PATIENCE).expect("it has its turns");
    }
    let rounds = core.counters().rounds.get() - before;
    let skipped = core.counters().turns_skipped.get();
    // A neighbour's turn takes some 200 ns, so that a millisecond has thousands of them; without a
    // limit it would have one. Much of that time may be other threads' on a busy machine.
    assert!(rounds > 20 * SLOW_TURNS, "{rounds} rounds, {skipped} turns skipped");
    assert!(skipped > 10 * SLOW_TURNS, "{rounds} rounds, {skipped} turns skipped");
    drop(neighbour);
}
