//! Predictions in the form of results.

use ::results::{Axis, PlannedResults, Point, Quantity, Series, Spread, Unit};

use super::predict::{Predicted, Prediction};
use super::profile::Profile;
use super::span::TimeSpan;
use crate::planned::{categories, measurement, results, series};

/// Nanoseconds as seconds.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// The run times on all platforms, and the times of the messages alone. `source` is the profile's
/// file.
pub fn predicted_results(source: &str, profile: &Profile, predicted: &Predicted) -> PlannedResults {
    let source = format!("profile: {source}; curves: those of the platforms");
    let mut it = measurement("plan_application", &profile.title, None, &source);
    it.setup.insert("ranks".to_owned(), profile.ranks.to_string());
    it.setup.insert("ranks_per_host".to_owned(), profile.ranks_per_host.to_string());
    let labels = categories(predicted.platforms.iter().map(|it| it.platform.as_str()));
    type Of = fn(&Prediction) -> TimeSpan;
    let kinds: [(&str, Of); 2] = [("run", |it| it.run), ("messages of it", |it| it.communication)];
    for (name, of) in kinds {
        let point = |(at, it): (usize, &Prediction)| {
            let span = of(it);
            Point {
                low: Some(seconds(span.least_ns)),
                high: Some(seconds(span.most_ns)),
                ..Point::of_category(at, &labels[at], seconds(span.likely_ns))
            }
        };
        let points = predicted.platforms.iter().enumerate().map(point).collect();
        let all = series(name, (Quantity::Duration, Unit::S), Axis::CATEGORY, points);
        it.series.push(Series { spread: Spread::MinMax, ..all });
    }
    it.notes.push(
        "The range is that of the curves and of the ranks' computation. The model's own error \
         comes on top, and is not known."
            .to_owned(),
    );
    results(&profile.title, vec![it])
}

#[cfg(test)]
mod tests {
    use super::super::{EXAMPLE, Platform, predict};
    use super::*;
    use crate::published;

    #[test]
    fn each_platform_has_its_run_and_its_range() {
        let profile = Profile::read("profile", EXAMPLE).unwrap();
        let platforms = ["ib-native", "ec2-c3"].map(|name| Platform::shipped(name).unwrap());
        let predicted = Predicted {
            held_out: published::held_out().unwrap(),
            platforms: predict(&profile, &platforms).unwrap(),
        };
        let found = predicted_results("profile", &profile, &predicted);
        found.check().unwrap();
        let run = &found.measurements[0].series[0].points[1];
        assert_eq!(run.label.as_deref(), Some("ec2-c3"));
        let is_near = |found: f64, wanted: f64| (found - wanted).abs() < 0.01;
        assert!(is_near(run.y, 275.90) && is_near(run.high.unwrap(), 386.15), "{run:?}");
    }
}
