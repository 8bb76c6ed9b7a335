//! All sessions of one sidecore.

use std::net::SocketAddr;

use crate::config::EndpointConfig;
use crate::counters::EndpointCounters;
use crate::events::{CallError, CallId, SessionId, SessionStatus, Sink};
use crate::pool::{BufId, Pool};
use crate::transmit::TransmitBatch;

/// The sessions of one sidecore, their timers and their buffers. One thread owns it.
#[derive(Debug)]
pub struct Endpoint {
    pool: Pool,
    counters: EndpointCounters,
    next_session: u64,
}

impl Endpoint {
    /// An endpoint without sessions.
    pub fn new(config: EndpointConfig) -> Self {
        let config = config.checked();
        Self {
            pool: Pool::new(config.pool_bytes_max),
            counters: EndpointCounters::default(),
            next_session: 0,
        }
    }

    /// The buffers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The buffers, to allocate bodies from and to release them.
    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Asks the node at `peer` (its first sidecore's address) for the session number `index`
    /// between the two nodes, and asks again for ever, at most every 100 ms. A peer of another name
    /// than `expected_name` is refused; an empty one stands for any.
    pub fn connect(
        &mut self,
        now_ns: u64,
        peer: SocketAddr,
        expected_name: &str,
        index: u16,
    ) -> SessionId {
        let _ = (now_ns, peer, expected_name, index);
        self.next_session += 1;
        SessionId(self.next_session)
    }

    /// Forgets a session and tells the peer once. The sink hears nothing.
    pub fn close(&mut self, now_ns: u64, session: SessionId) {
        let _ = (now_ns, session);
    }

    /// Sends a call. `head` has at most [`HEAD_MAX`](crate::HEAD_MAX) bytes; the body is the first
    /// so many bytes of a pool buffer, at most [`MESSAGE_MAX`](crate::MESSAGE_MAX), to which the
    /// endpoint takes a reference of its own. `token` comes back with the reply.
    ///
    /// # Errors
    /// [`CallError::Full`] or [`CallError::NotConnected`]; nothing was taken then.
    pub fn call(
        &mut self,
        now_ns: u64,
        session: SessionId,
        flow: u16,
        token: u64,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) -> Result<(), CallError> {
        let _ = (now_ns, session, flow, token, head, body);
        Err(CallError::NotConnected)
    }

    /// Drops the events of an outstanding call from now on. The call itself goes on.
    pub fn forget(&mut self, session: SessionId, token: u64) {
        let _ = (session, token);
    }

    /// Answers a call, once.
    ///
    /// # Errors
    /// [`CallError::NotConnected`] when the session is gone. Never `Full`.
    pub fn reply(
        &mut self,
        now_ns: u64,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) -> Result<(), CallError> {
        let _ = (now_ns, call, head, body);
        Err(CallError::NotConnected)
    }

    /// Takes one datagram.
    pub fn receive(&mut self, now_ns: u64, from: SocketAddr, datagram: &[u8], sink: &mut dyn Sink) {
        let _ = (now_ns, from, sink);
        self.counters.datagrams_received += 1;
        self.counters.bytes_received += datagram.len() as u64;
    }

    /// Adds datagrams to a batch until it is full or nothing more may be sent now.
    pub fn transmit(&mut self, now_ns: u64, out: &mut TransmitBatch) {
        let _ = now_ns;
        out.prepare(&mut self.pool);
    }

    /// Does what is due: losses, probes, time-outs. Call it each round, after receiving.
    pub fn advance(&mut self, now_ns: u64, sink: &mut dyn Sink) {
        let _ = (now_ns, sink);
    }

    /// When `advance` is due next.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        None
    }

    /// All sessions, for `vrio status`.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> {
        std::iter::empty()
    }

    /// The counters.
    pub fn counters(&self) -> &EndpointCounters {
        &self.counters
    }
}
