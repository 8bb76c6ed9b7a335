//! What the subcommands do.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use node::Config;
use node::logging::{self, LogFormat};
use node::status::{STATUS_VERSION, Status};

use crate::nodes::choose;
use crate::{CommandFailure, Log, NodeArgs, NodeCommand, StatusArgs, client, drain, live, tables};

/// `vrio node`.
pub(crate) fn node(args: &NodeArgs) -> Result<(), CommandFailure> {
    match &args.command {
        Some(NodeCommand::Reload(reload)) => return live::reload(reload),
        Some(NodeCommand::Drain(args)) => return drain::drain(args),
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
    node::run(&config, origin).map_err(|error| match error {
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

/// All nodes of this host: one that does not answer keeps none of the others back.
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

/// A node's status, if it is one that this release reads.
pub(crate) fn ask(socket: &Path) -> Result<Status, CommandFailure> {
    let answer = client::get(socket, "/v1/status").map_err(CommandFailure::no_answer)?;
    let status: Status = serde_json::from_str(&answer)
        .context("the node's answer is not understood; it may be another release")
        .map_err(CommandFailure::running)?;
    if status.version != STATUS_VERSION {
        let theirs = status.version;
        let text =
            format!("the node answers in version {theirs}; this vrio reads {STATUS_VERSION}");
        return Err(CommandFailure::running(anyhow!(text)));
    }
    Ok(status)
}

/// Prints to standard output. A reader who has seen enough is no error.
pub(crate) fn print(text: &str) -> Result<(), CommandFailure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot print").map_err(CommandFailure::running),
    }
}

/// Prints a line to standard error, which may be gone, such as a terminal that was closed: that is
/// no reason to end in the middle.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
