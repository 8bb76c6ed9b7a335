//! The price of a rack under several policies: which servers it has, which parts these have, what
//! all of it costs, and which power it takes over the years.
//!
//! [`form`] reads and checks `RACK.toml`, [`build`] derives the servers of a policy, [`bill`] adds
//! their parts up, [`search()`] looks for the racks in which pooling pays.

pub mod bill;
pub mod build;
pub mod form;
mod results;
pub mod search;
pub mod shipped;
mod show;

pub use bill::{Bill, BilledPart, RackComparison, compare};
pub use form::{PartKind, Policy, RackForm};
pub use results::{SearchForm, comparison_results, search_results};
pub use search::{SearchCell, search};
pub use shipped::RACKS;
pub use show::{comparison_text, search_text};

#[cfg(test)]
mod tests;
