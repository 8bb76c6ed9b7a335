//! The store of runs: a directory for each run, which appears as a whole.
//!
//! ```text
//! results/
//!   20261122-225103-block/
//!     run.json
//!     01-block.json
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use results::schema::{self, Form, Misfit};
use results::{Machine, Measurement, ResultError, Run, file_word, is_id};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::merge::merge_into;
use crate::tools::tools;

/// Bytes of a file that is read: fio writes some hundred kilobytes for a long job with many parts.
pub const FILE_BYTES_MAX: u64 = 16 << 20;

/// Measurements of one run.
pub const MEASUREMENTS_MAX: usize = 512;

/// Runs of a store. A longer list is of no use to a reader.
pub const RUNS_MAX: usize = 10_000;

/// Runs of one kind that begin within the same second.
const SAME_SECOND_MAX: u32 = 100;

/// The name of the file that describes a run.
const RUN_FILE: &str = "run.json";

/// Errors of reading and writing files.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The directory of results is not known: no variable names it, and there is no home.
    #[error(
        "the directory of saved results is not known: neither XDG_STATE_HOME nor HOME is set; name \
         a directory (--results, or --save of a benchmark)"
    )]
    NoPlace,
    /// The system refuses.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
    /// A file is larger than a result can be.
    #[error("{}: more than {} MiB, which no result has", .path.display(), FILE_BYTES_MAX >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A file has bytes that are no text.
    #[error("{}: it is not UTF-8 text", .path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// There are too many entries for any sensible use.
    #[error("{}: more than {max} {what}; move some of them elsewhere", .path.display())]
    TooMany {
        /// The directory.
        path: PathBuf,
        /// The name of the entries.
        what: &'static str,
        /// The limit.
        max: usize,
    },
    /// A file is no result, or a damaged result.
    #[error("{}: {error}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault in the file.
        error: ResultError,
    },
    /// Results that should be saved do not have the form of results.
    #[error("{}: it is not kept, for it would not be read again: {misfit}", .path.display())]
    Unfit {
        /// The intended file.
        path: PathBuf,
        /// The place where they have another form.
        misfit: Misfit,
    },
    /// No run has this name.
    #[error("there is no run {id} in {}; `vrio results list` shows all", .folder.display())]
    NoRun {
        /// The wanted name.
        id: String,
        /// The store.
        folder: PathBuf,
    },
    /// Several runs have names that begin so.
    #[error("{id} may be {}: say more of its name", .all.join(", "))]
    Ambiguous {
        /// The wanted name.
        id: String,
        /// The names of the runs.
        all: Vec<String>,
    },
}

impl StoreError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { path: path.to_owned(), error }
    }

    fn damaged(path: &Path) -> impl FnOnce(ResultError) -> Self {
        move |error| Self::Damaged { path: path.to_owned(), error }
    }
}

/// A run with all of its measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loaded {
    /// The run itself.
    pub run: Run,
    /// Its measurements, in the order of their files.
    pub measurements: Vec<Measurement>,
}

impl Loaded {
    /// The run of one of our benchmarks, which began then on that machine.
    pub fn measured(
        begun: SystemTime,
        title: &str,
        machine: Machine,
        measurements: Vec<Measurement>,
    ) -> Self {
        let kind = measurements.first().map_or("nothing", |it| it.benchmark.as_str());
        let mut run = Run::begun_at(begun, kind, title);
        (run.machine, run.tools) = (Some(machine), tools(&measurements));
        Self { run, measurements }
    }

    /// Checks that other programs can read the run: the rules of results, and their schema.
    ///
    /// # Errors
    /// The first rule that is broken, or the first place that breaks the schema.
    pub fn check(&self) -> Result<(), ResultError> {
        self.run.check().and_then(|()| conforms(Form::Run, &self.run))?;
        self.measurements
            .iter()
            .try_for_each(|it| it.check().and_then(|()| conforms(Form::Measurement, it)))
    }

