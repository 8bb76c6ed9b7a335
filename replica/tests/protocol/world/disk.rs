//! A member's storage: content that a loss of power takes back, in part, to what was durable.

use std::collections::{BTreeMap, BTreeSet};

use replica::{ChangedPart, Durable, Extent, Life, MemberId, Op, Place, SnapshotChange};

use super::{Data, Value, extent};

pub(crate) type Content = BTreeMap<u64, Value>;

/// Writes of one shard are lost from the last one on; those of another shard may stay.
pub(crate) const SHARDS: u64 = 2;

/// How often a read has a block repaired: it ends as an error when it meets damage once more.
const REPAIRS_OF_A_READ: u8 = 3;

/// How much of what is not durable a loss of power takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Loss {
    /// Nothing: the process alone was killed.
    Nothing,
    /// All of it.
    All,
    /// In each shard all behind some write.
    Some([u8; SHARDS as usize]),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Disk {
    pub(crate) content: Content,
    durable: Content,
    /// Writes since the last flush; kept if losses in part are wanted.
    log: Option<Vec<(u64, Value)>>,
    cuts: BTreeMap<Place, Content>,
    /// Snapshots for people, by their names.
    named: BTreeMap<String, Content>,
    /// The highest counter of an operation.
    pub(crate) counter: u64,
    pub(crate) durable_of_member: Durable,
    /// The newest epoch by which it was in sync and knew it.
    pub(crate) was_in: u64,
    /// The same, but for records that name it the primary in a life that had ended when it kept
    /// them: nothing was acknowledged under a record that its primary had not kept.
    pub(crate) held_in: u64,
    /// It has gone back, and was not in sync since.
    pub(crate) is_mixed: bool,
    /// Sectors that cannot be read until they are written.
    pub(crate) damaged: BTreeSet<u64>,
    /// How often each sector was damaged.
    damages: BTreeMap<u64, u8>,
    /// Sectors that it proves with other content than it was given, until they are written. A
    /// member that lends is believed, so what it lends is true.
    pub(crate) rotten: BTreeSet<u64>,
    /// Sectors that have ever been so.
    pub(crate) has_rotted: BTreeSet<u64>,
}

impl Disk {
    pub(crate) fn new(keeps_log: bool) -> Self {
        Self { log: keeps_log.then(Vec::new), ..Self::default() }
    }

    pub(crate) fn store(&mut self, place: Place, op: &Op<Data>) {
        self.counter = self.counter.max(place.counter);
        match op {
            Op::Write { extent, data, .. }
            | Op::Fill { extent, data, .. }
            | Op::Equal { extent, data } => {
                self.write(*extent, data);
            }
            Op::Flush { .. } | Op::Applied { .. } => self.flush(),
            Op::Cut => {
                self.flush();
                self.cuts.insert(place, self.content.clone());
            }
            Op::Snapshot { change: SnapshotChange::Take { name, .. }, .. } => {
                self.flush();
                self.named.insert(name.clone(), self.content.clone());
            }
            Op::Snapshot { change: SnapshotChange::Remove { name }, .. } => {
                self.named.remove(name);
            }
            // A note is durable by what the member keeps.
            Op::Nothing | Op::Forget(_) | Op::Note { .. } => {}
        }
    }

    /// The member has kept a record in this life.
    pub(crate) fn note_sync(&mut self, id: MemberId, life: Life) {
        let record = self.durable_of_member.record.as_ref();
        if let Some(record) = record.filter(|it| it.in_sync.contains_key(&id)) {
            self.was_in = record.epoch;
            if record.primary != id || record.has(id, life) {
                self.held_in = record.epoch;
            }
            // The member knows that it was admitted. It can not know it otherwise.
            self.is_mixed &= self.durable_of_member.filled_since.is_some();
        }
    }

    pub(crate) fn write(&mut self, extent: Extent, data: &Data) {
        for (sector, value) in (extent.first()..extent.end()).zip(data) {
            self.content.insert(sector, *value);
            self.damaged.remove(&sector);
            self.rotten.remove(&sector);
            if let Some(log) = &mut self.log {
                log.push((sector, *value));
            }
        }
    }

