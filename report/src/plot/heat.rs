//! A heat map: a box for each figure of a change. Its colour says whether the change is a gain or a
//! loss, and how large it is; so does the number in it, and a line goes between gains and losses.

use std::fmt::Write as _;

use results::Unit;

use super::area::{RIGHT, WIDTH};
use super::figure::{Axis, Curve, Figure};
use super::number::{place, rounded, tick};
use super::table::PlaceRows;
use super::text::{escape, shorten};

/// Places on the horizontal axis that have boxes: more of them are lines better.
pub const PLACES_MAX: usize = 40;

/// The height of a row.
const ROW: f64 = 26.0;
/// The room above the boxes, for the meaning of the colours.
pub(super) const TOP: f64 = 66.0;
/// Changes from which on a colour is stronger, in percent.
const STEPS: [f64; 4] = [5.0, 10.0, 20.0, 40.0];
/// A box of the meaning of colours.
const SAMPLE_WIDTH: f64 = 38.0;
const SAMPLE_HEIGHT: f64 = 12.0;
/// The room of a row's name, and its characters.
const NAME_CHARS: usize = 24;
const CHAR_WIDTH: f64 = 6.9;
const NAME_GAP: f64 = 8.0;
const NAMES_LEAST: f64 = 70.0;
/// Digits of a number in a box, and the least number that has too many of them.
const DIGITS: usize = 3;
const NUMBER_MAX: f64 = 999.5;

/// The boxes of a picture, and their places.
struct HeatBoxes {
    left: f64,
    top: f64,
    width: f64,
}

impl HeatBoxes {
    fn x(&self, column: usize) -> f64 {
        self.left + self.width * column as f64
    }

    fn y(&self, row: usize) -> f64 {
        self.top + ROW * row as f64
    }
}

/// The class of a change's box; none if nothing changes.
fn class(percent: f64) -> Option<String> {
    let level = 1 + STEPS.iter().filter(|step| percent.abs() >= **step).count();
    let kind = if percent < 0.0 { "gain" } else { "loss" };
    (percent != 0.0).then(|| format!("{kind} l{level}"))
}

/// A change with its sign.
fn words(percent: f64) -> String {
    let sign = match percent {
        number if number > 0.0 => "+",
        number if number < 0.0 => "−",
        _ => "",
    };
    match percent.abs() {
        size if size > NUMBER_MAX => format!("{sign}>999"),
        size => format!("{sign}{}", rounded((size * 10.0).round() / 10.0, DIGITS)),
    }
}

/// The figures, a row for each curve and a column for each place, in percent.
fn figures(
    unit: Unit,
    curves: &[Curve],
    places: &PlaceRows,
    count: usize,
) -> Vec<Vec<Option<f64>>> {
    let of_curve = |curve: &Curve| {
        let mut row = vec![None; count];
        for (at, point) in places.of_points(&curve.points) {
            row[at] = unit.convert(point.y, Unit::Percent);
        }
        row
    };
    curves.iter().map(of_curve).collect()
}

/// The picture from `top` on, and its lower end.
pub(super) fn draw(figure: &Figure, curves: &[Curve], top: f64) -> (String, f64) {
    let (places, xs) = PlaceRows::of(curves);
    let names: Vec<String> = curves.iter().map(|it| shorten(&it.name, NAME_CHARS)).collect();
    let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or_default();
    let left = (longest as f64 * CHAR_WIDTH + 2.0 * NAME_GAP).max(NAMES_LEAST);
    let width = (WIDTH - RIGHT - left) / xs.len().max(1) as f64;
    let boxes = HeatBoxes { left, top, width };
    let rows = figures(figure.y.unit, curves, &places, xs.len());
    let bottom = boxes.y(curves.len());
    let mut out = meaning(&figure.y, top);
    for (number, row) in rows.iter().enumerate() {
        out += &of_row(&boxes, number, &names[number], row);
    }
    out += &edge(&boxes, &rows);
    out += &columns(figure, &boxes, &xs, bottom);
    (out, bottom)
}

