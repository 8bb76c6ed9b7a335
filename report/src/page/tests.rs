//! Pages of made-up results: the content of a page, also for hostile results.

use std::collections::BTreeMap;

use results::{
    Against, Axis, Empty, Machine, Meant, Point, Quantity, RunOrigin, SCHEMA, Series, Spread,
    Statistic, Unit,
};

use super::*;
use crate::plot::{AxisScale, Bars, Figure, PlotBody};

pub(super) fn run(title: &str) -> Run {
    Run {
        schema: SCHEMA,
        id: title.to_owned(),
        begun: "2026-11-22T22:51:03Z".to_owned(),
        title: title.to_owned(),
        command: vec!["vrio".to_owned(), "bench".to_owned()],
        machine: Some(Machine {
            processor: "EPYC".to_owned(),
            cores: 2,
            kernel: "6.1".to_owned(),
            cache_line_round_trip_ns: Some(46),
            version: None,
            commit: Some("3ea30ba".to_owned()),
            optimised: Some(true),
        }),
        tools: BTreeMap::new(),
        notes: Vec::new(),
    }
}

fn series(name: &str, quantity: Quantity, unit: Unit, points: Vec<Point>) -> Series {
    Series {
        name: name.to_owned(),
        quantity,
        unit,
        statistic: Some(Statistic::Median),
        x: Axis { quantity: Against::MessageSize, unit: Unit::Bytes },
        spread: Spread::None,
        rounds: None,
        line_rate: None,
        points,
    }
}

fn latency(times: f64) -> Series {
    let size = |power: i32| Point::new(2_f64.powi(power), times * (1.0 + 2_f64.powi(power - 8)));
    series("latency", Quantity::Latency, Unit::Us, (0..20).map(size).collect())
}

/// The same figure at two sizes: a single size would become a bar.
fn steps(y: f64) -> Vec<Point> {
    [4096.0, 65536.0].map(|x| Point::new(x, y)).to_vec()
}

fn measurement(title: &str, series: Vec<Series>) -> Measurement {
    let mut it = Measurement::new(RunOrigin::Measured, "osu_latency", title);
    it.series = series;
    it
}

fn source(title: &str, measurements: Vec<Measurement>) -> Loaded {
    Loaded { run: run(title), measurements }
}

fn figures(sources: &[Loaded], options: &PageOptions) -> Vec<Figure> {
    figures::all(sources, options).unwrap().figures
}

fn row_names(bars: &Bars) -> Vec<&str> {
    bars.rows.iter().map(|row| row.name.as_str()).collect()
}

fn curve_names(figure: &Figure) -> Vec<&str> {
    figure.keys().iter().map(|key| key.name).collect()
}

fn two_runs() -> Vec<Loaded> {
    vec![
        source("one", vec![measurement("native", vec![latency(1.0)])]),
        source("two", vec![measurement("vf", vec![latency(1.5)])]),
    ]
}

#[test]
fn an_overhead_is_against_what_is_native() {
    let mut sources = two_runs();
    sources.reverse();
    let all = figures(&sources, &PageOptions::default());
    let titles: Vec<&str> = all.iter().map(|figure| figure.title.as_str()).collect();
    let about = "point to point";
    let overhead = format!("Overhead in latency against one, native: {about}");
    assert_eq!(titles, [format!("Latency by message size: {about}"), overhead]);
    let PlotBody::Curves(curves) = &all[1].body else { panic!("bars") };
    assert_eq!(curves.len(), 1);
    assert!(curves[0].points.iter().all(|point| point.y == 50.0), "{:?}", curves[0].points);
    assert_eq!(curves[0].look, figure_look(&all[0], &curves[0].name));
}

fn figure_look(figure: &Figure, name: &str) -> crate::plot::SeriesLook {
    figure.keys().iter().find(|key| key.name == name).unwrap().look
}

