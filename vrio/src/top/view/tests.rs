//! Rates between two statuses, and the view that the other tests draw.

use node::status::{AttachmentStatus, LATENCY_BUCKETS_NS, NodeStatus};

use super::*;

fn counted(pairs: &[(&str, u64)]) -> Counters {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

/// Counts of latencies: so many requests of up to 50 us, and so many of up to 2 ms.
fn latencies(short: u64, long: u64) -> Latencies {
    let upto = |bound_ns: &u64| match bound_ns {
        ..50_000 => 0,
        50_000..2_000_000 => short,
        _ => short + long,
    };
    let count = short + long;
    let buckets = LATENCY_BUCKETS_NS.iter().map(upto).collect();
    [("read".to_owned(), LatencyStatus { count, sum_ns: 1, buckets })].into()
}

fn disk(name: &str, state: DiskState, requests: u64, latencies: Latencies) -> DiskStatus {
    DiskStatus {
        name: name.to_owned(),
        volume: format!("io1/{name}-root"),
        state,
        counters: counted(&[
            ("requests", requests),
            ("read_bytes", requests * 4096),
            ("written_bytes", requests * 1024),
            ("errors", 3),
        ]),
        latencies,
        ..DiskStatus::default()
    }
}

/// A node after `turn` times two seconds.
pub(in crate::top) fn status(turn: u64) -> Status {
    let ns = 1_000_000_000;
    let mut lost = disk("bob", DiskState::Lost, 7, Latencies::new());
    lost.detail = "io1 at 10.0.0.9:4870 does not answer".to_owned();
    Status {
        version: 1,
        node: NodeStatus {
            name: "vm1".to_owned(),
            release: "0.1.0".to_owned(),
            pid: 42,
            uptime_s: 3600 + 2 * turn,
            ..NodeStatus::default()
        },
        sidecores: vec![SidecoreStatus {
            index: 0,
            core: Some(1),
            idle: "adaptive".to_owned(),
            counters: counted(&[
                ("busy_ns", turn * ns),
                ("idle_ns", turn * ns / 2),
                ("rounds", turn * 500_000),
                ("wakeups", turn * 100),
            ]),
            ..SidecoreStatus::default()
        }],
        volumes: vec![VolumeStatus {
            name: "scratch".to_owned(),
            attachments: vec![AttachmentStatus { name: "carol".to_owned() }],
            counters: counted(&[("reads", turn * 10), ("read_bytes", turn * 40960)]),
            latencies: latencies(turn * 10, 0),
            ..VolumeStatus::default()
        }],
        disks: vec![
            lost,
            disk("alice", DiskState::Running, turn * 30_000, latencies(turn * 900, turn * 100)),
        ],
        sessions: vec![SessionStatus {
            peer: "io1".to_owned(),
            address: "10.0.0.9:4870".to_owned(),
            state: "connected".to_owned(),
            counters: counted(&[
                ("rtt_ns_now", 45_200),
                ("window_bytes_now", 1 << 20),
                ("in_flight_bytes_now", 64 << 10),
                ("packets_sent", turn * 4_000),
                ("packets_received", turn * 4_200),
                ("packets_lost", turn * 40),
            ]),
            ..SessionStatus::default()
        }],
        ..Status::default()
    }
}

/// The third and fourth second of that node.
pub(in crate::top) fn view() -> NodeView {
    NodeView::new(Some((&status(1), Duration::from_secs(2))), &status(2))
}

#[test]
fn rates_are_what_grew_in_the_time_between() {
    let view = view();
    let names: Vec<_> = view.disks.iter().map(|disk| &*disk.name).collect();
    assert_eq!(names, ["alice", "bob"], "the busiest first");
    let alice = &view.disks[0].traffic;
    assert_eq!(alice.requests_per_s, Some(15_000.0));
    assert_eq!(alice.read_bytes_per_s, Some(15_000.0 * 4096.0));
    assert_eq!((alice.latency_p50_ns, alice.latency_p99_ns), (Some(36_666), Some(1_900_000)));
    let bob = &view.disks[1].traffic;
    assert_eq!((bob.requests_per_s, bob.latency_p50_ns, bob.errors), (Some(0.0), None, 3));
    let core = &view.sidecores[0];
    assert_eq!((core.busy_share, core.awake_share), (Some(0.5), Some(0.25)));
    let session = &view.sessions[0];
    assert_eq!((session.loss_share, session.packets_per_s), (Some(0.01), Some(4_100.0)));
    assert_eq!(view.volumes[0].traffic.requests_per_s, Some(5.0));
    let mut bare = [status(1), status(2)];
    bare.iter_mut().for_each(|status| status.volumes[0].counters.clear());
    let view = NodeView::new(Some((&bare[0], Duration::from_secs(2))), &bare[1]);
    assert_eq!(view.volumes[0].traffic.requests_per_s, None, "without a meter it counts nothing");
}

#[test]
fn without_an_earlier_status_there_are_no_rates() {
    let view = NodeView::new(None, &status(2));
    assert_eq!(view.disks[0].traffic.requests_per_s, None);
    assert_eq!(view.sidecores[0].busy_share, None);
    assert_eq!(view.sessions[0].rtt_ns, 45_200);
}

#[test]
fn new_and_restarted_objects_do_no_harm() {
    let mut earlier = status(3);
    earlier.disks.clear();
    earlier.sessions[0].index = 9;
    let view = NodeView::new(Some((&earlier, Duration::ZERO)), &status(2));
    assert_eq!(view.disks[0].traffic.requests_per_s, None, "it is new");
    assert_eq!(view.sessions[0].packets_per_s, None);
    assert_eq!(view.sidecores[0].busy_share, Some(0.0), "its counter fell");
}
