//! The frame around the curves and bars: paper, heading, grid, axes; in a file also the legend.

use std::fmt::Write as _;

use results::Unit;

use super::area::{Area, CURVES_LEFT, RIGHT, WIDTH};
use super::figure::{Axis, Figure, LegendKey, PicturePlace, PlotBody};
use super::number::tick;
use super::scale::{AxisScale, ScaleSpan};
use super::style::SeriesLook;
use super::table::with_unit;
use super::text::{NAME_CHARS_MAX, escape, shorten, wrap};
use super::{bars, curves, heat, style};

/// The room above the area of the points, in a page.
const TOP: f64 = 30.0;
/// The room above bars is smaller, since no labels are there.
const BARS_TOP: f64 = 8.0;
const HEADING_BARS: f64 = 6.0;
const BELOW: f64 = 46.0;
/// The height of the area of curves.
const HEIGHT: f64 = 330.0;
/// The height of a line of a heading, a legend and a remark, in a file.
const HEADING: f64 = 22.0;
const LEGEND: f64 = 19.0;
const REMARK: f64 = 16.0;
/// The characters in a line of the picture's width. A character is about 6.3 units wide.
const REMARK_CHARS: usize = 112;
const LEGEND_CHARS: usize = 106;
const REMARK_LINES_MAX: usize = 6;
const HEADING_CHARS: usize = 84;

pub(super) fn draw(figure: &Figure, place: PicturePlace) -> String {
    let heading = match place {
        PicturePlace::Page => Vec::new(),
        PicturePlace::File => wrap(&figure.title, HEADING_CHARS, 2),
    };
    let above = match (&figure.body, place) {
        (PlotBody::Curves(_), _) => TOP,
        (PlotBody::Heat(_), _) => heat::TOP,
        (_, PicturePlace::Page) => BARS_TOP,
        (_, PicturePlace::File) => BARS_TOP + HEADING_BARS,
    };
    let top = above + heading.len() as f64 * HEADING;
    let (inside, bottom) = match &figure.body {
        PlotBody::Curves(all) => {
            let (x, y) = curves::spans(figure, all);
            let area = area(CURVES_LEFT, top, HEIGHT, x, y);
            (grid(figure, &area) + &curves::draw(all, &area) + &rules(figure, &area), area.bottom)
        }
        PlotBody::Heat(all) => heat::draw(figure, all, top),
        PlotBody::Bars(all) | PlotBody::Listed(all) => {
            let (x, y) = bars::spans(figure, all);
            let area = area(bars::names_width(all), top, bars::height(all), x, y);
            (bars_grid(figure, &area) + &bars::draw(figure, all, &area), area.bottom)
        }
    };
    let below = if place == PicturePlace::File {
        legend(figure, bottom + BELOW)
    } else {
        (String::new(), 0.0)
    };
    let height = bottom + BELOW + below.1;
    let mut out = opening(figure, place, height);
    for (at, line) in heading.iter().enumerate() {
        let y = 24.0 + at as f64 * HEADING;
        let _ = write!(out, "<text class=\"title\" x=\"12\" y=\"{y}\">{}</text>", escape(line));
    }
    let end = if place == PicturePlace::File { "</svg>\n" } else { "</svg>" };
    out + &inside + &below.0 + end
}

fn area(left: f64, top: f64, height: f64, x: ScaleSpan, y: ScaleSpan) -> Area {
    Area { left, right: WIDTH - RIGHT, top, bottom: top + height, x, y }
}

