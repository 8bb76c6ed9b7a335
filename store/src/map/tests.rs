//! Tests of the map without an engine: a medium in memory, and a model of plain trees.

mod cache;
mod catalog;
mod damage;
mod family;
mod history;
mod medium;
mod model;
mod receive;
