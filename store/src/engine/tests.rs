//! The engine on devices in memory.

mod basics;
mod damage;
mod full;
mod pool;
