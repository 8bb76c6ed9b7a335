//! The programs that took part in measurements.

use std::collections::{BTreeMap, BTreeSet};

use results::{Measurement, RunOrigin};

/// The versions of the programs that took part: of the program that measured, or of its MPI. Two
/// versions of one program in one run are both named.
pub(crate) fn tools(measurements: &[Measurement]) -> BTreeMap<String, String> {
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for it in measurements {
        let program = it.benchmark.split('_').next().unwrap_or_default();
        let own = (it.origin == RunOrigin::Imported).then_some(program);
        let tool = it.setup.get("mpi").map(String::as_str).or(own);
        if let Some((tool, version)) = tool.zip(it.setup.get("version")) {
            versions.entry(tool).or_default().insert(version);
        }
    }
    let told = |(tool, versions): (&str, BTreeSet<&str>)| {
        (tool.to_owned(), versions.into_iter().collect::<Vec<_>>().join(" and "))
    };
    versions.into_iter().map(told).collect()
}
