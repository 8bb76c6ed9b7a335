//! `vrio plan`: its arguments, and the one place that reads files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, Subcommand};
use results::{Measurement, PlannedResults, ResultError};
use serde::Serialize;

use crate::application::{self, PLATFORMS, Platform, Predicted, Profile};
use crate::cost::{self, RACKS, RackForm, SearchForm};
use crate::fault::{PlanFault, key, within};
use crate::measured::{self, MeasuredCost};
use crate::own;
use crate::planned::ReportJson;
use crate::published::{self, JudgedForm};
use crate::simulate::scenario::{Arrivals, assignment};
use crate::simulate::switch::{self, SwitchScenario, VariedSwitchForm, VariedSwitchReport};
use crate::simulate::{self, Scenario, VariedForm, VariedReport, Vary};
use crate::size::{self, SizeForm};
use crate::trace::{Trace, TraceForm};

/// The longest file: a plan is written by hand.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The longest trace: it is in memory as a whole.
const TRACE_BYTES_MAX: u64 = 2 << 30;
/// The longest file of results: a run with all ways of several MPIs has some MiB.
const RESULT_BYTES_MAX: u64 = 64 << 20;
/// Files of a run's directory, one for each measurement.
const RUN_FILES_MAX: u64 = 4096;
/// The bytes of all files of results of one command: they are in memory together.
const RESULTS_BYTES_MAX: u64 = 256 << 20;
/// Platforms beside one another, named by the user.
const PLATFORMS_MAX: u64 = 64;

/// Examples of `vrio plan`.
pub const PLAN_EXAMPLES: &str = "Examples:
  vrio plan example rack > rack.toml       a rack with every key, to be changed
  vrio plan cost rack.toml                 what it costs, and whether pooling pays
  vrio plan simulate scenario.toml         latencies, and what an IOhost's death does to them
  vrio plan size scenario.toml --p99 500us   sidecores and IOhosts for a latency
  vrio plan application profile.toml       an MPI application's run time on published platforms
  vrio plan published                      published figures beside ours
  vrio plan own                            our own bench beside the simulator's predictions
  vrio plan cost rack.toml --search --json > search.json
  vrio report search.json -o pictures      a page with pictures of plans: any --json of these";

const SIZE_EXAMPLES: &str = "Examples:
  vrio plan size scenario.toml --p99 500us
  vrio plan size scenario.toml --p99 2ms --set hosts.count=6 --set load.arrivals=bursts
  vrio plan size scenario.toml --p99 2ms --set load.arrivals=trace \\
      --set load.trace=web.csv --set load.form=msr --set load.volume=web.0
  vrio bench block --path remote --depth 32 --json > own.json
  vrio plan size scenario.toml --p99 500us --costs own.json       with this machine's costs
  vrio plan size scenario.toml --p99 500us --json | jq '.rows[].share_ppm'";

const COST_EXAMPLES: &str = "Examples:
  vrio plan cost rack.toml                 bills of all plans, and their difference from the first
  vrio plan cost rack.toml --search        the sizes of rack in which pooling pays
  vrio plan cost r930-3                    the slides' rack of three servers
  vrio plan cost rack.toml --json | jq '.bills[] | {name, total_cents}'";

const SIMULATE_EXAMPLES: &str = "Examples:
  vrio plan example scenario > scenario.toml
  vrio plan simulate scenario.toml
  vrio plan simulate scenario.toml --vary pool.steering=static,random,two,shared
  vrio plan simulate death --vary death.refuge=spare,wait
  vrio plan simulate switch --vary switch.uplinks=16,8,4     hosts that exchange messages
  vrio plan simulate large                 4,096 hosts with 65,536 guests for a second
  vrio plan simulate scenario.toml --vary pool.sidecores=1,2,4 --json > p99.json
  vrio report p99.json                     a page with the p99 by sidecores";

