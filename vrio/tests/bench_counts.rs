//! The costs of a request as `vrio bench` counts them. Counts that do not depend on the machine's
//! speed are as promised. No test checks a time.

use std::process::Command;

use crate::measured::{MACHINE, each, measure, measure_alone};
use serde_json::Value;

/// Bytes of a request.
const SIZE: f64 = 4096.0;

/// Payload of a datagram on an Ethernet of 1500 bytes, without our heads, rounded down. Where nodes
/// meet on the loopback device datagrams are longer, and fewer.
const DATAGRAM_BYTES: f64 = 1400.0;

/// More datagrams than needed that pass: some are sent again while a thread has no core.
const SENT_AGAIN: f64 = 1.1;

/// The fewest datagrams that share a call or an acknowledgement. On a quiet machine it is 20 to 40,
/// but the scheduler and the peer decide how many find a window open in one round.
const SHARE: f64 = 3.0;

/// The most that is counted of an event that never happens for a request: sessions keep their time,
/// and an index comes round.
const NEARLY_NONE: f64 = 1e-3;

/// The most that is counted of an event that requests share, of each request: the scheduler decides
/// how many requests share one.
const SHARED: f64 = 0.75;

/// The share of datagrams that may go through the kernel although cards are found past it: some
/// windows.
const FINDING_SHARE: f64 = 0.02;

#[test]
fn a_spinning_local_disk_needs_no_event_at_all() {
    for more in [&["--packed"][..], &[]] {
        let words = [&["--depth", "32", "--idle", "spin"], more].concat();
        let report = measure(&words);
        for event in ["kicks", "vmhost_wakeups"] {
            assert_eq!(each(&report, event), 0.0, "{event}: {report}");
        }
        // A driver that declines calls by an index is called once each time that the index comes
        // round.
        assert!(each(&report, "calls") < 1.0 / f64::from(1 << 15), "{report}");
        assert!(each(&report, "vmhost_system_calls") < 1.0 / f64::from(1 << 15), "{report}");
        assert!(report["events_per_request"].get("vmhost_bytes_copied").is_none(), "{report}");
        assert!(report["core_share"]["vmhost-sidecore-0"].as_f64().unwrap() > 0.0, "{report}");
        assert!(report["cpu_s"]["iohost"].is_null(), "{report}");
    }
}

#[test]
fn a_sleeping_driver_is_called_once_for_many_requests() {
    let report = measure_alone(&["--depth", "32", "--idle", "spin", "--driver", "sleeps"]);
    // One call for all 32 that a round completes; a driver that was awake early sees them in parts.
    let calls = each(&report, "calls");
    assert!(calls > 0.0 && calls <= 8.0 / 32.0, "{report}");
    assert_eq!(each(&report, "kicks"), 0.0, "{report}");
}

/// A spinning thread polls, so this holds also with fewer cores than these three threads.
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
        // A session's control messages of a hundred bytes may fall into the time that is measured.
        let more = each(&report, "iohost_bytes_copied") - if written { SIZE } else { 0.0 };
        assert!((0.0..1.0).contains(&more), "{report}");
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

/// The roles of a direct request: first the sender of the data, then the other role.
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
        // As many datagrams as the data fill.
        let filled = (bytes / DATAGRAM_BYTES).ceil();
        let sent = count(sender, "datagrams_sent");
        assert!(sent > 0.0 && sent <= filled * SENT_AGAIN, "{sender}: {sent} datagrams: {report}");
        // A request or an answer, and acknowledgements: one for each round, not for each datagram.
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
        // The client's buffers are not the link's, so they are copied. An IOhost sends a read's
        // data from their place.
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
        // Bytes of the heads of requests, answers and acknowledgements.
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

/// The bytes of a datagram besides data: Ethernet, IP and UDP, the heads of a packet and a
/// fragment, an acknowledgement, and the message's head; rounded up.
const HEADS_BYTES: f64 = 192.0;

