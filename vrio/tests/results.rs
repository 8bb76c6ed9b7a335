//! `vrio results`, on outputs of other programs and of our own, in a store of its own.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A path of a program's output, which the importers' tests have.
fn output(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("report/tests/data");
    folder.join(name).display().to_string()
}

fn results(store: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.arg("results").args(words).env("XDG_STATE_HOME", store).output().unwrap()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn json(store: &Path, words: &[&str]) -> Value {
    let output = results(store, &[words, &["--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn what_others_measured_is_kept_listed_shown_and_compared() {
    let home = tempfile::tempdir().unwrap();
    let empty = results(home.path(), &["list"]);
    assert!(empty.status.success() && said(&empty).contains("no results in"), "{}", said(&empty));
    let first = json(home.path(), &["import", &output("osu-5.3-latency.txt"), "--title", "old"]);
    let second = json(home.path(), &["import", &output("osu-7.4-latency.txt")]);
    let ids = [&first, &second].map(|it| it["id"].as_str().unwrap().to_owned());
    assert!(Path::new(first["folder"].as_str().unwrap()).join("run.json").is_file());
    let listed = json(home.path(), &["list"]);
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    assert_eq!(listed[0]["run"]["title"], "old");
    let shown = said(&results(home.path(), &["show", &ids[0]]));
    for words in ["osu_latency: osu-5.3-latency, imported", "4 MiB", "version 5.3"] {
        assert!(shown.contains(words), "{words:?} is not in {shown}");
    }
    let diff = json(home.path(), &["diff", &ids[0], &ids[1]]);
    assert_eq!(diff["differs"][0], "machine: nobody knows where both were measured");
    let series = &diff["series"][0];
    let differs = series["differs"].as_array().unwrap();
    assert!(differs.contains(&"version: 5.3 and 7.4".into()), "{series}");
    assert_eq!(series["alone"], 1, "only the old one measures nothing at all: {series}");
    let row = &series["rows"][0];
    let [a, b, percent] = ["a", "b", "percent"].map(|name| row[name].as_f64().unwrap());
    assert!((percent - (b / a - 1.0) * 100.0).abs() < 1e-9, "{row}");
    // Files need no store.
    let words = ["diff", &output("osu-5.3-latency.txt"), &output("osu-7.4-latency.txt")];
    let direct = said(&results(home.path(), &words));
    assert!(direct.contains("message size") && direct.contains(" %"), "{direct}");
}

#[test]
fn what_is_wrong_is_said_with_a_way_out() {
    let home = tempfile::tempdir().unwrap();
    let refused = |words: &[&str]| {
        let output = results(home.path(), words);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        said(&output)
    };
    let none = refused(&["show", "20991231"]);
    assert!(none.contains("no run 20991231") && none.contains("results list"), "{none}");
    let foreign = refused(&["import", &output("README.md")]);
    assert!(foreign.contains("README.md, line 1: expected output of the OSU"), "{foreign}");
    let failed = refused(&["import", &output("iperf3-refused.json")]);
    assert!(failed.contains("Connection refused"), "{failed}");
    let left = results(home.path(), &["list"]);
    assert!(said(&left).contains("no results"), "nothing is kept of what was refused");
}

#[test]
fn what_is_measured_is_kept_if_that_is_asked_for() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("kept").display().to_string();
    let words = ["bench", "block", "--seconds", "0.3", "--json", "--depth", "2", "--save", &folder];
    let output = Command::new(env!("CARGO_BIN_EXE_vrio")).args(words).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("kept 2 measurements in"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let shown = json(home.path(), &["show", "latest", "--results", &folder]);
    let iops = &shown["measurements"][0]["series"][0];
    assert_eq!((&iops["quantity"], &iops["points"][0]["x"]), (&"iops".into(), &2.0.into()));
    assert_eq!(iops["points"][0]["y"], report["iops"]);
    let run = &shown["run"];
    assert_eq!(run["machine"]["kernel"], report["machine"]["kernel"]);
    assert!(run["command"].as_array().unwrap().contains(&"--save".into()), "{run}");
    let title = shown["measurements"][0]["title"].as_str().unwrap();
    assert!(title.starts_with("local, null volume: randread"), "{title}");
}
