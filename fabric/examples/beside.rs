//! The cost of processes that sleep for a process that polls on the same host: a process that falls
//! asleep has the kernel interrupt all cores on which members run (docs/decisions/036-sleep.md).
//!
//! ```text
//! cargo run --release -p fabric --example beside
//! ```
//!
//! A member polls on one core, and another one falls asleep on another core, so many times a
//! second, and wakes by itself. The first table says how long a look at an empty ring takes at each
//! rate. The second one says how long a short message takes on one core: between members, for which
//! the sleepers make the fences, and between endpoints that make a fence for each cell, as in VMs
//! and where membarrier(2) is refused.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use fabric::registration::DomainKey;
use fabric::{
    Class, Domain, Doze, Endpoint, EndpointOptions, MemoryPiece, Message, Receive, RegionOptions,
    RequestContext,
};
use fabric_node::SlotTable;
use fabric_node::registration::{DomainSettings, RegistrationServer};
use rustix::thread::{CpuSet, sched_setaffinity};

const KEY: &str = "0123456789abcdef";
const RATES: [u64; 4] = [0, 1000, 10_000, 100_000];
const TIME: Duration = Duration::from_millis(300);
const ROUNDS: usize = 5;
/// Looks between two of the clock.
const LOOKS: u32 = 1000;
const MESSAGES: u32 = 200_000;

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).expect("a core of this machine");
}

fn member(socket: &Path) -> (Domain, Endpoint) {
    let domain = Domain::join(socket, "blue", KEY).expect("the node is there");
    let endpoint = domain.endpoint(EndpointOptions::default()).expect("room");
    (domain, endpoint)
}

/// Falls asleep so many times a second, until it is told to end: how often it did.
fn doze(endpoint: &mut Endpoint, rate: u64, end: &AtomicBool) -> u64 {
    let (begun, mut count) = (Instant::now(), 0);
    while !end.load(Relaxed) {
        let due = begun.elapsed().as_nanos() as u64 * rate / 1_000_000_000;
        if count < due {
            assert_eq!(endpoint.doze(), Doze::Sleep);
            count += 1;
        }
    }
    count
}

/// Nanoseconds that a look takes.
fn poll(endpoint: &mut Endpoint) -> f64 {
    let (begun, mut looks) = (Instant::now(), 0_u64);
    while begun.elapsed() < TIME {
        (0..LOOKS).for_each(|_| endpoint.progress());
        looks += u64::from(LOOKS);
    }
    begun.elapsed().as_nanos() as f64 / looks as f64
}

/// Nanoseconds that a message of a byte takes: asked for, sent, received and told to both.
fn exchange(sender: &mut Endpoint, receiver: &mut Endpoint) -> f64 {
    let mut memory = [[0_u8]; 2];
    let [from, into] =
        memory.each_mut().map(|bytes| [MemoryPiece { start: bytes.as_mut_ptr(), bytes: 1 }]);
    let (to, source, class) = (receiver.address(), Some(sender.address()), Class::Tagged);
    let context = RequestContext(1);
    let begun = Instant::now();
    for tag in 0..u64::from(MESSAGES) {
        let receive = Receive { class, source, tag, ignore: 0, context, multi_min_bytes: None };
        let message = Message { to, class, tag, data: None, context: Some(context), inject: false };
        // SAFETY: the memory outlives all that is asked for here, which ends below.
        unsafe {
            receiver.receive(&receive, &into).expect("a sound receive");
            sender.send(&message, &from).expect("room");
        }
        for endpoint in [&mut *receiver, &mut *sender] {
            assert!(endpoint.completion().is_some_and(|it| it.failure.is_none()));
        }
    }
    begun.elapsed().as_nanos() as f64 / f64::from(MESSAGES)
}

fn main() {
    let home = std::env::temp_dir().join(format!("vrio-beside-{}", std::process::id()));
    std::fs::create_dir(&home).expect("a folder");
    let socket = home.join("fabric");
    let server = RegistrationServer::open(&socket, 1).expect("nothing is there");
    let (name, key) = ("blue".to_owned(), DomainKey::new(KEY).expect("long enough"));
    server.add(DomainSettings { name, key, endpoints_max: 4, gateways: 0 }).expect("memory");
    let (_polls, mut polls) = member(&socket);
    let (_sleeps, mut sleeps) = member(&socket);
    sleeps.open_doorbell().expect("a doorbell");
    pin(0);
    println!("{:>10} {:>10} {:>14}", "asked/s", "sleeps/s", "ns for a look");
    for round in 0..ROUNDS * RATES.len() {
        let rate = RATES[round % RATES.len()];
        let (end, both) = (AtomicBool::new(false), Barrier::new(2));
        let (count, look) = std::thread::scope(|scope| {
            let sleeps = scope.spawn(|| {
                pin(1);
                both.wait();
                doze(&mut sleeps, rate, &end)
            });
            both.wait();
            let look = poll(&mut polls);
            end.store(true, Relaxed);
            (sleeps.join().expect("it ends"), look)
        });
        let per_s = count as f64 / TIME.as_secs_f64();
        println!("{rate:>10} {per_s:>10.0} {look:>14.3}");
    }
    let (table, _fd) = SlotTable::create(&RegionOptions::default()).expect("memory");
    let [mut from, mut to] = [(); 2].map(|()| {
        let (slot, incarnation) = table.take_slot(std::process::id()).expect("a slot");
        let region = Arc::clone(table.region());
        Endpoint::new(region, slot, incarnation, 1, &EndpointOptions::default()).expect("a slot")
    });
    println!("{:>25} {:>14}", "ns by a fence for each", "by sleepers'");
    for _ in 0..ROUNDS {
        let by_own = exchange(&mut from, &mut to);
        println!("{by_own:>25.1} {:>14.1}", exchange(&mut polls, &mut sleeps));
    }
    drop(server);
    std::fs::remove_dir_all(&home).expect("ours");
}
