//! Differences, and their size.

use results::{Axis, Quantity, RunOrigin, Statistic, Unit};

use super::*;

fn run(processor: &str, trip_ns: u64) -> Run {
    let machine = Machine {
        processor: processor.to_owned(),
        cores: 2,
        kernel: "6.1".to_owned(),
        cache_line_round_trip_ns: Some(trip_ns),
        version: Some("0.1.0".to_owned()),
        commit: Some("abc".to_owned()),
        optimised: Some(true),
    };
    Run { machine: Some(machine), ..Run::now("block", "a disk") }
}

fn side<'a>(name: &'a str, run: &'a Run) -> ComparedSide<'a> {
    ComparedSide { name, run: Some(run), measurement: None }
}

#[test]
fn only_differences_are_named_with_their_runs() {
    let (one, mut two) = (run("x", 46), run("x", 50));
    assert!(differences(&[]).is_empty());
    assert!(differences(&[side("A", &one), side("B", &two), side("C", &one)]).is_empty());
    let machine = two.machine.as_mut().unwrap();
    (machine.kernel, machine.commit) = ("6.12".to_owned(), None);
    machine.cache_line_round_trip_ns = Some(460);
    machine.optimised = Some(false);
    two.tools.insert("qemu".to_owned(), "10".to_owned());
    let expected = [
        "kernel: 6.1 (A), 6.12 (B)",
        "commit: abc (A), not told (B)",
        "build: B was measured without optimisation",
        "level: a cache line's round trip took 46 ns (A) and 460 ns (B), for which alone \
         latencies differ",
    ];
    assert_eq!(differences(&[side("A", &one), side("B", &two)]), expected);
    two.machine = None;
    let unknown = "machine: the machine of B is not known";
    assert_eq!(differences(&[side("A", &one), side("B", &two)]), [unknown]);
    assert!(differences(&[side("B", &two)]).is_empty(), "one alone differs from nobody");
}

#[test]
fn tools_differ_where_both_had_them() {
    let (mut one, mut two) = (run("x", 46), run("x", 46));
    one.tools = [("fio".to_owned(), "3.33".to_owned()), ("qemu".to_owned(), "7".to_owned())].into();
    two.tools = [("fio".to_owned(), "3.39".to_owned())].into();
    let found = differences(&[side("A", &one), side("B", &two)]);
    assert_eq!(found, ["fio: 3.33 (A), 3.39 (B)"]);
}

#[test]
fn set_ups_and_levels_of_measurements_are_looked_at() {
    let run = run("x", 46);
    let of = |volume: &str, trips: &[u64]| {
        let mut it = Measurement::new(RunOrigin::Measured, "block", "a disk");
        it.setup.insert("volume".to_owned(), volume.to_owned());
        it.cache_line_round_trips_ns = trips.to_vec();
        it
    };
    let (one, two, three) = (of("null", &[46]), of("direct:/x", &[50]), of("null", &[45, 110]));
    let side = |name, it| ComparedSide { name, run: Some(&run), measurement: Some(it) };
    let found = differences(&[side("A", &one), side("B", &two)]);
    assert_eq!(found, ["volume: null (A), direct:/x (B)"]);
    // Cores that moved make two levels in one measurement.
    let found = differences(&[side("C", &three)]);
    assert!(found[0].contains("45 to 110 ns (C)"), "{found:?}");
}

