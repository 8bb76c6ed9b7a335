//! Points in a row, joined by lines.

use std::fmt::Write as _;

use results::{Meant, Point};

use super::area::{Area, CURVES_WIDTH};
use super::figure::{Curve, Figure, LegendKey};
use super::number::{place, tick};
use super::scale::{AxisScale, ScaleSpan};
use super::table::PlaceRows;
use super::text::{escape, shorten};

/// Half of the length of the short lines at a spread's ends.
const CAP: f64 = 3.0;
/// Markers nearer to each other than this, on the average, are left out: the line shows the points.
const MARKERS_APART: f64 = 7.0;
/// The characters of a name on the horizontal axis, such as a kill.
const LABEL_CHARS_MAX: usize = 40;
/// Marks of one name that are nearer than this become one mark.
const MARKS_APART: f64 = 12.0;
const MARKS_ROWS: usize = 4;
/// The width of a label's character, about.
const CHAR_WIDTH: f64 = 7.0;
/// The gap between two labels of an axis.
const LABELS_GAP: f64 = 8.0;

/// Both axes. They show all points, spreads and rules.
pub(super) fn spans(figure: &Figure, curves: &[Curve]) -> (ScaleSpan, ScaleSpan) {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let xs = points().flat_map(|point| [Some(point.x), point.x_to]).flatten();
    let ys = points().flat_map(|point| [Some(point.y), point.low, point.high]).flatten();
    let ys: Vec<f64> = ys.chain(figure.rules.iter().map(|(number, _)| *number)).collect();
    // A point at 0 has no place on a logarithmic axis of figures: a remark says so.
    let ys: Vec<f64> = ys.into_iter().filter(|number| figure.y.scale.has(*number)).collect();
    let x = if figure.x.scale == AxisScale::Linear {
        let (least, most) = xs.fold((0.0_f64, 0.0_f64), |(low, high), x| (low.min(x), high.max(x)));
        ScaleSpan::tight(least, most)
    } else {
        let mut xs: Vec<f64> = xs.collect();
        let span = ScaleSpan::of(figure.x.scale, xs.iter().copied());
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        if has_room(figure, &span, &xs) { span.labelled_at(xs) } else { span }
    };
    (x, ScaleSpan::of(figure.y.scale, ys))
}

/// Whether there is room to write each of these numbers at its place on the horizontal axis.
fn has_room(figure: &Figure, span: &ScaleSpan, numbers: &[f64]) -> bool {
    let width = |number: f64| tick(number, figure.x.unit).chars().count() as f64 * CHAR_WIDTH;
    let place = |number: f64| span.place(number).unwrap_or(0.0) * CURVES_WIDTH;
    numbers.windows(2).all(|two| {
        let (one, other) = (two[0], two[1]);
        let widths = f64::midpoint(width(one), width(other));
        place(other) - place(one) >= widths + LABELS_GAP
    })
}

pub(super) fn draw(curves: &[Curve], area: &Area) -> String {
    let rows = PlaceRows::rows(curves);
    let (lines, labels) = marks(curves, area);
    let mut out = lines;
    for (number, curve) in curves.iter().enumerate() {
        let Curve { name, look, is_published, points, .. } = curve;
        let key = LegendKey { name, look: *look, is_published: *is_published };
        let CurvePaths { line, spread, dots } = paths(curve, area);
        let mut places = String::new();
        for (row, point) in rows.of_points(points) {
            if let Some((x, y)) = area.at_x(point.x).zip(area.at_y(point.y)) {
                let _ = write!(places, "{row},{},{} ", place(x), place(y));
            }
        }
        let _ = write!(
            out,
            "<g class=\"{}\" data-k=\"{number}\" data-p=\"{}\">",
            key.classes(),
            places.trim_end()
        );
        for (class, path) in [("spread", spread), ("line", line), ("dots", dots)] {
            if !path.is_empty() {
                let _ = write!(out, "<path class=\"{class}\" d=\"{path}\"/>");
            }
        }
        out.push_str("</g>");
    }
    out + &labels
}

