//! The `encrypt` stage: the storage below it, a file or another host's disk, holds ciphertext only.
//!
//! AES-256-XTS with a sector's number as its tweak, as dm-crypt's `aes-xts-plain64`. A sector keeps
//! its length and place, so each promise about a write holds for its ciphertext, and a power cut
//! that tears a sector harms no other sector. The stage keeps data secret and does not authenticate
//! it: an attacker with write access to the file can put a sector's older version back, or noise.
//!
//! ```text
//!   write   user's memory ──encipher──▶ the pool ──▶ below             (the user's stays as it is)
//!   zeroes  ───────────────encipher──▶ the pool ──▶ below, piece after piece (a layer's children)
//!   read    user's memory ◀─────────────────────────────────── below, then deciphered in place
//! ```
//!
//! Reads are deciphered where they land. A guest that looks before its completion sees ciphertext
//! of its own disk. A guest that changes the buffer meanwhile spoils its own data, and so does a
//! guest that has two reads into the same place at a time. The buffers of a server are its own
//! until the answer is sent.
//!
//! When the pool is full, writes wait, in their order; reads and flushes pass them. Only a few of
//! the ranges to be zeroed have a place in the pool at a time, so that writes need not wait for
//! whole disks of zeroes. A discard is not offered: the zeroes that it leaves do not decipher to
//! zeroes.
//!
//! A storage may complete all requests of a deep queue at once. A round ciphers a bounded part of
//! them ([`Sizes::round_bytes`]) and leaves the rest to the next round, so that the sidecore's
//! other guests and its sessions have their turn in between.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sidecore::Counter;

use super::kind::{ChainError, StagePosition, VolumeStage};
use crate::layer::Layer;
use crate::settings::{SettingKey, Settings};
use crate::size::Size;
use crate::volume::{Channel, OpenArguments, OpenError, Volume, VolumeInfo, Zeroing};

mod channel;
mod pool;
mod xts;

use channel::{EncryptChannel, ZEROES_AT_ONCE_MAX};
use pool::{CipherPool, POOL_BYTES_MAX};
use xts::Cipher;
pub use xts::{SameHalves, VolumeKey};

/// The stage as it is configured. The key itself is given when the chain is built: the node reads
/// its file, and looks whether the volume was under this key before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// The file of the volume's key.
    pub key: PathBuf,
}

impl fmt::Display for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAME)
    }
}

impl VolumeStage for Encryption {
    const NAME: &'static str = "encrypt";
    const ABOUT: &'static str = "Keeps the volume encrypted";
    const TEXT: &'static str = "Keeps the volume [encrypted](#volumes-that-are-encrypted): \
                                `{ encrypt = { key = \"/etc/vrio/alice.xts\" } }`.";
    const KEYS: &'static [SettingKey] =
        &[SettingKey::new("key", "The absolute path of the key's file (`vrio key new --volume`).")];
    const TWICE: Option<&'static str> = Some("one stage that encrypts is enough");
    const COUNTERS: &'static [SettingKey] = &[
        SettingKey::new("encrypted_bytes", "Bytes that a volume's chain encrypted."),
        SettingKey::new("decrypted_bytes", "Bytes that a volume's chain decrypted."),
        SettingKey::new(
            "encrypt_waited",
            "Writes that waited for memory for their encrypted data.",
        ),
        SettingKey::new(
            "encrypt_put_off",
            "Completions that waited for a later round, because a round has a limit of encryption.",
        ),
        SettingKey::new(
            "encrypt_memory_bytes",
            "Memory for encrypted data that is in use or not given back yet.",
        ),
    ];

    type Wrapped = EncryptVolume;

    fn alone() -> Result<Self, &'static str> {
        Err("name the key's file: { encrypt = { key = \"/etc/vrio/alice.xts\" } }")
    }

    fn read(settings: &dyn Settings) -> Option<Self> {
        Some(Self { key: settings.path("key", "key = \"/etc/vrio/alice.xts\"")? })
    }

    fn measured(key: &Path) -> Option<(Self, String)> {
        let text = format!("{{ encrypt = {{ key = {key:?} }} }}");
        Some((Self { key: key.to_owned() }, text))
    }

    fn files(&self) -> Vec<&Path> {
        vec![&self.key]
    }

    fn wrap(
        &self,
        inner: Arc<dyn Volume>,
        around: &StagePosition<'_>,
        earlier: Option<&EncryptVolume>,
    ) -> Result<EncryptVolume, ChainError> {
        match (earlier, around.key) {
            (Some(earlier), _) => Ok(EncryptVolume::going_on(inner, earlier)),
            (None, Some(key)) => Ok(EncryptVolume::new(inner, Arc::clone(key))),
            // A chain without the key would be another one.
            (None, None) => Err(ChainError::OtherEncryption),
        }
    }

    fn counted(running: &[Arc<EncryptVolume>], put: &mut dyn FnMut(&str, u64)) {
        let Some(encrypt) = running.first() else { return };
        let counted = encrypt.counted();
        put("encrypted_bytes", counted.enciphered_bytes);
        put("decrypted_bytes", counted.deciphered_bytes);
        put("encrypt_waited", counted.waited);
        put("encrypt_put_off", counted.put_off);
        put("encrypt_memory_bytes_now", counted.memory_bytes);
    }
}

