//! Sessions between simulated nodes: one binary, since all of it shares one world.

mod common;
mod exchange;
mod handshake;
mod hostile;
mod limits;
