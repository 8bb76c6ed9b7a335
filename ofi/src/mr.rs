//! Registered memory. For messages nothing has to be registered. What is registered so that others
//! may read it (`FI_REMOTE_READ`), processes of the same domain can read by its key
//! (`endpoint/remote.rs`).

use crate::abi::{
    FI_CLASS_MR, FI_EBUSY, FI_EINVAL, FI_ENOKEY, FI_ENOMEM, FI_ENOSYS, FI_HMEM_SYSTEM,
    FI_REMOTE_READ, Fid, FidMr, FidOps, IoVec, MrAttr, MrOps,
};
use crate::getinfo::COUNT_MAX;
use crate::{domain, object};
use fabric::{MemoryPiece, PARTS_MAX};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long memory that is being read is waited for when it is closed. Its reader may have told
/// its program before it found room to tell this process.
const READERS_TIME: Duration = Duration::from_secs(2);

/// Registered memory as C has it.
#[repr(C)]
pub(crate) struct MemoryObject {
    mr: FidMr,
    domain: Arc<domain::DomainShared>,
}

// SAFETY: it begins with its `Fid`, as C has it; no other type says this class.
unsafe impl object::Object for MemoryObject {
    const CLASS: usize = FI_CLASS_MR;
}

static FID: FidOps = object::only_close(close);

/// A domain's table.
pub(crate) static OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

/// All that a process has registered, by key.
#[derive(Debug, Default)]
pub(crate) struct Memories {
    all: HashMap<u64, RegisteredMemory>,
    /// Keys that were given by us.
    given: u64,
}

#[derive(Debug)]
struct RegisteredMemory {
    parts: Vec<MemoryPiece>,
    /// What its first byte is called by readers.
    base: u64,
    /// Others may read it.
    readable: bool,
    /// Answers with its content that have not ended.
    answers: usize,
}

impl Memories {
    /// Registers memory under a key: the program's, or (where addresses are those of its memory)
    /// one of ours.
    fn add(&mut self, key: u64, is_ours: bool, memory: RegisteredMemory) -> Result<u64, c_int> {
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
    fn remove(&mut self, key: u64) -> Result<(), c_int> {
        if self.all.get(&key).is_some_and(|memory| memory.answers > 0) {
            return Err(-FI_EBUSY);
        }
        self.all.remove(&key);
        Ok(())
    }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let leave = |object: &MemoryObject| {
        let MemoryObject { mr, domain } = object;
        let end = Instant::now() + READERS_TIME;
        loop {
            let closed = domain.state.with(|state| {
                let closed = state.memory.remove(mr.key);
                if closed.is_err() {
                    state.move_all();
                }
                closed
            });
            if closed.is_ok() || Instant::now() > end {
                return closed;
            }
            std::thread::yield_now();
        }
    };
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<MemoryObject>(fid, leave) }
}

/// # Safety
/// A domain of ours, and room for a pointer; the memory stays readable until it is closed.
unsafe fn register(
    domain: *mut Fid,
    parts: &[IoVec],
    access: u64,
    key: u64,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let domain = match unsafe { object::find::<domain::DomainObject>(domain) } {
        Ok(domain) => domain.share(),
        Err(error) => return error,
    };
    let part = |it: &IoVec| MemoryPiece { start: it.iov_base.cast(), bytes: it.iov_len };
    let parts: Vec<_> = parts.iter().map(part).collect();
    let is_ours = domain.has_virtual_addresses;
    let start = parts.first().map_or(0, |part| part.start.addr() as u64);
    let base = if is_ours { start } else { 0 };
    let memory =
        RegisteredMemory { parts, base, readable: access & FI_REMOTE_READ != 0, answers: 0 };
    match domain.state.with(|state| state.memory.add(key, is_ours, memory)) {
        Ok(key) => {
            let fid = object::fid::<MemoryObject>(context, &FID);
            let mr = FidMr { fid, mem_desc: ptr::null_mut(), key };
            // SAFETY: the caller's.
            unsafe { object::hand_out(MemoryObject { mr, domain }, to) }
        }
        Err(error) => error,
    }
}

/// The pieces of a call; none if they are too many.
///
/// # Safety
/// There are so many, for as long as they are looked at.
unsafe fn pieces<'a>(parts: *const IoVec, count: usize) -> Option<&'a [IoVec]> {
    match count {
        0 => Some(&[]),
        1..=PARTS_MAX if !parts.is_null() => {
            // SAFETY: the caller's.
            Some(unsafe { std::slice::from_raw_parts(parts, count) })
        }
        _ => None,
    }
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    buffer: *const c_void,
    bytes: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    let part = IoVec { iov_base: buffer.cast_mut(), iov_len: bytes };
    // SAFETY: libfabric's contract.
    unsafe { register(domain, &[part], access, key, to, context) }
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    parts: *const IoVec,
    count: usize,
    access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's contract.
    unsafe {
        let Some(parts) = pieces(parts, count) else { return -FI_EINVAL };
        register(domain, parts, access, key, to, context)
    }
}

unsafe extern "C" fn regattr(
    domain: *mut Fid,
    attr: *const MrAttr,
    flags: u64,
    to: *mut *mut Fid,
) -> c_int {
    // SAFETY: libfabric's contract: attributes, or null by mistake.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return -FI_EINVAL };
    // Other memory than the machine's own was not asked for by a capability: refused.
    if attr.iface != FI_HMEM_SYSTEM {
        return -FI_ENOSYS;
    }
    // Flags of 2.x say that the pieces are something else.
    let count = if flags == 0 { attr.iov_count } else { 0 };
    // SAFETY: libfabric's contract.
    unsafe {
        let Some(parts) = pieces(attr.mr_iov, count) else { return -FI_EINVAL };
        register(domain, parts, attr.access, attr.requested_key, to, attr.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
