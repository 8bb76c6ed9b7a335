//! The JSON of `vrio bench ... --json`, which has its results in it: a run and its measurements;
//! and the JSON of `vrio plan ... --json`, whose results are of no run.

use results::{PlannedResults, ResultError, Run, SCHEMA};
use serde::Deserialize;

use super::fault::Fault;
use crate::store::Loaded;

#[derive(Deserialize)]
struct OwnJson {
    results: Loaded,
}

#[derive(Deserialize)]
struct PlannedJson {
    results: PlannedResults,
}

/// The kind of the runs that are made of planned results.
const PLAN: &str = "plan";

/// The versions of the results, which are looked at first: another version may have other fields.
#[derive(Deserialize)]
struct OwnVersions {
    results: RunVersions,
}

#[derive(Deserialize)]
struct RunVersions {
    /// None in a plan.
    run: Option<FormVersion>,
    measurements: Vec<FormVersion>,
}

#[derive(Deserialize)]
struct FormVersion {
    schema: u64,
}

/// The fault of JSON of vrio without results.
pub(super) fn without_results(line: usize) -> Fault {
    let found = "JSON of an earlier vrio, which had none: measure again, or have that vrio import \
        it, whose runs are read here";
    Fault::new(line, "JSON of `vrio bench` with results in it", found)
}

/// Reads the JSON, which begins in that line.
pub(super) fn read(text: &str, line: usize) -> Result<Loaded, Fault> {
    const EXPECTED: &str = "results of `vrio bench` or `vrio plan`";
    let fault = |error| Fault::json(text, line, EXPECTED)(error);
    let unfit = |error: ResultError| {
        let expected = format!("{EXPECTED}, of version {SCHEMA}");
        Fault::new(line, expected, error.to_string())
    };
    let OwnVersions { results } = serde_json::from_str(text).map_err(fault)?;
    let is_planned = results.run.is_none();
    let mut versions = results.measurements.iter().chain(&results.run).map(|it| it.schema);
    if let Some(found) = versions.find(|version| *version != u64::from(SCHEMA)) {
        return Err(unfit(ResultError::Version { found }));
    }
    let results = if is_planned {
        let PlannedJson { results } = serde_json::from_str(text).map_err(fault)?;
        results.check().map_err(unfit)?;
        let PlannedResults { title, measurements } = results;
        Loaded { run: Run::now(PLAN, &title), measurements }
    } else {
        let OwnJson { results } = serde_json::from_str(text).map_err(fault)?;
        results
    };
    results.check().map_err(unfit)?;
    Ok(results)
}

#[cfg(test)]
mod tests {
    use results::{Quantity, RunOrigin};

    use super::*;
    use crate::import::{import, import_report};

    const TEXT: &str = include_str!("../../tests/data/vrio-block.json");

    #[test]
    fn results_are_taken_as_they_are_with_the_files_name() {
        let written = read(TEXT, 1).unwrap();
        let [whole, parts] = &import("deep/mine.json", TEXT).unwrap()[..] else { panic!("two") };
        assert_eq!((whole.title.as_str(), parts.title.as_str()), ("mine", "mine"));
        assert_eq!((whole.origin, whole.source.as_ref()), (RunOrigin::Measured, None));
        assert_eq!(whole.series[0].quantity, Quantity::Iops);
        assert_eq!(whole.series, written.measurements[0].series);
        let named = import_report(TEXT, "block, local").unwrap();
        assert_eq!(
            (named.run.title.as_str(), named.run.begun.as_str()),
            ("block, local", "2026-11-20T00:00:00Z")
        );
        assert_eq!(named.measurements[0].title, "block, local");
    }

    #[test]
    fn titles_of_parts_keep_what_sets_them_apart() {
        let models = include_str!("../../tests/data/vrio-models.json");
        let titles: Vec<_> =
            import("mine.json", models).unwrap().into_iter().map(|it| it.title).collect();
        assert!(titles.iter().all(|title| title.starts_with("mine: ")), "{titles:?}");
        let mpi = include_str!("../../tests/data/vrio-mpi.json");
        let named = import("mine.json", mpi).unwrap().remove(0).title;
        assert!(named.ends_with(", one host, Open MPI 4.1.4 (mine)"), "{named}");
        let bare = import_report(mpi, "").unwrap().measurements.remove(0).title;
        assert!(bare.ends_with(", one host, Open MPI 4.1.4"), "{bare}");
    }

    #[test]
    fn an_error_names_its_place() {
        let said = |text: &str| import("x.json", text).unwrap_err().to_string();
        let newer = said(&TEXT.replacen("\"schema\": 1", "\"schema\": 2, \"novelty\": 1", 1));
        assert!(newer.contains("version 2 of the results' form"), "{newer}");
        let spoilt = said(&TEXT.replacen("\"benchmark\"", "\"novelty\": 1, \"benchmark\"", 1));
        assert!(spoilt.contains("x.json, line ") && spoilt.contains("unknown field"), "{spoilt}");
        let cut = said(&TEXT[..TEXT.len() / 2]);
        assert!(cut.contains("was it cut?"), "{cut}");
        let unfit = said(&TEXT.replacen("\"quantity\": \"iops\"", "\"quantity\": \"latency\"", 1));
        assert!(unfit.contains("series[0].unit"), "{unfit}");
        let earlier = said("{\"version\": 1, \"machine\": {}, \"iops\": 5}");
        assert!(
            earlier.contains("an earlier vrio") && earlier.contains("measure again"),
            "{earlier}"
        );
    }
}
