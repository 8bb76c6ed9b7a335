//! The pace at which a window is used: spread over the round trip instead of all at once, so that
//! the acknowledgements that a pause held back do not become a queue.

/// A quarter faster than the window over the trip, so that the window stays what limits.
const PACE_NUMERATOR: u64 = 5;
const PACE_DENOMINATOR: u64 = 4;

/// The most that may leave at once: a sixteenth of the window, but no more than of so long, within
/// which even a busy host comes round again.
const BURST_WINDOW_SHARE: u64 = 16;
const BURST_NS: u64 = 1_000_000;

/// And never less than so many datagrams: one system call for more than one of them.
const BURST_DATAGRAMS: u64 = 2;

/// Nor than what the pace brings in so long, up to a larger share: no host comes round sooner, and
/// on a way that takes a few of these, such as one through the same machine, a sixteenth of the
/// window is used up in every round while the way waits for the next one.
const ROUND_NS: u64 = 2_000;
const ROUND_WINDOW_SHARE: u64 = 4;

/// A bucket of bytes that fills with time.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// Bytes in a trip; 0 of them before the first is known: then there is no pace.
    window_bytes: u64,
    trip_ns: u64,
    burst_bytes: i64,
    tokens_bytes: i64,
    filled_ns: u64,
}

impl Pacer {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { window_bytes: 0, trip_ns: 0, burst_bytes: 0, tokens_bytes: 0, filled_ns: now_ns }
    }

    /// From now on `window_bytes` in `trip_ns`.
    pub(crate) fn set(
        &mut self,
        now_ns: u64,
        window_bytes: u64,
        trip_ns: u64,
        datagram_bytes: u64,
    ) {
        self.fill(now_ns);
        let is_first = self.window_bytes == 0;
        self.window_bytes = window_bytes.max(1);
        self.trip_ns = trip_ns.max(1);
        let round_bytes = self.bytes_in(ROUND_NS).min(window_bytes / ROUND_WINDOW_SHARE);
        let burst_bytes = (window_bytes / BURST_WINDOW_SHARE)
            .min(self.bytes_in(BURST_NS))
            .max(round_bytes)
            .max(BURST_DATAGRAMS * datagram_bytes);
        self.burst_bytes = burst_bytes as i64;
        if is_first {
            self.tokens_bytes = self.burst_bytes;
        }
        self.tokens_bytes = self.tokens_bytes.clamp(-self.burst_bytes, self.burst_bytes);
    }

    /// The window grew within a trip.
    pub(crate) fn set_window(&mut self, window_bytes: u64) {
        if self.window_bytes > 0 {
            self.window_bytes = window_bytes.max(1);
        }
    }

    pub(crate) fn may_send(&mut self, now_ns: u64) -> bool {
        self.fill(now_ns);
        self.window_bytes == 0 || self.tokens_bytes > 0
    }

    pub(crate) fn sent(&mut self, bytes: u64) {
        if self.window_bytes > 0 {
            self.tokens_bytes -= bytes as i64;
        }
    }

    /// When there is something in the bucket again.
    pub(crate) fn resume_ns(&self) -> u64 {
        if self.window_bytes == 0 || self.tokens_bytes > 0 {
            return self.filled_ns;
        }
        self.filled_ns + self.time_for(self.tokens_bytes.unsigned_abs() + 1)
    }

    fn fill(&mut self, now_ns: u64) {
        if self.window_bytes == 0 {
            self.filled_ns = now_ns;
            return;
        }
        let more_bytes = self.bytes_in(now_ns.saturating_sub(self.filled_ns));
        self.tokens_bytes += more_bytes as i64;
        if self.tokens_bytes >= self.burst_bytes {
            self.tokens_bytes = self.burst_bytes;
            self.filled_ns = now_ns;
        } else if more_bytes > 0 {
            // Time that was worth less than a byte goes on counting.
            self.filled_ns = now_ns.min(self.filled_ns + self.time_for(more_bytes));
        }
    }

    /// Rounded up.
    fn time_for(&self, bytes: u64) -> u64 {
        let pace = u128::from(self.window_bytes) * u128::from(PACE_NUMERATOR);
        let time = u128::from(bytes) * u128::from(self.trip_ns) * u128::from(PACE_DENOMINATOR);
        time.div_ceil(pace) as u64
    }

    fn bytes_in(&self, time_ns: u64) -> u64 {
        let bytes =
            u128::from(self.window_bytes) * u128::from(PACE_NUMERATOR) * u128::from(time_ns)
                / (u128::from(self.trip_ns) * u128::from(PACE_DENOMINATOR));
        bytes.min(1 << 40) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_and_a_quarter_leave_in_a_trip() {
        let mut pacer = Pacer::new(0);
        assert!(pacer.may_send(0), "no pace before the first trip");
        pacer.set(0, 1_000_000, 1_000_000, 1000);
        let (mut now_ns, mut sent_bytes) = (0, 0);
        while now_ns < 10_000_000 {
            if pacer.may_send(now_ns) {
                pacer.sent(1000);
                sent_bytes += 1000;
            } else {
                assert!(pacer.resume_ns() > now_ns);
                now_ns = pacer.resume_ns();
            }
        }
        assert!((12_400_000..12_700_000).contains(&sent_bytes), "{sent_bytes}");
    }

    #[test]
    fn looking_often_loses_no_time() {
        let mut pacer = Pacer::new(0);
        // A byte and a quarter in each microsecond.
        pacer.set(0, 1000, 1_000_000, 100);
        let mut sent_bytes = 0;
        for now_ns in (0..100_000_000).step_by(700) {
            if pacer.may_send(now_ns) {
                pacer.sent(100);
                sent_bytes += 100;
            }
        }
        assert!((124_000..126_000).contains(&sent_bytes), "{sent_bytes}");
    }

    #[test]
    fn a_burst_is_worth_a_round_of_the_host_on_a_short_way() {
        let burst = |trip_ns: u64| {
            let mut pacer = Pacer::new(0);
            pacer.set(0, 1_600_000, trip_ns, 1000);
            let datagrams = (0..).take_while(|_| {
                let may_send = pacer.may_send(1_000_000_000);
                pacer.sent(1000);
                may_send
            });
            datagrams.count()
        };
        assert_eq!([1_000_000, 40_000, 20_000, 8_000, 100].map(burst), [100, 100, 200, 400, 400]);
    }

    #[test]
    fn a_pause_saves_up_one_burst_only() {
        let mut pacer = Pacer::new(0);
        pacer.set(0, 1_600_000, 1_000_000, 1000);
        let mut sent = 0;
        while pacer.may_send(1_000_000_000) {
            pacer.sent(1000);
            sent += 1;
        }
        assert_eq!(sent, 100);
    }
}
