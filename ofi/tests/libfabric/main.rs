//! The library that is built, loaded by an installed libfabric: by a C program that makes every
//! call that MPI makes, by libfabric's own tools, and by Open MPI.

mod house;
mod library;
mod mpi;
mod talk;
mod tools;
