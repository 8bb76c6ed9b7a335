//! The description of each metric, for the HELP lines. Structures that are declared with
//! [`sidecore::counters!`], and stages and backends of volumes, describe their counters themselves.

use block::disk::QueueCounters;
use block::server::ServerCounters;
use fabric_node::gateway::PostCounters;
use link::LinkCounters;
use net::switch::SwitchCounters;
use sidecore::{CoreCounters, CounterText};
use volume::{backend::BACKENDS, stage::STAGES, uring::UringCounters};

/// Counters that are declared with their descriptions, after the beginning of their metrics' names.
const DECLARED: &[(&str, &[CounterText])] = &[
    ("sidecore_", CoreCounters::DECLARED),
    ("sidecore_uring_", UringCounters::DECLARED),
    ("sidecore_link_", LinkCounters::DECLARED),
    ("sidecore_server_", ServerCounters::DECLARED),
    ("sidecore_net_server_", net::remote::ServerCounters::DECLARED),
    ("disk_", QueueCounters::DECLARED),
    ("network_addresses_", SwitchCounters::DECLARED),
    ("domain_gateway_", PostCounters::DECLARED),
];

/// The other metrics, by the name without `vrio_` and without what its unit and its type add.
const HELP: &[(&str, &str)] = &[
    ("node_info", "Always 1; the labels have the release and the node's name."),
    ("node_uptime_seconds", "The time since the node started."),
    ("node_draining", "Whether the node is drained: it takes no new users."),
    ("node_guest_addresses_bytes", "Addresses that front ends' memory takes."),
    ("node_guest_addresses_max_bytes", "The limit of these addresses."),
    ("node_guest_mappings", "Mappings of guests' memory."),
    ("node_guest_mappings_max", "The limit of these mappings."),
    ("node_guest_memory_refused", "Mappings that were refused because of a limit."),
    ("node_strangers_refused", "Sessions that were refused to peers, by reason."),
    ("sidecore_stuck", "Whether its round does not end: its disks and nics stand still."),
    ("sidecore_stalls", "Times that it was stuck."),
    ("sidecore_stalled", "Time in which it was stuck."),
    ("sidecore_sessions_connected", "Sessions that were connected."),
    ("sidecore_sessions_lost", "Sessions that were lost."),
    ("sidecore_sessions_fragments_resent", "Fragments that were sent again."),
    ("sidecore_sessions_probes_sent", "Packets sent because nothing was acknowledged for long."),
    ("sidecore_sessions_dropped", "Datagrams that were dropped, for any reason."),
    (
        "sidecore_sessions_dropped_forged",
        "Packets that were not sealed by the peer, or changed on \
                                          the way.",
    ),
    ("sidecore_sessions_dropped_hello_limited", "Handshakes beyond the limits."),
    ("sidecore_sessions_hellos_refused", "Peers that were refused."),
    ("sidecore_sessions_sizes_given_up", "Sizes of datagrams that a network path did not pass."),
    ("sidecore_sessions_retries_sent", "Peers that were asked to show their address first."),
    ("sidecore_sessions_public_key_operations", "Operations on a curve, for handshakes."),
    ("sidecore_sessions_bytes_sealed", "Bytes of bodies that were encrypted."),
    ("sidecore_sessions_bytes_opened", "Bytes of bodies that were decrypted."),
    ("sidecore_sessions_bytes_copied", "Bytes of bodies of calls that were copied."),
    ("sidecore_sessions_bytes_checksummed", "Bytes of bodies that a checksum was computed over."),
    (
        "sidecore_sessions_resets_sent",
        "Resets sent to peers that use a session which does not \
                                       exist.",
    ),
    ("sidecore_sessions_calls_full", "Calls that were refused because a session's table was full."),
    (
        "sidecore_sessions_calls_beyond_share",
        "Calls that had to wait because their peer had its part of the buffers.",
    ),
    ("sidecore_sessions_calls_waited_for_credit", "Calls that had to wait for credit."),
    ("sidecore_pool_bytes", "Memory of the session buffers, from the system."),
    ("sidecore_pool_bytes_max", "The limit of this memory: [memory] session-buffers."),
    ("sidecore_pool_in_use_bytes", "Memory of the session buffers in use."),
    ("sidecore_pool_refused", "Times that there was no session buffer."),
    ("sidecore_active", "1 when guests' queues may be on the sidecore."),
    ("sidecore_queues", "Queues of guests that it serves."),
    ("sidecore_load_permille", "Thousandths of its recent time that were busy, for steering."),
    ("volume_size_bytes", "The volume's size."),
    ("volume_attachments", "Disks of this and other nodes that use the volume now."),
    ("volume_latency", "Durations of requests, measured by the chain's first meter."),
    ("disk_size_bytes", "The disk's size."),
    ("disk_state", "1 for the state that the disk is in."),
    ("disk_volume_answers", "Whether its volume on another node answers, asked every few seconds."),
    ("disk_volume_away", "The time for which its volume has not answered; 0 while it answers."),
    ("disk_volume_outages", "How often its volume has ceased to answer."),
    (
        "disk_front_ends_turned_away",
        "Front ends that connected while the node was drained, or soon after a costly front end.",
    ),
    (
        "disk_front_ends_too_costly",
        "Front ends that were dropped because signals to them took too \
                                    long.",
    ),
    ("disk_latency", "Durations of the guest's requests, from taking them to answering."),
    ("disk_orphans", "Requests of stopped queues that have not ended."),
    ("disk_queue_requests", "Requests of the guest on this queue."),
    ("disk_queue_moves", "Times that the running queue moved to another sidecore."),
    ("disk_queue_moves_refused", "Moves that failed."),
    ("disk_queue_sidecore", "The sidecore that serves the queue, or served it last."),
    ("disk_sidecore_requests", "Requests of the guest that this sidecore served."),
    ("nic_frames_in", "Frames that the guest sent."),
    ("nic_bytes_in", "Their bytes, without tags."),
    ("nic_frames_out", "Frames that the guest got."),
    ("nic_bytes_out", "Their bytes, without tags."),
    ("nic_cut_out", "Frames that were cut into segments, because the guest takes no uncut ones."),
    ("nic_checksums_out", "Checksums that were completed for the guest."),
    (
        "nic_tolerated_in",
        "Descriptors of sent frames that were marked as writable or had no bytes.",
    ),
    (
        "nic_front_ends_turned_away",
        "Front ends that connected while the node was drained, or soon after a costly front end.",
    ),
    (
        "nic_front_ends_too_costly",
        "Front ends that were dropped because signals to them took too \
                                   long.",
    ),
    ("nic_drops", "Frames that were dropped, by direction (in: sent by the guest) and reason."),
    ("nic_limit_held_rounds", "Rounds in which the guest's frames had to wait for the limit."),
    ("nic_filter_rule_frames", "Frames that this rule decided on."),
    ("nic_filter_default_frames", "Frames that no rule matched."),
    ("nic_filter_kept_frames", "Frames of conversations that are kept."),
    (
        "nic_filter_unreadable_frames",
        "IP packets that were dropped because their headers cannot be \
                                      read.",
    ),
    ("nic_filter_flows_begun", "Conversations that were kept."),
    ("nic_filter_flows_lost", "Kept conversations that were evicted by new ones."),
    ("nic_mirror_frames", "Frames that a mirror copied."),
    ("nic_mirror_lost_frames", "Frames that a mirror missed, because its writer was too slow."),
    ("nic_mirror_unwritten_frames", "Frames that are missing in its file or at its tap."),
    ("nic_mirror_file_bytes", "Bytes in the mirror's file."),
    ("nic_mirror_tap_bytes", "Bytes of frames that went to the mirror's tap."),
    ("nic_mirror_up", "1 while the mirror's file can be written, or its tap is open."),
    ("nic_link_up", "Whether the guest's cable is plugged in."),
    ("nic_state", "1 for the state that the nic is in."),
    ("network_nics", "Nics in the network."),
    ("domain_endpoints", "Endpoints in the domain."),
    ("domain_endpoints_max", "The most endpoints of the domain."),
    ("domain_members", "Processes that have joined the domain."),
    ("domain_region_bytes", "The memory that its endpoints share, used or not."),
    ("domain_used_bytes", "The part of this memory that was ever used."),
    ("domain_gateway_state_bytes", "Memory of gateways about other hosts, without buffers."),
    ("vf_connected", "Whether a VM's QEMU is connected."),
    ("vf_endpoints", "Endpoints of processes inside of the VM."),
    ("vf_denied", "Requests of processes inside of the VM without the domain's key."),
    ("uplink_up", "Whether the uplink is there."),
    ("uplink_frames_in", "Frames received from the uplink."),
    ("uplink_bytes_in", "Their bytes, without tags."),
    ("uplink_frames_out", "Frames sent to the uplink."),
    ("uplink_bytes_out", "Their bytes, without tags."),
    ("uplink_drops", "Frames that were dropped, by direction (in: from the uplink) and reason."),
    ("peer_quota_used", "A peer's use of a resource that all peers of a sidecore share."),
    ("peer_quota_max", "The peer's present limit of the resource."),
    ("peer_quota_at_limit", "1 while the peer is at its limit."),
    ("peer_quota_refused", "Times that the peer was refused the resource, or had to wait for it."),
    ("session_connected", "1 when the session is connected."),
    ("session_rtt", "The round-trip time, without the peer's delay."),
    ("session_window_bytes", "The most bytes that may be in flight."),
    ("session_in_flight_bytes", "Bytes in flight."),
    ("session_packets_sent", "Packets sent."),
    ("session_packets_received", "Packets received and valid."),
    ("session_packets_lost", "Packets that count as lost; their content was sent again."),
];

