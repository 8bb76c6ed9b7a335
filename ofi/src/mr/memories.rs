//! The memory that a process has registered, by key.

use crate::abi::{FI_EBUSY, FI_ENOKEY, FI_ENOMEM};
use crate::getinfo::COUNT_MAX;
use fabric::MemoryPiece;
use std::collections::HashMap;
use std::ffi::c_int;

/// The registered memory of a process, by key.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    all: HashMap<u64, RegisteredMemory>,
    /// How many keys the provider has given, and so the next one.
    keys_given: u64,
}

/// Memory that was registered in one call.
#[derive(Debug)]
pub(super) struct RegisteredMemory {
    pub(super) parts: Vec<MemoryPiece>,
    /// The address by which readers name the first byte.
    pub(super) base: u64,
    /// Other processes may read it.
    pub(super) readable: bool,
    /// Responses under way that have its content.
    pub(super) responses: usize,
}

impl Memories {
    /// Registers memory under the program's key, or, if `is_ours`, under a key of the provider.
    /// Returns the key.
    pub(super) fn add(
        &mut self,
        key: u64,
        is_ours: bool,
        memory: RegisteredMemory,
    ) -> Result<u64, c_int> {
        if self.all.len() >= COUNT_MAX {
            return Err(-FI_ENOMEM);
        }
        let key = if is_ours { self.keys_given } else { key };
        if self.all.contains_key(&key) {
            return Err(-FI_ENOKEY);
        }
        self.keys_given += u64::from(is_ours);
        self.all.insert(key, memory);
        Ok(key)
    }

    /// Whether any memory is registered, which other processes may read.
    pub(crate) fn is_readable(&self) -> bool {
        !self.all.is_empty()
    }

    /// The pieces of memory that a reader asks for. `None`: it may not read all of them.
    pub(crate) fn find(&self, key: u64, address: u64, bytes: u64) -> Option<Vec<MemoryPiece>> {
        let memory = self.all.get(&key).filter(|memory| memory.readable)?;
        let start = usize::try_from(address.checked_sub(memory.base)?).ok()?;
        let (mut skipped, mut wanted) = (start, usize::try_from(bytes).ok()?);
        let mut found = Vec::new();
        for part in &memory.parts {
            let from = skipped.min(part.bytes);
            let bytes = wanted.min(part.bytes - from);
            (skipped, wanted) = (skipped - from, wanted - bytes);
            if bytes > 0 {
                found.push(MemoryPiece { start: part.start.wrapping_add(from), bytes });
            }
        }
        (skipped == 0 && wanted == 0).then_some(found)
    }

    /// A response with this memory's content begins: the memory must stay.
    pub(crate) fn hold(&mut self, key: u64) {
        if let Some(memory) = self.all.get_mut(&key) {
            memory.responses += 1;
        }
    }

    /// A response has ended.
    pub(crate) fn release(&mut self, key: u64) {
        if let Some(memory) = self.all.get_mut(&key) {
            memory.responses = memory.responses.saturating_sub(1);
        }
    }

    /// Removes memory, which cannot be read any more. Refused while a response has its content.
    pub(super) fn remove(&mut self, key: u64) -> Result<(), c_int> {
        if self.all.get(&key).is_some_and(|memory| memory.responses > 0) {
            return Err(-FI_EBUSY);
        }
        self.all.remove(&key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr;

    fn memory(parts: &[(usize, usize)], base: u64, readable: bool) -> RegisteredMemory {
        let part =
            |&(start, bytes)| MemoryPiece { start: ptr::without_provenance_mut(start), bytes };
        RegisteredMemory { parts: parts.iter().map(part).collect(), base, readable, responses: 0 }
    }

    #[test]
    fn a_read_gets_all_that_it_asks_for_or_nothing() {
        let mut all = Memories::default();
        let parts = [(1000, 10), (2000, 0), (3000, 20)];
        assert_eq!(all.add(7, false, memory(&parts, 0, true)), Ok(7));
        assert_eq!(all.add(7, false, memory(&parts, 0, true)), Err(-FI_ENOKEY));
        assert_eq!(all.add(8, false, memory(&parts, 0, false)), Ok(8));
        let found = |key, address, bytes| {
            let found = all.find(key, address, bytes)?;
            Some(found.iter().map(|part| (part.start.addr(), part.bytes)).collect::<Vec<_>>())
        };
        assert_eq!(found(7, 0, 30), Some(vec![(1000, 10), (3000, 20)]));
        assert_eq!(found(7, 9, 2), Some(vec![(1009, 1), (3000, 1)]));
        assert_eq!(found(7, 30, 0), Some(vec![]));
        for (key, address, bytes) in [
            (7, 0, 31),
            (7, 30, 1),
            (7, 31, 0),
            (7, u64::MAX, 1),
            (7, 1, u64::MAX),
            (8, 0, 1),
            (9, 0, 1),
        ] {
            assert_eq!(found(key, address, bytes), None, "{key} {address} {bytes}");
        }
    }

    #[test]
    fn memory_is_not_closed_while_it_is_read() {
        let mut all = Memories::default();
        let [first, second] =
            [1, 2].map(|_| all.add(9, true, memory(&[(4096, 8)], 4096, true)).unwrap());
        assert_ne!(first, second, "the provider's keys differ, and the program's are ignored");
        assert!(all.find(first, 4097, 7).is_some() && all.find(first, 0, 1).is_none());
        all.hold(first);
        assert_eq!((all.remove(first), all.remove(second)), (Err(-FI_EBUSY), Ok(())));
        all.release(first);
        all.release(second);
        assert_eq!((all.remove(first), all.find(first, 4096, 1).is_none()), (Ok(()), true));
    }
}
