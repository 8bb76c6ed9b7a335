//! Trees: from a block of a version to the number of its page.
//!
//! A change of a tree is planned first, from the leaf to the root, while all pages that it needs
//! are asked for; then it is made at once, and nothing in it can fail.

use std::ops::Range;

use super::catalog::TreeOwner;
use super::page::{
    LiveBlocks, Located, MapError, MapPage, NODE_WORDS, TreeWord, node_word, set_node_word,
};
use super::pages::MapPages;
use super::space::GoneWords;
use crate::block::Block;
use crate::format::TableKind;

/// Levels of nodes; level 0 has the leaves.
pub(super) const LEVELS: usize = 4;

const DIGIT_BITS: usize = 9;

/// The word's index in the node of this level on the way to a block.
pub(super) fn digit(block: u64, level: usize) -> usize {
    (block >> (level * DIGIT_BITS)) as usize % NODE_WORDS
}

/// The end of the blocks that the node of this level on the way to a block has.
pub(super) fn node_end(block: u64, level: usize) -> u64 {
    let bits = (level + 1) * DIGIT_BITS;
    ((block >> bits) + 1) << bits
}

/// The first block of the word `at` of the node of this level on the way to a block; of the node's
/// end, the one behind the node.
pub(super) fn word_start(block: u64, level: usize, at: usize) -> u64 {
    node_end(block, level) - (((NODE_WORDS - at) as u64) << (level * DIGIT_BITS))
}

/// The first word from `at` on of two nodes that differ in it as `differ` says; the end of the
/// nodes if there is none. A hole is a node of holes, and the other nodes are in memory.
pub(super) fn next_word(
    pages: &MapPages,
    (first, second): (TreeWord, TreeWord),
    at: usize,
    differ: impl Fn(TreeWord, TreeWord) -> bool,
) -> usize {
    let node = |word: TreeWord| (!word.is_hole()).then(|| pages.node(word.number()));
    let (first, second) = (node(first), node(second));
    let word = |node: Option<&Block>, at| node.map_or(TreeWord::HOLE, |node| node_word(node, at));
    (at..NODE_WORDS).find(|&at| differ(word(first, at), word(second, at))).unwrap_or(NODE_WORDS)
}

/// Finds a block.
pub(super) fn locate(
    pages: &mut MapPages,
    root: TreeWord,
    block: u64,
) -> Result<Located, MapError> {
    let mut word = root;
    for level in (0..LEVELS).rev() {
        if word.is_hole() {
            return Ok(Located::Hole);
        }
        word = pages.word(word, digit(block, level))?;
    }
    if word.is_hole() {
        return Ok(Located::Hole);
    }
    if word.is_lost() {
        return Ok(Located::Lost);
    }
    let number = word.number();
    let entry = pages.entry(TableKind::Data, number)?;
    if let Some(shared) = entry.alias_of() {
        return pages.locate_shared(number, &entry, shared);
    }
    match entry.place() {
        Some(_) => Ok(Located::Page { number, entry, alias: None }),
        None if entry.is_free() => Err(MapError::Damaged),
        None => Ok(Located::Lost),
    }
}

/// How the words of the nodes on the way to a block change.
pub(super) struct TreeEdit {
    /// The block.
    pub(super) block: u64,
    /// The words that become holes, by the level of the node.
    clear: [Range<usize>; LEVELS],
    /// The new word of the block itself.
    set: Option<TreeWord>,
    /// A damaged node stays as it is, and so does all below it.
    leaves_damaged: bool,
}

const NO_WORDS: Range<usize> = 0..0;

impl TreeEdit {
    /// The block has another page.
    pub(super) fn write(block: u64, word: TreeWord) -> Self {
        Self { block, clear: [NO_WORDS; LEVELS], set: Some(word), leaves_damaged: false }
    }

    /// Blocks of one leaf become holes.
    pub(super) fn zero(block: u64, blocks: u64) -> Self {
        let mut clear = [NO_WORDS; LEVELS];
        let from = digit(block, 0);
        clear[0] = from..from + blocks as usize;
        Self { block, clear, set: None, leaves_damaged: false }
    }

