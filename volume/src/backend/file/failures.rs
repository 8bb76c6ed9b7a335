//! Remembers with the file how often a sync of it failed, because that changes its incarnation: a
//! server that is started anew must not look like one that lost nothing. The volume's records
//! remember it as well, for block devices and file systems that take no attribute any more.

use std::os::fd::OwnedFd;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use rustix::io::Errno;

/// Where the count is kept. Only regular files have such attributes.
const ATTRIBUTE: &str = "user.vrio.failures";

/// How often a sync failed.
pub(super) fn count(file: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    match fgetxattr(file, ATTRIBUTE, &mut bytes) {
        Ok(8) => u64::from_le_bytes(bytes),
        _ => 0,
    }
}

/// Counts one more. It need not outlive the host's boot, which is part of the incarnation too.
pub(super) fn note(file: &OwnedFd) -> Result<(), Errno> {
    let count = count(file).wrapping_add(1).to_le_bytes();
    fsetxattr(file, ATTRIBUTE, &count, XattrFlags::empty())
}
