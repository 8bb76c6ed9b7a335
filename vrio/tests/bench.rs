//! `vrio bench block` by every way, for a moment each: that it works, and that what does not depend
//! on the machine's speed is as promised. No time is looked at.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{PoisonError, RwLock};

use bench::nodes::NodePlan;
use serde_json::Value;

/// Bytes of a request.
const SIZE: f64 = 4096.0;

/// Payload of a datagram on an Ethernet of 1500 bytes, without our heads, rounded down. Where nodes
/// meet on the loopback device datagrams are longer, and fewer.
const DATAGRAM_BYTES: f64 = 1400.0;

/// More datagrams than needed that pass: some are sent again while a thread has no core.
const SENT_AGAIN: f64 = 1.1;

/// What an acknowledgement adds to a datagram.
const ACKNOWLEDGEMENT_BYTES: f64 = 24.0;

/// Datagrams that share a call or an acknowledgement, at least. On a quiet machine it is 20 to 40,
/// but how many find a window open in one round is the scheduler's and the peer's.
const SHARE: f64 = 3.0;

/// What an event that never happens for a request may come to: sessions keep their time, and an
/// index comes round.
const NEARLY_NONE: f64 = 1e-3;

/// Two measurements at a time take each other's cores: then requests wait for a scheduler, and how
/// many share an event is its doing too. Where that is looked at, a measurement has all of this.
static MACHINE: RwLock<()> = RwLock::new(());

fn run(temporary: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "block", "--seconds", "0.3", "--json"]).args(words);
    command.env("TMPDIR", temporary).output().unwrap()
}

/// The report of a measurement, while others may run.
fn measure(words: &[&str]) -> Value {
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    report_of(words)
}

/// The same with the machine to itself.
fn measure_alone(words: &[&str]) -> Value {
    let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
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
    let report = measure_alone(&["--depth", "32", "--idle", "spin", "--driver", "sleeps"]);
    // One for all 32 that a round completes; a driver that was awake early sees them in parts.
    let calls = each(&report, "calls");
    assert!(calls > 0.0 && calls <= 4.0 / 32.0, "{report}");
    assert_eq!(each(&report, "kicks"), 0.0, "{report}");
}

/// Also with fewer cores than these three threads: whoever spins looks by itself.
#[test]
fn a_spinning_remote_disk_needs_no_kick_and_no_wake_up() {
    for link in ["udp", "shm"] {
        let path = ["--path", "remote", "--link", link];
        let report = measure_alone(&[&path[..], &["--idle", "spin", "--depth", "32"]].concat());
        for event in ["kicks", "vmhost_wakeups", "iohost_wakeups"] {
            assert_eq!(each(&report, event), 0.0, "{event}: {report}");
        }
        assert!(each(&report, "calls") < 1.0 / f64::from(1 << 15), "{report}");
    }
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
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    for link in ["udp", "shm"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let words = ["--link", link, "--rounds", "1", "--seconds", "0.1", "--json"];
        let output = command.args(["bench", "floor"]).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{link}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rounds = report["rounds"].as_array().unwrap();
        // Another one, where the cores moved in the one that was asked for.
        assert!((1..=2).contains(&rounds.len()), "{report}");
        let left = rounds.iter().map(|round| {
            for part in ["echo", "cipher", "local", "clear", "sealed"] {
                assert!(round[part].as_f64().unwrap() > 0.0, "{part}: {report}");
            }
            let number = |part: &str| round[part].as_f64().unwrap();
            number("clear") - number("echo") - number("local")
        });
        let adds = report["remote_adds_us"]["min"].as_f64().unwrap();
        assert!(left.into_iter().any(|left| (adds - left).abs() < 1e-6), "{report}");
        // One round decides nothing.
        let goals = report["goals"].as_array().unwrap();
        assert_eq!(goals.len(), if link == "shm" { 2 } else { 1 }, "{report}");
        assert!(goals.iter().all(|goal| goal["standing"] == "undecided"), "{report}");
    }
}

