//! The limits of a registry. They are the same for all registries, so that a cluster can move from
//! a file to etcd, and each is below what etcd 3.4 takes by default.

use std::ops::RangeInclusive;

/// The longest key: the prefix of a cluster, the kind and a name have 110 bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// The largest value. A record has some hundred bytes; etcd refuses requests of 1.5 MiB.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// The most conditions, and the most changes, of a swap: etcd takes 128 of each.
pub const SWAP_KEYS_MAX: usize = 100;

/// The most bytes of a swap's keys and values: below etcd's 1.5 MiB with the rest of its message.
pub const SWAP_BYTES_MAX: usize = 1 << 20;

/// The most entries of a registry in a file or in memory, and of one listing: a thousand volumes
/// and nodes with their tokens, several times over. A swap of a file writes all of it.
pub const ENTRIES_MAX: usize = 16 << 10;

/// The most bytes of a listing, and of a registry in a file.
pub const LIST_BYTES_MAX: usize = 64 << 20;

/// How long a lease may last, in seconds. etcd's own leases are at least as long as an election of
/// its leader takes, which is a second or two.
pub const LEASE_S: RangeInclusive<u64> = 2..=600;

/// The most leases of a registry in a file or in memory: one for each node, and some that ended
/// with their node a moment ago.
pub(crate) const LEASES_MAX: usize = 4096;

/// The changes that a registry in a file or in memory remembers for its watches. A watch that is
/// behind lists again.
pub(crate) const HISTORY_MAX: usize = 256;
