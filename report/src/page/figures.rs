//! The plots of results. A plot has the series of one quantity against another, of one subject.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use results::{Against, Dimension, Measurement, Point, Quantity, Series, Statistic, Unit};

use super::group::{Drawing, Group, converted, described, x_scale};
use super::item::Item;
use super::options::{FIGURES_MAX, PageError, PageOptions, SERIES_SHOWN_MAX};
use super::peaks::{is_peak, peaks};
use super::subject::{self, Subject};
use super::thin::{points_shown, thin};
use super::{bars, derived, names, said};
use crate::plot::style::SeriesLook;
use crate::plot::text::slug;
use crate::plot::{Axis, AxisScale, Curve, Figure, HEAT_PLACES_MAX, PlotBody};
use crate::store::Loaded;

/// Figures with a larger ratio are drawn on a logarithmic axis.
const LINEAR_RATIO_MAX: f64 = 20.0;
/// Tails and means of one plot; more of them have a plot for each.
const REST_MAX: usize = 8;
/// Line rates in one plot.
const LINE_RATES_MAX: usize = 4;

/// The plots of a page.
pub(super) struct ShownPlots<'a> {
    pub(super) figures: Vec<Figure>,
    /// Published measurements that a plot shows.
    pub(super) published: Vec<&'a Measurement>,
    /// How many plots have no place.
    pub(super) left: usize,
}

/// Every plot of these results, and the published measurements in them.
pub(super) fn all<'a>(
    sources: &'a [Loaded],
    options: &'a PageOptions,
) -> Result<ShownPlots<'a>, PageError> {
    let groups = groups(sources, &options.published);
    derived::check_baseline(&groups, options.baseline.as_deref())?;
    let mut drawing = Drawing::default();
    let (mut figures, mut left) = (Vec::new(), 0);
    for group in &groups {
        if figures.len() >= FIGURES_MAX {
            left += 1;
            continue;
        }
        figures.push(figure(group, &mut drawing));
        figures.extend(derived::all(group, options.baseline.as_deref(), &mut drawing));
    }
    left += figures.len().saturating_sub(FIGURES_MAX);
    figures.truncate(FIGURES_MAX);
    distinct(&mut figures);
    Ok(ShownPlots { figures, published: drawing.shown, left })
}

/// Makes the anchors different from one another.
fn distinct(figures: &mut [Figure]) {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for figure in figures {
        let times = known.entry(figure.id.clone()).or_default();
        *times += 1;
        if *times > 1 {
            figure.id = format!("{}-{times}", figure.id);
        }
    }
}

/// The order of plots within a subject: the plots that a reader wants first come first.
fn order(group: &Group<'_>) -> (bool, usize, bool, bool) {
    let place = Quantity::ALL.iter().position(|known| *known == group.quantity);
    let is_time = group.against == Against::Time;
    (is_time, place.unwrap_or(usize::MAX), group.is_parts, group.is_rest)
}

/// A subject, a quantity of it, and the quantity of the horizontal axis.
type FirstTold = (Subject, Quantity, Against);

/// The number of many that a plot shows where measurements have several: the median if all have it,
/// else the mean if all have that, since a median and a mean do not compare. None if nothing is
/// common.
fn typical<'a>(items: impl Iterator<Item = Item<'a>>) -> HashMap<FirstTold, Statistic> {
    let mut found: HashMap<FirstTold, HashMap<*const Measurement, [bool; 2]>> = HashMap::new();
    for Item { measurement, series, .. } in items {
        let told = (Subject::of(measurement, series.quantity), series.quantity, series.x.quantity);
        let of = found.entry(told).or_default().entry(std::ptr::from_ref(measurement)).or_default();
        of[0] |= series.statistic == Some(Statistic::Median);
        of[1] |= series.statistic == Some(Statistic::Mean);
    }
    let common = |of: &HashMap<_, [bool; 2]>| {
        let all = |at: usize| of.values().all(|has| has[at]);
        let mean = all(1).then_some(Statistic::Mean);
        all(0).then_some(Statistic::Median).or(mean)
    };
    found.into_iter().filter_map(|(told, of)| Some((told, common(&of)?))).collect()
}