const APPLICATION_EXAMPLES: &str = "Examples:
  vrio plan example pmpi > profile.c                     a recorder; its head says how to use it
  mpicc -O2 -shared -fPIC -o libprofile.so profile.c
  mpirun -x LD_PRELOAD=$PWD/libprofile.so ./application > /dev/null      writes profile.toml
  vrio plan application profile.toml                     on all published platforms
  vrio plan application profile.toml --platform ib-native --platform ec2-cc2
  vrio bench mpi --hosts 2 --json > two.json; vrio bench mpi --json > one.json
  vrio plan application profile.toml --platform two.json,one.json
  vrio plan application profile.toml --json | jq '.platforms[].run.likely_ns'";

const PUBLISHED_EXAMPLES: &str = "Examples:
  vrio plan published
  vrio plan published --json | jq '.figures[] | select(.verdict == \"misprint\")'";

const OWN_EXAMPLES: &str = "Examples:
  vrio plan own                            recorded measurements and their predictions
  vrio bench block --idle spin --json > 1.json
  vrio bench block --idle spin --depth 32 --json > 2.json
  vrio bench block --idle spin --guests 16 --json > 3.json
  vrio bench block --idle spin --guests 4 --depth 8 --json > 4.json
  vrio plan own 1.json 2.json 3.json 4.json        the last one is predicted from the others
  vrio plan simulate bench --costs 1.json,2.json,3.json --vary hosts.guests=1,2,4,8";

const EXAMPLE_EXAMPLES: &str = "Examples:
  vrio plan example rack > rack.toml
  vrio plan example scenario > scenario.toml
  vrio plan example profile > profile.toml
  vrio plan example pmpi > profile.c       a program in C that records a profile
  vrio plan example ec2-cc2 > mine.toml    a published platform
  vrio plan example r930-6                 the slides' rack of six servers";

/// The commands of `vrio plan`.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Print what a rack costs under several policies, and where pooling pays.
    #[command(after_help = COST_EXAMPLES)]
    Cost(CostArgs),
    /// Simulate the requests of a rack's guests: latencies, use of stations, an IOhost's death; or
    /// messages between hosts on switches.
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(SimulateArgs),
    /// Find the fewest sidecores, IOhosts and Gbit/s for a p99, by how much bursts coincide.
    #[command(after_help = SIZE_EXAMPLES)]
    Size(SizeArgs),
    /// Predict the run time of an MPI application on platforms, from a profile of its messages.
    #[command(after_help = APPLICATION_EXAMPLES)]
    Application(ApplicationArgs),
    /// Print published figures beside the planner's own of the same parts.
    #[command(after_help = PUBLISHED_EXAMPLES)]
    Published(PublishedArgs),
    /// Print measurements of `vrio bench block` beside the simulator's predictions of them.
    #[command(after_help = OWN_EXAMPLES)]
    Own(OwnArgs),
    /// Print a file with every key, to be changed.
    #[command(after_help = EXAMPLE_EXAMPLES)]
    Example(ExampleArgs),
}

/// The arguments of `vrio plan cost`.
#[derive(Debug, Args)]
pub struct CostArgs {
    /// The rack: a file, or rack, r930-3 or r930-6 as `vrio plan example` has them.
    #[arg(value_name = "RACK.toml")]
    rack: PathBuf,
    /// Try 14 sizes of the rack and 8 shares of its sidecores, with and without a spare IOhost.
    /// Power counts if the watts of all parts are known.
    #[arg(long)]
    search: bool,
    /// Print JSON, which `vrio report` draws; prices are in cents, changes in hundredths of a
    /// percent.
    #[arg(long)]
    json: bool,
}

/// The arguments of `vrio plan simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The scenario: a file, or scenario, death, bench, large or switch as `vrio plan example` has
    /// them.
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// Take the processor time of a request from results of `vrio bench block` (JSON, or a run's
    /// directory; several with commas); `--set` comes after it.
    #[arg(long, value_name = "FILE[,FILE..]")]
    costs: Option<String>,
    /// Give a key of the scenario another value; may be repeated. death=none is no death.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Simulate with each of these values of a key, and print a row of each.
    #[arg(long, value_name = "KEY=VALUE,VALUE,..")]
    vary: Option<Vary>,
    /// Print JSON, which `vrio report` draws; the same scenario and seed give the same bytes.
    #[arg(long)]
    json: bool,
}

