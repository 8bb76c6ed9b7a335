//! A plot's numbers as rows and columns, for its table, its tooltips and its CSV.

use std::collections::{BTreeMap, HashMap};

use results::{Meant, Point, Spread, Unit};

use super::figure::{Bar, BarPart, Bars, Curve, Figure, PlotBody};
use super::number::exact;

/// The table of a plot.
#[derive(Clone, Debug)]
pub struct PlotTable {
    /// The heading of the rows' heads.
    pub corner: String,
    /// Each column's head.
    pub columns: Vec<PlotColumn>,
    /// The rows.
    pub rows: Vec<PlotRow>,
}

/// A column: a series.
#[derive(Clone, Debug)]
pub struct PlotColumn {
    /// Its full name.
    pub name: String,
    /// The meaning of `low` and `high` in its cells.
    pub spread: Spread,
}

/// A row: a place on the horizontal axis, or a bar.
#[derive(Clone, Debug)]
pub struct PlotRow {
    /// Its place or its name.
    pub head: String,
    /// A cell for each column; none where there is no figure.
    pub cells: Vec<Option<PlotCell>>,
}

/// A figure in the table.
#[derive(Clone, Debug, PartialEq)]
pub struct PlotCell {
    /// The number, in the unit of the vertical axis.
    pub number: f64,
    /// The lower end of the spread.
    pub low: Option<f64>,
    /// The upper end of the spread.
    pub high: Option<f64>,
    /// The precision of the figure: "less than", "about".
    pub meant: Meant,
    /// The words of a stretch or of a published figure.
    pub words: Option<String>,
}

impl PlotCell {
    fn of(point: &Point) -> Self {
        let range = point.x_to.map(|to| format!("up to {}", exact(to)));
        Self {
            number: point.y,
            low: point.low,
            high: point.high,
            meant: point.meant,
            words: range.or_else(|| point.said.clone()),
        }
    }

    /// The text of the cell.
    pub fn text(&self) -> String {
        let sign = match self.meant {
            Meant::Exact => "",
            Meant::About => "≈ ",
            Meant::AtMost => "≤ ",
            Meant::AtLeast => "≥ ",
        };
        let mut text = format!("{sign}{}", exact(self.number));
        match (self.low, self.high) {
            (Some(low), Some(high)) => text += &format!(" ({} to {})", exact(low), exact(high)),
            (Some(low), None) => text += &format!(" (from {})", exact(low)),
            (None, Some(high)) => text += &format!(" (to {})", exact(high)),
            (None, None) => {}
        }
        if let Some(words) = &self.words {
            text += &format!(", {words}");
        }
        text
    }
}

/// The rows of places. Points of one series with the same place have a row each.
#[derive(Debug)]
pub(super) struct PlaceRows {
    rows: HashMap<(u64, usize), usize>,
}

impl PlaceRows {
    /// The rows of all places of the curves, in order, and the places.
    pub(super) fn of(curves: &[Curve]) -> (Self, Vec<f64>) {
        // Numbers that are not negative have the order of their bits.
        let mut found: BTreeMap<(u64, usize), f64> = BTreeMap::new();
        for curve in curves {
            for (point, nth) in numbered(&curve.points) {
                found.insert((key(point.x), nth), point.x);
            }
        }
        let rows = found.keys().copied().zip(0..).collect();
        (Self { rows }, found.into_values().collect())
    }

    /// The rows alone, for drawing.
    pub(super) fn rows(curves: &[Curve]) -> Self {
        Self::of(curves).0
    }

    /// The row of each point, in the order of the points.
    pub(super) fn of_points<'a>(
        &'a self,
        points: &'a [Point],
    ) -> impl Iterator<Item = (usize, &'a Point)> {
        numbered(points).map(|(point, nth)| (self.rows[&(key(point.x), nth)], point))
    }
}

fn key(x: f64) -> u64 {
    (x + 0.0).to_bits()
}

/// Points, each with the number of points before it that have the same place.
fn numbered(points: &[Point]) -> impl Iterator<Item = (&Point, usize)> {
    let mut last = (f64::NAN, 0);
    points.iter().map(move |point| {
        last = if point.x == last.0 { (last.0, last.1 + 1) } else { (point.x, 0) };
        (point, last.1)
    })
}

/// Words with their unit, for a head.
pub fn with_unit(words: &str, unit: Unit) -> String {
    match unit.symbol() {
        "" => words.to_owned(),
        symbol => format!("{words}, {symbol}"),
    }
}

impl Figure {
    /// The table of all numbers of the plot.
    pub fn table(&self) -> PlotTable {
        match &self.body {
            PlotBody::Curves(curves) | PlotBody::Heat(curves) => self.of_curves(curves),
            PlotBody::Bars(bars) | PlotBody::Listed(bars) => of_bars(bars),
        }
    }

    fn of_curves(&self, curves: &[Curve]) -> PlotTable {
        let (places, xs) = PlaceRows::of(curves);
        let row = |x: &f64| PlotRow { head: exact(*x), cells: vec![None; curves.len()] };
        let mut rows: Vec<PlotRow> = xs.iter().map(row).collect();
        for (column, curve) in curves.iter().enumerate() {
            for (at, point) in places.of_points(&curve.points) {
                rows[at].cells[column] = Some(PlotCell::of(point));
                if let Some(label) = &point.label {
                    rows[at].head = format!("{}: {label}", exact(point.x));
                }
            }
        }
        let column = |curve: &Curve| PlotColumn { name: curve.name.clone(), spread: curve.spread };
        PlotTable {
            corner: with_unit(&self.x.words, self.x.unit),
            columns: curves.iter().map(column).collect(),
            rows,
        }
    }
}

