//! The kinds of objects that a node has, a file for each.

pub(crate) mod domain;
pub(crate) mod nic;
pub(crate) mod vf;
