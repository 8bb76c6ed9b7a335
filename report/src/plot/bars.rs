//! A horizontal bar for each name, since names are long.

use std::fmt::Write as _;

use results::{Dimension, Point, Unit};

use super::area::{Area, RIGHT, WIDTH};
use super::figure::{BarPart, Bars, Figure, LegendKey};
use super::number::{place, rounded, tick};
use super::scale::ScaleSpan;
use super::text::{escape, wrap};

/// The height of a bar, and the gap between rows.
const BAR: f64 = 15.0;
const STACKED_BAR: f64 = 20.0;
const BETWEEN: f64 = 13.0;
/// The gap between a row and the row that belongs to it.
const WITHIN: f64 = 5.0;
/// The characters and the lines of a row's name.
const NAME_CHARS: usize = 34;
const NAME_LINES: usize = 2;
/// The width of a character, about; the gap before and after a name; the least width of names.
const CHAR_WIDTH: f64 = 6.9;
const NAME_GAP: f64 = 8.0;
const NAMES_LEAST: f64 = 90.0;
/// The room after the longest bar, as a part of the axis.
const LEAST_ROOM: f64 = 0.02;
/// The gap before a bar's number.
const NUMBER_GAP: f64 = 5.0;
/// A count below this part of the axis has no number of its own.
const LEAST_SHOWN: f64 = 1e-4;
/// A larger number counts as something, also beside much longer bars.
const NOTHING_MAX: f64 = 5e-3;
/// Digits of a count that is a mean of many: the digits after them are noise.
const COUNT_DIGITS: usize = 3;

/// The place of a row, from the upper end of all rows.
struct BarRow {
    top: f64,
    height: f64,
    /// For each part, its place among the parts of this row.
    places: Vec<Option<usize>>,
}

/// The rows: a row with fewer bars is lower.
fn rows(bars: &Bars) -> Vec<BarRow> {
    let mut top = 0.0;
    let goes_with = |row: usize| bars.rows.get(row).is_some_and(|bar| bar.goes_with_last);
    let row = |row: usize| {
        let mut count = 0_usize;
        let place = |part| {
            bars.value(part, row)?;
            count += 1;
            Some(count - 1)
        };
        let places = (0..bars.parts.len()).map(place).collect();
        let inside = if bars.is_stacked { STACKED_BAR } else { BAR * count as f64 };
        let inside = inside.max(STACKED_BAR);
        let gap = |is_within: bool| if is_within { WITHIN / 2.0 } else { BETWEEN / 2.0 };
        let (before, behind) = (gap(goes_with(row)), gap(goes_with(row + 1)));
        let first = top + before;
        top = first + inside + behind;
        BarRow { top: first, height: inside, places }
    };
    (0..bars.rows.len()).map(row).collect()
}

/// The height of all rows.
pub(super) fn height(bars: &Bars) -> f64 {
    rows(bars).last().map_or(STACKED_BAR, |last| last.top + last.height + BETWEEN / 2.0)
}

/// The width of the rows' names: short names leave more to the bars.
pub(super) fn names_width(bars: &Bars) -> f64 {
    let lines = bars.rows.iter().flat_map(|row| wrap(&row.name, NAME_CHARS, NAME_LINES));
    let longest = lines.map(|line| line.chars().count()).max().unwrap_or_default();
    (longest as f64 * CHAR_WIDTH + 2.0 * NAME_GAP).max(NAMES_LEAST)
}

/// The horizontal axis of numbers; the other axis is not used.
pub(super) fn spans(figure: &Figure, bars: &Bars) -> (ScaleSpan, ScaleSpan) {
    let ends = |point: &Point| [Some(point.y), point.low, point.high];
    let numbers: Vec<f64> = if bars.is_stacked {
        (0..bars.rows.len()).filter_map(|row| bars.sum(row)).collect()
    } else {
        let points = bars.parts.iter().flat_map(|part| &part.values).flatten();
        points.flat_map(ends).flatten().collect()
    };
    let rules: Vec<f64> = figure.rules.iter().map(|(number, _)| *number).collect();
    // The room after the longest bar for its number.
    let digits = numbers.iter().map(|number| words(figure, *number, 0.0).chars().count() + 2);
    let number = NUMBER_GAP + CHAR_WIDTH * digits.max().unwrap_or_default() as f64;
    let room = (number - RIGHT).max(0.0) / (WIDTH - RIGHT - names_width(bars));
    let (least, most) = numbers
        .iter()
        .chain(&rules)
        .fold((0.0_f64, 0.0_f64), |(low, high), it| (low.min(*it), high.max(*it)));
    // The axis ends a little after the longest bar, not at the next tick: the room is for the
    // numbers.
    let room = room.clamp(LEAST_ROOM, 0.5);
    let widest = (most - least * room) / (1.0 - room);
    let is_binary = figure.y.unit.dimension() == Dimension::Data;
    (ScaleSpan::tight(least, widest).binary(is_binary), ScaleSpan::tight(0.0, 1.0))
}

