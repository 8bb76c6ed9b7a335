//! Workloads, the checker of the data promise, event counts and the demo.

pub mod guest;
