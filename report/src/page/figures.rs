//! Which plots results make: series of one quantity against one other are in one.

use std::collections::BTreeMap;

use super::thin::{POINTS_SHOWN_MAX, thin};
use super::{
    FIGURES_MAX, Item, Options, PageError, ROWS_SHOWN_MAX, SERIES_SHOWN_MAX, derived, differences,
    names,
};
use crate::plot::style::{COLOURS, Look};
use crate::plot::text::slug;
use crate::plot::{Axis, Bars, Body, Curve, Figure, Part, Scale};
use crate::result::{Measurement, Origin, Point, Run, Spread, Statistic};
use crate::store::Loaded;
use crate::unit::{Against, Dimension, Quantity, Unit};

/// Figures that lie further apart are drawn by tens.
const LINEAR_RATIO_MAX: f64 = 60.0;
/// Of others' peaks in one plot.
const PEAKS_MAX: usize = 12;
/// Names of what is left out, in a remark.
const NAMED_MAX: usize = 5;

/// Benchmarks that measure the same thing by another program, so that a plot may hold both. Those
/// of one plot are named below it.
const FAMILIES: [(&str, &[&str]); 3] = [
    ("messages", &["osu", "mpi", "fabric", "fi_pingpong"]),
    ("disks", &["block", "fio", "compare_block"]),
    ("networks", &["net", "netperf", "iperf3", "sockperf", "compare_net"]),
];

fn family(benchmark: &str) -> &str {
    let has = |(_, known): &&(&str, &[&str])| {
        known.iter().any(|known| {
            benchmark
                .strip_prefix(known)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['_', '-', ' ']))
        })
    };
    FAMILIES.iter().find(has).map_or(benchmark, |(name, _)| name)
}

/// Looks by name: a name looks the same in every plot, if no other one of that plot does.
#[derive(Debug, Default)]
pub(super) struct Looks {
    by_name: BTreeMap<String, usize>,
}

impl Looks {
    pub(super) fn of(&mut self, names: &[String]) -> Vec<Look> {
        let mut used = [false; COLOURS];
        names
            .iter()
            .map(|name| {
                let next = self.by_name.len();
                let number = *self.by_name.entry(name.clone()).or_insert(next);
                let look = Look::nth(number);
                let free = used.iter().position(|used| !used);
                let look = match free {
                    Some(free) if used[look.colour] => Look { colour: free, dash: 0, ..look },
                    Some(_) => Look { dash: 0, ..look },
                    None => look,
                };
                used[look.colour] = true;
                look
            })
            .collect()
    }
}

/// What the plots of a page have in common while they are made.
#[derive(Default)]
pub(super) struct Drawing<'a> {
    pub(super) looks: Looks,
    /// What of others' is shown.
    shown: Vec<&'a Measurement>,
}

impl<'a> Drawing<'a> {
    pub(super) fn shows(&mut self, item: &Item<'a>) {
        let is_known = self.shown.iter().any(|known| std::ptr::eq(*known, item.measurement));
        if item.is_published() && !is_known {
            self.shown.push(item.measurement);
        }
    }
}

/// Series that one plot can hold.
pub(super) struct Group<'a> {
    pub(super) quantity: Quantity,
    pub(super) against: Against,
    pub(super) items: Vec<Item<'a>>,
    /// In the legend, for each of the items.
    pub(super) names: Vec<String>,
    /// What others published of the same family, told otherwise: a peak, an overhead.
    others: Vec<Item<'a>>,
    /// Series that have no place in it.
    left_out: Vec<String>,
}

