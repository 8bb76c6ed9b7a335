//! Guest memory: mapping, finding, letting go.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_add_seals};

use super::ring::*;
use crate::SEGMENTS_MAX;
use crate::chain::{Segment, gather, scatter};
use crate::error::MemoryError;
use crate::mapping::{MapError, Mapping};
use crate::memory::{Memory, Region};

const PAGE: u64 = 4096;

fn region(at: u64, len: u64) -> Arc<Region> {
    let file = memory_file(len);
    Arc::new(Region::map(file.as_fd(), 0, at, len, at + (1 << 40)).unwrap())
}

#[test]
fn ranges_are_found_across_regions_that_adjoin() {
    let regions = vec![region(8 * PAGE, PAGE), region(PAGE, 2 * PAGE), region(3 * PAGE, PAGE)];
    let memory = Memory::new(regions).unwrap();
    let pieces = |addr, len| {
        let mut segments = Vec::new();
        memory
            .translate(addr, len, &mut segments)
            .map(|()| segments.iter().map(|segment: &Segment| segment.len).collect::<Vec<_>>())
    };
    assert_eq!(pieces(PAGE, 8192), Ok(vec![8192]));
    assert_eq!(pieces(PAGE, 3 * 4096), Ok(vec![8192, 4096]));
    assert_eq!(pieces(3 * PAGE - 1, 2), Ok(vec![1, 1]));
    assert_eq!(pieces(9 * PAGE - 1, 1), Ok(vec![1]));
    for (addr, len) in [(0, 1), (PAGE - 1, 2), (4 * PAGE - 1, 2), (9 * PAGE, 1), (u64::MAX, 1)] {
        let error = MemoryError::Unmapped { addr, len: u64::from(len) };
        assert!(matches!(pieces(addr, len), Err(found) if found == error), "{addr:#x}");
    }
    assert_eq!(memory.guest_addr_of((1 << 40) + 3 * PAGE + 5), Some(3 * PAGE + 5));
    assert_eq!(memory.guest_addr_of(3 * PAGE), None);
    assert_eq!(memory.guest_addr_of((1 << 40) + 4 * PAGE), None);
}

#[test]
fn translation_never_grows_beyond_its_limit() {
    let memory = Memory::new(vec![region(PAGE, PAGE)]).unwrap();
    let mut segments = Vec::new();
    for _ in 0..SEGMENTS_MAX {
        memory.translate(PAGE, 1, &mut segments).unwrap();
    }
    let error = memory.translate(PAGE, 1, &mut segments);
    assert_eq!(error, Err(MemoryError::TooManySegments));
}

#[test]
fn a_region_may_begin_anywhere_in_its_file() {
    let file = memory_file(4 * PAGE);
    let whole = Region::map(file.as_fd(), 0, 0, 4 * PAGE, 0).unwrap();
    let odd = Region::map(file.as_fd(), PAGE + 100, 1 << 20, 50, 0).unwrap();
    let memory = Memory::new(vec![Arc::new(whole), Arc::new(odd)]).unwrap();
    let find = |addr, len| {
        let mut segments = Vec::new();
        memory.translate(addr, len, &mut segments).unwrap();
        segments
    };
    let mut bytes = [0; 3];
    // SAFETY: the memory lives to the end of the test.
    unsafe {
        scatter(&find((1 << 20) + 47, 3), 0, b"end");
        gather(&find(PAGE + 147, 3), 0, &mut bytes);
    }
    assert_eq!(&bytes, b"end");
    assert!(memory.translate((1 << 20) + 48, 3, &mut Vec::new()).is_err());
}

#[test]
fn files_that_do_not_hold_the_range_are_refused() {
    let file = memory_file(PAGE);
    let map = |offset, len| Mapping::of_file(file.as_fd(), offset, len).map(|_| ());
    assert_eq!(map(0, PAGE), Ok(()));
    assert_eq!(map(0, 0), Err(MapError::Empty));
    let small = MapError::FileTooSmall { have: PAGE, need: PAGE + 1 };
    assert_eq!(map(1, PAGE), Err(small));
    let overflow = MapError::Overflow { offset: u64::MAX, len: 2 };
    assert_eq!(map(u64::MAX, 2), Err(overflow));
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let not_a_file = Mapping::of_file(pipe.as_fd(), 0, 1).map(|_| ());
    assert_eq!(not_a_file, Err(MapError::NotAFile));
}

#[test]
fn a_seal_is_noticed() {
    let file = memory_file(PAGE);
    assert!(!Mapping::of_file(file.as_fd(), 0, PAGE).unwrap().is_sealed());
    fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
    assert!(Mapping::of_file(file.as_fd(), 0, PAGE).unwrap().is_sealed());
}

#[test]
fn a_table_shares_regions_and_the_last_one_unmaps() {
    let (first, second) = (region(0, PAGE), region(PAGE, PAGE));
    let weak = Arc::downgrade(second.mapping());
    let old = Memory::new(vec![first]).unwrap().with(second).unwrap();
    let new = old.without(PAGE, PAGE, PAGE + (1 << 40)).unwrap();
    assert_eq!((old.regions().len(), new.regions().len()), (2, 1));
    assert!(Arc::ptr_eq(&old.regions()[0], &new.regions()[0]));
    assert!(weak.upgrade().is_some());
    drop(old);
    assert!(weak.upgrade().is_none());
    let error = new.without(PAGE, PAGE, 0).map(|_| ());
    assert_eq!(error, Err(MemoryError::NoRegion { guest_addr: PAGE, len: PAGE }));
}
