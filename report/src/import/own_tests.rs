//! Tests on real output of `vrio bench`, for each of its benchmarks (`tests/data/README.md`).

use results::{Quantity, Series, Spread, Statistic, Unit};
use serde_json::Value;

use super::*;
use crate::compare;

fn read(name: &str) -> (Vec<Measurement>, Value) {
    let text = tests::text(name);
    (import(name, &text).unwrap(), serde_json::from_str(&text).unwrap())
}

/// The measurement of a benchmark whose contestant has these letters in its name.
fn of<'a>(all: &'a [Measurement], benchmark: &str, contestant: &str) -> &'a Measurement {
    let is_it = |it: &&Measurement| {
        it.benchmark == benchmark && it.setup["contestant"].contains(contestant)
    };
    let mut found = all.iter().filter(is_it);
    let one = found.next().unwrap_or_else(|| panic!("{benchmark} of {contestant}: {all:?}"));
    assert!(found.next().is_none(), "{benchmark} of {contestant} is there twice");
    one
}

fn series(it: &Measurement, quantity: Quantity, statistic: Option<Statistic>) -> &Series {
    let is_it = |it: &&Series| (it.quantity, it.statistic) == (quantity, statistic);
    it.series.iter().find(is_it).unwrap_or_else(|| panic!("no {quantity:?} in {it:?}"))
}

/// A row of a report, by its case and the name of our opponent.
fn row<'a>(report: &'a Value, case: &str, theirs: &str) -> &'a Value {
    let rows = report["contests"].as_array().unwrap().iter();
    let mut rows = rows.flat_map(|contest| contest["rows"].as_array().unwrap());
    let is_it = |row: &&Value| row["case"] == case && row["theirs"] == theirs;
    rows.find(is_it).unwrap_or_else(|| panic!("no {case} of {theirs}"))
}

#[test]
fn messages_of_mpi_stand_beside_those_of_the_osu_benchmarks() {
    let (all, report) = read("vrio-mpi.json");
    let tcp = "libfabric tcp (net)";
    let latency = of(&all, "mpi_latency", tcp);
    let mean = series(latency, Quantity::Latency, Some(Statistic::Mean));
    let places: Vec<_> = mean.points.iter().map(|point| point.x).collect();
    assert_eq!(places, [8.0, 1024.0, 8192.0, 65_536.0, 1_048_576.0]);
    // The rate is of messages one way, as is the time that OSU's program prints.
    let rate = row(&report, "latency 8 B", tcp)["their_rate"]["median"].as_f64().unwrap();
    assert_eq!(mean.points[0].y, 1e6 / rate);
    assert_eq!((mean.spread, mean.rounds), (Spread::Rounds, Some(2)));
    for (point, size) in mean.points.iter().zip(["8 B", "1 KiB", "8 KiB", "64 KiB", "1 MiB"]) {
        // Where cores moved, one round was left, which has no spread.
        let rounds = row(&report, &format!("latency {size}"), tcp)["rounds"].as_u64().unwrap();
        assert_eq!((point.low.is_some(), point.high.is_some()), (rounds > 1, rounds > 1));
        assert!(point.low.is_none_or(|low| low <= point.y));
        assert!(point.high.is_none_or(|high| high >= point.y));
    }
    let median = series(latency, Quantity::Latency, Some(Statistic::Median));
    let p50 = row(&report, "latency 8 B", tcp)["their_p50_us"]["median"].as_f64().unwrap();
    assert_eq!(median.points[0].y, p50);
    let ours = of(&all, "mpi_bandwidth", "vrio");
    let bandwidth = series(ours, Quantity::Bandwidth, Some(Statistic::Mean));
    assert_eq!((bandwidth.unit, ours.series.len()), (Unit::MbPerS, 1), "and no times of windows");
    let expected = [("hosts", "one host"), ("mpi", "Open MPI"), ("version", "4.1.4")];
    for (key, value) in expected {
        assert_eq!(ours.setup[key], value);
    }
    for benchmark in
        ["mpi_bidirectional_bandwidth", "mpi_message_rate", "mpi_alltoall", "mpi_allreduce"]
    {
        of(&all, benchmark, "vrio");
    }
    assert!(all.iter().all(|it| it.empty.iter().all(|empty| empty.why.len() < 1000)));
    // So the two are compared where both have a size.
    let osu = &read_osu("osu-7.4-latency.txt");
    let theirs = compare::partner(osu, &osu.series[0], latency).unwrap();
    let changes = compare::changes(&osu.series[0], &latency.series[theirs]).unwrap();
    assert_eq!(changes.len(), 5, "{changes:?}");
}

