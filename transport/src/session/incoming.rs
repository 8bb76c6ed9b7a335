//! Packets taken apart. Nothing here trusts a length, an id or an order.

use crate::ack::{AckWish, Freshness, NUMBER_MAX};
use crate::congestion::Trip;
use crate::events::CallId;
use crate::pool::charge_bytes;
use crate::recv::casts::{CastContext, CastPiece};
use crate::recv::{CallStage, FragmentRole};
use crate::sendq;
use crate::sent::SentPacket;
use crate::session::{Session, SessionContext};
use crate::wire::{
    self, ACK_FLAG_NO_ROOM, AckFrame, AckRange, CAST_VERSION_MIN, CheckedPacket, CreditFrame,
    EVEN_VERSION_MIN, FLOWS_MAX, FRAME_ACK, FRAME_CALL, FRAME_CAST, FRAME_CLOSE, FRAME_CREDIT,
    FRAME_FILL, FRAME_PING, FRAME_REPLY, FragmentFrame, PacketKind, Pieces, ProtocolVersion,
};

/// The result of taking a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketOutcome {
    /// The session goes on.
    Open,
    /// The peer closed it.
    Closed,
}

/// The peer broke a rule.
#[derive(Clone, Copy, Debug)]
struct Violation;

/// A fragment with what belongs to it.
struct Fragment<'a> {
    frame: &'a FragmentFrame,
    head: &'a [u8],
    data: &'a [u8],
    /// Where `data` lies in the body.
    first: usize,
    pieces: Pieces,
}

/// The contents of a packet, gathered frame by frame.
#[derive(Default)]
struct Findings {
    wants_ack: bool,
    /// A fragment could not be taken for lack of a buffer.
    lacks_buffer: bool,
    has_message: bool,
    is_ping: bool,
    has_ack: bool,
    is_close: bool,
}

impl Session {
    /// Takes a packet of this session; `bytes` is the length of its datagram.
    pub(crate) fn receive(
        &mut self,
        inside: &mut SessionContext<'_>,
        packet: &CheckedPacket<'_>,
        bytes: usize,
    ) -> PacketOutcome {
        if packet.number >= NUMBER_MAX {
            inside.counters.dropped_violation += 1;
            return PacketOutcome::Open;
        }
        match self.received.freshness(packet.number) {
            Freshness::Fresh => {}
            Freshness::Duplicate => {
                inside.counters.dropped_duplicate += 1;
                return PacketOutcome::Open;
            }
            Freshness::Old => {
                inside.counters.dropped_old += 1;
                return PacketOutcome::Open;
            }
        }
        self.heard_ns = inside.now_ns;
        self.packets_received += 1;
        let checked = match packet.kind {
            PacketKind::Sealed => &mut inside.counters.bytes_opened,
            _ => &mut inside.counters.bytes_checksummed,
        };
        *checked += packet.payload.len() as u64;
        let Ok(findings) = self.take_frames(inside, packet) else {
            inside.counters.dropped_violation += 1;
            return PacketOutcome::Open;
        };
        if findings.is_close {
            return PacketOutcome::Closed;
        }
        if findings.lacks_buffer {
            // Not acknowledged, so the peer sends it again when it thinks it lost.
            self.received.refused(inside.now_ns);
            inside.counters.dropped_no_buffer += 1;
            return PacketOutcome::Open;
        }
        if findings.has_message {
            self.used_ns = inside.now_ns;
        } else if findings.is_ping && self.is_unused(inside.now_ns) {
            // The side that asks first has rested; the other side is never quiet for so long.
            self.rest();
        }
        let wish = match (findings.wants_ack, packet.hurries) {
            (false, _) => AckWish::None,
            (true, false) => AckWish::Soon,
            (true, true) => AckWish::AtOnce,
        };
        self.received.record(inside.arrived_ns, packet.number, wish, bytes);
        PacketOutcome::Open
    }

    fn take_frames(
        &mut self,
        inside: &mut SessionContext<'_>,
        packet: &CheckedPacket<'_>,
    ) -> Result<Findings, Violation> {
        let (mut frames, mut payload) = (packet.frames, packet.payload);
        let mut findings = Findings::default();
        while let Some(&kind) = frames.first() {
            findings.wants_ack |= kind != FRAME_ACK;
            findings.has_message |= matches!(kind, FRAME_CALL | FRAME_REPLY | FRAME_CAST);
            match kind {
                // One says all: thousands in a datagram would only cost.
                FRAME_PING if findings.is_ping => return Err(Violation),
                FRAME_PING => {
                    findings.is_ping = true;
                    frames = &frames[1..];
                }
                FRAME_CLOSE => {
                    findings.is_close = true;
                    return Ok(findings);
                }
                // One says all: a second one would only cost.
                FRAME_ACK if findings.has_ack => return Err(Violation),
                FRAME_ACK => {
                    findings.has_ack = true;
                    self.take_ack(inside, &mut frames)?;
                }
                FRAME_CREDIT => self.take_credit(&mut frames)?,
                FRAME_CALL => {
                    let fragment = self.take_fragment(&mut frames, &mut payload)?;
                    findings.lacks_buffer |= !self.take_call(inside, &fragment)?;
                }
                FRAME_REPLY => {
                    let fragment = self.take_fragment(&mut frames, &mut payload)?;
                    self.take_reply(inside, &fragment)?;
                }
                FRAME_CAST if self.agreed.peer.version >= CAST_VERSION_MIN => {
                    let fragment = self.take_fragment(&mut frames, &mut payload)?;
                    self.take_cast(inside, &fragment)?;
                }
                // Its bytes are not looked at: there may be any number of them.
                FRAME_FILL if self.agreed.peer.version >= EVEN_VERSION_MIN => break,
                _ => return Err(Violation),
            }
        }
        if payload.is_empty() { Ok(findings) } else { Err(Violation) }
    }

