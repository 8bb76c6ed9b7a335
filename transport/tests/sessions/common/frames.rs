//! The casts of an application, and those that came. Every frame is checked: it is whole, and none
//! comes twice or before an earlier one of its flow.

use std::collections::{BTreeMap, VecDeque};

use transport::{BufId, CastError, Endpoint, HEAD_MAX, SessionId};

use super::app::table;

/// A frame to be cast.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToCast {
    /// Not before.
    pub(crate) at_ns: u64,
    pub(crate) flow: u16,
    pub(crate) body_bytes: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Frames {
    pub(crate) sessions: Vec<SessionId>,
    /// To be cast, in order of their time.
    pub(crate) to_cast: VecDeque<ToCast>,
    /// The last number cast, and the last that came, by flow.
    cast: BTreeMap<u16, u64>,
    heard: BTreeMap<(SessionId, u16), u64>,
    /// Which flows to listen to.
    pub(crate) flows: Vec<u16>,
    opened: Vec<(SessionId, u16)>,
    arrived: Vec<(u64, Option<(BufId, usize)>)>,
    pub(crate) sent: u64,
    pub(crate) refused: u64,
    pub(crate) received: u64,
    /// Heads are as short as they can be, so that a packet has as many as it may; at both ends.
    pub(crate) has_short_heads: bool,
    /// Nothing that came is released.
    pub(crate) holds: bool,
    /// How long each frame that came was on its way.
    pub(crate) delays_ns: Vec<u64>,
    now_ns: u64,
}

/// Number, time and flow, and then bytes that follow from them unless the head must be short.
fn head(number: u64, at_ns: u64, flow: u16, is_short: bool) -> Vec<u8> {
    let mut head = number.to_le_bytes().to_vec();
    head.extend(at_ns.to_le_bytes());
    head.extend(flow.to_le_bytes());
    if !is_short {
        head.resize(18 + (number as usize * 7) % (HEAD_MAX - 17), number as u8);
    }
    head
}

fn body(number: u64, bytes: usize) -> &'static [u8] {
    &table()[(number % 4096) as usize..][..bytes]
}

impl Frames {
    pub(crate) fn is_done(&self) -> bool {
        self.to_cast.is_empty() && (self.arrived.is_empty() || self.holds)
    }

    pub(crate) fn next_ns(&self) -> u64 {
        self.to_cast.front().map_or(u64::MAX, |frame| frame.at_ns)
    }

    /// The frames that came by a flow are numbered anew when either end is.
    pub(crate) fn restarted(&mut self) {
        *self = Self { flows: std::mem::take(&mut self.flows), ..Self::default() };
    }

    pub(crate) fn connected(&mut self, session: SessionId) {
        self.sessions.push(session);
    }

    pub(crate) fn lost(&mut self, session: SessionId) {
        self.sessions.retain(|known| *known != session);
    }

    pub(crate) fn work(&mut self, now_ns: u64, endpoint: &mut Endpoint) {
        self.now_ns = now_ns;
        for (number, body) in self.arrived.drain(..) {
            let Some((buffer, len_bytes)) = body else { continue };
            assert!(*endpoint.pool().bytes(buffer) == *self::body(number, len_bytes), "as sent");
            if !self.holds {
                endpoint.pool_mut().release(buffer);
            }
        }
        for session in &self.sessions {
            for flow in &self.flows {
                if !self.opened.contains(&(*session, *flow)) {
                    self.opened.push((*session, *flow));
                    endpoint.open_casts(*session, *flow);
                }
            }
        }
        let Some(&session) = self.sessions.last() else { return };
        while let Some(frame) = self.to_cast.pop_front_if(|frame| frame.at_ns <= now_ns) {
            self.cast_one(now_ns, endpoint, session, frame);
        }
    }

    fn cast_one(
        &mut self,
        now_ns: u64,
        endpoint: &mut Endpoint,
        session: SessionId,
        frame: ToCast,
    ) {
        let number = self.cast.entry(frame.flow).and_modify(|number| *number += 1).or_default();
        let mut body = None;
        if frame.body_bytes > 0 {
            let Some(buffer) = endpoint.pool_mut().alloc(frame.body_bytes) else {
                self.refused += 1;
                return;
            };
            let bytes = self::body(*number, frame.body_bytes);
            endpoint.pool_mut().bytes_mut(buffer).copy_from_slice(bytes);
            body = Some((buffer, frame.body_bytes));
        }
        let head = head(*number, frame.at_ns, frame.flow, self.has_short_heads);
        match endpoint.cast(now_ns, session, frame.flow, &head, body) {
            Ok(()) => self.sent += 1,
            Err(CastError::Full) => self.refused += 1,
            Err(error) => panic!("{error}"),
        }
        if let Some((buffer, _)) = body {
            endpoint.pool_mut().release(buffer);
        }
    }

    pub(crate) fn arrived(
        &mut self,
        session: SessionId,
        flow: u16,
        bytes: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        assert!(self.flows.contains(&flow), "nobody listens to flow {flow}");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (number, at_ns) = (word(0), word(8));
        let head = head(number, at_ns, flow, self.has_short_heads);
        assert_eq!(bytes, head, "the head as it was sent");
        // To a round's length: an arrival is noted before the round's time is.
        self.delays_ns.push(self.now_ns.saturating_sub(at_ns));
        let before = self.heard.insert((session, flow), number);
        assert!(before.is_none_or(|before| before < number), "{number} after {before:?}");
        self.received += 1;
        self.arrived.push((number, body));
    }
}
