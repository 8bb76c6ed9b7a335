//! A room: one gateway of a domain, on one sidecore, with its links to the gateways of peers.

mod hand_over;
mod joining;
mod traffic;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

pub use self::hand_over::Handed;
use self::traffic::KeptEntries;
use super::associations::{Associations, There};
use super::link::{LinkInbox, Outbox};
use super::post::{Post, PostCounters};
use super::wire::{BatchChannel, GatewayAnswer, GatewayRequest};
use super::{Carrier, GatewayPeer, PROOF_BYTES, ROOMS_MAX, TOKEN};
use fabric::RegionOptions;
use fabric::cell::CellHead;

/// How long a joined peer may be out of reach before all that is outstanding with it ends. The time
/// in which a session is found lost comes before it. A node that is started anew is back much
/// sooner, and counts as another run.
const GIVE_UP_NS: u64 = 10_000_000_000;

/// Answers to batches wait for so many others, or so long, or for something to go with.
const OWED_MAX: usize = 8;
const OWED_NS: u64 = 50_000;

/// When a batch is tried again for which the session had no room or there was no buffer: the time
/// that an answer takes, which makes room.
const AGAIN_NS: u64 = 50_000;

/// When a batch is tried again for which the peer had no room.
const LATER_NS: u64 = 5_000_000;

/// After so long without a batch a gateway asks whether it is still joined: a peer that has removed
/// the domain, or this node from its peers, does not tell while the session lives.
const SIGN_NS: u64 = 2_000_000_000;

/// While asleep: how often the rings are looked at for which entries wait.
const LOOK_AGAIN_NS: u64 = 500_000;

/// Memory that is kept for batches to come.
const SPARE_MAX: usize = 8;

/// Makes the proof of the domain's key for a statement.
pub type Prove = Box<dyn Fn(&[u8]) -> [u8; PROOF_BYTES]>;

/// The configuration of a room.
pub struct RoomSettings {
    /// Its number among those of its sidecore, of which none is used twice soon; below
    /// [`ROOMS_MAX`].
    pub number: u16,
    /// The domain's name.
    pub domain: String,
    /// Which of the domain's gateways it has.
    pub gateway: u16,
    /// Of the domain's key.
    pub prove: Prove,
}

impl fmt::Debug for RoomSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, domain, gateway, .. } = self;
        f.debug_tuple("RoomSettings").field(number).field(domain).field(gateway).finish()
    }
}

/// How far a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GatewayLinkState<S> {
    Out,
    /// Asked in this session; again when there is no answer by then.
    Asked(S, u64),
    In(S, BatchChannel),
}

/// The gateway that a batch is from.
#[derive(Clone, Copy, Debug)]
struct BatchOrigin {
    /// The index of its host.
    host: u16,
    gateway: u16,
    /// How many gateways the host has.
    gateways: u16,
}

/// A batch that has come, with the call that brought it.
#[derive(Debug)]
struct Come<C: Carrier> {
    call: C::Call,
    entries: KeptEntries<C::Body>,
}

/// The batches that come from one gateway of a peer.
#[derive(Debug)]
struct Incoming<C: Carrier> {
    session: C::Session,
    channel: BatchChannel,
    /// How many gateways the peer has.
    gateways: u16,
    inbox: LinkInbox<Come<C>>,
    owed: Vec<C::Call>,
    owed_ns: u64,
}

