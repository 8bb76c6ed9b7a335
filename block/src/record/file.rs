//! Records in files: one per attachment, replaced as a whole.
//!
//! `<directory>/<volume>/<attachment>`, written beside, synced, renamed and the directory synced,
//! so that a power cut leaves the old record or the new one. One thread writes for the whole node:
//! claims are rare, and a sidecore never waits for a file system.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{REPLACED_MAX, Record, RecordError, RecordStore, Ticket};
use crate::attachment::{NAME_BYTES_MAX, Name};
use crate::proof::AttachmentKey;
use crate::volume::Incarnation;

/// The first bytes of every record.
const MAGIC: [u8; 4] = *b"vrAT";

/// The present format of the file. Version 1 ended before `born`.
const VERSION: u32 = 2;

/// Records that wait for the writer: more claims at once than a node has disks.
const WRITES_MAX: usize = 1024;

/// The ending of a record that is being written; such a file means nothing.
const UNFINISHED: &str = "new";

/// The file, byte by byte.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RecordFile {
    magic: [u8; 4],
    version: U32,
    epoch: U64,
    claimant: U64,
    incarnation: [u8; 16],
    replaced: [U64; REPLACED_MAX],
    clean: U32,
    /// CRC-32C of everything before it.
    crc: U32,
    more: More,
}

/// What version 2 has besides.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct More {
    born: U64,
    node: [u8; NAME_BYTES_MAX + 1],
    key: [u8; 32],
    has_key: U32,
    /// CRC-32C of everything before it.
    crc: U32,
}

const CRC_BYTES: usize = 4;

/// Bytes of version 1.
const FIRST_BYTES: usize = size_of::<RecordFile>() - size_of::<More>();

impl RecordFile {
    fn new(record: &Record) -> Self {
        let mut file = Self {
            magic: MAGIC,
            version: VERSION.into(),
            epoch: record.epoch.into(),
            claimant: record.claimant.into(),
            incarnation: record.incarnation.0,
            replaced: record.replaced.map(U64::new),
            clean: u32::from(record.clean).into(),
            crc: 0.into(),
            more: More {
                born: record.born.into(),
                node: *record.node.bytes(),
                key: record.key.map_or([0; 32], |key| key.0),
                has_key: u32::from(record.key.is_some()).into(),
                crc: 0.into(),
            },
        };
        file.crc = file.checksum(FIRST_BYTES).into();
        file.more.crc = file.checksum(size_of::<Self>()).into();
        file
    }

    /// What a file says, of either version: the first one is a beginning of the present one.
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut whole = [0; size_of::<Self>()];
        let is_first = bytes.len() == FIRST_BYTES;
        whole.get_mut(..bytes.len())?.copy_from_slice(bytes);
        let mut file = Self::read_from_bytes(&whole).ok()?;
        if is_first && file.version.get() == 1 {
            file.more.crc = file.checksum(size_of::<Self>()).into();
        }
        (is_first || bytes.len() == whole.len()).then_some(file)
    }

    /// Of the first so many bytes, without the last four.
    fn checksum(&self, len_bytes: usize) -> u32 {
        let bytes = &self.as_bytes()[..len_bytes];
        let crc = checksum(Crc32Iscsi, &bytes[..bytes.len() - CRC_BYTES]);
        u32::try_from(crc).expect("a CRC of 32 bits")
    }

    fn record(&self) -> Result<Record, String> {
        let is_sound = self.crc.get() == self.checksum(FIRST_BYTES)
            && self.more.crc.get() == self.checksum(size_of::<Self>());
        if self.magic != MAGIC || !is_sound {
            return Err("it is damaged; restore it, or remove it and set `accept-loss` on the \
                        disk to let the guest go on all the same"
                .to_owned());
        }
        if !(1..=VERSION).contains(&self.version.get()) {
            return Err(format!(
                "it has version {}, this program knows {VERSION}; run the newer program",
                self.version
            ));
        }
        Ok(Record {
            epoch: self.epoch.get(),
            claimant: self.claimant.get(),
            incarnation: Incarnation(self.incarnation),
            replaced: self.replaced.map(U64::get),
            clean: self.clean.get() != 0,
            born: self.more.born.get(),
            node: Name::from_bytes(self.more.node).unwrap_or_default(),
            key: (self.more.has_key.get() != 0).then_some(AttachmentKey(self.more.key)),
        })
    }
}

/// What has to be durable before any record of a volume is, and so before anything is written to
/// it: no claim is answered before its record is durable.
pub trait First: Send + Sync + fmt::Debug {
    /// Does it, or has done it. On the writer's thread, which may wait for a file system.
    ///
    /// # Errors
    /// Why not: the claim is refused, and the next one asks again.
    fn do_it(&self) -> Result<(), RecordError>;
}