/// The echo under a remote read is as long as what a direct client and its IOhost really send.
#[test]
fn the_echo_weighs_what_a_call_weighs() {
    let path = ["--path", "direct", "--volume", "memory", "--idle", "spin", "--encrypt", "off"];
    let report = measure_alone(&[&path[..], &["--loopback"]].concat());
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    let words = ["bench", "floor", "--rounds", "1", "--seconds", "0.05", "--json"];
    let output = command.args(words).output().unwrap();
    let floor: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (role, at) in [("driver", 0), ("iohost", 1)] {
        let echo = floor["echo_bytes"][at].as_f64().unwrap();
        // One request at a time: a datagram there, one back. There may be others, which acknowledge
        // or say something again; they are no longer. An answer that is late has nothing to
        // acknowledge any more, and is shorter by that.
        let bytes = each(&report, &format!("{role}_link_bytes_sent"));
        let datagrams = each(&report, &format!("{role}_kernel_datagrams_sent"));
        let bounds = bytes / datagrams..=bytes + ACKNOWLEDGEMENT_BYTES;
        assert!(bounds.contains(&echo), "{role}: {echo} is not in {bounds:?}: {report}");
    }
}

/// Each size and way of a request: small ones at random, long ones in order.
const CASES: [(&str, &str, f64, &str); 6] = [
    ("randread", "4k", 4096.0, "32"),
    ("randwrite", "4k", 4096.0, "32"),
    ("read", "64k", 65_536.0, "8"),
    ("write", "64k", 65_536.0, "8"),
    ("read", "1m", 1_048_576.0, "4"),
    ("write", "1m", 1_048_576.0, "4"),
];

/// The roles of a direct request: who sends its data, and who only says something about it.
fn sides(op: &str) -> [&'static str; 2] {
    if op.ends_with("write") { ["driver", "iohost"] } else { ["iohost", "driver"] }
}

#[test]
fn a_direct_request_takes_few_datagrams_and_calls_and_each_byte_is_copied_once() {
    for (op, size, bytes, depth) in CASES {
        let path = ["--path", "direct", "--idle", "spin", "--encrypt", "off"];
        let report =
            measure_alone(&[&path[..], &["--op", op, "--size", size, "--depth", depth]].concat());
        let [sender, other] = sides(op);
        let count = |role: &str, event: &str| each(&report, &format!("{role}_{event}"));
        // As many as the data fill.
        let filled = (bytes / DATAGRAM_BYTES).ceil();
        let sent = count(sender, "datagrams_sent");
        assert!(sent > 0.0 && sent <= filled * SENT_AGAIN, "{sender}: {sent} datagrams: {report}");
        // A request or an answer, and acknowledgements: of what a round found, not of a datagram.
        let said = count(other, "datagrams_sent");
        assert!(said <= 1.0 + filled / SHARE, "{other}: {said} datagrams: {report}");
        for role in [sender, other] {
            // All that a round has to send goes with one call.
            let calls = count(role, "send_calls");
            assert!(
                calls > 0.0 && calls <= 1.0 + filled / SHARE,
                "{role}: {calls} calls: {report}"
            );
            assert_eq!(count(role, "wakeups"), 0.0, "{role}: {report}");
        }
        // The client's buffers are not the link's; what an IOhost reads goes out from where it is.
        assert_eq!(count("driver", "bytes_copied"), bytes, "{report}");
        let copied = if sender == "driver" { bytes } else { 0.0 };
        assert_eq!(count("iohost", "bytes_copied"), copied, "{report}");
    }
}

#[test]
fn a_direct_request_over_shared_memory_takes_no_call_and_one_more_copy() {
    for (op, size, bytes, depth) in CASES {
        let path = ["--path", "direct", "--link", "shm", "--idle", "spin"];
        let report =
            measure_alone(&[&path[..], &["--op", op, "--size", size, "--depth", depth]].concat());
        let count = |role: &str, event: &str| each(&report, &format!("{role}_{event}"));
        // Of requests, answers and acknowledgements.
        let heads = 512.0;
        for role in ["driver", "iohost"] {
            assert_eq!(count(role, "kernel_datagrams_sent"), 0.0, "{role}: {report}");
            assert_eq!(count(role, "send_calls"), 0.0, "{role}: {report}");
            assert_eq!(count(role, "wakeups"), 0.0, "{role}: {report}");
            let datagrams = (1.0 + bytes / 32_768.0) * SENT_AGAIN;
            assert!(count(role, "datagrams_sent") <= datagrams, "{role}: {report}");
            let copies = if role == "driver" || op.ends_with("write") { 2.0 } else { 1.0 };
            let copied = count(role, "bytes_copied");
            let bound = copies * bytes..=copies * bytes * SENT_AGAIN + heads;
            assert!(bound.contains(&copied), "{role}: {copied}: {report}");
        }
    }
}

