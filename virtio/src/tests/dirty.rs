//! The log of dirty pages: exactly what was written is in it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::ftruncate;

use super::ring::*;
use crate::chain::Chain;
use crate::dirty::{DirtyLog, LOG_BYTES_MAX, LOG_PAGE_BYTES, LogError, Logging};
use crate::mapping::MapError;
use crate::queue::Queue;

const PAGES_PER_BYTE: u64 = 8;

fn log(len: u64) -> (OwnedFd, DirtyLog) {
    let file = memory_file(len + 16);
    let log = DirtyLog::map(file.as_fd(), 8, len).unwrap();
    (file, log)
}

/// The bytes of the log, and what is around it in its file.
fn bytes(file: &OwnedFd, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len + 16];
    assert_eq!(rustix::io::pread(file, &mut bytes, 0), Ok(len + 16));
    assert!(bytes[..8].iter().chain(&bytes[len + 8..]).all(|byte| *byte == 0), "{bytes:?}");
    bytes[8..len + 8].to_vec()
}

#[test]
fn exactly_the_pages_that_are_touched_are_marked() {
    const LEN: usize = 5;
    let pages = LEN as u64 * PAGES_PER_BYTE;
    for first in 0..pages {
        for last in first..pages {
            for (inset, less) in [(0, 0), (4095, 4095), (1, 7)] {
                let (file, log) = log(LEN as u64);
                let addr = first * LOG_PAGE_BYTES + inset;
                let end = (last + 1) * LOG_PAGE_BYTES - less;
                assert!(log.mark(addr, end.saturating_sub(addr).max(1)));
                let bytes = bytes(&file, LEN);
                for page in 0..pages {
                    let is_marked = bytes[page as usize / 8] >> (page % 8) & 1 == 1;
                    assert_eq!(is_marked, (first..=last).contains(&page), "{first} {last}");
                }
            }
        }
    }
}

#[test]
fn nothing_is_marked_beyond_the_log() {
    let (file, log) = log(2);
    let end = 16 * LOG_PAGE_BYTES;
    for (addr, len) in [
        (end, 1),
        (end - 1, 2),
        (0, end + 1),
        (u64::MAX, 1),
        (u64::MAX, 2),
        (u64::MAX - 4095, u64::MAX),
        (1 << 63, 4096),
    ] {
        assert!(!log.mark(addr, len), "{len} at {addr:#x}");
    }
    assert_eq!(bytes(&file, 2), [0, 0]);
    assert!(log.mark(end - 1, 1));
    assert_eq!(bytes(&file, 2), [0, 0x80]);
}

#[test]
fn a_log_that_cannot_be_is_refused() {
    let file = memory_file(64);
    let map = |offset, len| DirtyLog::map(file.as_fd(), offset, len).map(|_| ());
    let len = LOG_BYTES_MAX + 1;
    assert_eq!(map(0, len), Err(LogError::TooLong { len }));
    for (offset, len) in [(0, 65), (64, 1), (u64::MAX, 2), (0, 0), (1 << 63, 8)] {
        assert!(matches!(map(offset, len), Err(LogError::Map(_))), "{len} at {offset}");
    }
    assert_eq!(map(63, 1), Ok(()));
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let refused = DirtyLog::map(pipe.as_fd(), 0, 1).unwrap_err();
    assert_eq!(refused, LogError::Map(MapError::NotAFile));
}

/// A log of all pages of the test's ring, and the file to look at it.
fn ring_log() -> (OwnedFd, DirtyLog) {
    let len = (BASE + 2 * LEN as u64) / LOG_PAGE_BYTES / PAGES_PER_BYTE;
    let file = memory_file(len);
    let log = DirtyLog::map(file.as_fd(), 0, len).unwrap();
    (file, log)
}

/// The offsets of marked pages from the beginning of the ring's memory.
fn marked(file: &OwnedFd) -> Vec<u64> {
    let mut bytes = vec![0; rustix::fs::fstat(file).unwrap().st_size as usize];
    rustix::io::pread(file, &mut bytes, 0).unwrap();
    let pages = (0..bytes.len() as u64 * PAGES_PER_BYTE)
        .filter(|page| bytes[(page / PAGES_PER_BYTE) as usize] >> (page % PAGES_PER_BYTE) & 1 == 1);
    pages.map(|page| page * LOG_PAGE_BYTES - BASE).collect()
}

/// A predecessor may have died between a store and its mark.
#[test]
fn a_ring_that_starts_with_a_log_is_in_it_as_a_whole() {
    // The used ring of 1024 is 8 KiB and six bytes long; a packed ring of as many 16 KiB, and its
    // events a few bytes.
    for (mut ring, pages) in [
        (TestRing::new(1024), vec![0x5000, 0x6000, 0x7000]),
        (TestRing::packed(1024), vec![0, 0x1000, 0x2000, 0x3000, 0x5000]),
    ] {
        ring.event_idx = true;
        let (file, log) = ring_log();
        let mut config = ring.config(None);
        config.logging = Logging { log: Some(log.clone()), buffers: true, ring: None };
        Queue::new(config).unwrap();
        assert!(marked(&file).is_empty(), "only if its ring is to be logged");
        let mut config = ring.config(None);
        config.logging = Logging { log: Some(log), buffers: false, ring: Some(config.used) };
        Queue::new(config).unwrap();
        assert_eq!(marked(&file), pages);
    }
}

#[test]
fn the_used_ring_is_logged_where_the_front_end_says() {
    let mut ring = TestRing::new(8);
    ring.describe(0, descriptor(DATA, 8, WRITE, 0));
    let mut queue = ring.queue();
    let (file, log) = ring_log();
    // Outside of the guest's memory, but in the log, as the specification allows.
    let elsewhere = BASE + 0x1_e000;
    queue.set_logging(Logging { log: Some(log), buffers: false, ring: Some(elsewhere) });
    queue.set_memory(Arc::clone(&ring.memory)).unwrap();
    ring.offer(0);
    let mut chain = Chain::new();
    let head = take(&mut queue, &mut chain);
    queue.wrote(&chain.writable);
    queue.put(head, 8);
    assert_eq!(marked(&file), [0x1_e000], "the element is stored, and buffers are not logged");
    queue.publish();
    assert_eq!((marked(&file), ring.reap()), (vec![0x1_e000], Some((0, 8))));
}

#[test]
fn a_log_that_is_truncated_stops_its_queue() {
    let mut ring = TestRing::new(8);
    ring.describe(0, descriptor(DATA, 8, WRITE, 0));
    let mut queue = ring.queue();
    let (file, log) = ring_log();
    queue.set_logging(Logging { log: Some(log), buffers: true, ring: None });
    ring.offer(0);
    ring.offer(0);
    let mut chain = Chain::new();
    let head = take(&mut queue, &mut chain);
    ftruncate(&file, 0).unwrap();
    queue.wrote(&chain.writable);
    queue.put(head, 8);
    queue.publish();
    assert!(queue.take(&mut chain).unwrap_err().is_memory_lost());
}