impl<'a> Group<'a> {
    /// What others published of this quantity against that.
    pub(super) fn others(
        &self,
        quantity: Quantity,
        against: Against,
    ) -> impl Iterator<Item = Item<'a>> {
        let fits = move |item: &&Item<'a>| {
            (item.series.quantity, item.series.x.quantity) == (quantity, against)
        };
        self.others.iter().filter(fits).copied()
    }

    /// The unit that all of it is told in: the first one's.
    pub(super) fn unit(&self) -> Unit {
        self.items[0].series.unit
    }

    pub(super) fn x_unit(&self) -> Unit {
        self.items[0].series.x.unit
    }

    pub(super) fn runs(&self) -> Vec<&Run> {
        let mut runs: Vec<&Run> = Vec::new();
        for run in self.items.iter().filter_map(|item| item.run) {
            if !runs.iter().any(|known| std::ptr::eq(*known, run)) {
                runs.push(run);
            }
        }
        runs
    }
}

type Shown<'a> = (Vec<Figure>, Vec<&'a Measurement>);

/// Every plot of these results, and what was published of which is shown.
pub(super) fn all<'a>(sources: &'a [Loaded], options: &'a Options) -> Result<Shown<'a>, PageError> {
    let groups = groups(sources, &options.published);
    derived::check_baseline(&groups, options.baseline.as_deref())?;
    let mut drawing = Drawing::default();
    let mut figures = Vec::new();
    for group in &groups {
        figures.push(figure(group, &mut drawing));
        figures.extend(derived::all(group, options.baseline.as_deref(), &mut drawing));
    }
    figures.truncate(FIGURES_MAX);
    distinct(&mut figures);
    Ok((figures, drawing.shown))
}

/// Gives each anchor once.
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

/// Where a plot stands among the others: as a reader would ask.
fn order(quantity: Quantity, against: Against) -> (bool, usize) {
    let place = Quantity::ALL.iter().position(|known| *known == quantity);
    (against == Against::Time, place.unwrap_or(usize::MAX))
}