/// Another host.
#[derive(Debug)]
struct Link<C: Carrier> {
    /// The peer's name; empty for a place that is free.
    name: String,
    /// Told apart from those that were at this place before.
    generation: u16,
    there: Option<There>,
    state: GatewayLinkState<C::Session>,
    ask_at_ns: u64,
    asks: u16,
    /// Which of those was granted last.
    granted: u16,
    /// When something is tried again that did not go out.
    again_ns: u64,
    /// While joined: when it is looked whether it still is.
    sign_ns: u64,
    /// Since when it cannot be sent to, though it is known.
    out_ns: Option<u64>,
    outbox: Outbox<KeptEntries<C::Body>>,
    /// By the peer's gateway.
    incoming: BTreeMap<u16, Box<Incoming<C>>>,
    /// And how much the process before this one had taken of those that have not joined since.
    heard: BTreeMap<u16, u64>,
    /// Deaths there, as far as not all here were told. Nothing more is taken until they are, so
    /// these are at most a batch's.
    gones: VecDeque<(CellHead, BatchOrigin)>,
    /// In the list of those that have something to do.
    stirred: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Room<C: Carrier> {
    settings: RoomSettings,
    associations: Arc<Associations>,
    generation: u64,
    post: Post,
    links: Vec<Link<C>>,
    /// Links by the index of their host; `u16::MAX` for none.
    by_host: Vec<u16>,
    stirred: Vec<u16>,
    sessions: BTreeMap<C::Session, GatewayPeer>,
    channel_next: u32,
    spare: Vec<Vec<u8>>,
    batch_bytes_max: usize,
    /// When a link has something to do by itself.
    next_ns: u64,
    /// A link's outbox is full, and the next cell is for it.
    is_stuck: bool,
    /// The position of a cell for a host that was not known here, though it is there.
    looked_for: Option<u64>,
    deaths: u64,
    /// Of each slot, the last owner whose death was seen.
    told: Box<[u32]>,
    /// By slot: owners whose deaths are told when the ring has been taken out to there, since they
    /// may have said something before.
    mourned: BTreeMap<u16, (u32, u64)>,
}

impl<C: Carrier> Link<C> {
    fn new() -> Self {
        Self {
            name: String::new(),
            generation: 0,
            there: None,
            state: GatewayLinkState::Out,
            ask_at_ns: 0,
            asks: 0,
            granted: 0,
            again_ns: u64::MAX,
            sign_ns: u64::MAX,
            out_ns: None,
            outbox: Outbox::new(),
            incoming: BTreeMap::new(),
            heard: BTreeMap::new(),
            gones: VecDeque::new(),
            stirred: false,
        }
    }

    /// Forgets all that was.
    fn reset(&mut self, carrier: &mut C) {
        self.outbox.clear().into_iter().for_each(|kept| kept.release(carrier));
        for (_, mut incoming) in std::mem::take(&mut self.incoming) {
            incoming.forget(carrier);
        }
        self.heard.clear();
        self.gones.clear();
        self.generation = self.generation.wrapping_add(1);
        (self.state, self.there, self.out_ns) = (GatewayLinkState::Out, None, None);
    }
}

impl<C: Carrier> Incoming<C> {
    /// Forgets batches that came before their turn: they come again, by another channel if any.
    /// Each call is answered, since its session may live on, and has room for a limited number of
    /// unanswered calls.
    fn forget(&mut self, carrier: &mut C) {
        let taken = GatewayAnswer::Taken { received: self.inbox.received() }.encode();
        self.owed.drain(..).for_each(|call| carrier.reply(call, &taken));
        for come in self.inbox.forget_early() {
            come.entries.release(carrier);
            carrier.reply(come.call, &GatewayAnswer::NoChannel.encode());
        }
    }
}

impl<C: Carrier> Room<C> {
    /// A room; it takes its gateway's slot.
    pub fn new(settings: RoomSettings, associations: Arc<Associations>) -> Self {
        let post = Post::new(Arc::clone(associations.table()), settings.gateway);
        Self::with_post(settings, associations, post)
    }

    fn with_post(settings: RoomSettings, associations: Arc<Associations>, post: Post) -> Self {
        let table = associations.table();
        let options = table.region().options();
        Self {
            settings,
            post,
            generation: associations.generation().wrapping_sub(1),
            deaths: table.deaths(),
            associations,
            links: Vec::new(),
            by_host: Vec::new(),
            stirred: Vec::new(),
            sessions: BTreeMap::new(),
            channel_next: 1,
            spare: Vec::new(),
            batch_bytes_max: batch_bytes_max(&options),
            next_ns: 0,
            is_stuck: false,
            looked_for: None,
            told: vec![0; usize::from(options.slots)].into(),
            mourned: BTreeMap::new(),
        }
    }

    /// The domain's name.
    pub fn domain(&self) -> &str {
        &self.settings.domain
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.settings.number
    }

    /// The counters of the gateway.
    pub fn counters(&self) -> PostCounters {
        self.post.counters
    }

