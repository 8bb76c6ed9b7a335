//! Families of encrypted volumes: a volume, its snapshots and clones share their data keys.

use super::{PoolCatalog, PoolSeal, PoolVolumeKind, SealFamily, VERSIONS_MAX};
use crate::api::{PoolError, VolumeId};
use seal::WrappedKey;

/// The digits of a family's name.
const UUID_DIGITS: usize = 32;

/// Data keys of a family: one, and an old one while pages are sealed anew.
const KEYS_MAX: usize = 2;

/// The volumes and snapshots that the text of an error names.
const NAMES_MAX: usize = 8;

fn invalid<T>(text: &str) -> Result<T, PoolError> {
    Err(PoolError::Invalid(text.to_owned()))
}

fn is_uuid(uuid: &str) -> bool {
    let is_digit = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    uuid.len() == UUID_DIGITS && uuid.bytes().all(is_digit)
}

impl PoolCatalog {
    pub(in crate::map) fn family(&self, family: u32) -> Option<&SealFamily> {
        self.families.get(&family)
    }

    /// How many families there are.
    pub(in crate::map) fn families(&self) -> usize {
        self.families.len()
    }

    /// The version of a family's newest data key.
    pub(in crate::map) fn newest_key(&self, family: u32) -> Option<u32> {
        self.families.get(&family)?.keys.last().map(|key| key.version)
    }

    /// The data key of a family whose version has these lowest bits.
    pub(in crate::map) fn key_of_low_bits(&self, family: u32, low: u8) -> Option<u32> {
        let keys = self.families.get(&family)?.keys.iter();
        keys.map(|key| key.version).find(|version| *version as u8 == low)
    }

    /// Families with an old data key, and a volume or snapshot of each.
    pub(in crate::map) fn resealing(&self) -> Vec<(u32, VolumeId)> {
        let has_old = |family: &&SealFamily| family.keys.len() > 1;
        let of = |family: &SealFamily| {
            let of = self.versions.values().find(|version| {
                version.family == Some(family.id) && version.kind != PoolVolumeKind::Removing
            })?;
            Some((family.id, VolumeId(of.id)))
        };
        self.families.values().filter(has_old).filter_map(of).collect()
    }

    pub(super) fn seal_of(&self, family: u32) -> Option<PoolSeal> {
        let keys = &self.families.get(&family)?.keys;
        let newest = keys.last()?;
        let (key_id, version) = (newest.key_id.clone(), newest.version);
        Some(PoolSeal { family, key_id, version, is_resealing: keys.len() > 1, old_blocks: 0 })
    }

    /// The family of a volume or snapshot that a change names.
    fn family_of(&self, volume: VolumeId) -> Result<&SealFamily, PoolError> {
        let version = self.visible(volume.0).ok_or(PoolError::NoVolume(volume))?;
        let family = version.family.and_then(|family| self.families.get(&family));
        family.ok_or(PoolError::WrongKind(volume, "not encrypted, and has no key"))
    }

    fn family_mut(&mut self, volume: u32) -> &mut SealFamily {
        let family = self.versions[&volume].family.expect("the change was checked");
        self.families.get_mut(&family).expect("a version's family is there")
    }

    pub(super) fn check_new_family(&self, family: &str, key: &WrappedKey) -> Result<(), PoolError> {
        if !is_uuid(family) || !key.is_possible() || key.version != 1 {
            return invalid("the key of the new volume is not a first one of a family");
        }
        if self.next_family == u32::MAX {
            return invalid("the pool has had as many encrypted volumes as it can have");
        }
        if self.families.values().any(|known| known.uuid == family) {
            return invalid("another family of volumes has this name: draw random digits for it");
        }
        Ok(())
    }

    pub(super) fn check_rewrap(
        &self,
        volume: VolumeId,
        keys: &[WrappedKey],
    ) -> Result<VolumeId, PoolError> {
        let versions = |keys: &[WrappedKey]| keys.iter().map(|key| key.version).collect::<Vec<_>>();
        let family = self.family_of(volume)?;
        let are_same = !keys.is_empty()
            && versions(keys) == versions(&family.keys)
            && keys.iter().all(|key| key.key_id == keys[0].key_id);
        if !are_same || !keys.iter().all(WrappedKey::is_possible) {
            return invalid("these are not the volume's data keys: try again");
        }
        Ok(volume)
    }

