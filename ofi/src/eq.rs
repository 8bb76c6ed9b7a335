//! Event queues. They are for connections and for operations that end later, and the provider has
//! neither. Programs open an event queue all the same; it stays empty.

use crate::abi::{
    EqAttr, EqOps, FI_CLASS_EQ, FI_EAGAIN, FI_ENOSYS, FI_WAIT_NONE, FI_WAIT_UNSPEC, Fid, FidEq,
    FidOps, no_call,
};
use crate::log::say;
use crate::provider::ProviderObject;
use crate::{idle, object, wait};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// An event queue as C sees it.
#[repr(C)]
pub(crate) struct EventQueueObject {
    eq: FidEq<Self>,
    _fabric: Arc<()>,
}

// SAFETY: the type begins with its `Fid` in C's layout; no other type has this class.
unsafe impl object::FidObject for EventQueueObject {
    const CLASS: usize = FI_CLASS_EQ;
}

static FID: FidOps = object::only_close(close);

static OPS: EqOps<EventQueueObject> = EqOps {
    size: size_of::<EqOps<EventQueueObject>>(),
    read,
    readerr: nothing,
    write: no_call,
    sread,
    strerror,
};

/// `fi_eq_open`.
///
/// # Safety
/// As libfabric calls it: attributes or null, and room for a pointer.
pub(crate) unsafe extern "C" fn open(
    fabric: &ProviderObject,
    attr: *mut EqAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let wait = unsafe { attr.as_ref() }.map_or(FI_WAIT_NONE, |attr| attr.wait_obj);
    if !matches!(wait, FI_WAIT_NONE | FI_WAIT_UNSPEC) {
        say!("an event queue is refused: {} is not offered for them", wait::name(wait));
        return -FI_ENOSYS;
    }
    let eq = FidEq { fid: object::fid::<EventQueueObject>(context, &FID), ops: &OPS };
    // SAFETY: the caller's.
    unsafe { object::hand_out(EventQueueObject { eq, _fabric: fabric.hold() }, to) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<EventQueueObject>(fid, |_| Ok(())) }
}

/// There is no event, and no error either.
extern "C" fn nothing() -> isize {
    -(FI_EAGAIN as isize)
}

extern "C" fn read(_: &EventQueueObject, _: *mut u32, _: *mut c_void, _: usize, _: u64) -> isize {
    nothing()
}

extern "C" fn sread(
    _: &EventQueueObject,
    _: *mut u32,
    _: *mut c_void,
    _: usize,
    timeout_ms: c_int,
    _: u64,
) -> isize {
    // Nothing wakes the thread, since there are no events.
    let sleep = |left: Option<Duration>| thread::sleep(left.unwrap_or(Duration::MAX));
    idle::wait_for(timeout_ms, || None::<()>, sleep);
    nothing()
}

unsafe extern "C" fn strerror(
    _: &EventQueueObject,
    _: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    bytes: usize,
) -> *const c_char {
    // SAFETY: libfabric's contract: room for so many bytes, or null.
    unsafe { object::explain(c"no event fails here", buffer, bytes) }
}
