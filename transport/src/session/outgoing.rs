//! Packets put together.
//!
//! A packet carries control frames and then either up to eight messages without a body or one
//! fragment with a part of a body. The datagrams of a message of several pieces are all of one
//! length, and so are those of equal messages: they leave in one segmented send. So control frames
//! go beside the last piece, which has room for them, and a frame without meaning fills its
//! datagram up.

use std::ops::Range;

use zerocopy::byteorder::little_endian::{U16, U64};

use crate::counters::EndpointCounters;
use crate::pool::{BufId, Pool};
use crate::sendq::{NextFragment, Overdue, SendQueue};
use crate::sent::{PACKET_COST_BYTES, PACKET_FRAGMENTS_MAX, SentPacket};
use crate::session::Session;
use crate::transmit::{DATAGRAM_HEAD_MAX, TransmitBatch};
use crate::wire::TAG_BYTES;
use crate::wire::{
    self, ACK_BYTES_MIN, CAST_WINDOW, CreditFrame, DATAGRAM_BYTES_MIN, FILL_BYTES_MAX, FLAG_HURRY,
    FRAGMENT_BYTES, FRAME_CREDIT, FRAME_FILL, FRAME_PING, Label, ProtocolVersion,
};

/// Credit frames in one packet.
const PACKET_CREDITS_MAX: usize = 4;

const _: () = assert!(DATAGRAM_HEAD_MAX + TAG_BYTES <= DATAGRAM_BYTES_MIN, "heads always fit");

impl Session {
    /// Adds at most `budget` packets to the batch. `true`: there may be more to send now.
    pub(crate) fn transmit(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        counters: &mut EndpointCounters,
        out: &mut TransmitBatch,
        budget: usize,
    ) -> bool {
        for _ in 0..budget {
            if out.is_full() {
                return true;
            }
            if !self.transmit_packet(now_ns, pool, counters, out) {
                return false;
            }
        }
        true
    }

    /// Adds one packet, if there is anything to say.
    fn transmit_packet(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        counters: &mut EndpointCounters,
        out: &mut TransmitBatch,
    ) -> bool {
        if self.sent.is_exhausted() {
            return false;
        }
        let may_fly = !self.sent.is_full();
        self.ping_is_due |= self.sent.is_unasked();
        let next = if may_fly { self.next(now_ns, pool, counters) } else { None };
        let next = next.filter(|_| self.probe_packets > 0 || self.may_send(now_ns));
        // Control data that is due and finds no room beside a full fragment goes before the
        // fragment.
        let is_ack_due = self.received.due_ns() <= now_ns;
        let header_bytes = self.header_bytes();
        let has_room = self.head_bytes_max(next.as_ref()) - header_bytes >= ACK_BYTES_MIN;
        let next = next.filter(|_| has_room || !is_ack_due);
        let has_control = may_fly && (self.ping_is_due || !self.credit_due.is_empty());
        if next.is_none() && !has_control && !is_ack_due {
            return false;
        }

        let slot = out.next(self.agreed.peer.addr);
        let head = &mut slot.head;
        let mut at = header_bytes;
        let mut packet = SentPacket { sent_ns: now_ns, ..SentPacket::default() };
        let head_max = self.head_bytes_max(next.as_ref());
        self.put_control(now_ns, head, &mut at, head_max, next.is_some(), may_fly, &mut packet);
        let mut body = None;
        if let Some(next) = next {
            let full_bytes = self.full_bytes(&next);
            let is_evened = self.cut.is_even && next.piece_bytes > 0;
            body = self.put_fragments(next, head, &mut at, &mut packet, counters);
            if is_evened {
                fill_up(head, &mut at, body.as_ref(), full_bytes);
            }
            self.unhurried_casts +=
                packet.fragments().iter().filter(|it| SendQueue::is_cast(it)).count();
        }
        let bytes = self.finish_packet(pool, counters, out, at, body);
        counters.datagrams_sent += 1;
        counters.bytes_sent += bytes as u64;
        self.note_sent(packet, bytes, counters);
        true
    }

