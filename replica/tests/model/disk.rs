//! A member's storage: content that a loss of power takes back to what was durable.

use std::collections::{BTreeMap, BTreeSet};

use replica::{Block, Cut, Op};

use super::Data;

pub type Content = BTreeMap<Block, Data>;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Disk {
    pub content: Content,
    durable: Content,
    cuts: BTreeMap<Cut, Content>,
    /// The promised and the newest seen epoch.
    pub epochs: (u64, u64),
}

impl Disk {
    pub fn store(&mut self, cut: Option<Cut>, op: &Op<Data>) {
        match op {
            Op::Write { block, data, .. } | Op::Fill { block, data, .. } | Op::Equal { block, data } => {
                self.content.insert(*block, *data);
            }
            Op::Flush { .. } | Op::Applied(_) => self.durable.clone_from(&self.content),
            Op::Cut => {
                self.durable.clone_from(&self.content);
                self.cuts.insert(cut.expect("a cut has a name"), self.content.clone());
            }
            Op::Nothing => {}
        }
    }

    pub fn read(&self, block: Block) -> Data {
        self.content.get(&block).copied().unwrap_or_default()
    }

    pub fn go_back(&mut self, cut: Option<Cut>) {
        self.content = cut.and_then(|cut| self.cuts.get(&cut).cloned()).unwrap_or_default();
        self.cuts.retain(|kept, _| cut.is_some_and(|cut| *kept <= cut));
    }

    /// The blocks that differ from the cut.
    pub fn changed(&self, cut: Option<Cut>) -> BTreeSet<Block> {
        let empty = Content::new();
        let old = cut.and_then(|cut| self.cuts.get(&cut)).unwrap_or(&empty);
        let blocks = self.content.keys().chain(old.keys()).copied();
        blocks.filter(|block| self.content.get(block) != old.get(block)).collect()
    }

    pub fn cuts(&self) -> BTreeSet<Cut> {
        self.cuts.keys().copied().collect()
    }

    pub fn lose_power(&mut self) {
        self.content.clone_from(&self.durable);
    }
}
