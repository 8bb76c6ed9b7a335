//! How much may be in flight: a window that keeps the queue on the way short.
//!
//! The measure is a round trip without the waits at its ends: from the sending of a packet to its
//! arrival at the peer's host, and from the sending of the acknowledgement to its arrival at ours.
//! The queue in the network is the time of such a trip beyond the shortest one seen.
//!
//! ```text
//! trip   = base + queue              base: the shortest trip of late
//! target = TARGET_NS * sqrt(TARGET_RATE / rate)
//! window = window * (base + target) / (base + queue)       once a round trip, half of the way
//! ```
//!
//! All flows through one queue see the same delay, and the target falls with the rate, so they come
//! to the same rate with any round trips; with more flows the queue grows only with the root of
//! their number. The shortest trip of a round counts, so a burst after a pause does not. Loss is a
//! weak signal: up to a thirty-second of a round is bad luck, and only sent again.
//! `docs/decisions/009-congestion.md` has the reasons, and the results of the simulator.

use crate::pacing::Pacer;

/// The queueing delay at which a flow of [`TARGET_RATE`] stops growing: above what polling hosts
/// add by themselves, below what a switch's buffer holds.
const TARGET_NS: u64 = 100_000;

/// 10 Gbit/s, in bytes per second.
const TARGET_RATE: u64 = 1_250_000_000;

/// The target's square at one byte per second.
const TARGET_SQUARE: u64 = TARGET_NS * TARGET_NS * TARGET_RATE;

/// Faster than this the target falls no further: it would be less than a host's jitter.
const TARGET_NS_MIN: u64 = 30_000;

/// However slow the path, a packet may wait in its queue.
const TARGET_PACKETS: u64 = 1;

/// Hosts that share their cores with others take long for each trip. This small part of that time,
/// spent in the network, harms no flow; and such hosts do not measure the network exactly either.
const HOSTS_SHARE: u64 = 8;

/// Before anything is known about the path.
const WINDOW_BYTES_INITIAL: u64 = 128 << 10;

/// The most: 10 Gbit/s over 50 ms, with what each packet counts beyond its bytes.
pub(crate) const WINDOW_BYTES_MAX: u64 = 96 << 20;

/// Losses alone do not shrink it below this: a receiver without room for a call loses packets, too.
const WINDOW_BYTES_LOSSY: u64 = 64 << 10;

/// A small buffer of the receiver does not shrink it below one of the largest datagrams.
const WINDOW_BYTES_FLOOR: u64 = 64 << 10;

/// The receiver's buffer must hold what arrives in so long, while its process waits for its turn;
/// on a longer path, more than one buffer may be in flight.
const RECEIVER_PAUSE_NS: u64 = 5_000_000;

/// A flow that loses more than this part of so many packets, and more than bad luck's few, loses
/// them to congestion.
const LOSS_SHARE: u64 = 32;
const LOSS_PACKETS_MIN: u64 = 4;
const LOSS_SAMPLE_DATAGRAMS: u64 = 128;

/// How long a base counts: so many trips, and at least so long (a power of two). Then the window
/// is a quarter for so many trips, so that the queue empties and shows the base anew. All sessions
/// of a host do that at the same time, and those of others as chance has it.
const BASE_TRIPS: u64 = 128;
const BASE_NS_MIN: u64 = 1 << 27;
const BASE_NS_MAX: u64 = 1 << 40;
const DRAIN_TRIPS: u64 = 2;
const DRAIN_SHARE: u64 = 4;

/// After so long without anything in flight, what was learned about the path is old.
const IDLE_NS: u64 = 1_000_000_000;

/// So many samples in a row show a queue, and not a host that was busy.
const LATE_SAMPLES: u32 = 3;

/// An acknowledgement's measurements of the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trip {
    /// When it arrived.
    pub(crate) now_ns: u64,
    /// When its largest packet was sent.
    pub(crate) sent_ns: u64,
    /// How long the peer says that it let it wait.
    pub(crate) wait_ns: u64,
    /// How long the acknowledgement waited for us.
    pub(crate) late_ns: u64,
}