pub(super) fn draw(figure: &Figure, bars: &Bars, area: &Area) -> String {
    let rows = rows(bars);
    let mut out = names(bars, &rows, area);
    // The present end of each row's stack.
    let mut reached = vec![0.0; bars.rows.len()];
    for (number, part) in bars.parts.iter().enumerate() {
        let (mut boxes, mut spreads, mut places) = (String::new(), String::new(), String::new());
        for (row, from) in reached.iter_mut().enumerate() {
            let Some(point) = bars.value(number, row) else { continue };
            let (begin, end) = if bars.is_stacked {
                let begin = *from;
                *from += point.y.max(0.0);
                (begin, *from)
            } else {
                (0.0, point.y)
            };
            let (top, high) = bar_place(bars, area, &rows[row], number);
            let (Some(x), Some(to)) = (area.at_x(begin), area.at_x(end)) else { continue };
            let [x, to, top, middle] = [x, to, top, top + high / 2.0].map(place);
            // The outline of an empty bar would be a line.
            if end > begin || !bars.is_stacked {
                let _ = write!(boxes, "M{x} {top}H{to}v{high}H{x}z");
            }
            let _ = write!(places, "{row},{to},{middle} ");
            if !bars.is_stacked {
                spread(point, middle, area, &mut spreads);
            }
        }
        let BarPart { name, look, is_published, .. } = part;
        let classes = LegendKey { name, look: *look, is_published: *is_published }.classes();
        let places = places.trim_end();
        let _ = write!(
            out,
            "<g class=\"{classes}\" data-k=\"{number}\" data-p=\"{places}\">\
             <path class=\"box\" d=\"{boxes}\"/><path class=\"spread over\" d=\"{spreads}\"/></g>"
        );
    }
    out + &numbers(figure, bars, &rows, area)
}

/// The upper end and the height of a bar.
fn bar_place(bars: &Bars, area: &Area, row: &BarRow, part: usize) -> (f64, f64) {
    let place = row.places.get(part).copied().flatten().unwrap_or_default();
    let bar = if bars.is_stacked { STACKED_BAR } else { BAR };
    let count = if bars.is_stacked { 1 } else { row.places.iter().flatten().count().max(1) };
    let top = area.top + row.top + (row.height - bar * count as f64) / 2.0;
    if bars.is_stacked { (top, bar) } else { (top + place as f64 * bar, bar - 2.0) }
}

/// A line from `low` to `high`.
fn spread(point: &Point, y: f64, area: &Area, out: &mut String) {
    let low = area.at_x(point.low.unwrap_or(point.y));
    let high = area.at_x(point.high.unwrap_or(point.y));
    let (Some(low), Some(high)) = (low, high) else { return };
    if point.low.or(point.high).is_some() {
        let [low, high, y, above] = [low, high, y, y - 3.0].map(place);
        let _ = write!(out, "M{low} {y}H{high}");
        for at in [low, high] {
            let _ = write!(out, "M{at} {above}v6");
        }
    }
}

fn names(bars: &Bars, rows: &[BarRow], area: &Area) -> String {
    let mut out = String::from("<g text-anchor=\"end\">");
    for (bar, row) in bars.rows.iter().zip(rows) {
        let lines = wrap(&bar.name, NAME_CHARS, NAME_LINES);
        let middle = area.top + row.top + row.height / 2.0;
        for (at, line) in lines.iter().enumerate() {
            let y = middle + 4.0 + (at as f64 - (lines.len() as f64 - 1.0) / 2.0) * 14.0;
            let x = area.left - NAME_GAP;
            let _ = write!(out, "<text x=\"{x}\" y=\"{y:.1}\">{}</text>", escape(line));
        }
    }
    out + "</g>"
}

/// A bar's number. A count below `least` is shown as about 0; the table has the exact number.
fn words(figure: &Figure, number: f64, least: f64) -> String {
    match figure.y.unit {
        Unit::Count if number != 0.0 && number.abs() < least => "≈ 0".to_owned(),
        Unit::Count if number.abs() < 1000.0 => rounded(number, COUNT_DIGITS),
        unit => tick(number, unit),
    }
}

/// The number after each bar; for a stack the sum; for a missing figure the words "not measured".
fn numbers(figure: &Figure, bars: &Bars, rows: &[BarRow], area: &Area) -> String {
    let mut out = String::new();
    let least = (area.x.ends().1 * LEAST_SHOWN).min(NOTHING_MAX);
    let words = |number: f64| words(figure, number, least);
    let mut write_at = |end: f64, y: f64, words: &str, class: &str| {
        if let Some(x) = area.at_x(end) {
            let x = x + NUMBER_GAP;
            let _ = write!(out, "<text{class} x=\"{x:.1}\" y=\"{:.1}\">{words}</text>", y + 4.0);
        }
    };
    for (row, place) in rows.iter().enumerate() {
        let Some(sum) = bars.sum(row) else {
            let middle = area.top + place.top + place.height / 2.0;
            write_at(0.0, middle, "not measured", " class=\"quiet\"");
            continue;
        };
        if bars.is_stacked {
            let (top, high) = bar_place(bars, area, place, 0);
            let words = match bars.rows[row].is_partial {
                true => format!("≥ {}", words(sum).trim_start_matches("≈ ")),
                false => words(sum),
            };
            write_at(sum, top + high / 2.0, &escape(&words), "");
            continue;
        }
        for part in 0..bars.parts.len() {
            let (top, high) = bar_place(bars, area, place, part);
            let Some(point) = bars.value(part, row) else { continue };
            let end = point.y.max(point.high.unwrap_or(point.y)).max(0.0);
            write_at(end, top + high / 2.0, &escape(&words(point.y)), "");
        }
    }
    out
}