/// The kernel carries only the messages by which the two cards find each other. Each byte is copied
/// into a frame, and out of frames where a packet has several. As long as the other card has not
/// answered, the search is repeated after a pause.
#[test]
fn a_direct_request_past_the_network_stack_has_one_more_copy_and_no_datagram_of_the_kernel() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP a_direct_request_past_the_network_stack: only root may");
    }
    // A page and its head are longer than a frame where a packet takes both.
    for (mtu, payload, pieces) in [("1500", DATAGRAM_BYTES, 0.0), ("9000", 8900.0, 1.0)] {
        for (op, size, bytes, depth) in &CASES[..4] {
            let path = ["--path", "direct", "--link", "xdp", "--mtu", mtu, "--encrypt", "off"];
            let words = ["--idle", "spin", "--op", op, "--size", size, "--depth", depth];
            let report = measure_alone(&[&path[..], &words].concat());
            let [sender, other] = sides(op);
            let count = |role: &str, event: &str| each(&report, &format!("{role}_{event}"));
            let filled = (bytes / payload).ceil();
            let sent = count(sender, "datagrams_sent");
            assert!(sent > 0.0 && sent <= filled * SENT_AGAIN, "{sender}: {sent}: {report}");
            // A thread that polls a ring finds datagrams sooner than one that asks the system:
            // fewer at once.
            let said = count(other, "datagrams_sent");
            assert!(said <= 1.0 + sent / 2.0, "{other}: {said} datagrams: {report}");
            for role in [sender, other] {
                let by_kernel = count(role, "kernel_datagrams_sent");
                let most = (count(role, "datagrams_sent") * FINDING_SHARE).max(NEARLY_NONE);
                assert!(by_kernel < most, "{role}: {by_kernel}: {report}");
                assert_eq!(count(role, "wakeups"), 0.0, "{role}: {report}");
            }
            // A round makes as few calls as it can. The scheduler and the peer decide for how many
            // packets it finds a window open.
            let calls = count(sender, "send_calls");
            let most = (sent * 0.75).max(SENT_AGAIN);
            assert!(calls > 0.0 && calls <= most, "{sender}: {calls} calls: {report}");
            // Copies by the session, as over UDP, and by the link: one in, and one out if there are
            // pieces. The last packet of long data may be short, and then lies in one frame.
            let stable = |role: &str| role == "driver" || sender == "driver";
            let session = |role: &str| if stable(role) { 1.0 } else { 0.0 };
            for (role, by_link) in [(sender, 1.0), (other, pieces)] {
                let data = (session(role) + by_link) * bytes;
                let heads = (sent + said) * HEADS_BYTES;
                let copied = count(role, "bytes_copied");
                let least = if role == other { data - by_link * bytes / 4.0 } else { data };
                let bound = least..=data * SENT_AGAIN + heads;
                assert!(bound.contains(&copied), "{role}: {copied}, not {bound:?}: {report}");
            }
        }
    }
}

/// Several requests share datagrams of questions, calls to send, and acknowledgements.
#[test]
fn a_remote_request_takes_few_datagrams_and_calls() {
    for (op, [sender, other]) in
        [("randread", ["iohost", "vmhost"]), ("randwrite", ["vmhost", "iohost"])]
    {
        let path = ["--path", "remote", "--idle", "spin", "--encrypt", "off", "--op", op];
        let report = measure_alone(&[&path[..], &["--depth", "32"]].concat());
        let count = |role: &str, event: &str| each(&report, &format!("{role}_{event}"));
        let filled = (SIZE / DATAGRAM_BYTES).ceil();
        let sent = count(sender, "datagrams_sent");
        assert!(sent > 0.0 && sent <= filled * SENT_AGAIN, "{sender}: {sent}: {report}");
        let said = count(other, "datagrams_sent");
        assert!(said > 0.0 && said <= 1.0, "{other}: {said} datagrams: {report}");
        for role in [sender, other] {
            let calls = count(role, "send_calls");
            assert!(calls > 0.0 && calls <= 1.0, "{role}: {calls} calls: {report}");
        }
    }
}

/// The same where the answers come from another node.
#[test]
fn a_sleeping_driver_of_a_remote_disk_is_called_once_for_several_requests() {
    let path = ["--path", "remote", "--idle", "spin", "--driver", "sleeps", "--depth", "32"];
    let report = measure_alone(&path);
    let calls = each(&report, "calls");
    assert!(calls > 0.0 && calls <= SHARED, "{report}");
    for event in ["kicks", "vmhost_wakeups", "iohost_wakeups"] {
        assert_eq!(each(&report, event), 0.0, "{event}: {report}");
    }
}

