//! A node's application: it calls, it serves, and it checks what it is told.
//!
//! A call's head describes the whole call: the caller, the lengths, and the places in a common
//! table from which its body and the reply's are taken. So either side can check every byte without
//! state.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::OnceLock;

use transport::{
    BufId, CallError, CallId, Endpoint, LostReason, MESSAGE_MAX, PeerInfo, SessionId, Sink,
};

use super::MS;
use super::frames::Frames;
use random::Random;

/// Bodies are slices of this.
pub(crate) fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut random = Random::new(42);
        let bytes = MESSAGE_MAX + 4096;
        (0..bytes / 8).flat_map(|_| random.draw().to_le_bytes()).collect()
    })
}

/// A call, as the application orders it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) token: u64,
    pub(crate) flow: u16,
    pub(crate) call_bytes: usize,
    pub(crate) reply_bytes: usize,
    pub(crate) head_bytes: usize,
    /// Where in the table the bodies begin.
    pub(crate) start: usize,
}

pub(crate) const ORDER_BYTES: usize = 32;

impl Order {
    pub(crate) fn write(&self) -> Vec<u8> {
        let mut head = Vec::with_capacity(self.head_bytes);
        head.extend_from_slice(&self.token.to_le_bytes());
        head.extend_from_slice(&(self.call_bytes as u32).to_le_bytes());
        head.extend_from_slice(&(self.reply_bytes as u32).to_le_bytes());
        head.extend_from_slice(&(self.start as u32).to_le_bytes());
        head.extend_from_slice(&(self.head_bytes as u32).to_le_bytes());
        head.extend_from_slice(&u64::from(self.flow).to_le_bytes());
        head.resize(self.head_bytes.max(ORDER_BYTES), self.token as u8);
        head
    }

    fn read(head: &[u8]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes")) as usize
        };
        let order = Self {
            token: u64::from_le_bytes(head[..8].try_into().expect("eight bytes")),
            call_bytes: word(8),
            reply_bytes: word(12),
            start: word(16),
            head_bytes: word(20),
            flow: word(24) as u16,
        };
        assert_eq!(order.write(), head, "the head arrived as it was sent");
        order
    }
}

/// A call that waits for its reply.
#[derive(Debug)]
struct Outstanding {
    order: Order,
    session: SessionId,
    /// Pieces of the reply's body: offset and length.
    pieces: Vec<(usize, usize)>,
}

/// A call that is being served.
#[derive(Debug)]
struct Serving {
    ready_ns: u64,
    call: CallId,
    order: Order,
    body: Option<BufId>,
}

/// The beginning or the end of a session.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    Connected(SessionId, PeerInfo),
    Lost(SessionId, LostReason),
}

/// See the module.
pub(crate) struct App {
    random: Random,
    now_ns: u64,
    /// Connected sessions that it calls on.
    pub(crate) sessions: Vec<SessionId>,
    /// Sessions that it asks for, and asks for again when they are lost.
    wanted: Vec<(SessionId, SocketAddr, String)>,
    pub(crate) reconnects: bool,
    pub(crate) events: Vec<(u64, Event)>,
    /// Calls to make, in order.
    pub(crate) orders: VecDeque<Order>,
    outstanding: HashMap<u64, Outstanding>,
    pub(crate) outstanding_max: usize,
    serving: Vec<Serving>,
    /// How long it serves, at most.
    pub(crate) serve_ns: u64,
    /// Never answers.
    pub(crate) is_mute: bool,
    /// Calls executed, by session: at most once each.
    executed: HashSet<(SessionId, u64)>,
    pub(crate) executed_count: u64,
    pub(crate) replies: u64,
    /// Calls whose session was lost.
    pub(crate) unknown: Vec<Order>,
    pub(crate) full: u64,
    pub(crate) pool_empty: u64,
    to_release: Vec<BufId>,
    next_token: u64,
    /// Tokens in the order of their replies.
    pub(crate) finished: Vec<u64>,
    pub(crate) buffers_max: usize,
    /// The frames that it casts, and those that came.
    pub(crate) frames: Frames,
}

