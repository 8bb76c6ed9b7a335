//! Round trips: smoothed as TCP does, and the time-outs that follow from them.

use crate::ack::ACK_DELAY_NS;

/// Before the first sample. Both ends poll, so a packet that is not acknowledged for so long is
/// most probably lost.
const PROBE_INITIAL_NS: u64 = 20_000_000;

/// The shortest probe time-out: below it, a scheduler's time slice looks like a loss.
const PROBE_MIN_NS: u64 = 4_000_000;

/// The longest one on a path that is faster than this: a restarted peer must be noticed within
/// 50 ms, so two probes fit.
const PROBE_MAX_NS: u64 = 25_000_000;

/// The measured round trip of a session.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    has_sample: bool,
    latest_ns: u64,
    smoothed_ns: u64,
    variation_ns: u64,
}

impl RoundTrip {
    /// A packet was acknowledged `elapsed_ns` after it was sent, of which the peer says that it let
    /// it wait for `delay_ns`. A peer that lies about it slows down or floods only itself.
    pub(crate) fn sample(&mut self, elapsed_ns: u64, delay_ns: u64) {
        let sample_ns = elapsed_ns.saturating_sub(delay_ns).max(1);
        self.latest_ns = sample_ns;
        if !self.has_sample {
            self.has_sample = true;
            self.smoothed_ns = sample_ns;
            self.variation_ns = sample_ns / 2;
            return;
        }
        let error_ns = self.smoothed_ns.abs_diff(sample_ns);
        self.variation_ns = (3 * self.variation_ns + error_ns) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + sample_ns) / 8;
    }

    /// 0 before the first sample.
    pub(crate) fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// How long after sending a packet is lost when a later one was acknowledged: a round trip and
    /// an eighth, but no less than a batch of the other side takes.
    pub(crate) fn loss_delay_ns(&self) -> u64 {
        let trip_ns = self.smoothed_ns.max(self.latest_ns);
        (trip_ns + trip_ns / 8).max(ACK_DELAY_NS)
    }

    /// How long a cast is sent again: two round trips, with all that they may have to wait.
    pub(crate) fn cast_life_ns(&self) -> u64 {
        2 * self.probe_timeout_ns(0)
    }

    /// How long after the last packet to ask, when nothing was acknowledged, having asked
    /// `attempts` times.
    pub(crate) fn probe_timeout_ns(&self, attempts: u32) -> u64 {
        let base_ns = if self.has_sample {
            (self.smoothed_ns + 4 * self.variation_ns + ACK_DELAY_NS).max(PROBE_MIN_NS)
        } else {
            PROBE_INITIAL_NS
        };
        (base_ns << attempts.min(4)).min(PROBE_MAX_NS.max(base_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settles_on_the_round_trip_without_the_peers_delay() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.probe_timeout_ns(0), PROBE_INITIAL_NS);
        for _ in 0..100 {
            trip.sample(150_000, 100_000);
        }
        assert!((49_000..=51_000).contains(&trip.smoothed_ns()));
        assert_eq!(trip.probe_timeout_ns(0), PROBE_MIN_NS);
        assert_eq!(trip.probe_timeout_ns(9), PROBE_MAX_NS);
    }

    #[test]
    fn a_path_slower_than_the_cap_is_not_probed_all_the_time() {
        let mut trip = RoundTrip::default();
        for _ in 0..100 {
            trip.sample(200_000_000, 0);
        }
        assert!(trip.probe_timeout_ns(0) > 200_000_000);
    }
}
