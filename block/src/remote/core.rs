//! The state of one remote channel.
//!
//! ```text
//!            session up            claimed            opened
//!   Down ─────────────▶ Idle ─┬─▶ Claiming ─▶ Idle ─▶ Opening ─▶ Open ──┐
//!    ▲                    ▲   └─(only the lead)                         │
//!    │ session lost       └──── epoch over, not open, paused, expired ──┘
//! ```
//! Requests are sent in `Open` only. When the channel leaves `Open`, all requests that were sent
//! become waiting ones. They are sent again, from their stable copies, when the channel is open
//! again. The server has by then completed or refused every request that came by the old session.

use std::collections::VecDeque;
use std::sync::Arc;

use sidecore::{Progress, Wake};
use transport::{Endpoint, SessionId};

use super::calls::{control, token as token_of};
use super::described::{RemoteCounters, RemoteVolume, SoleWord};
use super::held::HeldRoute;
use super::request::{RemoteRequest, RequestPhase, scatter_at};
use super::route::TURN_AFTER_NS;
use crate::attachment::{Attachment, EPOCH_END, Phase, View};
use crate::wire::{self, Claim, Kind, Names, Outcome, Reply, Title, attachment_id};
use peer::proof::Binding;
use peer::{AttachmentSecret, PeerSession, PlaneId, Token};
use volume::Durability::WriteThrough;
use volume::copy::{Prefetch, gather};
use volume::{IoId, IoTable, Op, Status};

/// How long a refused claim waits before it asks again.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// How long the first refused claim waits; each further one twice as long as the one before, up to
/// [`ASK_AGAIN_NS`]. A guest that is migrated may be here a moment before its source has let go.
const ASK_SOON_NS: u64 = ASK_AGAIN_NS >> REFUSALS_MAX;

/// Refusals after which a claim waits for [`ASK_AGAIN_NS`].
const REFUSALS_MAX: u32 = 5;

/// How often a channel looks whether another one has claimed.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// How long a close waits for its answer. The server does the same whether or not we hear of it;
/// QEMU's main lock is held meanwhile.
const CLOSE_WAIT_NS: u64 = 1_000_000_000;

/// The slot number of claims, opens and closes in a token.
const CONTROL: u16 = u16::MAX;

/// The way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerConnection {
    Down,
    Idle(SessionId),
    /// A claim or an opening is under way: its token.
    Claiming(SessionId, Token),
    Opening(SessionId, Token),
    Open(SessionId),
    Closing(SessionId, Token),
}

impl ServerConnection {
    fn session(self) -> Option<SessionId> {
        match self {
            Self::Down => None,
            Self::Idle(session)
            | Self::Claiming(session, _)
            | Self::Opening(session, _)
            | Self::Open(session)
            | Self::Closing(session, _) => Some(session),
        }
    }
}

/// One remote channel; see the module.
#[derive(Debug)]
pub(crate) struct RemoteCore {
    names: Names,
    key: Option<Arc<AttachmentSecret>>,
    attachment: Arc<Attachment>,
    counters: Arc<RemoteCounters>,
    sole: SoleWord,
    /// The peers of the volume. The way leads to the peer that is asked as of the last look.
    route: HeldRoute,
    index: u16,
    flow: u16,
    write_through: bool,
    way: ServerConnection,
    /// Of the way's session: proofs are bound to it.
    binding: Binding,
    /// Of the way's session: the version of the protocol that both ends speak.
    version: u8,
    title: Title,
    /// Writes acknowledged before the claim that is under way: its answer makes them durable.
    claim_covers: u64,
    attempt: u16,
    ask_at_ns: u64,
    /// Claims refused since the last one that was granted, as far as they count.
    refusals: u32,
    requests: Box<[RemoteRequest]>,
    waiting: VecDeque<u16>,
    ended: VecDeque<u16>,
    outstanding: usize,
    now_ns: u64,
    /// When the way was last lost; the volume is out of reach since then unless it is open.
    away_since_ns: u64,
    /// No request expires before this.
    expire_at_ns: u64,
    close_by_ns: Option<u64>,
    closed: bool,
}

