//! Guest memory that is truncated under a running queue.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::ftruncate;

use super::ring::*;
use crate::chain::{Chain, gather};
use crate::error::RingError;
use crate::mapping::Mapping;

/// Set in the child process that is to die.
const CHILD: &str = "VRIO_TEST_SIGBUS";

#[test]
fn truncated_memory_stops_its_own_queue_only() {
    let file = memory_file(2 * LEN as u64);
    let mut ring = TestRing::in_file(4, &file);
    let mut queue = ring.queue();
    let mut other = TestRing::new(4);
    let mut other_queue = other.queue();
    let mut chain = Chain::new();
    for ring in [&mut ring, &mut other] {
        ring.describe(0, descriptor(BASE + LEN as u64, 8, 0, 0));
        ring.offer(0);
        ring.describe(1, descriptor(DATA, 8, 0, 0));
        ring.offer(1);
    }
    let head = take(&mut queue, &mut chain);
    // First the buffer of the request goes, then the ring.
    ftruncate(&file, LEN as u64).unwrap();
    let mut bytes = [1; 8];
    // SAFETY: the chain is outstanding.
    assert_eq!(unsafe { gather(&chain.readable, 0, &mut bytes) }, 8);
    assert_eq!(bytes, [0; 8], "what is lost reads as zero");
    assert_eq!(queue.take(&mut chain), Err(RingError::MemoryLost));
    ftruncate(&file, 0).unwrap();
    queue.put(head, 8);
    queue.publish();
    assert_eq!(queue.take(&mut chain), Err(RingError::MemoryLost));
    assert_eq!(take(&mut other_queue, &mut chain).index(), 0);
    assert_eq!(take(&mut other_queue, &mut chain).index(), 1);
}

#[test]
fn memory_anew_is_not_lost() {
    let file = memory_file(2 * LEN as u64);
    let mut ring = TestRing::in_file(4, &file);
    let mut queue = ring.queue();
    ftruncate(&file, 0).unwrap();
    ring.describe(0, descriptor(DATA, 8, 0, 0));
    ftruncate(&file, 2 * LEN as u64).unwrap();
    assert_eq!(queue.take(&mut Chain::new()), Err(RingError::MemoryLost));
    drop((queue, ring));
    let mut ring = TestRing::in_file(4, &file);
    ring.describe(0, descriptor(DATA, 8, 0, 0));
    ring.offer(0);
    take(&mut ring.queue(), &mut Chain::new());
}

/// Reads a byte of a file that has none.
fn die() {
    let file = memory_file(4096);
    // Watched, and with it the handler installed; but it is another mapping that fails.
    let watched = Arc::new(Mapping::of_file(file.as_fd(), 0, 4096).unwrap());
    let flags = rustix::mm::MapFlags::SHARED;
    let protection = rustix::mm::ProtFlags::READ;
    // SAFETY: a new mapping; the access beyond the file's end is what this is about.
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, flags, &file, 0);
        let at = at.unwrap().cast::<u8>();
        ftruncate(&file, 0).unwrap();
        println!("{} {}", at.read_volatile(), watched.len());
    }
}

#[test]
fn any_other_bad_access_still_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        return die();
    }
    let name = "tests::shrink::any_other_bad_access_still_ends_the_process";
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program).args([name, "--exact"]).env(CHILD, "1").output().unwrap();
    assert_eq!(child.status.signal(), Some(7), "{child:?}");
}