/// Whether a series is not what a reader wants first: a tail, or a mean where there is a median.
fn is_rest(item: &Item<'_>, typical: Option<Statistic>) -> bool {
    let is_median = |it: &Series| {
        it.statistic == Some(Statistic::Median)
            && (it.quantity, it.x.quantity) == (item.series.quantity, item.series.x.quantity)
    };
    match (item.series.statistic, typical) {
        (Some(Statistic::P90 | Statistic::P99 | Statistic::P999 | Statistic::Max), _) => true,
        (Some(own @ (Statistic::Median | Statistic::Mean)), Some(typical)) => own != typical,
        (Some(Statistic::Mean), None) => item.measurement.series.iter().any(is_median),
        (None | Some(Statistic::Median | Statistic::Min), _) => false,
    }
}

/// Every series that has a figure.
fn items<'a>(sources: &'a [Loaded]) -> impl Iterator<Item = Item<'a>> {
    let all = sources.iter().flat_map(|source| {
        source.measurements.iter().flat_map(|measurement| {
            let item = |series| Item { run: Some(&source.run), measurement, series };
            measurement.series.iter().map(item)
        })
    });
    all.filter(|item| !item.series.points.is_empty())
}

fn groups<'a>(sources: &'a [Loaded], published: &'a [Measurement]) -> Vec<Group<'a>> {
    let typical = typical(items(sources));
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut places = HashMap::new();
    for item in items(sources) {
        let (quantity, against) = (item.series.quantity, item.series.x.quantity);
        let subject = Subject::of(item.measurement, quantity);
        let of = typical.get(&(subject.clone(), quantity, against)).copied();
        let (is_rest, is_parts) = (is_rest(&item, of), subject::is_parts(item.measurement));
        let key = (subject.clone(), quantity, against, is_rest, is_parts);
        let place = *places.entry(key).or_insert(groups.len());
        if let Some(group) = groups.get_mut(place) {
            group.items.push(item);
            continue;
        }
        let (items, names, others, left_out) = (vec![item], Vec::new(), Vec::new(), Vec::new());
        groups.push(Group {
            subject,
            quantity,
            against,
            is_rest,
            is_parts,
            items,
            names,
            others,
            left_out,
        });
    }
    add_published(&mut groups, published);
    // A group of tails alone needs no word that it stands beside a median.
    let told = |group: &Group<'_>| (group.subject.clone(), group.quantity, group.against);
    let first: HashSet<FirstTold> =
        groups.iter().filter(|group| !group.is_rest).map(told).collect();
    for group in &mut groups {
        group.is_rest &= first.contains(&told(group));
    }
    let mut subjects: HashMap<String, usize> = HashMap::new();
    for group in &groups {
        let next = subjects.len();
        subjects.entry(group.subject.device().to_owned()).or_insert(next);
    }
    groups.sort_by_key(|group| (subjects[group.subject.device()], order(group)));
    groups.into_iter().flat_map(split_rest).map(once).map(named).collect()
}

/// Splits a group of many means and tails into a plot for each number of many.
fn split_rest(mut group: Group<'_>) -> Vec<Group<'_>> {
    if !group.is_rest || group.items.len() <= REST_MAX {
        return vec![group];
    }
    let mut all: Vec<(Option<Statistic>, Vec<Item<'_>>)> = Vec::new();
    for item in group.items.drain(..) {
        match all.iter_mut().find(|(which, _)| *which == item.series.statistic) {
            Some((_, items)) => items.push(item),
            None => all.push((item.series.statistic, vec![item])),
        }
    }
    let of = |(_, items)| Group {
        subject: group.subject.clone(),
        items,
        names: Vec::new(),
        others: Vec::new(),
        left_out: Vec::new(),
        ..group
    };
    all.into_iter().map(of).collect()
}

/// Removes repeated rows of polling cores. Each model has a fixed number of them, so tables repeat
/// it.
fn once(mut group: Group<'_>) -> Group<'_> {
    if (group.quantity, group.against) != (Quantity::PollingCores, Against::Category) {
        return group;
    }
    let mut kept: Vec<Item<'_>> = Vec::new();
    for item in group.items.drain(..) {
        let says = |known: &Item<'_>, point: &Point| {
            let mut all = known.series.points.iter();
            all.any(|it| (&it.label, it.y) == (&point.label, point.y))
        };
        let is_known = |known: &Item<'_>| {
            known.series.name == item.series.name
                && item.series.points.iter().all(|point| says(known, point))
        };
        if !kept.iter().any(is_known) {
            kept.push(item);
        }
    }
    Group { items: kept, ..group }
}

/// Adds published figures to the groups of measured figures of the same subject. Others are not
/// drawn.
fn add_published<'a>(groups: &mut [Group<'a>], published: &'a [Measurement]) {
    let mut devices = BTreeSet::new();
    for group in groups.iter_mut().filter(|group| !group.is_rest && !group.is_parts) {
        let is_events = group.quantity == Quantity::EventsPerRequest;
        let is_first = is_events && devices.insert(group.subject.device().to_owned());
        for measurement in published {
            if !group.subject.is_of(measurement, group.quantity, is_first) {
                continue;
            }
            for series in measurement.series.iter().filter(|series| !series.points.is_empty()) {
                let item = Item { run: None, measurement, series };
                let is_alike =
                    (series.quantity, series.x.quantity) == (group.quantity, group.against);
                if is_alike { &mut group.items } else { &mut group.others }.push(item);
            }
        }
    }
}

