//! The bars of a plot of names: beside one another, or as parts of one bar.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use results::{Measurement, Point, Quantity, Spread};

use super::group::{Drawing, Group, converted};
use super::item::Item;
use super::options::{ROWS_SHOWN_MAX, SERIES_SHOWN_MAX};
use super::said::{belongs, cells, own};
use super::{names, subject};
use crate::plot::{Bar, BarPart, Bars, SeriesLook};

/// The order of rows: models in the order of the slides, all others in their own order.
fn rank(group: &Group<'_>, label: &str) -> usize {
    let known = group.subject.is_models().then(|| subject::row(label)).flatten();
    known.unwrap_or(usize::MAX)
}

/// Rows of bars beside one another: every name that has a figure, and every name with a reason for
/// a missing figure.
fn rows<'a>(group: &Group<'a>) -> Vec<&'a str> {
    let mut known = BTreeSet::new();
    let points = group.items.iter().flat_map(|item| &item.series.points);
    let labels = points.filter_map(|point| point.label.as_deref());
    let mut rows: Vec<&str> = labels.filter(|label| known.insert(*label)).collect();
    for item in own(group) {
        let own = item.measurement;
        let empty = cells(own).filter(|cell| cell.is_row && belongs(cell, own, group.quantity));
        rows.extend(empty.map(|cell| cell.row).filter(|row| known.insert(row)));
    }
    rows.sort_by_key(|label| rank(group, label));
    rows
}

fn cut_rows<T>(rows: &mut Vec<T>) -> Option<String> {
    let more = rows.len().saturating_sub(ROWS_SHOWN_MAX);
    rows.truncate(ROWS_SHOWN_MAX);
    (more > 0).then(|| format!("{more} more rows have no place here: show fewer runs at a time."))
}

fn bar(name: &str) -> Bar {
    Bar { name: name.to_owned(), is_partial: false, goes_with_last: false }
}

/// A row for each name, with a bar for each series.
pub(super) fn beside(
    group: &Group<'_>,
    drawing: &mut Drawing<'_>,
    remarks: &mut Vec<String>,
) -> Bars {
    let (unit, x_unit) = (group.unit(), group.x_unit());
    let mut rows = rows(group);
    remarks.extend(cut_rows(&mut rows));
    let looks = drawing.looks.of(&group.look_keys());
    let part = |((item, name), look): ((&Item<'_>, &String), SeriesLook)| {
        let mut by_label: HashMap<&str, &Point> = HashMap::new();
        for point in &item.series.points {
            by_label.entry(point.label.as_deref().unwrap_or_default()).or_insert(point);
        }
        let of_row = |row: &&str| {
            let point = by_label.get(row)?;
            Some(Point { label: None, ..converted(item, point, unit, x_unit) })
        };
        BarPart {
            name: name.clone(),
            look,
            is_published: item.is_published(),
            spread: item.series.spread,
            values: rows.iter().map(of_row).collect(),
        }
    };
    let parts = group.items.iter().zip(&group.names).zip(looks).map(part).collect();
    Bars { is_stacked: false, rows: rows.into_iter().map(bar).collect(), parts }
}

/// A row for each series, for series that all have the same single place on their axis.
pub(super) fn at_one_place(group: &Group<'_>, drawing: &mut Drawing<'_>) -> Bars {
    let (unit, x_unit) = (group.unit(), group.x_unit());
    let all: Vec<Point> = (group.items.iter())
        .map(|item| converted(item, &item.series.points[0], unit, x_unit))
        .map(|point| Point { label: None, ..point })
        .collect();
    // Published bars look otherwise, and bars of two kinds of spread have two names.
    let kind = |item: &Item<'_>| (item.is_published(), item.series.spread.words());
    let kinds: BTreeSet<(bool, &str)> = group.items.iter().map(kind).collect();
    let names: Vec<String> = kinds
        .iter()
        .map(|(is_published, spread)| match (is_published, *spread) {
            (true, _) => "published".to_owned(),
            (false, "") => group.quantity.words().to_owned(),
            (false, spread) => format!("{}, {spread}", group.quantity.words()),
        })
        .collect();
    let looks = drawing.looks.of(&names);
    let part = |((of, name), look): ((&(bool, &str), String), SeriesLook)| {
        let own = group.items.iter().find(|item| kind(item) == *of);
        let value = |(item, point): (&Item<'_>, &Point)| (kind(item) == *of).then(|| point.clone());
        BarPart {
            name,
            look,
            is_published: of.0,
            spread: own.map_or(Spread::None, |item| item.series.spread),
            values: group.items.iter().zip(&all).map(value).collect(),
        }
    };
    let parts = kinds.iter().zip(names).zip(looks).map(part).collect();
    Bars { is_stacked: false, rows: group.names.iter().map(|name| bar(name)).collect(), parts }
}

/// A row of a stack, before its parts are known.
struct Stack<'a> {
    measurement: &'a Measurement,
    label: &'a str,
    /// The measurement's name within the group.
    table: String,
    is_published: bool,
}

/// A column. Published columns come last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BarKind<'a> {
    is_published: bool,
    /// Its place among all columns.
    place: usize,
    name: &'a str,
}

