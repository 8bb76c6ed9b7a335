//! Nics and networks on different nodes, in one thread with a network between them.

mod asks;
mod hostile;
mod links;
mod places;
mod rig;
mod whole;
