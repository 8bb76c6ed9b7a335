//! Key files: `vrio key` makes them, and a node reads them.
//!
//! A file of three lines, for its owner alone:
//!
//! ```text
//! vrio node key
//! secret: 4S6TGm2m...
//! public: 7Zk1x0eW...
//! ```
//!
//! The first line says the kind of the key, so that a key is not taken for one of another kind. The
//! last line shows that the file is whole, since it follows from the secret. A volume's key is not
//! half of a pair: the last line is its check value, `check: `, which tells it from other keys.

use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use peer::AttachmentSecret;
use rustix::rand::{GetRandomFlags, getrandom};
use transport::SecretKey;
use volume::stage::VolumeKey;
use zeroize::Zeroizing;

/// The mode of a key file: only its owner reads and writes it.
const MODE: u32 = 0o600;

/// The mode of a directory that is made for a key: that of `/etc/vrio` in the packages.
const DIRECTORY_MODE: u32 = 0o750;

/// The bits that the mode of a key file must not have.
const MODE_OTHERS: u32 = 0o077;

/// The longest file that is read as a key. A wrong path may lead to any file.
const FILE_BYTES_MAX: u64 = 1024;

/// The longest secret.
const SECRET_BYTES_MAX: usize = VolumeKey::BYTES;

/// The purpose of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Proves which node this is: X25519.
    Node,
    /// Proves whose attachment it is: Ed25519.
    Attachment,
    /// Encrypts a volume: AES-256-XTS.
    Volume,
}

impl KeyKind {
    fn header(self) -> &'static str {
        match self {
            Self::Node => "vrio node key",
            Self::Attachment => "vrio attachment key",
            Self::Volume => "vrio volume key",
        }
    }

    fn secret_bytes(self) -> usize {
        match self {
            Self::Node | Self::Attachment => 32,
            Self::Volume => VolumeKey::BYTES,
        }
    }

    /// The beginning of the last line of a file.
    fn last_line(self) -> &'static str {
        match self {
            Self::Node | Self::Attachment => "public: ",
            Self::Volume => "check: ",
        }
    }

    /// The way out when a file is not whole.
    fn rescue(self) -> &'static str {
        match self {
            Self::Node | Self::Attachment => {
                "without a copy make a new key and replace its public key everywhere"
            }
            Self::Volume => "without a copy the volume can never be read again",
        }
    }

    /// The command that makes a key of this kind.
    fn recipe(self) -> &'static str {
        match self {
            Self::Node => "vrio key new FILE",
            Self::Attachment => "vrio key new --attachment FILE",
            Self::Volume => "vrio key new --volume FILE",
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::Attachment => "attachment",
            Self::Volume => "volume",
        })
    }
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
#[error("key file {path:?}: {problem}")]
pub struct KeyError {
    /// The file.
    pub path: PathBuf,
    /// The fault, and the way out.
    pub problem: KeyProblem,
}

/// Faults of a key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyProblem {
    /// There is none.
    #[error("the file does not exist; make one with `{}`", .0.recipe())]
    Missing(KeyKind),
    /// It cannot be read or made.
    #[error("cannot {what}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The system's answer.
        r#source: io::Error,
    },
    /// The file belongs to another user.
    #[error(
        "this process may not read it; it must belong to the user that the node runs as (chown \
         USER {0:?})"
    )]
    Denied(PathBuf),
    /// The file belongs to this process's user, and its place is out of reach.
    #[error(
        "its user is the node's, and this process may not read files in that place: a node that \
         runs reads only what is in its own directories (\"volumes\", \"state\", \"sockets\") \
         and in those of its configuration and of the key files that this named at its start; move \
         the file into one of them and write its new path, or write this path and restart the node"
    )]
    OutOfReach,
    /// It is no file.
    #[error("it is not a regular file; name the file that `vrio key new` made")]
    NotAFile,
    /// It is there already.
    #[error(
        "the file exists and stays as it is: a key that is overwritten is lost. Choose another \
         name, or move the file away"
    )]
    Exists,
    /// Others may read it.
    #[error(
        "others may read or write it (mode {mode:04o}). If no other user can have read it: chmod \
         600 {path:?}; else make a new key and replace this one everywhere"
    )]
    Open {
        /// Its mode.
        mode: u32,
        /// The file.
        path: PathBuf,
    },
    /// It is not a key file.
    #[error(
        "this is not a key file: its first line is not \"{}\"; make one with `{}`",
        .0.header(),
        .0.recipe()
    )]
    NotAKey(KeyKind),
    /// It is a key of another kind.
    #[error("this is {} {found} key and {} {wanted} key is wanted; make one with `{}`",
        article(*.found), article(*.wanted), .wanted.recipe())]
    OtherKind {
        /// The kind of the key in the file.
        found: KeyKind,
        /// The kind that the caller wanted.
        wanted: KeyKind,
    },
    /// Something of it is missing or changed.
    #[error(
        "it is damaged: {what}. Restore it from your copy; {}",
        .kind.rescue()
    )]
    Damaged {
        /// The damaged part.
        what: &'static str,
        /// The kind of the key.
        kind: KeyKind,
    },
}

