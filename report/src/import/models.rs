//! The output of `vrio bench models --json`: each of its tables is a measurement, whose names are
//! the models. Events of the columns are parts of one sum, so a picture stacks them.

use std::collections::BTreeMap;

use results::{Axis, Empty, Measurement, Point, Quantity, RunOrigin, Series, Statistic, Unit};
use serde::Deserialize;
use serde_json::Value;

use super::asked::{NO_SEATS, word};
use super::rounds::{Rounds, of_rounds};
use super::words::reason;

/// The name of emulation's row among models in real guests.
const EMULATION: &str = "emulation";

#[derive(Deserialize)]
pub(super) struct Models {
    asked: BTreeMap<String, Value>,
    tables: Vec<ModelTable>,
    #[serde(default)]
    balance: Vec<Balance>,
    #[serde(default)]
    emulated: Vec<Emulated>,
    #[serde(default)]
    not_emulated: Vec<String>,
}

#[derive(Deserialize)]
struct ModelTable {
    device: String,
    guests: u32,
    encrypt: bool,
    /// Whether a stage encrypts the data of the volume.
    #[serde(default)]
    stage: bool,
    /// The accelerator of a real guest.
    #[serde(default)]
    real_guest: Option<String>,
    rows: Vec<ModelRow>,
}

#[derive(Deserialize)]
struct ModelRow {
    name: String,
    polling_cores: PollingCores,
    figures: Option<ModelFigures>,
    empty: Option<String>,
}

#[derive(Deserialize)]
struct PollingCores {
    vmhost: f64,
    iohost: Option<f64>,
}

#[derive(Deserialize)]
struct ModelFigures {
    seated: bool,
    events: Vec<(String, ModelCell)>,
    p50_us: Option<Rounds>,
    p99_us: Option<Rounds>,
    cpu_us: Option<Rounds>,
    per_s: Option<Rounds>,
    /// The reasons for missing figures.
    #[serde(default)]
    unknown: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModelCell {
    Measured(Rounds),
    Empty(String),
    Nobody,
}

#[derive(Deserialize)]
struct Balance {
    sidecores: String,
    load: String,
    seated: bool,
    per_s: Option<Rounds>,
    cpu_us: Option<Rounds>,
    /// The reason that nothing was measured.
    #[serde(default)]
    empty: Option<String>,
}

#[derive(Deserialize)]
struct Emulated {
    device: String,
    name: String,
    accelerator: String,
    sync_exits: f64,
    guest_interrupts: f64,
}

impl Models {
    /// The number of rounds.
    fn rounds(&self) -> u32 {
        let rounds = self.asked.get("rounds").and_then(Value::as_u64);
        rounds.and_then(|rounds| u32::try_from(rounds).ok()).unwrap_or(1)
    }

