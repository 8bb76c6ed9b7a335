//! A world for endpoints: a clock that jumps from event to event, a network that misbehaves as its
//! seed says, and nodes that call and serve and check everything.

pub(crate) mod app;
pub(crate) mod frames;
pub(crate) mod raw;
pub(crate) mod still;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};

use std::sync::Arc;

use random::Random;
use transport::{Endpoint, EndpointConfig, Keyring, KnownKey, SecretKey, Security, TransmitBatch};

use app::App;

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1000 * MS;

/// The network's faults, in parts per thousand of the datagrams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) duplicate: u64,
    pub(crate) reorder: u64,
    pub(crate) corrupt: u64,
    pub(crate) truncate: u64,
}

/// How often each of them struck.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Struck {
    pub(crate) lost: u64,
    pub(crate) duplicated: u64,
    pub(crate) reordered: u64,
    pub(crate) corrupted: u64,
    pub(crate) truncated: u64,
    pub(crate) partitioned: u64,
    pub(crate) too_long: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at_ns: u64,
    /// Keeps the order of what arrives at one time.
    sequence: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// One endpoint with its application, at an address.
pub(crate) struct Node {
    pub(crate) addr: SocketAddr,
    pub(crate) endpoint: Endpoint,
    pub(crate) app: App,
    pub(crate) batch: TransmitBatch,
    /// Does nothing before: a process that is not scheduled.
    pub(crate) paused_until_ns: u64,
    /// Datagrams that arrived and were not looked at, and when they arrived.
    backlog: Vec<(u64, SocketAddr, Vec<u8>)>,
    pub(crate) is_down: bool,
}

/// Datagrams that a test wants to see: time, sender, receiver, bytes.
pub(crate) type Tap = Vec<(u64, SocketAddr, SocketAddr, Vec<u8>)>;

pub(crate) struct World {
    pub(crate) now_ns: u64,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) delay_ns: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) struck: Struck,
    /// Nothing gets through before.
    pub(crate) partitioned_until_ns: u64,
    /// Longer datagrams do not get through, on the way to a node.
    pub(crate) path_bytes_max: [usize; 2],
    /// Every datagram that was sent, when a test wants to look.
    pub(crate) tap: Option<Tap>,
    flights: BinaryHeap<Reverse<Flight>>,
    sequence: u64,
    /// The time of a round, during which datagrams gather.
    pub(crate) round_ns: u64,
}

pub(crate) fn addr(node: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1 + node as u8), 4870))
}

/// The names whose keys all nodes know.
pub(crate) const NAMES: [&str; 4] = ["vm1", "vm2", "io1", "io2"];

/// The key that a node has in all its lives.
pub(crate) fn secret_of(name: &str) -> SecretKey {
    let mut bytes = [0x5a; 32];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    SecretKey::from_bytes(bytes)
}

pub(crate) fn known(peer: &str, expires_unix_s: Option<u64>) -> KnownKey {
    KnownKey { peer: peer.to_owned(), expires_unix_s }
}

pub(crate) fn keyring() -> Keyring {
    let mut keyring = Keyring::new();
    for name in NAMES {
        keyring.add(secret_of(name).public(), known(name, None)).expect("room");
    }
    keyring
}

