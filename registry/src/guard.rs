//! No change to a registry that was put back to an older state, or that is another: its records
//! are not those that nodes have acted on.
//!
//! Each machine remembers the registry's id and the highest revision that it has seen, in a file.
//! Before a change the registry's stamp is compared with it. A backup whose revision has grown
//! beyond the remembered one is found by the id: `docs/cluster.md` has a restore that gives another
//! id.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::RegistryError;
use crate::key::Key;
use crate::private_file;
use crate::registry::{Found, LeaseId, Listing, Registry, RegistryWatch, Stamp};
use crate::swap::{Swap, SwapOutcome};

/// The version of the file.
const VERSION: u64 = 1;

/// The file: `{"version":1,"store":"00c0ffee00c0ffee","revision":7}`.
#[derive(Serialize, Deserialize)]
struct SeenStamp {
    version: u64,
    store: String,
    revision: u64,
}

/// A registry that takes changes only while it is the registry that this machine knows.
#[derive(Debug)]
pub struct Guarded {
    inner: Box<dyn Registry>,
    path: PathBuf,
    seen: Option<Stamp>,
}

impl Guarded {
    /// Guards a registry by what the file says.
    ///
    /// # Errors
    /// When the file cannot be read, or is damaged.
    pub fn new(inner: Box<dyn Registry>, path: &Path) -> Result<Self, RegistryError> {
        Ok(Self { inner, path: path.to_owned(), seen: read_seen(path)? })
    }

    /// Why changes are frozen, if they are.
    ///
    /// # Errors
    /// When the registry does not answer.
    pub fn frozen(&mut self) -> Result<Option<String>, RegistryError> {
        let stamp = self.inner.stamp()?;
        Ok(self.contradiction(stamp))
    }

    fn contradiction(&self, now: Stamp) -> Option<String> {
        let seen = self.seen?;
        if seen.store != now.store {
            return Some(format!(
                "the registry has the id {:016x}, and this machine knows the registry {:016x}",
                now.store, seen.store
            ));
        }
        (now.revision < seen.revision).then(|| {
            format!(
                "the registry is at revision {}, and this machine has seen revision {}: it was put \
                 back to an older state",
                now.revision, seen.revision
            )
        })
    }

    /// Remembers a stamp, before anything is done that rests on it.
    fn see(&mut self, now: Stamp) -> Result<(), RegistryError> {
        if self.contradiction(now).is_some() || self.seen == Some(now) {
            return Ok(());
        }
        let kept = keep_seen(&self.path, now);
        self.seen =
            Some(kept.map_err(|error| RegistryError::away(&self.path, "write it", &error))?);
        Ok(())
    }

    /// Refuses a change while the registry is not the registry that is known.
    fn may_change(&mut self) -> Result<(), RegistryError> {
        // Another process of this machine may have seen more, or trust what is there.
        self.seen = read_seen(&self.path)?;
        let now = self.inner.stamp()?;
        match self.contradiction(now) {
            Some(reason) => Err(RegistryError::Frozen { reason }),
            None => self.see(now),
        }
    }
}

/// Forgets the stamp that was seen, so that the registry is believed as it is now.
///
/// # Errors
/// When the system refuses it.
pub fn forget_seen(path: &Path) -> Result<(), RegistryError> {
    let _lock = lock(path).map_err(|error| RegistryError::away(path, "lock it", &error))?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(RegistryError::away(path, "remove it", &error))
        }
        _ => Ok(()),
    }
}

fn read_seen(path: &Path) -> Result<Option<Stamp>, RegistryError> {
    let content = match private_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        content => content.map_err(|error| RegistryError::away(path, "read it", &error))?,
    };
    let place = || path.display().to_string();
    let damaged = |reason: String| RegistryError::Damaged { place: place(), reason };
    let seen: SeenStamp =
        serde_json::from_slice(&content).map_err(|error| damaged(error.to_string()))?;
    if seen.version != VERSION {
        return Err(RegistryError::OtherVersion {
            place: place(),
            found: seen.version,
            known: VERSION,
        });
    }
    let store = u64::from_str_radix(&seen.store, 16);
    let store = store.map_err(|_| damaged("\"store\" is no number".to_owned()))?;
    Ok(Some(Stamp { store, revision: seen.revision }))
}

/// Holds the lock beside the file: processes of one machine share the file.
fn lock(path: &Path) -> io::Result<File> {
    let file = private_file::open(&path.with_extension("lock"))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
    Ok(file)
}

/// Raises what the file says, and returns what it says then.
fn keep_seen(path: &Path, now: Stamp) -> io::Result<Stamp> {
    let _lock = lock(path)?;
    let other = |error: RegistryError| io::Error::other(error.to_string());
    if let Some(seen) = read_seen(path).map_err(other)?
        && (seen.store != now.store || seen.revision >= now.revision)
    {
        return Ok(seen);
    }
    let store = format!("{:016x}", now.store);
    let seen = SeenStamp { version: VERSION, store, revision: now.revision };
    let text = serde_json::to_string(&seen).expect("numbers and a text") + "\n";
    private_file::replace(path, text.as_bytes())?;
    Ok(now)
}

impl Registry for Guarded {
    fn stamp(&mut self) -> Result<Stamp, RegistryError> {
        let stamp = self.inner.stamp()?;
        self.see(stamp)?;
        Ok(stamp)
    }

