//! The meeting of both processes of a hand-over: its place, its file, and its time.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::Config;

/// How long each message may take, and the successor's check of the state. The successor maps and
/// opens; no step waits for a disk or a network.
pub(crate) const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);

/// The socket at which a successor waits for the node.
pub(crate) fn meeting(control: &Path, pid: u32) -> PathBuf {
    let mut path = control.as_os_str().to_owned();
    path.push(format!(".take-over.{pid}"));
    PathBuf::from(path)
}

/// A digest of a configuration's file, to check that both processes have read the same. It is
/// FNV-1a, since two programs must get the same number, and it need not resist attacks.
pub(crate) fn digest(config: &Config) -> io::Result<u64> {
    let bytes = std::fs::read(&config.path)?;
    let start = 0xcbf2_9ce4_8422_2325_u64;
    Ok(bytes
        .iter()
        .fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)))
}
