//! Pages that share their content.
//!
//! A page that is an *alias* has the content of another page, which is never an alias itself. That
//! page's entry counts its aliases; when no block has the page any more, it is kept until the last
//! alias goes. An alias of zeroes needs no page.

use serde::{Deserialize, Serialize};

use super::page::{LiveBlocks, Located, MapError, PageAlias};
use super::pages::MapPages;
use crate::format::{PageEntry, PageShares, TableKind};

/// Counts of the pages of a pool that share their content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedPages {
    /// Pages that have the content of another page, and none of their own.
    pub aliases: u64,
    /// Pages of zeroes, which are stored nowhere.
    pub zeroes: u64,
    /// Pages whose content their aliases have as well.
    pub shared: u64,
    /// Those among them that no block has any more.
    pub kept: u64,
}

impl SharedPages {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Pages that would be stored without sharing, and are not.
    pub fn saved(&self) -> u64 {
        self.aliases.saturating_add(self.zeroes).saturating_sub(self.kept)
    }

    /// A page of data has another entry.
    pub(super) fn replaced(&mut self, old: &PageEntry, new: &PageEntry) {
        // After damage counts may be wrong: they stay counts.
        let lose = |count: &mut u64, is: bool| *count = count.saturating_sub(is.into());
        let gain = |count: &mut u64, is: bool| *count = count.saturating_add(is.into());
        for (entry, count) in [(old, &lose as &dyn Fn(&mut u64, bool)), (new, &gain)] {
            let (alias, shares) = (entry.alias_of(), entry.shares());
            count(&mut self.aliases, alias.is_some_and(|shared| shared > 0));
            count(&mut self.zeroes, alias == Some(0));
            count(&mut self.shared, shares.aliases > 0);
            count(&mut self.kept, shares.is_kept);
        }
    }
}

impl MapPages {
    /// The page of an alias.
    pub(super) fn locate_shared(
        &mut self,
        number: u64,
        alias: &PageEntry,
        shared: u64,
    ) -> Result<Located, MapError> {
        if shared == 0 {
            return Ok(Located::Hole);
        }
        let entry = self.entry(TableKind::Data, shared)?;
        if entry.is_free() || entry.alias_of().is_some() || entry.seal().is_some() {
            return Err(MapError::Damaged);
        }
        let alias = Some(PageAlias { number, crc: alias.crc.get() });
        match entry.place() {
            Some(_) => Ok(Located::Page { number: shared, entry, alias }),
            None => Ok(Located::Lost),
        }
    }

    /// Ensures the entries that change when a page is freed.
    pub(super) fn need_freed(&mut self, kind: TableKind, number: u64) -> Result<(), MapError> {
        self.need_entry(kind, number)?;
        if kind != TableKind::Data || self.shared.aliases == 0 {
            return Ok(());
        }
        match self.entry(kind, number)?.alias_of() {
            Some(shared) if shared > 0 => self.need_entry(kind, shared),
            _ => Ok(()),
        }
    }

    /// No block has this page of data any more; the entries of [`Self::need_freed`] were ensured.
    pub(super) fn free_data(&mut self, number: u64, live: &mut dyn LiveBlocks) {
        let kind = TableKind::Data;
        let found = if self.shared.is_none() { None } else { self.entry(kind, number).ok() };
        let entry = found.unwrap_or(PageEntry::FREE);
        let shares = entry.shares();
        if shares.is_kept {
            self.contradictions += 1;
        } else if shares.aliases > 0 {
            let shares = PageShares { is_kept: true, ..shares };
            self.set_entry(kind, number, entry.with_shares(shares), live);
        } else {
            self.set_entry(kind, number, PageEntry::FREE, live);
        }
        match entry.alias_of() {
            Some(shared) if shared > 0 => self.lose_alias(shared, live),
            _ => {}
        }
    }

    fn lose_alias(&mut self, shared: u64, live: &mut dyn LiveBlocks) {
        let kind = TableKind::Data;
        let entry = self.entry(kind, shared).unwrap_or(PageEntry::FREE);
        let PageShares { aliases, is_kept } = entry.shares();
        let entry = match aliases {
            0 => {
                self.contradictions += 1;
                return;
            }
            1 if is_kept => PageEntry::FREE,
            _ => entry.with_shares(PageShares { aliases: aliases - 1, is_kept }),
        };
        self.set_entry(kind, shared, entry, live);
    }
}
