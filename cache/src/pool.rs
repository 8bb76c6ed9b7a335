//! The volume of a pool that has a cache's blocks, and the mark of a clean end in the pool.
//!
//! The mark is a snapshot of the volume. It is there or not, so it says all or nothing; its name
//! has the epoch, and its map has the blocks. A cache that is used has no mark. After a kill or a
//! power cut there is none, and the cache begins empty.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use store::{PoolChange, PoolError, PoolVolume, PoolVolumeKind, VolumeId};
use volume::backend::Opening;
use volume::backend::store::{Pools, StorePool, StoreVolume};
use volume::{Durability, Incarnation, Topology, Volume};

use crate::gate::HeldEpoch;
use crate::keeper::CacheStorage;
use crate::map::Blocks;

/// The beginning of the names of marks.
const MARK: &str = "clean.";

/// The name in its pool of the volume that has the cache of a disk.
pub fn cache_volume_name(disk: &str) -> String {
    format!("cache.{disk}")
}

/// See the module.
#[derive(Debug)]
pub struct PoolStorage {
    pool: Arc<StorePool>,
    id: VolumeId,
    /// The remote volume by its names, which a mark of another volume does not have.
    of: String,
}

impl PoolStorage {
    /// Finds or makes the volume of a disk's cache in a pool, for a remote volume of so many
    /// blocks, and reserves `capacity` blocks of the pool for it. `of` names the remote volume and
    /// the attachment.
    ///
    /// # Errors
    /// Why not, and the way out.
    pub fn open(
        pool: &Arc<StorePool>,
        name: &str,
        of: &str,
        (blocks, capacity): (u64, u64),
    ) -> Result<(Self, Arc<dyn Volume>), String> {
        let failed = |error: PoolError| format!("pool {:?}: {error}", pool.name());
        let all = pool.volumes();
        let found = all.iter().find(|it| is_volume(it, name)).cloned();
        if let Some(found) = found.as_ref().filter(|found| !is_cache(found, &all)) {
            return Err(format!(
                "pool {:?} has a volume {:?} that is no cache, and a cache would need the name: \
                 clone it under another name (`vrio volume clone`) and remove it with its \
                 snapshots, or name the disk otherwise",
                pool.name(),
                found.name
            ));
        }
        let id = match &found {
            Some(found) => found.id,
            None => {
                pool.change(PoolChange::Create { name: name.to_owned(), blocks }).map_err(failed)?
            }
        };
        let storage = Self { pool: Arc::clone(pool), id, of: of.to_owned() };
        if found.as_ref().is_some_and(|found| found.blocks != blocks) {
            // Its mark is of another size. Blocks beyond a smaller size go with the rest.
            storage.unmark_all().map_err(failed)?;
            pool.change(PoolChange::Clear { volume: id }).map_err(failed)?;
            pool.change(PoolChange::Resize { volume: id, blocks }).map_err(failed)?;
        }
        let quota = found.map(|found| (found.reservation_blocks, found.limit_blocks));
        if quota != Some((capacity, None)) {
            let is_new = quota.is_none();
            let change = PoolChange::Quota { volume: id, reservation: capacity, limit: None };
            let changed = pool.change(change).map_err(failed);
            if changed.is_err() && is_new {
                // Nothing of a cache that cannot be had stays.
                pool.change(PoolChange::Remove { volume: id }).map_err(failed)?;
            }
            changed?;
        }
        let volume = StoreVolume::open(pool, id, &opening(name, &Pools::default()))?;
        Ok((storage, Arc::new(volume)))
    }

    /// Removes the volume of a disk's cache from a pool, if it is there.
    ///
    /// # Errors
    /// Why the pool still has it.
    pub fn remove(pool: &Arc<StorePool>, name: &str) -> Result<(), String> {
        let all = pool.volumes();
        let found = all.iter().find(|it| is_volume(it, name) && is_cache(it, &all));
        let Some(found) = found else { return Ok(()) };
        let storage = Self { pool: Arc::clone(pool), id: found.id, of: String::new() };
        let removed = storage
            .unmark_all()
            .and_then(|()| pool.change(PoolChange::Remove { volume: found.id }).map(drop));
        removed.map_err(|error| format!("pool {:?}: {error}", pool.name()))
    }

    fn marks(&self) -> Vec<PoolVolume> {
        let mut all = self.pool.volumes();
        all.retain(|it| it.kind == PoolVolumeKind::Snapshot && it.of == Some(self.id));
        all
    }

    fn unmark_all(&self) -> Result<(), PoolError> {
        for mark in self.marks() {
            self.pool.change(PoolChange::Remove { volume: mark.id })?;
        }
        Ok(())
    }

    fn text(&self, error: &PoolError) -> String {
        format!("pool {:?}: {error}", self.pool.name())
    }
}

impl CacheStorage for PoolStorage {
    fn load(&mut self) -> Result<Option<(HeldEpoch, Vec<Blocks>)>, String> {
        let marks = self.marks();
        let [mark] = marks.as_slice() else { return Ok(None) };
        let Some(held) = parse(&mark.name, &self.of) else { return Ok(None) };
        let blocks = blocks_of(&self.pool, mark.id).map_err(|error| self.text(&error))?;
        Ok(Some((held, blocks)))
    }