    /// Gives the run another title. Titles of measurements that begin with the run's title, or end
    /// with it in brackets, have the new one there; an empty one has no brackets.
    pub fn retitle(&mut self, title: &str) {
        let old = std::mem::replace(&mut self.run.title, title.to_owned());
        let in_brackets = |title: &str| match title {
            "" => String::new(),
            title => format!(" ({title})"),
        };
        for it in self.measurements.iter_mut().filter(|_| !old.is_empty()) {
            if let Some(rest) = it.title.strip_prefix(&old) {
                it.title = format!("{title}{rest}");
            } else if let Some(begin) = it.title.strip_suffix(&in_brackets(&old)) {
                it.title = format!("{begin}{}", in_brackets(title));
            }
        }
    }
}

fn conforms(form: Form, value: &impl Serialize) -> Result<(), ResultError> {
    let value = serde_json::to_value(value).expect("plain data");
    Ok(schema::check(form, &value)?)
}

/// A run in a list.
#[derive(Debug)]
pub struct ListedRun {
    /// Its name.
    pub id: String,
    /// The run, or the error about it: one damaged run hides no other.
    pub run: Result<Run, StoreError>,
    /// The number of its measurements.
    pub measurements: usize,
}

/// A directory of runs.
#[derive(Clone, Debug)]
pub struct RunStore {
    folder: PathBuf,
}

impl RunStore {
    /// The store in that directory, which is made when the first run is saved.
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The user's own store: `$XDG_STATE_HOME/vrio/results`, else `~/.local/state/vrio/results`. A
    /// variable that is empty or holds a relative path counts as not set, as XDG demands.
    ///
    /// # Errors
    /// When there is no home.
    pub fn usual(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<Self, StoreError> {
        let place = |name| variable(name).filter(|path| path.is_absolute());
        let state = place("XDG_STATE_HOME").or_else(|| Some(place("HOME")?.join(".local/state")));
        let state = state.ok_or(StoreError::NoPlace)?;
        Ok(Self::at(&state.join("vrio/results")))
    }

    /// The directory of the store.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The names of all runs, oldest first. Only directories with a run's name count.
    fn ids(&self) -> Result<Vec<String>, StoreError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(StoreError::io(&self.folder))?,
        };
        let mut ids = Vec::new();
        for entry in entries {
            let entry = entry.map_err(StoreError::io(&self.folder))?;
            let name = entry.file_name().into_string().ok().filter(|name| is_id(name));
            if let Some(name) = name.filter(|_| entry.path().join(RUN_FILE).is_file()) {
                ids.push(name);
            }
            if ids.len() > RUNS_MAX {
                let path = self.folder.clone();
                return Err(StoreError::TooMany { path, what: "runs", max: RUNS_MAX });
            }
        }
        ids.sort();
        Ok(ids)
    }

    /// All runs, oldest first.
    ///
    /// # Errors
    /// When the directory cannot be read. A damaged run is in the list.
    pub fn list(&self) -> Result<Vec<ListedRun>, StoreError> {
        let listed = |id: String| {
            let folder = self.folder.join(&id);
            let measurements = files(&folder).map_or(0, |files| files.len());
            ListedRun { run: read_run(&folder), id, measurements }
        };
        Ok(self.ids()?.into_iter().map(listed).collect())
    }

    /// Loads the run with that name, the only run whose name begins so, or the `latest`.
    ///
    /// # Errors
    /// When there is no such run, or more than one, or it is damaged.
    pub fn load(&self, id: &str) -> Result<Loaded, StoreError> {
        let ids = self.ids()?;
        let none = || StoreError::NoRun { id: id.to_owned(), folder: self.folder.clone() };
        if id == "latest" {
            return load(&self.folder.join(ids.last().ok_or_else(none)?));
        }
        let exact = ids.iter().find(|it| *it == id);
        let mut begin = ids.iter().filter(|it| !id.is_empty() && it.starts_with(id));
        let found = match (exact, begin.next(), begin.next()) {
            (Some(one), _, _) | (None, Some(one), None) => one,
            (None, None, _) => return Err(none()),
            (None, Some(_), Some(_)) => {
                let all = ids.iter().filter(|it| it.starts_with(id)).take(5).cloned().collect();
                return Err(StoreError::Ambiguous { id: id.to_owned(), all });
            }
        };
        load(&self.folder.join(found))
    }

    /// Saves a run and makes its name unique. Gives its directory, which appears with all files or
    /// not at all.
    ///
    /// # Errors
    /// When the run breaks a rule of results, or the disk refuses.
    pub fn save(&self, loaded: &mut Loaded) -> Result<PathBuf, StoreError> {
        let Loaded { run, measurements } = loaded;
        if measurements.len() > MEASUREMENTS_MAX {
            let (path, max) = (self.folder.join(&run.id), MEASUREMENTS_MAX);
            return Err(StoreError::TooMany { path, what: "measurements", max });
        }
        run.check().map_err(StoreError::damaged(&self.folder))?;
        for measurement in measurements.iter() {
            measurement.check().map_err(StoreError::damaged(&self.folder))?;
        }
        fs::create_dir_all(&self.folder).map_err(StoreError::io(&self.folder))?;
        let wanted = run.id.clone();
        for attempt in 1..=SAME_SECOND_MAX {
            if attempt > 1 {
                run.id = format!("{wanted}-{attempt}");
            }
            let place = self.folder.join(&run.id);
            if place.exists() {
                continue;
            }
            let beside = self.folder.join(format!(".{}.{}", run.id, std::process::id()));
            let written = write(&beside, run, measurements)
                .and_then(|()| fs::rename(&beside, &place).map_err(StoreError::io(&place)));
            match written {
                Ok(()) => return Ok(place),
                Err(error) => {
                    // A run that is half written only takes space on the disk.
                    let _ = fs::remove_dir_all(&beside);
                    // Another process was faster with the same name.
                    if !place.exists() {
                        return Err(error);
                    }
                }
            }
        }
        let path = self.folder.join(wanted);
        Err(StoreError::TooMany { path, what: "runs in a second", max: SAME_SECOND_MAX as usize })
    }
}

