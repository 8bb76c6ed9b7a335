//! The options of the demo.

use std::path::PathBuf;

/// The options of the demo.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `vrio` program that the nodes run.
    pub program: PathBuf,
    /// The provider's file, which MPI programs load, or why there is none.
    pub provider: Result<PathBuf, String>,
    /// With a guest under QEMU; else with the stand-in driver.
    pub guest: bool,
    /// Where the logs are kept. Without it they are kept only if the demo fails.
    pub keep: Option<PathBuf>,
}
