//! All sessions of one sidecore: the session of a datagram, the next sender, the timers that are
//! due.
//!
//! A session id is drawn at random by the side that receives under it, except for its lowest 16
//! bits, which are the session's place in the endpoint's table: no packet needs a search.

mod answers;
mod hello;
mod peers;
mod receive;
mod security;

use std::net::SocketAddr;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::RngCore;
use zerocopy::IntoBytes;

use crate::config::EndpointConfig;
use crate::counters::EndpointCounters;
use crate::deadlines::Deadlines;
use crate::door::Door;
use crate::endpoint::answers::{AnswerReceiver, Answers, Content, SessionlessReply};
use crate::endpoint::peers::PeerState;
use crate::endpoint::security::draw;
use crate::events::{CallError, CallId, CastError, LostReason, SessionId, SessionStatus, Sink};
use crate::handshake::{Connecting, HalfOpen, SessionNumbers, write_packet, write_welcome};
use crate::limits::SESSIONS_MAX;
use crate::path::Paths;
use crate::pool::{BufId, Pool};
use crate::quota::{FairQueue, PeerNumbers};
use crate::seal::ResetKey;
use crate::session::{OutgoingCall, Session, SessionContext};
use crate::strangers::Strangers;
use crate::transmit::TransmitBatch;
use crate::wire::COOKIE_BYTES;
use crate::wire::{
    CAST_MAX, FLOWS_MAX, FRAME_CLOSE, HEAD_MAX, Label, MESSAGE_MAX, PacketKind, VERSION_ANY,
};

pub use peers::PeerShare;

/// The part of a batch that answers may take before the sessions had their turn.
const ANSWERS_SHARE: usize = 4;

/// Attempts that wait for their first packet. More at once is a flood, and dropped: an honest peer
/// asks again.
const HALF_OPEN_MAX: usize = 128;

/// Packets that a session adds before the next one's turn: the kernel cuts so many out of one send.
const TRANSMIT_RUN: usize = 64;

/// Being called so much later than asked means that the process did not run.
const PAUSE_NS: u64 = 250_000_000;

/// No datagram has waited longer for us than a pause that a peer forgives: a clock that says so is
/// wrong.
const WAIT_NS_MAX: u64 = 3_000_000_000;

/// When something arrived, and when it is looked at.
#[derive(Clone, Copy, Debug)]
struct Times {
    now_ns: u64,
    arrived_ns: u64,
}

/// Bits of ids that are the place in the table.
const PLACE_BITS: u32 = 16;

/// The state of a place in the table.
#[derive(Debug)]
enum TableEntry {
    Vacant,
    Connecting(Box<Connecting>),
    HalfOpen(Box<HalfOpen>),
    Open(Box<Session>),
}

#[derive(Debug)]
struct TablePlace {
    /// The id that packets carry, and the owner's handle; both 0 for a vacant place.
    local_id: u64,
    session: SessionId,
    /// In the queue of those that may have something to send.
    is_ready: bool,
    entry: TableEntry,
}

/// The sessions of one sidecore, their timers and their buffers. One thread owns it.
#[derive(Debug)]
pub struct Endpoint {
    config: EndpointConfig,
    pool: Pool,
    counters: EndpointCounters,
    /// Grows to the most sessions there ever were at once.
    places: Vec<TablePlace>,
    vacant: Vec<u16>,
    /// By place: when `advance` is due for it.
    deadlines: Deadlines,
    /// Places that may have something to send, each peer's in its turn.
    ready: FairQueue<u16>,
    answers: Answers,
    /// Each peer's part of all this.
    peers: PeerNumbers<PeerState>,
    strangers: Strangers,
    /// Draws all secrets. Ids of sessions are told in the clear, but a peer that knew the next one
    /// could ask for the token of its Reset before there is a session to protect.
    secrets: ChaCha20Rng,
    door: Door,
    /// Ours, when sessions are sealed.
    reset_key: Option<ResetKey>,
    /// Where a sealed packet is opened; taken out meanwhile, and empty before the first.
    opened: Vec<u8>,
    /// How wide the ways to those are that we ask.
    paths: Paths,
    sessions_made: u64,
    last_attempt: u64,
    /// Sessions that we asked for, connected or not; that peers asked for; half-open ones of those.
    outgoing: usize,
    incoming: usize,
    half_open: usize,
    /// The latest time of day that we were told.
    unix_s: u64,
}

