//! The results of the guest's disk while its IOhost was killed.

use std::time::Duration;

use serde::Serialize;

/// How long the IOhost is away after a kill: it starts at once, but later after the last kill.
pub(super) fn pause_after(kill: u32, kills: u32) -> Duration {
    const LAST: Duration = Duration::from_secs(1);
    if kill == kills { LAST } else { Duration::ZERO }
}

/// A duration in milliseconds, for the report.
pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The user of the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum User {
    /// A Linux guest under QEMU.
    Guest {
        /// How QEMU ran it.
        accelerator: &'static str,
        /// Its kernel's release.
        kernel: String,
    },
    /// The stand-in driver.
    StandIn,
}

/// The results. No data was lost: a loss is an error instead of a result.
#[derive(Clone, Debug, Serialize)]
pub struct Outage {
    /// The user of the disk.
    pub user: User,
    /// How often the IOhost was killed with -9 and started again.
    pub kills: u32,
    /// The least number of requests outstanding at a kill; unknown for a real guest.
    pub outstanding_at_kills_min: Option<usize>,
    /// The longest time from a kill until the new process was ready.
    pub away_longest_ms: u64,
    /// The longest time that the disk's user waited for an answer.
    pub pause_longest_ms: u64,
    /// Acknowledged writes, which were all read back.
    pub writes_verified: u64,
    /// Reads that were compared with what had been written.
    pub reads_verified: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Files of the guest's file system whose checksums were right; 0 without a guest.
    pub files_verified: u64,
    /// Bytes of the volume's image that were compared on the IOhost.
    pub image_bytes_verified: u64,
}
