//! The words above and below a plot: cautions, the meaning of bars, missing figures.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use results::{Empty, Machine, Measurement, Quantity, Run, Spread, Statistic};

use super::group::{Group, capital};
use super::item::Item;
use super::{names, subject};
use crate::plot::{AxisScale, Curve, PlotBody};

/// Names of one kind in a sentence.
const NAMED_MAX: usize = 5;
/// Reasons for missing figures, and sources of published figures.
const REASONS_MAX: usize = 10;
/// Characters of a reason. Reasons come from files, and the section at the page's end has more of
/// them.
const REASON_CHARS_MAX: usize = 300;

/// Runs whose machines are named in a picture that stands alone.
const RUNS_NAMED_MAX: usize = 3;

/// The words that the series of a plot share, which their names leave out.
pub(super) fn shared(group: &Group<'_>, body: &PlotBody) -> Option<String> {
    let is_bars = matches!(body, PlotBody::Bars(_) | PlotBody::Listed(_));
    let shared = names::shared(&group.items).filter(|_| !is_bars);
    let what = if group.is_planned() { "planned" } else { "measured" };
    shared.filter(|_| own(group).len() > 1).map(|words| format!("All that was {what}: {words}."))
}

/// The origin of plans, with their notes: below each picture stands of which prices it is.
pub(super) fn planned(group: &Group<'_>) -> Vec<String> {
    let planned: Vec<_> = own(group).into_iter().filter(|item| item.is_planned()).collect();
    let mut lines = Vec::new();
    for item in &planned {
        let Measurement { title, source, notes, .. } = item.measurement;
        let of = if planned.len() > 1 { format!(" “{title}”") } else { String::new() };
        let source = source.as_deref().unwrap_or("source unknown").trim_end_matches('.');
        lines.push(format!("Planned{of}, and not measured. {}.", capital(source)));
        lines
            .extend(notes.iter().filter(|note| !lines.contains(note)).cloned().collect::<Vec<_>>());
    }
    let more = lines.len().saturating_sub(REASONS_MAX);
    lines.truncate(REASONS_MAX);
    lines.extend((more > 0).then(|| format!("And {more} notes more, at the end of the page.")));
    lines.iter().map(|line| crate::plot::text::shorten(line, REASON_CHARS_MAX)).collect()
}

/// The machines on which a picture's runs were measured.
pub(super) fn measured(group: &Group<'_>) -> Vec<String> {
    let mut known = BTreeSet::new();
    let runs = group.items.iter().filter_map(|item| Some((item.run?, item.is_planned())));
    let runs: Vec<(&Run, bool)> =
        runs.filter(|(run, _)| known.insert(std::ptr::from_ref(*run))).collect();
    let more = runs.len().saturating_sub(RUNS_NAMED_MAX);
    let made = |(run, is_planned): &(&Run, bool)| made(run, *is_planned);
    let mut lines: Vec<String> = runs.iter().take(RUNS_NAMED_MAX).map(made).collect();
    lines.extend((more > 0).then(|| format!("And {more} runs more.")));
    lines
}

fn made(run: &Run, is_planned: bool) -> String {
    let Run { title, begun, machine, .. } = run;
    let day = begun.split('T').next().unwrap_or_default();
    if is_planned {
        return format!("{title}: a plan, drawn on {day}; nothing of it was measured.");
    }
    let Some(machine) = machine else {
        return format!("{title}: imported on {day}; its machine is not known.");
    };
    let Machine { processor, cores, kernel, version, commit, .. } = machine;
    // A distribution's suffix of a kernel's version sets no measurement apart.
    let kernel = kernel.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    let build = [version, commit].into_iter().flatten().map(String::as_str).collect::<Vec<_>>();
    let slow = if machine.optimised == Some(false) { ", not optimised" } else { "" };
    format!(
        "{title}, {day}: {processor}, cores: {cores}, Linux {kernel}; vrio {}{slow}.",
        build.join(" ")
    )
}

/// Some of the names: `a; b; 3 more`.
pub(super) fn few(names: &[&str]) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    let named = names[..names.len() - more].join("; ");
    if more > 0 { format!("{named}; {more} more") } else { named }
}

/// The sentence about series without a place.
pub(super) fn left_out(names: &[String]) -> Option<String> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let count = names.len();
    (count > 0).then(|| {
        format!(
            "{count} more series have no place here: {}. Show fewer runs at a time.",
            few(&names)
        )
    })
}

/// The meaning of spreads, each with its series if there are several kinds. A sentence begins with
/// `what`, the mark that a reader sees in the plot or table.
pub(super) fn captions(group: &Group<'_>, what: &str) -> Vec<String> {
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
        [(spread, _)] => vec![format!("{what}: {}.", spread.words())],
        several => several
            .iter()
            .map(|(spread, names)| format!("{what} of {}: {}.", few(names), spread.words()))
            .collect(),
    }
}

