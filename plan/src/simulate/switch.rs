//! An exchange of messages between hosts on switches: all to all, or across the middle.
//!
//! Leaf switches have hosts below them and up-links above them, each to a spine switch of its own,
//! which has a down-link to each leaf. A message is cut into packets. A link sends packets in the
//! order of arrival, and a switch drops none: the report has the longest queue, so that a reader
//! sees what a switch with less memory would drop. All randomness comes from one seed.

mod form;
mod link;
mod report;
mod results;
mod world;

pub use form::{ExchangePattern, Placement, Routing, SwitchLoad, SwitchNetwork, SwitchScenario};
pub use report::{LinkUse, SwitchReport, switch_rows_text, switch_text};
pub use results::{VariedSwitchForm, VariedSwitchReport, switch_results, varied_switch_results};
pub use world::simulate_switch;

/// The scenario that `vrio plan example switch` prints.
pub const SWITCH: &str = include_str!("../../data/scenario-switch.toml");

#[cfg(test)]
mod tests;
