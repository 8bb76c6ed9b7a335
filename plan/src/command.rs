//! `vrio plan`: its arguments, and the one place that reads files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::cost::{self, RACKS, RackForm};
use crate::fault::{PlanFault, key};
use crate::published;
use crate::simulate::{self, Scenario, SimulationReport, Vary, scenario::assignment};
use crate::size;
use crate::trace::Trace;

/// The longest file: a plan is written by hand.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The longest trace: it is in memory as a whole.
const TRACE_BYTES_MAX: u64 = 2 << 30;

/// Examples of `vrio plan`.
pub const PLAN_EXAMPLES: &str = "Examples:
  vrio plan example rack > rack.toml       a rack with every key, to be changed
  vrio plan cost rack.toml                 what it costs, and whether pooling pays
  vrio plan simulate scenario.toml         latencies, and what an IOhost's death does to them
  vrio plan size scenario.toml --p99 500us   sidecores and IOhosts for a latency
  vrio plan published                      published figures beside ours";

const SIZE_EXAMPLES: &str = "Examples:
  vrio plan size scenario.toml --p99 500us
  vrio plan size scenario.toml --p99 2ms --set hosts.count=6 --set load.arrivals=bursts
  vrio plan size scenario.toml --p99 2ms --set load.arrivals=trace \\
      --set load.trace=web.csv --set load.form=msr --set load.volume=web.0
  vrio plan size scenario.toml --p99 500us --json | jq '.[].share_ppm'";

const COST_EXAMPLES: &str = "Examples:
  vrio plan cost rack.toml                 bills of all plans, and their difference from the first
  vrio plan cost rack.toml --search        the sizes of rack in which pooling pays
  vrio plan cost r930-3                    the slides' rack of three servers
  vrio plan cost rack.toml --json | jq '.bills[] | {name, total_cents}'";

const SIMULATE_EXAMPLES: &str = "Examples:
  vrio plan example scenario > scenario.toml
  vrio plan simulate scenario.toml
  vrio plan simulate scenario.toml --vary pool.steering=static,random,two,shared
  vrio plan simulate scenario.toml --set death.refuge=wait --set milliseconds=8000
  vrio plan simulate large                 4,096 hosts with 65,536 guests for a second
  vrio plan simulate scenario.toml --vary pool.sidecores=1,2,4 --json | jq '.[].latency.p99_ns'";

const PUBLISHED_EXAMPLES: &str = "Examples:
  vrio plan published
  vrio plan published --json | jq '.[] | select(.verdict == \"misprint\")'";

const EXAMPLE_EXAMPLES: &str = "Examples:
  vrio plan example rack > rack.toml
  vrio plan example scenario > scenario.toml
  vrio plan example r930-6                 the slides' rack of six servers";

/// The commands of `vrio plan`.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Print what a rack costs under several policies, and where pooling pays.
    #[command(after_help = COST_EXAMPLES)]
    Cost(CostArgs),
    /// Simulate the requests of a rack's guests: latencies, use of stations, an IOhost's death.
    #[command(after_help = SIMULATE_EXAMPLES)]
    Simulate(SimulateArgs),
    /// Find the fewest sidecores, IOhosts and Gbit/s for a p99, by how much bursts coincide.
    #[command(after_help = SIZE_EXAMPLES)]
    Size(SizeArgs),
    /// Print published figures beside those that the planner computes of the same parts.
    #[command(after_help = PUBLISHED_EXAMPLES)]
    Published(PublishedArgs),
    /// Print a file with every key, to be changed.
    #[command(after_help = EXAMPLE_EXAMPLES)]
    Example(ExampleArgs),
}

/// The arguments of `vrio plan cost`.
#[derive(Debug, Args)]
pub struct CostArgs {
    /// The rack: a file, or r930-3, r930-6 or example.
    #[arg(value_name = "RACK.toml")]
    rack: PathBuf,
    /// Try all sizes of the rack and all shares of its sidecores, with and without a spare IOhost.
    #[arg(long)]
    search: bool,
    /// Print JSON; prices are in cents, changes in hundredths of a percent.
    #[arg(long)]
    json: bool,
}

/// The arguments of `vrio plan simulate`.
#[derive(Debug, Args)]
pub struct SimulateArgs {
    /// The scenario: a file, or example or large.
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// Give a key of the scenario another value; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Simulate with each of these values of a key, and print a row of each.
    #[arg(long, value_name = "KEY=VALUE,VALUE,..")]
    vary: Option<Vary>,
    /// Print JSON; the same scenario and seed give the same bytes.
    #[arg(long)]
    json: bool,
}

