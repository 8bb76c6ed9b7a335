//! Sessions that peers ask for.

use std::net::SocketAddr;

use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromZeros, IntoBytes};

use crate::endpoint::answers::{AnswerReceiver, Content, SessionlessReply};
use crate::endpoint::security::draw;
use crate::endpoint::{Endpoint, HALF_OPEN_MAX, TableEntry, answer_label};
use crate::handshake::{
    HalfOpen, Hello, HelloPeer, Proof, SessionNumbers, WelcomeLabel, common_version, digest,
    greeting, prologue, versions,
};
use crate::keys::{PublicKey, Security};
use crate::noise::{ANSWER_OPERATIONS, Agreement, READ_OPERATIONS, ReadHello, Responder};
use crate::pool::BufferOwner;
use crate::quota::{PeerIdentity, Share};
use crate::seal::{HelloDigest, ResetToken, Seal};
use crate::strangers::Claims;
use crate::wire::{
    self, CheckedPacket, HelloRefusal, PacketKind, REFUSED_EXPIRED_KEY, REFUSED_NAME,
    REFUSED_NOT_ACCEPTING, REFUSED_PLAIN_HERE, REFUSED_SEALED_HERE, REFUSED_SESSIONS_FULL,
    REFUSED_UNKNOWN_KEY, REFUSED_VERSION, REFUSED_WRONG_KEY, Redirection, SEALED_VERSION_MIN,
    SealedHello, SealedWelcome,
};

/// How a Hello relates to what we know of its sender.
enum HelloRelation {
    /// Neither half-open nor a session: a new attempt.
    New,
    /// The answer was given before.
    Known(WelcomeLabel),
    /// Older than what we have from that process.
    Stale,
}

/// The sender of a Hello, and its address: every answer to the Hello needs these.
#[derive(Clone, Copy, Debug)]
struct Caller {
    from: SocketAddr,
    remote_id: u64,
    attempt: u64,
    /// How long it was, if it was filled up: the Welcome is, too, and is no longer.
    filled_bytes: usize,
}

/// A sealed Hello that was opened.
struct OpenedHello {
    responder: Responder,
    key: PublicKey,
    peer: HelloPeer,
    /// The token in the peer's Resets.
    reset_token: ResetToken,
    digest: HelloDigest,
}

impl Endpoint {
    pub(super) fn receive_hello(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        packet: &CheckedPacket<'_>,
    ) {
        let is_filled = !packet.payload.is_empty();
        let hello = Hello::read(packet.frames);
        let Some(hello) = hello.filter(|it| !is_filled || it.entrance.is_some()) else {
            self.counters.dropped_violation += 1;
            return;
        };
        let remote_id = hello.peer.greeting.session.get();
        let filled_bytes = if is_filled { packet.len_bytes() } else { 0 };
        let caller = Caller { from, remote_id, attempt: packet.number, filled_bytes };
        let Some(version) = common_version(&versions(&self.config), &hello.peer.versions()) else {
            self.refuse_stranger(now_ns, caller, &hello, REFUSED_VERSION);
            return;
        };
        let is_sealed = self.config.security.is_sealed();
        if is_sealed != hello.is_sealed() {
            let reason = if is_sealed { REFUSED_SEALED_HERE } else { REFUSED_PLAIN_HERE };
            self.refuse_stranger(now_ns, caller, &hello, reason);
            return;
        }
        if !self.config.accept && !is_sealed {
            self.refuse_stranger(now_ns, caller, &hello, REFUSED_NOT_ACCEPTING);
            return;
        }
        let owner = hello.peer.greeting.index.get() % self.config.ports.len() as u16;
        if owner != self.config.index {
            self.counters.hellos_redirected += 1;
            let port = U16::new(self.config.ports[usize::from(owner)]);
            let label = answer_label(PacketKind::Moved, remote_id, caller.attempt);
            let content = Content::Redirection(Redirection { port });
            self.answer(AnswerReceiver::Stranger, SessionlessReply::new(from, label, content));
            return;
        }
        let knows_cookies = *self.config.versions.end() >= SEALED_VERSION_MIN;
        if let Some(entrance) = hello.entrance.as_ref().filter(|_| knows_cookies)
            && !self.door.knows(now_ns, from, remote_id, &entrance.cookie)
        {
            self.retry(now_ns, caller, false);
            return;
        }
        if is_sealed {
            self.receive_sealed_hello(now_ns, version, caller, &hello);
        } else {
            self.receive_plain_hello(now_ns, version, caller, hello);
        }
    }

