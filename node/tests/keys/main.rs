//! Nodes with keys: who gets in, what a thief gets, and what a listener sees.

mod capture;
#[path = "../common/mod.rs"]
mod common;
mod pair;
mod thief;
