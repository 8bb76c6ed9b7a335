//! Reading all of a pool after an opening, and the end of a run.

use std::collections::VecDeque;

use store::{PoolChange, PoolVolumeKind, SegmentCounts, VolumeId};

use super::Failure;
use super::life::{Judge, Turn, World};
use super::model::ModelVolume;
use super::opening::Opened;

/// Reads under way in a verification.
const DEPTH: usize = 24;

/// Rounds of a verification and of a removal of all.
const ROUNDS_MAX: u64 = 50_000;

/// The most blocks of a read here; the engine takes 257.
const READ_BLOCKS_MAX: u64 = 100;

/// Segments that are in use in an empty pool: an open one and a next one of each stream, and
/// those of the last checkpoint.
const SEGMENTS_USED_MAX: u64 = 14;

/// An open segment and a next segment of each stream.
const STREAM_SEGMENTS: u64 = 6;

type Ranges = VecDeque<(VolumeId, u64, u32)>;

impl World {
    /// Reads all that was ever written, and more, and judges it.
    pub(crate) fn verify(&mut self) -> Result<Turn, Failure> {
        if self.unlock()? == Turn::Crashed {
            return Ok(Turn::Crashed);
        }
        self.model.begin_verification();
        let list = self.engine.as_ref().expect("the pool is open").volumes();
        self.model.reconcile(&list)?;
        self.find_moments();
        let mut ranges = Ranges::new();
        let is_readable = |volume: &ModelVolume| match volume.at_ns {
            Some(_) => self.model.is_readable(volume),
            None => !volume.is_hidden,
        };
        for (&id, volume) in self.model.volumes.iter().filter(|(_, volume)| is_readable(volume)) {
            let mut touched = volume.touched();
            touched.push(self.random.below(volume.blocks));
            touched.sort_unstable();
            touched.dedup();
            add_ranges(&mut ranges, id, &touched);
        }
        if self.read_all(ranges, Judge::Opening)? == Turn::Crashed {
            return Ok(Turn::Crashed);
        }
        self.model.end_verification()?;
        self.follows_moments = true;
        self.tally.add("verifications", 1);
        Ok(Turn::Alive)
    }

    fn read_all(&mut self, mut ranges: Ranges, judge: Judge) -> Result<Turn, Failure> {
        for _ in 0..ROUNDS_MAX {
            while self.requests.len() < DEPTH {
                let Some(&(id, block, blocks)) = ranges.front() else { break };
                if !self.read(id, block, blocks, judge) {
                    break;
                }
                ranges.pop_front();
            }
            if self.turn()? == Turn::Crashed {
                return Ok(Turn::Crashed);
            }
            ranges.extend(self.damaged.drain(..).map(|(id, block)| (id, block, 1)));
            if ranges.is_empty() && self.requests.is_empty() {
                return Ok(Turn::Alive);
            }
        }
        Err(Failure::new("no end of reads", format!("{} are left", ranges.len())))
    }

    /// The log's tail was hit: rows that were acknowledged may be gone, and the pool cannot know.
    /// All of it must still be readable, or say that it is not.
    pub(crate) fn end_without_model(&mut self) -> Result<(), Failure> {
        self.unlock_new()?;
        let mut ranges = Ranges::new();
        for entry in self.engine.as_ref().expect("the pool is open").volumes() {
            if entry.kind != PoolVolumeKind::Removing {
                let blocks: Vec<u64> = (0..entry.blocks.min(300)).collect();
                add_ranges(&mut ranges, entry.id, &blocks);
            }
        }
        self.tally.add("ends with a tail that was hit", 1);
        self.read_all(ranges, Judge::Nothing)?;
        Ok(())
    }

    /// The end of a run: all is there, all can be removed, and an empty pool is left.
    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        self.calm();
        (self.crash_in, self.crash_superblocks) = (None, None);
        if let Opened::Refused = self.open()? {
            return Ok(());
        }
        if self.hit_tail() {
            return self.end_without_model();
        }
        self.verify()?;
        self.rest()?;
        if self.failed() {
            let status = self.engine.as_ref().expect("the pool is open").status();
            return Err(Failure::new("failed without a fault", format!("{status:?}")));
        }
        self.remove_all()?;
        self.rest()?;
        self.check_empty()?;
        self.close()?;
        if let Opened::Refused = self.open()? {
            return Ok(());
        }
        self.verify()?;
        self.rest()?;
        self.check_empty()?;
        let status = self.engine.as_ref().expect("the pool is open").status();
        // An emptied segment is free with the next checkpoint.
        let SegmentCounts { total: segments, free, emptied, .. } = status.segments;
        let free = free + emptied;
        // Blocks of the page tables were written by many checkpoints, and each of them may be in a
        // segment of its own.
        let used_max = SEGMENTS_USED_MAX.max(STREAM_SEGMENTS + status.used_blocks);
        if self.plan.has_good_media() && free + used_max < segments {
            let text = format!("{free} of {segments} are free in an empty pool: {status:?}");
            return Err(Failure::new("segments are lost", text));
        }
        Ok(())
    }

    fn check_empty(&mut self) -> Result<(), Failure> {
        let engine = self.engine.as_ref().expect("the pool is open");
        let (list, status) = (engine.volumes(), engine.status());
        let is_empty = list.is_empty()
            && status.data_blocks == 0
            && status.shared.is_none()
            && status.moments == 0;
        if !self.plan.has_good_media() || is_empty {
            return Ok(());
        }
        let text =
            format!("{} blocks are used by {list:?}, {:?}", status.data_blocks, status.shared);
        Err(Failure::new("not empty", text))
    }

    fn remove_all(&mut self) -> Result<(), Failure> {
        self.note(|| "remove all".to_owned());
        for _ in 0..ROUNDS_MAX {
            let is_left = |volume: &ModelVolume| !volume.is_hidden && volume.at_ns.is_none();
            let visible = self.model.volumes.iter().filter(|(_, volume)| is_left(volume));
            let left: Vec<VolumeId> = visible.map(|(&id, _)| id).collect();
            if left.is_empty() {
                return Ok(());
            }
            let volume = left[self.random.below(left.len() as u64) as usize];
            if !self.model.volumes[&volume].is_changing {
                self.change(PoolChange::Remove { volume });
            } else if self.requests.is_empty() {
                // Only a medium that is damaged makes a removal fail.
                return Ok(());
            }
            self.turn()?;
        }
        Err(Failure::new("removal does not end", String::new()))
    }
}

fn add_ranges(ranges: &mut Ranges, id: VolumeId, blocks: &[u64]) {
    let mut blocks = blocks.iter().copied().peekable();
    while let Some(first) = blocks.next() {
        let mut length = 1;
        while length < READ_BLOCKS_MAX && blocks.next_if_eq(&(first + length)).is_some() {
            length += 1;
        }
        ranges.push_back((id, first, length as u32));
    }
}
