//! The requests of one opened channel, between the session and the export.

use std::collections::VecDeque;
use std::sync::Arc;

use sidecore::{Progress, Wake};
use transport::{BufId, CallError, CallId, Endpoint};
use virtio::Segment;

use super::counters::ServerCounters;
use crate::export::Admitted;
use crate::wire::{Kind, Outcome, Reply, Request, Title};
use volume::{Channel, IoId, IoTable, Op, Status, io_table};

/// Requests of one channel at the backend at once: two full virtqueues of 128; more wait here.
pub(super) const LANE_DEPTH: u16 = 256;

#[derive(Debug)]
struct Parked {
    call: CallId,
    request: Request,
    body: Option<(BufId, usize)>,
}

impl Parked {
    /// Whether it needs a buffer, which may be missing. Other requests have theirs, or need none.
    fn is_read(&self) -> bool {
        self.request.kind == Kind::Read
    }
}

/// A request at the backend.
#[derive(Debug, Default)]
struct Pending {
    call: Option<CallId>,
    buffer: Option<BufId>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Lane {
    admitted: Admitted,
    title: Title,
    ios: IoTable,
    pending: Box<[Pending]>,
    parked: VecDeque<Parked>,
    done: Vec<IoId>,
    /// The session is gone: its client does not wait for requests that have not begun.
    lets_go: bool,
    counters: Arc<ServerCounters>,
}

/// A table whose slots have room for a request's data: one piece, a buffer of the endpoint's. So
/// the first request that comes to a slot costs no more than the others.
fn one_piece_table() -> IoTable {
    let mut ios = io_table(LANE_DEPTH);
    let ids: Vec<_> = std::iter::from_fn(|| ios.take()).collect();
    for id in ids {
        ios[id].segments.reserve(1);
        ios.free(id);
    }
    ios
}

impl Lane {
    pub(super) fn new(admitted: Admitted, title: Title, counters: Arc<ServerCounters>) -> Self {
        let depth = usize::from(LANE_DEPTH);
        Self {
            admitted,
            title,
            ios: one_piece_table(),
            pending: (0..depth).map(|_| Pending::default()).collect(),
            // Grows with use: room for all would be most of an idle channel's memory.
            parked: VecDeque::new(),
            done: Vec::with_capacity(depth),
            lets_go: false,
            counters,
        }
    }

    /// Refuses requests from now on; those on their way complete.
    pub(super) fn closed(self) -> Self {
        self.admitted.close();
        self
    }

    /// From the next [`Self::poll`] on it only waits for the requests that the storage has: the
    /// session is gone, and its client sends every request again.
    pub(super) fn let_go(&mut self) {
        self.lets_go = true;
    }

    /// Whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.ios.is_empty() && self.parked.is_empty()
    }

