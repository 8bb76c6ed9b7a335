//! The open provider (`fi_fabric`), in which a program opens domains and event queues.

mod opened;

pub(crate) use opened::ProviderObject;

use crate::abi::{
    FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_EBUSY, FI_EINVAL, FI_ENOSYS, FabricAttr, FabricOps,
    Fid, FidFabric, FidOps, Info, no_call,
};
use crate::{cntr, cq, domain, eq, object};
use std::ffi::{c_int, c_void};

static FID: FidOps = object::only_close(close);

static OPS: FabricOps<ProviderObject> = FabricOps {
    size: size_of::<FabricOps<ProviderObject>>(),
    domain,
    passive_ep: no_call,
    eq_open: eq::open,
    wait_open: no_call,
    trywait,
    domain2,
};

/// `fi_fabric`.
///
/// # Safety
/// As libfabric calls it: attributes of its own, and room for a pointer.
pub(crate) unsafe extern "C" fn open(
    attr: *mut FabricAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let Some(attr) = (unsafe { attr.as_ref() }) else { return -FI_EINVAL };
    let fabric = FidFabric {
        fid: object::fid::<ProviderObject>(context, &FID),
        ops: &OPS,
        api_version: attr.api_version,
    };
    // SAFETY: the caller's.
    unsafe { object::hand_out(ProviderObject::new(fabric), to) }
}

/// Whether the program may poll the descriptors of these queues and counters. If so, each event
/// from now on makes a descriptor readable.
unsafe extern "C" fn trywait(_: &ProviderObject, fids: *mut *mut Fid, count: c_int) -> c_int {
    let Ok(count) = usize::try_from(count) else { return -FI_EINVAL };
    for index in 0..count {
        // SAFETY: libfabric's contract: so many objects of ours.
        let fid = unsafe { fids.add(index).read() };
        // SAFETY: likewise; every object begins with its `Fid`.
        let class = unsafe { fid.as_ref() }.map(|fid| fid.fclass);
        // SAFETY: likewise.
        let ready = unsafe {
            match class {
                Some(FI_CLASS_CQ) => {
                    object::find::<cq::QueueObject>(fid).and_then(cq::QueueObject::try_wait)
                }
                Some(FI_CLASS_CNTR) => {
                    object::find::<cntr::CounterObject>(fid).and_then(cntr::CounterObject::try_wait)
                }
                // An event queue never has events.
                Some(FI_CLASS_EQ) => Ok(()),
                _ => Err(-FI_EINVAL),
            }
        };
        if let Err(error) = ready {
            return error;
        }
    }
    0
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let leave = |object: &ProviderObject| if object.is_unused() { Ok(()) } else { Err(-FI_EBUSY) };
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<ProviderObject>(fid, leave) }
}

unsafe extern "C" fn domain(
    fabric: &ProviderObject,
    info: *mut Info,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: libfabric's contract: an info of its own or of ours, and room for a pointer.
    unsafe { domain::open(fabric, info, to, context) }
}

/// The same with flags, of which none is offered.
unsafe extern "C" fn domain2(
    fabric: &ProviderObject,
    info: *mut Info,
    to: *mut *mut Fid,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        return -FI_ENOSYS;
    }
    // SAFETY: as above.
    unsafe { domain::open(fabric, info, to, context) }
}