fn groups<'a>(sources: &'a [Loaded], published: &'a [Measurement]) -> Vec<Group<'a>> {
    let own = sources.iter().flat_map(|source| {
        source.measurements.iter().flat_map(|measurement| {
            let item = |series| Item { run: Some(&source.run), measurement, series };
            measurement.series.iter().map(item)
        })
    });
    let mut groups: Vec<(&str, Group<'a>)> = Vec::new();
    for item in own.filter(|item| !item.series.points.is_empty()) {
        let (quantity, against) = (item.series.quantity, item.series.x.quantity);
        let family = family(&item.measurement.benchmark);
        let fits = |(known, group): &&mut (&str, Group<'_>)| {
            (*known, group.quantity, group.against) == (family, quantity, against)
        };
        match groups.iter_mut().find(fits) {
            Some((_, group)) => group.items.push(item),
            None => {
                let (names, others, left_out) = (Vec::new(), Vec::new(), Vec::new());
                let items = vec![item];
                groups.push((family, Group { quantity, against, items, names, others, left_out }));
            }
        }
    }
    // What was published stands beside what was measured, or nowhere.
    for measurement in published {
        let of = family(&measurement.benchmark);
        for (_, group) in groups.iter_mut().filter(|(known, _)| *known == of) {
            for series in measurement.series.iter().filter(|series| !series.points.is_empty()) {
                let item = Item { run: None, measurement, series };
                let is_alike =
                    (series.quantity, series.x.quantity) == (group.quantity, group.against);
                if is_alike { &mut group.items } else { &mut group.others }.push(item);
            }
        }
    }
    groups.sort_by_key(|(_, group)| order(group.quantity, group.against));
    groups.into_iter().map(|(_, group)| named(group)).collect()
}

/// With names, and no more of it than a plot can hold.
fn named(mut group: Group<'_>) -> Group<'_> {
    group.names = names::of(&group.items);
    let is_stacked = group.quantity == Quantity::EventsPerRequest;
    if !is_stacked && group.items.len() > SERIES_SHOWN_MAX {
        group.items.truncate(SERIES_SHOWN_MAX);
        group.left_out = group.names.split_off(SERIES_SHOWN_MAX);
    }
    group
}

fn figure<'a>(group: &Group<'a>, drawing: &mut Drawing<'a>) -> Figure {
    group.items.iter().for_each(|item| drawing.shows(item));
    let (unit, x_unit) = (group.unit(), group.x_unit());
    let mut remarks = Vec::new();
    let is_category = group.against == Against::Category;
    let body = if is_category && group.quantity == Quantity::EventsPerRequest {
        Body::Bars(stacked(group, &mut drawing.looks, &mut remarks))
    } else if is_category {
        Body::Bars(grouped(group, &mut drawing.looks, &mut remarks))
    } else {
        Body::Curves(curves(group, drawing, &mut remarks))
    };
    let scale = scale(group, unit);
    remarks.splice(0..0, captions(group));
    remarks.extend(left_out(&group.left_out));
    if scale != Scale::Linear {
        remarks.extend(no_place(&body));
    }
    let by = if is_category { String::new() } else { format!(" by {}", group.against.words()) };
    let title = capital(&format!("{}{by}", group.quantity.words()));
    let rules = line_rate(group).map(|rate| (rate, "line rate".to_owned()));
    Figure {
        id: slug(&title),
        description: described(&title, &group.names),
        title,
        cautions: cautions(group, has_published(&body)),
        remarks,
        x: Axis { words: group.against.words().to_owned(), unit: x_unit, scale: x_scale(group) },
        y: Axis { words: group.quantity.words().to_owned(), unit, scale },
        rules: rules.into_iter().collect(),
        body,
    }
}

pub(super) fn capital(words: &str) -> String {
    let mut rest = words.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// For who does not see the picture.
pub(super) fn described(title: &str, names: &[String]) -> String {
    let named: Vec<&str> = names.iter().take(NAMED_MAX).map(String::as_str).collect();
    let more = names.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{title}. Series: {}{more}. All of its numbers are in the table.", named.join("; "))
}

pub(super) fn x_scale(group: &Group<'_>) -> Scale {
    match group.against {
        Against::MessageSize | Against::QueueDepth => Scale::Log2,
        Against::Guests | Against::Processes | Against::Sidecores => {
            let most = points(group).fold(0.0_f64, |most, point| most.max(point.x));
            if most > 16.0 { Scale::Log2 } else { Scale::Linear }
        }
        Against::Time | Against::Category => Scale::Linear,
    }
}

/// By tens where sizes are, and where figures lie far apart.
fn scale(group: &Group<'_>, unit: Unit) -> Scale {
    if group.against == Against::Category {
        return Scale::Linear;
    }
    let by_size = group.against == Against::MessageSize;
    if by_size && matches!(unit.dimension(), Dimension::Time | Dimension::DataRate) {
        return Scale::Log10;
    }
    let figures = || points(group).map(|point| point.y);
    let least = figures().filter(|y| *y > 0.0).fold(f64::INFINITY, f64::min);
    let most = figures().fold(0.0_f64, f64::max);
    let is_wide = most / least > LINEAR_RATIO_MAX && figures().all(|y| y > 0.0);
    if is_wide { Scale::Log10 } else { Scale::Linear }
}

fn points<'a>(group: &'a Group<'_>) -> impl Iterator<Item = &'a Point> {
    group.items.iter().flat_map(|item| &item.series.points)
}

/// A point of `item` in the units of its plot.
pub(super) fn converted(item: &Item<'_>, point: &Point, unit: Unit, x_unit: Unit) -> Point {
    let series = item.series;
    let y = |number: f64| series.unit.convert(number, unit).unwrap_or(number);
    let x = |number: f64| series.x.unit.convert(number, x_unit).unwrap_or(number);
    Point {
        x: x(point.x),
        x_to: point.x_to.map(x),
        y: y(point.y),
        low: point.low.map(y),
        high: point.high.map(y),
        ..point.clone()
    }
}

fn curves<'a>(
    group: &Group<'a>,
    drawing: &mut Drawing<'a>,
    remarks: &mut Vec<String>,
) -> Vec<Curve> {
    let (unit, x_unit) = (group.unit(), group.x_unit());
    let looks = drawing.looks.of(&group.names);
    let mut thinned = (0, 0);
    let curve = |((item, name), look): ((&Item<'_>, &String), Look)| {
        let shown = thin(&item.series.points);
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
             about {POINTS_SHOWN_MAX} of each series; the result's files have all.",
            thinned.1, thinned.0
        ));
    }
    curves
}