#[test]
fn a_baseline_is_chosen_by_name_or_refused_by_name() {
    let of = |name: &str| PageOptions { baseline: Some(name.to_owned()), ..PageOptions::default() };
    let all = figures(&two_runs(), &of("VF"));
    assert!(all[1].title.contains("against two, vf"), "{}", all[1].title);
    let said = page(&two_runs(), &of("nobody")).unwrap_err().to_string();
    assert!(said.contains("\"nobody\"") && said.contains("one, native"), "{said}");
}

#[test]
fn a_mean_has_no_overhead_against_a_median() {
    let mut sources = two_runs();
    sources[1].measurements[0].series[0].statistic = Some(Statistic::Mean);
    let all = figures(&sources, &PageOptions::default());
    assert_eq!(all.len(), 1);
    assert!(all[0].cautions.iter().any(|words| words.contains("mean, median")), "{all:?}");
}

/// An overhead of twenty times still leaves the other curves visible.
#[test]
fn far_overheads_are_drawn_by_times() {
    let of = |times: f64| {
        let of = |title: &str, times| measurement(title, vec![latency(times)]);
        let all = [of("native", 1.0), of("near", 1.1), of("other", times)];
        figures(&[source("a run", all.into())], &PageOptions::default()).remove(1)
    };
    let near = of(2.0);
    assert_eq!(near.y.scale, AxisScale::Linear);
    let far = of(20.0);
    assert_eq!(far.y.scale, AxisScale::TimesMore);
    assert!(far.remarks[0].contains("+100 % is twice"), "{:?}", far.remarks);
    let PlotBody::Curves(curves) = &far.body else { panic!("bars") };
    assert!((curves[1].points[0].y - 1900.0).abs() < 1e-6, "the figures are what they were");
}

#[test]
fn units_are_converted_and_said() {
    let mut sources = two_runs();
    let converted = &mut sources[1].measurements[0].series[0];
    converted.unit = Unit::Ns;
    converted.points.iter_mut().for_each(|point| point.y *= 1000.0);
    let all = figures(&sources, &PageOptions::default());
    let PlotBody::Curves(curves) = &all[0].body else { panic!("bars") };
    assert!((curves[1].points[0].y / curves[0].points[0].y - 1.5).abs() < 1e-9);
    assert!(all[0].cautions.iter().any(|words| words.contains("converted to µs")));
}

#[test]
fn differences_are_on_top_and_beside_each_plot() {
    let mut sources = two_runs();
    sources[1].run.machine.as_mut().unwrap().processor = "Xeon".to_owned();
    let html = page(&sources, &PageOptions::default()).unwrap().html;
    let said = "Processor: EPYC (“one”), Xeon (“two”).";
    // The sentence is on top, once for both plots; each plot's file has it as well.
    assert_eq!(html.matches(said).count(), 2);
    let plots = page(&sources, &PageOptions::default()).unwrap().plots;
    assert!(plots.len() == 2 && plots.iter().all(|(_, plot)| plot.contains("Processor: EPYC")));
    let alike = page(&two_runs(), &PageOptions::default()).unwrap().html;
    assert!(!alike.contains("id=\"differences\"") && !alike.contains("class=\"cautions\""));
}

#[test]
fn published_figures_stand_only_beside_measured_ones() {
    let mut native = measurement("QDR", vec![latency(2.0)]);
    (native.origin, native.source) = (RunOrigin::Published, Some("a blog, 2013".to_owned()));
    let mut price = native.clone();
    price.series = vec![series("price", Quantity::Price, Unit::Usd, vec![Point::new(1.0, 2.0)])];
    let options = PageOptions { published: vec![native, price], ..PageOptions::default() };
    let all = figures(&two_runs(), &options);
    let names = curve_names(&all[0]);
    assert_eq!(names, ["one, native", "two, vf", "published: QDR"]);
    assert!(all[0].remarks.contains(&"Published: QDR: a blog, 2013.".to_owned()), "{all:?}");
    let page = page(&two_runs(), &options).unwrap();
    assert!(page.html.contains("1 published measurement of other quantities"));
    assert!(page.html.contains("<th scope=\"row\">price</th><td>1 B</td><td>2 USD</td>"));
    let (_, plot) = &page.plots[0];
    assert!(plot.contains("published\" data-k=\"2\""), "{plot}");
    assert!(plot.contains("nothing of it was measured here"));
}

