//! The wiring of a node: the order in which its parts start and stop, and how they change in
//! between.
//!
//! ```text
//!   start:  directories ─ control socket ─ keys ─ pools ─ volumes ─ sidecores and sessions
//!           ─ nics ─ domains ─ disks
//!   change: disks, volumes, pools, peers, networks, nics, domains and vfs, one at a time, by
//!           the same code ([`live`])
//!   stop:   disks ─ sessions and sidecores ─ pools ─ control socket ─ volumes
//! ```
//!
//! `inside` is the running node as a value. Below it are the parts that it has, in folders for
//! disks, volumes, networks and the fabric; above it are its changes. A folder has the same
//! files, as far as it needs them: the parts themselves and their start, `change` (the running half
//! of a kind), `report` (the status), `hand_over`.

mod change;
mod disks;
mod drain;
mod error;
mod fabric;
mod hand_over;
mod inside;
mod inspect;
mod live;
mod networks;
mod node;
mod objects;
mod peers;
mod pools;
mod report;
mod service;
mod strangers;
mod turns;
mod volumes;
mod watchdog;

pub use sessions::{ConnectError, ObjectError};

pub use self::error::{StartError, TakeOverError};
pub(crate) use self::inside::Inside;
pub(crate) use self::inspect::problems;
pub(crate) use self::node::DirtyDisks;
pub use self::node::{Node, Opened};
pub(crate) use self::objects::Objects;