struct Job {
    path: PathBuf,
    /// `None`: only that everything before it has ended is to be told.
    record: Option<Record>,
    first: Option<Arc<dyn First>>,
    ticket: Ticket,
}

impl Job {
    fn run(&self) -> Result<(), RecordError> {
        let Some(record) = &self.record else { return Ok(()) };
        self.first.as_ref().map_or(Ok(()), |first| first.do_it())?;
        replace(&self.path, record).map_err(|error| refused(&self.path, &error))
    }
}

/// The thread that writes records. Dropping the last clone lets it finish and end.
#[derive(Clone, Debug)]
pub struct RecordWriter {
    jobs: SyncSender<Job>,
}

impl RecordWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = sync_channel(WRITES_MAX);
        std::thread::Builder::new().name("vrio-records".into()).spawn(move || serve(&queue))?;
        Ok(Self { jobs })
    }

    /// A ticket that ends when everything that was begun before has ended.
    pub fn settle(&self) -> Ticket {
        let ticket = Ticket::new();
        let path = PathBuf::new();
        let job = Job { path, record: None, first: None, ticket: ticket.clone() };
        if self.jobs.try_send(job).is_err() {
            ticket.end(Err(refused(Path::new("records"), &"the writer has too much to do")));
        }
        ticket
    }
}

fn serve(queue: &Receiver<Job>) {
    for job in queue {
        let result = job.run();
        if let Err(error) = &result {
            tracing::error!(%error, "a claim is refused because its record cannot be kept");
        }
        job.ticket.end(result);
    }
}

/// Writes beside, syncs, renames, syncs the directory.
fn replace(path: &Path, record: &Record) -> io::Result<()> {
    let unfinished = path.with_extension(UNFINISHED);
    let mut file = File::create(&unfinished)?;
    file.write_all(RecordFile::new(record).as_bytes())?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    let directory = path.parent().expect("a record lies in its volume's directory");
    File::open(directory)?.sync_all()
}

fn refused(path: &Path, error: &impl ToString) -> RecordError {
    RecordError { path: path.display().to_string(), reason: error.to_string() }
}

/// The records of one volume.
#[derive(Debug)]
pub struct FileRecords {
    directory: PathBuf,
    writer: RecordWriter,
    first: Option<Arc<dyn First>>,
}

impl FileRecords {
    /// The same, with something to be done before any of them is written.
    #[must_use]
    pub fn after(&self, first: Arc<dyn First>) -> Arc<Self> {
        let (directory, writer) = (self.directory.clone(), self.writer.clone());
        Arc::new(Self { directory, writer, first: Some(first) })
    }

    /// Records of `volume` under `directory`, which is made when missing.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(
        directory: &Path,
        volume: &str,
        writer: RecordWriter,
    ) -> Result<Arc<Self>, RecordError> {
        let directory = directory.join(file_name(volume));
        let made = fs::create_dir_all(&directory).and_then(|()| {
            let above = directory.parent().expect("just joined");
            File::open(above)?.sync_all()
        });
        made.map_err(|error| refused(&directory, &error))?;
        Ok(Arc::new(Self { directory, writer, first: None }))
    }
}

impl RecordStore for FileRecords {
    fn load(&self) -> Result<HashMap<String, Record>, RecordError> {
        let unreadable = |error: io::Error| refused(&self.directory, &error);
        let mut records = HashMap::new();
        for entry in fs::read_dir(&self.directory).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|ending| ending == UNFINISHED) {
                continue;
            }
            let bytes = fs::read(&path).map_err(|error| refused(&path, &error))?;
            let file = RecordFile::read(&bytes)
                .ok_or_else(|| refused(&path, &"it has the wrong size; restore it or remove it"))?;
            let record = file.record().map_err(|reason| refused(&path, &reason))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            records.insert(attachment_name(&name), record);
        }
        Ok(records)
    }

    fn write(&self, attachment: &str, record: Record) -> Ticket {
        let ticket = Ticket::new();
        let path = self.directory.join(file_name(attachment));
        let (record, first) = (Some(record), self.first.clone());
        let job = Job { path: path.clone(), record, first, ticket: ticket.clone() };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.jobs().try_send(job)
        {
            ticket.end(Err(refused(&path, &"the writer has too much to do; try again")));
        }
        ticket
    }
}

impl FileRecords {
    fn jobs(&self) -> &SyncSender<Job> {
        &self.writer.jobs
    }
}

