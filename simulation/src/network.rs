//! The simulated network: datagrams with delay, loss, duplication, reordering, corruption and
//! partitions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{IpAddr, SocketAddr};

use random::Random;

/// How bad the network is, in parts of a million datagrams, and how slow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// Lost.
    pub(super) loss_ppm: u64,
    /// Delivered twice.
    pub(super) duplicate_ppm: u64,
    /// Delivered with flipped bits.
    pub(super) corrupt_ppm: u64,
    /// Held back for up to [`Self::late_ns`], so that others overtake them.
    pub(super) late_ppm: u64,
    /// The longest that a late one takes.
    pub(super) late_ns: u64,
    /// The shortest way.
    pub(super) delay_ns: u64,
    /// The rate of the link to each host; 0 for more than the hosts ever send. A datagram that
    /// finds [`QUEUE_BYTES`] before it is lost.
    pub(super) bytes_per_s: u64,
    /// Longer datagrams are lost, and the sender is not told.
    pub(super) path_bytes_max: usize,
}

/// The longest queue before a slow link: that of a very shallow switch, since the simulated
/// requests are few.
const QUEUE_BYTES: u64 = 64 << 10;

impl Weather {
    /// Nothing happens to a datagram.
    pub(super) const FINE: Self = Self {
        loss_ppm: 0,
        duplicate_ppm: 0,
        corrupt_ppm: 0,
        late_ppm: 0,
        late_ns: 0,
        delay_ns: 20_000,
        bytes_per_s: 0,
        path_bytes_max: usize::MAX,
    };

    /// Some weather, by chance.
    pub(super) fn random(random: &mut Random) -> Self {
        let scale = [0, 100, 2_000, 20_000, 100_000];
        let mut pick = || scale[usize::try_from(random.below(5)).expect("small")];
        let (loss_ppm, duplicate_ppm, corrupt_ppm, late_ppm) = (pick(), pick(), pick(), pick());
        let late_ns = random.between(100_000, 300_000_000);
        let rates = [0, 0, 125_000_000, 12_500_000, 2_500_000];
        let widths = [usize::MAX, usize::MAX, 8_900, 1_472, 1_400, 1_200];
        Self {
            loss_ppm,
            duplicate_ppm,
            corrupt_ppm,
            late_ppm,
            late_ns,
            delay_ns: random.between(5_000, 200_000),
            bytes_per_s: rates[usize::try_from(random.below(5)).expect("small")],
            path_bytes_max: widths[usize::try_from(random.below(6)).expect("small")],
        }
    }
}

/// The network's counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkCounts {
    /// Datagrams sent.
    pub(super) sent: u64,
    /// Lost by chance.
    pub(super) lost: u64,
    /// Lost in front of a slow link.
    pub(super) overflowed: u64,
    /// Too long for the way.
    pub(super) too_long: u64,
    /// Lost to a partition or a host that is off.
    pub(super) cut: u64,
    /// Doubled.
    pub(super) doubled: u64,
    /// Corrupted.
    pub(super) corrupted: u64,
    /// Overtaken by a later one.
    pub(super) late: u64,
    /// Frames that were cast beside the disk.
    pub(super) frames_sent: u64,
    /// Those that came; each was whole, as sent and in its order.
    pub(super) frames_received: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flying {
    at_ns: u64,
    order: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SimNetwork {
    random: Random,
    /// The present weather.
    pub(super) weather: Weather,
    /// Hosts that are cut off in both directions.
    pub(super) cut_off: Vec<IpAddr>,
    /// The counts so far.
    pub(super) counts: NetworkCounts,
    flying: BinaryHeap<Reverse<Flying>>,
    order: u64,
    /// Until when the link to each host is busy.
    busy_until_ns: BTreeMap<IpAddr, u64>,
}

impl SimNetwork {
    /// A fine network.
    pub(super) fn new(random: Random) -> Self {
        Self {
            random,
            weather: Weather::FINE,
            cut_off: Vec::new(),
            counts: NetworkCounts::default(),
            flying: BinaryHeap::new(),
            order: 0,
            busy_until_ns: BTreeMap::new(),
        }
    }

    /// Takes a datagram.
    pub(super) fn send(&mut self, now_ns: u64, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        self.counts.sent += 1;
        if self.cut_off.contains(&from.ip()) || self.cut_off.contains(&to.ip()) {
            self.counts.cut += 1;
            return;
        }
        if self.random.hits(self.weather.loss_ppm) {
            self.counts.lost += 1;
            return;
        }
        if bytes.len() > self.weather.path_bytes_max {
            self.counts.too_long += 1;
            return;
        }
        let Some(queued_ns) = self.queue(now_ns, to, bytes.len() as u64) else {
            self.counts.overflowed += 1;
            return;
        };
        let copies = if self.random.hits(self.weather.duplicate_ppm) { 2 } else { 1 };
        self.counts.doubled += copies - 1;
        for _ in 0..copies {
            self.fly(now_ns + queued_ns, from, to, bytes.to_vec());
        }
    }

    /// How long a datagram waits for the link and takes on it; `None` when the queue is full.
    fn queue(&mut self, now_ns: u64, to: SocketAddr, bytes: u64) -> Option<u64> {
        let bytes_per_s = self.weather.bytes_per_s;
        if bytes_per_s == 0 {
            return Some(0);
        }
        let busy_until_ns = self.busy_until_ns.entry(to.ip()).or_default();
        let start_ns = now_ns.max(*busy_until_ns);
        if start_ns - now_ns > QUEUE_BYTES * 1_000_000_000 / bytes_per_s {
            return None;
        }
        *busy_until_ns = start_ns + bytes * 1_000_000_000 / bytes_per_s;
        Some(*busy_until_ns - now_ns)
    }

    fn fly(&mut self, now_ns: u64, from: SocketAddr, to: SocketAddr, mut bytes: Vec<u8>) {
        let weather = self.weather;
        if self.random.hits(weather.corrupt_ppm) && !bytes.is_empty() {
            self.counts.corrupted += 1;
            for _ in 0..self.random.between(1, 3) {
                let bit = self.random.below(bytes.len() as u64 * 8);
                bytes[usize::try_from(bit / 8).expect("inside")] ^= 1 << (bit % 8);
            }
            if self.random.hits(200_000) {
                let len = self.random.below(bytes.len() as u64);
                bytes.truncate(usize::try_from(len).expect("inside"));
            }
        }
        let mut delay_ns = weather.delay_ns + self.random.below(weather.delay_ns / 8 + 1);
        if self.random.hits(weather.late_ppm) {
            self.counts.late += 1;
            delay_ns += self.random.below(weather.late_ns + 1);
        }
        self.order += 1;
        let at_ns = now_ns + delay_ns;
        self.flying.push(Reverse(Flying { at_ns, order: self.order, from, to, bytes }));
    }

    /// The next datagram that has arrived by now: when, from, to, bytes.
    pub(super) fn arrived(
        &mut self,
        now_ns: u64,
    ) -> Option<(u64, SocketAddr, SocketAddr, Vec<u8>)> {
        while self.flying.peek().is_some_and(|Reverse(first)| first.at_ns <= now_ns) {
            let Reverse(it) = self.flying.pop().expect("just seen");
            if self.cut_off.contains(&it.from.ip()) || self.cut_off.contains(&it.to.ip()) {
                self.counts.cut += 1;
                continue;
            }
            return Some((it.at_ns, it.from, it.to, it.bytes));
        }
        None
    }

    /// When the next one arrives.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.flying.peek().map(|Reverse(first)| first.at_ns)
    }
}
