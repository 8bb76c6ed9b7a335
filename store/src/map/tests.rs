//! Tests of the map without an engine: a medium in memory, and a model of plain trees.

mod medium;
mod model;
