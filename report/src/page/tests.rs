//! Pages of results that were made up: what is in them, whatever is in the results.

use std::collections::BTreeMap;

use super::*;
use crate::plot::Body;
use crate::result::{Axis, Empty, Machine, Meant, Point, SCHEMA, Spread, Statistic};
use crate::unit::{Against, Quantity, Unit};

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
        line_rate: None,
        points,
    }
}

fn latency(times: f64) -> Series {
    let size = |power: i32| Point::new(2_f64.powi(power), times * (1.0 + 2_f64.powi(power - 8)));
    series("latency", Quantity::Latency, Unit::Us, (0..20).map(size).collect())
}

fn measurement(title: &str, series: Vec<Series>) -> Measurement {
    let mut it = Measurement::new(Origin::Measured, "osu_latency", title);
    it.series = series;
    it
}

fn source(title: &str, measurements: Vec<Measurement>) -> Loaded {
    Loaded { run: run(title), measurements }
}

fn figures(sources: &[Loaded], options: &Options) -> Vec<Figure> {
    figures::all(sources, options).unwrap().0
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
    let all = figures(&sources, &Options::default());
    let titles: Vec<&str> = all.iter().map(|figure| figure.title.as_str()).collect();
    assert_eq!(titles, ["Latency by message size", "Overhead in latency against one, native"]);
    let Body::Curves(curves) = &all[1].body else { panic!("bars") };
    assert_eq!(curves.len(), 1);
    assert!(curves[0].points.iter().all(|point| point.y == 50.0), "{:?}", curves[0].points);
    assert_eq!(curves[0].look, figure_look(&all[0], &curves[0].name));
}

fn figure_look(figure: &Figure, name: &str) -> crate::plot::Look {
    figure.keys().iter().find(|key| key.name == name).unwrap().look
}

#[test]
fn a_baseline_is_chosen_by_name_or_refused_by_name() {
    let of = |name: &str| Options { baseline: Some(name.to_owned()), ..Options::default() };
    let all = figures(&two_runs(), &of("VF"));
    assert!(all[1].title.ends_with("against two, vf"), "{}", all[1].title);
    let said = page(&two_runs(), &of("nobody")).unwrap_err().to_string();
    assert!(said.contains("\"nobody\"") && said.contains("one, native"), "{said}");
}

#[test]
fn a_mean_has_no_overhead_against_a_median() {
    let mut sources = two_runs();
    sources[1].measurements[0].series[0].statistic = Some(Statistic::Mean);
    let all = figures(&sources, &Options::default());
    assert_eq!(all.len(), 1);
    assert!(all[0].cautions.iter().any(|words| words.contains("mean, median")), "{all:?}");
}

#[test]
fn units_are_converted_and_said() {
    let mut sources = two_runs();
    let converted = &mut sources[1].measurements[0].series[0];
    converted.unit = Unit::Ns;
    converted.points.iter_mut().for_each(|point| point.y *= 1000.0);
    let all = figures(&sources, &Options::default());
    let Body::Curves(curves) = &all[0].body else { panic!("bars") };
    assert!((curves[1].points[0].y / curves[0].points[0].y - 1.5).abs() < 1e-9);
    assert!(all[0].cautions.iter().any(|words| words.contains("converted to µs")));
}

#[test]
fn what_differs_is_on_top_and_beside_each_plot() {
    let mut sources = two_runs();
    sources[1].run.machine.as_mut().unwrap().processor = "Xeon".to_owned();
    let html = page(&sources, &Options::default()).unwrap().html;
    let said = "Processors differ: EPYC (“one”); Xeon (“two”).";
    assert_eq!(html.matches(said).count(), 3);
    assert!(!page(&two_runs(), &Options::default()).unwrap().html.contains("differ"));
}

#[test]
fn what_was_published_stands_only_beside_what_was_measured() {
    let mut native = measurement("QDR", vec![latency(2.0)]);
    (native.origin, native.source) = (Origin::Published, Some("a blog, 2013".to_owned()));
    let mut price = native.clone();
    price.series = vec![series("price", Quantity::Price, Unit::Usd, vec![Point::new(1.0, 2.0)])];
    let options = Options { published: vec![native, price], ..Options::default() };
    let all = figures(&two_runs(), &options);
    let names = curve_names(&all[0]);
    assert_eq!(names, ["one, native", "two, vf", "published: QDR (a blog, 2013)"]);
    let page = page(&two_runs(), &options).unwrap();
    assert!(page.html.contains("1 published measurement of other quantities"));
    let (_, plot) = &page.plots[0];
    assert!(plot.contains("published\" data-k=\"2\""), "{plot}");
    assert!(plot.contains("nothing of it was measured here"));
}

#[test]
fn a_share_is_of_the_line_and_the_rest_is_said() {
    let bandwidth = |rate| Series {
        line_rate: rate,
        ..series("bw", Quantity::Bandwidth, Unit::MbPerS, vec![Point::new(4096.0, 300.0)])
    };
    let with = measurement("with", vec![bandwidth(Some(1200.0))]);
    let without = measurement("without", vec![bandwidth(None)]);
    let all = figures(&[source("one", vec![with, without])], &Options::default());
    let share = all.iter().find(|figure| figure.title.contains("share of line")).unwrap();
    let Body::Curves(curves) = &share.body else { panic!("bars") };
    assert_eq!((curves.len(), curves[0].points[0].y), (1, 25.0));
    assert!(share.remarks[0].contains("Of 1 series nobody said"), "{:?}", share.remarks);
}

