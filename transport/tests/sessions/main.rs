//! Sessions between simulated nodes: one binary, since all of it shares one world.

mod acks;
mod casts;
mod common;
mod exchange;
mod greedy;
mod handshake;
mod hostile;
mod limits;
mod path;
mod plain;
mod shares;
mod strange;

/// Whether the world's nodes seal; `tests/sealed` runs the same tests the other way.
const SEALED: bool = false;
