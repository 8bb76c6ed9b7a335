//! One session: the state that both ends keep about each other once they have shaken hands.

mod incoming;
mod narrow;
mod outgoing;

pub(crate) use incoming::PacketOutcome;

use std::collections::VecDeque;

use narrow::Narrow;

use crate::ack::Received;
use crate::bits::Bits;
use crate::congestion::Congestion;
use crate::counters::EndpointCounters;
use crate::events::{
    CallError, CastError, LostReason, PeerInfo, SessionId, SessionState, SessionStatus, Sink,
};
use crate::flow::{ReceiveCredit, WINDOW_BYTES_MIN};
use crate::pool::{BufId, BufferOwner, Pool};
use crate::recv::casts::{CastContext, PeerCasts};
use crate::recv::{CallStage, OwnCalls, PeerCalls};
use crate::rtt::RoundTrip;
use crate::seal::Seal;
use crate::sendq::{QueuedMessage, SendQueue};
use crate::sent::{PACKET_COST_BYTES, SENT_MAX, SentPacket, SentPackets};
use crate::tables::Sparse;
use crate::transmit::seal_into;
use crate::wire::TAG_BYTES;
use crate::wire::{
    CAST_VERSION_MIN, EVEN_VERSION_MIN, FRAME_CLOSE, HEADER_BYTES, Label, MessageCut,
    OVERHEAD_BYTES, PacketKind, SEALED_HEADER_BYTES, SEALED_OVERHEAD_BYTES,
};

/// A session with calls outstanding that neither heard nor asked anything for so long asks: a
/// restarted peer is noticed within 50 ms.
const PROBE_NS: u64 = 20_000_000;

/// A peer that is silent for so long while something is outstanding is lost.
const SILENCE_NS: u64 = 3_000_000_000;

/// How often a session with nothing to do asks.
const KEEP_ALIVE_NS: u64 = 5_000_000_000;

/// And one whose owner waits for casts by it: a peer that was restarted does not know of them.
const WATCH_NS: u64 = 1_000_000_000;

/// It gives up after so many times without an answer.
const UNANSWERED: u64 = 4;

/// A timer that is looked at so much later than it was due means that our process did not run.
const LATE_NS: u64 = 1_000_000;

/// Packets that are sent again when nothing is acknowledged: two, since one may be lost too.
const PROBE_PACKETS: u32 = 2;

/// The result of the handshake.
#[derive(Debug)]
pub(crate) struct Agreed {
    pub(crate) id: SessionId,
    pub(crate) peer: PeerInfo,
    /// Whose its buffers are.
    pub(crate) owner: BufferOwner,
    /// The number of the attempt, chosen by the connector.
    pub(crate) attempt: u64,
    /// How the peer addresses packets to us, and we to it.
    pub(crate) local_id: u64,
    pub(crate) remote_id: u64,
    pub(crate) datagram_bytes_max: usize,
    pub(crate) calls_max: usize,
    /// The peer's buffer.
    pub(crate) receive_window_bytes: u64,
    /// The credit of each flow at the start: towards the peer, and from it.
    pub(crate) send_credit_bytes: u64,
    pub(crate) receive_credit_bytes: u64,
}

/// The parts of its endpoint that a session borrows while it works on a datagram.
pub(crate) struct SessionContext<'a> {
    pub(crate) now_ns: u64,
    /// When the datagram arrived at this host.
    pub(crate) arrived_ns: u64,
    pub(crate) pool: &'a mut Pool,
    pub(crate) counters: &'a mut EndpointCounters,
    pub(crate) sink: &'a mut dyn Sink,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    agreed: Agreed,
    /// Its keys; `None` in a plain session.
    seal: Option<Box<Seal>>,
    cut: MessageCut,
    sendq: SendQueue,
    own_calls: OwnCalls,
    peer_calls: PeerCalls,
    peer_casts: PeerCasts,
    /// Its owner wants to know soon when it is lost.
    is_watched: bool,
    /// Calls of the peer that were handed over and whose answer has not arrived.
    serving: usize,
    /// By flow; and the flows of which the peer has yet to learn, each once.
    credit: Sparse<ReceiveCredit>,
    credit_due: VecDeque<u16>,
    credit_is_due: Bits,

    received: Received,
    sent: SentPackets,
    trip: RoundTrip,
    congestion: Congestion,

    /// When the last fresh packet came.
    heard_ns: u64,
    /// When the last packet left that wants an acknowledgement; whose content must arrive.
    asked_ns: u64,
    reliable_ns: u64,
    /// Since when something is outstanding.
    expecting_since_ns: u64,
    /// When a part of a message came last.
    used_ns: u64,
    /// Probes since the last news.
    attempts: u32,
    /// When to look for losses again.
    look_for_losses_ns: u64,
    /// A packet that wants an acknowledgement must be sent, with any contents.
    ping_is_due: bool,
    /// A timer was late, and got more time, since the last news.
    is_excused: bool,
    /// When the pace allows the next packet, if it does not now.
    paced_until_ns: u64,
    /// Sent since a packet last asked to be acknowledged at once.
    unhurried_bytes: u64,
    /// Parts of casts among them.
    unhurried_casts: usize,
    /// Packets that may leave although the window is full.
    probe_packets: u32,
    narrow: Narrow,
    /// A ping is due that leaves in a packet of its own.
    is_ping_alone: bool,
    packets_received: u64,
    packets_lost: u64,
}