impl RunStore {
    /// Adds measurements to a saved run, and writes its present notes and versions of tools. A
    /// measurement of a known subject becomes a part of that subject's measurement
    /// ([`merge`](crate::merge::merge)). A concurrent reader sees whole files: the earlier
    /// measurements, or more.
    ///
    /// # Errors
    /// When a measurement breaks a rule of results, or the disk refuses.
    pub fn add(&self, loaded: &mut Loaded, more: Vec<Measurement>) -> Result<(), StoreError> {
        let folder = self.folder.join(&loaded.run.id);
        let mut all = loaded.measurements.clone();
        let merged = more.into_iter().map(|it| merge_into(&mut all, it));
        let changed: BTreeSet<usize> = merged.collect();
        if all.len() > MEASUREMENTS_MAX {
            let max = MEASUREMENTS_MAX;
            return Err(StoreError::TooMany { path: folder, what: "measurements", max });
        }
        loaded.run.check().map_err(StoreError::damaged(&folder))?;
        for &place in &changed {
            all[place].check().map_err(StoreError::damaged(&folder))?;
        }
        for place in changed {
            let name = file_of(place, &all[place]);
            replace_file(&folder, &name, Form::Measurement, &all[place])?;
        }
        loaded.measurements = all;
        replace_file(&folder, RUN_FILE, Form::Run, &loaded.run)?;
        let opened = File::open(&folder).map_err(StoreError::io(&folder))?;
        opened.sync_all().map_err(StoreError::io(&folder))
    }
}

/// The name of a measurement's file, by the measurement's place in the run.
fn file_of(place: usize, measurement: &Measurement) -> String {
    format!("{:02}-{}.json", place + 1, file_word(&measurement.benchmark))
}

