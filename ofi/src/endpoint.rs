//! Endpoints. A program opens an endpoint in a domain, binds it to an address vector, queues and
//! counters, enables it, and then sends and receives.

mod calls;
pub(crate) mod failure;
mod opened;
mod operations;
mod pieces;
mod read_calls;
mod refused;
mod remote;
mod traffic;
mod unreported;

use opened::EndpointObject;
pub(crate) use traffic::{EndedOperation, EndpointTraffic};
use traffic::{EndpointSide, SEND_FLAGS};

use crate::abi::{
    CmOps, EpOps, FI_CLASS_AV, FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_DIRECTED_RECV,
    FI_EBADFLAGS, FI_EINVAL, FI_ENABLE, FI_ENOAV, FI_ENOCQ, FI_ENODATA, FI_ENOPROTOOPT, FI_ENOSYS,
    FI_EOPBADSTATE, FI_EP_RDM, FI_ETOOSMALL, FI_GETOPSFLAG, FI_OPT_CM_DATA_SIZE, FI_OPT_ENDPOINT,
    FI_OPT_MIN_MULTI_RECV, FI_READ, FI_RECV, FI_SELECTIVE_COMPLETION, FI_SEND, FI_SETOPSFLAG, Fid,
    FidEp, FidOps, Info, TAGGED_DIRECTED_RECV, no_call,
};
use crate::cntr::OperationCounter;
use crate::domain::DomainObject;
use crate::object::{self, code, outcome};
use crate::state::WaitTarget;
use crate::{av, cntr, cq};
use fabric::{EndpointOptions, NoDoorbell};
use std::ffi::{c_int, c_void};

/// The variable that bounds the memory of messages that wait for room, in bytes.
const WAITING_VARIABLE: &str = "VRIO_FI_WAITING_BYTES";
/// A buffer for several messages is given back when it has less room than this, unless the program
/// sets another limit.
const MULTI_BYTES_MIN: usize = 64;

static FID: FidOps = FidOps {
    size: size_of::<FidOps>(),
    close,
    bind,
    control,
    ops_open: no_call,
    tostr: no_call,
    ops_set: no_call,
};

static OPS: EpOps<EndpointObject> = EpOps {
    size: size_of::<EpOps<EndpointObject>>(),
    cancel,
    getopt,
    setopt,
    tx_ctx: no_call,
    rx_ctx: no_call,
    rx_size_left: no_call,
    tx_size_left: no_call,
    export_xpu: no_call,
};

static CM: CmOps<EndpointObject> = CmOps {
    size: size_of::<CmOps<EndpointObject>>(),
    setname: no_call,
    getname,
    getpeer: no_call,
    connect: no_call,
    listen: no_call,
    accept: no_call,
    reject: no_call,
    shutdown: no_call,
    join: no_call,
};

/// The options of an endpoint. The environment may set the memory of messages that wait for room.
fn options(waiting_bytes: Option<&str>) -> Result<EndpointOptions, String> {
    let usual = EndpointOptions::default();
    let Some(wanted) = waiting_bytes else { return Ok(usual) };
    match wanted.parse() {
        Ok(waiting_bytes_max) => Ok(EndpointOptions { waiting_bytes_max, ..usual }),
        Err(_) => Err(format!("{WAITING_VARIABLE}={wanted:?} is not a number of bytes")),
    }
}

