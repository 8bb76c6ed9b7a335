//! Sessions through one bottleneck: a queue with a rate and a bound, ways of their own before and
//! after it, loss by chance, and receivers whose scheduler pauses them.
//!
//! ```text
//! server 0 ──┐                         ┌──▶ client 0
//! server 1 ──┴─▶ [queue] ─▶ bottleneck ┴──▶ client 1       acknowledgements: half of the trip each
//! ```

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use random::Random;
use transport::{
    BufId, CallId, Endpoint, EndpointConfig, LostReason, MESSAGE_MAX, PeerInfo, SessionId,
    SessionStatus, Sink, TransmitBatch,
};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MS;

/// Gigabit per second, in bytes per second.
pub(crate) const GBIT: u64 = 125_000_000;

/// The bytes that Ethernet, IP and UDP add to a datagram.
const FRAMING_BYTES: u64 = 66;

/// A polling process looks around so often.
const ROUND_NS: u64 = 2 * US;

/// The shared part of the way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bottleneck {
    /// Bytes per second.
    pub(crate) rate: u64,
    /// The most bytes in its queue.
    pub(crate) queue_bytes: u64,
    /// Datagrams lost by chance, of a million.
    pub(crate) loss_ppm: u64,
}

impl Bottleneck {
    /// A clean one with a buffer of two milliseconds, as a switch has it.
    pub(crate) fn new(rate: u64) -> Self {
        Self { rate, queue_bytes: rate / 500, loss_ppm: 0 }
    }
}

/// One pair of nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowPlan {
    /// From sending to the acknowledgement's arrival, with nothing in the queue.
    pub(crate) trip_ns: u64,
    /// When the client connects.
    pub(crate) start_ns: u64,
    pub(crate) datagram_bytes: usize,
    /// The client does not run for a random time in this range, after it ran for one in the other.
    pub(crate) pause_ns: Option<(u64, u64)>,
    pub(crate) every_ns: (u64, u64),
    /// The most bytes in the client's socket.
    pub(crate) socket_bytes: u64,
    /// How far ahead the sender's clock is.
    pub(crate) clock_ns: u64,
}

impl FlowPlan {
    pub(crate) fn new(trip_ns: u64) -> Self {
        Self {
            trip_ns,
            start_ns: 0,
            datagram_bytes: 8972,
            pause_ns: None,
            every_ns: (0, 0),
            socket_bytes: 4 << 20,
            clock_ns: 0,
        }
    }

    /// The same with pauses of its receiver, of random lengths and distances.
    pub(crate) fn paused(self, pause_ns: (u64, u64), every_ns: (u64, u64)) -> Self {
        Self { pause_ns: Some(pause_ns), every_ns, ..self }
    }
}

/// The records of an application.
#[derive(Default)]
struct Notes {
    session: Option<SessionId>,
    calls: Vec<CallId>,
    outstanding: u64,
    body_bytes: u64,
}

impl Sink for Notes {
    fn connected(&mut self, session: SessionId, _: &PeerInfo) {
        self.session = Some(session);
    }
    fn lost(&mut self, _: SessionId, why: &LostReason) {
        panic!("the session was lost: {why}");
    }
    fn reply_body(&mut self, _: SessionId, _: u64, _: usize, bytes: &[u8]) {
        self.body_bytes += bytes.len() as u64;
    }
    fn reply(&mut self, _: SessionId, _: u64, _: &[u8], _: usize) {
        self.outstanding -= 1;
    }
    fn call(&mut self, _: SessionId, _: u16, id: CallId, _: &[u8], _: Option<(BufId, usize)>) {
        self.calls.push(id);
    }
}

struct Node {
    endpoint: Endpoint,
    batch: TransmitBatch,
    notes: Notes,
    arrivals: VecDeque<(u64, Vec<u8>)>,
    waiting_bytes: u64,
    ran_ns: u64,
    paused_until_ns: u64,
    has_more: bool,
    clock_ns: u64,
}

impl Node {
    fn new(name: &str, seed: u64, plan: &FlowPlan, clock_ns: u64) -> Self {
        let mut config = EndpointConfig::new(name, seed, seed);
        config.datagram_bytes_max = plan.datagram_bytes;
        config.receive_window_bytes = plan.socket_bytes as u32;
        config.pool_bytes_max = 8 << 20;
        Self {
            endpoint: Endpoint::new(config),
            batch: TransmitBatch::new(64),
            notes: Notes::default(),
            arrivals: VecDeque::new(),
            waiting_bytes: 0,
            ran_ns: 0,
            paused_until_ns: 0,
            has_more: true,
            clock_ns,
        }
    }

    /// When it runs next: with an arrival, a time-out or more to send; and when it may.
    fn next_ns(&self) -> u64 {
        let arrival_ns = self.arrivals.front().map_or(u64::MAX, |(at_ns, _)| *at_ns);
        let timeout_ns = self.endpoint.next_timeout_ns().unwrap_or(u64::MAX);
        let timeout_ns = timeout_ns.saturating_sub(self.clock_ns);
        let ready_ns = if self.has_more { 0 } else { u64::MAX };
        let wake_ns = arrival_ns.min(timeout_ns).min(ready_ns);
        wake_ns.max(self.ran_ns + ROUND_NS).max(self.paused_until_ns)
    }

