//! `vrio bench all`: finished results are saved and shown, also if the rest fails or is
//! interrupted.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The command, with short measurements, and with its files and runs below `folder`.
fn all(folder: &Path, words: &[&str]) -> Command {
    all_for("0.05", folder, words)
}

/// The same with measurements of so many seconds.
fn all_for(seconds: &str, folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "all", "--quick", "--seconds", seconds, "-o"]).arg(runs(folder));
    fs::create_dir_all(folder.join("tmp")).unwrap();
    command.args(words).env("TMPDIR", folder.join("tmp"));
    command
}

fn runs(folder: &Path) -> PathBuf {
    folder.join("runs")
}

/// The only run that is there: the benchmarks of its measurements, and its notes.
fn saved(folder: &Path) -> (BTreeSet<String>, Value) {
    let entries = fs::read_dir(runs(folder)).unwrap().flatten().map(|entry| entry.path());
    let all: Vec<_> = entries.filter(|path| path.join("run.json").is_file()).collect();
    let [run] = &all[..] else { panic!("one run: {all:?}") };
    let read = |path: PathBuf| -> Value {
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let about = read(run.join("run.json"));
    assert!(about["machine"]["cores"].as_u64().unwrap() > 0, "{about}");
    let files = fs::read_dir(run).unwrap().flatten().map(|entry| entry.path());
    let files = files.filter(|path| !path.ends_with("run.json"));
    let of = |path| read(path)["benchmark"].as_str().unwrap().to_owned();
    (files.map(of).collect(), about["notes"].clone())
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

/// `vrio report` without words, of the same results.
fn report(folder: &Path) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    // The directory of a user's own results.
    let own = folder.join("state/vrio");
    fs::create_dir_all(&own).unwrap();
    symlink(runs(folder), own.join("results")).unwrap();
    command.arg("report").arg("-o").arg(folder.join("again"));
    let output = command.env("XDG_STATE_HOME", folder.join("state")).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(folder.join("again/index.html")).unwrap()
}

#[test]
fn all_parts_are_one_run_and_on_the_page_and_on_that_of_report() {
    let folder = tempfile::tempdir().unwrap();
    let parts = ["--part", "block", "--part", "failover", "--part", "connections"];
    let output = all(folder.path(), &parts).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let began = errors.lines().next().unwrap_or_default();
    assert!(began.contains(" on an idle machine"), "{errors}");
    assert!(began.ends_with("runs at once"), "where it is saved: {errors}");
    let left = |line: &str| line.contains(": saved in ") && line.ends_with(" left");
    assert_eq!(errors.lines().filter(|line| left(line)).count(), 2, "but of the last: {errors}");
    let (kinds, notes) = saved(folder.path());
    for kind in ["block", "failover", "connections"] {
        assert!(kinds.contains(kind), "{kinds:?}");
    }
    assert!(notes.is_null(), "{notes}");
    let words = ["local", "io1 killed", "VM-proof XRC"];
    expect_page(folder.path(), &String::from_utf8_lossy(&output.stdout), &words);
    let page = report(folder.path());
    words.iter().for_each(|words| assert!(page.contains(words), "{words} are on it"));
    assert_eq!(fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0, "nothing is left");
}

#[test]
fn missing_programs_are_named_and_the_rest_continues() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = all(folder.path(), &["--part", "mpi", "--part", "block"]);
    let output = command.env("PATH", folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("not measured: mpi"), "{said}");
    let (kinds, notes) = saved(folder.path());
    assert!(kinds.contains("block"), "{kinds:?}");
    assert!(notes[0].as_str().unwrap().starts_with("not measured: mpi"), "{notes}");
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
    let (kinds, _) = saved(folder.path());
    assert!(kinds.contains("block") && !kinds.contains("net"), "{kinds:?}");
    expect_page(folder.path(), &said, &[]);
    assert_eq!(fs::read_dir(folder.path().join("tmp")).unwrap().count(), 0, "nothing is left");
}

/// Waits until the models were measured of disks. Their file is there at once, while `vrio bench
/// models` goes on with network cards for some seconds.
fn models_of_disks(folder: &Path) {
    wait_for(|| {
        let found = fs::read_dir(runs(folder)).ok()?.flatten().map(|entry| entry.path());
        // A run has a hidden name until it is whole.
        let is_hidden =
            |path: &PathBuf| path.file_name().is_some_and(|it| it.as_encoded_bytes()[0] == b'.');
        let mut runs = found.filter(|path| !is_hidden(path));
        runs.any(|path| path.join("01-models.json").is_file()).then_some(())
    });
}