#[test]
fn a_share_is_of_the_line_and_the_rest_is_said() {
    let bandwidth = |rate| Series {
        line_rate: rate,
        ..series("bw", Quantity::Bandwidth, Unit::MbPerS, steps(300.0))
    };
    let with = measurement("with", vec![bandwidth(Some(1200.0))]);
    let without = measurement("without", vec![bandwidth(None)]);
    let all = figures(&[source("one", vec![with, without])], &PageOptions::default());
    let share = all.iter().find(|figure| figure.title.contains("share of line")).unwrap();
    let PlotBody::Curves(curves) = &share.body else { panic!("bars") };
    assert_eq!((curves.len(), curves[0].points[0].y), (1, 25.0));
    assert!(
        share.remarks[0].contains("The line rate of 1 series is not known"),
        "{:?}",
        share.remarks
    );
}

/// The slides' columns: baseline, without the columns that cannot be measured here.
pub(super) fn events() -> Measurement {
    let names = ["optimum", "Elvis", "baseline"];
    let events = |name: &str, counts: &[Option<f64>]| Series {
        x: Axis { quantity: Against::Category, unit: Unit::Name },
        statistic: None,
        points: (0..3)
            .filter_map(|at| Some(Point::of_category(at, names[at], counts[at]?)))
            .collect(),
        ..series(name, Quantity::EventsPerRequest, Unit::Count, Vec::new())
    };
    let mut it = measurement(
        "models",
        vec![
            events("guest interrupts", &[Some(2.0), Some(2.0), Some(2.0)]),
            events("host interrupts", &[Some(0.0), Some(2.0), Some(2.0)]),
            events("exits", &[Some(0.0), Some(0.0), None]),
        ],
    );
    it.benchmark = "models".to_owned();
    it.empty = vec![Empty { what: "exits, baseline".to_owned(), why: "no KVM".to_owned() }];
    it
}

#[test]
fn events_are_stacked_and_what_is_missing_is_said() {
    let all = figures(&[source("one", vec![events()])], &PageOptions::default());
    let PlotBody::Bars(bars) = &all[0].body else { panic!("curves") };
    assert!(bars.is_stacked);
    assert_eq!(row_names(bars), ["optimum", "Elvis", "baseline"]);
    let table = all[0].table();
    let columns: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(columns, ["synchronous exits", "guest interrupts", "host interrupts", "sum"]);
    let sums: Vec<String> =
        table.rows.iter().map(|row| row.cells[3].as_ref().unwrap().text()).collect();
    assert_eq!(sums, ["2", "4", "≥ 4"]);
    assert!(
        all[0].remarks.contains(&"Not measured: synchronous exits, baseline: no KVM.".to_owned())
    );
}

#[test]
fn published_events_are_rows_of_their_own() {
    let mut slides = events();
    (slides.origin, slides.source) = (RunOrigin::Published, Some("slides".to_owned()));
    slides.empty.clear();
    let options = PageOptions { published: vec![slides], ..PageOptions::default() };
    let all = figures(&[source("one", vec![events()])], &options);
    let PlotBody::Bars(bars) = &all[0].body else { panic!("curves") };
    assert_eq!(bars.rows.len(), 6);
    assert_eq!(row_names(bars)[..3], ["optimum", "optimum (published)", "Elvis"]);
    for part in &bars.parts {
        for (row, value) in bars.rows.iter().zip(&part.values) {
            let is_it = row.name.contains("published") == part.is_published;
            assert!(value.is_none() || is_it, "{row:?}");
        }
    }
}

