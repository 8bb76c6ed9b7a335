//! `vrio bench models`: which events which model has, and in which order they come. No time is
//! looked at.

use std::fs;
use std::process::Command;

use serde_json::Value;

/// What an event that never happens for a request may come to: a session keeps its time, and few
/// requests are measured where cores are shared.
const NEARLY_NONE: f64 = 0.1;

/// What one that happens for each comes to, at least: who is awake is not woken.
const NEARLY_ONE: f64 = 0.5;

/// One round of it, which leaves nothing behind.
fn measure(words: &[&str]) -> Value {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    let usual = ["bench", "models", "--rounds", "1", "--seconds", "0.2", "--json"];
    let output = command.args(usual).args(words).env("TMPDIR", temporary.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{words:?} leaves {left:?} behind");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn row<'a>(report: &'a Value, model: &str) -> &'a Value {
    let rows = report["tables"][0]["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["model"] == model);
    found.unwrap_or_else(|| panic!("no {model}: {report}"))
}

/// A column's cell, of a model.
fn cell<'a>(report: &'a Value, model: &str, column: &str) -> &'a Value {
    let events = row(report, model)["figures"]["events"].as_array().unwrap();
    let found = events.iter().find(|it| it[0] == column);
    &found.unwrap_or_else(|| panic!("no {column} of {model}: {report}"))[1]
}

fn count(report: &Value, model: &str, column: &str) -> f64 {
    let median = cell(report, model, column)["measured"]["median"].as_f64();
    median.unwrap_or_else(|| panic!("{column} of {model}: {report}"))
}

/// Those that never happen for a request, and those that do for each.
fn expect(report: &Value, model: &str, never: &[&str], always: &[&str]) {
    for column in never {
        let count = count(report, model, column);
        assert!(count <= NEARLY_NONE, "{model}, {column}: {count}: {report}");
    }
    for column in always {
        let count = count(report, model, column);
        assert!(count >= NEARLY_ONE, "{model}, {column}: {count}: {report}");
    }
}

/// What both devices have in common.
fn expect_virtqueues(report: &Value) {
    let [exits, guest, host, iohost] =
        ["sync_exits", "guest_interrupts", "host_interrupts", "iohost_interrupts"];
    expect(report, "elvis", &[exits, host], &[guest]);
    expect(report, "baseline", &[], &[exits, guest, host]);
    expect(report, "host_side", &[exits, host, iohost], &[guest]);
    expect(report, "host_side_unpolled", &[], &[exits, guest, host, iohost]);
    for model in ["elvis", "baseline", "host_side", "host_side_unpolled"] {
        let why = cell(report, model, "injections")["empty"].as_str().unwrap();
        assert!(why.contains("KVM"), "{why}");
    }
    assert_eq!(cell(report, "elvis", iohost), "nobody");
    // One round decides nothing.
    let goals = report["goals"].as_array().unwrap();
    let is_open =
        |goal: &Value| goal["standing"] == "undecided" || goal["standing"] == "not_measured";
    assert!(goals.iter().all(is_open), "{report}");
}

#[test]
fn a_disks_models_have_the_events_that_make_them_what_they_are() {
    let words = ["--device", "block", "--guests", "1", "--encrypt", "off", "--volume", "null"];
    let report = measure(&words);
    expect_virtqueues(&report);
    let [exits, guest, iohost] = ["sync_exits", "guest_interrupts", "iohost_interrupts"];
    expect(&report, "optimum", &[exits, guest], &[]);
    expect(&report, "direct", &[exits, iohost], &[guest]);
    expect(&report, "unpolled", &[exits], &[guest, iohost]);
    assert_eq!(row(&report, "elvis")["polling_cores"]["vmhost"], 1);
    assert_eq!(row(&report, "direct")["polling_cores"]["iohost"], 1);
    assert!(report["explained"].as_array().unwrap().len() > 1, "{report}");
}

/// Of several guests a direct client each, and sidecores that are spread or pooled.
#[test]
fn several_guests_share_sidecores_of_their_own_host_or_of_one_for_all() {
    let words = ["--device", "block", "--guests", "2", "--encrypt", "off", "--volume", "null"];
    let report = measure(&words);
    expect(&report, "elvis", &["sync_exits", "host_interrupts"], &["guest_interrupts"]);
    expect(&report, "direct", &["sync_exits", "iohost_interrupts"], &["guest_interrupts"]);
    assert!(row(&report, "optimum")["empty"].is_string(), "{report}");
    let kinds = report["balance"].as_array().unwrap();
    let busy: Vec<_> = kinds.iter().map(|it| it["busy"].to_string()).collect();
    assert_eq!(busy, ["[4,4]", "[4,4]", "[2,4]", "[2,4]"]);
    for kind in kinds {
        assert!(kind["per_s"]["min"].as_f64().unwrap() > 0.0, "{kind}");
        assert!(kind["cpu_us"]["min"].as_f64().unwrap() > 0.0, "{kind}");
    }
}

#[test]
fn a_cards_models_have_them_too_and_what_it_has_not_says_why() {
    let report = measure(&["--device", "net", "--encrypt", "off"]);
    expect_virtqueues(&report);
    expect(&report, "optimum", &[], &["guest_interrupts"]);
    for model in ["direct", "unpolled"] {
        let why = row(&report, model)["empty"].as_str().unwrap();
        assert!(why.contains("no client in the guest"), "{why}");
    }
}

/// Each access to a register of what QEMU emulates leaves the guest, and there are many.
#[test]
fn what_qemu_emulates_leaves_the_guest_for_each_request() {
    let name = "what_qemu_emulates_leaves_the_guest_for_each_request";
    if bench::guest::available(name).or_else(|| bench::guest::available_newer(name)).is_none() {
        return;
    }
    let words = ["--encrypt", "off", "--guests", "1", "--volume", "null"];
    let report = measure(&[&words[..], &["--guest"]].concat());
    let emulated = report["emulated"].as_array().unwrap();
    assert_eq!(emulated.len(), 2, "{report}");
    for it in emulated {
        assert!(it["sync_exits"].as_f64().unwrap() > 1.0, "{it}");
        assert!(it["guest_interrupts"].as_f64().unwrap() > 0.1, "{it}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_measured() {
    for (words, said) in [
        (&["--rounds", "0"][..], "--rounds"),
        (&["--guests", "0"], "--guests"),
        (&["--seconds", "0"], "--seconds"),
        (&["--volume", "file:/disk", "--guests", "1,4"], "--guests 1"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let output = command.args(["bench", "models"]).args(words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert!(error.contains(said), "{words:?}: {error}");
    }
}
