//! Measurements by `vrio bench block`, and checks that fit each report.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use parking_lot::RwLock;
use serde_json::Value;

/// Two measurements at a time take each other's cores. Then requests wait for the scheduler, which
/// also decides how many of them share an event. A test of such counts takes the machine for
/// itself.
pub(crate) static MACHINE: RwLock<()> = RwLock::new(());

pub(crate) fn run(temporary: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "block", "--seconds", "0.3", "--json"]).args(words);
    command.env("TMPDIR", temporary).output().unwrap()
}

/// The report of a measurement, while others may run.
pub(crate) fn measure(words: &[&str]) -> Value {
    let _shared = MACHINE.read();
    report_of(words)
}

/// The same with the machine to itself.
pub(crate) fn measure_alone(words: &[&str]) -> Value {
    let _alone = MACHINE.write();
    report_of(words)
}

/// The report of a measurement that goes well and leaves nothing behind.
fn report_of(words: &[&str]) -> Value {
    let temporary = tempfile::tempdir().unwrap();
    let output = run(temporary.path(), words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{words:?} leaves {left:?} behind");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["requests"].as_u64().unwrap() > 0, "{report}");
    for number in ["iops", "bytes_per_s", "seconds"] {
        assert!(report[number].as_f64().unwrap() > 0.0, "{number}: {report}");
    }
    for number in ["mean", "p50", "p99", "p999", "max"] {
        assert!(report["latency_us"][number].as_f64().unwrap() > 0.0, "{number}: {report}");
    }
    assert!(report["cpu_s"]["driver"].as_f64().unwrap() > 0.0, "{report}");
    assert!(report["core_share"]["driver-0"].as_f64().unwrap() > 0.0, "{report}");
    let several = std::thread::available_parallelism().unwrap().get() > 1;
    assert_eq!(report["cache_line_rtt_ns"].is_u64(), several, "{report}");
    report
}

pub(crate) fn each(report: &Value, name: &str) -> f64 {
    let count = report["events_per_request"][name].as_f64();
    count.unwrap_or_else(|| panic!("no {name}: {report}"))
}
