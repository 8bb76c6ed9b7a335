//! A view as lines that fit a width. Columns that do not fit are left out, one by one.

use node::config::show_size;
use node::status::DiskState;

use super::view::{NodeView, Traffic};
use crate::tables::uptime;

/// The kind of a piece of text. The screen gives each kind a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    /// Names of columns.
    Header,
    /// A disk that waits or is lost, or a session that is not connected.
    Warning,
    /// A disk that has failed.
    Failed,
}

/// A line of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PageRow {
    pub(super) tone: Tone,
    pub(super) text: String,
}

/// A column: its name, and how soon it is left out. 0 stays.
type PageColumn = (&'static str, u8);

/// A row's text, one cell a column, and its kind.
type PageCells = (Tone, Vec<String>);

/// The whole view, without a limit to its width.
pub(super) fn text(view: &NodeView) -> String {
    let rows = rows(view, usize::MAX);
    rows.iter().map(|row| format!("{}\n", row.text)).collect()
}

/// The lines of a view, each at most `width` characters.
pub(super) fn rows(view: &NodeView, width: usize) -> Vec<PageRow> {
    let title = format!(
        "node {}  vrio {}  pid {}  up {}",
        view.node,
        view.release,
        view.pid,
        uptime(view.uptime_s)
    );
    let mut rows = vec![PageRow { tone: Tone::Plain, text: cut(&title, width) }];
    section(&mut rows, width, &SIDECORES, sidecores(view));
    section(&mut rows, width, &DISKS, disks(view));
    for disk in view.disks.iter().filter(|disk| !disk.detail.is_empty()) {
        let text = format!("  {}: {}", disk.name, disk.detail);
        rows.push(PageRow { tone: tone(disk.state), text: cut(&text, width) });
    }
    section(&mut rows, width, &VOLUMES, volumes(view));
    section(&mut rows, width, &SESSIONS, sessions(view));
    rows
}

const SIDECORES: [PageColumn; 8] = [
    ("SIDECORE", 0),
    ("busy", 0),
    ("load", 3),
    ("awake", 2),
    ("queues", 3),
    ("core", 4),
    ("rounds/s", 1),
    ("wake-ups/s", 5),
];

const DISKS: [PageColumn; 9] = [
    ("DISK", 0),
    ("state", 0),
    ("IOPS", 0),
    ("read/s", 2),
    ("write/s", 3),
    ("p50", 1),
    ("p99", 1),
    ("errors", 5),
    ("volume", 4),
];

const VOLUMES: [PageColumn; 8] = [
    ("VOLUME", 0),
    ("IOPS", 0),
    ("read/s", 2),
    ("write/s", 3),
    ("p50", 1),
    ("p99", 1),
    ("errors", 5),
    ("in use by", 4),
];

const SESSIONS: [PageColumn; 10] = [
    ("SESSION", 0),
    ("core", 3),
    ("state", 1),
    ("rtt", 0),
    ("window", 2),
    ("in flight", 4),
    ("packets/s", 3),
    ("loss", 0),
    ("resent", 2),
    ("address", 5),
];

fn sidecores(view: &NodeView) -> Vec<PageCells> {
    let cells = view.sidecores.iter().map(|core| {
        let busy = core.busy_share.unwrap_or(0.0);
        let row = vec![
            core.index.to_string(),
            or_dash(core.busy_share, percent),
            bar(busy),
            or_dash(core.awake_share, percent),
            core.queues.clone(),
            core.core.map_or_else(|| "any".to_owned(), |core| core.to_string()),
            or_dash(core.rounds_per_s, rate),
            or_dash(core.wakeups_per_s, rate),
        ];
        (Tone::Plain, row)
    });
    cells.collect()
}

fn disks(view: &NodeView) -> Vec<PageCells> {
    let cells = view.disks.iter().map(|disk| {
        let mut row = vec![disk.name.clone(), disk.state.to_string()];
        row.extend(traffic(&disk.traffic));
        row.push(disk.volume.clone());
        (tone(disk.state), row)
    });
    cells.collect()
}

fn volumes(view: &NodeView) -> Vec<PageCells> {
    let cells = view.volumes.iter().map(|volume| {
        let mut row = vec![volume.name.clone()];
        row.extend(traffic(&volume.traffic));
        let users = volume.attachments.join(",");
        row.push(if users.is_empty() { "-".to_owned() } else { users });
        (Tone::Plain, row)
    });
    cells.collect()
}

fn sessions(view: &NodeView) -> Vec<PageCells> {
    let cells = view.sessions.iter().map(|session| {
        let tone = if session.state == "connected" { Tone::Plain } else { Tone::Warning };
        let row = vec![
            session.peer.clone(),
            session.sidecore.to_string(),
            session.state.clone(),
            time(session.rtt_ns),
            show_size(session.window_bytes),
            show_size(session.in_flight_bytes),
            or_dash(session.packets_per_s, rate),
            or_dash(session.loss_share, percent),
            session.resent.to_string(),
            session.address.clone(),
        ];
        (tone, row)
    });
    cells.collect()
}

fn traffic(traffic: &Traffic) -> [String; 6] {
    let bytes = |rate: f64| show_bytes(rate as u64);
    [
        or_dash(traffic.requests_per_s, rate),
        or_dash(traffic.read_bytes_per_s, bytes),
        or_dash(traffic.written_bytes_per_s, bytes),
        or_dash(traffic.latency_p50_ns, time),
        or_dash(traffic.latency_p99_ns, time),
        traffic.errors.to_string(),
    ]
}

fn tone(state: DiskState) -> Tone {
    match state {
        DiskState::Ready | DiskState::Running => Tone::Plain,
        DiskState::Waiting | DiskState::Lost => Tone::Warning,
        DiskState::Failed => Tone::Failed,
    }
}

/// Adds a table after an empty line, unless it has no rows.
fn section(
    rows: &mut Vec<PageRow>,
    width_max: usize,
    columns: &[PageColumn],
    cells: Vec<PageCells>,
) {
    if cells.is_empty() {
        return;
    }
    let widths: Vec<_> = (0..columns.len())
        .map(|column| {
            let texts = cells.iter().map(|(_, row)| row[column].chars().count());
            texts.max().unwrap_or(0).max(columns[column].0.chars().count())
        })
        .collect();
    let kept = kept(columns, &widths, width_max);
    let line = |texts: &[&str]| {
        let mut text = String::new();
        for (place, column) in kept.iter().enumerate() {
            let width = widths[*column];
            // Names are aligned to the left, numbers to the right. No blanks follow the last
            // column.
            let left = LEFT.contains(&columns[*column].0);
            let last = place + 1 == kept.len();
            text += if place > 0 { "  " } else { "" };
            text += &match (left, last) {
                (true, true) => texts[*column].to_owned(),
                (true, false) => format!("{:<width$}", texts[*column]),
                (false, _) => format!("{:>width$}", texts[*column]),
            };
        }
        cut(&text, width_max)
    };
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    rows.push(PageRow { tone: Tone::Plain, text: String::new() });
    rows.push(PageRow { tone: Tone::Header, text: line(&names) });
    for (tone, row) in cells {
        let texts: Vec<_> = row.iter().map(String::as_str).collect();
        rows.push(PageRow { tone, text: line(&texts) });
    }
}

/// Columns of names.
const LEFT: [&str; 8] =
    ["SIDECORE", "DISK", "VOLUME", "SESSION", "state", "volume", "in use by", "address"];

/// The columns that fit. Columns with the largest number are left out first.
fn kept(columns: &[PageColumn], widths: &[usize], width: usize) -> Vec<usize> {
    let mut kept: Vec<_> = (0..columns.len()).collect();
    loop {
        let taken = kept.iter().map(|column| widths[*column] + 2).sum::<usize>();
        let first_out = kept.iter().rev().max_by_key(|column| columns[**column].1).copied();
        match first_out {
            Some(out) if taken > width.saturating_add(2) && columns[out].1 > 0 => {
                kept.retain(|column| *column != out);
            }
            _ => return kept,
        }
    }
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

fn or_dash<T>(value: Option<T>, show: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// Ten places, filled by load.
fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * 10.0).round() as usize;
    format!("{}{}", "#".repeat(full), ".".repeat(10 - full))
}

/// Three digits and a unit.
fn rate(per_s: f64) -> String {
    match per_s {
        ..9.95 => format!("{per_s:.1}"),
        9.95..9_999.5 => format!("{per_s:.0}"),
        9_999.5..999_500.0 => format!("{:.0}k", per_s / 1e3),
        _ => format!("{:.1}M", per_s / 1e6),
    }
}

fn show_bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    match bytes {
        ..1024.0 => format!("{bytes:.0}B"),
        1024.0..1_048_576.0 => format!("{:.0}KiB", bytes / 1024.0),
        1_048_576.0..1_073_741_824.0 => format!("{:.1}MiB", bytes / 1_048_576.0),
        _ => format!("{:.1}GiB", bytes / 1_073_741_824.0),
    }
}

fn time(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    match us {
        ..99.5 => format!("{us:.1}us"),
        99.5..999.5 => format!("{us:.0}us"),
        999.5..999_500.0 => format!("{:.1}ms", us / 1e3),
        _ => format!("{:.1}s", us / 1e6),
    }
}
