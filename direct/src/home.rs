//! The files by which clients of this machine know of each other: the disk of each volume, and the
//! socket of its client.
//!
//! ```text
//!   io1@alice-root.lock     held by its client for as long as it lives
//!   io1@alice-root.json     the device and its mark; there as long as the device is
//!   io1@alice-root.socket   the client's
//!   io1@alice-root.log      what clients in the background said
//! ```
//!
//! They are lost at the next boot, as devices are.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use config::VolumeRef;
use serde::{Deserialize, Serialize};

use crate::error::DirectError;
use crate::plan::AttachPeer;

/// The directory of the files, unless the command line names another.
pub const DIRECTORY_DEFAULT: &str = "/run/vrio/attach";

/// The longest record. The file may have any content by now.
const RECORD_BYTES_MAX: u64 = 4096;

/// The record of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The volume, as `peer/volume`, or a placed volume alone.
    pub volume: String,
    /// The client's name, which no other client may have meanwhile.
    pub name: String,
    /// The attachment's name.
    pub attachment: String,
    /// The device's number.
    pub dev_id: u32,
    /// The mark tells the device from another one that got its number.
    pub mark: u64,
    /// The client's process, or the last one's.
    pub pid: u32,
    /// The nodes of a placed volume, as the client knew them last.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nodes: BTreeMap<String, AttachPeer>,
}

/// The files of one volume's client.
#[derive(Clone, Debug)]
pub struct Home {
    directory: PathBuf,
    stem: String,
}

impl Home {
    /// The files of this volume, in this directory, which is made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(directory: &Path, volume: &VolumeRef) -> Result<Self, DirectError> {
        let home = Self::at(directory, volume);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|source| home.refuse(directory, source))?;
        Ok(home)
    }

    /// The same without making anything.
    pub fn at(directory: &Path, volume: &VolumeRef) -> Self {
        // A name contains neither of the two characters.
        let stem = volume.to_string().replace('/', "@");
        Self { directory: directory.to_owned(), stem }
    }

    /// The socket at which the client answers.
    pub fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// The log of a client in the background.
    pub fn log(&self) -> PathBuf {
        self.path("log")
    }

    /// Takes the lock; `None` while a client lives.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn lock(&self) -> Result<Option<File>, DirectError> {
        let path = self.path("lock");
        sessions::lock::take(&path).map_err(|source| self.refuse(&path, source))
    }

    /// The record, if there is one.
    ///
    /// # Errors
    /// When it cannot be read, or is not a record of ours.
    pub fn record(&self) -> Result<Option<Record>, DirectError> {
        let path = self.path("json");
        read(&path).map_err(|source| self.refuse(&path, source))
    }

    /// Writes the record, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, record: &Record) -> Result<(), DirectError> {
        let (path, new) = (self.path("json"), self.path("new"));
        let text = serde_json::to_string_pretty(record).expect("numbers and names");
        let written = fs::write(&new, text).and_then(|()| fs::rename(&new, &path));
        written.map_err(|source| self.refuse(&path, source))
    }

    /// Removes the files of a device that is gone. The lock's file stays: a process that removed it
    /// could lock another file than the next client.
    pub fn forget(&self) {
        for end in ["json", "socket"] {
            // An error means that the file is gone already.
            let _ = fs::remove_file(self.path(end));
        }
    }

    fn path(&self, end: &str) -> PathBuf {
        self.directory.join(format!("{}.{end}", self.stem))
    }

    fn refuse(&self, path: &Path, source: io::Error) -> DirectError {
        DirectError::Files { path: path.to_owned(), source }
    }
}

/// The records of a directory.
#[derive(Debug, Default)]
pub struct Records {
    /// The records that can be read, by volume.
    pub readable: Vec<Record>,
    /// The volumes of records that cannot be read, each with the reason.
    pub damaged: BTreeMap<String, DirectError>,
}

/// All records of a directory. A missing directory has none.
///
/// # Errors
/// When the directory cannot be read.
pub fn records(directory: &Path) -> Result<Records, DirectError> {
    let refuse = |path: &Path, source| DirectError::Files { path: path.to_owned(), source };
    let mut records = Records::default();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(records),
        Err(error) => return Err(refuse(directory, error)),
    };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let Some(stem) = stem.filter(|_| path.extension().is_some_and(|end| end == "json")) else {
            continue;
        };
        match read(&path) {
            Ok(record) => records.readable.extend(record),
            // One damaged file must not keep the other volumes from their commands.
            Err(error) => {
                _ = records.damaged.insert(stem.replace('@', "/"), refuse(&path, error));
            }
        }
    }
    records.readable.sort_by(|a: &Record, b| a.volume.cmp(&b.volume));
    Ok(records)
}

fn read(path: &Path) -> io::Result<Option<Record>> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
        Ok(found) if !found.is_file() || found.len() > RECORD_BYTES_MAX => {
            let why = "it is no file, or too long for a record";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(_) => {}
    }
    let text = fs::read_to_string(path)?;
    serde_json::from_str(&text).map(Some).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> VolumeRef {
        let (peers, volume) = (vec!["io1".to_owned()], "alice-root".to_owned());
        VolumeRef { peers, volume, is_placed: false }
    }

    #[test]
    fn a_record_is_read_back_and_listed_until_it_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let inner = directory.path().join("attach");
        assert_eq!(records(&inner).unwrap().readable, []);
        let home = Home::new(&inner, &volume()).unwrap();
        assert_eq!(home.record().unwrap(), None);
        let record = Record {
            volume: volume().to_string(),
            name: "web1".to_owned(),
            attachment: "web1".to_owned(),
            dev_id: 3,
            mark: 77,
            pid: 1,
            nodes: BTreeMap::new(),
        };
        home.write(&record).unwrap();
        assert_eq!(home.record().unwrap().as_ref(), Some(&record));
        assert_eq!(records(&inner).unwrap().readable, [record]);
        home.forget();
        assert_eq!(records(&inner).unwrap().readable, []);
    }

    #[test]
    fn malformed_records_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path(), &volume()).unwrap();
        for wrong in ["", "{}", "[1]", &"x".repeat(5000)] {
            fs::write(home.path("json"), wrong).unwrap();
            let error = home.record().unwrap_err().to_string();
            assert!(error.contains("io1@alice-root.json"), "{error}");
            let found = records(directory.path()).unwrap();
            let named = found.damaged.keys().next().map(|name| &**name);
            assert_eq!((found.readable.len(), named), (0, Some("io1/alice-root")));
        }
        // A directory in its place is an error.
        fs::remove_file(home.path("json")).unwrap();
        fs::create_dir(home.path("json")).unwrap();
        home.record().unwrap_err();
    }

    #[test]
    fn one_client_of_a_volume_lives() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::new(directory.path(), &volume()).unwrap();
        let lock = home.lock().unwrap();
        assert!(lock.is_some());
        assert!(home.lock().unwrap().is_none());
        drop(lock);
        assert!(home.lock().unwrap().is_some());
    }
}
