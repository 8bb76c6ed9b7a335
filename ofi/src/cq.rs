//! Completion queues. Messages move when the program reads a queue. MPI does little else while it
//! waits, so a read that finds nothing does no more than look at the bound endpoints.

mod calls;
mod event;
mod queue;

pub(crate) use calls::open;
pub(crate) use event::{OperationFailure, QueueEvent};
pub(crate) use queue::{CompletionQueue, NO_QUEUE};

use crate::abi::{
    CqEntry, CqErrEntry, FI_ADDR_NOTAVAIL, FI_CLASS_CQ, FI_CQ_FORMAT_CONTEXT, FI_CQ_FORMAT_DATA,
    FI_CQ_FORMAT_MSG, FI_CQ_FORMAT_TAGGED, FI_CQ_FORMAT_UNSPEC, FI_EAGAIN, FI_EAVAIL, FI_EINVAL,
    FidCq, version,
};
use crate::av::AddressVector;
use crate::domain::DomainShared;
use crate::object::{self, ObjectTable};
use crate::state::{ProviderState, WaitTarget};
use crate::wait::WaitObject;
use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The version of the interface since which an error entry tells the length of its data.
const ERROR_DATA_SINCE: u32 = version(1, 5);

/// A completion queue as C sees it.
#[repr(C)]
pub(crate) struct QueueObject {
    cq: FidCq<Self>,
    domain: Arc<DomainShared>,
    number: usize,
    /// The length of an entry in the format that the program has chosen.
    entry_bytes: usize,
    /// The program waits for entries by this.
    wait: WaitObject,
    /// `fi_cq_signal` was called, and the wait that it ends has not returned yet. Any thread may
    /// call it while another thread waits, even in a program that promised one call at a time. Such
    /// a program's gate has no lock, so this is outside of the gate.
    signalled: AtomicBool,
}

// SAFETY: the type begins with its `Fid` in C's layout; no other type has this class.
unsafe impl object::FidObject for QueueObject {
    const CLASS: usize = FI_CLASS_CQ;
}

impl QueueObject {
    /// The queue's number, if it is of this domain.
    pub(crate) fn number(&self, domain: &Arc<DomainShared>) -> Result<usize, c_int> {
        if Arc::ptr_eq(&self.domain, domain) { Ok(self.number) } else { Err(-FI_EINVAL) }
    }
}