    /// An empty measurement, with the options that hold for all of it. Lists are options of several
    /// tables.
    fn measured(&self, benchmark: &str, title: &str) -> Measurement {
        let mut it = Measurement::new(RunOrigin::Measured, benchmark, title);
        let said = self.asked.iter().filter(|(name, value)| {
            *name != "guest" && !matches!(value, Value::Array(_) | Value::Object(_) | Value::Null)
        });
        it.setup = said.map(|(name, value)| (name.clone(), word(value))).collect();
        it
    }
}

/// A measurement of each table.
pub(super) fn measurements(report: &Models, title: &str) -> Vec<Measurement> {
    let mut devices = Vec::new();
    let has_real = report.tables.iter().any(|table| table.real_guest.is_some());
    let of = |table: &ModelTable| {
        // Emulation is one more name in the first table of its device, or a row among real guests.
        let is_first = !devices.contains(&table.device) && !has_real;
        devices.push(table.device.clone());
        measurement(report, table, is_first, title)
    };
    let mut all: Vec<_> = report.tables.iter().map(of).collect();
    if !report.balance.is_empty() {
        all.push(balance(report, title));
    }
    all
}

/// The same sidecores, spread over hosts and pooled on one host.
fn balance(report: &Models, title: &str) -> Measurement {
    let title = format!("{title}: sidecores spread and pooled");
    let mut it = report.measured("balance", &title);
    let label = |it: &Balance| format!("{}, {}", it.sidecores, it.load);
    let of = |quantity, unit, number: fn(&Balance) -> Option<Rounds>| {
        let kinds = report.balance.iter().enumerate().filter(|(_, it)| it.seated);
        let point =
            |(place, it): (usize, &Balance)| Some(number(it)?.of_category(place, &label(it)));
        let series = Series::new("depth 32", quantity, unit, Axis::CATEGORY);
        of_rounds(Series { points: kinds.filter_map(point).collect(), ..series }, report.rounds())
    };
    it.series = vec![
        of(Quantity::Iops, Unit::PerS, |it| it.per_s),
        of(Quantity::CpuPerRequest, Unit::Us, |it| it.cpu_us),
    ];
    it.series.retain(|series| !series.points.is_empty());
    let why = |it: &Balance| match &it.empty {
        Some(why) => Some(reason(why)),
        None => (!it.seated).then(|| NO_SEATS.to_owned()),
    };
    let empty = |it: &Balance| Some(Empty { what: label(it), why: why(it)? });
    it.empty = report.balance.iter().filter_map(empty).collect();
    it
}

fn measurement(report: &Models, table: &ModelTable, is_first: bool, title: &str) -> Measurement {
    let ModelTable { device, guests, encrypt, stage, real_guest, rows } = table;
    let sealed = if *encrypt { "sealed" } else { "in clear" };
    let plural = if *guests == 1 { "" } else { "s" };
    let coded = if *stage { ", volume encrypted" } else { "" };
    let kind = real_guest.as_ref().map_or_else(String::new, |how| format!("real ({how}) "));
    let title = format!("{title}: {device}, {guests} {kind}guest{plural}, {sealed}{coded}");
    let mut it = report.measured("models", &title);
    let guest =
        real_guest.as_ref().map_or_else(|| "stand-in".to_owned(), |_| format!("{kind}guest"));
    let setup = [
        ("device", device.clone()),
        ("guests", guests.to_string()),
        ("sessions", sealed.into()),
        ("guest", guest),
    ];
    it.setup.extend(setup.map(|(name, value)| (name.to_owned(), value)));
    if *stage {
        it.setup.insert("chain".to_owned(), "encrypt".to_owned());
    }
    if device == "net" {
        // A network card has no volume.
        it.setup.remove("volume");
    }
    let mut events = BTreeMap::<usize, Series>::new();
    for (place, row) in rows.iter().enumerate() {
        let Some(figures) = &row.figures else {
            let why = row.empty.as_deref().map_or("nobody said why".to_owned(), reason);
            it.empty.push(Empty { what: row.name.clone(), why });
            continue;
        };
        for (at, (column, cell)) in figures.events.iter().enumerate() {
            let column = column.replace('_', " ");
            match cell {
                ModelCell::Measured(rounds) => {
                    let series = events.entry(at).or_insert_with(|| of_events(&column));
                    let point = rounds.of_category(place, &row.name);
                    series.points.push(match row.name == EMULATION {
                        // Emulation is counted once, in any number of rounds.
                        true => Point { low: None, high: None, ..point },
                        false => point,
                    });
                }
                ModelCell::Empty(why) => {
                    let what = format!("{column}, {}", row.name);
                    it.empty.push(Empty { what, why: reason(why) });
                }
                ModelCell::Nobody => {}
            }
        }
        let unknown = figures.unknown.iter();
        it.empty.extend(unknown.map(|why| Empty { what: row.name.clone(), why: reason(why) }));
        if !figures.seated {
            let what = format!("latency, throughput and processor time, {}", row.name);
            it.empty.push(Empty { what, why: NO_SEATS.to_owned() });
        }
    }
    if is_first {
        add_emulation(report, table, &mut it, &mut events);
    }
    it.series.extend(events.into_values().map(|series| of_rounds(series, report.rounds())));
    it.series.extend(speeds(table, report.rounds()));
    it
}

fn of_events(column: &str) -> Series {
    Series::new(column, Quantity::EventsPerRequest, Unit::Count, Axis::CATEGORY)
}

/// The events of QEMU's emulation, from its own trace events, behind all models.
fn add_emulation(
    report: &Models,
    table: &ModelTable,
    it: &mut Measurement,
    events: &mut BTreeMap<usize, Series>,
) {
    let place = table.rows.len();
    for one in report.emulated.iter().filter(|one| one.device == table.device) {
        let label = format!("emulation, {} ({})", one.name, one.accelerator);
        let figures = [("sync exits", one.sync_exits), ("guest interrupts", one.guest_interrupts)];
        for (at, (column, y)) in figures.into_iter().enumerate() {
            let series = events.entry(at).or_insert_with(|| of_events(column));
            series.points.push(Point::of_category(place, &label, y));
        }
    }
    let empty = |why: &String| Empty { what: "emulation".to_owned(), why: reason(why) };
    it.empty.extend(report.not_emulated.iter().map(empty));
}

/// Latency, throughput and processor time of models whose threads had a core each, and the polling
/// cores of all models.
fn speeds(table: &ModelTable, rounds: u32) -> Vec<Series> {
    let measured = || {
        let rows = table.rows.iter().enumerate();
        rows.filter_map(|(place, row)| Some((place, row, row.figures.as_ref()?)))
    };
    let of = |name: &str, quantity, unit, number: fn(&ModelFigures) -> Option<Rounds>| {
        let series = Series::new(name, quantity, unit, Axis::CATEGORY);
        let seated = measured().filter(|(.., it)| it.seated);
        let point = |(place, row, it): (usize, &ModelRow, &ModelFigures)| {
            Some(number(it)?.of_category(place, &row.name))
        };
        let points = seated.filter_map(point);
        of_rounds(Series { points: points.collect(), ..series }, rounds)
    };
    let (latency, rate) = match table.device.as_str() {
        "net" => (Quantity::RoundTrip, Quantity::MessageRate),
        _ => (Quantity::Latency, Quantity::Iops),
    };
    let cores = |name: &str, number: fn(&PollingCores) -> Option<f64>| {
        let series = Series::new(name, Quantity::PollingCores, Unit::Count, Axis::CATEGORY);
        let point = |(place, row, _): (usize, &ModelRow, &ModelFigures)| {
            let y = number(&row.polling_cores)?;
            Some(Point::of_category(place, &row.name, y))
        };
        Series { points: measured().filter_map(point).collect(), ..series }
    };
    let mut all = vec![
        Series {
            statistic: Some(Statistic::Median),
            ..of("median, depth 1", latency, Unit::Us, |it| it.p50_us)
        },
        Series {
            statistic: Some(Statistic::P99),
            ..of("p99, depth 1", latency, Unit::Us, |it| it.p99_us)
        },
        of("depth 32", rate, Unit::PerS, |it| it.per_s),
        of("depth 1", Quantity::CpuPerRequest, Unit::Us, |it| it.cpu_us),
        cores("on each VMhost", |it| Some(it.vmhost)),
        cores("on the IOhost", |it| it.iohost),
    ];
    all.retain(|series| !series.points.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report in the form of `vrio bench models --json`, without the fields that are not read.
    const REPORT: &str = r#"{ "version": 1, "asked": { "devices": ["block"], "rounds": 3,
        "volume": "direct:/x", "seconds": 0.5, "guest": true }, "machine": {},
      "tables": [ { "device": "block", "guests": 1, "encrypt": false, "rows": [
        { "name": "Elvis", "polling_cores": { "vmhost": 1, "iohost": null }, "empty": null,
          "figures": { "seated": false, "events": [
            ["sync_exits", { "measured": { "median": 0.0, "min": 0.0, "max": 0.1 } }],
            ["injections", { "empty": "no KVM" }], ["iohost_interrupts", "nobody"] ],
          "p50_us": { "median": 2, "min": 1, "max": 3 },
          "p99_us": { "median": 9, "min": 8, "max": 9 },
          "cpu_us": { "median": 2, "min": 1, "max": 3 },
          "per_s": { "median": 7, "min": 6, "max": 8 } } },
        { "name": "baseline", "polling_cores": { "vmhost": 0, "iohost": null }, "empty": null,
          "figures": { "seated": true, "events": [], "p50_us": { "median": 2, "min": 1, "max": 3 },
          "p99_us": { "median": 9, "min": 8, "max": 9 }, "cpu_us": null, "per_s": null,
          "unknown": ["throughput: it waited"] } },
        { "name": "optimum", "polling_cores": { "vmhost": 0, "iohost": null }, "figures": null,
          "empty": "one thread asks" } ] } ],
      "balance": [ { "sidecores": "pooled", "load": "balanced", "seated": false,
        "per_s": { "median": 7, "min": 6, "max": 8 },
        "cpu_us": { "median": 2, "min": 1, "max": 3 } },
        { "sidecores": "spread", "load": "balanced", "seated": false, "per_s": null,
          "cpu_us": null, "empty": "its node died" } ],
      "emulated": [ { "device": "block", "name": "ide", "accelerator": "tcg", "sync_exits": 26.0,
        "guest_interrupts": 1.0 } ] }"#;

