//! How fast two processes on two cores talk: one-way latency and bandwidth by length and by way.
//! `vrio bench` says how long a cache line takes from core to core and back.
//!
//! ```text
//! cargo run --release -p fabric --example pingpong             # all lengths
//! cargo run --release -p fabric --example pingpong -- 8 1024   # these
//! ```
//!
//! Medians of batches, so that a core that was taken away for a while does not count.

use std::sync::Arc;
use std::time::Instant;

use fabric::{
    Address, Class, Done, Endpoint, EndpointOptions, EndpointProcess, MemoryPiece, Message,
    Receive, RegionOptions, RequestContext, SendError,
};
use fabric_node::SlotTable;
use rustix::thread::{CpuSet, sched_setaffinity};

const HOST: u64 = 1;
const BATCHES: usize = 101;
/// Messages under way at once when bandwidth is measured, as in OSU's `osu_bw`.
const WINDOW: usize = 64;

/// How long a batch takes, about.
const BATCH_BYTES: usize = 4 << 20;

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).expect("a core of this machine");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One of the two.
struct Side {
    endpoint: Endpoint,
    other: Address,
    memory: Vec<u8>,
    /// Receives and sends that have ended, and that were begun.
    received: usize,
    sent: usize,
}

impl Side {
    fn part(&mut self, len: usize) -> MemoryPiece {
        MemoryPiece { start: self.memory.as_mut_ptr(), bytes: len }
    }

    fn ask(&mut self, len: usize) {
        let (class, source, context) = (Class::Tagged, Some(self.other), RequestContext(1));
        let (tag, ignore, multi_min_bytes) = (7, 0, None);
        let receive = Receive { class, source, tag, ignore, context, multi_min_bytes };
        let part = self.part(len);
        // SAFETY: the memory lives as long as the endpoint; that messages meet in it is all the
        // same here.
        unsafe { self.endpoint.receive(&receive, &[part]) }.expect("a sound receive");
    }

    fn send(&mut self, len: usize) {
        let (to, class, context) = (self.other, Class::Tagged, Some(RequestContext(2)));
        let message = Message { to, class, tag: 7, data: None, context, inject: false };
        let part = self.part(len);
        // SAFETY: as above.
        while let Err(error) = unsafe { self.endpoint.send(&message, &[part]) } {
            assert_eq!(error, SendError::Busy);
            self.poll();
        }
    }

    fn poll(&mut self) {
        if let Some(completion) = self.endpoint.completion() {
            assert_eq!(completion.failure, None);
            match completion.done {
                Done::Send => self.sent += 1,
                _ => self.received += 1,
            }
        }
    }

    fn until(&mut self, received: usize, sent: usize) {
        while self.received < received || self.sent < sent {
            self.poll();
        }
        (self.received, self.sent) = (0, 0);
    }

    /// Microseconds one way.
    fn ping(&mut self, len: usize, is_first: bool) -> f64 {
        let rounds = (BATCH_BYTES / 16 / len.max(2048)).clamp(4, 1000);
        let mut batch = |_| {
            let started = Instant::now();
            for _ in 0..rounds {
                self.ask(len);
                if is_first {
                    self.send(len);
                }
                self.until(1, usize::from(is_first));
                if !is_first {
                    self.send(len);
                    self.until(0, 1);
                }
            }
            started.elapsed().as_nanos() as f64 / rounds as f64 / 2000.0
        };
        median((0..BATCHES).map(&mut batch).collect())
    }

    /// MB/s, windows of messages from the first to the second.
    fn stream(&mut self, len: usize, is_first: bool) -> f64 {
        let windows = (BATCH_BYTES / WINDOW / len.max(512)).max(1);
        let mut batch = |_| {
            let started = Instant::now();
            for _ in 0..windows {
                if is_first {
                    self.ask(8);
                    (0..WINDOW).for_each(|_| self.send(len));
                    self.until(1, WINDOW);
                } else {
                    (0..WINDOW).for_each(|_| self.ask(len));
                    self.until(WINDOW, 0);
                    self.send(8);
                    self.until(0, 1);
                }
            }
            (windows * WINDOW * len) as f64 * 1e3 / started.elapsed().as_nanos() as f64
        };
        median((0..BATCHES / 4).map(&mut batch).collect())
    }
}

fn main() {
    println!("{:>9} {:>22} {:>12} {:>12}", "bytes", "way", "one way us", "MB/s");
    let usual = [8, 200, 256, 1024, 2048, 4096, 8192, 16_384, 65_536, 1 << 20, 4 << 20];
    let wanted = std::env::args().skip(1).map(|len| len.parse().expect("a number of bytes"));
    let wanted: Vec<usize> = wanted.collect();
    let lengths = if wanted.is_empty() { &usual[..] } else { &wanted };
    let way = |eager_bytes_max, single_copy_bytes_min| EndpointOptions {
        eager_bytes_max,
        single_copy_bytes_min,
        ..EndpointOptions::default()
    };
    let ways = [
        ("eager", way(usize::MAX, 0)),
        ("offer, one copy", way(0, 0)),
        ("offer, through slab", way(0, usize::MAX)),
    ];
    for &len in lengths {
        for (name, options) in &ways {
            let is_possible = len <= 16_384 || options.eager_bytes_max == 0;
            if is_possible && (len > 216 || options.eager_bytes_max > 0) {
                let (latency, bandwidth) = measure(len, options);
                println!("{len:>9} {name:>22} {latency:>12.3} {bandwidth:>12.0}");
            }
        }
    }
}

/// A fresh region and two processes in it.
fn measure(len: usize, options: &EndpointOptions) -> (f64, f64) {
    let (table, _fd) = SlotTable::create(&RegionOptions::default()).expect("memory");
    // SAFETY: this process has one thread by now.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "a process");
    let is_first = child != 0;
    pin(usize::from(!is_first));
    // Each keeps its own copy of the slot table from here on and takes both slots in the same
    // order, so both know both addresses. The numbers of the processes are the same, too.
    let pids = match is_first {
        true => [std::process::id(), child.unsigned_abs()],
        false => [std::os::unix::process::parent_id(), std::process::id()],
    };
    let slots = pids.map(|pid| table.take_slot(pid).expect("a slot"));
    let (slot, incarnation) = slots[usize::from(!is_first)];
    let (other, other_incarnation) = slots[usize::from(is_first)];
    let region = Arc::clone(table.region());
    let endpoint = Endpoint::new(region, slot, incarnation, HOST, options);
    let mut endpoint = endpoint.expect("an endpoint");
    endpoint.ask_processes(move |_, _| EndpointProcess::Is(pids[usize::from(is_first)]));
    let other = Address { host: HOST, incarnation: other_incarnation, slot: other };
    let mut side = Side { endpoint, other, memory: vec![1; len.max(8)], received: 0, sent: 0 };
    side.ping(len, is_first);
    let latency = side.ping(len, is_first);
    let bandwidth = side.stream(len, is_first);
    if !is_first {
        std::process::exit(0);
    }
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    (latency, bandwidth)
}