    fn take_fragment<'a>(
        &self,
        frames: &mut &'a [u8],
        payload: &mut &'a [u8],
    ) -> Result<Fragment<'a>, Violation> {
        let frame: &FragmentFrame = wire::take(frames).ok_or(Violation)?;
        let number = usize::from(frame.fragment.get());
        if !frame.is_valid() {
            return Err(Violation);
        }
        let pieces = frame.pieces(self.cut);
        if number >= pieces.count {
            return Err(Violation);
        }
        let is_first = number == 0;
        let head_bytes = if is_first { usize::from(frame.head_bytes) } else { 0 };
        let head = wire::take_bytes(frames, head_bytes).ok_or(Violation)?;
        let range = pieces.body_range(number);
        let data = wire::take_bytes(payload, range.len()).ok_or(Violation)?;
        Ok(Fragment { frame, head, data, first: range.start, pieces })
    }

    /// A fragment of a call. `false`: there is no buffer for its body now.
    fn take_call(
        &mut self,
        inside: &mut SessionContext<'_>,
        fragment: &Fragment<'_>,
    ) -> Result<bool, Violation> {
        let frame = fragment.frame;
        let (id, flow) = (frame.id.get(), frame.flow.get());
        if fragment.pieces.is_long() {
            self.peer_calls.make_room();
        }
        let (slot, call) = self.peer_calls.place(id);
        if id > call.id {
            match call.stage {
                CallStage::Done => {}
                CallStage::Answered => {
                    // The place is used again, so the peer has the reply.
                    call.stage = CallStage::Done;
                    self.serving -= 1;
                    self.sendq.finish(sendq::reply_key(slot), inside.pool);
                }
                CallStage::Arriving | CallStage::Serving => return Err(Violation),
            }
            let body_bytes = frame.body_bytes.get() as usize;
            let charge = charge_bytes(body_bytes);
            let credit = self.credit.get_mut(flow);
            if !credit.admits(charge) {
                return Err(Violation);
            }
            let mut body = None;
            if body_bytes > 0 {
                let owner = self.agreed.owner;
                body = inside.pool.alloc_incoming(owner, body_bytes, inside.counters);
                if body.is_none() {
                    return Ok(false);
                }
            }
            credit.arrived(charge);
            call.start(id, flow, charge, body);
        }
        if id < call.id || call.stage != CallStage::Arriving {
            inside.counters.fragments_duplicate += 1;
            return Ok(true);
        }
        if flow != call.flow {
            return Err(Violation);
        }
        match call.assembly.take(frame, fragment.head, fragment.pieces) {
            FragmentRole::New => {}
            FragmentRole::Duplicate => {
                inside.counters.fragments_duplicate += 1;
                return Ok(true);
            }
            FragmentRole::Contradiction => return Err(Violation),
        }
        if let Some(body) = call.body {
            let range = fragment.first..fragment.first + fragment.data.len();
            inside.pool.bytes_mut(body)[range].copy_from_slice(fragment.data);
            inside.counters.bytes_copied += fragment.data.len() as u64;
        }
        if call.assembly.is_complete() {
            call.stage = CallStage::Serving;
            self.serving += 1;
            inside.counters.calls_received += 1;
            let session = self.agreed.id;
            let body = call.body.take().map(|body| (body, call.assembly.body_bytes()));
            let call_id = CallId { session, id };
            inside.sink.call(session, flow, call_id, call.assembly.head(), body);
        }
        Ok(true)
    }

    fn take_reply(
        &mut self,
        inside: &mut SessionContext<'_>,
        fragment: &Fragment<'_>,
    ) -> Result<(), Violation> {
        let id = fragment.frame.id.get();
        if fragment.pieces.is_long() {
            self.own_calls.make_room();
        }
        if self.own_calls.find(id).is_none() && self.own_calls.is_past(id) {
            // A reply from before a rest, sent once more.
            inside.counters.fragments_duplicate += 1;
            return Ok(());
        }
        let (slot, call) = self.own_calls.find(id).ok_or(Violation)?;
        if id != call.id || !call.is_active {
            inside.counters.fragments_duplicate += 1;
            return Ok(());
        }
        if fragment.frame.flow.get() != call.flow {
            return Err(Violation);
        }
        match call.reply.take(fragment.frame, fragment.head, fragment.pieces) {
            FragmentRole::New => {}
            FragmentRole::Duplicate => {
                inside.counters.fragments_duplicate += 1;
                return Ok(());
            }
            FragmentRole::Contradiction => return Err(Violation),
        }
        let (session, token) = (self.agreed.id, call.token);
        let (is_wanted, is_complete) = (!call.is_forgotten, call.reply.is_complete());
        if is_wanted && !fragment.data.is_empty() {
            inside.sink.reply_body(session, token, fragment.first, fragment.data);
        }
        if is_complete {
            self.sendq.finish(sendq::call_key(slot), inside.pool);
            self.own_calls.finish(slot);
            inside.counters.replies_received += 1;
            let reply = &self.own_calls.get(slot).reply;
            if is_wanted {
                inside.sink.reply(session, token, reply.head(), reply.body_bytes());
            }
        }
        Ok(())
    }

    /// A fragment of a cast. It is acknowledged in any case.
    fn take_cast(
        &mut self,
        inside: &mut SessionContext<'_>,
        fragment: &Fragment<'_>,
    ) -> Result<(), Violation> {
        let Fragment { frame, head, data, first, pieces } = *fragment;
        if frame.id.get() >= NUMBER_MAX {
            return Err(Violation);
        }
        let mut around = CastContext {
            inside,
            owner: self.agreed.owner,
            session: self.agreed.id,
            life_ns: self.trip.cast_life_ns(),
        };
        let piece = CastPiece { frame, head, data, first, count: pieces.count };
        self.peer_casts.take(&mut around, &piece).map_err(|_| Violation)
    }

    fn take_credit(&mut self, frames: &mut &[u8]) -> Result<(), Violation> {
        let frame: &CreditFrame = wire::take(frames).ok_or(Violation)?;
        if usize::from(frame.flow.get()) >= FLOWS_MAX {
            return Err(Violation);
        }
        self.sendq.grant(frame.flow.get(), frame.limit_bytes.get());
        Ok(())
    }

    fn take_ack(
        &mut self,
        inside: &mut SessionContext<'_>,
        frames: &mut &[u8],
    ) -> Result<(), Violation> {
        let frame: &AckFrame = wire::take(frames).ok_or(Violation)?;
        let largest = frame.largest.get();
        let is_refusing = frame.flags.get() & ACK_FLAG_NO_ROOM != 0
            && self.agreed.peer.version >= ProtocolVersion::Second as u8;
        if largest >= self.sent.next_number() || frame.ranges == 0 {
            return Err(Violation);
        }
        // One above the range before the first.
        let mut above = largest + 1;
        let mut landed_bytes = 0;
        let mut trip = None;
        for _ in 0..frame.ranges {
            let range: &AckRange = wire::take(frames).ok_or(Violation)?;
            let end = above.checked_sub(u64::from(range.gap.get())).ok_or(Violation)?;
            let first = end.checked_sub(u64::from(range.length.get())).ok_or(Violation)?;
            if first == end {
                return Err(Violation);
            }
            let mut place = self.sent.place_of(first);
            while let Some((number, packet)) =
                self.sent.land_next(&mut place, end, &mut inside.counters.ack_steps)
            {
                landed_bytes += packet.cost_bytes;
                self.landed(inside, &packet);
                if number == largest {
                    trip = Some(Trip {
                        now_ns: inside.arrived_ns,
                        sent_ns: packet.sent_ns,
                        wait_ns: u64::from(frame.delay_us.get()) * 1000,
                        late_ns: inside.now_ns.saturating_sub(inside.arrived_ns),
                    });
                }
            }
            above = first;
        }
        if landed_bytes > 0 {
            self.attempts = 0;
            self.is_excused = false;
            self.sent.acknowledged(largest);
            if let Some(trip) = &trip {
                self.trip.sample(trip.whole_ns(), trip.wait_ns);
            }
            self.congestion.acked(trip.as_ref(), landed_bytes);
            if is_refusing {
                self.narrow.excuse(self.sent.next_number());
            }
            self.look_for_losses(inside.arrived_ns, inside.pool, inside.counters);
        }
        Ok(())
    }

    /// A packet of ours arrived.
    fn landed(&mut self, inside: &mut SessionContext<'_>, packet: &SentPacket) {
        if packet.acks_below > 0 {
            self.received.forget_below(packet.acks_below - 1);
        }
        self.narrow.arrived(packet);
        for &fragment in packet.fragments() {
            let is_delivered = self.sendq.acked(fragment, inside.pool);
            if let (true, Some(slot)) = (is_delivered, sendq::reply_slot(fragment.key)) {
                self.peer_calls.answer_arrived(slot);
                self.serving -= 1;
            }
        }
    }
}
