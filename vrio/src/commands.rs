//! What the subcommands do.

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use node::Config;
use node::logging::{self, LogFormat};
use node::status::{STATUS_VERSION, Status};

use crate::{Failure, Log, NodeArgs, NodeCommand, StatusArgs, client, drain, live, tables};

/// Where nodes of the system have their control sockets.
const RUN_DIRECTORY: &str = "/run/vrio";

/// `vrio node`.
pub(crate) fn node(args: &NodeArgs) -> Result<(), Failure> {
    match &args.command {
        Some(NodeCommand::Reload(reload)) => return live::reload(reload),
        Some(NodeCommand::Drain(args)) => return drain::drain(args),
        None => {}
    }
    let path = args.config.as_deref().expect("required unless there is a subcommand");
    let config = Config::load(path).map_err(Failure::configuration)?;
    if args.check {
        node::check(&config).map_err(Failure::configuration)?;
        return print(&format!("{}: node {:?} is fine\n", path.display(), config.name));
    }
    logging::start(match args.log {
        Log::Human => LogFormat::Human,
        Log::Json => LogFormat::Json,
    });
    let origin = if args.take_over { node::Origin::TakeOver } else { node::Origin::Start };
    node::run(&config, origin).map_err(|error| match error {
        node::StartError::TakeOver(node::TakeOverError::NoNode { .. }) => Failure::no_answer(error),
        error => Failure::running(error),
    })
}

/// The control socket that is meant: named, a configuration's, or the only one of this host.
pub(crate) fn socket(socket: Option<&Path>, config: Option<&Path>) -> Result<PathBuf, Failure> {
    match (socket, config) {
        (Some(socket), _) => Ok(socket.to_owned()),
        (None, Some(config)) => Ok(Config::load(config).map_err(Failure::configuration)?.control),
        (None, None) => only_socket(Path::new(RUN_DIRECTORY)).map_err(Failure::no_answer),
    }
}

/// `vrio status`.
pub(crate) fn status(args: &StatusArgs) -> Result<(), Failure> {
    let socket = socket(args.control.as_deref(), args.config.as_deref())?;
    if args.json {
        let answer = client::get(&socket, "/v1/status").map_err(Failure::no_answer)?;
        return print(&format!("{}\n", answer.trim_end()));
    }
    print(&tables::show(&ask(&socket)?, args.all))
}

/// A node's status, if it is one that this release reads.
pub(crate) fn ask(socket: &Path) -> Result<Status, Failure> {
    let answer = client::get(socket, "/v1/status").map_err(Failure::no_answer)?;
    let status: Status = serde_json::from_str(&answer)
        .context("the node's answer is not understood; it may be another release")
        .map_err(Failure::running)?;
    if status.version != STATUS_VERSION {
        let theirs = status.version;
        let text =
            format!("the node answers in version {theirs}; this vrio reads {STATUS_VERSION}");
        return Err(Failure::running(anyhow!(text)));
    }
    Ok(status)
}

/// Prints to standard output. A reader who has seen enough is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot print").map_err(Failure::running),
    }
}

/// Prints a line to standard error, which may be gone, such as a terminal that was closed: that is
/// no reason to end in the middle.
pub(crate) fn say(line: impl Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The one control socket of a directory.
fn only_socket(directory: &Path) -> anyhow::Result<PathBuf> {
    let say = "say which node with --control or --config";
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("no node is found in {directory:?}; {say}"))?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_control = |path: &PathBuf| path.extension().is_some_and(|end| end == "control");
    let mut sockets: Vec<_> = paths.filter(is_control).collect();
    sockets.sort();
    match &sockets[..] {
        [one] => Ok(one.clone()),
        [] => Err(anyhow!("no node is found in {directory:?}; {say}")),
        several => Err(anyhow!("there are {} nodes here; {say}: {several:?}", several.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_control_socket_is_found() {
        let home = tempfile::tempdir().unwrap();
        let missing = only_socket(&home.path().join("none")).unwrap_err();
        assert!(format!("{missing:#}").contains("no node is found"), "{missing:#}");
        assert!(only_socket(home.path()).is_err());
        let one = home.path().join("io1.control");
        std::fs::write(&one, "").unwrap();
        std::fs::write(home.path().join("io1.control.lock"), "").unwrap();
        std::fs::write(home.path().join("alice.sock"), "").unwrap();
        assert_eq!(only_socket(home.path()).unwrap(), one);
        std::fs::write(home.path().join("vm1.control"), "").unwrap();
        let error = only_socket(home.path()).unwrap_err().to_string();
        assert!(error.contains("2 nodes") && error.contains("vm1.control"), "{error}");
    }
}
