//! `vrio results ..`, and what `--save` of the benchmarks does.

use std::fmt::{Display, Write};
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use clap::{Args, Subcommand};
use report::diff;
use report::import;
use report::store::{Listed, Loaded, Store};
use serde::Serialize;
use serde_json::json;

use crate::{Failure, commands, tables};

pub(crate) const RESULTS_EXAMPLES: &str = "Examples:
  vrio bench block --save                              measure, and keep it
  vrio results list
  vrio results import latency.txt fio.json --title 'shared memory'
  vrio results show latest
  vrio results diff 20261122-225103 latest             the change of each figure, in percent";

const LIST_EXAMPLES: &str = "Examples:
  vrio results list
  vrio results list --json | jq -r '.[].id'";

const SHOW_EXAMPLES: &str = "Examples:
  vrio results show latest
  vrio results show 20261122-2251                      a name's beginning is enough
  vrio results show /mnt/other/20261122-225103-block   a run's directory anywhere
  vrio results show latency.txt                        a file that was not imported yet
  vrio results show latest --json | jq '.measurements[].series[].quantity'";

const DIFF_EXAMPLES: &str = "Examples:
  vrio results diff 20261122-225103-block latest
  vrio results diff native.txt sriov.txt               overhead by message size
  vrio results diff a b --json | jq '.series[].rows[] | [.x, .percent]'
What differs besides the figures (machine, build, level of the cache line, set-up, unit) is told
first; figures of two kinds, such as a mean and a median, are not compared.";

const IMPORT_EXAMPLES: &str = "Examples:
  vrio results import osu_latency.txt osu_bw.txt --title 'InfiniBand'
  mpirun -n 2 osu_latency | vrio results import -
  fio --output-format=json job.fio | vrio results import - --title 'local disk'
Read are the OSU micro-benchmarks, fio (--output-format=json), netperf, iperf3 (-J), sockperf, and
JSON of `vrio bench`; which one it is the content says. Files that differ in depth or size alone
become one line.";

#[derive(Debug, Subcommand)]
pub(crate) enum ResultsCommand {
    /// List the runs that are kept, oldest first.
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show a run: its machine, and all figures.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Tell how much the figures of one run differ from another one's.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Keep what other programs measured, as a run.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
}

/// Where results are.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// Where results are kept; default: vrio/results in XDG_STATE_HOME or ~/.local/state.
    #[arg(long, value_name = "DIRECTORY")]
    results: Option<PathBuf>,
}

impl PlaceArgs {
    pub(crate) fn store(&self) -> Result<Store, Failure> {
        match &self.results {
            Some(folder) => Ok(Store::at(folder)),
            None => usual(),
        }
    }
}