    pub(super) fn check_rekey(
        &self,
        volume: VolumeId,
        key: &WrappedKey,
    ) -> Result<VolumeId, PoolError> {
        match self.family_of(volume)?.keys.as_slice() {
            // Both are under one wrapping key, or no key would open the family.
            [old]
                if Some(key.version) == old.version.checked_add(1)
                    && key.key_id == old.key_id
                    && key.is_possible() =>
            {
                Ok(volume)
            }
            [_] => invalid("this is not the volume's next data key: try again"),
            _ => invalid(
                "blocks of the volume are still sealed anew after the last change of its data \
                 key: wait until that is done",
            ),
        }
    }

    pub(super) fn check_resealed(
        &self,
        volume: VolumeId,
        version: u32,
    ) -> Result<VolumeId, PoolError> {
        match self.family_of(volume)?.keys.as_slice() {
            [old, _] if old.version == version => Ok(volume),
            _ => invalid("the volume has no such old data key"),
        }
    }

    /// The volumes and snapshots of a volume's family. Moments go with their volumes.
    fn relatives(&self, volume: u32) -> Vec<u32> {
        let family = self.versions.get(&volume).and_then(|version| version.family);
        let is_of = |id: &u32| {
            let version = &self.versions[id];
            version.family == family && version.kind != PoolVolumeKind::Removing
        };
        let named = self.named().map(|version| version.id);
        named.filter(|id| family.is_some() && is_of(id)).collect()
    }

    pub(super) fn check_shred(&self, volume: VolumeId, all: bool) -> Result<VolumeId, PoolError> {
        self.family_of(volume)?;
        let others = self.relatives(volume.0);
        let others: Vec<u32> = others.into_iter().filter(|&id| id != volume.0).collect();
        if all || others.is_empty() {
            return Ok(volume);
        }
        let names = others.iter().take(NAMES_MAX).map(|id| {
            let version = &self.versions[id];
            let of = version.of.and_then(|of| self.versions.get(&of));
            of.map_or(version.name.clone(), |of| format!("{}@{}", of.name, version.name))
        });
        let (names, count) = (names.collect::<Vec<_>>().join(", "), others.len());
        Err(PoolError::Invalid(format!(
            "its data key is also that of {count} other volumes and snapshots ({names}): remove \
             them first, or shred all of them at once"
        )))
    }

    pub(super) fn new_family(&mut self, uuid: &str, key: &WrappedKey) -> u32 {
        let id = self.next_family;
        self.next_family += 1;
        let (uuid, keys) = (uuid.to_owned(), vec![key.clone()]);
        self.families.insert(id, SealFamily { id, uuid, keys });
        id
    }

    pub(super) fn rewrap(&mut self, volume: u32, keys: &[WrappedKey]) {
        self.family_mut(volume).keys = keys.to_vec();
    }

    pub(super) fn rekey(&mut self, volume: u32, key: &WrappedKey) {
        self.family_mut(volume).keys.push(key.clone());
    }

    pub(super) fn resealed(&mut self, volume: u32, version: u32) {
        self.family_mut(volume).keys.retain(|key| key.version != version);
    }

    pub(super) fn shred(&mut self, volume: u32) {
        self.family_mut(volume).keys.clear();
        for id in self.relatives(volume) {
            self.begin_removal(id);
        }
    }

    /// A version is gone, which may have been the last one of its family.
    pub(super) fn drop_family(&mut self, family: Option<u32>) {
        let Some(family) = family else { return };
        let versions = self.family_versions.entry(family).or_default();
        *versions = versions.saturating_sub(1);
        if *versions == 0 {
            self.family_versions.remove(&family);
            self.families.remove(&family);
        }
    }

    /// The families of a checkpoint.
    ///
    /// # Errors
    /// If a field has a value that it cannot have.
    pub(super) fn restore_families(
        &mut self,
        families: Vec<SealFamily>,
        next: u32,
    ) -> Result<(), String> {
        self.next_family = next;
        for family in families {
            let id = family.id;
            let keys = &family.keys;
            let is_right = id < next
                && families_have_room(self.families.len())
                && is_uuid(&family.uuid)
                && keys.len() <= KEYS_MAX
                && keys.iter().all(WrappedKey::is_possible)
                && keys
                    .windows(2)
                    .all(|pair| pair[0].version.checked_add(1) == Some(pair[1].version));
            if !is_right || self.families.insert(id, family).is_some() {
                return Err(format!("the checkpoint's family {id} is senseless"));
            }
        }
        Ok(())
    }
}

/// A family has a version at least.
fn families_have_room(families: usize) -> bool {
    families < VERSIONS_MAX
}
