//! The sending side of packet numbers: what each packet carried, until it is acknowledged or lost.

use crate::rtt::RoundTrip;

/// Messages in one packet. More would save little of the 32 bytes of header.
pub(crate) const PACKET_FRAGMENTS_MAX: usize = 8;

/// Numbers between the oldest packet that is neither acknowledged nor lost and the newest: the
/// largest window in packets of Ethernet's size. A session that fills it holds 8 MiB of them.
pub(crate) const SENT_MAX: usize = 1 << 16;

/// A reset may speak of so many packet numbers.
const RECENT: u64 = 4096;

/// Of those, the last ones are for acknowledgements, which must not wait for the oldest packet.
const RESERVED_SHARE: usize = 4;

/// The ring's size at first. It doubles when it must, and never shrinks.
const SENT_INITIAL: usize = 64;

/// A packet is lost when one sent so many later arrived: more than a network reorders.
const REORDER_PACKETS: u64 = 8;

/// What a packet costs beyond its bytes (headers below us, bookkeeping of the kernel): also keeps
/// tiny packets from filling the ring within the window.
pub(crate) const PACKET_COST_BYTES: u64 = 256;

/// A fragment in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FragmentRef {
    /// The message's place in the send queue.
    pub(crate) key: u16,
    pub(crate) fragment: u16,
    /// The low half of the message's id: the place may have a new message by now.
    pub(crate) id_low: u32,
}

/// A packet on its way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentPacket {
    pub(crate) sent_ns: u64,
    /// What it counts for in the window; 0 for one that wants no acknowledgement.
    pub(crate) cost_bytes: u64,
    /// The largest number in the acknowledgement that it carries, plus one; 0 without.
    pub(crate) acks_below: u64,
    /// Neither acknowledged nor lost, and wants an acknowledgement.
    pub(crate) in_flight: bool,
    /// What it carries must arrive: fragments, credit, or the first ping.
    pub(crate) is_reliable: bool,
    pub(crate) has_credit: bool,
    pub(crate) has_ping: bool,
    pub(crate) fragment_count: u8,
    pub(crate) fragments: [FragmentRef; PACKET_FRAGMENTS_MAX],
}

impl SentPacket {
    pub(crate) fn fragments(&self) -> &[FragmentRef] {
        &self.fragments[..usize::from(self.fragment_count)]
    }

    pub(crate) fn add(&mut self, fragment: FragmentRef) {
        self.fragments[usize::from(self.fragment_count)] = fragment;
        self.fragment_count += 1;
    }
}

/// The packets of one session.
#[derive(Debug)]
pub(crate) struct SentPackets {
    /// By number, modulo its length, which is a power of two.
    ring: Vec<SentPacket>,
    /// The oldest number that may be in flight, and the next to use.
    first: u64,
    next: u64,
    /// The most numbers from `first` to `next`.
    open_max: usize,
    in_flight_bytes: u64,
    reliable: usize,
    /// The largest number that was acknowledged, plus one.
    acked_below: u64,
}