/// Gives names to the series, and removes series that the plot has no room for.
fn named(mut group: Group<'_>) -> Group<'_> {
    group.names = names::of(&group.items);
    let is_stacked = group.quantity.is_part() && !group.is_parts;
    if !is_stacked && group.items.len() > SERIES_SHOWN_MAX {
        group.items.truncate(SERIES_SHOWN_MAX);
        group.left_out = group.names.split_off(SERIES_SHOWN_MAX);
    }
    group
}

fn body<'a>(group: &Group<'a>, drawing: &mut Drawing<'a>, remarks: &mut Vec<String>) -> PlotBody {
    match (group.against, group.only_place()) {
        (Against::Category, _) if group.is_parts => {
            PlotBody::Listed(bars::listed(group, drawing, remarks))
        }
        (Against::Category, _) if group.quantity.is_part() => {
            PlotBody::Bars(bars::stacked(group, drawing, remarks))
        }
        (Against::Category, _) => PlotBody::Bars(bars::beside(group, drawing, remarks)),
        (_, Some(_)) => PlotBody::Bars(bars::at_one_place(group, drawing)),
        _ if is_heat(group) => PlotBody::Heat(curves(group, drawing, remarks)),
        _ => PlotBody::Curves(curves(group, drawing, remarks)),
    }
}

/// Whether the figures are changes at two things: a few places, and a few series. Lines of them
/// would lie on one another, and where they change their sign would be hard to see.
fn is_heat(group: &Group<'_>) -> bool {
    let is_small = (2..=HEAT_PLACES_MAX).contains(&group.places());
    group.quantity == Quantity::PriceChange && group.items.len() > 1 && is_small
}

fn figure<'a>(group: &Group<'a>, drawing: &mut Drawing<'a>) -> Figure {
    group.items.iter().for_each(|item| drawing.shows(item));
    let (unit, x_unit) = (group.unit(), group.x_unit());
    let mut remarks = Vec::new();
    let body = body(group, drawing, &mut remarks);
    let scale = match &body {
        PlotBody::Curves(_) => scale(group, unit),
        PlotBody::Heat(_) | PlotBody::Bars(_) | PlotBody::Listed(_) => AxisScale::Linear,
    };
    // In a stack, ends of the parts' spreads would have no place of their own.
    let is_stack = matches!(&body, PlotBody::Bars(bars) if bars.is_stacked);
    let of_table =
        if is_stack { said::captions(group, "in brackets").concat() } else { String::new() };
    if !is_stack {
        remarks.splice(0..0, said::captions(group, "Thin lines"));
    }
    remarks.extend(said::left_out(&group.left_out));
    if let PlotBody::Curves(curves) = &body {
        remarks.extend(said::no_place(curves, scale));
    }
    if group.against == Against::Category {
        remarks.extend(said::not_measured(group));
    }
    let peaks = group.others.iter().filter(|item| is_peak(group, item, group.quantity));
    remarks.extend(said::planned(group));
    remarks.extend(said::sources(group.items.iter().chain(peaks)));
    let what = if group.is_parts && group.quantity == Quantity::EventsPerRequest {
        "counted per request"
    } else {
        group.quantity.words()
    };
    let title = group.title(what);
    remarks.extend(said::shared(group, &body));
    Figure {
        id: slug(&title),
        subject: group.subject.device().to_owned(),
        description: described(&title, &group.names),
        title,
        cautions: said::cautions(group, said::has_published(&body)),
        remarks,
        x: Axis { words: group.against.words().to_owned(), unit: x_unit, scale: x_scale(group) },
        of_table,
        measured: said::measured(group),
        y: Axis { words: group.told(), unit, scale },
        rules: rules(group),
        body,
    }
}

