//! Sidecores as threads: posting, waking, sleeping, stopping.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sidecore::{
    CallError, Idle, Local, MAIL_MAX, MailboxFull, Poll, Progress, RoundStage, Services, Sidecore,
    SidecoreConfig, Wake, Waker, mailbox, now_ns, spawn,
};

/// Long enough for a loaded machine: only ever waited for in full when a wake-up was lost.
const PATIENCE: Duration = Duration::from_secs(120);

fn start(idle: Idle) -> Sidecore {
    spawn(SidecoreConfig { idle, ..SidecoreConfig::new(0) }).expect("a thread")
}

/// Appends its name to a list at each poll; has no work.
struct Recorder {
    name: &'static str,
    log: Rc<RefCell<Vec<&'static str>>>,
}

impl Poll for Recorder {
    fn poll(&mut self, _now_ns: u64) -> Progress {
        self.log.borrow_mut().push(self.name);
        Progress::Idle
    }
}

#[test]
fn stages_poll_in_the_order_of_a_request() {
    let mut local = Local::detached(3, Services::new());
    let log = Rc::new(RefCell::new(Vec::new()));
    let mut add = |stage, name| {
        local.add(stage, Box::new(Recorder { name, log: Rc::clone(&log) }));
    };
    add(RoundStage::Transmit, "transmit");
    add(RoundStage::Serve, "serve 1");
    add(RoundStage::Receive, "receive");
    add(RoundStage::Submit, "submit");
    add(RoundStage::Serve, "serve 2");
    assert!(!local.round(17).is_busy());
    assert_eq!(log.take(), ["receive", "serve 1", "serve 2", "submit", "transmit"]);
    assert_eq!((local.index(), local.now_ns()), (3, 17));
}

#[test]
fn a_removed_poller_comes_back_and_its_id_is_not_used_again() {
    let mut local = Local::detached(0, Services::new());
    let log = Rc::new(RefCell::new(Vec::new()));
    let recorder = |name| Box::new(Recorder { name, log: Rc::clone(&log) });
    let first = local.add(RoundStage::Serve, recorder("first"));
    let second = local.add(RoundStage::Serve, recorder("second"));
    assert!(local.remove(first).is_some() && local.remove(first).is_none());
    assert_ne!(local.add(RoundStage::Serve, recorder("third")), first);
    let _ = local.round(0);
    assert_eq!(log.take(), ["second", "third"]);
    assert!(local.remove(second).is_some());
}

/// Replaces itself by a recorder when it is polled.
struct Chrysalis {
    later: sidecore::Later,
    own_id: Rc<RefCell<Option<sidecore::PollerId>>>,
    log: Rc<RefCell<Vec<&'static str>>>,
}

impl Poll for Chrysalis {
    fn poll(&mut self, _now_ns: u64) -> Progress {
        self.log.borrow_mut().push("chrysalis");
        let own_id = self.own_id.borrow().expect("told after it was added");
        let log = Rc::clone(&self.log);
        self.later.run(move |local| {
            assert!(local.remove(own_id).is_some());
            local.add(RoundStage::Serve, Box::new(Recorder { name: "butterfly", log }));
        });
        Progress::Idle
    }
}

#[test]
fn a_poller_removes_itself_and_adds_another_from_within_a_round() {
    let mut local = Local::detached(0, Services::new());
    let log = Rc::new(RefCell::new(Vec::new()));
    let own_id = Rc::new(RefCell::new(None));
    let (later, id_cell) = (local.later(), Rc::clone(&own_id));
    let chrysalis = Chrysalis { later, own_id: id_cell, log: Rc::clone(&log) };
    *own_id.borrow_mut() = Some(local.add(RoundStage::Serve, Box::new(chrysalis)));
    assert!(local.round(0).is_busy(), "a change is work");
    assert!(!local.round(1).is_busy());
    assert_eq!(log.take(), ["chrysalis", "butterfly"]);
}

