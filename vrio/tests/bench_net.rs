//! `vrio bench net` for a moment each: it works, and counts that do not depend on the machine's
//! speed are as promised. No test checks a time.

use std::fs;
use std::process::Command;

use parking_lot::Mutex;
use serde_json::Value;
use testbed::nodes::NodePlan;

/// The most that is counted of an event that never happens for a frame: an index comes round, and
/// few frames pass on a busy machine.
const NEARLY_NONE: f64 = 1e-2;

/// Two measurements at a time take each other's cores. Then the scheduler decides how many frames
/// share an event.
static MACHINE: Mutex<()> = Mutex::new(());

/// The report of a measurement that goes well and leaves nothing behind.
fn measure(words: &[&str]) -> Value {
    let _alone = MACHINE.lock();
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "net", "--seconds", "0.3", "--json"]).args(words);
    let output = command.env("TMPDIR", temporary.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{words:?} leaves {left:?} behind");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(count(&report, "frames") > 0, "{report}");
    report
}

fn count(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_else(|| panic!("no {name}: {report}"))
}

/// The count of an event for each frame.
fn each(report: &Value, name: &str) -> f64 {
    let count = report["events_per_frame"][name].as_f64();
    count.unwrap_or_else(|| panic!("no {name}: {report}"))
}

/// Bytes of each frame.
fn bytes_each(report: &Value) -> f64 {
    count(report, "bytes") as f64 / count(report, "frames") as f64
}

#[test]
fn frames_cross_a_spinning_switch_without_an_event_and_none_is_lost() {
    for size in ["64", "1500", "64k"] {
        for more in [&[][..], &["--packed"]] {
            let words = [&["--size", size, "--idle", "spin"], more].concat();
            let report = measure(&words);
            assert_eq!(report["frames_lost"], 0, "{report}");
            assert!(report["frames_per_s"].as_f64().unwrap() > 0.0, "{report}");
            let asked = report["asked"]["size_bytes"].as_f64().unwrap();
            let bytes = bytes_each(&report);
            assert!((bytes - asked).abs() < 0.5, "each as long as was asked for: {report}");
            for event in ["kicks", "vmhost_wakeups"] {
                assert_eq!(each(&report, event), 0.0, "{event}: {report}");
            }
            for event in ["calls", "vmhost_system_calls"] {
                assert!(each(&report, event) < NEARLY_NONE, "{event}: {report}");
            }
            assert!(report["latency_us"].is_null(), "{report}");
            assert!(report["cpu_s"]["vmhost"].as_f64().unwrap() > 0.0, "{report}");
            assert!(report["cpu_s"]["iohost"].is_null(), "{report}");
        }
    }
}

/// The bytes of a frame that are in the head of its message: these need no buffer, and no copy.
const IN_HEAD_BYTES: f64 = 176.0;

/// The most datagrams that pass for each that is needed: some are sent again while a thread has no
/// core.
const SENT_AGAIN: f64 = 1.1;

/// A frame is copied when it enters a session and when it leaves it. A short frame needs neither
/// copy.
#[test]
fn a_frame_between_nodes_is_copied_once_where_it_enters_a_session_and_once_where_it_leaves() {
    for (crossings, at_vmhost, at_iohost) in [("1", 1.0, 1.0), ("2", 2.0, 2.0)] {
        for (size, bytes) in [("64", 0.0), ("64k", 65_536.0 - IN_HEAD_BYTES)] {
            let path = ["--path", "remote", "--crossings", crossings, "--idle", "spin"];
            let report = measure(&[&path[..], &["--size", size]].concat());
            for (role, copies) in [("vmhost", at_vmhost), ("iohost", at_iohost)] {
                let copied = each(&report, &format!("{role}_bytes_copied"));
                // A frame that is lost on its way was copied before its loss.
                let frames = |name: &str| report[name].as_f64().expect("a count");
                let sent = 1.0 + frames("frames_lost") / frames("frames");
                let bound = copies * bytes..=copies * bytes * sent * SENT_AGAIN;
                assert!(bound.contains(&copied), "{role}: {copied}, not {bound:?}: {report}");
                assert_eq!(each(&report, &format!("{role}_wakeups")), 0.0, "{report}");
                assert!(report["cpu_s"][role].as_f64().unwrap() > 0.0, "{report}");
                assert!(report["core_share"][format!("{role}-sidecore-0")].is_f64(), "{report}");
            }
            assert_eq!(each(&report, "kicks"), 0.0, "{report}");
            assert!(report["network"].is_string(), "{report}");
        }
    }
}

#[test]
fn frames_between_nodes_over_shared_memory_need_no_datagram_of_the_kernel() {
    let path = ["--path", "remote", "--link", "shm", "--encrypt", "off", "--idle", "spin"];
    let report = measure(&[&path[..], &["--size", "64k"]].concat());
    for role in ["vmhost", "iohost"] {
        let count = |event: &str| each(&report, &format!("{role}_{event}"));
        assert!(count("datagrams_sent") > 0.0, "{role} says something: {report}");
        assert_eq!(count("kernel_datagrams_sent"), 0.0, "{role}: {report}");
        assert_eq!(count("send_calls"), 0.0, "{role}: {report}");
    }
}

