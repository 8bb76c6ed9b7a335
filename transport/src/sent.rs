//! The sending side of packet numbers: the contents of each packet, until it is acknowledged or
//! lost.
//!
//! Only packets that want an acknowledgement are noted. A peer decides how many others there are
//! (acknowledgements of its own packets), and how often it names their numbers.
//!
//! Most packets carry one fragment, which is noted with them. The further contents of the others
//! are behind one another in a queue, which both ends of the ring move along:
//!
//! ```text
//! ring   [7: a, 2 more at 40][8: b][11][12: c, 1 more at 42]
//! more                 40: [d][e]           42: [f]
//! ```

use std::collections::VecDeque;

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

/// The ring's size at first, and after a rest. A session that needs more gets so many, then twice
/// as many each time.
const SENT_INITIAL: usize = 16;
const SENT_BUSY: usize = 64;

/// A packet is lost when one sent so many later arrived: more than a network reorders.
const REORDER_PACKETS: u64 = 8;

/// After so many packets that want no acknowledgement, one is asked for, while something flies: the
/// ping that was asked with before may be lost, and nothing else would ever free its number.
const UNASKED_MAX: u64 = 4096;

/// Packets that probes gave up behind a ping that still flies. More of them, and the ping is given
/// up: it is older than 32 probes, and an acknowledgement would pass by all of them each time.
const GIVEN_UP_MAX: usize = 64;

/// The cost of a packet beyond its bytes (headers below us, bookkeeping of the kernel). It also
/// keeps tiny packets from filling the ring within the window.
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
    /// Its cost in the window; 0 for a packet that wants no acknowledgement.
    pub(crate) cost_bytes: u64,
    /// The largest number in the acknowledgement that it carries, plus one; 0 without.
    pub(crate) acks_below: u64,
    /// Neither acknowledged nor lost, and wants an acknowledgement.
    pub(crate) in_flight: bool,
    /// Its contents must arrive: fragments, credit, or the first ping.
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

/// The record of a packet: a session that uses its window has thousands of these.
#[derive(Clone, Copy, Debug, Default)]
struct PacketRecord {
    sent_ns: u64,
    acks_below: u64,
    first: FragmentRef,
    /// The number of its second fragment among all that were ever behind a first one, its low half.
    more_at: u32,
    /// The largest datagram has fewer bytes than 2^16; with what it counts beyond, a few more.
    cost_bytes: u32,
    /// Of its number the lowest bits: no more than [`SENT_MAX`] numbers are open.
    number_low: u16,
    fragment_count: u8,
    in_flight: bool,
    is_reliable: bool,
    has_credit: bool,
    has_ping: bool,
}

/// The packets of one session.
#[derive(Debug)]
pub(crate) struct SentPackets {
    /// By number. The first one flies.
    ring: VecDeque<PacketRecord>,
    /// The fragments behind the first of each packet in the ring; the low half of the number
    /// of the oldest of them.
    more: VecDeque<FragmentRef>,
    more_first: u32,
    /// The oldest number that is in flight, `next` without; and the next to use.
    first: u64,
    next: u64,
    /// One above the newest number that wanted an acknowledgement.
    asked_below: u64,
    /// No packet below whose content must arrive flies.
    reliable_from: u64,
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
            ring: VecDeque::with_capacity(SENT_INITIAL),
            more: VecDeque::new(),
            more_first: 0,
            first: 0,
            next: 0,
            asked_below: 0,
            reliable_from: 0,
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

    /// Whether the next packet, of any kind, must ask for an acknowledgement.
    pub(crate) fn is_unasked(&self) -> bool {
        self.first < self.next && self.next - self.asked_below >= UNASKED_MAX
    }

    /// Whether a packet of this number was sent lately.
    pub(crate) fn is_recent(&self, number: u64) -> bool {
        number < self.next && self.next - number <= RECENT
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.ring.capacity() * size_of::<PacketRecord>()
            + self.more.capacity() * size_of::<FragmentRef>()
    }

    /// Nothing was sent for long: lets go of what only a burst needed.
    pub(crate) fn rest(&mut self) {
        if self.ring.is_empty() && self.ring.capacity() > SENT_INITIAL {
            self.ring = VecDeque::with_capacity(SENT_INITIAL);
            self.more = VecDeque::new();
        }
    }

