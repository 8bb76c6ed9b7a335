//! The binary interface between libfabric and a provider, in C's layout on a 64-bit machine.
//!
//! No headers are needed to build it. Every field carries its offset, which the compiler checks. A
//! test compares all of it with the headers of an installed libfabric.
//!
//! There are two ABIs, 1.x (Debian's 1.17) and 2.x. Structs and tables have only ever grown at
//! their end: the fields behind `later` are those that 1.17 does not have. The provider does not
//! read these fields in structs of a program. Its own structs and tables have them always, and
//! tables say how long they are.

mod calls;
mod constants;
mod data;
mod fid;
mod info;
mod layout;
mod objects;
mod refused;
mod tables;
#[cfg(test)]
mod tests;

pub(crate) use constants::*;
pub(crate) use data::*;
pub(crate) use fid::*;
pub(crate) use info::*;
pub(crate) use objects::*;
pub(crate) use refused::*;
pub(crate) use tables::*;
