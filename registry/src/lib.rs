//! The registry of a cluster: a few thousand small records on which all nodes agree.
//!
//! ```text
//!   membership   the keys and records: the cluster, its nodes, their presence, tokens, volumes
//!       │
//!   Guarded      no change to a registry that was put back, or that is another cluster's
//!       │
//!   Registry     get ─ list ─ watch ─ swap ─ lease
//!       ├─ MemoryRegistry   tests and simulation: deterministic, with faults
//!       ├─ FileRegistry     one machine: nothing to install
//!       └─ the crate `registry-etcd`
//! ```
//!
//! A registry is never on the path of a request. Why it is so: `docs/decisions/080-registry.md`;
//! the keys and the format of each record: `docs/cluster.md`.

#[cfg(any(test, feature = "contract"))]
pub mod contract;
mod error;
mod file;
mod guard;
mod key;
mod limits;
pub mod membership;
mod memory;
pub mod private_file;
mod record;
mod registry;
mod state;
mod swap;

pub use error::RegistryError;
pub use file::{FileRegistry, know_boot};
pub use guard::{Guarded, forget_seen};
pub use key::Key;
pub use limits::{
    ENTRIES_MAX, KEY_BYTES_MAX, LEASE_S, LIST_BYTES_MAX, SWAP_BYTES_MAX, SWAP_KEYS_MAX,
    VALUE_BYTES_MAX,
};
pub use memory::{MemoryBackup, MemoryRegistry, UnknownSwap};
pub use record::{
    COPY_PLACES_MAX, COPY_REPORTS_MAX, ClusterRecord, CopyLeave, CopyReport, NodeRecord,
    PLACED_BYTES_MAX, PlacedCopy, PlacementRecord, PlacementRules, PoolSpace, PresenceRecord,
    TokenRecord, VolumeRecord, reported, store_text,
};
pub use registry::{
    Entry, EntryChange, EntryEvent, Found, LeaseId, Listing, Registry, RegistryWatch, Stamp,
};
pub use state::check_lease;
pub use swap::{Condition, KeyChange, Swap, SwapOutcome};