impl Session {
    /// A session that was just agreed on. The connector confirms at once that it is there.
    pub(crate) fn new(now_ns: u64, agreed: Agreed, seal: Option<Box<Seal>>) -> Self {
        let overhead_bytes = if seal.is_some() { SEALED_OVERHEAD_BYTES } else { OVERHEAD_BYTES };
        let cut = MessageCut {
            chunk_bytes: agreed.datagram_bytes_max - overhead_bytes,
            is_even: agreed.peer.version >= EVEN_VERSION_MIN,
        };
        let full_bytes = agreed.datagram_bytes_max as u64 + PACKET_COST_BYTES;
        // An opener knows the keys of this epoch and its neighbours.
        let open_max = seal.as_ref().map_or(SENT_MAX, |seal| seal.sealer.epoch_packets());
        Self {
            seal,
            cut,
            sendq: SendQueue::new(cut, agreed.send_credit_bytes),
            own_calls: OwnCalls::new(agreed.calls_max),
            peer_calls: PeerCalls::new(agreed.calls_max),
            peer_casts: PeerCasts::new(),
            is_watched: false,
            serving: 0,
            credit: Sparse::new(ReceiveCredit::new(agreed.receive_credit_bytes)),
            credit_due: VecDeque::new(),
            credit_is_due: Bits::default(),
            received: Received::new(),
            sent: SentPackets::new(open_max),
            trip: RoundTrip::default(),
            congestion: Congestion::new(now_ns, agreed.receive_window_bytes, full_bytes),
            is_excused: false,
            paced_until_ns: u64::MAX,
            unhurried_bytes: 0,
            unhurried_casts: 0,
            heard_ns: now_ns,
            asked_ns: now_ns,
            reliable_ns: now_ns,
            expecting_since_ns: now_ns,
            used_ns: now_ns,
            attempts: 0,
            look_for_losses_ns: u64::MAX,
            ping_is_due: agreed.peer.outgoing,
            probe_packets: 0,
            narrow: Narrow::default(),
            is_ping_alone: false,
            packets_received: 0,
            packets_lost: 0,
            agreed,
        }
    }

    pub(crate) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Queues a call; takes a reference to the body.
    pub(crate) fn call(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        counters: &mut EndpointCounters,
        call: &OutgoingCall<'_>,
    ) -> Result<(), CallError> {
        let was_expecting = self.is_expecting();
        let Some((slot, id)) = self.own_calls.start(call.token, call.flow) else {
            counters.calls_full += 1;
            return Err(CallError::Full);
        };
        if !was_expecting {
            self.expecting_since_ns = now_ns;
        }
        let message =
            QueuedMessage { flow: call.flow, id, head: call.head, body: retained(pool, call.body) };
        if !self.sendq.start_call(slot, &message) {
            counters.calls_waited_for_credit += 1;
        }
        counters.calls_sent += 1;
        Ok(())
    }

    pub(crate) fn forget(&mut self, token: u64) {
        self.own_calls.forget(token);
    }

    /// Queues the answer to call `id`, and gives the call's credit back.
    pub(crate) fn reply(
        &mut self,
        pool: &mut Pool,
        counters: &mut EndpointCounters,
        flow_window_bytes: u64,
        id: u64,
        (head, body): (&[u8], Option<(BufId, usize)>),
    ) {
        let (slot, call) = self.peer_calls.place(id);
        assert!(call.id == id && call.stage == CallStage::Serving, "a call is answered once");
        call.stage = CallStage::Answered;
        let flow = call.flow;
        let credit = self.credit.get_mut(flow);
        let window_bytes =
            pool.window_bytes(self.agreed.owner, flow_window_bytes, WINDOW_BYTES_MIN);
        if credit.released(call.charge_bytes, window_bytes) {
            self.announce_credit(flow);
        }
        let message = QueuedMessage { flow, id, head, body: retained(pool, body) };
        self.sendq.start_reply(slot, &message);
        counters.replies_sent += 1;
    }

