//! Completion queues. Reading one is where messages move: MPI does little else while it waits, so
//! an empty read is a look at the endpoints that are bound and nothing more.

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
use crate::object;
use crate::object::ObjectTable;
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

/// A completion queue as C has it.
#[repr(C)]
pub(crate) struct QueueObject {
    cq: FidCq<Self>,
    domain: Arc<DomainShared>,
    number: usize,
    /// Of every entry that it gives.
    entry_bytes: usize,
    /// How the program may wait for entries.
    wait: WaitObject,
    /// Somebody wants a wait to end: another thread than the one that waits, and so outside the
    /// gate, which a program that promised one call at a time has none of.
    signalled: AtomicBool,
}

// SAFETY: it begins with its `Fid`, as C has it; no other type says this class.
unsafe impl object::FidObject for QueueObject {
    const CLASS: usize = FI_CLASS_CQ;
}

impl QueueObject {
    /// Its number, if it is of this domain.
    pub(crate) fn number(&self, domain: &Arc<DomainShared>) -> Result<usize, c_int> {
        if Arc::ptr_eq(&self.domain, domain) { Ok(self.number) } else { Err(-FI_EINVAL) }
    }
}

/// How long an entry of a format is: each is the beginning of the longest.
fn entry_bytes(format: u32) -> Option<usize> {
    match format {
        FI_CQ_FORMAT_UNSPEC | FI_CQ_FORMAT_CONTEXT => Some(offset_of!(CqEntry, flags)),
        FI_CQ_FORMAT_MSG => Some(offset_of!(CqEntry, buf)),
        FI_CQ_FORMAT_DATA => Some(offset_of!(CqEntry, tag)),
        FI_CQ_FORMAT_TAGGED => Some(size_of::<CqEntry>()),
        _ => None,
    }
}

/// What a read came to.
#[derive(Debug, PartialEq, Eq)]
enum ReadOutcome {
    /// So many entries.
    Some(usize),
    /// The next one is an error's.
    Failed,
    /// None. Others may want the core.
    None { should_yield: bool },
}

/// Completions of one endpoint that a read sees to at most; those that are another queue's, or
/// nobody's, do not count among what it gives.
const COMPLETIONS_PER_READ: usize = 256;

/// Gives at most `count` entries to `put`, with the place of each.
fn read(
    state: &mut ProviderState,
    number: usize,
    count: usize,
    mut put: impl FnMut(usize, &QueueEvent, &mut ObjectTable<AddressVector>),
) -> ReadOutcome {
    if count == 0 {
        // A program's way to say: move what can be moved.
        for &endpoint in &state.queues.of(number).endpoints {
            state.endpoints.of(endpoint).endpoint.progress();
        }
        if state.memory.is_readable() {
            // What has ended may be another one's question.
            state.move_all();
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
            // What is ours goes straight to the program.
            put(given, &event, &mut state.vectors);
            given += 1;
            if given == count {
                break;
            }
        }
    }
    let queue = state.queues.of(number);
    queue.turn = if queue.turn + 1 < queue.endpoints.len() { queue.turn + 1 } else { 0 };
    if given > 0 {
        queue.idle.found_something();
        return ReadOutcome::Some(given);
    }
    ReadOutcome::None { should_yield: queue.idle.found_nothing() }
}

impl ReadOutcome {
    /// What a read has come to that meets an error.
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
                    // The one that MPIs ask for; by words, and not by a call.
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
                    self.rest();
                }
                -(FI_EAGAIN as isize)
            }
        }
    }

    /// Whether the program may wait for the queue's descriptor.
    pub(crate) fn try_wait(&self) -> Result<(), c_int> {
        let rest = self.domain.prepare(WaitTarget::Queue(self.number));
        // A signal from before is for this look.
        let is_signalled = self.signalled.swap(false, Ordering::AcqRel);
        if is_signalled { Err(-FI_EAGAIN) } else { self.wait.may(rest) }
    }

    /// Lets others have the core, with the gate open.
    #[cold]
    fn rest(&self) {
        let took: Duration = crate::idle::let_others_run();
        self.domain.state.with(|state| state.queues.of(self.number).idle.yielded(took));
    }

    /// Takes the error that is next.
    ///
    /// # Safety
    /// `to` is an entry as the program's version has it, `src_addr` not counted.
    unsafe fn read_error(&self, to: *mut CqErrEntry) -> isize {
        let failed = self.domain.state.with(|state| state.queues.of(self.number).next_failed());
        let Some((QueueEvent { entry, .. }, failed)) = failed else { return -(FI_EAGAIN as isize) };
        // SAFETY: the caller's; each field is written by itself, so that nothing behind those of
        // the program's version is touched.
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
                // We have no more to say. Room that the program has for it stays its own.
                (&raw mut (*to).err_data_size).write(0);
            } else {
                (&raw mut (*to).err_data).write(ptr::null_mut());
            }
        }
        1
    }
}

/// The number of whom a message came from; none for what is no message, and when the vector that
/// had a number was closed meanwhile.
fn source(event: &QueueEvent, vectors: &mut ObjectTable<AddressVector>) -> Option<u64> {
    let (address, vector) = event.source?;
    Some(vectors.get(vector)?.number(&address))
}

#[cfg(test)]
mod tests;