fn read_osu(name: &str) -> Measurement {
    import(name, &tests::text(name)).unwrap().remove(0)
}

#[test]
fn contests_of_cards_are_of_frames_and_of_the_way_there_and_back() {
    let (all, report) = read("vrio-compare-net.json");
    let taps = "tap and bridge";
    let ways: Vec<_> = all.iter().filter(|it| it.setup["contestant"].contains(taps)).collect();
    let ops: Vec<_> = ways.iter().map(|it| it.setup["op"].as_str()).collect();
    assert_eq!(ops, ["forward", "bounce"]);
    assert!(all.iter().all(|it| it.benchmark == "net" && it.setup.contains_key("contest")));
    let frames = series(ways[0], Quantity::MessageRate, None);
    let places: Vec<_> = frames.points.iter().map(|point| point.x).collect();
    assert_eq!(places, [64.0, 1500.0, 65_536.0]);
    let there_and_back = series(ways[1], Quantity::RoundTrip, Some(Statistic::Median));
    let name = ways[1].setup["contestant"].as_str();
    let p50 = row(&report, "64 B there and back", name)["their_p50_us"]["median"].as_f64();
    assert_eq!(Some(there_and_back.points[0].y), p50);
    assert!(all.iter().flat_map(|it| &it.series).all(|it| it.quantity != Quantity::Latency));
    // The measurement was made on a busy machine, and a note says so.
    assert!(ways[0].notes[0].contains("others had the driver's core"), "{:?}", ways[0].notes);
    // The reasons were logs of thousands of letters.
    let why = &all[0].empty[0].why;
    assert!(why.len() < 1000 && why.contains("Cannot init EAL"), "{why}");
}

#[test]
fn contests_of_disks_are_as_what_one_disk_alone_prints() {
    let (all, report) = read("vrio-compare-block.json");
    let row = &report["contests"][0]["rows"][0];
    let ours = of(&all, "block", row["ours"].as_str().unwrap());
    let alone = &read("vrio-block.json").0[0];
    assert_eq!(ours.setup["op"], alone.setup["op"]);
    assert_eq!(ours.setup["size_bytes"], alone.setup["size_bytes"]);
    for (quantity, statistic) in [
        (Quantity::Iops, None),
        (Quantity::Bandwidth, None),
        (Quantity::Latency, Some(Statistic::Median)),
        (Quantity::Latency, Some(Statistic::P99)),
    ] {
        let series = series(ours, quantity, statistic);
        let at = compare::partner(alone, series_of(alone, series), ours);
        assert_eq!(at.map(|at| &ours.series[at]), Some(series), "{quantity:?}");
        assert_eq!(series.points[0].x, 1.0);
    }
    let rate = row["our_rate"]["median"].as_f64().unwrap();
    assert_eq!(series(ours, Quantity::Iops, None).points[0].y, rate);
    assert_eq!(series(ours, Quantity::Bandwidth, None).points[0].y, rate * 4096.0);
}

fn series_of<'a>(it: &'a Measurement, like: &Series) -> &'a Series {
    it.series.iter().find(|it| compare::are_alike(it, like)).unwrap()
}