/// The opening of the element, with its name and description.
fn opening(figure: &Figure, place: PicturePlace, height: f64) -> String {
    let Figure { id, title, description, .. } = figure;
    let (title, description) = (escape(title), escape(description));
    let mut out = String::from("<svg class=\"plot\" ");
    if place == PicturePlace::File {
        let size = format!("width=\"{WIDTH}\" height=\"{height:.0}\"");
        let _ = write!(out, "xmlns=\"http://www.w3.org/2000/svg\" {size} ");
    }
    let _ = write!(
        out,
        "viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
         <title id=\"{id}-t\">{title}</title><desc id=\"{id}-d\">{description}</desc>"
    );
    if place == PicturePlace::File {
        let sheet = style::alone();
        let _ = write!(
            out,
            "<style>{sheet}</style><rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\"/>"
        );
    }
    out
}

fn words(axis: &Axis) -> String {
    // The numbers of other units have the unit beside them.
    let words = match axis.unit {
        Unit::NsPerByte | Unit::Usd => with_unit(&axis.words, axis.unit),
        Unit::PerS if axis.words != "IOPS" => with_unit(&axis.words, axis.unit),
        _ => axis.words.clone(),
    };
    escape(&shorten(&words, NAME_CHARS_MAX))
}

/// The lines and numbers of the grid.
fn grid(figure: &Figure, area: &Area) -> String {
    let Area { left, right, top, bottom, .. } = *area;
    let (mut faint, mut strong, mut numbers) = (String::new(), String::new(), String::new());
    for tick_ in area.x.ticks() {
        let Some(x) = area.at_x(tick_.at) else { continue };
        let line = if tick_.is_labelled { &mut strong } else { &mut faint };
        let _ = write!(line, "M{x:.1} {top}V{bottom}");
        if tick_.is_labelled {
            let (y, number) = (bottom + 17.0, escape(&tick(tick_.at, figure.x.unit)));
            let _ = write!(numbers, "<text x=\"{x:.1}\" y=\"{y}\">{number}</text>");
        }
    }
    let mut beside = String::new();
    for tick_ in area.y.ticks() {
        let Some(y) = area.at_y(tick_.at) else { continue };
        let line = if tick_.is_labelled { &mut strong } else { &mut faint };
        let _ = write!(line, "M{left} {y:.1}H{right}");
        if tick_.is_labelled {
            let (x, below) = (left - 8.0, y + 4.0);
            // An increase has its sign: 100 % more is no share.
            let sign =
                if figure.y.scale == AxisScale::TimesMore && tick_.at > 0.0 { "+" } else { "" };
            let number = escape(&tick(tick_.at, figure.y.unit));
            let number = format!("{sign}{number}");
            let _ = write!(beside, "<text x=\"{x}\" y=\"{below:.1}\">{number}</text>");
        }
    }
    let (middle, name_y) = ((left + right) / 2.0, bottom + 38.0);
    let (x_words, y_words) = (words(&figure.x), words(&figure.y));
    let mut out =
        format!("<path class=\"faint\" d=\"{faint}\"/><path class=\"grid\" d=\"{strong}\"/>");
    let _ = write!(
        out,
        "{axes}<g text-anchor=\"middle\">{numbers}<text x=\"{middle}\" y=\"{name_y}\">{x_words}\
         </text></g><g text-anchor=\"end\">{beside}</g>\
         <text x=\"12\" y=\"{y_name}\" class=\"quiet\">{y_words}</text>",
        axes = axes(area),
        y_name = top - 12.0,
    );
    out
}

/// The left and the lower axis. The lower axis is broken after a place for 0.
fn axes(area: &Area) -> String {
    let Area { left, right, top, bottom, .. } = *area;
    let first =
        area.x.ticks().iter().find(|tick| tick.at > 0.0).and_then(|tick| area.at_x(tick.at));
    let lower = match first.filter(|_| area.x.has_zero()) {
        Some(first) => {
            let gap = f64::midpoint(left, first);
            format!("M{left} {bottom}H{:.1}m0 -4v8m5 -8v8m0 -4H{right}", gap - 2.5)
        }
        None => format!("M{left} {bottom}H{right}"),
    };
    format!("<path class=\"axis\" d=\"M{left} {top}V{bottom}{lower}\"/>")
}

