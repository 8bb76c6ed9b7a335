//! Hand-over of a room to another process, with the same region and under the same host's name.
//!
//! To the other hosts it is as if the session was lost: they join again, are told which batches
//! were taken, and each side sends the rest again. So the state has the batches that the other side
//! has not taken, and the number of the last batch that was taken from it.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use super::super::associations::Associations;
use super::super::link::{OpenBatch, Outbox, QUEUE_FLOODED, WINDOW};
use super::super::post::Post;
use super::super::wire;
use super::traffic::KeptEntries;
use super::{BatchOrigin, Carrier, Link, Room, RoomSettings, batch_bytes_max};
use crate::hand_over::{
    Cargo, GoneState, GrantState, HeardState, LinkState, RoomState, TakenRoom, Unfit, ensure,
};
use fabric::cell::{CellHead, CellKind};

/// Deaths that go over of one link: more than the longest body of a session (1 MiB) can say.
const GONES_MAX: usize = 1 << 16;

/// A room that was handed over: its state was checked, and it does not work yet.
pub struct Handed {
    domain: String,
    gateway: u16,
    post: Post,
    told: Box<[u32]>,
    links: Vec<HandedLink>,
}

/// A link of it.
struct HandedLink {
    name: String,
    first: u64,
    sent: Vec<Vec<u8>>,
    queue: Vec<Vec<u8>>,
    is_held: bool,
    heard: Vec<HeardState>,
    gones: VecDeque<(CellHead, BatchOrigin)>,
}

impl fmt::Debug for Handed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Handed").field(&self.domain).field(&self.gateway).finish()
    }
}

impl<C: Carrier> Room<C> {
    /// The state for the next process, and the messages beside it. The room may not work again
    /// until one of the two processes goes on.
    pub fn take_down(&mut self, carrier: &C) -> TakenRoom {
        let mut cargo = Vec::new();
        let post = self.post.take_down(&mut cargo);
        // The successor finds the endpoints that were about to be told once more.
        let told = self.told.iter().enumerate().map(|(slot, told)| (slot as u16, *told));
        let told = told.filter(|(slot, told)| *told != 0 && !self.mourned.contains_key(slot));
        let told = told.map(|(slot, incarnation)| GrantState { slot, incarnation }).collect();
        let links = self.links.iter().filter(|link| self.is_of_now(link));
        let links = links.map(|link| link.take_down(carrier, &mut cargo)).collect();
        let (domain, gateway) = (self.settings.domain.clone(), self.settings.gateway);
        TakenRoom { state: RoomState { domain, gateway, post, told, links }, cargo }
    }

    /// Whether a link leads to the peer's present run: another gateway may have met the peer anew,
    /// or given it up, since this gateway looked. The link would begin anew then, and so does the
    /// successor's.
    fn is_of_now(&self, link: &Link<C>) -> bool {
        let known = self.associations.look(&link.name);
        known.is_some_and(|(there, _)| link.there.is_none() || link.there == there)
    }

    /// Takes the room over from another process.
    pub fn adopt(
        settings: RoomSettings,
        associations: Arc<Associations>,
        handed: Handed,
        now_ns: u64,
    ) -> Self {
        let Handed { post, told, links, .. } = handed;
        let mut room = Self::with_post(settings, associations, post);
        room.told = told;
        // The successor looks for endpoints that have died since.
        room.deaths = room.deaths.wrapping_sub(1);
        for link in links {
            room.adopt_link(link, now_ns);
        }
        room
    }

    fn adopt_link(&mut self, handed: HandedLink, now_ns: u64) {
        let HandedLink { name, first, sent, queue, is_held, heard, gones } = handed;
        let there = self.associations.look(&name).and_then(|(there, _)| there);
        let why = format!("no session with {name} yet");
        self.associations.note(&name, self.settings.gateway, Some(why));
        let sent = sent.into_iter().map(KeptEntries::of_bytes).collect();
        self.links.push(Link {
            name,
            there,
            out_ns: there.is_some().then_some(now_ns),
            outbox: Outbox::adopt(first, sent, queue, is_held),
            heard: heard
                .into_iter()
                .map(|HeardState { gateway, batches }| (gateway, batches))
                .collect(),
            gones,
            ..Link::new()
        });
    }
}

