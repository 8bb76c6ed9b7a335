//! The trait of all registries.

use std::fmt;
use std::time::Duration;

use crate::error::RegistryError;
use crate::key::Key;
use crate::swap::{Swap, SwapOutcome};

/// Which registry answers, and how far it is. A registry that was put back to an older state has a
/// lower revision; a registry that was made anew, or restored as another registry, has another id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The id of the registry itself: a random number of a file, etcd's cluster id.
    pub store: u64,
    /// The number of changes so far.
    pub revision: u64,
}

/// A key's value, and the revision that has changed it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value.
    pub value: Vec<u8>,
    /// The revision of its last change.
    pub revision: u64,
    /// The lease that it goes with.
    pub lease: Option<LeaseId>,
}

/// The answer about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The registry at that moment.
    pub stamp: Stamp,
    /// The entry, if there is one.
    pub entry: Option<Entry>,
}

/// The answer about all keys below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// The registry at that moment: a watch goes on after its revision.
    pub stamp: Stamp,
    /// The entries in the order of their keys.
    pub entries: Vec<Entry>,
}

/// A lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// A change that a watch reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryEvent {
    /// The key.
    pub key: Key,
    /// Its new value, or that it is gone.
    pub change: EntryChange,
    /// The revision of the change. Changes of one swap have the same revision.
    pub revision: u64,
}

/// The new state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// It has this value.
    Put(Vec<u8>),
    /// It is gone.
    Deleted,
}

/// Records on which all nodes agree. A call waits for an answer, for some seconds at most, so it is
/// for threads that may wait, and never for a sidecore. An error means that nothing was changed.
///
/// Reads are linearizable: an answer has each change that was made before the question.
pub trait Registry: Send + fmt::Debug {
    /// The registry now.
    ///
    /// # Errors
    /// When it does not answer.
    fn stamp(&mut self) -> Result<Stamp, RegistryError>;

    /// The value of a key.
    ///
    /// # Errors
    /// When it does not answer.
    fn get(&mut self, key: &Key) -> Result<Found, RegistryError>;

    /// All keys below this key, at one moment.
    ///
    /// # Errors
    /// When it does not answer, or there are too many.
    fn list(&mut self, above: &Key) -> Result<Listing, RegistryError>;

    /// Reports the changes below a key after a revision. A watch only says where to look: it may be
    /// late, so that no decision may rest on it.
    ///
    /// # Errors
    /// When the registry does not answer.
    fn watch(&mut self, above: &Key, after: u64) -> Result<Box<dyn RegistryWatch>, RegistryError>;

    /// Makes all changes of a swap if all of its conditions hold.
    ///
    /// # Errors
    /// When nothing was changed, and nothing will be.
    fn swap(&mut self, swap: &Swap) -> Result<SwapOutcome, RegistryError>;

    /// A lease that ends after so many seconds unless it is renewed. The registry may make it
    /// longer.
    ///
    /// # Errors
    /// When there is none. If the registry did not answer, a lease may exist that no key is under.
    fn grant(&mut self, seconds: u64) -> Result<LeaseId, RegistryError>;

    /// Begins a lease's time again.
    ///
    /// # Errors
    /// [`RegistryError::LeaseEnded`] when there is no such lease any more.
    fn renew(&mut self, lease: LeaseId) -> Result<(), RegistryError>;

    /// Ends a lease and removes its keys. A lease that has ended is no error.
    ///
    /// # Errors
    /// When the registry does not answer.
    fn revoke(&mut self, lease: LeaseId) -> Result<(), RegistryError>;
}

/// A watch of a registry.
pub trait RegistryWatch: Send + fmt::Debug {
    /// The next changes in their order, without a gap; none if there are none for so long. All
    /// changes of a swap come together.
    ///
    /// # Errors
    /// When the watch has ended. [`RegistryError::Compacted`]: changes are missing, so the keys
    /// must be listed again. The watch is of no use any more.
    fn next(&mut self, patience: Duration) -> Result<Vec<EntryEvent>, RegistryError>;
}