impl App {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            now_ns: 0,
            sessions: Vec::new(),
            wanted: Vec::new(),
            reconnects: false,
            events: Vec::new(),
            orders: VecDeque::new(),
            outstanding: HashMap::new(),
            outstanding_max: usize::MAX,
            serving: Vec::new(),
            serve_ns: 0,
            is_mute: false,
            executed: HashSet::new(),
            executed_count: 0,
            replies: 0,
            unknown: Vec::new(),
            full: 0,
            pool_empty: 0,
            to_release: Vec::new(),
            next_token: 1,
            finished: Vec::new(),
            buffers_max: 0,
            frames: Frames::default(),
        }
    }

    /// A new process: served calls and ordered sessions are gone, the counts stay.
    pub(crate) fn restarted(&mut self, seed: u64) {
        self.random = Random::new(seed);
        self.sessions.clear();
        self.wanted.clear();
        self.events.clear();
        self.serving.clear();
        self.to_release.clear();
        self.outstanding.clear();
        self.executed.clear();
        self.frames.restarted();
    }

    pub(crate) fn connecting(&mut self, session: SessionId, to: SocketAddr, name: &str) {
        self.wanted.push((session, to, name.to_owned()));
    }

    /// Adds a call to make.
    pub(crate) fn order(&mut self, flow: u16, call_bytes: usize, reply_bytes: usize) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let head_bytes = ORDER_BYTES + self.random.below(161) as usize;
        let start = self.random.below(4096) as usize;
        self.orders.push_back(Order { token, flow, call_bytes, reply_bytes, head_bytes, start });
        token
    }

    /// Nothing to do and nothing awaited.
    pub(crate) fn is_done(&self) -> bool {
        self.orders.is_empty()
            && self.outstanding.is_empty()
            && self.serving.is_empty()
            && self.frames.is_done()
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    pub(crate) fn connected_count(&self) -> usize {
        self.events.iter().filter(|(_, event)| matches!(event, Event::Connected(..))).count()
    }

    pub(crate) fn losses(&self) -> Vec<LostReason> {
        let lost = |(_, event): &(u64, Event)| match event {
            Event::Lost(_, why) => Some(why.clone()),
            Event::Connected(..) => None,
        };
        self.events.iter().filter_map(lost).collect()
    }

    pub(crate) fn next_ns(&self) -> u64 {
        if self.is_mute {
            return u64::MAX;
        }
        let ready_ns = self.serving.iter().map(|serving| serving.ready_ns).min();
        ready_ns.unwrap_or(u64::MAX).min(self.frames.next_ns())
    }

    pub(crate) fn work(&mut self, now_ns: u64, endpoint: &mut Endpoint) {
        self.now_ns = now_ns;
        for body in self.to_release.drain(..) {
            endpoint.pool_mut().release(body);
        }
        self.buffers_max = self.buffers_max.max(endpoint.pool().in_use());
        self.reconnect(now_ns, endpoint);
        self.answer(now_ns, endpoint);
        self.call_out(now_ns, endpoint);
        self.frames.work(now_ns, endpoint);
    }

    fn reconnect(&mut self, now_ns: u64, endpoint: &mut Endpoint) {
        let lost: Vec<SessionId> = self
            .events
            .iter()
            .filter_map(|(_, event)| match event {
                Event::Lost(session, _) => Some(*session),
                Event::Connected(..) => None,
            })
            .collect();
        for (session, to, name) in &mut self.wanted {
            if self.reconnects && lost.contains(session) {
                *session = endpoint.connect(now_ns, *to, name, 0);
            }
        }
    }

    fn answer(&mut self, now_ns: u64, endpoint: &mut Endpoint) {
        if self.is_mute {
            return;
        }
        let mut index = 0;
        while index < self.serving.len() {
            if self.serving[index].ready_ns > now_ns {
                index += 1;
                continue;
            }
            let order = self.serving[index].order;
            if let Some(buffer) = self.serving[index].body {
                let bytes = &table()[order.start..order.start + order.call_bytes];
                assert!(endpoint.pool().bytes(buffer) == bytes, "the call's body is right");
            }
            let mut reply_body = None;
            if order.reply_bytes > 0 {
                let session = self.serving[index].call.session();
                match endpoint.buffer_for(session, order.reply_bytes) {
                    Ok(buffer) => {
                        let bytes = &table()[order.start..order.start + order.reply_bytes];
                        endpoint.pool_mut().bytes_mut(buffer).copy_from_slice(bytes);
                        reply_body = Some((buffer, order.reply_bytes));
                    }
                    Err(CallError::Full) => {
                        self.pool_empty += 1;
                        self.serving[index].ready_ns = now_ns + MS;
                        index += 1;
                        continue;
                    }
                    // The caller is gone.
                    Err(CallError::NotConnected) => {}
                }
            }
            let serving = self.serving.swap_remove(index);
            let answered = endpoint.reply(now_ns, serving.call, &order.write(), reply_body);
            assert!(matches!(answered, Ok(()) | Err(CallError::NotConnected)));
            for buffer in serving.body.into_iter().chain(reply_body.map(|(buffer, _)| buffer)) {
                endpoint.pool_mut().release(buffer);
            }
        }
    }

    fn call_out(&mut self, now_ns: u64, endpoint: &mut Endpoint) {
        while self.outstanding.len() < self.outstanding_max {
            let (Some(&order), false) = (self.orders.front(), self.sessions.is_empty()) else {
                return;
            };
            let session = self.sessions[order.token as usize % self.sessions.len()];
            let mut body = None;
            if order.call_bytes > 0 {
                let Some(buffer) = endpoint.pool_mut().alloc(order.call_bytes) else {
                    self.pool_empty += 1;
                    return;
                };
                let bytes = &table()[order.start..order.start + order.call_bytes];
                endpoint.pool_mut().bytes_mut(buffer).copy_from_slice(bytes);
                body = Some((buffer, order.call_bytes));
            }
            let head = order.write();
            let called = endpoint.call(now_ns, session, order.flow, order.token, &head, body);
            if let Some((buffer, _)) = body {
                endpoint.pool_mut().release(buffer);
            }
            match called {
                Ok(()) => {
                    self.orders.pop_front();
                    let outstanding = Outstanding { order, session, pieces: Vec::new() };
                    assert!(self.outstanding.insert(order.token, outstanding).is_none());
                }
                Err(CallError::Full) => {
                    self.full += 1;
                    return;
                }
                Err(CallError::NotConnected) => panic!("called on a session that was lost"),
            }
        }
    }
}

