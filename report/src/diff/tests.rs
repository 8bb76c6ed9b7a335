//! The differences between two runs.

use results::{Machine, Point, RunOrigin};

use super::*;

/// A series whose rounds go from a tenth below each figure to a tenth above it.
fn latency(scale: f64, rounds: Option<u32>) -> Loaded {
    let mut it = Measurement::new(RunOrigin::Imported, "osu_latency", "a job");
    it.source = Some("x".to_owned());
    let ends = |y: f64| rounds.map(|_| y);
    let point = |(x, y): (f64, f64)| {
        let y = y * scale;
        Point { low: ends(y * 0.9), high: ends(y * 1.1), ..Point::new(x, y) }
    };
    let points = [(1.0, 2.0), (1024.0, 4.0)].map(point).to_vec();
    let spread = if rounds.is_some() { Spread::Rounds } else { Spread::None };
    let series = Series::new("latency", Quantity::Latency, Unit::Us, Axis::MESSAGE_SIZE);
    it.series.push(Series { spread, rounds, points, ..series });
    Loaded { run: Run::now("osu", "a job"), measurements: vec![it] }
}

fn machine(processor: &str, trip: u64) -> Machine {
    Machine {
        processor: processor.to_owned(),
        cores: 2,
        kernel: "6.1".to_owned(),
        cache_line_round_trip_ns: Some(trip),
        version: None,
        commit: None,
        optimised: Some(true),
    }
}

#[test]
fn a_change_is_told_in_percent_with_what_its_rounds_say() {
    let it = diff(&latency(1.0, Some(5)), &latency(1.5, Some(5)));
    let row = &it.series[0].rows[0];
    assert_eq!((row.a, row.b, row.percent), (2.0, 3.0, Some(50.0)));
    let [least, most] = row.percent_between.unwrap();
    assert!((least - (2.7 / 2.2 - 1.0) * 100.0).abs() < 1e-9, "{row:?}");
    assert!((most - (3.3 / 1.8 - 1.0) * 100.0).abs() < 1e-9, "{row:?}");
    assert_eq!((row.standing, row.is_better), (FigureStanding::More, Some(false)));
    let said = it.to_string();
    let words = ["1 KiB", "+50.0 %", " worse", "all 5 rounds of A and 5 of B lie apart"];
    assert!(words.iter().all(|words| said.contains(words)), "{said}");
    let near = diff(&latency(1.0, Some(5)), &latency(1.05, Some(5)));
    assert_eq!(near.series[0].rows[0].standing, FigureStanding::WithinRounds);
    assert!(near.to_string().contains("(within the rounds)"), "{near}");
}

#[test]
fn without_rounds_or_with_few_there_is_no_verdict() {
    let bare = diff(&latency(1.0, None), &latency(0.5, None));
    let row = &bare.series[0].rows[0];
    let is = (row.percent, row.percent_between, row.standing, row.is_better);
    assert_eq!(is, (Some(-50.0), None, FigureStanding::NotKnown, None));
    let said = bare.to_string();
    assert!(said.contains("no verdict: each is of one run"), "{said}");
    assert!(!said.contains("better") && !said.contains("  between"), "{said}");
    let half = diff(&latency(1.0, Some(5)), &latency(0.5, None)).to_string();
    assert!(half.contains("no verdict: B is of one run"), "{half}");
    let few = diff(&latency(1.0, Some(3)), &latency(0.5, Some(3))).to_string();
    assert!(few.contains("3 and 3 rounds of one and the same lie apart in one of 10"), "{few}");
    assert!(few.contains(" to -") && !few.contains("better"), "{few}");
    // The median and the 99th percentile say how requests differ. They say nothing about the
    // distance between runs.
    let tails = |scale| {
        let mut it = latency(scale, Some(5));
        let series = &mut it.measurements[0].series[0];
        (series.spread, series.rounds) = (Spread::P50P99, None);
        it
    };
    let row = diff(&tails(1.0), &tails(0.5)).series[0].rows[0].clone();
    assert_eq!((row.percent_between, row.standing), (None, FigureStanding::NotKnown));
}

fn disk(path: &str, title: &str) -> Measurement {
    let mut it = latency(1.0, None).measurements.remove(0);
    (it.benchmark, it.title) = ("block".to_owned(), title.to_owned());
    it.setup.insert("path".to_owned(), path.to_owned());
    it
}

