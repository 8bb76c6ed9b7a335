//! The demo, with guests and without one. Any user may run it; it does all that it says, and leaves
//! nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use testbed::guest::{self, talk};
use testbed::installed;

/// Longer than a busy machine takes to start two nodes.
const PATIENCE: Duration = Duration::from_secs(120);

fn demo(temporary: &Path) -> Command {
    let mut command = demo_of_guests(temporary);
    command.arg("--no-guest");
    command
}

/// The demo by an installed vrio, which finds its provider.
fn demo_of_guests(temporary: &Path) -> Command {
    static INSTALLED: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = INSTALLED.get_or_init(|| {
        let home = tempfile::tempdir().unwrap();
        let vrio = Path::new(env!("CARGO_BIN_EXE_vrio"));
        let program = installed::install(vrio, home.path()).expect("the workspace is built");
        (home, program)
    });
    let mut command = Command::new(program);
    command.args(["demo", "--json"]).env("TMPDIR", temporary);
    command
}

/// Processes whose command line names a path below `folder`, as a node's does with its
/// configuration.
fn processes_of(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().expect("a name of ours");
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(folder)).collect()
}

fn assert_nothing_is_left(folder: &Path) {
    assert_eq!(processes_of(folder), [""; 0], "processes are left behind");
    let files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.is_empty(), "files are left behind: {files:?}");
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks that the MPI job had all its ranks, and that each message arrived as it was sent.
fn assert_messages(report: &Value, guests: u64) {
    let messages = &report["messages"];
    assert_eq!(messages["guests"], guests, "{report}");
    assert!(messages["ranks"].as_u64().unwrap() >= 4, "{report}");
    // Two rounds of five sizes between each two of four ranks.
    assert!(messages["verified"].as_u64().unwrap() >= 2 * 5 * 12, "{report}");
    let times = messages["all_to_all"].as_array().unwrap();
    assert!(times.iter().all(|it| it["p50_us"].as_f64().unwrap() > 0.0), "{report}");
}

#[test]
fn the_demo_without_a_guest_proves_and_measures() {
    let temporary = tempfile::tempdir().unwrap();
    let kept = tempfile::tempdir().unwrap();
    let output = demo(temporary.path()).arg("--keep").arg(kept.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let outage = &report["outage"];
    assert!(outage["kills"].as_u64().unwrap() >= 1, "{report}");
    assert!(outage["outstanding_at_kills_min"].as_u64().unwrap() >= 16, "{report}");
    assert!(outage["writes_verified"].as_u64().unwrap() > 0, "{report}");
    assert!(outage["image_bytes_verified"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(outage["errors"], 0, "{report}");
    assert_messages(&report, 0);
    let rows = report["comparison"]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4, "{report}");
    for row in rows {
        for side in ["local", "remote"] {
            for number in ["iops", "p50_us", "p99_us"] {
                assert!(row[side][number].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
    for node in ["io1", "vm1"] {
        assert!(kept.path().join(node).join("log").is_file(), "the logs are kept");
    }
    assert_nothing_is_left(temporary.path());
}

#[test]
fn the_demos_guests_have_a_disk_and_cards_and_reach_the_host() {
    let test = "the_demos_guests_have_a_disk_and_cards_and_reach_the_host";
    let Some(image) = guest::available(test) else { return };
    let temporary = tempfile::tempdir().unwrap();
    let output = demo_of_guests(temporary.path()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let outage = &report["outage"];
    assert!(outage["user"]["guest"]["kernel"].is_string(), "{report}, {image:?}");
    assert!(outage["kills"].as_u64().unwrap() >= 1, "{report}");
    assert!(outage["files_verified"].as_u64().unwrap() > 0, "{report}");
    let talk = &report["talk"];
    assert!(talk["file_bytes_verified"].as_u64().unwrap() >= 4 << 20, "{report}");
    assert!(talk["reached_again_ms"].as_u64().unwrap() > 0, "{report}");
    if talk::iperf().is_some() {
        let rates = talk["bits_per_s"].as_array().unwrap();
        assert!(rates.iter().all(|rate| rate.as_f64().unwrap() > 1e6), "{report}");
    }
    match image.mpi() {
        Ok(_) => assert_messages(&report, 2),
        Err(why) => println!("SKIP {test}, the part with MPI: {why}"),
    }
    // Nodes with a network of their own have a tap on the IOhost.
    let has_tap = report["network"] == "namespaces";
    assert_eq!(talk["host"].is_string(), has_tap, "{report}");
    assert_nothing_is_left(temporary.path());
}

#[test]
fn an_interrupted_demo_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let mut child =
        demo(temporary.path()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let by = Instant::now() + PATIENCE;
    while processes_of(temporary.path()).is_empty() {
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < by, "no node is started");
        thread::sleep(Duration::from_millis(5));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(said(&output).contains("nothing was left behind"), "{}", said(&output));
    assert_nothing_is_left(temporary.path());
}
