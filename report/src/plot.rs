//! Plots: the content of a plot, its table, and its picture as SVG text.
//!
//! The picture has one path for each series' line and one for all of its markers, not an element
//! for each point: a page of ten runs stays light. The series' `data-p` holds the place of each
//! point, and its cell of the table.

pub mod number;
pub mod scale;
pub mod style;
pub mod table;
pub mod text;

mod area;
mod bars;
mod curves;
mod figure;
mod frame;
mod heat;

pub use figure::{Axis, Bar, BarPart, Bars, Curve, Figure, LegendKey, PicturePlace, PlotBody};
pub use heat::PLACES_MAX as HEAT_PLACES_MAX;
pub use scale::AxisScale;
pub use style::SeriesLook;

impl Figure {
    /// The picture.
    pub fn svg(&self, place: PicturePlace) -> String {
        frame::draw(self, place)
    }
}