fn article(kind: KeyKind) -> &'static str {
    match kind {
        KeyKind::Node | KeyKind::Volume => "a",
        KeyKind::Attachment => "an",
    }
}

/// A key with its secret.
#[derive(Debug)]
pub enum StoredKey {
    /// A node's.
    Node(SecretKey),
    /// An attachment's.
    Attachment(AttachmentSecret),
    /// A volume's.
    Volume(VolumeKey),
}

impl StoredKey {
    /// # Errors
    /// The fault of the secret.
    fn from_secret(kind: KeyKind, secret: &[u8]) -> Result<Self, &'static str> {
        let seed = || Zeroizing::new(secret.try_into().expect("as long as its kind is"));
        match kind {
            KeyKind::Node => Ok(Self::Node(SecretKey::from_bytes(*seed()))),
            KeyKind::Attachment => Ok(Self::Attachment(AttachmentSecret::from_seed(&seed()))),
            KeyKind::Volume => {
                // The key is made from the buffer itself: an array of our own would be a copy that
                // is never cleared.
                let key = VolumeKey::from_bytes(secret.try_into().expect("as long as its kind is"));
                key.map(Self::Volume).map_err(|_| "the two halves of its secret are the same")
            }
        }
    }

    /// Its kind.
    pub fn kind(&self) -> KeyKind {
        match self {
            Self::Node(_) => KeyKind::Node,
            Self::Attachment(_) => KeyKind::Attachment,
            Self::Volume(_) => KeyKind::Volume,
        }
    }

    /// The part of the key that is not secret: the public half, as configurations name it, or a
    /// volume's check value.
    pub fn public(&self) -> String {
        match self {
            Self::Node(key) => key.public().to_string(),
            Self::Attachment(key) => key.public().to_string(),
            Self::Volume(key) => key.check(),
        }
    }
}

/// Makes a new key in a new file, and gives it. A directory that is missing is made.
///
/// # Errors
/// When something is there already, or it cannot be made; no file is left behind then.
pub fn create(path: &Path, kind: KeyKind) -> Result<StoredKey, KeyError> {
    let refuse = |problem| KeyError { path: path.to_owned(), problem };
    let mut secret = Zeroizing::new([0; SECRET_BYTES_MAX]);
    let secret = &mut secret[..kind.secret_bytes()];
    let got = getrandom(&mut *secret, GetRandomFlags::empty());
    // Up to 256 bytes come whole.
    let got = got.map_err(io::Error::from).and_then(|len| {
        let is_whole = len == secret.len();
        is_whole.then_some(()).ok_or(io::Error::from(io::ErrorKind::UnexpectedEof))
    });
    got.map_err(|source| refuse(KeyProblem::Io { what: "draw random numbers", source }))?;
    let key = StoredKey::from_secret(kind, secret);
    let key = key.map_err(|what| refuse(KeyProblem::Damaged { what, kind }))?;
    let encoded = Zeroizing::new(BASE64.encode(secret));
    let text = Zeroizing::new(format!(
        "{}\nsecret: {}\n{}{}\n",
        kind.header(),
        *encoded,
        kind.last_line(),
        key.public()
    ));
    let open = || OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
    let mut opened = open();
    if let Some(parent) = path.parent()
        && opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    {
        let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(parent);
        made.map_err(|source| refuse(KeyProblem::Io { what: "make its directory", source }))?;
        opened = open();
    }
    let file = opened.map_err(|source| {
        refuse(match source.kind() {
            io::ErrorKind::AlreadyExists => KeyProblem::Exists,
            _ => KeyProblem::Io { what: "make it", source },
        })
    })?;
    write(path, file, text.as_bytes()).map_err(|source| {
        // A key that is not whole is worse than none.
        let _ = std::fs::remove_file(path);
        refuse(KeyProblem::Io { what: "write it", source })
    })?;
    Ok(key)
}

