//! Bills and searches as text.

use std::fmt::Write;

use super::bill::{Bill, RackComparison};
use super::build::PoolNeed;
use super::search::{SERVERS_TRIED, SHARES_TRIED, SearchCell};
use crate::money::percent;
use crate::text::{row, table};

/// Bits of a hundredth of a Gbit.
const HUNDREDTH_GBIT: u64 = 10_000_000;

/// Bits a second as Gbit/s with two decimals, rounded to the nearest.
fn gbit(bits: u64) -> String {
    let hundredths =
        (u128::from(bits) + u128::from(HUNDREDTH_GBIT) / 2) / u128::from(HUNDREDTH_GBIT);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

/// The comparison of a rack's plans, with the bill of each.
pub fn comparison_text(comparison: &RackComparison) -> String {
    let mut text = format!("{}\n", comparison.title);
    for bill in &comparison.bills {
        let _ = write!(text, "\n{}\n{}", bill.name.to_uppercase(), bill_text(bill));
    }
    let years =
        comparison.years.map_or_else(|| "power".to_owned(), |it| format!("{it} years' power"));
    let mut rows = vec![row(["plan", "servers", "sidecores", "parts", &years, "parts", "all"])];
    for (at, bill) in comparison.bills.iter().enumerate() {
        let servers: Vec<String> =
            bill.servers.iter().map(|server| server.build.count.to_string()).collect();
        let change = |change: Option<i64>| match change {
            _ if at == 0 => String::new(),
            Some(change) => percent(change),
            None => "-".to_owned(),
        };
        rows.push(vec![
            bill.name.clone(),
            servers.join("+"),
            bill.sidecores.to_string(),
            bill.total_cents.to_string(),
            bill.power_cents.map_or_else(|| "-".to_owned(), |power| power.to_string()),
            change(comparison.change_of_parts[at]),
            change(comparison.change_with_power[at]),
        ]);
    }
    let _ = write!(text, "\nPLANS\n{}", table(&rows, 1));
    let first = &comparison.bills[0].name;
    for (at, bill) in comparison.bills.iter().enumerate().skip(1) {
        let (sum, change) = match comparison.change_with_power[at] {
            Some(change) => ("parts and power", Some(change)),
            None => ("parts", comparison.change_of_parts[at]),
        };
        if change.is_some_and(|change| change > 0) {
            let name = &bill.name;
            let _ = writeln!(text, "'{name}' does not pay: its {sum} cost more than '{first}'.");
        }
    }
    let mut unknown: Vec<&String> =
        comparison.bills.iter().flat_map(|bill| &bill.without_watts).collect();
    unknown.sort();
    unknown.dedup();
    if comparison.years.is_some() && !unknown.is_empty() {
        let names: Vec<&str> = unknown.into_iter().map(String::as_str).collect();
        let _ = writeln!(text, "No power: give watts to {}.", names.join(", "));
    }
    let _ = writeln!(text, "Prices: {}.", comparison.source);
    text
}

fn bill_text(bill: &Bill) -> String {
    let mut text = String::new();
    for server in &bill.servers {
        let build = &server.build;
        let mut rows =
            vec![vec![format!("{} x {}", build.count, build.role), "each".into(), "price".into()]];
        for part in &server.bill {
            rows.push(vec![
                format!("  {} x {}", part.count, part.part),
                part.each_cents.to_string(),
                part.price_cents.to_string(),
            ]);
        }
        rows.push(vec!["  one of them".into(), String::new(), server.price_cents.to_string()]);
        text.push_str(&table(&rows, 1));
        let _ = writeln!(
            text,
            "  {} cores for guests, {} sidecores; {} Gbit/s of cards for {} needed",
            build.vm_cores,
            build.sidecores,
            gbit(build.provided_bits),
            gbit(build.required_bits),
        );
    }
    text
}

/// The search as two tables of changes, without and with a spare IOhost.
pub fn search_text(cells: &[SearchCell]) -> String {
    let mut text = String::new();
    let with_power = cells.iter().all(|it| it.with_power);
    let sum = if with_power { "parts and power" } else { "parts alone" };
    for spare in [0, 1] {
        let title = if spare == 0 { "NO SPARE IOHOST" } else { "ONE SPARE IOHOST" };
        let mut head = vec!["servers".to_owned()];
        head.extend(SHARES_TRIED.map(|share| format!("{share} %")));
        let mut rows = vec![head];
        for servers in SERVERS_TRIED {
            let of_row =
                cells.iter().filter(|it| it.servers == servers && it.spare_iohosts == spare);
            let mut row = vec![servers.to_string()];
            row.extend(of_row.map(|it| it.change.map_or_else(|| "-".to_owned(), percent)));
            rows.push(row);
        }
        let _ = write!(
            text,
            "{title}: price of the pool ({sum}) beside hosts that serve themselves,\n\
            by the share of their sidecores that the pool needs\n{}\n",
            table(&rows, 0)
        );
        text.push_str("Racks that pay, in servers:\n");
        for share in SHARES_TRIED {
            let of_share = cells.iter().filter(|it| {
                let is_here = it.sidecores_percent == share && it.spare_iohosts == spare;
                is_here && it.change.is_some_and(|change| change < 0)
            });
            let sizes: Vec<String> = of_share.map(|it| it.servers.to_string()).collect();
            let sizes = if sizes.is_empty() { "none".to_owned() } else { sizes.join(", ") };
            let _ = writeln!(text, "  {share} %: {sizes}");
        }
        text += &alike_text(cells, spare);
        text.push('\n');
    }
    if !with_power {
        text.push_str("Power is left out: the rack has no [power], or a part has no watts.\n");
    }
    text.push_str("A dash: the parts do not fit into the servers.\n");
    text
}

/// The sizes at which each share has the same price, by the need that decides there.
pub(super) fn alike_text(cells: &[SearchCell], spare: u64) -> String {
    let mut sizes: Vec<(&str, Vec<String>)> = Vec::new();
    for servers in SERVERS_TRIED {
        let is_here = |it: &&SearchCell| it.servers == servers && it.spare_iohosts == spare;
        let row: Vec<&SearchCell> = cells.iter().filter(is_here).collect();
        let Some(last) = row.last().filter(|it| it.pooled_cents.is_some()) else { continue };
        if row.iter().any(|it| it.pooled_cents != last.pooled_cents) {
            continue;
        }
        let need = match last.decided_by {
            Some(PoolNeed::Drives) => "slots for drives (ssds, hosts.ssd_slots)",
            Some(PoolNeed::Cards) => "slots for cards (iohost_nic, hosts.nic_slots)",
            Some(PoolNeed::Copies) => "copies (replicas)",
            Some(PoolNeed::Sidecores) => "sidecores, of which all shares need as many processors",
            None => "one IOhost, which has enough of all",
        };
        match sizes.iter_mut().find(|(known, _)| *known == need) {
            Some((_, sizes)) => sizes.push(servers.to_string()),
            None => sizes.push((need, vec![servers.to_string()])),
        }
    }
    let mut text = String::new();
    for (at, (need, sizes)) in sizes.iter().enumerate() {
        if at == 0 {
            text += "The same price for each share, since another need decides the IOhosts:\n";
        }
        let _ = writeln!(text, "  {need}: {} servers", sizes.join(", "));
    }
    text
}
