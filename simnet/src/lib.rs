//! A network of datagrams on a simulated clock, from a seed: delay, loss, duplication, reordering,
//! corruption, slow links and partitions. Tests of several crates carry the datagrams of real
//! sessions with it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use random::Random;

/// How bad the network is, in parts of a million datagrams, and how slow.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Lost.
    pub loss_ppm: u64,
    /// Delivered twice.
    pub duplicate_ppm: u64,
    /// Delivered with flipped bits.
    pub corrupt_ppm: u64,
    /// Held back for up to [`Self::late_ns`], so that others overtake them.
    pub late_ppm: u64,
    /// The longest that a late one takes.
    pub late_ns: u64,
    /// The shortest way.
    pub delay_ns: u64,
    /// The longest way of one that is not late takes so much longer.
    pub jitter_ns: u64,
    /// The rate of the link to each host; 0 for more than the hosts ever send. A datagram that
    /// finds `QUEUE_BYTES` before it is lost.
    pub bytes_per_s: u64,
    /// Longer datagrams are lost, and the sender is not told.
    pub path_bytes_max: usize,
}

/// The longest queue before a slow link: that of a very shallow switch, since the simulated
/// requests are few.
const QUEUE_BYTES: u64 = 64 << 10;

impl Weather {
    /// Nothing happens to a datagram.
    pub const FINE: Self = Self {
        loss_ppm: 0,
        duplicate_ppm: 0,
        corrupt_ppm: 0,
        late_ppm: 0,
        late_ns: 0,
        delay_ns: 20_000,
        jitter_ns: 2_500,
        bytes_per_s: 0,
        path_bytes_max: usize::MAX,
    };

    /// Some weather, by chance.
    pub fn random(random: &mut Random) -> Self {
        let scale = [0, 100, 2_000, 20_000, 100_000];
        let mut pick = || scale[usize::try_from(random.below(5)).expect("small")];
        let (loss_ppm, duplicate_ppm, corrupt_ppm, late_ppm) = (pick(), pick(), pick(), pick());
        let late_ns = random.between(100_000, 300_000_000);
        let delay_ns = random.between(5_000, 200_000);
        let rates = [0, 0, 125_000_000, 12_500_000, 2_500_000];
        let widths = [usize::MAX, usize::MAX, 8_900, 1_472, 1_400, 1_200];
        Self {
            loss_ppm,
            duplicate_ppm,
            corrupt_ppm,
            late_ppm,
            late_ns,
            delay_ns,
            jitter_ns: delay_ns / 8,
            bytes_per_s: rates[usize::try_from(random.below(5)).expect("small")],
            path_bytes_max: widths[usize::try_from(random.below(6)).expect("small")],
        }
    }
}

/// The counts of datagrams.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkCounts {
    /// Datagrams sent.
    pub sent: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost in front of a slow link.
    pub overflowed: u64,
    /// Too long for the way.
    pub too_long: u64,
    /// Lost to a partition or a host that is off.
    pub cut: u64,
    /// Doubled.
    pub doubled: u64,
    /// Corrupted.
    pub corrupted: u64,
    /// Overtaken by a later one.
    pub late: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Datagram {
    at_ns: u64,
    order: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct SimNetwork {
    random: Random,
    /// The present weather.
    pub weather: Weather,
    /// Hosts that are cut off in both directions.
    pub cut_off: Vec<IpAddr>,
    /// The counts so far.
    pub counts: NetworkCounts,
    flying: BinaryHeap<Reverse<Datagram>>,
    order: u64,
    /// Until when the link to each host is busy.
    busy_until_ns: BTreeMap<IpAddr, u64>,
}

impl SimNetwork {
    /// A fine network.
    pub fn new(random: Random) -> Self {
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
    pub fn send(&mut self, now_ns: u64, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
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
        let mut delay_ns = weather.delay_ns + self.random.below(weather.jitter_ns + 1);
        if self.random.hits(weather.late_ppm) {
            self.counts.late += 1;
            delay_ns += self.random.below(weather.late_ns + 1);
        }
        self.order += 1;
        let at_ns = now_ns + delay_ns;
        self.flying.push(Reverse(Datagram { at_ns, order: self.order, from, to, bytes }));
    }

    /// The next datagram that has arrived by now: when, from, to, bytes.
    pub fn arrived(&mut self, now_ns: u64) -> Option<(u64, SocketAddr, SocketAddr, Vec<u8>)> {
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
    pub fn next_ns(&self) -> Option<u64> {
        self.flying.peek().map(|Reverse(first)| first.at_ns)
    }
}

impl NetworkCounts {
    /// Adds another network's.
    pub fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.overflowed += other.overflowed;
        self.too_long += other.too_long;
        self.cut += other.cut;
        self.doubled += other.doubled;
        self.corrupted += other.corrupted;
        self.late += other.late;
    }
}

impl fmt::Display for NetworkCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, lost, overflowed, too_long, cut, doubled, corrupted, late } = self;
        write!(
            f,
            "network: {sent} datagrams; {lost} lost, {overflowed} before a slow link, {too_long} \
             too long, {cut} cut off, {doubled} doubled, {corrupted} corrupted, {late} overtaken"
        )
    }
}