/// All requests of one round enter the kernel together. A short request in memory is done in place,
/// so this takes a file on a disk. Reads past the page cache end one by one, as fast as the disk
/// is, and a round may find only one: then there is one entry for each, and never another one to
/// reap. The same holds for a pool, which has a ring of its own.
#[test]
fn requests_to_a_file_enter_the_kernel_together() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (kind, file, at_most) in [
        ("file", "disk", 0.5),
        ("direct", "disk", 1.0 + NEARLY_NONE),
        ("pool", "pool", 1.0 + NEARLY_NONE),
    ] {
        let volume = format!("{kind}:{}", folder.path().join(file).display());
        let words = ["--volume", &volume, "--depth", "32", "--idle", "spin"];
        let report = measure_alone(&words);
        if each(&report, "vmhost_uring_enters") == 0.0 {
            let name = "requests_to_a_file_enter_the_kernel_together";
            return println!("SKIP {name}: {} is in memory", folder.path().display());
        }
        let enters = each(&report, "vmhost_uring_enters");
        assert!(enters <= at_most, "{kind}: {enters} entries: {report}");
        // No thread sleeps, and nothing else enters the kernel.
        let calls = each(&report, "vmhost_system_calls");
        assert!(calls - enters < NEARLY_NONE, "{kind}: {report}");
    }
}

