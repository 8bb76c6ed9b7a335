//! The vrio daemon: configuration, wiring, control API.

pub mod config;

pub use config::{Config, ConfigError};