    fn mark(&mut self, held: &HeldEpoch) -> Result<(), String> {
        let name = mark_name(held, &self.of);
        let change = PoolChange::Snapshot { volumes: vec![self.id], name, at_s: 0 };
        let marked = self.unmark_all().and_then(|()| self.pool.change(change).map(drop));
        marked.map_err(|error| self.text(&error))
    }

    fn unmark(&mut self) -> Result<(), String> {
        self.unmark_all().map_err(|error| self.text(&error))
    }

    fn clear(&mut self) -> Result<(), String> {
        let clear = PoolChange::Clear { volume: self.id };
        let cleared = self.unmark_all().and_then(|()| self.pool.change(clear).map(drop));
        cleared.map_err(|error| self.text(&error))
    }
}

/// The blocks that a snapshot has a page for.
pub(crate) fn blocks_of(pool: &StorePool, of: VolumeId) -> Result<Vec<Blocks>, PoolError> {
    let (mut all, mut start) = (Vec::new(), Some(0));
    while let Some(from) = start {
        let part = pool.changed(None, of, from)?;
        let runs = part.runs.iter().filter(|run| !run.is_hole);
        all.extend(runs.map(|run| Blocks { first: run.block, count: run.blocks }));
        start = part.next_block;
    }
    Ok(all)
}

pub(crate) fn is_volume(it: &PoolVolume, name: &str) -> bool {
    it.kind == PoolVolumeKind::Volume && it.name == name
}

/// Whether a volume was made for a cache: it has its reservation, or nothing yet, and no snapshots
/// but marks. A user cannot make a volume of its name, but an older release let users do so.
fn is_cache(it: &PoolVolume, all: &[PoolVolume]) -> bool {
    let is_mark = |of: &PoolVolume| of.name.starts_with(MARK);
    // A mark that is still being removed is listed without its name.
    let is_there = |of: &&PoolVolume| of.kind == PoolVolumeKind::Snapshot;
    let snapshots: Vec<_> = all.iter().filter(is_there).filter(|of| of.of == Some(it.id)).collect();
    let is_own = it.parent.is_none_or(|parent| snapshots.iter().any(|of| of.id == parent));
    let is_plain = is_own && it.seal.is_none() && it.receive.is_none() && it.history.is_none();
    let is_new = it.referred_blocks == Some(0) && it.account_blocks == 0;
    let is_kept = it.reservation_blocks > 0 && it.limit_blocks.is_none();
    is_plain && (is_new || is_kept) && snapshots.into_iter().all(is_mark)
}

pub(crate) fn opening<'a>(name: &'a str, pools: &'a Pools) -> Opening<'a> {
    Opening {
        name,
        pools,
        durability: Durability::Flush,
        read_only: false,
        topology: Topology::default(),
        is_new: false,
        key: None,
    }
}

/// Digits for names of marks.
const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// A number in few characters: a name of a snapshot has 64.
pub(crate) fn digits(mut number: u128) -> String {
    let mut text = Vec::new();
    while number > 0 || text.is_empty() {
        text.push(DIGITS[(number % 36) as usize]);
        number /= 36;
    }
    text.iter().rev().map(|digit| char::from(*digit)).collect()
}

/// The incarnation of a mark of this volume and attachment, hidden by their names and back: under
/// other names it is another incarnation, which no volume has.
fn hidden(incarnation: u128, of: &str) -> u128 {
    let hash = digest(&SHA256, of.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_ref()[..16]);
    incarnation ^ u128::from_le_bytes(bytes)
}

fn mark_name(held: &HeldEpoch, of: &str) -> String {
    let incarnation = hidden(u128::from_le_bytes(held.incarnation.0), of);
    let parts = [held.epoch.into(), held.claimant.into(), incarnation].map(digits);
    format!("{MARK}{}", parts.join("."))
}

fn parse(name: &str, of: &str) -> Option<HeldEpoch> {
    let mut parts = name.strip_prefix(MARK)?.split('.');
    let mut next = || u128::from_str_radix(parts.next()?, 36).ok();
    let (epoch, claimant, incarnation) = (next()?, next()?, next()?);
    Some(HeldEpoch {
        epoch: u64::try_from(epoch).ok()?,
        claimant: u64::try_from(claimant).ok()?,
        incarnation: Incarnation(hidden(incarnation, of).to_le_bytes()),
        resumed: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_a_name_and_says_whose_it_is() {
        let incarnation = Incarnation([255; 16]);
        let (epoch, claimant) = ((1 << 60) - 1, u64::MAX);
        let held = HeldEpoch { epoch, incarnation, claimant, resumed: None };
        let name = mark_name(&held, "io1/alice as alice");
        assert!(name.len() <= 64, "{} characters", name.len());
        assert_eq!(parse(&name, "io1/alice as alice"), Some(held));
        let other = parse(&name, "io1/bob as alice").expect("a mark");
        assert_ne!(other.incarnation, incarnation);
        for odd in ["clean", "clean.", "clean.1.2", "clean.1.2.%", "auto-1"] {
            assert_eq!(parse(odd, ""), None, "{odd}");
        }
        let none = HeldEpoch { epoch: 0, claimant: 0, incarnation: Incarnation([0; 16]), ..held };
        assert_eq!(parse(&mark_name(&none, "x"), "x"), Some(none));
    }
}
