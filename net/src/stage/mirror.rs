//! Copies passing frames, to look for intruders: into a file ([`file`]), or to a tap of the host
//! for a listener there.
//!
//! The sidecore copies a frame into a buffer that was made beforehand and goes on; a thread of the
//! mirror's own writes. Where that does not keep up, frames are missing in the copy, and counted:
//! no traffic waits for a disk or for the listener.
//!
//! Frames are as they are inside of the network: without tags. Where their sender left the checksum
//! or the cutting to others, that is undone in a file, and goes along with the frame to a tap.

mod file;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::Builder;
use std::time::Duration;

use sidecore::mailbox::{self, Receiver, Sender};
use sidecore::{Counter, Waker};

use super::{Direction, FrameStage};
use crate::frame::{Burst, FRAME_BYTES_MAX, Frame};
use crate::offload::Offload;
use crate::reason::Reason;
use crate::uplink::tap::CopyTap;
use file::PcapFile;

/// How much of a frame is kept in a file unless told otherwise: all of one that is not to be cut.
pub const SNAP_BYTES: usize = 2048;

/// Memory for what was not written yet. 16 MiB are some 10 ms of the fastest traffic. Where more is
/// kept of a frame than [`SNAP_BYTES`], half of it is for those that are longer.
const BUFFERS_BYTES: usize = 16 << 20;

/// The longest file unless told otherwise.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// How often the writer looks when nothing comes, and after something came. It is not woken, for
/// that would be a system call of the sidecore's.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The counters and the state of a mirror.
#[derive(Debug, Default)]
pub struct MirrorCore {
    /// Frames that were handed to the writer. Counted by the sidecore.
    pub frames: Counter,
    /// Frames that are missing in the copy, since the writer did not keep up.
    pub lost: Counter,
    /// Bytes in the file, or of frames that went to the tap.
    pub written_bytes: AtomicU64,
    /// Frames that are missing since the file is as long as it may be or cannot be written, or the
    /// tap is away.
    pub unwritten: AtomicU64,
    /// Whether there is something to write to: a file that has not failed, a tap that is open and
    /// set up.
    pub is_up: AtomicBool,
}

/// The copy of a frame. Its bytes have the room that they will ever need.
struct MirrorRecord {
    /// The pool that it belongs to.
    pool: u8,
    time_ns: u64,
    len_bytes: u32,
    offload: Offload,
    bytes: Vec<u8>,
}

/// Records that are free, with room for so many bytes each.
#[derive(Debug)]
struct RecordPool {
    bytes: usize,
    free: Receiver<MirrorRecord>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Mirror {
    core: Arc<MirrorCore>,
    snap_bytes: usize,
    /// Shorter ones first.
    pools: Vec<RecordPool>,
    full: Sender<MirrorRecord>,
}

/// How much is written to a file.
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

/// Where copies go; its thread may wait.
trait MirrorTarget: Send + 'static {
    /// Whether anything may be written yet; until then frames wait.
    fn is_ready(&mut self, _core: &MirrorCore) -> bool {
        true
    }

    /// Writes one, or keeps it until there is time; counts what was written and what went nowhere.
    fn write(&mut self, record: &MirrorRecord, core: &MirrorCore);

    /// All records that came must be written now. Returns whether more can be.
    fn look(&mut self, core: &MirrorCore) -> bool;
}

impl Mirror {
    /// A mirror into a file, which is made, or gone on with if a mirror has written it. It ends
    /// when this is dropped; the frames seen by then are written.
    ///
    /// # Errors
    /// When the file cannot be made or is another one, or there is no thread.
    pub fn to_file(path: &Path, options: MirrorOptions, core: Arc<MirrorCore>) -> io::Result<Self> {
        let snap_bytes = options.snap_bytes.clamp(64, FRAME_BYTES_MAX);
        let file = PcapFile::new(path, snap_bytes, options.file_bytes_max)?;
        Self::start(snap_bytes, file, core)
    }

