//! The models as results: each table is a measurement, whose names are the models. Events of the
//! columns are parts of one sum, so a picture stacks them.

use std::collections::BTreeMap;

use results::{Axis, Empty, Measurement, Point, Quantity, Series, Statistic, Unit};
use serde_json::Value;

use super::balance::Balance;
use super::cell::{Cell, Column, ModelFigures};
use super::model::{GuestDevice, Model, PollingCores};
use super::options::Setting;
use super::report::ModelsReport;
use super::table::{ModelRow, ModelTable};
use crate::figures::{BenchReport, NO_SEATS, measured, named_point_of, of_rounds, reason, word_of};
use crate::verdict::Spread;
use testbed::machine::Machine;

impl BenchReport for ModelsReport {
    /// A measurement of each table, and one of the sidecores that are spread and pooled.
    fn measurements(&self, title: &str) -> Vec<Measurement> {
        let mut devices = Vec::new();
        let has_real = self.tables.iter().any(|table| table.setting.real_guest.is_some());
        let of = |table: &ModelTable| {
            // Emulation is one more name in the first table of its device, or a row among real
            // guests.
            let device = table.setting.device;
            let is_first = !devices.contains(&device) && !has_real;
            devices.push(device);
            measurement(self, table, is_first, title)
        };
        let mut all: Vec<_> = self.tables.iter().map(of).collect();
        if !self.balance.is_empty() {
            all.push(balance(self, title));
        }
        all
    }

    fn machine(&self) -> &Machine {
        &self.machine
    }
}

/// A measurement without figures, with the options that hold for all of it. Lists are options of
/// several tables.
fn of_all(report: &ModelsReport, benchmark: &str, title: &str) -> Measurement {
    let options = serde_json::to_value(&report.asked).expect("plain data");
    let is_of_parts =
        |name: &str, value: &Value| name == "guest" || value.is_array() || value.is_object();
    let options = options.as_object().into_iter().flatten();
    let options: BTreeMap<&String, &Value> =
        options.filter(|(name, value)| !is_of_parts(name, value)).collect();
    measured(benchmark, title, &options, &[])
}

