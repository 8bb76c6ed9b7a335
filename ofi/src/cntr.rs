//! Counters: how many operations of endpoints have ended well and badly.

mod counter;

pub(crate) use counter::OperationCounter;

use crate::abi::{
    CNTR_EVENTS_BYTES, CntrAttr, CntrOps, FI_CLASS_CNTR, FI_CNTR_EVENTS_COMP, FI_EAVAIL, FI_EBUSY,
    FI_EINVAL, FI_ETIMEDOUT, FI_WAIT_NONE, Fid, FidCntr, FidOps, no_call,
};
use crate::cq::NO_QUEUE;
use crate::domain::{DomainObject, DomainShared};
use crate::state::WaitTarget;
use crate::wait::WaitObject;
use crate::{idle, object};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// Completions of one endpoint that a read of a counter takes at most.
const COMPLETIONS_PER_READ: usize = 64;

/// A counter as C sees it.
#[repr(C)]
pub(crate) struct CounterObject {
    cntr: FidCntr<Self>,
    domain: Arc<DomainShared>,
    number: usize,
    /// The program waits for the counter by this.
    wait: WaitObject,
}

// SAFETY: the type begins with its `Fid` in C's layout; no other type has this class.
unsafe impl object::FidObject for CounterObject {
    const CLASS: usize = FI_CLASS_CNTR;
}

static FID: FidOps = FidOps { control, ..object::only_close(close) };

static OPS: CntrOps<CounterObject> = CntrOps {
    size: size_of::<CntrOps<CounterObject>>(),
    read,
    readerr,
    add,
    set,
    wait,
    adderr,
    seterr,
    export_xpu: no_call,
};

impl CounterObject {
    /// The counter's number, if it is of this domain.
    pub(crate) fn number(&self, domain: &Arc<DomainShared>) -> Result<usize, c_int> {
        if Arc::ptr_eq(&self.domain, domain) { Ok(self.number) } else { Err(-FI_EINVAL) }
    }

    /// Moves the messages of the bound endpoints, then reads the counter.
    fn progress_and_read<R>(&self, read: impl FnOnce(&mut OperationCounter) -> R) -> R {
        self.domain.state.with(|state| {
            for index in 0..state.counters.of(self.number).endpoints.len() {
                let endpoint = state.counters.of(self.number).endpoints[index];
                state.progress(endpoint, COMPLETIONS_PER_READ);
                for _ in 0..COMPLETIONS_PER_READ {
                    if state.next_for(endpoint, NO_QUEUE).is_none() {
                        break;
                    }
                }
            }
            let counter = state.counters.of(self.number);
            counter.changed = false;
            read(counter)
        })
    }

    fn change(&self, change: impl FnOnce(&mut OperationCounter)) -> c_int {
        self.domain.state.with(|state| {
            let counter = state.counters.of(self.number);
            change(counter);
            counter.note_change();
        });
        0
    }

    /// Whether the program may poll the counter's descriptor: not if a number has changed since the
    /// program has read it.
    pub(crate) fn try_wait(&self) -> Result<(), c_int> {
        self.wait.may_sleep(self.domain.prepare(WaitTarget::Counter(self.number)))
    }
}

/// `fi_cntr_open`.
///
/// # Safety
/// As libfabric calls it: attributes or null, and room for a pointer.
pub(crate) unsafe extern "C" fn open(
    domain: &DomainObject,
    attr: *mut CntrAttr,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's.
    let attr = unsafe { attr.as_ref() };
    let (events, wait) =
        attr.map_or((FI_CNTR_EVENTS_COMP, FI_WAIT_NONE), |attr| (attr.events, attr.wait_obj));
    let counts_bytes = match events {
        FI_CNTR_EVENTS_COMP => false,
        CNTR_EVENTS_BYTES => true,
        _ => return -FI_EINVAL,
    };
    let domain = domain.share();
    let wait = match WaitObject::new(&domain.domain, wait) {
        Ok(wait) => wait,
        Err(error) => return error,
    };
    let counter = OperationCounter::new(counts_bytes, wait.state());
    let number = domain.state.with(|state| state.counters.insert(counter));
    let cntr = FidCntr { fid: object::fid::<CounterObject>(context, &FID), ops: &OPS };
    // SAFETY: the caller's.
    unsafe { object::hand_out(CounterObject { cntr, domain, number, wait }, to) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let leave = |object: &CounterObject| {
        object.domain.state.with(|state| {
            if !state.counters.of(object.number).endpoints.is_empty() {
                return Err(-FI_EBUSY);
            }
            state.counters.remove(object.number);
            Ok(())
        })
    };
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<CounterObject>(fid, leave) }
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: libfabric's contract: an object of ours, and the argument of this command.
    unsafe {
        match object::find::<CounterObject>(fid) {
            Ok(cntr) => cntr.wait.control(command, argument),
            Err(error) => error,
        }
    }
}

extern "C" fn read(cntr: &CounterObject) -> u64 {
    cntr.progress_and_read(|counter| counter.value)
}

extern "C" fn readerr(cntr: &CounterObject) -> u64 {
    cntr.progress_and_read(|counter| counter.errors)
}

extern "C" fn add(cntr: &CounterObject, more: u64) -> c_int {
    cntr.change(|counter| counter.value = counter.value.wrapping_add(more))
}

extern "C" fn set(cntr: &CounterObject, value: u64) -> c_int {
    cntr.change(|counter| counter.value = value)
}

extern "C" fn adderr(cntr: &CounterObject, more: u64) -> c_int {
    cntr.change(|counter| counter.errors = counter.errors.wrapping_add(more))
}

extern "C" fn seterr(cntr: &CounterObject, value: u64) -> c_int {
    cntr.change(|counter| counter.errors = value)
}

/// Waits until the counter has reached `threshold`, or an operation has failed meanwhile. A program
/// may call it for each counter, also for one that it opened without a wait object.
extern "C" fn wait(cntr: &CounterObject, threshold: u64, timeout_ms: c_int) -> c_int {
    let errors = cntr.progress_and_read(|counter| counter.errors);
    let look = || {
        cntr.progress_and_read(|counter| {
            if counter.value >= threshold {
                Some(0)
            } else {
                (counter.errors != errors).then_some(-FI_EAVAIL)
            }
        })
    };
    let sleep = |left| {
        cntr.domain.sleep(WaitTarget::Counter(cntr.number), left, || false);
    };
    idle::wait_for(timeout_ms, look, sleep).unwrap_or(-FI_ETIMEDOUT)
}
