//! One user's way to a replicated volume from one sidecore.
//!
//! The bytes of a write are copied when it is submitted: a guest may rewrite its buffer at any
//! time, and all members must store the same bytes. Bytes that were read are copied into the
//! guest's memory by this sidecore. So the member's sidecore never has an address of a guest.
#![expect(unsafe_code, reason = "copies between guest memory and the bytes of messages")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use replica::Extent;
use sidecore::mailbox::{Receiver, Sender};
use sidecore::{Progress, Wake};
use virtio::Segment;
use volume::copy::{self, Prefetch};
use volume::{Channel, Durability, Io, IoId, IoTable, Op, SECTOR_BYTES, Status, VolumeInfo};

use super::{FrontAnswer, FrontContent, FrontOp, FrontRequest, FrontShared};

/// The channel's ends of its mailboxes.
#[derive(Debug)]
pub(super) struct FrontWay {
    pub(super) requests: Sender<FrontRequest>,
    pub(super) answers: Receiver<FrontAnswer>,
    pub(super) lets_go: Arc<AtomicBool>,
}

/// How far a slot's request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum FrontState {
    #[default]
    Free,
    /// A read or a flush.
    Looks,
    /// The volume may be changed by it.
    Changes {
        /// It ends with a flush.
        flushes: bool,
    },
}

#[derive(Clone, Copy, Debug, Default)]
struct FrontSlot {
    state: FrontState,
    number: u64,
    id: Option<IoId>,
}

/// The channel. See the module.
#[derive(Debug)]
pub(super) struct FrontChannel {
    shared: Arc<FrontShared>,
    /// None once the user has let go.
    way: Option<FrontWay>,
    opened_in: u64,
    info: VolumeInfo,
    slots: Vec<FrontSlot>,
    ready: Vec<IoId>,
}

impl FrontChannel {
    pub(super) fn new(shared: Arc<FrontShared>, way: FrontWay, opened_in: u64, depth: u16) -> Self {
        let (info, room) = (shared.info(), usize::from(depth));
        let slots = vec![FrontSlot::default(); room];
        Self { shared, way: Some(way), opened_in, info, slots, ready: Vec::with_capacity(room) }
    }

    /// The status of a request that ends at once.
    fn refusal(&mut self, io: &Io) -> Option<Status> {
        if !self.info.admits(io) {
            // The volume may have grown since the last look.
            self.info.size_bytes = self.shared.size.get();
        }
        if !self.info.zeroing.can(io.op) {
            Some(Status::Unsupported)
        } else if !self.info.admits(io) {
            Some(Status::Invalid)
        } else {
            (io.op != Op::Flush && io.len_bytes == 0).then_some(Status::Done)
        }
    }

    fn send(&mut self, slot: u16, op: FrontOp) -> bool {
        let at = &mut self.slots[usize::from(slot)];
        at.number += 1;
        let request = FrontRequest { slot, number: at.number, op };
        let Some(way) = &mut self.way else { return false };
        // The host is gone: the member has ended.
        !way.requests.is_abandoned() && way.requests.send(request).is_ok()
    }

    /// Takes an answer in; the request if it has ended.
    fn take(&mut self, ios: &mut IoTable, answer: FrontAnswer) -> Option<IoId> {
        let FrontAnswer { slot, number, status, bytes } = answer;
        let at = self.slots.get_mut(usize::from(slot)).filter(|at| at.number == number)?;
        let id = at.id?;
        let mut status = status;
        if status == Status::Done && at.state == (FrontState::Changes { flushes: true }) {
            at.state = FrontState::Looks;
            if self.send(slot, FrontOp::Flush) {
                return None;
            }
            status = Status::Fenced;
        }
        if let (Status::Done, Some(bytes)) = (status, bytes) {
            let io = &ios[id];
            if bytes.len() as u64 != copy::total_bytes(&io.segments) {
                status = Status::Error;
            } else {
                // SAFETY: the user keeps the segments mapped until the completion, which is told
                // after this; `bytes` has their total, and is memory of this process alone.
                unsafe { copy::scatter(bytes.as_ptr(), &io.segments, Prefetch::NONE) };
            }
        }
        let at = &mut self.slots[usize::from(slot)];
        (at.state, at.id) = (FrontState::Free, None);
        ios[id].status = status;
        Some(id)
    }

    /// Ends all requests: the host is gone, and nothing takes them further.
    fn end_all(&mut self, ios: &mut IoTable) -> bool {
        let before = self.ready.len();
        for at in &mut self.slots {
            if let Some(id) = at.id.take() {
                at.state = FrontState::Free;
                ios[id].status = Status::Fenced;
                self.ready.push(id);
            }
        }
        self.ready.len() > before
    }

    /// While the user lets go: whether no request can change the volume any more.
    fn has_let_go(&mut self) -> bool {
        let Some(way) = &mut self.way else { return true };
        // Looked at first: the last answers are there when the host is gone.
        let is_gone = way.answers.is_abandoned();
        while let Some(FrontAnswer { slot, number, .. }) = way.answers.receive() {
            if let Some(at) = self.slots.get_mut(usize::from(slot))
                && at.number == number
            {
                (at.state, at.id) = (FrontState::Free, None);
            }
        }
        let changes = |at: &FrontSlot| matches!(at.state, FrontState::Changes { .. });
        is_gone || !self.slots.iter().any(changes)
    }
}

