//! Remembers with the file how often a sync of it failed, because that changes its incarnation: a
//! server that is started anew must not look like one that lost nothing.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

/// Where the count is kept. Only regular files have such attributes; on a block device a failure
/// is forgotten with the process.
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
pub(super) fn note(file: &OwnedFd, path: &Path) {
    let count = count(file).wrapping_add(1).to_le_bytes();
    if let Err(error) = fsetxattr(file, ATTRIBUTE, &count, XattrFlags::empty()) {
        tracing::warn!(
            file = %path.display(),
            %error,
            "the failure cannot be noted with the file: until the host is rebooted, clients \
             will not notice that unflushed writes may be lost"
        );
    }
}
