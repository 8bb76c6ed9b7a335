//! The protocol in a world of faults: as a seed chooses, and in each order that a small case has.

#[path = "protocol/damage.rs"]
mod damage;
#[path = "protocol/exhaustive.rs"]
mod exhaustive;
#[path = "protocol/recovery.rs"]
mod recovery;
#[path = "protocol/simulation.rs"]
mod simulation;
#[path = "protocol/steps.rs"]
mod steps;
#[path = "protocol/take_over.rs"]
mod take_over;
#[path = "protocol/world/mod.rs"]
mod world;
