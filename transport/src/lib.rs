//! Sessions between nodes: the protocol, without sockets, threads, clock or unsafe code.
//!
//! An [`Endpoint`] holds all sessions of one sidecore. Datagrams and time go in
//! ([`Endpoint::receive`], [`Endpoint::advance`]), datagrams and events come out
//! ([`Endpoint::transmit`], [`Sink`]). A call is delivered at most once, and answered at most once,
//! in the life of a session; when a session is lost, the outcome of what was outstanding is
//! unknown, and the plane above decides. A cast may be lost by itself: frames of a network are sent
//! again for a while, and never arrive out of their order.
//!
//! The files, in the order of a call's way: `endpoint` finds the session, `sendq` queues and cuts
//! the message, `session/outgoing` makes packets of it, `seal` encrypts them, `sent` remembers them
//! until `ack` says that they arrived, `session/incoming` takes them apart at the other side,
//! `recv` puts the message together in a buffer of the `pool`.
//!
//! How a session comes to be is in `handshake`; `noise` is its cryptography, `keys` has the nodes
//! that may connect, `door` keeps strangers from costing much, and `path` finds how large datagrams
//! may be.
#![forbid(unsafe_code)]

mod ack;
mod bits;
mod config;
mod congestion;
mod counters;
mod crc;
mod deadlines;
mod door;
mod endpoint;
mod events;
mod flow;
mod handshake;
mod keys;
mod limits;
mod noise;
mod pacing;
mod path;
mod pool;
mod quota;
mod recv;
mod rtt;
mod seal;
mod sendq;
mod sent;
mod session;
mod strangers;
mod tables;
mod transmit;
mod wire;

pub use config::EndpointConfig;
pub use counters::EndpointCounters;
pub use endpoint::{Endpoint, PeerShare};
pub use events::{
    CallError, CallId, CastError, LostReason, PeerInfo, SessionId, SessionState, SessionStatus,
    Sink,
};
pub use keys::{
    KEY_BYTES, KEYS_MAX, Keyring, KeyringFull, KnownKey, NotAKey, PublicKey, SecretKey, Security,
};
pub use limits::{CALLS_MAX, SESSIONS_MAX};
pub use pool::{BufId, CHUNK_BYTES, CLASS_BYTES, ChunkMemory, PAGE_BYTES, Pool, PoolMemory};
pub use quota::{FairQueue, PeerIdentity, PeerNumbers, QuotaPart, Rate, RollEntry, Share};
pub use strangers::{STRANGERS_MAX, Stranger, StrangerReason, Strangers};
pub use transmit::{DATAGRAM_HEAD_MAX, Datagram, TransmitBatch};
pub use wire::{
    CAST_MAX, CAST_WINDOW, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, FLOWS_MAX, HEAD_MAX,
    MESSAGE_MAX, NAME_BYTES_MAX, PROTOCOL_VERSION, ProtocolVersion, VERSIONS,
};