/// Writes durably: the public half may be in other nodes' configurations a moment later.
fn write(path: &Path, mut file: File, text: &[u8]) -> io::Result<()> {
    file.write_all(text)?;
    file.sync_all()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Reads a key file of any kind.
///
/// # Errors
/// When it is no sound key file that only its owner can read.
pub fn read(path: &Path) -> Result<StoredKey, KeyError> {
    read_kind(path, None)
}

/// Reads a node's secret key.
///
/// # Errors
/// When it is not one.
pub fn read_node(path: &Path) -> Result<SecretKey, KeyError> {
    match read_kind(path, Some(KeyKind::Node))? {
        StoredKey::Node(key) => Ok(key),
        StoredKey::Attachment(_) | StoredKey::Volume(_) => unreachable!("the kind was checked"),
    }
}

/// Reads an attachment's secret key.
///
/// # Errors
/// When it is not one.
pub fn read_attachment(path: &Path) -> Result<AttachmentSecret, KeyError> {
    match read_kind(path, Some(KeyKind::Attachment))? {
        StoredKey::Attachment(key) => Ok(key),
        StoredKey::Node(_) | StoredKey::Volume(_) => unreachable!("the kind was checked"),
    }
}

/// Reads the key that encrypts a volume.
///
/// # Errors
/// When it is not one.
pub fn read_volume(path: &Path) -> Result<VolumeKey, KeyError> {
    match read_kind(path, Some(KeyKind::Volume))? {
        StoredKey::Volume(key) => Ok(key),
        StoredKey::Node(_) | StoredKey::Attachment(_) => unreachable!("the kind was checked"),
    }
}

fn read_kind(path: &Path, wanted: Option<KeyKind>) -> Result<StoredKey, KeyError> {
    let refuse = |problem| KeyError { path: path.to_owned(), problem };
    let text = contents(path, wanted.unwrap_or(KeyKind::Node)).map_err(refuse)?;
    parse(&text, wanted).map_err(refuse)
}

/// Why a file may not be read: of the file's mode, or of the place that it is in. The rules of
/// Landlock, which restrict a node to some places, let it look at a file that they keep it from
/// reading.
fn denied(path: &Path) -> KeyProblem {
    let user = rustix::process::geteuid();
    let is_its = |found: std::fs::Metadata| {
        user.is_root() || found.uid() == user.as_raw() && found.mode() & 0o400 != 0
    };
    match std::fs::metadata(path).is_ok_and(is_its) {
        true => KeyProblem::OutOfReach,
        false => KeyProblem::Denied(path.to_owned()),
    }
}

fn contents(path: &Path, wanted: KeyKind) -> Result<Zeroizing<String>, KeyProblem> {
    let io = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => KeyProblem::Missing(wanted),
        io::ErrorKind::PermissionDenied => denied(path),
        _ => KeyProblem::Io { what: "read it", source },
    };
    // Not to wait for a writer where the path leads to a pipe.
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut options = OpenOptions::new();
    let mut file = options.read(true).custom_flags(nonblock).open(path).map_err(io)?;
    let found = file.metadata().map_err(io)?;
    if !found.is_file() {
        return Err(KeyProblem::NotAFile);
    }
    let mode = found.mode() & 0o7777;
    if mode & MODE_OTHERS != 0 {
        return Err(KeyProblem::Open { mode, path: path.to_owned() });
    }
    // As much as there can be at once: a string that grows leaves pieces of itself behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    (&mut file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(KeyProblem::NotAKey(wanted));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| KeyProblem::NotAKey(wanted))?;
    Ok(Zeroizing::new(text.to_owned()))
}