/// `fi_endpoint`: takes a slot of the domain.
///
/// # Safety
/// An info (or null by mistake), and room for a pointer.
pub(crate) unsafe extern "C" fn open(
    domain: &DomainObject,
    info: *mut Info,
    to: *mut *mut Fid,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's; an info's attributes are there or null.
    let (info, tx, rx, ep) = unsafe {
        let Some(info) = info.as_ref() else { return -FI_EINVAL };
        (info, info.tx_attr.as_ref(), info.rx_attr.as_ref(), info.ep_attr.as_ref())
    };
    if ep.is_some_and(|ep| ep.r#type != FI_EP_RDM) {
        return -FI_EINVAL;
    }
    let domain = domain.share();
    let options = match options(std::env::var(WAITING_VARIABLE).ok().as_deref()) {
        Ok(options) => options,
        Err(refused) => {
            eprintln!("libvrio-fi.so: {refused}");
            return -FI_EINVAL;
        }
    };
    let endpoint = match domain.domain.endpoint(options) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            eprintln!("libvrio-fi.so: {error}");
            return -FI_ENODATA;
        }
    };
    let directed = info.caps & FI_DIRECTED_RECV != 0;
    let traffic = EndpointTraffic {
        endpoint,
        vector: None,
        enabled: false,
        directed: [directed, directed || info.caps & TAGGED_DIRECTED_RECV != 0],
        send: EndpointSide { flags: tx.map_or(0, |tx| tx.op_flags), ..EndpointSide::default() },
        receive: EndpointSide { flags: rx.map_or(0, |rx| rx.op_flags), ..EndpointSide::default() },
        multi_min_bytes: MULTI_BYTES_MIN,
        unreported: unreported::UnreportedOperations::default(),
        remote_reads: remote::RemoteReads::new(),
        is_waited_for: false,
    };
    let number = domain.state.with(|state| state.endpoints.insert(traffic));
    let ep = FidEp {
        fid: object::fid::<EndpointObject>(context, &FID),
        ops: &OPS,
        cm: &CM,
        msg: &calls::untagged::OPS,
        rma: &read_calls::OPS,
        tagged: &calls::tagged::OPS,
        atomic: &refused::ATOMIC,
        collective: &refused::COLLECTIVE,
    };
    // SAFETY: the caller's.
    unsafe { object::hand_out(EndpointObject { ep, domain, number }, to) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    let leave = |object: &EndpointObject| {
        let number = object.number;
        let traffic = object.domain.state.with(|state| {
            let traffic = state.endpoints.remove(number)?;
            if let Some(counter) = traffic.remote_reads.counter {
                let counter = state.counters.of(counter);
                counter.endpoints.retain(|&bound| bound != number);
                counter.wait_state.forget(&traffic.endpoint);
            }
            for side in [&traffic.send, &traffic.receive] {
                if let Some(queue) = side.queue {
                    let queue = state.queues.of(queue);
                    queue.endpoints.retain(|&bound| bound != number);
                    queue.wait_state.forget(&traffic.endpoint);
                }
                if let Some(counter) = side.counter {
                    let counter = state.counters.of(counter);
                    counter.endpoints.retain(|&bound| bound != number);
                    counter.wait_state.forget(&traffic.endpoint);
                }
            }
            Some(traffic)
        });
        // The drop waits for room for the last messages, so it is outside of the gate.
        drop(traffic);
        Ok(())
    };
    // SAFETY: libfabric's contract: an object of ours, closed once.
    unsafe { object::close::<EndpointObject>(fid, leave) }
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, flags: u64) -> c_int {
    // SAFETY: libfabric's contract: objects of ours.
    code(unsafe { object::find::<EndpointObject>(fid) }.and_then(|object| {
        // SAFETY: likewise; every object begins with its `Fid`.
        let class = unsafe { other.as_ref() }.ok_or(-FI_EINVAL)?.fclass;
        // SAFETY: likewise.
        unsafe {
            match class {
                FI_CLASS_AV => object.bind_vector(object::find::<av::AvObject>(other)?),
                FI_CLASS_CQ => object.bind_queue(object::find::<cq::QueueObject>(other)?, flags),
                FI_CLASS_CNTR => {
                    object.bind_counter(object::find::<cntr::CounterObject>(other)?, flags)
                }
                // An endpoint has no events for an event queue.
                FI_CLASS_EQ => Ok(()),
                _ => Err(-FI_EINVAL),
            }
        }
    }))
}

/// The halves of an endpoint that a binding's flags name.
fn halves(traffic: &mut EndpointTraffic, flags: u64) -> impl Iterator<Item = &mut EndpointSide> {
    let send = (flags & FI_SEND != 0).then_some(&mut traffic.send);
    let receive = (flags & FI_RECV != 0).then_some(&mut traffic.receive);
    [send, receive].into_iter().flatten()
}

