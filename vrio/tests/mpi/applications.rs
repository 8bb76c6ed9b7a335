//! Debian's own programs, linked to its Open MPI: their results by our provider are the same as by
//! shared memory.

use super::house::{Mpi, Stage};
use super::inputs::{Application, RANKS};

/// The results of an application by our provider. All its ranks were in the domain.
fn by_vrio(stage: &Stage, application: &Application) -> Vec<String> {
    let mut most = 0;
    let found = application.run(
        &stage.path("by-vrio"),
        |folder, words| {
            let line = format!("cd {folder:?}\nexec {} -n {RANKS} {words}", Mpi::Open.run());
            stage.shell(Mpi::Open, "blue", &line)
        },
        || most = most.max(stage.domain("blue")["members"].as_u64().expect("a number")),
    );
    assert_eq!(most, RANKS as u64, "its messages went another way");
    stage.until_empty();
    found
}

#[test]
fn hpc_challenge_finds_no_fault() {
    let stage = Stage::new();
    assert_eq!(by_vrio(&stage, &Application::challenge()), ["Success=1"]);
}

#[test]
fn atoms_melt_as_they_do_over_shared_memory() {
    let (stage, melt) = (Stage::new(), Application::melt());
    let ours = by_vrio(&stage, &melt);
    let theirs = melt.run_by_shared_memory(&stage.path("theirs"));
    assert_eq!((ours.len(), &ours), (4, &theirs));
}

#[test]
fn silicon_has_the_energy_that_it_has_over_shared_memory() {
    let (stage, silicon) = (Stage::new(), Application::silicon());
    let ours = by_vrio(&stage, &silicon);
    let theirs = silicon.run_by_shared_memory(&stage.path("theirs"));
    assert_eq!(ours, theirs);
    assert!(ours[0].contains("-15.8"), "{ours:?}");
}
