//! Disks and nics under simulation: the real code of rings, disk, channel, session, server and
//! export, and of nics, networks and their plane, on a simulated clock, network and disk, all from
//! one seed.
//!
//! One IOhost exports one volume; one VMhost at a time holds its attachment, with several queues;
//! each has one to four sidecores, another number each time; requests overlap on purpose. In half
//! of the runs the sessions are sealed, in a third the volume is encrypted. The VMhost's queues go
//! from sidecore to sidecore now and then. The guest has nics in two networks of the IOhost
//! (`nics.rs`), on the same sidecores and sessions. Faults strike at random moments.
//! [`workload::checker::Checker`] decides what the guest may read, and
//! [`workload::frames::FrameChecker`] which frames guests may hear.

mod cipher;
mod client;
mod fault;
mod host;
mod keys;
mod nics;
mod report;
mod server;
mod storage;
mod world;

pub use fault::{Fault, FaultCounts};
pub use nics::FrameCounts;
pub use report::{SimFailure, SimulationReport};
pub use storage::DiskCounts;
pub use world::run;
