//! The peers of a node: which peer is connected, what each may do, and the planes whose messages
//! the sessions carry.
//!
//! [`proof`] and [`Allow`] say what a peer's attachment may use, for volumes and networks alike.
#![forbid(unsafe_code)]

mod allow;
pub mod proof;

pub use allow::{Allow, AllowList, allows};
pub use proof::{AttachmentKey, AttachmentSecret};
