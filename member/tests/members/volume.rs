//! A simulated volume: requests end later and in any order, a loss of power takes what was not
//! flushed, and snapshots have names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use member::{SnapshotChange, VolumeTask, VolumeTaskEnd, snapshot_name};
use parking_lot::{Mutex, MutexGuard};
use random::Random;
use replica::{ChangedPart, Extent, MemberId, Place};
use sidecore::{Progress, Wake};
use volume::{
    Channel, Durability, Incarnation, IoId, IoTable, Op, OpenArguments, OpenError, Size, Status,
    Topology, Volume, VolumeInfo, Zeroing,
};

pub(crate) const SECTOR: usize = 512;

/// Sectors of one part of a difference.
const PART: u64 = 16;

/// The content of a member's volume, which outlives its process.
#[derive(Debug)]
pub(crate) struct SimVolume {
    pub(crate) content: Vec<u8>,
    durable: Vec<u8>,
    size: Size,
    /// Writes since the last flush: where, and what.
    unflushed: Vec<(usize, Vec<u8>)>,
    cuts: BTreeMap<Place, Vec<u8>>,
    /// Snapshots for people, by their names.
    pub(crate) snapshots: BTreeMap<String, Vec<u8>>,
    pub(crate) random: Random,
    /// Requests fail from now on.
    pub(crate) is_broken: bool,
    /// Sectors that cannot be read until they are written.
    pub(crate) damaged: BTreeSet<u64>,
    /// Its pool takes no changes at the moment, and how many it has refused.
    pub(crate) is_full: bool,
    pub(crate) refused: u64,
    /// The difference of which a part is known, and other parts are wanted.
    pub(crate) difference: Option<(MemberId, Place)>,
}

/// A handle to it.
#[derive(Clone, Debug)]
pub(crate) struct SharedVolume(Arc<Mutex<SimVolume>>);

impl SharedVolume {
    pub(crate) fn new(sectors: usize, random: Random) -> Self {
        Self(Arc::new(Mutex::new(SimVolume {
            content: vec![0; sectors * SECTOR],
            durable: vec![0; sectors * SECTOR],
            size: Size::new((sectors * SECTOR) as u64),
            unflushed: Vec::new(),
            cuts: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            random,
            is_broken: false,
            damaged: BTreeSet::new(),
            is_full: false,
            refused: 0,
            difference: None,
        })))
    }

    /// The content, which no other caller has at this moment.
    pub(crate) fn borrow_mut(&self) -> MutexGuard<'_, SimVolume> {
        self.0.try_lock().expect("one thread, which has it once")
    }
}

impl Volume for SharedVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: self.borrow_mut().content.len() as u64,
            block_bytes: SECTOR as u32,
            read_only: false,
            durability: Durability::Flush,
            volatile: false,
            incarnation: Incarnation::default(),
            zeroing: Zeroing::ALL,
            topology: Topology::default(),
        }
    }

    fn size(&self) -> Size {
        self.borrow_mut().size.clone()
    }

    fn open(&self, _open: &OpenArguments<'_>) -> Result<Box<dyn Channel>, OpenError> {
        Ok(SimChannel::new(self))
    }
}

impl SimVolume {
    /// The cuts, for a process that starts. It leaves nothing of an earlier process.
    pub(crate) fn cuts(&mut self) -> BTreeSet<Place> {
        self.difference = None;
        self.cuts.keys().copied().collect()
    }

    /// Makes it larger, or smaller.
    pub(crate) fn resize(&mut self, sectors: usize) {
        self.content.resize(sectors * SECTOR, 0);
        self.durable.resize(sectors * SECTOR, 0);
        self.size.set((sectors * SECTOR) as u64);
    }

    fn write(&mut self, at: usize, bytes: Vec<u8>) {
        let sectors = (at / SECTOR) as u64..((at + bytes.len()) / SECTOR) as u64;
        self.damaged.retain(|sector| !sectors.contains(sector));
        self.content[at..at + bytes.len()].copy_from_slice(&bytes);
        self.unflushed.push((at, bytes));
    }

    fn flush(&mut self) {
        self.durable.clone_from(&self.content);
        self.unflushed.clear();
    }

