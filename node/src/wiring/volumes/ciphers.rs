//! The keys that encrypt volumes, and the check that a key is the one of the volume's blocks.
//!
//! The format has no header. Under a wrong key a guest reads noise, and its writes are noise under
//! the right key. So the key's check value is remembered twice: as an attribute of the file, which
//! goes where the file goes, and in the directory of records, for block devices, file systems
//! without attributes, and copies that lost the attribute. Where both exist, both must agree.
//!
//! The check value is noted when the volume is first claimed, before any write is possible, and not
//! when it is opened: a node that opens a volume and then does not start leaves no key behind.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use config::{StageConfig, VolumeConfig, encryption};
use parking_lot::Mutex;
use rustix::fs::{FileType, XattrFlags, fgetxattr, fsetxattr, fstat, fsync};
use rustix::io::Errno;
use sessions::key_files;
use volume::record::{FirstWriteStep, RecordError, RecordStore, create_private};
use volume::{backend::BackendVolume, stage::VolumeKey};

/// The name of the attribute with a file's check value.
const ATTRIBUTE: &str = "user.vrio.key-check";

/// The ending of a file with a check value in the directory of records. Volumes' names may have
/// dots; a volume's own directory of records has none in its name, so the two never collide.
const ENDING: &str = "key-check";

/// The longest check value.
const CHECK_BYTES_MAX: usize = 64;

/// The key of the stage that encrypts, if there is one.
///
/// # Errors
/// When its file is not a sound key file.
pub(crate) fn read(chain: &[StageConfig]) -> Result<Option<Arc<VolumeKey>>, String> {
    let key = encryption(chain).map(key_files::read_volume).transpose();
    Ok(key.map_err(|error| error.to_string())?.map(Arc::new))
}

/// Why two volumes of a node cannot have the same key: a reader of both files would see where they
/// are alike.
pub(crate) fn same_key<'a>(
    key: Option<&VolumeKey>,
    mut others: impl Iterator<Item = (&'a str, &'a VolumeKey)>,
) -> Option<String> {
    let key = key?;
    let (other, _) = others.find(|(_, other)| *other == key)?;
    Some(format!(
        "volume {other:?} has the same key (check value {}), from another file; each volume needs \
         a key of its own: `vrio key new --volume FILE`",
        key.check()
    ))
}

/// Whether a chain is under this key, which comes from the file `running`. A key file that was
/// renamed, with the same key, changes nothing.
///
/// # Errors
/// When the chain's file is no sound key.
pub(crate) fn is_under(
    key: Option<&VolumeKey>,
    running: Option<&Path>,
    chain: &[StageConfig],
) -> Result<bool, String> {
    match (key, encryption(chain)) {
        (None, None) => Ok(true),
        (Some(_), path) if path == running => Ok(true),
        (Some(key), Some(_)) => Ok(read(chain)?.is_some_and(|wanted| *wanted == *key)),
        _ => Ok(false),
    }
}

/// Checks that the file was encrypted with this key before, or without a key where there is none
/// now. It returns the notes that must be made before the first write. It changes nothing itself,
/// so that a start that fails, and a process that does not get to take a node over, leave
/// everything as it was.
///
/// # Errors
/// The data that would be noise, and the way out.
pub(crate) fn verify(
    volume: &VolumeConfig,
    file: &VolumeFile,
    state: &Path,
    key: Option<&VolumeKey>,
    records: &dyn RecordStore,
) -> Result<KeyNote, String> {
    let places = CheckValuePlace::all(volume, file, state)?;
    let is_blank = is_blank(file)?;
    // A record beside a blank file is about an earlier file of this name.
    let is_about_it =
        |place: &CheckValuePlace| !(is_blank && matches!(place, CheckValuePlace::Record(_)));
    let known = |place: CheckValuePlace| {
        let known = if is_about_it(&place) { place.read()? } else { None };
        Ok::<_, String>((place, known))
    };
    let known: Vec<_> = places.into_iter().map(known).collect::<Result<_, _>>()?;
    let known_first = known.iter().find_map(|(_, known)| known.as_ref());
    let forget = || {
        let said = known.iter().filter(|(_, known)| known.is_some());
        said.map(|(place, _)| place.how_to_forget()).collect::<Vec<_>>().join(" && ")
    };
    let Some(path) = encryption(&volume.chain) else {
        return match known_first {
            None if is_blank => Ok(KeyNote::new(volume, None, known)),
            None => Ok(KeyNote::new(volume, None, Vec::new())),
            Some(known) => Err(format!(
                "it is encrypted (check value {known}) and its chain has no {{ encrypt = .. }}, so \
                 guests would see unreadable data and overwrite it. Add the stage; to discard the \
                 encrypted data instead: {}",
                forget()
            )),
        };
    };
    let check = key.expect("read with the chain").check();
    if let Some(known) =
        known.iter().filter_map(|(_, known)| known.as_ref()).find(|it| **it != check)
    {
        return Err(format!(
            "{path:?} is another key (check value {check}) than what it was encrypted with \
             ({known}), so guests would see unreadable data and overwrite it. Name the right file: \
             `vrio key show FILE` prints a key's check value; to discard the encrypted data \
             instead: {}",
            forget()
        ));
    }
    if known_first.is_none() && !volume.read_only && !is_blank {
        // Where records cannot be believed no disk is admitted, so nothing is written under the
        // key.
        let used = records.load().unwrap_or_default();
        if !used.is_empty() {
            return Err(unknown(&known[0].0, path, &check));
        }
    }
    Ok(KeyNote::new(volume, Some(check), known))
}