impl RemoteCore {
    pub(super) fn new(
        (volume, route): (&RemoteVolume, HeldRoute),
        (attachment, index): (&Arc<Attachment>, u16),
        depth: u16,
        counters: Arc<RemoteCounters>,
    ) -> Self {
        assert!(depth < CONTROL, "slot numbers and the control token differ");
        let depth = usize::from(depth);
        let names =
            Names { volume: volume.name().to_owned(), attachment: attachment.name().to_owned() };
        let id = attachment_id(&names.volume, &names.attachment);
        Self {
            names,
            key: volume.key().cloned(),
            attachment: attachment.clone(),
            counters,
            sole: volume.sole.clone(),
            route,
            index,
            flow: 0,
            write_through: volume.described().is_some_and(|info| info.durability == WriteThrough),
            way: ServerConnection::Down,
            binding: Binding::default(),
            version: 0,
            title: Title { attachment: id, ..Title::default() },
            claim_covers: 0,
            attempt: 0,
            ask_at_ns: 0,
            refusals: 0,
            requests: (0..depth).map(|_| RemoteRequest::default()).collect(),
            waiting: VecDeque::with_capacity(depth),
            ended: VecDeque::with_capacity(depth),
            outstanding: 0,
            now_ns: 0,
            away_since_ns: 0,
            expire_at_ns: u64::MAX,
            close_by_ns: None,
            closed: false,
        }
    }

    pub(super) fn enlisted(&mut self, flow: u16) {
        self.flow = flow;
    }

    /// Takes a request from the disk; it is sent by the next `drive`.
    pub(super) fn take(&mut self, ios: &mut IoTable, id: IoId) {
        let io = &mut ios[id];
        io.status = Status::Pending;
        let at = id.index();
        let request = &mut self.requests[at];
        assert_eq!(request.stand, RequestPhase::Free, "a slot has one request at a time");
        request.id = Some(id);
        request.op = io.op;
        request.offset_bytes = io.offset_bytes;
        request.len_bytes = io.len_bytes;
        request.durable = io.durable;
        // A channel that was idle knows only an old time.
        request.since_ns = self.now_ns.max(io.submitted_ns);
        std::mem::swap(&mut request.segments, &mut io.segments);
        request.stand = RequestPhase::Waiting;
        let limit_ns = self.attachment.options().error_after_ns.unwrap_or(u64::MAX);
        self.expire_at_ns = self.expire_at_ns.min(self.now_ns.saturating_add(limit_ns));
        self.outstanding += 1;
        self.waiting.push_back(u16::try_from(at).expect("below the table's capacity"));
    }

    /// Leaves a peer that does not serve the volume any more, or is not one of its peers any more,
    /// and gives the session with the peer that is asked now. Its epoch was the other peer's:
    /// requests that are on their way there must find it over, so it is claimed anew.
    pub(super) fn follow(&mut self, endpoint: &mut Endpoint) -> Option<PeerSession> {
        if self.route.follow() {
            self.leave(endpoint);
        }
        self.route.session()
    }

    fn leave(&mut self, endpoint: &mut Endpoint) {
        if let Some(session) = self.way.session() {
            self.forget_sent(session, endpoint);
        }
        self.fall_back(ServerConnection::Down);
        let view = self.attachment.view();
        if view.phase == Phase::Held {
            self.attachment.reclaim(view.epoch);
        }
    }

    /// Moves on as far as the session and the attachment allow.
    pub(super) fn drive(
        &mut self,
        now_ns: u64,
        session: Option<PeerSession>,
        endpoint: &mut Endpoint,
    ) -> Progress {
        self.now_ns = now_ns;
        if let (ServerConnection::Down, Some(session)) = (self.way, session) {
            self.way = ServerConnection::Idle(session.id);
            self.binding = session.binding;
            self.version = session.version;
        }
        self.expire(now_ns);
        let view = self.attachment.view();
        match view.phase {
            Phase::Unclaimed => {
                self.retreat(endpoint);
                self.claim(now_ns, endpoint)
            }
            Phase::Held => {
                if self.title.epoch != view.epoch {
                    self.retreat(endpoint);
                    self.title.epoch = view.epoch;
                    self.title.incarnation = self.attachment.incarnation();
                }
                match self.way {
                    ServerConnection::Idle(session) => self.open(now_ns, session, endpoint),
                    ServerConnection::Open(session) => self.send(now_ns, session, endpoint),
                    _ => Progress::Idle,
                }
            }
            Phase::Fenced => self.end_all(Status::Fenced, endpoint),
            Phase::Failed => self.end_all(Status::Error, endpoint),
            Phase::Closed => Progress::Idle,
        }
    }

