//! Steps between a disk and its blocks. Each is a volume over a volume; see [`crate::chain`].
//!
//! `stages!` below is the table of all stages, one line each. Everything else about a stage is
//! in its own file: its keys with their descriptions, reading and checking them, going around a
//! volume, and its counters (`docs/decisions/060-one-table.md`).

use std::fmt;
use std::path::Path;
use std::sync::Arc;

pub mod encrypt;
pub(crate) mod kind;
pub mod limit;
pub mod meter;

pub use encrypt::{Ciphered, EncryptVolume, Encryption, Sizes, VolumeKey};
pub use limit::{Limit, LimitVolume};
pub use meter::{Meter, MeterVolume, Metering, Reading};

pub use kind::{StageKind, StagePosition, VolumeStage};

use crate::volume::Volume;
use kind::ChainError;

macro_rules! stages {
    ($($(#[$doc:meta])* $kind:ident($stage:ty) running as $running:ident;)*) => {
        /// One stage of a chain, as it is configured.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum StageConfig {
            $($(#[$doc])* $kind($stage),)*
        }

        $(impl From<$stage> for StageConfig {
            fn from(stage: $stage) -> Self {
                Self::$kind(stage)
            }
        })*

        /// Every kind of stage.
        pub static STAGES: &[StageKind<StageConfig>] = &[$(StageKind::of::<$stage>()),*];

        impl StageConfig {
            /// Its kind.
            pub fn kind(&self) -> &'static StageKind<Self> {
                let name = match self {
                    $(Self::$kind(_) => <$stage>::NAME,)*
                };
                kind(name).expect("each stage is in the table")
            }

            /// The files that its configuration names.
            pub fn files(&self) -> Vec<&Path> {
                match self {
                    $(Self::$kind(stage) => stage.files(),)*
                }
            }
        }

        impl fmt::Display for StageConfig {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$kind(stage) => stage.fmt(f),)*
                }
            }
        }

        /// The stages of a chain that is built, of each kind outermost first.
        #[derive(Clone, Debug, Default)]
        pub struct RunningStages {
            $($(#[$doc])* pub $running: Vec<Arc<<$stage as VolumeStage>::Wrapped>>,)*
        }

        impl RunningStages {
            /// Puts `stages` around a volume, going on from the stages of `self`.
            pub(crate) fn around(
                &self,
                mut volume: Arc<dyn Volume>,
                stages: &[StageConfig],
                around: &StagePosition<'_>,
            ) -> Result<(Arc<dyn Volume>, Self), ChainError> {
                let mut running = Self::default();
                $(
                    let wanted = stages.iter().filter_map(|stage| match stage {
                        StageConfig::$kind(stage) => Some(stage),
                        #[allow(unreachable_patterns, reason = "a table may have one line")]
                        _ => None,
                    });
                    let wanted: Vec<_> = wanted.collect();
                    let mut $running = <$stage>::earlier(&wanted, &self.$running);
                )*
                for (depth, stage) in stages.iter().enumerate().rev() {
                    let around = StagePosition { depth, ..*around };
                    match stage {
                        $(StageConfig::$kind(stage) => {
                            let earlier = $running.pop().flatten();
                            let wrapped = stage.wrap(volume, &around, earlier.as_deref())?;
                            let wrapped = Arc::new(wrapped);
                            running.$running.insert(0, Arc::clone(&wrapped));
                            volume = wrapped;
                        })*
                    }
                }
                Ok((volume, running))
            }

            /// The counters of its stages, by their names in the status.
            pub fn counted(&self, put: &mut dyn FnMut(&str, u64)) {
                $(<$stage>::counted(&self.$running, put);)*
            }
        }
    };
}

stages! {
    /// Counts and times requests.
    Meter(Metering) running as meters;
    /// Holds requests back beyond a rate.
    Limit(Limit) running as limits;
    /// Keeps what is below it encrypted.
    Encrypt(Encryption) running as encrypts;
}

/// The kind of stage of this name.
pub fn kind(name: &str) -> Option<&'static StageKind<StageConfig>> {
    STAGES.iter().find(|kind| kind.name == name)
}

/// The key file of the stage of a chain that encrypts, if one does.
pub fn encryption(chain: &[StageConfig]) -> Option<&Path> {
    chain.iter().find_map(|stage| match stage {
        StageConfig::Encrypt(Encryption { key }) => Some(key.as_path()),
        _ => None,
    })
}

/// A chain in one line, first stage first.
pub fn show_chain(chain: &[StageConfig]) -> String {
    match chain {
        [] => "empty".to_owned(),
        stages => stages.iter().map(ToString::to_string).collect::<Vec<_>>().join(" > "),
    }
}
