//! A bar for each name, lying: names are long.

use std::fmt::Write as _;

use super::frame::Area;
use super::number::tick;
use super::scale::{Scale, Span};
use super::text::{escape, wrap};
use super::{Bars, Figure, Key, Part};
use crate::result::Point;

/// Of one bar, and between rows.
const BAR: f64 = 15.0;
const STACKED_BAR: f64 = 20.0;
const BETWEEN: f64 = 13.0;
/// Of a row's name.
const NAME_CHARS: usize = 30;
const NAME_LINES: usize = 2;

fn row_height(bars: &Bars) -> f64 {
    let inside = if bars.is_stacked { STACKED_BAR } else { BAR * bars.parts.len().max(1) as f64 };
    inside.max(STACKED_BAR) + BETWEEN
}

/// Of all rows.
pub(super) fn height(bars: &Bars) -> f64 {
    row_height(bars) * bars.rows.len().max(1) as f64
}

/// The axis of numbers, which lies; the other one is not used.
pub(super) fn spans(figure: &Figure, bars: &Bars) -> (Span, Span) {
    let ends = |point: &Point| [Some(point.y), point.low, point.high];
    let numbers: Vec<f64> = if bars.is_stacked {
        (0..bars.rows.len()).filter_map(|row| bars.sum(row)).collect()
    } else {
        let points = bars.parts.iter().flat_map(|part| &part.values).flatten();
        points.flat_map(ends).flatten().collect()
    };
    let rules = figure.rules.iter().map(|(number, _)| *number);
    // Space behind the longest bar for its number.
    let widest = numbers.iter().fold(0.0_f64, |most, number| most.max(*number)) * 1.08;
    let numbers: Vec<f64> = numbers.into_iter().chain(rules).chain([widest]).collect();
    (Span::of(Scale::Linear, numbers), Span::tight(0.0, 1.0))
}

pub(super) fn draw(figure: &Figure, bars: &Bars, area: &Area) -> String {
    let mut out = names(bars, area);
    // How far each row's stack has come.
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
            let (top, high) = bar_place(bars, area, row, number);
            let (Some(x), Some(to)) = (area.at_x(begin), area.at_x(end)) else { continue };
            let _ = write!(boxes, "M{x:.1} {top:.1}H{to:.1}v{high}H{x:.1}z");
            let middle = top + high / 2.0;
            let _ = write!(places, "{row},{to:.1},{middle:.1} ");
            spread(point, middle, area, &mut spreads);
        }
        let Part { name, look, is_published, .. } = part;
        let classes = Key { name, look: *look, is_published: *is_published }.classes();
        let places = places.trim_end();
        let _ = write!(
            out,
            "<g class=\"{classes}\" data-k=\"{number}\" data-p=\"{places}\">\
             <path class=\"box\" d=\"{boxes}\"/><path class=\"spread over\" d=\"{spreads}\"/></g>"
        );
    }
    out + &numbers(figure, bars, area)
}

/// The upper end and the height of a bar.
fn bar_place(bars: &Bars, area: &Area, row: usize, part: usize) -> (f64, f64) {
    let top = area.top + row as f64 * row_height(bars) + BETWEEN / 2.0;
    if bars.is_stacked { (top, STACKED_BAR) } else { (top + part as f64 * BAR, BAR - 2.0) }
}

/// From `low` to `high`.
fn spread(point: &Point, y: f64, area: &Area, out: &mut String) {
    let low = area.at_x(point.low.unwrap_or(point.y));
    let high = area.at_x(point.high.unwrap_or(point.y));
    let (Some(low), Some(high)) = (low, high) else { return };
    if point.low.or(point.high).is_some() {
        let _ = write!(out, "M{low:.1} {y:.1}H{high:.1}");
        for at in [low, high] {
            let _ = write!(out, "M{at:.1} {:.1}v6", y - 3.0);
        }
    }
}

fn names(bars: &Bars, area: &Area) -> String {
    let mut out = String::from("<g text-anchor=\"end\">");
    for (row, name) in bars.rows.iter().enumerate() {
        let lines = wrap(name, NAME_CHARS, NAME_LINES);
        let middle = area.top + (row as f64 + 0.5) * row_height(bars);
        for (at, line) in lines.iter().enumerate() {
            let y = middle + 4.0 + (at as f64 - (lines.len() as f64 - 1.0) / 2.0) * 14.0;
            let x = area.left - 8.0;
            let _ = write!(out, "<text x=\"{x}\" y=\"{y:.1}\">{}</text>", escape(line));
        }
    }
    out + "</g>"
}

/// Behind each bar its number; of a stack the sum; where there is none, that.
fn numbers(figure: &Figure, bars: &Bars, area: &Area) -> String {
    let mut out = String::new();
    let mut write_at = |end: f64, y: f64, words: &str, class: &str| {
        if let Some(x) = area.at_x(end) {
            let x = x + 5.0;
            let _ = write!(out, "<text{class} x=\"{x:.1}\" y=\"{:.1}\">{words}</text>", y + 4.0);
        }
    };
    for row in 0..bars.rows.len() {
        let Some(sum) = bars.sum(row) else {
            let middle = area.top + (row as f64 + 0.5) * row_height(bars);
            write_at(0.0, middle, "not measured", " class=\"quiet\"");
            continue;
        };
        if bars.is_stacked {
            let (top, high) = bar_place(bars, area, row, 0);
            let least = if bars.is_whole(row) { "" } else { "≥ " };
            let words = format!("{least}{}", tick(sum, figure.y.unit));
            write_at(sum, top + high / 2.0, &escape(&words), "");
            continue;
        }
        for part in 0..bars.parts.len() {
            let (top, high) = bar_place(bars, area, row, part);
            let Some(point) = bars.value(part, row) else { continue };
            let end = point.y.max(point.high.unwrap_or(point.y)).max(0.0);
            write_at(end, top + high / 2.0, &escape(&tick(point.y, figure.y.unit)), "");
        }
    }
    out
}
