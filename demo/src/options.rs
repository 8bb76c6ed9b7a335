//! The options of the demo.

use std::path::PathBuf;

/// The options of the demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The `vrio` program that the nodes run.
    pub program: PathBuf,
    /// The provider's file, which MPI programs load, or the reason why there is none.
    pub provider: Result<PathBuf, String>,
    /// Whether the demo has a guest under QEMU; else it has the stand-in driver.
    pub guest: bool,
    /// The directory for the logs. Without it they are kept only if the demo fails.
    pub keep: Option<PathBuf>,
}
