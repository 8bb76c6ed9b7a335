//! The settings of an endpoint when it is made.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::flow;
use crate::keys::Security;
use crate::limits::{CALLS_MAX, SESSIONS_MAX};
use crate::pool::PoolMemory;
use crate::seal::{KEY_EPOCH_BITS, KEY_EPOCH_BITS_MIN};
use crate::wire::{
    DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, NAME_BYTES_MAX, SEALED_VERSION_MIN, VERSIONS,
};

/// An endpoint's configuration.
#[derive(Clone)]
pub struct EndpointConfig {
    /// The node's name, 1 to 64 bytes.
    pub name: String,
    /// Random, drawn when the process starts; the same on all its sidecores.
    pub process_nonce: u64,
    /// Which of the node's sidecores this is.
    pub index: u16,
    /// The UDP ports of the node's sidecores, this one's included; empty stands for a single one.
    pub ports: Vec<u16>,
    /// Random, and different on each sidecore: session ids are drawn from it.
    pub seed: u64,
    /// The largest datagram payload of the link (1472 for Ethernet, 8972 with jumbo frames, 65507
    /// on loopback). Clamped to 1200 and 65507. A session uses the smaller one of its two ends.
    pub datagram_bytes_max: usize,
    /// Whether peers may open sessions.
    pub accept: bool,
    /// The limit of the buffer pool.
    pub pool_bytes_max: usize,
    /// Where its memory comes from; the program's allocator, if not said.
    pub pool_memory: Option<Arc<dyn PoolMemory>>,
    /// Calls in each direction of a session; a session uses the smaller one of its two ends.
    /// Clamped to 1 and [`CALLS_MAX`].
    pub calls_max: u16,
    /// Sessions that peers may have opened here at once, half-open ones included. Clamped to 1 and
    /// [`SESSIONS_MAX`]. Sessions that we ask for come on top, up to as many.
    pub sessions_max: u16,
    /// How many bytes of call bodies a flow of a peer may have here, not yet answered, each counted
    /// as the buffer that it takes. Clamped to 2 MiB and a quarter of the pool.
    pub flow_window_bytes: u32,
    /// The room of the socket's receive buffer: a peer has no more in flight.
    pub receive_window_bytes: u32,
    /// The protocol versions to offer; all that this program speaks, unless an upgrade is held
    /// back.
    pub versions: RangeInclusive<u8>,
    /// Whether sessions are encrypted, and under which keys. Changed later with
    /// [`Endpoint::set_security`](crate::Endpoint::set_security).
    pub security: Security,
    /// The seed of keys and cookies: 32 bytes from the system's random numbers, never the same for
    /// two endpoints nor for two lives of one. Only a simulation, which has to repeat itself, takes
    /// them from its seed.
    pub entropy: [u8; 32],
    /// How many packets one key seals, as a power of two: 22, and the same at both ends, or there
    /// is no session. Tests lower it to see keys roll. Clamped to 12 and 22.
    pub key_epoch_bits: u8,
}

impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndpointConfig")
            .field("name", &self.name)
            .field("index", &self.index)
            .field("ports", &self.ports)
            .field("versions", &self.versions)
            .field("security", &self.security)
            .finish_non_exhaustive()
    }
}

impl EndpointConfig {
    /// The defaults around a node's name, its process nonce and a seed.
    pub fn new(name: &str, process_nonce: u64, seed: u64) -> Self {
        Self {
            name: name.to_owned(),
            process_nonce,
            index: 0,
            ports: Vec::new(),
            seed,
            datagram_bytes_max: 1472,
            accept: true,
            pool_bytes_max: 256 << 20,
            pool_memory: None,
            calls_max: 1024,
            sessions_max: SESSIONS_MAX,
            flow_window_bytes: 8 << 20,
            receive_window_bytes: 4 << 20,
            versions: VERSIONS,
            security: Security::Plain,
            entropy: [0; 32],
            key_epoch_bits: KEY_EPOCH_BITS,
        }
    }

    /// The needs of sealed sessions; only our own mistake leaves them out.
    pub(crate) fn check_security(&self, security: &Security) {
        if security.is_sealed() {
            assert!(self.entropy != [0; 32], "an endpoint with keys needs entropy");
            assert!(*self.versions.end() >= SEALED_VERSION_MIN, "no version that can be sealed");
        }
    }

    /// Brings every limit into its range. A bad name is our own mistake: configuration was checked
    /// before.
    pub(crate) fn checked(mut self) -> Self {
        assert!(
            (1..=NAME_BYTES_MAX).contains(&self.name.len()),
            "a node's name has 1 to {NAME_BYTES_MAX} bytes"
        );
        if self.ports.is_empty() {
            self.ports.push(0);
        }
        assert!(usize::from(self.index) < self.ports.len(), "a sidecore without a port");
        assert!(!self.versions.is_empty(), "no protocol version to offer");
        self.check_security(&self.security);
        self.key_epoch_bits = self.key_epoch_bits.clamp(KEY_EPOCH_BITS_MIN, KEY_EPOCH_BITS);
        self.datagram_bytes_max =
            self.datagram_bytes_max.clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX);
        self.calls_max = self.calls_max.clamp(1, CALLS_MAX);
        self.sessions_max = self.sessions_max.clamp(1, SESSIONS_MAX);
        let share_bytes = u32::try_from(self.pool_bytes_max / 4).unwrap_or(u32::MAX);
        self.flow_window_bytes =
            self.flow_window_bytes.min(share_bytes).max(flow::WINDOW_BYTES_MIN as u32);
        self
    }
}
