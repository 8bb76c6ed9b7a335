//! Guest memory that is truncated under a running queue, or never was there.

use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::ring::*;
use crate::chain::{Chain, gather};
use crate::dirty::{DirtyLog, Logging};
use crate::error::InflightError;
use crate::error::RingError;
use crate::inflight::InflightRegion;
use crate::mapping::Mapping;
use crate::queue::Queue;
use crate::ring::RingKind;

/// Set in the child process that must die.
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
    let lost = RingError::MemoryLost { part: "guest's memory", offset: LEN as u64 };
    assert_eq!(queue.take(&mut chain), Err(lost));
    ftruncate(&file, 0).unwrap();
    queue.put(head, 8);
    queue.publish();
    assert!(queue.take(&mut chain).unwrap_err().is_memory_lost());
    assert_eq!(take(&mut other_queue, &mut chain).index(), 0);
    assert_eq!(take(&mut other_queue, &mut chain).index(), 1);
}

/// A write whose buffer was cut off has stored zeroes: it must not look as if it were done.
#[test]
fn a_request_whose_memory_is_lost_gets_no_answer() {
    for packed in [false, true] {
        let file = memory_file(2 * LEN as u64);
        let ring = TestRing::in_file(4, &file);
        let mut ring = if packed { ring.into_packed() } else { ring };
        ring.chain(0, &[descriptor(BASE + LEN as u64, 8, 0, 0)]);
        ring.offer(0);
        let (mut queue, mut chain) = (ring.queue(), Chain::new());
        let head = take(&mut queue, &mut chain);
        ftruncate(&file, LEN as u64).unwrap();
        let mut bytes = [1; 8];
        // SAFETY: the chain is outstanding.
        assert_eq!(unsafe { gather(&chain.readable, 0, &mut bytes) }, 8);
        queue.put(head, 8);
        assert!(!queue.publish());
        assert_eq!(ring.reap(), None);
        assert!(queue.failed().unwrap().is_memory_lost());
        assert!(queue.take(&mut chain).unwrap_err().is_memory_lost());
    }
}

#[test]
fn memory_anew_is_not_lost() {
    let file = memory_file(2 * LEN as u64);
    let mut ring = TestRing::in_file(4, &file);
    let mut queue = ring.queue();
    ftruncate(&file, 0).unwrap();
    ring.describe(0, descriptor(DATA, 8, 0, 0));
    ftruncate(&file, 2 * LEN as u64).unwrap();
    assert!(queue.take(&mut Chain::new()).unwrap_err().is_memory_lost());
    drop((queue, ring));
    let mut ring = TestRing::in_file(4, &file);
    ring.describe(0, descriptor(DATA, 8, 0, 0));
    ring.offer(0);
    take(&mut ring.queue(), &mut Chain::new());
}

/// A sealed file of huge pages of 1 GiB, of which hardly any machine has a free one. None where the
/// processor has no such pages.
fn huge_file(test: &str) -> Option<std::os::fd::OwnedFd> {
    let pages = "/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages";
    if std::fs::read_to_string(pages).is_ok_and(|free| free.trim() == "0") {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let file = memfd_create("huge", flags | MemfdFlags::HUGE_1GB).unwrap();
        ftruncate(&file, 1 << 30).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        return Some(file);
    }
    println!("SKIP {test}: there are no huge pages of 1 GiB, or some are free");
    None
}

/// No seal says that there is a page when one is touched.
#[test]
fn sealed_memory_without_a_free_huge_page_is_lost() {
    let Some(file) = huge_file("sealed_memory_without_a_free_huge_page_is_lost") else { return };
    let mut ring = TestRing::in_file(4, &file);
    ring.offer(0);
    assert!(ring.queue().take(&mut Chain::new()).unwrap_err().is_memory_lost());
}

#[test]
fn an_inflight_region_without_a_free_huge_page_is_refused() {
    let test = "an_inflight_region_without_a_free_huge_page_is_refused";
    let Some(file) = huge_file(test) else { return };
    let region = InflightRegion::map(file.as_fd(), 0, 1 << 30, (RingKind::Split, 1, 8));
    assert_eq!(region.map(|_| ()), Err(InflightError::Lost));
}

/// A dirty log of which a page is not to be had stops the queue that marks there.
#[test]
fn a_dirty_log_without_a_free_huge_page_is_lost() {
    let Some(file) = huge_file("a_dirty_log_without_a_free_huge_page_is_lost") else { return };
    let mut ring = TestRing::new(4);
    let log = DirtyLog::map(file.as_fd(), 0, 1 << 20).unwrap();
    ring.offer(0);
    let mut config = ring.config(None);
    config.logging = Logging { log: Some(log), buffers: false, ring: Some(config.used) };
    let mut queue = Queue::new(config).unwrap();
    assert!(queue.take(&mut Chain::new()).unwrap_err().is_memory_lost());
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