/// How much memory a channel has, and what it does at once. A running node's are
/// [`Self::STANDARD`]; with smaller ones few and short requests come to every limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Memory for the ciphertext of one channel, in whole pages; a write that is longer is refused.
    pub pool_bytes: u32,
    /// Zeroes are written in pieces of this length, one after the other. Whole blocks, and no more
    /// than half of the memory.
    pub zeroes_bytes: u32,
    /// When a round has ciphered so much of what came from below, the rest waits for the next one,
    /// and so do writes that have waited for memory.
    pub round_bytes: u32,
}

impl Sizes {
    /// A core ciphers some gigabytes in a second, so what is done at once keeps others waiting for
    /// a fraction of a millisecond.
    pub const STANDARD: Self =
        Self { pool_bytes: POOL_BYTES_MAX, zeroes_bytes: 256 << 10, round_bytes: 1 << 20 };
}

const _: () = assert!(2 * Sizes::STANDARD.zeroes_bytes <= Sizes::STANDARD.pool_bytes);

/// The counts of one channel.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Cells {
    enciphered_bytes: Counter,
    deciphered_bytes: Counter,
    waited: Counter,
    put_off: Counter,
    interrupted: Counter,
    /// The memory in use now.
    memory_bytes: Counter,
}

/// The counts of an encryption stage, over all channels that it ever had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ciphered {
    /// Bytes enciphered; zeroes among them.
    pub enciphered_bytes: u64,
    /// Bytes deciphered.
    pub deciphered_bytes: u64,
    /// Writes that waited for memory for their ciphertext, and ranges of zeroes that waited.
    pub waited: u64,
    /// Completions that waited for a later round, since one had ciphered enough.
    pub put_off: u64,
    /// Writes that were waiting for memory, and ranges of which only some pieces were zeroed, when
    /// their user let go of them.
    pub interrupted: u64,
    /// Memory for ciphertext that its channels have used and not given back yet: none of an idle
    /// one, and none of one that is closed.
    pub memory_bytes: u64,
}

impl Ciphered {
    fn add(&mut self, cells: &Cells) {
        self.enciphered_bytes += cells.enciphered_bytes.get();
        self.deciphered_bytes += cells.deciphered_bytes.get();
        self.waited += cells.waited.get();
        self.put_off += cells.put_off.get();
        self.interrupted += cells.interrupted.get();
        self.memory_bytes += cells.memory_bytes.get();
    }
}

/// Control path only: opening, closing, reading.
#[derive(Debug, Default)]
struct EncryptionCounts {
    open: Vec<Arc<Cells>>,
    closed: Ciphered,
}

/// The state that stays when the chain around the stage is replaced.
#[derive(Debug)]
struct EncryptionState {
    key: Arc<VolumeKey>,
    books: Mutex<EncryptionCounts>,
}

impl EncryptionState {
    fn books(&self) -> MutexGuard<'_, EncryptionCounts> {
        // Counts stay true after a panic of another thread.
        self.books.lock()
    }

    fn open(&self) -> Arc<Cells> {
        let cells = Arc::<Cells>::default();
        self.books().open.push(Arc::clone(&cells));
        cells
    }

    fn close(&self, cells: &Arc<Cells>) {
        // The memory goes with the channel.
        cells.memory_bytes.set(0);
        let mut books = self.books();
        books.open.retain(|open| !Arc::ptr_eq(open, cells));
        books.closed.add(cells);
    }
}

/// A volume whose blocks are enciphered below.
#[derive(Debug)]
pub struct EncryptVolume {
    inner: Arc<dyn Volume>,
    core: Arc<EncryptionState>,
    sizes: Sizes,
}

impl EncryptVolume {
    /// Wraps `inner`, all of whose blocks are under this key.
    pub fn new(inner: Arc<dyn Volume>, key: Arc<VolumeKey>) -> Self {
        let core = Arc::new(EncryptionState { key, books: Mutex::default() });
        Self { inner, core, sizes: Sizes::STANDARD }
    }

    /// The same with other sizes.
    #[must_use]
    pub fn with_sizes(self, sizes: Sizes) -> Self {
        Self { sizes, ..self }
    }

    /// Goes on under the same key.
    pub(crate) fn going_on(inner: Arc<dyn Volume>, earlier: &Self) -> Self {
        Self { inner, core: Arc::clone(&earlier.core), sizes: earlier.sizes }
    }

    /// Its key.
    pub fn key(&self) -> &Arc<VolumeKey> {
        &self.core.key
    }

    /// Its counts.
    pub fn counted(&self) -> Ciphered {
        let books = self.core.books();
        let mut counted = books.closed;
        books.open.iter().for_each(|cells| counted.add(cells));
        counted
    }
}

impl Volume for EncryptVolume {
    /// Zeroes it writes itself; see the module about discards.
    fn info(&self) -> VolumeInfo {
        let info = self.inner.info();
        let zeroing = Zeroing { write_zeroes: !info.read_only, ..Zeroing::default() };
        VolumeInfo { zeroing, ..info }
    }

    fn size(&self) -> Size {
        self.inner.size()
    }

    fn open(&self, open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        let refused = |source| OpenError::Io { what: "prepare to encrypt".to_owned(), source };
        let cipher = Cipher::new(&self.core.key).map_err(refused)?;
        let pool = CipherPool::new(open.depth, self.sizes.pool_bytes).map_err(refused)?;
        let inner = self.inner.open(open)?;
        let pieces =
            Layer::new(open.depth).over(&*self.inner, open.services, ZEROES_AT_ONCE_MAX)?;
        Ok(Box::new(EncryptChannel::new(self, (inner, pieces), cipher, pool, open.depth)))
    }
}

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod tests;