/// The user's own store.
fn usual() -> Result<Store, Failure> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    Store::usual(variable).map_err(Failure::configuration)
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// A run of the store, its directory, or a file that can be imported; `-` is standard input.
    run: String,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// What is compared with: a run, its directory, or a file that can be imported.
    a: String,
    /// Whose change is told.
    b: String,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The files; `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What the run is called; default: the first file's name.
    #[arg(long, value_name = "WORDS")]
    title: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How a measurement is told, and whether it is kept.
#[derive(Debug, Args)]
pub(crate) struct ToldArgs {
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Keep it as a run, in this directory or where results are kept (`vrio results --help`).
    #[arg(long, value_name = "DIRECTORY", num_args = 0..=1)]
    save: Option<Option<PathBuf>>,
}

/// `vrio results`.
pub(crate) fn results(command: &ResultsCommand) -> Result<(), Failure> {
    match command {
        ResultsCommand::List(args) => list(args),
        ResultsCommand::Show(args) => {
            let loaded = open(&args.run, &args.place.store()?)?;
            let Loaded { run, measurements } = &loaded;
            let value = json!({ "run": run, "measurements": measurements });
            told(&loaded, &value, args.json)
        }
        ResultsCommand::Diff(args) => {
            let store = args.place.store()?;
            let (a, b) = (open(&args.a, &store)?, open(&args.b, &store)?);
            let told_of = diff::diff(&a, &b);
            told(&told_of, &told_of, args.json)
        }
        ResultsCommand::Import(args) => {
            let imported = import::import_files(&args.files, args.title.as_deref());
            let mut loaded = imported.map_err(Failure::running)?;
            let folder = args.place.store()?.save(&mut loaded).map_err(Failure::running)?;
            let words = format!("{}\n", said(&loaded, &folder));
            told(&words, &json!({ "id": loaded.run.id, "folder": folder }), args.json)
        }
    }
}

fn open(word: &str, store: &Store) -> Result<Loaded, Failure> {
    import::open(word, store).map_err(Failure::running)
}

/// For people, or for programs.
pub(crate) fn told(text: &impl Display, value: &impl Serialize, json: bool) -> Result<(), Failure> {
    if !json {
        return commands::print(&text.to_string());
    }
    let json = serde_json::to_string_pretty(value).context("the answer as JSON");
    commands::print(&format!("{}\n", json.map_err(Failure::running)?))
}

fn said(loaded: &Loaded, folder: &std::path::Path) -> String {
    let count = loaded.measurements.len();
    let measurements = if count == 1 { "measurement" } else { "measurements" };
    format!("kept {count} {measurements} in {}", folder.display())
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let store = args.place.store()?;
    let all = store.list().map_err(Failure::running)?;
    let value = |it: &Listed| match &it.run {
        Ok(run) => json!({ "id": it.id, "measurements": it.measurements, "run": run }),
        Err(error) => json!({ "id": it.id, "damaged": error.to_string() }),
    };
    let values: Vec<_> = all.iter().map(value).collect();
    let mut text = String::new();
    if all.is_empty() {
        let folder = store.folder().display();
        writeln!(text, "no results in {folder}; `vrio bench block --save` makes some")
            .expect(STRING);
    } else {
        writeln!(text, "{}", tables::results(&all)).expect(STRING);
    }
    told(&text, &values, args.json)
}

const STRING: &str = "a string takes what is written to it";

/// Prints what a benchmark reports, and keeps it if that was asked for. It is kept first: a reader
/// that goes away early loses nothing.
pub(crate) fn report(report: &(impl Serialize + Display), args: &ToldArgs) -> Result<(), Failure> {
    if let Some(folder) = &args.save {
        let store = match folder {
            Some(folder) => Store::at(folder),
            None => usual()?,
        };
        let folder = keep(report, &store)?;
        eprintln!("{folder}");
    }
    told(report, report, args.json)
}

/// Makes a run of a report by the importer that reads the same from a file.
fn keep(report: &(impl Serialize + Display), store: &Store) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(report).context("the report as JSON");
    let words: Vec<String> = std::env::args().collect();
    let command = words.iter().skip(1).take_while(|word| !word.starts_with('-'));
    let command = command.cloned().collect::<Vec<_>>().join(" ");
    // The first line of a report of one thing says what it is of.
    let shown = report.to_string();
    let first = shown.lines().next().filter(|line| line.contains(": ")).unwrap_or(&command);
    let imported = import::import_report(&text.map_err(Failure::running)?, first);
    let mut loaded = imported.map_err(Failure::running)?;
    loaded.run.command = words;
    let folder = store.save(&mut loaded).map_err(Failure::running)?;
    Ok(said(&loaded, &folder))
}

/// Refuses to measure for long what could not be kept afterwards.
pub(crate) fn check_save(args: &ToldArgs) -> Result<(), Failure> {
    match &args.save {
        None => Ok(()),
        Some(None) => usual().map(drop),
        Some(Some(folder)) if folder.is_file() => {
            let folder = folder.display();
            Err(Failure::configuration(anyhow!("--save {folder}: it is a file, not a directory")))
        }
        Some(Some(_)) => Ok(()),
    }
}
