//! An MPI that Debian does not package.

use std::path::PathBuf;

/// The directory where `scripts/install test` puts MPICH.
pub(crate) fn mpich() -> PathBuf {
    let tests = std::env::current_exe().expect("this is one");
    let targets = tests.ancestors().skip(1).map(|it| it.join("tools/mpich"));
    let found = targets.into_iter().find(|it| it.join("bin/mpicc").is_file());
    found.expect("MPICH is missing: scripts/install test fetches it")
}