/// The boxes and numbers of a row.
fn of_row(boxes: &HeatBoxes, number: usize, name: &str, row: &[Option<f64>]) -> String {
    let (y, middle) = (boxes.y(number), boxes.y(number) + ROW / 2.0);
    let (mut filled, mut numbers, mut places) = (String::new(), String::new(), String::new());
    for (column, percent) in row.iter().enumerate() {
        let (x, center) = (boxes.x(column), boxes.x(column) + boxes.width / 2.0);
        let text = percent.map_or_else(|| "–".to_owned(), words);
        if let Some(class) = percent.and_then(class) {
            let [x, y, width] = [x, y, boxes.width].map(place);
            let box_ = format!("M{x} {y}h{width}v{ROW}h-{width}z");
            let _ = write!(filled, "<path class=\"{class}\" d=\"{box_}\"/>");
        }
        if percent.is_some() {
            let _ = write!(places, "{column},{},{} ", place(center), place(middle));
        }
        if text.chars().count() as f64 * CHAR_WIDTH <= boxes.width {
            let quiet = if percent.is_none() { " class=\"quiet\"" } else { "" };
            let (x, y) = (place(center), place(middle + 4.0));
            let _ = write!(numbers, "<text{quiet} x=\"{x}\" y=\"{y}\">{}</text>", escape(&text));
        }
    }
    format!(
        "<g class=\"heat\" data-k=\"{number}\" data-p=\"{}\">{filled}\
         <g text-anchor=\"middle\">{numbers}</g></g>\
         <text text-anchor=\"end\" x=\"{}\" y=\"{}\">{}</text>",
        places.trim_end(),
        place(boxes.left - NAME_GAP),
        place(middle + 4.0),
        escape(name)
    )
}

/// The line between gains and all other figures.
fn edge(boxes: &HeatBoxes, rows: &[Vec<Option<f64>>]) -> String {
    let is_gain = |row: usize, column: usize| {
        let percent = rows.get(row).and_then(|row| row.get(column)).copied().flatten();
        percent.map(|percent| percent < 0.0)
    };
    let differ = |one: Option<bool>, other: Option<bool>| {
        one.zip(other).is_some_and(|(one, other)| one != other)
    };
    let mut line = String::new();
    for (row, cells) in rows.iter().enumerate() {
        for column in 0..cells.len() {
            let own = is_gain(row, column);
            let [x, y] = [boxes.x(column), boxes.y(row)].map(place);
            if column > 0 && differ(is_gain(row, column - 1), own) {
                let _ = write!(line, "M{x} {y}v{ROW}");
            }
            if row > 0 && differ(is_gain(row - 1, column), own) {
                let _ = write!(line, "M{x} {y}h{}", place(boxes.width));
            }
        }
    }
    format!("<path class=\"edge\" d=\"{line}\"/>")
}

/// The places below the boxes, as many as there is room for, and the words of their axis.
fn columns(figure: &Figure, boxes: &HeatBoxes, xs: &[f64], bottom: f64) -> String {
    let texts: Vec<String> = xs.iter().map(|x| tick(*x, figure.x.unit)).collect();
    let longest = texts.iter().map(|text| text.chars().count()).max().unwrap_or_default();
    let each = ((longest + 1) as f64 * CHAR_WIDTH / boxes.width).ceil().max(1.0) as usize;
    let mut out = String::from("<g text-anchor=\"middle\">");
    for (column, text) in texts.iter().enumerate().step_by(each) {
        let (x, y) = (place(boxes.x(column) + boxes.width / 2.0), bottom + 17.0);
        let _ = write!(out, "<text x=\"{x}\" y=\"{y}\">{}</text>", escape(text));
    }
    let (middle, y) = (place(f64::midpoint(boxes.left, WIDTH - RIGHT)), bottom + 38.0);
    let words = escape(&figure.x.words);
    let _ = write!(out, "<text x=\"{middle}\" y=\"{y}\">{words}</text></g>");
    out
}

