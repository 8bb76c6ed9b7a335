//! The volumes and snapshots of a pool, and how they come from each other.
//!
//! ```text
//! snapshot 1 ── snapshot 4 ── volume 0 (head)
//!     └──────── volume 5 (a clone of 1)
//! ```
//!
//! A version owns the entries that were born after its parent's generation. The trees that are
//! freed in the background are versions of the kind `Removing`, which no request reaches: a removed
//! snapshot or volume, and the old tree of a volume that was cleared, rolled back or made smaller.

mod changes;
mod family;
mod history;
mod moments;
mod receive;
mod space;
mod state;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::moments::{VolumeMoments, is_moment};
use super::page::TreeWord;
use super::space::{SpaceAccount, VersionSpace};
use crate::api::{QuotaWait, VolumeId};
use crate::block::BLOCK_BYTES;
use crate::history::{PoolHistory, VolumeHistory, is_zero};
use crate::pack::PageCompression;
use pool_stream::{SnapshotOrigin, VOLUME_BLOCKS_MAX, VolumeReceive};
use seal::WrappedKey;

pub(crate) use state::CatalogState;

/// The most volumes and snapshots of a pool, with those that are being removed and without the
/// moments of histories: the state of a checkpoint has all of them.
pub(crate) const VERSIONS_MAX: usize = 16_384;

/// The last generation: entries of nodes have 28 bits for it.
pub(crate) const GENERATION_MAX: u64 = (1 << 28) - 1;

/// The kinds of entries of a pool's catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolVolumeKind {
    /// A volume, which guests write.
    Volume,
    /// A snapshot.
    Snapshot,
    /// The rest of a volume or snapshot, whose space comes back in the background.
    Removing,
}

/// A volume or snapshot, as a list of them has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolVolume {
    /// Its id.
    pub id: VolumeId,
    /// Its name; empty for a version that is being removed.
    pub name: String,
    /// Its kind.
    pub kind: PoolVolumeKind,
    /// The volume that a snapshot was taken of, even if that is gone.
    pub of: Option<VolumeId>,
    /// The snapshot that it comes from.
    pub parent: Option<VolumeId>,
    /// Its size.
    pub blocks: u64,
    /// When a snapshot was taken, in seconds since 1970; 0 for a volume.
    pub at_s: u64,
    /// How the pages that it writes are compressed when they move.
    pub compression: Option<PageCompression>,
    /// The pool's generation when a snapshot was taken; 0 for a volume.
    pub generation: u64,
    /// The snapshot of which a received snapshot is a copy.
    pub origin: Option<SnapshotOrigin>,
    /// The stream that is being received into a volume.
    pub receive: Option<VolumeReceive>,
    /// Pages that it owns: those that its parent does not have. They come back if a volume is
    /// removed; of a snapshot, those of them that nothing else has.
    pub owned_blocks: u64,
    /// Blocks that it has a page for; `None` when that is not known, since it was made smaller.
    pub referred_blocks: Option<u64>,
    /// Pages that a volume and all of its snapshots own.
    pub account_blocks: u64,
    /// Blocks that a volume has for itself and its snapshots, and that others cannot take.
    pub reservation_blocks: u64,
    /// Blocks that a volume and its snapshots may own.
    pub limit_blocks: Option<u64>,
    /// The writes of a volume wait for this.
    pub wait: Option<QuotaWait>,
    /// How it is encrypted, if it is.
    pub seal: Option<PoolSeal>,
    /// The history of a volume, if it has one.
    pub history: Option<PoolHistory>,
}

/// How a volume or snapshot is encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolSeal {
    /// The number of its family: the volumes and snapshots that share its data keys.
    pub family: u32,
    /// The name of the key that its data keys are kept under.
    pub key_id: String,
    /// The count of its data keys in its life.
    pub version: u32,
    /// Pages are being sealed anew with the newest data key.
    pub is_resealing: bool,
    /// Blocks of the volumes that share the data keys that are still under an old one.
    pub old_blocks: u64,
}

