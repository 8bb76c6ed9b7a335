//! Guests, nodes, measurements and the demo.

pub mod block;
mod cleanup;
pub mod compare;
pub mod connections;
pub mod demo;
mod events;
pub mod failover;
pub mod guest;
pub mod hosts;
pub mod installed;
mod interrupts;
pub mod load;
pub mod machine;
pub mod measure;
pub mod models;
pub mod net;
pub mod nodes;
pub mod pace;
pub mod pair;
pub mod progress;
pub mod scale;
pub mod stage;
pub mod stand_in;
pub mod verdict;