/// Sleeping nodes are woken for each frame, and send with one call, so the number of calls of a
/// frame is certain.
#[test]
fn a_frame_that_bounces_between_sleeping_nodes_takes_few_system_calls() {
    let path = ["--path", "remote", "--op", "bounce", "--idle", "sleep", "--encrypt", "off"];
    let report = measure(&path);
    for role in ["vmhost", "iohost"] {
        let count = |event: &str| each(&report, &format!("{role}_{event}"));
        println!("{role} {}", count("system_calls"));
        assert!(count("send_calls") <= 2.0 * SENT_AGAIN, "{role}: {report}");
        assert!(count("system_calls") <= 12.0, "{role}: {report}");
    }
}

#[test]
fn a_frame_bounces() {
    let report = measure(&["--op", "bounce"]);
    assert!(report["latency_us"]["p50"].as_f64().unwrap() > 0.0, "{report}");
    assert_eq!(count(&report, "frames") % 2, 0, "each way counts");
    // Ethernet's header, IPv4's and UDP's precede the bytes that netperf sends.
    let report = measure(&["--op", "bounce", "--payload", "1,101"]);
    assert!((bytes_each(&report) - (42.0 + 51.0)).abs() < 1e-6, "{report}");
    assert!(report["asked"].get("size_bytes").is_none(), "{report}");
}

#[test]
fn a_stream_arrives_as_it_was_written_in_fewer_frames_than_writes() {
    for path in ["local", "remote"] {
        let report = measure(&["--op", "stream", "--path", path, "--idle", "spin"]);
        let (writes, frames) = (count(&report, "writes"), count(&report, "frames"));
        assert!(frames < writes, "{report}");
        if count(&report, "frames_lost") == 0 {
            let arrived = bytes_each(&report) * frames as f64;
            assert!((arrived / (64 * writes) as f64 - 1.0).abs() < 1e-9, "{report}");
        } else {
            assert_eq!(path, "remote", "nothing is lost in memory: {report}");
        }
    }
}

/// The receiver's nic is held to a rate. Frames that come too fast are lost, at times all of them.
#[test]
fn a_server_that_loses_frames_is_measured_by_those_that_arrive() {
    let home = tempfile::tempdir().unwrap();
    let nic = |name: &str, last: u8, more: &str| {
        format!(
            "[[nic]]\nsocket = \"{name}.sock\"\nnetwork = \"blue\"\n\
             mac = \"52:54:00:00:00:0{last}\"\n{more}"
        )
    };
    let limit = "limit = { frames-per-second = 1000 }\n";
    let config =
        format!("[[network]]\nname = \"blue\"\n{}{}", nic("one", 1, ""), nic("two", 2, limit));
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n1", config);
    let node = plan.start().unwrap();
    let sockets = ["one", "two"].map(|name| plan.socket(name).display().to_string()).join(",");
    let report = measure(&["--path", "socket", &sockets]);
    let (lost, time_outs) = (count(&report, "frames_lost"), count(&report, "time_outs"));
    assert!(lost > 0 && time_outs > 0, "{report}");
    // The waits took half a second each, and count for no figure.
    let waited_s = report["waited_s"].as_f64().unwrap();
    assert!(waited_s >= 0.5 * time_outs as f64, "{report}");
    assert!(report["seconds"].as_f64().unwrap() < waited_s, "{report}");
    // A run that mostly waited gives no figure.
    assert!(report["waited_share"].as_f64().unwrap() > 0.5, "{report}");
    assert!(report["disturbed"] == true && report["frames_per_s"].is_null(), "{report}");
    let status = node.status().unwrap();
    let dropped = count(&status["nics"][1]["counters"], "drops_out_limited");
    assert!(dropped >= lost, "{dropped}, those of the warm-up among them: {report}");
    node.stop().unwrap();
}

#[test]
fn impossible_measurements_are_named() {
    for (words, wanted) in [
        (&["--size", "32"][..], "--size 32"),
        (&["--path", "socket", "one"], "socket A,B"),
        (&["--crossings", "1"], "--path remote"),
        (&["--link", "shm"], "--link needs two nodes: add --path remote"),
        (&["--path", "remote", "--link", "shm", "--mtu", "9000"], "--mtu needs a network"),
        (&["--path", "socket", "/x,/y", "--idle", "spin"], "--idle: the sockets' server"),
        (&["--op", "stream", "--payload", "1"], "--op bounce"),
        (&["--size", "64", "--payload", "1"], "cannot be used with"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let output = command.args(["bench", "net"]).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{said}");
    }
}
