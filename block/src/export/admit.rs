//! Admission of requests: the hot part of an export, without a lock.
//!
//! ```text
//!   channel (one sidecore)              claim (any thread)
//!   outstanding += 1   ─┐   SeqCst   ┌─ epoch = new
//!   epoch == mine?      ┘            └─ outstanding == 0?
//! ```
//! Whichever comes second sees the other: either the request is refused, or the claim waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use sidecore::{Progress, Wake};

use volume::Size;
use volume::{Channel, Durability, Io, IoId, IoTable, Op, Status, VolumeInfo};

/// The epoch that an attachment is held under; 0 when it is closed or was never claimed.
#[derive(Debug, Default)]
pub(super) struct HeldEpoch {
    pub(super) epoch: AtomicU64,
}

/// One way into a volume: one channel of one attachment, as opened once.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Gate {
    /// Written by the channel's sidecore alone.
    outstanding: AtomicU64,
    closed: AtomicBool,
    epoch: u64,
    channel: u16,
}

impl Gate {
    pub(super) fn new(epoch: u64, channel: u16) -> Self {
        Self { outstanding: AtomicU64::new(0), closed: AtomicBool::new(false), epoch, channel }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn channel(&self) -> u16 {
        self.channel
    }

    pub(super) fn close(&self) {
        self.closed.store(true, SeqCst);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outstanding.load(SeqCst) == 0
    }

    /// Counts a request in, or refuses it.
    fn enter(&self, held: &HeldEpoch) -> bool {
        self.outstanding.store(self.outstanding.load(SeqCst) + 1, SeqCst);
        let open = held.epoch.load(SeqCst) == self.epoch && !self.is_closed();
        if !open {
            self.leave(1);
        }
        open
    }

    fn leave(&self, requests: u64) {
        let outstanding = self.outstanding.load(SeqCst);
        assert!(outstanding >= requests, "each request leaves once");
        self.outstanding.store(outstanding - requests, SeqCst);
    }
}

/// A volume's channel behind its gate. Checks range, alignment and read-only once for all
/// backends, forces durable writes where the volume promises them, and refuses what is over.
#[derive(Debug)]
pub struct Admitted {
    inner: Box<dyn Channel>,
    info: VolumeInfo,
    size: Size,
    gate: Arc<Gate>,
    held: Arc<HeldEpoch>,
    refused: Vec<IoId>,
}

impl Admitted {
    pub(super) fn new(
        inner: Box<dyn Channel>,
        (info, size): (VolumeInfo, Size),
        gate: Arc<Gate>,
        held: Arc<HeldEpoch>,
    ) -> Self {
        Self { inner, info, size, gate, held, refused: Vec::new() }
    }

    /// Refuses every request from now on; those that are outstanding still complete.
    pub fn close(&self) {
        self.gate.close();
    }

    /// The epoch that it was opened under.
    pub(super) fn epoch(&self) -> u64 {
        self.gate.epoch()
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.gate.is_empty()
    }

    fn is_valid(&self, io: &Io) -> bool {
        let end = io.offset_bytes.checked_add(u64::from(io.len_bytes));
        match io.op {
            Op::Flush => true,
            op if op.changes() && self.info.read_only => false,
            op => {
                io.len_bytes > 0
                    && io.len_bytes <= op.bytes_max()
                    && self.info.is_whole(io.offset_bytes | u64::from(io.len_bytes))
                    && end.is_some_and(|end| end <= self.size.get())
            }
        }
    }
}

impl Channel for Admitted {
    fn submit(&mut self, ios: &mut IoTable, id: IoId) {
        let io = &mut ios[id];
        io.status = Status::Pending;
        let refusal = if !self.info.zeroing.can(io.op) {
            Some(Status::Unsupported)
        } else if !self.is_valid(io) {
            Some(Status::Invalid)
        } else {
            (!self.gate.enter(&self.held)).then_some(Status::Fenced)
        };
        if let Some(status) = refusal {
            io.status = status;
            self.refused.push(id);
            return;
        }
        io.durable |= io.op.changes() && self.info.durability == Durability::WriteThrough;
        self.inner.submit(ios, id);
    }

    fn poll(&mut self, ios: &mut IoTable, now_ns: u64, done: &mut Vec<IoId>) -> Progress {
        let before = done.len();
        let progress = self.inner.poll(ios, now_ns, done);
        let finished = done.len() - before;
        if finished > 0 {
            self.gate.leave(finished as u64);
        }
        if self.refused.is_empty() {
            return progress;
        }
        done.append(&mut self.refused);
        Progress::Busy
    }

    fn arm(&mut self, wake: &mut Wake) -> Progress {
        if self.refused.is_empty() { self.inner.arm(wake) } else { Progress::Busy }
    }

    fn disarm(&mut self) {
        self.inner.disarm();
    }

    fn is_open(&self) -> bool {
        !self.gate.is_closed() && self.inner.is_open()
    }

    /// Requests that were refused here complete.
    fn recall(&mut self, ios: &mut IoTable, back: &mut Vec<IoId>) {
        let before = back.len();
        self.inner.recall(ios, back);
        self.gate.leave((back.len() - before) as u64);
    }

    fn abandon(&mut self, ios: &mut IoTable, now_ns: u64) -> bool {
        self.gate.close();
        if !self.inner.abandon(ios, now_ns) {
            return false;
        }
        self.gate.leave(self.gate.outstanding.load(SeqCst));
        self.refused.clear();
        true
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        // A channel that is dropped with requests on their way leaves its gate occupied, and no
        // successor is ever let in: late is better than wrong.
        self.gate.close();
    }
}
