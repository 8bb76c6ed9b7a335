//! Reports of simulations as text.

use std::fmt::Write;

use super::VariedReport;
use super::world::{LatencySummary, SimulationReport};
use crate::money::grouped;
use crate::text::table;

/// A time with three digits and a unit.
pub(crate) fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..10_000 => format!("{}.{:02} us", ns / 1000, ns % 1000 / 10),
        10_000..1_000_000 => format!("{}.{} us", ns / 1000, ns % 1000 / 100),
        1_000_000..1_000_000_000 => format!("{}.{:02} ms", ns / 1_000_000, ns % 1_000_000 / 10_000),
        _ => format!("{}.{:02} s", ns / 1_000_000_000, ns % 1_000_000_000 / 10_000_000),
    }
}

/// Parts of a million as percent.
pub(super) fn share(ppm: u64) -> String {
    format!("{}.{} %", ppm / 10_000, ppm % 10_000 / 1000)
}

pub(super) fn latency_row(name: &str, latency: &LatencySummary) -> Vec<String> {
    let mut row = vec![name.to_owned(), grouped(latency.requests)];
    let times = [latency.mean_ns, latency.p50_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
    // The times of no request are none.
    row.extend(times.map(|ns| if latency.requests == 0 { "-".to_owned() } else { time(ns) }));
    row
}

/// The head of a table of latencies.
pub(super) const LATENCY_HEAD: [&str; 7] =
    ["requests begun", "number", "mean", "p50", "p99", "p99.9", "longest"];

/// The report of one scenario.
pub fn report_text(report: &SimulationReport) -> String {
    let mut text = format!("{}\n", report.title);
    let _ = writeln!(
        text,
        "{} hosts, {} guests, {} IOhosts; {} simulated, seed {}, {} events",
        grouped(report.hosts),
        grouped(report.guests),
        grouped(report.iohosts),
        time(report.simulated_ns),
        report.seed,
        grouped(report.events),
    );
    let mut rows = vec![LATENCY_HEAD.map(str::to_owned).to_vec()];
    if let Some(parts) = &report.around_death {
        let names = ["before the death", "until it is known", "after that"];
        rows.extend(names.iter().zip(parts).map(|(name, part)| latency_row(name, part)));
    }
    rows.push(latency_row("in all", &report.latency));
    let _ = write!(text, "\nLATENCY\n{}", table(&rows, 1));
    if let Some(oldest_ns) = report.oldest_ns {
        let (count, oldest) = (grouped(report.unanswered), time(oldest_ns));
        let _ = writeln!(
            text,
            "{count} requests had no answer at the end; the oldest had waited for {oldest}."
        );
    }
    for (count, words) in [
        (report.sent_again, "were sent again, since their IOhost died"),
        (report.refused, "were refused, since too many were under way"),
    ] {
        if count > 0 {
            let _ = writeln!(text, "{} requests {words}.", grouped(count));
        }
    }
    let mut rows = vec![["busy", "number", "mean", "least", "most"].map(str::to_owned).to_vec()];
    for used in &report.used {
        let mut row = vec![used.stations.to_owned(), grouped(used.count)];
        row.extend([used.mean_ppm, used.least_ppm, used.most_ppm].map(share));
        rows.push(row);
    }
    let _ = write!(text, "\nSTATIONS\n{}", table(&rows, 1));
    text
}

/// Several reports, one a row, by the value that tells them apart.
pub fn rows_text(key: &str, reports: &[VariedReport]) -> String {
    let Some(VariedReport { report: first, .. }) = reports.first() else { return String::new() };
    let mut rows = vec![
        [key, "requests", "mean", "p50", "p99", "p99.9", "longest", "unanswered", "sidecores"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for VariedReport { value, report, .. } in reports {
        let mut row = latency_row(value, &report.latency);
        row.push(grouped(report.unanswered + report.refused));
        let mut cores = report.used.iter().filter(|used| used.stations.ends_with("sidecores"));
        row.push(cores.next_back().map_or_else(|| "-".to_owned(), |used| share(used.mean_ppm)));
        rows.push(row);
    }
    format!("{}\n\n{}", first.title, table(&rows, 1))
}
