//! A plot as data: its axes, what is drawn, and its legend.

use std::fmt::Write as _;

use super::scale::AxisScale;
use super::style::SeriesLook;
use crate::result::{Point, Spread};
use crate::unit::Unit;

/// An axis: what stands on it, in what, and how it is divided.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What: "message size".
    pub words: String,
    /// Of the numbers.
    pub unit: Unit,
    /// How it is divided.
    pub scale: AxisScale,
}

/// One plot.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its anchor, and its file's name without the end: small letters, digits, hyphens.
    pub id: String,
    /// Its heading.
    pub title: String,
    /// What it is about: plots of one subject stand together.
    pub subject: String,
    /// What it shows, for who does not see it.
    pub description: String,
    /// What has to be minded when its series are compared.
    pub cautions: Vec<String>,
    /// Below the picture: what bars mean, what is left out.
    pub remarks: Vec<String>,
    /// What else has to be known of its table's numbers; nothing of most.
    pub of_table: String,
    /// When, by what and where its series were measured: for a picture that stands alone.
    pub measured: Vec<String>,
    /// Where the points stand.
    pub x: Axis,
    /// What they say.
    pub y: Axis,
    /// Lines across the picture: where, and what they are.
    pub rules: Vec<(f64, String)>,
    /// What is drawn.
    pub body: PlotBody,
}

/// What is drawn.
#[derive(Clone, Debug)]
pub enum PlotBody {
    /// Points in a row, joined by lines.
    Curves(Vec<Curve>),
    /// A bar for each name.
    Bars(Bars),
    /// Bars that would say nothing: the table alone is shown.
    Listed(Bars),
}

/// One series of points, in the units of the figure's axes.
#[derive(Clone, Debug)]
pub struct Curve {
    /// In the legend.
    pub name: String,
    /// Colour, marker and dash.
    pub look: SeriesLook,
    /// Whether others published it: dashed, hollow.
    pub is_published: bool,
    /// What `low` and `high` of its points are.
    pub spread: Spread,
    /// In the order of `x`.
    pub points: Vec<Point>,
}

/// Bars, one above the other.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Whether the parts of a row are one bar, or each has its own.
    pub is_stacked: bool,
    /// The rows.
    pub rows: Vec<Bar>,
    /// What each row has a number of.
    pub parts: Vec<BarPart>,
}

/// A row of bars.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it is of.
    pub name: String,
    /// Whether a part of it was not measured, so that its sum is a least.
    pub is_partial: bool,
    /// Whether it is told beside the row above it, as what others published of the same.
    pub goes_with_last: bool,
}

/// What each row of bars has a number of.
#[derive(Clone, Debug)]
pub struct BarPart {
    /// In the legend.
    pub name: String,
    /// Colour.
    pub look: SeriesLook,
    /// Whether others published it.
    pub is_published: bool,
    /// What `low` and `high` are.
    pub spread: Spread,
    /// For each row, in their order; none where nothing was measured.
    pub values: Vec<Option<Point>>,
}

/// Where a picture will stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PicturePlace {
    /// In a page that has heading, legend and remarks beside it, and the style sheet.
    Page,
    /// In a file of its own.
    File,
}

/// An entry of a legend.
#[derive(Clone, Copy, Debug)]
pub struct LegendKey<'a> {
    /// What it is called.
    pub name: &'a str,
    /// How it looks.
    pub look: SeriesLook,
    /// Whether others published it.
    pub is_published: bool,
}

impl Figure {
    /// What the legend lists, in the order of `data-k`.
    pub fn keys(&self) -> Vec<LegendKey<'_>> {
        match &self.body {
            PlotBody::Curves(curves) => curves
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

    /// What has to be told apart: nothing where all bars are of one kind.
    pub fn legend(&self) -> Vec<LegendKey<'_>> {
        let keys = self.keys();
        if self.has_bars() && keys.len() < 2 { Vec::new() } else { keys }
    }

    /// Whether its legend shows boxes rather than lines.
    pub fn has_bars(&self) -> bool {
        !matches!(self.body, PlotBody::Curves(_))
    }

    /// Whether there is a picture of it.
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
