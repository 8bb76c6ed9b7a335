//! `vrio bench net` for a moment each: that it works, and that what does not depend on the
//! machine's speed is as promised. No time is looked at.

use std::fs;
use std::process::Command;

use serde_json::Value;

/// What an event that never happens for a frame may come to: an index comes round, and a machine
/// that is busy lets few frames pass.
const NEARLY_NONE: f64 = 1e-2;

/// The report of a measurement that goes well and leaves nothing behind.
fn measure(words: &[&str]) -> Value {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "net", "--seconds", "0.3", "--json"]).args(words);
    let output = command.env("TMPDIR", temporary.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{words:?} leaves {left:?} behind");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn frames_cross_a_spinning_switch_without_an_event_and_none_is_lost() {
    for size in ["64", "1500", "64k"] {
        for more in [&[][..], &["--packed"]] {
            let words = [&["--size", size, "--idle", "spin"], more].concat();
            let report = measure(&words);
            assert!(report["frames"].as_u64().unwrap() > 0, "{report}");
            assert_eq!(report["frames_lost"], 0, "{report}");
            let bytes = |name: &str| report[name].as_f64().unwrap();
            let each = bytes("bytes_per_s") / bytes("frames_per_s");
            let asked = report["asked"]["size_bytes"].as_f64().unwrap();
            assert!((each - asked).abs() < 0.5, "each as long as was asked for: {report}");
            let each = &report["events_per_frame"];
            assert_eq!((&each["kicks"], &each["vmhost_wakeups"]), (&0.0.into(), &0.0.into()));
            for event in ["calls", "vmhost_system_calls"] {
                assert!(each[event].as_f64().unwrap() < NEARLY_NONE, "{event}: {report}");
            }
            assert!(report["latency_us"].is_null(), "{report}");
            assert!(report["cpu_s"]["vmhost"].as_f64().unwrap() > 0.0, "{report}");
        }
    }
}

#[test]
fn a_frame_bounces() {
    let report = measure(&["--op", "bounce"]);
    assert!(report["latency_us"]["p50"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(report["frames"].as_u64().unwrap() % 2, 0, "each way counts");
}

#[test]
fn what_cannot_be_measured_is_said() {
    for (words, wanted) in
        [(&["--size", "32"][..], "--size 32"), (&["--path", "socket", "one"], "socket A,B")]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let output = command.args(["bench", "net"]).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{said}");
    }
}
