//! Sidecores with their links, keys, sessions and planes. A node and a direct client both start
//! these.
//!
//! [`sidecores::start`] does it all. Volumes, networks and domains are put onto the sidecores by
//! the programs above, and reach peers by the planes that are installed here.

mod cores;
pub mod counted;
mod error;
mod gate;
pub mod gateways;
pub mod key_files;
pub mod keys;
pub mod links;
pub mod lock;
pub mod peers;
mod random;
pub mod shared;
pub mod sidecores;

pub use cores::LinkedSidecore;
pub use error::{ConnectError, ObjectError, lines};
pub use gate::NetworkGate;
pub use random::{random, seed};
