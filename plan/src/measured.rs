//! Results of `vrio bench`, and the costs of a request that `vrio bench block` has measured.

use results::{Measurement, Quantity, Unit};
use serde::Serialize;
use serde_json::Value;

use crate::fault::{PlanFault, key};

/// Measurements of one file: a run with all ways of two MPIs has some hundred.
const MEASUREMENTS_MAX: usize = 4096;
/// The longest cost of a request: a second, as a scenario has it.
const COST_NS_MAX: f64 = 1e9;

/// The measurements of a text: a file of the store, or what `vrio bench .. --json` or
/// `vrio results show --json` has printed.
///
/// # Errors
/// When the text is no result, or has more than any run.
pub fn measurements(name: &str, text: &str) -> Result<Vec<Measurement>, PlanFault> {
    let fault = |cause: String| {
        let way_out = "name JSON of `vrio bench`, or a run of `vrio results`";
        key(name, cause, way_out)
    };
    let value: Value = serde_json::from_str(text).map_err(|error| fault(error.to_string()))?;
    let inside = value.get("results").unwrap_or(&value);
    let Some(listed) = inside.get("measurements") else {
        return Ok(vec![Measurement::read(text).map_err(|error| fault(error.to_string()))?]);
    };
    let listed = listed.as_array().map(Vec::as_slice).unwrap_or_default();
    if listed.len() > MEASUREMENTS_MAX {
        return Err(fault(format!("it has more than {MEASUREMENTS_MAX} measurements")));
    }
    let read = |it: &Value| Measurement::read(&it.to_string());
    let read = listed.iter().map(read).collect::<Result<Vec<_>, _>>();
    read.map_err(|error| fault(error.to_string()))
}

/// A cost of a request, for a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeasuredCost {
    /// The scenario's key: `costs.serve_ns`.
    pub key: &'static str,
    /// The cost.
    pub ns: u64,
    /// The measurement that it is of.
    pub from: String,
}

/// The costs of sidecores in measurements of `vrio bench block`: processor time of a request. An
/// IOhost's is that of serving; a VMhost's is that of the way there and back, or of serving where
/// the disk is local. Of several measurements the least counts: a sidecore that polls takes time
/// while it waits, so the busiest measurement has the least beside the work.
///
/// # Errors
/// When there is none, or a figure is out of range.
pub fn costs(name: &str, all: &[Measurement]) -> Result<Vec<MeasuredCost>, PlanFault> {
    let blocks = || all.iter().filter(|it| it.benchmark == "block");
    let of = |path: &str, role: &str, cost: &'static str| {
        let of_path = blocks().filter(|it| it.setup.get("path").is_some_and(|it| it == path));
        of_path.filter_map(|it| least(it, role, cost)).min_by_key(|cost| cost.ns)
    };
    let vmhost = of("remote", "vmhost", "costs.vmhost_ns");
    let serve = of("remote", "iohost", "costs.serve_ns");
    let serve = serve.or_else(|| of("local", "vmhost", "costs.serve_ns"));
    let Some(serve) = serve else {
        let cause = "it has no processor time of a request by `vrio bench block`";
        let way_out = "measure with `vrio bench block --path remote --depth 32 --json`";
        return Err(key(name, cause, way_out));
    };
    // The measured time is of both ways: nothing tells how much of it is of the way back.
    let back =
        vmhost.as_ref().map(|it| MeasuredCost { key: "costs.vmhost_back_ns", ns: 0, ..it.clone() });
    let complete = MeasuredCost { key: "costs.complete_ns", ns: 0, ..serve.clone() };
    Ok([vmhost, back, Some(serve), Some(complete)].into_iter().flatten().collect())
}

