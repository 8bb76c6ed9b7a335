//! All tests of whole nodes: one binary, since each that is linked by itself holds the whole node.

mod change;
mod common;
mod config;
mod config_house;
mod foreign;
mod keys;
mod live;
mod metrics;
mod prometheus;
mod serve;
mod start;
mod steering;