#[test]
fn set_ups_of_compared_measurements_must_agree() {
    let of = |all: &[(&str, &str)]| Loaded {
        measurements: all.iter().map(|(path, title)| disk(path, title)).collect(),
        ..latency(1.0, None)
    };
    let both = of(&[("local", "x"), ("remote", "y")]);
    let it = diff(&both, &of(&[("remote", "a"), ("direct", "b")]));
    let titles: Vec<_> = it.series.iter().map(|it| it.titles.join(" ")).collect();
    assert_eq!(titles, ["y a"]);
    assert_eq!(it.apart.len(), 2, "{:?}", it.apart);
    assert_eq!(it.apart[0], "only in A: block (x; path local)");
    // A single measurement of each run is compared, and the difference is named.
    let it = diff(&of(&[("local", "x")]), &of(&[("remote", "y")]));
    assert_eq!(it.series[0].differs, ["path: local (A), remote (B)"]);
    // Of several that are alike, only titles tell the pairs.
    let it = diff(&of(&[("local", "x"), ("local", "y")]), &of(&[("local", "z"), ("local", "x")]));
    assert_eq!((it.series.len(), it.apart.len()), (2, 0), "{it:?}");
    let it = diff(&of(&[("local", "x"), ("local", "y")]), &of(&[("local", "z")]));
    assert_eq!((it.series.len(), it.apart.len()), (0, 3), "{it:?}");
}

#[test]
fn a_series_that_only_b_has_is_named_beside_others_of_its_quantity() {
    let (a, mut b) = (latency(1.0, None), latency(1.0, None));
    let tail = Series { statistic: Some(Statistic::P999), ..b.measurements[0].series[0].clone() };
    let back = Series { name: "way back".to_owned(), ..tail.clone() };
    b.measurements[0].series.extend([tail, back]);
    let it = diff(&a, &b);
    let said = [
        "only in B: latency latency, p99.9, osu_latency",
        "only in B: latency way back, p99.9, osu_latency",
    ];
    assert_eq!((it.series.len(), &it.apart[..]), (1, &said.map(str::to_owned)[..]));
}

#[test]
fn units_of_one_dimension_are_converted_and_that_is_said() {
    let mut b = latency(1.0, None);
    let series = &mut b.measurements[0].series[0];
    series.unit = Unit::Ms;
    series.points.iter_mut().for_each(|it| it.y /= 500.0);
    let it = diff(&latency(1.0, None), &b);
    assert_eq!(it.series[0].rows[0].percent, Some(100.0));
    assert_eq!(it.series[0].differs, ["unit: Us and Ms, converted"]);
}

#[test]
fn another_machine_or_level_or_set_up_is_said() {
    let (mut a, mut b) = (latency(1.0, None), latency(1.0, None));
    assert_eq!(diff(&a, &b).differs, ["machine: the machine of A, B is not known"]);
    a.run.machine = Some(machine("one", 46));
    assert!(diff(&a, &b).differs[0].contains("the machine of B is not known"));
    b.run.machine = Some(machine("another", 105));
    b.measurements[0].setup.insert("mpi".to_owned(), "MPICH".to_owned());
    b.measurements[0].cache_line_round_trips_ns = vec![105];
    a.measurements[0].cache_line_round_trips_ns = vec![46];
    let it = diff(&a, &b);
    assert_eq!(it.differs[0], "processor: one (A), another (B)");
    assert!(it.differs[1].contains("took 46 ns (A) and 105 ns (B)"), "{it:?}");
    let differs = &it.series[0].differs;
    assert!(differs[0].contains("took 46 ns (A) and 105 ns (B)"), "{differs:?}");
    assert_eq!(differs[1], "mpi: not told (A), MPICH (B)");
    b.run.machine = Some(machine("one", 60));
    assert!(diff(&a, &b).differs.is_empty());
}

#[test]
fn a_mean_is_not_compared_with_a_median() {
    let (mut a, mut b) = (latency(1.0, None), latency(1.0, None));
    a.measurements[0].series[0].statistic = Some(Statistic::Mean);
    b.measurements[0].series[0].statistic = Some(Statistic::Median);
    let it = diff(&a, &b);
    assert!(it.series.is_empty(), "{it:?}");
    let said = "not compared: latency latency, osu_latency, is mean in A and median in B";
    assert_eq!(it.apart, [said]);
}

