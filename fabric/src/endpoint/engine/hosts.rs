//! The hosts that an endpoint has met: their names in addresses, their indices in cells.
//!
//! The region's table has both. An endpoint keeps what the table said once. A host that is over has
//! no name there any more, and if it comes back, under the same name, it has another index. For
//! this endpoint such a host stays over, since messages may have been lost between.

use crate::addresses::{Index, scattered};
use crate::region::Region;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct HostTable {
    /// By index; 0 for a host that was not met.
    names: Vec<u64>,
    indices: Index,
    /// The last answer.
    last: Option<(u64, u16)>,
}

impl HostTable {
    /// The index of a host that can be reached, or could be reached once.
    #[inline]
    pub(crate) fn index(&mut self, region: &Region, name: u64) -> Option<u16> {
        match self.last {
            Some((last, index)) if last == name => Some(index),
            _ => self.look_up(region, name),
        }
    }

    fn look_up(&mut self, region: &Region, name: u64) -> Option<u16> {
        if let Some(index) = self.known(name) {
            self.last = Some((name, index));
            return Some(index);
        }
        let index = region.index_of_host(name)?;
        self.note(name, index);
        Some(index)
    }

    fn known(&self, name: u64) -> Option<u16> {
        let mut alike = self.indices.chain(scattered(name));
        alike.find(|&index| self.names[index as usize] == name).map(|index| index as u16)
    }

    /// Keeps a name that was not known.
    fn note(&mut self, name: u64, index: u16) {
        let at = usize::from(index);
        if self.names.len() <= at {
            self.names.resize(at + 1, 0);
        }
        self.names[at] = name;
        let names = &self.names;
        self.indices.insert(index.into(), |index| scattered(names[index as usize]));
        self.last = Some((name, index));
    }

    /// The memory that the table takes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.names.capacity() * size_of::<u64>() + self.indices.held_bytes()
    }

    /// Whether messages from the host of this index are received. Asked before [`HostTable::name`].
    #[inline]
    pub(crate) fn meet(&mut self, region: &Region, index: u16) -> bool {
        if self.last.is_some_and(|(_, last)| last == index) || self.name(index) != 0 {
            return true;
        }
        let Some(name) = region.host(index) else { return false };
        // A host that has come back under its name is not met again.
        let is_new = self.known(name).is_none();
        if is_new {
            self.note(name, index);
        }
        is_new
    }

    /// The name of a host that was met or looked up.
    pub(crate) fn name(&self, index: u16) -> u64 {
        self.names.get(usize::from(index)).copied().unwrap_or_default()
    }
}
