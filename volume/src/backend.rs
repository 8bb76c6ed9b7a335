//! The storage of the blocks: a file, memory, or nothing at all (for measuring).
//!
//! `backends!` below is the table of all backends, one line each. Everything else about a backend
//! is in its own file: its keys with their descriptions, reading them, opening, its needs, its
//! counters, and its descriptor for a hand-over (`docs/decisions/060-one-table.md`).

pub mod file;
mod kind;
pub mod memory;
pub mod null;
pub mod store;

pub use file::{FileBackend, FileError, FileOptions, FileVolume};
pub use kind::{
    BackendFile, BackendKind, BackendNeeds, BackendPool, BackendVolume, FileAt, HandedBlocks,
    Opening, Remembered, Resizable, ResizeError, VolumeBackend, whole_sectors,
};
pub use memory::{MemoryBackend, MemoryVolume};
pub use null::{NullBackend, NullVolume};
pub use store::StoreBackend;

use crate::settings::SettingKey;

macro_rules! backends {
    ($($(#[$doc:meta])* $kind:ident($backend:ty);)*) => {
        /// The backend of a volume, as it is configured.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum BackendConfig {
            $($(#[$doc])* $kind($backend),)*
        }

        $(impl From<$backend> for BackendConfig {
            fn from(backend: $backend) -> Self {
                Self::$kind(backend)
            }
        })*

        /// Every kind of backend.
        pub static BACKENDS: &[BackendKind<BackendConfig>] = &[$(BackendKind::of::<$backend>()),*];

        const KEY_LISTS: &[&[SettingKey]] = &[$(<$backend>::KEYS),*];

        impl BackendConfig {
            /// Its kind.
            pub fn kind(&self) -> &'static BackendKind<Self> {
                let name = match self {
                    $(Self::$kind(_) => <$backend>::NAME,)*
                };
                let kind = BACKENDS.iter().find(|kind| kind.name == name);
                kind.expect("each backend is in the table")
            }

            /// The file or block device that belongs to the volume.
            pub fn file(&self) -> Option<BackendFile<'_>> {
                match self {
                    $(Self::$kind(backend) => backend.file(),)*
                }
            }

            /// The pool that the volume is cut from.
            pub fn pool(&self) -> Option<BackendPool<'_>> {
                match self {
                    $(Self::$kind(backend) => backend.pool(),)*
                }
            }

            /// The file of the key that encrypts it, if the backend itself does.
            pub fn key_file(&self) -> Option<&std::path::Path> {
                match self {
                    $(Self::$kind(backend) => backend.key_file(),)*
                }
            }

            /// The same backend with another file of its key; `None` for a backend without a key.
            pub fn with_key(&self, key: &std::path::Path) -> Option<Self> {
                match self {
                    $(Self::$kind(backend) => backend.with_key(key).map(Into::into),)*
                }
            }

            /// The same backend with another configured size; `None` for one that keeps its size.
            pub fn with_size(&self, size_bytes: u64) -> Option<Self> {
                match self {
                    $(Self::$kind(backend) => backend.with_size(size_bytes).map(Into::into),)*
                }
            }

            /// Opens it, or goes on with the blocks of another process; see
            /// [`VolumeBackend::open`].
            ///
            /// # Errors
            /// The problem and the way out, for the operator.
            pub fn open(
                &self,
                opening: &Opening<'_>,
                handed: Option<HandedBlocks>,
            ) -> Result<Box<dyn BackendVolume>, String> {
                match self {
                    $(Self::$kind(backend) => backend.open(opening, handed),)*
                }
            }
        }
    };
}

backends! {
    /// A raw file or a block device.
    File(FileBackend);
    /// Memory of the node's process.
    Memory(MemoryBackend);
    /// Nothing, for measuring.
    Null(NullBackend);
    /// A volume of a pool.
    Store(StoreBackend);
}

/// The keys of all backends, in the order of the table, each once.
pub const BACKEND_KEYS: [&str; key_count()] = {
    let mut names = [""; key_count()];
    let (mut list, mut count) = (0, 0);
    while list < KEY_LISTS.len() {
        let mut at = 0;
        while at < KEY_LISTS[list].len() {
            if !is_before(list, at) {
                names[count] = KEY_LISTS[list][at].name;
                count += 1;
            }
            at += 1;
        }
        list += 1;
    }
    names
};

const fn key_count() -> usize {
    let (mut list, mut count) = (0, 0);
    while list < KEY_LISTS.len() {
        let mut at = 0;
        while at < KEY_LISTS[list].len() {
            count += if is_before(list, at) { 0 } else { 1 };
            at += 1;
        }
        list += 1;
    }
    count
}

/// Whether an earlier backend of this list has the key as well.
const fn is_before(list: usize, at: usize) -> bool {
    let (name, mut other) = (KEY_LISTS[list][at].name.as_bytes(), 0);
    while other < list {
        let mut key = 0;
        while key < KEY_LISTS[other].len() {
            if is_same(KEY_LISTS[other][key].name.as_bytes(), name) {
                return true;
            }
            key += 1;
        }
        other += 1;
    }
    false
}

/// `==`, which a constant cannot have for texts yet.
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let (mut at, is_as_long) = (0, one.len() == other.len());
    while is_as_long && at < one.len() && one[at] == other[at] {
        at += 1;
    }
    is_as_long && at == one.len()
}
