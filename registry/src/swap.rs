//! A change of a registry: all of its changes are made if all of its conditions hold, and none is
//! else.

use std::collections::BTreeSet;

use crate::error::RegistryError;
use crate::key::Key;
use crate::limits::{SWAP_BYTES_MAX, SWAP_KEYS_MAX, VALUE_BYTES_MAX};
use crate::registry::LeaseId;

/// A condition of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The key.
    pub key: Key,
    /// The revision of its last change; `None`: there is no such key.
    pub revision: Option<u64>,
}

/// One change of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyChange {
    /// Gives the key a value, for ever or as long as a lease lasts.
    Put {
        /// The value.
        value: Vec<u8>,
        /// The lease.
        lease: Option<LeaseId>,
    },
    /// Removes the key, if there is one.
    Delete,
}

impl KeyChange {
    /// The length of the new value.
    pub(crate) fn value_bytes(&self) -> usize {
        match self {
            Self::Put { value, .. } => value.len(),
            Self::Delete => 0,
        }
    }
}

/// Conditions and changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swap {
    pub(crate) conditions: Vec<Condition>,
    pub(crate) changes: Vec<(Key, KeyChange)>,
}

impl Swap {
    /// A swap without conditions and changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The swap with the condition that there is no such key.
    #[must_use]
    pub fn absent(mut self, key: &Key) -> Self {
        self.conditions.push(Condition { key: key.clone(), revision: None });
        self
    }

    /// The swap with the condition that the key was last changed by this revision.
    #[must_use]
    pub fn unchanged(mut self, key: &Key, revision: u64) -> Self {
        self.conditions.push(Condition { key: key.clone(), revision: Some(revision) });
        self
    }

    /// The swap with a new value of a key.
    #[must_use]
    pub fn put(mut self, key: &Key, value: impl Into<Vec<u8>>) -> Self {
        let put = KeyChange::Put { value: value.into(), lease: None };
        self.changes.push((key.clone(), put));
        self
    }

    /// The swap with a new value of a key, which goes when the lease ends.
    #[must_use]
    pub fn put_under(mut self, key: &Key, value: impl Into<Vec<u8>>, lease: LeaseId) -> Self {
        let put = KeyChange::Put { value: value.into(), lease: Some(lease) };
        self.changes.push((key.clone(), put));
        self
    }

    /// The swap without a key.
    #[must_use]
    pub fn delete(mut self, key: &Key) -> Self {
        self.changes.push((key.clone(), KeyChange::Delete));
        self
    }

    /// Its conditions.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// Its changes, each of another key.
    pub fn changes(&self) -> &[(Key, KeyChange)] {
        &self.changes
    }

    /// Checks the limits. Each registry does so first.
    ///
    /// # Errors
    /// The limit that the swap breaks.
    pub fn check(&self) -> Result<(), RegistryError> {
        let most = self.conditions.len().max(self.changes.len());
        if most > SWAP_KEYS_MAX || self.changes.is_empty() {
            return Err(RegistryError::invalid(format!(
                "a swap has from 1 to {SWAP_KEYS_MAX} changes, and at most as many conditions; \
                 this one has {} and {}",
                self.changes.len(),
                self.conditions.len()
            )));
        }
        let keys: BTreeSet<_> = self.changes.iter().map(|(key, _)| key).collect();
        if keys.len() < self.changes.len() {
            return Err(RegistryError::invalid("a swap changes a key once"));
        }
        let mut bytes = 0;
        for (key, change) in &self.changes {
            let length = change.value_bytes();
            if length > VALUE_BYTES_MAX {
                return Err(RegistryError::invalid(format!(
                    "the value of {key} has {length} bytes; a value has at most {VALUE_BYTES_MAX}"
                )));
            }
            bytes += length + key.as_str().len();
        }
        if bytes > SWAP_BYTES_MAX {
            return Err(RegistryError::invalid(format!(
                "a swap has at most {SWAP_BYTES_MAX} bytes, and this one has {bytes}"
            )));
        }
        Ok(())
    }
}

/// The outcome of a swap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum SwapOutcome {
    /// It was made, by this revision.
    Made {
        /// The revision of all keys that it has changed.
        revision: u64,
    },
    /// A condition does not hold, and nothing was changed.
    Lost,
    /// It was made, or it will be made later, or it will never be made: the registry did not
    /// answer. The keys must be read before anything else is done, and a swap that comes later is
    /// only harmless if its conditions no longer hold then.
    Unknown {
        /// Why there is no answer.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_beyond_a_limit_is_refused() {
        let key = |number: usize| Key::new(format!("/a/{number}")).unwrap();
        assert!(Swap::new().check().is_err(), "no change");
        assert!(Swap::new().put(&key(1), "x").delete(&key(1)).check().is_err(), "twice");
        let many = |count| (0..count).fold(Swap::new(), |swap, at| swap.put(&key(at), "x"));
        assert!(many(SWAP_KEYS_MAX).check().is_ok());
        assert!(many(SWAP_KEYS_MAX + 1).check().is_err());
        let conditions = (0..=SWAP_KEYS_MAX).fold(many(1), |swap, at| swap.absent(&key(at)));
        assert!(conditions.check().is_err());
        let long = |bytes| Swap::new().put(&key(1), vec![0; bytes]);
        assert!(long(VALUE_BYTES_MAX).check().is_ok());
        assert!(long(VALUE_BYTES_MAX + 1).check().is_err());
        let heavy =
            (0..16).fold(Swap::new(), |swap, at| swap.put(&key(at), vec![0; VALUE_BYTES_MAX]));
        assert!(heavy.check().is_err(), "16 values and their keys");
    }
}