/// The published texts of this crate, beside figures of the same quantities.
#[test]
fn published_figures_are_drawn_over_measured_ones() {
    let bandwidth = |times: f64| Series {
        line_rate: Some(1250.0),
        ..series("bw", Quantity::Bandwidth, Unit::MbPerS, steps(times * 800.0))
    };
    let of = |title, times| measurement(title, vec![latency(times), bandwidth(1.0 / times)]);
    let sources =
        [source("one", vec![of("native", 1.0), of("vf", 1.2)]), source("two", vec![events()])];
    let options =
        PageOptions { published: crate::published::published(), ..PageOptions::default() };
    let ShownPlots { figures: all, published: shown, .. } =
        figures::all(&sources, &options).unwrap();
    let named = |title: &str, words: &str| {
        let figure = all.iter().find(|figure| figure.title.starts_with(title)).unwrap();
        let names = curve_names(figure);
        assert!(names.iter().any(|name| name.contains(words)), "{title}: {names:?}");
        assert!(figure.cautions.iter().any(|said| said.contains("hollow")), "{title}");
    };
    named("Overhead in latency", "published: SR-IOV, QDR InfiniBand (2013)");
    named("Loss of bandwidth", "published: SR-IOV, QDR InfiniBand (2013)");
    named("Bandwidth by", "published: TCP over QDR InfiniBand");
    named("Bandwidth as a share", "published: gigabit Ethernet by TCP");
    named("Events per request", "published: injections");
    // Waiting times, prices and programs have no measured figures to stand beside.
    assert!(shown.len() < options.published.len(), "{}", shown.len());
}

#[test]
fn zero_is_on_the_axis_and_what_is_nothing_is_counted() {
    let mut sizes = latency(1.0);
    sizes.points.insert(0, Point::new(0.0, 0.9));
    sizes.points[3].y = 0.0;
    let all =
        figures(&[source("one", vec![measurement("osu", vec![sizes])])], &PageOptions::default());
    assert!(all[0].remarks[0].starts_with("1 figures that are 0"), "{:?}", all[0].remarks);
    let svg = all[0].svg(PicturePlace::File);
    assert!(svg.contains(">0</text>"), "{svg}");
}

#[test]
fn nothing_to_draw_is_an_error_and_so_is_too_much() {
    let empty = [source("one", vec![measurement("osu", Vec::new())])];
    assert!(matches!(page(&empty, &PageOptions::default()), Err(PageError::Nothing)));
    let many: Vec<Loaded> = (0..=RUNS_MAX).map(|at| source(&at.to_string(), Vec::new())).collect();
    assert!(matches!(page(&many, &PageOptions::default()), Err(PageError::Runs(_))));
}

#[test]
fn more_series_than_can_be_told_apart_are_named_instead() {
    let of = |at: usize| measurement(&format!("m{at}"), vec![latency(1.0)]);
    let all = figures(
        &[source("one", (0..SERIES_SHOWN_MAX + 3).map(of).collect())],
        &PageOptions::default(),
    );
    assert_eq!(all[0].keys().len(), SERIES_SHOWN_MAX);
    assert!(all[0].remarks.iter().any(|words| words.starts_with("3 more series")), "{all:?}");
}

#[test]
fn a_most_is_drawn_and_said_as_one() {
    let mut sizes = latency(1.0);
    sizes.points[2].meant = Meant::AtMost;
    sizes.points[2].x_to = Some(64.0);
    let all =
        figures(&[source("one", vec![measurement("osu", vec![sizes])])], &PageOptions::default());
    let text = all[0].table().rows[2].cells[0].as_ref().unwrap().text();
    assert!(text.starts_with("≤ ") && text.ends_with("up to 64"), "{text}");
}

const HOSTILE: &str = "</script></style><script>alert(1)</script>\" onload='x' <img src=x>\u{202e}";

