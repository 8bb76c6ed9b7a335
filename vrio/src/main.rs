//! The vrio command line.
fn main() {}
