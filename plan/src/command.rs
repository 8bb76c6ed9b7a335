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

/// The longest file: a plan is written by hand.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Examples of `vrio plan`.
pub const PLAN_EXAMPLES: &str = "Examples:
  vrio plan example rack > rack.toml       a rack with every key, to be changed
  vrio plan cost rack.toml                 what it costs, and whether pooling pays
  vrio plan simulate scenario.toml         latencies, and what an IOhost's death does to them
  vrio plan published                      published figures beside ours";

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
        let report = simulate::simulate(&Scenario::read(&name, &text, &args.set)?);
        return Ok(if args.json { json(&report) } else { simulate::report_text(&report) });
    };
    // All values are checked before the first is simulated.
    let with = |value: &String| {
        let mut set = args.set.clone();
        set.push((vary.key.clone(), value.clone()));
        Scenario::read(&name, &text, &set).map(|scenario| (value.clone(), scenario))
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
    let mut text = String::new();
    let unread = |error: std::io::Error| PlanFault::Unread {
        file: path.display().to_string(),
        cause: error.to_string(),
    };
    let mut file = File::open(path).map_err(unread)?.take(FILE_BYTES_MAX + 1);
    file.read_to_string(&mut text).map_err(unread)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(PlanFault::Long { file: name, bytes_max: FILE_BYTES_MAX });
    }
    Ok((name, text))
}