#[test]
fn words_of_results_stay_words() {
    let mut it = events();
    let hostile = || HOSTILE.to_owned();
    (it.title, it.benchmark) = (hostile(), hostile());
    it.setup.insert(hostile(), hostile());
    it.notes.push(hostile());
    it.empty.push(Empty { what: hostile(), why: hostile() });
    for series in &mut it.series {
        series.name = hostile();
        series.points[0].label = Some(hostile());
    }
    let mut named = measurement(HOSTILE, vec![latency(1.0)]);
    named.series[0].points[1].label = Some(hostile());
    let mut published = named.clone();
    (published.origin, published.source) = (RunOrigin::Published, Some(hostile()));
    (published.quotations, published.misprints) = (vec![hostile()], vec![hostile()]);
    let mut sources = vec![source(HOSTILE, vec![it, named]), source("two", vec![events()])];
    sources[0].run.command = vec![hostile()];
    sources[0].run.machine.as_mut().unwrap().processor = hostile();
    sources[0].run.tools.insert(hostile(), hostile());
    let options = PageOptions { published: vec![published], ..PageOptions::default() };
    let page = page(&sources, &options).unwrap();
    assert_eq!(page.html.matches("<script").count(), 1);
    assert_eq!(page.html.matches("<style").count(), 1);
    assert!(!page.html.contains("<img") && !page.html.contains('\u{202e}'));
    for (name, plot) in &page.plots {
        assert!(!plot.contains("<script") && !plot.contains("<img"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c)), "{name}");
    }
}

/// Two programs that measure different things are in no plot together, also if their units agree.
#[test]
fn one_benchmark_is_told_against_itself_alone() {
    let of = |benchmark: &str, times| {
        let mut it = measurement(benchmark, vec![latency(times)]);
        it.benchmark = benchmark.to_owned();
        it
    };
    let sources = [source(
        "one",
        vec![of("osu_latency", 1.0), of("osu_allreduce", 4.0), of("osu_multi_lat", 2.0)],
    )];
    let all = figures(&sources, &PageOptions::default());
    let titles: Vec<&str> = all.iter().map(|figure| figure.title.as_str()).collect();
    let expected = ["point to point", "all-reduce", "several pairs"];
    assert_eq!(titles, expected.map(|about| format!("Latency by message size: {about}")));
    // Two programs that measure the same share a plot, but have no percentage.
    let sources = [source("one", vec![of("osu_latency", 1.0), of("mpi_latency", 2.0)])];
    let all = figures(&sources, &PageOptions::default());
    assert_eq!(all.len(), 1);
    assert_eq!(curve_names(&all[0]), ["osu_latency", "mpi_latency"]);
    assert_eq!(all[0].cautions, ["Benchmarks differ: mpi_latency; osu_latency."]);
}

#[test]
fn overheads_of_others_stand_beside_what_is_native_alone() {
    let options =
        PageOptions { published: crate::published::published(), ..PageOptions::default() };
    let names = |title: &str| {
        let of = |title: &str, times| measurement(title, vec![latency(times)]);
        let sources = [source("one", vec![of(title, 1.0), of("vf", 1.2)])];
        let all = figures(&sources, &options);
        let overhead = all.iter().find(|figure| figure.title.starts_with("Overhead")).unwrap();
        curve_names(overhead).join("; ")
    };
    let told = "published: SR-IOV, QDR InfiniBand (2013), latency over native, \
                against native QDR4X InfiniBand";
    assert!(names("native").contains(told), "{}", names("native"));
    assert_eq!(names("tcp"), "vf");
}