impl Endpoint {
    /// An endpoint without sessions. Limits out of range are brought into it; a name that is empty
    /// or longer than 64 bytes is the caller's mistake and panics.
    pub fn new(config: EndpointConfig) -> Self {
        let config = config.checked();
        let sessions_max = usize::from(SESSIONS_MAX) + 1 + usize::from(config.sessions_max);
        let mut secrets = security::generator(&config);
        let mut config = config;
        config.entropy = security::SPENT;
        Self {
            pool: Pool::with_memory(config.pool_bytes_max, config.pool_memory.clone()),
            counters: EndpointCounters::default(),
            places: Vec::new(),
            vacant: Vec::with_capacity(sessions_max),
            deadlines: Deadlines::new(),
            ready: FairQueue::default(),
            answers: Answers::new(),
            peers: PeerNumbers::default(),
            strangers: Strangers::default(),
            door: Door::new(&draw(&mut secrets)),
            secrets,
            reset_key: security::reset_key(&config.security),
            opened: Vec::new(),
            paths: Paths::default(),
            sessions_made: 0,
            last_attempt: 0,
            outgoing: 0,
            incoming: 0,
            half_open: 0,
            unix_s: 0,
            config,
        }
    }

    /// The buffers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The buffers, to allocate bodies from and to release them.
    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Peers that asked for a session and were refused.
    pub fn strangers(&self) -> &Strangers {
        &self.strangers
    }

    /// Lets peers open sessions from now on, or no longer. Sessions that are open stay.
    pub fn set_accept(&mut self, accept: bool) {
        self.config.accept = accept;
    }

    /// The configuration, with all limits in their range.
    pub fn config(&self) -> &EndpointConfig {
        &self.config
    }

    /// Asks the node at `peer` (its first sidecore's address) for the session number `index`
    /// between the two nodes, and asks again for ever, at most every 100 ms. A peer of another name
    /// than `expected_name` is refused; an empty one stands for any.
    ///
    /// The handle is good for this one session: after `lost`, connect again.
    ///
    /// # Panics
    /// With more than [`SESSIONS_MAX`] of them at once, and a session of the node with itself:
    /// how many peers there are is the caller's to know.
    pub fn connect(
        &mut self,
        now_ns: u64,
        peer: SocketAddr,
        expected_name: &str,
        index: u16,
    ) -> SessionId {
        // The clock makes attempts of all sidecores of a process comparable.
        self.last_attempt = now_ns.max(self.last_attempt + 1);
        let attempt = self.last_attempt;
        assert!(
            self.outgoing <= usize::from(SESSIONS_MAX),
            "more sessions than one endpoint asks for"
        );
        self.outgoing += 1;
        let place = self.take_place();
        let (id, local_id) = self.draw_ids(place);
        let numbers = SessionNumbers { id, local_id, attempt };
        let bytes = self.paths.proposal(now_ns, peer.ip(), self.config.datagram_bytes_max);
        let connecting = Connecting::new(now_ns, numbers, peer, expected_name, (index, bytes));
        self.places[place].entry = TableEntry::Connecting(Box::new(connecting));
        self.begin_attempt(now_ns, place);
        self.touched(place);
        id
    }

    /// Forgets a session and tells the peer once. The sink hears nothing; calls outstanding have an
    /// unknown outcome. A session that is gone already is left alone.
    pub fn close(&mut self, now_ns: u64, session: SessionId) {
        let _ = now_ns;
        let Some(place) = self.find(session) else { return };
        self.say_farewell(place);
        self.vacate(place);
    }

    /// Tells the peer of a session that we forget it now.
    fn say_farewell(&mut self, place: usize) {
        let TableEntry::Open(open) = &mut self.places[place].entry else { return };
        let content = open.sealed_close().map_or(Content::Close, Content::Packet);
        let agreed = open.agreed();
        let label = Label {
            kind: PacketKind::Data,
            version: agreed.peer.version,
            session: agreed.remote_id,
            number: open.last_number(),
            flags: 0,
        };
        let to = agreed.peer.addr;
        self.answer(AnswerReceiver::Known, SessionlessReply::new(to, label, content));
    }

