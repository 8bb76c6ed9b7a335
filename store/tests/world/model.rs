//! The content that a pool must hold: for each block of each volume and snapshot, the versions
//! that it may have.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

use store::block::Block;
use store::{HistoryOptions, PageCompression, PoolChange, SnapshotOrigin, VolumeId, VolumeReceive};

use super::Failure;
use super::changes::subjects;
use super::content::{Content, HAS_ZEROES, REPEATS};
use super::disk::CrashKind;
use super::history::GoneMoment;
use super::plan::Plan;
use super::versions::{Cut, UNDER_WAY, Version, describe, floor, see};

/// A volume or a snapshot.
pub(crate) struct ModelVolume {
    /// Its name.
    pub(crate) name: String,
    /// Whether it never changes.
    pub(crate) is_snapshot: bool,
    /// Removed, but several versions came from it.
    pub(crate) is_hidden: bool,
    /// Its size.
    pub(crate) blocks: u64,
    /// How its pages are compressed.
    pub(crate) compression: Option<PageCompression>,
    /// The snapshot that it came from.
    pub(crate) parent: Option<VolumeId>,
    /// The volume that a snapshot was taken of.
    pub(crate) of: Option<VolumeId>,
    /// A change is under way that is about it.
    pub(crate) is_changing: bool,
    /// No guest may use it: the change under way is about its blocks.
    pub(crate) is_quiet: bool,
    /// A change of all blocks that is under way.
    pub(crate) whole: Option<u64>,
    /// The stream that is being received into a volume.
    pub(crate) receive: Option<VolumeReceive>,
    /// The original of a snapshot that was received.
    pub(crate) origin: Option<SnapshotOrigin>,
    /// Its reservation and limit.
    pub(crate) quota: (u64, Option<u64>),
    /// The history that it keeps.
    pub(crate) reach: Option<HistoryOptions>,
    /// The history before, while a moment may have gone by it that the model still has.
    pub(crate) reach_before: Option<HistoryOptions>,
    /// The newest of its moments that has gone.
    pub(crate) last_gone: Option<VolumeId>,
    /// The time of a moment.
    pub(crate) at_ns: Option<u64>,
    /// Of a snapshot: the cut of its group, in the model's list.
    group: usize,
    history: BTreeMap<u64, Vec<Version>>,
}

impl ModelVolume {
    /// A volume without blocks.
    pub(crate) fn new(name: &str, blocks: u64) -> Self {
        Self {
            name: name.to_owned(),
            is_snapshot: false,
            is_hidden: false,
            blocks,
            compression: None,
            parent: None,
            of: None,
            is_changing: false,
            is_quiet: false,
            whole: None,
            receive: None,
            origin: None,
            quota: (0, None),
            reach: None,
            reach_before: None,
            last_gone: None,
            at_ns: None,
            group: usize::MAX,
            history: BTreeMap::new(),
        }
    }

    /// A change of it has ended.
    pub(crate) fn changed_by(&mut self, change: &PoolChange) {
        (self.is_changing, self.is_quiet) = (false, false);
        if let PoolChange::Quota { reservation, limit, .. } = *change {
            self.quota = (reservation, limit);
        }
        if let PoolChange::History { history, .. } = *change {
            self.reach_before = std::mem::replace(&mut self.reach, history);
        }
    }

    /// It has this size, and nothing behind its end.
    pub(super) fn cut_to(&mut self, blocks: u64) {
        self.blocks = blocks;
        self.history.split_off(&blocks);
    }

    /// Blocks that have a history.
    pub(crate) fn touched(&self) -> Vec<u64> {
        self.history.keys().copied().take_while(|&block| block < self.blocks).collect()
    }

    /// Blocks of a snapshot whose content is not known yet.
    pub(crate) fn unknown(&self) -> Vec<u64> {
        let unknown = self.history.iter().filter(|(_, versions)| versions.len() > 1);
        unknown.map(|(&block, _)| block).collect()
    }

    /// The versions of a block, oldest first.
    pub(crate) fn versions(&self, block: u64) -> &[Version] {
        const FIRST: &[Version] = &[Version::FIRST];
        self.history.get(&block).map_or(FIRST, Vec::as_slice)
    }

    /// The content of the newest version of a block, and whether it is there for sure.
    pub(crate) fn newest(&self, block: u64) -> (Content, bool) {
        let version = self.versions(block).last().expect("a block has a version");
        (version.content.clone(), version.completed != UNDER_WAY)
    }
}

