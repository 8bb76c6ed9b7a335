//! Copies what passes into a file, for whoever looks for intruders: pcap, with nanoseconds.
//!
//! The sidecore copies a frame into a buffer that was made beforehand and goes on; a thread of the
//! mirror's own writes. Where that does not keep up, frames are missing in the file, and counted:
//! nobody's traffic waits for a disk.
//!
//! Frames are as they are inside of the network: without tags, and where their sender left the
//! checksum or the cutting to others, with that undone.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::Builder;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use sidecore::mailbox::{self, Receiver, Sender};
use sidecore::{Counter, Waker};

use super::{Direction, Stage};
use crate::frame::{Burst, FRAME_BYTES_MAX, Frame};
use crate::reason::Reason;

/// How much of a frame is kept unless told otherwise: all of one that is not to be cut.
pub const SNAP_BYTES: usize = 2048;

/// Memory for what was not written yet. 16 MiB are some 10 ms of the fastest traffic.
const BUFFERS_BYTES: usize = 16 << 20;

/// The longest file unless told otherwise.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// How often the writer looks. It is not woken, for that would be a system call of the sidecore's.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// pcap with nanoseconds, little-endian.
const MAGIC: u32 = 0xa1b2_3c4d;
const HEADER_BYTES: usize = 24;
const RECORD_BYTES: usize = 16;
const LINK_ETHERNET: u32 = 1;

/// What a mirror did.
#[derive(Debug, Default)]
pub struct MirrorCore {
    /// Frames that were handed to the writer. Counted by the sidecore.
    pub frames: Counter,
    /// Frames that are not in the file, since the writer did not keep up.
    pub lost: Counter,
    /// Bytes in the file.
    pub written_bytes: AtomicU64,
    /// Frames that are not in the file, since it is as long as it may be, or cannot be written.
    pub unwritten: AtomicU64,
}

/// What is kept of a frame. Its bytes have the room that they will ever need.
struct Record {
    time_ns: u64,
    len_bytes: u32,
    bytes: Vec<u8>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Mirror {
    core: Arc<MirrorCore>,
    snap_bytes: usize,
    free: Receiver<Record>,
    full: Sender<Record>,
}

/// How much is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorOptions {
    /// How much of each frame.
    pub snap_bytes: usize,
    /// How long the file may become.
    pub file_bytes_max: u64,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        Self { snap_bytes: SNAP_BYTES, file_bytes_max: FILE_BYTES_MAX }
    }
}

impl Mirror {
    /// A mirror into a file, which is made anew. It ends when this is dropped; what was seen by
    /// then is written.
    ///
    /// # Errors
    /// When the file cannot be made, or there is no thread.
    pub fn to_file(path: &Path, options: MirrorOptions, core: Arc<MirrorCore>) -> io::Result<Self> {
        let snap_bytes = options.snap_bytes.clamp(64, FRAME_BYTES_MAX);
        // For its owner alone, and not where somebody else's link leads.
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(OFlags::NOFOLLOW.bits() as i32)
            .open(path)?;
        file.write_all(&file_header(snap_bytes))?;
        core.written_bytes.store(HEADER_BYTES as u64, Relaxed);
        let (mirror, free, full) = Self::new(snap_bytes, Arc::clone(&core));
        let name = path.display().to_string();
        let writer = Writer {
            core,
            file: BufWriter::new(file),
            left_bytes: options.file_bytes_max.saturating_sub(HEADER_BYTES as u64),
            clock_offset_ns: clock_offset_ns(),
            free,
            full,
            has_failed: false,
            name,
        };
        Builder::new().name("mirror".into()).spawn(move || writer.run())?;
        Ok(mirror)
    }

    fn new(snap_bytes: usize, core: Arc<MirrorCore>) -> (Self, Sender<Record>, Receiver<Record>) {
        let count = (BUFFERS_BYTES / snap_bytes).max(1);
        let (mut to_free, free) = mailbox::channel(count, Waker::none());
        let (full, to_write) = mailbox::channel(count, Waker::none());
        for _ in 0..count {
            let bytes = Vec::with_capacity(snap_bytes);
            let put = to_free.put(Record { time_ns: 0, len_bytes: 0, bytes });
            assert!(put.is_ok(), "there is room for all of them");
        }
        (Self { core, snap_bytes, free, full }, to_free, to_write)
    }
}

