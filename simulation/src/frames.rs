//! Frames beside the disks. Each end of a session casts a frame now and then. The receiver checks
//! that the frame is whole and unchanged, and later than those before it.

use std::collections::BTreeMap;

use peer::Planes;
use transport::{BufId, CallId, Endpoint, LostReason, PeerInfo, SessionId, Sink};

use super::network::NetworkCounts;

/// The flow of casts that is used.
const FLOW: u16 = 7;

/// How often each end of a session casts one, when it runs anyway. Seldom: seeds are many.
const EVERY_NS: u64 = 200_000_000;

/// The longest body: a segment of a guest's.
const BYTES_MAX: u64 = 64 << 10;

#[derive(Debug, Default)]
struct FrameLink {
    is_open: bool,
    sent: u64,
    heard: Option<u64>,
}

/// The frames of one sidecore.
#[derive(Debug, Default)]
pub(super) struct Frames {
    ways: BTreeMap<SessionId, FrameLink>,
    /// Bodies that came, with their numbers.
    came: Vec<(u64, BufId, usize)>,
    received: u64,
    at_ns: u64,
}

fn length(number: u64) -> usize {
    let scattered = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    if scattered.is_multiple_of(4) { (scattered % BYTES_MAX) as usize } else { 0 }
}

fn byte(number: u64, at: usize) -> u8 {
    (number as usize ^ at.wrapping_mul(31)) as u8
}

impl Frames {
    /// Looks at what came, and casts what is due.
    pub(super) fn work(
        &mut self,
        now_ns: u64,
        endpoint: &mut Endpoint,
        counts: &mut NetworkCounts,
    ) {
        counts.frames_received += std::mem::take(&mut self.received);
        for (number, buffer, len_bytes) in self.came.drain(..) {
            let bytes = &endpoint.pool().bytes(buffer)[..len_bytes];
            assert_eq!(len_bytes, length(number), "frame {number} is whole");
            let is_right = |(at, found): (usize, &u8)| *found == byte(number, at);
            assert!(bytes.iter().enumerate().all(is_right), "frame {number} is as it was sent");
            endpoint.pool_mut().release(buffer);
        }
        let is_due = now_ns >= self.at_ns;
        if is_due {
            self.at_ns = now_ns + EVERY_NS;
        }
        for (session, way) in &mut self.ways {
            if !std::mem::replace(&mut way.is_open, true) {
                endpoint.open_casts(*session, FLOW);
            }
            if is_due {
                counts.frames_sent += 1;
                cast(now_ns, endpoint, *session, way.sent);
                way.sent += 1;
            }
        }
    }
}

fn cast(now_ns: u64, endpoint: &mut Endpoint, session: SessionId, number: u64) {
    let len_bytes = length(number);
    let mut body = None;
    if len_bytes > 0 {
        // Without a buffer it is lost here.
        let Some(buffer) = endpoint.pool_mut().alloc(len_bytes) else { return };
        let bytes = endpoint.pool_mut().bytes_mut(buffer);
        bytes.iter_mut().enumerate().for_each(|(at, place)| *place = byte(number, at));
        body = Some((buffer, len_bytes));
    }
    // A frame that finds no room is lost as well.
    let _ = endpoint.cast(now_ns, session, FLOW, &number.to_le_bytes(), body);
    if let Some((buffer, _)) = body {
        endpoint.pool_mut().release(buffer);
    }
}

/// A sidecore's planes and its frames, as the sink of its sessions.
pub(super) struct Beside<'a> {
    pub(super) planes: &'a mut Planes,
    pub(super) frames: &'a mut Frames,
}

impl Sink for Beside<'_> {
    fn connected(&mut self, session: SessionId, peer: &PeerInfo) {
        self.frames.ways.insert(session, FrameLink::default());
        self.planes.connected(session, peer);
    }

    fn lost(&mut self, session: SessionId, why: &LostReason) {
        self.frames.ways.remove(&session);
        self.planes.lost(session, why);
    }

    fn reply_body(&mut self, session: SessionId, token: u64, offset: usize, bytes: &[u8]) {
        self.planes.reply_body(session, token, offset, bytes);
    }

    fn reply(&mut self, session: SessionId, token: u64, head: &[u8], body_bytes: usize) {
        self.planes.reply(session, token, head, body_bytes);
    }

    fn call(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        self.planes.call(session, flow, call, head, body);
    }

    fn cast(&mut self, session: SessionId, flow: u16, head: &[u8], body: Option<(BufId, usize)>) {
        assert_eq!(flow, FLOW);
        let number = u64::from_le_bytes(head.try_into().expect("a frame of ours"));
        let way = self.frames.ways.get_mut(&session).expect("a session that is there");
        let before = way.heard.replace(number);
        assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
        assert!(body.is_some() == (length(number) > 0), "frame {number} is whole");
        self.frames.received += 1;
        self.frames.came.extend(body.map(|(buffer, len_bytes)| (number, buffer, len_bytes)));
    }
}
