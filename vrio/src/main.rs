//! The vrio command line.
//!
//! Exit codes: 0 success; 1 an error while running; 2 an error of the command line or the
//! configuration; 3 no node answers.

mod attach;
mod bench;
mod client;
mod cluster;
mod commands;
mod completion;
mod demo;
mod drain;
mod failure;
mod key;
mod live;
mod man;
mod mpi;
mod nodes;
mod output;
mod plan;
mod report;
mod results;
mod snippets;
mod tables;
mod top;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use testbed::machine::version;

use commands::{NodeArgs, StatusArgs};
use failure::CommandFailure;

/// Fast, programmable disks, network cards and an MPI interconnect for virtual machines.
///
/// A node runs polling cores that serve virtual machines' disks and network cards (vhost-user),
/// from volumes and networks of its own host or of another one, and messages of their processes.
#[derive(Debug, Parser)]
#[command(name = "vrio", version = version(), max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success, 1 an error while running, \
    2 an error of the command line or the configuration, 3 no node answers.";

const NODE_EXAMPLES: &str = "Examples:
  vrio node --config /etc/vrio/io1.toml            run a node until SIGTERM or SIGINT
  vrio node --config /etc/vrio/io1.toml --check    print every problem of a configuration
  vrio node --config /etc/vrio/io1.toml --take-over    replace the running node's process
  vrio node reload                                 apply the changed file to a running node
  vrio node drain --wait 600                       take no new users; wait until none is left
  VRIO_LOG=debug vrio node --config io1.toml --log json 2>io1.log";

const STATUS_EXAMPLES: &str = "Examples:
  vrio status                            all nodes of this host
  vrio status --node io1                 one of them
  vrio status --config /etc/vrio/io1.toml
  vrio status --control /run/vrio/io1.control --json | jq .disks";

const TOP_EXAMPLES: &str = "Examples:
  vrio top                               the node of this host, if there is only one
  vrio top --node io1                    one of several
  vrio top --control /run/vrio/io1.control
  vrio top --json | jq '.disks[] | select(.latency_p99_ns > 5000000)'";

const DEMO_EXAMPLES: &str = "Examples:
  vrio demo --no-guest            needs nothing but this program
  vrio demo                       with a Linux guest under QEMU (`make demo` prepares it)
  vrio demo --no-guest --json | jq .outage";

const COMPLETION_EXAMPLES: &str = "Examples:
  vrio completion bash > /usr/share/bash-completion/completions/vrio
  vrio completion zsh > ~/.zfunc/_vrio";

const MAN_EXAMPLES: &str = "Examples:
  vrio man /usr/local/share/man/man1
  vrio man /tmp/vrio && man /tmp/vrio/vrio-volume-resize.1";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node with a configuration, until SIGTERM or SIGINT.
    #[command(after_help = NODE_EXAMPLES)]
    Node(NodeArgs),
    /// Show a running node's disks, volumes, sessions and sidecores.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArgs),
    /// Watch a running node: load, rates and latencies, once a second.
    #[command(after_help = TOP_EXAMPLES)]
    Top(top::TopArgs),
    /// Make keys, and show their public halves.
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Make a cluster of nodes around a registry, have nodes join, and show its state.
    #[command(subcommand, after_help = cluster::CLUSTER_EXAMPLES)]
    Cluster(cluster::ClusterCommand),
    /// The commands of each kind of objects.
    #[command(flatten)]
    Object(live::kinds::ObjectCommand),
    /// Print the environment with which an MPI's processes use a domain.
    #[command(subcommand, after_help = mpi::MPI_EXAMPLES)]
    Mpi(mpi::MpiCommand),
    /// Show a volume of another node as a disk of this machine (ublk): the direct client.
    #[command(after_help = attach::ATTACH_EXAMPLES)]
    Attach(attach::AttachArgs),
    /// Detach a disk that `vrio attach` made.
    #[command(after_help = attach::DETACH_EXAMPLES)]
    Detach(attach::DetachArgs),
    /// Keep, list, show and compare results of vrio's benchmarks and of other programs.
    #[command(subcommand, after_help = results::RESULTS_EXAMPLES)]
    Results(results::ResultsCommand),
    /// Measure disks, network cards and messages, and their costs in events and processor time.
    #[command(subcommand, after_help = bench::BENCH_EXAMPLES)]
    Bench(bench::BenchCommand),
    /// Make a page of results (plots, tables, differences) for a browser; it needs no server.
    #[command(after_help = report::REPORT_EXAMPLES)]
    Report(report::ReportArgs),
    /// Plan a rack: its price, the sizes in which pooling pays, and the latencies of its guests.
    #[command(subcommand, after_help = ::plan::command::PLAN_EXAMPLES)]
    Plan(::plan::command::PlanCommand),
    /// Watch a guest use a remote disk while the node that serves it is killed.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(demo::DemoArgs),
    /// Write the manual's pages, one for each command, into a directory.
    #[command(after_help = MAN_EXAMPLES)]
    Man {
        /// The directory; it is created if it is missing.
        directory: PathBuf,
    },
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETION_EXAMPLES)]
    Completion {
        /// The shell.
        shell: Shell,
    },
}