    fn receive_plain_hello(&mut self, now_ns: u64, version: u8, caller: Caller, hello: Hello<'_>) {
        // Version 1 knows no cookies. Its Hellos get half of the room, so that a flood of them
        // leaves the other half to connectors that have shown their addresses.
        let has_cookie = hello.entrance.is_some();
        let room = if has_cookie { HALF_OPEN_MAX } else { HALF_OPEN_MAX / 2 };
        let Caller { from, remote_id, attempt, .. } = caller;
        let pad_bytes = self.pad_bytes(caller, &hello.peer);
        let welcome = match self.standing(&hello.peer, attempt) {
            HelloRelation::Known(welcome) => welcome,
            HelloRelation::Stale => {
                self.counters.dropped_stale_handshake += 1;
                return;
            }
            HelloRelation::New => {
                let index = hello.peer.greeting.index.get();
                let who = PeerIdentity::new(&hello.peer.name, false, from.ip());
                let owner = self.enter_peer(&who);
                if owner.is_some_and(|owner| !self.admits_session(owner)) {
                    self.refuse(caller, REFUSED_SESSIONS_FULL);
                    return;
                }
                let admitted = owner.filter(|owner| self.half_open_share(room, *owner));
                let added = admitted.and_then(|owner| {
                    let make = |numbers| {
                        HalfOpen::new(now_ns, numbers, version, hello.peer, (from, owner))
                    };
                    self.add_half_open(attempt, owner, make)
                });
                let Some(local_id) = added else {
                    self.counters.dropped_hello_full += 1;
                    if has_cookie {
                        self.retry(now_ns, caller, true);
                    }
                    return;
                };
                WelcomeLabel { attempt, version, index, local_id, remote_id }
            }
        };
        let class = if has_cookie { AnswerReceiver::Known } else { AnswerReceiver::Stranger };
        let label = answer_label(PacketKind::Welcome, remote_id, attempt);
        let answer = SessionlessReply::new(from, label, Content::Welcome(welcome));
        self.answer(class, SessionlessReply { pad_bytes, ..answer });
    }

    /// The length of the Welcome to a filled-up Hello: the size that both ends agree on, so that it
    /// is known to pass both ways.
    fn pad_bytes(&self, caller: Caller, peer: &HelloPeer) -> usize {
        let agreed_bytes = peer.greeting.datagram_bytes_max.get() as usize;
        agreed_bytes.min(self.config.datagram_bytes_max).min(caller.filled_bytes)
    }

    /// Whether a peer may have one more half-open session, of `room` for all; counts it if not.
    fn half_open_share(&mut self, room: usize, owner: BufferOwner) -> bool {
        let share = Share { max: room as u64, used: self.half_open as u64 };
        let Some(number) = owner.number() else { return share.admits(0, 1) };
        let peer = self.peers.get_mut(number);
        let may = share.admits(peer.half_open, 1);
        peer.handshakes_refused += u64::from(!may);
        may
    }

    /// Takes a place for a half-open session of a peer; gives its id. `None`: there is none left.
    fn add_half_open(
        &mut self,
        attempt: u64,
        owner: BufferOwner,
        make: impl FnOnce(SessionNumbers) -> HalfOpen,
    ) -> Option<u64> {
        if self.incoming == usize::from(self.config.sessions_max) {
            return None;
        }
        if let Some(number) = owner.number() {
            self.peers.get_mut(number).half_open += 1;
        }
        self.half_open += 1;
        self.incoming += 1;
        let place = self.take_place();
        let (id, local_id) = self.draw_ids(place);
        let half_open = make(SessionNumbers { id, local_id, attempt });
        self.places[place].entry = TableEntry::HalfOpen(Box::new(half_open));
        self.touched(place);
        Some(local_id)
    }

