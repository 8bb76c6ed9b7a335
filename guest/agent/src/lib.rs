//! A test guest's work on its disk, and the tools that the host needs in order to check the result.
//!
//! Every block of the disk holds a pattern that names its seed, its place and its generation, so
//! that a lost, torn or misplaced write is told apart from one that never happened. At the end the
//! guest tells the digest of what it believes to be on the disk, and the host compares the whole
//! image with that.
#![deny(unsafe_code)]

pub mod buffer;
pub mod churn;
pub mod hostile;
pub mod measure;
pub mod options;
pub mod pattern;
pub mod random;
pub mod stream;

use std::fmt::Display;

/// Starts every line that is meant for the host: the serial console carries other things as well.
pub const MARKER: &str = "@vrio: ";

/// Prints one line for the host, in one write, so that two programs' lines do not mix, and on a
/// line of its own even if the kernel was speaking.
pub fn say(line: impl Display) {
    use std::io::Write;
    let line = format!("\n{MARKER}{line}\n");
    // A console that is gone is nothing the agent could report anywhere else.
    let _ = std::io::stdout().write_all(line.as_bytes());
}