impl Trip {
    /// With the waits.
    pub(crate) fn whole_ns(&self) -> u64 {
        self.now_ns.saturating_sub(self.sent_ns).max(1)
    }

    /// The waits.
    fn hosts_ns(&self) -> u64 {
        self.wait_ns.saturating_add(self.late_ns)
    }

    /// Without.
    fn way_ns(&self) -> u64 {
        self.whole_ns().saturating_sub(self.wait_ns).max(1)
    }
}

/// The shortest trip of this and the last period.
#[derive(Debug)]
struct Base {
    this_ns: u64,
    last_ns: u64,
    since_ns: u64,
}

impl Base {
    fn trip_ns(&self) -> u64 {
        self.this_ns.min(self.last_ns)
    }

    fn next_period(&mut self, now_ns: u64) {
        *self = Self { this_ns: u64::MAX, last_ns: self.this_ns, since_ns: now_ns };
    }
}

/// The events since a round trip began.
#[derive(Debug)]
struct CongestionRound {
    began_ns: u64,
    way_min_ns: u64,
    hosts_min_ns: u64,
    acked_bytes: u64,
    /// More would have been sent if the window had been larger.
    is_limited: bool,
}

impl CongestionRound {
    fn new(began_ns: u64) -> Self {
        Self {
            began_ns,
            way_min_ns: u64::MAX,
            hosts_min_ns: u64::MAX,
            acked_bytes: 0,
            is_limited: false,
        }
    }
}

/// Recent losses, and the bytes that they are a part of.
#[derive(Debug, Default)]
struct Losses {
    all_bytes: u64,
    lost_bytes: u64,
    lost_packets: u64,
}

impl Losses {
    /// More than chance takes.
    fn are_many(&self) -> bool {
        self.lost_packets >= LOSS_PACKETS_MIN && self.lost_bytes * LOSS_SHARE > self.all_bytes
    }
}

/// The window of one session, and the pace at which it is used.
#[derive(Debug)]
pub(crate) struct Congestion {
    window_bytes: u64,
    receive_window_bytes: u64,
    datagram_bytes: u64,
    /// Doubling with each round trip, until a queue shows.
    is_starting: bool,
    /// Samples above the target, one after the other.
    late_samples: u32,
    /// The queue of the round before: one that stands is there in two.
    last_queue_ns: u64,
    /// Rounds in which the queue was short, one after the other.
    short_rounds: u64,
    base: Base,
    round: CongestionRound,
    losses: Losses,
    was_limited: bool,
    /// Until when the window is a quarter, and from when on the delay is not the drain's any more.
    drain_until_ns: u64,
    calm_from_ns: u64,
    is_draining: bool,
    pacer: Pacer,
    sent_ns: u64,
}

impl Congestion {
    /// For a receiver whose buffer holds `receive_window_bytes`, with the cost of a full datagram.
    pub(crate) fn new(now_ns: u64, receive_window_bytes: u64, datagram_bytes: u64) -> Self {
        let receive_window_bytes = receive_window_bytes.max(WINDOW_BYTES_FLOOR);
        Self {
            window_bytes: WINDOW_BYTES_INITIAL.max(2 * datagram_bytes).min(receive_window_bytes),
            receive_window_bytes,
            datagram_bytes,
            is_starting: true,
            late_samples: 0,
            last_queue_ns: 0,
            short_rounds: 0,
            base: Base { this_ns: u64::MAX, last_ns: u64::MAX, since_ns: now_ns },
            round: CongestionRound::new(now_ns),
            losses: Losses::default(),
            was_limited: false,
            drain_until_ns: 0,
            calm_from_ns: 0,
            is_draining: false,
            pacer: Pacer::new(now_ns),
            sent_ns: now_ns,
        }
    }