/// Writes a file so that readers see it as a whole, or as it was before.
fn replace_file(
    folder: &Path,
    name: &str,
    form: Form,
    value: &impl Serialize,
) -> Result<(), StoreError> {
    let (place, beside) = (folder.join(name), folder.join(format!(".{name}.new")));
    // A process may have been killed while it wrote this file.
    let _ = fs::remove_file(&beside);
    write_file(&beside, form, value)?;
    fs::rename(&beside, &place).map_err(StoreError::io(&place))
}

/// Writes all files of a run into a new directory.
fn write(folder: &Path, run: &Run, measurements: &[Measurement]) -> Result<(), StoreError> {
    fs::create_dir_all(folder).map_err(StoreError::io(folder))?;
    for (at, measurement) in measurements.iter().enumerate() {
        write_file(&folder.join(file_of(at, measurement)), Form::Measurement, measurement)?;
    }
    write_file(&folder.join(RUN_FILE), Form::Run, run)?;
    let opened = File::open(folder).map_err(StoreError::io(folder))?;
    opened.sync_all().map_err(StoreError::io(folder))
}

/// Writes a file, if its value has the form of results.
fn write_file(path: &Path, form: Form, value: &impl Serialize) -> Result<(), StoreError> {
    let plain = serde_json::to_value(value).expect("plain data");
    let unfit = |misfit| StoreError::Unfit { path: path.to_owned(), misfit };
    schema::check(form, &plain).map_err(unfit)?;
    // The text is made of the value itself, whose fields are in the order of the type.
    let mut text = serde_json::to_string_pretty(value).expect("plain data");
    text.push('\n');
    let mut file = File::create_new(path).map_err(StoreError::io(path))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(StoreError::io(path))
}

/// The files of a run's measurements, in order.
fn files(folder: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let path = entry.map_err(StoreError::io(folder))?.path();
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        if is_json && !path.ends_with(RUN_FILE) {
            found.push(path);
        }
        if found.len() > MEASUREMENTS_MAX {
            let (path, max) = (folder.to_owned(), MEASUREMENTS_MAX);
            return Err(StoreError::TooMany { path, what: "measurements", max });
        }
    }
    // The order is by number: numbers may differ in length.
    let number = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        name.split('-').next()?.parse::<u32>().ok()
    };
    found.sort_by_cached_key(|path| (number(path).unwrap_or(u32::MAX), path.clone()));
    Ok(found)
}

fn read_run(folder: &Path) -> Result<Run, StoreError> {
    let path = folder.join(RUN_FILE);
    Run::read(&read_text(&path)?).map_err(StoreError::damaged(&path))
}

/// Reads a run's directory, in a store or elsewhere.
///
/// # Errors
/// When the directory is no run, or a file in it is damaged.
pub fn load(folder: &Path) -> Result<Loaded, StoreError> {
    let run = read_run(folder)?;
    let read =
        |path: &PathBuf| Measurement::read(&read_text(path)?).map_err(StoreError::damaged(path));
    let measurements = files(folder)?.iter().map(read).collect::<Result<_, _>>()?;
    Ok(Loaded { run, measurements })
}

/// Reads a file of at most [`FILE_BYTES_MAX`] bytes, also a file without a length, such as a pipe.
///
/// # Errors
/// When the file cannot be read, is larger, or is no text.
pub fn read_text(path: &Path) -> Result<String, StoreError> {
    let file = File::open(path).map_err(StoreError::io(path))?;
    read_bounded(path, file)
}