    /// Sends a call. `head` has at most [`HEAD_MAX`] bytes; the body is the first so many bytes of
    /// a pool buffer, at most [`MESSAGE_MAX`], to which the endpoint takes a reference of its own
    /// until it has arrived. `flow` is less than [`FLOWS_MAX`]. `token` comes back with the reply
    /// and should be unique among the calls outstanding. A call in want of credit waits inside.
    ///
    /// # Errors
    /// [`CallError::Full`] or [`CallError::NotConnected`]; nothing was taken then.
    pub fn call(
        &mut self,
        now_ns: u64,
        session: SessionId,
        flow: u16,
        token: u64,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) -> Result<(), CallError> {
        check_message(&self.pool, head, body);
        assert!(usize::from(flow) < FLOWS_MAX, "flow {flow} of {FLOWS_MAX}");
        let Some(place) = self.find(session) else { return Err(CallError::NotConnected) };
        let TableEntry::Open(open) = &mut self.places[place].entry else {
            return Err(CallError::NotConnected);
        };
        let call = OutgoingCall { flow, token, head, body };
        open.call(now_ns, &mut self.pool, &mut self.counters, &call)?;
        self.touched(place);
        Ok(())
    }

    /// A packet of any frames and payload, as this end of the session would send it next, sealed
    /// where the session is. `None` without such a session. The lengths must fit a datagram.
    #[cfg(feature = "forging")]
    pub fn forge(
        &mut self,
        now_ns: u64,
        session: SessionId,
        frames: &[u8],
        payload: &[u8],
    ) -> Option<Vec<u8>> {
        let place = self.find(session)?;
        let TableEntry::Open(open) = &mut self.places[place].entry else { return None };
        open.forge(now_ns, frames, payload)
    }

    /// Drops the events of an outstanding call from now on. The call itself goes on, and takes its
    /// room, until it is answered or the session is lost.
    pub fn forget(&mut self, session: SessionId, token: u64) {
        let Some(place) = self.find(session) else { return };
        if let TableEntry::Open(open) = &mut self.places[place].entry {
            open.forget(token);
        }
    }

    /// Answers a call, once. Head and body as in [`call`](Self::call); the reference to the call's
    /// own body is still the owner's to release.
    ///
    /// # Errors
    /// [`CallError::NotConnected`] when the session is gone. Never `Full`: room for the reply came
    /// with the call.
    pub fn reply(
        &mut self,
        now_ns: u64,
        call: CallId,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) -> Result<(), CallError> {
        let _ = now_ns;
        check_message(&self.pool, head, body);
        let Some(place) = self.find(call.session) else { return Err(CallError::NotConnected) };
        let TableEntry::Open(open) = &mut self.places[place].entry else {
            return Err(CallError::NotConnected);
        };
        let window_bytes = self.config.flow_window_bytes.into();
        open.reply(&mut self.pool, &mut self.counters, window_bytes, call.id, (head, body));
        self.touched(place);
        Ok(())
    }

    /// Sends a frame that may be lost. It arrives once at most, whole, and after all that were cast
    /// before it by the same flow, or not at all. Head and body as in [`call`](Self::call), but the
    /// body has at most [`CAST_MAX`] bytes; flows of casts are others than those of calls.
    ///
    /// # Errors
    /// Why it is lost already; nothing was taken then.
    pub fn cast(
        &mut self,
        now_ns: u64,
        session: SessionId,
        flow: u16,
        head: &[u8],
        body: Option<(BufId, usize)>,
    ) -> Result<(), CastError> {
        check_message(&self.pool, head, body);
        assert!(body.is_none_or(|(_, len_bytes)| len_bytes <= CAST_MAX), "a body of a cast");
        assert!(usize::from(flow) < FLOWS_MAX, "flow {flow} of {FLOWS_MAX}");
        let Some(place) = self.find(session) else { return Err(CastError::NotConnected) };
        let TableEntry::Open(open) = &mut self.places[place].entry else {
            return Err(CastError::NotConnected);
        };
        open.cast(now_ns, &mut self.pool, &mut self.counters, flow, (head, body))?;
        self.touched(place);
        Ok(())
    }

    /// How many bytes of casts of a flow wait to be sent; 0 without such a session.
    pub fn casts_waiting_bytes(&self, session: SessionId, flow: u16) -> u64 {
        match self.find(session).map(|place| &self.places[place].entry) {
            Some(TableEntry::Open(open)) => open.casts_waiting_bytes(flow),
            _ => 0,
        }
    }

    /// Hands the peer's casts of a flow to the sink from now on. Before, and after
    /// [`close_casts`](Self::close_casts), they are dropped and counted. A session that is gone is
    /// left alone.
    pub fn open_casts(&mut self, session: SessionId, flow: u16) {
        assert!(usize::from(flow) < FLOWS_MAX, "flow {flow} of {FLOWS_MAX}");
        let Some(place) = self.find(session) else { return };
        if let TableEntry::Open(open) = &mut self.places[place].entry {
            open.open_casts(flow);
        }
    }

