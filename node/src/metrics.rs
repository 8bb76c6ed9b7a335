//! A status as Prometheus text (exposition format 0.0.4).
//!
//! One rule makes every name, so a counter that is new in the status is a metric at once: `vrio_`,
//! the kind of object, the counter's name. A counter whose name ends in `_now` is a gauge here and
//! loses that ending; each other counter gets `_total`. Nanoseconds become seconds.

mod help;
pub(crate) mod listen;
mod nets;
mod pools;
mod quotas;

use std::collections::BTreeMap;
use std::fmt::Write;

use config::Kind;
use serde_json::Value;

use crate::status::{
    Counters, DiskState, DiskStatus, LATENCY_BUCKETS_NS, Latencies, LatencyStatus, Status,
    VolumeStatus,
};

/// The content type of an HTTP answer with this text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const STATES: [DiskState; 5] =
    [DiskState::Waiting, DiskState::Ready, DiskState::Running, DiskState::Lost, DiskState::Failed];

/// The whole text.
pub fn text(status: &Status) -> String {
    let mut page = Page::default();
    let node = &status.node;
    let labels = labels(&[("node", &node.name), ("release", &node.release)]);
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
        let labels = self::labels(&[("sidecore", &core.index.to_string())]);
        page.counters("sidecore", &labels, &core.counters);
    }
    status.volumes.iter().for_each(|volume| page.volume(volume));
    for disk in &status.disks {
        let labels = self::labels(&[("disk", &disk.name)]);
        page.counters("disk", &labels, &disk.counters);
        page.latencies("disk", &[("disk", &disk.name)], &disk.latencies);
        if let Some(size_bytes) = disk.size_bytes {
            page.gauge("vrio_disk_size_bytes", &labels, MetricValue::Count(size_bytes));
        }
        page.places(disk);
        page.state("disk", &disk.name, disk.state);
    }
    nets::add(&mut page, status);
    pools::add(&mut page, &status.pools);
    for kind in Kind::all() {
        page.others(kind.key(), status);
    }
    for strangers in &status.strangers {
        let labels = self::labels(&[("reason", &strangers.reason)]);
        let refused = Counters::from([("strangers_refused".to_owned(), strangers.refused)]);
        page.counters("node", &labels, &refused);
    }
    quotas::add(&mut page, &status.quotas);
    for session in &status.sessions {
        let labels = self::labels(&[
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

/// A value, and how it is written.
#[derive(Clone, Copy)]
enum MetricValue {
    Count(u64),
    /// Nanoseconds, written as seconds, all digits kept.
    Ns(u64),
}

impl MetricValue {
    fn value(&mut self) -> &mut u64 {
        match self {
            Self::Count(value) | Self::Ns(value) => value,
        }
    }
}

impl std::fmt::Display for MetricValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Ns(ns) if ns % 1_000_000_000 == 0 => write!(f, "{}", ns / 1_000_000_000),
            Self::Ns(ns) => {
                let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
                f.write_str(text.trim_end_matches('0'))
            }
        }
    }
}

/// A metric with all its series.
struct MetricFamily {
    kind: &'static str,
    help: String,
    /// By labels, and of one histogram by place: the order in which they are printed.
    samples: BTreeMap<(String, usize), MetricSample>,
}

struct MetricSample {
    /// The rest of the sample's name after the family's name.
    suffix: &'static str,
    labels: String,
    number: MetricValue,
}

#[derive(Default)]
struct Page {
    families: BTreeMap<String, MetricFamily>,
}

impl Page {
    fn volume(&mut self, volume: &VolumeStatus) {
        let labels = labels(&[("volume", &volume.name)]);
        self.counters("volume", &labels, &volume.counters);
        self.latencies("volume", &[("volume", &volume.name)], &volume.latencies);
        self.gauge("vrio_volume_size_bytes", &labels, MetricValue::Count(volume.size_bytes));
        let attachments = MetricValue::Count(volume.attachments.len() as u64);
        self.gauge("vrio_volume_attachments", &labels, attachments);
    }

