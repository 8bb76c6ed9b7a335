//! Measurements of nodes, and of what one would use instead of vrio.

pub mod block;
pub mod compare;
pub mod connections;
pub mod failover;
pub mod load;
pub mod measure;
pub mod models;
pub mod net;
pub mod pace;
pub mod scale;
pub mod verdict;
