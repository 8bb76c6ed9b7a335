//! The peers of a node: which peer is connected, what each may do, and the planes whose messages
//! the sessions carry.
//!
//! [`directory`] knows the peers and opens sessions to them; [`planes`] hands what sessions bring
//! to the plane that it is for; [`proof`] and [`Allow`] say what a peer's attachment may use, for
//! volumes and networks alike.
#![forbid(unsafe_code)]

mod allow;
pub mod directory;
mod lines;
pub mod planes;
pub mod proof;

pub use allow::{Allow, AllowList, allows, list_changes};
pub use directory::{PeerId, PeerSession, Peers};
pub use lines::{LINE_NS, LINE_PEERS_MAX, LINES_AT_ONCE, PeerLines};
pub use planes::{Plane, PlaneId, PlaneQuota, Planes, Token, flows};
pub use proof::{AttachmentKey, AttachmentSecret};
