//! The directory of a node's records: for the node's user alone, and with a secret of its own.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::rand::{GetRandomFlags, getrandom};
use zeroize::Zeroizing;

use super::file::{attachment_name, refused};
use super::sealed::{RecordBody, SECRET_BYTES, Secret, seal};
use super::{RecordError, plain};

/// The secret. Never a volume's directory, whose names have no dots.
const SECRET: &str = ".secret";

/// The secret before any record was written under it.
const SECRET_BEFORE: &str = ".secret.new";

/// The ending of a file that is being written; such a file means nothing.
pub(super) const UNFINISHED: &str = "new";

/// Makes a file that only this user reads and writes, under any umask, or empties it.
///
/// # Errors
/// The system's answer.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(path)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    Ok(file)
}

/// Makes a directory that only this user uses, under any umask. A directory that exists and is open
/// to other users is closed to them, and the log says so.
///
/// # Errors
/// The system's answer, also when the directory is another user's.
pub fn make_private(path: &Path) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    close_to_others(&File::open(path)?, path, 0o700)
}

/// Takes what others may do with a file or a directory from them.
fn close_to_others(file: &File, path: &Path, mode: u32) -> io::Result<()> {
    let found = file.metadata()?.permissions().mode() & 0o777;
    if found & 0o077 == 0 && found & mode == mode {
        return Ok(());
    }
    file.set_permissions(fs::Permissions::from_mode(mode)).map_err(|error| {
        let owner = file.metadata().map(|found| found.uid()).unwrap_or_default();
        let text = format!("user {owner} owns it, and others may use it ({error}); chown it");
        io::Error::new(error.kind(), text)
    })?;
    if found & 0o077 != 0 {
        tracing::warn!(
            path = %path.display(),
            found = format!("{found:o}"),
            now = format!("{mode:o}"),
            "other users could access a part of \"state\"; the node has removed this right"
        );
    }
    Ok(())
}

/// The content of a file of the directory. The file is closed to other users first.
pub(super) fn read_private(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe must not be waited for.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let mut file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => io::Error::other("it is a symbolic link; it must be the file itself"),
        _ => error,
    })?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    close_to_others(&file, path, 0o600)?;
    let mut bytes = Vec::new();
    // No file of ours is longer.
    Read::take(&mut file, 4096).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes beside, syncs, renames, syncs the directory.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().expect("a file of ours has a name");
    let mut unfinished = name.to_owned();
    unfinished.push(format!(".{UNFINISHED}"));
    let unfinished = path.with_file_name(unfinished);
    let mut file = create_private(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    sync(path)
}

/// Makes the names beside this one durable.
pub(super) fn sync(path: &Path) -> io::Result<()> {
    File::open(path.parent().expect("a file of ours lies in a directory"))?.sync_all()
}

/// A directory of records, and the secret of their codes.
///
/// Records of older programs have no code. They are believed as long as the secret has no name of
/// its own yet: until the first record is written, and all that are there are put under the secret
/// with it. So a directory that only an older program goes on with (a hand-over that failed, a
/// release that was taken back) stays as it was; and later no record without a code is believed.
#[derive(Debug)]
pub(super) struct Home {
    directory: PathBuf,
    secret: Secret,
    /// The secret has its name.
    is_named: AtomicBool,
}

impl Home {
    /// # Errors
    /// When the secret cannot be read or made.
    pub(super) fn open(directory: &Path) -> Result<Self, RecordError> {
        let (path, before) = (directory.join(SECRET), directory.join(SECRET_BEFORE));
        let home = |bytes: &Bytes, is_named| Self {
            directory: directory.to_owned(),
            secret: Secret::new(bytes),
            is_named: AtomicBool::new(is_named),
        };
        if let Some(bytes) = read_secret(&path)? {
            return Ok(home(&bytes, true));
        }
        if let Some(bytes) = read_secret(&before)? {
            return Ok(home(&bytes, false));
        }
        let bytes = make_secret(&before).map_err(|error| refused(&before, &error))?;
        // It got its name, by the writer, since the first look.
        if let Some(bytes) = read_secret(&path)? {
            fs::remove_file(&before).map_err(|error| refused(&before, &error))?;
            return Ok(home(&bytes, true));
        }
        Ok(home(&bytes, false))
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Whether records of older programs are believed.
    pub(super) fn believes_plain(&self) -> bool {
        !self.is_named.load(Relaxed)
    }

    /// Puts every sound record of an older program under the secret, and gives the secret its name.
    /// This comes before any record is written, on the writer's thread. A record that is not sound
    /// stays and stops its volume.
    pub(super) fn settle(&self) -> io::Result<()> {
        if self.is_named.load(Relaxed) {
            return Ok(());
        }
        let (path, before) = (self.directory.join(SECRET), self.directory.join(SECRET_BEFORE));
        // Not if another volume of this node was the first.
        if !path.exists() {
            self.upgrade()?;
            fs::rename(&before, &path)?;
            sync(&path)?;
        }
        self.is_named.store(true, Relaxed);
        Ok(())
    }

    fn upgrade(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // A name with a dot is not a volume's.
            if !entry.file_type()?.is_dir() || name.contains('.') {
                continue;
            }
            let volume = attachment_name(&name);
            for path in files_in(&entry.path())? {
                let name = attachment_name(&path.file_name().unwrap_or_default().to_string_lossy());
                let Ok(bytes) = read_private(&path) else { continue };
                if let Some(record) = plain::read(&bytes) {
                    let body = RecordBody::from(&record);
                    replace(&path, &seal(&self.secret, [&volume, &name], &body))?;
                }
            }
        }
        Ok(())
    }
}

type Bytes = Zeroizing<[u8; SECRET_BYTES]>;

fn read_secret(path: &Path) -> Result<Option<Bytes>, RecordError> {
    let bytes = match read_private(path) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refused(path, &error)),
    };
    let bytes = <[u8; SECRET_BYTES]>::try_from(&bytes[..]).map_err(|_| {
        let text = format!(
            "the secret of the records has {} bytes instead of {SECRET_BYTES}; restore the whole \
             directory from a backup, or remove it with all records beside it and set accept-loss \
             on the disks whose guests will continue without them",
            bytes.len()
        );
        refused(path, &text)
    })?;
    Ok(Some(Zeroizing::new(bytes)))
}

fn make_secret(path: &Path) -> io::Result<Bytes> {
    let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
    getrandom(&mut *bytes, GetRandomFlags::empty())?;
    replace(path, &*bytes)?;
    Ok(bytes)
}

/// The records in a volume's directory: names of attachments have no dots.
pub(super) fn files_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if !path.file_name().unwrap_or_default().to_string_lossy().contains('.') {
            files.push(path);
        }
    }
    Ok(files)
}
