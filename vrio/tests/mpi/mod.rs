//! Unmodified MPIs and unmodified programs over the fabric of a real node, by the environment that
//! `vrio mpi env` prints.

mod applications;
mod bench;
pub(crate) mod built;
pub(crate) mod busy;
mod connections;
mod exercises;
mod hand_over;
mod house;
pub(crate) mod inputs;
pub(crate) mod mpich;