impl PoolVolume {
    /// Its size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.blocks.saturating_mul(BLOCK_BYTES as u64)
    }

    /// The identity of a snapshot of the pool with this UUID.
    pub fn identity(&self, pool: [u8; 16]) -> SnapshotOrigin {
        let Self { id, generation, at_s, .. } = *self;
        self.origin.unwrap_or(SnapshotOrigin { pool, id: id.0, generation, at_s })
    }
}

/// A volume or snapshot. It is part of a checkpoint, so a field's name is part of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Version {
    pub(super) id: u32,
    pub(super) kind: PoolVolumeKind,
    pub(super) name: String,
    pub(super) of: Option<u32>,
    pub(super) parent: Option<u32>,
    /// Of a snapshot; a volume has the pool's.
    pub(super) generation: u64,
    pub(super) blocks: u64,
    pub(super) root: u64,
    pub(super) at_s: u64,
    /// The removal is done with the blocks below.
    pub(super) removed_below: u64,
    /// How pages that it writes are compressed when they move.
    pub(super) compression: Option<PageCompression>,
    /// Of a snapshot that was received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<SnapshotOrigin>,
    /// Of a volume into which a stream is being received.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) receive: Option<Box<VolumeReceive>>,
    /// Pages and quota.
    pub(super) space: VersionSpace,
    /// The family of an encrypted volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) family: Option<u32>,
    /// Of a volume, how its history is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) history: Option<VolumeHistory>,
    /// Of a volume, the generation of the last snapshot with a name that it came from: pages that
    /// were born later are its history's alone when they are overwritten.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) snapshot_floor: u64,
    /// Of a moment, its time; and the pages that its next one has not, nor an older snapshot.
    #[serde(skip)]
    pub(super) at_ns: u64,
    #[serde(skip)]
    pub(super) held: u64,
}

/// Volumes and snapshots that share their data keys: they share pages as well. Its fields' names
/// are part of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SealFamily {
    /// Its number in the pool, which no other family has or had.
    id: u32,
    /// Its name over all pools, in hexadecimal digits.
    pub(crate) uuid: String,
    /// Its data keys, the newest one last: one, or two while pages are sealed anew, or none after
    /// it was shredded.
    pub(crate) keys: Vec<WrappedKey>,
}

impl SealFamily {
    /// Its number in the pool.
    pub(crate) fn number(&self) -> u32 {
        self.id
    }
}

/// Which entries of a tree its volume may free or change in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreeOwner {
    /// Entries that were born later are the volume's own.
    floor: u64,
    /// Entries that were born later, and are not its own, are those of its history alone.
    history_floor: u64,
    /// While the volume's parent is being removed: below the block, the floor is this one.
    removed: Option<(u64, u64)>,
}

impl TreeOwner {
    /// The owner of nothing: all that the tree has belongs to a snapshot as well.
    pub(super) const NOTHING: Self =
        Self { floor: u64::MAX, history_floor: u64::MAX, removed: None };

    /// Whether the volume owns an entry of this birth, for blocks that end before `end`.
    pub(super) fn owns(&self, birth: u64, end: u64) -> bool {
        self.is_own(birth) || self.is_of_parent(birth, end)
    }

    /// Whether the entry is the volume's, and not still counted for its parent.
    pub(super) fn is_own(&self, birth: u64) -> bool {
        birth > self.floor
    }

    /// Whether an entry that the volume does not own is only in its history.
    pub(super) fn is_of_history(&self, birth: u64) -> bool {
        birth > self.history_floor
    }

    fn is_of_parent(&self, birth: u64, end: u64) -> bool {
        self.removed.is_some_and(|(below, floor)| end <= below && birth > floor)
    }
}

/// The removal that goes on, or the removal that may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RemovalTarget {
    pub(super) id: u32,
    pub(super) root: TreeWord,
    /// The root of its only child; a hole if it has none.
    pub(super) child: TreeWord,
    /// The generation of its parent.
    pub(super) floor: u64,
    /// Where the removal goes on.
    pub(super) at: u64,
}

