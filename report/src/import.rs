//! Other programs' output as measurements. What a file is, its content says, not its name.

mod contests;
mod failover;
mod fio;
mod floor;
mod iperf3;
mod models;
mod netperf;
mod osu;
mod own;
mod rounds;
mod sockperf;
mod words;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;
use serde::de::IgnoredAny;
use thiserror::Error;

use crate::result::{
    ENTRIES_MAX, Machine, Measurement, Point, Run, RunOrigin, SCHEMA, Series, WORDS_MAX,
};
use crate::store::{self, Loaded, RunStore, StoreError};

/// What is wrong with a file that was to be imported.
#[derive(Debug, Error)]
pub enum ImportError {
    /// It cannot be read at all.
    #[error(transparent)]
    Read(#[from] StoreError),
    /// It is not what it should be.
    #[error("{file}, line {line}: expected {expected}, found {found}")]
    Content {
        /// The file.
        file: String,
        /// Counted from 1.
        line: usize,
        /// What should have been there.
        expected: String,
        /// What is.
        found: String,
    },
}

/// The same without the file's name.
#[derive(Debug)]
struct Fault {
    line: usize,
    expected: String,
    found: String,
}

impl Fault {
    fn new(line: usize, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { line, expected: expected.into(), found: found.into() }
    }

    fn of(self, file: &str) -> ImportError {
        let Self { line, expected, found } = self;
        ImportError::Content { file: file.to_owned(), line, expected, found }
    }

