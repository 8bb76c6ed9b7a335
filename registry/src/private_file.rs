//! Files for their owner alone, which are whole or not there.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

/// The longest file that is read: certificates are a few kilobytes, and a wrong path may lead to
/// any file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Makes a directory for its owner alone, with those above it. It belongs to the owner of the
/// directory above it, as a file does ([`open`]).
///
/// # Errors
/// When the system refuses it.
pub fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    make_directory(above(path))?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.and_then(|()| give(&open_found(path)?, above(path))),
    }
}

/// Opens a file or a directory that is there; not what a symbolic link of another user names.
fn open_found(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(NO_LINK).open(path)
}

const NO_LINK: i32 = rustix::fs::OFlags::NOFOLLOW.bits() as i32;

/// A pipe in the place of a file would be waited for without end.
const NO_WAIT: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

/// Refuses all but a file: a pipe, a device or a directory has no content of ours.
fn only_file(file: File) -> io::Result<File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file")),
    }
}

/// Opens a file for reading.
///
/// # Errors
/// When the system refuses it, or it is no file.
pub fn open_to_read(path: &Path) -> io::Result<File> {
    only_file(OpenOptions::new().read(true).custom_flags(NO_WAIT).open(path)?)
}

/// Gives a file of root's to the owner of a directory: the operator is root, and a node's agent is
/// not.
fn give(file: &File, directory: &Path) -> io::Result<()> {
    let (own, wanted) = (file.metadata()?, std::fs::metadata(directory)?);
    let is_owners = (own.uid(), own.gid()) == (wanted.uid(), wanted.gid());
    if !is_owners && rustix::process::geteuid().is_root() {
        fchown(file, Some(wanted.uid()), Some(wanted.gid()))?;
    }
    Ok(())
}

/// The directory of a file.
fn above(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens a file for writing, and makes it if it is missing. It belongs to the owner of its
/// directory. A symbolic link is refused: root would write where another user says.
///
/// # Errors
/// When the system refuses it, or it is no file.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true).mode(0o600);
    let file = only_file(options.custom_flags(NO_LINK | NO_WAIT).open(path)?)?;
    give(&file, above(path))?;
    Ok(file)
}

/// Puts a file in the place of the old one, if there is one.
///
/// # Errors
/// When the system refuses it. The old file is there then, or the new one.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = open(&new)?;
    file.set_len(0)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(above(path))?.sync_all()
}

/// Reads a file of bounded length.
///
/// # Errors
/// When the system refuses it, or it is no file, or the file is too long.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_to_read(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut content)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the file is too long"));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before, the reader waited for a writer that never came.
    #[test]
    fn a_pipe_in_the_place_of_a_file_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        open(&path).unwrap_err();
        open_to_read(home.path()).unwrap_err();
        // A new file takes its place.
        replace(&path, b"content").unwrap();
        assert_eq!(read(&path).unwrap(), b"content");
    }

    #[test]
    fn a_new_file_belongs_to_the_owner_of_its_directory() {
        if !rustix::process::geteuid().is_root() {
            return println!("SKIP a_new_file_belongs_to_the_owner_of_its_directory: not root");
        }
        let home = tempfile::tempdir().unwrap();
        fchown(File::open(home.path()).unwrap(), Some(65534), Some(65534)).unwrap();
        let path = home.path().join("a");
        for content in ["longer", "short"] {
            replace(&path, content.as_bytes()).unwrap();
            assert_eq!(read(&path).unwrap(), content.as_bytes());
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (65534, 65534, 0o600));
        }
        let deep = home.path().join("b/c");
        make_directory(&deep).unwrap();
        make_directory(&deep).unwrap();
        for path in [deep.clone(), home.path().join("b")] {
            let found = std::fs::metadata(path).unwrap();
            assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (65534, 65534, 0o700));
        }
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let home = tempfile::tempdir().unwrap();
        let (target, link) = (home.path().join("target"), home.path().join("a.new"));
        std::fs::write(&target, "mine").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(replace(&home.path().join("a"), b"theirs").is_err());
        assert_eq!(std::fs::read(&target).unwrap(), b"mine");
    }

    #[test]
    fn a_file_that_is_too_long_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a");
        open(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
