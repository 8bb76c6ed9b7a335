//! The session that a datagram is for, and the answers to our own packets.

use std::net::SocketAddr;

use crate::door::Cookie;
use crate::endpoint::answers::{AnswerReceiver, Content, SessionlessReply};
use crate::endpoint::{Endpoint, PLACE_BITS, TableEntry, Times, answer_label};
use crate::events::{LostReason, Sink};
use crate::handshake::Welcomed;
use crate::noise::FINISH_OPERATIONS;
use crate::pool::BufferOwner;
use crate::quota::PeerIdentity;
use crate::seal::Unopened;
use crate::session::{PacketOutcome, Session, SessionContext};
use crate::wire::TAG_BYTES;
use crate::wire::{
    self, CheckedPacket, HelloRefusal, MalformedDatagram, PacketKind, Redirection,
    SEALED_BYTES_MAX, SealedPacket,
};

impl Endpoint {
    pub(super) fn receive_datagram(
        &mut self,
        times: Times,
        from: SocketAddr,
        datagram: &[u8],
        sink: &mut dyn Sink,
    ) {
        self.counters.datagrams_received += 1;
        self.counters.bytes_received += datagram.len() as u64;
        if SealedPacket::is_meant(datagram) {
            self.receive_sealed(times, from, datagram, sink);
            return;
        }
        let packet = match CheckedPacket::parse(datagram) {
            Ok(packet) => packet,
            Err(why) => {
                self.count_malformed(why);
                return;
            }
        };
        let now_ns = times.now_ns;
        match packet.kind {
            PacketKind::Data => self.receive_data(times, from, &packet, datagram.len(), sink),
            PacketKind::Hello => self.receive_hello(now_ns, from, &packet),
            PacketKind::Welcome => self.receive_welcome(now_ns, from, &packet, sink),
            PacketKind::Refused => self.receive_refused(now_ns, &packet, sink),
            PacketKind::Moved => self.receive_moved(&packet),
            PacketKind::Retry => self.receive_retry(now_ns, &packet),
            PacketKind::Reset => self.receive_reset(&packet, sink),
            // `CheckedPacket::parse` does not give one.
            PacketKind::Sealed => self.counters.dropped_kind += 1,
        }
    }

    fn count_malformed(&mut self, why: MalformedDatagram) {
        let counter = match why {
            MalformedDatagram::Short => &mut self.counters.dropped_short,
            MalformedDatagram::Version => &mut self.counters.dropped_version,
            MalformedDatagram::Kind => &mut self.counters.dropped_kind,
            MalformedDatagram::HeadChecksum => &mut self.counters.dropped_head_checksum,
            MalformedDatagram::PayloadChecksum => &mut self.counters.dropped_payload_checksum,
        };
        *counter += 1;
    }

    /// The place of the session with this id of ours.
    pub(super) fn find_local(&self, local_id: u64) -> Option<usize> {
        let place = (local_id & ((1 << PLACE_BITS) - 1)) as usize;
        self.places
            .get(place)
            .filter(|place| place.local_id == local_id && local_id != 0)
            .map(|_| place)
    }

    fn receive_data(
        &mut self,
        times: Times,
        from: SocketAddr,
        packet: &CheckedPacket<'_>,
        bytes: usize,
        sink: &mut dyn Sink,
    ) {
        let Some(place) = self.find_local(packet.session) else {
            self.answer_unknown(from, packet.session, packet.number, Content::Nothing);
            return;
        };
        let (version, is_sealed) = match &self.places[place].entry {
            TableEntry::Open(session) => (session.agreed().peer.version, session.seal().is_some()),
            TableEntry::HalfOpen(half_open) => (half_open.version, half_open.seal.is_some()),
            TableEntry::Connecting(_) | TableEntry::Vacant => {
                // No peer was told this id as one to send data to.
                self.counters.dropped_stale_handshake += 1;
                return;
            }
        };
        if is_sealed {
            self.counters.dropped_forged += 1;
            return;
        }
        if packet.version != version {
            self.counters.dropped_version += 1;
            return;
        }
        self.deliver(times, place, packet, bytes, sink);
    }

