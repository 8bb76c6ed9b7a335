//! All of an endpoint but the region. The files below hold its state, and the file of the same name
//! above works on it: `engine/sends.rs` has the table of messages that `sends.rs` has offered.

pub(super) mod backlog;
mod completions;
mod counters;
mod hosts;
pub(super) mod offers;
pub(super) mod peers;
pub(super) mod processes;
pub(super) mod pushes;
pub(super) mod receives;
mod remotes;
pub(super) mod sends;
pub(super) mod sleep;

use std::collections::VecDeque;

use self::backlog::Backlog;
use self::completions::Completions;
pub use self::counters::EndpointCounters;
use self::hosts::HostTable;
use self::offers::{OfferAnswer, Pulls};
use self::peers::SlotPeers;
use self::processes::Processes;
use self::pushes::Pushes;
use self::receives::{Multis, Posted, Unexpected};
use self::sends::Sends;
use self::sleep::Sleeping;
use super::options::EndpointOptions;
use crate::Address;
use crate::cell::Local;
use crate::matcher::{Envelope, Matcher};
use crate::message::{Class, Completion, Done, RequestContext, RequestFailure};
use crate::region::Region;
use crate::ring::{Consumer, Producer};
use crate::slab::Slab;

/// Receives and messages that there is room for before more memory is allocated.
const ROOM: usize = 256;

/// See the module. Its parts take the region as an argument.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) me: Local,
    pub(super) host: u64,
    pub(super) hosts: HostTable,
    pub(super) options: EndpointOptions,
    pub(super) consumer: Consumer,
    pub(super) slab: Slab,
    pub(super) peers: SlotPeers,
    pub(super) spaces: [Matcher<Posted, Unexpected>; 2],
    pub(super) multis: Multis,
    pub(super) sends: Sends,
    pub(super) backlog: Backlog,
    pub(super) pulls: Pulls,
    pub(super) pushes: Pushes,
    /// Answers that found the sender's ring full.
    pub(super) answers: VecDeque<OfferAnswer>,
    pub(super) completions: Completions,
    pub(super) sleeping: Sleeping,
    /// A random word at a place that stays. A receiver finds it there if it reads this process's
    /// memory and not another one's.
    pub(super) proof: Box<u64>,
    /// The node is asked once for each other endpoint.
    pub(super) processes: Processes,
    /// Empty looks in a row.
    pub(super) empty_looks: u32,
    /// Looks since the last look for lives.
    pub(super) looks: u32,
    pub(super) counters: EndpointCounters,
}

impl Engine {
    /// The engine of an endpoint of this host. A receiver that reads this process's memory finds
    /// `proof` there.
    pub(super) fn new(
        region: &Region,
        me: Local,
        host: u64,
        options: &EndpointOptions,
        proof: u64,
    ) -> Self {
        let buffer_bytes = region.options().buffer_bytes as usize;
        let eager_bytes_max = options.eager_bytes_max.min(buffer_bytes);
        Self {
            me,
            host,
            hosts: HostTable::default(),
            options: EndpointOptions { eager_bytes_max, ..*options },
            consumer: Consumer::new(&region.ring(me.slot)),
            slab: Slab::new(region, me),
            peers: SlotPeers::new(region),
            spaces: [Matcher::new(ROOM), Matcher::new(ROOM)],
            multis: Multis::new(),
            sends: Sends::new(ROOM),
            backlog: Backlog::new(region, options.waiting_bytes_max),
            pulls: Pulls::new(),
            pushes: Pushes::new(),
            answers: VecDeque::with_capacity(ROOM),
            completions: Completions::new(ROOM),
            sleeping: Sleeping::default(),
            processes: Processes::default(),
            proof: Box::new(proof),
            empty_looks: 0,
            looks: 0,
            counters: EndpointCounters::default(),
        }
    }

    #[inline]
    pub(super) fn address_of(&self, local: Local) -> Address {
        let host = if local.host == 0 { self.host } else { self.hosts.name(local.host) };
        Address { host, incarnation: local.incarnation, slot: local.slot }
    }

    #[inline]
    pub(super) fn producer(&self) -> Producer {
        Producer { slot: self.me.slot, incarnation: self.me.incarnation as u16 }
    }

    /// Tells that something has ended.
    #[inline(always)]
    pub(super) fn complete(&mut self, completion: Completion) {
        self.completions.push(completion);
    }

    /// Tells that a receive has ended.
    #[inline(always)]
    pub(super) fn complete_receive(
        &mut self,
        (context, class): (RequestContext, Class),
        envelope: &Envelope,
        (data, start): (Option<u64>, *mut u8),
        bytes: usize,
        failure: Option<RequestFailure>,
    ) {
        let done = Done::Receive { source: envelope.source, data, start };
        self.complete(Completion { context, done, class, tag: envelope.tag, bytes, failure });
    }
}

/// The index of the space that messages of this class have.
#[inline]
pub(super) fn index(class: Class) -> usize {
    match class {
        Class::Untagged => 0,
        Class::Tagged => 1,
    }
}