    /// Bytes that may be in flight.
    pub(crate) fn window_bytes(&self) -> u64 {
        if self.is_draining { self.window_bytes / DRAIN_SHARE } else { self.window_bytes }
    }

    /// Whether another packet may leave now, with so many bytes in flight. When not because of the
    /// pace alone, [`Self::resume_ns`] says when.
    pub(crate) fn may_send(&mut self, now_ns: u64, in_flight_bytes: u64) -> bool {
        if in_flight_bytes == 0 && now_ns.saturating_sub(self.sent_ns) >= IDLE_NS {
            self.restart(now_ns);
        }
        if in_flight_bytes > 0 && in_flight_bytes >= self.window_bytes() {
            self.round.is_limited = true;
            return false;
        }
        self.pacer.may_send(now_ns)
    }

    /// When the pace allows the next packet.
    pub(crate) fn resume_ns(&self) -> u64 {
        self.pacer.resume_ns()
    }

    /// A packet that costs `bytes` left.
    pub(crate) fn sent(&mut self, now_ns: u64, bytes: u64) {
        self.sent_ns = now_ns;
        self.pacer.sent(bytes);
    }

    /// A packet was taken for lost.
    pub(crate) fn lost(&mut self, bytes: u64) {
        self.losses.all_bytes += bytes;
        self.losses.lost_bytes += bytes;
        self.losses.lost_packets += 1;
    }

    /// An acknowledgement came: `bytes` arrived that were in flight, and the largest packet of them
    /// made a `trip`, if its arrival was news.
    pub(crate) fn acked(&mut self, trip: Option<&Trip>, bytes: u64) {
        self.round.acked_bytes += bytes;
        self.losses.all_bytes += bytes;
        let Some(trip) = trip else { return };
        let way_ns = trip.way_ns();
        self.base.this_ns = self.base.this_ns.min(way_ns);
        let round = &mut self.round;
        round.way_min_ns = round.way_min_ns.min(way_ns);
        round.hosts_min_ns = round.hosts_min_ns.min(trip.hosts_ns());
        if self.is_starting {
            self.start(way_ns, trip.hosts_ns(), bytes);
        }
        self.watch_base(trip);
        if trip.sent_ns >= self.round.began_ns {
            self.end_round(trip.now_ns);
        }
    }

    /// Doubles, until samples in a row show a queue. By then it is twice what fits.
    fn start(&mut self, way_ns: u64, hosts_ns: u64, bytes: u64) {
        let queue_ns = way_ns.saturating_sub(self.base.trip_ns());
        let target_ns = self.target_ns(rate(self.window_bytes, way_ns));
        let is_late = queue_ns > target_ns.max(hosts_ns / HOSTS_SHARE);
        self.late_samples = if is_late { self.late_samples + 1 } else { 0 };
        if self.late_samples >= LATE_SAMPLES {
            self.is_starting = false;
            self.set_window(self.window_bytes / 2);
        } else if self.was_limited || self.round.is_limited {
            self.set_window(self.window_bytes + bytes);
            self.pacer.set_window(self.window_bytes);
        }
    }

    fn end_round(&mut self, now_ns: u64) {
        let round = std::mem::replace(&mut self.round, CongestionRound::new(now_ns));
        self.was_limited = round.is_limited;
        let base_ns = self.base.trip_ns();
        // The base may be of a later time than the round's shortest trip, and longer: the way has
        // changed, and that trip says nothing of a queue.
        let queue_ns = round.way_min_ns.saturating_sub(base_ns);
        let elapsed_ns = now_ns.saturating_sub(round.began_ns).max(round.way_min_ns);
        let target_ns = self
            .target_ns(rate(round.acked_bytes, elapsed_ns))
            .max(round.hosts_min_ns / HOSTS_SHARE);
        if self.losses.are_many() {
            self.is_starting = false;
            let Losses { all_bytes, lost_bytes, .. } = self.losses;
            let less_bytes = scaled(self.window_bytes, lost_bytes, all_bytes);
            let least_bytes = (self.window_bytes / 2).max(WINDOW_BYTES_LOSSY);
            let less_bytes = less_bytes.min(self.window_bytes.saturating_sub(least_bytes));
            self.set_window(self.window_bytes - less_bytes);
            self.losses = Losses::default();
        } else if now_ns >= self.calm_from_ns && !self.is_starting {
            let standing_ns = queue_ns.min(self.last_queue_ns);
            self.adjust(standing_ns, target_ns, base_ns, round.is_limited);
        }
        self.last_queue_ns = queue_ns;
        if self.losses.all_bytes >= LOSS_SAMPLE_DATAGRAMS * self.datagram_bytes {
            self.losses = Losses::default();
        }
        self.pacer.set(now_ns, self.window_bytes, base_ns, self.datagram_bytes);
    }