/// The arguments of `vrio plan size`.
#[derive(Debug, Args)]
pub struct SizeArgs {
    /// The load and the costs: a scenario's file, or scenario or large. Its [death] and its spare
    /// IOhosts count for nothing here.
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// The wanted p99 of all requests, such as 500us or 1.5ms.
    #[arg(long, value_name = "TIME", value_parser = duration_ns)]
    p99: u64,
    /// Take the processor time of a request from results of `vrio bench block` (JSON, or a run's
    /// directory; several with commas); `--set` comes after it.
    #[arg(long, value_name = "FILE[,FILE..]")]
    costs: Option<String>,
    /// Give a key of the scenario another value; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Print JSON, which `vrio report` draws.
    #[arg(long)]
    json: bool,
}

/// A time with its unit, in nanoseconds.
fn duration_ns(text: &str) -> Result<u64, String> {
    let fault = || format!("'{text}' is no time: write 500us, 1.5ms or 1s");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err(fault()),
    };
    // Digits behind the point are parts of the unit, to the nanosecond.
    let (whole, part) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    if !is_number(whole) || !is_number(part) || part.len() > 9 {
        return Err(fault());
    }
    let number = |text: &str| text.parse::<u64>().map_err(|_| fault());
    let of_part = number(part)? * unit / 10_u64.pow(part.len() as u32);
    let ns = number(whole)?.checked_mul(unit).and_then(|ns| ns.checked_add(of_part));
    ns.ok_or_else(fault)
}

/// The arguments of `vrio plan application`.
#[derive(Debug, Args)]
pub struct ApplicationArgs {
    /// The profile: a file, or profile as `vrio plan example` has it.
    #[arg(value_name = "PROFILE.toml")]
    profile: PathBuf,
    /// A platform: one of the program's, a platform's file, or results of `vrio bench mpi` (JSON,
    /// or a run's directory; several with commas become one). May be repeated; default: all of the
    /// program's.
    #[arg(long, value_name = "NAME|FILE[,FILE..]")]
    platform: Vec<String>,
    /// Print JSON, which `vrio report` draws; times are in nanoseconds.
    #[arg(long)]
    json: bool,
}

/// The arguments of `vrio plan published`.
#[derive(Debug, Args)]
pub struct PublishedArgs {
    /// Print JSON, which `vrio report` draws.
    #[arg(long)]
    json: bool,
}

