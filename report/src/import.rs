//! Other programs' output as measurements. The content of a file decides its format, not its name.

mod fault;
mod fio;
mod iperf3;
mod measurement;
mod netperf;
mod osu;
mod own;
mod sockperf;
mod words;

use std::path::{Path, PathBuf};

use results::{Machine, Measurement, ResultError, Run, RunOrigin, SCHEMA};
use serde::Deserialize;
use serde::de::IgnoredAny;

use fault::Fault;
pub use fault::ImportError;

use crate::merge::merge;
use crate::store::{self, Loaded, RunStore, StoreError};
use crate::tools::tools;

/// The formats that can be read, for the error about another one.
const KNOWN: &str = "output of the OSU micro-benchmarks, fio (--output-format=json), netperf, \
    iperf3 (-J) or sockperf, or JSON of `vrio bench` or `vrio plan`";

/// The name of the standard input in messages.
const STANDARD_INPUT: &str = "standard input";

/// Reads a file's text; `-` is the standard input.
fn text_of(path: &Path) -> Result<(String, String), StoreError> {
    if path == Path::new("-") {
        let text = store::read_bounded(Path::new(STANDARD_INPUT), std::io::stdin())?;
        return Ok((STANDARD_INPUT.to_owned(), text));
    }
    Ok((path.display().to_string(), store::read_text(path)?))
}

/// Reads files and puts their measurements together, as a run that is not in a store yet. Its
/// machine is known if all files are our reports from one machine.
///
/// # Errors
/// When a file cannot be read, is of no known program, or was cut: with the line.
pub fn import_files(files: &[PathBuf], title: Option<&str>) -> Result<Loaded, ImportError> {
    let (mut measurements, mut machines, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let (name, text) = text_of(file)?;
        let (more, machine) = import_text(&name, &text)?;
        measurements.extend(more);
        machines.push(machine);
        names.push(name);
    }
    let measurements = merge(measurements);
    let first = measurements.first().map_or("nothing", |it| it.title.as_str());
    // A plan has the name of its file: its measurements are parts of it.
    let is_plan = measurements.iter().any(|it| it.origin == RunOrigin::Planned);
    let plan = names.first().filter(|_| is_plan).and_then(|name| Path::new(name).file_stem());
    let plan = plan.map(|stem| stem.to_string_lossy());
    let first = plan.as_deref().unwrap_or(first);
    let kind = measurements.first().map_or("nothing", |it| it.benchmark.as_str());
    let mut run = Run::now(kind, title.unwrap_or(first));
    let first = machines.first().cloned().flatten();
    run.machine = first.filter(|one| machines.iter().all(|it| one.is_same(it.as_ref())));
    run.tools = tools(&measurements);
    Ok(Loaded { run, measurements })
}

/// The run in the JSON of one of our benchmarks, with a title of the caller's.
///
/// # Errors
/// When the text is no such JSON, or has another version.
pub fn import_report(text: &str, title: &str) -> Result<Loaded, ImportError> {
    let mut loaded = own::read(text, 1).map_err(|fault| fault.of("the report"))?;
    loaded.retitle(title);
    Ok(loaded)
}

/// Finds the results that a word of a command line means: a directory with a run, a file of any
/// kind that is imported, or a run of the store by its name or the name's beginning.
///
/// # Errors
/// When the word means none of these, or the results are damaged; when the store is needed and its
/// directory is not known.
pub fn open(
    word: &str,
    store: impl FnOnce() -> Result<RunStore, StoreError>,
) -> Result<Loaded, ImportError> {
    let path = Path::new(word);
    if path.is_dir() {
        return Ok(store::load(path)?);
    }
    if path.exists() || word == "-" {
        return import_files(&[path.to_owned()], None);
    }
    Ok(store()?.load(word)?)
}

/// Reads the text of a file of that name. Measurements get the file's name without its suffix as
/// their title.
///
/// # Errors
/// When the text is of no known program, or was cut: with the line.
pub fn import(file: &str, text: &str) -> Result<Vec<Measurement>, ImportError> {
    Ok(import_text(file, text)?.0)
}

/// Measurements, and their machine if that is known.
type OfMachine = (Vec<Measurement>, Option<Machine>);

fn import_text(file: &str, text: &str) -> Result<OfMachine, ImportError> {
    let fail = |fault: Fault| fault.of(file);
    let name = Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy());
    let stem = Path::new(file).file_stem().map_or(name.clone(), |stem| stem.to_string_lossy());
    let (mut measurements, machine) = read(text, &stem).map_err(fail)?;
    for it in &mut measurements {
        if it.origin == RunOrigin::Imported {
            it.source.get_or_insert_with(|| name.clone().into_owned());
        }
        let limits = "figures within the limits of results";
        it.check().map_err(|error| fail(Fault::new(1, limits, error.to_string())))?;
    }
    Ok((measurements, machine))
}

/// Finds the program that printed the text, and reads it.
fn read(text: &str, title: &str) -> Result<OfMachine, Fault> {
    if text.trim().is_empty() {
        return Err(Fault::new(1, KNOWN, "nothing"));
    }
    if let Some((line, json)) = json(text) {
        return read_json(json, line, title);
    }
    let measurements = if osu::is_it(text) {
        osu::read(text, title)?
    } else if netperf::is_it(text) {
        netperf::read(text, title)?
    } else if sockperf::is_it(text) {
        sockperf::read(text, title)?
    } else {
        let first = text.lines().position(|line| !line.trim().is_empty()).unwrap_or(0);
        let found = text.lines().nth(first).unwrap_or_default();
        return Err(Fault::new(first + 1, KNOWN, words::quoted(found)));
    };
    Ok((measurements, None))
}

/// The first JSON object and its line: fio may print messages before it.
fn json(text: &str) -> Option<(usize, &str)> {
    let mut at = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if line.trim_start().starts_with('{') {
            return Some((index + 1, &text[at..]));
        }
        at += line.len();
    }
    None
}

/// Fields that distinguish one program's JSON from another's.
#[derive(Deserialize)]
struct Marks {
    #[serde(rename = "fio version")]
    fio: Option<IgnoredAny>,
    start: Option<IgnoredAny>,
    schema: Option<u32>,
    version: Option<IgnoredAny>,
    machine: Option<IgnoredAny>,
    results: Option<IgnoredAny>,
}

fn read_json(text: &str, line: usize, title: &str) -> Result<OfMachine, Fault> {
    let marks: Marks = serde_json::from_str(text).map_err(Fault::json(text, line, "JSON"))?;
    let measurements = match marks {
        Marks { fio: Some(_), .. } => fio::read(text, line, title)?,
        Marks { start: Some(_), .. } => iperf3::read(text, line, title)?,
        Marks { schema: Some(_), .. } => {
            let expected = format!("a measurement of version {SCHEMA} of vrio's results");
            let fault = |error: ResultError| Fault::new(line, expected, error.to_string());
            vec![Measurement::read(text).map_err(fault)?]
        }
        Marks { results: Some(_), .. } => {
            let mut loaded = own::read(text, line)?;
            loaded.retitle(title);
            return Ok((loaded.measurements, loaded.run.machine));
        }
        Marks { version: Some(_), machine: Some(_), .. } => {
            return Err(own::without_results(line));
        }
        _ => return Err(Fault::new(line, KNOWN, "JSON of another program")),
    };
    Ok((measurements, None))
}

#[cfg(test)]
mod tests;
