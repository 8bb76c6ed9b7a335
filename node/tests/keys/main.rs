//! Nodes with keys: who gets in, what a thief gets, and what a listener sees.

mod capture;
#[path = "../common/mod.rs"]
mod common;
#[path = "../live/control.rs"]
mod control;
mod pair;
mod revoke;
mod thief;
