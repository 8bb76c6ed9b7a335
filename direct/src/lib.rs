//! The direct client: a peer's volume shown to this machine's own kernel, without a VMM between.
//!
//! [`run`] shows a disk and serves it, [`list`] and [`detach`] are what other commands ask of it.

mod client;
mod direct;
mod error;
mod home;
mod plan;
mod serve;
mod status;

pub use block::ublk::Shape;
pub use sidecore::Idle;

pub use self::client::DirectClient;
pub use self::direct::{Direct, host_name, remove_left};
pub use self::error::DirectError;
pub use self::home::{DIRECTORY_DEFAULT, Home, Record, records};
pub use self::plan::{AttachPeer, AttachPlan, PlanError};
pub use self::serve::{detach, list, run};
pub use self::status::DirectStatus;
