//! Keys of encrypted volumes, and the changes that are made with them.

use std::sync::Arc;

use data_encoding::HEXLOWER;

use super::PoolEngine;
use super::core::EngineCore;
use super::rows::ROWS_MAX;
use crate::api::{PoolChange, PoolError, VolumeId};
use crate::format::{PageEntry, SEAL_SEQUENCE_MAX};
use crate::map::SealFamily;
use seal::{DataKey, FamilyUuid, PageKey, SealFamilyName, UnwrapError, WrappedKey};
use seal::{SealEntropy, WrappingKey};

/// Contexts that are left for rows under way, each of whose pages may be of another family.
const CONTEXTS_SPARE: usize = ROWS_MAX * crate::format::ROW_PAYLOAD_MAX;

fn locked(family: &SealFamily) -> PoolError {
    let key_id = family.keys.last().map_or_else(String::new, |key| key.key_id.clone());
    PoolError::Locked { key_id }
}

impl EngineCore {
    /// Why an encrypted volume cannot be read, if so: its key was not given.
    pub(crate) fn lock_of(&self, volume: VolumeId) -> Option<PoolError> {
        let family = self.map.family(self.map.family_of(volume)?)?;
        let is_open = |key: &WrappedKey| self.keys.data(family.number(), key.version).is_some();
        let is_open = !family.keys.is_empty() && family.keys.iter().all(is_open);
        (!is_open).then(|| locked(family))
    }

    /// Whether there is a context for new pages of a family, or room for a context.
    pub(crate) fn may_seal(&self, family: u32) -> bool {
        let version = self.map.newest_key(family).unwrap_or(0);
        self.map.may_seal(family, version, CONTEXTS_SPARE)
    }

    /// Why no more pages of an encrypted volume can be sealed, if so.
    pub(crate) fn seal_refusal(&self, volume: VolumeId) -> Option<PoolError> {
        if !self.may_seal(self.map.family_of(volume)?) {
            return Some(PoolError::TooMany("openings with encrypted data that is still there"));
        }
        let rows = SEAL_SEQUENCE_MAX - ROWS_MAX as u64;
        let is_old = self.log.sequence() >= rows;
        is_old.then_some(PoolError::TooMany("as many rows as encrypted volumes can have"))
    }

    /// The key for new pages of a volume; `Ok(None)` for a volume that is not encrypted.
    ///
    /// # Errors
    /// If the volume is encrypted and its key was not given.
    pub(crate) fn seal_key(&mut self, volume: VolumeId) -> Result<Option<Arc<PageKey>>, PoolError> {
        // A volume that was removed meanwhile may be encrypted, and has no plain page then.
        self.map.volume_blocks(volume).ok_or(PoolError::NoVolume(volume))?;
        let Some(family) = self.map.family_of(volume) else { return Ok(None) };
        self.newest_key(family)
            .map(Some)
            .ok_or_else(|| self.map.family(family).map_or(PoolError::NoVolume(volume), locked))
    }

    /// The key for new pages of a family; `None` if it was not given.
    pub(crate) fn newest_key(&mut self, family: u32) -> Option<Arc<PageKey>> {
        let version = self.map.newest_key(family)?;
        self.keys.page(family, version, self.salt).cloned()
    }

    /// The key of a sealed page; `None` if it was not given, or the page's context is gone.
    pub(crate) fn key_of(&mut self, entry: &PageEntry) -> Option<Arc<PageKey>> {
        let context = self.map.context(entry.seal()?.context)?;
        self.keys.page(context.family, context.version, context.salt()).cloned()
    }

    /// A change was applied: keys that the catalog has no more are forgotten, and a new one is
    /// used.
    pub(crate) fn follow_keys(&mut self, change: &PoolChange) {
        let Self { keys, map, .. } = self;
        keys.retain(|family, version| map.keeps_key(family, version));
        if let PoolChange::Rekey { volume, key } = change
            && let Some(family) = map.family_of(*volume)
            && map.has_key(family, key)
        {
            keys.adopt(family, key);
        }
    }

    fn family_name(&self, family: &SealFamily) -> SealFamilyName {
        let mut name = SealFamilyName { pool: self.uuid, family: [0; 16] };
        // The catalog has checked the digits.
        if let Ok(uuid) = HEXLOWER.decode(family.uuid.as_bytes()) {
            let len = uuid.len().min(name.family.len());
            name.family[..len].copy_from_slice(&uuid[..len]);
        }
        name
    }
}

