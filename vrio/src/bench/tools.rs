//! The versions of other programs that a measurement uses.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// The programs that benchmarks use, each with the option that prints its version.
const TOOLS: [(&str, &str, &str); 3] = [
    ("QEMU", "qemu-system-x86_64", "--version"),
    ("mpirun", "mpirun", "--version"),
    ("iproute2", "ip", "-V"),
];

/// The most characters of a version's line: a version and the name of its maker.
const WORDS_MAX: usize = 100;

/// The versions of the programs that are installed, a line of each.
pub(super) fn versions() -> BTreeMap<String, String> {
    let told = TOOLS.into_iter().filter_map(|(name, program, word)| {
        let mut command = Command::new(program);
        let output = command.arg(word).stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| !line.trim().is_empty())?.trim();
        Some((name.to_owned(), line.chars().take(WORDS_MAX).collect()))
    });
    told.collect()
}