/// The number of figures that such an axis cannot show, in a sentence.
pub(super) fn no_place(curves: &[Curve], scale: AxisScale) -> Option<String> {
    let points = curves.iter().flat_map(|curve| &curve.points);
    let count = points.filter(|point| !scale.has(point.y)).count();
    let which = match scale {
        AxisScale::TimesMore => "of nothing at all",
        AxisScale::TimesLess => "of all of it",
        AxisScale::Linear | AxisScale::Log2 | AxisScale::Log10 => "that are 0 or less",
    };
    (count > 0)
        .then(|| format!("{count} figures {which} have no place on this axis: see the table."))
}

/// The sources of published series.
pub(super) fn sources<'a>(items: impl Iterator<Item = &'a Item<'a>>) -> Vec<String> {
    let mut by_source: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for item in items.filter(|item| item.is_published()) {
        let source = item.measurement.source.as_deref().unwrap_or("source unknown");
        by_source.entry(source).or_default().insert(&item.measurement.title);
    }
    let more = by_source.len().saturating_sub(REASONS_MAX);
    let line = |(source, titles): (&str, BTreeSet<&str>)| {
        format!("Published: {}: {source}.", few(&titles.into_iter().collect::<Vec<_>>()))
    };
    let mut lines: Vec<String> = by_source.into_iter().take(REASONS_MAX).map(line).collect();
    lines.extend((more > 0).then(|| format!("And {more} sources more.")));
    lines
}

/// The measurements of a group that are ours, each once, with one of its items.
pub(super) fn own<'g, 'a>(group: &'g Group<'a>) -> Vec<&'g Item<'a>> {
    let mut known = BTreeSet::new();
    let own = group.items.iter().filter(|item| !item.is_published());
    own.filter(|item| known.insert(std::ptr::from_ref(item.measurement))).collect()
}

/// An empty cell of a table, as its words name it: a column and a row, a row, or something else.
pub(super) struct EmptyCell<'a> {
    pub(super) column: Option<&'a str>,
    pub(super) row: &'a str,
    /// Whether the row is a model, or has figures of its own elsewhere in the measurement.
    pub(super) is_row: bool,
    why: &'a str,
}

/// The empty cells of a measurement. `injections, Elvis` is a column and a row where Elvis is a
/// model or has figures of its own; a row may have commas in its name.
pub(super) fn cells(measurement: &Measurement) -> impl Iterator<Item = EmptyCell<'_>> {
    let points = measurement.series.iter().flat_map(|series| &series.points);
    let labels: BTreeSet<&str> = points.filter_map(|point| point.label.as_deref()).collect();
    let is_row = move |words: &str| labels.contains(words) || subject::row_word(words).is_some();
    measurement.empty.iter().map(move |Empty { what, why }| {
        let ends = what.match_indices(", ").map(|(at, _)| (Some(&what[..at]), &what[at + 2..]));
        let found = ends.into_iter().find(|(_, row)| is_row(row)).filter(|_| !is_row(what));
        let (column, row) = found.unwrap_or((None, what));
        let why = why.strip_prefix(row).and_then(|why| why.strip_prefix(": ")).unwrap_or(why);
        EmptyCell { column, row, is_row: is_row(row), why: why.trim_end_matches('.') }
    })
}

/// Whether an empty cell belongs into a plot of this quantity. Columns of events do not belong to
/// speeds, nor speeds to events.
pub(super) fn belongs(cell: &EmptyCell<'_>, measurement: &Measurement, quantity: Quantity) -> bool {
    let is_event = quantity == Quantity::EventsPerRequest;
    match cell.column {
        None => is_event || subject::row(cell.row) != subject::row("emulation"),
        Some(column) if subject::is_column(column) => is_event,
        Some(column) => {
            let mut of = measurement.series.iter().filter(|series| series.name == column);
            let is_known = measurement.series.iter().any(|series| series.name == column);
            of.any(|series| series.quantity == quantity) || (!is_known && !is_event)
        }
    }
}

/// Rows with a figure, and their measurements.
type Rows<'a> = HashSet<(*const Measurement, &'a str)>;

/// A column, and the reason that cells of it are empty.
type Hole<'a> = (&'a str, &'a str);

/// Columns that are empty for one reason in all rows of the measurement.
fn whole_columns<'a>(measurement: &'a Measurement, rows: &Rows<'a>) -> BTreeSet<Hole<'a>> {
    let mut empty: BTreeMap<Hole<'a>, BTreeSet<&str>> = BTreeMap::new();
    for cell in cells(measurement) {
        if let Some(column) = cell.column {
            empty.entry((column, cell.why)).or_default().insert(cell.row);
        }
    }
    let of = std::ptr::from_ref(measurement);
    let rows: BTreeSet<&str> =
        rows.iter().filter(|(its, _)| *its == of).map(|(_, row)| *row).collect();
    empty.into_iter().filter(|(_, empty)| rows.is_subset(empty)).map(|(hole, _)| hole).collect()
}

