//! Differences of snapshots, held to what the model knows of both.

use std::collections::BTreeSet;

use store::{ChangedBlocks, VolumeId};

use super::Failure;
use super::life::{Ask, World};
use super::model::{Model, ModelVolume};

/// Parts of differences that are asked for next.
const PARTS_MAX: usize = 4;

/// A part of a difference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiffPart {
    /// The earlier snapshot, or none.
    pub(crate) from: Option<VolumeId>,
    /// The later one.
    pub(crate) to: VolumeId,
    /// Where the part begins.
    pub(crate) start: u64,
}

impl World {
    /// Asks for the difference of two snapshots, or for the next part of one.
    pub(crate) fn diff_some(&mut self) {
        let usable = self.model.volumes.iter().filter(|(_, volume)| {
            volume.is_snapshot && volume.at_ns.is_none() && !volume.is_hidden && !volume.is_quiet
        });
        let usable: Vec<VolumeId> = usable.map(|(&id, _)| id).collect();
        if usable.is_empty() {
            return;
        }
        let is_usable =
            |part: &DiffPart| part.from.into_iter().chain([part.to]).all(|id| usable.contains(&id));
        let mut pick = || usable[self.random.below(usable.len() as u64) as usize];
        let (to, other) = (pick(), pick());
        let part = self.diffs.pop().filter(is_usable).unwrap_or_else(|| {
            let blocks = self.model.volumes[&to].blocks;
            let start = if self.random.one_in(4) { self.random.below(blocks) } else { 0 };
            DiffPart { from: (!self.random.one_in(3)).then_some(other), to, start }
        });
        let (tag, stamp) = (self.tag(), self.model.tick());
        let engine = self.engine.as_mut().expect("the pool is open");
        let admission = engine.changed(tag, part.from, part.to, part.start);
        self.admitted(admission, tag, stamp, Ask::Diff(part));
    }

    /// A part is there.
    pub(crate) fn take_diff(
        &mut self,
        part: DiffPart,
        found: &ChangedBlocks,
    ) -> Result<(), Failure> {
        self.tally.add("differences", 1);
        self.tally.add("runs of differences", found.runs.len() as u64);
        if let Some(start) = found.next_block
            && self.diffs.len() < PARTS_MAX
        {
            self.tally.add("differences that go on", 1);
            self.diffs.push(DiffPart { start, ..part });
        }
        self.model.judge_diff(part, found, self.plan.has_good_media())
    }
}

impl Model {
    /// Judges a part. `is_exact`: a block with one page in both is not listed.
    fn judge_diff(
        &self,
        part: DiffPart,
        found: &ChangedBlocks,
        is_exact: bool,
    ) -> Result<(), Failure> {
        let known = |id: VolumeId| self.volumes.get(&id);
        // A snapshot may have been removed while the answer was on its way.
        let (Some(later), earlier) = (known(part.to), part.from.map(known)) else {
            return Ok(());
        };
        let earlier = match earlier {
            Some(None) => return Ok(()),
            Some(earlier) => earlier,
            None => None,
        };
        let end = found.next_block.unwrap_or(later.blocks.max(part.start));
        let fail =
            |text: String| Err(Failure::new("a wrong difference", format!("{part:?}: {text}")));
        if found.next_block.is_some_and(|next| next <= part.start) {
            return fail(format!("it goes on at {end}"));
        }
        let mut at = part.start;
        let mut blocks = BTreeSet::new();
        for run in &found.runs {
            if run.block < at || run.blocks == 0 || run.block + run.blocks > end {
                return fail(format!("{run:?} is out of order, or beyond {end}"));
            }
            at = run.block + run.blocks;
            if !run.is_hole {
                blocks.extend(run.block..at);
            }
        }
        for volume in earlier.into_iter().chain([later]) {
            blocks.extend(volume.touched().into_iter().filter(|at| (part.start..end).contains(at)));
        }
        for block in blocks {
            let old = earlier.map_or(BTreeSet::from([0]), |earlier| pages(earlier, block));
            let new = pages(later, block);
            let index = found.runs.partition_point(|run| run.block + run.blocks <= block);
            let run = found.runs.get(index).filter(|run| run.block <= block);
            let is_right = match run {
                // Pages of zeroes have no names that a content tells.
                _ if self.has_zeroes => true,
                None => !old.is_disjoint(&new),
                Some(run) if run.is_hole => new.contains(&0),
                Some(_) => {
                    let is_same = old.len() == 1 && old == new;
                    new.iter().any(|&page| page != 0) && !(is_exact && is_same)
                }
            };
            if !is_right {
                return fail(format!("block {block} is in {run:?}, and has {old:?} and {new:?}"));
            }
        }
        Ok(())
    }
}

/// The pages that a block may have; 0 for none.
fn pages(volume: &ModelVolume, block: u64) -> BTreeSet<u64> {
    if block >= volume.blocks {
        return BTreeSet::from([0]);
    }
    volume.versions(block).iter().map(|version| version.content.page()).collect()
}