/// The scale of the vertical axis: logarithmic against sizes, and where figures have a large ratio.
fn scale(group: &Group<'_>, unit: Unit) -> AxisScale {
    if group.against == Against::Category {
        return AxisScale::Linear;
    }
    // Racks differ by some percent of their price, which would be a line from 0 on.
    if group.quantity == Quantity::HostPrice && group.points().all(|point| point.y > 0.0) {
        return AxisScale::Log10;
    }
    let by_size = group.against == Against::MessageSize;
    if by_size && matches!(unit.dimension(), Dimension::Time | Dimension::DataRate) {
        return AxisScale::Log10;
    }
    let figures = || group.points().map(|point| point.y);
    let least = figures().filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
    let most = figures().fold(0.0_f64, f64::max);
    let is_wide = most / least > LINEAR_RATIO_MAX && figures().all(|y| y > 0.0);
    if is_wide { AxisScale::Log10 } else { AxisScale::Linear }
}

fn curves<'a>(
    group: &Group<'a>,
    drawing: &mut Drawing<'a>,
    remarks: &mut Vec<String>,
) -> Vec<Curve> {
    let (unit, x_unit) = (group.unit(), group.x_unit());
    let looks = drawing.looks.of(&group.look_keys());
    let (most, mut thinned) = (points_shown(group.items.len()), (0, 0));
    let curve = |((item, name), look): ((&Item<'_>, &String), SeriesLook)| {
        let shown = thin(&item.series.points, most);
        if shown.len() < item.series.points.len() {
            thinned = (thinned.0 + 1, thinned.1 + item.series.points.len());
        }
        Curve {
            name: name.clone(),
            look,
            is_published: item.is_published(),
            spread: item.series.spread,
            points: shown.iter().map(|point| converted(item, point, unit, x_unit)).collect(),
        }
    };
    let mut curves: Vec<Curve> =
        group.items.iter().zip(&group.names).zip(looks).map(curve).collect();
    let peaks = peaks(group, group.quantity, unit, drawing);
    curves.extend(peaks);
    if thinned.0 > 0 {
        remarks.push(format!(
            "Of the {} points of {} long series the least and the most of each stretch are shown, \
             about {most} of each series; the result's files have all.",
            thinned.1, thinned.0
        ));
    }
    curves
}

/// Lines across the plot: the rates of lines, and the share at which a pool saves nothing.
fn rules(group: &Group<'_>) -> Vec<(f64, String)> {
    if group.quantity != Quantity::SidecoreShare {
        return line_rates(group);
    }
    let all = Unit::Ratio.convert(1.0, group.unit());
    all.map(|all| (all, "as many as without a pool".to_owned())).into_iter().collect()
}

/// The rates that the lines of these series could carry, each rate once.
fn line_rates(group: &Group<'_>) -> Vec<(f64, String)> {
    let unit = group.unit();
    let mut rates: Vec<(f64, Vec<&str>)> = Vec::new();
    let (mut known, mut own) = (0, 0);
    for (item, name) in group.items.iter().zip(&group.names) {
        own += usize::from(!item.is_published());
        let rate = item.series.line_rate.and_then(|rate| item.series.unit.convert(rate, unit));
        let Some(rate) = rate.filter(|_| !item.is_published()) else { continue };
        known += 1;
        match rates.iter_mut().find(|(other, _)| *other == rate) {
            Some((_, names)) => names.push(name),
            None => rates.push((rate, vec![name])),
        }
    }
    rates.truncate(LINE_RATES_MAX);
    let is_one = rates.len() == 1 && known == own;
    let words = |names: &[&str]| match names {
        _ if is_one => "line rate".to_owned(),
        [one] => format!("line rate of {one}"),
        [first, rest @ ..] => format!("line rate of {first} and {} more", rest.len()),
        [] => String::new(),
    };
    rates.into_iter().map(|(rate, names)| (rate, words(&names))).collect()
}
