//! Hostile input for everything that guests, peers, files and people can reach: one module for each
//! boundary, with a function that takes any bytes, and panics when a promise is broken.
//!
//! The absence of a panic is not enough. Each target has a model, or an honest peer beside the
//! hostile one. For instance, a ring's chains are compared with a plain reading of the ring's
//! memory, buffers are counted when a session has ended, and the honest peer's work continues.
//!
//! `fuzz/libfuzzer` runs the targets for any time (`scripts/fuzz`). The inputs in `fuzz/corpus`,
//! and a few others made from a seed, are plain tests of this crate.
#![forbid(unsafe_code)]

pub mod block;
pub mod cast;
pub mod client;
pub mod config;
pub mod control;
pub mod disk;
pub mod filter;
pub mod hello;
mod image;
mod net;
pub mod nic;
pub mod packed;
mod packet;
pub mod record;
pub mod replica;
pub mod ring;
pub mod session;
mod steps;
pub mod vhost;

/// A boundary at which hostile input arrives.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Its name in `scripts/fuzz` and `fuzz/corpus`.
    pub name: &'static str,
    /// The function that tries an input.
    pub run: fn(&[u8]),
    /// How many inputs the seeded test has: slow targets get fewer.
    pub smoke_inputs: usize,
    /// The most bytes of an input of the seeded test.
    pub smoke_bytes_max: usize,
}

/// All targets.
pub const TARGETS: [FuzzTarget; 15] = [
    target("ring", ring::run, 4000, 1500),
    target("packed", packed::run, 4000, 1500),
    target("disk", disk::run, 1000, 1500),
    target("vhost", vhost::run, 600, 800),
    target("nic", nic::run, 1500, 1500),
    target("filter", filter::run, 2000, 1000),
    target("hello", hello::run, 800, 1500),
    target("session", session::run, 200, 2000),
    target("cast", cast::run, 300, 1500),
    target("control", control::run, 200, 400),
    target("config", config::run, 1000, 600),
    target("block", block::run, 300, 1500),
    target("client", client::run, 300, 1500),
    target("record", record::run, 600, 200),
    target("replica", replica::run, 2000, 1500),
];

const fn target(
    name: &'static str,
    run: fn(&[u8]),
    smoke_inputs: usize,
    smoke_bytes_max: usize,
) -> FuzzTarget {
    FuzzTarget { name, run, smoke_inputs, smoke_bytes_max }
}