    fn receive(&mut self, now_ns: u64, from: SocketAddr) {
        self.ran_ns = now_ns;
        while self.arrivals.front().is_some_and(|(at_ns, _)| *at_ns <= now_ns) {
            let Some((at_ns, bytes)) = self.arrivals.pop_front() else { break };
            self.waiting_bytes -= bytes.len() as u64;
            let (now_ns, at_ns) = (now_ns + self.clock_ns, at_ns + self.clock_ns);
            self.endpoint.receive(now_ns, at_ns, from, &bytes, &mut self.notes);
        }
        self.endpoint.advance(now_ns + self.clock_ns, &mut self.notes);
    }
}

struct Flow {
    plan: FlowPlan,
    server: Node,
    client: Node,
    body: BufId,
    is_started: bool,
    resume_ns: u64,
    /// In pauses, all together.
    paused_ns: u64,
    /// Calls that are kept outstanding.
    depth: u64,
    /// Delivered in each interval.
    delivered: Vec<u64>,
    counted_bytes: u64,
    socket_drops: u64,
}

/// Measurements of the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueSeen {
    datagrams: u64,
    sum_ns: u64,
    pub(crate) max_ns: u64,
    pub(crate) drops: u64,
}

impl QueueSeen {
    pub(crate) fn mean_ns(&self) -> u64 {
        self.sum_ns / self.datagrams.max(1)
    }
}

/// See the module.
pub(crate) struct World {
    random: Random,
    bottleneck: Bottleneck,
    free_at_ns: u64,
    now_ns: u64,
    flows: Vec<Flow>,
    /// Measurements of the queue since the last look.
    pub(crate) queue: QueueSeen,
}

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 4870);
const CLIENT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 4870);

/// Delivered bytes are counted apart in intervals of this.
pub(crate) const INTERVAL_NS: u64 = 100 * MS;

impl World {
    pub(crate) fn new(seed: u64, bottleneck: Bottleneck, plans: &[FlowPlan]) -> Self {
        let mut random = Random::new(seed);
        let flows = plans.iter().map(|plan| Flow::new(&mut random, &bottleneck, *plan)).collect();
        let queue = QueueSeen::default();
        Self { random, bottleneck, free_at_ns: 0, now_ns: 0, flows, queue }
    }

    /// Runs until `end_ns`.
    pub(crate) fn run_until(&mut self, end_ns: u64) {
        loop {
            let next = |flow: &Flow| flow.next_ns();
            let Some(index) = (0..self.flows.len()).min_by_key(|&i| next(&self.flows[i])) else {
                return;
            };
            let at_ns = next(&self.flows[index]);
            if at_ns >= end_ns {
                self.now_ns = end_ns;
                return;
            }
            self.now_ns = at_ns.max(self.now_ns);
            self.run_flow(index);
        }
    }

    /// Bytes that a flow delivered between two times, multiples of [`INTERVAL_NS`].
    pub(crate) fn delivered(&self, flow: usize, from_ns: u64, to_ns: u64) -> u64 {
        let intervals = (from_ns / INTERVAL_NS) as usize..(to_ns / INTERVAL_NS) as usize;
        let delivered = &self.flows[flow].delivered;
        intervals.map(|index| delivered.get(index).copied().unwrap_or(0)).sum()
    }

    /// The session, as its sender sees it.
    pub(crate) fn status(&self, flow: usize) -> SessionStatus {
        self.flows[flow].server.endpoint.sessions().next().expect("a session")
    }

    pub(crate) fn socket_drops(&self, flow: usize) -> u64 {
        self.flows[flow].socket_drops
    }

    /// How long the client was paused in all.
    pub(crate) fn paused_ns(&self, flow: usize) -> u64 {
        self.flows[flow].paused_ns
    }

    fn run_flow(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let flow = &mut self.flows[index];
        if !flow.is_started {
            flow.is_started = true;
            flow.client.endpoint.connect(now_ns, SERVER, "", 0);
        }
        if flow.server.next_ns() <= now_ns {
            flow.serve(now_ns);
            self.send_down(index);
        }
        let flow = &mut self.flows[index];
        if flow.client.next_ns() <= now_ns {
            flow.pause(now_ns, &mut self.random);
            flow.ask(now_ns);
            flow.send_up(now_ns);
        }
    }

