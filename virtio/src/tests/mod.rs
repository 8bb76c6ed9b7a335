//! Tests of the ring, with a driver side of their own that can be as wrong as it likes.

mod dirty;
mod hostile;
mod memory;
mod messages;
mod oracle;
mod packed;
mod parked;
mod recovery;
mod resume;
mod ring;
mod server;
mod session;
mod shrink;
mod singles;
mod socket;
mod split;
mod threads;