/// What others say is the most that was reached, whatever the size: a line across the plot.
pub(super) fn peaks<'a>(
    group: &Group<'a>,
    quantity: Quantity,
    unit: Unit,
    drawing: &mut Drawing<'a>,
) -> Vec<Curve> {
    let has_peak = matches!(
        quantity,
        Quantity::Bandwidth | Quantity::BidirectionalBandwidth | Quantity::LineShare
    );
    if !has_peak || group.against != Against::MessageSize {
        return Vec::new();
    }
    let own = || group.items.iter().filter(|item| !item.is_published());
    let xs = || own().flat_map(|item| &item.series.points).map(|point| point.x);
    let first = xs().fold(f64::INFINITY, f64::min);
    let last = xs().fold(0.0, f64::max);
    let mut found = Vec::new();
    for item in group.others(quantity, Against::Category) {
        drawing.shows(&item);
        for point in &item.series.points {
            let point = converted(&item, point, unit, Unit::Name);
            let label = point.label.clone().unwrap_or_default();
            let name = names::published(&item, &label);
            found.push((name, Point { x: first, x_to: Some(last), label: None, ..point }));
        }
    }
    found.truncate(PEAKS_MAX);
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    let looks = drawing.looks.of(&names);
    let curve = |((name, point), look)| Curve {
        name,
        look,
        is_published: true,
        spread: Spread::None,
        points: vec![point],
    };
    found.into_iter().zip(looks).map(curve).collect()
}

