//! The dirty volume of a pool.
//!
//! Its name has its owner, `dirty.DISK.NAMES.EPOCH.CLAIMANT`, so a change of the owner is one
//! change of the pool, and its map says which blocks are dirty. `NAMES` stands for the names of the
//! remote volume and the attachment.
//!
//! The number of the last round is in the name of an empty volume, `dirty.DISK.round.NUMBER`: the
//! name of the dirty volume has no room for it.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use store::{PoolChange, PoolError, PoolVolume, VolumeId};
use volume::backend::store::{Pools, StorePool, StoreVolume};
use volume::{Durability, Volume};

use super::{DirtyOwner, DirtyRest, DirtyStorage};
use crate::pool::{blocks_of, digits, is_volume, opening};

/// The first characters of the digest of names: two volumes of one disk's name have the same ones
/// once in 2^40 times.
const NAMES_CHARS: usize = 8;

/// The beginning of the name of the dirty volume of a disk.
pub(crate) fn dirty_volume_name(disk: &str) -> String {
    format!("dirty.{disk}")
}

/// The most characters of the name of a disk with write-back: the rest of the volume's name has
/// an epoch and a claimant.
pub const WRITE_BACK_DISK_NAME_MAX: usize = 20;

/// See the module.
#[derive(Debug)]
pub struct DirtyStore {
    pool: Arc<StorePool>,
    disk: String,
    /// The digest of the names of remote volume and attachment.
    names: String,
    blocks: u64,
    capacity: u64,
    durability: Durability,
    id: Option<VolumeId>,
}

/// The dirty volume of a disk in a pool in which the disk may have no write-back.
#[derive(Debug)]
pub(crate) struct LeftVolume {
    /// The name of a volume that has writes.
    pub(crate) full: Option<String>,
    /// There is a volume without writes.
    pub(crate) is_empty: bool,
    /// The number of the last round here.
    pub(crate) number: u64,
}

/// The blocks of the volume that has the number in its name: it is never written.
const NUMBER_BLOCKS: u64 = 1;

/// The part of a name that says that it has the number of a round.
const ROUND: &str = "round";

/// The snapshot by which the blocks of a volume are listed.
const LIST: &str = "list";

impl DirtyStore {
    /// The dirty volume of a disk in a pool, for a remote volume of so many blocks and this
    /// durability, of which `capacity` blocks may be dirty. `of` names the remote volume and the
    /// attachment.
    pub fn new(
        pool: &Arc<StorePool>,
        (disk, of): (&str, &str),
        (blocks, capacity): (u64, u64),
        durability: Durability,
    ) -> Self {
        let names = names_of(of);
        let (pool, disk) = (Arc::clone(pool), disk.to_owned());
        Self { pool, disk, names, blocks, capacity, durability, id: None }
    }

    /// Removes the dirty volume of a disk, which has no block.
    ///
    /// # Errors
    /// Why the pool still has it.
    pub fn remove(pool: &Arc<StorePool>, disk: &str) -> Result<(), String> {
        let store = Self::new(pool, (disk, ""), (0, 0), Durability::Flush);
        store.remove_all(|it| parse(it, disk).is_some())
    }

    fn remove_all(&self, is_its: impl Fn(&PoolVolume) -> bool) -> Result<(), String> {
        for found in self.pool.volumes().iter().filter(|it| is_its(it)) {
            self.forget_list(found.id)?;
            self.change(PoolChange::Remove { volume: found.id })?;
        }
        self.forget_number()
    }

    /// Looks for writes of a disk, to the volume and by the attachment that `of` names, in a pool
    /// that shall have none: the disk had write-back there before.
    pub(crate) fn left(pool: &Arc<StorePool>, (disk, of): (&str, &str)) -> LeftVolume {
        let store = Self::new(pool, (disk, of), (0, 0), Durability::Flush);
        let is_its = |it: &PoolVolume| parse(it, disk).is_some_and(|it| it.0 == store.names);
        let found: Vec<_> = pool.volumes().into_iter().filter(is_its).collect();
        let full = found.iter().find(|it| it.referred_blocks != Some(0));
        LeftVolume {
            full: full.map(|it| it.name.clone()),
            is_empty: full.is_none() && !found.is_empty(),
            number: store.last_number(),
        }
    }

    /// Removes what [`Self::left`] has found to be empty.
    ///
    /// # Errors
    /// Why the pool still has it.
    pub(crate) fn remove_left(
        pool: &Arc<StorePool>,
        (disk, of): (&str, &str),
    ) -> Result<(), String> {
        let store = Self::new(pool, (disk, of), (0, 0), Durability::Flush);
        let is_its = |it: &PoolVolume| parse(it, disk).is_some_and(|it| it.0 == store.names);
        store.remove_all(|it| is_its(it) && it.referred_blocks == Some(0))
    }

