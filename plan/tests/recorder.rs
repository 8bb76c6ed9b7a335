//! The recorder of profiles with a real Open MPI: a program with known messages.

use std::path::{Path, PathBuf};
use std::process::Command;

use plan::application::{Pattern, Profile, RECORDER};

const PROGRAM: &str = include_str!("recorder.c");
const RANKS: u64 = 3;
/// The rounds of the program.
const ROUNDS: u64 = 30;

/// Compiles a text with Open MPI's compiler; none if it is not installed.
fn compiled(folder: &Path, name: &str, text: &str, options: &[&str]) -> Option<PathBuf> {
    let (source, built) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("mpicc.openmpi");
    compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).args([&built, &source]);
    let run = compiler.args(options).output().ok()?;
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    Some(built)
}

/// The folder of a test with the recorder in it; none without Open MPI.
fn recorder(test: &str) -> Option<(PathBuf, PathBuf)> {
    let folder = std::env::temp_dir().join(format!("plan-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let built = compiled(&folder, "libprofile.so", RECORDER, &["-shared", "-fPIC"]);
    if built.is_none() {
        println!("SKIP {test}: no mpicc.openmpi here (package libopenmpi-dev)");
    }
    built.map(|built| (folder, built))
}

/// Runs a program of so many ranks with the recorder, and returns what it has said.
fn run(recorder: &Path, program: &Path, ranks: u64, profile: &Path) -> String {
    let mut job = Command::new("mpirun.openmpi");
    job.args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", &ranks.to_string()]);
    job.args(["-x", "LD_PRELOAD", "-x", "VRIO_PROFILE"]).arg(program);
    job.env("VRIO_PROFILE", profile).env("OMPI_ALLOW_RUN_AS_ROOT", "1");
    job.env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    // mpirun itself is no MPI program: the recorder does nothing there.
    let run = job.env("LD_PRELOAD", recorder).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}");
    said
}

/// An application that the recorder cannot follow runs as without it.
#[test]
fn a_program_that_begins_beside_the_recorder_is_left_alone() {
    let Some((folder, recorder)) = recorder("recorder-aside") else { return };
    let program = compiled(&folder, "aside", include_str!("recorder_aside.c"), &[]).unwrap();
    let path = folder.join("profile.toml");
    run(&recorder, &program, RANKS, &path);
    assert!(!path.exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_profile_has_the_hosts_of_communicators_and_what_it_lacks() {
    let Some((folder, recorder)) = recorder("recorder-hosts") else { return };
    let text = include_str!("recorder_hosts.c");
    let program = compiled(&folder, "hosts", text, &["-rdynamic"]).unwrap();
    let path = folder.join("profile.toml");
    let said = run(&recorder, &program, 4, &path);
    let lacking = "12 calls are not here";
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(said.contains(lacking) && text.contains(lacking), "{said} {text}");
    let profile = Profile::read("profile.toml", &text).unwrap();
    assert_eq!((profile.ranks, profile.ranks_per_host), (4, 2));
    let rows = profile.messages.iter();
    let mut rows: Vec<_> = rows
        .map(|it| (it.pattern.name(), it.bytes, it.count_milli, it.window, it.ranks, it.per_host))
        .collect();
    rows.sort_unstable();
    let (sum, pair) = (Pattern::Allreduce.name(), Pattern::PointToPoint.name());
    let expected = [
        // A rank of each host, and both ranks of a host.
        (sum, 8, 10_000, 1, 2, Some(1)),
        (sum, 8, 10_000, 1, 2, Some(2)),
        // Two are under way, though a test of nothing came between.
        (pair, 8, 20_000, 2, 4, None),
        (pair, 16, 25_000, 1, 4, None),
        (pair, 8000, 40_000, 4, 4, None),
    ];
    assert_eq!(rows, expected, "{text}");
    assert!(text.contains("the busiest rank has 100;"), "{text}");
    assert!(!text.contains("do not follow one another"), "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_profile_has_the_messages_that_a_program_sends() {
    let Some((folder, recorder)) = recorder("recorder") else { return };
    let program = compiled(&folder, "program", PROGRAM, &["-lmpi_mpifh"]).unwrap();
    let path = folder.join("profile.toml");
    // A profile that is there is kept.
    std::fs::write(&path, "kept").unwrap();
    let said = run(&recorder, &program, RANKS, &path);
    assert!(said.contains("is there already"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "kept");
    let text = std::fs::read_to_string(folder.join("profile.toml.2")).unwrap();
    let profile = Profile::read("profile.toml", &text).unwrap();
    assert_eq!((profile.ranks, profile.ranks_per_host, &*profile.title), (RANKS, RANKS, "program"));
    assert!(profile.computation_ns[1] > 0 && profile.other_ns > 0, "{text}");
    assert!(profile.recorded.is_some(), "{text}");
    // Thousandths of a call, for each rank on average.
    let each = |calls: u64| (calls * 1000 + RANKS / 2) / RANKS;
    let rows = profile.messages.iter();
    let mut rows: Vec<_> =
        rows.map(|it| (it.pattern.name(), it.bytes, it.count_milli, it.window, it.ranks)).collect();
    rows.sort_unstable();
    let expected = [
        (Pattern::Allgather, 128, 1000, 1, RANKS),
        (Pattern::Allreduce, 8, 2000 * ROUNDS, 1, RANKS),
        (Pattern::Allreduce, 512, each(2), 1, 2),
        (Pattern::Alltoall, 2400, 100 * ROUNDS, 1, RANKS),
        (Pattern::Barrier, 0, 1000, 1, RANKS),
        (Pattern::Bcast, 8, 1000 * ROUNDS, 1, 1),
        (Pattern::Bcast, 8 << 30, 1000, 1, 1),
        (Pattern::PointToPoint, 1, each(1), 1, RANKS),
        (Pattern::PointToPoint, 8, 1000 * ROUNDS, 1, RANKS),
        (Pattern::PointToPoint, 32, each(1), 1, RANKS),
        (Pattern::PointToPoint, 8000, 2000 * ROUNDS, 2, RANKS),
    ];
    let expected = expected.map(|(pattern, bytes, count, window, ranks)| {
        (pattern.name(), bytes, count, window, ranks)
    });
    assert_eq!(rows, expected, "{text}");
    // On one host all messages are near: without the words, a profile has this as its default.
    assert_eq!(text.matches("local = 1.000000").count(), 4, "{text}");
    // Of two groups, since a host comes again. Ranks 0 and 2 are on one host, and follow.
    assert_eq!(text.matches("do not follow one another in 100 %").count(), 1, "{text}");
    assert_eq!(text.matches("ranks_per_host = 2").count(), 1, "{text}");
    std::fs::remove_dir_all(&folder).unwrap();
}
