//! The engine on devices in memory.

mod basics;
mod changed;
mod checkpoint;
mod damage;
mod dedup;
mod devices;
mod full;
mod history;
#[path = "../../tests/devices/memory.rs"]
mod memory;
mod pool;
mod quota;
mod scrub;
mod sealing;
mod segments;