/// The meaning of the colours: a box for each, with the changes at which they begin.
fn meaning(axis: &Axis, top: f64) -> String {
    let mut bounds: Vec<f64> = STEPS.iter().rev().map(|step| -step).collect();
    bounds.push(0.0);
    bounds.extend(STEPS);
    let count = bounds.len() + 1;
    // A narrow window shows the left end first.
    let (left, y) = (12.0, top - 44.0);
    let mut out = String::from("<g class=\"heat\">");
    for at in 0..count {
        let inside = if at < count / 2 { bounds[at] - 1e-9 } else { bounds[at - 1] + 1e-9 };
        let (x, class) =
            (place(left + SAMPLE_WIDTH * at as f64), class(inside).unwrap_or_default());
        let box_ = format!("M{x} {y}h{SAMPLE_WIDTH}v{SAMPLE_HEIGHT}h-{SAMPLE_WIDTH}z");
        let _ = write!(out, "<path class=\"{class}\" d=\"{box_}\"/>");
    }
    out.push_str("</g><g text-anchor=\"middle\" class=\"quiet\">");
    for (at, bound) in bounds.iter().enumerate() {
        let (x, y) = (place(left + SAMPLE_WIDTH * (at + 1) as f64), y + SAMPLE_HEIGHT + 13.0);
        let _ = write!(out, "<text class=\"quiet\" x=\"{x}\" y=\"{y}\">{}</text>", words(*bound));
    }
    let _ = write!(
        out,
        "</g><text x=\"12\" y=\"{}\" class=\"quiet\">{}, %</text>",
        y - 6.0,
        escape(&axis.words)
    );
    out
}

#[cfg(test)]
mod tests {
    use results::{Point, Spread};

    use super::super::{AxisScale, SeriesLook};
    use super::*;

    fn heat(rows: &[&[f64]]) -> String {
        let axis =
            |words: &str, unit| Axis { words: words.to_owned(), unit, scale: AxisScale::Linear };
        let curve = |(at, row): (usize, &&[f64])| Curve {
            name: format!("pool, {at} <%>"),
            look: SeriesLook::nth(at),
            is_published: false,
            spread: Spread::None,
            points: row.iter().zip(1..).map(|(y, x)| Point::new(f64::from(x), *y)).collect(),
        };
        let curves: Vec<Curve> = rows.iter().enumerate().map(curve).collect();
        let figure = Figure {
            id: "a".to_owned(),
            title: "A".to_owned(),
            subject: String::new(),
            description: String::new(),
            cautions: Vec::new(),
            remarks: Vec::new(),
            of_table: String::new(),
            measured: Vec::new(),
            x: axis("servers", Unit::Count),
            y: axis("change of price", Unit::Percent),
            rules: Vec::new(),
            body: super::super::PlotBody::Heat(curves.clone()),
        };
        draw(&figure, &curves, 60.0).0
    }

    #[test]
    fn a_colour_is_never_alone() {
        for (percent, of_class, text) in [
            (-4.64, Some("gain l1"), "−4.6"),
            (-5.0, Some("gain l2"), "−5"),
            (19.9, Some("loss l3"), "+19.9"),
            (40.0, Some("loss l5"), "+40"),
            (123.4, Some("loss l5"), "+123"),
            (0.0, None, "0"),
            (1e300, Some("loss l5"), "+>999"),
        ] {
            assert_eq!(class(percent).as_deref(), of_class, "{percent}");
            assert_eq!(words(percent), text, "{percent}");
        }
    }

    #[test]
    fn a_line_goes_between_gains_and_losses() {
        let edge = |rows: &[&[f64]]| {
            let svg = heat(rows);
            let line = svg.split("class=\"edge\" d=\"").nth(1).unwrap();
            line.split('"').next().unwrap().matches('M').count()
        };
        assert_eq!(edge(&[&[-1.0, -2.0], &[-3.0, -4.0]]), 0);
        assert_eq!(edge(&[&[-1.0, 2.0], &[-3.0, 4.0]]), 2);
        assert_eq!(edge(&[&[-1.0, 2.0], &[3.0, 4.0]]), 2);
        // A figure that is missing is no loss.
        assert_eq!(edge(&[&[-1.0, -2.0], &[-3.0]]), 0);
    }

    #[test]
    fn numbers_that_have_no_room_are_left_to_the_table() {
        let few = heat(&[&[-12.3, 4.0]]);
        assert!(few.contains(">−12.3</text>") && few.contains("pool, 0 &lt;%&gt;"), "{few}");
        let many = heat(&[&[-12.3; PLACES_MAX]]);
        assert!(!many.contains(">−12.3</text>"), "{many}");
        assert_eq!(many.matches("class=\"gain l3\"").count(), PLACES_MAX + 1, "one is a sample");
    }
}
