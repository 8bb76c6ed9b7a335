//! A page of metrics: families with their series, in the order in which they are printed.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::help;
use api::status::{Counters, DiskState, LATENCY_BUCKETS_NS, Latencies, LatencyStatus};

const STATES: [DiskState; 5] =
    [DiskState::Waiting, DiskState::Ready, DiskState::Running, DiskState::Lost, DiskState::Failed];
/// A value, and how it is written.
#[derive(Clone, Copy)]
pub(super) enum MetricValue {
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

/// All metrics of a status.
#[derive(Default)]
pub(super) struct Page {
    families: BTreeMap<String, MetricFamily>,
}

impl Page {
    /// One series for each state, of which one is 1.
    pub(super) fn state(&mut self, kind: &str, name: &str, now: DiskState) {
        for state in STATES {
            let labels = labels(&[(kind, name), ("state", &state.to_string())]);
            let is = MetricValue::Count(u64::from(now == state));
            self.gauge(&format!("vrio_{kind}_state"), &labels, is);
        }
    }

    pub(super) fn gauge(&mut self, name: &str, labels: &str, number: MetricValue) {
        *self.place("gauge", name, labels) = number;
    }

    /// A counter without a name is called as the kind.
    pub(super) fn counters(&mut self, kind: &str, labels: &str, counters: &Counters) {
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

    pub(super) fn latencies(&mut self, kind: &str, object: &[(&str, &str)], latencies: &Latencies) {
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

    pub(super) fn print(&self) -> String {
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
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs.iter().map(|(name, value)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    });
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(","))
}
