//! The calls of a program on a completion queue.

use super::{CompletionQueue, QueueObject, entry_bytes};
use crate::abi::{
    CqAttr, CqErrEntry, CqOps, FI_EAGAIN, FI_EBUSY, FI_EINVAL, FI_WAIT_NONE, Fid, FidCq, FidOps,
    no_call,
};
use crate::domain::DomainObject;
use crate::endpoint::failure;
use crate::object::no_bind;
use crate::state::WaitTarget;
use crate::wait::{WaitObject, WaitStep};
use crate::{idle, object};
use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

static FID: FidOps = FidOps {
    size: size_of::<FidOps>(),
    close,
    bind: no_bind,
    control,
    ops_open: no_call,
    tostr: no_call,
    ops_set: no_call,
};

static OPS: CqOps<QueueObject> = CqOps {
    size: size_of::<CqOps<QueueObject>>(),
    read,
    readfrom,
    readerr,
    sread,
    sreadfrom,
    signal,
    strerror,
    export_xpu: no_call,
};

/// `fi_cq_open`.
///
/// # Safety
/// As libfabric calls it: attributes that may be written or null, and room for a pointer.
pub(crate) unsafe extern "C" fn open(
    domain: &DomainObject,
    attr: *mut CqAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let attr = unsafe { attr.as_ref() };
    let (format, wait) = attr.map_or((0, FI_WAIT_NONE), |attr| (attr.format, attr.wait_obj));
    let Some(entry_bytes) = entry_bytes(format) else { return -FI_EINVAL };
    let domain = domain.share();
    let wait = match WaitObject::new(&domain.domain, wait) {
        Ok(wait) => wait,
        Err(error) => return error,
    };
    let number = domain.state.with(|state| state.queues.insert(CompletionQueue::new(wait.state())));
    let cq = FidCq { fid: object::fid::<QueueObject>(context, &FID), ops: &OPS };
    let queue =
        QueueObject { cq, domain, number, entry_bytes, wait, signalled: AtomicBool::new(false) };
    // SAFETY: the caller's.
    unsafe { object::hand_out(queue, to) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let leave = |object: &QueueObject| {
        object.domain.state.with(|state| {
            if !state.queues.of(object.number).endpoints.is_empty() {
                return Err(-FI_EBUSY);
            }
            state.queues.remove(object.number);
            Ok(())
        })
    };
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<QueueObject>(fid, leave) }
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: libfabric's contract: an object of ours.
    match unsafe { object::find::<QueueObject>(fid) } {
        // SAFETY: libfabric's contract: the argument of this command.
        Ok(queue) => unsafe { queue.wait.control(command, argument) },
        Err(error) => error,
    }
}

unsafe extern "C" fn read(queue: &QueueObject, to: *mut c_void, count: usize) -> isize {
    // SAFETY: libfabric's contract: room for so many entries.
    unsafe { queue.read(to.cast(), count, ptr::null_mut()) }
}

unsafe extern "C" fn readfrom(
    queue: &QueueObject,
    to: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    // SAFETY: libfabric's contract: room for so many entries and numbers.
    unsafe { queue.read(to.cast(), count, sources) }
}

unsafe extern "C" fn readerr(queue: &QueueObject, to: *mut CqErrEntry, _flags: u64) -> isize {
    // SAFETY: libfabric's contract: an entry of the program's version.
    unsafe { queue.read_error(to) }
}

unsafe extern "C" fn sread(
    queue: &QueueObject,
    to: *mut c_void,
    count: usize,
    condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    // SAFETY: libfabric's contract, as for `sreadfrom`.
    unsafe { sreadfrom(queue, to, count, ptr::null_mut(), condition, timeout_ms) }
}

/// The condition is a hint that is not used: the wait ends with the first entry.
unsafe extern "C" fn sreadfrom(
    queue: &QueueObject,
    to: *mut c_void,
    count: usize,
    sources: *mut u64,
    _condition: *const c_void,
    timeout_ms: c_int,
) -> isize {
    const NOTHING: isize = -(FI_EAGAIN as isize);
    if !queue.wait.is_one() {
        return -(FI_EINVAL as isize);
    }
    let is_refused = Cell::new(false);
    let look = || {
        // SAFETY: libfabric's contract: room for so many entries and numbers.
        let got = unsafe { queue.read(to.cast(), count, sources) };
        let signalled = queue.signalled.swap(false, Ordering::AcqRel);
        // A refused message can be sent again now. The program learns that only from this return.
        (got != NOTHING || signalled || is_refused.get()).then_some(got)
    };
    let sleep = |left| {
        let is_signalled = || queue.signalled.load(Ordering::Acquire);
        let step = queue.domain.sleep(WaitTarget::Queue(queue.number), left, is_signalled);
        is_refused.set(step == WaitStep::Resend);
    };
    idle::wait_for(timeout_ms, look, sleep).unwrap_or(NOTHING)
}

extern "C" fn signal(queue: &QueueObject) -> c_int {
    queue.signalled.store(true, Ordering::Release);
    queue.wait.signal();
    0
}

unsafe extern "C" fn strerror(
    _: &QueueObject,
    own: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    bytes: usize,
) -> *const c_char {
    // SAFETY: libfabric's contract: room for so many bytes, or null.
    unsafe { object::explain(failure::text(own), buffer, bytes) }
}