    /// Says whether the owner waits for casts by a session: then it asks each second whether the
    /// peer is there and still knows it, else every five.
    pub fn set_watched(&mut self, session: SessionId, is_watched: bool) {
        let Some(place) = self.find(session) else { return };
        if let TableEntry::Open(open) = &mut self.places[place].entry {
            open.set_watched(is_watched);
            self.touched(place);
        }
    }

    /// Drops the peer's casts of a flow from now on.
    pub fn close_casts(&mut self, session: SessionId, flow: u16) {
        let Some(place) = self.find(session) else { return };
        if let TableEntry::Open(open) = &mut self.places[place].entry {
            open.close_casts(&mut self.pool, flow);
        }
    }

    /// Takes one datagram. At worst, any contents change a count.
    ///
    /// It arrived at this host at `arrived_ns`, of the same clock, at most `now_ns`: the time
    /// between the two is no part of the network's delay.
    pub fn receive(
        &mut self,
        now_ns: u64,
        arrived_ns: u64,
        from: SocketAddr,
        datagram: &[u8],
        sink: &mut dyn Sink,
    ) {
        let arrived_ns = arrived_ns.clamp(now_ns.saturating_sub(WAIT_NS_MAX), now_ns);
        self.receive_datagram(Times { now_ns, arrived_ns }, from, datagram, sink);
    }

    /// Adds datagrams to a batch until it is full or nothing more may be sent now. The caller sends
    /// the batch and empties it with [`TransmitBatch::consume`]; bodies of datagrams that were
    /// consumed are let go here.
    pub fn transmit(&mut self, now_ns: u64, out: &mut TransmitBatch) {
        out.prepare(&mut self.pool);
        // Neither may a flood of strangers hold up the sessions, nor busy sessions the answers.
        self.transmit_answers(out, out.capacity().div_ceil(ANSWERS_SHARE));
        while !out.is_full()
            && let Some((_, place)) = self.ready.pop()
        {
            if self.transmit_from(now_ns, usize::from(place), out) {
                self.ready.push(self.turn_of(usize::from(place)), place);
            }
        }
        self.transmit_answers(out, usize::MAX);
    }

    /// Does what is due: losses, probes, time-outs. Call it each round, after receiving.
    pub fn advance(&mut self, now_ns: u64, sink: &mut dyn Sink) {
        let pause_ns = now_ns.saturating_sub(self.deadlines.earliest_ns());
        if pause_ns >= PAUSE_NS {
            self.was_paused(now_ns, pause_ns);
        }
        let mut from = 0;
        while let Some(place) = self.deadlines.first_due(from, now_ns) {
            from = place + 1;
            self.advance_place(now_ns, place, sink);
        }
    }

    /// When `advance` is due next. Data that can be sent at once does not count: `transmit` comes
    /// first.
    pub fn next_timeout_ns(&self) -> Option<u64> {
        Some(self.deadlines.earliest_ns()).filter(|&deadline_ns| deadline_ns != u64::MAX)
    }

