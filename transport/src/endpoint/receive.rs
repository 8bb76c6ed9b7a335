//! Who a datagram is for, and everything that is not for a session yet.

use std::net::SocketAddr;

use zerocopy::byteorder::little_endian::U16;

use crate::endpoint::{Answer, Content, Endpoint, Entry, HALF_OPEN_MAX, PLACE_BITS, answer_label};
use crate::events::{LostReason, Sink};
use crate::handshake::{HalfOpen, Peer, WelcomeLabel, common_version, refusal_text};
use crate::session::{Inside, Outcome, Session};
use crate::wire::{
    self, Kind, Malformed, Packet, REFUSED_NOT_ACCEPTING, REFUSED_VERSION, Redirection, Refusal,
};

/// How a Hello relates to what we know of its sender.
enum Standing {
    /// Neither half-open nor a session: a new attempt.
    New,
    /// The answer was given before.
    Known(WelcomeLabel),
    /// Older than what we have from that process.
    Stale,
}

impl Endpoint {
    pub(super) fn receive_datagram(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        datagram: &[u8],
        sink: &mut dyn Sink,
    ) {
        self.counters.datagrams_received += 1;
        self.counters.bytes_received += datagram.len() as u64;
        let packet = match Packet::parse(datagram) {
            Ok(packet) => packet,
            Err(why) => {
                self.count_malformed(why);
                return;
            }
        };
        match packet.kind {
            Kind::Data => self.receive_data(now_ns, from, &packet, datagram.len(), sink),
            Kind::Hello => self.receive_hello(now_ns, from, &packet),
            Kind::Welcome => self.receive_welcome(now_ns, from, &packet, sink),
            Kind::Refused => self.receive_refused(&packet, sink),
            Kind::Moved => self.receive_moved(&packet),
            Kind::Reset => self.receive_reset(&packet, sink),
        }
    }

    fn count_malformed(&mut self, why: Malformed) {
        let counter = match why {
            Malformed::Short => &mut self.counters.dropped_short,
            Malformed::Version => &mut self.counters.dropped_version,
            Malformed::Kind => &mut self.counters.dropped_kind,
            Malformed::HeadChecksum => &mut self.counters.dropped_head_checksum,
            Malformed::PayloadChecksum => &mut self.counters.dropped_payload_checksum,
        };
        *counter += 1;
    }

    /// The place of the session with this id of ours.
    fn find_local(&self, local_id: u64) -> Option<usize> {
        let place = (local_id & ((1 << PLACE_BITS) - 1)) as usize;
        self.places
            .get(place)
            .filter(|place| place.local_id == local_id && local_id != 0)
            .map(|_| place)
    }

    fn receive_data(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        packet: &Packet<'_>,
        bytes: usize,
        sink: &mut dyn Sink,
    ) {
        let Some(place) = self.find_local(packet.session) else {
            self.counters.dropped_unknown_session += 1;
            self.counters.resets_sent += 1;
            let label = answer_label(Kind::Reset, packet.session, packet.number);
            self.answer(Answer { to: from, label, content: Content::Nothing });
            return;
        };
        let version = match &self.places[place].entry {
            Entry::Open(session) => session.agreed().peer.version,
            Entry::HalfOpen(half_open) => half_open.version,
            Entry::Connecting(_) | Entry::Vacant => {
                // Nobody was told this id as one to send data to.
                self.counters.dropped_stale_handshake += 1;
                return;
            }
        };
        if packet.version != version {
            self.counters.dropped_version += 1;
            return;
        }
        if matches!(self.places[place].entry, Entry::HalfOpen(_)) {
            self.open(now_ns, place, sink);
        }
        let Entry::Open(session) = &mut self.places[place].entry else { return };
        let (pool, counters) = (&mut self.pool, &mut self.counters);
        let mut inside = Inside { now_ns, pool, counters, sink };
        match session.receive(&mut inside, packet, bytes) {
            Outcome::Open => self.touched(place),
            Outcome::Closed => self.lose(place, &LostReason::Closed, sink),
        }
    }