fn parse(text: &str, wanted: Option<KeyKind>) -> Result<StoredKey, KeyProblem> {
    let mut lines = text.lines().map(str::trim_end);
    let header = lines.next().unwrap_or_default();
    let kinds = [KeyKind::Node, KeyKind::Attachment, KeyKind::Volume];
    let found = kinds.into_iter().find(|kind| kind.header() == header);
    let kind = match (found, wanted) {
        (None, _) => return Err(KeyProblem::NotAKey(wanted.unwrap_or(KeyKind::Node))),
        (Some(found), Some(wanted)) if found != wanted => {
            return Err(KeyProblem::OtherKind { found, wanted });
        }
        (Some(found), _) => found,
    };
    let damaged = |what| KeyProblem::Damaged { what, kind };
    let secret = lines.next().and_then(|line| line.strip_prefix("secret: "));
    let public = lines.next().and_then(|line| line.strip_prefix(kind.last_line()));
    let (Some(secret), Some(public)) = (secret, public) else {
        return Err(damaged("it is cut short"));
    };
    if lines.any(|line| !line.is_empty()) {
        return Err(damaged("there is text after the key"));
    }
    let secret = BASE64.decode(secret.as_bytes()).map(Zeroizing::new);
    let secret = secret.ok().filter(|secret| secret.len() == kind.secret_bytes());
    let Some(secret) = secret else {
        return Err(damaged("its secret is not Base64 of the right length"));
    };
    let key = StoredKey::from_secret(kind, &secret).map_err(damaged)?;
    if key.public() != public {
        return Err(damaged(match kind {
            KeyKind::Node | KeyKind::Attachment => "its public half does not belong to its secret",
            KeyKind::Volume => "its check value does not belong to its secret",
        }));
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// The file is refused as a node's key, and all of this is said.
    fn refused(path: &Path, parts: &[&str]) {
        let error = read_node(path).expect_err("this has to be refused").to_string();
        for part in [&format!("key file {path:?}: ")[..]].iter().chain(parts) {
            assert!(error.contains(part), "{part:?} is missing in: {error}");
        }
    }

    #[test]
    fn a_key_comes_back_and_is_never_overwritten() {
        let home = tempfile::tempdir().unwrap();
        for kind in [KeyKind::Node, KeyKind::Attachment, KeyKind::Volume] {
            let path = home.path().join("etc/vrio").join(kind.to_string());
            let made = create(&path, kind).unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!(found.mode() & 0o7777, 0o600);
            let back = read(&path).unwrap();
            assert_eq!((back.kind(), back.public()), (kind, made.public()));
            let before = std::fs::read(&path).unwrap();
            let again = create(&path, kind).unwrap_err().to_string();
            assert!(again.contains("the file exists"), "{again}");
            assert_eq!(std::fs::read(&path).unwrap(), before);
        }
        let directory = home.path().join("etc/vrio");
        assert_eq!(std::fs::metadata(&directory).unwrap().mode() & 0o027, 0);
        let keys = ["node", "attachment"].map(|name| read(&directory.join(name)).unwrap());
        assert_ne!(keys[0].public(), keys[1].public());
    }

    #[test]
    fn unsafe_key_files_are_refused_by_name() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.key");
        refused(&path, &["the file does not exist", "`vrio key new FILE`"]);
        create(&path, KeyKind::Attachment).unwrap();
        refused(&path, &["this is an attachment key and a node key is wanted"]);
        for mode in [0o640, 0o604, 0o620, 0o666] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && error.contains("others may"), "{error}");
        }
        refused(home.path(), &["it is not a regular file"]);
    }

    #[test]
    fn a_damaged_key_file_is_refused_with_any_part_missing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.key");
        create(&path, KeyKind::Node).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let last = text.trim_end().len();
        for at in (0..last).chain([text.len() + 1]) {
            let torn = if at < text.len() { text[..at].to_owned() } else { format!("{text}more") };
            std::fs::write(&path, torn).unwrap();
            let error = read_node(&path).expect_err("it is not whole").to_string();
            assert!(error.contains("damaged") || error.contains("not a key file"), "{error}");
        }
        // One letter of the secret, and of the public half.
        for line in ["secret: ", "public: "] {
            // Not the first: curves leave bits of the first byte out.
            let at = text.find(line).unwrap() + line.len() + 10;
            let other = if &text[at..=at] == "A" { "B" } else { "A" };
            std::fs::write(&path, format!("{}{other}{}", &text[..at], &text[at + 1..])).unwrap();
            refused(&path, &["damaged", "its public half does not belong to its secret"]);
        }
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        refused(&path, &["this is not a key file", "`vrio key new FILE`"]);
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(read(&path).is_err());
        std::fs::write(&path, &text).unwrap();
        assert!(read_node(&path).is_ok());
    }

    #[test]
    fn secrets_are_not_shown() {
        let home = tempfile::tempdir().unwrap();
        for kind in [KeyKind::Node, KeyKind::Attachment, KeyKind::Volume] {
            let path = home.path().join(kind.to_string());
            create(&path, kind).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            let secret = text.lines().nth(1).unwrap().strip_prefix("secret: ").unwrap();
            let key = read(&path).unwrap();
            assert!(!format!("{key:?} {}", key.public()).contains(secret));
        }
    }
}
