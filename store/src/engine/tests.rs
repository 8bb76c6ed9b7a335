//! The engine on devices in memory.

mod basics;
mod changed;
mod damage;
mod full;
mod pool;
mod scrub;