fn main() -> ExitCode {
    let done = match completion::asked() {
        Some(words) => completion::names(Cli::command(), &words),
        None => run(Cli::parse().command),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::say(format_args!("vrio: {failure}"));
            ExitCode::from(failure.code)
        }
    }
}

fn run(command: Command) -> Result<(), CommandFailure> {
    match command {
        Command::Node(args) => commands::node(&args),
        Command::Status(args) => commands::status(&args),
        Command::Top(args) => top::top(&args),
        Command::Key(command) => key::key(&command),
        Command::Cluster(command) => cluster::cluster(&command),
        Command::Object(command) => command.run(),
        Command::Mpi(command) => mpi::mpi(&command),
        Command::Attach(args) => attach::attach(&args),
        Command::Detach(args) => attach::detach(&args),
        Command::Results(command) => results::results(&command),
        Command::Bench(command) => bench::bench(&command),
        Command::Report(args) => report::report(&args),
        Command::Plan(command) => plan::plan(&command),
        Command::Demo(args) => demo::demo(&args),
        Command::Man { directory } => man::write(Cli::command(), &directory),
        Command::Completion { shell } => output::print(&completion::script(shell, Cli::command())),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use node::config::{Kind, NIC_CHANGEABLE};

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The options of a command that are not keys of the object that it adds.
    const BESIDE: [&str; 6] = ["node", "control", "config", "json", "wide", "help"];

    /// The key that a node's agent alone gives.
    const OF_AGENTS: &str = "placement";

    /// The options and names that a command has today.
    fn said(command: &clap::Command) -> BTreeSet<String> {
        let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
        let names = shown.map(|arg| arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned());
        names.filter(|name| !BESIDE.contains(&name.as_str())).collect()
    }

    fn below<'a>(command: &'a clap::Command, path: &[&str]) -> &'a clap::Command {
        path.iter().fold(command, |at, word| at.find_subcommand(word).expect("a command"))
    }

    #[test]
    fn each_key_of_the_file_is_an_option_of_the_same_name_and_no_other_is() {
        let cli = Cli::command();
        for kind in Kind::all() {
            let keys = kind.keys().iter().flat_map(|key| match kind.keys_within(key.name) {
                Some(within) => within,
                None => vec![key.name],
            });
            let keys = keys.filter(|key| *key != OF_AGENTS);
            let keys: BTreeSet<_> = keys.map(str::to_owned).collect();
            assert_eq!(said(below(&cli, &[kind.key(), "add"])), keys, "vrio {} add", kind.key());
        }
        let nic = Kind::named("nic").expect("a kind");
        let changeable = NIC_CHANGEABLE.iter().flat_map(|key| match nic.keys_within(key) {
            Some(within) => within,
            None => vec![*key],
        });
        let set = said(below(&cli, &["nic", "set"]));
        let set: BTreeSet<_> = set.into_iter().filter(|name| !name.starts_with("no-")).collect();
        let keys: BTreeSet<_> = changeable.chain(["name"]).map(str::to_owned).collect();
        assert_eq!(set, keys, "vrio nic set");
    }

    #[test]
    fn options_are_understood_as_they_were_called_before() {
        let lines = [
            "disk add --volume a --socket a.sock --error-after 30s",
            "peer add io1 --key a --key b",
            "nic set a --default deny --rule x",
            "domain add a --key /k --peer b --peer c",
            "vf add --domain a --socket a.vf --name b",
            "status --socket /c",
            "top --socket /c",
        ];
        for line in lines {
            let parsed = Cli::try_parse_from(std::iter::once("vrio").chain(line.split(' ')));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
    }
}
