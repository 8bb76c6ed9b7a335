//! Entries of pages that share their content: an *alias* has the content of another page.

use super::place::PageEntry;
use super::record::NUMBER_MAX;

/// Bits of a page's number.
const NUMBER_BITS: u32 = NUMBER_MAX.count_ones();

/// The bit of a shared page that no block has any more.
const KEPT_BIT: u32 = 47;

/// The bits of an entry's last word that a shared page uses. Those above are a seal's context.
const SHARES_BITS: u32 = 48;

/// How many pages have the content of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageShares {
    /// Its aliases.
    pub aliases: u64,
    /// No block has the page itself any more: it is there for its aliases.
    pub is_kept: bool,
}

impl PageShares {
    /// Of a page that has its content alone.
    pub const NONE: Self = Self { aliases: 0, is_kept: false };
}

impl PageEntry {
    /// The bit of an alias, in the place of a page: below it is the number of the page that has
    /// the content.
    pub const ALIAS: u64 = 1 << 60;

    /// An alias of the page `shared`. `crc` proves the content for both pages. The number 0 stands
    /// for zeroes, which need no page.
    pub fn alias(shared: u64, crc: u64) -> Self {
        debug_assert!(shared <= NUMBER_MAX);
        Self { place: (Self::ALIAS | shared).into(), crc: crc.into(), ..Self::FREE }
    }

    /// The page whose content an alias has, or 0 for zeroes; `None` for other pages.
    pub fn alias_of(&self) -> Option<u64> {
        let word = self.place.get();
        (word >> NUMBER_BITS == Self::ALIAS >> NUMBER_BITS).then_some(word & NUMBER_MAX)
    }

    /// How many aliases the page has.
    pub fn shares(&self) -> PageShares {
        let extra = self.extra.get();
        if self.is_free() || extra >> SHARES_BITS != 0 {
            return PageShares::NONE;
        }
        PageShares { aliases: extra & NUMBER_MAX, is_kept: extra >> KEPT_BIT & 1 == 1 }
    }

    /// This entry of a page that is not sealed, with so many aliases.
    #[must_use]
    pub fn with_shares(self, shares: PageShares) -> Self {
        if self.seal().is_some() {
            return self;
        }
        let kept = u64::from(shares.is_kept) << KEPT_BIT;
        Self { extra: (shares.aliases.min(NUMBER_MAX) | kept).into(), ..self }
    }

    /// Whether another entry has the same stored page, however many aliases it has.
    pub fn is_same_page(&self, other: &Self) -> bool {
        (self.place, self.crc, self.sequence) == (other.place, other.crc, other.sequence)
    }
}