#[test]
fn closures_run_on_the_thread_in_order_and_calls_answer() {
    for idle in [Idle::Spin, Idle::Adaptive, Idle::Sleep] {
        let core =
            spawn(SidecoreConfig { name: "here".into(), idle, ..SidecoreConfig::new(5) }).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        for number in 0..100 {
            let seen = Arc::clone(&seen);
            core.post(move |_| seen.lock().unwrap().push(number)).unwrap();
        }
        let (index, name) = core
            .call(|local| (local.index(), std::thread::current().name().map(str::to_owned)))
            .unwrap();
        assert_eq!((index, name.as_deref()), (5, Some("here")));
        assert_eq!(*seen.lock().unwrap(), (0..100).collect::<Vec<_>>());
        assert_eq!(core.counters().mails.get(), 101);
    }
}

#[test]
fn a_full_mailbox_refuses_and_loses_nothing_that_it_took() {
    let core = start(Idle::Adaptive);
    let (open, gate) = mpsc::channel::<()>();
    let (entered_in, entered) = mpsc::channel();
    core.post(move |_| {
        entered_in.send(()).unwrap();
        let _ = gate.recv();
    })
    .unwrap();
    entered.recv_timeout(PATIENCE).expect("the closure runs");
    let ran = Arc::new(AtomicU64::new(0));
    for _ in 0..MAIL_MAX {
        let ran = Arc::clone(&ran);
        core.post(move |_| _ = ran.fetch_add(1, Ordering::Relaxed)).expect("there is room");
    }
    assert_eq!(core.post(|_| unreachable!()), Err(MailboxFull));
    drop(open);
    core.call(|_| ()).unwrap();
    assert_eq!(ran.load(Ordering::Relaxed), MAIL_MAX as u64);
}

#[test]
fn stop_drops_pollers_on_their_thread_and_calls_then_say_so() {
    struct DropsAt(mpsc::Sender<std::thread::ThreadId>);
    impl Poll for DropsAt {
        fn poll(&mut self, _now_ns: u64) -> Progress {
            Progress::Idle
        }
    }
    impl Drop for DropsAt {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }
    let core = start(Idle::Sleep);
    let (dropped_in, dropped) = mpsc::channel();
    let thread = core
        .call(move |local| {
            local.add(RoundStage::Serve, Box::new(DropsAt(dropped_in)));
            std::thread::current().id()
        })
        .unwrap();
    core.stop();
    assert_eq!(dropped.try_recv(), Ok(thread));
    assert_eq!(core.call(|_| ()), Err(CallError::Stopped));
    assert_eq!(core.post(|_| unreachable!()), Ok(()));
    core.stop();
}

#[test]
fn a_sidecore_stops_itself_and_when_its_last_handle_goes() {
    let core = start(Idle::Adaptive);
    let itself = core.clone();
    core.post(move |_| itself.stop()).unwrap();
    let (alive_in, alive) = mpsc::channel::<()>();
    let other = start(Idle::Sleep);
    other.call(move |local| local.services().insert(Rc::new(RefCell::new(alive_in)))).unwrap();
    drop(other);
    let gone = alive.recv_timeout(PATIENCE);
    assert_eq!(gone, Err(mpsc::RecvTimeoutError::Disconnected));
    core.stop();
}

/// Reads an eventfd; counts how often it was armed and disarmed.
struct Doorbell {
    fd: OwnedFd,
    heard: mpsc::Sender<u64>,
    armed: Arc<AtomicBool>,
}

impl Poll for Doorbell {
    fn poll(&mut self, _now_ns: u64) -> Progress {
        assert!(!self.armed.load(Ordering::Relaxed), "polled while armed");
        let mut value = [0; 8];
        if rustix::io::read(&self.fd, &mut value).is_err() {
            return Progress::Idle;
        }
        self.heard.send(u64::from_ne_bytes(value)).unwrap();
        Progress::Busy
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        assert!(!self.armed.swap(true, Ordering::Relaxed), "armed twice");
        wake.on_readable(self.fd.as_fd());
        Progress::Idle
    }

    fn disarm(&mut self) {
        assert!(self.armed.swap(false, Ordering::Relaxed), "disarmed twice");
    }
}