/// The number of calls of a request is certain only where the threads sleep. A spinning thread
/// looks for work by a call, as often as there is time.
#[test]
fn a_direct_request_of_sleeping_sidecores_takes_few_system_calls() {
    let at = |depth| {
        let words = ["--path", "direct", "--idle", "sleep", "--encrypt", "off", "--depth", depth];
        let report = measure_alone(&words);
        let calls = ["driver", "iohost"].map(|role| each(&report, &format!("{role}_system_calls")));
        let wakeups = ["driver", "iohost"].map(|role| each(&report, &format!("{role}_wakeups")));
        (calls, wakeups, report)
    };
    let (one, wakeups, report) = at("1");
    // One call each to send, to sleep, to receive, and to find nothing more before the sleep. The
    // client looks once more, and the IOhost takes its io_uring's signal back.
    assert!(one.iter().all(|calls| *calls <= 5.0 * SENT_AGAIN), "{one:?}: {report}");
    assert!(wakeups.iter().all(|each| (0.5..=SENT_AGAIN).contains(each)), "{wakeups:?}: {report}");
    // Several requests share each call.
    let (many, _, report) = at("32");
    let shared = many.iter().zip(&one).all(|(many, one)| *many <= one * SHARED);
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

/// Events of each request, with one guest and with many.
const OF_GUESTS: [&str; 5] =
    ["kicks", "calls", "vmhost_wakeups", "vmhost_system_calls", "vmhost_datagrams_sent"];

#[test]
fn the_cost_of_a_request_does_not_grow_with_queues_or_guests() {
    let _alone = MACHINE.write();
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
    let several = std::thread::available_parallelism().unwrap().get() > 1;
    let seats = points(guests).iter().filter(|point| point["seated"].as_bool().unwrap()).count();
    assert_eq!(seats, if several { 6 } else { 0 }, "half of the cores serve them: {report}");
    for series in [points(sidecores), points(guests)] {
        for point in &series {
            check_point(point);
        }
        // Threads that share cores sleep now and then, as often as the scheduler decides.
        let mut seated = series.iter().filter(|point| point["seated"].as_bool().unwrap());
        let Some(first) = seated.next() else { continue };
        for (point, event) in seated.flat_map(|point| OF_GUESTS.map(|event| (point, event))) {
            let [few, many] = [first, point].map(|point| each(&point["report"], event));
            assert!(many <= few + NEARLY_NONE, "{event}: {few}, then {many}: {point}");
        }
    }
}

/// Checks the counts that hold for any number of sidecores, queues and guests, also where they
/// share cores.
fn check_point(point: &Value) {
    let report = &point["report"];
    let requests = report["requests"].as_u64().unwrap();
    let taken = report["requests_by_sidecore"].as_object().unwrap();
    let taken: Vec<_> = taken.values().map(|count| count.as_u64().unwrap()).collect();
    // Every sidecore has queues, and one of them took each request.
    assert_eq!(taken.len() as u64, point["sidecores"].as_u64().unwrap(), "{point}");
    assert!(taken.iter().all(|count| *count > 0), "a sidecore serves nobody: {point}");
    let all: u64 = taken.iter().sum();
    assert_eq!(all, requests, "{point}");
    for event in ["kicks", "calls"] {
        assert!(each(report, event) <= 1.0, "{event}: {point}");
    }
    if point["seated"].as_bool().unwrap() {
        // Sidecores and driver poll.
        assert_eq!(each(report, "kicks"), 0.0, "{point}");
        assert!(each(report, "vmhost_system_calls") < NEARLY_NONE, "{point}");
    }
}

/// Sleeping sidecores and drivers have to be woken, so there are events whose number could grow.
#[test]
fn many_sleeping_guests_need_no_more_events_than_one() {
    let words = ["--depth", "4", "--idle", "sleep", "--driver", "sleeps", "--guests"];
    let [one, many] = ["1", "8"].map(|guests| measure_alone(&[&words[..], &[guests]].concat()));
    for event in OF_GUESTS {
        let [few, more] = [&one, &many].map(|report| each(report, event));
        assert!(more <= few * 1.25 + NEARLY_NONE, "{event}: {few}, then {more}: {one}, {many}");
    }
    for event in ["kicks", "calls", "vmhost_wakeups"] {
        // One event for the four requests of a batch.
        let count = each(&one, event);
        assert!((0.1..=0.5).contains(&count), "{event}: {one}");
    }
}

/// The account of units of work at both ends of a cable: passes over the data are as the table of
/// copies in docs/performance.md says, datagrams as many as the data fill, and messages through the
/// network stack far fewer.
#[test]
fn the_account_of_a_disk_has_one_pass_of_each_kind_and_few_messages() {
    if !rustix::process::geteuid().is_root() {
        // Its own refusal says what to do.
        let refused = account(&["--plane", "disk"]).expect_err("a cable takes root");
        assert!(refused.contains("root"), "{refused}");
        return;
    }
    let report = account(&["--plane", "disk", "--plane", "tcp", "--mtu", "1500"]).unwrap();
    let rows = report["rows"].as_array().expect("rows");
    let of = |plane: &'static str| rows.iter().filter(move |row| row["plane"] == plane);
    assert_eq!((of("disk").count(), of("tcp").count()), (8, 2), "{report}");
    for row in of("disk") {
        let count = |end: &str, what: &str| row[end][what].as_f64().expect("a count");
        let (bytes, sealed) = (row["bytes"].as_f64().unwrap(), row["sealed"] == true);
        let is_read = row["unit"].as_str().unwrap().starts_with("read");
        // The sender of a read's data is the IOhost, which sends them from their place.
        for (end, copies) in [("sender", if is_read { 0.0 } else { 1.0 }), ("receiver", 1.0)] {
            let passes = ["copies", "checksums", "ciphers"].map(|what| count(end, what));
            let wanted = [copies, f64::from(!sealed), f64::from(sealed)];
            // A session's control messages have some bytes.
            let is_near = passes.iter().zip(wanted).all(|(is, wanted)| (is - wanted).abs() < 0.1);
            assert!(is_near, "{end}: {passes:?}, not {wanted:?}: {row}");
            assert_eq!(count(end, "wakeups"), 0.0, "{row}");
        }
        let datagrams = count("sender", "datagrams");
        let filled = (bytes / DATAGRAM_BYTES).ceil();
        assert!(datagrams >= filled - 1.0 && datagrams <= filled * SENT_AGAIN, "{row}");
        // A unit of three datagrams shares its messages with others.
        let messages = count("sender", "messages");
        assert!(messages > 0.0 && messages <= filled / SHARE, "{row}");
    }
    for row in of("tcp") {
        assert!(row["sender"]["messages"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["sender"]["datagrams"], Value::Null, "{row}");
    }
}

/// The output of `vrio bench account` for programs, or its refusal.
fn account(words: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
    let output = command.args(["bench", "account", "--seconds", "0.1", "--json"]).args(words);
    let output = output.output().expect("vrio starts");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&output.stdout).expect("JSON"))
}