/// The missing figures of a plot: each reason once, with all its places.
pub(super) fn not_measured<'a>(group: &Group<'a>) -> Vec<String> {
    let is_event = group.quantity.is_part();
    let own = own(group);
    let tables = names::of_measurements(&own);
    // By reason: the missing figures, and the tables that lack them.
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut of: BTreeMap<(&str, String), Vec<&str>> = BTreeMap::new();
    let points = |item: &Item<'a>| {
        let of = std::ptr::from_ref(item.measurement);
        item.series.points.iter().filter_map(move |point| Some((of, point.label.as_deref()?)))
    };
    let figures: Rows<'_> = group.items.iter().flat_map(points).collect();
    for (item, table) in own.iter().zip(&tables) {
        let whole = whole_columns(item.measurement, &figures);
        for cell in cells(item.measurement) {
            // A missing cell of a row that has its figure belongs to another quantity.
            let has_figure =
                !is_event && figures.contains(&(std::ptr::from_ref(item.measurement), cell.row));
            if has_figure || !belongs(&cell, item.measurement, group.quantity) {
                continue;
            }
            let column = cell.column.filter(|_| is_event);
            let what = match column.map(|column| (subject::column(column).1, column)) {
                Some((named, column)) if whole.contains(&(column, cell.why)) => named.to_owned(),
                Some((named, _)) => format!("{named}, {}", cell.row),
                None => cell.row.to_owned(),
            };
            let place = *places.entry(cell.why).or_insert(reasons.len());
            if place == reasons.len() {
                reasons.push((cell.why, Vec::new()));
            }
            let all = of.entry((cell.why, what.clone())).or_default();
            if all.is_empty() {
                reasons[place].1.push(what);
            }
            if all.last() != Some(&table.as_str()) {
                all.push(table);
            }
        }
    }
    let more = reasons.len().saturating_sub(REASONS_MAX);
    let line = |(why, what): (&str, Vec<String>)| {
        // A figure that all tables lack is named without tables.
        let whose = |what: &String| match &of[&(why, what.clone())] {
            tables if tables.len() == own.len() => what.clone(),
            tables => format!("{what} ({})", few(tables)),
        };
        let what: Vec<String> = what.iter().map(whose).collect();
        let what: Vec<&str> = what.iter().map(String::as_str).collect();
        let why = crate::plot::text::shorten(why, REASON_CHARS_MAX);
        let no = if group.is_planned() { "No figure" } else { "Not measured" };
        format!("{no}: {}: {why}.", few(&what))
    };
    let mut lines: Vec<String> = reasons.into_iter().take(REASONS_MAX).map(line).collect();
    lines.extend((more > 0).then(|| format!("And {more} reasons more, at the end of the page.")));
    lines
}

/// Whether the plot has published figures.
pub(super) fn has_published(body: &PlotBody) -> bool {
    match body {
        PlotBody::Curves(curves) | PlotBody::Heat(curves) => {
            curves.iter().any(|curve| curve.is_published)
        }
        PlotBody::Bars(bars) | PlotBody::Listed(bars) => {
            bars.parts.iter().any(|part| part.is_published)
        }
    }
}

/// The cautions for a comparison of the plot's series.
pub(super) fn cautions(group: &Group<'_>, has_published: bool) -> Vec<String> {
    let mut found = super::differences::of_group(group);
    let series = || group.items.iter().map(|item| item.series);
    let several = |what: Vec<&'static str>| -> Option<String> {
        let all: BTreeSet<&str> = what.into_iter().collect();
        (all.len() > 1).then(|| all.into_iter().collect::<Vec<_>>().join(", "))
    };
    if let Some(units) = several(series().map(|series| series.unit.symbol()).collect()) {
        let to = group.unit().symbol();
        found.push(format!("Units differ ({units}): all of it was converted to {to}."));
    }
    let own = || group.items.iter().filter(|item| !item.is_published());
    let benchmarks: BTreeSet<&str> =
        own().map(|item| item.measurement.benchmark.as_str()).collect();
    if benchmarks.len() > 1 {
        let all: Vec<&str> = benchmarks.into_iter().collect();
        found.push(format!("Benchmarks differ: {}.", few(&all)));
    }
    let words = |series: &results::Series| series.statistic.map(Statistic::words);
    let own = own().map(|item| words(item.series).unwrap_or("not said")).collect();
    if let Some(statistics) = several(own) {
        found.push(format!("Which number of many differs: {statistics}."));
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
