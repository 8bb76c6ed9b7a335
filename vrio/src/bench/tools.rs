//! Which versions of other programs a measurement meets.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// What has a part in benchmarks, and how it tells its version.
const TOOLS: [(&str, &str, &str); 3] = [
    ("QEMU", "qemu-system-x86_64", "--version"),
    ("mpirun", "mpirun", "--version"),
    ("iproute2", "ip", "-V"),
];

/// Characters of what one says: a version and who made it.
const WORDS_MAX: usize = 100;

/// What those say that are installed, in a line each.
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
