//! Programs as Debian has them, linked to its Open MPI: what they find out by our provider is what
//! they find out by shared memory.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::built::said;
use crate::house::{Mpi, Stage};

/// As many as there are cores on the smallest machine: all of them poll.
const RANKS: u64 = 2;

/// How often the node is asked who is in.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

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

/// HPC Challenge's input by its lines: values, where the program skips the words behind them.
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

/// Runs a program in a directory of its own by our provider, and sees to it that its ranks were in
/// the domain.
fn by_vrio(stage: &Stage, place: &Path, words: &str) -> Output {
    let run = Mpi::Open.run();
    let line = format!("cd {place:?}\nexec {run} -n {RANKS} {words}");
    let mut job = stage.shell(Mpi::Open, "blue", &line);
    let job = job.stdout(Stdio::piped()).stderr(Stdio::piped());
    let job = job.spawn().expect("sh is everywhere");
    let (sender, receiver) = std::sync::mpsc::channel();
    let collect = std::thread::spawn(move || {
        let _ = sender.send(job.wait_with_output().expect("it was begun"));
    });
    let mut most = 0;
    let output = loop {
        most = most.max(stage.domain("blue")["members"].as_u64().expect("a number"));
        if let Ok(output) = receiver.recv_timeout(LOOK_AGAIN) {
            break output;
        }
    };
    collect.join().expect("it has sent");
    assert!(output.status.success(), "{words}: {}", said(&output));
    assert_eq!(most, RANKS, "its messages went another way: {}", said(&output));
    output
}

/// The same by Open MPI's shared memory.
fn by_shared_memory(stage: &Stage, place: &Path, words: &str) -> Output {
    let run = Mpi::Open.run();
    let mut job: Command =
        stage.bare_shell(&format!("cd {place:?}\nexec {run} -n {RANKS} {words}"));
    job.env("OMPI_MCA_pml", "ob1").env("OMPI_MCA_btl", "self,vader");
    let output = job.output().expect("sh is everywhere");
    assert!(output.status.success(), "{words}: {}", said(&output));
    output
}

/// The lines of an output that `is` picks, one at least.
fn lines(output: &Output, is: impl Fn(&str) -> bool) -> Vec<String> {
    let text = said(output);
    let lines: Vec<_> = text.lines().filter(|line| is(line)).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "{text}");
    lines
}

fn directory(stage: &Stage, name: &str) -> std::path::PathBuf {
    let place = stage.path(name);
    fs::create_dir(&place).expect("ours");
    place
}

#[test]
fn hpc_challenge_finds_no_fault() {
    let stage = Stage::new();
    let place = directory(&stage, "hpcc");
    fs::write(place.join("hpccinf.txt"), CHALLENGE.join("\n") + "\n").expect("ours");
    by_vrio(&stage, &place, "hpcc");
    let found = fs::read_to_string(place.join("hpccoutf.txt")).expect("it writes one");
    assert!(found.lines().any(|line| line == "Success=1"), "{found}");
    stage.until_empty();
}

#[test]
fn atoms_melt_as_they_do_over_shared_memory() {
    let stage = Stage::new();
    let place = directory(&stage, "melt");
    fs::write(place.join("melt.in"), MELT).expect("ours");
    let words = "lmp -in melt.in -log none";
    // Steps, temperatures, energies, pressures.
    let is_number = |line: &str| {
        let mut words = line.split_whitespace();
        line.split_whitespace().count() >= 5 && words.all(|word| word.parse::<f64>().is_ok())
    };
    let ours = lines(&by_vrio(&stage, &place, words), is_number);
    let theirs = lines(&by_shared_memory(&stage, &place, words), is_number);
    assert_eq!((ours.len(), &ours), (4, &theirs));
    stage.until_empty();
}

#[test]
fn silicon_has_the_energy_that_it_has_over_shared_memory() {
    let stage = Stage::new();
    let place = directory(&stage, "silicon");
    fs::write(place.join("si.in"), SILICON).expect("ours");
    let (words, is_energy) = ("pw.x -in si.in", |line: &str| line.starts_with("!    total energy"));
    let ours = lines(&by_vrio(&stage, &place, words), is_energy);
    let theirs = lines(&by_shared_memory(&stage, &place, words), is_energy);
    assert_eq!(ours, theirs);
    assert!(ours[0].contains("-15.8"), "{ours:?}");
    stage.until_empty();
}