#[test]
fn series_of_one_run_alone_are_named() {
    let (a, mut b) = (latency(1.0, None), latency(1.0, None));
    b.measurements[0].series[0].points.pop();
    b.measurements.push(Measurement::new(RunOrigin::Measured, "block", "a disk"));
    let it = diff(&a, &b);
    assert_eq!((it.series[0].rows.len(), it.series[0].alone), (1, 1));
    assert_eq!(it.apart, ["only in B: block (a disk)"]);
    let nothing = diff(&a, &Loaded { measurements: Vec::new(), ..b });
    assert_eq!(nothing.apart, ["only in A: osu_latency (a job)"]);
}

#[test]
fn nothing_is_divided_by_nothing() {
    let mut a = latency(1.0, None);
    a.measurements[0].series[0].points[0].y = 0.0;
    let row = diff(&a, &latency(1.0, None)).series[0].rows[0].clone();
    assert_eq!((row.percent, row.is_better), (None, None));
    let mut a = latency(1.0, Some(5));
    let first = &mut a.measurements[0].series[0].points[0];
    (first.low, first.y, first.high) = (Some(0.0), 0.0, Some(0.0));
    let row = diff(&a, &latency(1.0, Some(5))).series[0].rows[0].clone();
    let is = (row.percent, row.percent_between, row.standing, row.is_better);
    assert_eq!(is, (None, None, FigureStanding::More, Some(false)), "more than nothing");
}

#[test]
fn places_and_numbers_are_short() {
    let of = |x| place(Axis::MESSAGE_SIZE, x, None);
    assert_eq!([1.0, 1500.0, 4096.0, 3_145_728.0].map(of), ["1 B", "1500 B", "4 KiB", "3 MiB"]);
    assert_eq!(place(Axis::QUEUE_DEPTH, 8.0, None), "8");
    assert_eq!(place(Axis::CATEGORY, 0.0, Some("kicks")), "kicks");
    let shown = [0.0, 0.5, 12.34, 123.4, 12_345.0, 3.8e9].map(short);
    assert_eq!(shown, ["0", "0.50", "12.3", "123", "12.3k", "3.80G"]);
}

#[test]
fn the_same_by_another_program_is_compared_and_that_is_said() {
    let (mut osu, mut mpi) = (latency(1.0, None), latency(2.0, None));
    mpi.measurements[0].benchmark = "mpi_latency".to_owned();
    let it = diff(&osu, &mpi);
    assert_eq!(it.series[0].differs, ["benchmark: osu_latency (A), mpi_latency (B)"]);
    assert_eq!(it.series[0].rows[0].percent, Some(100.0));
    osu.measurements[0].benchmark = "osu_alltoall".to_owned();
    assert!(diff(&osu, &mpi).series.is_empty());
    // Versions of one program differ, and its measurements are compared all the same.
    let of = |version: &str| {
        let mut both = latency(1.0, None);
        let mut bandwidth = both.measurements[0].clone();
        bandwidth.setup.insert("way".to_owned(), "both".to_owned());
        both.measurements.push(bandwidth);
        for it in &mut both.measurements {
            it.setup.insert("version".to_owned(), version.to_owned());
        }
        both
    };
    let it = diff(&of("1"), &of("2"));
    assert_eq!((it.series.len(), it.apart.len()), (2, 0));
    assert_eq!(it.series[0].differs, ["version: 1 (A), 2 (B)"]);
}

#[test]
fn one_of_many_contestants_is_compared_with_an_osu_program() {
    let osu = latency(1.0, None);
    let mut mpi = latency(2.0, None);
    let one = mpi.measurements.remove(0);
    for contestant in ["vrio", "its own TCP"] {
        let mut it = one.clone();
        (it.benchmark, it.title) = ("mpi_latency".to_owned(), format!("{contestant}, one host"));
        it.setup.insert("contestant".to_owned(), contestant.to_owned());
        mpi.measurements.push(it);
    }
    assert!(diff(&osu, &mpi).series.is_empty(), "nobody says whose it is to be");
    assert!(narrow(&mut mpi, "Vrio, One"));
    let it = diff(&osu, &mpi);
    assert_eq!((it.series.len(), it.apart.len()), (1, 0));
    assert!(!narrow(&mut mpi, "nobody") && mpi.measurements.len() == 1);
}
