//! What `vrio bench models --json` prints: each of its tables is a measurement, whose names are the
//! models. Events of the columns are parts of one sum, so a picture stacks them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::own::Rounds;
use crate::result::{Axis, Empty, Measurement, Origin, Point, Series, Spread, Statistic};
use crate::unit::{Quantity, Unit};

#[derive(Deserialize)]
pub(super) struct Models {
    asked: Asked,
    tables: Vec<Table>,
    #[serde(default)]
    balance: Vec<Balance>,
    #[serde(default)]
    emulated: Vec<Emulated>,
    #[serde(default)]
    not_emulated: Vec<String>,
}

#[derive(Deserialize)]
struct Asked {
    rounds: u32,
}

#[derive(Deserialize)]
struct Table {
    device: String,
    guests: u32,
    encrypt: bool,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    name: String,
    polling_cores: PollingCores,
    figures: Option<Figures>,
    empty: Option<String>,
}

#[derive(Deserialize)]
struct PollingCores {
    vmhost: f64,
    iohost: Option<f64>,
}

#[derive(Deserialize)]
struct Figures {
    seated: bool,
    events: Vec<(String, Cell)>,
    p50_us: Rounds,
    p99_us: Rounds,
    cpu_us: Rounds,
    per_s: Rounds,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Cell {
    Measured(Rounds),
    Empty(String),
    Nobody,
}

#[derive(Deserialize)]
struct Balance {
    sidecores: String,
    load: String,
    seated: bool,
    per_s: Rounds,
    cpu_us: Rounds,
}

#[derive(Deserialize)]
struct Emulated {
    device: String,
    name: String,
    accelerator: String,
    sync_exits: f64,
    guest_interrupts: f64,
}

/// One measurement of each table.
pub(super) fn measurements(report: &Models, title: &str) -> Vec<Measurement> {
    let mut devices = Vec::new();
    let of = |table: &Table| {
        // Emulation is one more name, of the first table of its device.
        let is_first = !devices.contains(&table.device);
        devices.push(table.device.clone());
        measurement(report, table, is_first, title)
    };
    let mut all: Vec<_> = report.tables.iter().map(of).collect();
    if !report.balance.is_empty() {
        all.push(balance(report, title));
    }
    all
}

/// The same sidecores spread over hosts and pooled on one.
fn balance(report: &Models, title: &str) -> Measurement {
    let title = format!("{title}: sidecores spread and pooled");
    let mut it = Measurement::new(Origin::Measured, "balance", &title);
    it.setup.insert("rounds".to_owned(), report.asked.rounds.to_string());
    let label = |it: &Balance| format!("{}, {}", it.sidecores, it.load);
    let of = |name: &str, quantity, unit, number: fn(&Balance) -> Rounds| {
        let kinds = report.balance.iter().enumerate();
        let points = kinds.map(|(place, it)| number(it).point(place, &label(it))).collect();
        let series = Series::new(name, quantity, unit, Axis::CATEGORY);
        Series { spread: Spread::MinMax, points, ..series }
    };
    it.series = vec![
        of("depth 32", Quantity::Iops, Unit::PerS, |it| it.per_s),
        of("depth 32", Quantity::CpuPerRequest, Unit::Us, |it| it.cpu_us),
    ];
    let shared = report.balance.iter().filter(|it| !it.seated);
    let note = |it: &Balance| format!("{}: more polling threads than cores", label(it));
    it.notes = shared.map(note).collect();
    it
}

fn measurement(report: &Models, table: &Table, is_first: bool, title: &str) -> Measurement {
    let Table { device, guests, encrypt, rows } = table;
    let sealed = if *encrypt { "sealed" } else { "in clear" };
    let plural = if *guests == 1 { "" } else { "s" };
    let title = format!("{title}: {device}, {guests} guest{plural}, {sealed}");
    let mut it = Measurement::new(Origin::Measured, "models", &title);
    let setup =
        [("device", device.clone()), ("guests", guests.to_string()), ("sessions", sealed.into())];
    it.setup = setup.map(|(name, value)| (name.to_owned(), value)).into();
    it.setup.insert("rounds".to_owned(), report.asked.rounds.to_string());
    let mut events = BTreeMap::<usize, Series>::new();
    for (place, row) in rows.iter().enumerate() {
        let Some(figures) = &row.figures else {
            let why = row.empty.clone().unwrap_or_else(|| "nobody said why".to_owned());
            it.empty.push(Empty { what: row.name.clone(), why });
            continue;
        };
        for (at, (column, cell)) in figures.events.iter().enumerate() {
            let column = column.replace('_', " ");
            match cell {
                Cell::Measured(rounds) => {
                    let series = events.entry(at).or_insert_with(|| of_events(&column));
                    series.points.push(rounds.point(place, &row.name));
                }
                Cell::Empty(why) => {
                    let what = format!("{column}, {}", row.name);
                    it.empty.push(Empty { what, why: why.clone() });
                }
                Cell::Nobody => {}
            }
        }
        if !figures.seated {
            let note = "more polling threads than cores: only its events mean anything";
            it.notes.push(format!("{}: {note}", row.name));
        }
    }
    if is_first {
        add_emulation(report, table, &mut it, &mut events);
    }
    it.series.extend(events.into_values());
    it.series.extend(speeds(table));
    it
}

fn of_events(column: &str) -> Series {
    let axis = Axis::CATEGORY;
    let series = Series::new(column, Quantity::EventsPerRequest, Unit::Count, axis);
    Series { spread: Spread::MinMax, ..series }
}

/// What QEMU emulates, by its own trace events, behind all models.
fn add_emulation(
    report: &Models,
    table: &Table,
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
    let empty = |why: &String| Empty { what: "emulation".to_owned(), why: why.clone() };
    it.empty.extend(report.not_emulated.iter().map(empty));
}

/// Latency, throughput, processor time and polling cores, by model.
fn speeds(table: &Table) -> Vec<Series> {
    let measured = || {
        let rows = table.rows.iter().enumerate();
        rows.filter_map(|(place, row)| Some((place, row, row.figures.as_ref()?)))
    };
    let of = |name: &str, quantity, unit, number: fn(&Figures) -> Rounds| {
        let series = Series::new(name, quantity, unit, Axis::CATEGORY);
        let points = measured().map(|(place, row, it)| number(it).point(place, &row.name));
        Series { spread: Spread::MinMax, points: points.collect(), ..series }
    };
    let (latency, rate) = match table.device.as_str() {
        "net" => (Quantity::RoundTrip, Quantity::MessageRate),
        _ => (Quantity::Latency, Quantity::Iops),
    };
    let cores = |name: &str, number: fn(&PollingCores) -> Option<f64>| {
        let series = Series::new(name, Quantity::PollingCores, Unit::Count, Axis::CATEGORY);
        let point = |(place, row, _): (usize, &Row, &Figures)| {
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

    /// As `vrio bench models --json` prints it, without what is not read.
    const REPORT: &str = r#"{ "version": 1, "asked": { "rounds": 3 }, "machine": {},
      "tables": [ { "device": "block", "guests": 1, "encrypt": false, "rows": [
        { "name": "Elvis", "polling_cores": { "vmhost": 1, "iohost": null }, "empty": null,
          "figures": { "seated": false, "events": [
            ["sync_exits", { "measured": { "median": 0.0, "min": 0.0, "max": 0.1 } }],
            ["injections", { "empty": "no KVM" }], ["iohost_interrupts", "nobody"] ],
          "p50_us": { "median": 2, "min": 1, "max": 3 },
          "p99_us": { "median": 9, "min": 8, "max": 9 },
          "cpu_us": { "median": 2, "min": 1, "max": 3 },
          "per_s": { "median": 7, "min": 6, "max": 8 } } },
        { "name": "optimum", "polling_cores": { "vmhost": 0, "iohost": null }, "figures": null,
          "empty": "one thread asks" } ] } ],
      "balance": [ { "sidecores": "pooled", "load": "balanced", "seated": false,
        "per_s": { "median": 7, "min": 6, "max": 8 },
        "cpu_us": { "median": 2, "min": 1, "max": 3 } } ],
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
        assert_eq!(empty, ["injections, Elvis", "optimum"]);
        assert_eq!(of(Quantity::PollingCores).count(), 1, "nobody has an IOhost");
        assert_eq!(models.notes.len(), 1);
    }
}