    /// Looks for writes to the same remote volume of a disk of another name: this disk was renamed.
    /// An attachment that has no name of its own has the disk's; `of` are the names of this
    /// disk, and the names that this node remembers. Gives the names of the volume and the disk.
    pub(crate) fn left_by_another(
        pool: &Arc<StorePool>,
        disk: &str,
        (volume, of): (&str, &[String]),
    ) -> Option<(String, String)> {
        let all = pool.volumes().into_iter().filter(|it| it.referred_blocks != Some(0));
        let mut found = all.filter_map(|it| {
            let other = writes_of(&it.name).filter(|other| *other != disk)?;
            let (names, _) = parse(&it, other)?;
            let is_same = |of: &String| names == names_of(of);
            let is_same = of.iter().any(is_same) || is_same(&attached(volume, other));
            is_same.then(|| (it.name.clone(), other.to_owned()))
        });
        found.next()
    }

    /// Looks for writes of a disk of this name to another remote volume, or by another attachment:
    /// the line of the disk was changed. Gives why the disk must not be served without them.
    pub(crate) fn left_by_another_line(
        pool: &Arc<StorePool>,
        (disk, of): (&str, &str),
    ) -> Option<String> {
        let store = Self::new(pool, (disk, of), (0, 0), Durability::Flush);
        let mut all = pool.volumes().into_iter().filter(|it| it.referred_blocks != Some(0));
        let is_other = |it: &PoolVolume| parse(it, disk).is_some_and(|it| it.0 != store.names);
        all.find(is_other).map(|it| store.another_line(&it))
    }

    fn another_line(&self, found: &PoolVolume) -> String {
        let (volume, pool, number) = (&found.name, self.pool.name(), found.id.0);
        format!(
            "volume {volume} of pool {pool:?} has writes of this disk to another volume, by \
             another list of peers, or by another attachment: they were not written back. Give \
             the disk its former \"volume\" and \"attachment\" again until they are; or give the \
             writes up, and remove that volume (`vrio volume remove {pool}:{number} --data \
             --force`)"
        )
    }

    /// Whether a volume of a pool is, by its name, the dirty volume of this disk.
    pub fn is_of(volume: &str, disk: &str) -> bool {
        parse_name(volume, disk).is_some() || parse_number(volume, disk).is_some()
    }

    fn number_name(&self, number: u64) -> String {
        format!("{}.{ROUND}.{number}", dirty_volume_name(&self.disk))
    }

    /// The volume that has the number, and the number.
    fn numbered(&self) -> Option<(VolumeId, u64)> {
        let all = self.pool.volumes().into_iter().filter(|it| is_volume(it, &it.name));
        let of = |it: PoolVolume| Some((it.id, parse_number(&it.name, &self.disk)?));
        all.filter_map(of).max_by_key(|(_, number)| *number)
    }

    fn forget_number(&self) -> Result<(), String> {
        while let Some((volume, _)) = self.numbered() {
            self.change(PoolChange::Remove { volume })?;
        }
        Ok(())
    }

    fn name(&self, owner: Option<DirtyOwner>) -> String {
        let parts = owner.map_or([0, 0], |it| [it.epoch.into(), it.claimant.into()]).map(digits);
        format!("{}.{}.{}", dirty_volume_name(&self.disk), self.names, parts.join("."))
    }

    fn text(&self, error: &PoolError) -> String {
        format!("pool {:?}: {error}", self.pool.name())
    }

    fn change(&self, change: PoolChange) -> Result<VolumeId, String> {
        self.pool.change(change).map_err(|error| self.text(&error))
    }

    fn create(&mut self) -> Result<VolumeId, String> {
        let (name, blocks) = (self.name(None), self.blocks);
        let id = self.change(PoolChange::Create { name, blocks })?;
        if let Err(why) = self.reserve(id, self.capacity) {
            self.change(PoolChange::Remove { volume: id })?;
            return Err(why);
        }
        self.id = Some(id);
        Ok(id)
    }

    fn reserve(&self, volume: VolumeId, reservation: u64) -> Result<(), String> {
        self.change(PoolChange::Quota { volume, reservation, limit: None }).map(drop)
    }

    fn open(&self, id: VolumeId) -> Result<Arc<dyn Volume>, String> {
        let pools = Pools::default();
        let opening =
            volume::backend::Opening { durability: self.durability, ..opening("", &pools) };
        Ok(Arc::new(StoreVolume::open(&self.pool, id, &opening)?))
    }

