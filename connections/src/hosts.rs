//! Endpoints of hosts in this process, with sealed sessions between them, on a clock that the
//! caller sets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use transport::{
    BufId, CallId, Endpoint, EndpointConfig, Keyring, KnownKey, LostReason, PeerInfo, SecretKey,
    Security, SessionId, SessionState, Sink, TransmitBatch,
};

/// A round of the clock: an acknowledgement waits for some of them.
const ROUND_NS: u64 = 100_000;

/// The most rounds of a wait: ten seconds.
const ROUNDS_MAX: u64 = 100_000;

/// Datagrams of a network with jumbo frames.
const DATAGRAM_BYTES: usize = 8972;

/// The events of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) connected: usize,
    pub(super) calls: Vec<(CallId, Option<BufId>)>,
    pub(super) replies: usize,
    lost: Option<String>,
}

impl Sink for Notes {
    fn connected(&mut self, _: SessionId, _: &PeerInfo) {
        self.connected += 1;
    }

    fn lost(&mut self, _: SessionId, why: &LostReason) {
        self.lost = Some(why.to_string());
    }

    fn reply_body(&mut self, _: SessionId, _: u64, _: usize, _: &[u8]) {}

    fn reply(&mut self, _: SessionId, _: u64, _: &[u8], _: usize) {
        self.replies += 1;
    }

    fn call(&mut self, _: SessionId, _: u16, id: CallId, _: &[u8], body: Option<(BufId, usize)>) {
        self.calls.push((id, body.map(|(buffer, _)| buffer)));
    }
}

/// A sidecore of a host.
pub(super) struct Host {
    pub(super) endpoint: Endpoint,
    pub(super) notes: Notes,
    pub(super) address: SocketAddr,
    batch: TransmitBatch,
}

/// The key of the host that has this number. Only these endpoints use it.
fn secret(number: u32) -> SecretKey {
    let mut bytes = [7; 32];
    // The number is not in the first byte, since the curve fixes some bits of it.
    bytes[8..12].copy_from_slice(&number.to_le_bytes());
    SecretKey::from_bytes(bytes)
}

fn name(number: u32) -> String {
    format!("host{number}")
}

/// The keys of hosts.
pub(super) fn keys(numbers: impl Iterator<Item = u32>) -> Result<Arc<Keyring>> {
    let mut keyring = Keyring::new();
    for number in numbers {
        let known = KnownKey { peer: name(number), expires_unix_s: None };
        keyring.add(secret(number).public(), known).map_err(|error| anyhow!("{error}"))?;
    }
    Ok(Arc::new(keyring))
}

impl Host {
    /// A sidecore of the host that has this number, which knows these keys.
    pub(super) fn new(number: u32, keyring: Arc<Keyring>) -> Self {
        let mut config = EndpointConfig::new(&name(number), number.into(), number.into());
        config.datagram_bytes_max = DATAGRAM_BYTES;
        config.entropy = [0x5a; 32];
        config.entropy[..4].copy_from_slice(&number.to_le_bytes());
        let secret = Arc::new(secret(number));
        config.security = Security::Sealed { secret, keyring };
        // Each host has an address of its own, since the requests of one source are limited.
        let address = Ipv4Addr::from(0x0a00_0000 + number + 1);
        Self {
            endpoint: Endpoint::new(config),
            notes: Notes::default(),
            address: SocketAddr::from((address, 4870)),
            batch: TransmitBatch::new(64),
        }
    }

    /// Carries its datagrams to the hosts of their addresses.
    fn send(&mut self, now_ns: u64, to: &mut [&mut Self]) {
        loop {
            self.endpoint.transmit(now_ns, &mut self.batch);
            if self.batch.is_empty() {
                return;
            }
            for datagram in self.batch.datagrams() {
                let bytes = [datagram.head(), datagram.body(self.endpoint.pool())].concat();
                // A datagram to a host that is gone is lost.
                let Some(it) = to.iter_mut().find(|it| it.address == datagram.to()) else {
                    continue;
                };
                it.endpoint.receive(now_ns, now_ns, self.address, &bytes, &mut it.notes);
            }
            let count = self.batch.len();
            self.batch.consume(count);
        }
    }
}

/// Lets so many rounds pass.
pub(super) fn rounds(now_ns: &mut u64, hosts: &mut [Host], count: u64) {
    for _ in 0..count {
        *now_ns += ROUND_NS;
        round(*now_ns, hosts);
    }
}

/// A round of all hosts.
fn round(now_ns: u64, hosts: &mut [Host]) {
    for at in 0..hosts.len() {
        let (before, rest) = hosts.split_at_mut(at);
        let (host, after) = rest.split_first_mut().expect("there is one");
        let mut others: Vec<_> = before.iter_mut().chain(after).collect();
        host.send(now_ns, &mut others);
        host.endpoint.advance(now_ns, &mut host.notes);
    }
}

/// Lets rounds pass until the condition holds.
pub(super) fn until(
    now_ns: &mut u64,
    hosts: &mut [Host],
    is: impl Fn(&[Host]) -> bool,
) -> Result<()> {
    for _ in 0..ROUNDS_MAX {
        if is(hosts) {
            return Ok(());
        }
        rounds(now_ns, hosts, 1);
        if let Some(why) = hosts.iter().find_map(|host| host.notes.lost.as_ref()) {
            return Err(anyhow!("a session was lost: {why}"));
        }
    }
    Err(anyhow!("sessions of endpoints in one process do not come to be"))
}

/// The sessions of an endpoint that are connected.
pub(super) fn connected(host: &Host) -> usize {
    host.endpoint.sessions().filter(|it| it.state == SessionState::Connected).count()
}