/// The note about a volume's key that must be made, or removed, before the volume's first record is
/// written, and so before a guest's first write.
#[derive(Debug)]
pub(crate) struct KeyNote {
    volume: String,
    /// The check value of the key that encrypts it from now on.
    begins: Option<String>,
    left: Mutex<Vec<(CheckValuePlace, CheckValueChange)>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum CheckValueChange {
    Write(String),
    Forget,
}

impl KeyNote {
    fn new(
        volume: &VolumeConfig,
        check: Option<String>,
        known: Vec<(CheckValuePlace, Option<String>)>,
    ) -> Self {
        let is_new = known.iter().all(|(_, known)| known.is_none());
        let missing = known.into_iter().filter(|(_, known)| known.is_none());
        let step = |place: CheckValuePlace| match (&check, &place) {
            // A file of a read-only volume is left as it is.
            (Some(_), CheckValuePlace::Attribute(_)) if volume.read_only => None,
            (Some(check), _) => Some((place, CheckValueChange::Write(check.clone()))),
            // The record is about an earlier file.
            (None, CheckValuePlace::Record(_)) => Some((place, CheckValueChange::Forget)),
            (None, CheckValuePlace::Attribute(_)) => None,
        };
        let left = Mutex::new(missing.filter_map(|(place, _)| step(place)).collect());
        let begins = check.filter(|_| is_new && !volume.read_only);
        Self { volume: volume.name.clone(), begins, left }
    }
}

impl FirstWriteStep for KeyNote {
    fn do_it(&self) -> Result<(), RecordError> {
        let mut left = self.left.lock();
        if left.is_empty() {
            return Ok(());
        }
        while let Some((place, step)) = left.first() {
            let done = match step {
                CheckValueChange::Write(check) => place.write(check),
                CheckValueChange::Forget => place.forget(),
            };
            done.map_err(|reason| RecordError { path: place.to_string(), reason })?;
            left.remove(0);
        }
        if let Some(check) = &self.begins {
            tracing::info!(
                volume = self.volume,
                check,
                "encrypted with this key from now on; without a copy of the key's file the volume \
                 can never be read again"
            );
        }
        Ok(())
    }
}

/// An opened volume that keeps its content when the node ends: it has a file or block device, or is
/// in a pool.
#[derive(Clone, Debug)]
pub(crate) struct VolumeFile(Arc<dyn BackendVolume>);

impl VolumeFile {
    /// Such a volume; none for a volume whose content goes with the node.
    pub(crate) fn of(backend: &Arc<dyn BackendVolume>) -> Option<Self> {
        let has_file = backend.path().is_some() && backend.descriptor().is_some();
        (has_file || backend.in_pool().is_some()).then(|| Self(Arc::clone(backend)))
    }

    /// Whether it is in a pool, and so has no file of its own.
    fn is_in_pool(&self) -> bool {
        self.0.in_pool().is_some()
    }

    fn path(&self) -> &Path {
        self.0.path().expect("looked at when it was made")
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.0.descriptor().expect("looked at when it was made")
    }
}

/// Whether it is known that it was never written.
fn is_blank(file: &VolumeFile) -> Result<bool, String> {
    if file.is_in_pool() {
        return Ok(false);
    }
    let found = fstat(file.file()).map_err(|error| format!("{:?}: {error}", file.path()))?;
    Ok(FileType::from_raw_mode(found.st_mode).is_file() && found.st_blocks == 0)
}

/// The error for a volume that guests have used, with no note of a key, or of none.
fn unknown(place: &CheckValuePlace, key: &Path, check: &str) -> String {
    format!(
        "guests have used it, and it has no note that it is encrypted: it was used without \
         encryption, or it is a copy that lost its attributes. If it is encrypted with {key:?}, \
         note this: {}; if not, copy its data to a volume that is encrypted from the start",
        place.how_to_say(check)
    )
}

/// A place of a volume's check value.
#[derive(Debug)]
enum CheckValuePlace {
    Attribute(VolumeFile),
    Record(PathBuf),
}

impl fmt::Display for CheckValuePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attribute(file) => write!(f, "{ATTRIBUTE} of {:?}", file.path()),
            Self::Record(path) => write!(f, "{path:?}"),
        }
    }
}