/// A name as a file: everything but letters, digits, `-` and `_` as `%xx`, so that names from
/// peers can neither climb out of the directory nor collide with `.new`.
fn file_name(name: &str) -> String {
    use std::fmt::Write as _;
    let mut file = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => file.push(char::from(byte)),
            _ => write!(file, "%{byte:02x}").expect("writing to a string"),
        }
    }
    file
}

/// The inverse of [`file_name`]; what it did not make comes back as it is.
fn attachment_name(file: &str) -> String {
    let mut name = Vec::with_capacity(file.len());
    let mut rest = file.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = (first == b'%').then(|| after.get(..2)).flatten();
        let byte = hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        name.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&name).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn wait(ticket: &Ticket) -> Result<(), RecordError> {
        loop {
            if let Some(result) = ticket.result() {
                return result;
            }
            std::thread::yield_now();
        }
    }

    fn record(epoch: u64) -> Record {
        Record {
            epoch,
            claimant: 9,
            incarnation: Incarnation([3; 16]),
            clean: epoch.is_multiple_of(2),
            replaced: [epoch; REPLACED_MAX],
            born: epoch / 2,
            node: Name::new("vm1"),
            key: epoch.is_multiple_of(2).then_some(AttachmentKey([4; 32])),
        }
    }

    /// As the program before this one wrote it.
    #[test]
    fn a_record_of_version_1_is_read() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "root", writer).expect("opens");
        let mut file = RecordFile::new(&record(7));
        file.version = 1.into();
        file.crc = file.checksum(FIRST_BYTES).into();
        let path = home.path().join("root/alice");
        fs::write(&path, &file.as_bytes()[..FIRST_BYTES]).expect("writes");
        let unknown = Record { born: 0, node: Name::default(), key: None, ..record(7) };
        assert_eq!(records.load().expect("loads")["alice"], unknown);
    }

    #[test]
    fn the_last_record_is_found_again() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "../root", writer.clone()).expect("opens");
        let tickets: Vec<_> = (1..=5).map(|epoch| records.write("a/b c", record(epoch))).collect();
        assert_eq!(tickets.iter().map(wait).collect::<Vec<_>>(), [const { Ok(()) }; 5]);
        let again = FileRecords::open(home.path(), "../root", writer).expect("opens");
        let loaded = again.load().expect("loads");
        assert_eq!(loaded, HashMap::from([("a/b c".to_owned(), record(5))]));
    }

    /// Fails so often, then is done.
    #[derive(Debug)]
    struct Fails(Mutex<u32>);

    impl First for Fails {
        fn do_it(&self) -> Result<(), RecordError> {
            let mut left = self.0.lock().expect("nothing panics with it");
            *left = left.saturating_sub(1);
            if *left == 0 { Ok(()) } else { Err(refused(Path::new("first"), &"not yet")) }
        }
    }

    #[test]
    fn no_record_is_written_before_what_is_to_be_first() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "root", writer.clone()).expect("opens");
        let records = records.after(Arc::new(Fails(Mutex::new(3))));
        for _ in 0..2 {
            let error = wait(&records.write("alice", record(1))).expect_err("not yet");
            assert_eq!(error.path, "first");
            assert_eq!(records.load().expect("loads"), HashMap::new());
        }
        for epoch in 2..4 {
            assert_eq!(wait(&records.write("alice", record(epoch))), Ok(()));
            assert_eq!(records.load().expect("loads")["alice"], record(epoch));
        }
        assert_eq!(wait(&writer.settle()), Ok(()));
    }

    #[test]
    fn a_damaged_record_is_named_and_not_believed() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "root", writer).expect("opens");
        assert_eq!(wait(&records.write("alice", record(1))), Ok(()));
        let path = home.path().join("root/alice");
        let sound = fs::read(&path).expect("reads");
        for bit in 0..sound.len() * 8 {
            let mut bytes = sound.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bytes).expect("writes");
            let error = records.load().expect_err("damaged");
            assert!(error.path.ends_with("root/alice"), "{error}");
        }
        fs::write(&path, &sound[1..]).expect("writes");
        assert!(records.load().is_err());
    }

    #[test]
    fn an_unfinished_record_means_nothing() {
        let home = tempfile::tempdir().expect("a directory");
        let writer = RecordWriter::start().expect("a thread");
        let records = FileRecords::open(home.path(), "root", writer).expect("opens");
        fs::write(home.path().join("root/alice.new"), b"half").expect("writes");
        assert_eq!(records.load().expect("loads"), HashMap::new());
    }

    #[test]
    fn file_names_are_reversible() {
        for name in ["alice", "a/b", "..", "%41", "ü", "x.new"] {
            let file = file_name(name);
            assert!(!file.contains(['/', '.']), "{file}");
            assert_eq!(attachment_name(&file), name);
        }
    }
}
