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
        let possible = BTreeSet::from([ZERO]);
        let sector = Sector { possible, changing: 0, group: BTreeSet::new(), has_failed: false };
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
            sector.possible.extend(values);
            sector.group.extend(values);
            sector.changing += 1;
        }
    }

    /// The change has ended.
    pub(crate) fn end_change(&mut self, sectors: &Range<usize>, is_done: bool) {
        for sector in &mut self.0[sectors.clone()] {
            sector.changing -= 1;
            sector.has_failed |= !is_done;
            if sector.changing == 0 && !sector.has_failed {
                sector.possible = std::mem::take(&mut sector.group);
            }
        }
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

    /// Another client has written this, while no request of the guest was under way.
    pub(crate) fn overwrite(&mut self, sectors: Range<usize>, value: u32) {
        for sector in &mut self.0[sectors] {
            sector.possible = BTreeSet::from([value]);
        }
    }
}