#[test]
fn a_descriptor_wakes_a_sleeping_sidecore() {
    use rustix::event::{EventfdFlags, eventfd};
    for idle in [Idle::Sleep, Idle::Adaptive] {
        let core = start(idle);
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let fd = bell.try_clone().unwrap();
        let (heard_in, heard) = mpsc::channel();
        let armed = Arc::new(AtomicBool::new(false));
        let doorbell_armed = Arc::clone(&armed);
        core.call(move |local| {
            let doorbell = Doorbell { fd, heard: heard_in, armed: doorbell_armed };
            local.add(RoundStage::Serve, Box::new(doorbell));
        })
        .unwrap();
        for _ in 0..20 {
            while !armed.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            rustix::io::write(&bell, &3u64.to_ne_bytes()).unwrap();
            assert_eq!(heard.recv_timeout(PATIENCE), Ok(3));
        }
        core.stop();
        assert!(core.counters().wakeups.get() >= 10, "{:?}", core.counters());
    }
}

/// Finds work only in `arm`, as if it had arrived in the gap; the first thousand times.
struct Gap {
    found: Arc<AtomicU64>,
    armed: bool,
}

impl Poll for Gap {
    fn poll(&mut self, _now_ns: u64) -> Progress {
        assert!(!self.armed);
        Progress::Idle
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        assert!(!self.armed);
        self.armed = true;
        if self.found.load(Ordering::Relaxed) == 1_000 {
            return Progress::Idle;
        }
        self.found.fetch_add(1, Ordering::Relaxed);
        Progress::Busy
    }

    fn disarm(&mut self) {
        assert!(self.armed);
        self.armed = false;
    }
}

/// Counts how often it is armed, which is only when the poller before it found no work.
struct Behind(Arc<AtomicU64>);

impl Poll for Behind {
    fn poll(&mut self, _now_ns: u64) -> Progress {
        Progress::Idle
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        self.0.fetch_add(1, Ordering::Relaxed);
        Progress::Idle
    }
}

#[test]
fn work_found_while_arming_prevents_the_sleep() {
    let core = start(Idle::Sleep);
    let (found, behind) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (gap_found, behind_armed) = (Arc::clone(&found), Arc::clone(&behind));
    core.call(move |local| {
        local.add(RoundStage::Serve, Box::new(Gap { found: gap_found, armed: false }));
        local.add(RoundStage::Submit, Box::new(Behind(behind_armed)));
    })
    .unwrap();
    while behind.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    core.stop();
    let counters = core.counters();
    assert_eq!(found.load(Ordering::Relaxed), 1_000);
    assert!(counters.sleeps_refused.get() >= 1_000 && counters.sleeps.get() >= 1, "{counters:?}");
}

/// Has work at a deadline, a few times.
struct Alarm {
    next_ns: u64,
    left: u32,
    done: mpsc::Sender<bool>,
    early: bool,
}

impl Poll for Alarm {
    fn poll(&mut self, now_ns: u64) -> Progress {
        if self.left == 0 || now_ns < self.next_ns {
            return Progress::Idle;
        }
        self.early |= sidecore::now_ns() < self.next_ns;
        self.next_ns = now_ns + 300_000;
        self.left -= 1;
        if self.left == 0 {
            self.done.send(self.early).unwrap();
        }
        Progress::Busy
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if self.left > 0 {
            wake.at(self.next_ns);
        }
        Progress::Idle
    }
}

#[test]
fn a_deadline_ends_the_sleep() {
    let core = start(Idle::Sleep);
    let (done_in, done) = mpsc::channel();
    core.post(move |local| {
        let alarm = Alarm { next_ns: now_ns(), left: 50, done: done_in, early: false };
        local.add(RoundStage::Serve, Box::new(alarm));
    })
    .unwrap();
    assert_eq!(done.recv_timeout(PATIENCE), Ok(false));
    core.stop();
    assert!(core.counters().sleeps.get() >= 49, "{:?}", core.counters());
}

/// Returns each message to its sender, up to a count.
struct Player {
    from: mailbox::Receiver<u64>,
    to: mailbox::Sender<u64>,
    last: u64,
    done: mpsc::Sender<()>,
}

impl Poll for Player {
    fn poll(&mut self, _now_ns: u64) -> Progress {
        let Some(ball) = self.from.receive() else { return Progress::Idle };
        if ball + 1 >= self.last {
            self.done.send(()).unwrap();
        }
        if ball < self.last {
            self.to.send(ball + 1).expect("one ball at a time");
        }
        Progress::Busy
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        Progress::busy_if(!self.from.is_empty())
    }
}