    /// Gives finished requests back to the disk.
    pub(super) fn hand_back(
        &mut self,
        ios: &mut IoTable,
        endpoint: &mut Endpoint,
        done: &mut Vec<IoId>,
    ) -> Progress {
        let progress = Progress::busy_if(!self.ended.is_empty());
        while let Some(at) = self.ended.pop_front() {
            let request = &mut self.requests[usize::from(at)];
            let RequestPhase::Ended(status) = request.stand else {
                unreachable!("only ended requests are listed");
            };
            let id = request.id.take().expect("set when it was taken");
            if let Some(stable) = request.stable.take() {
                endpoint.pool_mut().release(stable);
            }
            request.stand = RequestPhase::Free;
            std::mem::swap(&mut request.segments, &mut ios[id].segments);
            ios[id].status = status;
            self.outstanding -= 1;
            done.push(id);
        }
        progress
    }

    pub(super) fn arm(&mut self, wake: &mut Wake) -> Progress {
        let view = self.attachment.view();
        let unopened =
            self.title.epoch != view.epoch || matches!(self.way, ServerConnection::Idle(_));
        let ended = matches!(view.phase, Phase::Fenced | Phase::Failed);
        // Another sidecore's channel may have changed the phase since this one last looked.
        if !self.ended.is_empty()
            || self.route.is_behind()
            || (view.phase == Phase::Held && unopened && self.way != ServerConnection::Down)
            || (ended && !self.waiting.is_empty())
        {
            return Progress::Busy;
        }
        if self.outstanding > 0 && self.is_away() && self.expire_at_ns != u64::MAX {
            wake.at(self.expire_at_ns);
        }
        // Another sidecore's channel may be claiming: look again. Without a session there is
        // nothing to look for; its arrival wakes the sidecore.
        if view.phase == Phase::Unclaimed && self.way != ServerConnection::Down {
            wake.at(self.ask_at_ns.max(self.now_ns + LOOK_AGAIN_NS));
        }
        if let Some(by) = self.close_by_ns {
            wake.at(by);
        }
        // Another sidecore may find the peer that serves the volume.
        if self.route.has_others() && self.is_away() {
            wake.at(self.now_ns + TURN_AFTER_NS);
        }
        Progress::Idle
    }

    /// Bytes of an answer to a read. They are placed only while the answer would be accepted.
    pub(super) fn place(&mut self, session: SessionId, token: Token, offset: usize, bytes: &[u8]) {
        let Some(at) = self.sent_slot(session, token) else { return };
        let request = &self.requests[at];
        let RequestPhase::Sent { epoch, .. } = request.stand else { return };
        if request.op != Op::Read || !self.attachment.accepts(epoch) {
            return;
        }
        // SAFETY: the segments belong to this request until it is handed back, and the disk keeps
        // them mapped until then; `bytes` lie in a datagram of our own.
        if unsafe { scatter_at(&request.segments, offset, bytes) } {
            self.counters.bytes_copied.add(bytes.len() as u64);
        } else {
            self.counters.malformed.add(1);
        }
    }

    /// A complete answer.
    pub(super) fn answered(
        &mut self,
        now_ns: u64,
        session: SessionId,
        token: Token,
        head: &[u8],
        body_len: usize,
    ) {
        let Some(reply) = Reply::decode(head) else {
            self.counters.malformed.add(1);
            // Nothing that was sent can be believed done: all of it again, under another epoch.
            if self.way == ServerConnection::Open(session) {
                self.attachment.reclaim(self.title.epoch);
            } else if self.way.session() == Some(session) {
                self.fall_back(ServerConnection::Idle(session));
            }
            return;
        };
        match self.way {
            ServerConnection::Claiming(at, mine) if at == session && mine == token => {
                self.way = ServerConnection::Idle(session);
                self.claimed(now_ns, reply);
                self.attachment.release_lead(self.index);
            }
            ServerConnection::Opening(at, mine) if at == session && mine == token => {
                self.opened(session, &reply);
            }
            ServerConnection::Closing(at, mine) if at == session && mine == token => {
                self.way = ServerConnection::Idle(session);
                self.closed = true;
                if reply.outcome == Outcome::Done {
                    self.attachment.released();
                } else {
                    self.attachment.waits(format!("not closed clean: {}", reply.text));
                }
            }
            ServerConnection::Open(_) => self.data_answered(session, token, &reply, body_len),
            _ => self.counters.rejected.add(1),
        }
    }

