//! Which hosts an endpoint has to do with: their names in addresses, their indices in cells.
//!
//! The region's table says both. What it said once is kept: a host that is over has no name there
//! any more, and if it comes back, under the same name, it has another index. For this endpoint it
//! stays what it was, since messages may have been lost between.

use std::collections::HashMap;

use crate::region::Region;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    names: HashMap<u16, u64>,
    indices: HashMap<u64, u16>,
    /// The one that was asked for last.
    last: Option<(u64, u16)>,
}

impl Hosts {
    /// The index of a host that can be reached, or could once.
    #[inline]
    pub(super) fn index(&mut self, region: &Region, name: u64) -> Option<u16> {
        match self.last {
            Some((last, index)) if last == name => Some(index),
            _ => self.look_up(region, name),
        }
    }

    fn look_up(&mut self, region: &Region, name: u64) -> Option<u16> {
        let known = self.indices.get(&name).copied();
        let index = known.or_else(|| region.index_of_host(name))?;
        self.note(name, index);
        Some(index)
    }

    fn note(&mut self, name: u64, index: u16) {
        self.names.insert(index, name);
        self.indices.insert(name, index);
        self.last = Some((name, index));
    }

    /// Whether the host of this index is one to receive from. Asked before [`Hosts::name`].
    #[inline]
    pub(super) fn meet(&mut self, region: &Region, index: u16) -> bool {
        if self.last.is_some_and(|(_, last)| last == index) || self.names.contains_key(&index) {
            return true;
        }
        let Some(name) = region.host(index) else { return false };
        // Not one that has come back.
        let is_new = !self.indices.contains_key(&name);
        if is_new {
            self.note(name, index);
        }
        is_new
    }

    /// The name of a host that was met or looked up.
    pub(super) fn name(&self, index: u16) -> u64 {
        self.names.get(&index).copied().unwrap_or_default()
    }
}
