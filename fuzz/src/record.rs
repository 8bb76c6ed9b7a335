//! The attachment's record: a file that a power cut, a disk or a hand may have damaged. It is
//! believed only if it is, byte for byte, what would be written for what was read out of it.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ::block::record::{FileRecords, Record, RecordStore, RecordWriter};
use arbitrary::{Arbitrary, Unstructured};

use crate::packet::crc32c;

/// The file's length and where its checksum is; `block/src/record/file.rs` has the layout.
const FILE_BYTES: usize = 112;
const AT_CRC: usize = FILE_BYTES - 4;

#[derive(Arbitrary, Debug)]
enum File<'a> {
    /// Any bytes.
    Raw(&'a [u8]),
    /// The right length, magic and checksum.
    Sound { version: u32, rest: [u8; AT_CRC - 8] },
    /// As it should be, but for one byte.
    Damaged { rest: [u8; AT_CRC - 8], at: u8, by: u8 },
}

impl File<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Raw(bytes) => bytes.to_vec(),
            Self::Sound { version, rest } => sound(*version, rest),
            Self::Damaged { rest, at, by } => {
                let mut bytes = sound(1, rest);
                bytes[usize::from(*at) % FILE_BYTES] ^= by;
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

/// A directory of one volume's records, and its writer.
struct Store {
    records: Arc<FileRecords>,
    directory: PathBuf,
    _home: tempfile::TempDir,
}

thread_local! {
    static STORE: OnceLock<Store> = const { OnceLock::new() };
}

fn store() -> Store {
    let home = tempfile::tempdir().expect("a directory");
    let writer = RecordWriter::start().expect("a thread");
    let records = FileRecords::open(home.path(), "volume", writer).expect("a directory");
    Store { records, directory: home.path().join("volume"), _home: home }
}

/// Loads the file that `input` describes as the only record of a volume.
///
/// # Panics
/// When it is believed although it is not sound, or an error does not name it.
pub fn run(input: &[u8]) {
    let mut input = Unstructured::new(input);
    let Ok(file) = File::arbitrary(&mut input) else { return };
    STORE.with(|cell| try_file(cell.get_or_init(store), &file.bytes()));
}

fn try_file(store: &Store, bytes: &[u8]) {
    let path = store.directory.join("alice");
    fs::write(&path, bytes).expect("a file of ours");
    match store.records.load() {
        Ok(records) => {
            assert_eq!(records.len(), 1);
            let record = records["alice"];
            // Only zero is not clean, so another number may be written back as 1.
            let mut wanted = sound(1, &bytes[8..AT_CRC]);
            if record.clean {
                wanted[AT_CRC - 4..AT_CRC].copy_from_slice(&1u32.to_le_bytes());
                wanted = sound(1, &wanted[8..AT_CRC]);
            }
            assert_eq!(bytes, sound(1, &bytes[8..AT_CRC]), "a damaged record was believed");
            assert_eq!(written(store, record), wanted, "{record:?}");
        }
        Err(error) => {
            assert!(error.path.ends_with("volume/alice"), "{error}");
            assert!(!error.reason.is_empty());
            let sound = bytes.len() == FILE_BYTES && bytes == sound(1, &bytes[8..AT_CRC]);
            assert!(!sound, "a sound record was refused: {error}");
        }
    }
}

/// What the store makes of a record.
fn written(store: &Store, record: Record) -> Vec<u8> {
    let ticket = store.records.write("alice", record);
    while ticket.result().is_none() {
        std::thread::yield_now();
    }
    fs::read(store.directory.join("alice")).expect("it was just written")
}