/// The whole pool.
pub(crate) struct Model {
    /// All volumes and snapshots, hidden ones as well.
    pub(crate) volumes: BTreeMap<VolumeId, ModelVolume>,
    /// Counts admissions and completions.
    clock: u64,
    /// Requests that were completed before this are durable.
    barrier: u64,
    /// Reads and snapshots under way: the versions that they may see must be kept.
    watchers: BTreeSet<u64>,
    /// The cuts of groups of snapshots.
    groups: Vec<Cut>,
    /// Changes that a crash interrupted.
    maybe: Vec<(u64, PoolChange)>,
    /// The worst crash since the last verification.
    crashed: Option<CrashKind>,
    /// The time of the crash.
    crashed_at: u64,
    /// The cut that the verification finds.
    found: Cut,
    /// Requests that were completed before are there for sure after the crash.
    kept: u64,
    /// The content that the verification saw, by volume and block.
    verified: BTreeMap<(VolumeId, u64), (usize, usize)>,
    /// Whether a volume's parent is one of two, and hidden ones hold one or the other.
    pub(crate) is_vague: bool,
    /// Some contents that are written are zeroes.
    pub(crate) has_zeroes: bool,
    /// Nothing is forgotten: the medium may bring anything back.
    keeps_all: bool,
    /// When it was looked for moments.
    pub(super) looked: u64,
    /// Moments that went since the pool was opened.
    pub(super) graves: Vec<(VolumeId, GoneMoment)>,
}

impl Model {
    /// An empty pool.
    pub(crate) fn new(keeps_all: bool, plan: &Plan) -> Self {
        let repeats = if plan.dedup.is_some() { REPEATS } else { 0 };
        let zeroes = if plan.has_zeroes { HAS_ZEROES } else { 0 };
        Self {
            volumes: BTreeMap::new(),
            clock: 1 | repeats | zeroes,
            barrier: 0,
            watchers: BTreeSet::new(),
            groups: Vec::new(),
            maybe: Vec::new(),
            crashed: None,
            crashed_at: 0,
            found: Cut::behind(0),
            kept: 0,
            verified: BTreeMap::new(),
            // Which request's page of zeroes a snapshot has, nothing tells.
            is_vague: plan.has_zeroes,
            has_zeroes: plan.has_zeroes,
            keeps_all,
            looked: 0,
            graves: Vec::new(),
        }
    }

    /// The next moment.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A read or a snapshot was admitted at `stamp`.
    pub(crate) fn watch(&mut self, stamp: u64) {
        self.watchers.insert(stamp);
    }

    /// It is completed.
    pub(crate) fn unwatch(&mut self, stamp: u64) {
        self.watchers.remove(&stamp);
    }

    /// Requests that were completed before `stamp` are durable.
    pub(crate) fn durable(&mut self, stamp: u64) {
        self.barrier = self.barrier.max(stamp);
    }

    /// Blocks get a new version, which is under way.
    pub(crate) fn admit(
        &mut self,
        stamp: u64,
        volume: VolumeId,
        blocks: impl IntoIterator<Item = u64>,
        content: impl Fn(u64, &Content) -> Content,
    ) {
        let watched = self.watchers.first().copied().unwrap_or(UNDER_WAY);
        let bound = if self.keeps_all { 0 } else { self.barrier.min(watched) };
        let volume = self.volumes.get_mut(&volume).expect("the volume of a request is there");
        for block in blocks {
            let versions = volume.history.entry(block).or_insert_with(|| vec![Version::FIRST]);
            versions.drain(..floor(versions, bound));
            let before = &versions.last().expect("a version is kept").content;
            let content = content(block, before);
            versions.push(Version { admitted: stamp, completed: UNDER_WAY, content });
        }
    }

    /// The version `stamp` of these blocks is there.
    pub(crate) fn complete(&mut self, stamp: u64, volume: VolumeId, blocks: Range<u64>) {
        let now = self.tick();
        let Some(volume) = self.volumes.get_mut(&volume) else { return };
        for (_, versions) in volume.history.range_mut(blocks) {
            for version in versions.iter_mut().filter(|version| version.admitted == stamp) {
                version.completed = now;
            }
        }
    }

