//! All tests of configurations: one binary, since each that is linked by itself holds all crates.

mod change;
mod cluster;
mod files;
mod house;
mod long;
mod pools;
mod replicas;
mod routes;
