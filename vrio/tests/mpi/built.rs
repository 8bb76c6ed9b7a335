//! The programs of this folder that MPI tests run, and their outputs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use tempfile::TempDir;

/// The exercises, built once.
pub(crate) fn exercise() -> &'static Path {
    static BUILT: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    &BUILT.get_or_init(|| compile("mpicc.openmpi", "exercise", &[])).1
}

/// Builds a program. `name` is the path of its source from this folder on.
pub(crate) fn compile(compiler: &str, name: &str, words: &[&str]) -> (TempDir, PathBuf) {
    let home = tempfile::tempdir().expect("a directory");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mpi");
    let source = folder.join(format!("{name}.c"));
    let program = home.path().join(source.file_stem().expect("it has a name"));
    let mut compile = Command::new(compiler);
    compile.args(["-O1", "-Wall", "-o"]).arg(&program).arg(source);
    let compiled = compile.args(words).output().expect("a compiler: scripts/install test");
    assert!(compiled.status.success(), "{}", said(&compiled));
    (home, program)
}

pub(crate) fn said(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}
