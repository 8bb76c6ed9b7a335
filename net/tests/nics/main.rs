//! Nics and what passes between them, over rings as guests have them, without sockets and threads.

mod allocations;
#[path = "../../../sidecore/tests/counting/mod.rs"]
mod counting;
mod frames;
mod pairs;
