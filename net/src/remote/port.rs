//! A cable as a port: of a network that a peer's nic has joined, or of the nic's own bridge at the
//! other end.
//!
//! Casts carry a frame as virtio-net has it, with the work that is left to be done to it, so a
//! frame of 64 KiB stays one. Its first bytes are in the cast's head, the rest is the body: small
//! frames need no buffer, and eight of them leave in one datagram.

use std::cell::RefCell;
use std::rc::Rc;

use sidecore::{Progress, Wake};
use transport::{CastError, HEAD_MAX, Pool};
use virtio::Segment;

use super::cable::{Arrived, Cable, Plugged};
use super::mark;
use super::wire::{FIRST_BYTES_MAX, FRAME_HEADER_BYTES, FrameHeader};
use crate::frame::{Burst, Frame};
use crate::offload::{HEADER_BYTES as OFFLOAD_BYTES, Offers};
use crate::port::{Chosen, Port};
use crate::reason::Reason;

/// With so many bytes of casts before it that wait to be sent, a frame is marked: four of the
/// largest.
const MARK_BYTES: u64 = 256 << 10;

/// See the module's text.
#[derive(Debug)]
pub(super) struct CablePort(pub(super) Rc<RefCell<Cable>>);

impl Port for CablePort {
    fn receive(&mut self, burst: &mut Burst, _now_ns: u64) -> Progress {
        let cable = &mut *self.0.borrow_mut();
        if cable.inbox.is_empty() {
            return Progress::Idle;
        }
        let mut endpoint = cable.endpoint.borrow_mut();
        while !burst.is_full()
            && let Some(arrived) = cable.inbox.lend()
        {
            if let Err(reason) = take(arrived, endpoint.pool_mut(), burst) {
                cable.counters.drops_in.count(reason);
            }
        }
        Progress::Busy
    }

    fn release(&mut self, burst: &mut Burst) {
        burst.clear();
        let cable = &mut *self.0.borrow_mut();
        let mut endpoint = cable.endpoint.borrow_mut();
        while let Some(body) = cable.inbox.give_back() {
            body.into_iter().for_each(|body| endpoint.pool_mut().release(body));
        }
    }

    fn transmit(&mut self, burst: &Burst, chosen: &[Chosen], now_ns: u64) {
        let cable = &mut *self.0.borrow_mut();
        let Some(plugged) = cable.plugged else {
            chosen.iter().for_each(|_| cable.counters.drops_out.count(Reason::LinkDown));
            return;
        };
        for chosen in chosen {
            let frame = &burst.frames()[usize::from(chosen.at)];
            match send(cable, plugged, frame, chosen.tci, burst, now_ns) {
                Ok(()) => {
                    cable.counters.frames_out.add(1);
                    cable.counters.bytes_out.add(frame.len_bytes() as u64);
                }
                Err(reason) => cable.counters.drops_out.count(reason),
            }
        }
    }

    /// Casts leave at the end of the round, with everything else.
    fn flush(&mut self) {}

    /// Frames come by the sessions' link, which wakes the sidecore.
    fn arm(&mut self, _wake: &mut Wake) -> Progress {
        Progress::busy_if(!self.0.borrow().inbox.is_empty())
    }
}

impl Drop for CablePort {
    fn drop(&mut self) {
        self.0.borrow_mut().cut();
    }
}

/// Adds the frame that came to the burst. A peer may say anything about it.
fn take(arrived: &mut Arrived, pool: &mut Pool, burst: &mut Burst) -> Result<(), Reason> {
    let (tci, offload) = FrameHeader::read(arrived.head())?;
    let head = arrived.head()[FRAME_HEADER_BYTES..].as_ptr().cast_mut();
    let head_bytes = arrived.head().len() - FRAME_HEADER_BYTES;
    let mut segments = [Segment { addr: head, len: head_bytes as u32 }; 2];
    let mut count = 1;
    if let Some((buffer, len_bytes)) = arrived.body {
        let body = pool.bytes_mut(buffer).as_mut_ptr();
        segments[1] = Segment { addr: body, len: len_bytes as u32 };
        count = 2;
    }
    // SAFETY: the slot of the inbox and the buffer stay where they are, and they are not written to
    // until they are given back, which the port does after the burst was cleared.
    let frame = unsafe { burst.push(&segments[..count], 0) }?;
    frame.offload = offload;
    frame.set_tci(tci);
    // The tag was taken off by the other end.
    let checked = frame.check_tag().and_then(|()| frame.accept(&Offers::ALL));
    if checked.is_err() {
        burst.pop();
    }
    checked
}

fn send(
    cable: &Cable,
    plugged: Plugged,
    frame: &Frame,
    tci: u16,
    burst: &Burst,
    now_ns: u64,
) -> Result<(), Reason> {
    let mut offload = [0; OFFLOAD_BYTES];
    frame.offload.write(frame.head(), 0, &mut offload);
    let mut head = [0; HEAD_MAX];
    FrameHeader { membership: plugged.membership, tci, offload }.write(&mut head);
    let first_bytes = frame.head().len().min(FIRST_BYTES_MAX);
    let head = &mut head[..FRAME_HEADER_BYTES + first_bytes];
    head[FRAME_HEADER_BYTES..].copy_from_slice(&frame.head()[..first_bytes]);
    let endpoint = &mut *cable.endpoint.borrow_mut();
    let Plugged { session, flow, .. } = plugged;
    if endpoint.casts_waiting_bytes(session, flow) >= MARK_BYTES {
        let is_marked = mark::congestion(&mut head[FRAME_HEADER_BYTES..]);
        cable.core.marked.add(u64::from(is_marked));
    }
    let body_bytes = frame.len_bytes() - first_bytes;
    let mut body = None;
    if body_bytes > 0 {
        let pool = endpoint.pool_mut();
        let buffer = pool.alloc(body_bytes).ok_or(Reason::NoRoom)?;
        let (of_head, rest) = pool.bytes_mut(buffer).split_at_mut(frame.head().len() - first_bytes);
        of_head.copy_from_slice(&frame.head()[first_bytes..]);
        burst.read_body(frame, 0, rest);
        cable.core.bytes_copied.add(body_bytes as u64);
        body = Some((buffer, body_bytes));
    }
    let cast = endpoint.cast(now_ns, session, flow, head, body);
    if let Some((buffer, _)) = body {
        endpoint.pool_mut().release(buffer);
    }
    cast.map_err(|error| match error {
        CastError::Full => Reason::NoRoom,
        CastError::NotConnected | CastError::Version => Reason::LinkDown,
    })
}
