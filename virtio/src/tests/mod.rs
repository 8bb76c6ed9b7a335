//! Tests of the ring, with a driver side of their own that can be as wrong as it likes.

mod hostile;
mod recovery;
mod ring;
mod split;
mod threads;
