//! The whole block path under simulation: the real code of rings, disk, channel, session, server
//! and export on a simulated clock, network and disk, all from one seed.
//!
//! One IOhost exports one volume; one VMhost at a time holds its attachment, with several queues;
//! each has one to four sidecores, another number each time; requests overlap on purpose. In half
//! of the runs the sessions are sealed, in a third the volume is encrypted. The VMhost's queues go
//! from sidecore to sidecore now and then. Frames of a network pass beside the disk, in both
//! directions. Faults strike at random moments. [`workload::checker::Checker`] decides what the
//! guest may see.

mod cipher;
mod client;
mod fault;
mod frames;
mod host;
mod keys;
mod network;
mod server;
mod storage;
mod world;

pub use fault::{Fault, FaultCounts};
pub use network::NetworkCounts;
pub use storage::DiskCounts;
pub use world::{SimFailure, SimulationReport, run};