/// The result of `vrio bench models` for one device: three tables, and some of them lack figures.
fn models() -> Vec<Measurement> {
    let table = |title: &str, guests: &str, elvis: bool| {
        let mut it = measurement(&format!("models: block, {title}"), Vec::new());
        it.benchmark = "models".to_owned();
        it.setup = BTreeMap::from([("device", "block"), ("guests", guests)])
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let rows = ["optimum", "Elvis", "baseline"];
        let of = |name: &str, quantity, unit, rows: &[&str]| Series {
            x: Axis::CATEGORY,
            statistic: None,
            points: rows
                .iter()
                .enumerate()
                .map(|(at, row)| Point::of_category(at, row, 1.0 + at as f64))
                .collect(),
            ..series(name, quantity, unit, Vec::new())
        };
        let events = |name, rows: &[&str]| of(name, Quantity::EventsPerRequest, Unit::Count, rows);
        it.series = vec![
            events("guest interrupts", &rows),
            events("iohost interrupts", &rows[..0]),
            events("sync exits", &rows[1..]),
            of("depth 32", Quantity::Iops, Unit::PerS, if elvis { &rows } else { &rows[..1] }),
        ];
        it.series.retain(|series| !series.points.is_empty());
        let empty = |what: &str, why: &str| Empty { what: what.to_owned(), why: why.to_owned() };
        it.empty = vec![empty("injections, baseline", "no KVM"), empty("vRIO direct", "no card")];
        if !elvis {
            it.empty.push(empty("depth 32, Elvis", "more polling threads than cores"));
        }
        it
    };
    vec![table("1 guest, in clear", "1", true), table("4 guests, in clear", "4", false)]
}

#[test]
fn rows_of_models_can_be_told_apart_and_have_their_tables() {
    let options =
        PageOptions { published: crate::published::published(), ..PageOptions::default() };
    let sources = [source("one", models())];
    let ShownPlots { figures: all, published: shown, .. } =
        figures::all(&sources, &options).unwrap();
    let titles: Vec<&str> = all.iter().map(|figure| figure.title.as_str()).collect();
    let expected = [
        "IOPS: I/O models of disks",
        "Events per request: I/O models of disks, 1 guest, in clear",
        "Events per request: I/O models of disks, 4 guests, in clear",
    ];
    assert_eq!(titles, expected);
    assert!(all.iter().all(|figure| figure.subject == "I/O models of disks"));
    // Speeds of all tables stand beside one another. A figure that was not measured has its row and
    // reason.
    let PlotBody::Bars(iops) = &all[0].body else { panic!("curves") };
    assert_eq!(curve_names(&all[0]), ["1 guest", "4 guests"]);
    assert_eq!(row_names(iops), ["optimum", "vRIO direct", "Elvis", "baseline"]);
    let said = "Not measured: Elvis (4 guests): more polling threads than cores.";
    assert!(all[0].remarks.iter().any(|words| words == said), "{:?}", all[0].remarks);
    assert!(!all[0].remarks.iter().any(|words| words.contains("injections")), "{:?}", all[0]);
    // The slides' table is beside the first table, with its rows below ours.
    let PlotBody::Bars(events) = &all[1].body else { panic!("curves") };
    let rows = row_names(events);
    assert_eq!(rows[..4], ["optimum", "optimum (published)", "vRIO direct", "vrio (published)"]);
    assert_eq!(shown.len(), 1, "{shown:?}");
    let PlotBody::Bars(four) = &all[2].body else { panic!("curves") };
    assert_eq!(row_names(four), ["optimum", "vRIO direct", "Elvis", "baseline"]);
    // A column that a model does not have leaves its sum whole. An empty column makes it partial.
    let partial: Vec<bool> = four.rows.iter().map(|row| row.is_partial).collect();
    assert_eq!(partial, [false, false, false, true]);
    let svg = all[2].svg(PicturePlace::File);
    assert!(svg.contains("not measured") && svg.contains("≥ "), "{svg}");
    // A column has one colour under all of its names.
    let look = |name: &str| all[1].keys().iter().find(|key| key.name == name).unwrap().look;
    assert_eq!(look("synchronous exits"), look("published: synchronous exits"));
}

#[test]
fn counters_are_a_table_and_no_picture() {
    let mut sources = vec![source("one", Vec::new())];
    for depth in ["1", "32"] {
        let mut it = events();
        (it.benchmark, it.title) = ("block_parts".to_owned(), "block, local".to_owned());
        it.setup.insert("depth".to_owned(), depth.to_owned());
        it.series.truncate(1);
        it.series[0].points[0].y = 0.123_456_789;
        sources[0].measurements.push(it);
    }
    let all = figures(&sources, &PageOptions::default());
    assert_eq!(all[0].title, "Counted per request: disks");
    assert_eq!(curve_names(&all[0]), ["block, local, depth 1", "block, local, depth 32"]);
    assert!(!all[0].is_drawn());
    let page = page(&sources, &PageOptions::default()).unwrap();
    assert!(page.plots.is_empty() && !page.html.contains("class=\"area\""));
    assert!(page.html.contains("<td data-exact=\"0.123456789\">0.1235<"));
}