/// The rows and figures of a stack of events.
#[derive(Default)]
struct Stacks<'a> {
    rows: Vec<Stack<'a>>,
    by_row: HashMap<(*const Measurement, &'a str), usize>,
    kinds: BTreeSet<BarKind<'a>>,
    figures: BTreeMap<(usize, BarKind<'a>), &'a Point>,
}

impl<'a> Stacks<'a> {
    fn row(&mut self, item: &Item<'a>, label: &'a str, table: &str) -> usize {
        let key = (std::ptr::from_ref(item.measurement), label);
        *self.by_row.entry(key).or_insert_with(|| {
            self.rows.push(Stack {
                measurement: item.measurement,
                label,
                table: table.to_owned(),
                is_published: item.is_published(),
            });
            self.rows.len() - 1
        })
    }

    fn of(group: &Group<'a>) -> Self {
        let mut it = Self::default();
        let own = own(group);
        let tables: HashMap<*const Measurement, String> = own
            .iter()
            .map(|item| std::ptr::from_ref(item.measurement))
            .zip(names::of_measurements(&own))
            .collect();
        let table = |item: &Item<'_>| {
            tables.get(&std::ptr::from_ref(item.measurement)).map_or("", String::as_str)
        };
        // Prices have the order of the plan, whose dearest part is the first.
        let mut prices: Vec<&str> = Vec::new();
        for item in &group.items {
            let (mut place, name) = subject::column(&item.series.name);
            if group.quantity == Quantity::PartPrice {
                let known = prices.iter().position(|known| *known == name);
                place = known.unwrap_or(prices.len());
                prices.extend(known.is_none().then_some(name));
            }
            let kind = BarKind { is_published: item.is_published(), place, name };
            it.kinds.insert(kind);
            for point in &item.series.points {
                let label = point.label.as_deref().unwrap_or_default();
                let row = it.row(item, label, table(item));
                it.figures.entry((row, kind)).or_insert(point);
            }
        }
        for item in own {
            let own = item.measurement;
            for cell in cells(own).filter(|cell| belongs(cell, own, Quantity::EventsPerRequest)) {
                if cell.column.is_none() && subject::row_word(cell.row).is_some() {
                    it.row(item, cell.row, table(item));
                }
            }
        }
        it
    }
}

