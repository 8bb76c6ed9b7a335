//! The agent of a node: it asks the node at its control socket, keeps the node's presence in the
//! registry, and reports to the node.
//!
//! ```text
//!   vrio node ── starts ──▶ starter ── starts, also again ──▶ agent ══ TLS ══ registry
//!       ▲  ▲                                                  │   │
//!       │  └── reports, line by line, at a socket pair ───────┘   │
//!       └───── GET /v1/status at the control socket ──────────────┘
//! ```
//!
//! [`starter`] has the processes. All end when the node's process ends, which closes its end of the
//! socket pair. Signals do not end them: a service manager sends SIGTERM to all processes of a
//! unit, and a node may go on for seconds then. The agent proves that end before, for the nodes
//! with copies of the same volumes.

use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::Duration;

use ::cluster::registry::know_boot;
use ::cluster::{
    Agent, AgentRound, ClusterDirectory, ClusterVerdict, ROUND, RegistryPlace, status,
};
use anyhow::{Context, anyhow};
use node::Config;
use node::api::agent::{AGENT_LINE_BYTES_MAX, AgentLine, CopyLives, NodeLine, RecordQuestion};
use node::config::ClusterConfig;
use node::logging::{self, LogFormat};
use node::status::NodeClusterStatus;
use tokio::signal::unix::{SignalKind, signal};

use self::ends::{END_TIME_MAX, has_node_ended_within};
use self::starter::PROGRAM;
use super::clock::now_s;
use super::{identity, random};
use crate::commands;
use crate::failure::CommandFailure;

/// The time between two rounds while the node is not present.
const ROUND_AWAY: Duration = Duration::from_secs(1);

/// The time between two verdicts of the whole cluster: each is a listing and a question to each
/// member of etcd.
const VERDICT: Duration = Duration::from_secs(30);

/// The problems of the cluster that a node shows; `vrio cluster status` has all of them.
const PROBLEMS_MAX: usize = 8;

/// The longest text that a node shows of each problem: a report is within the node's limit.
const TEXT_CHARS_MAX: usize = 1000;

/// How long the agent may take to have the node be away at once, when the node has ended. A service
/// manager may wait for the agent before it starts the node again; without it the presence ends by
/// itself.
const LEAVE: Duration = Duration::from_millis(200);

mod disks;
mod ends;
mod placements;
mod records;
mod starter;
mod view;

#[derive(Debug, clap::Args)]
pub(crate) struct AgentArgs {
    /// The node's configuration.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Log lines as JSON.
    #[arg(long)]
    json_log: bool,
    /// Be the agent; without it, start an agent, again whenever it dies.
    #[arg(long, requires = "starter")]
    work: bool,
    /// Start an agent when the starter has ended.
    #[arg(long, requires = "starter", conflicts_with = "work")]
    stand_by: bool,
    /// The process that has started this one.
    #[arg(long, value_name = "PROCESS")]
    starter: Option<u32>,
}

/// Starts the agent of a node, and returns the socket at which it reports.
pub(crate) fn start(config: &Config, json_log: bool) -> io::Result<UnixStream> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(PROGRAM);
    command.args(["cluster", "agent", "--config"]).arg(&config.path);
    if json_log {
        command.arg("--json-log");
    }
    // It is no service of its own for the service manager.
    command.env_remove("NOTIFY_SOCKET").env_remove("WATCHDOG_USEC");
    command.stdin(Stdio::from(OwnedFd::from(theirs.try_clone()?)));
    command.stdout(Stdio::from(OwnedFd::from(theirs)));
    // No thread waits for it: it lives as long as this process, or its end is heard at the socket.
    command.spawn()?;
    Ok(ours)
}

/// `vrio cluster agent`, which the node starts.
pub(super) fn run(args: &AgentArgs) -> Result<(), CommandFailure> {
    logging::start(if args.json_log { LogFormat::Json } else { LogFormat::Human });
    ignore_signals().context("the system refuses a signal").map_err(CommandFailure::running)?;
    let config = Config::load(&args.config).map_err(CommandFailure::configuration)?;
    node::agent::drop(&config).map_err(CommandFailure::running)?;
    let system = |error| CommandFailure::running(anyhow!("the agent's processes: {error}"));
    let Some(cluster) = &config.cluster else {
        let text = format!("{:?} has no section [cluster]", config.path);
        return Err(CommandFailure::configuration(anyhow!(text)));
    };
    match args.starter {
        Some(starter) if args.work => match starter::end_with(starter).map_err(system)? {
            true => work(&config, cluster),
            // The next starter starts another agent.
            false => Ok(()),
        },
        Some(starter) if starter::stand_by(starter).map_err(system)? => Ok(()),
        starter => starter::keep(cluster, starter.is_some()).map_err(system),
    }
}

