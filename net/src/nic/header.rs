//! The features of a nic, and its configuration space (virtio 1.2, section 5.1).

use super::options::NicOptions;
use crate::offload::Offers;

/// Feature bits of virtio-net.
pub mod feature {
    /// The device completes checksums.
    pub const CSUM: u64 = 1 << 0;
    /// The driver takes frames whose checksum is unfinished.
    pub const GUEST_CSUM: u64 = 1 << 1;
    /// The device says how large a packet may be.
    pub const MTU: u64 = 1 << 3;
    /// The device has an address.
    pub const MAC: u64 = 1 << 5;
    /// The driver takes TCP over IPv4 uncut.
    pub const GUEST_TSO4: u64 = 1 << 7;
    /// The driver takes TCP over IPv6 uncut.
    pub const GUEST_TSO6: u64 = 1 << 8;
    /// And such with CWR.
    pub const GUEST_ECN: u64 = 1 << 9;
    /// The device takes TCP over IPv4 uncut.
    pub const HOST_TSO4: u64 = 1 << 11;
    /// The device takes TCP over IPv6 uncut.
    pub const HOST_TSO6: u64 = 1 << 12;
    /// And such with CWR.
    pub const HOST_ECN: u64 = 1 << 13;
    /// A frame may be in several of the driver's buffers.
    pub const MRG_RXBUF: u64 = 1 << 15;
    /// The link's state is in the configuration space.
    pub const STATUS: u64 = 1 << 16;
    /// The guest can be asked to announce itself. The front end asks, after a migration.
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    /// More than one pair of queues.
    pub const MQ: u64 = 1 << 22;
    /// The driver takes UDP over IPv4 uncut.
    pub const GUEST_USO4: u64 = 1 << 54;
    /// The driver takes UDP over IPv6 uncut.
    pub const GUEST_USO6: u64 = 1 << 55;
    /// The device takes UDP uncut.
    pub const HOST_USO: u64 = 1 << 56;
}

use feature::{
    CSUM, GUEST_ANNOUNCE, GUEST_CSUM, GUEST_ECN, GUEST_TSO4, GUEST_TSO6, GUEST_USO4, GUEST_USO6,
    HOST_ECN, HOST_TSO4, HOST_TSO6, HOST_USO, MAC, MQ, MRG_RXBUF, MTU, STATUS,
};

const OFFLOADS: u64 = CSUM
    | GUEST_CSUM
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | GUEST_USO4
    | GUEST_USO6
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | HOST_USO;

/// The link is up.
const STATUS_LINK_UP: u16 = 1;

/// The features of a nic, without the ring's.
pub fn features(options: &NicOptions) -> u64 {
    let offloads = if options.offloads { OFFLOADS } else { 0 };
    let pairs = if options.pairs > 1 { MQ } else { 0 };
    MAC | MTU | MRG_RXBUF | STATUS | GUEST_ANNOUNCE | offloads | pairs
}

/// Its configuration space: address, status, pairs of queues, MTU.
pub(super) fn config(options: &NicOptions, link: bool) -> Vec<u8> {
    let status = if link { STATUS_LINK_UP } else { 0 };
    let mut config = options.mac.0.to_vec();
    for word in [status, options.pairs, options.mtu] {
        config.extend(word.to_le_bytes());
    }
    config
}

/// The work that the guest may leave to others.
pub(super) fn offers_of_guest(acked: u64) -> Offers {
    let has = |bit| acked & bit != 0;
    Offers {
        checksum: has(CSUM),
        tcp4: has(HOST_TSO4),
        tcp6: has(HOST_TSO6),
        ecn: has(HOST_ECN),
        udp4: has(HOST_USO),
        udp6: has(HOST_USO),
    }
}

/// The work that others may leave to the guest.
pub(super) fn offers_to_guest(acked: u64) -> Offers {
    let has = |bit| acked & bit != 0;
    Offers {
        checksum: has(GUEST_CSUM),
        tcp4: has(GUEST_TSO4),
        tcp6: has(GUEST_TSO6),
        ecn: has(GUEST_ECN),
        udp4: has(GUEST_USO4),
        udp6: has(GUEST_USO6),
    }
}

/// How long the header before each frame is: the number of buffers is part of it since virtio 1.0,
/// and before that only with mergeable buffers.
pub(crate) fn header_bytes(acked: u64) -> usize {
    if acked & (virtio::feature::VERSION_1 | MRG_RXBUF) != 0 { 12 } else { 10 }
}