    /// A Hello for a sealed session, from a connector that has shown its address.
    fn receive_sealed_hello(
        &mut self,
        now_ns: u64,
        version: u8,
        caller: Caller,
        hello: &Hello<'_>,
    ) {
        let Some(entrance) = &hello.entrance else { return };
        let bits = self.config.key_epoch_bits;
        let prologue = prologue(caller.attempt, bits, hello.clear, entrance);
        let digest = digest(&prologue, hello.message);
        // A repeated Hello costs its sender nothing of its limit: it may be a recording that
        // another host replays in the name of the sender's address.
        if self.door.has_seen(now_ns, &digest) {
            self.answer_again(caller, &digest);
            return;
        }
        if !self.door.admits(now_ns, caller.from) {
            self.counters.dropped_hello_limited += 1;
            self.retry(now_ns, caller, true);
            return;
        }
        self.door.saw(now_ns, &digest);
        let Some(opened) = self.open_hello(now_ns, caller, hello, &prologue, digest) else {
            return;
        };
        if let Some(reason) = self.reason_against(caller, &opened) {
            self.refuse_sealed(now_ns, caller, opened, reason);
            return;
        }
        match self.standing(&opened.peer, caller.attempt) {
            HelloRelation::New => self.admit_sealed(now_ns, version, caller, opened),
            HelloRelation::Known(_) | HelloRelation::Stale => {
                self.counters.dropped_stale_handshake += 1
            }
        }
    }

    /// A newcomer that has proved its identity, within the limit of one peer.
    fn admit_sealed(&mut self, now_ns: u64, version: u8, caller: Caller, opened: OpenedHello) {
        let who = PeerIdentity::new(&opened.peer.name, true, caller.from.ip());
        let Some(owner) = self.enter_peer(&who) else {
            self.counters.dropped_hello_full += 1;
            return;
        };
        if !self.admits_session(owner) {
            self.refuse_sealed(now_ns, caller, opened, REFUSED_SESSIONS_FULL);
        } else {
            self.welcome_sealed(now_ns, version, (caller, owner), opened);
        }
    }

    /// The same Hello gets the same answer, and costs no handshake; once the peer has confirmed
    /// the session, or it is too long ago, it gets none.
    fn answer_again(&mut self, caller: Caller, digest: &HelloDigest) {
        let is_same = |entry: &TableEntry| match entry {
            TableEntry::HalfOpen(it) => it.seal.as_ref().is_some_and(|seal| seal.hello == *digest),
            _ => false,
        };
        match self.places.iter().map(|place| &place.entry).find(|entry| is_same(entry)) {
            Some(TableEntry::HalfOpen(it)) => {
                let (frames, pad_bytes) = (it.welcome.clone(), self.pad_bytes(caller, &it.peer));
                self.answer_sealed(caller, frames, pad_bytes);
            }
            _ => self.counters.dropped_stale_handshake += 1,
        }
    }

    /// Asks for the Hello again, with a cookie; at once, or later when there is too much to do.
    fn retry(&mut self, now_ns: u64, caller: Caller, is_busy: bool) {
        self.counters.retries_sent += 1;
        let label = answer_label(PacketKind::Retry, caller.remote_id, caller.attempt);
        let cookie = self.door.cookie(now_ns, caller.from, caller.remote_id);
        let content = Content::Cookie(cookie, is_busy);
        self.answer(AnswerReceiver::Stranger, SessionlessReply::new(caller.from, label, content));
    }

    /// Opens the message of a Hello: the first step that costs operations on a curve. `None`: it
    /// was answered or counted.
    fn open_hello(
        &mut self,
        now_ns: u64,
        caller: Caller,
        hello: &Hello<'_>,
        prologue: &[u8],
        digest: HelloDigest,
    ) -> Option<OpenedHello> {
        let Security::Sealed { secret, .. } = &self.config.security else { return None };
        self.counters.public_key_operations += READ_OPERATIONS;
        let seed = draw(&mut self.secrets);
        let Some(ReadHello { responder, key, payload: inside }) =
            Responder::read(&seed, secret, prologue, hello.message)
        else {
            // Only a hint, since any host could have sent it; an operator wants to know.
            self.refuse_stranger(now_ns, caller, hello, REFUSED_WRONG_KEY);
            return None;
        };
        let mut inside = &inside[..];
        let clear = &hello.peer.greeting;
        let sealed: Option<&SealedHello> = wire::take(&mut inside);
        let opened = sealed.and_then(|sealed| {
            let peer = HelloPeer::read(sealed.greeting.as_bytes())?;
            let is_same = peer.greeting.session == clear.session
                && peer.greeting.index == clear.index
                && peer.versions() == hello.peer.versions();
            let reset_token = sealed.reset_token;
            is_same.then_some(OpenedHello { responder, key, peer, reset_token, digest })
        });
        self.counters.dropped_violation += u64::from(opened.is_none());
        opened
    }