/// Has the signals of a stop end nothing: a handler that is set once stays.
fn ignore_signals() -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let _inside = runtime.enter();
    for kind in [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()] {
        drop(signal(kind)?);
    }
    Ok(())
}

/// Waits until the node has joined. None if the node has ended before.
fn wait_for_directory(
    cluster: &ClusterConfig,
    report: &mut NodeClusterStatus,
) -> Result<Option<ClusterDirectory>, CommandFailure> {
    loop {
        match ClusterDirectory::open(&cluster.directory) {
            // A registry in a file must be there: later this process has no right to find it.
            Ok(directory) => match &directory.file().registry {
                RegistryPlace::File(path) if !path.exists() => {
                    note(report, &format!("the registry {} is not there", path.display()));
                }
                _ => return Ok(Some(directory)),
            },
            Err(error) => note(report, &error.to_string()),
        }
        let ended = has_node_ended_within(ROUND_AWAY).context("no poll");
        if tell(report).is_err() || ended.map_err(CommandFailure::running)? {
            return Ok(None);
        }
    }
}

/// The work of an agent until its node ends.
fn work(config: &Config, cluster: &ClusterConfig) -> Result<(), CommandFailure> {
    let key = identity(config)?;
    let mut report = NodeClusterStatus {
        node: cluster.name.clone(),
        state: "away".to_owned(),
        agent_pid: std::process::id(),
        ..NodeClusterStatus::default()
    };
    let process = ends::NodeProcess::find();
    let Some(directory) = wait_for_directory(cluster, &mut report)? else { return Ok(()) };
    // Before any thread: a thread that is there already would keep the rights to all files.
    restrict(config, cluster, &directory)?;
    let questions = records::start(&cluster.directory).context("no thread");
    let questions = questions.map_err(CommandFailure::running)?;
    let prove = ends::teller(process, &cluster.directory, &cluster.name);
    let node_ended = listen_to_node(questions, prove).context("no thread");
    let node_ended = node_ended.map_err(CommandFailure::running)?;
    let followed = ends::follow(&cluster.directory, &cluster.name).context("no thread");
    followed.map_err(CommandFailure::running)?;
    let ended = |pause| node_ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
    report.cluster = directory.file().name.clone();
    let random = u64::from_be_bytes(random()?);
    let mut agent = Agent::new(&directory, &cluster.name, key, random);
    let verdicts = start_verdicts(&directory).context("no thread");
    let (ask_again, verdicts) = verdicts.map_err(CommandFailure::running)?;
    let refused = placements::start(config, &directory, |control| commands::ask(control).ok())
        .context("no thread");
    let refused = refused.map_err(CommandFailure::running)?;
    let mut was_present = false;
    loop {
        // Another directory, of another cluster perhaps, is another agent's.
        let found = ClusterDirectory::open(&cluster.directory).map(|it| it.file().id.clone());
        if found.as_ref().ok() != Some(&directory.file().id) {
            let text = format!("{:?} has been replaced", cluster.directory);
            return Err(CommandFailure::running(anyhow!(text)));
        }
        let status = commands::ask(&config.control).ok();
        let view = status.map(|status| view::of(status, cluster, &refused.lock()));
        let round = agent.round(view.as_ref());
        note(&mut report, &detail(&round));
        let is_present = round == AgentRound::Present;
        if is_present && !was_present {
            // A verdict of before says that this node is away.
            let _ = ask_again.try_send(());
            report.verdict.clear();
            report.problems.clear();
            verdicts.try_iter().for_each(drop);
        }
        was_present = is_present;
        if let Some((verdict, problems)) = verdicts.try_iter().last() {
            (report.verdict, report.problems) = (verdict.word().to_owned(), problems);
        }
        let pause = if is_present { ROUND } else { ROUND_AWAY };
        if tell(&report).is_err() || ended(pause) {
            break;
        }
    }
    // The end of the node's process is told first.
    let _ = node_ended.recv();
    // An error is no news: the presence ends by itself.
    let _ = agent.leave();
    Ok(())
}