    /// Whether all sectors of a range can be read.
    pub(crate) fn can_read(&self, extent: Extent) -> bool {
        self.damaged.range(extent.first()..extent.end()).next().is_none()
    }

    pub(crate) fn damage(&mut self, sector: u64) {
        self.damaged.insert(sector);
        *self.damages.entry(sector).or_default() += 1;
    }

    /// Whether a range was damaged as often as a read has it repaired.
    pub(crate) fn is_worn(&self, extent: Extent) -> bool {
        let damages = self.damages.range(extent.first()..extent.end());
        damages.map(|(_, times)| times).sum::<u8>() >= REPAIRS_OF_A_READ
    }

    pub(crate) fn flush(&mut self) {
        self.durable.clone_from(&self.content);
        if let Some(log) = &mut self.log {
            log.clear();
        }
    }

    /// The values that a sector may have after the next loss of power.
    pub(crate) fn may_become(&self, sector: u64) -> BTreeSet<Value> {
        let durable = self.durable.get(&sector).copied().unwrap_or_default();
        let logged = self.log.iter().flatten().filter(|(at, _)| *at == sector);
        let logged = logged.map(|(_, value)| *value);
        logged.chain([durable, self.read_sector(sector)]).collect()
    }

    /// Whether a loss of power takes something.
    pub(crate) fn is_dirty(&self) -> bool {
        self.content != self.durable
    }

    pub(crate) fn read(&self, extent: Extent) -> Data {
        let mut data = Data::default();
        for (sector, value) in (extent.first()..extent.end()).zip(&mut data) {
            *value = self.read_sector(sector);
        }
        data
    }

    /// The values that a snapshot has, of so many sectors.
    pub(crate) fn named(&self, name: &str, sectors: u64) -> Option<Vec<Value>> {
        let content = self.named.get(name)?;
        Some((0..sectors).map(|at| content.get(&at).copied().unwrap_or_default()).collect())
    }

    pub(crate) fn read_sector(&self, sector: u64) -> Value {
        self.content.get(&sector).copied().unwrap_or_default()
    }

    /// Going back is not durable before the next flush.
    pub(crate) fn go_back(&mut self, cut: Option<Place>) {
        // A member's own cut is of a time at which it was in sync.
        self.is_mixed |= cut.is_none_or(|cut| !cut.is_own());
        self.content = cut.and_then(|cut| self.cuts.get(&cut).cloned()).unwrap_or_default();
        self.cuts.retain(|kept, _| cut.is_some_and(|cut| *kept <= cut));
        if let Some(log) = &mut self.log {
            log.clear();
        }
    }

    pub(crate) fn drop_cut(&mut self, cut: Place) {
        self.cuts.remove(&cut);
    }

    /// Sectors from `from` on that differ from the cut: some of them, and where to go on.
    pub(crate) fn changed(&self, cut: Option<Place>, from: u64) -> ChangedPart {
        let empty = Content::new();
        let old = cut.map_or(&empty, |cut| &self.cuts[&cut]);
        let sectors: BTreeSet<u64> = self.content.keys().chain(old.keys()).copied().collect();
        let differs = |sector: &u64| self.content.get(sector) != old.get(sector);
        let mut changed = sectors.range(from..).copied().filter(differs);
        let extents: Vec<_> = changed.by_ref().take(PART).map(|at| extent(at, 1)).collect();
        ChangedPart { extents, next: changed.next() }
    }

    pub(crate) fn cuts(&self) -> BTreeSet<Place> {
        self.cuts.keys().copied().collect()
    }

    pub(crate) fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::Nothing => {}
            Loss::All => self.content.clone_from(&self.durable),
            Loss::Some(kept) => {
                let mut left = kept;
                self.content.clone_from(&self.durable);
                for (sector, value) in self.log.iter().flatten() {
                    let left = &mut left[(sector % SHARDS) as usize];
                    if *left > 0 {
                        *left -= 1;
                        self.content.insert(*sector, *value);
                    }
                }
            }
        }
        // The content that was found on the medium stays there.
        self.flush();
    }
}

/// Sectors of one part of a difference.
const PART: usize = 2;
