//! The attachment's record: a file that a power cut, a disk or an attacker may have changed. A
//! record is believed only if it has exactly the bytes that were written. An older release's
//! record, which has only a checksum, is believed only if no record was written after it.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ::volume::record::{FileRecords, Record, RecordStore, RecordWriter};
use arbitrary::{Arbitrary, Unstructured};

use crate::packet::crc32c;

/// An older file's length and its checksum's place; `volume/src/record/plain.rs` has the layout.
const FILE_BYTES: usize = 112;
const AT_CRC: usize = FILE_BYTES - 4;

#[derive(Arbitrary, Debug)]
enum RecordFile<'a> {
    /// Any bytes.
    Raw(&'a [u8]),
    /// Any content with the correct length, magic and checksum.
    Sound { version: u32, rest: [u8; AT_CRC - 8] },
    /// A correct file with one wrong byte.
    Damaged { rest: [u8; AT_CRC - 8], at: u8, by: u8 },
    /// A file that was written, with one wrong byte and some bytes missing at its end.
    Written { at: u8, by: u8, cut: u8 },
}

impl RecordFile<'_> {
    fn bytes(&self, written: &[u8]) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.to_vec(),
            Self::Sound { version, rest } => sound(*version, rest),
            Self::Damaged { rest, at, by } => {
                let mut bytes = sound(1, rest);
                bytes[usize::from(*at) % FILE_BYTES] ^= by;
                bytes
            }
            Self::Written { at, by, cut } => {
                let mut bytes = written.to_vec();
                bytes[usize::from(*at) % written.len()] ^= by;
                bytes.truncate(written.len() - usize::from(*cut) % written.len());
                bytes
            }
        }
    }
}

fn sound(version: u32, rest: &[u8]) -> Vec<u8> {
    let mut bytes = b"vrAT".to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(rest);
    let crc = crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// The records of one volume, in a directory of their own.
struct RecordDirectory {
    records: Arc<FileRecords>,
    path: PathBuf,
    _home: tempfile::TempDir,
}

/// The directories whose records are loaded again and again.
struct Stores {
    /// A directory in which only an older release has written.
    older: RecordDirectory,
    present: RecordDirectory,
    /// The content of the file that was written there.
    written: Vec<u8>,
}

thread_local! {
    static STORES: OnceLock<Stores> = const { OnceLock::new() };
}

fn store() -> RecordDirectory {
    let home = tempfile::tempdir().expect("a directory");
    let writer = RecordWriter::start().expect("a thread");
    let records = FileRecords::open(home.path(), "volume", writer).expect("a directory");
    RecordDirectory { records, path: home.path().join("volume/alice"), _home: home }
}

fn stores() -> Stores {
    let (older, present) = (store(), store());
    let ticket = present.records.write("alice", Record { epoch: 7, ..Record::default() });
    while ticket.result().is_none() {
        std::thread::yield_now();
    }
    let written = fs::read(&present.path).expect("it was just written");
    Stores { older, present, written }
}

/// Loads the file that `input` describes as the only record of a volume.
///
/// # Panics
/// When a record that is not sound is believed, or an error does not name its file.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(file) = RecordFile::arbitrary(&mut input) else { return };
    STORES.with(|cell| {
        let stores = cell.get_or_init(stores);
        let bytes = file.bytes(&stores.written);
        let believed = load(&stores.present, &bytes);
        assert_eq!(believed.is_some(), bytes == stores.written);
        let believed = load(&stores.older, &bytes);
        let is_sound = bytes.len() == FILE_BYTES && bytes == sound(1, &bytes[8..AT_CRC]);
        assert_eq!(believed.is_some(), is_sound, "by its checksum");
        if let Some(record) = believed {
            assert_eq!(record.epoch.to_le_bytes(), bytes[8..16]);
        }
    });
}

fn load(store: &RecordDirectory, bytes: &[u8]) -> Option<Record> {
    fs::write(&store.path, bytes).expect("a file of ours");
    match store.records.load() {
        Ok(records) => {
            assert_eq!(records.len(), 1);
            Some(records["alice"])
        }
        Err(error) => {
            assert!(error.path.ends_with("volume/alice"), "{error}");
            assert!(!error.reason.is_empty());
            None
        }
    }
}
