//! A link in one direction.

/// A link that sends packets in the order of arrival. It is free at a part of a nanosecond, so a
/// queue of many packets takes its bits' time and no nanosecond more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SwitchLink {
    /// The whole nanoseconds of the time at which it is free.
    free_at_ns: u64,
    /// The bits that it sends after that, of which a nanosecond has `gbit`.
    rest_bits: u64,
    /// All bits that it has taken.
    pub(super) bits: u64,
    /// The most bits that it had to send at a time.
    pub(super) queued_bits_max: u64,
}

impl SwitchLink {
    /// Takes a packet now, and says when its last bit is sent, rounded up.
    #[inline]
    pub(super) fn send(&mut self, now_ns: u64, bits: u64, gbit: u64) -> u64 {
        // A packet that comes within the nanosecond of the end follows at once: its own time is
        // rounded up.
        if now_ns > self.free_at_whole_ns() {
            (self.free_at_ns, self.rest_bits) = (now_ns, 0);
        }
        let beyond_bits = self.rest_bits + bits;
        self.free_at_ns += beyond_bits / gbit;
        self.rest_bits = beyond_bits % gbit;
        self.bits += bits;
        let queued_ns = self.free_at_ns.saturating_sub(now_ns);
        self.queued_bits_max = self.queued_bits_max.max(queued_ns * gbit + self.rest_bits);
        self.free_at_whole_ns()
    }

    /// The first whole nanosecond at which it is free.
    #[inline]
    pub(super) fn free_at_whole_ns(&self) -> u64 {
        self.free_at_ns + u64::from(self.rest_bits > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_takes_the_time_of_its_bits() {
        let mut link = SwitchLink::default();
        // 10 bits at 3 in a nanosecond: 3 1/3 ns each, and 1000 of them 3333 1/3 ns.
        let ends: Vec<u64> = (0..1000).map(|_| link.send(0, 10, 3)).collect();
        assert_eq!((ends[0], ends[1], ends[2], ends[999]), (4, 7, 10, 3334));
        assert_eq!((link.bits, link.queued_bits_max), (10_000, 10_000));
        // A packet that the rounded end of another packet brings follows it without a gap.
        let mut chained = SwitchLink::default();
        let last = (0..1000).fold(0, |now_ns, _| chained.send(now_ns, 10, 3));
        assert_eq!(last, 3334);
        assert!(chained.queued_bits_max <= 12, "{chained:?}");
        // An idle link begins when the packet comes.
        assert_eq!(link.send(5000, 3, 3), 5001);
    }
}
