//! Debian's Open MPI, which knows nothing of vrio, over the provider alone. Its exercises also run
//! over a whole node (`vrio/tests/mpi`); each checks every byte.

use crate::domain::{TestDomain, compile, installed, text_of};
use std::process::Output;
use std::sync::OnceLock;

const EXERCISES: &str = "../vrio/tests/mpi/exercise.c";

/// Runs an exercise with so many ranks, which can send messages only through the provider.
fn run(domain: &TestDomain, words: &[&str], ranks: usize, what: &str) -> Output {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("mpicc.openmpi", EXERCISES, &[]));
    let ranks = ranks.to_string();
    let mut run = domain.command("mpirun.openmpi");
    run.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", &ranks]);
    run.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
    run.args(["--mca", "mtl_ofi_provider_include", "vrio"]).args(words);
    for (name, _) in domain.environment() {
        run.args(["-x", name]);
    }
    // Another job of this user has other files.
    run.env("TMPDIR", domain.path()).env("OMPI_MCA_btl", "self");
    run.args([program, what]).output().expect("it is installed")
}

fn is_installed(test: &str) -> bool {
    installed("mpicc.openmpi", "libopenmpi-dev", test)
        && installed("mpirun.openmpi", "openmpi-bin", test)
}

fn check(ranks: usize, exercises: &[&str], test: &str) {
    if !is_installed(test) {
        return;
    }
    let domain = TestDomain::new();
    for what in exercises {
        let ended = run(&domain, &[], ranks, what);
        let text = text_of(&ended);
        assert!(ended.status.success() && text.contains(&format!("ok {what}")), "{text}");
    }
}

#[test]
fn two_ranks_of_open_mpi_find_everything_as_it_was_sent() {
    let all =
        ["ping-pong", "order", "synchronous", "cancel", "truncate", "strided", "deaf", "local"];
    check(2, &all, "two_ranks_of_open_mpi_find_everything_as_it_was_sent");
}

#[test]
fn more_ranks_than_cores_get_on_as_well() {
    let all = ["all-to-all", "order", "synchronous", "collective"];
    check(5, &all, "more_ranks_than_cores_get_on_as_well");
}

#[test]
fn a_rank_that_waits_for_a_killed_rank_gets_an_error() {
    if !is_installed("a_rank_that_waits_for_a_killed_rank_gets_an_error") {
        return;
    }
    // Without this option mpirun ends the other ranks before they print their errors.
    let ended = run(&TestDomain::new(), &["--enable-recovery"], 3, "killed");
    let text = text_of(&ended);
    for rank in 0..2 {
        assert!(text.contains(&format!("rank {rank} was told: class")), "{text}");
    }
}
