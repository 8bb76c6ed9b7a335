//! Peers that stand at a limit, or stood at one.

use comfy_table::Table;
use node::status::QuotaStatus;

use super::layout::table;
use node::config::show_size;

/// The peers that were refused a resource, or have as much of it as they may.
pub(super) fn quotas(quotas: &[QuotaStatus]) -> Table {
    let header = ["peer", "core", "resource", "at limit", "has", "may have", "refused"];
    let mut table = table(&header, 4);
    for quota in quotas.iter().filter(|quota| quota.at_limit || quota.refused > 0) {
        let show = |value: u64| match quota.resource.ends_with("_bytes") {
            true => show_size(value),
            false => value.to_string(),
        };
        let address = quota.address.as_ref().map(|address| format!(" ({address})"));
        table.add_row(vec![
            format!("{}{}", quota.peer, address.unwrap_or_default()),
            quota.sidecore.to_string(),
            quota.resource.trim_end_matches("_bytes").to_owned(),
            if quota.at_limit { "yes" } else { "no" }.to_owned(),
            show(quota.has),
            show(quota.has_max),
            quota.refused.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn only_peers_at_a_limit_are_shown_in_80_columns() {
        let quota = |peer: &str, resource: &str, at_limit, refused| QuotaStatus {
            peer: peer.to_owned(),
            address: (peer == "vm2").then(|| "10.0.0.7".to_owned()),
            sidecore: 1,
            resource: resource.to_owned(),
            has: 96 << 20,
            has_max: 96 << 20,
            at_limit,
            refused,
        };
        let all = [
            quota("vm1", "sessions", false, 0),
            quota("vm2", "replies_bytes", true, 1204),
            quota("vm3", "claims", false, 3),
        ];
        let text = format!("PEERS AT A LIMIT\n{}", quotas(&all).trim_fmt());
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r#"
            PEERS AT A LIMIT
             peer            core  resource  at limit        has   may have  refused
             vm2 (10.0.0.7)  1     replies   yes           96MiB      96MiB     1204
             vm3             1     claims    no        100663296  100663296        3"#]]
        .assert_eq(&text);
    }
}