    /// Judges a block of a read that was admitted at `stamp`.
    pub(crate) fn judge(
        &mut self,
        stamp: u64,
        id: VolumeId,
        block: u64,
        content: Option<&Block>,
    ) -> Result<(), Failure> {
        let volume = self.volumes.get_mut(&id).expect("a volume that is read is not removed");
        let versions = volume.versions(block);
        let floor = if volume.is_snapshot { 0 } else { floor(versions, stamp) };
        let Some(seen) = see(versions, floor, content) else {
            let text = describe(versions, floor, content);
            return Err(Failure::new("wrong data", format!("{id:?} block {block}: {text}")));
        };
        if volume.is_snapshot && versions.len() > 1 {
            self.groups[volume.group].see(versions, &seen);
            let known = versions[seen.earliest].clone();
            volume.history.insert(block, vec![known]);
            self.check_group(id)?;
        }
        Ok(())
    }

    fn check_group(&self, id: VolumeId) -> Result<(), Failure> {
        let volume = &self.volumes[&id];
        let cut = self.groups[volume.group];
        if cut.is_closed() {
            return Ok(());
        }
        let text = format!("{id:?} {} has {cut:?}: it is not of one moment", volume.name);
        Err(Failure::new("torn snapshot", text))
    }

    /// A group of snapshots is there: `made` has pairs of the volume and its snapshot.
    pub(crate) fn snapshot(&mut self, stamp: u64, name: &str, made: &[(VolumeId, VolumeId)]) {
        self.groups.push(Cut::behind(stamp));
        let group = self.groups.len() - 1;
        for &(of, id) in made {
            let volume = self.volumes.get_mut(&of).expect("the volume is there");
            let mut snapshot = ModelVolume::new(name, volume.blocks);
            snapshot.is_snapshot = true;
            (snapshot.of, snapshot.parent) = (Some(of), volume.parent.replace(id));
            snapshot.compression = volume.compression;
            snapshot.group = group;
            for (&block, versions) in &volume.history {
                let versions = versions[floor(versions, stamp)..].to_vec();
                snapshot.history.insert(block, versions);
            }
            self.volumes.insert(id, snapshot);
        }
    }

    /// A clone is there.
    pub(crate) fn clone_of(&mut self, snapshot: VolumeId, name: &str, id: VolumeId) {
        let source = &self.volumes[&snapshot];
        let mut volume = ModelVolume::new(name, source.blocks);
        // A clone of a moment has the compression that the volume has now.
        let like = source.at_ns.and(source.of).map_or(source, |of| &self.volumes[&of]);
        (volume.parent, volume.compression) = (Some(snapshot), like.compression);
        volume.history.clone_from(&source.history);
        for version in volume.history.values_mut().flatten() {
            version.completed = 0;
        }
        self.volumes.insert(id, volume);
    }

    /// All blocks of a volume get a new version: of the snapshot, or zeroes from a block on.
    pub(crate) fn replace(
        &mut self,
        stamp: u64,
        id: VolumeId,
        from: u64,
        snapshot: Option<VolumeId>,
    ) {
        let mut contents: BTreeMap<u64, Content> =
            self.volumes[&id].history.range(from..).map(|(&at, _)| (at, Content::ZERO)).collect();
        if let Some(snapshot) = snapshot {
            // The volume may have been made smaller, and have no history of blocks that a younger
            // snapshot has.
            let snapshot = &self.volumes[&snapshot];
            let younger = self.volumes.values().filter(|volume| volume.of == Some(id));
            let touched = younger.flat_map(|volume| volume.history.range(from..snapshot.blocks));
            touched.for_each(|(&at, _)| {
                contents.entry(at).or_insert(Content::ZERO);
            });
            contents.extend(snapshot.history.keys().map(|&at| (at, snapshot.newest(at).0)));
        }
        let blocks: Vec<u64> = contents.keys().copied().collect();
        self.admit(stamp, id, blocks, |block, _| contents[&block].clone());
        self.volumes.get_mut(&id).expect("it was there above").whole = Some(stamp);
    }

    /// The parent of a volume or, if that is hidden, the next one.
    pub(crate) fn visible_ancestor(&self, volume: VolumeId) -> Option<VolumeId> {
        let mut at = self.volumes[&volume].parent;
        while let Some(parent) = at.and_then(|id| self.volumes.get(&id)).filter(|v| v.is_hidden) {
            at = parent.parent;
        }
        at
    }

    /// Whether a volume's line leads back to the snapshot.
    pub(crate) fn descends(&self, volume: VolumeId, snapshot: VolumeId) -> bool {
        let mut at = Some(volume);
        while let Some(id) = at.filter(|&id| id != snapshot) {
            at = self.volumes.get(&id).and_then(|volume| volume.parent);
        }
        at == Some(snapshot)
    }