/// All volumes and snapshots of a pool.
#[derive(Debug)]
pub(super) struct PoolCatalog {
    versions: BTreeMap<u32, Version>,
    /// Parents and their children.
    children: BTreeSet<(u32, u32)>,
    /// Those of the kind `Removing`.
    removing: BTreeSet<u32>,
    /// The version among them whose removal has begun.
    running: Option<u32>,
    /// The generation of what is born now.
    generation: u64,
    next_id: u32,
    /// Of each volume that has versions, by its id.
    accounts: BTreeMap<u32, SpaceAccount>,
    /// Blocks that are kept free for accounts.
    promised: u64,
    /// Blocks of reservations that have pages.
    lent: u64,
    /// Families of encrypted volumes.
    families: BTreeMap<u32, SealFamily>,
    /// Versions of each.
    family_versions: BTreeMap<u32, usize>,
    next_family: u32,
    /// Of each volume that has a history, or moments of one.
    histories: BTreeMap<u32, VolumeMoments>,
    /// The moments of all of them.
    moments: usize,
    /// The number of the last moment that was taken; 0 before the first one.
    last_moment: u32,
    /// Versions that have a compression.
    compressed: usize,
    /// How often a version's compression has changed since the pool was opened.
    compression_changes: u64,
}

impl PoolCatalog {
    pub(super) fn new() -> Self {
        Self {
            versions: BTreeMap::new(),
            children: BTreeSet::new(),
            removing: BTreeSet::new(),
            running: None,
            generation: 1,
            next_id: 0,
            accounts: BTreeMap::new(),
            promised: 0,
            lent: 0,
            families: BTreeMap::new(),
            family_versions: BTreeMap::new(),
            next_family: 0,
            histories: BTreeMap::new(),
            moments: 0,
            last_moment: 0,
            compressed: 0,
            compression_changes: 0,
        }
    }

    /// How the pages that a version has written are compressed.
    pub(super) fn compression(&self, id: u32) -> Option<PageCompression> {
        self.versions.get(&id)?.compression
    }

