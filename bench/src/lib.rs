//! Measurements of nodes, and of the programs that a user would pick instead of vrio.

pub mod block;
pub mod failover;
pub mod figures;
pub mod load;
pub mod measure;
pub mod models;
pub mod net;
pub mod pace;
pub mod replicas;
pub mod scale;
pub mod verdict;
