//! vrio as a user has it installed, for tests: the program, and the provider where that looks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Where Cargo puts the provider when it builds the workspace's tests.
///
/// # Errors
/// When it is not built.
pub fn provider() -> Result<PathBuf> {
    let tests = std::env::current_exe().context("finding this program")?;
    let built = tests.parent().context("it is in a directory")?.join("libvrio_fi.so");
    ensure!(built.is_file(), "{built:?} is not built; `cargo test --package ofi --no-run` does it");
    Ok(built)
}

/// Installs a program and the provider under a directory, and gives where the program is then.
///
/// # Errors
/// When there is no room, or no provider.
pub fn install(program: &Path, home: &Path) -> Result<PathBuf> {
    let installed = home.join("usr/bin/vrio");
    if installed.exists() {
        return Ok(installed);
    }
    let library = home.join("usr/lib/vrio/libvrio-fi.so");
    for path in [&installed, &library] {
        fs::create_dir_all(path.parent().context("it has one")?)?;
    }
    fs::copy(program, &installed).with_context(|| format!("copying {}", program.display()))?;
    symlink(provider()?, library)?;
    Ok(installed)
}