    #[test]
    fn what_was_measured_is_a_figure_and_what_was_not_is_empty_with_its_reason() {
        let report: Models = serde_json::from_str(REPORT).unwrap();
        let all = measurements(&report, "mine");
        let [models, balance] = &all[..] else { panic!("{all:?}") };
        models.check().unwrap();
        balance.check().unwrap();
        let of = |quantity| models.series.iter().filter(move |it| it.quantity == quantity);
        let names: Vec<_> = of(Quantity::EventsPerRequest).map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["sync exits", "guest interrupts"]);
        let exits = of(Quantity::EventsPerRequest).next().unwrap();
        let labels: Vec<_> = exits.points.iter().filter_map(|it| it.label.as_deref()).collect();
        assert_eq!(labels, ["Elvis", "emulation, ide (tcg)"]);
        assert_eq!((exits.points[0].high, exits.points[1].y), (Some(0.1), 26.0));
        let empty: Vec<_> = models.empty.iter().map(|it| it.what.as_str()).collect();
        let speeds = "latency, throughput and processor time, Elvis";
        assert_eq!(empty, ["injections, Elvis", speeds, "baseline", "optimum"]);
        assert_eq!(of(Quantity::PollingCores).count(), 1, "nobody has an IOhost");
        assert_eq!(exits.rounds, Some(3));
        // Threads that shared cores give events only.
        assert_eq!(of(Quantity::Iops).count(), 0);
        let latency = of(Quantity::Latency).next().unwrap();
        let labels: Vec<_> = latency.points.iter().filter_map(|it| it.label.as_deref()).collect();
        assert_eq!(labels, ["baseline"]);
        let empty: Vec<_> =
            balance.empty.iter().map(|it| format!("{}: {}", it.what, it.why)).collect();
        let no_seats = "pooled, balanced: more polling threads than cores";
        assert_eq!(empty, [no_seats, "spread, balanced: its node died"]);
        assert!(balance.series.is_empty());
        let setup: Vec<_> = balance.setup.iter().map(|(key, it)| format!("{key} {it}")).collect();
        assert_eq!(setup, ["rounds 3", "seconds 0.5", "volume direct:/x"]);
        assert_eq!(models.setup["device"], "block");
        assert_eq!(models.setup["guest"], "stand-in");
    }

    #[test]
    fn a_real_guests_table_has_its_own_row_of_emulation() {
        let real = r#""encrypt": true, "stage": true, "real_guest": "tcg", "rows": [
            { "name": "emulation", "polling_cores": { "vmhost": 0, "iohost": null }, "empty": null,
              "figures": { "seated": true, "p50_us": null, "p99_us": null, "cpu_us": null,
              "per_s": null, "unknown": ["latency: traced"], "events": [
              ["sync_exits", { "measured": { "median": 26.0, "min": 26.0, "max": 26.0 } }] ] } } ] }
            ], "balance": ["#;
        let behind = "],\n      \"balance\": [";
        let (tables, rest) = REPORT.split_once(behind).unwrap();
        let text = format!(r#"{tables}, {{ "device": "block", "guests": 1, {real}{rest}"#);
        let report: Models = serde_json::from_str(&text).unwrap();
        let all = measurements(&report, "mine");
        let labels = |it: &Measurement| -> Vec<String> {
            let exits = it.series.iter().find(|it| it.name == "sync exits").unwrap();
            exits.points.iter().filter_map(|it| it.label.clone()).collect()
        };
        assert_eq!(labels(&all[0]), ["Elvis"]);
        assert_eq!(labels(&all[1]), ["emulation"]);
        assert_eq!(all[1].title, "mine: block, 1 real (tcg) guest, sealed, volume encrypted");
        assert_eq!(all[1].setup["chain"], "encrypt");
        assert_eq!(all[1].setup["guest"], "real (tcg) guest");
        assert_eq!(all[1].series[0].points[0].low, None, "it is counted once");
    }
}