    /// Goes half of the way to the window whose queue is the target.
    fn adjust(&mut self, queue_ns: u64, target_ns: u64, base_ns: u64, is_limited: bool) {
        let window_bytes = self.window_bytes;
        let trip_ns = base_ns + queue_ns;
        if queue_ns > target_ns {
            self.short_rounds = 0;
            let less_bytes = scaled(window_bytes, queue_ns - target_ns, 2 * trip_ns);
            self.set_window(window_bytes - less_bytes.min(window_bytes / 2));
            return;
        }
        if !is_limited {
            return;
        }
        // On a long path the target is a small part of the trip: steps grow while nothing queues.
        self.short_rounds = if queue_ns * 2 < target_ns { self.short_rounds + 1 } else { 0 };
        let step_bytes = scaled(window_bytes, target_ns - queue_ns, 2 * trip_ns);
        let more_bytes = (step_bytes * self.short_rounds.max(1)).min(window_bytes / 4);
        self.set_window(window_bytes + more_bytes.max(self.datagram_bytes / 16));
    }

    /// Makes sure that the base is seen now and then.
    fn watch_base(&mut self, trip: &Trip) {
        let (now_ns, trip_ns) = (trip.now_ns, trip.whole_ns());
        if self.is_draining {
            if now_ns >= self.drain_until_ns {
                self.is_draining = false;
                self.calm_from_ns = now_ns.saturating_add(trip_ns);
                self.base.next_period(now_ns);
            }
            return;
        }
        let trips_ns = BASE_TRIPS.saturating_mul(trip_ns).min(BASE_NS_MAX);
        let period_ns = BASE_NS_MIN.max(trips_ns.next_power_of_two());
        if now_ns / period_ns <= self.base.since_ns / period_ns {
            return;
        }
        if self.was_limited && !self.is_starting {
            self.is_draining = true;
            self.drain_until_ns = now_ns.saturating_add(DRAIN_TRIPS.saturating_mul(trip_ns));
            self.calm_from_ns = u64::MAX;
        } else {
            self.base.next_period(now_ns);
        }
    }

    /// Nothing was sent for long: the path may be another one.
    fn restart(&mut self, now_ns: u64) {
        self.sent_ns = now_ns;
        self.set_window(self.window_bytes.min(WINDOW_BYTES_INITIAL));
        self.is_starting = true;
        self.late_samples = 0;
        self.short_rounds = 0;
        self.was_limited = false;
        self.is_draining = false;
        self.round = CongestionRound::new(now_ns);
        self.pacer = Pacer::new(now_ns);
    }

    fn set_window(&mut self, window_bytes: u64) {
        let pauses = match self.base.trip_ns() {
            u64::MAX => 1,
            base_ns => (base_ns / RECEIVER_PAUSE_NS).max(1),
        };
        let most_bytes = self.receive_window_bytes.saturating_mul(pauses).min(WINDOW_BYTES_MAX);
        self.window_bytes = window_bytes.clamp(self.datagram_bytes / 2, most_bytes);
    }