    /// All blocks from this one on become holes, as part of a change that must not fail.
    pub(super) fn cut(block: u64) -> Self {
        let clear =
            std::array::from_fn(|level| digit(block, level) + usize::from(level > 0)..NODE_WORDS);
        Self { block, clear, set: None, leaves_damaged: true }
    }
}

/// The change of a node on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeStep {
    /// It stays as it is, or there is none.
    Keep,
    /// It changes in place.
    Change,
    /// Its copy, or a new node, takes its place.
    Copy,
    /// It would be empty, so there is a hole instead.
    Drop,
}

/// A change of a tree whose pages are all in memory.
pub(super) struct TreePlan {
    edit: TreeEdit,
    /// The words of the nodes.
    words: [TreeWord; LEVELS],
    is_owned: [bool; LEVELS],
    steps: [NodeStep; LEVELS],
    /// Pages of data that are freed.
    freed: Vec<u64>,
    /// Words with pages that go, as far as they are in the leaf.
    pub(super) gone: GoneWords,
}

impl TreePlan {
    /// Plans a change of the tree of this root.
    pub(super) fn new(
        pages: &mut MapPages,
        root: TreeWord,
        owner: TreeOwner,
        edit: TreeEdit,
    ) -> Result<Self, MapError> {
        let mut plan = Self {
            edit,
            words: [TreeWord::HOLE; LEVELS],
            is_owned: [false; LEVELS],
            steps: [NodeStep::Keep; LEVELS],
            freed: std::mem::take(&mut pages.lent_freed),
            gone: GoneWords::default(),
        };
        plan.freed.clear();
        match plan.fill(pages, root, owner) {
            Ok(()) => Ok(plan),
            Err(error) => {
                pages.lent_freed = plan.freed;
                Err(error)
            }
        }
    }

    fn fill(
        &mut self,
        pages: &mut MapPages,
        root: TreeWord,
        owner: TreeOwner,
    ) -> Result<(), MapError> {
        let mut word = root;
        for level in (0..LEVELS).rev() {
            if word.is_hole() {
                break;
            }
            let below = match pages.word(word, digit(self.edit.block, level)) {
                Err(MapError::Damaged) if self.edit.leaves_damaged => break,
                below => below?,
            };
            // A tree that comes back to a node of its own is no tree that a map has written.
            if self.words.iter().any(|above| above.number() == word.number()) {
                return Err(MapError::Damaged);
            }
            self.words[level] = word;
            self.is_owned[level] = owner.owns(word.birth(), node_end(self.edit.block, level));
            word = below;
        }
        self.set_steps(pages);
        self.set_freed(pages, owner);
        self.need(pages)
    }

    fn set_steps(&mut self, pages: &MapPages) {
        // Whether the word below becomes that of another page.
        let mut has_other = self.edit.set.is_some();
        for level in 0..LEVELS {
            let node = self.words[level];
            if node.is_hole() {
                self.steps[level] = if has_other { NodeStep::Copy } else { NodeStep::Keep };
                continue;
            }
            let node = pages.node(node.number());
            let (clear, at) = (&self.edit.clear[level], digit(self.edit.block, level));
            let has_word = |word: usize| !node_word(node, word).is_hole();
            let drops_below = level > 0 && self.steps[level - 1] == NodeStep::Drop;
            let is_changed = has_other || drops_below || clear.clone().any(has_word);
            let goes = |word: usize| clear.contains(&word) || (word == at && drops_below);
            let mut words = 0..NODE_WORDS;
            self.steps[level] = match (is_changed, self.is_owned[level]) {
                (false, _) => NodeStep::Keep,
                _ if !has_other && words.all(|word| goes(word) || !has_word(word)) => {
                    NodeStep::Drop
                }
                (true, true) => NodeStep::Change,
                (true, false) => NodeStep::Copy,
            };
            has_other = self.steps[level] == NodeStep::Copy;
        }
    }