    /// The power is cut: a part of the writes in their order is there, the rest is not.
    pub(crate) fn lose_power(&mut self) {
        self.content.clone_from(&self.durable);
        let kept = self.random.below(self.unflushed.len() as u64 + 1) as usize;
        for (at, bytes) in self.unflushed.drain(..).take(kept) {
            self.content[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        self.durable.clone_from(&self.content);
    }

    pub(crate) fn carry_out(&mut self, task: VolumeTask) -> VolumeTaskEnd {
        if self.is_full {
            self.refused += 1;
            if matches!(task, VolumeTask::Snapshot(..)) {
                return VolumeTaskEnd::LeftOut("the pool is full".to_owned());
            }
            return VolumeTaskEnd::Waits("the pool is full".to_owned());
        }
        match task {
            VolumeTask::Cut(place) => {
                assert!(self.unflushed.is_empty(), "a cut comes behind a flush");
                self.cuts.insert(place, self.content.clone());
            }
            VolumeTask::Drop(place) => _ = self.cuts.remove(&place),
            VolumeTask::GoBack(place) => {
                let bytes = self.content.len();
                self.content = place.map_or(Vec::new(), |place| self.cuts[&place].clone());
                // The volume may have grown since the cut.
                self.content.resize(bytes, 0);
                self.cuts.retain(|kept, _| place.is_some_and(|place| *kept <= place));
                // The way back is durable with the next flush.
                self.unflushed.clear();
            }
            VolumeTask::Compare(member, began, cut, from) => {
                let part = self.changed(cut, from);
                self.difference = part.next.map(|_| (member, began));
                return VolumeTaskEnd::Changed(part);
            }
            VolumeTask::EndCompare(member, began) => {
                self.difference.take_if(|known| *known == (member, began));
            }
            VolumeTask::Snapshot(place, SnapshotChange::Take { name, .. }) => {
                assert!(self.unflushed.is_empty(), "a snapshot comes behind a flush");
                self.snapshots.insert(snapshot_name(&name, place), self.content.clone());
            }
            VolumeTask::Snapshot(_, SnapshotChange::Remove { name }) => {
                self.snapshots.remove(&name);
            }
        }
        VolumeTaskEnd::Done
    }

    fn changed(&self, cut: Option<Place>, from: u64) -> ChangedPart {
        let mut old = cut.map_or(Vec::new(), |cut| self.cuts[&cut].clone());
        old.resize(self.content.len(), 0);
        let sectors = (self.content.len() / SECTOR) as u64;
        let end = sectors.min(from + PART);
        let of = |bytes: &[u8], sector: u64| bytes[sector as usize * SECTOR..][..SECTOR].to_vec();
        let differs = |sector: &u64| of(&self.content, *sector) != of(&old, *sector);
        let extents = (from..end).filter(differs).filter_map(|sector| Extent::new(sector, 1));
        let next = (end < sectors).then_some(end);
        ChangedPart { extents: extents.collect(), next }
    }
}

/// A channel to it.
#[derive(Debug)]
pub(crate) struct SimChannel {
    volume: SharedVolume,
    begun: Vec<IoId>,
}

impl SimChannel {
    pub(crate) fn new(volume: &SharedVolume) -> Box<Self> {
        Box::new(Self { volume: volume.clone(), begun: Vec::new() })
    }

    fn carry_out(&self, ios: &mut IoTable, id: IoId) {
        let mut volume = self.volume.borrow_mut();
        let io = &mut ios[id];
        let (at, len) = (io.offset_bytes as usize, io.len_bytes as usize);
        let sectors = (at / SECTOR) as u64..((at + len) / SECTOR) as u64;
        let is_damaged = io.op == Op::Read && volume.damaged.range(sectors).next().is_some();
        let fails = volume.is_broken || is_damaged;
        io.status = if fails { Status::Error } else { Status::Done };
        if fails {
            return;
        }
        match io.op {
            Op::Flush => volume.flush(),
            Op::Discard | Op::WriteZeroes => volume.write(at, vec![0; len]),
            Op::Write => {
                let mut bytes = vec![0; len];
                // SAFETY: the member keeps the request's one segment of `len` bytes until the
                // request has ended; `bytes` is new and has as many.
                unsafe {
                    std::ptr::copy_nonoverlapping(io.segments[0].addr, bytes.as_mut_ptr(), len);
                }
                volume.write(at, bytes);
            }
            // SAFETY: the member keeps the request's one segment of `len` bytes, which nothing else
            // uses, until the request has ended; the slice of the content has as many.
            Op::Read => unsafe {
                let from = volume.content[at..at + len].as_ptr();
                std::ptr::copy_nonoverlapping(from, io.segments[0].addr, len);
            },
        }
    }
}

impl Channel for SimChannel {
    fn submit(&mut self, _ios: &mut IoTable, id: IoId) {
        self.begun.push(id);
    }

    fn poll(&mut self, ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let ended = {
            let random = &mut self.volume.borrow_mut().random;
            random.below(self.begun.len() as u64 + 1)
        };
        for _ in 0..ended {
            let at = self.volume.borrow_mut().random.below(self.begun.len() as u64) as usize;
            let id = self.begun.remove(at);
            self.carry_out(ios, id);
            done.push(id);
        }
        Progress::busy_if(ended > 0)
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        Progress::busy_if(!self.begun.is_empty())
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        true
    }

    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    /// Some of what is under way still happens, as when a process is killed.
    fn abandon(&mut self, ios: &mut IoTable, _now_ns: u64) -> bool {
        while let Some(id) = self.begun.pop() {
            let happens = self.volume.borrow_mut().random.one_in(2);
            if happens && ios[id].op != Op::Read {
                self.carry_out(ios, id);
            }
        }
        true
    }
}
