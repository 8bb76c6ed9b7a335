//! Registered memory. Nothing has to be registered here, and nobody can read what is: a program
//! that registers all the same gets a key that it may keep.

use crate::abi::{
    FI_CLASS_MR, FI_EINVAL, FI_ENOSYS, FI_HMEM_SYSTEM, Fid, FidMr, FidOps, IoVec, MrAttr, MrOps,
};
use crate::{domain, object};
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

/// Registered memory.
#[repr(C)]
pub(crate) struct Object {
    mr: FidMr,
    _domain: Arc<domain::Shared>,
}

// SAFETY: it begins with its `Fid`, as C has it; no other type says this class.
unsafe impl object::Object for Object {
    const CLASS: usize = FI_CLASS_MR;
}

static FID: FidOps = object::only_close(close);

/// A domain's table.
pub(crate) static OPS: MrOps = MrOps { size: size_of::<MrOps>(), reg, regv, regattr };

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<Object>(fid, |_| Ok(())) }
}

/// # Safety
/// A domain of ours, and room for a pointer.
unsafe fn register(domain: *mut Fid, key: u64, to: *mut *mut Fid, context: *mut c_void) -> c_int {
    // SAFETY: the caller's.
    let domain = match unsafe { object::find::<domain::Object>(domain) } {
        Ok(domain) => domain,
        Err(error) => return error,
    };
    let fid = object::fid::<Object>(context, &FID);
    let mr = FidMr { fid, mem_desc: ptr::null_mut(), key };
    // SAFETY: the caller's.
    unsafe { object::hand_out(Object { mr, _domain: domain.share() }, to) }
}

unsafe extern "C" fn reg(
    domain: *mut Fid,
    _buffer: *const c_void,
    _bytes: usize,
    _access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's contract.
    unsafe { register(domain, key, to, context) }
}

unsafe extern "C" fn regv(
    domain: *mut Fid,
    _parts: *const IoVec,
    _count: usize,
    _access: u64,
    _offset: u64,
    key: u64,
    _flags: u64,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's contract.
    unsafe { register(domain, key, to, context) }
}

unsafe extern "C" fn regattr(
    domain: *mut Fid,
    attr: *const MrAttr,
    _flags: u64,
    to: *mut *mut Fid,
) -> c_int {
    // SAFETY: libfabric's contract: attributes, or null by mistake.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return -FI_EINVAL };
    // Other memory than the machine's own was not asked for by a capability: refused.
    if attr.iface != FI_HMEM_SYSTEM {
        return -FI_ENOSYS;
    }
    // SAFETY: libfabric's contract.
    unsafe { register(domain, attr.requested_key, to, attr.context) }
}
