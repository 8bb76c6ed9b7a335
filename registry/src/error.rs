//! Errors of a registry. In each case that is an error nothing was changed; a swap whose outcome is
//! not known is no error but an outcome ([`SwapOutcome`](crate::SwapOutcome)).

/// Why a registry did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// It does not answer, or it has no majority.
    #[error("the registry does not answer ({reason}); I/O goes on, and changes wait until it does")]
    Away {
        /// The answer of the system or of each member.
        reason: String,
    },
    /// It has no space left for a change.
    #[error("the registry is out of space ({reason}); {way_out}")]
    OutOfSpace {
        /// The full thing.
        reason: String,
        /// The operator's act.
        way_out: String,
    },
    /// It is older than it was, or another cluster's.
    #[error(
        "changes are frozen: {reason}. If a backup was restored on purpose and all nodes may \
         believe it, run `vrio cluster trust` on each machine"
    )]
    Frozen {
        /// The stamp that was seen before, and the stamp of now.
        reason: String,
    },
    /// The lease has ended, and the keys under it are gone.
    #[error("the lease has ended; its keys are gone, so ask for another lease")]
    LeaseEnded,
    /// The changes that a watch asks for are forgotten.
    #[error("the registry has forgotten the changes before revision {oldest}; list again")]
    Compacted {
        /// The oldest revision that is still known.
        oldest: u64,
    },
    /// A key, a value, a swap or a lease breaks a limit or a rule.
    #[error("{what}")]
    Invalid {
        /// The limit, and the number that was found.
        what: String,
    },
    /// The registry has denied it.
    #[error("the registry refuses this client ({reason}); check its certificate and its rights")]
    Denied {
        /// The registry's answer.
        reason: String,
    },
    /// Something that is stored cannot be read.
    #[error("{place} is damaged ({reason}); restore it from a backup, or remove it")]
    Damaged {
        /// The file or the key.
        place: String,
        /// The fault.
        reason: String,
    },
    /// Something that is stored has a version that this program does not know.
    #[error("{place} has version {found}, and this vrio reads version {known}: use the newer vrio")]
    OtherVersion {
        /// The file or the key.
        place: String,
        /// Its version.
        found: u64,
        /// This program's version.
        known: u64,
    },
    /// A request to the cluster that its records do not allow.
    #[error("{what}")]
    Refused {
        /// The reason, and the way out.
        what: String,
    },
    /// A change may have happened, and reading it again did not tell.
    #[error(
        "it is not known whether the change was made ({reason}); look with `vrio cluster status` \
         before you repeat it"
    )]
    OutcomeUnknown {
        /// Why it is not known.
        reason: String,
    },
}

impl RegistryError {
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    /// An error of the system at a file: nothing was changed.
    pub(crate) fn away(place: &std::path::Path, what: &str, source: &std::io::Error) -> Self {
        Self::Away { reason: format!("{}: cannot {what}: {source}", place.display()) }
    }
}
