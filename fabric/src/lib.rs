//! A *domain*: shared memory of a tenant's processes on one host, in which each has *endpoints*
//! that send messages to each other without the kernel and without the node.
//!
//! An [`Address`] names an endpoint anywhere; [`Message`]s, [`Receive`]s and [`Completion`]s are in
//! libfabric's and MPI's words, since the crate `ofi` uses them for MPI. [`matcher`] says which
//! message a receive takes.
//!
//! This is the half of a domain's members, and the part that they share with the node: the region's
//! layout ([`region`], [`ring`], [`cell`], [`slab`]), the messages by which a process joins
//! ([`registration`], [`mailbox`]). The node's half is the crate `fabric-node`.

mod address;
mod addresses;
mod alarm;
pub mod cell;
pub mod doorbell;
mod endpoint;
pub mod mailbox;
pub mod matcher;
mod message;
mod parts;
pub mod region;
pub mod registration;
pub mod ring;
mod shared;
mod single_copy;
pub mod slab;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use address::{ADDRESS_BYTES, Address, AddressError};
pub use addresses::{AddressTable, AddressTableFull};
pub use alarm::{Alarm, AlarmError};
pub use endpoint::{
    DoorbellRequest, Doze, Endpoint, EndpointCounters, EndpointError, EndpointOptions,
    EndpointProcess, INJECT_BYTES_MAX, LocalNode, NoDoorbell, ReceiveError, SendError,
};
pub use mailbox::DeviceError;
pub use message::{
    Class, Completion, Done, LookOutcome, MemoryPiece, Message, Peek, Receive, RequestContext,
    RequestFailure,
};
pub use parts::PARTS_MAX;
pub use region::{
    GATEWAYS_MAX, HOST_ENDED, HOSTS_MAX, REGION_VERSION, Region, RegionError, RegionOptions,
    SLOTS_MAX, SizeError,
};
pub use registration::{
    Domain, IN_VM, Invitation, JoinError, LOAD_COST_CACHED_NS_MAX, OpenEndpointError,
};
pub use slab::is_whole;