    /// A volume or snapshot was removed.
    pub(crate) fn remove(&mut self, id: VolumeId) {
        self.volumes.get_mut(&id).expect("a removed volume is there").is_hidden = true;
        self.drop_hidden();
    }

    /// Hidden snapshots with one child or none go.
    pub(crate) fn drop_hidden(&mut self) {
        while let Some((id, parent)) = self.volumes.iter().find_map(|(&id, volume)| {
            let children = self.volumes.values().filter(|other| other.parent == Some(id)).count();
            (volume.is_hidden && children < 2).then_some((id, volume.parent))
        }) {
            let gone = self.volumes.remove(&id).expect("it was found");
            let mut children = Vec::new();
            let all = self.volumes.iter_mut();
            for (&child, volume) in all.filter(|(_, other)| other.parent == Some(id)) {
                volume.parent = parent;
                children.push(child);
            }
            self.bury(id, gone, children);
        }
    }

    /// Whether it was removed, or the removal is under way.
    pub(crate) fn is_removed(&self, volume: VolumeId) -> bool {
        self.volumes.get(&volume).is_none_or(|volume| volume.is_hidden || volume.is_quiet)
    }

    /// The blocks that the pool must hold when it is at rest; `None` if that is not known.
    pub(crate) fn used_blocks(&self) -> Option<u64> {
        if self.is_vague {
            return None;
        }
        let mut pages = HashSet::new();
        for volume in self.volumes.values() {
            for (&block, versions) in &volume.history {
                let [version] = &versions[..] else {
                    let last = versions.last().expect("a block has a version");
                    if volume.is_snapshot || last.completed == UNDER_WAY {
                        return None;
                    }
                    pages.insert((last.content.page(), block));
                    continue;
                };
                pages.insert((version.content.page(), block));
            }
        }
        Some(pages.iter().filter(|(page, _)| *page != 0).count() as u64)
    }

    /// The pages that a version must own, and the blocks that it must have, when the pool is at
    /// rest; `None` if that is not known.
    pub(crate) fn space_of(&self, id: VolumeId) -> Option<(u64, u64)> {
        self.used_blocks()?;
        let page = |volume: &ModelVolume, block| volume.newest(block).0.page();
        let volume = &self.volumes[&id];
        let parent = volume.parent.map(|parent| &self.volumes[&parent]);
        let blocks = volume.history.keys().filter(|&&block| page(volume, block) != 0);
        let (mut owned, mut has) = (0, 0);
        for &block in blocks {
            let of_parent = parent.map_or(0, |parent| page(parent, block));
            owned += u64::from(of_parent != page(volume, block));
            has += 1;
        }
        Some((owned, has))
    }

    /// A change was under way when the engine went, or failed: it may have happened.
    pub(crate) fn in_doubt(&mut self, stamp: u64, change: PoolChange) {
        self.maybe.push((stamp, change));
    }

    /// The engine is gone, with all requests.
    pub(crate) fn crash(&mut self, kind: CrashKind) {
        if self.crashed.is_none() {
            self.crashed_at = self.tick();
        }
        self.crashed = self.crashed.max(Some(kind));
        self.verified.clear();
        for volume in self.volumes.values_mut() {
            (volume.is_changing, volume.is_quiet) = (false, false);
        }
    }

    /// The changes that crashes interrupted.
    pub(crate) fn take_maybe(&mut self) -> Vec<(u64, PoolChange)> {
        std::mem::take(&mut self.maybe)
    }

    /// The request `stamp` is in the state.
    pub(crate) fn note_in(&mut self, stamp: u64) {
        self.found.newest_in = self.found.newest_in.max(stamp);
    }

    /// A change did not happen.
    pub(crate) fn forget(&mut self, stamp: u64, change: &PoolChange) {
        for id in subjects(change) {
            let Some(volume) = self.volumes.get_mut(&id) else { continue };
            volume.whole = None;
            for versions in volume.history.values_mut() {
                versions.retain(|version| version.admitted != stamp);
            }
        }
    }

    /// The pool is open: its state is durable, and what it is must be found out.
    pub(crate) fn begin_verification(&mut self) {
        let barrier = match self.crashed {
            Some(CrashKind::PowerCut) => self.barrier,
            Some(CrashKind::Kill) => self.crashed_at,
            None => self.tick(),
        };
        (self.found, self.kept) = (Cut::behind(barrier), barrier);
        self.verified.clear();
    }

