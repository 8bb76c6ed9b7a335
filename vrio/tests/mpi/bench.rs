//! `vrio bench mpi` for a moment, with all ways of Open MPI and some of MPICH: it works. No test
//! checks a time.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use super::built::compile;
use super::house::{Mpi, install};
use super::mpich::mpich;

/// The ways of Debian's Open MPI. The first one is compared with ours.
const WAYS: [&str; 5] = [
    "its own shared memory (vader)",
    "libfabric tcp (net)",
    "libfabric tcp;ofi_rxm",
    "UCX shm",
    "UCX tcp",
];

/// The ways of Debian's Open MPI between hosts.
const WAYS_BETWEEN: [&str; 4] =
    ["its own TCP", "libfabric tcp (net)", "libfabric tcp;ofi_rxm", "UCX tcp"];

/// The number of all cases, and of those of 8 bytes.
const CASES: usize = 17;
const SHORT_CASES: usize = 4;

/// The number of the cases of 64 KiB.
const LONG_CASES: usize = 5;

fn bench(home: &Path, words: &[&str]) -> Output {
    let temporary = home.join("tmp");
    fs::create_dir_all(&temporary).expect("ours");
    let mut bench = Command::new(install(home));
    bench.args(["bench", "mpi", "--rounds", "1"]).args(words).env("TMPDIR", &temporary);
    let output = bench.output().expect("it was built");
    let left: Vec<_> = fs::read_dir(temporary).expect("ours").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    output
}

/// The report of a run, read from its JSON.
fn report(home: &Path, words: &[&str]) -> Value {
    let output = bench(home, &[words, &["--json"]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn rows(report: &Value) -> Vec<&Value> {
    let contests = report["contests"].as_array().expect("a list").iter();
    contests.flat_map(|it| it["rows"].as_array().expect("a list")).collect()
}

fn theirs<'a>(rows: &[&'a Value], name: &str) -> Vec<&'a Value> {
    rows.iter().copied().filter(|row| row["theirs"] == name).collect()
}

#[test]
fn open_mpi_is_measured_in_all_cases_with_every_byte_looked_at() {
    let home = TempDir::new().expect("a directory");
    let words = ["--contest", "Open MPI 4", "--seconds", "0.005", "--validate", "--way", "own sh"];
    let report = report(home.path(), &words);
    let rows = theirs(&rows(&report), WAYS[0]);
    assert_eq!(rows.len(), CASES, "{}", report["missing"]);
    for row in rows {
        assert_eq!(row["ours"], "vrio");
        for ratio in ["rate_ratio", "p50_ratio", "p99_ratio"] {
            assert!(row[ratio]["median"].as_f64().expect("a number") > 0.0, "{row}");
        }
    }
    let goals = report["goals"].as_array().expect("a list");
    let verdicts = goals.iter().map(|goal| goal["verdicts"].as_u64().expect("a number"));
    // Verdicts by goal: one for short messages, two for two sizes, none for other ways or two
    // hosts.
    assert_eq!(verdicts.collect::<Vec<_>>(), [1, 0, 2, 0, 0], "{goals:?}");
    assert!(goals.iter().all(|goal| goal["standing"] != "holds"), "one round: {goals:?}");
}

#[test]
fn open_mpi_is_measured_by_all_its_ways() {
    let home = TempDir::new().expect("a directory");
    let words = ["--contest", "Open MPI 4", "--seconds", "0.005", "--case", "8 B"];
    let report = report(home.path(), &words);
    for way in WAYS {
        assert_eq!(theirs(&rows(&report), way).len(), SHORT_CASES, "{way}: {}", report["missing"]);
    }
}

#[test]
fn mpich_is_measured_by_the_providers_that_open_mpi_refuses() {
    let home = TempDir::new().expect("a directory");
    let mpich = mpich();
    let mpich = mpich.to_str().expect("a plain name");
    let words = ["--mpi", mpich, "--contest", "MPICH 5", "--seconds", "0.005"];
    let report = report(home.path(), &[&words[..], &["--case", "8 B"]].concat());
    let own = "its own shared memory";
    for way in [own, "libfabric shm", "libfabric tcp", "libfabric tcp;ofi_rxm"] {
        assert_eq!(theirs(&rows(&report), way).len(), SHORT_CASES, "{way}: {}", report["missing"]);
    }
}