/// The grid of bars, whose axis of numbers is horizontal.
fn bars_grid(figure: &Figure, area: &Area) -> String {
    let Area { left, right, top, bottom, .. } = *area;
    let (mut strong, mut numbers) = (String::new(), String::new());
    for tick_ in area.x.ticks() {
        let Some(x) = area.at_x(tick_.at) else { continue };
        let (y, number) = (bottom + 17.0, escape(&tick(tick_.at, figure.y.unit)));
        let _ = write!(strong, "M{x:.1} {top}V{bottom}");
        let _ = write!(numbers, "<text x=\"{x:.1}\" y=\"{y}\">{number}</text>");
    }
    let (middle, name_y) = ((left + right) / 2.0, bottom + 38.0);
    let zero = area.at_x(0.0).unwrap_or(left);
    format!(
        "<path class=\"grid\" d=\"{strong}\"/>\
         <path class=\"axis\" d=\"M{zero:.1} {top}V{bottom}\"/>\
         <g text-anchor=\"middle\">{numbers}<text x=\"{middle}\" y=\"{name_y}\">{}</text></g>",
        words(&figure.y)
    )
}

/// Lines across the whole plot, with their names.
fn rules(figure: &Figure, area: &Area) -> String {
    let mut out = String::new();
    for (number, name) in &figure.rules {
        let Some(y) = area.at_y(*number) else { continue };
        let (left, right, above) = (area.left, area.right, y - 5.0);
        let _ = write!(
            out,
            "<path class=\"rule\" d=\"M{left} {y:.1}H{right}\"/>\
             <text class=\"over\" x=\"{x}\" y=\"{above:.1}\" text-anchor=\"end\">{}</text>",
            escape(&shorten(name, NAME_CHARS_MAX)),
            x = right - 4.0,
        );
    }
    out
}

/// The legend and remarks of a file, from `y` on, and their height.
fn legend(figure: &Figure, y: f64) -> (String, f64) {
    let (mut out, mut at) = (String::new(), y + 4.0);
    let mut keys = figure.legend();
    if matches!(&figure.body, PlotBody::Bars(bars) if bars.is_stacked) {
        // A published part has its namesake's colour, and differs by its outline.
        let own: Vec<SeriesLook> =
            keys.iter().filter(|it| !it.is_published).map(|it| it.look).collect();
        keys.retain(|key: &LegendKey<'_>| !key.is_published || !own.contains(&key.look));
    }
    // Short names stand in two columns, row by row.
    let is_short = keys.iter().all(|key| key.name.chars().count() <= LEGEND_CHARS / 2 - 8);
    let columns = if is_short && keys.len() > 3 { 2 } else { 1 };
    for row in keys.chunks(columns) {
        let mut lines_max = 0;
        for (column, key) in row.iter().enumerate() {
            let x = 12.0 + column as f64 * WIDTH / 2.0;
            out += &key.sample(figure.has_bars(), x, at);
            let lines = wrap(key.name, LEGEND_CHARS, 2);
            for (nth, line) in lines.iter().enumerate() {
                let (x, y, line) = (x + 38.0, at + 11.0 + nth as f64 * LEGEND, escape(line));
                let _ = write!(out, "<text x=\"{x:.0}\" y=\"{y:.1}\">{line}</text>");
            }
            lines_max = lines_max.max(lines.len());
        }
        at += lines_max as f64 * LEGEND;
    }
    at += 4.0;
    for remark in figure.cautions.iter().chain(&figure.remarks).chain(&figure.measured) {
        for line in wrap(remark, REMARK_CHARS, REMARK_LINES_MAX) {
            let base = at + 11.0;
            let line = escape(&line);
            let _ = write!(out, "<text class=\"quiet\" x=\"12\" y=\"{base:.1}\">{line}</text>");
            at += REMARK;
        }
    }
    (out, at + 10.0 - y)
}
