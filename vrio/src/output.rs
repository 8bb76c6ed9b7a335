//! Output of commands.

use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::Context;

use crate::failure::CommandFailure;

/// Prints to standard output. A reader that has closed its end is no error.
pub(crate) fn print(text: &str) -> Result<(), CommandFailure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot print").map_err(CommandFailure::running),
    }
}

/// Prints a line to standard error. It may be gone, such as a terminal that was closed, and this is
/// no reason to end the command.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