/// The length of an entry in this format. Each format is the beginning of the longest one.
fn entry_bytes(format: u32) -> Option<usize> {
    match format {
        FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => Some(offset_of!(CqEntry, flags)),
        FI_CQ_FORMAT_MSG => Some(offset_of!(CqEntry, buf)),
        FI_CQ_FORMAT_DATA => Some(offset_of!(CqEntry, tag)),
        FI_CQ_FORMAT_TAGGED => Some(size_of::<CqEntry>()),
        _ => None,
    }
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
enum ReadOutcome {
    /// It gave so many entries.
    Some(usize),
    /// The next event is a failure.
    Failed,
    /// It found nothing. If `should_yield`, other threads may need the core.
    None { should_yield: bool },
}

/// Completions of one endpoint that a read takes at most. These include completions without an
/// event for this queue.
const COMPLETIONS_PER_READ: usize = 256;

/// Gives at most `count` events to `put`, with the place of each.
fn read(
    state: &mut ProviderState,
    number: usize,
    count: usize,
    mut put: impl FnMut(usize, &QueueEvent, &mut ObjectTable<AddressVector>),
) -> ReadOutcome {
    if count == 0 {
        // A read of no entries asks for progress only.
        for &endpoint in &state.queues.of(number).endpoints {
            state.endpoints.of(endpoint).endpoint.progress();
        }
        if state.memory.is_readable() {
            // A completion may be another process's request to read this memory.
            state.progress_all();
        }
        return ReadOutcome::None { should_yield: false };
    }
    let mut given = 0;
    let queue = state.queues.of(number);
    while given < count {
        match queue.next() {
            Ok(Some(event)) => {
                put(given, &event, &mut state.vectors);
                given += 1;
            }
            Ok(None) => break,
            Err(()) => return ReadOutcome::so_far(given),
        }
    }
    let mut step = 0;
    while let Some(endpoint) = state.queues.of(number).endpoint(step).filter(|_| given < count) {
        step += 1;
        state.progress(endpoint, count - given);
        for _ in 0..COMPLETIONS_PER_READ {
            let Some(event) = state.next_for(endpoint, number) else { break };
            let Some(event) = event else { continue };
            if event.failed.is_some() {
                state.queues.of(number).push(event);
                return ReadOutcome::so_far(given);
            }
            // An event for this queue goes to the program without being kept.
            put(given, &event, &mut state.vectors);
            given += 1;
            if given == count {
                break;
            }
        }
    }
    let queue = state.queues.of(number);
    queue.first = if queue.first + 1 < queue.endpoints.len() { queue.first + 1 } else { 0 };
    if given > 0 {
        queue.idle.found_something();
        return ReadOutcome::Some(given);
    }
    ReadOutcome::None { should_yield: queue.idle.found_nothing() }
}

impl ReadOutcome {
    /// The result of a read that ends at a failure after so many entries.
    fn so_far(given: usize) -> Self {
        if given == 0 { Self::Failed } else { Self::Some(given) }
    }
}

impl QueueObject {
    /// Reads at most `count` entries.
    ///
    /// # Safety
    /// There is room for so many entries at `to`, and for so many numbers at `sources` if that is
    /// not null.
    unsafe fn read(&self, to: *mut u8, count: usize, sources: *mut u64) -> isize {
        let put = |place: usize, event: &QueueEvent, vectors: &mut ObjectTable<AddressVector>| {
            let entry = &event.entry;
            // SAFETY: `place` is below `count`, so there is room (the caller's); an entry of any
            // format is the beginning of ours.
            unsafe {
                let to = to.add(place * self.entry_bytes);
                if self.entry_bytes == size_of::<CqEntry>() {
                    // The format that MPIs ask for: words are copied, without a call of memcpy.
                    to.cast::<CqEntry>().write_unaligned(*entry);
                } else {
                    to.copy_from_nonoverlapping(ptr::from_ref(entry).cast(), self.entry_bytes);
                }
            }
            if !sources.is_null() {
                // SAFETY: likewise.
                unsafe {
                    sources.add(place).write(source(event, vectors).unwrap_or(FI_ADDR_NOTAVAIL))
                };
            }
        };
        match self.domain.state.with(|state| read(state, self.number, count, put)) {
            ReadOutcome::Some(given) => given.cast_signed(),
            ReadOutcome::Failed => -(FI_EAVAIL as isize),
            ReadOutcome::None { should_yield } => {
                if should_yield {
                    self.yield_core();
                }
                -(FI_EAGAIN as isize)
            }
        }
    }

    /// Whether the program may poll the queue's descriptor.
    pub(crate) fn try_wait(&self) -> Result<(), c_int> {
        let step = self.domain.prepare(WaitTarget::Queue(self.number));
        // A signal that came before ends this wait.
        let is_signalled = self.signalled.swap(false, Ordering::AcqRel);
        if is_signalled { Err(-FI_EAGAIN) } else { self.wait.may_sleep(step) }
    }

    /// Lets other threads have the core. This thread is outside of the gate meanwhile.
    #[cold]
    fn yield_core(&self) {
        let took: Duration = crate::idle::yield_core();
        self.domain.state.with(|state| state.queues.of(self.number).idle.yielded(took));
    }

    /// Takes the next event if it is a failure.
    ///
    /// # Safety
    /// There is room at `to` for an entry of the program's version, without its `src_addr`.
    unsafe fn read_error(&self, to: *mut CqErrEntry) -> isize {
        let failed = self.domain.state.with(|state| state.queues.of(self.number).next_failed());
        let Some((QueueEvent { entry, .. }, failed)) = failed else { return -(FI_EAGAIN as isize) };
        // SAFETY: the caller's; each field is written by itself, so that nothing behind the fields
        // of the program's version is written.
        unsafe {
            (&raw mut (*to).op_context).write(entry.op_context);
            (&raw mut (*to).flags).write(entry.flags);
            (&raw mut (*to).len).write(entry.len);
            (&raw mut (*to).buf).write(entry.buf);
            (&raw mut (*to).data).write(entry.data);
            (&raw mut (*to).tag).write(entry.tag);
            (&raw mut (*to).olen).write(failed.missing_bytes);
            (&raw mut (*to).err).write(failed.error);
            (&raw mut (*to).prov_errno).write(failed.own);
            if self.domain.version >= ERROR_DATA_SINCE {
                // There is no data about the error. The program's buffer for it stays as it is.
                (&raw mut (*to).err_data_size).write(0);
            } else {
                (&raw mut (*to).err_data).write(ptr::null_mut());
            }
        }
        1
    }
}

/// The number of a message's sender. None: the event is of no message, or the vector that had the
/// number was closed meanwhile.
fn source(event: &QueueEvent, vectors: &mut ObjectTable<AddressVector>) -> Option<u64> {
    let (address, vector) = event.source?;
    Some(vectors.get(vector)?.number(&address))
}

#[cfg(test)]
mod tests;
