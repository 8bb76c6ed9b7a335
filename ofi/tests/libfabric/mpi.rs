//! Open MPI as Debian has it, which knows nothing of vrio: a program of ours that sends everything
//! to everyone and looks at every byte, over the provider alone.

use crate::house::{House, compile, installed, well};
use std::sync::OnceLock;

/// Runs it as so many ranks. Without the provider there is no other way for a message.
fn run(house: &House, program: &str, ranks: usize) -> String {
    let ranks = ranks.to_string();
    let mut run = house.command("mpirun.openmpi");
    run.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", &ranks]);
    run.args(["--mca", "pml", "cm", "--mca", "mtl", "ofi"]);
    run.args(["--mca", "mtl_ofi_provider_include", "vrio"]);
    for (name, _) in house.environment() {
        run.args(["-x", name]);
    }
    // Its own files, and not those of another job of this user.
    run.env("TMPDIR", house.path()).env("OMPI_MCA_btl", "self");
    well(run.arg(program).output().expect("it is installed"))
}

fn check(ranks: usize, test: &str) {
    if !installed("mpicc.openmpi", "libopenmpi-dev", test)
        || !installed("mpirun.openmpi", "openmpi-bin", test)
    {
        return;
    }
    static PROGRAM: OnceLock<String> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| compile("mpicc.openmpi", "everyone", &["-Werror"]));
    let said = run(&House::new(), program, ranks);
    assert!(said.contains(&format!("{ranks} ranks: all as it was sent")), "{said}");
}

#[test]
fn two_ranks_of_open_mpi_find_everything_as_it_was_sent() {
    check(2, "two_ranks_of_open_mpi_find_everything_as_it_was_sent");
}

#[test]
fn more_ranks_than_cores_get_on_as_well() {
    check(5, "more_ranks_than_cores_get_on_as_well");
}
