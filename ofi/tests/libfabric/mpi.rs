//! Open MPI as Debian has it, which knows nothing of vrio, over the provider alone: the exercises
//! that also run over a whole node (`vrio/tests/mpi`), of which each looks at every byte.

use crate::house::{House, compile, installed, said};
use std::process::Output;
use std::sync::OnceLock;

const EXERCISES: &str = "../vrio/tests/mpi/exercise.c";

/// Runs one as so many ranks. Without the provider there is no other way for a message.
fn run(house: &House, words: &[&str], ranks: usize, what: &str) -> Output {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("mpicc.openmpi", EXERCISES, &[]));
    let ranks = ranks.to_string();
    let mut run = house.command("mpirun.openmpi");
    run.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", &ranks]);
    run.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
    run.args(["--mca", "mtl_ofi_provider_include", "vrio"]).args(words);
    for (name, _) in house.environment() {
        run.args(["-x", name]);
    }
    // Its own files, and not those of another job of this user.
    run.env("TMPDIR", house.path()).env("OMPI_MCA_btl", "self");
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
    let house = House::new();
    for what in exercises {
        let ended = run(&house, &[], ranks, what);
        let text = said(&ended);
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
fn who_waits_for_a_rank_that_is_killed_is_told_by_its_own_call() {
    if !is_installed("who_waits_for_a_rank_that_is_killed_is_told_by_its_own_call") {
        return;
    }
    // Without this mpirun ends the others before they could say anything.
    let ended = run(&House::new(), &["--enable-recovery"], 3, "killed");
    let text = said(&ended);
    for rank in 0..2 {
        assert!(text.contains(&format!("rank {rank} was told: class")), "{text}");
    }
}