impl Stage for Mirror {
    fn pass(
        &mut self,
        _direction: Direction,
        frame: &Frame,
        burst: &Burst,
        now_ns: u64,
    ) -> Result<(), Reason> {
        let Some(mut record) = self.free.receive() else {
            self.core.lost.add(1);
            return Ok(());
        };
        (record.time_ns, record.len_bytes) = (now_ns, frame.len_bytes() as u32);
        let head = frame.head();
        let in_head = head.len().min(self.snap_bytes);
        record.bytes.clear();
        record.bytes.extend_from_slice(&head[..in_head]);
        let from_body = frame.body_bytes().min(self.snap_bytes - in_head);
        record.bytes.resize(in_head + from_body, 0);
        burst.read_body(frame, 0, &mut record.bytes[in_head..]);
        match self.full.put(record) {
            Ok(()) => self.core.frames.add(1),
            // As many fit as there are.
            Err(_) => self.core.lost.add(1),
        }
        Ok(())
    }
}

/// The mirror's own thread.
struct Writer {
    core: Arc<MirrorCore>,
    file: BufWriter<File>,
    left_bytes: u64,
    /// What the monotonic clock is behind the other one.
    clock_offset_ns: u64,
    free: Sender<Record>,
    full: Receiver<Record>,
    has_failed: bool,
    name: String,
}

impl Writer {
    fn run(mut self) {
        loop {
            // First, so that what came before the end is not missed.
            let is_last = self.full.is_abandoned();
            while let Some(record) = self.full.receive() {
                self.write(&record);
                // Without the mirror nobody wants it.
                let _ = self.free.put(record);
            }
            let flushed = self.file.flush();
            self.note(flushed);
            if is_last {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn write(&mut self, record: &Record) {
        let len = (RECORD_BYTES + record.bytes.len()) as u64;
        if self.has_failed || len > self.left_bytes {
            self.core.unwritten.fetch_add(1, Relaxed);
            return;
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
        self.core.written_bytes.fetch_add(len, Relaxed);
        self.note(written);
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

fn file_header(snap_bytes: usize) -> [u8; HEADER_BYTES] {
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
    use crate::maker::FrameMaker;
    use crate::testing::pushed;

    /// The records of a file: the original length, and what is there.
    fn read(path: &Path) -> Vec<(u32, Vec<u8>)> {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes[..4], MAGIC.to_le_bytes());
        let (mut rest, mut records) = (&bytes[HEADER_BYTES..], Vec::new());
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(*rest[at..].first_chunk().unwrap());
            let (have, len) = (word(8), word(12));
            let (record, after) = rest[RECORD_BYTES..].split_at(have as usize);
            records.push((len, record.to_vec()));
            rest = after;
        }
        records
    }

    fn wait_for(what: impl Fn() -> bool) {
        for _ in 0..2000 {
            if what() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it did not happen in 10 s");
    }

    #[test]
    fn frames_are_in_the_file_as_far_as_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        let core = Arc::<MirrorCore>::default();
        let options = MirrorOptions { snap_bytes: 500, ..MirrorOptions::default() };
        let mut mirror = Mirror::to_file(&path, options, Arc::clone(&core)).unwrap();
        let frames = [20, 150, 1000].map(|len| FrameMaker::tcp4().payload(len).build());
        let mut burst = Burst::new();
        for frame in &frames {
            burst.clear();
            pushed(&mut burst, frame, 100);
            mirror.pass(Direction::Sent, &burst.frames()[0], &burst, 7).unwrap();
        }
        drop(mirror);
        let bytes = |frame: &Vec<u8>| (RECORD_BYTES + frame.len().min(500)) as u64;
        let expected = HEADER_BYTES as u64 + frames.iter().map(bytes).sum::<u64>();
        wait_for(|| std::fs::metadata(&path).is_ok_and(|it| it.len() == expected));
        for ((len, record), frame) in read(&path).into_iter().zip(&frames) {
            assert_eq!(len as usize, frame.len());
            assert_eq!(record, frame[..frame.len().min(500)]);
        }
        assert_eq!((core.frames.get(), core.lost.get()), (3, 0));
    }

    #[test]
    fn a_file_has_an_end_and_a_slow_writer_costs_nobody_anything() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.pcap");
        let core = Arc::<MirrorCore>::default();
        let options = MirrorOptions { snap_bytes: 100, file_bytes_max: 1000 };
        let mut mirror = Mirror::to_file(&path, options, Arc::clone(&core)).unwrap();
        let mut burst = Burst::new();
        pushed(&mut burst, &FrameMaker::tcp4().payload(100).build(), 100);
        for _ in 0..20 {
            mirror.pass(Direction::Sent, &burst.frames()[0], &burst, 7).unwrap();
        }
        wait_for(|| core.unwritten.load(Relaxed) == 20 - 8);
        assert!(read(&path).len() <= 8);
        // Without a writer at all.
        let core = Arc::<MirrorCore>::default();
        let (mut mirror, _free, _full) = Mirror::new(1 << 15, Arc::clone(&core));
        for _ in 0..1000 {
            mirror.pass(Direction::Received, &burst.frames()[0], &burst, 7).unwrap();
        }
        assert_eq!((core.frames.get(), core.lost.get()), (512, 488));
    }
}
