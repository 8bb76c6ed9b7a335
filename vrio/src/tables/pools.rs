//! Pools, and the volumes and snapshots in them.

use std::fmt::Write;

use comfy_table::Table;
use node::config::show_size;
use node::status::{
    HistoryReport, PackedReport, PoolDeviceStatus, PooledStatus, SharedReport, StoragePoolStatus,
};

use super::layout::{STRING, counter_table, fit, fold, section, table, uptime};
use super::{scrubs, verdict};

/// Pools in a table.
pub(crate) fn pool_list(all: &[StoragePoolStatus]) -> String {
    let mut text = verdict::of_list("pool", all.len(), &verdict::pools(all));
    section(&mut text, "pools", pools(all));
    text
}

/// One pool with everything.
pub(crate) fn pool_alone(pool: &StoragePoolStatus) -> String {
    let mut text = pool_list(std::slice::from_ref(pool));
    let line = match pool.device_list.is_empty() {
        true => format!("devices {}, origin {}", pool.devices.join(", "), pool.origin),
        false => format!("origin {}", pool.origin),
    };
    writeln!(text, "{}", fold(&line, 3)).expect(STRING);
    if let Some(line) = packed(pool.packed) {
        writeln!(text, "{}", fold(&line, 3)).expect(STRING);
    }
    if let Some(line) = shared(pool.shared) {
        writeln!(text, "{}", fold(&line, 3)).expect(STRING);
    }
    if let Some(line) = scrubs::of_pool(&pool.scrub) {
        writeln!(text, "{}", fold(&line, 3)).expect(STRING);
    }
    for (volume, stream) in pool.volumes.iter().filter_map(|it| Some((it, it.receiving.as_ref()?)))
    {
        let (at, size) = (show_size(stream.received_bytes), show_size(stream.size_bytes));
        let (pool, name) = (&pool.name, &volume.name);
        let line = format!(
            "a stream is being received into {name}: {at} of {size}; if no command is at it, see \
             `vrio volume receive {pool} {name} --status`"
        );
        writeln!(text, "{}", fold(&line, 3)).expect(STRING);
    }
    for volume in &pool.volumes {
        if let Some(history) = &volume.history {
            writeln!(text, "{}", fold(&history_line(&volume.name, history), 3)).expect(STRING);
        }
    }
    section(&mut text, "devices", devices(&pool.device_list));
    section(&mut text, "volumes and snapshots", pooled(&pool.volumes));
    section(&mut text, "counters", counter_table(&pool.counters));
    text
}

/// A line about the history of a volume.
fn history_line(name: &str, history: &HistoryReport) -> String {
    let HistoryReport { keeps, moments, oldest, bytes, shortened, rests, .. } = history;
    let mut line = format!("history of {name}: {keeps}, {moments} moments");
    if let Some(oldest) = oldest {
        write!(line, ", back to {oldest}").expect(STRING);
    }
    if *bytes > 0 {
        write!(line, "; {} that only it has", show_size(*bytes)).expect(STRING);
    }
    if let Some(shortened) = shortened {
        write!(line, "; shortened, what was before {shortened} gave way to a lack of room")
            .expect(STRING);
    }
    if let Some(rests) = rests {
        write!(line, "; no moments are taken: {rests}").expect(STRING);
    }
    line
}

fn devices(all: &[PoolDeviceStatus]) -> Table {
    let mut table = table(&["number", "state", "size", "used", "device"], 2);
    for it in all {
        let left = it.left_s.map(|left_s| format!(", {} left", uptime(left_s)));
        let state = match (it.leaving, it.stuck) {
            (false, _) => "ok".to_owned(),
            (true, false) => format!("leaving{}", left.unwrap_or_default()),
            (true, true) => "cannot leave".to_owned(),
        };
        table.add_row([
            it.number.to_string(),
            state,
            show_size(it.size_bytes),
            show_size(it.used_bytes),
            it.path.clone(),
        ]);
    }
    table
}

