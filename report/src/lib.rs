//! Keeping, importing, comparing and drawing results of measurements by vrio and other programs.
//! Nothing here measures, and nothing here knows the data path.

pub mod compare;
pub mod diff;
pub mod import;
pub mod merge;
pub mod page;
pub mod plot;
pub mod pool;
pub mod published;
mod show;
pub mod store;
mod tools;