fn of_bars(bars: &Bars) -> PlotTable {
    let column = |part: &BarPart| PlotColumn { name: part.name.clone(), spread: part.spread };
    let mut columns: Vec<PlotColumn> = bars.parts.iter().map(column).collect();
    let has_sum = bars.is_stacked && bars.parts.len() > 1;
    if has_sum {
        columns.push(PlotColumn { name: "sum".to_owned(), spread: Spread::None });
    }
    let row = |(at, bar): (usize, &Bar)| {
        let values = bars.parts.iter().map(|part| part.values.get(at).cloned().flatten());
        let mut cells: Vec<Option<PlotCell>> =
            values.map(|point| point.as_ref().map(PlotCell::of)).collect();
        if has_sum {
            cells.push(sum(bars, at));
        }
        PlotRow { head: bar.name.clone(), cells }
    };
    PlotTable {
        corner: String::new(),
        columns,
        rows: bars.rows.iter().enumerate().map(row).collect(),
    }
}

/// The sum of a row. If a part was not measured, the sum is a lower bound.
fn sum(bars: &Bars, row: usize) -> Option<PlotCell> {
    let number = bars.sum(row)?;
    let meant = if bars.rows[row].is_partial { Meant::AtLeast } else { Meant::Exact };
    Some(PlotCell { number, low: None, high: None, meant, words: None })
}

impl Bars {
    pub(super) fn value(&self, part: usize, row: usize) -> Option<&Point> {
        self.parts[part].values.get(row).and_then(Option::as_ref)
    }

    fn present(&self, row: usize) -> impl Iterator<Item = (usize, &Point)> {
        (0..self.parts.len()).filter_map(move |part| Some((part, self.value(part, row)?)))
    }

    /// The sum of a row's parts; none if no part was measured.
    pub(super) fn sum(&self, row: usize) -> Option<f64> {
        let mut parts = self.present(row).peekable();
        parts.peek()?;
        Some(parts.map(|(_, point)| point.y.max(0.0)).sum())
    }
}

impl PlotTable {
    /// A figure in the form of a table, without the words of its text.
    pub fn text_of(point: &Point) -> String {
        PlotCell { words: None, ..PlotCell::of(point) }.text()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, AxisScale, SeriesLook};
    use super::*;

    fn curve(name: &str, points: Vec<Point>) -> Curve {
        let spread = Spread::P5P95;
        Curve {
            name: name.to_owned(),
            look: SeriesLook::nth(0),
            is_published: false,
            spread,
            points,
        }
    }

    fn figure(body: PlotBody) -> Figure {
        let axis =
            |words: &str, unit| Axis { words: words.to_owned(), unit, scale: AxisScale::Linear };
        Figure {
            id: "a".to_owned(),
            title: "A".to_owned(),
            subject: String::new(),
            description: String::new(),
            cautions: Vec::new(),
            remarks: Vec::new(),
            of_table: String::new(),
            measured: Vec::new(),
            x: axis("message size", Unit::Bytes),
            y: axis("latency", Unit::Us),
            rules: Vec::new(),
            body,
        }
    }

    #[test]
    fn rows_are_places_and_columns_are_series() {
        let spread = Point { low: Some(1.0), high: Some(3.0), ..Point::new(8.0, 2.5) };
        let one = curve("one", vec![Point::new(1.0, 0.1), spread]);
        let two = curve("two", vec![Point::new(4.0, 7.0), Point::new(4.0, 9.0)]);
        let table = figure(PlotBody::Curves(vec![one, two])).table();
        let heads: Vec<&str> = table.rows.iter().map(|row| row.head.as_str()).collect();
        assert_eq!(heads, ["1", "4", "4", "8"]);
        assert_eq!(table.rows[3].cells[0].as_ref().unwrap().text(), "2.5 (1 to 3)");
        assert_eq!(table.rows[2].cells[1].as_ref().unwrap().number, 9.0);
        assert!(table.rows[0].cells[1].is_none());
        assert_eq!(table.corner, "message size, B");
    }

    #[test]
    fn a_sum_with_a_part_missing_is_a_least() {
        let part = |name: &str, values| BarPart {
            name: name.to_owned(),
            look: SeriesLook::nth(0),
            is_published: false,
            spread: Spread::None,
            values,
        };
        let two = Point::new(0.0, 2.0);
        let bars = Bars {
            is_stacked: true,
            rows: [("elvis", false), ("baseline", true)]
                .map(|(name, is_partial)| Bar {
                    name: name.to_owned(),
                    is_partial,
                    goes_with_last: false,
                })
                .into(),
            parts: vec![
                part("guest", vec![Some(two.clone()), Some(two.clone())]),
                part("host", vec![Some(two), None]),
            ],
        };
        let table = figure(PlotBody::Bars(bars)).table();
        let sums: Vec<String> =
            table.rows.iter().map(|row| row.cells[2].as_ref().unwrap().text()).collect();
        assert_eq!(sums, ["4", "≥ 2"]);
    }
}
