//! `vrio bench block` by every way, for a moment each: that it works, and that what does not depend
//! on the machine's speed is as promised. No time is looked at.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use bench::nodes::NodePlan;
use serde_json::Value;

/// Bytes of a request.
const SIZE: f64 = 4096.0;

fn run(temporary: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "block", "--seconds", "0.3", "--json"]).args(words);
    command.env("TMPDIR", temporary).output().unwrap()
}

/// The report of a measurement that goes well and leaves nothing behind.
fn measure(words: &[&str]) -> Value {
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

fn each(report: &Value, name: &str) -> f64 {
    let count = report["events_per_request"][name].as_f64();
    count.unwrap_or_else(|| panic!("no {name}: {report}"))
}

#[test]
fn a_spinning_local_disk_needs_no_event_at_all() {
    for more in [&["--packed"][..], &[]] {
        let words = [&["--depth", "32", "--idle", "spin"], more].concat();
        let report = measure(&words);
        for event in ["kicks", "vmhost_wakeups"] {
            assert_eq!(each(&report, event), 0.0, "{event}: {report}");
        }
        // A driver that declines calls by an index is called once each time that comes round.
        assert!(each(&report, "calls") < 1.0 / f64::from(1 << 15), "{report}");
        assert!(each(&report, "vmhost_system_calls") < 1.0 / f64::from(1 << 15), "{report}");
        assert_eq!(each(&report, "vmhost_bytes_copied"), 0.0, "{report}");
        assert!(report["core_share"]["vmhost-sidecore-0"].as_f64().unwrap() > 0.0, "{report}");
        assert!(report["cpu_s"]["iohost"].is_null(), "{report}");
    }
}

#[test]
fn a_sleeping_driver_is_called_once_for_many_requests() {
    let report = measure(&["--depth", "32", "--idle", "spin", "--driver", "sleeps"]);
    let calls = each(&report, "calls");
    assert!(calls > 0.0 && calls < 0.5, "{report}");
}

#[test]
fn a_remote_disk_copies_each_byte_once_on_the_vmhost() {
    for words in [["--op", "randwrite"], ["--op", "read"]] {
        let path = ["--path", "remote", "--volume", "memory", "--depth", "8"];
        let report = measure(&[&path[..], &words].concat());
        assert_eq!(each(&report, "vmhost_bytes_copied"), SIZE, "{report}");
        let mut roles = ["vmhost", "iohost"].into_iter();
        assert!(roles.all(|role| report["cpu_s"][role].as_f64().unwrap() > 0.0), "{report}");
        let written = words[1] == "randwrite";
        let copied = each(&report, "iohost_bytes_copied");
        assert_eq!(copied, if written { SIZE } else { 0.0 }, "{report}");
    }
}

#[test]
fn a_direct_client_works_over_both_links_sealed_and_in_clear() {
    for link in ["udp", "shm"] {
        for encrypt in ["on", "off"] {
            let path = ["--path", "direct", "--volume", "memory", "--idle", "spin"];
            let words = ["--link", link, "--encrypt", encrypt, "--depth", "4"];
            let report = measure(&[&path[..], &words].concat());
            assert_eq!(each(&report, "driver_wakeups"), 0.0, "{report}");
            assert_eq!(each(&report, "iohost_wakeups"), 0.0, "{report}");
            assert!(report["cpu_s"]["vmhost"].is_null(), "{report}");
            assert!(report["events_per_request"].get("kicks").is_none(), "{report}");
        }
    }
}

/// It says what it measured, each of which took some time, over either link.
#[test]
fn what_is_under_a_remote_read_is_measured() {
    for link in ["udp", "shm"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let words = ["--link", link, "--rounds", "1", "--seconds", "0.1", "--json"];
        let output = command.args(["bench", "floor"]).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{link}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let [round] = &report["rounds"].as_array().unwrap()[..] else { panic!("{report}") };
        for part in ["echo", "cipher", "local", "clear", "sealed"] {
            assert!(round[part].as_f64().unwrap() > 0.0, "{part}: {report}");
        }
        let number = |part: &str| round[part].as_f64().unwrap();
        let left = number("clear") - number("echo") - number("local");
        assert!((report["remote_adds_us"].as_f64().unwrap() - left).abs() < 1e-6, "{report}");
    }
}

#[test]
fn a_remote_disk_over_shared_memory_needs_no_datagram_of_the_kernel() {
    let report = measure(&["--path", "remote", "--link", "shm", "--idle", "spin"]);
    // A call and an answer.
    assert!(each(&report, "vmhost_datagrams_sent") >= 1.0, "{report}");
    assert!(report["network"].is_string(), "{report}");
}

#[test]
fn datagrams_go_past_the_network_stack() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP datagrams_go_past_the_network_stack: only root may");
        return;
    }
    for way in ["direct", "remote"] {
        let path = ["--path", way, "--volume", "memory", "--link", "xdp"];
        let report = measure(&[&path[..], &["--depth", "8", "--op", "randwrite"]].concat());
        // The bench itself fails where none did.
        assert_eq!(report["network"], "namespaces", "{report}");
    }
}

