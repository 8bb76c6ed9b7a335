//! A mirror's file: pcap, with nanoseconds.
//!
//! Its contents stay: a file that a mirror has written is gone on with, behind its last whole
//! record, and any other one is refused. One writer has it at a time (a lock on it), so a process
//! that takes over goes on where its predecessor has ended.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, OFlags, flock};

use super::{MirrorCore, MirrorRecord, MirrorTarget};

/// pcap with nanoseconds, little-endian.
const MAGIC: u32 = 0xa1b2_3c4d;
pub(super) const HEADER_BYTES: usize = 24;
pub(super) const RECORD_BYTES: usize = 16;
const LINK_ETHERNET: u32 = 1;

/// So much is gathered before it is written.
const BATCH_BYTES: usize = 64 << 10;

/// See the module's text.
pub(super) struct PcapFile {
    file: File,
    header: [u8; HEADER_BYTES],
    snap_bytes: usize,
    bytes_max: u64,
    state: FileState,
    /// Whole records that must be written, and how many.
    batch: Vec<u8>,
    batch_frames: u64,
    /// How far the monotonic clock is behind the other one.
    clock_offset_ns: u64,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileState {
    /// Another writer has it still.
    Waiting,
    /// It has so many bytes, all of them of whole records.
    Open(u64),
    /// It cannot be written.
    Failed,
}

impl PcapFile {
    /// Opens it, or makes it. Nothing of it is changed before [`MirrorTarget::is_ready`].
    ///
    /// # Errors
    /// When it cannot be opened, or is something else than a capture of this kind.
    pub(super) fn new(path: &Path, snap_bytes: usize, bytes_max: u64) -> io::Result<Self> {
        // For its owner alone, and not where another user's link leads. Opening a pipe does not
        // wait for its other end.
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32)
            .open(path)?;
        let header = header(snap_bytes);
        let mut there = Vec::new();
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a file: name a file"));
        }
        Read::by_ref(&mut file).take(HEADER_BYTES as u64).read_to_end(&mut there)?;
        // One that was killed while it wrote the header has left a part of it.
        if header[..there.len()] != there[..] {
            let text = format!(
                "the file exists and is not a capture of this kind (pcap with nanoseconds, \
                 Ethernet, {snap_bytes} bytes of each frame): move it away, or name another file"
            );
            return Err(io::Error::other(text));
        }
        Ok(Self::with(file, header, (snap_bytes, bytes_max), path))
    }

    fn with(
        file: File,
        header: [u8; HEADER_BYTES],
        (snap_bytes, bytes_max): (usize, u64),
        path: &Path,
    ) -> Self {
        Self {
            file,
            header,
            snap_bytes,
            bytes_max,
            state: FileState::Waiting,
            batch: Vec::with_capacity(BATCH_BYTES + RECORD_BYTES + snap_bytes),
            batch_frames: 0,
            clock_offset_ns: clock_offset_ns(),
            name: path.display().to_string(),
        }
    }

    /// Takes the file, unless another process has it. Returns the length of its whole records; the
    /// rest is cut off.
    fn begin(&mut self) -> io::Result<Option<u64>> {
        match flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let mut whole_bytes = whole_bytes(&self.file, self.snap_bytes)?;
        if whole_bytes == 0 {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(&self.header)?;
            whole_bytes = HEADER_BYTES as u64;
        }
        self.file.set_len(whole_bytes)?;
        self.file.seek(SeekFrom::Start(whole_bytes))?;
        Ok(Some(whole_bytes))
    }

    /// Writes what was gathered, all of it or nothing.
    fn write_batch(&mut self, core: &MirrorCore) {
        let FileState::Open(bytes) = self.state else { return };
        if self.batch.is_empty() {
            return;
        }
        match self.file.write_all(&self.batch) {
            Ok(()) => {
                let bytes = bytes + self.batch.len() as u64;
                self.state = FileState::Open(bytes);
                core.written_bytes.store(bytes, Relaxed);
            }
            Err(error) => {
                // The file ends in half a record, behind which no mirror could go on.
                let _ = self.file.set_len(bytes);
                core.unwritten.fetch_add(self.batch_frames, Relaxed);
                self.fail(&error);
            }
        }
        self.batch.clear();
        self.batch_frames = 0;
    }

    fn fail(&mut self, error: &io::Error) {
        self.state = FileState::Failed;
        tracing::error!(
            file = %self.name, %error,
            "the mirror cannot be written: copies are missing from now on, and the traffic itself \
             continues"
        );
    }
}

/// Up to where a capture has whole records; zero without a header.
fn whole_bytes(file: &File, snap_bytes: usize) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let mut at = HEADER_BYTES as u64;
    if len < at {
        return Ok(0);
    }
    let mut reader = BufReader::with_capacity(BATCH_BYTES, file);
    reader.seek(SeekFrom::Start(at))?;
    let mut record = [0; RECORD_BYTES];
    while len - at >= RECORD_BYTES as u64 {
        reader.read_exact(&mut record)?;
        let bytes = u32::from_le_bytes(*record[8..].first_chunk().expect("its third word"));
        let end = at + RECORD_BYTES as u64 + u64::from(bytes);
        if bytes as usize > snap_bytes || end > len {
            break;
        }
        reader.seek_relative(i64::from(bytes))?;
        at = end;
    }
    Ok(at)
}

