//! Sealed sessions between simulated nodes: the tests of plain ones, and tests of sealing alone.

#[path = "../sessions/casts.rs"]
mod casts;
#[path = "../sessions/common/mod.rs"]
mod common;
#[path = "../sessions/exchange.rs"]
mod exchange;
mod flood;
#[path = "../sessions/greedy.rs"]
mod greedy;
#[path = "../sessions/handshake.rs"]
mod handshake;
mod keys;
#[path = "../sessions/limits.rs"]
mod limits;
mod packets;
#[path = "../sessions/path.rs"]
mod path;

const SEALED: bool = true;