    /// The blocks that a volume has, by a snapshot that is made for that.
    fn list(&self, id: VolumeId) -> Result<Vec<crate::Blocks>, String> {
        self.forget_list(id)?;
        let name = LIST.to_owned();
        self.change(PoolChange::Snapshot { volumes: vec![id], name, at_s: 0 })?;
        let list = self.lists(id).next().map(|it| it.id);
        let blocks = list.map(|list| blocks_of(&self.pool, list).map_err(|it| self.text(&it)));
        self.forget_list(id)?;
        blocks.unwrap_or_else(|| Err(format!("pool {:?} lost a snapshot", self.pool.name())))
    }

    fn lists(&self, id: VolumeId) -> impl Iterator<Item = PoolVolume> {
        let is_list = move |it: &PoolVolume| {
            it.kind == store::PoolVolumeKind::Snapshot && it.of == Some(id) && it.name == LIST
        };
        self.pool.volumes().into_iter().filter(is_list)
    }

    fn forget_list(&self, id: VolumeId) -> Result<(), String> {
        let mut all = self.lists(id);
        all.try_for_each(|it| self.change(PoolChange::Remove { volume: it.id }).map(drop))
    }
}

impl DirtyStorage for DirtyStore {
    fn load(&mut self) -> Result<DirtyRest, String> {
        let all = self.pool.volumes();
        let mut found = all.iter().filter_map(|it| Some((it, parse(it, &self.disk)?)));
        let first = found.next();
        if found.next().is_some() {
            return Err(format!(
                "pool {:?} has two volumes {}.*: remove the one whose writes are not wanted",
                self.pool.name(),
                dirty_volume_name(&self.disk)
            ));
        }
        let Some((found, (names, owner))) = first else {
            let id = self.create()?;
            let volume = self.open(id)?;
            return Ok(DirtyRest { volume, owner: None, blocks: Vec::new() });
        };
        // Before anything of it is changed. The next owner would put these writes aside, and its
        // guest may have been told of them.
        let blocks = self.list(found.id)?;
        if names != self.names && !blocks.is_empty() {
            return Err(self.another_line(found));
        }
        self.id = Some(found.id);
        if found.blocks < self.blocks {
            self.change(PoolChange::Resize { volume: found.id, blocks: self.blocks })?;
        }
        if found.reservation_blocks != self.capacity {
            self.reserve(found.id, self.capacity)?;
        }
        // It is empty if it is of another remote volume.
        let owner = owner.filter(|_| names == self.names);
        Ok(DirtyRest { volume: self.open(found.id)?, owner, blocks })
    }

    fn last_number(&self) -> u64 {
        self.numbered().map_or(0, |(_, number)| number)
    }

    fn stranded(&self) -> Vec<String> {
        let prefix = format!("rest.{}.", self.disk);
        let names = self.pool.volumes().into_iter().map(|it| it.name);
        let is_number = |text: &str| text.parse::<u64>().is_ok();
        names.filter(|name| name.strip_prefix(&prefix).is_some_and(is_number)).collect()
    }

    fn own(&mut self, owner: DirtyOwner) -> Result<(), String> {
        let volume = self.id.ok_or("the pool has no dirty volume")?;
        let name = self.name(Some(owner));
        if self.pool.volumes().iter().any(|it| it.id == volume && it.name == name) {
            return Ok(());
        }
        self.change(PoolChange::Rename { volume, name }).map(drop)
    }

    fn number(&mut self, number: u64) -> Result<(), String> {
        let name = self.number_name(number);
        match self.numbered() {
            Some((_, now)) if now == number => Ok(()),
            Some((volume, _)) => self.change(PoolChange::Rename { volume, name }).map(drop),
            None => {
                let blocks = NUMBER_BLOCKS;
                self.change(PoolChange::Create { name, blocks }).map(drop)
            }
        }
    }

    fn strand(&mut self) -> Result<(String, Arc<dyn Volume>), String> {
        let all = self.pool.volumes();
        let has = |name: &String| all.iter().any(|it| is_volume(it, name));
        let mut numbers = (1..=all.len() + 1).map(|number| format!("rest.{}.{number}", self.disk));
        let name = numbers.find(|name| !has(name)).expect("one more than there are volumes");
        if let Some(volume) = self.id {
            self.change(PoolChange::Rename { volume, name: name.clone() })?;
            self.id = None;
            self.reserve(volume, 0)?;
        }
        let id = self.create()?;
        Ok((name, self.open(id)?))
    }
}

/// A remote volume and the attachment of a disk to it, by their names.
pub(crate) fn attached(volume: &str, attachment: &str) -> String {
    format!("{volume} as {attachment}")
}

