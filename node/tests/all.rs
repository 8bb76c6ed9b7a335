//! All tests of whole nodes: one binary, since each that is linked by itself holds the whole node.

mod common;
mod foreign;
mod keys;
mod live;
mod metrics;
mod prometheus;
mod serve;
mod start;
mod steering;