impl EndpointObject {
    /// Gets the endpoint a doorbell, if it has none and the object that it will be bound to needs
    /// one. Returns why it cannot have one. Waits for the node, without keeping other threads
    /// waiting.
    fn ask_for_doorbell(&self, to: WaitTarget) -> Option<NoDoorbell> {
        let doorbell_request = self.domain.state.with(|state| {
            let wants = state.wants_doorbells(to);
            wants.then(|| state.endpoints.of(self.number).endpoint.doorbell_request()).flatten()
        });
        match doorbell_request?.ask() {
            Ok(doorbell) => {
                self.domain
                    .state
                    .with(|state| state.endpoints.of(self.number).endpoint.set_doorbell(doorbell));
                None
            }
            Err(refused) => Some(refused),
        }
    }

    fn bind_vector(&self, vector: &av::AvObject) -> Result<(), c_int> {
        let vector = vector.number(&self.domain)?;
        self.domain.state.with(|state| state.endpoints.of(self.number).vector = Some(vector));
        Ok(())
    }

    fn bind_queue(&self, queue: &cq::QueueObject, flags: u64) -> Result<(), c_int> {
        let queue = queue.number(&self.domain)?;
        if flags & !(FI_SEND | FI_RECV | FI_SELECTIVE_COMPLETION) != 0 {
            return Err(-FI_EBADFLAGS);
        }
        let refused = self.ask_for_doorbell(WaitTarget::Queue(queue));
        self.domain.state.with(|state| {
            let traffic = state.endpoints.of(self.number);
            if traffic.enabled || halves(traffic, flags).any(|side| side.queue.is_some()) {
                return Err(-FI_EOPBADSTATE);
            }
            state.queues.of(queue).wait_state.watch(&traffic.endpoint, refused.as_ref())?;
            for side in halves(traffic, flags) {
                side.queue = Some(queue);
                side.selective = flags & FI_SELECTIVE_COMPLETION != 0;
            }
            let has_sidecores = traffic.endpoint.has_gateways();
            let queue = state.queues.of(queue);
            if has_sidecores {
                queue.idle.note_sidecores();
            }
            add_endpoint(&mut queue.endpoints, self.number);
            // A thread that sleeps already has not asked this endpoint to be woken: it must look.
            queue.wait_state.wake();
            Ok(())
        })
    }

    /// Binds a counter. Its other flags (writes, operations of other processes) name operations
    /// that do not happen here, so they are not refused.
    fn bind_counter(&self, counter: &cntr::CounterObject, flags: u64) -> Result<(), c_int> {
        let counter = counter.number(&self.domain)?;
        let counts = flags & (FI_SEND | FI_RECV | FI_READ) != 0;
        let refused = counts.then(|| self.ask_for_doorbell(WaitTarget::Counter(counter))).flatten();
        self.domain.state.with(|state| {
            let traffic = state.endpoints.of(self.number);
            let has_reads = flags & FI_READ != 0 && traffic.remote_reads.counter.is_some();
            let is_bound = has_reads || halves(traffic, flags).any(|side| side.counter.is_some());
            if traffic.enabled || is_bound {
                return Err(-FI_EOPBADSTATE);
            }
            if !counts {
                return Ok(());
            }
            let OperationCounter { endpoints, wait_state, .. } = state.counters.of(counter);
            wait_state.watch(&traffic.endpoint, refused.as_ref())?;
            for side in halves(traffic, flags) {
                side.counter = Some(counter);
            }
            if flags & FI_READ != 0 {
                traffic.remote_reads.counter = Some(counter);
            }
            add_endpoint(endpoints, self.number);
            wait_state.wake();
            Ok(())
        })
    }

    fn enable(&self) -> Result<(), c_int> {
        self.domain.state.with(|state| {
            let traffic = state.endpoints.of(self.number);
            traffic.vector.ok_or(-FI_ENOAV)?;
            for side in [&traffic.send, &traffic.receive] {
                side.queue.or(side.counter).ok_or(-FI_ENOCQ)?;
            }
            traffic.enabled = true;
            traffic.receive_requests();
            Ok(())
        })
    }