/// The arguments of `vrio plan own`.
#[derive(Debug, Args)]
pub struct OwnArgs {
    /// Results of `vrio bench block --idle spin` (JSON, or a run's directory), among them one guest
    /// at depths 1 and 32 and 16 guests at depth 1; by default the program's own.
    #[arg(value_name = "FILE")]
    files: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The arguments of `vrio plan example`.
#[derive(Debug, Args)]
pub struct ExampleArgs {
    /// The file: rack, r930-3, r930-6, scenario, death, bench, large, switch, profile, pmpi or a
    /// platform.
    name: String,
}

impl PlanCommand {
    /// Does the command, and returns its text.
    ///
    /// # Errors
    /// When a file cannot be read or used.
    pub fn run(&self) -> Result<String, PlanFault> {
        match self {
            Self::Cost(args) => cost(args),
            Self::Simulate(args) => simulate(args),
            Self::Size(args) => {
                let (name, text) = read(&args.scenario, &SCENARIOS)?;
                let (costs, set) = with_costs(&text, args.costs.as_deref(), &args.set)?;
                let scenario = Traces::default().scenario(&name, &text, &set)?;
                let rows = size::size(&scenario, args.p99)?;
                if args.json {
                    let results = size::size_results(&name, &scenario, args.p99, &rows);
                    let report = SizeForm { title: &scenario.title, p99_ns: args.p99, rows: &rows };
                    return json(&report, results);
                }
                Ok(below(&costs, &size::size_text(&scenario, args.p99, &rows)))
            }
            Self::Application(args) => application(args),
            Self::Published(args) => {
                let judged = published::judged()?;
                if args.json {
                    let results = published::judged_results(&judged);
                    return json(&JudgedForm { figures: &judged }, results);
                }
                Ok(published::judged_text(&judged))
            }
            Self::Own(args) => own(args),
            Self::Example(args) => example(&args.name).map(str::to_owned),
        }
    }
}

fn cost(args: &CostArgs) -> Result<String, PlanFault> {
    let (name, text) = read(&args.rack, &RACKS)?;
    let rack = RackForm::read(&name, &text)?;
    if args.search {
        let cells = cost::search(&rack)?;
        if args.json {
            let report = SearchForm { title: &rack.title, source: &rack.source, cells: &cells };
            return json(&report, cost::search_results(&rack, &cells));
        }
        return Ok(cost::search_text(&cells));
    }
    let compared = cost::compare(&rack)?;
    if args.json {
        return json(&compared, cost::comparison_results(&compared));
    }
    Ok(cost::comparison_text(&compared))
}

/// Profiles of the program.
const PROFILES: [(&str, &str); 1] = [("profile", application::EXAMPLE)];
/// Programs in C that are printed, and never read.
const RECORDERS: [(&str, &str); 1] = [("pmpi", application::RECORDER)];

fn application(args: &ApplicationArgs) -> Result<String, PlanFault> {
    let (name, text) = read(&args.profile, &PROFILES)?;
    let profile = Profile::read(&name, &text)?;
    let mut platforms = Vec::new();
    let all = PLATFORMS.map(|(name, _)| name.to_owned());
    let wanted = if args.platform.is_empty() { &all[..] } else { &args.platform };
    within("the number of --platform", wanted.len() as u64, 1, PLATFORMS_MAX)?;
    for wanted in wanted {
        platforms.extend(platforms_of(wanted)?);
    }
    let predicted = Predicted {
        held_out: published::held_out()?,
        platforms: application::predict(&profile, &platforms)?,
    };
    if args.json {
        let results = application::predicted_results(&name, &profile, &predicted);
        return json(&predicted, results);
    }
    Ok(application::predictions_text(&profile, &predicted))
}

/// The platforms of a name, a file, or results in several files.
fn platforms_of(wanted: &str) -> Result<Vec<Platform>, PlanFault> {
    let is_file = |name: &str| Path::new(name).exists();
    if PLATFORMS.iter().any(|(known, _)| *known == wanted) {
        return Ok(vec![Platform::shipped(wanted)?]);
    }
    let names: Vec<&str> = if is_file(wanted) { vec![wanted] } else { wanted.split(',').collect() };
    if let Some(missing) = names.iter().find(|name| !is_file(name)) {
        return Platform::shipped(missing).map(|it| vec![it]);
    }
    if let [name] = names.as_slice()
        && Path::new(name).extension().is_some_and(|it| it == "toml")
    {
        let (name, text) = read(Path::new(name), &[])?;
        return Ok(vec![Platform::read(&name, &text)?]);
    }
    application::measured::platforms(wanted, &measurements(&names)?)
}

/// The measurements of results in several files.
fn measurements(names: &[&str]) -> Result<Vec<Measurement>, PlanFault> {
    let mut all = Vec::new();
    let mut left = RESULTS_BYTES_MAX;
    for name in names {
        for file in result_files(Path::new(name))? {
            let text = text_of(&file, left.min(RESULT_BYTES_MAX))?;
            left -= text.len() as u64;
            all.extend(measured::measurements(&file.display().to_string(), &text)?);
        }
    }
    Ok(all)
}

/// Keys of a scenario, each with its value.
type Assignments = Vec<(String, String)>;

/// The costs of `--costs`, and the assignments of keys with them; `--set` comes after. A scenario
/// with turns has the costs of turns and of requests, of several measurements.
fn with_costs(
    scenario: &str,
    files: Option<&str>,
    set: &[(String, String)],
) -> Result<(Vec<MeasuredCost>, Assignments), PlanFault> {
    let Some(files) = files else { return Ok((Vec::new(), set.to_vec())) };
    let names: Vec<&str> = files.split(',').collect();
    let all = measurements(&names)?;
    let has_turns = scenario.parse::<toml::Table>().is_ok_and(|it| it.contains_key("turns"));
    let costs =
        if has_turns { own::turn_costs(files, &all)? } else { measured::costs(files, &all)? };
    let all = measured::assignments(&costs).into_iter().chain(set.iter().cloned());
    Ok((costs, all.collect()))
}

/// A text below the costs that were measured, if any were.
fn below(costs: &[MeasuredCost], text: &str) -> String {
    if costs.is_empty() { text.to_owned() } else { measured::costs_text(costs) + text }
}

/// A file of results, or the measurements in the directory of a run.
fn result_files(path: &Path) -> Result<Vec<PathBuf>, PlanFault> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let file = path.display().to_string();
    let fault =
        |error: std::io::Error| PlanFault::Unread { file: file.clone(), cause: error.to_string() };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        let is_run = path.file_name().is_some_and(|name| name == "run.json");
        // A pipe in it would be waited for; the user has named the directory alone.
        if !is_run && path.extension().is_some_and(|it| it == "json") && path.is_file() {
            files.push(path);
        }
        within("the number of files in a run", files.len() as u64, 0, RUN_FILES_MAX)?;
    }
    // The order of a directory is the file system's.
    files.sort();
    Ok(files)
}