pub(crate) fn sealed_as(name: &str, keyring: &Keyring) -> Security {
    Security::Sealed { secret: Arc::new(secret_of(name)), keyring: Arc::new(keyring.clone()) }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now_ns: SECOND,
            random: Random::new(seed),
            faults: Faults::default(),
            delay_ns: 20_000,
            nodes: Vec::new(),
            struck: Struck::default(),
            partitioned_until_ns: 0,
            path_bytes_max: [usize::MAX; 2],
            tap: None,
            flights: BinaryHeap::new(),
            sequence: 0,
            round_ns: 2_000,
        }
    }

    /// A configuration whose random parts come from the world's seed.
    pub(crate) fn config(&mut self, name: &str) -> EndpointConfig {
        let mut config = EndpointConfig::new(name, self.random.draw(), self.random.draw());
        config.datagram_bytes_max = 8972;
        config.pool_bytes_max = 64 << 20;
        for part in config.entropy.chunks_mut(8) {
            part.copy_from_slice(&self.random.draw().to_le_bytes());
        }
        if crate::SEALED {
            config.security = sealed_as(name, &keyring());
        }
        config
    }

    pub(crate) fn add(&mut self, config: EndpointConfig) -> usize {
        let index = self.nodes.len();
        self.add_at(config, addr(index))
    }

    pub(crate) fn add_at(&mut self, config: EndpointConfig, addr: SocketAddr) -> usize {
        let seed = self.random.draw();
        self.nodes.push(Node {
            addr,
            endpoint: Endpoint::new(config),
            app: App::new(seed),
            batch: TransmitBatch::new(64),
            paused_until_ns: 0,
            backlog: Vec::new(),
            is_down: false,
        });
        self.nodes.len() - 1
    }

    /// A new process in the place of a node's, with nothing left of the old one.
    pub(crate) fn restart(&mut self, node: usize, config: EndpointConfig) {
        let seed = self.random.draw();
        let node = &mut self.nodes[node];
        node.endpoint = Endpoint::new(config);
        node.app.restarted(seed);
        node.batch = TransmitBatch::new(64);
        node.backlog.clear();
        node.is_down = false;
    }

    pub(crate) fn connect(&mut self, from: usize, to: usize, name: &str) {
        let (now_ns, to) = (self.now_ns, self.nodes[to].addr);
        let node = &mut self.nodes[from];
        let session = node.endpoint.connect(now_ns, to, name, 0);
        node.app.connecting(session, to, name);
    }

    /// Runs for some time.
    pub(crate) fn run_for(&mut self, time_ns: u64) {
        let end_ns = self.now_ns + time_ns;
        self.run_until(end_ns, |_| false);
    }

    /// Runs until something is so, and tells whether it came to that before `end_ns`.
    pub(crate) fn run_until(
        &mut self,
        end_ns: u64,
        mut is_so: impl FnMut(&mut Self) -> bool,
    ) -> bool {
        while self.now_ns < end_ns {
            self.round();
            if is_so(self) {
                return true;
            }
            let next_ns = self.next_event_ns().max(self.now_ns + self.round_ns);
            self.now_ns = next_ns.min(end_ns);
        }
        is_so(self)
    }

    /// Puts a datagram on its way, unharmed.
    pub(crate) fn inject(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        bytes: Vec<u8>,
        delay_ns: u64,
    ) {
        self.sequence += 1;
        let (at_ns, sequence) = (self.now_ns + delay_ns, self.sequence);
        self.flights.push(Reverse(Flight { at_ns, sequence, from, to, bytes }));
    }

    fn round(&mut self) {
        while self.flights.peek().is_some_and(|Reverse(flight)| flight.at_ns <= self.now_ns) {
            let Some(Reverse(flight)) = self.flights.pop() else { break };
            if let Some(node) = self.nodes.iter_mut().find(|node| node.addr == flight.to)
                && !node.is_down
            {
                node.backlog.push((flight.at_ns, flight.from, flight.bytes));
            }
        }
        for index in 0..self.nodes.len() {
            self.round_of(index);
        }
    }

    fn round_of(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[index];
        if node.is_down || now_ns < node.paused_until_ns {
            return;
        }
        for (at_ns, from, bytes) in std::mem::take(&mut node.backlog) {
            node.endpoint.receive(now_ns, at_ns, from, &bytes, &mut node.app);
        }
        node.endpoint.advance(now_ns, &mut node.app);
        node.app.work(now_ns, &mut node.endpoint);
        loop {
            let node = &mut self.nodes[index];
            node.endpoint.transmit(now_ns, &mut node.batch);
            if node.batch.is_empty() {
                break;
            }
            // Now and then the socket takes only a part.
            let mut count = node.batch.len();
            if self.random.below(1000) < 100 {
                count = 1 + self.random.below(count as u64) as usize;
            }
            for datagram_index in 0..count {
                let node = &self.nodes[index];
                let datagram = node.batch.datagram(datagram_index);
                let mut bytes = datagram.head().to_vec();
                bytes.extend_from_slice(datagram.body(node.endpoint.pool()));
                assert_eq!(bytes.len(), datagram.len_bytes());
                let (from, to) = (node.addr, datagram.to());
                self.send(from, to, bytes);
            }
            self.nodes[index].batch.consume(count);
        }
    }

    fn send(&mut self, from: SocketAddr, to: SocketAddr, mut bytes: Vec<u8>) {
        if let Some(tap) = &mut self.tap {
            tap.push((self.now_ns, from, to, bytes.clone()));
        }
        if self.now_ns < self.partitioned_until_ns {
            self.struck.partitioned += 1;
            return;
        }
        let way = (0..2).find(|&node| addr(node) == to);
        if way.is_some_and(|way| bytes.len() > self.path_bytes_max[way]) {
            self.struck.too_long += 1;
            return;
        }
        if self.random.below(1000) < self.faults.loss {
            self.struck.lost += 1;
            return;
        }
        if self.random.below(1000) < self.faults.corrupt {
            self.struck.corrupted += 1;
            let bit = self.random.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        if self.random.below(1000) < self.faults.truncate {
            self.struck.truncated += 1;
            bytes.truncate(self.random.below(bytes.len() as u64) as usize);
        }
        let mut delay_ns = self.delay_ns;
        if self.random.below(1000) < self.faults.reorder {
            self.struck.reordered += 1;
            delay_ns += self.random.below(3 * MS);
        }
        if self.random.below(1000) < self.faults.duplicate {
            self.struck.duplicated += 1;
            let later_ns = delay_ns + self.random.below(50 * MS);
            self.inject(from, to, bytes.clone(), later_ns);
        }
        self.inject(from, to, bytes, delay_ns);
    }

    fn next_event_ns(&self) -> u64 {
        let flight_ns = self.flights.peek().map_or(u64::MAX, |Reverse(flight)| flight.at_ns);
        let node_ns = self.nodes.iter().filter(|node| !node.is_down).map(|node| {
            let timeout_ns = node.endpoint.next_timeout_ns().unwrap_or(u64::MAX);
            timeout_ns.min(node.app.next_ns()).max(node.paused_until_ns)
        });
        node_ns.min().unwrap_or(u64::MAX).min(flight_ns)
    }
}
