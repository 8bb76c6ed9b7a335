//! The common parts of these tests: an installation of vrio as a user has it, a node with domains,
//! MPIs and programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testbed::nodes::{Node, NodePlan};

use super::mpich::mpich;

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// How long a job may take on a busy machine, in seconds, before it is ended.
const PATIENCE_S: &str = "300";

/// How long the node may take to notice that a member is gone.
const NOTICE: Duration = Duration::from_secs(60);

/// MPIs that know nothing of vrio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mpi {
    /// Debian's Open MPI 4.1.
    Open,
    /// MPICH 5, which `scripts/install test` fetches.
    Mpich,
}

impl Mpi {
    /// The name of this MPI for `vrio mpi env --mpi`.
    fn word(self) -> &'static str {
        match self {
            Self::Open => "openmpi",
            Self::Mpich => "mpich",
        }
    }

    pub(crate) fn compiler(self) -> String {
        match self {
            Self::Open => "mpicc.openmpi".to_owned(),
            Self::Mpich => mpich().join("bin/mpicc").display().to_string(),
        }
    }

    /// Its launcher, before the number of ranks.
    pub(crate) fn run(self) -> String {
        match self {
            Self::Open => {
                "mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none".to_owned()
            }
            Self::Mpich => format!("{:?}", mpich().join("bin/mpirun")),
        }
    }
}

/// A node with two domains, and an installation of vrio as a user has it.
pub(crate) struct Stage {
    pub(crate) node: Node,
    installed: PathBuf,
    home: TempDir,
}

fn write_key(path: &Path, key: &str) {
    fs::write(path, format!("{key}\n")).expect("ours");
    fs::set_permissions(path, fs::Permissions::from_mode(0o640)).expect("ours");
}

impl Stage {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let key = home.path().join("blue.key");
        write_key(&key, KEY);
        write_key(&home.path().join("red.key"), &KEY.replace('0', "z"));
        let config = format!(
            "[[domain]]\nname = \"blue\"\nkey = {key:?}\nendpoints-max = 16\n\
             [[domain]]\nname = \"red\"\nkey = {:?}\nendpoints-max = 2\n",
            home.path().join("red.key")
        );
        let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n", config);
        let node = plan.start().expect("it starts");
        let installed = install(home.path());
        Self { node, installed, home }
    }

    /// A file that is removed with the rest.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Hands the node over to another process.
    pub(crate) fn hand_over(self) -> Self {
        self.with(|node| node.hand_over().unwrap_or_else(|error| panic!("{error:#}")))
    }

    /// The same stage with the node that `become_of` makes of the present one.
    pub(crate) fn with(self, become_of: impl FnOnce(Node) -> Node) -> Self {
        let Self { node, installed, home } = self;
        Self { node: become_of(node), installed, home }
    }

    pub(crate) fn domain(&self, name: &str) -> serde_json::Value {
        let status = self.node.status().expect("it answers");
        let domains = status["domains"].as_array().expect("it has some");
        domains.iter().find(|it| it["name"] == name).expect("it has it").clone()
    }

    /// Waits until the domain has no members and no endpoints.
    pub(crate) fn until_empty(&self) {
        let end = Instant::now() + NOTICE;
        loop {
            let blue = self.domain("blue");
            if blue["members"] == 0 && blue["endpoints"] == 0 {
                return;
            }
            assert!(Instant::now() < end, "somebody is still there: {blue}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// A shell in which an MPI uses a domain, by the commands that a user types and no others.
    pub(crate) fn shell(&self, mpi: Mpi, domain: &str, line: &str) -> Command {
        let control = self.node.plan().control();
        let mut shell = self.bare_shell(&format!(
            "vars=$({:?} mpi env --mpi {} --control {control:?} --domain {domain})\n\
             eval \"$vars\"\n{line}",
            self.installed,
            mpi.word()
        ));
        // Messages must use our provider: MPICH has a way of its own between ranks of a host.
        shell.env("OMPI_MCA_btl", "self").env("MPIR_CVAR_NOLOCAL", "1");
        shell
    }

    /// A shell whose jobs may use any way for their messages.
    fn bare_shell(&self, line: &str) -> Command {
        let mut shell = Command::new("timeout");
        shell.args(["--kill-after=5", PATIENCE_S, "sh", "-euc", line]);
        // The job has files of its own, and does not use those of another job of this user.
        shell.env("TMPDIR", self.home.path()).stdin(Stdio::null());
        shell
    }
}

/// Installs vrio and its provider in a directory, and gives the program.
pub(crate) fn install(home: &Path) -> PathBuf {
    testbed::installed::install(env!("CARGO_BIN_EXE_vrio").as_ref(), home).expect("it was built")
}