/// A row for each name, a bar in it for each series.
fn grouped(group: &Group<'_>, looks: &mut Looks, remarks: &mut Vec<String>) -> Bars {
    let (unit, x_unit) = (group.unit(), group.x_unit());
    let mut rows: Vec<String> = Vec::new();
    for label in points(group).filter_map(|point| point.label.as_ref()) {
        if !rows.contains(label) {
            rows.push(label.clone());
        }
    }
    remarks.extend(cut_rows(&mut rows));
    let looks = looks.of(&group.names);
    let part = |((item, name), look): ((&Item<'_>, &String), Look)| {
        let of_row = |row: &String| {
            let points = &item.series.points;
            let point = points.iter().find(|point| point.label.as_ref() == Some(row))?;
            Some(Point { label: None, ..converted(item, point, unit, x_unit) })
        };
        Part {
            name: name.clone(),
            look,
            is_published: item.is_published(),
            spread: item.series.spread,
            values: rows.iter().map(of_row).collect(),
        }
    };
    let parts = group.items.iter().zip(&group.names).zip(looks).map(part).collect();
    Bars { is_stacked: false, rows, parts }
}

fn cut_rows(rows: &mut Vec<String>) -> Option<String> {
    let more = rows.len().saturating_sub(ROWS_SHOWN_MAX);
    rows.truncate(ROWS_SHOWN_MAX);
    (more > 0).then(|| format!("{more} more rows have no place here: show fewer runs at a time."))
}

/// A row for each name of each measurement; the measurement's series are the parts of its bar.
fn stacked(group: &Group<'_>, looks: &mut Looks, remarks: &mut Vec<String>) -> Bars {
    let mut rows: Vec<(&Measurement, usize, String)> = Vec::new();
    let mut labels: Vec<&str> = Vec::new();
    let mut kinds: Vec<(&str, bool)> = Vec::new();
    let several_runs = group.runs().len() > 1;
    for item in &group.items {
        let kind = (item.series.name.as_str(), item.is_published());
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
        for point in &item.series.points {
            let label = point.label.as_deref().unwrap_or_default();
            let name = row_name(item, label, several_runs);
            let same = |row: &(&Measurement, usize, String)| {
                std::ptr::eq(row.0, item.measurement) && row.2 == name
            };
            if !rows.iter().any(same) {
                let known = labels.iter().position(|known| known.eq_ignore_ascii_case(label));
                let place = known.unwrap_or(labels.len());
                if known.is_none() {
                    labels.push(label);
                }
                rows.push((item.measurement, place, name));
            }
        }
    }
    // The same of several runs stands together.
    rows.sort_by_key(|(_, place, _)| *place);
    let mut heads: Vec<String> = rows.iter().map(|(.., name)| name.clone()).collect();
    remarks.extend(cut_rows(&mut heads));
    rows.truncate(heads.len());
    let names: Vec<String> = kinds
        .iter()
        .map(
            |(name, is_published)| {
                if *is_published { format!("published: {name}") } else { (*name).to_owned() }
            },
        )
        .collect();
    let looks = namesakes(&kinds, looks);
    let parts = kinds.iter().zip(names).zip(looks).map(|((kind, name), look)| {
        let of_row = |(measurement, _, head): &(&Measurement, usize, String)| {
            let item = group.items.iter().find(|item| {
                std::ptr::eq(item.measurement, *measurement) && item.series.name == kind.0
            })?;
            let has =
                |point: &&Point| point.label.as_deref().is_some_and(|label| is_head(head, label));
            item.series.points.iter().find(has).map(|point| Point { label: None, ..point.clone() })
        };
        let values = rows.iter().map(|row| {
            let is_own = (row.0.origin == Origin::Published) == kind.1;
            if is_own { of_row(row) } else { None }
        });
        Part { name, look, is_published: kind.1, spread: Spread::None, values: values.collect() }
    });
    let parts = parts.collect();
    remarks.extend(group_empty(group));
    Bars { is_stacked: true, rows: heads, parts }
}

/// A row's head: a label, and whose it is.
fn row_name(item: &Item<'_>, label: &str, several_runs: bool) -> String {
    let source = item.measurement.source.as_deref().filter(|_| item.is_published());
    match (source, item.run.filter(|_| several_runs)) {
        (Some(source), _) => format!("{label}, published: {source}"),
        (None, Some(run)) => format!("{label}, {}", run.title),
        (None, None) => label.to_owned(),
    }
}

/// Looks by name alone: what was published has the colour of its namesake.
fn namesakes(kinds: &[(&str, bool)], looks: &mut Looks) -> Vec<Look> {
    let mut plain: Vec<String> = Vec::new();
    for (name, _) in kinds {
        if !plain.iter().any(|known| known == name) {
            plain.push((*name).to_owned());
        }
    }
    let looks = looks.of(&plain);
    let place = |name: &str| plain.iter().position(|known| known == name);
    kinds.iter().map(|(name, _)| looks[place(name).expect("it was put there")]).collect()
}

/// Whether a row's head begins with the label, which more may follow.
fn is_head(head: &str, label: &str) -> bool {
    head.strip_prefix(label).is_some_and(|rest| rest.is_empty() || rest.starts_with(", "))
}

/// What could not be measured of what a plot shows.
fn group_empty(group: &Group<'_>) -> Vec<String> {
    let mut measurements: Vec<&Measurement> = Vec::new();
    for item in group.items.iter().filter(|item| !item.is_published()) {
        if !measurements.iter().any(|known| std::ptr::eq(*known, item.measurement)) {
            measurements.push(item.measurement);
        }
    }
    let mut said: Vec<String> = Vec::new();
    for empty in measurements.iter().flat_map(|measurement| &measurement.empty) {
        let words = format!("Not measured: {}: {}.", empty.what, empty.why.trim_end_matches('.'));
        if !said.contains(&words) {
            said.push(words);
        }
    }
    said.truncate(2 * NAMED_MAX);
    said
}

/// What spreads are, each with its series if there are several kinds.
fn captions(group: &Group<'_>) -> Vec<String> {
    let mut kinds: Vec<(Spread, Vec<&str>)> = Vec::new();
    for (item, name) in group.items.iter().zip(&group.names) {
        let spread = item.series.spread;
        let has = item.series.points.iter().any(|point| point.low.or(point.high).is_some());
        if spread.is_none() || !has {
            continue;
        }
        match kinds.iter_mut().find(|(known, _)| *known == spread) {
            Some((_, names)) => names.push(name),
            None => kinds.push((spread, vec![name])),
        }
    }
    match kinds.as_slice() {
        [] => Vec::new(),
        [(spread, _)] => vec![format!("Bars at points: {}.", spread.words())],
        several => several
            .iter()
            .map(|(spread, names)| format!("Bars at points of {}: {}.", few(names), spread.words()))
            .collect(),
    }
}

fn few(names: &[&str]) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    let named = names[..names.len() - more].join("; ");
    if more > 0 { format!("{named}; {more} more") } else { named }
}

