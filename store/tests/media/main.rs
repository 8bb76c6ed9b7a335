//! The devices of a pool: another reader understands it, and a hostile writer of it
//! does no harm to the engine.

mod crash;
mod cuts;
mod forge;
mod hostile;
#[path = "../devices/memory.rs"]
mod memory;
mod pool;
mod reader;
#[path = "../devices/recorded.rs"]
mod recorded;