    /// Queues a cast; takes a reference to the body.
    pub(crate) fn cast(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        counters: &mut EndpointCounters,
        flow: u16,
        (head, body): (&[u8], Option<(BufId, usize)>),
    ) -> Result<(), CastError> {
        if self.agreed.peer.version < CAST_VERSION_MIN {
            counters.casts_refused += 1;
            return Err(CastError::Version);
        }
        let body = body.filter(|&(_, len_bytes)| len_bytes > 0);
        if !self.sendq.start_cast(now_ns, flow, head, body) {
            counters.casts_refused += 1;
            return Err(CastError::Full);
        }
        if let Some((buffer, _)) = body {
            pool.retain(buffer);
        }
        counters.casts_sent += 1;
        Ok(())
    }

    /// Bytes of casts of a flow that wait to be sent.
    pub(crate) fn casts_waiting_bytes(&self, flow: u16) -> u64 {
        self.sendq.casts_waiting_bytes(flow)
    }

    /// Whether the owner wants to know soon when the session is lost, also when nothing is sent.
    pub(crate) fn set_watched(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
    }

    /// Hands the peer's casts of a flow over from now on.
    pub(crate) fn open_casts(&mut self, flow: u16) {
        self.peer_casts.open(flow);
    }

    /// Drops the peer's casts of a flow from now on.
    pub(crate) fn close_casts(&mut self, pool: &mut Pool, flow: u16) {
        self.peer_casts.close(flow, pool);
    }

    /// Does what is due. Tells why the session is lost, if it is.
    pub(crate) fn advance(&mut self, inside: &mut SessionContext<'_>) -> Option<LostReason> {
        let now_ns = inside.now_ns;
        if now_ns >= self.silent_at_ns() {
            return Some(LostReason::Silent);
        }
        if self.narrow.is_certain() {
            return Some(LostReason::PathShrank(self.agreed.datagram_bytes_max));
        }
        self.excuse(now_ns);
        if now_ns >= self.look_for_losses_ns {
            self.look_for_losses(now_ns, inside.pool, inside.counters);
        }
        if now_ns >= self.peer_casts.due_ns() {
            self.peer_casts.advance(&mut CastContext {
                inside,
                owner: self.agreed.owner,
                session: self.agreed.id,
                life_ns: self.trip.cast_life_ns(),
            });
        }
        if now_ns >= self.paced_until_ns {
            // To be looked at when it is its turn to send.
            self.paced_until_ns = u64::MAX;
        }
        if self.sent.reliable() > 0 {
            if now_ns >= self.reliable_ns + self.trip.probe_timeout_ns(self.attempts) {
                self.probe(now_ns, inside.pool, inside.counters);
            }
        } else if now_ns >= self.ask_at_ns() {
            self.ping_is_due = true;
            if !self.is_expecting() {
                self.rest();
            }
        }
        None
    }

    /// Whether nothing was said for a while, and nothing is expected: a peer that was asked for a
    /// sign of life may think so, too.
    fn is_unused(&self, now_ns: u64) -> bool {
        !self.is_expecting() && now_ns >= self.used_ns + WATCH_NS / 2
    }

    /// Nothing happened for long: lets go of what only a burst needed.
    fn rest(&mut self) {
        self.sent.rest();
        self.sendq.rest();
        self.own_calls.rest();
        self.peer_calls.rest();
        self.peer_casts.rest();
    }

    /// A timer of ours that was looked at late ran while this process did not, so datagrams that
    /// came in the meantime may not have been taken in. The timer gets a little more time, once
    /// until there is news.
    fn excuse(&mut self, now_ns: u64) {
        let probe_ns = self.reliable_ns + self.trip.probe_timeout_ns(self.attempts);
        let probe_ns = if self.sent.reliable() > 0 { probe_ns } else { u64::MAX };
        let late_ns = now_ns.saturating_sub(probe_ns.min(self.look_for_losses_ns));
        if late_ns < LATE_NS || std::mem::replace(&mut self.is_excused, true) {
            return;
        }
        if probe_ns <= now_ns {
            self.reliable_ns += now_ns - probe_ns + LATE_NS;
        }
        if self.look_for_losses_ns <= now_ns {
            self.look_for_losses_ns = now_ns + LATE_NS;
        }
    }

