//! The library that is built, loaded by an installed libfabric: by C programs that make every
//! call that MPI makes and sleep in every way, by libfabric's own tools, and by Open MPI.

mod domain;
mod library;
mod mpi;
mod sleep;
mod talk;
mod tools;