impl PoolEngine {
    /// Gives the wrapping key of an encrypted volume, so that it and all that shares its data key
    /// can be read and written.
    ///
    /// # Errors
    /// If it is another volume's key, or the volume is not encrypted.
    pub fn unlock(&mut self, volume: VolumeId, key: &WrappingKey) -> Result<(), PoolError> {
        let family = self.family_of(volume)?;
        let name = self.core.family_name(&family);
        let unwrap = |wrapped: &WrappedKey| match wrapped.unwrap(key, &name) {
            Ok(data) => Ok((wrapped.version, data)),
            Err(UnwrapError::OtherKey) => {
                let (given, wanted) = (key.id().to_owned(), wrapped.key_id.clone());
                Err(PoolError::WrongKey { given, wanted })
            }
            Err(UnwrapError::Damaged) => Err(PoolError::KeyDamaged),
        };
        let keys: Vec<_> = family.keys.iter().map(unwrap).collect::<Result<_, _>>()?;
        for (version, data) in keys {
            self.core.keys.insert(family.number(), version, name, data);
        }
        self.resealer.wake();
        Ok(())
    }

    /// Whether a volume is encrypted and its key was not given.
    pub fn is_locked(&self, volume: VolumeId) -> bool {
        self.core.lock_of(volume).is_some()
    }

    /// The change that makes an encrypted volume, of a family of its own.
    pub fn sealed_volume(
        &self,
        name: &str,
        blocks: u64,
        key: &WrappingKey,
        entropy: &SealEntropy,
    ) -> PoolChange {
        let uuid: FamilyUuid = entropy.name();
        let of = SealFamilyName { pool: self.core.uuid, family: uuid };
        let data = DataKey::new(entropy.key());
        let key = WrappedKey::wrap(&data, key, &of, 1, entropy.nonce());
        let (name, family) = (name.to_owned(), HEXLOWER.encode(&uuid));
        PoolChange::CreateSealed { name, blocks, family, key }
    }

    /// The change that keeps a volume's data keys under another wrapping key. All volumes of its
    /// family need the new key from then on.
    ///
    /// # Errors
    /// If the volume is not encrypted, or its present key was not given.
    pub fn rewrapped(
        &self,
        volume: VolumeId,
        key: &WrappingKey,
        entropy: &[SealEntropy],
    ) -> Result<PoolChange, PoolError> {
        let family = self.open_family(volume)?;
        let name = self.core.family_name(&family);
        let wrap = |(old, entropy): (&WrappedKey, &SealEntropy)| {
            let data = self.core.keys.data(family.number(), old.version)?;
            Some(WrappedKey::wrap(data, key, &name, old.version, entropy.nonce()))
        };
        let keys: Vec<_> = family.keys.iter().zip(entropy).filter_map(wrap).collect();
        Ok(PoolChange::Rewrap { volume, keys })
    }

    /// The change that gives a volume's family another data key. Its pages are sealed anew in the
    /// background, while guests work.
    ///
    /// # Errors
    /// If the volume is not encrypted, or its present key was not given, or is another one.
    pub fn rekeyed(
        &mut self,
        volume: VolumeId,
        key: &WrappingKey,
        entropy: &SealEntropy,
    ) -> Result<PoolChange, PoolError> {
        let family = self.open_family(volume)?;
        let newest = family.keys.last().ok_or_else(|| locked(&family))?;
        if newest.key_id != key.id() {
            let (given, wanted) = (key.id().to_owned(), newest.key_id.clone());
            return Err(PoolError::WrongKey { given, wanted });
        }
        let version = newest.version.checked_add(1).ok_or_else(|| {
            PoolError::Invalid("the volume has had as many data keys as it can have".to_owned())
        })?;
        let name = self.core.family_name(&family);
        let data = DataKey::new(entropy.key());
        let key = WrappedKey::wrap(&data, key, &name, version, entropy.nonce());
        self.core.keys.propose(family.number(), key.clone(), name, data);
        Ok(PoolChange::Rekey { volume, key })
    }

    fn family_of(&self, volume: VolumeId) -> Result<SealFamily, PoolError> {
        let map = &self.core.map;
        map.volume_blocks(volume).ok_or(PoolError::NoVolume(volume))?;
        let family = map.family_of(volume).and_then(|family| map.family(family)).cloned();
        family.ok_or(PoolError::WrongKind(volume, "not encrypted, and has no key"))
    }

    fn open_family(&self, volume: VolumeId) -> Result<SealFamily, PoolError> {
        let family = self.family_of(volume)?;
        self.core.lock_of(volume).map_or(Ok(family), Err)
    }
}