    /// The queueing delay that a flow of `rate` bytes per second aims at.
    fn target_ns(&self, rate: u64) -> u64 {
        let few_packets_ns = scaled(TARGET_PACKETS * self.datagram_bytes, 1_000_000_000, rate);
        (TARGET_SQUARE / rate).isqrt().max(few_packets_ns).max(TARGET_NS_MIN)
    }
}

/// Bytes per second, at least one.
fn rate(bytes: u64, time_ns: u64) -> u64 {
    scaled(bytes, 1_000_000_000, time_ns).max(1)
}

/// `value * part / whole`.
fn scaled(value: u64, part: u64, whole: u64) -> u64 {
    (u128::from(value) * u128::from(part) / u128::from(whole.max(1))) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM_BYTES: u64 = 1472 + 256;

    /// A way without a queue up to `full_bytes` in flight, where each byte more adds to the trip.
    struct BottleneckPath {
        base_ns: u64,
        full_bytes: u64,
        now_ns: u64,
    }

    impl BottleneckPath {
        /// One round trip in which the window is used in full, acknowledged in eight pieces.
        fn round(&mut self, congestion: &mut Congestion) {
            let window_bytes = congestion.window_bytes();
            let queued_bytes = window_bytes.saturating_sub(self.full_bytes);
            let trip_ns = self.base_ns + scaled(self.base_ns, queued_bytes, self.full_bytes);
            let sent_ns = self.now_ns;
            assert!(!congestion.may_send(sent_ns, window_bytes));
            for piece in 1..=8 {
                self.now_ns = sent_ns + trip_ns + piece;
                let trip =
                    Trip { now_ns: self.now_ns, sent_ns: sent_ns + piece, wait_ns: 0, late_ns: 0 };
                congestion.acked(Some(&trip), window_bytes / 8);
            }
        }
    }

    #[test]
    fn finds_the_window_whose_queue_is_the_target() {
        let mut congestion = Congestion::new(0, 64 << 20, DATAGRAM_BYTES);
        let mut way = BottleneckPath { base_ns: 200_000, full_bytes: 250_000, now_ns: 0 };
        for _ in 0..400 {
            way.round(&mut congestion);
        }
        while congestion.is_draining || way.now_ns < congestion.calm_from_ns {
            way.round(&mut congestion);
        }
        way.round(&mut congestion);
        // 10 Gbit/s: 100 us of queue.
        let window_bytes = congestion.window_bytes();
        assert!((340_000..410_000).contains(&window_bytes), "{window_bytes}");
        // Half of the rate, and so a window that is too large by far.
        way.full_bytes /= 2;
        for _ in 0..60 {
            way.round(&mut congestion);
        }
        let window_bytes = congestion.window_bytes();
        assert!((180_000..250_000).contains(&window_bytes), "{window_bytes}");
    }

    #[test]
    fn a_target_is_the_root_of_the_rate() {
        let congestion = Congestion::new(0, 64 << 20, DATAGRAM_BYTES);
        assert_eq!(congestion.target_ns(TARGET_RATE), TARGET_NS);
        assert_eq!(congestion.target_ns(TARGET_RATE / 100), 10 * TARGET_NS);
        assert_eq!(congestion.target_ns(100 * TARGET_RATE), TARGET_NS_MIN);
        // A packet takes longer than that at so few bytes per second.
        assert_eq!(congestion.target_ns(1000), DATAGRAM_BYTES * 1_000_000);
        assert!(congestion.target_ns(1) > 0);
    }

    #[test]
    fn few_losses_are_forgiven_and_many_are_not() {
        let way = || BottleneckPath { base_ns: 200_000, full_bytes: 10 << 20, now_ns: 0 };
        let after = |losses: u64| {
            let mut congestion = Congestion::new(0, 64 << 20, DATAGRAM_BYTES);
            let mut way = way();
            for _ in 0..3 {
                way.round(&mut congestion);
            }
            for _ in 0..losses {
                congestion.lost(DATAGRAM_BYTES);
            }
            let before_bytes = congestion.window_bytes();
            way.round(&mut congestion);
            (before_bytes, congestion.window_bytes())
        };
        let (before_bytes, after_bytes) = after(3);
        assert!(after_bytes > before_bytes);
        let (before_bytes, after_bytes) = after(before_bytes / DATAGRAM_BYTES);
        assert!(after_bytes < before_bytes * 4 / 3, "of twice as much: {after_bytes}");
    }

    #[test]
    fn the_receivers_buffer_bounds_it_more_so_on_a_short_way() {
        for (base_ns, buffers) in [(100_000, 1), (4_999_999, 1), (50_000_000, 10)] {
            let mut congestion = Congestion::new(0, 1 << 20, DATAGRAM_BYTES);
            let mut way = BottleneckPath { base_ns, full_bytes: 1 << 40, now_ns: 0 };
            for _ in 0..30 {
                way.round(&mut congestion);
            }
            assert_eq!(congestion.window_bytes(), buffers << 20);
        }
        let congestion = Congestion::new(0, 0, DATAGRAM_BYTES);
        assert_eq!(congestion.window_bytes(), WINDOW_BYTES_FLOOR);
    }

    #[test]
    fn silence_makes_it_begin_anew() {
        let mut congestion = Congestion::new(0, 64 << 20, DATAGRAM_BYTES);
        let mut way = BottleneckPath { base_ns: 100_000, full_bytes: 1 << 20, now_ns: 0 };
        for _ in 0..10 {
            way.round(&mut congestion);
        }
        congestion.sent(way.now_ns, DATAGRAM_BYTES);
        assert!(congestion.window_bytes() > WINDOW_BYTES_INITIAL);
        assert!(congestion.may_send(way.now_ns + IDLE_NS - 1, 0));
        assert!(congestion.window_bytes() > WINDOW_BYTES_INITIAL);
        assert!(congestion.may_send(way.now_ns + IDLE_NS, 0));
        assert_eq!(congestion.window_bytes(), WINDOW_BYTES_INITIAL);
    }

    #[test]
    fn times_that_make_no_sense_do_no_harm() {
        let mut congestion = Congestion::new(0, 64 << 20, DATAGRAM_BYTES);
        for (now_ns, sent_ns, wait_ns) in [(5, 9, 0), (9, 5, u64::MAX), (0, 0, 0), (u64::MAX, 0, 0)]
        {
            let trip = Trip { now_ns, sent_ns, wait_ns, late_ns: wait_ns };
            congestion.acked(Some(&trip), DATAGRAM_BYTES);
            congestion.acked(None, DATAGRAM_BYTES);
            congestion.lost(DATAGRAM_BYTES);
            let _ = congestion.may_send(now_ns, 1);
            assert!(congestion.window_bytes() > 0);
        }
    }

    /// Hosts that stand still for long: packets of one round are acknowledged over three periods of
    /// the base, and the base is not that of the round's first trip any more.
    #[test]
    fn a_round_may_outlast_the_base() {
        let mut congestion = Congestion::new(0, 4 << 20, DATAGRAM_BYTES);
        let mut acked = |now_ns: u64, sent_ns: u64, way_ns: u64| {
            let wait_ns = now_ns - sent_ns - way_ns;
            let trip = Trip { now_ns, sent_ns, wait_ns, late_ns: 0 };
            congestion.acked(Some(&trip), DATAGRAM_BYTES);
        };
        let began_ns = 1_000_000;
        acked(began_ns, 900_000, 20_000);
        acked(BASE_NS_MAX + 1, began_ns - 1, 10_000);
        acked(2 * BASE_NS_MAX + 1, began_ns - 1, 50_000);
        acked(2 * BASE_NS_MAX + 200_000, 2 * BASE_NS_MAX, 60_000);
        assert_eq!(congestion.last_queue_ns, 0, "the round's shortest trip was before the base");
    }
}
