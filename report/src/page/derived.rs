//! Plots of derived figures: overheads against a baseline, shares of the line rate.

use results::{Against, Meant, Point, Quantity, Spread, Unit};

use super::group::{Drawing, Group, capital, converted, described, x_scale};
use super::item::Item;
use super::options::PageError;
use super::peaks::peaks;
use super::{names, said};
use crate::plot::text::slug;
use crate::plot::{Axis, AxisScale, Curve, Figure, PlotBody, SeriesLook};

/// Derived figures are rounded to multiples of one by this: more digits would be invented.
const DECIMALS: f64 = 1e4;
/// The baseline of published overheads, and of ours if it is there.
const NATIVE: &str = "native";
/// With an overhead beyond this factor, or beyond its reciprocal, the axis is not linear.
const FAR: f64 = 3.0;
/// The series that an error names.
const NAMED_MAX: usize = 12;

/// Whether overheads of this group are drawn.
fn has_overhead(group: &Group<'_>) -> bool {
    // Rates of messages would show the same as bandwidths once more.
    let is_rate = matches!(group.quantity, Quantity::Bandwidth | Quantity::BidirectionalBandwidth);
    let is_time = matches!(group.quantity, Quantity::Latency | Quantity::RoundTrip);
    group.against == Against::MessageSize
        && group.only_place().is_none()
        && !group.is_rest
        && (is_rate || is_time)
}

fn is_called(item: &Item<'_>, name: &str, wanted: &str) -> bool {
    let run = item.run.map(|run| [run.title.as_str(), run.id.as_str()]);
    let own = [name, item.measurement.title.as_str(), item.series.name.as_str()];
    let wanted = wanted.to_lowercase();
    own.into_iter()
        .chain(run.into_iter().flatten())
        .any(|name| name.to_lowercase().contains(&wanted))
}

/// The index of the baseline in the group.
fn baseline(group: &Group<'_>, wanted: Option<&str>) -> Option<usize> {
    let find = |wanted: &str| {
        let mut all = group.items.iter().zip(&group.names);
        all.position(|(item, name)| !item.is_published() && is_called(item, name, wanted))
    };
    match wanted {
        Some(wanted) => find(wanted),
        None => find(NATIVE).or_else(|| group.items.iter().position(|item| !item.is_published())),
    }
}

/// Checks that the wanted baseline exists in some group.
pub(super) fn check_baseline(groups: &[Group<'_>], wanted: Option<&str>) -> Result<(), PageError> {
    let Some(wanted) = wanted else { return Ok(()) };
    if groups.iter().any(|group| baseline(group, Some(wanted)).is_some()) {
        return Ok(());
    }
    let mut known: Vec<&str> = Vec::new();
    for name in groups.iter().flat_map(|group| &group.names) {
        if !known.contains(&name.as_str()) {
            known.push(name);
        }
    }
    known.truncate(NAMED_MAX);
    Err(PageError::Baseline { wanted: wanted.to_owned(), known: known.join("; ") })
}

/// The plots that are derived from this group.
pub(super) fn all<'a>(
    group: &Group<'a>,
    wanted: Option<&str>,
    drawing: &mut Drawing<'a>,
) -> impl Iterator<Item = Figure> + use<> {
    [overhead(group, wanted, drawing), line_share(group, drawing)].into_iter().flatten()
}