    /// Protects the datagram that was put together, whose frames end at `at`, and gives it its
    /// payload: sealed, from the pool's buffer into the batch, or guarded by checksums. Says how
    /// long it is.
    fn finish_packet(
        &mut self,
        pool: &mut Pool,
        counters: &mut EndpointCounters,
        out: &mut TransmitBatch,
        at: usize,
        body: Option<(BufId, Range<usize>)>,
    ) -> usize {
        let payload: &[u8] = match &body {
            Some((buffer, range)) => &pool.bytes(*buffer)[range.clone()],
            None => &[],
        };
        let hurries = self.hurries(at + payload.len());
        let label = Label { flags: if hurries { FLAG_HURRY } else { 0 }, ..self.label() };
        if let Some(seal) = &mut self.seal {
            counters.bytes_sealed += payload.len() as u64;
            return out.seal_last(&mut seal.sealer, label, at, payload);
        }
        counters.bytes_checksummed += payload.len() as u64;
        let bytes = at + payload.len();
        let slot = out.last();
        wire::guard(&mut slot.head, at, label, payload);
        slot.head_bytes = at;
        if let Some((buffer, _)) = &body {
            pool.retain(*buffer);
        }
        slot.body = body;
        bytes
    }

    /// Whether window and pace allow what waits to leave.
    fn may_send(&mut self, now_ns: u64) -> bool {
        let in_flight_bytes = self.sent.in_flight_bytes();
        let may_send = self.congestion.may_send(now_ns, in_flight_bytes);
        let is_paced = !may_send && in_flight_bytes < self.congestion.window_bytes();
        self.paced_until_ns = if is_paced { self.congestion.resume_ns() } else { u64::MAX };
        may_send
    }

    /// Whether a packet of so many bytes should be acknowledged at once: one in each quarter of the
    /// window, while it is used that far. Short casts fill their flows' windows long before the
    /// session's window, and before a peer has enough packets to acknowledge them by itself.
    fn hurries(&mut self, bytes: usize) -> bool {
        let quarter_bytes = self.congestion.window_bytes() / 4;
        self.unhurried_bytes += bytes as u64;
        let is_far = self.unhurried_bytes >= quarter_bytes
            && self.sent.in_flight_bytes() + bytes as u64 >= quarter_bytes;
        let hurries = self.agreed.peer.version >= ProtocolVersion::Second as u8
            && (is_far || self.unhurried_casts >= CAST_WINDOW / 4);
        if hurries {
            (self.unhurried_bytes, self.unhurried_casts) = (0, 0);
        }
        hurries
    }

    /// How far control frames may reach, so that the fragment after them still fits.
    fn head_bytes_max(&self, next: Option<&NextFragment>) -> usize {
        let Some(next) = next else { return self.frames_bytes_max().min(DATAGRAM_HEAD_MAX) };
        let room_bytes = self.full_bytes(next) - next.body.len();
        room_bytes.min(DATAGRAM_HEAD_MAX) - FRAGMENT_BYTES - next.head_bytes
    }

    /// How long the datagram with a fragment may be, without a tag. With a piece of several it is
    /// as long as with the first piece.
    fn full_bytes(&self, next: &NextFragment) -> usize {
        match next.piece_bytes {
            0 => self.frames_bytes_max(),
            piece_bytes => self.header_bytes() + FRAGMENT_BYTES + piece_bytes,
        }
    }

    /// The longest datagram, without a tag.
    fn frames_bytes_max(&self) -> usize {
        self.agreed.datagram_bytes_max - if self.seal.is_some() { TAG_BYTES } else { 0 }
    }

    #[expect(clippy::too_many_arguments, reason = "one step of transmit_packet, not a thing")]
    fn put_control(
        &mut self,
        now_ns: u64,
        head: &mut [u8],
        at: &mut usize,
        head_max: usize,
        has_fragments: bool,
        may_fly: bool,
        packet: &mut SentPacket,
    ) {
        if self.received.is_waiting()
            && let Some(largest) = self.received.write(now_ns, head, at, head_max - *at)
        {
            packet.acks_below = largest + 1;
        }
        if !may_fly {
            return;
        }
        for _ in 0..PACKET_CREDITS_MAX {
            if head_max - *at < size_of::<CreditFrame>() {
                break;
            }
            let Some(flow) = self.credit_due.pop_front() else { break };
            self.credit_is_due.remove(usize::from(flow));
            let frame = CreditFrame {
                kind: FRAME_CREDIT,
                reserved: 0,
                flow: U16::new(flow),
                limit_bytes: U64::new(self.credit.get(flow).granted_bytes()),
            };
            wire::put(head, at, &frame);
            packet.has_credit = true;
        }
        if self.ping_is_due && !has_fragments {
            wire::put(head, at, &FRAME_PING);
            packet.has_ping = true;
            self.is_ping_alone = false;
        }
        self.ping_is_due = self.is_ping_alone;
    }

