//! Pages that become aliases of other pages, and numbers that are held for them.

use super::page::{Applied, LiveBlocks, MapError};
use super::{PoolMap, SharedPages};
use crate::format::{BlockPlace, PageEntry, PageShares, TableKind};

impl PoolMap {
    /// Counts of the pages that share their content.
    pub(crate) fn shared(&self) -> SharedPages {
        self.pages.shared
    }

    /// Pages of data that are on devices.
    pub(crate) fn stored_pages(&self) -> u64 {
        let SharedPages { aliases, zeroes, .. } = self.shared();
        self.used_pages().saturating_sub(aliases.saturating_add(zeroes))
    }

    /// The number of this page is not given to another page, even if the page is freed, until
    /// [`Self::release_number`] is called as often: an alias of the page is under way.
    pub(crate) fn hold_number(&mut self, number: u64) {
        self.pages.table_mut(TableKind::Data).hold(number);
    }

    /// The end of [`Self::hold_number`].
    pub(crate) fn release_number(&mut self, number: u64) {
        self.pages.table_mut(TableKind::Data).release(number);
    }

    /// A page that is still at `from` becomes an alias. It stays as it is if the page with the
    /// content is gone, or is an alias by now, or if the page has aliases itself.
    pub(super) fn alias(
        &mut self,
        (number, from): (u64, BlockPlace),
        (shared, crc): (u64, u64),
        live: &mut dyn LiveBlocks,
    ) -> Result<Applied, MapError> {
        let kind = TableKind::Data;
        let old = self.pages.entry(kind, number)?;
        if old.place() != Some(from) || old.seal().is_some() || old.shares() != PageShares::NONE {
            return Ok(Applied::Dropped);
        }
        if shared > 0 {
            let target = self.pages.entry(kind, shared)?;
            if target.place().is_none() || target.seal().is_some() {
                return Ok(Applied::Dropped);
            }
            let need = self.pages.need_entry(kind, shared);
            need.and(self.pages.need_entry(kind, number))?;
            let PageShares { aliases, is_kept } = target.shares();
            let shares = PageShares { aliases: aliases + 1, is_kept };
            self.pages.set_entry(kind, shared, target.with_shares(shares), live);
        } else {
            self.pages.need_entry(kind, number)?;
        }
        self.pages.set_entry(kind, number, PageEntry::alias(shared, crc), live);
        Ok(Applied::Done)
    }

    /// The aliases of these pages that have their entries in a block of level 0 of the page table.
    ///
    /// # Errors
    /// If the block is missing or damaged.
    pub(crate) fn aliases_in(&mut self, index: u64, of: &[u64]) -> Result<Vec<u64>, MapError> {
        let kind = TableKind::Data;
        let mut aliases = Vec::new();
        for number in self.pages.table(kind).numbers_of(index) {
            if !self.pages.table(kind).reaches(number) {
                break;
            }
            let shared = self.pages.entry(kind, number)?.alias_of();
            if shared.is_some_and(|shared| of.contains(&shared)) {
                aliases.push(number);
            }
        }
        Ok(aliases)
    }
}