#[test]
fn a_file_is_made_and_removed_or_used_and_left() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    let volume = format!("file:{}", file.display());
    measure(&["--volume", &volume, "--op", "write", "--size", "64k", "--depth", "4"]);
    assert!(!file.exists(), "it was made for this");
    fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
    measure(&["--volume", &volume, "--jobs", "2"]);
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
}

#[test]
fn whoever_serves_a_socket_is_measured() {
    let home = tempfile::tempdir().unwrap();
    let config = "[[volume]]\nname = \"v\"\nbackend = { null = \"1GiB\" }\n\
                  [[disk]]\nsocket = \"v.sock\"\nvolume = \"v\"\n";
    let plan = NodePlan::new(env!("CARGO_BIN_EXE_vrio"), home.path(), "n1", config.to_owned());
    let mut node = plan.start().unwrap();
    let socket = node.wait_for_disk("v").unwrap();
    let (socket, pid) = (socket.to_str().unwrap().to_owned(), node.pid().to_string());
    let report = measure(&["--path", "socket", &socket, "--pid", &pid]);
    assert!(report["cpu_s"]["vmhost"].as_f64().unwrap() > 0.0, "{report}");
    node.stop().unwrap();
}

#[test]
fn we_are_compared_with_every_peer_that_is_installed() {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "compare", "block", "--rounds", "1", "--seconds", "0.1", "--json"]);
    command.args(["--case", "randread 4k depth 32", "--folder"]).arg(temporary.path());
    command.arg("--disk-folder").arg(temporary.path());
    let output = command.env("TMPDIR", temporary.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing = report["missing"].to_string();
    let rows = |contest: &str| {
        let contests = report["contests"].as_array().unwrap();
        let of = contests.iter().filter(|it| it["contest"].as_str().unwrap().starts_with(contest));
        of.flat_map(|it| it["rows"].as_array().unwrap().clone()).collect::<Vec<_>>()
    };
    let pairs = [
        ("local, null volume", "vrio local", "qemu-storage-daemon"),
        ("local, null volume", "vrio local", "SPDK vhost"),
        ("local, memory", "vrio local", "SPDK vhost"),
        ("local, file in", "vrio local", "qemu-storage-daemon"),
        ("local, file in", "vrio local", "fio io_uring"),
        ("remote, memory", "vrio remote", "nbdkit + qemu-storage-daemon"),
        ("direct, memory", "vrio direct", "nbdkit, by fio"),
        ("direct, memory", "vrio direct over AF_XDP", "nbdkit, by fio"),
        ("direct, memory", "vrio direct", "SPDK NVMe/TCP"),
    ];
    for (contest, ours, theirs) in pairs {
        let is_pair = |row: &&Value| {
            row["ours"] == ours && row["theirs"].as_str().unwrap().starts_with(theirs)
        };
        let rows = rows(contest);
        let found: Vec<_> = rows.iter().filter(is_pair).collect();
        if found.is_empty() {
            let named = ["qemu-storage-daemon", "nbdkit", "fio", "SPDK", "AF_XDP"];
            let mut named =
                named.iter().filter(|name| theirs.contains(**name) || ours.contains(**name));
            assert!(named.any(|name| missing.contains(name)), "{theirs} is not named: {missing}");
            println!("SKIP we_are_compared_with_every_peer: {ours} and {theirs}: {missing}");
        }
        for row in found {
            for ratio in ["iops_ratio", "p50_ratio", "cpu_ratio"] {
                assert!(row[ratio]["median"].as_f64().unwrap() > 0.0, "{ratio}: {row}");
            }
        }
    }
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_a_request_costs_does_not_grow_with_guests() {
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "scale", "--seconds", "0.1", "--json"]);
    let output = command.env("TMPDIR", temporary.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let series = report["series"].as_array().unwrap();
    let most = series[1]["points"].as_array().unwrap().last().unwrap();
    assert_eq!(most["guests"], 32, "{report}");
    for point in series.iter().flat_map(|series| series["points"].as_array().unwrap()) {
        let measured = &point["report"];
        assert!(measured["requests"].as_u64().unwrap() > 0, "{point}");
        assert_eq!(each(measured, "vmhost_bytes_copied"), 0.0, "{point}");
        if point["seated"].as_bool().unwrap() {
            for event in ["kicks", "vmhost_wakeups"] {
                assert_eq!(each(measured, event), 0.0, "{event}: {point}");
            }
        }
    }
}

#[test]
fn what_makes_no_sense_is_the_command_lines_fault() {
    let temporary = tempfile::tempdir().unwrap();
    for (words, said) in [
        (&["--path", "nowhere"][..], "local, remote, direct or socket PATH"),
        (&["--path", "socket"], "socket PATH"),
        (&["--volume", "tape"], "null, memory, file:PATH or direct:PATH"),
        (&["--size", "5000"], "a power of two"),
        (&["--depth", "0"], "--depth 0"),
        (&["--path", "direct", "--jobs", "2"], "one job"),
        (&["--path", "direct", "--guests", "2"], "--guests 2"),
    ] {
        let output = run(temporary.path(), words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(said), "{words:?}: {text}");
    }
    let output = run(temporary.path(), &["--volume", "file:/no/such/folder/disk"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("there is no folder"), "{text}");
}
