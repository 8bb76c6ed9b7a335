//! Measurements of nodes, and the demo.

pub mod block;
pub mod compare;
pub mod connections;
pub mod demo;
pub mod failover;
pub mod load;
pub mod measure;
pub mod models;
pub mod net;
pub mod pace;
pub mod scale;
pub mod verdict;