#[test]
fn two_hosts_are_measured_by_all_ways_of_open_mpi_and_by_mpich() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: two hosts are network namespaces, which take root");
        return;
    }
    let home = TempDir::new().expect("a directory");
    let mpich = mpich();
    let mpich = mpich.to_str().expect("a plain name");
    let words = ["--hosts", "2", "--seconds", "0.005", "--validate", "--case", "8 B"];
    let open = report(home.path(), &[&words[..], &["--contest", "Open MPI 4"]].concat());
    for way in WAYS_BETWEEN {
        let rows = rows(&open);
        let of_way = theirs(&rows, way);
        assert_eq!(of_way.len(), SHORT_CASES, "{way}: {}", open["missing"]);
        for row in of_way {
            assert!(row["cpu_ratio"]["median"].as_f64().expect("a number") > 0.0, "{row}");
        }
    }
    assert_eq!(open["contests"][0]["contest"], "two hosts, Open MPI 4.1.4");
    let verdicts = open["goals"].as_array().expect("a list").iter().map(|goal| &goal["verdicts"]);
    assert_eq!(verdicts.collect::<Vec<_>>(), [0, 0, 0, 1, 0], "{}", open["goals"]);
    // Longer messages, and four ranks, half of them on either host.
    let words = ["--hosts", "2", "--seconds", "0.005", "--validate", "--case", "64 KiB"];
    let more = ["--mpi", mpich, "--contest", "MPICH 5", "--way", "libfabric tcp"];
    let other = report(home.path(), &[&words[..], &more, &["--ranks", "4"]].concat());
    // MPICH 5.0.2 over libfabric's tcp fails in its MPI_Init on a fast machine ("ep_enable failed:
    // Bad file descriptor"). A way of a peer that cannot be measured is named.
    let missing = other["missing"].to_string();
    for way in ["libfabric tcp", "libfabric tcp;ofi_rxm"] {
        let measured = theirs(&rows(&other), way).len();
        let is_named = missing.contains(&format!("{way} (two hosts, MPICH"));
        assert!(measured == LONG_CASES || is_named, "{way}: {measured} rows, {missing}");
    }
}

/// Without `ip`, or without root's rights, there can be no two hosts.
#[test]
fn two_hosts_that_cannot_be_made_are_refused_with_a_way_out() {
    let home = TempDir::new().expect("a directory");
    let mut bench = Command::new(install(home.path()));
    bench.args(["bench", "mpi", "--hosts", "2", "--quick"]).env("PATH", "/nowhere");
    let output = bench.env("TMPDIR", home.path()).output().expect("it was built");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("root and iproute2") && text.contains("--hosts 1"), "{text}");
}

/// OSU's programs are not here. `like_osu.c` prints the same lines, with invented numbers.
#[test]
fn osus_own_programs_are_run_and_read() {
    let home = TempDir::new().expect("a directory");
    let inner = home.path().join("osu/pt2pt");
    fs::create_dir_all(&inner).expect("ours");
    let program = inner.join("osu_latency");
    let (_built, built) = compile(&Mpi::Open.compiler(), "like_osu", &[]);
    fs::copy(built, &program).expect("ours");
    for name in ["osu_bw", "osu_bibw", "osu_mbw_mr", "osu_alltoall", "osu_allreduce"] {
        symlink(&program, inner.join(name)).expect("ours");
    }
    let folder = home.path().join("osu");
    let folder = folder.to_str().expect("a plain name");
    let words = ["--osu", folder, "--way", "own shared memory", "--validate"];
    let report = report(home.path(), &words);
    let all = rows(&report);
    assert_eq!(all.len(), CASES, "{}", report["missing"]);
    let of = |case: &str| all.iter().find(|row| row["case"] == case).expect("it is there");
    assert_eq!(of("latency 8 B")["our_p50_us"]["median"], 8.0);
    assert_eq!(of("bandwidth 64 KiB")["our_rate"]["median"], 65_536.0);
    assert_eq!(of("message rate 8 B")["our_rate"]["median"], 80.0);
    assert_eq!(of("all-reduce 1 KiB")["our_rate"]["median"], 976.5625);
}

#[test]
fn invalid_options_are_errors_of_the_command_line() {
    let home = TempDir::new().expect("a directory");
    for (words, told) in [
        (&["--ranks", "3"][..], "--ranks 3"),
        (&["--seconds", "0"], "--seconds 0"),
        (&["--domain", "blue"], "--control"),
        (&["--encrypt", "on"], "add --hosts 2"),
        (&["--hosts", "2", "--link", "shm"], "share no memory"),
        (&["--hosts", "2", "--control", "/run/x"], "--control names a node of one host"),
    ] {
        let output = bench(home.path(), words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(told), "{text}");
    }
    let output = bench(home.path(), &["--mpi", "/nowhere"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--mpi /nowhere"), "{text}");
}
