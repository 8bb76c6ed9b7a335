//! vrio as a user has it installed, for tests: the program, and the provider in the place where the
//! program looks.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The file of the provider, where Cargo puts it when it builds the workspace's tests.
///
/// # Errors
/// When the provider is not built.
pub fn provider() -> Result<PathBuf> {
    let tests = std::env::current_exe().context("finding this program")?;
    let built = tests.parent().context("it is in a directory")?.join("libvrio_fi.so");
    ensure!(built.is_file(), "{built:?} is not built; `cargo test --package ofi --no-run` does it");
    Ok(built)
}

/// Installs a program and the provider under a directory, and gives the program's path there.
///
/// # Errors
/// When the files cannot be copied, or there is no provider.
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