/// Two sidecores play one ball: each of them sleeps whenever it does not have it, so that every
/// single wake-up counts.
fn play(pair: [&Sidecore; 2], exchanges: u64) {
    let (mut serve, from_1) = mailbox::channel(4, pair[0].waker());
    let (to_1, from_0) = mailbox::channel(4, pair[1].waker());
    let (unused, _) = mailbox::channel(1, Waker::none());
    serve.send(0).unwrap();
    let to_0 = std::mem::replace(&mut serve, unused);
    let (done_in, done) = mpsc::channel();
    for (core, from, to) in [(pair[0], from_1, to_1), (pair[1], from_0, to_0)] {
        let done = done_in.clone();
        let add = move |local: &mut Local| {
            local.add(RoundStage::Serve, Box::new(Player { from, to, last: exchanges, done }));
        };
        core.call(add).unwrap();
    }
    for _ in 0..2 {
        done.recv_timeout(PATIENCE).expect("no wake-up is lost");
    }
}

#[test]
fn no_wake_up_is_lost_between_two_sleeping_sidecores() {
    let (a, b) = (start(Idle::Sleep), start(Idle::Sleep));
    play([&a, &b], 30_000);
    for core in [a, b] {
        core.stop();
        assert!(core.counters().sleeps.get() > 1_000, "{:?}", core.counters());
    }
}

#[test]
fn no_wake_up_is_lost_between_adaptive_ones_on_one_core() {
    let config = |index| SidecoreConfig { core: Some(0), ..SidecoreConfig::new(index) };
    let (Ok(a), Ok(b)) = (spawn(config(0)), spawn(config(1))) else {
        println!("SKIP adaptive_on_one_core: core 0 is not ours to use");
        return;
    };
    play([&a, &b], 30_000);
}

#[test]
fn several_threads_wake_one_sleeping_sidecore() {
    struct Sum {
        from: Vec<mailbox::Receiver<u64>>,
        sum: u64,
        wanted: u64,
        done: mpsc::Sender<u64>,
    }
    impl Poll for Sum {
        fn poll(&mut self, _now_ns: u64) -> Progress {
            let before = self.sum;
            for from in &mut self.from {
                self.sum += from.receive().unwrap_or(0);
            }
            if self.sum == self.wanted && before != self.sum {
                self.done.send(self.sum).unwrap();
            }
            Progress::busy_if(before != self.sum)
        }

        fn arm(&mut self, _wake: &mut Wake) -> Progress {
            Progress::busy_if(self.from.iter().any(|from| !from.is_empty()))
        }
    }
    const SENDERS: u64 = 3;
    const MESSAGES: u64 = 20_000;
    let core = start(Idle::Sleep);
    let (senders, from): (Vec<_>, Vec<_>) =
        (0..SENDERS).map(|_| mailbox::channel(8, core.waker())).unzip();
    let (done_in, done) = mpsc::channel();
    core.call(move |local| {
        let sum = Sum { from, sum: 0, wanted: SENDERS * MESSAGES, done: done_in };
        local.add(RoundStage::Serve, Box::new(sum));
    })
    .unwrap();
    std::thread::scope(|scope| {
        for mut sender in senders {
            scope.spawn(move || {
                for _ in 0..MESSAGES {
                    while sender.send(1).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert_eq!(done.recv_timeout(PATIENCE), Ok(SENDERS * MESSAGES));
}

#[test]
fn a_core_that_is_not_there_is_named() {
    let error =
        spawn(SidecoreConfig { core: Some(1_000_000), ..SidecoreConfig::new(7) }).unwrap_err();
    assert!(error.to_string().contains("sidecore 7 on core 1000000"), "{error}");
    let error = spawn(SidecoreConfig { core: Some(1_000), ..SidecoreConfig::new(7) }).unwrap_err();
    assert!(error.to_string().contains("core 1000"), "{error}");
}

#[test]
fn a_panic_on_a_sidecore_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    const ASKED: &str = "VRIO_TEST_SIDECORE_PANIC";
    if std::env::var_os(ASKED).is_some() {
        let core = start(Idle::Sleep);
        core.post(|_| panic!("as asked")).unwrap();
        std::thread::sleep(PATIENCE);
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_panic_on_a_sidecore_ends_the_process", "--nocapture"])
        .env(ASKED, "1")
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(6), "SIGABRT: {output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("as asked"));
}