    /// Words of data that the volume owns and that go.
    fn set_freed(&mut self, pages: &MapPages, owner: TreeOwner) {
        if self.words[0].is_hole() {
            return;
        }
        let leaf = pages.node(self.words[0].number());
        let at = digit(self.edit.block, 0);
        let set = if self.edit.set.is_some() { at..at + 1 } else { NO_WORDS };
        let first = self.edit.block - at as u64;
        for at in self.edit.clear[0].clone().chain(set) {
            let word = node_word(leaf, at);
            if word.number() == 0 {
                continue;
            }
            self.gone.referred += 1;
            if owner.owns(word.birth(), first + at as u64 + 1) {
                self.freed.push(word.number());
                match owner.is_own(word.birth()) {
                    true => self.gone.owned += 1,
                    false => self.gone.of_parent += 1,
                }
            } else if owner.is_of_history(word.birth()) {
                self.gone.of_history += 1;
            }
        }
    }

    fn need(&mut self, pages: &mut MapPages) -> Result<(), MapError> {
        let copies = self.steps.iter().filter(|&&step| step == NodeStep::Copy).count();
        let mut answer = pages.need_ready(TableKind::Nodes, copies);
        for level in 0..LEVELS {
            let number = self.words[level].number();
            match self.steps[level] {
                NodeStep::Change => {
                    answer = answer.and(pages.need_to_change(MapPage::Node(number)));
                }
                NodeStep::Drop if self.is_owned[level] => {
                    match pages.need_entry(TableKind::Nodes, number) {
                        // The node's number cannot be freed, and is lost.
                        Err(MapError::Damaged) => self.is_owned[level] = false,
                        result => answer = answer.and(result),
                    }
                }
                _ => {}
            }
        }
        answer.and(need_freed(pages, TableKind::Data, &mut self.freed))
    }

    /// Makes the change. Returns the new root, if it is another one.
    pub(super) fn commit(
        self,
        pages: &mut MapPages,
        birth: u64,
        live: &mut dyn LiveBlocks,
    ) -> Option<TreeWord> {
        let mut below = self.edit.set;
        for level in 0..LEVELS {
            let node = self.words[level];
            let number = node.number();
            let edit = |block: &mut Block, below: Option<TreeWord>| {
                self.edit.clear[level]
                    .clone()
                    .for_each(|at| set_node_word(block, at, TreeWord::HOLE));
                if let Some(word) = below {
                    set_node_word(block, digit(self.edit.block, level), word);
                }
            };
            below = match self.steps[level] {
                NodeStep::Keep => None,
                NodeStep::Change => {
                    edit(pages.change(MapPage::Node(number)), below);
                    None
                }
                NodeStep::Copy => {
                    let mut block = if node.is_hole() {
                        Box::new(Block::ZERO)
                    } else {
                        Box::new(pages.node(number).clone())
                    };
                    edit(&mut block, below);
                    let nodes = pages.table_mut(TableKind::Nodes);
                    let number = nodes.take_ready().expect("as many as copies were ensured");
                    pages.create_node(number, block, live);
                    Some(TreeWord::new(birth, number))
                }
                NodeStep::Drop => {
                    if self.is_owned[level] {
                        pages.free_node(number, live);
                    }
                    Some(TreeWord::HOLE)
                }
            };
        }
        for &number in &self.freed {
            pages.free_data(number, live);
        }
        pages.lent_freed = self.freed;
        below
    }
}

/// Ensures the entries of pages that will be freed. A page whose entry is damaged keeps its number
/// for ever, as an alias of such a page does, and goes from the list.
pub(super) fn need_freed(
    pages: &mut MapPages,
    kind: TableKind,
    freed: &mut Vec<u64>,
) -> Result<(), MapError> {
    let mut answer = Ok(());
    freed.retain(|&number| match pages.need_freed(kind, number) {
        Err(MapError::Damaged) => false,
        result => {
            answer = answer.and(result);
            true
        }
    });
    answer
}