/// Scenarios of the program.
const SCENARIOS: [(&str, &str); 5] = [
    ("scenario", simulate::EXAMPLE),
    ("death", simulate::DEATH),
    ("bench", simulate::BENCH),
    ("large", simulate::LARGE),
    ("switch", switch::SWITCH),
];

fn own(args: &OwnArgs) -> Result<String, PlanFault> {
    let names: Vec<&str> = args.files.iter().map(String::as_str).collect();
    let (name, measured) = match names.as_slice() {
        [] => ("own-bench.json".to_owned(), own::recorded()?),
        names => (names.join(","), measurements(names)?),
    };
    let figures = own::own(&name, &measured)?;
    match args.json {
        true => json(&figures, own::own_results(&name, &figures)),
        false => Ok(own::own_text(&figures)),
    }
}

fn simulate(args: &SimulateArgs) -> Result<String, PlanFault> {
    let (name, text) = read(&args.scenario, &SCENARIOS)?;
    if SwitchScenario::is_form(&text) {
        return simulate_switch(args, &name, &text);
    }
    let mut traces = Traces::default();
    let (costs, set) = with_costs(&text, args.costs.as_deref(), &args.set)?;
    let Some(vary) = &args.vary else {
        let report = simulate::simulate(&traces.scenario(&name, &text, &set)?)?;
        if args.json {
            return json(&report, simulate::report_results(&name, &report));
        }
        return Ok(below(&costs, &simulate::report_text(&report)));
    };
    let mut with = |value: &String| {
        let mut set = set.clone();
        set.push((vary.key.clone(), value.clone()));
        traces.scenario(&name, &text, &set)
    };
    // All values are checked before the first is simulated. A trace at another speed is a copy of
    // it, so one scenario at a time is held.
    for value in &vary.values {
        with(value)?;
    }
    let mut reports: Vec<VariedReport> = Vec::new();
    for value in &vary.values {
        let scenario = with(value)?;
        reports.push(VariedReport::of(value, &scenario, simulate::simulate(&scenario)?));
    }
    if args.json {
        let results = simulate::varied_results(&name, &vary.key, &reports);
        return json(&VariedForm { key: &vary.key, runs: &reports }, results);
    }
    Ok(below(&costs, &simulate::rows_text(&vary.key, &reports)))
}

/// The same for an exchange on switches.
fn simulate_switch(args: &SimulateArgs, name: &str, text: &str) -> Result<String, PlanFault> {
    if args.costs.is_some() {
        let cause = "an exchange on switches has no costs of requests";
        return Err(key("--costs", cause, "leave it out"));
    }
    let Some(vary) = &args.vary else {
        let report = switch::simulate_switch(&SwitchScenario::read(name, text, &args.set)?);
        return match args.json {
            true => json(&report, switch::switch_results(name, &report)),
            false => Ok(switch::switch_text(&report)),
        };
    };
    let with = |value: &String| {
        let varied = (vary.key.clone(), value.clone());
        let set: Assignments = args.set.iter().cloned().chain([varied]).collect();
        Ok((value.clone(), SwitchScenario::read(name, text, &set)?))
    };
    // All values are checked before the first is simulated.
    let all: Vec<(String, SwitchScenario)> =
        vary.values.iter().map(with).collect::<Result<_, _>>()?;
    let all = all.into_iter().map(|(value, it)| (value, switch::simulate_switch(&it)));
    let runs: Vec<VariedSwitchReport> =
        all.map(|(value, report)| VariedSwitchReport { value, report }).collect();
    if args.json {
        let results = switch::varied_switch_results(name, &vary.key, &runs);
        return json(&VariedSwitchForm { key: &vary.key, runs: &runs }, results);
    }
    Ok(switch::switch_rows_text(&vary.key, &runs))
}