    /// A mirror to a tap, with whole frames. The mirror's thread opens the interface, and opens it
    /// again after each time that it was away; meanwhile frames are counted. Frames that the host
    /// sends there are not read.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn to_tap(interface: &str, core: Arc<MirrorCore>) -> io::Result<Self> {
        Self::start(FRAME_BYTES_MAX, CopyTap::new(interface), core)
    }

    fn start(
        snap_bytes: usize,
        target: impl MirrorTarget,
        core: Arc<MirrorCore>,
    ) -> io::Result<Self> {
        let NewMirror { mirror, free, full } = Self::begin(snap_bytes, Arc::clone(&core));
        let writer = Writer { core, target, free, full };
        Builder::new().name("mirror".into()).spawn(move || writer.run())?;
        Ok(mirror)
    }

    fn begin(snap_bytes: usize, core: Arc<MirrorCore>) -> NewMirror {
        let sizes: &[usize] =
            if snap_bytes > SNAP_BYTES { &[SNAP_BYTES, snap_bytes] } else { &[snap_bytes] };
        let (mut pools, mut to_free, mut all) = (Vec::new(), Vec::new(), 0);
        for (pool, &bytes) in (0..).zip(sizes) {
            let count = (BUFFERS_BYTES / sizes.len() / bytes).max(1);
            let (mut sender, free) = mailbox::channel(count, Waker::none());
            for _ in 0..count {
                let offload = Offload::default();
                let bytes = Vec::with_capacity(bytes);
                let put =
                    sender.put(MirrorRecord { pool, time_ns: 0, len_bytes: 0, offload, bytes });
                assert!(put.is_ok(), "there is room for all of them");
            }
            pools.push(RecordPool { bytes, free });
            to_free.push(sender);
            all += count;
        }
        let (full, to_write) = mailbox::channel(all, Waker::none());
        let mirror = Self { core, snap_bytes, pools, full };
        NewMirror { mirror, free: to_free, full: to_write }
    }
}

/// A mirror with the ends that its writer needs.
struct NewMirror {
    mirror: Mirror,
    /// The ways back to the pools.
    free: Vec<Sender<MirrorRecord>>,
    /// The records to write.
    full: Receiver<MirrorRecord>,
}

impl FrameStage for Mirror {
    fn pass(
        &mut self,
        _direction: Direction,
        frame: &Frame,
        burst: &Burst,
        now_ns: u64,
    ) -> Result<(), Reason> {
        let kept = frame.len_bytes().min(self.snap_bytes);
        let pool = self.pools.iter_mut().find(|pool| pool.bytes >= kept);
        let Some(mut record) = pool.and_then(|pool| pool.free.receive()) else {
            self.core.lost.add(1);
            return Ok(());
        };
        (record.time_ns, record.len_bytes) = (now_ns, frame.len_bytes() as u32);
        record.offload = frame.offload;
        let head = frame.head();
        let in_head = head.len().min(kept);
        record.bytes.clear();
        record.bytes.extend_from_slice(&head[..in_head]);
        record.bytes.resize(kept, 0);
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
struct Writer<T> {
    core: Arc<MirrorCore>,
    target: T,
    /// By pool.
    free: Vec<Sender<MirrorRecord>>,
    full: Receiver<MirrorRecord>,
}

impl<T: MirrorTarget> Writer<T> {
    fn run(mut self) {
        loop {
            // First, so that what came before the end is not missed.
            let is_last = self.full.is_abandoned();
            if !self.target.is_ready(&self.core) && !is_last {
                std::thread::sleep(LOOK_EVERY);
                continue;
            }
            let is_idle = self.full.is_empty();
            while let Some(record) = self.full.receive() {
                self.target.write(&record, &self.core);
                // Without the mirror the record is dropped.
                let _ = self.free[usize::from(record.pool)].put(record);
            }
            self.core.is_up.store(self.target.look(&self.core), Relaxed);
            if is_last {
                return;
            }
            std::thread::sleep(if is_idle { LOOK_EVERY } else { LOOK_AGAIN });
        }
    }
}

impl MirrorTarget for CopyTap {
    fn write(&mut self, record: &MirrorRecord, core: &MirrorCore) {
        if self.put(&record.bytes, record.offload) {
            core.written_bytes.fetch_add(record.bytes.len() as u64, Relaxed);
        } else {
            core.unwritten.fetch_add(1, Relaxed);
        }
    }

    fn look(&mut self, _core: &MirrorCore) -> bool {
        self.is_up()
    }
}

#[cfg(test)]
mod tests {
    use super::file::{HEADER_BYTES, RECORD_BYTES};
    use super::*;
    use crate::maker::FrameMaker;
    use crate::testing::pushed;

    /// The records of a file: the original length, and what is there.
    fn read(path: &Path) -> Vec<(u32, Vec<u8>)> {
        let bytes = std::fs::read(path).unwrap();
        assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_le_bytes());
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
    fn a_file_has_an_end_and_a_slow_writer_costs_the_traffic_nothing() {
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
        // Without a writer at all: short frames and long ones have half of the memory each.
        let core = Arc::<MirrorCore>::default();
        let NewMirror { mut mirror, free: _free, full: _full } =
            Mirror::begin(1 << 15, Arc::clone(&core));
        for _ in 0..5000 {
            mirror.pass(Direction::Received, &burst.frames()[0], &burst, 7).unwrap();
        }
        assert_eq!((core.frames.get(), core.lost.get()), (4096, 904));
        burst.clear();
        pushed(&mut burst, &FrameMaker::tcp4().payload(10_000).build(), 5000);
        for _ in 0..1000 {
            mirror.pass(Direction::Received, &burst.frames()[0], &burst, 7).unwrap();
        }
        assert_eq!((core.frames.get(), core.lost.get()), (4096 + 256, 904 + 744));
    }
}
