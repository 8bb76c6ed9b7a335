//! Whether the way to the peer has become too narrow for the session's datagrams (RFC 8899, black
//! hole detection).

use crate::sent::{PACKET_COST_BYTES, SentPacket};
use crate::wire::DATAGRAM_BYTES_MIN;

/// So many times in a row a large packet was lost while a smaller one, sent later, arrived. Each
/// time counts only packets that were sent after the time before, so that a burst of losses is one
/// time. With a third of all packets lost by chance, eight times in a row are one case in 6500.
const ROUNDS_MAX: u32 = 8;

/// Counts.
#[derive(Debug, Default)]
pub(super) struct Narrow {
    rounds: u32,
    /// The shortest large packet that was lost in these rounds. Datagrams have many lengths: a
    /// shorter packet that arrives says nothing about a longer one, and a longer one that is lost
    /// nothing about a shorter one.
    lost_bytes: u64,
    /// Large packets below this number belong to the rounds before.
    next_number: u64,
}

impl Narrow {
    /// Whether a packet is larger than every way has to take.
    fn is_large(packet: &SentPacket) -> bool {
        packet.cost_bytes > DATAGRAM_BYTES_MIN as u64 + PACKET_COST_BYTES
    }

    /// A packet arrived.
    pub(super) fn arrived(&mut self, packet: &SentPacket) {
        if packet.cost_bytes >= self.lost_bytes && Self::is_large(packet) {
            (self.rounds, self.lost_bytes) = (0, 0);
        }
    }

    /// Packet `number` was overtaken by one that arrived; `next_number` is the next to be sent.
    pub(super) fn lost(&mut self, number: u64, packet: &SentPacket, next_number: u64) {
        if Self::is_large(packet) && number >= self.next_number {
            if self.rounds == 0 || packet.cost_bytes < self.lost_bytes {
                (self.rounds, self.lost_bytes) = (0, packet.cost_bytes);
            }
            self.rounds += 1;
            self.next_number = next_number;
        }
    }

    /// The peer says that it refuses packets, large ones first: the packets sent so far say nothing
    /// about sizes.
    pub(super) fn excuse(&mut self, next_number: u64) {
        (self.rounds, self.lost_bytes, self.next_number) = (0, 0, next_number);
    }

    /// Large packets get lost, perhaps for their size: smaller ones should be sent beside them.
    pub(super) fn is_suspected(&self) -> bool {
        self.rounds > 0
    }

    /// They do not arrive any more.
    pub(super) fn is_certain(&self) -> bool {
        self.rounds >= ROUNDS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(bytes: usize) -> SentPacket {
        SentPacket { cost_bytes: bytes as u64 + PACKET_COST_BYTES, ..SentPacket::default() }
    }

    #[test]
    fn losses_of_one_burst_are_one_round_and_an_arrival_ends_them() {
        let mut narrow = Narrow::default();
        for number in 0..100 {
            narrow.lost(number, &packet(1472), 100);
        }
        assert_eq!(narrow.rounds, 1);
        for round in 1..ROUNDS_MAX.into() {
            assert!(narrow.is_suspected() && !narrow.is_certain());
            narrow.lost(100 * round, &packet(1472), 100 * (round + 1));
        }
        assert!(narrow.is_certain());
        narrow.arrived(&packet(1472));
        assert!(!narrow.is_suspected());
    }

    #[test]
    fn an_arrival_of_a_shorter_packet_says_nothing_of_a_longer_one() {
        let mut narrow = Narrow::default();
        for round in 0..ROUNDS_MAX.into() {
            narrow.lost(100 * round, &packet(1472), 100 * (round + 1));
            narrow.arrived(&packet(1387));
        }
        assert!(narrow.is_certain());
        narrow.arrived(&packet(1472));
        narrow.lost(1000, &packet(1387), 1001);
        narrow.arrived(&packet(1387));
        assert!(!narrow.is_suspected());
    }

    #[test]
    fn a_loss_of_a_shorter_packet_begins_anew() {
        let mut narrow = Narrow::default();
        for round in 0..20 {
            let length = if round % 2 == 0 { 8972 - round as usize } else { 1472 };
            narrow.lost(10 * round, &packet(length), 10 * (round + 1));
            assert!(!narrow.is_certain() || round > 7, "round {round}");
            narrow.arrived(&packet(1300));
        }
        assert!(narrow.is_certain(), "all from 1472 on were lost");
        let mut narrow = Narrow::default();
        for round in 0..20 {
            narrow.lost(10 * round, &packet(8972 - round as usize), 10 * (round + 1));
            assert_eq!(narrow.rounds, 1, "each is shorter than all before");
        }
    }

    #[test]
    fn sizes_that_every_path_passes_say_nothing() {
        let mut narrow = Narrow::default();
        narrow.lost(7, &packet(1472), 8);
        narrow.lost(8, &packet(1200), 9);
        narrow.arrived(&packet(1200));
        assert_eq!(narrow.rounds, 1);
    }
}