fn left_out(names: &[String]) -> Option<String> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let count = names.len();
    (count > 0).then(|| {
        format!(
            "{count} more series have no place here: {}. Show fewer runs at a time.",
            few(&names)
        )
    })
}

/// How many figures a logarithmic axis cannot show.
fn no_place(body: &Body) -> Option<String> {
    let Body::Curves(curves) = body else { return None };
    let points = curves.iter().flat_map(|curve| &curve.points);
    let count = points.filter(|point| point.y <= 0.0).count();
    (count > 0).then(|| {
        format!("{count} figures that are 0 or less have no place on this axis: see the table.")
    })
}

/// The line rate, if all series have the same.
fn line_rate(group: &Group<'_>) -> Option<f64> {
    let unit = group.unit();
    let own = group.items.iter().filter(|item| !item.is_published());
    let mut rates = own.map(|item| item.series.unit.convert(item.series.line_rate?, unit));
    let first = rates.next()??;
    rates.all(|rate| rate == Some(first)).then_some(first)
}

/// Whether something of others' is in it.
pub(super) fn has_published(body: &Body) -> bool {
    match body {
        Body::Curves(curves) => curves.iter().any(|curve| curve.is_published),
        Body::Bars(bars) => bars.parts.iter().any(|part| part.is_published),
    }
}

/// What to mind when the plot's series are compared.
pub(super) fn cautions(group: &Group<'_>, has_published: bool) -> Vec<String> {
    let mut found = differences::between(&group.runs());
    let series = || group.items.iter().map(|item| item.series);
    let mut units: Vec<&str> = series().map(|series| series.unit.symbol()).collect();
    units.sort_unstable();
    units.dedup();
    if units.len() > 1 {
        let to = group.unit().symbol();
        found
            .push(format!("Units differ ({}): all of it was converted to {to}.", units.join(", ")));
    }
    let mut benchmarks: Vec<&str> =
        group.items.iter().map(|item| item.measurement.benchmark.as_str()).collect();
    benchmarks.sort_unstable();
    benchmarks.dedup();
    if benchmarks.len() > 1 {
        found.push(format!("Benchmarks differ: {}.", benchmarks.join(", ")));
    }
    let mut statistics: Vec<&str> =
        series().map(|series| series.statistic.map_or("not said", Statistic::words)).collect();
    statistics.sort_unstable();
    statistics.dedup();
    if statistics.len() > 1 {
        found.push(format!("Which number of many differs: {}.", statistics.join(", ")));
    }
    if has_published {
        found.push(
            "Dashed and hollow: others published it, of other machines, and nothing of it was \
             measured here."
                .to_owned(),
        );
    }
    found
}