    /// When `advance` is due.
    pub(crate) fn deadline_ns(&self) -> u64 {
        if self.narrow.is_certain() {
            // Since the acknowledgement that said so.
            return self.heard_ns;
        }
        let ask_ns = if self.sent.reliable() > 0 {
            self.reliable_ns + self.trip.probe_timeout_ns(self.attempts)
        } else if self.ping_is_due {
            u64::MAX
        } else {
            self.ask_at_ns()
        };
        let ack_ns = self.received.due_ns().min(self.paced_until_ns);
        let ack_ns = ack_ns.min(self.peer_casts.due_ns());
        ack_ns.min(self.look_for_losses_ns).min(self.silent_at_ns()).min(ask_ns)
    }

    /// We did not run for `pause_ns`: that the peer was not heard in that time means nothing.
    pub(crate) fn was_paused(&mut self, now_ns: u64, pause_ns: u64) {
        self.heard_ns = (self.heard_ns + pause_ns).min(now_ns);
    }

    /// Whether a packet of this number was sent lately, so that a reset may speak of it.
    pub(crate) fn sent_lately(&self, number: u64) -> bool {
        self.sent.is_recent(number)
    }

    /// The number for a last packet, which is not waited for.
    pub(crate) fn last_number(&self) -> u64 {
        self.sent.next_number()
    }

    /// The last packet of a sealed session. Nothing may be sent after it: it has the next number.
    pub(crate) fn sealed_close(&mut self) -> Option<Box<[u8]>> {
        let label = self.label();
        let seal = self.seal.as_mut()?;
        let mut packet = vec![0; SEALED_HEADER_BYTES + 1 + TAG_BYTES];
        seal_into(&mut packet, &mut seal.sealer, label, &[], &[FRAME_CLOSE]);
        Some(packet.into_boxed_slice())
    }

    /// Its keys, when it is sealed.
    pub(crate) fn seal(&self) -> Option<&Seal> {
        self.seal.as_deref()
    }

    pub(crate) fn seal_mut(&mut self) -> Option<&mut Seal> {
        self.seal.as_deref_mut()
    }

    /// A packet of any frames and payload, under the next number; `None` when there is none left.
    #[cfg(feature = "forging")]
    pub(crate) fn forge(&mut self, now_ns: u64, frames: &[u8], payload: &[u8]) -> Option<Vec<u8>> {
        if self.sent.is_exhausted() {
            return None;
        }
        let label = self.label();
        let head_bytes = self.header_bytes() + frames.len();
        let mut packet = vec![0; head_bytes];
        if let Some(seal) = &mut self.seal {
            packet.resize(head_bytes + payload.len() + TAG_BYTES, 0);
            seal_into(&mut packet, &mut seal.sealer, label, payload, frames);
        } else {
            packet[HEADER_BYTES..].copy_from_slice(frames);
            crate::wire::guard(&mut packet, head_bytes, label, payload);
            packet.extend_from_slice(payload);
        }
        self.sent.push(SentPacket { sent_ns: now_ns, ..Default::default() });
        Some(packet)
    }

    /// The identification of the next packet.
    fn label(&self) -> Label {
        Label {
            kind: if self.seal.is_some() { PacketKind::Sealed } else { PacketKind::Data },
            version: self.agreed.peer.version,
            session: self.agreed.remote_id,
            number: self.sent.next_number(),
            flags: 0,
        }
    }

    fn header_bytes(&self) -> usize {
        if self.seal.is_some() { SEALED_HEADER_BYTES } else { HEADER_BYTES }
    }

