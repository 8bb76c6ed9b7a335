//! The results in the JSON of `vrio plan`: measurements without a run. Nothing was measured, so
//! there is no machine and no time, and the same files give the same bytes.

use serde::{Deserialize, Serialize};

use crate::form::{ENTRIES_MAX, Measurement, ResultError, RunOrigin, WORDS_MAX, rule};

/// The results of one command of the planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedResults {
    /// The title for a reader. Titles of measurements begin with it.
    pub title: String,
    /// Its figures, and the published figures beside them.
    pub measurements: Vec<Measurement>,
}

impl PlannedResults {
    /// Checks the rules of a planner's results, and of each measurement.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), ResultError> {
        if self.title.is_empty() || self.title.len() > WORDS_MAX {
            return Err(rule("title", format!("it has 1 to {WORDS_MAX} bytes")));
        }
        if self.measurements.len() > ENTRIES_MAX {
            return Err(rule("measurements", format!("more than {ENTRIES_MAX}")));
        }
        for (at, it) in self.measurements.iter().enumerate() {
            it.check()?;
            if !matches!(it.origin, RunOrigin::Planned | RunOrigin::Published) {
                let what = "results of the planner are planned or published";
                return Err(rule(format!("measurements[{at}].origin"), what));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Point, Quantity, Series, Unit};

    fn planned(quantity: Quantity, unit: Unit, y: f64) -> PlannedResults {
        let mut it = Measurement::new(RunOrigin::Planned, "plan_search", "a rack");
        it.source = Some("prices of a list".to_owned());
        it.series = vec![Series {
            points: vec![Point::new(2.0, y)],
            ..Series::new("pool", quantity, unit, Axis::SERVERS)
        }];
        PlannedResults { title: "a rack".to_owned(), measurements: vec![it] }
    }

    #[test]
    fn changes_may_be_below_nothing_and_prices_may_not() {
        planned(Quantity::PriceChange, Unit::Percent, -4.5).check().unwrap();
        planned(Quantity::HostPrice, Unit::Usd, 0.0).check().unwrap();
        let said = planned(Quantity::HostPrice, Unit::Usd, -1.0).check().unwrap_err().to_string();
        assert_eq!(said, "series[0].points[0]: a planned price per host is not below 0");
        let mut measured = planned(Quantity::HostPrice, Unit::Usd, -1.0);
        measured.measurements[0].origin = RunOrigin::Published;
        measured.check().unwrap();
    }

    #[test]
    fn rules_are_kept() {
        type Break = fn(&mut PlannedResults);
        let breaks: [(&str, Break); 5] = [
            ("title: it has", |it| it.title.clear()),
            ("title: it has", |it| it.title = "x".repeat(WORDS_MAX + 1)),
            ("source", |it| it.measurements[0].source = None),
            ("measurements: more", |it| {
                it.measurements = vec![it.measurements[0].clone(); ENTRIES_MAX + 1];
            }),
            ("measurements[0].origin", |it| it.measurements[0].origin = RunOrigin::Measured),
        ];
        for (place, spoil) in breaks {
            let mut it = planned(Quantity::PriceChange, Unit::Percent, 1.0);
            spoil(&mut it);
            let said = it.check().unwrap_err().to_string();
            assert!(said.starts_with(place), "{place}: {said}");
        }
    }
}
