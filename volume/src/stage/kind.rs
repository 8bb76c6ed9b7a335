//! The description that every stage has of itself.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::encrypt::VolumeKey;
use crate::settings::{SettingKey, Settings};
use crate::volume::{STAGES_MAX, Volume};

/// A stage as it is configured. Every file in `stage/` has one.
pub trait VolumeStage: Clone + fmt::Debug + fmt::Display + PartialEq + Eq {
    /// As the configuration calls it.
    const NAME: &'static str;
    /// The purpose of the stage, in one line without a full stop.
    const ABOUT: &'static str;
    /// The description of the key with the stage's name; empty for a stage that is one word.
    const TEXT: &'static str = "";
    /// Its table, as the reference calls it.
    const TABLE: &'static str = Self::NAME;
    /// The keys of its table; none for a stage that is always one word.
    const KEYS: &'static [SettingKey] = &[];
    /// The problem of a chain that has the stage twice, if that is wrong.
    const TWICE: Option<&'static str> = None;
    /// The names of its counters in the metrics, without "volume", and their help.
    const COUNTERS: &'static [SettingKey] = &[];

    /// The volume around a volume.
    type Wrapped: Volume + 'static;

    /// The stage whose whole configuration is its name.
    ///
    /// # Errors
    /// The key that is missing, with an example.
    fn alone() -> Result<Self, &'static str>;

    /// The stage from its table; `None` where something is wrong, which is noted.
    fn read(_settings: &dyn Settings) -> Option<Self> {
        Self::alone().ok()
    }

    /// The stage as a measurement has it, and the same as TOML. A stage that has a key file has
    /// `key`. None for a stage that no measurement has.
    fn measured(_key: &Path) -> Option<(Self, String)> {
        None
    }

    /// The files that the stage's configuration names; a node that has dropped its privileges
    /// reads them still.
    fn files(&self) -> Vec<&Path> {
        Vec::new()
    }

    /// For each stage of this kind in a new chain the running one that it goes on from: the first
    /// from the first, unless the stage says otherwise.
    fn earlier(
        wanted: &[&Self],
        running: &[Arc<Self::Wrapped>],
    ) -> Vec<Option<Arc<Self::Wrapped>>> {
        (0..wanted.len()).map(|at| running.get(at).cloned()).collect()
    }

    /// The stage around a volume, going on from an earlier one if there is one.
    ///
    /// # Errors
    /// When the stage makes no sense.
    fn wrap(
        &self,
        inner: Arc<dyn Volume>,
        around: &StagePosition<'_>,
        earlier: Option<&Self::Wrapped>,
    ) -> Result<Self::Wrapped, ChainError>;

    /// Gives the counters of the stages of this kind in one chain, outermost first.
    fn counted(_running: &[Arc<Self::Wrapped>], _put: &mut dyn FnMut(&str, u64)) {}
}

/// The place of a stage in its chain.
#[derive(Clone, Copy, Debug)]
pub struct StagePosition<'a> {
    /// How many stages are outside of it.
    pub depth: usize,
    /// The sidecores' clock.
    pub now_ns: u64,
    /// The volume's key, if its chain encrypts.
    pub key: Option<&'a Arc<VolumeKey>>,
}

/// One kind of stage: its line of the table.
#[derive(Clone, Copy)]
pub struct StageKind<C: 'static> {
    /// [`VolumeStage::NAME`].
    pub name: &'static str,
    /// [`VolumeStage::ABOUT`].
    pub about: &'static str,
    /// [`VolumeStage::TEXT`].
    pub text: &'static str,
    /// [`VolumeStage::TABLE`].
    pub table: &'static str,
    /// [`VolumeStage::KEYS`].
    pub keys: &'static [SettingKey],
    /// [`VolumeStage::TWICE`].
    pub twice: Option<&'static str>,
    /// [`VolumeStage::COUNTERS`].
    pub counters: &'static [SettingKey],
    /// [`VolumeStage::alone`].
    pub alone: fn() -> Result<C, &'static str>,
    /// [`VolumeStage::read`].
    pub read: fn(&dyn Settings) -> Option<C>,
    /// [`VolumeStage::measured`].
    pub measured: fn(&Path) -> Option<(C, String)>,
}

impl<C> StageKind<C> {
    pub(super) const fn of<S: VolumeStage + Into<C>>() -> Self {
        Self {
            name: S::NAME,
            about: S::ABOUT,
            text: S::TEXT,
            table: S::TABLE,
            keys: S::KEYS,
            twice: S::TWICE,
            counters: S::COUNTERS,
            alone: || S::alone().map(Into::into),
            read: |settings| S::read(settings).map(Into::into),
            measured: |key| S::measured(key).map(|(stage, text)| (stage.into(), text)),
        }
    }
}

impl<C> PartialEq for StageKind<C> {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<C> Eq for StageKind<C> {}

impl<C> fmt::Debug for StageKind<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Why a chain cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// Too many stages.
    #[error("a chain of {stages} stages; the longest has {max}", max = STAGES_MAX)]
    TooLong {
        /// How many were asked for.
        stages: usize,
    },
    /// A limit that limits nothing is a mistake.
    #[error("stage {stage}: a limit needs iops, bytes_per_second or both")]
    NoLimit {
        /// Which stage, from 1, as people count.
        stage: usize,
    },
    /// Twice is a mistake, too.
    #[error("{stages} stages encrypt; one is enough")]
    EncryptedTwice {
        /// How many.
        stages: usize,
    },
    /// The blocks stay as they are when a chain is replaced.
    #[error(
        "the encryption of a volume cannot change: its data would be unreadable. Remove the volume \
         and add it again, or copy its data to another volume"
    )]
    OtherEncryption,
}