/// The same sidecores, spread over hosts and pooled on one host.
fn balance(report: &ModelsReport, title: &str) -> Measurement {
    let title = format!("{title}: sidecores spread and pooled");
    let mut it = of_all(report, "balance", &title);
    let label = |it: &Balance| format!("{}, {}", word_of(&it.sidecores), word_of(&it.load));
    let of = |quantity, unit, number: fn(&Balance) -> Option<Spread>| {
        let kinds = report.balance.iter().enumerate().filter(|(_, it)| it.seated);
        let point =
            |(place, it): (usize, &Balance)| Some(named_point_of(number(it)?, place, &label(it)));
        let series = Series::new("depth 32", quantity, unit, Axis::CATEGORY);
        let points = kinds.filter_map(point).collect();
        of_rounds(Series { points, ..series }, rounds(report))
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

fn rounds(report: &ModelsReport) -> usize {
    usize::from(report.asked.rounds)
}

fn measurement(
    report: &ModelsReport,
    table: &ModelTable,
    is_first: bool,
    title: &str,
) -> Measurement {
    let Setting { device, guests, encrypt, stage, real_guest, .. } = table.setting;
    let sealed = if encrypt { "sealed" } else { "in clear" };
    let plural = if guests == 1 { "" } else { "s" };
    let coded = if stage { ", volume encrypted" } else { "" };
    let kind = real_guest.map_or_else(String::new, |how| format!("real ({how}) "));
    let device_word = word_of(&device);
    let title = format!("{title}: {device_word}, {guests} {kind}guest{plural}, {sealed}{coded}");
    let mut it = of_all(report, "models", &title);
    let guest = real_guest.map_or_else(|| "stand-in".to_owned(), |_| format!("{kind}guest"));
    let setup = [
        ("device", device_word),
        ("guests", guests.to_string()),
        ("sessions", sealed.to_owned()),
        ("guest", guest),
    ];
    it.setup.extend(setup.map(|(name, value)| (name.to_owned(), value)));
    if stage {
        it.setup.insert("chain".to_owned(), "encrypt".to_owned());
    }
    if device == GuestDevice::Net {
        // A network card has no volume.
        it.setup.remove("volume");
    }
    let mut events = BTreeMap::<usize, Series>::new();
    for (place, row) in table.rows.iter().enumerate() {
        match &row.figures {
            Some(figures) => add_row(&mut it, &mut events, place, row, figures),
            None => {
                let why = row.empty.as_deref().map_or("no reason was given".to_owned(), reason);
                it.empty.push(Empty { what: row.name.to_owned(), why });
            }
        }
    }
    if is_first {
        add_emulation(report, table, &mut it, &mut events);
    }
    it.series.extend(events.into_values().map(|series| of_rounds(series, rounds(report))));
    it.series.extend(speeds(table, rounds(report)));
    it
}

/// Adds the events of a row to the series of their columns, and the reasons for what is missing.
fn add_row(
    it: &mut Measurement,
    events: &mut BTreeMap<usize, Series>,
    place: usize,
    row: &ModelRow,
    figures: &ModelFigures,
) {
    for (at, (column, cell)) in figures.events.iter().enumerate() {
        match cell {
            Cell::Measured(rounds) => {
                let series = events.entry(at).or_insert_with(|| of_events(&name(*column)));
                let point = named_point_of(*rounds, place, row.name);
                series.points.push(match row.model == Model::Emulation {
                    // Emulation is counted once, in any number of rounds.
                    true => Point { low: None, high: None, ..point },
                    false => point,
                });
            }
            Cell::Empty(why) => {
                let what = format!("{}, {}", name(*column), row.name);
                it.empty.push(Empty { what, why: reason(why) });
            }
            Cell::Nobody => {}
        }
    }
    let unknown = figures.unknown.iter();
    it.empty.extend(unknown.map(|why| Empty { what: row.name.to_owned(), why: reason(why) }));
    if !figures.seated {
        let what = format!("latency, throughput and processor time, {}", row.name);
        it.empty.push(Empty { what, why: NO_SEATS.to_owned() });
    }
}

/// The name of a column's series.
fn name(column: Column) -> String {
    word_of(&column).replace('_', " ")
}

fn of_events(column: &str) -> Series {
    Series::new(column, Quantity::EventsPerRequest, Unit::Count, Axis::CATEGORY)
}

/// The events of QEMU's emulation, from its own trace events, behind all models.
fn add_emulation(
    report: &ModelsReport,
    table: &ModelTable,
    it: &mut Measurement,
    events: &mut BTreeMap<usize, Series>,
) {
    let place = table.rows.len();
    for one in report.emulated.iter().filter(|one| one.device == table.setting.device) {
        let label = format!("emulation, {} ({})", one.name, one.accelerator);
        let figures =
            [(Column::SyncExits, one.sync_exits), (Column::GuestInterrupts, one.guest_interrupts)];
        for (at, (column, y)) in figures.into_iter().enumerate() {
            let series = events.entry(at).or_insert_with(|| of_events(&name(column)));
            series.points.push(Point::of_category(place, &label, y));
        }
    }
    let empty = |why: &String| Empty { what: "emulation".to_owned(), why: reason(why) };
    it.empty.extend(report.not_emulated.iter().map(empty));
}

/// Latency, throughput and processor time of models whose threads had a core each, and the polling
/// cores of all models.
fn speeds(table: &ModelTable, rounds: usize) -> Vec<Series> {
    let measured = || {
        let rows = table.rows.iter().enumerate();
        rows.filter_map(|(place, row)| Some((place, row, row.figures.as_ref()?)))
    };
    let of = |name: &str, quantity, unit, number: fn(&ModelFigures) -> Option<Spread>| {
        let series = Series::new(name, quantity, unit, Axis::CATEGORY);
        let seated = measured().filter(|(.., it)| it.seated);
        let point = |(place, row, it): (usize, &ModelRow, &ModelFigures)| {
            Some(named_point_of(number(it)?, place, row.name))
        };
        let points = seated.filter_map(point).collect();
        of_rounds(Series { points, ..series }, rounds)
    };
    let (latency, rate) = match table.setting.device {
        GuestDevice::Net => (Quantity::RoundTrip, Quantity::MessageRate),
        GuestDevice::Block => (Quantity::Latency, Quantity::Iops),
    };
    let cores = |name: &str, number: fn(&PollingCores) -> Option<u16>| {
        let series = Series::new(name, Quantity::PollingCores, Unit::Count, Axis::CATEGORY);
        let point = |(place, row, _): (usize, &ModelRow, &ModelFigures)| {
            let y = f64::from(number(&row.polling_cores)?);
            Some(Point::of_category(place, row.name, y))
        };
        Series { points: measured().filter_map(point).collect(), ..series }
    };
    let statistic = |series, statistic| Series { statistic: Some(statistic), ..series };
    let mut all = vec![
        statistic(of("median, depth 1", latency, Unit::Us, |it| it.p50_us), Statistic::Median),
        statistic(of("p99, depth 1", latency, Unit::Us, |it| it.p99_us), Statistic::P99),
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
    use super::super::balance::{Load, Sidecores};
    use super::super::cell::tests::sample;
    use super::super::cell::{Count, ModelSample, figures};
    use super::super::emulated::Emulated;
    use super::super::options::ModelsOptions;
    use super::super::options::tests::options;
    use super::super::report::MODELS_VERSION;
    use super::*;
    use crate::block::Volume;

    fn row(model: Model, figures: Option<ModelFigures>, empty: Option<&str>) -> ModelRow {
        let polling_cores = model.polling_cores();
        ModelRow {
            model,
            name: model.name(),
            polling_cores,
            figures,
            empty: empty.map(str::to_owned),
        }
    }

    /// A row that has counted so many exits, and no injections.
    fn counted(model: Model, exits: [f64; 2], seated: bool) -> ModelRow {
        let nobody = Count::Nobody;
        let counts = |exits| [Count::Of(exits), nobody, Count::Empty("no KVM"), nobody, nobody];
        row(model, Some(figures(&exits.map(|exits| sample(counts(exits))), seated)), None)
    }

    fn report(tables: Vec<ModelTable>, balance: Vec<Balance>) -> ModelsReport {
        let emulated = Emulated {
            device: GuestDevice::Block,
            name: "ide",
            accelerator: "tcg",
            requests: 9,
            sync_exits: 26.0,
            by_region: BTreeMap::new(),
            guest_interrupts: 1.0,
        };
        ModelsReport {
            version: MODELS_VERSION,
            asked: ModelsOptions { rounds: 2, volume: Volume::Null, guest: true, ..options() },
            tables,
            balance,
            emulated: vec![emulated],
            not_emulated: Vec::new(),
            goals: Vec::new(),
            explained: Vec::new(),
            machine: Machine::look(),
        }
    }

    fn labels(it: &Measurement, quantity: Quantity) -> Vec<&str> {
        let found = it.series.iter().find(|series| series.quantity == quantity);
        found.into_iter().flat_map(|it| &it.points).filter_map(|it| it.label.as_deref()).collect()
    }

    fn reasons(it: &Measurement) -> Vec<String> {
        it.empty.iter().map(|it| format!("{}: {}", it.what, it.why)).collect()
    }

    #[test]
    fn a_measured_cell_is_a_figure_and_another_cell_has_its_reason() {
        let samples =
            [ModelSample { many: Err("it waited".to_owned()), ..sample([Count::Nobody; 5]) }];
        let rows = vec![
            counted(Model::Elvis, [0.0, 0.1], false),
            row(Model::Baseline, Some(figures(&samples, true)), None),
            row(Model::Optimum, None, Some("one thread asks")),
        ];
        let table = ModelTable { setting: Setting::of(GuestDevice::Block, 1), rows };
        let of_balance = |sidecores, empty: Option<&str>| Balance {
            sidecores,
            load: Load::Balanced,
            busy: [4, 4],
            seated: false,
            per_s: Some(Spread::of([7.0])),
            cpu_us: None,
            empty: empty.map(str::to_owned),
        };
        let spread = of_balance(Sidecores::Spread, Some("its node died"));
        let balance = vec![of_balance(Sidecores::Pooled, None), spread];
        let all = report(vec![table], balance).measurements("mine");
        let [models, balance] = &all[..] else { panic!("{all:?}") };
        models.check().unwrap();
        balance.check().unwrap();
        let emulation = "emulation, ide (tcg)";
        assert_eq!(labels(models, Quantity::EventsPerRequest), ["Elvis", emulation]);
        let events: Vec<_> =
            models.series.iter().filter(|it| it.quantity == Quantity::EventsPerRequest).collect();
        assert_eq!(
            (events[0].name.as_str(), events[1].name.as_str()),
            ("sync exits", "guest interrupts")
        );
        assert_eq!((events[0].points[0].high, events[0].points[1].y), (Some(0.1), 26.0));
        assert_eq!(events[0].rounds, Some(2));
        let expected = [
            "injections, Elvis: no KVM",
            "latency, throughput and processor time, Elvis: more polling threads than cores",
            "baseline: throughput: it waited",
            "optimum: one thread asks",
        ];
        assert_eq!(reasons(models), expected);
        // Threads that shared cores give events only.
        assert_eq!(labels(models, Quantity::Latency), ["baseline"]);
        assert_eq!(labels(models, Quantity::Iops), [""; 0]);
        assert_eq!(labels(models, Quantity::PollingCores), ["Elvis", "baseline"]);
        let why = "pooled, balanced: more polling threads than cores";
        assert_eq!(reasons(balance), [why, "spread, balanced: its node died"]);
        assert!(balance.series.is_empty());
        let setup: Vec<_> = balance.setup.iter().map(|(key, it)| format!("{key} {it}")).collect();
        assert_eq!(setup, ["rounds 2", "seconds 0.1", "volume null"]);
        assert_eq!(models.title, "mine: block, 1 guest, in clear");
        assert_eq!(
            (models.setup["device"].as_str(), models.setup["guest"].as_str()),
            ("block", "stand-in")
        );
    }

    #[test]
    fn a_real_guests_table_has_its_own_row_of_emulation() {
        let setting = Setting::of(GuestDevice::Block, 1);
        let alone = ModelTable { setting, rows: vec![counted(Model::Elvis, [1.0, 1.0], true)] };
        let setting = Setting { encrypt: true, stage: true, real_guest: Some("tcg"), ..setting };
        let rows = vec![counted(Model::Emulation, [26.0, 26.0], true)];
        let all =
            report(vec![alone, ModelTable { setting, rows }], Vec::new()).measurements("mine");
        assert_eq!(labels(&all[0], Quantity::EventsPerRequest), ["Elvis"]);
        assert_eq!(labels(&all[1], Quantity::EventsPerRequest), ["emulation"]);
        assert_eq!(all[1].title, "mine: block, 1 real (tcg) guest, sealed, volume encrypted");
        assert_eq!(all[1].setup["chain"], "encrypt");
        assert_eq!(all[1].setup["guest"], "real (tcg) guest");
        assert_eq!(all[1].series[0].points[0].low, None, "it is counted once");
    }

    #[test]
    fn a_card_has_no_volume_and_its_times_are_there_and_back() {
        let rows = vec![counted(Model::Elvis, [1.0, 1.0], true)];
        let table = ModelTable { setting: Setting::of(GuestDevice::Net, 2), rows };
        let it = &report(vec![table], Vec::new()).measurements("mine")[0];
        assert!(!it.setup.contains_key("volume"), "{:?}", it.setup);
        assert_eq!(labels(it, Quantity::RoundTrip), ["Elvis"]);
        assert_eq!(labels(it, Quantity::MessageRate), ["Elvis"]);
    }
}
