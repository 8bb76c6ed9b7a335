//! Unmodified MPIs and unmodified programs over the fabric of a real node, by the environment that
//! `vrio mpi env` prints.

mod applications;
mod bench;
mod built;
mod busy;
mod connections;
mod exercises;
mod hand_over;
mod house;
mod inputs;
mod mpich;