/// The parts of a curve, each as one path.
struct CurvePaths {
    line: String,
    spread: String,
    /// The markers.
    dots: String,
}

fn paths(curve: &Curve, area: &Area) -> CurvePaths {
    let (mut line, mut spread, mut dots) = (String::new(), String::new(), String::new());
    let width = area.right - area.left;
    let has_markers = curve.points.len() as f64 * MARKERS_APART <= width;
    let mut is_joined = false;
    for point in &curve.points {
        let Some((x, y)) = area.at_x(point.x).zip(area.at_y(point.y)) else {
            is_joined = false;
            continue;
        };
        let to = point.x_to.and_then(|to| area.at_x(to));
        let step = if is_joined && to.is_none() { 'L' } else { 'M' };
        let _ = write!(line, "{step}{} {}", place(x), place(y));
        is_joined = to.is_none();
        if let Some(to) = to {
            let _ = write!(line, "H{}", place(to));
        }
        bar(point, x, y, area, &mut spread);
        if has_markers || point.label.is_some() {
            dots += &curve.look.outline(x, y);
        }
    }
    CurvePaths { line, spread, dots }
}

/// A line from `low` to `high`, and an arrow where the figure is an upper or lower bound.
fn bar(point: &Point, x: f64, y: f64, area: &Area, out: &mut String) {
    let end = |number: Option<f64>, beyond: f64| match number {
        None => Some(y),
        Some(number) => area.at_y(number).or(Some(beyond)),
    };
    if point.low.or(point.high).is_some()
        && let (Some(low), Some(high)) = (end(point.low, area.bottom), end(point.high, area.top))
    {
        let [x, low, high, left] = [x, low, high, x - CAP].map(place);
        let _ = write!(out, "M{x} {low}V{high}");
        for at in [point.low.map(|_| low), point.high.map(|_| high)].into_iter().flatten() {
            let _ = write!(out, "M{left} {at}h{}", 2.0 * CAP);
        }
    }
    let arrow = match point.meant {
        Meant::AtMost => "v16m-3 -5l3 5l3 -5",
        Meant::AtLeast => "v-16m-3 5l3 -5l3 5",
        Meant::Exact | Meant::About => return,
    };
    let _ = write!(out, "M{} {}{arrow}", place(x), place(y));
}

/// Points with a name: a line from top to bottom, and the name. A name that several series have at
/// nearly the same place is drawn once. Lines go below the curves, names above them.
fn marks(curves: &[Curve], area: &Area) -> (String, String) {
    let mut found: Vec<(f64, &str)> = Vec::new();
    for point in curves.iter().flat_map(|curve| &curve.points) {
        let Some((label, x)) = point.label.as_deref().zip(area.at_x(point.x)) else { continue };
        let is_known = |(at, known): &(f64, &str)| *known == label && (at - x).abs() < MARKS_APART;
        if !found.iter().any(is_known) {
            found.push((x, label));
        }
    }
    found.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (mut lines, mut labels) = (String::new(), String::new());
    for (at, (x, label)) in found.into_iter().enumerate() {
        let label = shorten(label, LABEL_CHARS_MAX);
        let width = label.chars().count() as f64 * CHAR_WIDTH;
        let has_room = x + width < area.right;
        let (anchor, beside) = if has_room { ("start", x + 5.0) } else { ("end", x - 5.0) };
        // Names of neighbours stand below each other.
        let y = area.top + 13.0 + (at % MARKS_ROWS) as f64 * 15.0;
        let _ = write!(lines, "<path class=\"rule\" d=\"M{x:.1} {}V{}\"/>", area.top, area.bottom);
        let _ = write!(
            labels,
            "<text class=\"over\" x=\"{beside:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">\
             {}</text>",
            escape(&label)
        );
    }
    (lines, labels)
}