    /// The reason against a session with the peer that has proved to have this key.
    fn reason_against(&self, caller: Caller, opened: &OpenedHello) -> Option<u8> {
        let Security::Sealed { keyring, .. } = &self.config.security else { return None };
        match keyring.get(&opened.key) {
            None => Some(REFUSED_UNKNOWN_KEY),
            Some(known) if known.peer == self.config.name && !self.asks_itself(caller) => {
                Some(REFUSED_UNKNOWN_KEY)
            }
            Some(known) if known.is_expired(self.unix_s) => Some(REFUSED_EXPIRED_KEY),
            Some(known) if known.peer != opened.peer.name => Some(REFUSED_NAME),
            Some(_) if !self.config.accept => Some(REFUSED_NOT_ACCEPTING),
            Some(_) => None,
        }
    }

    /// Whether a Hello with the node's own key is of an attempt of this endpoint. Another process
    /// with the key is a clone, or has stolen it.
    fn asks_itself(&self, caller: Caller) -> bool {
        self.places.iter().any(|place| match &place.entry {
            TableEntry::Connecting(it) => {
                it.local_id == caller.remote_id && it.attempt == caller.attempt
            }
            _ => false,
        })
    }

    /// Refuses so that the connector can believe it.
    fn refuse_sealed(&mut self, now_ns: u64, caller: Caller, opened: OpenedHello, reason: u8) {
        self.counters.hellos_refused += 1;
        let versions = opened.peer.versions().into_inner();
        let says = Claims { name: Some(&opened.peer.name), key: Some(opened.key), versions };
        // A node asks itself again until the volume is open.
        if !self.asks_itself(caller) {
            self.strangers.note(now_ns, reason, caller.from, says);
        }
        self.counters.public_key_operations += ANSWER_OPERATIONS;
        let inside = SealedWelcome { refusal: self.refusal(reason), ..SealedWelcome::new_zeroed() };
        let answer = opened.responder.answer(inside.as_bytes(), self.config.key_epoch_bits);
        if let Some((frames, _)) = answer {
            self.answer_sealed(caller, frames.into_boxed_slice(), 0);
        }
    }

    fn welcome_sealed(
        &mut self,
        now_ns: u64,
        version: u8,
        (caller, owner): (Caller, BufferOwner),
        opened: OpenedHello,
    ) {
        let index = opened.peer.greeting.index.get();
        let OpenedHello { responder, key, peer, reset_token, digest } = opened;
        let pad_bytes = self.pad_bytes(caller, &peer);
        let make = |numbers| HalfOpen::new(now_ns, numbers, version, peer, (caller.from, owner));
        // Replays of many recorded Hellos must not keep a newcomer out. An honest connector
        // confirms within a round trip, and the limit to handshakes gives it that long.
        if !self.half_open_share(HALF_OPEN_MAX, owner) {
            self.drop_oldest_half_open(owner);
        }
        let Some(local_id) = self.add_half_open(caller.attempt, owner, make) else {
            self.counters.dropped_hello_full += 1;
            return;
        };
        let inside = SealedWelcome {
            refusal: self.refusal(0),
            reset_token: self.own_reset_token(local_id),
            greeting: greeting(&self.config, version, index, local_id),
        };
        self.counters.public_key_operations += ANSWER_OPERATIONS;
        let answer = responder.answer(inside.as_bytes(), self.config.key_epoch_bits);
        let place = self.find_local(local_id).expect("it was just added");
        let Some((frames, agreement)) = answer else {
            self.vacate(place);
            self.counters.dropped_violation += 1;
            return;
        };
        let Agreement { sealer, opener, binding } = agreement;
        let seal = Box::new(Seal { sealer, opener, reset_token, hello: digest });
        let frames = frames.into_boxed_slice();
        if let TableEntry::HalfOpen(half_open) = &mut self.places[place].entry {
            half_open.seal_with(Proof { key: Some(key), binding }, seal, frames.clone());
        }
        self.answer_sealed(caller, frames, pad_bytes);
    }