/// Whether `vrio results` and `vrio report` read that the models were measured of disks.
fn expect_disks(folder: &Path) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["results", "show", "latest", "--results"]).arg(runs(folder));
    let output = command.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && shown.contains("models: block, 1 guest"), "{output:?}");
    assert!(report(folder).contains("models: block, 1 guest"), "it is on the page");
}

#[test]
fn a_part_that_is_ended_in_its_middle_leaves_what_it_has_measured() {
    for signal in [Signal::INT, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = all_for("1", folder.path(), &["--part", "models"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        models_of_disks(folder.path());
        let measuring = children(child.id()).into_iter().find(|pid| is_bench(*pid, "models"));
        let pid = |pid: u32| Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process(pid(child.id()), signal).unwrap();
        if signal == Signal::KILL {
            child.wait().unwrap();
            // The measuring process cleans up after itself.
            let measuring = pid(measuring.expect("it measures"));
            kill_process(measuring, Signal::INT).unwrap();
        } else {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.code(), Some(130), "{said}");
            assert!(said.contains("interrupted: the finished parts are in "), "{said}");
            expect_page(folder.path(), &said, &["models: block, 1 guest"]);
        }
        expect_disks(folder.path());
    }
}

#[test]
fn a_part_that_fails_leaves_what_it_has_measured_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let parts = ["--part", "models", "--part", "failover"];
    let mut command = all_for("1", folder.path(), &parts);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    models_of_disks(folder.path());
    let measuring = children(child.id()).into_iter().find(|pid| is_bench(*pid, "models"));
    let pid = i32::try_from(measuring.expect("it measures")).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.starts_with("not measured: models") && said.contains("it was killed"), "{said}");
    let (kinds, notes) = saved(folder.path());
    assert_eq!(kinds, ["failover".to_owned(), "models".to_owned()].into());
    assert!(notes[0].as_str().unwrap().starts_with("not measured: models"), "{notes}");
    expect_disks(folder.path());
}

#[test]
fn a_second_interruption_ends_all_processes_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = all(folder.path(), &["--part", "block"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    // Waits until the measuring process handles interruptions: before that, an interruption would
    // end it even when it stands still.
    let measuring =
        wait_for(|| children(child.id()).into_iter().find(|pid| is_bench(*pid, "block")));
    wait_for(|| has(measuring, "SigCgt:", Signal::INT).then_some(()));
    let pid = Pid::from_raw(i32::try_from(measuring).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // A process may still answer until it has stopped.
    wait_for(|| status(measuring, "State:").starts_with('T').then_some(()));
    interrupt(&child);
    wait_for(|| has(measuring, "ShdPnd:", Signal::INT).then_some(()));
    assert!(child.try_wait().unwrap().is_none(), "it waits for what measures");
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(!runs(folder.path()).join("page").exists());
    wait_for(|| (!Path::new(&format!("/proc/{measuring}")).exists()).then_some(()));
}

/// Waits for an event that comes within seconds, or minutes on a busy machine.
fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let by = Instant::now() + Duration::from_secs(300);
    loop {
        if let Some(it) = what() {
            return it;
        }
        assert!(Instant::now() < by, "it did not come");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")));
    let lists: String = lists.map(Result::unwrap_or_default).collect();
    lists.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Whether a process is already `vrio bench` with this name.
fn is_bench(pid: u32, name: &str) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split(|byte| *byte == 0).nth(2) == Some(name.as_bytes())
}

/// A field of a process's status, as the kernel gives it.
fn status(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let found = status.lines().find_map(|line| line.strip_prefix(field));
    found.unwrap().trim().to_owned()
}

/// Whether a signal is in a set of a process: the signals that it handles, or that wait for it.
fn has(pid: u32, set: &str, signal: Signal) -> bool {
    let set = u64::from_str_radix(&status(pid, set), 16).unwrap();
    set >> (signal.as_raw() - 1) & 1 == 1
}

#[test]
fn the_page_is_opened_if_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let opened = folder.path().join("opened");
    let script = format!("#!/bin/sh\necho \"$1\" > {0}.new && mv {0}.new {0}\n", opened.display());
    fs::write(bin.join("xdg-open"), script).unwrap();
    fs::set_permissions(bin.join("xdg-open"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = all(folder.path(), &["--part", "failover", "--open"]);
    assert!(command.env("PATH", path).status().unwrap().success());
    let said = wait_for(|| fs::read_to_string(&opened).ok());
    assert_eq!(said.trim(), runs(folder.path()).join("page/index.html").to_str().unwrap());
}
