//! The removal of a version: step by step, in the order of its blocks.
//!
//! ```text
//! parent    . A B .      S owns what was born after its parent: C and D.
//! S         . A C D      Its child has D still, so the removal of S frees C,
//! child     E A F D      and leaves D to the child.
//! ```
//!
//! Entries that the two trees share are leapt over, and so are those of the parent.

use super::catalog::RemovalTarget;
use super::page::{LiveBlocks, MapError, TreeWord, node_word};
use super::pages::MapPages;
use super::tree::{LEVELS, digit, need_freed, next_word, node_end, word_start};
use crate::format::{TableKind, ZERO_BLOCKS_MAX};
use pool_stream::VOLUME_BLOCKS_MAX;

/// A step ends when it frees so many pages. It frees one group more at most, and each page
/// may need a block of the page table.
const FREED_MAX: usize = 48;

/// A step ends after so many leaps and groups.
const MOVES_MAX: usize = 32;

/// A step of a removal whose pages are all in memory.
pub(super) struct RemovalPlan {
    /// The removal is done below this block.
    pub(super) at: u64,
    /// Pages of data that the removed version does not own any more.
    pub(super) freed: u64,
    data: Vec<u64>,
    nodes: Vec<u64>,
}

impl RemovalPlan {
    /// Plans the next step, which goes to `end` at most.
    pub(super) fn new(
        pages: &mut MapPages,
        target: RemovalTarget,
        end: u64,
    ) -> Result<Self, MapError> {
        let mut plan = Self { at: target.at, freed: 0, data: Vec::new(), nodes: Vec::new() };
        let mut answer = Ok(());
        for _ in 0..MOVES_MAX {
            if plan.at >= end || plan.data.len() + plan.nodes.len() >= FREED_MAX {
                break;
            }
            if let Err(error) = plan.go_on(pages, target, end) {
                answer = Err(error);
                break;
            }
        }
        plan.freed = plan.data.len() as u64;
        // All that is known to be needed is asked for at once.
        let freed = need_freed(pages, TableKind::Data, &mut plan.data);
        let freed = freed.and(need_freed(pages, TableKind::Nodes, &mut plan.nodes));
        answer.and(freed)?;
        Ok(plan)
    }

    /// One leap over blocks of which nothing is freed, or one group of blocks of a leaf.
    fn go_on(
        &mut self,
        pages: &mut MapPages,
        target: RemovalTarget,
        end: u64,
    ) -> Result<(), MapError> {
        let from = self.at;
        // The nodes on the way that only the removed version has, by level.
        let mut way = [TreeWord::HOLE; LEVELS];
        let (mut removed, mut child) = (target.root, target.child);
        let mut to = VOLUME_BLOCKS_MAX;
        let differ = |removed, child| is_alone(removed, child, target.floor);
        for level in (0..LEVELS).rev() {
            if !differ(removed, child) {
                break;
            }
            way[level] = removed;
            to = node_end(from, level);
            let at = digit(from, level);
            // Nothing is known about a damaged node, so all below it keeps its numbers.
            let Some(words) = words_at(pages, removed, child, at)? else { break };
            let next = next_word(pages, (removed, child), at, differ);
            let group = ZERO_BLOCKS_MAX as usize;
            if level > 0 && next > at {
                to = word_start(from, level, next);
                break;
            } else if level > 0 {
                (removed, child) = words;
            } else if next / group > at / group {
                to = word_start(from, level, next / group * group);
            } else {
                to = from + ZERO_BLOCKS_MAX;
                self.free_group(pages, removed, child, from, target.floor);
            }
        }
        if to > end {
            // The record does not go as far: it was made for trees that differed more.
            to = end;
        }
        let left = (0..LEVELS).filter(|&level| node_end(from, level) <= to);
        self.nodes.extend(
            left.map(|level| way[level]).filter(|word| !word.is_hole()).map(TreeWord::number),
        );
        self.at = to;
        Ok(())
    }

    fn free_group(
        &mut self,
        pages: &MapPages,
        removed: TreeWord,
        child: TreeWord,
        from: u64,
        floor: u64,
    ) {
        let leaf = pages.node(removed.number());
        let other = (!child.is_hole()).then(|| pages.node(child.number()));
        let at = digit(from, 0);
        for at in at..at + ZERO_BLOCKS_MAX as usize {
            let word = node_word(leaf, at);
            let other = other.map_or(TreeWord::HOLE, |other| node_word(other, at));
            if word.number() > 0 && is_alone(word, other, floor) {
                self.data.push(word.number());
            }
        }
    }

    /// Frees what the step frees.
    pub(super) fn commit(self, pages: &mut MapPages, live: &mut dyn LiveBlocks) {
        for number in self.data {
            pages.free_data(number, live);
        }
        for number in self.nodes {
            pages.free_node(number, live);
        }
    }
}

/// Whether only the removed version has this entry.
fn is_alone(removed: TreeWord, child: TreeWord, floor: u64) -> bool {
    !removed.is_hole() && removed != child && removed.birth() > floor
}

/// The words of the two nodes; `None` if one of the nodes is damaged.
fn words_at(
    pages: &mut MapPages,
    removed: TreeWord,
    child: TreeWord,
    at: usize,
) -> Result<Option<(TreeWord, TreeWord)>, MapError> {
    let removed = pages.word(removed, at);
    let child = if child.is_hole() { Ok(TreeWord::HOLE) } else { pages.word(child, at) };
    match (removed, child) {
        (Ok(removed), Ok(child)) => Ok(Some((removed, child))),
        (Err(MapError::Damaged), _) | (_, Err(MapError::Damaged)) => Ok(None),
        _ => Err(MapError::Missing),
    }
}
