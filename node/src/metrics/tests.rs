//! The text for a status that has one of everything.

use expect_test::expect;

use super::page::labels;
use super::*;
use api::status::{DiskState, Latencies, LatencyStatus};
use api::status::{
    DiskStatus, NetworkStatus, NicStatus, NodeStatus, SessionStatus, SidecoreStatus,
};

fn counted(pairs: &[(&str, u64)]) -> Counters {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

fn session(counters: &[(&str, u64)]) -> SessionStatus {
    SessionStatus {
        peer: "io1".to_owned(),
        address: "[fd00::9]:4870".to_owned(),
        state: "connected".to_owned(),
        counters: counted(counters),
        ..SessionStatus::default()
    }
}

fn status() -> Status {
    Status {
        node: NodeStatus { name: "vm1".to_owned(), uptime_s: 7, ..NodeStatus::default() },
        sidecores: vec![SidecoreStatus {
            index: 1,
            counters: counted(&[("busy_ns", 1_500_000_000), ("asleep_ns", 2_000_000_000)]),
            ..SidecoreStatus::default()
        }],
        disks: vec![DiskStatus {
            name: "a".to_owned(),
            state: DiskState::Running,
            counters: counted(&[("requests", u64::MAX), ("orphans_now", 2)]),
            ..DiskStatus::default()
        }],
        // The same peer twice, as for a moment after its restart.
        sessions: vec![
            session(&[("rtt_ns_now", 45_000), ("packets_sent", 3)]),
            session(&[("rtt_ns_now", 0), ("packets_sent", 4), ("novelty_ns", 1)]),
        ],
        ..Status::default()
    }
}

#[test]
fn a_status_becomes_text() {
    expect![[r##"
        # HELP vrio_disk_orphans Requests of stopped queues that have not ended.
        # TYPE vrio_disk_orphans gauge
        vrio_disk_orphans{disk="a"} 2
        # HELP vrio_disk_requests_total Requests of the guest.
        # TYPE vrio_disk_requests_total counter
        vrio_disk_requests_total{disk="a"} 18446744073709551615
        # HELP vrio_disk_state 1 for the state that the disk is in.
        # TYPE vrio_disk_state gauge
        vrio_disk_state{disk="a",state="failed"} 0
        vrio_disk_state{disk="a",state="lost"} 0
        vrio_disk_state{disk="a",state="ready"} 0
        vrio_disk_state{disk="a",state="running"} 1
        vrio_disk_state{disk="a",state="waiting"} 0
        # HELP vrio_node_draining Whether the node is drained: it takes no new users.
        # TYPE vrio_node_draining gauge
        vrio_node_draining 0
        # HELP vrio_node_guest_addresses_bytes Addresses that front ends' memory takes.
        # TYPE vrio_node_guest_addresses_bytes gauge
        vrio_node_guest_addresses_bytes 0
        # HELP vrio_node_guest_addresses_max_bytes The limit of these addresses.
        # TYPE vrio_node_guest_addresses_max_bytes gauge
        vrio_node_guest_addresses_max_bytes 0
        # HELP vrio_node_guest_mappings Mappings of guests' memory.
        # TYPE vrio_node_guest_mappings gauge
        vrio_node_guest_mappings 0
        # HELP vrio_node_guest_mappings_max The limit of these mappings.
        # TYPE vrio_node_guest_mappings_max gauge
        vrio_node_guest_mappings_max 0
        # HELP vrio_node_guest_memory_refused_total Mappings that were refused because of a limit.
        # TYPE vrio_node_guest_memory_refused_total counter
        vrio_node_guest_memory_refused_total 0
        # HELP vrio_node_info Always 1; the labels have the release and the node's name.
        # TYPE vrio_node_info gauge
        vrio_node_info{node="vm1",release=""} 1
        # HELP vrio_node_uptime_seconds The time since the node started.
        # TYPE vrio_node_uptime_seconds gauge
        vrio_node_uptime_seconds 7
    "##]]
    .assert_eq(&without(&text(&status()), &["session", "sidecore"]));
}

/// The text without what concerns these kinds of object.
fn without(text: &str, kinds: &[&str]) -> String {
    let concerns = |line: &str| kinds.iter().any(|kind| line.contains(&format!("vrio_{kind}_")));
    text.lines().filter(|line| !concerns(line)).map(|line| format!("{line}\n")).collect()
}

#[test]
fn nanoseconds_are_seconds_and_what_is_new_has_a_line_of_help() {
    let text = without(&text(&status()), &["disk", "node"]);
    let session = r#"{peer="io1",address="[fd00::9]:4870","#;
    let session = format!(r#"{session}sidecore="0",index="0",direction="incoming"}}"#);
    let text = text.replace(&session, "{LABELS}");
    expect![[r##"
        # HELP vrio_session_connected 1 when the session is connected.
        # TYPE vrio_session_connected gauge
        vrio_session_connected{LABELS} 1
        # HELP vrio_session_novelty_seconds_total The session's count of novelty.
        # TYPE vrio_session_novelty_seconds_total counter
        vrio_session_novelty_seconds_total{LABELS} 0.000000001
        # HELP vrio_session_packets_sent_total Packets sent.
        # TYPE vrio_session_packets_sent_total counter
        vrio_session_packets_sent_total{LABELS} 7
        # HELP vrio_session_rtt_seconds The round-trip time, without the peer's delay.
        # TYPE vrio_session_rtt_seconds gauge
        vrio_session_rtt_seconds{LABELS} 0.000045
        # HELP vrio_sidecore_asleep_seconds_total Time asleep or napping.
        # TYPE vrio_sidecore_asleep_seconds_total counter
        vrio_sidecore_asleep_seconds_total{sidecore="1"} 2
        # HELP vrio_sidecore_busy_seconds_total Time in rounds that found work.
        # TYPE vrio_sidecore_busy_seconds_total counter
        vrio_sidecore_busy_seconds_total{sidecore="1"} 1.5
    "##]]
    .assert_eq(&text);
}

#[test]
fn latencies_are_a_histogram() {
    let mut latency = LatencyStatus { count: 5, sum_ns: 9_000_000, buckets: vec![4; 24] };
    latency.buckets[0] = 0;
    let latencies: Latencies = [("read".to_owned(), latency)].into();
    let volume = VolumeStatus { name: "v".to_owned(), latencies, ..VolumeStatus::default() };
    let text = text(&Status { volumes: vec![volume], ..Status::default() });
    let mut lines: Vec<_> = text.lines().filter(|line| line.contains("latency")).collect();
    assert_eq!(lines.len(), 2 + 24 + 3);
    lines.drain(5..25);
    lines.remove(0);
    expect![[r#"
        # TYPE vrio_volume_latency_seconds histogram
        vrio_volume_latency_seconds_bucket{volume="v",op="read",le="0.000001"} 0
        vrio_volume_latency_seconds_bucket{volume="v",op="read",le="0.000002"} 4
        vrio_volume_latency_seconds_bucket{volume="v",op="read",le="0.000005"} 4
        vrio_volume_latency_seconds_bucket{volume="v",op="read",le="50"} 4
        vrio_volume_latency_seconds_bucket{volume="v",op="read",le="+Inf"} 5
        vrio_volume_latency_seconds_sum{volume="v",op="read"} 0.009
        vrio_volume_latency_seconds_count{volume="v",op="read"} 5"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn a_label_cannot_end_early() {
    let text = labels(&[("peer", "a\"} 1\n\\")]);
    assert_eq!(text, r#"{peer="a\"} 1\n\\"}"#);
}

#[test]
fn drops_of_a_nic_have_direction_and_reason_in_labels() {
    let nic = NicStatus {
        name: "n".to_owned(),
        network: "blue".to_owned(),
        link: true,
        state: DiskState::Running,
        counters: counted(&[
            ("drops_in", 7),
            ("drops_in_source_foreign", 3),
            ("drops_in_filtered", 4),
            ("filter_rule_2_frames", 9),
            ("frames_in", 11),
        ]),
        ..NicStatus::default()
    };
    let network = NetworkStatus {
        name: "blue".to_owned(),
        uplink: Some("tap:x".to_owned()),
        uplink_up: Some(false),
        counters: counted(&[("addresses_moved", 2), ("uplink_drops_out_no_room", 5)]),
        ..NetworkStatus::default()
    };
    let text = text(&Status { nics: vec![nic], networks: vec![network], ..Status::default() });
    let text = without(&text, &["node"]);
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.contains("state"));
    expect![[r#"
        vrio_network_addresses_moved_total{network="blue"} 2
        vrio_network_nics{network="blue"} 0
        vrio_nic_drops_total{nic="n",network="blue",direction="in",reason="filtered"} 4
        vrio_nic_drops_total{nic="n",network="blue",direction="in",reason="source_foreign"} 3
        vrio_nic_filter_rule_frames_total{nic="n",network="blue",rule="2"} 9
        vrio_nic_frames_in_total{nic="n",network="blue"} 11
        vrio_nic_link_up{nic="n",network="blue"} 1
        vrio_uplink_drops_total{network="blue",uplink="tap:x",direction="out",reason="no_room"} 5
        vrio_uplink_up{network="blue",uplink="tap:x"} 0"#]]
    .assert_eq(&lines.collect::<Vec<_>>().join("\n"));
}