    fn get(&mut self, key: &Key) -> Result<Found, RegistryError> {
        let found = self.inner.get(key)?;
        self.see(found.stamp)?;
        Ok(found)
    }

    fn list(&mut self, above: &Key) -> Result<Listing, RegistryError> {
        let listing = self.inner.list(above)?;
        self.see(listing.stamp)?;
        Ok(listing)
    }

    fn watch(&mut self, above: &Key, after: u64) -> Result<Box<dyn RegistryWatch>, RegistryError> {
        self.inner.watch(above, after)
    }

    fn swap(&mut self, swap: &Swap) -> Result<SwapOutcome, RegistryError> {
        self.may_change()?;
        let outcome = self.inner.swap(swap)?;
        if let SwapOutcome::Made { revision } = outcome {
            let store = self.seen.map_or(0, |seen| seen.store);
            if let Err(error) = self.see(Stamp { store, revision }) {
                // It was made, but a restored registry could no longer be told from this registry.
                return Ok(SwapOutcome::Unknown { reason: error.to_string() });
            }
        }
        Ok(outcome)
    }

    fn grant(&mut self, seconds: u64) -> Result<LeaseId, RegistryError> {
        self.may_change()?;
        self.inner.grant(seconds)
    }

    fn renew(&mut self, lease: LeaseId) -> Result<(), RegistryError> {
        self.may_change()?;
        self.inner.renew(lease)
    }

    fn revoke(&mut self, lease: LeaseId) -> Result<(), RegistryError> {
        self.may_change()?;
        self.inner.revoke(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryRegistry;
    use crate::contract;

    fn guarded(registry: &MemoryRegistry, home: &Path) -> Guarded {
        Guarded::new(Box::new(registry.clone()), &home.join("seen")).unwrap()
    }

    fn put(key: &Key, value: &str) -> Swap {
        Swap::new().put(key, value)
    }

    #[test]
    fn it_keeps_the_contract() {
        let mut homes = Vec::new();
        contract::check_all(&mut || {
            let registry = MemoryRegistry::new(7);
            let home = tempfile::tempdir().unwrap();
            let [one, other] = [(); 2].map(|()| Box::new(guarded(&registry, home.path())));
            homes.push(home);
            let wait = move |time| registry.advance(time);
            contract::Parties { one, other, wait: Box::new(wait) }
        });
    }

    #[test]
    fn a_registry_that_was_put_back_takes_no_change_until_it_is_trusted() {
        let home = tempfile::tempdir().unwrap();
        let registry = MemoryRegistry::new(7);
        let a = Key::new("/a").unwrap();
        let mut guard = guarded(&registry, home.path());
        assert!(matches!(guard.swap(&put(&a, "1")), Ok(SwapOutcome::Made { revision: 2 })));
        let backup = registry.backup();
        assert!(matches!(guard.swap(&put(&a, "2")), Ok(SwapOutcome::Made { revision: 3 })));
        let lease = guard.grant(60).unwrap();
        registry.restore(&backup);
        // Another process of the machine knows as well, also after a restart.
        for mut guard in [guard, guarded(&registry, home.path())] {
            for refused in [
                guard.swap(&put(&a, "3")).map(drop),
                guard.grant(60).map(drop),
                guard.renew(lease),
                guard.revoke(lease),
            ] {
                let error = refused.unwrap_err().to_string();
                assert!(
                    error.contains("changes are frozen: the registry is at revision 2"),
                    "{error}"
                );
                assert!(error.contains("has seen revision 3"), "{error}");
            }
            assert!(guard.frozen().unwrap().is_some());
            // It can be looked at, which does not make it known.
            assert_eq!(guard.get(&a).unwrap().entry.unwrap().value, b"1");
            assert!(guard.frozen().unwrap().is_some());
        }
        let mut guard = guarded(&registry, home.path());
        forget_seen(&home.path().join("seen")).unwrap();
        assert!(matches!(guard.swap(&put(&a, "3")), Ok(SwapOutcome::Made { revision: 3 })));
        assert_eq!(guard.frozen().unwrap(), None);
    }

    #[test]
    fn another_registry_takes_no_change() {
        let home = tempfile::tempdir().unwrap();
        let a = Key::new("/a").unwrap();
        let mut guard = guarded(&MemoryRegistry::new(7), home.path());
        assert!(guard.swap(&put(&a, "1")).is_ok());
        let other = MemoryRegistry::new(8);
        let mut guard = guarded(&other, home.path());
        for _ in 0..9 {
            // However far it is.
            assert!(other.clone().swap(&put(&a, "x")).is_ok());
        }
        let error = guard.swap(&put(&a, "2")).unwrap_err().to_string();
        assert!(error.contains("the id 0000000000000008"), "{error}");
    }

    #[test]
    fn a_damaged_memory_of_what_was_seen_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("seen");
        for (text, wanted) in [
            ("", "is damaged"),
            ("{\"version\":2,\"store\":\"1\",\"revision\":1}", "has version 2"),
            ("{\"version\":1,\"store\":\"x\",\"revision\":1}", "no number"),
        ] {
            std::fs::write(&path, text).unwrap();
            let guard = Guarded::new(Box::new(MemoryRegistry::new(7)), &path);
            let error = guard.unwrap_err().to_string();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
