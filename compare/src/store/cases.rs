//! The subject of the contests of disks in pools: their requests and their files.

use std::path::{Path, PathBuf};

use crate::block::Requests;
use bench::load::LoadPattern;

/// The contests' names. In the second one each disk has a snapshot that was taken just before.
pub(super) const OVERWRITTEN: &str = "a disk in a file, O_DIRECT";
pub(super) const AFTER_SNAPSHOT: &str = "the same after a snapshot";

/// The requests that most goals are about.
pub(super) fn overwrites() -> Requests {
    Requests { op: LoadPattern::RandWrite, size_bytes: 4 << 10, depth: 32 }
}

/// The cases: those of small requests, and long ones in order.
pub(super) fn cases() -> Vec<Requests> {
    let mut cases = Requests::all();
    cases.retain(|case| case.depth != 8 || case.size_bytes > 4 << 10);
    cases
}

/// A file of this process's comparison.
pub(super) fn file_in(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("vrio-compare-{}-{name}", std::process::id()))
}