/// Curves of the items with these points; items without points have no curve.
fn curves(
    group: &Group<'_>,
    drawing: &mut Drawing<'_>,
    points: impl Fn(usize, &Item<'_>) -> Vec<Point>,
) -> Vec<Curve> {
    // All names get a look, so that each series looks as in the plot before.
    let looks = drawing.looks.of(&group.look_keys());
    let curve = |(at, item): (usize, &Item<'_>)| Curve {
        name: group.names[at].clone(),
        look: looks[at],
        is_published: item.is_published(),
        spread: Spread::None,
        points: points(at, item),
    };
    let all = group.items.iter().enumerate().map(curve);
    all.filter(|curve| !curve.points.is_empty()).collect()
}

fn round(number: f64) -> f64 {
    let rounded = (number * DECIMALS).round() / DECIMALS;
    if rounded.is_finite() { rounded + 0.0 } else { number }
}

fn overhead<'a>(
    group: &Group<'a>,
    wanted: Option<&str>,
    drawing: &mut Drawing<'a>,
) -> Option<Figure> {
    let base_at = baseline(group, wanted).filter(|_| has_overhead(group))?;
    let base = &group.items[base_at];
    let is_loss = group.quantity.more_is_better() == Some(true);
    let (unit, x_unit) = (group.unit(), group.x_unit());
    let bases: Vec<Point> =
        base.series.points.iter().map(|point| converted(base, point, unit, x_unit)).collect();
    let mut curves = curves(group, drawing, |at, item| {
        if at == base_at || !is_comparable(base, item) {
            return Vec::new();
        }
        let of = |point: &Point| {
            let point = converted(item, point, unit, x_unit);
            let base = bases.iter().find(|base| base.x == point.x && base.y > 0.0)?;
            let change = (point.y / base.y - 1.0) * 100.0;
            let y = round(if is_loss { -change } else { change });
            let is_exact = point.meant == Meant::Exact && base.meant == Meant::Exact;
            let meant = if is_exact { Meant::Exact } else { Meant::About };
            y.is_finite().then(|| Point { meant, ..Point::new(point.x, y) })
        };
        item.series.points.iter().filter(|point| point.x_to.is_none()).filter_map(of).collect()
    });
    if curves.is_empty() {
        return None;
    }
    let against = &group.names[base_at];
    // Published overheads are against native ones. They mean nothing beside overheads against
    // something else.
    if is_called(base, against, NATIVE) {
        curves.extend(others(group, is_loss, drawing));
    }
    let quantity = group.quantity.words();
    let what = if is_loss { "Loss of" } else { "Overhead in" };
    let title = format!("{what} {quantity} against {against}: {}", group.subject.words());
    let scale = overhead_scale(&curves, is_loss);
    let says = if is_loss { "less" } else { "more" };
    let mut remark = format!(
        "How much {says} than {against}, in percent of that, at the same {}; below 0 is better.",
        group.against.words()
    );
    remark += match scale {
        AxisScale::TimesMore => " The axis goes by how many times as much it is: +100 % is twice.",
        AxisScale::TimesLess => " The axis goes by how many times less it is: 50 % is half of it.",
        AxisScale::Linear | AxisScale::Log2 | AxisScale::Log10 => "",
    };
    let remarks = [remark].into_iter().chain(said::no_place(&curves, scale)).collect();
    let words = if is_loss { "loss" } else { "overhead" };
    let id = format!("{words} {quantity} {}", group.subject.words());
    let rule = (0.0, against.as_str());
    Some(figure(group, curves, Derived { title, id, words, scale, remarks, rule }))
}

/// The scale for overheads. A curve far from the others would press them to nothing on a linear
/// axis. Then the axis is spaced by the factor: twice as much lies as far from 0 as half as much.
fn overhead_scale(curves: &[Curve], is_loss: bool) -> AxisScale {
    let by_times = if is_loss { AxisScale::TimesLess } else { AxisScale::TimesMore };
    let mut points = curves.iter().flat_map(|curve| &curve.points);
    let is_far = |times: f64| !(1.0 / FAR..=FAR).contains(&times);
    let is_wide = points.any(|point| by_times.times(point.y).is_some_and(is_far));
    if is_wide { by_times } else { AxisScale::Linear }
}

/// Whether the overhead of one item against the other is meaningful: both must have one benchmark,
/// one number of many, and one series name.
fn is_comparable(base: &Item<'_>, item: &Item<'_>) -> bool {
    base.measurement.benchmark == item.measurement.benchmark
        && item.series.statistic == base.series.statistic
        && item.series.name == base.series.name
}