    /// The memory of the room in bytes that other hosts cause: their links, batches that wait to be
    /// sent to them, and the names of their sessions; without the buffers of batches that are under
    /// way.
    pub fn state_bytes(&self) -> usize {
        let link = |link: &Link<C>| {
            let incoming = link
                .incoming
                .values()
                .map(|it| size_of::<Incoming<C>>() + it.owed.capacity() * size_of::<C::Call>());
            link.name.capacity()
                + link.outbox.state_bytes()
                + link.gones.capacity() * size_of::<(CellHead, BatchOrigin)>()
                + incoming.sum::<usize>()
        };
        let session =
            |peer: &GatewayPeer| size_of::<(C::Session, GatewayPeer)>() + peer.name.capacity();
        self.links.capacity() * size_of::<Link<C>>()
            + self.links.iter().map(link).sum::<usize>()
            + self.sessions.values().map(session).sum::<usize>()
            + self.by_host.capacity() * size_of::<u16>()
            + self.told.len() * size_of::<u32>()
    }

    /// How many batches wait to be sent.
    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.links.iter().map(|link| link.outbox.queued()).sum()
    }

    /// A session with a node is up.
    pub fn connected(&mut self, session: C::Session, peer: &GatewayPeer) {
        self.sessions.insert(session, peer.clone());
        self.next_ns = 0;
        for link in self.links.iter_mut().filter(|link| link.name == peer.name) {
            link.ask_at_ns = 0;
        }
    }

    /// A session is over.
    pub fn lost(&mut self, now_ns: u64, session: C::Session, carrier: &mut C) {
        let Some(peer) = self.sessions.remove(&session) else { return };
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            let of_it = link.incoming.values_mut().filter(|it| it.session == session);
            of_it.for_each(|incoming| incoming.forget(carrier));
            let was = match link.state {
                GatewayLinkState::Out => None,
                GatewayLinkState::Asked(of, _) | GatewayLinkState::In(of, _) => Some(of),
            };
            if was == Some(session) {
                self.go_out(at, now_ns, now_ns, format!("the session with {} is over", peer.name));
            }
        }
    }

    /// Does one round of work. Returns whether there was any.
    pub fn poll(&mut self, now_ns: u64, carrier: &mut C) -> bool {
        if self.associations.generation() != self.generation {
            self.look_around(now_ns, carrier);
        }
        let mut busy = self.put_waiting(now_ns, carrier);
        busy |= self.tell_gones(now_ns, carrier);
        busy |= self.collect(carrier);
        busy |= self.announce_deaths();
        if now_ns >= self.next_ns {
            self.look_at_clock(now_ns, carrier);
        }
        for at in std::mem::take(&mut self.stirred) {
            self.links[usize::from(at)].stirred = false;
            busy = true;
            self.flush(usize::from(at), now_ns, carrier);
        }
        busy
    }

    /// Before a sleep: lets producers ring. When to wake at the latest; none: there is something to
    /// do already.
    pub fn fall_asleep(&mut self, now_ns: u64) -> Option<u64> {
        // A gateway that cannot take the cells in its ring sleeps as well, until it can.
        let is_idle = (self.post.fall_asleep() || self.is_stuck)
            && self.links.iter().all(|link| link.gones.is_empty())
            && !self.mourned.values().any(|(_, end)| self.post.is_past(*end))
            && self.stirred.is_empty()
            && self.associations.generation() == self.generation
            && self.post.deaths() == self.deaths;
        let again_ns = if self.post.has_waiting() { now_ns + LOOK_AGAIN_NS } else { u64::MAX };
        is_idle.then_some(self.next_ns.min(again_ns))
    }

    /// After it.
    pub fn wake_up(&mut self) {
        self.post.wake_up();
    }

    /// A peer calls, by a session that is up; the head says that it is for this room.
    pub fn called(
        &mut self,
        now_ns: u64,
        session: C::Session,
        call: C::Call,
        head: &[u8],
        body: Option<(C::Body, usize)>,
        carrier: &mut C,
    ) {
        match GatewayRequest::decode(head) {
            Ok(GatewayRequest::Join(join)) => {
                if let Some((body, _)) = body {
                    carrier.release(body);
                }
                let answer = self.join(now_ns, session, &join, carrier);
                carrier.reply(call, &answer.unwrap_or_else(GatewayAnswer::Refused).encode());
            }
            Ok(GatewayRequest::Batch { channel, number }) => {
                let entries = KeptEntries::new(head, body, carrier);
                let come = Come { call, entries };
                self.batch(now_ns, session, (channel, number), come, carrier);
            }
            Err(_) => {
                if let Some((body, _)) = body {
                    carrier.release(body);
                }
                carrier.reply(call, &GatewayAnswer::NoChannel.encode());
            }
        }
    }

    /// A peer has answered.
    pub fn replied(&mut self, now_ns: u64, token: u64, head: &[u8], carrier: &mut C) {
        let token = AnswerToken::from_word(token);
        let at = usize::from(token.place);
        let link = self.links.get_mut(at).filter(|link| link.generation == token.generation);
        let (Some(link), Ok(answer)) = (link, GatewayAnswer::decode(head)) else { return };
        match answer {
            GatewayAnswer::Done { .. } | GatewayAnswer::Refused(_) | GatewayAnswer::NoChannel
                if token.is_join && token.number == link.asks =>
            {
                self.join_answered(at, now_ns, answer, carrier);
            }
            GatewayAnswer::Taken { received } if !token.is_join => {
                for kept in link.outbox.taken(received).into_iter().flatten() {
                    kept.release(carrier);
                }
                self.stir(at);
            }
            GatewayAnswer::Later { received } if !token.is_join && token.number == link.granted => {
                for kept in link.outbox.taken(received).into_iter().flatten() {
                    kept.release(carrier);
                }
                link.outbox.begin_slowly();
                self.try_again(at, now_ns + LATER_NS);
            }
            // Of a channel before this one it is known.
            GatewayAnswer::NoChannel
                if !token.is_join
                    && token.number == link.granted
                    && matches!(link.state, GatewayLinkState::In(..)) =>
            {
                self.go_out(
                    at,
                    now_ns,
                    now_ns,
                    "it has no association with this node any more".to_owned(),
                );
            }
            _ => {}
        }
    }

    /// Releases all buffers and answers all calls.
    pub fn end(&mut self, carrier: &mut C) {
        self.links.iter_mut().for_each(|link| link.reset(carrier));
    }

    fn stir(&mut self, at: usize) {
        let link = &mut self.links[at];
        if !std::mem::replace(&mut link.stirred, true) {
            self.stirred.push(at as u16);
        }
    }

    fn token(&self, at: usize, is_join: bool, number: u16) -> u64 {
        let (room, place) = (self.settings.number, at as u16);
        AnswerToken { is_join, room, place, generation: self.links[at].generation, number }
            .to_word()
    }
}

