//! Nodes with keys: who gets in, what a thief gets, and what a listener sees.

mod capture;
mod pair;
mod revoke;
mod thief;
