//! What happened to the guest while its IOhost was killed.

use std::time::Duration;

use serde::Serialize;

/// How long the IOhost is away after a kill: not at all, but longer after the last one.
pub(super) fn pause_after(kill: u32, kills: u32) -> Duration {
    const LAST: Duration = Duration::from_secs(1);
    if kill == kills { LAST } else { Duration::ZERO }
}

/// Milliseconds, for the report.
pub(super) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Who used the disk.
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

/// The outcome; nothing was lost, or there would be an error instead of this.
#[derive(Clone, Debug, Serialize)]
pub struct Outage {
    /// Who used the disk.
    pub user: User,
    /// How often the IOhost was killed with -9 and started again.
    pub kills: u32,
    /// Requests on their way at each kill, at least; unknown for a real guest.
    pub outstanding_at_kills_min: Option<usize>,
    /// The longest from a kill until the new process was up.
    pub away_longest_ms: u64,
    /// The longest that the disk's user had to wait for anything.
    pub pause_longest_ms: u64,
    /// Acknowledged writes, all found again.
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
