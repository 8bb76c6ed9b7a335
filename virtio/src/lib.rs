//! Virtqueues and vhost-user: the device side, and the driver side that stands in for a guest.
//!
//! The way of a request: a front end (a VMM, or [`driver`]) hands over the guest's memory and its
//! rings in messages that `session` answers and [`socket`] carries. A [`Device`] gets each ring as
//! a [`QueueConfig`] and makes a [`Queue`] of it on the thread that will poll the ring. The device
//! takes [`Chain`]s of checked guest memory out of the queue, and puts the results back.
//!
//! A guest and its front end are hostile. A fault that they can cause is a named error
//! ([`RingError`], [`MemoryError`], [`InflightError`], [`SessionError`]) that stops their own
//! device, never a panic. Everything shared with them is read once into a local and checked there.
//! All stores to rings and to the inflight region go through the module `shared`.

mod access;
mod ahead;
mod back_channel;
mod backing;
mod budget;
mod chain;
mod descriptor;
pub mod device;
pub mod dirty;
pub mod driver;
mod error;
pub mod hand_over;
pub mod inflight;
mod lock;
mod mapping;
pub mod memory;
mod notify;
mod packed;
pub mod prefetch;
pub mod queue;
mod ring;
mod session;
mod shared;
mod sigbus;
pub mod socket;
mod split;
#[cfg(test)]
mod tests;

pub use backing::GuestFiles;
pub use budget::{
    BudgetError, MemoryLimits, MemoryRules, MemoryUsed, memory_rules, memory_used, set_memory_rules,
};
pub use chain::{Chain, ChainHead, Segment, gather, scatter};
pub use device::{Device, DeviceError};
pub use dirty::{DirtyLog, LogError, Logging};
pub use error::{InflightError, MemoryError, RingError};
pub use inflight::{InflightQueue, InflightRegion};
pub use mapping::{MapError, Mapping};
pub use memory::{Memory, Region};
pub use queue::{Queue, QueueConfig, QueueCounters, Retained, Single};
pub use ring::RingKind;
pub use session::{AdoptError, SessionError};
pub use socket::{
    Access, Adopted, Closer, DeviceServer, ParkError, ParkedServer, Parking, ServerState, Socket,
    SocketError, adopt, release, serve, serve_stream,
};

/// The largest ring: QEMU's limit for a device. Bounds every table that is made per queue.
pub const QUEUE_SIZE_MAX: u16 = 1024;

/// The most queues of one device; vhost-user numbers them with a byte, and QEMU's virtio devices
/// stop at 1024 vectors. 256 is what a byte can name.
pub const QUEUES_MAX: usize = 256;

/// The most descriptors in one chain, direct and indirect together. The specification forbids a
/// chain that is longer than its ring; a ring of a real guest may be small and its indirect tables
/// larger all the same, so it is the largest ring that counts.
pub const DESCRIPTORS_MAX: usize = QUEUE_SIZE_MAX as usize;

/// The most pieces of guest memory in one chain. A piece more than descriptors is only needed
/// where a buffer spans two regions of guest memory.
pub const SEGMENTS_MAX: usize = DESCRIPTORS_MAX + 64;

/// The most regions of guest memory that a front end may add: QEMU's most memory slots on x86.
pub const REGIONS_MAX: usize = 256;

/// The most guest memory of one table, even if [`MemoryRules`] let front ends take more of the
/// address space. Larger machines are rare enough to be refused by name.
pub const MEMORY_BYTES_MAX: u64 = 16 << 40;

/// Feature bits of the ring and of vhost-user, as the specifications number them.
pub mod feature {
    /// Pages that are written are marked in a log. vhost-user's own: no guest sees it.
    pub const LOG_ALL: u64 = 1 << 26;
    /// Chains may continue in a table of their own.
    pub const RING_INDIRECT_DESC: u64 = 1 << 28;
    /// Notifications are asked for by index.
    pub const RING_EVENT_IDX: u64 = 1 << 29;
    /// vhost-user's own negotiation.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    /// A device after virtio 1.0.
    pub const VERSION_1: u64 = 1 << 32;
    /// One ring of descriptors instead of three.
    pub const RING_PACKED: u64 = 1 << 34;
}