/// The longest batch of a region's messages.
fn batch_bytes_max(options: &RegionOptions) -> usize {
    (64 << 10).max(2 * options.buffer_bytes as usize)
}

/// By what an answer finds its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AnswerToken {
    is_join: bool,
    room: u16,
    place: u16,
    generation: u16,
    /// Which join it is, or by which a batch's channel was granted.
    number: u16,
}

impl AnswerToken {
    fn to_word(self) -> u64 {
        let Self { is_join, room, place, generation, number } = self;
        TOKEN
            | u64::from(is_join) << 61
            | u64::from(room % ROOMS_MAX) << 48
            | u64::from(place) << 32
            | u64::from(generation) << 16
            | u64::from(number)
    }

    fn from_word(word: u64) -> Self {
        Self {
            is_join: word >> 61 & 1 != 0,
            room: (word >> 48) as u16 % ROOMS_MAX,
            place: (word >> 32) as u16,
            generation: (word >> 16) as u16,
            number: word as u16,
        }
    }
}

/// The number of the room that an answer with this token is for.
pub fn room_of_token(token: u64) -> u16 {
    AnswerToken::from_word(token).room
}

/// The subject of a call: the domain of a join, or the room of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// A join of the domain of this name.
    Domain(String),
    /// A batch for the room of this number.
    Room(u16),
    /// Nothing that gateways say.
    Nothing,
}

/// The subject of a call.
pub fn about(head: &[u8]) -> About {
    match GatewayRequest::decode(head) {
        Ok(GatewayRequest::Join(join)) => About::Domain(join.domain),
        Ok(GatewayRequest::Batch { channel, .. }) => About::Room(channel.room),
        Err(_) => About::Nothing,
    }
}

/// The answer to a call that is for no room: as one that has the domain, but not that key, says it.
pub fn answer_nobody(head: &[u8]) -> Vec<u8> {
    match about(head) {
        About::Domain(domain) => GatewayAnswer::Refused(joining::not_open(&domain)).encode(),
        About::Room(_) | About::Nothing => GatewayAnswer::NoChannel.encode(),
    }
}
