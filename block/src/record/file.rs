//! Records in files: one per attachment, replaced as a whole.
//!
//! `<directory>/<volume>/<attachment>`, written beside, synced, renamed and the directory synced,
//! so that a power cut leaves the old record or the new one. One thread writes for the whole node:
//! claims are rare, and a sidecore never waits for a file system.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use crc_fast::{CrcAlgorithm::Crc32Iscsi, checksum};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{REPLACED_MAX, Record, RecordError, RecordStore, Ticket};
use crate::volume::Incarnation;

/// The first bytes of every record.
const MAGIC: [u8; 4] = *b"vrAT";

/// The present format of the file.
const VERSION: u32 = 1;

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
}

const CRC_BYTES: usize = 4;

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
        };
        file.crc = file.checksum().into();
        file
    }

    fn checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        let crc = checksum(Crc32Iscsi, &bytes[..bytes.len() - CRC_BYTES]);
        u32::try_from(crc).expect("a CRC of 32 bits")
    }

    fn record(&self) -> Result<Record, String> {
        if self.magic != MAGIC || self.crc.get() != self.checksum() {
            return Err("it is damaged; restore it, or remove it and set `accept-loss` on the \
                        disk to let the guest go on all the same"
                .to_owned());
        }
        if self.version.get() != VERSION {
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
        })
    }
}

struct Job {
    path: PathBuf,
    /// `None`: only that everything before it has ended is to be told.
    record: Option<Record>,
    ticket: Ticket,
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
        let job = Job { path: PathBuf::new(), record: None, ticket: ticket.clone() };
        if self.jobs.try_send(job).is_err() {
            ticket.end(Err(refused(Path::new("records"), &"the writer has too much to do")));
        }
        ticket
    }
}

fn serve(queue: &Receiver<Job>) {
    for job in queue {
        let result = match &job.record {
            Some(record) => replace(&job.path, record).map_err(|error| refused(&job.path, &error)),
            None => Ok(()),
        };
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
}

impl FileRecords {
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
        Ok(Arc::new(Self { directory, writer }))
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
            let file = RecordFile::read_from_bytes(&bytes)
                .map_err(|_| refused(&path, &"it has the wrong size; restore it or remove it"))?;
            let record = file.record().map_err(|reason| refused(&path, &reason))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            records.insert(attachment_name(&name), record);
        }
        Ok(records)
    }

    fn write(&self, attachment: &str, record: Record) -> Ticket {
        let ticket = Ticket::new();
        let path = self.directory.join(file_name(attachment));
        let job = Job { path: path.clone(), record: Some(record), ticket: ticket.clone() };
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
        }
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
