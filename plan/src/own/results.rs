//! Predictions of our own bench in the form of results.

use ::results::{Axis, PlannedResults, Point, Quantity, Unit};

use super::{OwnFigures, OwnVerdict};
use crate::money::grouped;
use crate::planned::{categories, measurement, results, series};

/// The predictions, by the measurements; of a prediction that does not hold a note has the
/// measurement. `source` is the files of the measurements.
pub fn own_results(source: &str, figures: &OwnFigures) -> PlannedResults {
    let source = format!("costs of {source}");
    let mut it = measurement("plan_own", "vrio bench block, predicted", None, &source);
    let words: Vec<String> = figures.figures.iter().map(|figure| figure.run.words()).collect();
    let labels = categories(words.iter().map(String::as_str));
    let all = figures.figures.iter().zip(&labels).enumerate();
    let place = |(at, (figure, label))| {
        let (figure, label): (&super::OwnFigure, &String) = (figure, label);
        Point::of_category(at, label, figure.ours_per_s)
    };
    let points = all.clone().map(place).collect();
    it.series = vec![series("predicted", (Quantity::Iops, Unit::PerS), Axis::CATEGORY, points)];
    for (_, (figure, label)) in all.filter(|(_, it)| it.0.verdict == OwnVerdict::Differs) {
        let measured = grouped(figure.run.measured_per_s as u64);
        it.notes.push(format!("{label}: {measured} in a second were measured."));
    }
    results("vrio bench block, predicted", vec![it])
}

#[cfg(test)]
mod tests {
    use super::super::{own, recorded};
    use super::*;

    #[test]
    fn each_prediction_is_a_point() {
        let figures = own("own-bench.json", &recorded().unwrap()).unwrap();
        let found = own_results("own-bench.json", &figures);
        found.check().unwrap();
        let [it] = found.measurements.as_slice() else { panic!("{found:?}") };
        assert_eq!(it.series[0].points.len(), figures.figures.len());
        let differ = figures.figures.iter().filter(|it| it.verdict == OwnVerdict::Differs);
        assert_eq!(it.notes.len(), differ.count());
    }
}