    /// Takes a request about the volume, with its body's reference.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        call: CallId,
        request: &Request,
        body: Option<(BufId, usize)>,
        endpoint: &mut Endpoint,
    ) {
        if let Some(outcome) = self.refusal(request, body) {
            let fenced = matches!(outcome, Outcome::EpochOver | Outcome::IncarnationOver);
            if fenced { &self.counters.fenced } else { &self.counters.errors }.add(1);
            if let Some((buffer, _)) = body {
                endpoint.pool_mut().release(buffer);
            }
            return reply(now_ns, call, outcome, None, endpoint);
        }
        let parked = Parked { call, request: request.clone(), body };
        let waits = self.parked.iter().any(|before| !before.is_read() || parked.is_read());
        if waits || !self.start(&parked, endpoint) {
            self.counters.parked.add(1);
            self.parked.push_back(parked);
        }
    }

    fn refusal(&self, request: &Request, body: Option<(BufId, usize)>) -> Option<Outcome> {
        let body_bytes = body.map_or(0, |(_, len)| len);
        let fits = match request.kind {
            Kind::Write => body_bytes > 0 && body_bytes == request.len_bytes as usize,
            Kind::Flush => body_bytes == 0,
            _ => body_bytes == 0 && request.len_bytes > 0,
        };
        let title = &request.title;
        if title.attachment != self.title.attachment || title.epoch != self.title.epoch {
            Some(Outcome::EpochOver)
        } else if title.incarnation != self.title.incarnation {
            Some(Outcome::IncarnationOver)
        } else {
            (!fits).then_some(Outcome::Invalid)
        }
    }

    /// Hands a request to the export; `false` when a slot or a buffer is missing.
    fn start(&mut self, parked: &Parked, endpoint: &mut Endpoint) -> bool {
        if self.ios.is_full() {
            return false;
        }
        let request = &parked.request;
        let buffer = match (request.kind, parked.body) {
            (Kind::Read, _) => {
                match endpoint.buffer_for(parked.call.session(), request.len_bytes as usize) {
                    Ok(buffer) => Some(buffer),
                    Err(CallError::Full) => return false,
                    // The client has gone: its read has left the queue.
                    Err(CallError::NotConnected) => return true,
                }
            }
            (_, body) => body.map(|(buffer, _)| buffer),
        };
        let id = self.ios.take().expect("not full");
        let io = &mut self.ios[id];
        io.reset();
        io.op = request.kind.op().expect("a lane is given what is about a volume");
        io.offset_bytes = request.offset_bytes;
        io.len_bytes = if io.op == Op::Flush { 0 } else { request.len_bytes };
        io.durable = request.durable;
        if let Some(buffer) = buffer {
            // The pool's memory does not move, and this reference keeps the buffer ours until the
            // request has completed: no other code looks at it meanwhile.
            let addr = endpoint.pool_mut().bytes_mut(buffer).as_mut_ptr();
            io.segments.push(Segment { addr, len: request.len_bytes });
        }
        self.pending[id.index()] = Pending { call: Some(parked.call), buffer };
        self.admitted.submit(&mut self.ios, id);
        true
    }

    /// Starts what waited and answers what has completed.
    pub(super) fn poll(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        if self.lets_go {
            return self.abandon(now_ns, endpoint);
        }
        let mut progress = Progress::Idle;
        // A read waits for a buffer, and reads behind it for their turn. Other requests have
        // theirs: if they waited as well, two nodes with disks of each other's volumes could wait
        // for ever, since the answers to writes free the buffers for the other node's reads.
        let mut reads_wait = false;
        for _ in 0..self.parked.len() {
            if self.ios.is_full() {
                break;
            }
            let Some(parked) = self.parked.pop_front() else { break };
            if parked.is_read() && reads_wait || !self.start(&parked, endpoint) {
                reads_wait |= parked.is_read();
                self.parked.push_back(parked);
            } else {
                progress = Progress::Busy;
            }
        }
        let mut done = std::mem::take(&mut self.done);
        progress |= self.admitted.poll(&mut self.ios, now_ns, &mut done);
        for id in done.drain(..) {
            self.finish(now_ns, id, endpoint);
        }
        self.done = done;
        progress
    }

    fn abandon(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        let waited = self.parked.drain(..).filter_map(|parked| parked.body);
        waited.for_each(|(buffer, _)| endpoint.pool_mut().release(buffer));
        if self.ios.is_empty() || !self.admitted.abandon(&mut self.ios, now_ns) {
            return Progress::Idle;
        }
        let begun = self.pending.iter_mut().filter_map(|pending| pending.buffer.take());
        begun.for_each(|buffer| endpoint.pool_mut().release(buffer));
        // The storage has let go of every request: a fresh, empty table.
        self.ios = io_table(1);
        Progress::Busy
    }

    fn finish(&mut self, now_ns: u64, id: IoId, endpoint: &mut Endpoint) {
        let io = &self.ios[id];
        let outcome = match io.status {
            Status::Done => Outcome::Done,
            Status::Invalid => Outcome::Invalid,
            Status::Unsupported => Outcome::Unsupported,
            Status::Fenced => Outcome::EpochOver,
            Status::Error | Status::Pending => Outcome::Error,
        };
        self.counters.requests.add(1);
        match outcome {
            Outcome::Done => self.counters.bytes.add(u64::from(io.len_bytes)),
            Outcome::EpochOver => self.counters.fenced.add(1),
            _ => self.counters.errors.add(1),
        }
        let answers = io.op == Op::Read && outcome == Outcome::Done;
        let len = io.len_bytes as usize;
        self.ios.free(id);
        let pending = std::mem::take(&mut self.pending[id.index()]);
        let body = pending.buffer.filter(|_| answers).map(|buffer| (buffer, len));
        reply(now_ns, pending.call.expect("set when it started"), outcome, body, endpoint);
        if let Some(buffer) = pending.buffer {
            endpoint.pool_mut().release(buffer);
        }
    }

    pub(super) fn arm(&mut self, wake: &mut Wake) -> Progress {
        self.admitted.arm(wake)
    }

    pub(super) fn disarm(&mut self) {
        self.admitted.disarm();
    }
}

fn reply(
    now_ns: u64,
    call: CallId,
    outcome: Outcome,
    body: Option<(BufId, usize)>,
    endpoint: &mut Endpoint,
) {
    let head = Reply::plain(outcome).encode();
    // A session that is gone gets no answer.
    let _ = endpoint.reply(now_ns, call, head.as_bytes(), body);
}
