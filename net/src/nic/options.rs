//! The options of a nic, and their bounds.

use crate::ether::Mac;
use crate::switch::PortOptions;

/// The most pairs of queues of a nic: as many as virtio-net and vhost-user can name, a control
/// queue included, and more than a guest has processors.
pub const PAIRS_MAX: u16 = 127;

/// Ethernet's usual MTU in bytes.
pub const MTU: u16 = 1500;

/// The largest MTU in bytes: 64 KiB of IP, less what fits 16 bits.
pub const MTU_MAX: u16 = 65_535;

/// The smallest MTU in bytes: IPv4's, which virtio demands as well.
pub const MTU_MIN: u16 = 68;

/// The options of a nic.
#[derive(Clone, Debug)]
pub struct NicOptions {
    /// Its name, for the log and for status.
    pub name: String,
    /// The guest's address.
    pub mac: Mac,
    /// The largest packet in bytes that is not to be cut.
    pub mtu: u16,
    /// Pairs of queues that the guest may use.
    pub pairs: u16,
    /// Checksums and segments may be left to others.
    pub offloads: bool,
    /// Its part in the network.
    pub port: PortOptions,
}

impl NicOptions {
    /// A nic with one pair of queues, that may do all.
    pub fn new(name: impl Into<String>, mac: Mac) -> Self {
        let port = PortOptions::of_guest(mac);
        Self { name: name.into(), mac, mtu: MTU, pairs: 1, offloads: true, port }
    }
}