/// A line about compressed blocks; none if there are none.
fn packed(packed: PackedReport) -> Option<String> {
    let PackedReport { data_bytes, used_bytes, all_bytes } = packed;
    if data_bytes == 0 {
        return None;
    }
    let saved = data_bytes.saturating_sub(used_bytes);
    let ratio = all_bytes as f64 / all_bytes.saturating_sub(saved).max(1) as f64;
    Some(format!(
        "compression: {} of {} are compressed to {}, which saves {} ({ratio:.2} to 1 for all)",
        show_size(data_bytes),
        show_size(all_bytes),
        show_size(used_bytes),
        show_size(saved),
    ))
}

/// A line about blocks that share their content; none if there are none and none are looked for.
fn shared(shared: SharedReport) -> Option<String> {
    if shared.is_empty() {
        return None;
    }
    let mut line = format!("deduplication saves {}", show_size(shared.saved_bytes));
    if shared.zero_bytes > 0 {
        write!(line, ", {} of it zeroes", show_size(shared.zero_bytes)).expect(STRING);
    }
    let (known, most) = (show_size(shared.known_bytes), show_size(shared.known_bytes_max));
    let percent = shared.looked_at_percent;
    match shared.is_on {
        true => {
            let more = format!("; {percent} % of the pool looked at, {known} of {most} known");
            line.push_str(&more);
        }
        false => line.push_str("; it is switched off"),
    }
    Some(line)
}

/// Snapshots in a table.
pub(crate) fn snapshot_list(all: &[PooledStatus]) -> String {
    let mut text = verdict::of_list("snapshot", all.len(), &[]);
    section(&mut text, "snapshots", snapshots(all));
    text
}

pub(super) fn pools(all: &[StoragePoolStatus]) -> Table {
    let header = ["name", "state", "origin", "size", "used", "free", "volumes", "snapshots"];
    let mut table = table(&header, 3);
    for pool in all {
        let count = |kind| pool.volumes.iter().filter(|it| it.kind == kind).count().to_string();
        table.add_row([
            pool.name.clone(),
            pool.state.to_string(),
            pool.origin.to_string(),
            show_size(pool.size_bytes),
            show_size(pool.used_bytes),
            show_size(pool.size_bytes.saturating_sub(pool.used_bytes)),
            count("volume"),
            count("snapshot"),
        ]);
    }
    fit(table, &["origin"])
}

fn pooled(all: &[PooledStatus]) -> Table {
    let header = [
        "name",
        "kind",
        "from",
        "taken",
        "served",
        "key",
        "size",
        "owns",
        "has",
        "reserved",
        "limit",
        "compression",
        "number",
    ];
    let mut table = table(&header, 6);
    let unless = |bytes: Option<u64>| bytes.map_or_else(|| "-".to_owned(), show_size);
    for it in all {
        table.add_row([
            it.name.clone(),
            it.kind.clone(),
            it.from.clone().unwrap_or_else(|| "-".to_owned()),
            it.taken.clone().unwrap_or_else(|| "-".to_owned()),
            if it.served { "yes" } else { "-" }.to_owned(),
            key_of(it),
            show_size(it.size_bytes),
            show_size(it.owned_bytes),
            unless(it.referred_bytes),
            unless(Some(it.reservation_bytes).filter(|bytes| *bytes > 0)),
            unless(it.limit_bytes),
            it.compression.clone().unwrap_or_else(|| "-".to_owned()),
            it.number.to_string(),
        ]);
    }
    fit(table, &["number", "compression", "from", "reserved", "limit", "has"])
}

/// The key of an encrypted volume, and how much is still under an old data key.
fn key_of(it: &PooledStatus) -> String {
    match (&it.key, it.old_key_bytes) {
        (None, _) => "-".to_owned(),
        (Some(key), 0) => key.clone(),
        (Some(key), left) => format!("{key} ({} under the old data key)", show_size(left)),
    }
}

fn snapshots(all: &[PooledStatus]) -> Table {
    let mut table = table(&["name", "taken", "size", "number"], 2);
    for it in all {
        let taken = it.taken.clone().unwrap_or_else(|| "-".to_owned());
        let number = it.number.to_string();
        table.add_row([it.name.clone(), taken, show_size(it.size_bytes), number]);
    }
    table
}
