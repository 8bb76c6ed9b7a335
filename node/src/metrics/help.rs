//! The description of each metric, for the HELP lines. Structures that are declared with
//! [`sidecore::counters!`] describe their counters themselves, and kinds of objects their metrics.

use std::collections::HashMap;
use std::sync::LazyLock;

use block::server::ServerCounters;
use config::Kind;
use link::LinkCounters;
use sidecore::{CoreCounters, CounterText};
use volume::uring::UringCounters;

use crate::kinds::running_kind;

/// Counters that are declared with their descriptions, after the beginning of their metrics' names.
const DECLARED: &[(&str, &[CounterText])] = &[
    ("sidecore_", CoreCounters::DECLARED),
    ("sidecore_uring_", UringCounters::DECLARED),
    ("sidecore_link_", LinkCounters::DECLARED),
    ("sidecore_server_", ServerCounters::DECLARED),
    ("sidecore_net_server_", net::remote::ServerCounters::DECLARED),
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
    ("sidecore_stuck", "Whether its round does not end: all that it serves stands still."),
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

/// All descriptions, by the metric's name without `vrio_` and without what its unit and its type
/// add.
static ALL: LazyLock<HashMap<String, &'static str>> = LazyLock::new(|| all().collect());

fn all() -> impl Iterator<Item = (String, &'static str)> {
    let declared = DECLARED.iter().flat_map(|(prefix, texts)| {
        texts.iter().map(move |text| (format!("{prefix}{}", bare(text)), text.help))
    });
    let of_kinds = Kind::all().flat_map(|kind| {
        let texts = running_kind(kind).metrics().into_iter();
        texts.map(move |text| (format!("{}_{}", kind.key(), bare(&text)), text.help))
    });
    let others = HELP.iter().map(|(name, text)| ((*name).to_owned(), *text));
    declared.chain(of_kinds).chain(others).filter(|(_, help)| !help.is_empty())
}

/// A line for a metric; from its name, where there is no better one.
pub(super) fn of(metric: &str) -> String {
    let name = metric.strip_prefix("vrio_").unwrap_or(metric);
    let bare = name.trim_end_matches("_total").trim_end_matches("_seconds");
    if let Some(text) = ALL.get(bare).or_else(|| ALL.get(name)) {
        return (*text).to_owned();
    }
    let (object, counter) = bare.split_once('_').unwrap_or(("node", bare));
    format!("The {object}'s count of {}.", counter.replace('_', " "))
}

/// A counter's name without its unit, where a metric's name ends in that of seconds.
fn bare(text: &CounterText) -> &'static str {
    text.name.strip_suffix("_ns").unwrap_or(text.name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_metric_is_described_once() {
        let mut seen = BTreeSet::new();
        for (name, _) in all() {
            assert!(seen.insert(name.clone()), "{name} is described twice");
        }
    }

    #[test]
    fn a_declared_counter_has_its_own_description() {
        assert_eq!(of("vrio_sidecore_link_send_calls_total"), "System calls to send.");
        assert_eq!(of("vrio_sidecore_idle_seconds_total"), "Time awake without work.");
        assert_eq!(of("vrio_vf_connected"), "Whether a VM's QEMU is connected.");
        assert_eq!(of("vrio_volume_file_syncs_total"), "Syncs of the file.");
        assert_eq!(of("vrio_volume_file_bounced_total"), "The volume's count of file bounced.");
    }
}