    /// The server's datagrams, through the bottleneck.
    fn send_down(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let flow = &mut self.flows[index];
        let server = &mut flow.server;
        server.endpoint.transmit(now_ns + server.clock_ns, &mut server.batch);
        server.has_more = server.endpoint.has_ready() || server.batch.is_full();
        for datagram in server.batch.datagrams() {
            let wire_bytes = datagram.len_bytes() as u64 + FRAMING_BYTES;
            let wait_ns = self.free_at_ns.saturating_sub(now_ns);
            self.queue.datagrams += 1;
            self.queue.sum_ns += wait_ns;
            self.queue.max_ns = self.queue.max_ns.max(wait_ns);
            let queued_bytes =
                (u128::from(wait_ns) * u128::from(self.bottleneck.rate) / 1_000_000_000) as u64;
            if queued_bytes + wire_bytes > self.bottleneck.queue_bytes {
                self.queue.drops += 1;
                continue;
            }
            let time_ns = wire_bytes * 1_000_000_000 / self.bottleneck.rate;
            self.free_at_ns = self.free_at_ns.max(now_ns) + time_ns;
            if self.random.draw() % 1_000_000 < self.bottleneck.loss_ppm {
                continue;
            }
            let len_bytes = datagram.len_bytes() as u64;
            if flow.client.waiting_bytes + len_bytes > flow.plan.socket_bytes
                && flow.client.paused_until_ns > now_ns
            {
                flow.socket_drops += 1;
                continue;
            }
            let mut bytes = datagram.head().to_vec();
            bytes.extend_from_slice(datagram.body(server.endpoint.pool()));
            flow.client.waiting_bytes += len_bytes;
            flow.client.arrivals.push_back((self.free_at_ns + flow.plan.trip_ns / 2, bytes));
        }
        let count = server.batch.len();
        server.batch.consume(count);
    }
}

impl Flow {
    fn new(random: &mut Random, bottleneck: &Bottleneck, plan: FlowPlan) -> Self {
        let mut server = Node::new("io1", random.draw(), &plan, plan.clock_ns);
        let client = Node::new("vm1", random.draw(), &plan, 0);
        let body = server.endpoint.pool_mut().alloc(MESSAGE_MAX).expect("an empty pool");
        let pipe_bytes = bottleneck.rate / 1_000_000 * (plan.trip_ns + 20 * MS) / 1_000;
        let depth = 4 + 2 * pipe_bytes / MESSAGE_MAX as u64;
        Self {
            plan,
            server,
            client,
            body,
            is_started: false,
            resume_ns: plan.start_ns,
            paused_ns: 0,
            depth,
            delivered: Vec::new(),
            counted_bytes: 0,
            socket_drops: 0,
        }
    }

    fn next_ns(&self) -> u64 {
        if self.is_started {
            self.server.next_ns().min(self.client.next_ns())
        } else {
            self.plan.start_ns
        }
    }

    /// Answers everything.
    fn serve(&mut self, now_ns: u64) {
        self.server.receive(now_ns, CLIENT);
        for call in self.server.notes.calls.drain(..) {
            let body = Some((self.body, MESSAGE_MAX));
            let now_ns = now_ns + self.server.clock_ns;
            self.server.endpoint.reply(now_ns, call, b"", body).expect("connected");
        }
    }

    /// Takes the client's turn away, now and then.
    fn pause(&mut self, now_ns: u64, random: &mut Random) {
        let Some((least_ns, most_ns)) = self.plan.pause_ns else { return };
        if now_ns >= self.resume_ns {
            let run_ns = random.between(self.plan.every_ns.0, self.plan.every_ns.1);
            let pause_ns = random.between(least_ns, most_ns);
            self.client.paused_until_ns = now_ns + pause_ns;
            self.paused_ns += pause_ns;
            self.resume_ns = now_ns + pause_ns + run_ns;
        }
    }

    /// Takes in what came, and keeps enough calls outstanding.
    fn ask(&mut self, now_ns: u64) {
        self.client.receive(now_ns, SERVER);
        let client = &mut self.client;
        let fresh_bytes = client.notes.body_bytes - self.counted_bytes;
        self.counted_bytes = client.notes.body_bytes;
        let interval = (now_ns / INTERVAL_NS) as usize;
        if self.delivered.len() <= interval {
            self.delivered.resize(interval + 1, 0);
        }
        self.delivered[interval] += fresh_bytes;
        let Some(session) = client.notes.session else { return };
        while client.notes.outstanding < self.depth {
            client.endpoint.call(now_ns, session, 0, 7, b"read", None).expect("room");
            client.notes.outstanding += 1;
        }
    }

    /// The client's datagrams, which find no queue.
    fn send_up(&mut self, now_ns: u64) {
        let client = &mut self.client;
        client.endpoint.transmit(now_ns, &mut client.batch);
        client.has_more = client.endpoint.has_ready() || client.batch.is_full();
        for datagram in client.batch.datagrams() {
            let mut bytes = datagram.head().to_vec();
            bytes.extend_from_slice(datagram.body(client.endpoint.pool()));
            self.server.waiting_bytes += bytes.len() as u64;
            self.server.arrivals.push_back((now_ns + self.plan.trip_ns / 2, bytes));
        }
        let count = client.batch.len();
        client.batch.consume(count);
    }
}

/// Jain's index: 1 when all are alike, 1/n when one has everything.
pub(crate) fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Of what the bottleneck could have carried, how much was delivered.
pub(crate) fn utilisation(bytes: u64, rate: u64, time_ns: u64) -> f64 {
    bytes as f64 / (rate as f64 * time_ns as f64 / SECOND as f64)
}
