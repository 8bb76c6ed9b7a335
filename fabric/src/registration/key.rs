//! A domain's key: a line of text that members and node have in common.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// The shortest key: 16 characters that a machine drew cannot be guessed from a server
/// that answers one guess at a time.
pub const KEY_BYTES_MIN: usize = 16;

/// The longest key: a message has room for it.
pub const KEY_BYTES_MAX: usize = 128;

/// Rights that others may not have to a key file. Its group may read it: the users of the domain.
const MODE_OTHERS: u32 = 0o007;

/// A domain's key. Not shown, and wiped when it is dropped.
#[derive(Clone)]
pub struct DomainKey {
    /// Filled up with zeroes, which no key contains: two keys are compared whole.
    bytes: Zeroizing<[u8; KEY_BYTES_MAX]>,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It is too short or too long, or has bytes that cannot be seen.
    #[error(
        "a domain's key is one line of {KEY_BYTES_MIN} to {KEY_BYTES_MAX} letters, digits and \
         signs without spaces; `openssl rand -hex 32` makes one"
    )]
    Form,
    /// Its file cannot be read.
    #[error("cannot read {path:?}: {source}; its owner can allow it: chgrp GROUP, chmod 640")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The path leads to no file, or to a long one.
    #[error("{0:?} is not a key file; name a file with the key as its only line")]
    NotAFile(PathBuf),
    /// Every user may read it.
    #[error(
        "all users may read or write {path:?} (mode {mode:04o}): chmod o= {path:?}, and make \
         another key if another user can have read this one"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

impl DomainKey {
    /// A key as it is written.
    ///
    /// # Errors
    /// When it is none.
    pub fn new(text: &str) -> Result<Self, KeyError> {
        let is_sound = (KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_sound {
            return Err(KeyError::Form);
        }
        let mut bytes = Zeroizing::new([0; KEY_BYTES_MAX]);
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes })
    }

    /// The key that is the only line of a file.
    ///
    /// # Errors
    /// When the file is none that only its owner and group can read, or has no key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let read = |source| KeyError::Read { path: path.to_owned(), source };
        // Not to wait for a writer where the path leads to a pipe.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let mut options = OpenOptions::new();
        let mut file = options.read(true).custom_flags(nonblock).open(path).map_err(read)?;
        let found = file.metadata().map_err(read)?;
        if !found.is_file() {
            return Err(KeyError::NotAFile(path.to_owned()));
        }
        let mode = found.mode() & 0o7777;
        if mode & MODE_OTHERS != 0 {
            return Err(KeyError::Open { path: path.to_owned(), mode });
        }
        // A line's end, and one byte more that says that it is too long.
        const ROOM: usize = KEY_BYTES_MAX + 3;
        let mut bytes = Zeroizing::new(Vec::with_capacity(ROOM + 1));
        (&mut file).take(ROOM as u64).read_to_end(&mut bytes).map_err(read)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| KeyError::Form)?;
        Self::new(text.trim_end())
    }

    /// As it is sent: filled up with zeroes.
    pub fn bytes(&self) -> &[u8; KEY_BYTES_MAX] {
        &self.bytes
    }

    /// Whether these are its bytes. Takes the same time for all bytes.
    pub fn is(&self, bytes: &[u8; KEY_BYTES_MAX]) -> bool {
        self.bytes[..].ct_eq(&bytes[..]).into()
    }
}

impl fmt::Debug for DomainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl PartialEq for DomainKey {
    fn eq(&self, other: &Self) -> bool {
        self.is(&other.bytes)
    }
}

impl Eq for DomainKey {}