    fn claimed(&mut self, now_ns: u64, reply: Reply) {
        match (reply.outcome, reply.volume) {
            (Outcome::Done, Some(info)) if self.is_possible(reply.epoch) => {
                self.refusals = 0;
                self.attachment.note_flushed(self.claim_covers);
                // Before the epoch is seen, whose readers look at it.
                self.sole.set(reply.sole);
                self.attachment.hold(reply.epoch, info.incarnation);
            }
            (Outcome::Superseded, _) => self.attachment.fence(reply.text),
            (Outcome::Lost, _) => self.attachment.fail(reply.text),
            (Outcome::Elsewhere, _) => {
                self.attachment.waits(wire::says_elsewhere(&reply.text));
                self.route.sent_to(&reply.text);
                // The first time at once: members that name each other are asked ever more seldom.
                if self.refusals > 0 {
                    self.ask_at_ns = now_ns + (ASK_SOON_NS << self.refusals);
                }
                self.refusals = REFUSALS_MAX.min(self.refusals + 1);
            }
            _ => {
                if self.attachment.why().as_ref() != Some(&reply.text) {
                    let (attachment, why) = (self.attachment.name(), &reply.text);
                    tracing::warn!(attachment, why, "the disk waits: its claim was refused");
                }
                self.attachment.waits(reply.text);
                // A member that cannot serve need not know the member that does.
                self.route.turn();
                self.ask_at_ns = now_ns + (ASK_SOON_NS << self.refusals);
                self.refusals = REFUSALS_MAX.min(self.refusals + 1);
            }
        }
    }

    /// Whether a server can have issued this epoch to us.
    fn is_possible(&self, epoch: u64) -> bool {
        epoch > self.attachment.view().epoch && epoch < EPOCH_END
    }

    fn opened(&mut self, session: SessionId, reply: &Reply) {
        self.way = ServerConnection::Idle(session);
        match reply.outcome {
            Outcome::Done => self.way = ServerConnection::Open(session),
            Outcome::EpochOver | Outcome::IncarnationOver => {
                self.attachment.reclaim(self.title.epoch);
            }
            // The volume is gone, forbidden or elsewhere: a claim says why, and asks again in its
            // own time.
            _ => {
                self.attachment.reclaim(self.title.epoch);
                self.attachment.waits(reply.text.clone());
            }
        }
    }

    fn data_answered(&mut self, session: SessionId, token: Token, reply: &Reply, body_len: usize) {
        let Some(at) = self.sent_slot(session, token) else {
            self.counters.rejected.add(1);
            return;
        };
        match reply.outcome {
            Outcome::Done => self.done(at, body_len),
            Outcome::Error => self.accept(at, Status::Error),
            Outcome::Invalid => self.accept(at, Status::Invalid),
            Outcome::Unsupported => self.accept(at, Status::Unsupported),
            Outcome::NotOpen
            | Outcome::EpochOver
            | Outcome::IncarnationOver
            | Outcome::Superseded
            | Outcome::Lost
            | Outcome::Refused
            | Outcome::Elsewhere => {
                self.attachment.reclaim(self.title.epoch);
                self.wait_again(at);
            }
        }
    }

    fn done(&mut self, at: usize, body_len: usize) {
        let request = &self.requests[at];
        let expected = if request.op == Op::Read { request.len_bytes as usize } else { 0 };
        if body_len != expected {
            self.counters.malformed.add(1);
            self.accept(at, Status::Error);
            return;
        }
        match request.op {
            // Before it is accepted: see `Attachment::accepts`.
            op if op.changes() && !(self.write_through || request.durable) => {
                let RequestPhase::Sent { epoch, .. } = request.stand else { return };
                if self.attachment.accepts(epoch) {
                    self.attachment.note_acked(self.index);
                }
            }
            Op::Flush => self.attachment.note_flushed(request.covers),
            _ => {}
        }
        self.accept(at, Status::Done);
    }

