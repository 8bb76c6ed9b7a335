//! The run time of an MPI application on a platform: a profile of its messages and its computation,
//! by the platform's curves of latency and bandwidth.
//!
//! [`profile`] and [`platform`] read and check files, [`measured`] makes a platform of results,
//! [`collective`] has the algorithms' costs, [`predict()`] adds them up.

pub mod collective;
pub mod curve;
pub mod measured;
pub mod platform;
pub mod predict;
pub mod profile;
mod results;
mod show;
pub mod span;

pub use platform::{PLATFORMS, Platform};
pub use predict::{HeldOutTest, Predicted, Prediction, predict};
pub use profile::{Pattern, Profile};
pub use results::predicted_results;
pub use show::predictions_text;

/// The profile that `vrio plan example profile` prints.
pub const EXAMPLE: &str = include_str!("../data/profile-example.toml");
/// A program in C that records a profile, for `vrio plan example pmpi`.
pub const RECORDER: &str = include_str!("../data/profile.c");
