//! A plot as data: its axes, its curves or bars, and its legend.

use std::fmt::Write as _;

use results::{Point, Spread, Unit};

use super::scale::AxisScale;
use super::style::SeriesLook;

/// An axis: its words, its unit and its scale.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Its words, such as "message size".
    pub words: String,
    /// The unit of its numbers.
    pub unit: Unit,
    /// The division of the axis.
    pub scale: AxisScale,
}

/// One plot.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its anchor, and its file's name without the end: small letters, digits, hyphens.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// Its subject: plots of one subject stand together.
    pub subject: String,
    /// Its content in words, for a reader without the picture.
    pub description: String,
    /// Warnings for a reader that compares its series.
    pub cautions: Vec<String>,
    /// Remarks below the picture: the meaning of bars, series that are left out.
    pub remarks: Vec<String>,
    /// A remark about the numbers of its table; empty for most.
    pub of_table: String,
    /// The time, program and machine of its series' measurement: for a picture that stands alone.
    pub measured: Vec<String>,
    /// The axis of the points' places.
    pub x: Axis,
    /// The axis of their figures.
    pub y: Axis,
    /// Lines across the picture: their places and their names.
    pub rules: Vec<(f64, String)>,
    /// Its curves or bars.
    pub body: PlotBody,
}

/// The curves or bars of a plot.
#[derive(Clone, Debug)]
pub enum PlotBody {
    /// Points in a row, joined by lines.
    Curves(Vec<Curve>),
    /// A row of boxes for each curve, whose figures are changes.
    Heat(Vec<Curve>),
    /// A bar for each name.
    Bars(Bars),
    /// Bars that would say nothing: the table alone is shown.
    Listed(Bars),
}

/// One series of points, in the units of the figure's axes.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The name in the legend.
    pub name: String,
    /// Colour, marker and dash.
    pub look: SeriesLook,
    /// Whether others published it: dashed, hollow.
    pub is_published: bool,
    /// The meaning of `low` and `high` of its points.
    pub spread: Spread,
    /// The points, in the order of `x`.
    pub points: Vec<Point>,
}

/// Bars, one above the other.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Whether the parts of a row are one bar, or each has its own.
    pub is_stacked: bool,
    /// The rows.
    pub rows: Vec<Bar>,
    /// The parts; each row has one number of each part.
    pub parts: Vec<BarPart>,
}

/// A row of bars.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The name of the thing that was measured.
    pub name: String,
    /// Whether a part of it was not measured, so that its sum is a lower bound.
    pub is_partial: bool,
    /// Whether it belongs to the row above it: a published figure of the same name.
    pub goes_with_last: bool,
}

/// A part of each row of bars.
#[derive(Clone, Debug)]
pub struct BarPart {
    /// The name in the legend.
    pub name: String,
    /// The colour.
    pub look: SeriesLook,
    /// Whether others published it.
    pub is_published: bool,
    /// The meaning of `low` and `high`.
    pub spread: Spread,
    /// The values of the rows, in their order; none where nothing was measured.
    pub values: Vec<Option<Point>>,
}

/// The place for which a picture is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PicturePlace {
    /// A page, which has heading, legend and remarks beside the picture, and the style sheet.
    Page,
    /// A file of its own.
    File,
}

/// An entry of a legend.
#[derive(Clone, Copy, Debug)]
pub struct LegendKey<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its colour, marker and dash.
    pub look: SeriesLook,
    /// Whether others published it.
    pub is_published: bool,
}

impl Figure {
    /// The entries of the legend, in the order of `data-k`.
    pub fn keys(&self) -> Vec<LegendKey<'_>> {
        match &self.body {
            PlotBody::Curves(curves) | PlotBody::Heat(curves) => curves
                .iter()
                .map(|Curve { name, look, is_published, .. }| LegendKey {
                    name,
                    look: *look,
                    is_published: *is_published,
                })
                .collect(),
            PlotBody::Bars(bars) | PlotBody::Listed(bars) => bars
                .parts
                .iter()
                .map(|BarPart { name, look, is_published, .. }| LegendKey {
                    name,
                    look: *look,
                    is_published: *is_published,
                })
                .collect(),
        }
    }

    /// The entries that a reader must distinguish: none where all bars are of one kind, and none of
    /// rows, which have their names beside them.
    pub fn legend(&self) -> Vec<LegendKey<'_>> {
        let keys = self.keys();
        let is_told = matches!(self.body, PlotBody::Heat(_)) || (self.has_bars() && keys.len() < 2);
        if is_told { Vec::new() } else { keys }
    }

    /// Whether its legend shows boxes rather than lines.
    pub fn has_bars(&self) -> bool {
        matches!(self.body, PlotBody::Bars(_) | PlotBody::Listed(_))
    }

    /// Whether the plot has a picture.
    pub fn is_drawn(&self) -> bool {
        !matches!(self.body, PlotBody::Listed(_))
    }
}

impl LegendKey<'_> {
    /// The classes of its element.
    pub fn classes(&self) -> String {
        let published = if self.is_published { " published" } else { "" };
        format!("{}{published}", self.look.classes())
    }

    /// A sample, 30 wide and 14 high, with its upper left corner at `x`, `y`.
    pub fn sample(&self, has_bars: bool, x: f64, y: f64) -> String {
        let (middle, mut out) = (y + 7.0, format!("<g class=\"{}\">", self.classes()));
        if has_bars {
            let box_ = format!("M{} {}h22v10h-22z", x + 4.0, y + 2.0);
            let _ = write!(out, "<path class=\"box\" d=\"{box_}\"/>");
        } else {
            let dots = self.look.outline(x + 15.0, middle);
            let _ = write!(
                out,
                "<path class=\"line\" d=\"M{x} {middle}h30\"/><path class=\"dots\" d=\"{dots}\"/>"
            );
        }
        out.push_str("</g>");
        out
    }
}
