//! Workloads, the checker of the data promise, event counts and the demo.

pub mod checker;
pub mod demo;
pub mod guest;
pub mod measure;
pub mod nodes;
pub mod sim;
pub mod stand_in;
pub mod workload;
