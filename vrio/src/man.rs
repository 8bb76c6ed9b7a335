//! The manual, from the command line's own definitions.

use std::fs;
use std::path::Path;

use anyhow::Context;

use crate::failure::CommandFailure;

/// Writes a page for `command` and for each command in it.
pub(crate) fn write(command: clap::Command, directory: &Path) -> Result<(), CommandFailure> {
    fs::create_dir_all(directory)
        .with_context(|| format!("making {}", directory.display()))
        .map_err(CommandFailure::running)?;
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("writing pages into {}", directory.display()))
        .map_err(CommandFailure::running)
}