    /// Notes the packet that got the next number, if it wants an acknowledgement. There must be
    /// room.
    pub(crate) fn push(&mut self, packet: SentPacket) {
        assert!(!self.is_exhausted(), "a packet was sent without room to remember it");
        let number = self.next;
        self.next += 1;
        if packet.in_flight {
            if self.ring.len() == self.ring.capacity() {
                self.grow();
            }
            self.in_flight_bytes += packet.cost_bytes;
            self.reliable += usize::from(packet.is_reliable);
            self.asked_below = self.next;
            let noted = self.note(number, &packet);
            self.ring.push_back(noted);
        }
        self.trim();
    }

    fn note(&mut self, number: u64, packet: &SentPacket) -> PacketRecord {
        let more_at = self.more_first.wrapping_add(self.more.len() as u32);
        self.more.extend(packet.fragments().iter().skip(1));
        PacketRecord {
            sent_ns: packet.sent_ns,
            acks_below: packet.acks_below,
            first: packet.fragments[0],
            more_at,
            cost_bytes: u32::try_from(packet.cost_bytes).expect("of one datagram"),
            number_low: number as u16,
            fragment_count: packet.fragment_count,
            in_flight: packet.in_flight,
            is_reliable: packet.is_reliable,
            has_credit: packet.has_credit,
            has_ping: packet.has_ping,
        }
    }

    /// The packet of a record.
    fn packet(&self, noted: &PacketRecord) -> SentPacket {
        let mut packet = SentPacket {
            sent_ns: noted.sent_ns,
            cost_bytes: noted.cost_bytes.into(),
            acks_below: noted.acks_below,
            in_flight: noted.in_flight,
            is_reliable: noted.is_reliable,
            has_credit: noted.has_credit,
            has_ping: noted.has_ping,
            fragment_count: noted.fragment_count,
            ..SentPacket::default()
        };
        packet.fragments[0] = noted.first;
        let from = noted.more_at.wrapping_sub(self.more_first) as usize;
        for index in 1..usize::from(noted.fragment_count) {
            packet.fragments[index] = self.more[from + index - 1];
        }
        packet
    }

    /// Ends the flight of the packet at this place, if it flies, and tells what it was.
    fn land_at(&mut self, place: usize) -> Option<SentPacket> {
        let noted = self.ring.get_mut(place)?;
        if !std::mem::replace(&mut noted.in_flight, false) {
            return None;
        }
        let noted = *noted;
        let packet = self.packet(&noted);
        self.in_flight_bytes -= packet.cost_bytes;
        self.reliable -= usize::from(packet.is_reliable);
        Some(packet)
    }

