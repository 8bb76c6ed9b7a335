//! Published peaks: the greatest figure that was reached, at any size.

use results::{Against, Point, Quantity, Spread, Unit};

use super::group::{Drawing, Group, converted};
use super::item::Item;
use super::names;
use crate::plot::Curve;

/// The published peaks in one plot.
const PEAKS_MAX: usize = 12;

/// The peaks that others published, each as a line across the plot.
pub(super) fn peaks<'a>(
    group: &Group<'a>,
    quantity: Quantity,
    unit: Unit,
    drawing: &mut Drawing<'a>,
) -> Vec<Curve> {
    let own = || group.items.iter().filter(|item| !item.is_published());
    let xs = || own().flat_map(|item| &item.series.points).map(|point| point.x);
    let first = xs().fold(f64::INFINITY, f64::min);
    let last = xs().fold(0.0, f64::max);
    let mut found = Vec::new();
    for item in group.others.iter().filter(|item| is_peak(group, item, quantity)).copied() {
        drawing.shows(&item);
        for point in &item.series.points {
            let point = converted(&item, point, unit, Unit::Name);
            let label = point.label.clone().unwrap_or_default();
            let name = names::published(&item, &label);
            found.push((name, Point { x: first, x_to: Some(last), label: None, ..point }));
        }
    }
    found.truncate(PEAKS_MAX);
    let names: Vec<String> = found.iter().map(|(name, _)| name.clone()).collect();
    let looks = drawing.looks.of(&names);
    let curve = |((name, point), look)| Curve {
        name,
        look,
        is_published: true,
        spread: Spread::None,
        points: vec![point],
    };
    found.into_iter().zip(looks).map(curve).collect()
}

/// Whether it is a published peak of this quantity.
pub(super) fn is_peak(group: &Group<'_>, item: &Item<'_>, quantity: Quantity) -> bool {
    let has_peak = matches!(
        quantity,
        Quantity::Bandwidth | Quantity::BidirectionalBandwidth | Quantity::LineShare
    );
    let is_it = item.series.quantity == quantity && item.series.x.quantity == Against::Category;
    has_peak && is_it && group.against == Against::MessageSize && group.only_place().is_none()
}