    /// Makes a session of a half-open one: its peer confirmed. Older ones in its place go.
    fn open(&mut self, now_ns: u64, place: usize, sink: &mut dyn Sink) {
        let Entry::HalfOpen(half_open) = &self.places[place].entry else { return };
        let agreed = half_open.agreed(&self.config);
        for other in 0..self.places.len() {
            let why = match &self.places[other].entry {
                Entry::Open(session) => {
                    let peer = &session.agreed().peer;
                    let is_same = !peer.outgoing
                        && peer.index == agreed.peer.index
                        && peer.name == agreed.peer.name;
                    let is_restarted = peer.process_nonce != agreed.peer.process_nonce;
                    is_same.then_some(if is_restarted {
                        LostReason::Reset
                    } else {
                        LostReason::Replaced
                    })
                }
                Entry::HalfOpen(half_open) => {
                    let is_same = other != place
                        && half_open.peer.greeting.index.get() == agreed.peer.index
                        && half_open.peer.name == agreed.peer.name;
                    is_same.then_some(LostReason::Replaced)
                }
                Entry::Connecting(_) | Entry::Vacant => None,
            };
            if let Some(why) = why {
                self.lose(other, &why, sink);
            }
        }
        self.counters.sessions_connected += 1;
        sink.connected(agreed.id, &agreed.peer);
        self.half_open -= 1;
        self.places[place].entry = Entry::Open(Box::new(Session::new(now_ns, agreed)));
    }

    fn receive_hello(&mut self, now_ns: u64, from: SocketAddr, packet: &Packet<'_>) {
        let Some(peer) = Peer::read(packet.frames).filter(|_| packet.payload.is_empty()) else {
            self.counters.dropped_violation += 1;
            return;
        };
        let remote_id = peer.greeting.session.get();
        let Some(version) = common_version(&self.config.versions, &peer.versions()) else {
            self.refuse(from, remote_id, packet.number, REFUSED_VERSION);
            return;
        };
        if !self.config.accept {
            self.refuse(from, remote_id, packet.number, REFUSED_NOT_ACCEPTING);
            return;
        }
        let owner = peer.greeting.index.get() % self.config.ports.len() as u16;
        if owner != self.config.index {
            self.counters.hellos_redirected += 1;
            let port = U16::new(self.config.ports[usize::from(owner)]);
            let label = answer_label(Kind::Moved, remote_id, packet.number);
            let content = Content::Redirection(Redirection { port });
            self.answer(Answer { to: from, label, content });
            return;
        }
        let welcome = match self.standing(&peer, packet.number) {
            Standing::Known(welcome) => welcome,
            Standing::Stale => {
                self.counters.dropped_stale_handshake += 1;
                return;
            }
            Standing::New => {
                if self.half_open == HALF_OPEN_MAX
                    || self.incoming == usize::from(self.config.sessions_max)
                {
                    self.counters.dropped_hello_full += 1;
                    return;
                }
                self.half_open += 1;
                self.incoming += 1;
                let place = self.take_place();
                let index = peer.greeting.index.get();
                let (session, local_id) = self.draw_ids(place);
                let ids = (session, local_id, packet.number);
                let half_open = HalfOpen::new(now_ns, ids, version, peer, from);
                self.places[place].entry = Entry::HalfOpen(Box::new(half_open));
                self.touched(place);
                WelcomeLabel { attempt: packet.number, version, index, local_id, remote_id }
            }
        };
        let label = answer_label(Kind::Welcome, remote_id, packet.number);
        self.answer(Answer { to: from, label, content: Content::Welcome(welcome) });
    }

    fn refuse(&mut self, to: SocketAddr, session: u64, number: u64, reason: u8) {
        self.counters.hellos_refused += 1;
        let refusal = Refusal {
            reason,
            version_min: *self.config.versions.start(),
            version_max: *self.config.versions.end(),
            reserved: 0,
        };
        let label = answer_label(Kind::Refused, session, number);
        self.answer(Answer { to, label, content: Content::Refusal(refusal) });
    }