    /// Ends a request with its answer, unless its epoch has been given up meanwhile.
    fn accept(&mut self, at: usize, status: Status) {
        let RequestPhase::Sent { epoch, .. } = self.requests[at].stand else { return };
        if self.attachment.accepts(epoch) {
            self.end(at, status);
        } else {
            self.counters.rejected.add(1);
            self.wait_again(at);
        }
    }

    fn end(&mut self, at: usize, status: Status) {
        self.requests[at].stand = RequestPhase::Ended(status);
        self.ended.push_back(u16::try_from(at).expect("below the table's capacity"));
    }

    fn wait_again(&mut self, at: usize) {
        self.requests[at].stand = RequestPhase::Waiting;
        self.counters.resent.add(1);
        self.waiting.push_back(u16::try_from(at).expect("below the table's capacity"));
    }

    pub(super) fn session_lost(&mut self, session: SessionId, why: &str) {
        if self.way.session() == Some(session) {
            self.attachment.waits(format!("session lost: {why}"));
            self.fall_back(ServerConnection::Down);
        }
    }

    /// Whether requests are with the server, or will be.
    pub(super) fn is_waiting(&self) -> bool {
        self.outstanding > 0
    }

    /// This process stood still: its knowledge of its epoch may be old. It asks for a new epoch,
    /// and not only for a new channel: requests that were sent before may still arrive, and must
    /// find their epoch over.
    pub(super) fn paused(&mut self) {
        if self.is_held() {
            self.counters.pauses.add(1);
            self.attachment.doubt();
        }
    }

    /// Whether an epoch is held, which a pause makes doubtful: also where nothing is asked for, a
    /// disk that was replaced leaves its guest alone.
    pub(super) fn is_held(&self) -> bool {
        self.attachment.view().phase == Phase::Held
    }

    /// Leaves the open way; answers to what was sent are not believed any more, since tokens of
    /// requests that wait match nothing.
    fn fall_back(&mut self, to: ServerConnection) {
        if matches!(self.way, ServerConnection::Claiming(..)) {
            self.attachment.release_lead(self.index);
        }
        if !self.is_away() {
            self.away_since_ns = self.now_ns;
            self.expire_at_ns = 0;
        }
        self.way = to;
        for at in 0..self.requests.len() {
            if matches!(self.requests[at].stand, RequestPhase::Sent { .. }) {
                self.wait_again(at);
            }
        }
    }

    /// Leaves the open way because the epoch is over or not yet there.
    fn retreat(&mut self, endpoint: &mut Endpoint) {
        let (ServerConnection::Open(session) | ServerConnection::Opening(session, _)) = self.way
        else {
            return;
        };
        self.forget_sent(session, endpoint);
        self.fall_back(ServerConnection::Idle(session));
    }

    fn forget_sent(&mut self, session: SessionId, endpoint: &mut Endpoint) {
        if let ServerConnection::Opening(_, token) | ServerConnection::Claiming(_, token) = self.way
        {
            endpoint.forget(session, token.raw());
        }
        for request in &self.requests {
            if let RequestPhase::Sent { token, .. } = request.stand {
                endpoint.forget(session, token.raw());
            }
        }
    }

    fn claim(&mut self, now_ns: u64, endpoint: &mut Endpoint) -> Progress {
        let ServerConnection::Idle(session) = self.way else { return Progress::Idle };
        if now_ns < self.ask_at_ns {
            return Progress::Idle;
        }
        match self.attachment.may_claim() {
            None => return Progress::Idle,
            Some(Ok(())) => {}
            Some(Err(error)) => {
                self.attachment.waits(error.to_string());
                self.ask_at_ns = now_ns + ASK_AGAIN_NS;
                return Progress::Idle;
            }
        }
        if !self.attachment.lead_claim(self.index) {
            return Progress::Idle;
        }
        let options = self.attachment.options();
        self.title.epoch = self.attachment.view().epoch;
        self.title.incarnation = self.attachment.incarnation();
        let mut request = wire::Request::new(Kind::Claim, self.title, self.index);
        request.claim = Claim {
            claimant: options.claimant,
            resume: options.resume,
            // After the phase became `Unclaimed`: nothing is accepted between this and the answer.
            unflushed: self.attachment.unflushed(),
            accept_loss: options.accept_loss,
            // Once: a client that has lost the volume again asks like any other.
            take_over: self.attachment.takes_over(),
            known: options.known,
        };
        self.claim_covers = self.attachment.flush_covers();
        // The title of a claim is the last one held; 0 says that there was none.
        self.control(now_ns, session, request, endpoint, ServerConnection::Claiming)
    }