impl<C: Carrier> Link<C> {
    fn take_down(&self, carrier: &C, cargo: &mut Vec<u8>) -> LinkState {
        let mut put = |kept: &KeptEntries<C::Body>| {
            let before = cargo.len();
            kept.show(carrier, &mut |bytes| cargo.extend_from_slice(bytes));
            cargo.len() - before
        };
        let (sent, queue) = self.outbox.content();
        let sent = sent.map(&mut put).collect();
        let queue = queue.map(|batch| match batch {
            OpenBatch::Kept(kept) => put(kept),
            OpenBatch::Gathered(bytes) => put(&KeptEntries::Own(bytes.clone())),
        });
        let queue = queue.collect();
        let mut gones = Vec::new();
        for (head, BatchOrigin { gateway, gateways, .. }) in &self.gones {
            wire::push_entry(cargo, head, &[]);
            gones.push(GoneState { gateway: *gateway, gateways: *gateways });
        }
        let taken = self.incoming.iter().map(|(gateway, it)| (*gateway, it.inbox.received()));
        let before = self.heard.iter().map(|(gateway, number)| (*gateway, *number));
        let heard = before.chain(taken);
        let heard = heard.map(|(gateway, batches)| HeardState { gateway, batches }).collect();
        LinkState {
            name: self.name.clone(),
            first: self.outbox.first(),
            sent,
            queue,
            is_held: self.outbox.is_held(),
            heard,
            gones,
        }
    }
}

impl Handed {
    /// Looks whether a state is one of a gateway of this domain, with its messages.
    ///
    /// # Errors
    /// When it contradicts itself or the domain's memory.
    pub fn new(taken: TakenRoom, associations: &Associations) -> Result<Self, Unfit> {
        let TakenRoom { state, cargo } = taken;
        let RoomState { domain, gateway, post, told: known, links } = state;
        let (table, mut cargo) = (associations.table(), Cargo::new(&cargo));
        let post = Post::adopt(Arc::clone(table), gateway, post, &mut cargo)?;
        let options = table.region().options();
        let mut told: Box<[u32]> = vec![0; usize::from(options.slots)].into();
        for GrantState { slot, incarnation } in known {
            let told = told.get_mut(usize::from(slot));
            *told.ok_or(Unfit::Contradiction("a slot has died that does not exist"))? = incarnation;
        }
        let mut names = BTreeSet::new();
        let links = links.into_iter().map(|link| {
            let known = associations.look(&link.name);
            let known =
                known.ok_or(Unfit::Contradiction("it sends to a node that is not a peer"))?;
            ensure(names.insert(link.name.clone()), "it has two ways to one peer")?;
            let index = known.0.map(|there| there.index);
            HandedLink::new(link, index, batch_bytes_max(&options), &mut cargo)
        });
        let links = links.collect::<Result<_, Unfit>>()?;
        ensure(cargo.rest().is_empty(), "there are messages without a sender")?;
        Ok(Self { domain, gateway, post, told, links })
    }

    /// The domain's name.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Which of its gateways it is.
    pub fn gateway(&self) -> u16 {
        self.gateway
    }
}

impl HandedLink {
    fn new(
        state: LinkState,
        index: Option<u16>,
        bytes_max: usize,
        cargo: &mut Cargo<'_>,
    ) -> Result<Self, Unfit> {
        let LinkState { name, first, sent, queue, is_held, heard, gones } = state;
        let is_bounded = sent.len() <= WINDOW && queue.len() <= QUEUE_FLOODED;
        ensure(is_bounded && gones.len() <= GONES_MAX, "more messages wait than the limit")?;
        // No honest node counts so far in its life; a count that begins there does not overflow.
        let is_number = |number: u64| number < 1 << 60;
        let is_heard = heard.iter().all(|it| is_number(it.batches));
        ensure(is_number(first) && is_heard, "more messages are sent than the limit")?;
        let mut batch = |bytes: usize| {
            ensure(bytes <= bytes_max, "a batch is too long")?;
            Ok::<_, Unfit>(cargo.take(bytes)?.to_vec())
        };
        let sent = sent.into_iter().map(&mut batch).collect::<Result<_, _>>()?;
        let queue = queue.into_iter().map(&mut batch).collect::<Result<_, _>>()?;
        let gones = gones.into_iter().map(|GoneState { gateway, gateways }| {
            let index = index.ok_or(Unfit::Contradiction("an endpoint without a host has died"))?;
            let entry = cargo.take(wire::entry_bytes(0))?;
            let head = wire::split_entry(entry, index).ok().map(|entry| entry.head);
            let head = head.filter(|head| head.kind == CellKind::Gone && gateway < gateways);
            let head = head.ok_or(Unfit::Contradiction("a death has no endpoint"))?;
            Ok::<_, Unfit>((head, BatchOrigin { host: index, gateway, gateways }))
        });
        let gones = gones.collect::<Result<_, _>>()?;
        Ok(Self { name, first, sent, queue, is_held, heard, gones })
    }
}
