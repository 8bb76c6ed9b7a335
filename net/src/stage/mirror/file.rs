//! A mirror's file: pcap, with nanoseconds.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;

use super::{Record, Target};

/// pcap with nanoseconds, little-endian.
const MAGIC: u32 = 0xa1b2_3c4d;
pub(super) const HEADER_BYTES: usize = 24;
pub(super) const RECORD_BYTES: usize = 16;
const LINK_ETHERNET: u32 = 1;

/// See the module's text.
pub(super) struct PcapFile {
    file: BufWriter<File>,
    left_bytes: u64,
    /// What the monotonic clock is behind the other one.
    clock_offset_ns: u64,
    has_failed: bool,
    name: String,
}

impl PcapFile {
    /// Makes it anew, and writes what it begins with.
    pub(super) fn new(path: &Path, snap_bytes: usize, bytes_max: u64) -> io::Result<Self> {
        // For its owner alone, and not where somebody else's link leads.
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(path)?;
        file.write_all(&header(snap_bytes))?;
        Ok(Self {
            file: BufWriter::new(file),
            left_bytes: bytes_max.saturating_sub(HEADER_BYTES as u64),
            clock_offset_ns: clock_offset_ns(),
            has_failed: false,
            name: path.display().to_string(),
        })
    }

    fn note(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome
            && !std::mem::replace(&mut self.has_failed, true)
        {
            tracing::error!(
                file = %self.name, %error,
                "the mirror cannot be written; what it copies is missing from now on, the traffic \
                 itself goes on"
            );
        }
    }
}

impl Target for PcapFile {
    fn write(&mut self, record: &Record) -> Option<u64> {
        let len = (RECORD_BYTES + record.bytes.len()) as u64;
        if self.has_failed || len > self.left_bytes {
            return None;
        }
        self.left_bytes -= len;
        let time_ns = record.time_ns.saturating_add(self.clock_offset_ns);
        let mut header = [0; RECORD_BYTES];
        let words = [
            (time_ns / 1_000_000_000) as u32,
            (time_ns % 1_000_000_000) as u32,
            record.bytes.len() as u32,
            record.len_bytes,
        ];
        for (into, word) in header.chunks_exact_mut(4).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        let written =
            self.file.write_all(&header).and_then(|()| self.file.write_all(&record.bytes));
        self.note(written);
        Some(len)
    }

    fn look(&mut self) -> bool {
        let flushed = self.file.flush();
        self.note(flushed);
        !self.has_failed
    }
}

fn header(snap_bytes: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MAGIC.to_le_bytes());
    header[4..6].copy_from_slice(&2u16.to_le_bytes());
    header[6..8].copy_from_slice(&4u16.to_le_bytes());
    header[16..20].copy_from_slice(&(snap_bytes as u32).to_le_bytes());
    header[20..24].copy_from_slice(&LINK_ETHERNET.to_le_bytes());
    header
}

fn clock_offset_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (since.as_nanos() as u64).saturating_sub(sidecore::now_ns())
}
