//! The planner: the price of a rack with and without IOhosts, the latencies of a load on it, and
//! the run time of an MPI application on a platform.
//!
//! Nothing here knows the data path or measures. Files are read by [`command`] alone; all other
//! modules take texts and numbers, and give the same result for the same input on each machine.

pub mod application;
pub mod command;
pub mod cost;
mod fault;
pub mod measured;
pub mod money;
pub mod own;
mod planned;
pub mod published;
pub mod simulate;
pub mod size;
mod text;
pub mod trace;

pub use fault::PlanFault;