    /// Gives back all buffers. The buffers of calls that are being served belong to the server.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        self.sendq.finish_all(pool);
        self.peer_casts.release_all(pool);
        for call in self.peer_calls.iter_mut() {
            if let Some(body) = call.body.take() {
                pool.release(body);
            }
        }
    }

    pub(crate) fn status(&self) -> SessionStatus {
        SessionStatus {
            session: self.agreed.id,
            state: SessionState::Connected,
            peer: self.agreed.peer.clone(),
            round_trip_ns: self.trip.smoothed_ns(),
            in_flight_bytes: self.sent.in_flight_bytes(),
            window_bytes: self.congestion.window_bytes(),
            datagram_bytes_max: self.agreed.datagram_bytes_max,
            calls_outstanding: self.own_calls.outstanding(),
            calls_serving: self.serving,
            packets_sent: self.sent.next_number(),
            packets_received: self.packets_received,
            packets_lost: self.packets_lost,
            state_bytes: self.state_bytes(),
        }
    }

    fn state_bytes(&self) -> usize {
        size_of::<Self>()
            + self.seal.as_ref().map_or(0, |seal| seal.state_bytes())
            + self.sendq.state_bytes()
            + self.own_calls.state_bytes()
            + self.peer_calls.state_bytes()
            + self.peer_casts.state_bytes()
            + self.sent.state_bytes()
            + self.received.state_bytes()
            + self.credit.more_bytes()
            + self.credit_due.capacity() * size_of::<u16>()
            + self.credit_is_due.more_bytes()
            + self.agreed.peer.name.capacity()
    }

    /// Whether the peer owes us anything: a reply, or the acknowledgement of what must arrive.
    fn is_expecting(&self) -> bool {
        self.own_calls.outstanding() > 0 || self.sent.reliable() > 0
    }

    fn silent_at_ns(&self) -> u64 {
        if self.is_expecting() {
            self.heard_ns.max(self.expecting_since_ns) + SILENCE_NS
        } else {
            self.heard_ns + UNANSWERED * self.idle_patience_ns()
        }
    }

    /// When to ask whether the peer is still there, with nothing in flight that must arrive.
    fn ask_at_ns(&self) -> u64 {
        let is_waiting = self.own_calls.outstanding() > 0;
        let patience_ns = if is_waiting { PROBE_NS } else { self.idle_patience_ns() };
        self.heard_ns.max(self.asked_ns) + patience_ns
    }

    fn idle_patience_ns(&self) -> u64 {
        if self.is_watched { WATCH_NS } else { KEEP_ALIVE_NS }
    }

    /// Nothing was acknowledged for too long: the packets that were sent first go again, even if
    /// the window is full. It is not taken for a sign of congestion, since the peer may just not
    /// have run.
    fn probe(&mut self, now_ns: u64, pool: &mut Pool, counters: &mut EndpointCounters) {
        counters.probes_sent += 1;
        self.attempts += 1;
        self.reliable_ns = now_ns;
        self.probe_packets = PROBE_PACKETS;
        self.ping_is_due = true;
        // Where nothing large arrives, something small shows it.
        self.is_ping_alone = self.attempts > 1 || self.narrow.is_suspected();
        for _ in 0..PROBE_PACKETS {
            if let Some(packet) = self.sent.land_oldest_reliable() {
                self.send_again(now_ns, &packet, pool, counters);
            }
        }
    }

    fn look_for_losses(&mut self, now_ns: u64, pool: &mut Pool, counters: &mut EndpointCounters) {
        loop {
            match self.sent.next_lost(now_ns, &self.trip) {
                Ok((number, packet)) => {
                    self.narrow.lost(number, &packet, self.sent.next_number());
                    self.congestion.lost(packet.cost_bytes);
                    self.send_again(now_ns, &packet, pool, counters);
                }
                Err(look_again_ns) => {
                    self.look_for_losses_ns = look_again_ns;
                    return;
                }
            }
        }
    }

    fn send_again(
        &mut self,
        now_ns: u64,
        packet: &SentPacket,
        pool: &mut Pool,
        counters: &mut EndpointCounters,
    ) {
        counters.packets_lost += 1;
        self.packets_lost += 1;
        let before_ns = now_ns.saturating_sub(self.trip.cast_life_ns());
        for &fragment in packet.fragments() {
            if self.sendq.is_too_old(fragment, before_ns) {
                counters.casts_given_up += 1;
                self.sendq.finish(fragment.key, pool);
            } else {
                self.sendq.lost(fragment);
            }
        }
        if packet.has_credit {
            let first_bytes = self.agreed.receive_credit_bytes;
            for (flow, credit) in self.credit.iter() {
                if credit.granted_bytes() > first_bytes && self.credit_is_due.insert(flow.into()) {
                    self.credit_due.push_back(flow);
                }
            }
        }
        if packet.has_ping && packet.is_reliable {
            self.ping_is_due = true;
        }
    }

    fn announce_credit(&mut self, flow: u16) {
        if self.credit_is_due.insert(usize::from(flow)) {
            self.credit_due.push_back(flow);
        }
    }
}

/// A call to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingCall<'a> {
    pub(crate) flow: u16,
    pub(crate) token: u64,
    pub(crate) head: &'a [u8],
    pub(crate) body: Option<(BufId, usize)>,
}

/// A body with a reference of its own; an empty one is none.
fn retained(pool: &mut Pool, body: Option<(BufId, usize)>) -> Option<(BufId, usize)> {
    let body = body.filter(|&(_, len_bytes)| len_bytes > 0);
    if let Some((buffer, _)) = body {
        pool.retain(buffer);
    }
    body
}