    fn open(&mut self, now_ns: u64, session: SessionId, endpoint: &mut Endpoint) -> Progress {
        let request = wire::Request::new(Kind::Open, self.title, self.index);
        self.control(now_ns, session, request, endpoint, ServerConnection::Opening)
    }

    fn control(
        &mut self,
        now_ns: u64,
        session: SessionId,
        mut request: wire::Request,
        endpoint: &mut Endpoint,
        way: impl Fn(SessionId, Token) -> ServerConnection,
    ) -> Progress {
        request.names = Some(self.names.clone());
        let token = self.next_token(CONTROL);
        let key = self.key.as_deref();
        let at = PeerSession { id: session, binding: self.binding, version: self.version };
        let by = (self.flow, token);
        if !control(now_ns, at, by, &request, key, endpoint) {
            // Another channel may have better luck.
            self.attachment.release_lead(self.index);
            return Progress::Idle;
        }
        self.way = way(session, token);
        Progress::Busy
    }

    fn send(&mut self, now_ns: u64, session: SessionId, endpoint: &mut Endpoint) -> Progress {
        let mut progress = Progress::Idle;
        // Bounded by the table.
        while let Some(&at) = self.waiting.front() {
            if self.is_unknown_there(usize::from(at)) {
                self.waiting.pop_front();
                self.end(usize::from(at), Status::Unsupported);
                continue;
            }
            if !self.send_one(now_ns, session, usize::from(at), endpoint) {
                self.counters.stalls.add(1);
                break;
            }
            self.waiting.pop_front();
            self.counters.calls.add(1);
            progress = Progress::Busy;
        }
        progress
    }

    /// The peer's program went back to a version without this request, which the guest knows of: it
    /// finds another way, such as writing zeroes.
    fn is_unknown_there(&self, at: usize) -> bool {
        let version = PlaneId::Block.version(self.version);
        self.requests[at].op.zeroes() && version < wire::ZEROING_VERSION_MIN
    }

    /// `false` when there is no room now: neither buffer nor window.
    fn send_one(
        &mut self,
        now_ns: u64,
        session: SessionId,
        at: usize,
        endpoint: &mut Endpoint,
    ) -> bool {
        let token = self.next_token(u16::try_from(at).expect("below the table's capacity"));
        let request = &mut self.requests[at];
        if request.op == Op::Write && request.stable.is_none() {
            let len = request.len_bytes as usize;
            let Ok(stable) = endpoint.buffer_for(session, len) else { return false };
            let to = endpoint.pool_mut().bytes_mut(stable);
            assert!(to.len() >= len, "a pool gives at least what was asked for");
            // SAFETY: the disk keeps the segments mapped until the request is handed back; their
            // total is `len_bytes` (the disk set both), for which `to` has room, and the pool is
            // not guest memory.
            unsafe { gather(&request.segments, to.as_mut_ptr(), Prefetch::NONE) };
            request.stable = Some(stable);
            self.counters.bytes_copied.add(len as u64);
        }
        let body = request.stable.map(|stable| (stable, request.len_bytes as usize));
        let mut head = wire::Request::new(Kind::of(request.op), self.title, self.index);
        head.offset_bytes = request.offset_bytes;
        head.len_bytes = request.len_bytes;
        head.durable = request.durable;
        if request.op == Op::Flush {
            request.covers = self.attachment.flush_covers();
        }
        let head = head.encode();
        let sent = endpoint.call(now_ns, session, self.flow, token.raw(), head.as_bytes(), body);
        if sent.is_ok() {
            request.stand = RequestPhase::Sent { token, epoch: self.title.epoch };
        }
        sent.is_ok()
    }

