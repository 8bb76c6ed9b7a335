//! A front end whose eventfds very many epolls watch, beside a disk on the same sidecore that is
//! written and read back throughout.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use node::Node;
use node::status::Counters;
use rustix::event::epoll;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::hostile::{self, Bystander, PATIENCE};
use super::raw::{MEMORY_BYTES, Raw, SET_VRING_CALL, Tell, is_taken, memory, region, words};
use crate::common::{Home, wait_for};

/// How many watchers: the kernel takes some 20 ms to tell all of them.
const EPOLLS: usize = 400;
const COPIES: usize = 500;

/// Watches the eventfd, as long as what is given is kept. A descriptor is watched once by an epoll,
/// so it takes copies of it.
#[must_use]
fn watch(eventfd: &OwnedFd) -> Vec<OwnedFd> {
    let limits = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limits.maximum, ..limits })
        .unwrap();
    let copies: Vec<_> = (0..COPIES).map(|_| eventfd.try_clone().unwrap()).collect();
    let watching = (0..EPOLLS).map(|_| {
        let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let events = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
        for copy in &copies {
            let added = epoll::add(&watcher, copy, epoll::EventData::new_u64(0), events);
            added.expect("fs.epoll.max_user_watches allows 200,000");
        }
        watcher
    });
    watching.collect::<Vec<_>>().into_iter().chain(copies).collect()
}

/// A front end that has started a ring, and its memory.
fn front_end(socket: &Path) -> (Raw, File) {
    let file = memory(MEMORY_BYTES);
    let raw = Raw::connect(socket);
    assert!(raw.tell_memory(Tell::Table, region(0, MEMORY_BYTES), file.as_fd()));
    raw.start();
    (raw, File::from(file))
}

/// The front end has been dropped for what its signals cost, and comes in vain for a while.
fn is_refused_for_a_while(node: &Node, home: &Home, socket: &str, counters: impl Fn() -> Counters) {
    wait_for(node, "the front end is dropped", |_| counters()["front_ends_too_costly"] == 1);
    assert!(!is_taken(&home.path(socket)), "it is refused at first");
    assert!(counters()["front_ends_turned_away"] >= 1);
    let until = Instant::now() + PATIENCE;
    while !is_taken(&home.path(socket)) {
        assert!(Instant::now() < until, "it is refused for ever");
    }
    front_end(&home.path(socket));
    assert_eq!(counters()["front_ends_too_costly"], 1);
}

fn disk(node: &Node, name: &str) -> Counters {
    let disks = node.status().disks;
    disks.into_iter().find(|disk| disk.name == name).expect("the disk").counters
}

/// A disk's front end of which one eventfd is watched is dropped and refused, and no other is.
fn is_dropped(idle: &str, watched: impl Fn(&Raw) -> &OwnedFd) {
    let home = Home::new();
    let node = hostile::node_that(&home, idle, "");
    let bystander = Bystander::new(&home);
    let (mut raw, file) = front_end(&home.path("hostile.sock"));
    raw.read(&file);
    let watchers = watch(watched(&raw));
    let until = Instant::now() + PATIENCE;
    while raw.try_read(&file) {
        assert!(Instant::now() < until, "it is never dropped");
    }
    bystander.goes_on();
    drop(watchers);
    is_refused_for_a_while(&node, &home, "hostile.sock", || disk(&node, "hostile"));
    assert_eq!(disk(&node, "honest")["front_ends_too_costly"], 0);
    bystander.end();
}

#[test]
fn a_front_end_whose_signals_cost_too_much_is_dropped_and_refused() {
    is_dropped("adaptive", |raw| &raw.call);
}

/// The counter of a kick is emptied after each sleep, which tells all watchers as well.
#[test]
fn a_front_end_whose_kicks_cost_too_much_is_dropped_too() {
    is_dropped("sleep", |raw| &raw.kick);
}

/// Each new call descriptor of a ring that runs is signalled once, without a frame.
#[test]
fn a_nics_front_end_whose_signals_cost_too_much_is_dropped_too() {
    let home = Home::new();
    let nic = "[[network]]\nname = \"blue\"\n[[nic]]\nsocket = \"nic.sock\"\nnetwork = \"blue\"\n\
               mac = \"52:54:00:00:00:01\"\n";
    let node = hostile::node_that(&home, "adaptive", nic);
    let bystander = Bystander::new(&home);
    let (raw, _file) = front_end(&home.path("nic.sock"));
    let watchers = watch(&raw.call);
    let until = Instant::now() + PATIENCE;
    while raw.tell(SET_VRING_CALL, &words(&[0]), &[raw.call.as_fd()]) {
        assert!(Instant::now() < until, "it is never dropped");
    }
    bystander.goes_on();
    drop(watchers);
    is_refused_for_a_while(&node, &home, "nic.sock", || node.status().nics[0].counters.clone());
    bystander.end();
}
