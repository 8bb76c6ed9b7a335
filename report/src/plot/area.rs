//! The part of a picture in which its points or bars stand.

use super::scale::ScaleSpan;

/// The width of every picture, in its own units.
pub(super) const WIDTH: f64 = 760.0;

/// The room at the right of the area.
pub(super) const RIGHT: f64 = 30.0;

/// The room at the left of the area of curves.
pub(super) const CURVES_LEFT: f64 = 78.0;

/// The width of the area of curves.
pub(super) const CURVES_WIDTH: f64 = WIDTH - RIGHT - CURVES_LEFT;

/// The place of the points, and the conversion of numbers into places.
#[derive(Debug)]
pub(super) struct Area {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
    pub(super) x: ScaleSpan,
    pub(super) y: ScaleSpan,
}

impl Area {
    pub(super) fn at_x(&self, number: f64) -> Option<f64> {
        Some(self.left + self.x.place(number)? * (self.right - self.left))
    }

    pub(super) fn at_y(&self, number: f64) -> Option<f64> {
        Some(self.bottom - self.y.place(number)? * (self.bottom - self.top))
    }
}