    /// Judges a block after an opening.
    pub(crate) fn verify(
        &mut self,
        id: VolumeId,
        block: u64,
        content: Option<&Block>,
    ) -> Result<(), Failure> {
        let volume = &self.volumes[&id];
        let versions = volume.versions(block);
        let floor = if volume.is_snapshot { 0 } else { floor(versions, self.kept) };
        let Some(seen) = see(versions, floor, content) else {
            let text = describe(versions, floor, content);
            let text = format!("{id:?} block {block}, {:?}: {text}", self.crashed);
            return Err(Failure::new("lost or wrong after an opening", text));
        };
        if volume.is_snapshot {
            self.found.newest_in = self.found.newest_in.max(versions[seen.earliest].admitted);
            self.groups.get_mut(volume.group).expect("each has one").see(versions, &seen);
            self.check_group(id)?;
        } else {
            self.found.see(versions, &seen);
        }
        self.verified.insert((id, block), (seen.earliest, seen.latest));
        Ok(())
    }

    /// All blocks were judged: the cut must be one, and what was seen is what there is.
    pub(crate) fn end_verification(&mut self) -> Result<(), Failure> {
        if !self.found.is_closed() {
            let text = format!("after {:?}: {:?}", self.crashed, self.found);
            return Err(Failure::new("the state is no prefix", text));
        }
        self.check_whole_changes()?;
        self.check_snapshots_are_older()?;
        let kept = self.kept;
        for (&id, volume) in self.volumes.iter_mut().filter(|(_, volume)| !volume.is_snapshot) {
            let verified = &self.verified;
            let unread = volume.history.iter_mut();
            for (_, versions) in unread.filter(|(block, _)| !verified.contains_key(&(id, **block)))
            {
                // A block that could not be read has any of these from here on.
                versions.drain(..floor(versions, kept));
                versions.iter_mut().skip(1).for_each(|version| version.completed = UNDER_WAY);
                versions[0].completed = 0;
            }
        }
        for ((id, block), (earliest, latest)) in std::mem::take(&mut self.verified) {
            let Some(volume) = self.volumes.get_mut(&id) else { continue };
            let versions = volume.versions(block);
            let at = if volume.is_snapshot { earliest } else { latest };
            let version = Version { completed: 0, ..versions[at].clone() };
            volume.history.insert(block, vec![version]);
        }
        for volume in self.volumes.values_mut() {
            volume.whole = None;
            volume.history.split_off(&volume.blocks);
        }
        self.watchers.clear();
        self.crashed = None;
        self.barrier = self.barrier.max(self.clock);
        Ok(())
    }

    /// A clear or a rollback happened to all blocks or to none.
    fn check_whole_changes(&self) -> Result<(), Failure> {
        for (&id, volume) in &self.volumes {
            let Some(stamp) = volume.whole else { continue };
            let seen = self.verified.range((id, 0)..=(id, u64::MAX));
            let (mut before, mut after) = (None, None);
            for (&(_, block), &(earliest, latest)) in seen {
                let versions = volume.versions(block);
                if !versions.iter().any(|version| version.admitted == stamp) {
                    continue;
                }
                if versions[latest].admitted < stamp {
                    before = Some(block);
                } else if versions[earliest].admitted >= stamp {
                    after = Some(block);
                }
            }
            if let (Some(before), Some(after)) = (before, after) {
                let text = format!("{id:?}: #{stamp} is in block {after}, not in {before}");
                return Err(Failure::new("half of a change", text));
            }
        }
        Ok(())
    }

    /// A volume has all that its snapshots have.
    fn check_snapshots_are_older(&self) -> Result<(), Failure> {
        for (&(id, block), &(earliest, _)) in &self.verified {
            // A moment may have gone meanwhile.
            let Some(snapshot) = self.volumes.get(&id) else { continue };
            let Some(of) = snapshot.of else { continue };
            let Some(&(_, latest)) = self.verified.get(&(of, block)) else { continue };
            let older = &snapshot.versions(block)[earliest];
            let newer = &self.volumes[&of].versions(block)[latest];
            let is_same = newer.content.page() == older.content.page();
            if newer.admitted < older.admitted && !is_same {
                let text = format!(
                    "{id:?} of {of:?}, block {block}: the snapshot has {older:?}, its volume \
                     {newer:?}"
                );
                return Err(Failure::new("a snapshot is newer than its volume", text));
            }
        }
        Ok(())
    }
}
