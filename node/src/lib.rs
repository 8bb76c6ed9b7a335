//! The vrio daemon: configuration, wiring, control API.
//!
//! [`Config::load`] reads a file, and [`run`] starts the node that it describes. The wiring of its
//! parts is in [`wiring`], one file per kind of object.

pub mod control;
mod heap;
pub mod kinds;
pub mod logging;
pub mod metrics;
mod notify;
mod run;
pub mod steering;
pub mod wiring;

pub use ::api;
pub use ::api::status;
pub use ::config;
pub use config::{Config, ConfigError};
pub use fabric::IN_VM as FABRIC_IN_VM;
pub use member;
pub use privilege::agent;
pub use run::{Origin, check, run};
pub use sessions::key_files as keys;
pub use store;
pub use volume::backend::store as pools;
pub use wiring::{Node, Opened, StartError, TakeOverError};
