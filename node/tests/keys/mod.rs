//! Nodes with keys: which nodes get in, and the limits of a thief and of a listener.

mod capture;
mod pair;
mod revoke;
mod thief;
