//! The vrio daemon: configuration, wiring, control API.