    /// Drops the oldest half-open session of a peer, or if it has none, of the peer that has most.
    fn drop_oldest_half_open(&mut self, owner: BufferOwner) {
        let of = |owner: BufferOwner| owner.number().map_or(0, |at| self.peers.get(at).half_open);
        let half_open = |place: &usize| match &self.places[*place].entry {
            TableEntry::HalfOpen(half_open) => Some((half_open.owner, half_open.deadline_ns())),
            _ => None,
        };
        let all = (0..self.places.len()).filter_map(|place| Some((place, half_open(&place)?)));
        let is_worse = |(_, (of_peer, expires_ns)): &(usize, (BufferOwner, u64))| {
            (*of_peer != owner, u64::MAX - of(*of_peer), *expires_ns)
        };
        let oldest = all.min_by_key(is_worse).map(|(place, _)| place);
        self.counters.dropped_hello_full += 1;
        self.vacate(oldest.expect("some are half-open"));
    }

    fn own_reset_token(&self, local_id: u64) -> ResetToken {
        let key = self.reset_key.as_ref().expect("sealed sessions have one");
        key.token(self.config.index, local_id)
    }

    fn answer_sealed(&mut self, caller: Caller, frames: Box<[u8]>, pad_bytes: usize) {
        let label = answer_label(PacketKind::Welcome, caller.remote_id, caller.attempt);
        let answer = SessionlessReply::new(caller.from, label, Content::Frames(frames));
        self.answer(AnswerReceiver::Known, SessionlessReply { pad_bytes, ..answer });
    }

    /// Refuses a Hello by what it says in the clear, and remembers that.
    fn refuse_stranger(&mut self, now_ns: u64, caller: Caller, hello: &Hello<'_>, reason: u8) {
        // The name in the clear part of a sealed Hello is a veil.
        let name = (!hello.is_sealed()).then_some(hello.peer.name.as_str());
        let versions = hello.peer.versions().into_inner();
        self.strangers.note(now_ns, reason, caller.from, Claims { name, key: None, versions });
        self.refuse(caller, reason);
    }

    fn refuse(&mut self, caller: Caller, reason: u8) {
        self.counters.hellos_refused += 1;
        let label = answer_label(PacketKind::Refused, caller.remote_id, caller.attempt);
        let content = Content::Refusal(self.refusal(reason));
        self.answer(AnswerReceiver::Stranger, SessionlessReply::new(caller.from, label, content));
    }

    fn refusal(&self, reason: u8) -> HelloRefusal {
        let versions = versions(&self.config);
        let (version_min, version_max) = (*versions.start(), *versions.end());
        HelloRefusal { reason, version_min, version_max, reserved: 0 }
    }

    /// Looks through what the same peer asked for under the same index before. A half-open session
    /// of an older attempt of the same process goes.
    fn standing(&mut self, peer: &HelloPeer, attempt: u64) -> HelloRelation {
        let greeting = &peer.greeting;
        let (index, nonce) = (greeting.index.get(), greeting.process_nonce.get());
        let mut outdated = None;
        for (place_index, place) in self.places.iter().enumerate() {
            let (name, their_index, their_nonce, known) = match &place.entry {
                TableEntry::Open(session) if !session.agreed().peer.outgoing => {
                    let agreed = session.agreed();
                    let known = WelcomeLabel {
                        attempt: agreed.attempt,
                        version: agreed.peer.version,
                        index,
                        local_id: agreed.local_id,
                        remote_id: agreed.remote_id,
                    };
                    (&agreed.peer.name, agreed.peer.index, agreed.peer.process_nonce, known)
                }
                TableEntry::HalfOpen(half_open) => {
                    let theirs = &half_open.peer.greeting;
                    let known = WelcomeLabel {
                        attempt: half_open.attempt,
                        version: half_open.version,
                        index,
                        local_id: half_open.local_id,
                        remote_id: theirs.session.get(),
                    };
                    let name = &half_open.peer.name;
                    (name, theirs.index.get(), theirs.process_nonce.get(), known)
                }
                _ => continue,
            };
            if their_index != index || their_nonce != nonce || *name != peer.name {
                continue;
            }
            if attempt < known.attempt {
                return HelloRelation::Stale;
            }
            if attempt == known.attempt {
                let is_same = known.remote_id == greeting.session.get();
                return if is_same { HelloRelation::Known(known) } else { HelloRelation::Stale };
            }
            if matches!(place.entry, TableEntry::HalfOpen(_)) {
                outdated = Some(place_index);
            }
        }
        if let Some(place) = outdated {
            self.vacate(place);
        }
        HelloRelation::New
    }
}
