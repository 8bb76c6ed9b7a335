//! Registered memory. Messages need no registered memory. Memory that is registered for reading
//! (`FI_REMOTE_READ`) can be read by processes of the same domain, by its key
//! (`endpoint/remote.rs`).

mod memories;

pub(crate) use memories::Memories;

use crate::abi::{
    FI_CLASS_MR, FI_EINVAL, FI_ENOSYS, FI_HMEM_SYSTEM, FI_REMOTE_READ, Fid, FidMr, FidOps, IoVec,
    MrAttr, MrOps,
};
use crate::domain::{DomainObject, DomainShared};
use crate::object;
use fabric::{MemoryPiece, PARTS_MAX};
use memories::RegisteredMemory;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a close waits for reads of the memory to end. A reader may report the end of its read
/// to its program first, and find room to tell this process later.
const READERS_WAIT_MAX: Duration = Duration::from_secs(2);

/// Registered memory as C sees it.
#[repr(C)]
pub(crate) struct MemoryObject {
    mr: FidMr,
    domain: Arc<DomainShared>,
}

// SAFETY: the type begins with its `Fid` in C's layout; no other type has this class.
unsafe impl object::FidObject for MemoryObject {
    const CLASS: usize = FI_CLASS_MR;
}

static FID: FidOps = object::only_close(close);

/// The table of a domain for registering memory.
pub(crate) static OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let leave = |object: &MemoryObject| {
        let MemoryObject { mr, domain } = object;
        let end = Instant::now() + READERS_WAIT_MAX;
        loop {
            let closed = domain.state.with(|state| {
                let closed = state.memory.remove(mr.key);
                if closed.is_err() {
                    state.progress_all();
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

/// Registers memory in a domain.
///
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
    let domain = match unsafe { object::find::<DomainObject>(domain) } {
        Ok(domain) => domain.share(),
        Err(error) => return error,
    };
    let part = |it: &IoVec| MemoryPiece { start: it.iov_base.cast(), bytes: it.iov_len };
    let parts: Vec<_> = parts.iter().map(part).collect();
    let is_ours = domain.has_virtual_addresses;
    let start = parts.first().map_or(0, |part| part.start.addr() as u64);
    let base = if is_ours { start } else { 0 };
    let memory =
        RegisteredMemory { parts, base, readable: access & FI_REMOTE_READ != 0, responses: 0 };
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

/// The pieces of memory of a call. None: there are too many, or the pointer is null.
///
/// # Safety
/// There are `count` pieces at the pointer, for as long as the result is used.
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
    // Memory of other devices needs a capability (`FI_HMEM`) that is not offered.
    if attr.iface != FI_HMEM_SYSTEM {
        return -FI_ENOSYS;
    }
    // With flags of 2.x the field holds something else than pieces.
    let count = if flags == 0 { attr.iov_count } else { 0 };
    // SAFETY: libfabric's contract.
    unsafe {
        let Some(parts) = pieces(attr.mr_iov, count) else { return -FI_EINVAL };
        register(domain, parts, attr.access, attr.requested_key, to, attr.context)
    }
}