/// A row for each name of each measurement; the measurement's series are the parts of its bar.
pub(super) fn stacked(
    group: &Group<'_>,
    drawing: &mut Drawing<'_>,
    remarks: &mut Vec<String>,
) -> Bars {
    let stacks = Stacks::of(group);
    // Rows with one label from several runs stand together, and published rows with that label
    // below them.
    let mut first: HashMap<String, usize> = HashMap::new();
    let mut order: Vec<(usize, usize, bool, usize)> = Vec::new();
    for (at, row) in stacks.rows.iter().enumerate() {
        let next = first.len();
        let place = *first.entry(row.label.to_lowercase()).or_insert(next);
        let rank = rank(group, row.label);
        let place = if rank == usize::MAX { place } else { 0 };
        order.push((rank, place, row.is_published, at));
    }
    order.sort_unstable();
    remarks.extend(cut_rows(&mut order));
    let mut kinds: Vec<_> = stacks.kinds.iter().copied().collect();
    let more = kinds.len().saturating_sub(SERIES_SHOWN_MAX);
    if more > 0 {
        kinds.truncate(SERIES_SHOWN_MAX);
        remarks.push(format!("{more} more columns have no place here, and sums are without them."));
    }
    // By name alone: a published column has the colour of its namesake.
    let columns: BTreeSet<(usize, &str)> = kinds.iter().map(|it| (it.place, it.name)).collect();
    let plain: Vec<String> = columns.iter().map(|(_, name)| (*name).to_owned()).collect();
    let looks = drawing.looks.of(&plain);
    let part = |kind: &BarKind<'_>| {
        let BarKind { is_published, name: column, .. } = *kind;
        let place = plain.iter().position(|name| name == column).unwrap_or_default();
        let value = |(.., row): &(usize, usize, bool, usize)| {
            let point = stacks.figures.get(&(*row, *kind))?;
            Some(Point { label: None, ..(*point).clone() })
        };
        let of = |item: &&Item<'_>| {
            subject::column(&item.series.name).1 == column && item.is_published() == is_published
        };
        let spread = group.items.iter().find(of).map_or(Spread::None, |item| item.series.spread);
        let name = if is_published { format!("published: {column}") } else { column.to_owned() };
        let values = order.iter().map(value).collect();
        BarPart { name, look: looks[place], is_published, spread, values }
    };
    let parts = kinds.iter().map(part).collect();
    let partial = partial(group, &plain.iter().map(String::as_str).collect());
    let row = |(nth, (rank, place, _, at)): (usize, &(usize, usize, bool, usize))| {
        let above = nth.checked_sub(1).and_then(|nth| order.get(nth));
        let is_same = above.is_some_and(|(of, above, ..)| (of, above) == (rank, place));
        Bar { goes_with_last: is_same, ..stack(&stacks.rows[*at], &partial) }
    };
    let rows = order.iter().enumerate().map(row).collect();
    Bars { is_stacked: true, rows, parts }
}

/// Rows of measurements in which a part is missing.
type Partial<'a> = HashSet<(*const Measurement, &'a str)>;

fn partial<'a>(group: &Group<'a>, columns: &BTreeSet<&str>) -> Partial<'a> {
    let is_part = |column: &str| subject::is_column(column) || columns.contains(column);
    let of = own(group).into_iter().flat_map(|item| {
        let measurement = std::ptr::from_ref(item.measurement);
        let parts = cells(item.measurement).filter(move |cell| cell.column.is_some_and(is_part));
        parts.map(move |cell| (measurement, cell.row))
    });
    of.collect()
}

/// The head of a row, and whether a part of it is missing.
fn stack(row: &Stack<'_>, partial: &Partial<'_>) -> Bar {
    let name = match (row.is_published, row.table.as_str()) {
        (true, _) => format!("{} (published)", row.label),
        (false, "") => row.label.to_owned(),
        (false, table) => format!("{}, {table}", row.label),
    };
    let is_partial = partial.contains(&(std::ptr::from_ref(row.measurement), row.label));
    Bar { is_partial: is_partial && !row.is_published, ..bar(&name) }
}

/// Counters beside one another: a table alone, since the counters are no parts of a sum.
pub(super) fn listed(
    group: &Group<'_>,
    drawing: &mut Drawing<'_>,
    remarks: &mut Vec<String>,
) -> Bars {
    if group.quantity == Quantity::EventsPerRequest {
        remarks.push(
            "Counters beside one another, no parts of a sum: some count the same event on its way."
                .to_owned(),
        );
    }
    beside(group, drawing, remarks)
}
