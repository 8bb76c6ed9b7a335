//! The difference of two versions, part by part: the cost follows the difference, because what both
//! share is leapt over.

use super::page::{MapError, NODE_WORDS, TreeWord, node_word};
use super::pages::MapPages;
use super::tree::{LEVELS, digit, next_word, node_end, word_start};
use pool_stream::{ChangedRun, VOLUME_BLOCKS_MAX};

/// A part ends after so many leaps and leaves.
const MOVES_MAX: usize = 32;

/// A part ends when it has so many runs; it has those of one more leaf at most.
const RUNS_MAX: usize = 512;

/// A part of the difference of two versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedBlocks {
    /// The runs, in the order of their blocks.
    pub runs: Vec<ChangedRun>,
    /// The block at which the next part begins; `None` if this was the last one.
    pub next_block: Option<u64>,
}

impl ChangedBlocks {
    fn push(&mut self, block: u64, blocks: u64, is_hole: bool) {
        if let Some(last) = self.runs.last_mut()
            && last.is_hole == is_hole
            && last.block + last.blocks == block
        {
            last.blocks += blocks;
            return;
        }
        self.runs.push(ChangedRun { block, blocks, is_hole });
    }
}

/// Finds the next part of the difference, from the block `start` to the block `end` at most.
pub(super) fn changed(
    pages: &mut MapPages,
    (from, to): (TreeWord, TreeWord),
    start: u64,
    end: u64,
) -> Result<ChangedBlocks, MapError> {
    let mut part = ChangedBlocks::default();
    let mut at = start;
    for _ in 0..MOVES_MAX {
        if at >= end || part.runs.len() >= RUNS_MAX {
            break;
        }
        let mut push = |block, blocks, word: TreeWord| part.push(block, blocks, word.is_hole());
        match go_on(pages, (from, to), at, end, false, &mut push) {
            Ok(next) => at = next,
            // The blocks before are known already.
            Err(MapError::Missing) if at > start => break,
            Err(error) => return Err(error),
        }
    }
    part.next_block = (at < end).then_some(at);
    Ok(part)
}

/// Finds the blocks of a tree that have one of these pages, by their numbers: from `start` on, in
/// one leaf. Returns where to go on. A damaged node is leapt over.
pub(super) fn blocks_of(
    pages: &mut MapPages,
    root: TreeWord,
    numbers: &[u64],
    start: u64,
    found: &mut dyn FnMut(u64),
) -> Result<u64, MapError> {
    let mut push = |block, _, word: TreeWord| {
        if numbers.contains(&word.number()) {
            found(block);
        }
    };
    let roots = (TreeWord::HOLE, root);
    go_on(pages, roots, start, VOLUME_BLOCKS_MAX, true, &mut push)
}

/// One leap over blocks that are the same or are all zeroes in the later version, or one leaf.
fn go_on(
    pages: &mut MapPages,
    (mut from, mut to): (TreeWord, TreeWord),
    at: u64,
    end: u64,
    skips_damaged: bool,
    push: &mut dyn FnMut(u64, u64, TreeWord),
) -> Result<u64, MapError> {
    let mut next = VOLUME_BLOCKS_MAX;
    for level in (0..LEVELS).rev() {
        if from == to {
            return Ok(next);
        }
        if to.is_hole() {
            push(at, end.min(next) - at, TreeWord::HOLE);
            return Ok(next);
        }
        let slot = digit(at, level);
        let word = |pages: &mut MapPages, node: TreeWord| match node.is_hole() {
            true => Ok(TreeWord::HOLE),
            false => pages.word(node, slot),
        };
        // Both are asked for before one is missing.
        let words = (word(pages, from), word(pages, to));
        if skips_damaged && words.1 == Err(MapError::Damaged) {
            return Ok(node_end(at, level));
        }
        let words = (words.0?, words.1?);
        if level == 0 {
            break;
        }
        let differs = next_word(pages, (from, to), slot, |from, to| from != to);
        if differs > slot {
            return Ok(word_start(at, level, differs));
        }
        (from, to) = words;
        next = node_end(at, level - 1);
    }
    leaf(pages, (from, to), at, end.min(next), push);
    Ok(next)
}

fn leaf(
    pages: &MapPages,
    (from, to): (TreeWord, TreeWord),
    at: u64,
    end: u64,
    push: &mut dyn FnMut(u64, u64, TreeWord),
) {
    let old = (!from.is_hole()).then(|| pages.node(from.number()));
    let new = pages.node(to.number());
    for (slot, block) in (digit(at, 0)..NODE_WORDS).zip(at..end) {
        let old = old.map_or(TreeWord::HOLE, |old| node_word(old, slot));
        let new = node_word(new, slot);
        if old != new {
            push(block, 1, new);
        }
    }
}