    /// Looks through what the same peer asked for under the same index before. A half-open session
    /// of an older attempt of the same process goes.
    fn standing(&mut self, peer: &Peer, attempt: u64) -> Standing {
        let greeting = &peer.greeting;
        let (index, nonce) = (greeting.index.get(), greeting.process_nonce.get());
        let mut outdated = None;
        for (place_index, place) in self.places.iter().enumerate() {
            let (name, their_index, their_nonce, known) = match &place.entry {
                Entry::Open(session) if !session.agreed().peer.outgoing => {
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
                Entry::HalfOpen(half_open) => {
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
                return Standing::Stale;
            }
            if attempt == known.attempt {
                let is_same = known.remote_id == greeting.session.get();
                return if is_same { Standing::Known(known) } else { Standing::Stale };
            }
            if matches!(place.entry, Entry::HalfOpen(_)) {
                outdated = Some(place_index);
            }
        }
        if let Some(place) = outdated {
            self.vacate(place);
        }
        Standing::New
    }

    /// The place of the attempt of ours that a handshake packet answers.
    fn find_attempt(&self, packet: &Packet<'_>) -> Option<usize> {
        let place = self.find_local(packet.session)?;
        match &self.places[place].entry {
            Entry::Connecting(connecting) if connecting.attempt == packet.number => Some(place),
            _ => None,
        }
    }

    fn receive_welcome(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        packet: &Packet<'_>,
        sink: &mut dyn Sink,
    ) {
        let Some(place) = self.find_attempt(packet) else {
            self.counters.dropped_stale_handshake += 1;
            return;
        };
        let Entry::Connecting(connecting) = &self.places[place].entry else { return };
        let peer = Peer::read(packet.frames).filter(|peer| {
            packet.payload.is_empty() && peer.greeting.index.get() == connecting.index
        });
        let Some(peer) = peer else {
            self.counters.dropped_violation += 1;
            return;
        };
        match connecting.welcomed(&self.config, from, &peer) {
            Ok(agreed) => {
                self.counters.sessions_connected += 1;
                sink.connected(agreed.id, &agreed.peer);
                self.places[place].entry = Entry::Open(Box::new(Session::new(now_ns, agreed)));
                self.touched(place);
            }
            Err(why) => self.lose(place, &why, sink),
        }
    }

    fn receive_refused(&mut self, packet: &Packet<'_>, sink: &mut dyn Sink) {
        let Some(place) = self.find_attempt(packet) else {
            self.counters.dropped_stale_handshake += 1;
            return;
        };
        let mut frames = packet.frames;
        let Some(refusal) = wire::take::<Refusal>(&mut frames) else {
            self.counters.dropped_violation += 1;
            return;
        };
        let text = refusal_text(refusal, &self.config.versions);
        self.lose(place, &LostReason::Refused(text), sink);
    }

    fn receive_moved(&mut self, packet: &Packet<'_>) {
        let Some(place) = self.find_attempt(packet) else {
            self.counters.dropped_stale_handshake += 1;
            return;
        };
        let mut frames = packet.frames;
        let Some(redirection) = wire::take::<Redirection>(&mut frames) else {
            self.counters.dropped_violation += 1;
            return;
        };
        if let Entry::Connecting(connecting) = &mut self.places[place].entry {
            connecting.moved(redirection.port.get());
        }
        self.touched(place);
    }

    /// The peer does not know the session that a packet of ours was for. It must be able to name
    /// the packet. Rare, so the table is searched for the peer's id.
    fn receive_reset(&mut self, packet: &Packet<'_>, sink: &mut dyn Sink) {
        let is_meant = |entry: &Entry| match entry {
            Entry::Open(session) => {
                session.agreed().remote_id == packet.session && session.sent_lately(packet.number)
            }
            _ => false,
        };
        match self.places.iter().position(|place| is_meant(&place.entry)) {
            Some(place) => self.lose(place, &LostReason::Reset, sink),
            None => self.counters.dropped_stale_reset += 1,
        }
    }
}