impl SentPackets {
    /// With at most `open_max` numbers open, a power of two, and no more than [`SENT_MAX`].
    pub(crate) fn new(open_max: usize) -> Self {
        Self {
            open_max: open_max.min(SENT_MAX),
            ring: vec![SentPacket::default(); SENT_INITIAL],
            first: 0,
            next: 0,
            in_flight_bytes: 0,
            reliable: 0,
            acked_below: 0,
        }
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Packets in flight whose content must arrive.
    pub(crate) fn reliable(&self) -> usize {
        self.reliable
    }

    /// No further packet that wants an acknowledgement before the oldest is acknowledged or lost.
    pub(crate) fn is_full(&self) -> bool {
        (self.next - self.first) as usize >= self.open_max - self.open_max / RESERVED_SHARE
    }

    /// No further packet at all. A probe, at the latest, gives the oldest one up.
    pub(crate) fn is_exhausted(&self) -> bool {
        (self.next - self.first) as usize == self.open_max
    }

    /// Whether a packet of this number was sent lately.
    pub(crate) fn is_recent(&self, number: u64) -> bool {
        number < self.next && self.next - number <= RECENT
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.ring.len() * size_of::<SentPacket>()
    }

    /// Notes the packet that got the next number. There must be room.
    pub(crate) fn push(&mut self, packet: SentPacket) {
        if (self.next - self.first) as usize == self.ring.len() {
            self.grow();
        }
        self.in_flight_bytes += packet.cost_bytes;
        self.reliable += usize::from(packet.is_reliable);
        let at = self.at(self.next);
        self.ring[at] = packet;
        self.next += 1;
        self.trim();
    }

    /// Ends the flight of `number`, if it flies, and tells what it was.
    pub(crate) fn land(&mut self, number: u64) -> Option<SentPacket> {
        if number < self.first || number >= self.next {
            return None;
        }
        let at = self.at(number);
        let packet = &mut self.ring[at];
        if !packet.in_flight {
            return None;
        }
        packet.in_flight = false;
        let packet = *packet;
        self.in_flight_bytes -= packet.cost_bytes;
        self.reliable -= usize::from(packet.is_reliable);
        Some(packet)
    }

    /// The part of `first..=last` that can still fly.
    pub(crate) fn flying(&self, first: u64, last: u64) -> std::ops::Range<u64> {
        first.max(self.first)..(last + 1).min(self.next)
    }

    /// An acknowledgement up to `largest` was worked in; `largest` was sent.
    pub(crate) fn acknowledged(&mut self, largest: u64) {
        self.acked_below = self.acked_below.max(largest + 1);
        self.trim();
    }

    /// The next packet to be taken for lost, its number and what it was, its flight ended; else
    /// when to look again (`u64::MAX` for never).
    pub(crate) fn next_lost(
        &mut self,
        now_ns: u64,
        trip: &RoundTrip,
    ) -> Result<(u64, SentPacket), u64> {
        let delay_ns = trip.loss_delay_ns();
        let mut look_again_ns = u64::MAX;
        for number in self.first..self.acked_below {
            let packet = &self.ring[self.at(number)];
            if !packet.in_flight {
                continue;
            }
            let due_ns = packet.sent_ns + delay_ns;
            if self.acked_below - 1 - number >= REORDER_PACKETS || due_ns <= now_ns {
                let packet = self.land(number).expect("it was in flight");
                self.trim();
                return Ok((number, packet));
            }
            look_again_ns = look_again_ns.min(due_ns);
        }
        Err(look_again_ns)
    }

    /// Ends the flight of the oldest packet whose content must arrive.
    pub(crate) fn land_oldest_reliable(&mut self) -> Option<SentPacket> {
        let flies = |number: &u64| {
            let packet = &self.ring[self.at(*number)];
            packet.in_flight && packet.is_reliable
        };
        let number = (self.first..self.next).find(flies)?;
        let packet = self.land(number);
        self.trim();
        packet
    }

    fn at(&self, number: u64) -> usize {
        number as usize & (self.ring.len() - 1)
    }

    fn trim(&mut self) {
        while self.first < self.next && !self.ring[self.at(self.first)].in_flight {
            self.first += 1;
        }
    }

    fn grow(&mut self) {
        let mut ring = vec![SentPacket::default(); self.ring.len() * 2];
        assert!(ring.len() <= SENT_MAX, "a packet was sent without room to remember it");
        for number in self.first..self.next {
            ring[number as usize & (self.ring.len() * 2 - 1)] = self.ring[self.at(number)];
        }
        self.ring = ring;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(sent_ns: u64) -> SentPacket {
        SentPacket {
            sent_ns,
            cost_bytes: 100,
            in_flight: true,
            is_reliable: true,
            ..SentPacket::default()
        }
    }

    #[test]
    fn later_arrivals_make_a_packet_lost() {
        let mut sent = SentPackets::new(SENT_MAX);
        let trip = RoundTrip::default();
        for number in 0..20 {
            sent.push(packet(number));
        }
        assert_eq!(sent.next_lost(0, &trip).err(), Some(u64::MAX));
        let landed = (9..=9).filter_map(|number| sent.land(number)).count();
        sent.acknowledged(9);
        assert_eq!(landed, 1);
        assert_eq!(sent.next_lost(0, &trip).map(|(_, lost)| lost.sent_ns), Ok(0));
        assert_eq!(sent.next_lost(0, &trip).map(|(_, lost)| lost.sent_ns), Ok(1));
        let look_again_ns = sent.next_lost(0, &trip).expect_err("within the reordering");
        assert_eq!(look_again_ns, 2 + trip.loss_delay_ns());
        assert_eq!(sent.next_lost(look_again_ns, &trip).map(|(_, lost)| lost.sent_ns), Ok(2));
        assert_eq!(sent.in_flight_bytes(), 16 * 100);
    }

    #[test]
    fn the_ring_grows_to_its_bound_and_keeps_what_flies() {
        let mut sent = SentPackets::new(SENT_MAX);
        while !sent.is_exhausted() {
            sent.push(packet(sent.next_number()));
        }
        assert_eq!(sent.next_number(), SENT_MAX as u64);
        for number in (0..SENT_MAX as u64).rev() {
            assert_eq!(sent.land(number).map(|packet| packet.sent_ns), Some(number));
            assert!(sent.land(number).is_none());
        }
        sent.acknowledged(SENT_MAX as u64 - 1);
        assert!(!sent.is_full() && !sent.is_exhausted());
        assert_eq!((sent.in_flight_bytes(), sent.reliable()), (0, 0));
    }

    #[test]
    fn packets_that_want_no_answer_take_no_room() {
        let mut sent = SentPackets::new(SENT_MAX);
        for _ in 0..3 * SENT_MAX {
            sent.push(SentPacket::default());
        }
        assert_eq!(sent.state_bytes(), SENT_INITIAL * size_of::<SentPacket>());
        assert!(sent.is_recent(sent.next_number() - 1) && !sent.is_recent(sent.next_number()));
    }
}
