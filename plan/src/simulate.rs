//! An event simulator of guests, sidecores, cards, IOhosts, drives, copies and the death of an
//! IOhost.
//!
//! Time is in integer nanoseconds, and all randomness comes from one seed: the same scenario gives
//! the same bytes on each machine. An event is the arrival of a request at a station. A station
//! serves in the order of arrival, so its next end is known at once, and no queue is kept: an idle
//! sidecore that polls costs no event.

pub mod calendar;
#[cfg(test)]
mod closed;
mod results;
pub mod scenario;
pub(crate) mod show;
pub mod switch;
pub mod variate;
pub mod world;

pub use results::{VariedForm, VariedReport, report_results, varied_results};
pub use scenario::{Scenario, Vary};
pub use show::{report_text, rows_text};
pub(crate) use world::simulate_tail;
pub use world::{LatencySummary, SimulationReport, simulate};

/// The scenario that `vrio plan example scenario` prints.
pub const EXAMPLE: &str = include_str!("../data/scenario-example.toml");
/// A scenario in which an IOhost dies, and a spare one serves its guests.
pub const DEATH: &str = include_str!("../data/scenario-death.toml");
/// A scenario of what `vrio bench block` does.
pub const BENCH: &str = include_str!("../data/scenario-bench.toml");
/// A large scenario: 4,096 hosts with 65,536 guests, for one second.
pub const LARGE: &str = include_str!("../data/scenario-large.toml");