/// The digest of the names of a remote volume and an attachment.
fn names_of(of: &str) -> String {
    let hash = digest(&SHA256, of.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_ref()[..16]);
    let mut names = digits(u128::from_le_bytes(bytes));
    names.truncate(NAMES_CHARS);
    names
}

/// The disk whose dirty blocks are in a volume of a pool, by the volume's name.
pub fn writes_of(name: &str) -> Option<&str> {
    let mut parts = name.rsplitn(4, '.');
    let disk = parts.nth(3)?.strip_prefix("dirty.")?;
    parse_name(name, disk).map(|_| disk)
}

/// The disk of which a volume of a pool, by its name, has the number of the last round.
pub fn numbers_rounds_of(name: &str) -> Option<&str> {
    let disk = kept_for(name)?;
    parse_number(name, disk).map(|_| disk)
}

/// The disk whose write-back has made a volume of a pool, by the volume's name: its dirty blocks,
/// what was put aside of them, or the number of its last round.
pub fn kept_for(name: &str) -> Option<&str> {
    let numbered = |prefix: &str, suffix: &str| {
        let (disk, number) = name.strip_prefix(prefix)?.rsplit_once('.')?;
        number.parse::<u64>().ok().and_then(|_| disk.strip_suffix(suffix))
    };
    let round = numbered("dirty.", &format!(".{ROUND}"));
    round.or_else(|| writes_of(name)).or_else(|| numbered("rest.", ""))
}

/// The names and the owner that the name of a disk's dirty volume says.
fn parse(it: &PoolVolume, disk: &str) -> Option<(String, Option<DirtyOwner>)> {
    if it.kind != store::PoolVolumeKind::Volume {
        return None;
    }
    parse_name(&it.name, disk)
}

fn parse_name(name: &str, disk: &str) -> Option<(String, Option<DirtyOwner>)> {
    let mut parts = name.rsplitn(4, '.');
    let (claimant, epoch, names) = (parts.next()?, parts.next()?, parts.next()?);
    let number = |text: &str| u64::from_str_radix(text, 36).ok();
    let owner = DirtyOwner { epoch: number(epoch)?, claimant: number(claimant)? };
    let is_of = parts.next()? == dirty_volume_name(disk);
    is_of.then(|| (names.to_owned(), (owner.epoch != 0).then_some(owner)))
}

/// The number that the name of a volume says.
fn parse_number(name: &str, disk: &str) -> Option<u64> {
    let rest = name.strip_prefix(&dirty_volume_name(disk))?.strip_prefix('.')?;
    rest.strip_prefix(ROUND)?.strip_prefix('.')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_whose_the_volume_is() {
        let owner = DirtyOwner { epoch: (1 << 60) - 1, claimant: u64::MAX };
        let disk = "d".repeat(WRITE_BACK_DISK_NAME_MAX);
        let parts = [owner.epoch.into(), owner.claimant.into()].map(digits).join(".");
        let name = format!("{}.{}.{parts}", dirty_volume_name(&disk), "n".repeat(NAMES_CHARS));
        assert!(name.len() <= 64, "{} characters", name.len());
        assert_eq!(parse_name(&name, &disk), Some(("n".repeat(NAMES_CHARS), Some(owner))));
        assert_eq!(parse_name("dirty.a.x.0.0", "a"), Some(("x".to_owned(), None)));
        for (name, disk) in [("dirty.a.b.x.0.0", "a"), ("dirty.a", "a"), ("rest.a.1", "a")] {
            assert_eq!(parse_name(name, disk), None, "{name}");
        }
        assert_eq!(
            (writes_of("dirty.a.b.x.0.0"), writes_of("dirty.a.round.1")),
            (Some("a.b"), None)
        );
        let all = ["dirty.a.b.x.0.0", "dirty.a.b.round.7", "rest.a.b.7"];
        assert_eq!(all.map(kept_for), [Some("a.b"); 3]);
        let rounds = all.map(numbers_rounds_of);
        assert_eq!(rounds, [None, Some("a.b"), None]);
        for name in ["dirty.a", "rest.a.x", "rest.7", "restored.a.7", "cache.a", "a"] {
            assert_eq!(kept_for(name), None, "{name}");
        }
        let name = format!("{}.{ROUND}.{}", dirty_volume_name(&disk), u64::MAX);
        assert!(name.len() <= 64, "{} characters", name.len());
        assert_eq!((parse_number(&name, &disk), parse_name(&name, &disk)), (Some(u64::MAX), None));
        for name in ["dirty.a.round.x.1", "dirty.a.rounds.1", "dirty.b.round.1", "dirty.a.round"] {
            assert_eq!(parse_number(name, "a"), None, "{name}");
        }
    }
}
