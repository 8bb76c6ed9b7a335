//! The log of dirty pages: exactly what was written is in it.

use std::os::fd::{AsFd, OwnedFd};

use super::ring::*;
use crate::dirty::{DirtyLog, LOG_BYTES_MAX, LOG_PAGE_BYTES, LogError};
use crate::mapping::MapError;

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