    /// The place of the first packet with this number or a greater one.
    pub(crate) fn place_of(&self, number: u64) -> usize {
        let above = self.next.saturating_sub(number) as usize;
        let below = number.saturating_sub(self.first) as usize;
        // Numbers are all different, so the place is between these. They are one, unless there were
        // packets that wanted no acknowledgement.
        let (mut from, mut to) =
            (self.ring.len().saturating_sub(above), self.ring.len().min(below));
        while from < to {
            let middle = from.midpoint(to);
            if self.number(&self.ring[middle]) < number {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        from
    }

    /// Ends the flight of the next packet below `end` that flies, from `*place` on; tells its
    /// number and what it was. `looked_at` counts the packets that were looked at.
    pub(crate) fn land_next(
        &mut self,
        place: &mut usize,
        end: u64,
        looked_at: &mut u64,
    ) -> Option<(u64, SentPacket)> {
        loop {
            let number = self.number(self.ring.get(*place)?);
            if number >= end {
                return None;
            }
            *looked_at += 1;
            *place += 1;
            if let Some(packet) = self.land_at(*place - 1) {
                return Some((number, packet));
            }
        }
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
        for place in 0..self.ring.len() {
            let noted = &self.ring[place];
            let number = self.number(noted);
            if number >= self.acked_below {
                break;
            }
            if !noted.in_flight {
                continue;
            }
            let due_ns = noted.sent_ns + delay_ns;
            if self.acked_below - 1 - number >= REORDER_PACKETS || due_ns <= now_ns {
                let packet = self.land_at(place).expect("it was in flight");
                self.trim();
                return Ok((number, packet));
            }
            look_again_ns = look_again_ns.min(due_ns);
        }
        Err(look_again_ns)
    }

    /// Ends the flight of the oldest packet whose content must arrive.
    pub(crate) fn land_oldest_reliable(&mut self) -> Option<SentPacket> {
        let flies = |place: &usize| {
            let noted = &self.ring[*place];
            noted.in_flight && noted.is_reliable
        };
        let place = (self.place_of(self.reliable_from)..self.ring.len()).find(flies)?;
        self.reliable_from = self.number(&self.ring[place]) + 1;
        let packet = self.land_at(place);
        self.trim();
        while self.place_of(self.reliable_from) > GIVEN_UP_MAX {
            // A ping: any other packet that was sent before is not in flight.
            self.land_at(0);
            self.trim();
        }
        packet
    }

    fn number(&self, noted: &PacketRecord) -> u64 {
        self.first + u64::from(noted.number_low.wrapping_sub(self.first as u16))
    }

    fn trim(&mut self) {
        while let Some(noted) = self.ring.front() {
            if noted.in_flight {
                self.first = self.number(noted);
                return;
            }
            let more = usize::from(noted.fragment_count).saturating_sub(1);
            self.more.drain(..more);
            self.more_first = self.more_first.wrapping_add(more as u32);
            self.ring.pop_front();
        }
        self.first = self.next;
    }

    fn grow(&mut self) {
        let len = (self.ring.capacity() * 2).clamp(SENT_BUSY, SENT_MAX);
        self.ring.reserve_exact(len - self.ring.len());
        // Two fragments in each packet, as long as most carry a body.
        self.more.reserve_exact(len - self.more.len().min(len));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SentPackets {
        fn land(&mut self, number: u64) -> Option<SentPacket> {
            let mut place = self.place_of(number);
            self.land_next(&mut place, number + 1, &mut 0).map(|(_, packet)| packet)
        }
    }

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
        let landed = usize::from(sent.land(9).is_some());
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
        assert_eq!(sent.state_bytes(), SENT_INITIAL * size_of::<PacketRecord>());
        assert!(sent.is_recent(sent.next_number() - 1) && !sent.is_recent(sent.next_number()));
    }

    fn with_fragments(number: u64, count: u64) -> SentPacket {
        let mut packet = packet(number);
        for fragment in 0..count {
            let id_low = (number * 100 + fragment) as u32;
            packet.add(FragmentRef { key: number as u16, fragment: fragment as u16, id_low });
        }
        packet
    }

    #[test]
    fn every_fragment_is_told_when_packets_land_in_any_order() {
        let mut sent = SentPackets::new(SENT_MAX);
        // The numbers of those behind first ones go round meanwhile.
        sent.more_first = u32::MAX - 20;
        let count_of = |number: u64| number * 5 % (PACKET_FRAGMENTS_MAX as u64 + 1);
        let mut random = random::Random::new(3);
        let mut flying = Vec::new();
        for number in 0..2000 {
            sent.push(with_fragments(number, count_of(number)));
            flying.push(number);
            while flying.len() as u64 > random.draw() % 60 {
                let at = random.draw() as usize % flying.len();
                let number = flying.swap_remove(at);
                let landed = sent.land(number).expect("it flies");
                let expected = with_fragments(number, count_of(number));
                assert_eq!((landed.fragments(), landed.sent_ns), (expected.fragments(), number));
                sent.acknowledged(number);
            }
        }
        for number in flying {
            assert!(sent.land(number).is_some());
        }
        sent.acknowledged(1999);
        assert_eq!((sent.more.len(), sent.in_flight_bytes()), (0, 0));
    }

    #[test]
    fn a_rest_gives_back_what_a_burst_took_and_forgets_nothing() {
        let mut sent = SentPackets::new(SENT_MAX);
        for number in 0..500 {
            sent.push(with_fragments(number, 3));
        }
        let most_bytes = sent.state_bytes();
        sent.rest();
        assert_eq!(sent.state_bytes(), most_bytes, "all of them fly");
        for number in 0..500 {
            assert!(sent.land(number).is_some());
        }
        sent.acknowledged(499);
        sent.rest();
        assert_eq!(sent.state_bytes(), SENT_INITIAL * size_of::<PacketRecord>());
        assert_eq!(sent.next_number(), 500);
        sent.push(with_fragments(500, 8));
        assert_eq!(sent.land(500).map(|it| it.fragments().len()), Some(8));
    }
}
