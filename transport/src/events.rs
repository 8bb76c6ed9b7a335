//! The events that an endpoint reports to its owner, and the handles in them.

use std::net::SocketAddr;

use crate::keys::PublicKey;
use crate::pool::BufId;

/// A session of one endpoint. Never reused within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub(crate) u64);

/// A call of the peer that waits for its reply. Useless, but harmless, once its session is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    pub(crate) session: SessionId,
    pub(crate) id: u64,
}

impl CallId {
    /// The session that it came by.
    pub fn session(&self) -> SessionId {
        self.session
    }
}

/// The identity of the other end. In a plain session the peer claims it without proof; in a sealed
/// session the peer has proved that the key is its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The node's name.
    pub name: String,
    /// Drawn anew whenever the peer's process starts.
    pub process_nonce: u64,
    /// Where its datagrams come from and go to.
    pub addr: SocketAddr,
    /// The protocol version that both agreed on.
    pub version: u8,
    /// The session's index between the two nodes.
    pub index: u16,
    /// Whether we asked for the session.
    pub outgoing: bool,
    /// The peer's key, when the session is sealed.
    pub key: Option<PublicKey>,
    /// Names this session and no other, the same at both ends, when it is sealed (the hash of the
    /// handshake); zeros when it is plain. A signature over it is of no use in another session.
    pub binding: [u8; 32],
}

/// Why a session is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LostReason {
    /// The peer does not know the session: its process is another one now.
    #[error("the peer was restarted")]
    Reset,
    /// Nothing was heard for too long.
    #[error("the peer is silent")]
    Silent,
    /// The peer closed it.
    #[error("the peer closed the session")]
    Closed,
    /// The same peer opened a newer session with the same index.
    #[error("the peer opened a newer session in its place")]
    Replaced,
    /// Datagrams of so many bytes, without the headers of UDP and IP, do not arrive any more, while
    /// smaller ones do. The next session finds out what does.
    #[error("the network path to the peer passes no datagrams of {0} bytes any more")]
    PathShrank(usize),
    /// The peer's key is not good any more: it was removed, or it expired.
    #[error("revoked: {0}")]
    Revoked(String),
    /// There never was a session, and trying again without a change will not help.
    #[error("refused: {0}")]
    Refused(String),
}

/// Takes events while an endpoint works. It must only note things down: it cannot call the
/// endpoint.
pub trait Sink {
    /// A session is usable, in both directions.
    fn connected(&mut self, session: SessionId, peer: &PeerInfo);

    /// A session is over; said exactly once for each that was connected, and for each `connect`
    /// that was refused. The outcome of every call that waits for its reply is unknown. Not said
    /// when the owner itself closes a session.
    fn lost(&mut self, session: SessionId, why: &LostReason);

    /// A piece of a reply's body, at `offset_bytes` of it: verified by checksum, each byte once, in
    /// any order. The bytes are gone when this returns.
    fn reply_body(&mut self, session: SessionId, token: u64, offset_bytes: usize, bytes: &[u8]);

    /// A reply is complete: all of its body, `body_bytes` long, was handed over before. The call is
    /// over and its token is free.
    fn reply(&mut self, session: SessionId, token: u64, head: &[u8], body_bytes: usize);

    /// A call arrived. The body is in the pool, in one piece; the sink has one reference to it
    /// which its owner must release, at the latest when the call is answered or the session lost.
    fn call(
        &mut self,
        session: SessionId,
        flow: u16,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    );

    /// A cast arrived, by a flow that [`Endpoint::open_casts`](crate::Endpoint::open_casts) has
    /// opened, after all earlier ones of it that arrive at all. The body is in the pool; the sink
    /// has one reference to it, which its owner must release.
    fn cast(&mut self, session: SessionId, flow: u16, head: &[u8], body: Option<(BufId, usize)>) {
        let _ = (session, head, body);
        unreachable!("flow {flow} was opened by an owner that takes no casts");
    }
}

/// Why a call or a reply was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// As many calls as the session has room for wait for their replies. Try after the next reply.
    #[error("the session has no room for another call")]
    Full,
    /// There is no such session, or not yet.
    #[error("the session is not connected")]
    NotConnected,
}

/// Why a cast was not taken; it is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CastError {
    /// Too much of its flow, or of the session, waits to be sent, or to arrive.
    #[error("the session has no room for another cast")]
    Full,
    /// There is no such session, or not yet.
    #[error("the session is not connected")]
    NotConnected,
    /// The session's version has no casts.
    #[error("the peer speaks an older protocol, which has no casts")]
    Version,
}

/// How far a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// We ask, and go on asking.
    Connecting,
    /// The peer asked; it has not yet shown that it got our answer.
    HalfOpen,
    /// In use.
    Connected,
}

/// One line of `vrio status`.
#[derive(Clone, Debug)]
pub struct SessionStatus {
    /// Which.
    pub session: SessionId,
    /// How far it is.
    pub state: SessionState,
    /// The other end; while connecting, the name that is expected of it, and zeros.
    pub peer: PeerInfo,
    /// Smoothed round trip, without the peer's own waiting; 0 before the first sample.
    pub round_trip_ns: u64,
    /// Bytes sent and neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// How many may be.
    pub window_bytes: u64,
    /// The largest datagram of the session.
    pub datagram_bytes_max: usize,
    /// Our calls that wait for their replies.
    pub calls_outstanding: usize,
    /// The peer's calls that we have not answered in full.
    pub calls_serving: usize,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets received and valid.
    pub packets_received: u64,
    /// Packets taken for lost, whose content was sent again.
    pub packets_lost: u64,
    /// Memory of the session's tables and keys, without bodies. Tables grow as they are needed, and
    /// shrink when nothing was said for seconds.
    pub state_bytes: usize,
}