#[test]
fn reported_strangers_are_bounded() {
    let runs: Vec<Run> =
        (0..20).map(|at| run(&format!("{}{}", "x".repeat(200), at % 10), 46)).collect();
    let names: Vec<String> = (0..20).map(|at| format!("run {at}")).collect();
    let sides: Vec<ComparedSide<'_>> =
        names.iter().zip(&runs).map(|(name, run)| side(name, run)).collect();
    let found = differences(&sides);
    assert_eq!(found.len(), 1);
    assert!(found[0].ends_with(", 4 more") && found[0].len() < 1000, "{found:?}");
    let ten: Vec<ComparedSide<'_>> = names
        .iter()
        .zip(runs.iter().cycle().step_by(10))
        .map(|(name, run)| side(name, run))
        .collect();
    assert!(differences(&ten).is_empty());
    let mut one = Measurement::new(RunOrigin::Measured, "block", "a disk");
    let two = one.clone();
    one.setup = (0..100).map(|at| (format!("key {at}"), "on".to_owned())).collect();
    let side = |name, it| ComparedSide { name, run: None, measurement: Some(it) };
    let found = differences(&[side("A", &one), side("B", &two)]);
    assert_eq!(found.len(), DIFFERENCES_MAX + 1);
    assert_eq!(found.last().unwrap(), "and 60 things more");
}

fn series(points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    let points = points.into_iter().map(|(x, y)| Point::new(x, y)).collect();
    let series = Series::new("latency", Quantity::Latency, Unit::Us, Axis::MESSAGE_SIZE);
    Series { points, ..series }
}

#[test]
fn places_that_both_have_are_compared_in_the_units_of_the_first() {
    let base = series([(1.0, 2.0), (8.0, 3.0), (64.0, 4.0)]);
    let other = series([(2.0, 1.0), (8.0, 6000.0), (64.0, 2000.0), (128.0, 1.0)]);
    let other = Series { unit: Unit::Ns, ..other };
    let found = changes(&base, &other).unwrap();
    let told: Vec<_> = found.iter().map(|it| (it.base, it.other, it.b, it.percent)).collect();
    assert_eq!(told, [(1, 1, 6.0, Some(100.0)), (2, 2, 2.0, Some(-50.0))]);
    assert!(found.iter().all(|it| it.standing == FigureStanding::NotKnown));
    let mean = Series { statistic: Some(Statistic::Mean), ..other };
    assert!(changes(&base, &mean).is_none());
}

#[test]
fn a_stretch_is_compared_with_the_same_stretch_alone() {
    let stretch = |x, to| Point { x_to: Some(to), ..Point::new(x, 5.0) };
    let base = Series { points: vec![stretch(1.0, 127.0), Point::new(1.0, 2.0)], ..series([]) };
    let bare = changes(&base, &series([(1.0, 1.0)])).unwrap();
    assert_eq!(bare.iter().map(|it| (it.base, it.other)).collect::<Vec<_>>(), [(1, 0)]);
    assert_eq!(changes(&base, &base).unwrap().len(), 2);
    let wide = Series { points: vec![stretch(1.0, 128.0)], ..series([]) };
    assert!(changes(&base, &wide).unwrap().is_empty());
}

#[test]
fn categories_meet_by_name_wherever_they_stand() {
    let of = |names: &[&str]| {
        let point = |(at, name): (usize, &&str)| Point::of_category(at, name, 1.0 + at as f64);
        let points = names.iter().enumerate().map(point).collect();
        let series = Series::new("x", Quantity::EventsPerRequest, Unit::Count, Axis::CATEGORY);
        Series { points, ..series }
    };
    let found = changes(&of(&["a", "b", "b"]), &of(&["c", "b", "a", "b"])).unwrap();
    let places: Vec<_> = found.iter().map(|it| (it.base, it.other)).collect();
    assert_eq!(places, [(0, 2), (1, 1)], "of two of one name the first counts");
}