/// The slides' columns: baseline, without what cannot be measured here.
pub(super) fn events() -> Measurement {
    let names = ["optimum", "elvis", "baseline"];
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
    it.empty = vec![Empty { what: "baseline: exits".to_owned(), why: "no KVM".to_owned() }];
    it
}

#[test]
fn events_are_stacked_and_what_is_missing_is_said() {
    let all = figures(&[source("one", vec![events()])], &Options::default());
    let Body::Bars(bars) = &all[0].body else { panic!("curves") };
    assert!(bars.is_stacked);
    assert_eq!(bars.rows, ["optimum", "elvis", "baseline"]);
    let table = all[0].table();
    let sums: Vec<String> =
        table.rows.iter().map(|row| row.cells[3].as_ref().unwrap().text()).collect();
    assert_eq!(sums, ["2", "4", "≥ 4"]);
    assert!(all[0].remarks.contains(&"Not measured: baseline: exits: no KVM.".to_owned()));
}

#[test]
fn published_events_are_rows_of_their_own() {
    let mut slides = events();
    (slides.origin, slides.source) = (Origin::Published, Some("slides".to_owned()));
    slides.empty.clear();
    let options = Options { published: vec![slides], ..Options::default() };
    let all = figures(&[source("one", vec![events()])], &options);
    let Body::Bars(bars) = &all[0].body else { panic!("curves") };
    assert_eq!(bars.rows.len(), 6);
    assert_eq!(bars.rows[1], "optimum, published: slides");
    for part in &bars.parts {
        for (row, value) in bars.rows.iter().zip(&part.values) {
            assert!(value.is_none() || row.contains("published") == part.is_published, "{row}");
        }
    }
}

/// The texts that came with it, beside figures of the same kinds.
#[test]
fn what_the_seeds_say_is_laid_over_what_it_is_about() {
    let bandwidth = |times: f64| Series {
        line_rate: Some(1250.0),
        ..series("bw", Quantity::Bandwidth, Unit::MbPerS, vec![Point::new(65536.0, times * 800.0)])
    };
    let of = |title, times| measurement(title, vec![latency(times), bandwidth(1.0 / times)]);
    let sources =
        [source("one", vec![of("native", 1.0), of("vf", 1.2)]), source("two", vec![events()])];
    let options = Options { published: crate::published::published(), ..Options::default() };
    let (all, shown) = figures::all(&sources, &options).unwrap();
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
    // Times to wait, prices and programs have nothing here to stand beside.
    assert!(shown.len() < options.published.len(), "{}", shown.len());
}

#[test]
fn zero_is_on_the_axis_and_what_is_nothing_is_counted() {
    let mut sizes = latency(1.0);
    sizes.points.insert(0, Point::new(0.0, 0.9));
    sizes.points[3].y = 0.0;
    let all = figures(&[source("one", vec![measurement("osu", vec![sizes])])], &Options::default());
    assert!(all[0].remarks[0].starts_with("1 figures that are 0"), "{:?}", all[0].remarks);
    let svg = all[0].svg(Place::File);
    assert!(svg.contains(">0</text>"), "{svg}");
}

#[test]
fn nothing_to_draw_is_an_error_and_so_is_too_much() {
    let empty = [source("one", vec![measurement("osu", Vec::new())])];
    assert!(matches!(page(&empty, &Options::default()), Err(PageError::Nothing)));
    let many: Vec<Loaded> = (0..=RUNS_MAX).map(|at| source(&at.to_string(), Vec::new())).collect();
    assert!(matches!(page(&many, &Options::default()), Err(PageError::Runs(_))));
}

#[test]
fn more_series_than_can_be_told_apart_are_named_instead() {
    let of = |at: usize| measurement(&format!("m{at}"), vec![latency(1.0)]);
    let all =
        figures(&[source("one", (0..SERIES_SHOWN_MAX + 3).map(of).collect())], &Options::default());
    assert_eq!(all[0].keys().len(), SERIES_SHOWN_MAX);
    assert!(all[0].remarks.iter().any(|words| words.starts_with("3 more series")), "{all:?}");
}

#[test]
fn a_most_is_drawn_and_said_as_one() {
    let mut sizes = latency(1.0);
    sizes.points[2].meant = Meant::AtMost;
    sizes.points[2].x_to = Some(64.0);
    let all = figures(&[source("one", vec![measurement("osu", vec![sizes])])], &Options::default());
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
    (published.origin, published.source) = (Origin::Published, Some(hostile()));
    (published.quotations, published.misprints) = (vec![hostile()], vec![hostile()]);
    let mut sources = vec![source(HOSTILE, vec![it, named]), source("two", vec![events()])];
    sources[0].run.command = vec![hostile()];
    sources[0].run.machine.as_mut().unwrap().processor = hostile();
    sources[0].run.tools.insert(hostile(), hostile());
    let options = Options { published: vec![published], ..Options::default() };
    let page = page(&sources, &options).unwrap();
    assert_eq!(page.html.matches("<script").count(), 1);
    assert_eq!(page.html.matches("<style").count(), 1);
    assert!(!page.html.contains("<img") && !page.html.contains('\u{202e}'));
    for (name, plot) in &page.plots {
        assert!(!plot.contains("<script") && !plot.contains("<img"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c)), "{name}");
    }
}
