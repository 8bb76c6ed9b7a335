//! The state that a disk's share keeps of each queue, and of each of the guest's requests.

use std::sync::Arc;

use sidecore::SlotId;
use virtio::{ChainHead, Queue, Segment};

use super::core::QueueCounters;
use crate::request::{RANGES_MAX, Range};
use volume::Op;

/// The part of a request that is not submitted yet. Such a request does not fit one io, because it
/// is large or has several ranges.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnsubmittedPart {
    pub(super) request: SlotId,
    pub(super) op: Op,
    pub(super) done_bytes: u32,
    pub(super) len_bytes: u32,
    pub(super) offset_bytes: u64,
}

/// A queue that is served.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) queue: Queue,
    pub(super) counters: Arc<QueueCounters>,
    /// Waits until no request of an earlier start is outstanding anywhere.
    pub(super) held: bool,
    /// Takes nothing more, and is gone when it has drained, or at this time.
    pub(super) stop_at_ns: Option<u64>,
    /// Takes nothing more, and leaves for another sidecore when it has drained; at this time it
    /// goes on here.
    pub(super) leave_at_ns: Option<u64>,
    /// Something was put and not published.
    pub(super) unpublished: bool,
    /// Something was published, and whether to call the driver is still to be decided.
    pub(super) uncalled: bool,
    pub(super) armed: bool,
    /// Requests that wait for the volume.
    pub(super) waiting: u32,
    pub(super) rest: Option<UnsubmittedPart>,
    /// All of the data that `rest` is about; kept for its room.
    pub(super) rest_segments: Vec<Segment>,
    /// The ranges that `rest` is still about, last one first; kept for their room.
    pub(super) rest_ranges: Vec<Range>,
}

/// One of the guest's requests, made of one io or more.
#[derive(Clone, Copy, Debug)]
pub(super) struct GuestRequest {
    /// The place of its queue; `None` for an orphan.
    pub(super) place: Option<u16>,
    pub(super) head: ChainHead,
    pub(super) answer: *mut u8,
    /// The bytes that a good answer writes into the guest's memory, without the status.
    pub(super) inward_bytes: u32,
    pub(super) len_bytes: u32,
    pub(super) op: Op,
    /// The round that took it.
    pub(super) begun_ns: u64,
    /// Ios that have not ended; the rest of a cut request counts for one.
    pub(super) pending: u32,
    pub(super) failed: bool,
    /// The volume turned out not to be able to do it.
    pub(super) unsupported: bool,
}

impl Served {
    /// Takes nothing from its ring now.
    pub(super) fn rests(&self) -> bool {
        self.stop_at_ns.is_some() || self.leave_at_ns.is_some()
    }

    /// A queue that is served from now on, or held back first.
    pub(super) fn new(queue: Queue, counters: Arc<QueueCounters>, held: bool) -> Self {
        Self {
            queue,
            counters,
            held,
            stop_at_ns: None,
            leave_at_ns: None,
            unpublished: false,
            uncalled: false,
            armed: false,
            waiting: 0,
            rest: None,
            rest_segments: Vec::new(),
            rest_ranges: Vec::with_capacity(RANGES_MAX),
        }
    }
}

impl Default for GuestRequest {
    fn default() -> Self {
        Self {
            place: None,
            head: ChainHead::from_index(0),
            answer: std::ptr::null_mut(),
            inward_bytes: 0,
            len_bytes: 0,
            op: Op::Read,
            begun_ns: 0,
            pending: 0,
            failed: false,
            unsupported: false,
        }
    }
}