    /// How many versions have a compression, and how often that has changed.
    pub(super) fn compressions(&self) -> (usize, u64) {
        (self.compressed, self.compression_changes)
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Volumes and snapshots, without moments.
    pub(super) fn count(&self) -> usize {
        self.versions.len() - self.moments
    }

    pub(super) fn list(&self, room: (u64, u64)) -> Vec<PoolVolume> {
        self.named().map(|version| self.entry(version, room)).collect()
    }

    /// A version, as a list has it.
    pub(super) fn entry(&self, version: &Version, room: (u64, u64)) -> PoolVolume {
        PoolVolume {
            id: VolumeId(version.id),
            name: version.name.clone(),
            kind: version.kind,
            of: version.of.map(VolumeId),
            parent: self.named_ancestor(version.parent).map(VolumeId),
            blocks: version.blocks,
            at_s: version.at_s,
            seal: version.family.and_then(|family| self.seal_of(family)),
            compression: version.compression,
            generation: version.generation,
            origin: version.origin,
            receive: version.receive.as_deref().cloned(),
            owned_blocks: version.space.owned,
            referred_blocks: version.space.refers,
            account_blocks: self.account_blocks(version),
            reservation_blocks: version.space.reservation,
            limit_blocks: version.space.limit,
            wait: self.wait_of(VolumeId(version.id), room),
            history: self.history_of(version.id),
        }
    }

    /// A volume or snapshot that is not being removed.
    pub(super) fn visible(&self, id: u32) -> Option<&Version> {
        self.versions.get(&id).filter(|version| version.kind != PoolVolumeKind::Removing)
    }

    pub(super) fn volume(&self, id: u32) -> Option<&Version> {
        self.versions.get(&id).filter(|version| version.kind == PoolVolumeKind::Volume)
    }

    pub(super) fn set_root(&mut self, id: u32, root: TreeWord) {
        let version = self.versions.get_mut(&id).expect("the volume was looked up");
        debug_assert_eq!(version.kind, PoolVolumeKind::Volume, "only a volume's tree changes");
        version.root = root.0;
    }

    pub(super) fn owner(&self, volume: &Version) -> TreeOwner {
        let removed = volume.parent.filter(|&parent| Some(parent) == self.running).map(|parent| {
            let parent = &self.versions[&parent];
            (parent.removed_below, self.floor(parent.parent))
        });
        let history_floor = match volume.parent {
            Some(parent) if is_moment(parent) => volume.snapshot_floor,
            _ => u64::MAX,
        };
        TreeOwner { floor: self.floor(volume.parent), history_floor, removed }
    }

    /// The generation of a parent: entries that were born later are the child's.
    fn floor(&self, parent: Option<u32>) -> u64 {
        parent.map_or(0, |parent| self.versions[&parent].generation)
    }

    /// This ancestor or, while it is being removed, the next one.
    fn visible_ancestor(&self, mut ancestor: Option<u32>) -> Option<u32> {
        while let Some(id) = ancestor
            && self.versions[&id].kind == PoolVolumeKind::Removing
        {
            ancestor = self.versions[&id].parent;
        }
        ancestor
    }

    fn children_of(&self, id: u32) -> impl Iterator<Item = u32> {
        self.children.range((id, 0)..=(id, u32::MAX)).map(|&(_, child)| child)
    }

    /// The removal that goes on or may begin. One with two children waits until it has one.
    pub(super) fn removal(&self) -> Option<RemovalTarget> {
        let first = || self.removing.iter().copied().find(|&id| !self.waits(id));
        self.running.or_else(first).map(|id| self.target(id))
    }

    /// The removal of this one, if a record may take it on.
    pub(super) fn removal_of(&self, id: u32) -> Option<RemovalTarget> {
        let may = self.running.is_none_or(|running| running == id);
        (may && self.removing.contains(&id) && !self.waits(id)).then(|| self.target(id))
    }

    fn waits(&self, id: u32) -> bool {
        self.children_of(id).take(2).count() == 2
    }

    fn target(&self, id: u32) -> RemovalTarget {
        let version = &self.versions[&id];
        let child = self.children_of(id).next();
        RemovalTarget {
            id,
            root: TreeWord(version.root),
            child: child.map_or(TreeWord::HOLE, |child| TreeWord(self.versions[&child].root)),
            floor: self.floor(version.parent),
            at: version.removed_below,
        }
    }

    /// A removal is done with the blocks below `below`.
    pub(super) fn removed(&mut self, id: u32, below: u64) {
        assert!(self.running.is_none_or(|running| running == id), "one removal runs at a time");
        self.running = Some(id);
        let version = self.versions.get_mut(&id).expect("the removal was looked up");
        version.removed_below = below;
        if below < VOLUME_BLOCKS_MAX {
            return;
        }
        let (parent, family) = (version.parent, version.family);
        let child = self.children_of(id).next();
        if let Some(child) = child {
            self.set_parent(child, parent);
            self.hand_on(id, child);
        }
        self.set_parent(id, None);
        let removed = self.versions.remove(&id).expect("it was there above");
        self.compressed -= usize::from(removed.compression.is_some());
        self.close_account(&removed);
        self.removing.remove(&id);
        self.running = None;
        self.close_history(&removed, parent);
        self.drop_family(family);
    }

    /// The roots of all trees.
    #[cfg(test)]
    pub(super) fn roots(&self) -> Vec<TreeWord> {
        self.versions.values().map(|version| TreeWord(version.root)).collect()
    }

    fn set_parent(&mut self, id: u32, parent: Option<u32>) {
        let version = self.versions.get_mut(&id).expect("the version was looked up");
        let old = std::mem::replace(&mut version.parent, parent);
        if let Some(old) = old {
            self.children.remove(&(old, id));
        }
        if let Some(parent) = parent {
            self.children.insert((parent, id));
        }
    }

    fn insert(&mut self, version: Version) {
        if let Some(parent) = version.parent {
            self.children.insert((parent, version.id));
        }
        if version.kind == PoolVolumeKind::Removing {
            self.removing.insert(version.id);
        }
        self.open_account(&version);
        self.open_history(&version);
        if let Some(family) = version.family {
            *self.family_versions.entry(family).or_default() += 1;
        }
        self.compressed += usize::from(version.compression.is_some());
        let before = self.versions.insert(version.id, version);
        assert!(before.is_none(), "an id is never used again");
    }
}