    /// Whether `transmit` may have something to add.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty() || !self.answers.is_empty()
    }

    /// All sessions, for `vrio status`.
    pub fn sessions(&self) -> impl Iterator<Item = SessionStatus> {
        self.places.iter().filter_map(|place| match &place.entry {
            TableEntry::Vacant => None,
            TableEntry::Connecting(connecting) => Some(connecting.status()),
            TableEntry::HalfOpen(half_open) => Some(half_open.status()),
            TableEntry::Open(session) => Some(session.status()),
        })
    }

    /// The counters.
    pub fn counters(&self) -> &EndpointCounters {
        &self.counters
    }

    /// The place of a session, if it still exists.
    fn find(&self, session: SessionId) -> Option<usize> {
        let place = (session.0 & ((1 << PLACE_BITS) - 1)) as usize;
        self.places.get(place).filter(|place| place.session == session).map(|_| place)
    }

    /// A vacant place. The caller has counted its places, so the table has a bound.
    fn take_place(&mut self) -> usize {
        if let Some(place) = self.vacant.pop() {
            return usize::from(place);
        }
        self.places.push(TablePlace {
            local_id: 0,
            session: SessionId(0),
            is_ready: false,
            entry: TableEntry::Vacant,
        });
        self.places.len() - 1
    }

    /// Names what will be at a vacant place.
    fn draw_ids(&mut self, place: usize) -> (SessionId, u64) {
        self.sessions_made += 1;
        let session = SessionId((self.sessions_made << PLACE_BITS) | place as u64);
        let random = loop {
            let random = self.secrets.next_u64() >> PLACE_BITS;
            if random != 0 {
                break random;
            }
        };
        let local_id = (random << PLACE_BITS) | place as u64;
        self.places[place].session = session;
        self.places[place].local_id = local_id;
        (session, local_id)
    }

    fn vacate(&mut self, place_index: usize) {
        let place = &mut self.places[place_index];
        let was_outgoing = match &mut place.entry {
            TableEntry::Vacant => return,
            TableEntry::Connecting(_) => true,
            TableEntry::HalfOpen(half_open) => {
                self.half_open -= 1;
                if let Some(number) = half_open.owner.number() {
                    self.peers.get_mut(number).half_open -= 1;
                }
                false
            }
            TableEntry::Open(session) => {
                session.release(&mut self.pool);
                let agreed = session.agreed();
                if let Some(number) = agreed.owner.number() {
                    let peer = self.peers.get_mut(number);
                    *(if agreed.peer.outgoing {
                        &mut peer.outgoing
                    } else {
                        &mut peer.incoming
                    }) -= 1;
                }
                agreed.peer.outgoing
            }
        };
        *(if was_outgoing { &mut self.outgoing } else { &mut self.incoming }) -= 1;
        place.entry = TableEntry::Vacant;
        place.local_id = 0;
        place.session = SessionId(0);
        self.deadlines.set(place_index, u64::MAX);
        self.vacant.push(place_index as u16);
    }

    /// Ends a session, and says so if its owner knows of it.
    fn lose(&mut self, place: usize, why: &LostReason, sink: &mut dyn Sink) {
        let session = self.places[place].session;
        match &self.places[place].entry {
            TableEntry::Open(_) => {
                self.counters.sessions_lost += 1;
                sink.lost(session, why);
            }
            TableEntry::Connecting(_) => sink.lost(session, why),
            TableEntry::HalfOpen(_) | TableEntry::Vacant => {}
        }
        self.vacate(place);
    }

    /// Something changed at a place: it may have something to send, and another deadline.
    fn touched(&mut self, place_index: usize) {
        let place = &mut self.places[place_index];
        let deadline_ns = match &place.entry {
            TableEntry::Vacant => u64::MAX,
            TableEntry::Connecting(connecting) => connecting.deadline_ns(),
            TableEntry::HalfOpen(half_open) => half_open.deadline_ns(),
            TableEntry::Open(session) => session.deadline_ns(),
        };
        self.deadlines.set(place_index, deadline_ns);
        if !std::mem::replace(&mut place.is_ready, true) {
            self.ready.push(self.turn_of(place_index), place_index as u16);
        }
    }

    /// Lets a place send. `true`: it has more.
    fn transmit_from(&mut self, now_ns: u64, index: usize, out: &mut TransmitBatch) -> bool {
        if let TableEntry::Connecting(connecting) = &mut self.places[index].entry {
            if connecting.wants_another_key(now_ns) {
                self.begin_attempt(now_ns, index);
            } else if connecting.wants_another_size(now_ns) {
                self.last_attempt = now_ns.max(self.last_attempt + 1);
                let hellos = connecting.take_another_size(self.last_attempt);
                self.counters.sizes_given_up += 1;
                self.begin_attempt(now_ns, index);
                if let TableEntry::Connecting(connecting) = &mut self.places[index].entry {
                    connecting.asked_with_this_key(hellos);
                }
            }
        }
        let place = &mut self.places[index];
        place.is_ready = false;
        match &mut place.entry {
            TableEntry::Vacant | TableEntry::HalfOpen(_) => {}
            TableEntry::Connecting(connecting) => {
                if let Some(to) = connecting.hello_to(now_ns) {
                    let bytes = connecting.write_hello(to, out, &self.config);
                    self.counters.datagrams_sent += 1;
                    self.counters.bytes_sent += bytes as u64;
                }
                self.deadlines.set(index, connecting.deadline_ns());
            }
            TableEntry::Open(session) => {
                let (pool, counters) = (&mut self.pool, &mut self.counters);
                place.is_ready = session.transmit(now_ns, pool, counters, out, TRANSMIT_RUN);
                self.deadlines.set(index, session.deadline_ns());
            }
        }
        place.is_ready
    }

    /// Adds up to `count` answers.
    fn transmit_answers(&mut self, out: &mut TransmitBatch, count: usize) {
        for _ in 0..count {
            if out.is_full() {
                return;
            }
            let Some(answer) = self.answers.pop() else { return };
            self.transmit_answer(&answer, out);
        }
    }

    fn transmit_answer(&mut self, answer: &SessionlessReply, out: &mut TransmitBatch) {
        let slot = out.next(answer.to);
        match &answer.content {
            Content::Nothing => write_packet(slot, answer.label, &[]),
            Content::Refusal(refusal) => write_packet(slot, answer.label, refusal.as_bytes()),
            Content::Redirection(to) => write_packet(slot, answer.label, to.as_bytes()),
            Content::Close => write_packet(slot, answer.label, &[FRAME_CLOSE]),
            Content::Welcome(welcome) => write_welcome(slot, &self.config, welcome),
            Content::Cookie(cookie, is_busy) => {
                let mut frames = [u8::from(*is_busy); COOKIE_BYTES + 1];
                frames[..COOKIE_BYTES].copy_from_slice(cookie);
                write_packet(slot, answer.label, &frames);
            }
            Content::Token => {
                let key = self.reset_key.as_ref();
                let token = key.map(|key| key.token(self.config.index, answer.label.session));
                write_packet(slot, answer.label, token.as_ref().map_or(&[], |token| &token[..]));
            }
            Content::Frames(frames) => write_packet(slot, answer.label, frames),
            Content::Packet(packet) => {
                slot.head[..packet.len()].copy_from_slice(packet);
                slot.head_bytes = packet.len();
            }
        }
        let bytes = out.pad_last(answer.label, answer.pad_bytes);
        self.counters.datagrams_sent += 1;
        self.counters.bytes_sent += bytes as u64;
    }

    /// Queues a packet that belongs to no session; dropped and counted when too many wait.
    fn answer(&mut self, class: AnswerReceiver, answer: SessionlessReply) {
        self.counters.answers_dropped += u64::from(!self.answers.push(class, answer));
    }

    fn advance_place(&mut self, now_ns: u64, index: usize, sink: &mut dyn Sink) {
        match &mut self.places[index].entry {
            TableEntry::Vacant => return,
            TableEntry::Connecting(connecting) => {
                if let Some(why) = connecting.advance(now_ns) {
                    self.note_size(now_ns, index);
                    self.lose(index, &why, sink);
                    return;
                }
            }
            TableEntry::HalfOpen(_) => {
                self.vacate(index);
                return;
            }
            TableEntry::Open(session) => {
                let (pool, counters) = (&mut self.pool, &mut self.counters);
                let arrived_ns = now_ns;
                let mut inside = SessionContext { now_ns, arrived_ns, pool, counters, sink };
                if let Some(why) = session.advance(&mut inside) {
                    if let LostReason::PathShrank(bytes) = why {
                        let to = session.agreed().peer.addr.ip();
                        self.paths.shrank(now_ns, to, bytes);
                        self.say_farewell(index);
                    }
                    self.lose(index, &why, sink);
                    return;
                }
            }
        }
        self.touched(index);
    }

    /// Keeps what an attempt of ours found out about the way, for the next one.
    fn note_size(&mut self, now_ns: u64, place: usize) {
        let TableEntry::Connecting(connecting) = &self.places[place].entry else { return };
        if let Some(bytes) = connecting.tried_bytes() {
            let link_bytes_max = self.config.datagram_bytes_max;
            self.paths.tried(now_ns, connecting.base().ip(), bytes, link_bytes_max);
        }
    }

    fn was_paused(&mut self, now_ns: u64, pause_ns: u64) {
        for place in &mut self.places {
            if let TableEntry::Open(session) = &mut place.entry {
                session.was_paused(now_ns, pause_ns);
            }
        }
    }
}

/// Limits of messages are the caller's to keep.
fn check_message(pool: &Pool, head: &[u8], body: Option<(BufId, usize)>) {
    assert!(head.len() <= HEAD_MAX, "a head of {} bytes", head.len());
    if let Some((buffer, len_bytes)) = body {
        assert!(len_bytes <= MESSAGE_MAX, "a body of {len_bytes} bytes");
        assert!(len_bytes <= pool.bytes(buffer).len(), "a body longer than its buffer");
    }
}

/// The label of an answer to a handshake packet.
fn answer_label(kind: PacketKind, session: u64, number: u64) -> Label {
    Label { kind, version: VERSION_ANY, session, number, flags: 0 }
}
