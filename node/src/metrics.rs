//! A status as Prometheus text (exposition format 0.0.4).
//!
//! One rule makes every name, so a counter that is new in the status is a metric at once: `vrio_`,
//! the kind of object, the counter's name. A counter whose name ends in `_now` is a gauge here and
//! loses that ending; each other counter gets `_total`. Nanoseconds become seconds.

mod help;
pub(crate) mod listen;
mod nets;
mod page;
mod pools;
mod quotas;

use config::Kind;
use serde_json::Value;

use api::status::{Counters, DiskStatus, Status, VolumeStatus};
use page::{MetricValue, Page};

/// The content type of an HTTP answer with this text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The whole text.
pub fn text(status: &Status) -> String {
    let mut page = Page::default();
    let node = &status.node;
    let labels = page::labels(&[("node", &node.name), ("release", &node.release)]);
    page.gauge("vrio_node_info", &labels, MetricValue::Count(1));
    page.gauge("vrio_node_uptime_seconds", "", MetricValue::Count(node.uptime_s));
    page.gauge("vrio_node_draining", "", MetricValue::Count(u64::from(node.draining)));
    let guests = &node.guest_memory;
    for (name, value) in [
        ("addresses_bytes", guests.addresses_bytes),
        ("addresses_max_bytes", guests.addresses_bytes_max),
        ("mappings", guests.mappings),
        ("mappings_max", guests.mappings_max),
    ] {
        page.gauge(&format!("vrio_node_guest_{name}"), "", MetricValue::Count(value));
    }
    let refused = Counters::from([("guest_memory_refused".to_owned(), guests.refused)]);
    page.counters("node", "", &refused);
    for core in &status.sidecores {
        let labels = page::labels(&[("sidecore", &core.index.to_string())]);
        page.counters("sidecore", &labels, &core.counters);
    }
    status.volumes.iter().for_each(|volume| add_volume(&mut page, volume));
    for disk in &status.disks {
        let labels = page::labels(&[("disk", &disk.name)]);
        page.counters("disk", &labels, &disk.counters);
        page.latencies("disk", &[("disk", &disk.name)], &disk.latencies);
        if let Some(size_bytes) = disk.size_bytes {
            page.gauge("vrio_disk_size_bytes", &labels, MetricValue::Count(size_bytes));
        }
        add_places(&mut page, disk);
        page.state("disk", &disk.name, disk.state);
    }
    nets::add(&mut page, status);
    pools::add(&mut page, &status.pools);
    for kind in Kind::all() {
        add_others(&mut page, kind.key(), status);
    }
    for strangers in &status.strangers {
        let labels = page::labels(&[("reason", &strangers.reason)]);
        let refused = Counters::from([("strangers_refused".to_owned(), strangers.refused)]);
        page.counters("node", &labels, &refused);
    }
    quotas::add(&mut page, &status.quotas);
    for session in &status.sessions {
        let labels = page::labels(&[
            ("peer", &session.peer),
            ("address", &session.address),
            ("sidecore", &session.sidecore.to_string()),
            ("index", &session.index.to_string()),
            ("direction", if session.outgoing { "outgoing" } else { "incoming" }),
        ]);
        page.counters("session", &labels, &session.counters);
        let connected = MetricValue::Count(u64::from(session.state == "connected"));
        page.gauge("vrio_session_connected", &labels, connected);
    }
    page.print()
}

fn add_volume(page: &mut Page, volume: &VolumeStatus) {
    let labels = page::labels(&[("volume", &volume.name)]);
    page.counters("volume", &labels, &volume.counters);
    page.latencies("volume", &[("volume", &volume.name)], &volume.latencies);
    page.gauge("vrio_volume_size_bytes", &labels, MetricValue::Count(volume.size_bytes));
    let attachments = MetricValue::Count(volume.attachments.len() as u64);
    page.gauge("vrio_volume_attachments", &labels, attachments);
}

/// The counters of the objects of a kind that has no field in the status.
fn add_others(page: &mut Page, kind: &str, status: &Status) {
    let all = status.others.get(&format!("{kind}s")).and_then(Value::as_array);
    for object in all.into_iter().flatten() {
        let name = object["name"].as_str().unwrap_or_default();
        let counters = object["counters"].as_object().into_iter().flatten();
        let counters = counters.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)));
        page.counters(kind, &page::labels(&[(kind, name)]), &counters.collect());
    }
}

/// Where a disk's queues are served, and were.
fn add_places(page: &mut Page, disk: &DiskStatus) {
    for queue in &disk.by_queue {
        let number = queue.queue.to_string();
        let labels = page::labels(&[("disk", &disk.name), ("queue", &number)]);
        page.counters("disk_queue", &labels, &queue.counters);
        let sidecore = MetricValue::Count(queue.sidecore as u64);
        page.gauge("vrio_disk_queue_sidecore", &labels, sidecore);
    }
    for share in &disk.by_sidecore {
        let number = share.sidecore.to_string();
        let labels = page::labels(&[("disk", &disk.name), ("sidecore", &number)]);
        page.counters("disk_sidecore", &labels, &share.counters);
    }
}

#[cfg(test)]
mod tests;