    /// A packet that says it is sealed: nothing in it means anything before it is opened.
    fn receive_sealed(
        &mut self,
        times: Times,
        from: SocketAddr,
        datagram: &[u8],
        sink: &mut dyn Sink,
    ) {
        let packet = match SealedPacket::parse(datagram) {
            Ok(packet) => packet,
            Err(why) => {
                self.count_malformed(why);
                return;
            }
        };
        let Some(place) = self.find_local(packet.session) else {
            let content = if self.reset_key.is_some() { Content::Token } else { Content::Nothing };
            self.answer_unknown(from, packet.session, packet.number, content);
            return;
        };
        let (version, seal) = match &mut self.places[place].entry {
            TableEntry::Open(session) => (session.agreed().peer.version, session.seal_mut()),
            TableEntry::HalfOpen(half_open) => (half_open.version, half_open.seal.as_deref_mut()),
            TableEntry::Connecting(_) | TableEntry::Vacant => {
                self.counters.dropped_stale_handshake += 1;
                return;
            }
        };
        let Some(seal) = seal else {
            self.counters.dropped_forged += 1;
            return;
        };
        if packet.version != version {
            self.counters.dropped_version += 1;
            return;
        }
        let mut opened = std::mem::take(&mut self.opened);
        if opened.is_empty() {
            opened = vec![0; SEALED_BYTES_MAX];
        }
        let out = &mut opened[..packet.sealed.len() - TAG_BYTES];
        match seal.opener.open(packet.number, packet.header, packet.sealed, out) {
            Ok(()) => self.deliver(times, place, &packet.opened(out), datagram.len(), sink),
            Err(Unopened::Forged) => self.counters.dropped_forged += 1,
            Err(Unopened::Epoch) => self.counters.dropped_key_epoch += 1,
        }
        self.opened = opened;
    }

    /// Says that there is no such session.
    fn answer_unknown(&mut self, to: SocketAddr, session: u64, number: u64, content: Content) {
        self.counters.dropped_unknown_session += 1;
        self.counters.resets_sent += 1;
        let label = answer_label(PacketKind::Reset, session, number);
        self.answer(AnswerReceiver::Lost, SessionlessReply::new(to, label, content));
    }

    /// Gives a session a packet of its peer. The first one is what opens it.
    fn deliver(
        &mut self,
        times: Times,
        place: usize,
        packet: &CheckedPacket<'_>,
        bytes: usize,
        sink: &mut dyn Sink,
    ) {
        if matches!(self.places[place].entry, TableEntry::HalfOpen(_)) {
            self.open(times.now_ns, place, sink);
        }
        let TableEntry::Open(session) = &mut self.places[place].entry else { return };
        let (pool, counters) = (&mut self.pool, &mut self.counters);
        let Times { now_ns, arrived_ns } = times;
        let mut inside = SessionContext { now_ns, arrived_ns, pool, counters, sink };
        match session.receive(&mut inside, packet, bytes) {
            PacketOutcome::Open => self.touched(place),
            PacketOutcome::Closed => self.lose(place, &LostReason::Closed, sink),
        }
    }

