//! The memory that a process has registered, by key.

use crate::abi::{FI_EBUSY, FI_ENOKEY, FI_ENOMEM};
use crate::getinfo::COUNT_MAX;
use fabric::MemoryPiece;
use std::collections::HashMap;
use std::ffi::c_int;

/// All that a process has registered, by key.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    all: HashMap<u64, RegisteredMemory>,
    /// Keys that were given by us.
    given: u64,
}

#[derive(Debug)]
pub(super) struct RegisteredMemory {
    pub(super) parts: Vec<MemoryPiece>,
    /// What its first byte is called by readers.
    pub(super) base: u64,
    /// Others may read it.
    pub(super) readable: bool,
    /// Answers with its content that have not ended.
    pub(super) answers: usize,
}

impl Memories {
    /// Registers memory under a key: the program's, or (where addresses are those of its memory)
    /// one of ours.
    pub(super) fn add(
        &mut self,
        key: u64,
        is_ours: bool,
        memory: RegisteredMemory,
    ) -> Result<u64, c_int> {
        if self.all.len() >= COUNT_MAX {
            return Err(-FI_ENOMEM);
        }
        let key = if is_ours { self.given } else { key };
        if self.all.contains_key(&key) {
            return Err(-FI_ENOKEY);
        }
        self.given += u64::from(is_ours);
        self.all.insert(key, memory);
        Ok(key)
    }

    /// Whether there may be something to read.
    pub(crate) fn is_readable(&self) -> bool {
        !self.all.is_empty()
    }

    /// What is to be read: all of it, or nothing.
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

    /// An answer with its content goes.
    pub(crate) fn hold(&mut self, key: u64) {
        if let Some(memory) = self.all.get_mut(&key) {
            memory.answers += 1;
        }
    }

    /// It has ended.
    pub(crate) fn let_go(&mut self, key: u64) {
        if let Some(memory) = self.all.get_mut(&key) {
            memory.answers = memory.answers.saturating_sub(1);
        }
    }

    /// Nobody is to read it any more.
    pub(super) fn remove(&mut self, key: u64) -> Result<(), c_int> {
        if self.all.get(&key).is_some_and(|memory| memory.answers > 0) {
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
        RegisteredMemory { parts: parts.iter().map(part).collect(), base, readable, answers: 0 }
    }

    #[test]
    fn what_is_registered_is_read_whole_or_not_at_all() {
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
    fn what_is_being_read_is_not_closed() {
        let mut all = Memories::default();
        let [first, second] =
            [1, 2].map(|_| all.add(9, true, memory(&[(4096, 8)], 4096, true)).unwrap());
        assert_ne!(first, second, "keys of ours differ, whatever is asked for");
        assert!(all.find(first, 4097, 7).is_some() && all.find(first, 0, 1).is_none());
        all.hold(first);
        assert_eq!((all.remove(first), all.remove(second)), (Err(-FI_EBUSY), Ok(())));
        all.let_go(first);
        all.let_go(second);
        assert_eq!((all.remove(first), all.find(first, 4096, 1).is_none()), (Ok(()), true));
    }
}