impl Sink for App {
    fn connected(&mut self, session: SessionId, peer: &PeerInfo) {
        self.frames.connected(session);
        let event = Event::Connected(session, peer.clone());
        assert!(!self.sessions.contains(&session), "connected once");
        self.events.push((self.now_ns, event));
        if peer.outgoing {
            self.sessions.push(session);
        }
    }

    fn lost(&mut self, session: SessionId, why: &LostReason) {
        let is_again = self
            .events
            .iter()
            .any(|(_, event)| matches!(event, Event::Lost(earlier, _) if *earlier == session));
        assert!(!is_again, "lost once");
        self.events.push((self.now_ns, Event::Lost(session, why.clone())));
        self.sessions.retain(|&known| known != session);
        self.frames.lost(session);
        let unknown = &mut self.unknown;
        self.outstanding.retain(|_, outstanding| {
            if outstanding.session == session {
                unknown.push(outstanding.order);
            }
            outstanding.session != session
        });
    }

    fn reply_body(&mut self, session: SessionId, token: u64, offset_bytes: usize, bytes: &[u8]) {
        let outstanding = self.outstanding.get_mut(&token).expect("a call of ours");
        assert_eq!(outstanding.session, session);
        let first = outstanding.order.start + offset_bytes;
        assert!(table()[first..first + bytes.len()] == *bytes, "the reply's body is right");
        outstanding.pieces.push((offset_bytes, bytes.len()));
    }

    fn reply(&mut self, session: SessionId, token: u64, head: &[u8], body_bytes: usize) {
        let mut outstanding = self.outstanding.remove(&token).expect("answered once");
        assert_eq!(outstanding.session, session);
        assert_eq!(Order::read(head), outstanding.order);
        assert_eq!(body_bytes, outstanding.order.reply_bytes);
        outstanding.pieces.sort_unstable();
        let mut next = 0;
        for (first, len) in outstanding.pieces {
            assert_eq!(first, next, "each byte of a reply once");
            next = first + len;
        }
        assert_eq!(next, body_bytes, "all of the reply");
        self.replies += 1;
        self.finished.push(token);
    }

    fn call(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) {
        let order = Order::read(head);
        assert_eq!(call.session(), session);
        assert_eq!((flow, body.map_or(0, |(_, len)| len)), (order.flow, order.call_bytes));
        assert!(self.executed.insert((session, order.token)), "delivered once");
        self.executed_count += 1;
        let ready_ns = self.now_ns + self.random.below(self.serve_ns + 1);
        self.serving.push(Serving { ready_ns, call, order, body: body.map(|(buffer, _)| buffer) });
    }

    fn cast(&mut self, session: SessionId, flow: u16, head: &[u8], body: Option<(BufId, usize)>) {
        self.frames.arrived(session, flow, head, body);
    }
}
