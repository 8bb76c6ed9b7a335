//! Published figures and ours in the form of results.

use ::results::{Axis, Meant, Measurement, PlannedResults, Point, Quantity, RunOrigin, Unit};
use serde::Serialize;

use super::{FigureUnit, FigureVerdict, JudgedFigure, file};
use crate::planned::{results, series};

/// The name of the benchmark, by which both sides stand in one plot.
const BENCHMARK: &str = "plan_published";
/// The title of all, and the name of our figures.
const TITLE: &str = "published figures";
const OURS: &str = "the planner's";
/// Words that stand for the figure before.
const THE_SAME: &str = "the same, ";

/// The figures, as JSON has them.
#[derive(Debug, Serialize)]
pub struct JudgedForm<'a> {
    /// All figures.
    pub figures: &'a [JudgedFigure],
}

/// The quantity of a unit, and the factor to the unit of results. Shares are no quantity of any
/// text: the planner alone has them.
fn told(unit: FigureUnit) -> Option<(Quantity, Unit, f64)> {
    match unit {
        FigureUnit::Usd => Some((Quantity::Price, Unit::Usd, 1.0)),
        FigureUnit::Gbit => Some((Quantity::Bandwidth, Unit::BitsPerS, 1e9)),
        FigureUnit::Percent => Some((Quantity::PriceChange, Unit::Percent, 1.0)),
        FigureUnit::Ratio => Some((Quantity::Factor, Unit::Ratio, 1.0)),
        FigureUnit::Count => Some((Quantity::Connections, Unit::Count, 1.0)),
        FigureUnit::Megabytes => Some((Quantity::Memory, Unit::Bytes, 1e6)),
        FigureUnit::Share => None,
    }
}

/// The words of all figures, none of which points to another one, with each verdict that is not
/// the same.
fn labels(figures: &[JudgedFigure]) -> Vec<String> {
    let mut last = "";
    let mut found = Vec::new();
    for figure in figures {
        let mut label = match figure.what.strip_prefix(THE_SAME) {
            // The last part is what differs.
            Some(rest) => format!("{}, {rest}", last.rsplit_once(", ").map_or(last, |it| it.0)),
            None => {
                last = &figure.what;
                figure.what.clone()
            }
        };
        if figure.verdict != FigureVerdict::Same {
            label = format!("{label}: {}", figure.verdict.words());
        }
        found.push(label);
    }
    found
}

/// Published figures beside ours, with the verdict on each that is not the same. Figures that no
/// text has are left out.
pub fn judged_results(figures: &[JudgedFigure]) -> PlannedResults {
    let mut texts: Vec<Measurement> = Vec::new();
    for source in file().source {
        let mut it = Measurement::new(RunOrigin::Published, BENCHMARK, &source.name);
        it.source = Some(source.text);
        texts.push(it);
    }
    // One of ours for each quantity, so that a picture has the notes of its own figures.
    let mut ours: Vec<Measurement> = Vec::new();
    for (at, (figure, label)) in figures.iter().zip(labels(figures)).enumerate() {
        let Some((quantity, unit, times)) = told(figure.unit) else { continue };
        if figure.verdict == FigureVerdict::Own {
            continue;
        }
        let point = |number: f64| Point::of_category(at, &label, number * times);
        let is_it = |of: &Measurement| of.series.iter().any(|it| it.quantity == quantity);
        let place = ours.iter().position(is_it).unwrap_or_else(|| {
            let mut it = Measurement::new(RunOrigin::Planned, BENCHMARK, OURS);
            it.source = Some("the parts that the texts name".to_owned());
            it.series.push(series(OURS, (quantity, unit), Axis::CATEGORY, Vec::new()));
            ours.push(it);
            ours.len() - 1
        });
        ours[place].series[0].points.push(point(figure.ours));
        if let Some(note) = &figure.note {
            let is_known = ours[place].notes.iter().any(|known| known.ends_with(note.as_str()));
            ours[place].notes.extend((!is_known).then(|| format!("{label}: {note}")));
        }
        let Some(text) = texts.iter_mut().find(|it| it.title == figure.source) else { continue };
        let known = text.series.iter().position(|series| series.quantity == quantity);
        let place = known.unwrap_or_else(|| {
            let name = &figure.source;
            text.series.push(series(name, (quantity, unit), Axis::CATEGORY, Vec::new()));
            text.series.len() - 1
        });
        let meant = if figure.within > 0.0 { Meant::About } else { Meant::Exact };
        text.series[place].points.push(Point { meant, ..point(figure.said) });
    }
    results(TITLE, [ours, texts].concat())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::judged;
    use super::*;

    #[test]
    fn each_published_figure_stands_beside_ours() {
        let figures = judged().unwrap();
        let found = judged_results(&figures);
        found.check().unwrap();
        let is_ours = |it: &&Measurement| it.origin == RunOrigin::Planned;
        let (ours, texts): (Vec<_>, Vec<_>) = found.measurements.iter().partition(is_ours);
        assert_eq!(ours.len(), 6, "one of each quantity");
        let points = |it: &Measurement| {
            let all = it.series.iter().flat_map(|series| &series.points);
            all.filter_map(|point| point.label.clone()).collect::<Vec<_>>()
        };
        let own: Vec<String> = ours.into_iter().flat_map(points).collect();
        let apart: BTreeSet<&String> = own.iter().collect();
        assert_eq!(apart.len(), own.len(), "two figures have one name");
        let published: BTreeSet<String> = texts.into_iter().flat_map(points).collect();
        assert_eq!(published, own.iter().cloned().collect());
        let judged = figures.iter().filter(|it| it.verdict != FigureVerdict::Own).count();
        assert_eq!(own.len(), judged);
        for label in ["IS, connections of a process, 2 cores a VM: differs", "3 Elvis servers"] {
            assert!(own.iter().any(|it| it == label), "{label}: {own:#?}");
        }
        assert!(own.contains(&"2+1 servers of vRIO, change of price".to_owned()), "{own:#?}");
    }
}
