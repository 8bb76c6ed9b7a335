//! How a file's ranges are zeroed: by the file system or the device where they can, else by writing
//! zeroes.
//!
//! | request | file or device | where that is missing |
//! | --- | --- | --- |
//! | discard | `FALLOC_FL_PUNCH_HOLE` | not offered |
//! | write-zeroes | `FALLOC_FL_ZERO_RANGE` | zeroes are written |
//!
//! Of a buffered volume the kernel drops the range's pages first, also those with acknowledged
//! writes that are not on the storage yet, and may fail then: an older value would come back. The
//! usual reason is a file system without space, so the range is given its space before (`fallocate`
//! without a mode: it fails without touching anything). After any other failure zeroes are written
//! over the range, and if that fails, too, the volume has failed by name.
//!
//! All go through the ring, where the kernel does them on threads of its own. A punched hole reads
//! as zeroes: that is the call's promise for files and, since the kernel never falls back to a
//! discard that leaves the old bytes, for block devices.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use io_uring::{opcode, squeue, types};
use rustix::fs::{FallocateFlags, SeekFrom, Stat, fallocate, major, minor, seek};

use super::bounce::Buffer;
use super::shared::FileShared;
use crate::volume::{Op, Zeroing};

/// The ways in which the file's ranges can be zeroed.
pub(super) fn of(file: &OwnedFd, stat: &Stat, is_block_device: bool, unit_bytes: u32) -> Zeroing {
    let (discard, unit_bytes) = if is_block_device {
        // A hole in a device is zeroes that the device makes by itself.
        let bytes = |name| queue_value(stat, name).unwrap_or(0);
        let unit_bytes = u32::try_from(bytes("discard_granularity")).unwrap_or(0);
        (bytes("write_zeroes_max_bytes") > 0, unit_bytes)
    } else {
        (can_punch(file), unit_bytes)
    };
    Zeroing { discard, write_zeroes: true, unit_bytes: if discard { unit_bytes } else { 0 } }
}

/// Whether the file system makes holes.
fn can_punch(file: &OwnedFd) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // Behind the end there is nothing to lose.
    seek(file, SeekFrom::End(0)).is_ok_and(|end_bytes| {
        fallocate(file.as_fd(), mode, end_bytes.next_multiple_of(4096), 4096).is_ok()
    })
}

/// A value of a block device's queue in sysfs.
pub(super) fn queue_value(stat: &Stat, name: &str) -> Option<u64> {
    let device = format!("/sys/dev/block/{}:{}", major(stat.st_rdev), minor(stat.st_rdev));
    // A partition's queue is its disk's.
    let read = |queue: &str| std::fs::read_to_string(format!("{device}/{queue}/{name}")).ok();
    read("queue").or_else(|| read("../queue"))?.trim().parse().ok()
}

/// Gives a range its space and changes nothing in it.
pub(super) const ALLOCATE: FallocateFlags = FallocateFlags::empty();

/// How the kernel zeroes a range.
pub(super) fn how(op: Op) -> FallocateFlags {
    match op {
        Op::Discard => FallocateFlags::PUNCH_HOLE,
        _ => FallocateFlags::ZERO_RANGE,
    }
}

/// The kernel's request for that.
pub(super) fn entry(
    how: FallocateFlags,
    file: types::Fd,
    offset_bytes: u64,
    len_bytes: u32,
) -> squeue::Entry {
    let mode = (how | FallocateFlags::KEEP_SIZE).bits() as i32;
    opcode::Fallocate::new(file, u64::from(len_bytes)).offset(offset_bytes).mode(mode).build()
}

impl FileShared {
    /// Whether zeroing a range begins with dropping its pages, and what only they have.
    pub(super) fn drops_pages(&self) -> bool {
        !self.direct
    }

    /// Whether a range is given its space before it is zeroed.
    pub(super) fn allocates_first(&self) -> bool {
        self.drops_pages()
            && !self.is_block_device
            && !self.in_memory
            && !self.cannot_zero.load(Relaxed)
    }

    /// Whether there is what zeroes are written from; `false` when there is no memory for it.
    pub(super) fn has_zeroes(&self) -> bool {
        if self.zeroes.get().is_some() {
            return true;
        }
        let Ok(buffer) = Buffer::new() else { return false };
        // A buffer that another sidecore has put there first is as good.
        let _ = self.zeroes.set(buffer);
        true
    }
}