#[test]
fn one_place_alone_makes_bars() {
    let one = |title, y| {
        measurement(title, vec![series("bw", Quantity::Bandwidth, Unit::MbPerS, vec![y])])
    };
    let all = |second| {
        let all = [one("a", Point::new(64.0, 5.0)), one("b", Point::new(second, 7.0))];
        figures(&[source("one", all.into())], &PageOptions::default())
    };
    let bars = all(64.0);
    let PlotBody::Bars(found) = &bars[0].body else { panic!("curves") };
    assert_eq!(bars[0].title, "Bandwidth at message size 64 B: point to point");
    assert_eq!((row_names(found), bars[0].legend().len(), bars.len()), (vec!["a", "b"], 0, 1));
    assert!(matches!(all(128.0)[0].body, PlotBody::Curves(_)));
}

#[test]
fn each_line_rate_has_its_line() {
    let bandwidth = |title: &str, rate| {
        let rate = Series {
            line_rate: rate,
            ..series("bw", Quantity::Bandwidth, Unit::MbPerS, steps(300.0))
        };
        measurement(title, vec![rate])
    };
    let rules = |all| figures(&[source("one", all)], &PageOptions::default())[0].rules.clone();
    let (ten, none) = (bandwidth("ten", Some(1250.0)), bandwidth("none", None));
    assert_eq!(rules(vec![ten.clone()]), [(1250.0, "line rate".to_owned())]);
    assert_eq!(rules(vec![ten.clone(), none]), [(1250.0, "line rate of ten".to_owned())]);
    let both = rules(vec![ten, bandwidth("forty", Some(5000.0))]);
    assert_eq!(both.len(), 2);
}

/// Differences between the set-ups of two runs are told. Differences within one run are not.
#[test]
fn a_set_up_that_two_runs_do_not_share_is_said() {
    let mut sources = vec![source("one", models()), source("two", models())];
    for measurement in &mut sources[1].measurements {
        measurement.setup.insert("volume".to_owned(), "null".to_owned());
    }
    let all = figures(&sources, &PageOptions::default());
    let said = "Volume: not told (“one”), null (“two”).";
    assert_eq!(all[0].cautions, [said]);
    // A figure that all tables lack is named once, without the tables.
    let missing = "Not measured: vRIO direct: no card.".to_owned();
    assert!(all[0].remarks.contains(&missing), "{:?}", all[0].remarks);
    assert_eq!(figures(&sources[..1], &PageOptions::default())[0].cautions, [""; 0]);
    // A single run also has a caution about cores that moved around one measurement.
    sources[0].measurements[0].cache_line_round_trips_ns = vec![46, 105];
    let alone = figures(&sources[..1], &PageOptions::default());
    assert!(alone[0].cautions[0].starts_with("Level: "), "{:?}", alone[0].cautions);
}

#[test]
fn runs_of_one_title_are_told_apart() {
    let mut sources = two_runs();
    for source in &mut sources {
        source.run.title = "vrio bench all: block".to_owned();
        source.measurements[0].title = "block, local".to_owned();
    }
    sources[1].run.begun = "2026-11-23T08:00:00Z".to_owned();
    let html = page(&sources, &PageOptions::default()).unwrap().html;
    assert!(html.contains("<h1>2 runs: vrio bench all: block</h1>"), "{html}");
    let begun = ["2026-11-22T22:51:03Z", "2026-11-23T08:00:00Z"];
    for begun in begun {
        assert!(html.contains(&format!("</svg>{begun}</button>")), "{html}");
    }
    // A run with another name stands beside them.
    sources.push(sources[0].clone());
    sources[2].run.title = "before".to_owned();
    let html = page(&sources, &PageOptions::default()).unwrap().html;
    assert!(html.contains("<h1>3 runs</h1>") && html.contains("</svg>before</button>"), "{html}");
    for begun in begun {
        assert!(html.contains(&format!("</svg>{begun}, vrio bench all: block</button>")), "{html}");
    }
}