/// The least processor time of a role in a measurement.
fn least(it: &Measurement, role: &str, cost: &'static str) -> Option<MeasuredCost> {
    let is_it =
        |quantity: Quantity, name: &str| quantity == Quantity::CpuPerRequest && name == role;
    let series = it.series.iter().find(|series| is_it(series.quantity, &series.name))?;
    let ns = series.points.iter().filter_map(|point| {
        let ns = series.unit.convert(point.y, Unit::Ns)?;
        (1.0..=COST_NS_MAX).contains(&ns).then_some((ns.round() as u64, point.x))
    });
    let (ns, depth) = ns.min_by_key(|(ns, _)| *ns)?;
    let path = it.setup.get("path").map_or("", String::as_str);
    Some(MeasuredCost { key: cost, ns, from: format!("{role}, {path}, depth {depth}") })
}

/// The costs as assignments of a scenario's keys.
pub fn assignments(costs: &[MeasuredCost]) -> Vec<(String, String)> {
    costs.iter().map(|cost| (cost.key.to_owned(), cost.ns.to_string())).collect()
}

/// The costs in words, above a table.
pub fn costs_text(costs: &[MeasuredCost]) -> String {
    let from = |cost: &MeasuredCost| match cost.ns {
        0 => "not told apart".to_owned(),
        _ => cost.from.clone(),
    };
    let words = costs.iter().map(|cost| format!("{} = {} ({})", cost.key, cost.ns, from(cost)));
    format!("Measured: {}\n\n", words.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = include_str!("../../report/tests/data/vrio-block.json");
    const REMOTE: &str = include_str!("../../report/tests/data/vrio-block-remote.json");

    fn found(texts: &[&str]) -> Vec<(&'static str, u64)> {
        let all: Vec<Measurement> =
            texts.iter().flat_map(|text| measurements("own.json", text).unwrap()).collect();
        costs("own.json", &all).unwrap().into_iter().map(|it| (it.key, it.ns)).collect()
    }

    #[test]
    fn costs_are_the_processor_time_of_each_role() {
        let local = [("costs.serve_ns", 1249), ("costs.complete_ns", 0)];
        assert_eq!(found(&[LOCAL]), local);
        let remote = found(&[LOCAL, REMOTE]);
        let keys: Vec<_> = remote.iter().map(|(key, _)| *key).collect();
        let expected =
            ["costs.vmhost_ns", "costs.vmhost_back_ns", "costs.serve_ns", "costs.complete_ns"];
        assert_eq!(keys, expected);
        assert!(remote[0].1 > 0 && remote[2].1 > 0 && remote[2].1 != 1249, "{remote:?}");
    }

    #[test]
    fn the_busiest_measurement_counts() {
        let mut all = measurements("own.json", LOCAL).unwrap();
        let mut busy = all[0].clone();
        let is_it = |it: &&mut results::Series| it.name == "vmhost";
        busy.series.iter_mut().find(is_it).unwrap().points[0].y = 0.5;
        all.push(busy);
        let found = costs("own.json", &all).unwrap();
        assert_eq!((found[0].ns, assignments(&found)[0].1.as_str()), (500, "500"));
        let text = costs_text(&found);
        assert!(text.contains("serve_ns = 500 (vmhost, local, depth 1)"), "{text}");
        // A key of the scenario that becomes 0 is named.
        assert!(text.contains("complete_ns = 0 (not told apart)"), "{text}");
    }

    #[test]
    fn results_without_use_are_refused() {
        for text in ["", "{}", "[1]", "{\"measurements\": [{}]}"] {
            let fault = measurements("own.json", text).unwrap_err().to_string();
            assert!(fault.starts_with("own.json: ") && fault.contains("vrio bench"), "{fault}");
        }
        let fault = costs("own.json", &[]).unwrap_err().to_string();
        assert!(fault.contains("vrio bench block --path remote"), "{fault}");
        let mut all = measurements("own.json", LOCAL).unwrap();
        let points = all.iter_mut().flat_map(|it| &mut it.series).flat_map(|it| &mut it.points);
        points.for_each(|point| point.y = -1.0);
        assert!(costs("own.json", &all).is_err());
    }
}
