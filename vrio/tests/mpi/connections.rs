//! `vrio bench connections` with few sessions: its counts are the same on every machine.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(words: &[&str]) -> Output {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_vrio"));
    bench.args(["bench", "connections"]).args(words).output().expect("it was built")
}

#[test]
fn connections_are_counted_by_rules_and_by_sessions() {
    let output = bench(&["--sessions", "20", "--sidecores", "2", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let line = |pattern: &str, transport: &str| {
        let lines = report["lines"].as_array().expect("a list");
        let is_it = |it: &&Value| it["pattern"] == pattern && it["transport"] == transport;
        lines.iter().find(is_it).expect("it is there").clone()
    };
    // There is a session for each of seven other hosts and two sidecores. In a ring there are two
    // neighbours.
    assert_eq!(line("all-to-all", "vrio")["per_host_max"], 14.0);
    assert_eq!(line("ring", "vrio")["per_host_max"], 4.0);
    assert_eq!(line("halo", "vrio")["per_process"], 0.0);
    assert_eq!(line("all-to-all", "VM-XRC, VMs of 1")["per_host"], 2032.0);
    assert_eq!(line("all-to-all", "VM-proof XRC")["per_process"], 8.0);
    assert_eq!(report["goals"][0]["standing"], "holds", "{}", report["goals"]);
    assert!(report["memory"]["tables_bytes"].as_f64().expect("a number") > 0.0);
    let text = bench(&["--hosts", "3", "--processes", "4", "--sessions", "10"]);
    let text = String::from_utf8(text.stdout).expect("letters");
    assert!(text.contains("EXTRAPOLATED") && text.contains("VM-proof XRC"), "{text}");
}

#[test]
fn invalid_options_are_refused() {
    for words in [["--hosts", "1"], ["--sessions", "1001"], ["--sidecores", "0"]] {
        let output = bench(&words);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(words[0]), "{text}");
    }
}