impl MirrorTarget for PcapFile {
    fn is_ready(&mut self, core: &MirrorCore) -> bool {
        if self.state != FileState::Waiting {
            return true;
        }
        match self.begin() {
            Ok(None) => return false,
            Ok(Some(bytes)) => {
                self.state = FileState::Open(bytes);
                core.written_bytes.store(bytes, Relaxed);
            }
            Err(error) => self.fail(&error),
        }
        true
    }

    fn write(&mut self, record: &MirrorRecord, core: &MirrorCore) {
        let len = RECORD_BYTES + record.bytes.len();
        let has_room = match self.state {
            FileState::Open(bytes) => bytes + (self.batch.len() + len) as u64 <= self.bytes_max,
            FileState::Waiting | FileState::Failed => false,
        };
        if !has_room {
            core.unwritten.fetch_add(1, Relaxed);
            return;
        }
        let time_ns = record.time_ns.saturating_add(self.clock_offset_ns);
        let words = [
            (time_ns / 1_000_000_000) as u32,
            (time_ns % 1_000_000_000) as u32,
            record.bytes.len() as u32,
            record.len_bytes,
        ];
        words.iter().for_each(|word| self.batch.extend_from_slice(&word.to_le_bytes()));
        self.batch.extend_from_slice(&record.bytes);
        self.batch_frames += 1;
        if self.batch.len() >= BATCH_BYTES {
            self.write_batch(core);
        }
    }

    fn look(&mut self, core: &MirrorCore) -> bool {
        self.write_batch(core);
        matches!(self.state, FileState::Open(_))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::Offload;

    const SNAP: usize = 100;

    fn record(bytes: usize) -> MirrorRecord {
        let bytes = vec![7; bytes];
        let len_bytes = 200;
        MirrorRecord { pool: 0, time_ns: 5, len_bytes, offload: Offload::default(), bytes }
    }

    fn open(path: &Path) -> PcapFile {
        PcapFile::new(path, SNAP, 1 << 20).unwrap()
    }

    #[test]
    fn a_capture_is_gone_on_with_behind_its_last_whole_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        let core = MirrorCore::default();
        let whole = (HEADER_BYTES + 2 * (RECORD_BYTES + 60)) as u64;
        let mut first = open(&path);
        assert!(first.is_ready(&core));
        [(), ()].iter().for_each(|()| first.write(&record(60), &core));
        // Another process may open it, and waits for this one's end.
        let mut second = open(&path);
        assert!(!second.is_ready(&core) && !second.look(&core));
        assert!(first.look(&core));
        drop(first);
        // Killed in the middle of a record, or of its first word.
        for part in [RECORD_BYTES + 59, 20, RECORD_BYTES, 3] {
            let mut file = File::options().append(true).open(&path).unwrap();
            file.write_all(&record_bytes()[..part]).unwrap();
            assert!(second.is_ready(&core) && second.look(&core));
            assert_eq!(core.written_bytes.load(Relaxed), whole, "{part}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), whole, "{part}");
            drop(second);
            second = open(&path);
        }
        assert!(second.is_ready(&core));
        second.write(&record(60), &core);
        assert!(second.look(&core));
        assert_eq!(core.written_bytes.load(Relaxed), whole + RECORD_BYTES as u64 + 60);
        // One that was killed before it had written the header.
        std::fs::write(&path, &header(SNAP)[..9]).unwrap();
        drop(second);
        assert!(open(&path).is_ready(&core));
        assert_eq!(std::fs::read(&path).unwrap(), header(SNAP));
    }

    fn record_bytes() -> Vec<u8> {
        let words = [1, 2, 60, 200u32].map(u32::to_le_bytes);
        [words.concat(), vec![9; 60]].concat()
    }

    #[test]
    fn other_files_than_captures_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        for there in [&b"my diary"[..], &header(SNAP + 1), &[0; 100]] {
            std::fs::write(&path, there).unwrap();
            let error = PcapFile::new(&path, SNAP, 1 << 20).err().expect("it is refused");
            assert!(error.to_string().contains("move it away"), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), there);
        }
        let error = PcapFile::new(Path::new("/dev/null"), SNAP, 1 << 20).err().unwrap();
        assert!(error.to_string().contains("not a file"), "{error}");
    }

    #[test]
    fn unwritten_frames_are_not_counted_as_written() {
        let core = MirrorCore::default();
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut file = PcapFile::with(full, header(SNAP), (SNAP, 1 << 20), Path::new("full"));
        file.state = FileState::Open(HEADER_BYTES as u64);
        core.written_bytes.store(HEADER_BYTES as u64, Relaxed);
        (0..3).for_each(|_| file.write(&record(60), &core));
        assert!(!file.look(&core));
        file.write(&record(60), &core);
        let counted = (core.written_bytes.load(Relaxed), core.unwritten.load(Relaxed));
        assert_eq!(counted, (HEADER_BYTES as u64, 4));
    }
}