    /// Makes a session of a half-open one: its peer confirmed. Older ones in its place go.
    fn open(&mut self, now_ns: u64, place: usize, sink: &mut dyn Sink) {
        let TableEntry::HalfOpen(half_open) = &mut self.places[place].entry else { return };
        let seal = half_open.seal.take();
        let agreed = half_open.agreed(&self.config);
        for other in 0..self.places.len() {
            let why = match &self.places[other].entry {
                TableEntry::Open(session) => {
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
                TableEntry::HalfOpen(half_open) => {
                    let is_same = other != place
                        && half_open.peer.greeting.index.get() == agreed.peer.index
                        && half_open.peer.name == agreed.peer.name;
                    is_same.then_some(LostReason::Replaced)
                }
                TableEntry::Connecting(_) | TableEntry::Vacant => None,
            };
            if let Some(why) = why {
                self.lose(other, &why, sink);
            }
        }
        self.counters.sessions_connected += 1;
        sink.connected(agreed.id, &agreed.peer);
        self.half_open -= 1;
        if let Some(number) = agreed.owner.number() {
            let peer = self.peers.get_mut(number);
            (peer.half_open, peer.incoming) = (peer.half_open - 1, peer.incoming + 1);
        }
        self.places[place].entry = TableEntry::Open(Box::new(Session::new(now_ns, agreed, seal)));
    }

    /// The place of the attempt of ours that a handshake packet answers.
    fn find_attempt(&self, packet: &CheckedPacket<'_>) -> Option<usize> {
        let place = self.find_local(packet.session)?;
        match &self.places[place].entry {
            TableEntry::Connecting(connecting) if connecting.attempt == packet.number => {
                Some(place)
            }
            _ => None,
        }
    }

    fn receive_welcome(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        packet: &CheckedPacket<'_>,
        sink: &mut dyn Sink,
    ) {
        let Some(place) = self.find_attempt(packet) else {
            self.counters.dropped_stale_handshake += 1;
            return;
        };
        let TableEntry::Connecting(connecting) = &mut self.places[place].entry else { return };
        if connecting.key().is_some() {
            if !connecting.admits_welcome() {
                self.counters.dropped_forged += 1;
                return;
            }
            self.counters.public_key_operations += FINISH_OPERATIONS;
        }
        let welcomed = connecting.welcomed(&self.config, from, packet.frames);
        match welcomed {
            Welcomed::Agreed(mut agreed, seal) => {
                self.note_size(now_ns, place);
                // Where there are too many peers, the buffers for a peer that is asked are the
                // node's. So they are when a node asks itself: the answers of that session have
                // the part of a peer, and must not wait for requests that wait for them.
                let is_own = seal.is_some() && agreed.peer.name == self.config.name;
                let who = (!is_own).then(|| PeerIdentity::of(&agreed.peer));
                let owner = who.and_then(|who| self.enter_peer(&who));
                if let Some(number) = owner.and_then(BufferOwner::number) {
                    self.peers.get_mut(number).outgoing += 1;
                }
                agreed.owner = owner.unwrap_or(BufferOwner::NODE);
                self.counters.sessions_connected += 1;
                sink.connected(agreed.id, &agreed.peer);
                let session = Session::new(now_ns, *agreed, seal);
                self.places[place].entry = TableEntry::Open(Box::new(session));
                self.touched(place);
            }
            Welcomed::Lost(why) => {
                self.note_size(now_ns, place);
                self.lose(place, &why, sink);
            }
            Welcomed::Violation => self.counters.dropped_violation += 1,
            Welcomed::Forged => self.counters.dropped_forged += 1,
        }
    }

    fn receive_refused(&mut self, now_ns: u64, packet: &CheckedPacket<'_>, sink: &mut dyn Sink) {
        let Some(place) = self.find_attempt(packet) else {
            self.counters.dropped_stale_handshake += 1;
            return;
        };
        let mut frames = packet.frames;
        let Some(refusal) = wire::take::<HelloRefusal>(&mut frames) else {
            self.counters.dropped_violation += 1;
            return;
        };
        let TableEntry::Connecting(connecting) = &mut self.places[place].entry else { return };
        match connecting.refused(now_ns, &self.config, refusal) {
            Some(why) => self.lose(place, &why, sink),
            None => self.touched(place),
        }
    }

    /// The peer wants its Hello again, with a cookie.
    fn receive_retry(&mut self, now_ns: u64, packet: &CheckedPacket<'_>) {
        let Some(place) = self.find_attempt(packet) else {
            self.counters.dropped_stale_handshake += 1;
            return;
        };
        let mut frames = packet.frames;
        let Some(cookie) = wire::take::<Cookie>(&mut frames) else {
            self.counters.dropped_violation += 1;
            return;
        };
        let is_busy = frames.first().is_some_and(|&busy| busy != 0);
        if let TableEntry::Connecting(connecting) = &mut self.places[place].entry {
            connecting.retry(now_ns, cookie, is_busy);
        }
        self.touched(place);
    }

    fn receive_moved(&mut self, packet: &CheckedPacket<'_>) {
        let Some(place) = self.find_attempt(packet) else {
            self.counters.dropped_stale_handshake += 1;
            return;
        };
        let mut frames = packet.frames;
        let Some(redirection) = wire::take::<Redirection>(&mut frames) else {
            self.counters.dropped_violation += 1;
            return;
        };
        if let TableEntry::Connecting(connecting) = &mut self.places[place].entry {
            connecting.moved(redirection.port.get());
        }
        self.touched(place);
    }

    /// The peer does not know the session that a packet of ours was for. It must be able to name
    /// the packet, and to prove itself where the session is sealed. Rare, so the table is searched
    /// for the peer's id.
    fn receive_reset(&mut self, packet: &CheckedPacket<'_>, sink: &mut dyn Sink) {
        let is_meant = |entry: &TableEntry| match entry {
            TableEntry::Open(session) => {
                session.agreed().remote_id == packet.session
                    && session.sent_lately(packet.number)
                    && session.seal().is_none_or(|seal| seal.believes(packet.frames))
            }
            _ => false,
        };
        match self.places.iter().position(|place| is_meant(&place.entry)) {
            Some(place) => self.lose(place, &LostReason::Reset, sink),
            None => self.counters.dropped_stale_reset += 1,
        }
    }
}