/// A line for a metric; from its name, where there is no better one.
pub(super) fn of(metric: &str) -> String {
    let name = metric.strip_prefix("vrio_").unwrap_or(metric);
    let bare = name.trim_end_matches("_total").trim_end_matches("_seconds");
    let found = HELP.iter().find(|(known, _)| *known == bare || *known == name);
    if let Some((_, text)) = found {
        return (*text).to_owned();
    }
    if let Some(help) = declared(bare) {
        return help.to_owned();
    }
    let (object, counter) = bare.split_once('_').unwrap_or(("node", bare));
    let mut of_stages = STAGES.iter().flat_map(|kind| kind.counters);
    if let Some(key) = of_stages.find(|key| object == "volume" && key.name == counter) {
        return key.text.to_owned();
    }
    format!("The {object}'s count of {}.", counter.replace('_', " "))
}

/// The description of a counter that is declared with one, by the metric's bare name.
fn declared(bare: &str) -> Option<&'static str> {
    let of_nodes = DECLARED.iter().map(|(prefix, texts)| (bare.strip_prefix(prefix), *texts));
    let of_backends = BACKENDS.iter().map(|kind| {
        let counter = bare.strip_prefix("volume_").and_then(|rest| rest.strip_prefix(kind.name));
        (counter.and_then(|rest| rest.strip_prefix('_')), kind.counters)
    });
    let texts = of_nodes.chain(of_backends).filter_map(|(rest, texts)| Some((rest?, texts)));
    let mut found = texts.flat_map(|(rest, texts)| texts.iter().filter(move |it| name(it) == rest));
    found.next().map(|text| text.help).filter(|help| !help.is_empty())
}

/// A counter's name without its unit, where a metric's name ends in that of seconds.
fn name(text: &CounterText) -> &'static str {
    text.name.strip_suffix("_ns").unwrap_or(text.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_described_once() {
        for (prefix, texts) in DECLARED {
            for text in *texts {
                let bare = format!("{prefix}{}", name(text));
                let again = HELP.iter().any(|(known, _)| *known == bare);
                assert!(!again || text.help.is_empty(), "{bare} is declared with its help");
            }
        }
    }

    #[test]
    fn a_declared_counter_has_its_own_description() {
        assert_eq!(of("vrio_sidecore_link_send_calls_total"), "System calls to send.");
        assert_eq!(of("vrio_sidecore_idle_seconds_total"), "Time awake without work.");
        assert_eq!(of("vrio_volume_file_syncs_total"), "Syncs of the file.");
        assert_eq!(of("vrio_volume_file_bounced_total"), "The volume's count of file bounced.");
    }
}
