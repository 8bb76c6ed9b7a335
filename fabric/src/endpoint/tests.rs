//! Endpoints of one process, stepped by one thread.

mod barrier;
mod deaths;
mod idle;
mod model;
mod sleep;
mod waits;
mod ways;

use std::sync::Arc;

use random::Random;

use super::offers::ANSWERS;
use super::progress::{LOOKS_FOR_CLAIMS, LOOKS_FOR_LIVES};
use super::*;
use crate::testing::{Node, content};
use crate::{Class, Done, LookOutcome, RegionOptions, RequestFailure};

const HOST: u64 = 7;

/// A region, and endpoints in it.
struct World {
    table: Node,
    endpoints: Vec<Endpoint>,
}

impl World {
    fn new(count: usize, region: RegionOptions, options: &EndpointOptions) -> Self {
        let slots = 2 * count as u16 + 1;
        let (table, _fd) = Node::new(&RegionOptions { slots, ..region });
        let mut world = Self { table, endpoints: Vec::new() };
        for _ in 0..count {
            let endpoint = world.join(options);
            world.endpoints.push(endpoint);
        }
        world
    }

    /// Endpoints whose messages do not wait: a message without room is refused.
    fn impatient(count: usize, region: RegionOptions, options: &EndpointOptions) -> Self {
        Self::new(count, region, &EndpointOptions { waiting_bytes_max: 0, ..*options })
    }

    /// The usual sizes.
    fn usual(count: usize) -> Self {
        Self::new(count, RegionOptions::default(), &EndpointOptions::default())
    }

    fn join(&self, options: &EndpointOptions) -> Endpoint {
        let region = Arc::clone(self.table.region());
        let (slot, incarnation) = self.table.take_slot(std::process::id()).expect("a slot");
        let endpoint = Endpoint::new(region, slot, incarnation, HOST, options);
        let mut endpoint = endpoint.expect("an endpoint");
        endpoint.ask_processes(|_, _| EndpointProcess::Is(std::process::id()));
        endpoint
    }

    fn address(&self, index: usize) -> Address {
        self.endpoints[index].address()
    }

    /// Lets all endpoints make progress, so often that they notice the dead.
    fn settle(&mut self) {
        for _ in 0..2 * LOOKS_FOR_LIVES {
            self.endpoints.iter_mut().for_each(Endpoint::progress);
        }
    }

    /// Lets all endpoints make progress.
    fn turn(&mut self) {
        for _ in 0..4 {
            self.endpoints.iter_mut().for_each(Endpoint::progress);
        }
    }
}

fn part(bytes: &mut [u8]) -> MemoryPiece {
    MemoryPiece { start: bytes.as_mut_ptr(), bytes: bytes.len() }
}

/// A part that is only read.
fn part_of(bytes: &[u8]) -> MemoryPiece {
    MemoryPiece { start: bytes.as_ptr().cast_mut(), bytes: bytes.len() }
}

fn message(to: Address, tag: u64) -> Message {
    let (class, context) = (Class::Tagged, Some(RequestContext(tag)));
    Message { to, class, tag, data: None, context, inject: false }
}

fn receive(source: Option<Address>, tag: u64) -> Receive {
    let (class, context) = (Class::Tagged, RequestContext(tag));
    Receive { class, source, tag, ignore: 0, context, multi_min_bytes: None }
}

/// Sends from memory that the test keeps until the end.
fn send(endpoint: &mut Endpoint, message: &Message, bytes: &[u8]) -> Result<(), SendError> {
    // SAFETY: tests keep what they send until they have seen its completion.
    unsafe { endpoint.send(message, &[part_of(bytes)]) }
}

/// Receives into memory that the test keeps until the end.
fn ask(endpoint: &mut Endpoint, receive: &Receive, bytes: &mut [u8]) {
    // SAFETY: tests keep what they receive into until they have seen its completion.
    unsafe { endpoint.receive(receive, &[part(bytes)]) }.expect("a sound receive");
}

/// All completions, without making progress.
fn ended(endpoint: &mut Endpoint) -> Vec<Completion> {
    std::iter::from_fn(|| endpoint.engine.completions.pop()).collect()
}
