//! Debian's own programs, linked to its Open MPI: small inputs, and the parts of their output that
//! must be the same by every way of their messages.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::built::said;

/// How long a job may take on a busy machine, in seconds, before it is ended.
const PATIENCE_S: &str = "300";

/// How often a job is looked at, until it has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// As many ranks as there are cores on the smallest machine: all of them poll.
pub(crate) const RANKS: usize = 2;

/// Atoms that melt: a crystal that is heated far beyond its melting point.
const MELT: &str = "\
units lj
atom_style atomic
lattice fcc 0.8442
region everywhere block 0 8 0 8 0 8
create_box 1 everywhere
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 41771
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix motion all nve
thermo 20
run 60
";

/// Two atoms of silicon, self-consistently.
const SILICON: &str = "\
&control
  calculation = 'scf', prefix = 'si', outdir = './out', pseudo_dir = '/usr/share/espresso/pseudo'
/
&system
  ibrav = 2, celldm(1) = 10.2, nat = 2, ntyp = 1, ecutwfc = 16.0
/
&electrons
  conv_thr = 1.0d-8
/
ATOMIC_SPECIES
 Si 28.086 Si.pz-vbc.UPF
ATOMIC_POSITIONS alat
 Si 0.00 0.00 0.00
 Si 0.25 0.25 0.25
K_POINTS automatic
 4 4 4 1 1 1
";

/// HPC Challenge's input by its lines. They have only the values: the program skips the words after
/// them.
const CHALLENGE: [&str; 36] = [
    "input of vrio's tests",
    "HPC Challenge",
    "HPL.out",
    "8",
    "1",
    "400",
    "1",
    "40",
    "0",
    "1",
    "1",
    "2",
    "16.0",
    "1",
    "2",
    "1",
    "4",
    "1",
    "2",
    "1",
    "1",
    "1",
    "1",
    "1",
    "1",
    "2",
    "64",
    "0",
    "0",
    "1",
    "8",
    "(skipped)",
    "0",
    "400",
    "0",
    "40",
];

/// A program and its input.
pub(crate) struct Application {
    /// Its command line, in a folder with the input.
    pub(crate) words: &'static str,
    input: (&'static str, String),
    /// The file with its results, if they are not in its output.
    output: Option<&'static str>,
    is_result: fn(&str) -> bool,
}

impl Application {
    /// HPC Challenge, which itself reports whether it found a fault.
    pub(crate) fn challenge() -> Self {
        let input = ("hpccinf.txt", CHALLENGE.join("\n") + "\n");
        let is_result = |line: &str| line == "Success=1";
        Self { words: "hpcc", input, output: Some("hpccoutf.txt"), is_result }
    }

    /// LAMMPS' melt: steps, temperatures, energies, pressures.
    pub(crate) fn melt() -> Self {
        let is_result = |line: &str| {
            let mut words = line.split_whitespace();
            line.split_whitespace().count() >= 5 && words.all(|word| word.parse::<f64>().is_ok())
        };
        let input = ("melt.in", MELT.to_owned());
        Self { words: "lmp -in melt.in -log none", input, output: None, is_result }
    }

    /// Quantum ESPRESSO's silicon: its energy.
    pub(crate) fn silicon() -> Self {
        let is_result = |line: &str| line.starts_with("!    total energy");
        let input = ("si.in", SILICON.to_owned());
        Self { words: "pw.x -in si.in", input, output: None, is_result }
    }

    /// Runs it in a folder of its own, by the command that `job` makes, and calls `look` meanwhile.
    /// Gives its results.
    pub(crate) fn run(
        &self,
        folder: &Path,
        job: impl FnOnce(&Path, &str) -> Command,
        look: impl FnMut(),
    ) -> Vec<String> {
        let (name, input) = &self.input;
        fs::create_dir(folder).expect("ours");
        fs::write(folder.join(name), input).expect("ours");
        let mut job = job(folder, self.words);
        let job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let output = attend(job.expect("sh is everywhere"), look);
        let text = said(&output);
        assert!(output.status.success(), "{}: {}\n{text}", self.words, output.status);
        let found = self.output.map(|name| fs::read_to_string(folder.join(name)));
        let found = found.transpose().expect("it writes one").unwrap_or(text);
        let results: Vec<_> =
            found.lines().filter(|line| (self.is_result)(line)).map(str::to_owned).collect();
        assert!(!results.is_empty(), "{}: {found}", self.words);
        results
    }

    /// The results by Open MPI's shared memory.
    pub(crate) fn run_by_shared_memory(&self, folder: &Path) -> Vec<String> {
        let job = |folder: &Path, words: &str| {
            let mut job = Command::new("timeout");
            job.args(["--kill-after=5", PATIENCE_S, "mpirun.openmpi", "--allow-run-as-root"]);
            job.args(["--oversubscribe", "--bind-to", "none", "-n"]);
            job.arg(RANKS.to_string()).args(words.split(' ')).current_dir(folder);
            job.env("OMPI_MCA_pml", "ob1").env("OMPI_MCA_btl", "self,vader");
            job.env("TMPDIR", folder).stdin(Stdio::null());
            job
        };
        self.run(folder, job, || {})
    }
}

/// Calls `look` again and again until a job has ended.
fn attend(job: Child, mut look: impl FnMut()) -> Output {
    let (sender, receiver) = mpsc::channel();
    let collect = std::thread::spawn(move || {
        // The receiver stays until the output has come.
        let _ = sender.send(job.wait_with_output().expect("it was begun"));
    });
    let output = loop {
        look();
        match receiver.recv_timeout(LOOK_AGAIN) {
            Ok(output) => break output,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => panic!("nobody waits for the job"),
        }
    };
    collect.join().expect("it has sent");
    output
}
