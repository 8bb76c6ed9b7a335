//! Networks and nics as tables.

use std::fmt::Write;

use comfy_table::Table;
use node::config::show_size;
use node::status::{NetworkStatus, NicStatus};

use super::layout::{STRING, counter_table, fit, fold, number, section, table, words};
use super::verdict;

/// Networks in a table.
pub(crate) fn network_list(all: &[NetworkStatus]) -> String {
    let mut text = verdict::of_list("network", all.len(), &verdict::networks(all));
    network_section(&mut text, all);
    text
}

/// Networks in a table, and a line about each uplink that works and has more to say.
pub(super) fn network_section(text: &mut String, all: &[NetworkStatus]) {
    section(text, "networks", networks(all));
    // The verdict tells of uplinks that are down.
    for network in all.iter().filter(|network| network.uplink_up != Some(false)) {
        if let (Some(uplink), Some(why)) = (&network.uplink, &network.uplink_why) {
            let line = format!("{}: {uplink}: {why}", network.name);
            writeln!(text, "{}", fold(&line, 3)).expect(STRING);
        }
    }
}

/// One network with everything.
pub(crate) fn network_alone(network: &NetworkStatus) -> String {
    let mut text = network_list(std::slice::from_ref(network));
    writeln!(text, "   origin {}", network.origin).expect(STRING);
    for member in &network.members {
        let node::status::MemberStatus { peer, nic, mac, counters } = member;
        let [sent, received, dropped] = ["frames_in", "frames_out", "drops_in"]
            .map(|name| counters.get(name).copied().unwrap_or_default());
        let line = format!("{peer}/{nic} ({mac}): {sent} frames in, {received} out");
        writeln!(text, "   member {line}, {dropped} dropped in").expect(STRING);
    }
    section(&mut text, "counters", counter_table(&network.counters));
    text
}

/// Nics in a table.
pub(crate) fn nic_list(all: &[NicStatus]) -> String {
    let mut text = verdict::of_list("nic", all.len(), &verdict::nics(all));
    section(&mut text, "nics", nics(all));
    nic_details(&mut text, all);
    text
}

/// A line about the state of each nic that works.
pub(super) fn nic_details(text: &mut String, all: &[NicStatus]) {
    let fine = all.iter().filter(|nic| !verdict::is_wrong(nic.state));
    for nic in fine.filter(|nic| !nic.detail.is_empty()) {
        writeln!(text, "{}", fold(&format!("{}: {}", nic.name, nic.detail), 3)).expect(STRING);
    }
}

/// One nic with everything.
pub(crate) fn nic_alone(nic: &NicStatus) -> String {
    let mut text = nic_list(std::slice::from_ref(nic));
    let NicStatus { socket, origin, mtu, .. } = nic;
    let link = if nic.link { "up" } else { "down" };
    writeln!(text, "   socket {socket}, origin {origin}, link {link}, MTU {mtu}").expect(STRING);
    if !nic.chain.is_empty() {
        writeln!(text, "   stages, from the guest: {}", nic.chain.join(" > ")).expect(STRING);
    }
    if let Some(pid) = nic.front_end_pid {
        writeln!(text, "   process {pid} is connected").expect(STRING);
    }
    section(&mut text, "counters", counter_table(&nic.counters));
    text
}

/// Frames that a guest sent are "in": into its network.
pub(super) fn nics(nics: &[NicStatus]) -> Table {
    let header = [
        "name",
        "state",
        "network",
        "address",
        "queues",
        "frames in",
        "in",
        "frames out",
        "out",
        "dropped in",
        "dropped out",
    ];
    let mut table = table(&header, 4);
    for nic in nics {
        let bytes = |name| nic.counters.get(name).map_or_else(String::new, |b| show_size(*b));
        let count = |name| number(&nic.counters, name);
        table.add_row(vec![
            nic.name.clone(),
            nic.state.to_string(),
            nic.network.clone(),
            nic.mac.clone(),
            nic.pairs.to_string(),
            count("frames_in"),
            bytes("bytes_in"),
            count("frames_out"),
            bytes("bytes_out"),
            count("drops_in"),
            count("drops_out"),
        ]);
    }
    fit(table, &["dropped out", "out", "in", "queues", "dropped in", "address"])
}

fn networks(networks: &[NetworkStatus]) -> Table {
    let mut table =
        table(&["name", "uplink", "nics", "members", "sidecore", "uplink in", "uplink out"], 4);
    for network in networks {
        let down = if network.uplink_up == Some(false) { " (down)" } else { "" };
        let uplink = network.uplink.as_ref().map_or_else(|| "-".to_owned(), Clone::clone);
        let counters = &network.counters;
        table.add_row(vec![
            network.name.clone(),
            format!("{uplink}{down}"),
            words(&network.nics),
            network.members.len().to_string(),
            network.sidecore.to_string(),
            number(counters, "uplink_frames_in"),
            number(counters, "uplink_frames_out"),
        ]);
    }
    fit(table, &["uplink out", "uplink in", "sidecore"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_an_uplink_is_away_is_shown() {
        let network = NetworkStatus {
            name: "blue".to_owned(),
            uplink: Some("xdp:eth1".to_owned()),
            uplink_up: Some(false),
            uplink_why: Some("it is set down".to_owned()),
            ..NetworkStatus::default()
        };
        let text = network_list(&[network]);
        assert!(text.contains("xdp:eth1 (down)"), "{text}");
        let said = "network blue: its uplink xdp:eth1 carries no frames: it is set down\n";
        assert!(text.contains(said), "{text}");
    }
}