    /// The counters of the objects of a kind that has no field in the status.
    fn others(&mut self, kind: &str, status: &Status) {
        let all = status.others.get(&format!("{kind}s")).and_then(Value::as_array);
        for object in all.into_iter().flatten() {
            let name = object["name"].as_str().unwrap_or_default();
            let counters = object["counters"].as_object().into_iter().flatten();
            let counters =
                counters.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)));
            self.counters(kind, &labels(&[(kind, name)]), &counters.collect());
        }
    }

    /// Where a disk's queues are served, and were.
    fn places(&mut self, disk: &DiskStatus) {
        for queue in &disk.by_queue {
            let number = queue.queue.to_string();
            let labels = labels(&[("disk", &disk.name), ("queue", &number)]);
            self.counters("disk_queue", &labels, &queue.counters);
            let sidecore = MetricValue::Count(queue.sidecore as u64);
            self.gauge("vrio_disk_queue_sidecore", &labels, sidecore);
        }
        for share in &disk.by_sidecore {
            let number = share.sidecore.to_string();
            let labels = labels(&[("disk", &disk.name), ("sidecore", &number)]);
            self.counters("disk_sidecore", &labels, &share.counters);
        }
    }

    /// One series for each state, of which one is 1.
    fn state(&mut self, kind: &str, name: &str, now: DiskState) {
        for state in STATES {
            let labels = labels(&[(kind, name), ("state", &state.to_string())]);
            let is = MetricValue::Count(u64::from(now == state));
            self.gauge(&format!("vrio_{kind}_state"), &labels, is);
        }
    }

    fn gauge(&mut self, name: &str, labels: &str, number: MetricValue) {
        *self.place("gauge", name, labels) = number;
    }

    /// A counter without a name is called as the kind.
    fn counters(&mut self, kind: &str, labels: &str, counters: &Counters) {
        for (name, value) in counters {
            let kind = if name.is_empty() { kind.to_owned() } else { format!("{kind}_") };
            let (name, now) = match name.strip_suffix("_now") {
                Some(name) => (name, true),
                None => (name.as_str(), false),
            };
            let (name, number) = match name.strip_suffix("_ns") {
                Some(name) => (format!("vrio_{kind}{name}_seconds"), MetricValue::Ns(0)),
                None => (format!("vrio_{kind}{name}"), MetricValue::Count(0)),
            };
            let place = if now {
                self.place("gauge", &name, labels)
            } else {
                self.place("counter", &format!("{name}_total"), labels)
            };
            // Two sessions may have the same labels for a moment, while a peer that was restarted
            // replaces its old one. A series must not be there twice, so they count together.
            let sum = place.value().saturating_add(*value);
            *place = number;
            *place.value() = sum;
        }
    }

    fn latencies(&mut self, kind: &str, object: &[(&str, &str)], latencies: &Latencies) {
        let name = format!("vrio_{kind}_latency_seconds");
        for (op, latency) in latencies {
            self.histogram(&name, &[object, &[("op", op)]].concat(), latency);
        }
    }

    fn histogram(&mut self, name: &str, object: &[(&str, &str)], latency: &LatencyStatus) {
        let key = labels(object);
        let bounds = LATENCY_BUCKETS_NS.iter().map(|ns| MetricValue::Ns(*ns).to_string());
        let counts = latency.buckets.iter().copied();
        let buckets = bounds.zip(counts).chain([("+Inf".to_owned(), latency.count)]);
        let mut samples: Vec<_> = buckets
            .map(|(bound, count)| MetricSample {
                suffix: "_bucket",
                labels: labels(&[object, &[("le", &bound)]].concat()),
                number: MetricValue::Count(count),
            })
            .collect();
        for (suffix, number) in [
            ("_sum", MetricValue::Ns(latency.sum_ns)),
            ("_count", MetricValue::Count(latency.count)),
        ] {
            samples.push(MetricSample { suffix, labels: key.clone(), number });
        }
        let family = self.family("histogram", name);
        let keyed = samples.into_iter().enumerate();
        family.samples.extend(keyed.map(|(place, sample)| ((key.clone(), place), sample)));
    }

    fn place(&mut self, kind: &'static str, name: &str, labels: &str) -> &mut MetricValue {
        let family = self.family(kind, name);
        let sample = family.samples.entry((labels.to_owned(), 0)).or_insert_with(|| MetricSample {
            suffix: "",
            labels: labels.to_owned(),
            number: MetricValue::Count(0),
        });
        &mut sample.number
    }

    fn family(&mut self, kind: &'static str, name: &str) -> &mut MetricFamily {
        let new = || MetricFamily { kind, help: help::of(name), samples: BTreeMap::new() };
        self.families.entry(name.to_owned()).or_insert_with(new)
    }

    fn print(&self) -> String {
        let mut text = String::new();
        for (name, family) in &self.families {
            let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            let wrote = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", family.kind);
            wrote.expect("to a string");
            for sample in family.samples.values() {
                let MetricSample { suffix, labels, number } = sample;
                writeln!(text, "{name}{suffix}{labels} {number}").expect("to a string");
            }
        }
        text
    }
}

/// `{name="value",..}`, with what would end a value early escaped.
fn labels(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs.iter().map(|(name, value)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    });
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests;
