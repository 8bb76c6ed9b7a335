//! The options of a benchmark of ours, as the set-up of its measurements.

use std::collections::BTreeMap;

use results::{Measurement, RunOrigin};
use serde_json::Value;

/// The reason that a speed is missing where more threads poll than there are cores.
pub(super) const NO_SEATS: &str = "more polling threads than cores";

/// A value as a word.
pub(super) fn word(value: &Value) -> String {
    match value {
        Value::String(word) => word.clone(),
        other => other.to_string(),
    }
}

/// A measurement of ours. Its set-up is the options that do not stand on an axis.
pub(super) fn measured(
    benchmark: &str,
    title: &str,
    asked: &BTreeMap<String, Value>,
    axes: &[&str],
) -> Measurement {
    let mut it = Measurement::new(RunOrigin::Measured, benchmark, title);
    let said =
        asked.iter().filter(|(name, value)| !axes.contains(&name.as_str()) && !value.is_null());
    it.setup = said.map(|(name, value)| (name.clone(), word(value))).collect();
    it
}