    /// Of JSON, which names its lines itself, counted from `line`.
    fn json(text: &str, line: usize, of: &str) -> impl FnOnce(serde_json::Error) -> Self {
        let lines = text.lines().count();
        let of = of.to_owned();
        move |error| {
            let at = (line + error.line()).saturating_sub(1).max(1);
            if error.is_eof() {
                let end = (line + lines).saturating_sub(1).max(1);
                return Self::new(end, format!("the rest of {of}"), "the file's end: was it cut?");
            }
            let said = error.to_string();
            let bare = said.split_once(" at line ").map_or(said.as_str(), |(bare, _)| bare);
            Self::new(at, of, bare)
        }
    }
}

/// What every importer makes of a text, whose measurements get this title.
type Imported = Result<Vec<Measurement>, Fault>;

/// What is read, for whoever gave something else.
const KNOWN: &str = "output of the OSU micro-benchmarks, fio (--output-format=json), netperf, \
    iperf3 (-J) or sockperf, or JSON of `vrio bench`";

/// The standard input's name.
const STANDARD_INPUT: &str = "standard input";

/// Reads a file's text; `-` is the standard input.
fn text_of(path: &Path) -> Result<(String, String), StoreError> {
    if path == Path::new("-") {
        let text = store::read_bounded(Path::new(STANDARD_INPUT), std::io::stdin())?;
        return Ok((STANDARD_INPUT.to_owned(), text));
    }
    Ok((path.display().to_string(), store::read_text(path)?))
}

/// Reads files and puts them together, as a run that is not in a store yet. Its machine is known if
/// all of them are reports of ours from one machine.
///
/// # Errors
/// When one cannot be read, or is of no program that is known, or was cut: with the line.
pub fn import_files(files: &[PathBuf], title: Option<&str>) -> Result<Loaded, ImportError> {
    let (mut measurements, mut machines) = (Vec::new(), Vec::new());
    for file in files {
        let (name, text) = text_of(file)?;
        measurements.extend(import(&name, &text)?);
        machines.push(own::machine(&text));
    }
    let measurements = merge(measurements);
    let first = measurements.first().map_or("nothing", |it| it.title.as_str());
    let kind = measurements.first().map_or("nothing", |it| it.benchmark.as_str());
    let mut run = Run::now(kind, title.unwrap_or(first));
    let first = machines.first().cloned().flatten();
    run.machine = first.filter(|one| machines.iter().all(|it| is_one(one, it.as_ref())));
    run.tools = tools(&measurements);
    Ok(Loaded { run, measurements })
}

/// Makes a run of a report of ours that was not in a file, whose measurement began then.
///
/// # Errors
/// When it is none that becomes a result, or one of another version.
pub fn import_report(text: &str, title: &str, begun: SystemTime) -> Result<Loaded, ImportError> {
    let mut measurements = read(text, title).map_err(|fault| fault.of("the report"))?;
    measurements.iter_mut().for_each(|it| it.source = None);
    let kind = measurements.first().map_or("nothing", |it| it.benchmark.as_str());
    let mut run = Run { machine: own::machine(text), ..Run::begun_at(begun, kind, title) };
    run.tools = tools(&measurements);
    Ok(Loaded { run, measurements })
}

/// The programs that took part, of those whose version is told: who measured, or whose MPI it was.
/// Two versions of one program in one run are both told.
fn tools(measurements: &[Measurement]) -> BTreeMap<String, String> {
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

/// Whether two reports are of one machine and build; levels of the cache line come and go.
pub(crate) fn is_one(one: &Machine, other: Option<&Machine>) -> bool {
    let bare = |it: &Machine| Machine { cache_line_round_trip_ns: None, ..it.clone() };
    other.is_some_and(|other| bare(one) == bare(other))
}

/// Finds what a word of a command line means: a directory with a run, a file of any kind that is
/// imported, or a run of the store by its name or the name's beginning.
///
/// # Errors
/// When it is none of them, or damaged; when nobody says where the store is, and one is needed.
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

/// Reads the text of a file of that name. Measurements are called by the file's name without what
/// follows its last point.
///
/// # Errors
/// When it is of no program that is known, or was cut: with the line.
pub fn import(file: &str, text: &str) -> Result<Vec<Measurement>, ImportError> {
    let fail = |fault: Fault| fault.of(file);
    let name = Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy());
    let stem = Path::new(file).file_stem().map_or(name.clone(), |stem| stem.to_string_lossy());
    let mut measurements = read(text, &stem).map_err(fail)?;
    for it in &mut measurements {
        if it.origin == RunOrigin::Imported {
            it.source.get_or_insert_with(|| name.clone().into_owned());
        }
        let limits = "figures within the limits of results";
        it.check().map_err(|error| fail(Fault::new(1, limits, error.to_string())))?;
    }
    Ok(measurements)
}

/// Finds out whose it is.
fn read(text: &str, title: &str) -> Imported {
    if text.trim().is_empty() {
        return Err(Fault::new(1, KNOWN, "nothing"));
    }
    if let Some((line, json)) = json(text) {
        return read_json(json, line, title);
    }
    if osu::is_it(text) {
        osu::read(text, title)
    } else if netperf::is_it(text) {
        netperf::read(text, title)
    } else if sockperf::is_it(text) {
        sockperf::read(text, title)
    } else {
        let first = text.lines().position(|line| !line.trim().is_empty()).unwrap_or(0);
        let found = text.lines().nth(first).unwrap_or_default();
        Err(Fault::new(first + 1, KNOWN, words::quoted(found)))
    }
}

/// Where a JSON object begins, and the line of that: fio may have something to say before it.
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

/// What tells one program's JSON from another's.
#[derive(Deserialize)]
struct Marks {
    #[serde(rename = "fio version")]
    fio: Option<IgnoredAny>,
    start: Option<IgnoredAny>,
    schema: Option<u32>,
    version: Option<IgnoredAny>,
    machine: Option<IgnoredAny>,
}

fn read_json(text: &str, line: usize, title: &str) -> Imported {
    let marks: Marks = serde_json::from_str(text).map_err(Fault::json(text, line, "JSON"))?;
    match marks {
        Marks { fio: Some(_), .. } => fio::read(text, line, title),
        Marks { start: Some(_), .. } => iperf3::read(text, line, title),
        Marks { schema: Some(_), .. } => {
            let expected = format!("a measurement of version {SCHEMA} of vrio's results");
            let fault =
                |error: crate::result::ResultError| Fault::new(line, expected, error.to_string());
            Measurement::read(text).map(|it| vec![it]).map_err(fault)
        }
        Marks { version: Some(_), machine: Some(_), .. } => own::read(text, line, title),
        _ => Err(Fault::new(line, KNOWN, "JSON of another program")),
    }
}

/// Puts together what several files say about one thing: measurements of one benchmark with one
/// set-up, whose series differ in where they stand alone (a depth each, say), become one. The
/// first one's title stays; notes and sources are those of all.
pub fn merge(measurements: Vec<Measurement>) -> Vec<Measurement> {
    let mut merged: Vec<Measurement> = Vec::new();
    for it in measurements {
        merge_into(&mut merged, it);
    }
    merged
}

/// Puts one more to them, and gives the place of the one that has become of it.
pub(crate) fn merge_into(merged: &mut Vec<Measurement>, it: Measurement) -> usize {
    let Some(place) = merged.iter().position(|one| are_alike(one, &it)) else {
        merged.push(it);
        return merged.len() - 1;
    };
    let one = &mut merged[place];
    for (mine, theirs) in one.series.iter_mut().zip(it.series) {
        mine.points.extend(theirs.points);
        mine.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    for note in it.notes {
        if one.notes.len() < ENTRIES_MAX && !one.notes.contains(&note) {
            one.notes.push(note);
        }
    }
    one.empty.extend(it.empty);
    one.cache_line_round_trips_ns.extend(it.cache_line_round_trips_ns);
    one.source = both(one.source.take(), it.source);
    place
}

/// `a.json, b.json`, as far as words go.
fn both(one: Option<String>, two: Option<String>) -> Option<String> {
    let (one, two) = match (one, two) {
        (Some(one), Some(two)) => (one, two),
        (one, two) => return one.or(two),
    };
    let is_there = one.split(", ").any(|known| known == two);
    let fits = one.len() + two.len() + 2 <= WORDS_MAX;
    Some(if fits && !is_there { format!("{one}, {two}") } else { one })
}

/// Whether two measurements are of one thing and at no place both.
fn are_alike(one: &Measurement, two: &Measurement) -> bool {
    let is_one = |(mine, theirs): (&Series, &Series)| {
        let of = |it: &Series| (it.quantity, it.unit, it.statistic, it.x, it.spread, it.rounds);
        mine.name == theirs.name && of(mine) == of(theirs) && are_apart(mine, theirs)
    };
    one.origin == two.origin
        && one.benchmark == two.benchmark
        && one.setup == two.setup
        && one.series.len() == two.series.len()
        && one.series.iter().zip(&two.series).all(is_one)
        && one.empty.len() + two.empty.len() <= ENTRIES_MAX / 2
}

/// Whether there is no place where both have a figure. Both are in the order of x.
fn are_apart(one: &Series, two: &Series) -> bool {
    let (mut mine, mut theirs) = (one.points.iter().peekable(), two.points.iter().peekable());
    while let (Some(one), Some(two)) = (mine.peek(), theirs.peek()) {
        match one.x.total_cmp(&two.x) {
            Ordering::Less => drop(mine.next()),
            Ordering::Greater => drop(theirs.next()),
            Ordering::Equal => return false,
        }
    }
    true
}

/// A measurement of an importer's.
fn measurement(benchmark: &str, title: &str) -> Measurement {
    let title = if title.is_empty() { benchmark } else { title };
    Measurement::new(RunOrigin::Imported, benchmark, title)
}

/// One figure's series.
fn alone(series: Series, x: f64, y: f64) -> Series {
    Series { points: vec![Point::new(x, y)], ..series }
}

#[cfg(test)]
mod own_tests;
#[cfg(test)]
mod tests;
