//! `vrio bench all`: what is finished is saved and shown, whatever else fails or is interrupted.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The command, with short measurements, and with its files and runs below `folder`.
fn all(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "all", "--quick", "--seconds", "0.05", "-o"]).arg(runs(folder));
    fs::create_dir_all(folder.join("tmp")).unwrap();
    command.args(words).env("TMPDIR", folder.join("tmp"));
    command
}

fn runs(folder: &Path) -> PathBuf {
    folder.join("runs")
}

/// What the runs are of, each of them with its measurements.
fn saved(folder: &Path) -> Vec<String> {
    let mut found: Vec<_> = fs::read_dir(runs(folder)).unwrap().flatten().collect();
    found.retain(|entry| entry.path().join("run.json").is_file());
    found.sort_by_key(|entry| entry.file_name());
    let kind = |entry: &fs::DirEntry| {
        let text = fs::read_to_string(entry.path().join("run.json")).unwrap();
        let run: Value = serde_json::from_str(&text).unwrap();
        assert!(run["machine"]["cores"].as_u64().unwrap() > 0, "{text}");
        assert!(fs::read_dir(entry.path()).unwrap().count() > 1, "a file for a measurement");
        run["title"].as_str().unwrap().rsplit(' ').next().unwrap().to_owned()
    };
    found.iter().map(kind).collect()
}

/// Whether the page has these words; the last line that was printed names it.
fn expect_page(folder: &Path, said: &str, words: &[&str]) {
    let path = runs(folder).join("page/index.html");
    assert_eq!(said.lines().last(), Some(path.to_str().unwrap()), "{said}");
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains("<svg"), "a picture at least");
    words.iter().for_each(|words| assert!(text.contains(words), "{words} are on it"));
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

#[test]
fn each_part_is_a_run_and_all_are_on_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let parts = ["--part", "block", "--part", "models", "--part", "connections"];
    let output = all(folder.path(), &parts).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("min; runs are saved in"), "{errors}");
    let mut kinds = saved(folder.path());
    kinds.sort();
    assert_eq!(kinds, ["block", "connections", "models"]);
    let said = String::from_utf8_lossy(&output.stdout);
    expect_page(folder.path(), &said, &["vRIO without polling"]);
    assert_eq!(fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn what_is_missing_is_named_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = all(folder.path(), &["--part", "mpi", "--part", "connections"]);
    let output = command.env("PATH", folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("not measured: mpi"), "{said}");
    assert_eq!(saved(folder.path()), ["connections"]);
    expect_page(folder.path(), &said, &[]);
}

#[test]
fn an_interruption_leaves_what_was_finished_and_its_page() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = all(folder.path(), &["--part", "block", "--part", "net"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("block: saved")), "its first part ends");
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert_eq!(saved(folder.path())[0], "block");
    expect_page(folder.path(), &said, &[]);
    assert_eq!(fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_second_interruption_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = all(folder.path(), &["--part", "models"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    interrupt(&child);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    // Two signals that come at once may be told as one: then there was nothing to show.
    assert!(matches!(output.status.code(), Some(130 | 1)), "{output:?}");
    assert!(!runs(folder.path()).join("page").exists());
}