/// The overheads against native that others published. The name of the benchmark ends with the
/// quantity that the overhead is of.
fn others<'a>(group: &Group<'a>, is_loss: bool, drawing: &mut Drawing<'a>) -> Vec<Curve> {
    let kind = if is_loss { Quantity::Loss } else { Quantity::Overhead };
    let of = group.quantity.words();
    let all: Vec<Item<'a>> = group
        .others(kind, group.against)
        .filter(|item| item.measurement.benchmark.ends_with(of))
        .collect();
    let name = |item: &Item<'_>| names::published(item, &item.series.name);
    let names: Vec<String> = all.iter().map(name).collect();
    let looks = drawing.looks.of(&names);
    let curve = |((item, name), look): ((&Item<'a>, String), SeriesLook)| {
        drawing.shows(item);
        let of = |point| converted(item, point, Unit::Percent, group.x_unit());
        Curve {
            name,
            look,
            is_published: true,
            spread: item.series.spread,
            points: item.series.points.iter().map(of).collect(),
        }
    };
    all.iter().zip(names).zip(looks).map(curve).collect()
}

/// The share of the line's rate that is reached.
fn line_share<'a>(group: &Group<'a>, drawing: &mut Drawing<'a>) -> Option<Figure> {
    let x_unit = group.x_unit();
    if group.against != Against::MessageSize || group.only_place().is_some() {
        return None;
    }
    let mut curves = curves(group, drawing, |_, item| {
        let Some(rate) = item.series.line_rate else { return Vec::new() };
        let of = |point: &Point| {
            let point = converted(item, point, item.series.unit, x_unit);
            Point { meant: point.meant, ..Point::new(point.x, round(point.y / rate * 100.0)) }
        };
        item.series.points.iter().filter(|point| point.x_to.is_none()).map(of).collect()
    });
    if curves.is_empty() {
        return None;
    }
    let missing = group.items.len() - curves.len();
    curves.extend(peaks(group, Quantity::LineShare, Unit::Percent, drawing));
    let quantity = capital(group.quantity.words());
    let mut remark = String::from("In percent of what the line could carry.");
    if missing > 0 {
        remark += &format!(" The line rate of {missing} series is not known.");
    }
    let title = format!("{quantity} as a share of line rate: {}", group.subject.words());
    let derived = Derived {
        id: title.clone(),
        title,
        words: "share of line rate",
        scale: AxisScale::Linear,
        remarks: vec![remark],
        rule: (100.0, "line rate"),
    };
    Some(figure(group, curves, derived))
}

/// The properties that distinguish one of these plots from another.
struct Derived<'a> {
    title: String,
    /// The words that its anchor is made of.
    id: String,
    /// The words of the vertical axis.
    words: &'a str,
    scale: AxisScale,
    remarks: Vec<String>,
    /// A line across the plot: its place and its name.
    rule: (f64, &'a str),
}

fn figure(group: &Group<'_>, curves: Vec<Curve>, derived: Derived<'_>) -> Figure {
    let Derived { title, id, words, scale, remarks, rule } = derived;
    let names: Vec<String> = curves.iter().map(|curve| curve.name.clone()).collect();
    let body = PlotBody::Curves(curves);
    let shown = group.all().filter(|item| {
        // The curve of a published series begins with its title.
        let title = format!("published: {}", item.measurement.title);
        names.iter().any(|name| name.starts_with(&title))
    });
    Figure {
        id: slug(&id),
        subject: group.subject.device().to_owned(),
        description: described(&title, &names),
        title,
        cautions: said::cautions(group, said::has_published(&body)),
        remarks: remarks.into_iter().chain(said::sources(shown)).collect(),
        of_table: String::new(),
        measured: said::measured(group),
        x: Axis {
            words: group.against.words().to_owned(),
            unit: group.x_unit(),
            scale: x_scale(group),
        },
        y: Axis { words: words.to_owned(), unit: Unit::Percent, scale },
        rules: vec![(rule.0, rule.1.to_owned())],
        body,
    }
}