/// A page has limits for any content of the files, and names what it leaves out.
#[test]
fn endless_input_has_an_end() {
    let mut it = events();
    let words = "w".repeat(4000);
    let empty = |at: usize| Empty { what: at.to_string(), why: format!("{at} {words}") };
    it.empty = (0..1024).map(empty).collect();
    it.notes = vec![words.clone(); 1024];
    let label = |at| Point::of_category(at, &format!("{at} {}", &words[..40]), 1.0);
    it.series[0].points = (0..20_000).map(label).collect();
    let many = it.series[0].points[..2].to_vec();
    let mut more = vec![Series { points: many, ..it.series[0].clone() }; 200];
    for (at, series) in more.iter_mut().enumerate() {
        series.name = format!("column {at}");
    }
    it.series.extend(more);
    let page = page(&[source("one", vec![it; 20])], &PageOptions::default()).unwrap();
    assert!(page.html.len() < 2_000_000, "{}", page.html.len());
    for said in [
        "more rows have no place here",
        "more columns have no place here",
        "984 more notes",
        "reasons more, at the end of the page",
        "more reasons, in the results",
    ] {
        assert!(page.html.contains(said), "{said}");
    }
}

#[test]
fn plots_beyond_the_last_are_counted() {
    let of = |at: usize| {
        let mut it = measurement("x", vec![series("a", Quantity::Iops, Unit::PerS, steps(1.0))]);
        it.benchmark = format!("benchmark {at}");
        it
    };
    let many = (0..FIGURES_MAX + 3).map(of).collect();
    let page = page(&[source("one", many)], &PageOptions::default()).unwrap();
    assert_eq!(page.plots.len(), FIGURES_MAX);
    assert!(page.html.contains("3 more plots have no place"));
}

/// A median and a mean do not compare: a plot shows the number that all of its measurements have.
#[test]
fn medians_or_means_are_shown_as_all_have_them() {
    let with = |title: &str, all: &[Statistic]| {
        let series = |statistic: &Statistic| {
            let which = Some(*statistic);
            Series { statistic: which, ..latency(1.0) }
        };
        measurement(title, all.iter().map(series).collect())
    };
    let both = with("both", &[Statistic::Median, Statistic::Mean, Statistic::P99]);
    let mean = with("mean", &[Statistic::Mean]);
    let titles = |all: Vec<Measurement>| -> Vec<(String, usize)> {
        let all = figures(&[source("one", all)], &PageOptions::default());
        let plots = all.iter().filter(|figure| figure.title.starts_with("Latency"));
        plots.map(|figure| (figure.title.clone(), figure.keys().len())).collect()
    };
    let plain = "Latency by message size: point to point".to_owned();
    let rest = "Latency by message size, means and tails: point to point".to_owned();
    assert_eq!(titles(vec![both.clone()]), [(plain.clone(), 1), (rest.clone(), 2)]);
    let mixed = titles(vec![both, mean]);
    assert_eq!(mixed, [(plain.clone(), 2), (rest, 2)]);
    assert_eq!(titles(vec![with("tails", &[Statistic::P99])]), [(plain, 1)]);
}

/// Two runs whose set-ups have nothing in common still have a picture.
#[test]
fn many_differences_of_set_ups_are_one_sentence() {
    let mut sources = two_runs();
    for at in 0..12 {
        sources[0].measurements[0].setup.insert(format!("key_{at:02}"), "a".to_owned());
    }
    let all = figures(&sources, &PageOptions::default());
    let [said] = &all[0].cautions[..] else { panic!("{:?}", all[0].cautions) };
    assert!(said.starts_with("Set-ups differ in 12 things (key 00, key 01,"), "{said}");
}