    /// Whether a request would be sent now.
    pub(super) fn is_open(&self) -> bool {
        let held = View { phase: Phase::Held, epoch: self.title.epoch };
        !self.is_away() && self.attachment.view() == held
    }

    fn is_away(&self) -> bool {
        !matches!(self.way, ServerConnection::Open(_))
    }

    /// Ends requests that the volume was out of reach for longer than the operator allows. Their
    /// outcome is unknown, so the epoch is given up first: nothing that comes after them can be
    /// overtaken by them.
    fn expire(&mut self, now_ns: u64) {
        let Some(limit_ns) = self.attachment.options().error_after_ns else { return };
        if now_ns < self.expire_at_ns || !self.is_away() {
            return;
        }
        self.expire_at_ns = u64::MAX;
        for at in 0..self.requests.len() {
            let request = &self.requests[at];
            if !matches!(request.stand, RequestPhase::Waiting | RequestPhase::Sent { .. }) {
                continue;
            }
            let by_ns = request.since_ns.max(self.away_since_ns).saturating_add(limit_ns);
            if now_ns < by_ns {
                self.expire_at_ns = self.expire_at_ns.min(by_ns);
                continue;
            }
            self.attachment.reclaim(self.attachment.view().epoch);
            self.waiting.retain(|&waiting| usize::from(waiting) != at);
            self.end(at, Status::Error);
        }
    }

    fn end_all(&mut self, status: Status, endpoint: &mut Endpoint) -> Progress {
        self.retreat(endpoint);
        let progress = Progress::busy_if(!self.waiting.is_empty());
        while let Some(at) = self.waiting.pop_front() {
            self.end(usize::from(at), status);
        }
        progress
    }

    /// Lets go of all requests, then closes the attachment where it was closed by the disk and
    /// this channel leads. `true` when there is nothing more to do.
    pub(super) fn abandon(
        &mut self,
        ios: &mut IoTable,
        now_ns: u64,
        session: Option<PeerSession>,
        endpoint: &mut Endpoint,
    ) -> bool {
        self.now_ns = now_ns;
        self.discard(endpoint);
        for request in &mut self.requests {
            if let Some(id) = request.id.take() {
                request.stand = RequestPhase::Free;
                std::mem::swap(&mut request.segments, &mut ios[id].segments);
            }
        }
        let view = self.attachment.view();
        let may_close = view.phase == Phase::Closed && self.attachment.may_close();
        let leads = may_close && self.attachment.try_lead(self.index);
        if !leads || view.epoch == 0 || self.closed {
            return true;
        }
        let by_ns = *self.close_by_ns.get_or_insert(now_ns + CLOSE_WAIT_NS);
        if now_ns >= by_ns {
            return true;
        }
        if let Some(session) = session
            && !matches!(self.way, ServerConnection::Closing(..))
        {
            self.binding = session.binding;
            self.title.epoch = view.epoch;
            self.title.incarnation = self.attachment.incarnation();
            let request = wire::Request::new(Kind::Close, self.title, self.index);
            let _ = self.control(now_ns, session.id, request, endpoint, ServerConnection::Closing);
        }
        false
    }

    /// Forgets every request: from here on no segment is touched and no buffer is held.
    pub(super) fn discard(&mut self, endpoint: &mut Endpoint) {
        if let Some(session) = self.way.session() {
            self.forget_sent(session, endpoint);
        }
        for request in &mut self.requests {
            if let Some(stable) = request.stable.take() {
                endpoint.pool_mut().release(stable);
            }
            request.stand = RequestPhase::Free;
        }
        self.waiting.clear();
        self.ended.clear();
        self.outstanding = 0;
    }

    fn next_token(&mut self, slot: u16) -> Token {
        self.attempt = self.attempt.wrapping_add(1);
        token_of(self.flow, u32::from(self.attempt) << 16 | u32::from(slot))
    }

    /// The slot that waits for this very answer.
    fn sent_slot(&self, session: SessionId, token: Token) -> Option<usize> {
        let at = usize::try_from(token.key() & u64::from(u16::MAX)).ok()?;
        let request = self.requests.get(at)?;
        let mine = matches!(request.stand, RequestPhase::Sent { token: sent, .. } if sent == token);
        (mine && self.way == ServerConnection::Open(session)).then_some(at)
    }
}
