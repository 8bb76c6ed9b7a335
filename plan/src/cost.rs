//! The price of a rack under several policies: which servers it has, which parts these have, what
//! all of it costs, and which power it takes over the years.
//!
//! [`form`] reads and checks `RACK.toml`, [`build`] derives the servers of a policy, [`bill`] adds
//! their parts up, [`search`] looks for the racks in which pooling pays.

pub mod bill;
pub mod build;
pub mod form;
pub mod search;
mod show;

pub use bill::{Bill, BilledPart, Comparison, compare};
pub use form::{PartKind, Policy, RackForm};
pub use search::{SearchCell, search};
pub use show::{comparison_text, search_text};

/// Lists of prices that are part of the program, by name.
pub const PRICE_LISTS: [(&str, &str); 2] = [
    ("slides-2016", include_str!("../data/prices-slides-2016.toml")),
    ("placeholder", include_str!("../data/prices-placeholder.toml")),
];

/// Racks that are part of the program, by name.
pub const RACKS: [(&str, &str); 3] = [
    ("r930-3", include_str!("../data/rack-r930-3.toml")),
    ("r930-6", include_str!("../data/rack-r930-6.toml")),
    ("example", include_str!("../data/rack-example.toml")),
];
