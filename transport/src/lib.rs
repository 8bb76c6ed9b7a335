//! Sessions between nodes: the protocol, without sockets, threads, clock or unsafe code.
#![forbid(unsafe_code)]