impl CheckValuePlace {
    /// All places for this volume, the file's own first.
    fn all(volume: &VolumeConfig, file: &VolumeFile, state: &Path) -> Result<Vec<Self>, String> {
        let refused = |error: Errno| {
            format!(
                "cannot read the attributes of {:?}, which would say whether it is encrypted: \
                 {error}; check its file system and the file's permissions",
                file.path()
            )
        };
        let record = Self::in_state(state, &volume.name);
        if file.is_in_pool() {
            return Ok(vec![record]);
        }
        let found = fstat(file.file()).map_err(refused)?;
        // A block device answers that it has none, and takes none.
        let is_regular = FileType::from_raw_mode(found.st_mode).is_file();
        let attribute = match fgetxattr(file.file(), ATTRIBUTE, &mut [0; CHECK_BYTES_MAX]) {
            // A longer value is not one of ours: it is shown as it is.
            Ok(_) | Err(Errno::NODATA | Errno::RANGE) if is_regular => {
                Some(Self::Attribute(file.clone()))
            }
            Ok(_) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM) => None,
            Err(error) => return Err(refused(error)),
        };
        Ok(attribute.into_iter().chain([record]).collect())
    }

    fn in_state(state: &Path, volume: &str) -> Self {
        Self::Record(state.join(format!("{volume}.{ENDING}")))
    }

    fn read(&self) -> Result<Option<String>, String> {
        let found = match self {
            Self::Attribute(file) => {
                let mut bytes = [0; CHECK_BYTES_MAX];
                match fgetxattr(file.file(), ATTRIBUTE, &mut bytes) {
                    Ok(len) => Ok(Some(bytes[..len].to_vec())),
                    Err(Errno::NODATA) => Ok(None),
                    Err(Errno::RANGE) => Ok(Some(b"longer than any".to_vec())),
                    Err(error) => Err(error.into()),
                }
            }
            Self::Record(path) => match fs::read(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                read => read.map(Some),
            },
        };
        let text = found.map_err(|error| format!("cannot read {self}: {error}"))?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).trim_end().to_owned()))
    }

    /// Writes durably: a guest's first write comes a moment later.
    fn write(&self, check: &str) -> Result<(), String> {
        let written = match self {
            Self::Attribute(file) => {
                let set = fsetxattr(file.file(), ATTRIBUTE, check.as_bytes(), XattrFlags::CREATE);
                // The attribute may exist from an attempt that could not make it durable.
                let is_there = set == Err(Errno::EXIST) && self.read()?.as_deref() == Some(check);
                let set = if is_there { Ok(()) } else { set };
                set.and_then(|()| fsync(file.file())).map_err(io::Error::from)
            }
            // The value goes to a file beside it first: half a value would be another value.
            Self::Record(path) => {
                let unfinished = path.with_extension("new");
                create_private(&unfinished).and_then(|mut file| {
                    writeln!(file, "{check}")?;
                    file.sync_all()?;
                    fs::rename(&unfinished, path)?;
                    File::open(path.parent().expect("in a directory"))?.sync_all()
                })
            }
        };
        written.map_err(|error| format!("cannot note the volume's key there: {error}"))
    }

    fn forget(&self) -> Result<(), String> {
        let Self::Record(path) = self else { return Ok(()) };
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("it is about another file and cannot be removed: {error}"))
            }
            _ => Ok(()),
        }
    }

    fn how_to_forget(&self) -> String {
        match self {
            Self::Attribute(file) => format!("setfattr -x {ATTRIBUTE} {:?}", file.path()),
            Self::Record(path) => format!("rm {path:?}"),
        }
    }

    fn how_to_say(&self, check: &str) -> String {
        match self {
            Self::Attribute(file) => {
                format!("setfattr -n {ATTRIBUTE} -v {check} {:?}", file.path())
            }
            Self::Record(path) => format!("echo {check} > {path:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Block devices have this place instead of an attribute.
    #[test]
    fn a_check_value_in_the_directory_of_records_is_found_again_whole_or_not_at_all() {
        let home = tempfile::tempdir().expect("a directory");
        let place = CheckValuePlace::in_state(home.path(), "a");
        assert_eq!(place.read(), Ok(None));
        // A power cut left a part of it, before it had its final name.
        fs::write(home.path().join("a.new"), "0123").expect("room");
        assert_eq!(place.read(), Ok(None));
        place.write("0123456789abcdef").expect("room");
        assert_eq!(place.read(), Ok(Some("0123456789abcdef".to_owned())));
        assert_eq!(CheckValuePlace::in_state(home.path(), "b").read(), Ok(None));
        assert!(place.how_to_forget().contains("a.key-check"));
        place.forget().expect("it is there");
        assert_eq!((place.read(), place.forget()), (Ok(None), Ok(())));
    }
}
