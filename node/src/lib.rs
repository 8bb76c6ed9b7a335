//! The vrio daemon: configuration, wiring, control API.

pub mod config;
pub mod control;
pub mod logging;
pub mod status;

pub use config::{Config, ConfigError};