    /// Reads or changes the flags of calls that have no argument for flags.
    ///
    /// # Safety
    /// `flags` is null, or a word that may be written.
    unsafe fn flags(&self, flags: *mut u64, change: bool) -> Result<(), c_int> {
        // SAFETY: the caller's.
        let flags = unsafe { flags.as_mut() }.ok_or(-FI_EINVAL)?;
        self.domain.state.with(|state| {
            let traffic = state.endpoints.of(self.number);
            let side = match (*flags & FI_SEND != 0, *flags & FI_RECV != 0) {
                (true, false) => &mut traffic.send,
                (false, true) => &mut traffic.receive,
                _ => return Err(-FI_EINVAL),
            };
            if change {
                let wanted = *flags & !(FI_SEND | FI_RECV);
                if wanted & !SEND_FLAGS != 0 {
                    return Err(-FI_EBADFLAGS);
                }
                side.flags = wanted;
            } else {
                *flags = side.flags;
            }
            Ok(())
        })
    }
}

/// Adds an endpoint to those that are bound, if it is not there yet.
fn add_endpoint(endpoints: &mut Vec<usize>, number: usize) {
    if !endpoints.contains(&number) {
        endpoints.push(number);
    }
}

unsafe extern "C" fn control(fid: *mut Fid, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: libfabric's contract: an object of ours, and the argument of this command.
    unsafe {
        code(object::find::<EndpointObject>(fid).and_then(|object| match command {
            FI_ENABLE => object.enable(),
            FI_GETOPSFLAG => object.flags(argument.cast(), false),
            FI_SETOPSFLAG => object.flags(argument.cast(), true),
            _ => Err(-FI_ENOSYS),
        }))
    }
}

extern "C" fn cancel(endpoint: &EndpointObject, context: *mut c_void) -> isize {
    let context = context.addr() as u64;
    let EndpointObject { domain, number, .. } = endpoint;
    outcome(domain.state.with(|state| {
        let found = state.endpoints.of(*number).cancel(context);
        state.wake(*number);
        found
    }))
}

unsafe extern "C" fn getname(
    endpoint: &EndpointObject,
    to: *mut c_void,
    bytes: *mut usize,
) -> c_int {
    let address =
        endpoint.domain.state.with(|state| state.endpoints.of(endpoint.number).endpoint.address());
    // SAFETY: libfabric's contract: a length, and room for so much.
    let whole = unsafe { av::write_address(address, to, bytes) };
    if whole { 0 } else { -FI_ETOOSMALL }
}

unsafe extern "C" fn getopt(
    endpoint: &EndpointObject,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    bytes: *mut usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT {
        return -FI_ENOPROTOOPT;
    }
    let value = match name {
        FI_OPT_MIN_MULTI_RECV => {
            endpoint.domain.state.with(|state| state.endpoints.of(endpoint.number).multi_min_bytes)
        }
        FI_OPT_CM_DATA_SIZE => 0,
        _ => return -FI_ENOPROTOOPT,
    };
    // SAFETY: libfabric's contract: a length, and room for so much.
    unsafe {
        if bytes.read() < size_of::<usize>() {
            return -FI_ETOOSMALL;
        }
        to.cast::<usize>().write_unaligned(value);
        bytes.write(size_of::<usize>());
    }
    0
}

unsafe extern "C" fn setopt(
    endpoint: &EndpointObject,
    level: c_int,
    name: c_int,
    from: *const c_void,
    bytes: usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV {
        return -FI_ENOPROTOOPT;
    }
    if bytes != size_of::<usize>() || from.is_null() {
        return -FI_EINVAL;
    }
    // SAFETY: libfabric's contract: so many bytes.
    let value = unsafe { from.cast::<usize>().read_unaligned() };
    let EndpointObject { domain, number, .. } = endpoint;
    domain.state.with(|state| state.endpoints.of(*number).multi_min_bytes = value);
    0
}