/// The trace that was read last: scenarios that differ in another key share it.
#[derive(Default)]
struct Traces {
    last: Option<(TraceName, Arc<Trace>)>,
}

/// The file, the form and the volume of a trace.
type TraceName = (String, TraceForm, Option<String>);

impl Traces {
    /// A scenario with its trace.
    fn scenario(
        &mut self,
        name: &str,
        text: &str,
        set: &[(String, String)],
    ) -> Result<Scenario, PlanFault> {
        let mut scenario = Scenario::read(name, text, set)?;
        let load = &scenario.load;
        if let (Arrivals::Trace, Some(file), Some(form)) = (load.arrivals, &load.trace, load.form) {
            let trace = self.read((file.clone(), form, load.volume.clone()))?;
            scenario.play(&trace)?;
        }
        Ok(scenario)
    }

    fn read(&mut self, name: TraceName) -> Result<Arc<Trace>, PlanFault> {
        if let Some((_, trace)) = self.last.as_ref().filter(|(last, _)| *last == name) {
            return Ok(Arc::clone(trace));
        }
        let (file, form, volume) = &name;
        let content = bytes(Path::new(file), TRACE_BYTES_MAX)?;
        let trace = Arc::new(Trace::read(file, *form, &content, volume.as_deref())?);
        self.last = Some((name, Arc::clone(&trace)));
        Ok(trace)
    }
}

/// The content of a file that has so many bytes at most.
fn bytes(path: &Path, bytes_max: u64) -> Result<Vec<u8>, PlanFault> {
    let file = path.display().to_string();
    let mut content = Vec::new();
    let read = File::open(path).and_then(|it| it.take(bytes_max + 1).read_to_end(&mut content));
    if let Err(error) = read {
        return Err(PlanFault::Unread { file, cause: error.to_string() });
    }
    if content.len() as u64 > bytes_max {
        return Err(PlanFault::Long { file, bytes_max });
    }
    Ok(content)
}

fn example(name: &str) -> Result<&'static str, PlanFault> {
    let all =
        || RACKS.iter().chain(&SCENARIOS).chain(&PROFILES).chain(&RECORDERS).chain(&PLATFORMS);
    let found = all().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let names: Vec<&str> = all().map(|(name, _)| *name).collect();
        let names = names.join(", ");
        key("NAME", format!("there is no example '{name}'"), format!("name one of: {names}"))
    })
}

/// A report as JSON, with its figures as `vrio report` reads them.
fn json<T: Serialize>(report: &T, results: PlannedResults) -> Result<String, PlanFault> {
    let unfit = |error: ResultError| key("--json", error.to_string(), "report this as a fault");
    results.check().map_err(unfit)?;
    let text = serde_json::to_string_pretty(&ReportJson { report, results });
    Ok(text.unwrap_or_else(|error| panic!("plain data: {error}")) + "\n")
}

/// The name and the text of a file; a bare name may be one of the program's.
fn read(path: &Path, of_program: &[(&str, &str)]) -> Result<(String, String), PlanFault> {
    let name = path.display().to_string();
    if let Some((_, text)) = of_program.iter().find(|(known, _)| *known == name) {
        return Ok((name, (*text).to_owned()));
    }
    Ok((name, text_of(path, FILE_BYTES_MAX)?))
}

fn text_of(path: &Path, bytes_max: u64) -> Result<String, PlanFault> {
    let text = String::from_utf8(bytes(path, bytes_max)?);
    text.map_err(|error| PlanFault::Unread {
        file: path.display().to_string(),
        cause: format!("it is not text: {error}"),
    })
}
