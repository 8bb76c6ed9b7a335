//! `vrio node` and `vrio status`.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Subcommand;
use node::Config;
use node::logging::{self, LogFormat};
use node::status::{STATUS_VERSION, Status};

use crate::failure::CommandFailure;
use crate::nodes::{self, choose};
use crate::output::print;
use crate::{client, cluster, drain, live, tables};

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    pub(crate) command: Option<NodeCommand>,
    /// The node's configuration.
    #[arg(long, value_name = "FILE", required = true)]
    pub(crate) config: Option<PathBuf>,
    /// Only check the configuration and the key files that it names: print every problem. Root
    /// reads the files as the configuration's "user".
    #[arg(long)]
    pub(crate) check: bool,
    /// Replace the running node of this configuration: its process ends, its guests and peers stay
    /// connected. This program may be of another version.
    #[arg(long, conflicts_with = "check")]
    pub(crate) take_over: bool,
    /// The form of log lines, on standard error. VRIO_LOG selects the lines (default: info).
    #[arg(long, value_enum, default_value_t = Log::Human)]
    pub(crate) log: Log,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// Apply the changed configuration file to a running node.
    #[command(after_help = live::RELOAD_EXAMPLES)]
    Reload(live::ReloadArgs),
    /// Drain a running node: it takes no new user, and the command lists the users that are left.
    #[command(after_help = drain::DRAIN_EXAMPLES)]
    Drain(drain::DrainArgs),
    /// Have a node join a cluster, by a token of `vrio cluster token`.
    #[command(after_help = cluster::JOIN_EXAMPLES)]
    Join(cluster::JoinArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Log {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, clap::Args)]
#[command(mut_arg("control", |arg| arg.visible_alias("socket")))]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) target: nodes::Target,
    /// Print the node's answer, which is JSON.
    #[arg(long, conflicts_with = "all")]
    pub(crate) json: bool,
    /// Print all columns, also those that do not fit the terminal.
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print every counter as well.
    #[arg(long)]
    pub(crate) all: bool,
}

/// `vrio node`.
pub(crate) fn node(args: &NodeArgs) -> Result<(), CommandFailure> {
    match &args.command {
        Some(NodeCommand::Reload(reload)) => return live::reload(reload),
        Some(NodeCommand::Drain(args)) => return drain::drain(args),
        Some(NodeCommand::Join(args)) => return cluster::join_node(args),
        None => {}
    }
    let path = args.config.as_deref().expect("required unless there is a subcommand");
    let config = Config::load(path).map_err(CommandFailure::configuration)?;
    if args.check {
        node::check(&config).map_err(CommandFailure::configuration)?;
        return print(&format!("{}: node {:?} is fine\n", path.display(), config.name));
    }
    logging::start(match args.log {
        Log::Human => LogFormat::Human,
        Log::Json => LogFormat::Json,
    });
    let origin = if args.take_over { node::Origin::TakeOver } else { node::Origin::Start };
    let agent = |config: &Config| cluster::agent::start(config, args.log == Log::Json);
    node::run(&config, origin, agent).map_err(|error| match error {
        node::StartError::TakeOver(node::TakeOverError::NoNode { .. }) => {
            CommandFailure::no_answer(error)
        }
        error => CommandFailure::running(error),
    })
}

/// `vrio status`.
pub(crate) fn status(args: &StatusArgs) -> Result<(), CommandFailure> {
    tables::set_wide(args.wide);
    let sockets = args.target.sockets()?;
    if args.json {
        let [socket] = &sockets[..] else {
            return Err(CommandFailure::no_answer(anyhow!(choose(&sockets))));
        };
        let answer = client::get(socket, "/v1/status").map_err(CommandFailure::no_answer)?;
        return print(&format!("{}\n", answer.trim_end()));
    }
    if let [socket] = &sockets[..] {
        return print(&tables::show(&ask(socket)?, args.all));
    }
    several(&sockets, args.all)
}

/// The status of all nodes of this host. A node that does not answer does not hold the others up.
fn several(sockets: &[PathBuf], all: bool) -> Result<(), CommandFailure> {
    let count = sockets.len();
    print(&format!("{count} nodes run here; --node NAME shows one of them\n"))?;
    let mut failed = None;
    for socket in sockets {
        match ask(socket) {
            Ok(status) => print(&format!("\n{}", tables::show(&status, all)))?,
            Err(failure) => {
                print(&format!("\n{}: {failure}\n", socket.display()))?;
                failed = Some(failure);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// A node's status, if this release can read it.
pub(crate) fn ask(socket: &Path) -> Result<Status, CommandFailure> {
    let answer = client::get(socket, "/v1/status").map_err(CommandFailure::no_answer)?;
    let status: Status = serde_json::from_str(&answer)
        .context("the node's answer cannot be read; the node may be of another release")
        .map_err(CommandFailure::running)?;
    if status.version != STATUS_VERSION {
        let theirs = status.version;
        let text = format!(
            "the node's status has version {theirs}, and this vrio reads version \
                 {STATUS_VERSION}: use the vrio of the node's release"
        );
        return Err(CommandFailure::running(anyhow!(text)));
    }
    Ok(status)
}
