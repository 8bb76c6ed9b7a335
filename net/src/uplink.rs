//! Ways from a network to what is outside of the node.

pub mod tap;

pub use tap::{OpenTap, Tap, TapCore};