/// The range of a request, which is inside the volume.
fn extent_of(io: &Io) -> Option<Extent> {
    let sectors = u64::from(io.len_bytes) / SECTOR_BYTES;
    Extent::new(io.offset_bytes / SECTOR_BYTES, u32::try_from(sectors).ok()?)
}

fn bytes_of(segments: &[Segment]) -> Vec<u8> {
    let len = copy::total_bytes(segments) as usize;
    let mut bytes: Vec<u8> = Vec::with_capacity(len);
    // SAFETY: the user keeps the segments mapped until the completion, and the request is being
    // submitted. The vector has room for their total, which is initialized by the copy before its
    // length says so; it is new, so the two do not overlap.
    unsafe {
        copy::gather(segments, bytes.as_mut_ptr(), Prefetch::NONE);
        bytes.set_len(len);
    }
    bytes
}

impl Channel for FrontChannel {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        let io = &mut ios[id];
        io.status = Status::Pending;
        if self.way.as_ref().is_none_or(|way| way.lets_go.load(SeqCst)) {
            // The user has let go of the channel, and of this request with it.
            return;
        }
        let mut refusal = self.refusal(io);
        if refusal.is_none() {
            let slot = id.index() as u16;
            let flushes = io.durable || self.info.durability == Durability::WriteThrough;
            let content = match io.op {
                Op::Write => Some(FrontContent::Bytes(bytes_of(&io.segments))),
                Op::WriteZeroes => Some(FrontContent::Zeroes),
                Op::Discard => Some(FrontContent::Discarded),
                Op::Read | Op::Flush => None,
            };
            let (op, state) = match (extent_of(io).filter(|_| io.op != Op::Flush), content) {
                (Some(extent), Some(content)) => {
                    (FrontOp::Write(extent, content), FrontState::Changes { flushes })
                }
                (Some(extent), None) => (FrontOp::Read(extent), FrontState::Looks),
                (None, _) => (FrontOp::Flush, FrontState::Looks),
            };
            let at = &mut self.slots[id.index()];
            (at.state, at.id) = (state, Some(id));
            if !self.send(slot, op) {
                let at = &mut self.slots[id.index()];
                (at.state, at.id) = (FrontState::Free, None);
                refusal = Some(Status::Fenced);
            }
        }
        if let Some(status) = refusal {
            ios[id].status = status;
            self.ready.push(id);
        }
    }

    fn poll(&mut self, ios: &mut IoTable, _now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let before = done.len();
        let lets_go = self.way.as_ref().is_none_or(|way| way.lets_go.load(SeqCst));
        if lets_go {
            return Progress::Idle;
        }
        // Looked at first: the last answers are there when the host is gone.
        let is_gone = self.way.as_ref().is_some_and(|way| way.answers.is_abandoned());
        let mut moved = false;
        while let Some(way) = &mut self.way
            && let Some(answer) = way.answers.receive()
        {
            moved = true;
            done.extend(self.take(ios, answer));
        }
        if is_gone {
            moved |= self.end_all(ios);
        }
        done.append(&mut self.ready);
        Progress::busy_if(moved || done.len() > before)
    }

    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        let Some(way) = &self.way else { return Progress::Idle };
        // An end of the host wakes this sidecore; its requests are ended in the next round.
        let is_over = way.answers.is_abandoned() && self.slots.iter().any(|at| at.id.is_some());
        Progress::busy_if(!self.ready.is_empty() || !way.answers.is_empty() || is_over)
    }

    fn disarm(&mut self) {}

    fn is_open(&self) -> bool {
        let term = self.shared.term.load(SeqCst);
        term != 0 && (self.opened_in == 0 || self.opened_in == term) && self.way.is_some()
    }

    /// A request in the mailbox may be taken at any moment.
    fn recall(&mut self, _ios: &mut IoTable, _back: &mut Vec<IoId>) {}

    /// A write that the host has, or may take, can still change the volume: its caller must not
    /// believe that it is over before the host has said so. Requests that the host has not offered
    /// to the protocol end at once.
    fn abandon(&mut self, _ios: &mut IoTable, _now_ns: u64) -> bool {
        if let Some(way) = &self.way
            && !way.lets_go.swap(true, SeqCst)
        {
            self.ready.clear();
            self.shared.wake_home();
        }
        if !self.has_let_go() {
            return false;
        }
        let is_first = self.way.take().is_some();
        if is_first {
            self.slots.iter_mut().for_each(|at| (at.state, at.id) = (FrontState::Free, None));
            // The mailboxes are gone by now: the host forgets the channel.
            self.shared.wake_home();
        }
        true
    }
}

impl Drop for FrontChannel {
    fn drop(&mut self) {
        self.way = None;
        self.shared.wake_home();
    }
}
