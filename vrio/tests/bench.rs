//! `vrio bench block` by every path, and beside every peer, for a moment each: it works. The counts
//! are checked in `bench_counts.rs`; no test checks a time.

use std::fs;
use std::process::Command;

use crate::measured::{MACHINE, each, measure, measure_alone, run};
use serde_json::Value;
use testbed::nodes::NodePlan;

/// The bytes that an acknowledgement adds to a datagram.
const ACKNOWLEDGEMENT_BYTES: f64 = 24.0;

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

/// The stack cuts the groups that the cable does not take, and the data arrive as well.
#[test]
fn a_cable_that_takes_no_groups_is_measured() {
    if !rustix::process::geteuid().is_root() {
        // The refusal of other users is a test of its own, below.
        return;
    }
    for offloads in ["tcp", "none"] {
        let path = ["--path", "direct", "--volume", "memory", "--mtu", "1500", "--depth", "8"];
        let report = measure(&[&path[..], &["--offloads", offloads]].concat());
        assert_eq!(report["asked"]["offloads"], offloads, "{report}");
        // The answers of several requests in a message as before: the kernel cuts it later.
        let messages = each(&report, "iohost_messages_sent");
        assert!(messages > 0.0 && messages <= 3.0, "{report}");
    }
}

/// All paths whose volumes are our own. The report names the chain that was asked for.
#[test]
fn volumes_that_are_encrypted_are_measured() {
    for (path, op) in [("bare", "randread"), ("local", "randwrite"), ("remote", "randread")] {
        let words = ["--path", path, "--volume", "memory", "--op", op, "--depth", "4"];
        let report = measure(&[&words[..], &["--chain", "meter", "--chain", "encrypt"]].concat());
        assert_eq!(report["asked"]["chain"], serde_json::json!(["meter", "encrypt"]), "{report}");
    }
}

/// The report has each part under a remote read, with a time above zero, over either link.
#[test]
fn the_parts_of_a_remote_read_are_measured() {
    let _shared = MACHINE.read();
    for link in ["udp", "shm"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        let words = ["--link", link, "--rounds", "1", "--seconds", "0.1", "--json"];
        let output = command.args(["bench", "floor"]).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{link}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rounds = report["rounds"].as_array().unwrap();
        // There is a second round if the cores moved during the first.
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
        // One round decides no goal.
        let goals = report["goals"].as_array().unwrap();
        assert_eq!(goals.len(), if link == "shm" { 2 } else { 1 }, "{report}");
        assert!(goals.iter().all(|goal| goal["standing"] == "undecided"), "{report}");
    }
}

/// The echo under a remote read has as many bytes as a direct client and its IOhost really send.
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
        // With one request at a time, a datagram goes there and one comes back. Other datagrams,
        // which acknowledge or repeat, are no longer than these. A late answer has nothing to
        // acknowledge any more, and is shorter by that.
        let bytes = each(&report, &format!("{role}_link_bytes_sent"));
        let datagrams = each(&report, &format!("{role}_kernel_datagrams_sent"));
        let bounds = bytes / datagrams..=bytes + ACKNOWLEDGEMENT_BYTES;
        assert!(bounds.contains(&echo), "{role}: {echo} is not in {bounds:?}: {report}");
    }
}

/// Each event happens once while a checked guest works, and nothing is left behind. No time is
/// checked.
#[test]
fn replicas_are_measured_and_each_event_is_survived() {
    let _shared = MACHINE.read();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "replicas", "--rounds", "1", "--seconds", "0.1", "--json", "--folder"]);
    let output = command.arg(folder.path()).env("TMPDIR", folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let prices = report["prices"].as_array().unwrap();
    assert_eq!(prices.len(), 4, "{report}");
    // A request and its answer are a datagram each, at depth 1. How many more a copy takes is not
    // checked: members say that they are there as well, and a busy machine has few requests.
    for price in prices.iter().filter(|price| price["depth"] == 1) {
        let sent = [0, 1].map(|side| price["datagrams"][side]["median"].as_f64().unwrap());
        assert!(sent.iter().all(|sent| *sent > 1.9), "{price}");
    }
    let pauses = report["pauses"].as_array().unwrap();
    let events: Vec<_> = pauses.iter().map(|it| it["event"].as_str().unwrap()).collect();
    let all = ["kill-primary", "halt-primary", "stop-primary", "move", "kill-backup", "kill-host"];
    assert_eq!(events, all);
    assert!(pauses.iter().all(|it| it["pauses_ms"].as_array().unwrap().len() == 1), "{report}");
    assert!(report["blocks_verified"].as_u64().unwrap() > 0, "{report}");
}

