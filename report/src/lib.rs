//! Results of measurements by vrio and other programs: the form of their files, and what can be
//! done with such files. Nothing here measures, and nothing here knows the data path.

pub mod compare;
pub mod diff;
pub mod import;
pub mod merge;
pub mod page;
pub mod plot;
pub mod pool;
pub mod published;
pub mod result;
pub mod schema;
mod show;
pub mod store;
pub mod unit;