/// How many calls a request takes is certain only of those who sleep: who spins looks, by a call,
/// as often as there is time.
#[test]
fn a_direct_request_of_those_who_sleep_takes_few_system_calls() {
    let at = |depth| {
        let words = ["--path", "direct", "--idle", "sleep", "--encrypt", "off", "--depth", depth];
        let report = measure_alone(&words);
        let calls = ["driver", "iohost"].map(|role| each(&report, &format!("{role}_system_calls")));
        let wakeups = ["driver", "iohost"].map(|role| each(&report, &format!("{role}_wakeups")));
        (calls, wakeups, report)
    };
    let (one, wakeups, report) = at("1");
    // To send, to sleep, to receive, and to find nothing more before it sleeps; the client looks
    // once more.
    assert!(one[0] <= 5.0 * SENT_AGAIN && one[1] <= 4.0 * SENT_AGAIN, "{one:?}: {report}");
    assert!(wakeups.iter().all(|each| (0.5..=SENT_AGAIN).contains(each)), "{wakeups:?}: {report}");
    // Several requests share each of them.
    let (many, _, report) = at("32");
    let shared = many.iter().zip(&one).all(|(many, one)| *many <= one / 2.0);
    assert!(shared, "{many:?} after {one:?}: {report}");
}

#[test]
fn a_remote_disk_over_shared_memory_needs_no_datagram_of_the_kernel() {
    let report = measure(&["--path", "remote", "--link", "shm", "--depth", "8"]);
    for role in ["vmhost", "iohost"] {
        let count = |event: &str| each(&report, &format!("{role}_{event}"));
        assert!(count("datagrams_sent") > 0.0, "{role} says something: {report}");
        assert_eq!(count("kernel_datagrams_sent"), 0.0, "{role}: {report}");
        assert_eq!(count("send_calls"), 0.0, "{role}: {report}");
    }
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

/// Whether a program is where shells have theirs.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A peer that could not be measured is named, with what to do about it. What a package has is
/// installed where this runs, or that is a skip; SPDK is in none, so there its name is the promise.
fn check_missing(ours: &str, theirs: &str, missing: &str) {
    if theirs.starts_with("SPDK") {
        assert!(!is_installed("spdk_tgt"), "{theirs} is here and was not measured: {missing}");
        let named = "SPDK (not packaged: build it, and name the folder with --spdk)";
        assert!(missing.contains(named), "{theirs} is not named: {missing}");
        return;
    }
    let packages = [
        ("qemu-storage-daemon", "qemu-storage-daemon (Debian: qemu-utils)"),
        ("nbdkit", "nbdkit (Debian: nbdkit)"),
        ("fio", "fio (Debian: fio)"),
    ];
    let absent = |program: &str| theirs.contains(program) && !is_installed(program);
    let named = packages.iter().filter(|(program, _)| absent(program));
    let mut all: Vec<_> = named.map(|(_, named)| *named).collect();
    if ours.contains("AF_XDP") {
        all.push(ours);
    }
    assert!(!all.is_empty(), "{ours} and {theirs} are here and were not compared: {missing}");
    assert!(all.iter().any(|named| missing.contains(named)), "{all:?} is not named: {missing}");
    println!("SKIP we_are_compared_with_every_peer: {ours} and {theirs}: {missing}");
}

#[test]
fn we_are_compared_with_every_peer_that_is_installed() {
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
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
        ("local, memory file", "vrio local", "qemu-storage-daemon"),
        ("local, memory file", "vrio local", "fio io_uring"),
        ("local, disk file, O_DIRECT", "vrio local", "fio io_uring"),
        ("local, disk file, page cache", "vrio local", "fio io_uring"),
        ("remote, memory", "vrio remote", "nbdkit + qemu-storage-daemon"),
        ("direct, memory", "vrio direct", "nbdkit, by fio"),
        ("direct, memory", "vrio direct over AF_XDP", "nbdkit, by fio"),
        ("direct, memory", "vrio direct", "SPDK NVMe/TCP"),
    ];
    let (mut all, mut with_cpu) = (0, 0);
    for (contest, ours, theirs) in pairs {
        let is_pair = |row: &&Value| {
            row["ours"] == ours && row["theirs"].as_str().unwrap().starts_with(theirs)
        };
        let rows = rows(contest);
        let found: Vec<_> = rows.iter().filter(is_pair).collect();
        if found.is_empty() {
            check_missing(ours, theirs, &missing);
        }
        all += found.len();
        for row in found {
            for ratio in ["rate_ratio", "p50_ratio", "p99_ratio"] {
                let median = row[ratio]["median"].as_f64();
                assert!(median.is_some_and(|it| it > 0.0), "{ratio}: {row}");
            }
            // A peer's is sampled while it works; in a tenth of a second there may be nothing.
            let cpu = row["cpu_ratio"]["median"].as_f64();
            with_cpu += usize::from(cpu.is_some_and(|it| it > 0.0));
        }
    }
    assert!(2 * with_cpu >= all, "processor time is known of {with_cpu} of {all} pairs: {report}");
    check_goals(&report);
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// All goals are there, whatever was measured, and one round decides none of them.
fn check_goals(report: &Value) {
    let goals = report["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 12, "{report}");
    let standings = goals.iter().map(|goal| goal["standing"].as_str().unwrap());
    assert!(standings.clone().all(|it| ["undecided", "not_measured"].contains(&it)), "{goals:?}");
    assert!(standings.clone().any(|it| it == "undecided"), "{goals:?}");
    // What needs no peer: events, and three roles on two cores.
    for goal in &goals[10..] {
        assert!(goal["verdicts"].as_u64().unwrap() >= 4, "{goal}");
    }
}

/// Events of a request, each of them, of one guest and of many.
const OF_GUESTS: [&str; 5] =
    ["kicks", "calls", "vmhost_wakeups", "vmhost_system_calls", "vmhost_datagrams_sent"];

#[test]
fn what_a_request_costs_does_not_grow_with_queues_or_guests() {
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "scale", "--seconds", "0.1", "--json"]);
    let output = command.env("TMPDIR", temporary.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [sidecores, guests] = &report["series"].as_array().unwrap()[..] else { panic!("{report}") };
    let points = |series: &Value| series["points"].as_array().unwrap().clone();
    assert_eq!(points(guests).last().unwrap()["guests"], 32, "{report}");
    for series in [points(sidecores), points(guests)] {
        for point in &series {
            assert!(point["report"]["requests"].as_u64().unwrap() > 0, "{point}");
        }
        // Where threads share cores they sleep now and then, and how often is the scheduler's.
        let mut seated = series.iter().filter(|point| point["seated"].as_bool().unwrap());
        let Some(first) = seated.next() else { continue };
        for (point, event) in seated.flat_map(|point| OF_GUESTS.map(|event| (point, event))) {
            let [few, many] = [first, point].map(|point| each(&point["report"], event));
            assert!(many <= few + NEARLY_NONE, "{event}: {few}, then {many}: {point}");
        }
    }
}

/// Those who sleep have to be woken, so there is something that could grow.
#[test]
fn many_sleeping_guests_need_no_more_events_than_one() {
    let words = ["--depth", "4", "--idle", "sleep", "--driver", "sleeps", "--guests"];
    let [one, many] = ["1", "8"].map(|guests| measure_alone(&[&words[..], &[guests]].concat()));
    for event in OF_GUESTS {
        let [few, more] = [&one, &many].map(|report| each(report, event));
        assert!(more <= few * 1.25 + NEARLY_NONE, "{event}: {few}, then {more}: {one}, {many}");
    }
    for event in ["kicks", "calls", "vmhost_wakeups"] {
        // One for the four of a batch.
        let count = each(&one, event);
        assert!((0.1..=0.5).contains(&count), "{event}: {one}");
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