/// The same for an open file; `path` is its name in errors.
///
/// # Errors
/// As of [`read_text`].
pub fn read_bounded(path: &Path, from: impl Read) -> Result<String, StoreError> {
    let mut bytes = Vec::new();
    from.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(StoreError::io(path))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(StoreError::TooLarge { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|_| StoreError::NotText { path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use results::{Axis, Point, Quantity, RunOrigin, Series, Unit};

    use super::*;

    fn loaded(id: &str) -> Loaded {
        let mut run = Run::now("block", "a disk");
        run.id = id.to_owned();
        let measurement = Measurement::new(RunOrigin::Measured, "block", "local");
        let other = Measurement::new(RunOrigin::Measured, "net/../x", "frames");
        Loaded { run, measurements: vec![measurement, other] }
    }

    fn store() -> (tempfile::TempDir, RunStore) {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::at(&folder.path().join("results"));
        (folder, store)
    }

    #[test]
    fn a_saved_run_is_found_by_its_beginning() {
        let (_folder, store) = store();
        assert!(store.list().unwrap().is_empty(), "a store that is not there yet is empty");
        let mut one = loaded("20261122-100000-block");
        let mut two = loaded("20261122-110000-block");
        assert!(store.save(&mut one).unwrap().ends_with("20261122-100000-block"));
        store.save(&mut two).unwrap();
        assert_eq!(store.load("20261122-10").unwrap(), one);
        assert_eq!(store.load("latest").unwrap(), two);
        let listed: Vec<_> = store.list().unwrap().into_iter().map(|it| it.measurements).collect();
        assert_eq!(listed, [2, 2]);
        let said = store.load("20261122").unwrap_err().to_string();
        assert!(said.contains("may be 20261122-100000-block, 20261122-110000-block"), "{said}");
        let said = store.load("2027").unwrap_err().to_string();
        assert!(said.contains("no run 2027") && said.contains("results list"), "{said}");
        assert!(store.load("../results").is_err() && store.load("").is_err());
    }

    /// A measurement whose number of guests sets it apart from the others.
    fn of_guests(count: usize) -> Measurement {
        let mut it = Measurement::new(RunOrigin::Measured, "net", "frames");
        it.setup.insert("guests".to_owned(), count.to_string());
        it
    }

    #[test]
    fn additions_to_a_measurement_become_a_part_of_it() {
        let (_folder, store) = store();
        let of_depth = |depth: f64| {
            let mut it = Measurement::new(RunOrigin::Measured, "block", "local");
            let mut series = Series::new("p", Quantity::Iops, Unit::PerS, Axis::QUEUE_DEPTH);
            series.points.push(Point::new(depth, depth * 10.0));
            it.series.push(series);
            it
        };
        let mut run = loaded("20261122-100000-all");
        run.measurements = vec![of_depth(1.0)];
        store.save(&mut run).unwrap();
        store.add(&mut run, vec![of_guests(2), of_depth(32.0)]).unwrap();
        store.add(&mut run, vec![of_depth(8.0)]).unwrap();
        let read = store.load("latest").unwrap();
        assert_eq!(read.measurements, run.measurements);
        let [block, _net] = &read.measurements[..] else { panic!("{read:?}") };
        let places: Vec<f64> = block.series[0].points.iter().map(|point| point.x).collect();
        assert_eq!(places, [1.0, 8.0, 32.0]);
        let twice = store.add(&mut run, vec![of_depth(8.0)]);
        assert!(twice.is_ok() && run.measurements.len() == 3, "two figures of one place stay two");
    }

    #[test]
    fn later_additions_are_read_after_earlier_ones() {
        let (_folder, store) = store();
        let mut run = loaded("20261122-100000-all");
        store.save(&mut run).unwrap();
        run.run.notes.push("and a net".to_owned());
        let more = (0..120).map(of_guests);
        store.add(&mut run, more.collect()).unwrap();
        let read = store.load("latest").unwrap();
        assert_eq!(read.run, run.run);
        // With more than a hundred measurements, the names of files are longer, and still in order.
        assert_eq!(read.measurements, run.measurements);
        let folder = store.folder().join(&run.run.id);
        assert_eq!(fs::read_dir(folder).unwrap().count(), 123);
        let too_many = (200..200 + MEASUREMENTS_MAX).map(of_guests);
        let said = store.add(&mut run, too_many.collect()).unwrap_err().to_string();
        assert!(said.contains("more than 512 measurements"), "{said}");
    }

    #[test]
    fn two_of_one_second_have_two_names_and_nothing_else_is_left() {
        let (_folder, store) = store();
        let mut names = Vec::new();
        for _ in 0..3 {
            let mut run = loaded("same");
            store.save(&mut run).unwrap();
            assert_eq!(load(&store.folder().join(&run.run.id)).unwrap(), run);
            names.push(run.run.id);
        }
        assert_eq!(names, ["same", "same-2", "same-3"]);
        let entries = fs::read_dir(store.folder()).unwrap().count();
        assert_eq!(entries, 3, "nothing half written is left");
    }

    #[test]
    fn a_run_that_breaks_a_rule_is_not_saved() {
        let (_folder, store) = store();
        let mut run = loaded("bad");
        run.measurements[1].origin = RunOrigin::Imported;
        let said = store.save(&mut run).unwrap_err().to_string();
        assert!(said.contains("needs a source"), "{said}");
        let mut run = loaded("../up");
        assert!(store.save(&mut run).is_err());
        assert!(!store.folder().exists());
    }

    #[test]
    fn results_that_break_the_schema_are_not_written() {
        let (folder, _) = store();
        let path = folder.path().join("run.json");
        let said = write_file(&path, Form::Run, &["no", "run"]).unwrap_err().to_string();
        assert!(
            said.contains("run.json: it is not kept") && said.contains("schema is missing"),
            "{said}"
        );
        assert!(!path.exists());
        write_file(&path, Form::Run, &Run::now("x", "y")).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\n  \"schema\": 1,\n  \"id\""), "{text}");
    }

    #[test]
    fn a_damaged_run_is_listed_and_hides_no_other() {
        let (_folder, store) = store();
        store.save(&mut loaded("a")).unwrap();
        store.save(&mut loaded("b")).unwrap();
        fs::write(store.folder().join("a/run.json"), "{\"schema\": 1, \"id\"").unwrap();
        fs::create_dir(store.folder().join("no-run")).unwrap();
        let listed = store.list().unwrap();
        let [a, b] = &listed[..] else { panic!("{listed:?}") };
        let said = a.run.as_ref().unwrap_err().to_string();
        assert!(said.contains("a/run.json: line 1"), "{said}");
        assert!(b.run.is_ok());
        let damaged = store.folder().join("b/01-block.json");
        fs::write(&damaged, "{\"schema\": 9}").unwrap();
        let said = store.load("b").unwrap_err().to_string();
        assert!(said.contains("01-block.json: it is of version 9"), "{said}");
    }

    #[test]
    fn files_are_read_to_a_limit() {
        let endless = io::repeat(b' ');
        let said = read_bounded(Path::new("endless"), endless).unwrap_err().to_string();
        assert_eq!(said, "endless: more than 16 MiB, which no result has");
        let said = read_bounded(Path::new("x"), &[0xff_u8][..]).unwrap_err().to_string();
        assert_eq!(said, "x: it is not UTF-8 text");
    }

    #[test]
    fn the_usual_place_is_the_users_own() {
        let of = |state: Option<&str>, home: Option<&str>| {
            let store = RunStore::usual(|name| match name {
                "XDG_STATE_HOME" => state.map(PathBuf::from),
                _ => home.map(PathBuf::from),
            });
            store.map(|it| it.folder).map_err(|error| error.to_string())
        };
        assert_eq!(of(Some("/s"), Some("/h")).unwrap(), Path::new("/s/vrio/results"));
        let home = Path::new("/h/.local/state/vrio/results");
        assert_eq!(of(None, Some("/h")).unwrap(), home);
        assert_eq!(of(Some(""), Some("/h")).unwrap(), home);
        assert!(of(Some("relative"), None).unwrap_err().contains("--results"));
    }
}