/// A case has no figures if the cores moved in each round, or if most of its time was waiting.
#[test]
fn what_a_comparison_itself_refuses_has_no_figure() {
    let text = tests::text("vrio-mpi.json");
    let mut report: Value = serde_json::from_str(&text).unwrap();
    let rows = report["contests"][0]["rows"].as_array_mut().unwrap();
    for row in rows {
        if row["case"] == "latency 8 B" {
            row["moved"] = true.into();
        } else if row["case"] == "latency 1 KiB" {
            row["waited_share"] = 0.9.into();
        }
    }
    let all = import("x.json", &report.to_string()).unwrap();
    let ours = of(&all, "mpi_latency", "vrio");
    let places: Vec<_> = ours.series[0].points.iter().map(|point| point.x).collect();
    assert_eq!(places, [8192.0, 65_536.0, 1_048_576.0]);
    let said: Vec<_> = ours.empty.iter().map(|it| (it.what.as_str(), it.why.as_str())).collect();
    let why = "the cores moved in every round, so its figures are of no level";
    assert_eq!(said[0], ("latency 8 B", why));
    assert_eq!(said[1], ("latency 1 KiB", "frames were lost that somebody waited for"));
}

/// One round is no spread, and a case that is not known keeps its name.
#[test]
fn one_round_has_no_spread_and_an_unknown_case_its_name() {
    let text = tests::text("vrio-mpi.json");
    let one = text.replace("\"rounds\": 2", "\"rounds\": 1").replace("latency 8 B", "a new thing");
    let all = import("x.json", &one).unwrap();
    assert!(all.iter().flat_map(|it| &it.series).all(|it| it.spread == Spread::None));
    let new = of(&all, "compare", "vrio");
    assert_eq!(new.series[0].points[0].label.as_deref(), Some("a new thing"));
}

#[test]
fn models_have_speeds_where_each_thread_had_a_core() {
    let (all, report) = read("vrio-models.json");
    let tables = report["tables"].as_array().unwrap();
    assert_eq!(all.len(), tables.len());
    for (it, table) in all.iter().zip(tables) {
        assert_eq!(it.setup["seconds"], "0.1");
        assert_eq!(it.setup.get("volume").map(String::as_str) == Some("null"), {
            table["device"] == "block"
        });
        let rows = table["rows"].as_array().unwrap();
        let named = |is_it: &dyn Fn(&Value) -> bool| -> Vec<&str> {
            let rows = rows.iter().filter(|row| is_it(&row["figures"]));
            rows.map(|row| row["name"].as_str().unwrap()).collect()
        };
        let labels = |quantity| -> Vec<&str> {
            let found = it.series.iter().filter(|it| it.quantity == quantity);
            found.flat_map(|it| &it.points).filter_map(|it| it.label.as_deref()).collect()
        };
        let seated = named(&|figures| figures["seated"] == true);
        assert!(seated.len() < named(&|figures| figures.is_object()).len(), "{seated:?}");
        assert_eq!(labels(Quantity::CpuPerRequest), seated);
        let cores = it.series.iter().find(|it| it.quantity == Quantity::PollingCores).unwrap();
        assert_eq!(cores.points.len(), named(&|figures| figures.is_object()).len());
        let events = it.series.iter().find(|it| it.quantity == Quantity::EventsPerRequest);
        assert_eq!(events.unwrap().rounds, Some(2));
        let said = it.empty.iter().filter(|it| it.why == "more polling threads than cores");
        assert!(said.count() > 0);
    }
}

#[test]
fn connections_are_counted_by_pattern_and_transport() {
    let (all, report) = read("vrio-connections.json");
    let lines = report["lines"].as_array().unwrap();
    let [it] = &all[..] else { panic!("{all:?}") };
    assert_eq!((it.benchmark.as_str(), it.setup["hosts"].as_str()), ("connections", "4"));
    let [process, host] = &it.series[..] else { panic!("{it:?}") };
    assert_eq!((process.points.len(), host.points.len()), (lines.len(), lines.len()));
    assert_eq!(process.points[0].label.as_deref(), Some("all-to-all, RC"));
    assert_eq!(host.points[0].y, lines[0]["per_host"].as_f64().unwrap());
}
