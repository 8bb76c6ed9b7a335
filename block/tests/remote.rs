//! Clients of volumes on peers: of other versions, and of several peers.

#[path = "remote/several_peers.rs"]
mod several_peers;
#[path = "remote/versions.rs"]
mod versions;

mod peers;