#[test]
fn rounds_say_more_than_a_change_does() {
    let of = |y: f64, rounds| {
        let point = Point { low: Some(y - 1.0), high: Some(y + 1.0), ..Point::new(1.0, y) };
        Series { spread: Spread::Rounds, rounds: Some(rounds), points: vec![point], ..series([]) }
    };
    let standing = |one: &Series, two: &Series| changes(one, two).unwrap()[0].standing;
    assert_eq!(standing(&of(10.0, 4), &of(13.0, 4)), FigureStanding::More);
    assert_eq!(standing(&of(10.0, 4), &of(7.0, 4)), FigureStanding::Less);
    assert_eq!(standing(&of(10.0, 4), &of(12.0, 4)), FigureStanding::WithinRounds);
    assert_eq!(standing(&of(10.0, 3), &of(13.0, 3)), FigureStanding::TooFewRounds);
    assert_eq!(standing(&of(10.0, 3), &of(13.0, 5)), FigureStanding::More);
    let changed = &changes(&of(10.0, 4), &of(20.0, 4)).unwrap()[0];
    let [least, most] = changed.percent_between.unwrap();
    assert!((least - (19.0 / 11.0 - 1.0) * 100.0).abs() < 1e-9, "{changed:?}");
    assert!((most - (21.0 / 9.0 - 1.0) * 100.0).abs() < 1e-9, "{changed:?}");
}

/// The chance by counting all orders of a few rounds.
#[test]
fn the_chance_of_rounds_apart_is_counted() {
    for (one, other) in [(1, 1), (2, 2), (3, 3), (2, 4), (4, 4)] {
        let all = one + other;
        let orders = (0_u32..1 << all).filter(|order| order.count_ones() == one);
        let (low, high) = ((1 << one) - 1, ((1_u32 << one) - 1) << other);
        let apart = |order: &u32| *order == low || *order == high;
        let (mut count, mut parted) = (0.0, 0.0);
        for order in orders {
            count += 1.0;
            parted += if apart(&order) { 1.0 } else { 0.0 };
        }
        assert!((chance(one, other) - parted / count).abs() < 1e-12, "{one} and {other}");
    }
    assert!(!are_enough(Some(3), Some(3)) && are_enough(Some(4), Some(4)));
    assert!(are_enough(Some(u32::MAX), Some(u32::MAX)) && !are_enough(None, Some(9)));
}

/// A search for each place among all places would take 3.6 thousand million looks.
#[test]
fn long_series_take_one_look_at_each_point() {
    let long = |from: f64| series((0..60_000).map(|at| (from + f64::from(at), 1.0)));
    assert_eq!(changes(&long(0.0), &long(30_000.0)).unwrap().len(), 30_000);
    let name = |at: usize| Point::of_category(at, &format!("{at}"), 1.0);
    let names = |from: usize| Series {
        x: Axis::CATEGORY,
        points: (from..from + 60_000).map(name).collect(),
        ..series([])
    };
    assert_eq!(changes(&names(0), &names(30_000)).unwrap().len(), 30_000);
}

#[test]
fn a_series_meets_its_namesake_or_the_only_one_of_its_kind() {
    let named = |name: &str| Series { name: name.to_owned(), ..series([(1.0, 1.0)]) };
    let of = |names: &[&str]| {
        let mut it = Measurement::new(RunOrigin::Measured, "osu_latency", "x");
        it.series = names.iter().map(|name| named(name)).collect();
        it
    };
    let met = |own: &[&str], at: usize, theirs: &[&str]| {
        let own = of(own);
        partner(&own, &own.series[at], &of(theirs))
    };
    assert_eq!(met(&["a", "b"], 1, &["b", "a"]), Some(0));
    assert_eq!(met(&["a"], 0, &["b"]), Some(0));
    assert_eq!(met(&["a"], 0, &["b", "c"]), None);
    assert_eq!(met(&["a", "b"], 0, &["b"]), None);
}

#[test]
fn one_quantity_is_one_kind_for_each_program() {
    assert_eq!(kind("mpi_latency"), kind("osu_latency"));
    assert_ne!(kind("osu_latency"), kind("osu_bw"));
    assert_ne!(kind("osu_latency"), kind("osu_alltoall"));
    assert_eq!((kind("models"), kind("x")), ("models", "x"));
    let all: Vec<&str> = ALIKE.iter().flat_map(|all| all.iter().copied()).collect();
    let once: BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(all.len(), once.len(), "a benchmark is of one kind");
}
