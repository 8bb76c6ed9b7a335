//! Hostile input for everything that guests, peers, files and people can reach: one module for each
//! boundary, with a function that takes any bytes, and panics when a promise is broken.
//!
//! "No panic" is the least of it. Each target has a model or a bystander: what a ring gives is
//! compared with what a plain reading of its image says, buffers are counted when a session is
//! over, and an honest peer beside a hostile one goes on.
//!
//! `fuzz/libfuzzer` runs the targets for as long as one likes (`scripts/fuzz`); the inputs in
//! `fuzz/corpus` and a seeded handful of others are plain tests of this crate.
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
pub mod ring;
pub mod session;
mod steps;
pub mod vhost;

/// One boundary.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Its name, as `scripts/fuzz` and `fuzz/corpus` know it.
    pub name: &'static str,
    /// Tries an input.
    pub run: fn(&[u8]),
    /// Inputs of the seeded test: slow targets get fewer.
    pub smoke_inputs: usize,
    /// The longest of them.
    pub smoke_bytes_max: usize,
}

/// All of them.
pub const TARGETS: [FuzzTarget; 14] = [
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
];

const fn target(
    name: &'static str,
    run: fn(&[u8]),
    smoke_inputs: usize,
    smoke_bytes_max: usize,
) -> FuzzTarget {
    FuzzTarget { name, run, smoke_inputs, smoke_bytes_max }
}