/// Gives up all files but those of the cluster's directory, and of a registry in a file.
fn restrict(
    config: &Config,
    cluster: &ClusterConfig,
    directory: &ClusterDirectory,
) -> Result<(), CommandFailure> {
    let kept = config.placements_directory();
    // Without it the node has no placed volumes, and each of them says so.
    if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(&kept) {
        tracing::error!(path = %kept.display(), %error, "placed volumes cannot be kept");
    }
    let mut directories = vec![&*cluster.directory, &*kept];
    if let RegistryPlace::File(path) = &directory.file().registry {
        directories.push(path);
        know_boot().context("the system has no id of its boot").map_err(CommandFailure::running)?;
    }
    node::agent::restrict(config, &directories).map_err(CommandFailure::running)
}

/// Passes the node's questions on, and tells when the node's process has ended, after `prove` was
/// given the lives that have ended with it. Ends this process if it has not ended soon after.
fn listen_to_node(
    questions: SyncSender<RecordQuestion>,
    prove: impl FnOnce(CopyLives) + Send + 'static,
) -> io::Result<Receiver<()>> {
    let (sender, ended) = channel();
    let listen = move || {
        let lives = hear_node(&questions);
        let end = || {
            std::thread::sleep(END_TIME_MAX);
            std::process::exit(0);
        };
        if std::thread::Builder::new().name("end".to_owned()).spawn(end).is_ok() {
            prove(lives);
        }
        drop(sender);
        std::thread::sleep(LEAVE);
        std::process::exit(0);
    };
    std::thread::Builder::new().name("node".to_owned()).spawn(listen)?;
    Ok(ended)
}

/// Passes the node's questions on until it says nothing more. Gives the lives that it told last.
fn hear_node(questions: &SyncSender<RecordQuestion>) -> CopyLives {
    let mut node = BufReader::new(io::stdin().lock());
    let mut lives = CopyLives::new();
    loop {
        let mut line = Vec::new();
        match (&mut node).take(AGENT_LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => return lives,
            // The node has left a report unread: all that it said was read before.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return lives,
            // The lines after that are not known, so no life is.
            Err(_) => return CopyLives::new(),
            Ok(_) => {}
        }
        match serde_json::from_slice(&line) {
            // A question beyond those that wait has no answer, which is an unknown outcome.
            Ok(NodeLine::Question(question)) => _ = questions.try_send(question),
            Ok(NodeLine::Lives(told)) => lives = told,
            // Also the rest of a line that another agent has begun to read.
            Err(_) => {}
        }
    }
}

/// Reports to the node. An error means that the node has ended.
fn tell(report: &NodeClusterStatus) -> io::Result<()> {
    records::say(&AgentLine::Report(report.clone()))
}

/// Notes why the node is away, or that it is present, and logs what is new.
fn note(report: &mut NodeClusterStatus, detail: &str) {
    let state = if detail.is_empty() { "present" } else { "away" };
    if (&*report.state, &*report.detail) == (state, &*begin_of(detail)) {
        return;
    }
    match detail {
        "" => tracing::info!("the node is present in the cluster's registry"),
        detail => tracing::warn!("the node is away for its cluster: {detail}"),
    }
    (report.state, report.detail) = (state.to_owned(), begin_of(detail));
}

/// The beginning of a text: the errors of a library and of the system have no bound.
fn begin_of(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// Why the node is away; empty if it is not.
fn detail(round: &AgentRound) -> String {
    match round {
        AgentRound::Present => String::new(),
        AgentRound::NodeSilent => "the node does not answer at its control socket".to_owned(),
        AgentRound::Elsewhere(text) | AgentRound::NotKept(text) => text.clone(),
    }
}

/// A way to ask for a verdict at once, and the verdicts with the problems of the whole cluster.
type Verdicts = (SyncSender<()>, Receiver<(ClusterVerdict, Vec<String>)>);

/// Asks for the state of the whole cluster again and again, on a thread of its own: a member of
/// etcd that does not answer may hold this up for longer than a presence lasts.
fn start_verdicts(directory: &ClusterDirectory) -> io::Result<Verdicts> {
    let (sender, verdicts) = sync_channel(1);
    let (ask_again, asked) = sync_channel(1);
    let directory = directory.clone();
    let ask = move || {
        loop {
            let (verdict, problems) = match status(&directory, now_s()) {
                Ok(found) => (found.verdict, found.problems),
                Err(error) => (ClusterVerdict::Away, vec![error.to_string()]),
            };
            let problems = problems.iter().take(PROBLEMS_MAX).map(|it| begin_of(it)).collect();
            if sender.send((verdict, problems)).is_err() {
                return;
            }
            if asked.recv_timeout(VERDICT) == Err(RecvTimeoutError::Disconnected) {
                return;
            }
        }
    };
    std::thread::Builder::new().name("verdicts".to_owned()).spawn(ask)?;
    Ok((ask_again, verdicts))
}
