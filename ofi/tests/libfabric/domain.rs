//! A domain for tests: a node's registration server, and the provider's file under the name that
//! libfabric wants.

use fabric::registration::DomainKey;
use fabric_node::registration::{DomainSettings, RegistrationServer};
use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const KEY: &str = "0123456789abcdef";
/// Endpoints at once, for all programs of a test.
const ENDPOINTS_MAX: u16 = 16;
/// How long a program may take on a busy machine, in seconds, before it is ended.
const PATIENCE_S: &str = "100";

pub(crate) struct TestDomain {
    home: TempDir,
    _server: RegistrationServer,
}

/// The library, where cargo puts it beside the tests that it builds.
pub(crate) fn library() -> PathBuf {
    let tests = env::current_exe().expect("this is one").parent().expect("it is in one").to_owned();
    let built = tests.join("libvrio_fi.so");
    assert!(built.exists(), "{built:?} is not built; `cargo test -p ofi` builds it");
    built
}

impl TestDomain {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let server =
            RegistrationServer::open(&home.path().join("fabric"), 77).expect("nothing is there");
        let key = DomainKey::new(KEY).expect("it is long enough");
        let settings = DomainSettings {
            name: "blue".to_owned(),
            key,
            endpoints_max: ENDPOINTS_MAX,
            gateways: 0,
        };
        server.add(settings).expect("memory");
        let providers = home.path().join("providers");
        std::fs::create_dir(&providers).expect("ours");
        symlink(library(), providers.join("libvrio-fi.so")).expect("ours");
        Self { home, _server: server }
    }

    pub(crate) fn path(&self) -> &Path {
        self.home.path()
    }

    /// The variables that a program needs in its environment.
    pub(crate) fn environment(&self) -> [(&'static str, String); 4] {
        let path = |name| self.path().join(name).display().to_string();
        [
            ("FI_PROVIDER_PATH", path("providers")),
            ("VRIO_FABRIC", path("fabric")),
            ("VRIO_DOMAIN", "blue".to_owned()),
            ("VRIO_DOMAIN_KEY", KEY.to_owned()),
        ]
    }

    /// A program that may join the domain, and is ended if it hangs.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", PATIENCE_S, program]).envs(self.environment());
        command
    }
}

/// Compiles a C program. The path of its source is relative to the package.
pub(crate) fn compile(compiler: &str, source: &str, options: &[&str]) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let program = source.file_stem().expect("it has a name");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program);
    // Other tests, which are processes of their own, may be running the same program by now.
    let made = program.with_extension(std::process::id().to_string());
    let mut compile = Command::new(compiler);
    compile.args(["-O1", "-Wall", "-o"]).arg(&made).arg(source).args(options);
    output_of(compile.output().expect("it is installed"));
    std::fs::rename(&made, &program).expect("the same folder");
    program.to_str().expect("a plain name").to_owned()
}

/// The text of a program's outputs. Fails unless the program succeeded.
pub(crate) fn output_of(output: Output) -> String {
    let text = text_of(&output);
    assert!(output.status.success(), "{}: {text}", output.status);
    text
}

/// The text of both outputs of a program.
pub(crate) fn text_of(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{err}")
}

/// Whether a program is installed. If not, prints that the test is skipped.
pub(crate) fn installed(program: &str, package: &str, test: &str) -> bool {
    let found = Command::new("which").arg(program).output();
    let found = found.is_ok_and(|found| found.status.success());
    if !found {
        println!("SKIP {test}: no {program} here (package {package})");
    }
    found
}