/// The arguments of `vrio plan size`.
#[derive(Debug, Args)]
pub struct SizeArgs {
    /// The load and the costs: a scenario's file, or example or large.
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// The wanted p99 of all requests, such as 500us or 2ms.
    #[arg(long, value_name = "TIME", value_parser = duration_ns)]
    p99: u64,
    /// Give a key of the scenario another value; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A time with its unit, in nanoseconds.
fn duration_ns(text: &str) -> Result<u64, String> {
    let fault = || format!("'{text}' is no time: write 500us, 2ms or 1s");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err(fault()),
    };
    let number: u64 = digits.parse().map_err(|_| fault())?;
    number.checked_mul(unit).ok_or_else(fault)
}

/// The arguments of `vrio plan published`.
#[derive(Debug, Args)]
pub struct PublishedArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The arguments of `vrio plan example`.
#[derive(Debug, Args)]
pub struct ExampleArgs {
    /// The file: rack, r930-3, r930-6, scenario or large.
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
                let scenario = scenario(&name, &text, &args.set)?;
                let rows = size::size(&scenario, args.p99)?;
                Ok(if args.json {
                    json(&rows)
                } else {
                    size::size_text(&scenario, args.p99, &rows)
                })
            }
            Self::Published(args) => {
                let judged = published::judged()?;
                Ok(if args.json { json(&judged) } else { published::judged_text(&judged) })
            }
            Self::Example(args) => example(&args.name).map(str::to_owned),
        }
    }
}

fn cost(args: &CostArgs) -> Result<String, PlanFault> {
    let (name, text) = read(&args.rack, &RACKS)?;
    let rack = RackForm::read(&name, &text)?;
    if args.search {
        let cells = cost::search(&rack)?;
        return Ok(if args.json { json(&cells) } else { cost::search_text(&cells) });
    }
    let compared = cost::compare(&rack)?;
    Ok(if args.json { json(&compared) } else { cost::comparison_text(&compared) })
}

/// Scenarios of the program.
const SCENARIOS: [(&str, &str); 2] = [("example", simulate::EXAMPLE), ("large", simulate::LARGE)];

fn simulate(args: &SimulateArgs) -> Result<String, PlanFault> {
    let (name, text) = read(&args.scenario, &SCENARIOS)?;
    let Some(vary) = &args.vary else {
        let report = simulate::simulate(&scenario(&name, &text, &args.set)?);
        return Ok(if args.json { json(&report) } else { simulate::report_text(&report) });
    };
    // All values are checked before the first is simulated.
    let with = |value: &String| {
        let mut set = args.set.clone();
        set.push((vary.key.clone(), value.clone()));
        scenario(&name, &text, &set).map(|scenario| (value.clone(), scenario))
    };
    let scenarios: Result<Vec<(String, Scenario)>, _> = vary.values.iter().map(with).collect();
    let one = |(value, it): (String, Scenario)| (value, simulate::simulate(&it));
    let reports: Vec<(String, SimulationReport)> = scenarios?.into_iter().map(one).collect();
    if args.json {
        let reports: Vec<&SimulationReport> = reports.iter().map(|(_, report)| report).collect();
        return Ok(json(&reports));
    }
    Ok(simulate::rows_text(&vary.key, &reports))
}

/// A scenario with its trace.
fn scenario(name: &str, text: &str, set: &[(String, String)]) -> Result<Scenario, PlanFault> {
    let mut scenario = Scenario::read(name, text, set)?;
    let load = &scenario.load;
    if let (simulate::scenario::Arrivals::Trace, Some(file), Some(form)) =
        (load.arrivals, &load.trace, load.form)
    {
        let content = bytes(Path::new(file), TRACE_BYTES_MAX)?;
        let trace = Trace::read(file, form, &content, load.volume.as_deref())?;
        scenario.play(trace)?;
    }
    Ok(scenario)
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
    let all = [
        ("rack", RACKS[2].1),
        ("r930-3", RACKS[0].1),
        ("r930-6", RACKS[1].1),
        ("scenario", simulate::EXAMPLE),
        ("large", simulate::LARGE),
    ];
    let found = all.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| {
        let names = all.map(|(name, _)| name).join(", ");
        key("NAME", format!("there is no example '{name}'"), format!("name one of: {names}"))
    })
}

fn json<T: Serialize>(value: &T) -> String {
    let text = serde_json::to_string_pretty(value);
    text.unwrap_or_else(|error| panic!("plain data: {error}")) + "\n"
}

/// The name and the text of a file; a bare name may be one of the program's.
fn read(path: &Path, of_program: &[(&str, &str)]) -> Result<(String, String), PlanFault> {
    let name = path.display().to_string();
    if let Some((_, text)) = of_program.iter().find(|(known, _)| *known == name) {
        return Ok((name, (*text).to_owned()));
    }
    let text = String::from_utf8(bytes(path, FILE_BYTES_MAX)?);
    let text = text.map_err(|error| PlanFault::Unread {
        file: name.clone(),
        cause: format!("it is not text: {error}"),
    });
    Ok((name, text?))
}
