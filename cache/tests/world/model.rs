//! The values that a guest may read: for each sector, those that it can have at this moment.

use std::collections::BTreeSet;
use std::ops::Range;

pub(crate) const SECTOR: usize = 512;

/// The value of a sector that was zeroed.
pub(crate) const ZERO: u32 = 0;

#[derive(Clone, Debug)]
struct Sector {
    /// More than one: changes are under way, or have failed, or two ended in an unknown order.
    possible: BTreeSet<u32>,
    /// Changes under way, and the values of all since there was none.
    changing: u32,
    group: BTreeSet<u32>,
    has_failed: bool,
    /// Values that it had since the last flush, which a loss of power can bring back.
    older: BTreeSet<u32>,
    /// Counts the begins and ends of changes.
    number: u64,
}

#[derive(Debug)]
pub(crate) struct Model(Vec<Sector>);

/// A read under way: the values that each of its sectors may have had since it began, and whether
/// nothing has changed it since.
#[derive(Debug)]
pub(crate) struct ModelRead {
    pub(crate) sectors: Range<usize>,
    allowed: Vec<(BTreeSet<u32>, bool)>,
}

impl Model {
    pub(crate) fn new(sectors: usize) -> Self {
        let sector = Sector {
            possible: BTreeSet::from([ZERO]),
            changing: 0,
            group: BTreeSet::new(),
            has_failed: false,
            older: BTreeSet::new(),
            number: 0,
        };
        Self(vec![sector; sectors])
    }

    pub(crate) fn begin_read(&self, sectors: Range<usize>) -> ModelRead {
        let allowed = self.0[sectors.clone()].iter();
        let allowed = allowed.map(|it| (it.possible.clone(), it.changing == 0));
        ModelRead { allowed: allowed.collect(), sectors }
    }

    /// A change to one of these values begins.
    pub(crate) fn begin_change<'r>(
        &mut self,
        sectors: &Range<usize>,
        values: &[u32],
        reads: impl Iterator<Item = &'r mut ModelRead>,
    ) {
        for read in reads {
            for (at, (allowed, is_still)) in read.sectors.clone().zip(&mut read.allowed) {
                if sectors.contains(&at) {
                    allowed.extend(values);
                    *is_still = false;
                }
            }
        }
        for sector in &mut self.0[sectors.clone()] {
            if sector.changing == 0 {
                (sector.group, sector.has_failed) = (BTreeSet::new(), false);
            }
            sector.older.extend(&sector.possible);
            sector.older.extend(values);
            sector.number += 1;
            sector.possible.extend(values);
            sector.group.extend(values);
            sector.changing += 1;
        }
    }

    /// A durable change is done: where no other change was under way, its value stays.
    pub(crate) fn end_durable(&mut self, sectors: &Range<usize>) {
        for sector in &mut self.0[sectors.clone()] {
            if sector.changing == 0 && sector.possible.len() == 1 && sector.group.len() <= 1 {
                sector.older.clear();
            }
        }
    }

    /// The change has ended.
    pub(crate) fn end_change(&mut self, sectors: &Range<usize>, is_done: bool) {
        for sector in &mut self.0[sectors.clone()] {
            sector.changing -= 1;
            sector.number += 1;
            sector.has_failed |= !is_done;
            if sector.changing == 0 && !sector.has_failed {
                sector.possible = sector.group.clone();
            }
        }
    }

    /// Whether a sector may have this value now.
    pub(crate) fn may_have(&self, sector: usize, value: u32) -> bool {
        self.0[sector].possible.contains(&value)
    }

    /// A read has ended. Where nothing has changed meanwhile, what was read is what is there.
    pub(crate) fn end_read(&mut self, read: &ModelRead, values: &[u32]) -> Result<(), String> {
        for ((at, (allowed, is_still)), value) in
            read.sectors.clone().zip(&read.allowed).zip(values)
        {
            if !allowed.contains(value) {
                return Err(format!("sector {at} has {value}, and may have {allowed:?}"));
            }
            if *is_still {
                self.0[at].possible = BTreeSet::from([*value]);
            }
        }
        Ok(())
    }

    /// A flush begins.
    pub(crate) fn begin_flush(&self) -> Vec<u64> {
        self.0.iter().map(|sector| sector.number).collect()
    }

    /// The flush is done: the sectors that nothing has changed since it began keep their
    /// content from then on.
    pub(crate) fn end_flush(&mut self, began: &[u64]) {
        for (sector, began) in self.0.iter_mut().zip(began) {
            if sector.number == *began && sector.changing == 0 {
                sector.older.clear();
            }
        }
    }

    /// Storage has lost its power, while no request of the guest was under way. The older values
    /// stay possible until a flush: the storage of the other host may lose its power later.
    pub(crate) fn lose_power(&mut self) {
        for sector in &mut self.0 {
            sector.possible.extend(&sector.older);
        }
    }

    /// Another client has written this, while no request of the guest was under way.
    pub(crate) fn overwrite(&mut self, sectors: Range<usize>, value: u32) {
        for sector in &mut self.0[sectors] {
            sector.possible = BTreeSet::from([value]);
            sector.older.clear();
        }
    }
}
