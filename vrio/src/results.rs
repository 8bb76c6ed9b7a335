//! `vrio results ..`, and `--save` of the benchmarks.

use std::fmt::{Display, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context, anyhow};
use bench::figures::{self, BenchReport};
use clap::{Args, Subcommand};
use report::diff;
use report::import;
use report::pool;
use report::store::{ListedRun, Loaded, RunStore, StoreError};
use serde::Serialize;
use serde_json::json;

use crate::failure::CommandFailure;
use crate::{output, tables};

pub(crate) const RESULTS_EXAMPLES: &str = "Examples:
  vrio bench block --save                              measure, and save the result
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
  vrio results diff osu_latency.txt latest --only 'vrio, one host'   only these of `bench mpi`
  vrio results diff a b --json | jq '.series[].rows[] | [.x, .percent]'
Other differences (machine, build, level of the cache line, set-up, unit) are printed first. Figures
of two kinds, such as a mean and a median, are not compared.";

const POOL_EXAMPLES: &str = "Examples:
  for i in 1 2 3 4; do vrio bench block --save before; done
  vrio results pool before/*                           medians, with the least and the most
  vrio results pool a.json b.json c.json d.json --title 'fio, before'
The pooled run has the figures that all runs have, of one set-up. Runs of two machines or builds are
refused. `vrio results diff` gives verdicts for two pooled runs of at least four runs each.";

const IMPORT_EXAMPLES: &str = "Examples:
  vrio results import osu_latency.txt osu_bw.txt --title 'InfiniBand'
  mpirun -n 2 osu_latency | vrio results import -
  fio --output-format=json job.fio | vrio results import - --title 'local disk'
Formats: the OSU micro-benchmarks, fio (--output-format=json), netperf, iperf3 (-J), sockperf, and
JSON of `vrio bench`; the format is recognised by the content. Files that differ in depth or size
alone become one line of a plot.";

#[derive(Debug, Subcommand)]
pub(crate) enum ResultsCommand {
    /// List the saved runs, oldest first.
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Show a run: its machine, and all figures.
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Compare the figures of two runs.
    #[command(after_help = DIFF_EXAMPLES)]
    Diff(DiffArgs),
    /// Save several runs of the same benchmark as one run, whose figures have the runs' spread.
    #[command(after_help = POOL_EXAMPLES)]
    Pool(PoolArgs),
    /// Save other programs' results as a run.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import(ImportArgs),
}

/// Where results are.
#[derive(Debug, Args)]
pub(crate) struct PlaceArgs {
    /// The directory of saved results; default: vrio/results in XDG_STATE_HOME or ~/.local/state.
    #[arg(long, value_name = "DIRECTORY")]
    results: Option<PathBuf>,
}

impl PlaceArgs {
    /// The store. Only commands that use it call this: a file can be shown without a home
    /// directory.
    pub(crate) fn place(&self) -> Result<RunStore, StoreError> {
        match &self.results {
            Some(folder) => Ok(RunStore::at(folder)),
            None => RunStore::usual(|name| std::env::var_os(name).map(PathBuf::from)),
        }
    }

    fn store(&self) -> Result<RunStore, CommandFailure> {
        self.place().map_err(CommandFailure::configuration)
    }
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
    /// The run to compare with: a run, its directory, or a file that can be imported.
    a: String,
    /// The run whose change is shown.
    b: String,
    /// Compare only measurements with these words in their benchmark, title or set-up; a run
    /// without such a measurement is compared whole.
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PoolArgs {
    /// Runs of the store, their directories, or files that can be imported.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<String>,
    /// The pooled run's title; default: the title of the first run.
    #[arg(long, value_name = "WORDS")]
    title: Option<String>,
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
    /// The run's title; default: the first file's name.
    #[arg(long, value_name = "WORDS")]
    title: Option<String>,
    /// The line's rate in each direction, such as 10Gbit: bandwidths are shown as a share of it.
    #[arg(long, value_name = "RATE", value_parser = line_rate)]
    line_rate: Option<f64>,
    #[command(flatten)]
    place: PlaceArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// How a measurement is told, and whether it is kept.
#[derive(Debug, Args)]
pub(crate) struct ToldArgs {
    /// When it began, which is when the command line was read.
    #[arg(skip = SystemTime::now())]
    begun: SystemTime,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    /// Save the result as a run, in this directory or with the saved results (see `vrio results
    /// --help`).
    #[arg(long, value_name = "DIRECTORY", num_args = 0..=1)]
    save: Option<Option<PathBuf>>,
}

/// `vrio results`.
pub(crate) fn results(command: &ResultsCommand) -> Result<(), CommandFailure> {
    match command {
        ResultsCommand::List(args) => list(args),
        ResultsCommand::Show(args) => {
            let loaded = open(&args.run, &args.place)?;
            let Loaded { run, measurements } = &loaded;
            let value = json!({ "run": run, "measurements": measurements });
            told(&loaded, &value, args.json)
        }
        ResultsCommand::Diff(args) => {
            let (mut a, mut b) = (open(&args.a, &args.place)?, open(&args.b, &args.place)?);
            if let Some(words) = &args.only {
                let has_any = [&mut a, &mut b].map(|run| diff::narrow(run, words));
                if has_any == [false; 2] {
                    return Err(CommandFailure::configuration(anyhow!(
                        "--only {words}: neither run has such a measurement; 'vrio results show' \
                         lists them"
                    )));
                }
            }
            let told_of = diff::diff(&a, &b);
            told(&told_of, &told_of, args.json)
        }
        ResultsCommand::Pool(args) => {
            let runs = args.runs.iter().map(|word| open(word, &args.place));
            let runs: Vec<Loaded> = runs.collect::<Result<_, _>>()?;
            let pooled =
                pool::pool(&runs, args.title.as_deref()).map_err(CommandFailure::running)?;
            kept(pooled, &args.place, args.json)
        }
        ResultsCommand::Import(args) => {
            let imported = import::import_files(&args.files, args.title.as_deref());
            let mut loaded = imported.map_err(CommandFailure::running)?;
            set_line_rate(&mut loaded, args.line_rate);
            kept(loaded, &args.place, args.json)
        }
    }
}

/// Bits per second, from words such as `10Gbit`, `100G` or `2.5 Gbit/s`.
pub(crate) fn line_rate(words: &str) -> Result<f64, String> {
    let lower = words.to_ascii_lowercase();
    let bare = lower.trim_end_matches("/s").trim_end_matches("bit").trim_end();
    let (number, times) = match bare.char_indices().last() {
        Some((at, 'k')) => (&bare[..at], 1e3),
        Some((at, 'm')) => (&bare[..at], 1e6),
        Some((at, 'g')) => (&bare[..at], 1e9),
        Some((at, 't')) => (&bare[..at], 1e12),
        _ => (bare, 1.0),
    };
    let rate = number.trim_end().parse::<f64>().ok().map(|number| number * times);
    let rate = rate.filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "write bits per second, such as 10Gbit".to_owned())
}

/// Sets the line rate of all bandwidths that have none of their own.
pub(crate) fn set_line_rate(loaded: &mut Loaded, bits_per_s: Option<f64>) {
    if let Some(rate) = bits_per_s {
        loaded.measurements.iter_mut().for_each(|it| it.set_line_rate(rate));
    }
}

/// Saves a run, and says where.
fn kept(mut loaded: Loaded, place: &PlaceArgs, json: bool) -> Result<(), CommandFailure> {
    let folder = place.store()?.save(&mut loaded).map_err(CommandFailure::running)?;
    let words = format!("{}\n", said(&loaded, &folder));
    told(&words, &json!({ "id": loaded.run.id, "folder": folder }), json)
}

fn open(word: &str, place: &PlaceArgs) -> Result<Loaded, CommandFailure> {
    import::open(word, || place.place()).map_err(CommandFailure::running)
}

/// For people, or for programs.
pub(crate) fn told(
    text: &impl Display,
    value: &impl Serialize,
    json: bool,
) -> Result<(), CommandFailure> {
    if !json {
        return output::print(&text.to_string());
    }
    let json = serde_json::to_string_pretty(value).context("the answer as JSON");
    output::print(&format!("{}\n", json.map_err(CommandFailure::running)?))
}

fn said(loaded: &Loaded, folder: &std::path::Path) -> String {
    let count = loaded.measurements.len();
    let measurements = if count == 1 { "measurement" } else { "measurements" };
    format!("saved {count} {measurements} in {}", folder.display())
}

fn list(args: &ListArgs) -> Result<(), CommandFailure> {
    let store = args.place.store()?;
    let all = store.list().map_err(CommandFailure::running)?;
    let value = |it: &ListedRun| match &it.run {
        Ok(run) => json!({ "id": it.id, "measurements": it.measurements, "run": run }),
        Err(error) => json!({ "id": it.id, "damaged": error.to_string() }),
    };
    let values: Vec<_> = all.iter().map(value).collect();
    let mut text = String::new();
    if all.is_empty() {
        let folder = store.folder().display();
        writeln!(text, "no results in {folder}; `vrio bench block --save` saves one")
            .expect(STRING);
    } else {
        writeln!(text, "{}", tables::results(&all)).expect(STRING);
    }
    told(&text, &values, args.json)
}

const STRING: &str = "a string takes what is written to it";

/// The JSON of a benchmark: its report, and the results that a store or a page takes.
#[derive(Serialize)]
pub(crate) struct ReportJson<'a, R> {
    #[serde(flatten)]
    report: &'a R,
    results: &'a Loaded,
}

impl<'a, R> ReportJson<'a, R> {
    /// Checks the results as a store does: JSON that could not be imported is not printed.
    pub(crate) fn new(report: &'a R, results: &'a Loaded) -> anyhow::Result<Self> {
        let unfit = "the results are not printed as JSON, since they could not be imported";
        results.check().context(unfit)?;
        Ok(Self { report, results })
    }
}

/// Prints a benchmark's report, and keeps it if that was asked for. A report that cannot be kept,
/// or not be printed as JSON, is printed for people to standard error: it has cost much time.
pub(crate) fn report(report: &impl BenchReport, args: &ToldArgs) -> Result<(), CommandFailure> {
    let told = keep_and_print(report, args);
    if told.is_err() {
        output::say(report.to_string().trim_end());
    }
    told
}

/// The report is kept before it is printed: a reader that goes away early loses nothing.
fn keep_and_print(report: &impl BenchReport, args: &ToldArgs) -> Result<(), CommandFailure> {
    let mut results = args.run_of(report);
    if let Some(place) = &args.save {
        let store = PlaceArgs { results: place.clone() }.store()?;
        let folder = store.save(&mut results).map_err(CommandFailure::running)?;
        output::say(said(&results, &folder));
    }
    if !args.json {
        return output::print(&report.to_string());
    }
    told(report, &ReportJson::new(report, &results).map_err(CommandFailure::running)?, true)
}

impl ToldArgs {
    /// A benchmark's report as a run, which is in no store yet.
    pub(crate) fn run_of(&self, report: &impl BenchReport) -> Loaded {
        let words: Vec<String> = std::env::args().collect();
        let command = words.iter().skip(1).take_while(|word| !word.starts_with('-'));
        let command = command.cloned().collect::<Vec<_>>().join(" ");
        // The first line of a report about one thing names the thing.
        let shown = report.to_string();
        let title = shown.lines().next().filter(|line| line.contains(": ")).unwrap_or(&command);
        let (machine, measurements) =
            (figures::machine(report.machine()), report.measurements(title));
        let mut results = Loaded::measured(self.begun, title, machine, measurements);
        results.run.command = words;
        results
    }
}

/// Refuses, before a long measurement, a report that could not be kept afterwards.
pub(crate) fn check_save(args: &ToldArgs) -> Result<(), CommandFailure> {
    match &args.save {
        None => Ok(()),
        Some(None) => PlaceArgs { results: None }.store().map(drop),
        Some(Some(folder)) if folder.is_file() => {
            let folder = folder.display();
            Err(CommandFailure::configuration(anyhow!(
                "--save {folder}: it is a file, not a directory"
            )))
        }
        Some(Some(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_could_not_be_imported_are_not_printed() {
        let report = json!({ "iops": 5 });
        let text = include_str!("../../report/tests/data/vrio-block.json");
        let mut results = import::import_report(text, "block").unwrap();
        let printed = serde_json::to_value(ReportJson::new(&report, &results).unwrap()).unwrap();
        assert_eq!(printed["iops"], 5);
        assert_eq!(printed["results"]["run"]["title"], "block");
        results.measurements[0].series[0].quantity = ::results::Quantity::Latency;
        let said = format!("{:#}", ReportJson::new(&report, &results).err().unwrap());
        assert!(
            said.contains("are not printed as JSON") && said.contains("series[0].unit"),
            "{said}"
        );
    }

    #[test]
    fn line_rates_are_read_as_people_write_them() {
        let read = |words| line_rate(words).unwrap();
        assert_eq!(["10Gbit", "2.5 Gbit/s", "100g", "1e9"].map(read), [10e9, 2.5e9, 100e9, 1e9]);
        assert!(["", "fast", "-1G", "10GB/s", "0"].into_iter().all(|it| line_rate(it).is_err()));
    }
}