    /// The fragment whose turn it is. Casts that have become too old go no further.
    fn next(
        &mut self,
        now_ns: u64,
        pool: &mut Pool,
        counters: &mut EndpointCounters,
    ) -> Option<NextFragment> {
        let before_ns = now_ns.saturating_sub(self.trip.cast_life_ns());
        // Ends: each turn takes a cast out.
        loop {
            let next = self.sendq.peek()?;
            match self.sendq.give_up_old(&next, now_ns, before_ns, pool) {
                None => return Some(next),
                Some(Overdue::Waiting) => counters.casts_overdue += 1,
                Some(Overdue::Lost) => counters.casts_given_up += 1,
            }
        }
    }

    /// Puts the fragment whose turn it is, and small messages after one without a body.
    fn put_fragments(
        &mut self,
        mut next: NextFragment,
        head: &mut [u8],
        at: &mut usize,
        packet: &mut SentPacket,
        counters: &mut EndpointCounters,
    ) -> Option<(BufId, Range<usize>)> {
        // No packet without a body is longer than that, with a tag or without: datagrams are.
        let head_max = DATAGRAM_HEAD_MAX;
        loop {
            wire::put(head, at, &self.sendq.frame(&next));
            wire::put(head, at, self.sendq.head(&next));
            counters.fragments_resent += u64::from(SendQueue::is_resend(&next));
            let body = self.sendq.body(&next).map(|buffer| (buffer, next.body.clone()));
            packet.add(self.sendq.take(&next, packet.sent_ns));
            if body.is_some() || packet.fragments().len() == PACKET_FRAGMENTS_MAX {
                return body;
            }
            let follows = |next: &NextFragment| {
                next.body.is_empty() && *at + FRAGMENT_BYTES + next.head_bytes <= head_max
            };
            match self.sendq.peek().filter(follows) {
                Some(following) => next = following,
                None => return None,
            }
        }
    }

    fn note_sent(&mut self, mut packet: SentPacket, bytes: usize, counters: &mut EndpointCounters) {
        let now_ns = packet.sent_ns;
        let has_fragments = !packet.fragments().is_empty();
        packet.in_flight = has_fragments || packet.has_credit || packet.has_ping;
        if !packet.in_flight {
            counters.acks_sent += 1;
            self.sent.push(packet);
            return;
        }
        // Until the peer was heard, the first ping is what confirms the session to it.
        let confirms = self.agreed.peer.outgoing && self.packets_received == 0;
        packet.is_reliable = has_fragments || packet.has_credit || confirms;
        packet.cost_bytes = bytes as u64 + PACKET_COST_BYTES;
        self.congestion.sent(now_ns, packet.cost_bytes);
        self.asked_ns = now_ns;
        self.probe_packets = self.probe_packets.saturating_sub(1);
        if packet.is_reliable {
            self.reliable_ns = now_ns;
            // A probe has just given the last such packet up: that is still the same wait.
            if !self.is_expecting() && self.attempts == 0 {
                self.expecting_since_ns = now_ns;
            }
        }
        self.sent.push(packet);
    }
}

/// Fills the last piece's datagram up, whose frames end at `at`, so that it is as long as those of
/// the other pieces: the kernel then takes the next message's datagrams into the same group.
fn fill_up(
    head: &mut [u8],
    at: &mut usize,
    body: Option<&(BufId, Range<usize>)>,
    full_bytes: usize,
) {
    let Some((_, range)) = body else { return };
    let missing_bytes = full_bytes - *at - range.len();
    if (1..=FILL_BYTES_MAX).contains(&missing_bytes) && *at + missing_bytes <= head.len() {
        let filling = &mut head[*at..*at + missing_bytes];
        filling.fill(0);
        filling[0] = FRAME_FILL;
        *at += missing_bytes;
    }
}
