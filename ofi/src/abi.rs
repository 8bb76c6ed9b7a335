//! What libfabric and a provider hand each other, byte by byte as C has it on a 64-bit machine.
//!
//! Nothing here is made from headers when it is built: every field carries its offset, the
//! compiler checks it, and a test compares all of it with the headers of an installed libfabric.
//!
//! There are two ABIs, 1.x (Debian's 1.17) and 2.x. Structs and tables have only ever grown at
//! their end: fields behind `later` are those that 1.17 does not have. Of what a program hands
//! over only the fields before that are read; what we hand out is always as long as 2.x has it,
//! and tables say how long they are.

mod calls;
mod data;
mod fid;
mod info;
mod layout;
mod objects;
mod refused;
mod tables;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use data::*;
pub(crate) use fid::*;
pub(crate) use info::*;
pub(crate) use objects::*;
pub(crate) use refused::*;
pub(crate) use tables::*;
pub(crate) use words::*;