/// The host of the primary ends with the member that leads etcd, and both come back.
#[test]
fn replicas_survive_the_end_of_a_host_with_the_leader_of_etcd() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP replicas_survive_the_end_of_a_host_with_the_leader_of_etcd: only root may");
        return;
    }
    let _shared = MACHINE.read();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "replicas", "--rounds", "1", "--seconds", "0", "--registry", "etcd"]);
    command.args(["--event", "kill-host-with-leader", "--json", "--folder"]);
    let output = command.arg(folder.path()).env("TMPDIR", folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["network"], "namespaces", "{report}");
    assert_eq!(report["pauses"][0]["event"], "kill-host-with-leader", "{report}");
    assert!(report["blocks_verified"].as_u64().unwrap() > 0, "{report}");
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
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
        // The bench itself fails where no datagram went past the stack.
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
fn the_server_of_a_socket_is_measured() {
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
fn a_socket_that_is_not_there_is_said_at_once() {
    let words = ["bench", "block", "--path", "socket", "/x"];
    let output = Command::new(env!("CARGO_BIN_EXE_vrio")).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("--path socket /x: start the program that makes it"), "{said}");
}

/// Whether a program is in `PATH`.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Checks that the report names a peer that could not be measured, and the way out. A peer with a
/// Debian package must be installed here, or the test prints a skip. SPDK has no package, so its
/// name in the report is all that is checked.
fn check_missing(ours: &str, theirs: &str, missing: &str) {
    if theirs.starts_with("SPDK") {
        if missing.contains(&format!("{theirs}, by ")) {
            // The target is installed, and its client is not.
            return;
        }
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

/// One short round of a comparison, which leaves nothing behind.
fn compare(words: &[&str]) -> Value {
    let _shared = MACHINE.read();
    let temporary = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    command.args(["bench", "compare", "block", "--quick", "--rounds", "1", "--seconds", "0.1"]);
    command.args(["--json", "--folder"]).arg(temporary.path());
    command.arg("--disk-folder").arg(temporary.path());
    // One cable, of the longest packets that most networks carry.
    if rustix::process::geteuid().is_root() {
        command.args(["--mtu", "1500"]);
    }
    let output = command.args(words).env("TMPDIR", temporary.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{words:?} leaves {left:?} behind");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All rows of contests whose name begins like that.
fn rows_of(report: &Value, contest: &str) -> Vec<Value> {
    let contests = report["contests"].as_array().unwrap();
    let of = contests.iter().filter(|it| it["contest"].as_str().unwrap().starts_with(contest));
    of.flat_map(|it| it["rows"].as_array().unwrap().clone()).collect()
}

#[test]
fn we_are_compared_with_every_peer_that_is_installed() {
    // All contests hold the machine for two minutes. The tests of each change run a part of them,
    // in which every peer takes part.
    let all_run = matches!(std::env::var("VRIO_TIER").as_deref(), Ok("nightly" | "long"));
    let chosen = if all_run { "" } else { "memory" };
    let report = compare(&["--contest", chosen, "--case", "randread 4k depth 32"]);
    let missing = report["missing"].to_string();
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
    for (contest, ours, theirs) in pairs.into_iter().filter(|pair| pair.0.contains(chosen)) {
        let is_pair = |row: &&Value| {
            row["ours"] == ours && row["theirs"].as_str().unwrap().starts_with(theirs)
        };
        let rows = rows_of(&report, contest);
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
            // A peer's processor time is sampled while it works. In a tenth of a second there may
            // be none.
            let cpu = row["cpu_ratio"]["median"].as_f64();
            with_cpu += usize::from(cpu.is_some_and(|it| it > 0.0));
        }
    }
    assert!(2 * with_cpu >= all, "processor time is known of {with_cpu} of {all} pairs: {report}");
    if all_run {
        check_goals(&report);
    }
    // Our own figures have the cores' round trips as well, where there are two cores.
    let own = report["own"].as_array().unwrap();
    let told = own.iter().filter(|it| it["cache_line_rtt_ns"]["min"].as_f64() > Some(0.0));
    let several = std::thread::available_parallelism().unwrap().get() > 1;
    assert_eq!(told.count(), if several { own.len() } else { 0 }, "{own:?}");
}

/// Cases besides the ones above: other depths, writes, and long requests in order.
#[test]
fn we_are_compared_in_other_cases() {
    for (contest, theirs, programs, case, cases) in [
        ("null", "qemu-storage-daemon", &["qemu-storage-daemon"][..], "randwrite 4k depth", 3),
        ("direct", "nbdkit, by fio", &["nbdkit", "fio"], "write 64k depth 8", 1),
    ] {
        if !programs.iter().all(|program| is_installed(program)) {
            println!("SKIP we_are_compared_in_other_cases: {contest}: needs {programs:?}");
            continue;
        }
        let report = compare(&["--contest", contest, "--case", case]);
        let (rows, mut found) = (rows_of(&report, ""), 0);
        for row in rows.iter().filter(|row| row["theirs"].as_str().unwrap().starts_with(theirs)) {
            assert!(row["case"].as_str().unwrap().starts_with(case), "{row}");
            assert!(row["rate_ratio"]["median"].as_f64().unwrap() > 0.0, "{row}");
            found += usize::from(row["ours"] != "vrio direct over AF_XDP");
        }
        assert_eq!(found, cases, "{contest}: {report}");
    }
}

/// The report has all goals, for any set of measured peers. One round decides none of them.
fn check_goals(report: &Value) {
    let goals = report["goals"].as_array().unwrap();
    assert_eq!(goals.len(), 12, "{report}");
    let standings = goals.iter().map(|goal| goal["standing"].as_str().unwrap());
    assert!(standings.clone().all(|it| ["undecided", "not_measured"].contains(&it)), "{goals:?}");
    assert!(standings.clone().any(|it| it == "undecided"), "{goals:?}");
    // Goals that need no peer: events, and three roles on two cores.
    for goal in &goals[10..] {
        assert!(goal["verdicts"].as_u64().unwrap() >= 4, "{goal}");
    }
}

#[test]
fn invalid_options_are_errors_of_the_command_line() {
    let temporary = tempfile::tempdir().unwrap();
    for (words, said) in [
        (&["--path", "nowhere"][..], "local, remote, direct, bare, or socket PATH"),
        (&["--path", "socket"], "socket PATH"),
        (&["--volume", "tape"], "null, memory, file:PATH, direct:PATH or pool:PATH"),
        (&["--size", "5000"], "a power of two"),
        (&["--depth", "0"], "--depth 0"),
        (&["--path", "direct", "--jobs", "2"], "one job"),
        (&["--path", "direct", "--guests", "2"], "--guests 2"),
        (&["--link", "xdp"], "--link needs two nodes: add --path remote"),
        (&["--encrypt", "off"], "--encrypt needs two nodes"),
        (&["--loopback"], "--loopback needs two nodes"),
        (&["--mtu", "9000"], "--mtu needs two nodes"),
        (&["--pid", "1"], "--pid is for --path socket"),
        (&["--path", "remote", "--pid", "1"], "--pid is for --path socket"),
        (&["--path", "socket", "/x", "--link", "udp"], "--link needs two nodes"),
        (&["--path", "socket", "/x", "--sidecores", "2"], "--sidecores: the socket's server"),
        (&["--path", "socket", "/x", "--idle", "spin"], "--idle: the socket's server"),
        (
            &["--path", "socket", "/x", "--volume", "file:/y"],
            "--volume file:/y: the socket's server",
        ),
        (&["--path", "socket", "/x", "--guests", "2"], "--guests 2"),
        (&["--path", "remote", "--link", "shm", "--mtu", "9000"], "--mtu needs a network"),
        (&["--path", "direct", "--link", "shm", "--loopback"], "--link shm has none: drop it"),
        (&["--path", "direct", "--link", "xdp", "--loopback"], "--loopback has none"),
        (&["--path", "remote", "--mtu", "9000", "--loopback"], "which --loopback has not"),
        (&["--offloads", "tcp"], "--offloads needs two nodes"),
        (&["--path", "remote", "--offloads", "none", "--loopback"], "--loopback"),
        (&["--path", "direct", "--packed"], "--path direct has no ring"),
        (&["--path", "direct", "--driver", "sleeps"], "--path direct has no ring"),
        (&["--path", "direct", "--reuse", "as-linux"], "--path direct has no ring"),
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
