//! `vrio attach` and `vrio detach`: the direct client.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use direct::{
    AttachPeer, AttachPlan, DIRECTORY_DEFAULT, DirectError, DirectStatus, Home, Idle, PlanError,
    Shape,
};
use node::config::LinkKind;
use node::logging::{self, LogFormat};

use crate::failure::CommandFailure;
use crate::{output, tables};

const NS_PER_S: u64 = 1_000_000_000;

/// Where nodes have their memory, and the file of each with the nodes of placed volumes.
const MEMORY: &str = "/var/lib/vrio";
const PLACEMENTS: &str = "own.cluster/placements.json";

pub(crate) const ATTACH_EXAMPLES: &str = "Examples:
  vrio attach io1/alice-root --peer 10.0.0.9:4870 \\
      --key /etc/vrio/web1.key --peer-key \"$(cat io1.pub)\"     prints /dev/ublkb0
  vrio attach io1/alice-root --peer 127.0.0.1:4870            a plain session, on one machine
  vrio attach io1,io2/alice --peer 10.0.0.1:4870,10.0.0.2:4870 \\
      --key /etc/vrio/web1.key --peer-key \"$IO1,$IO2\"         a volume with copies on both
  vrio attach alice --name web1 --key /etc/vrio/web1.key      a volume of `vrio volume create`
  vrio attach --list                                          what is attached here
  vrio attach --list --json | jq '.[].counters'

The disk of a volume with copies goes on when another node serves it. A volume that the cluster has
placed is named alone where a node of the cluster runs that has a copy of it, or is in its --allow:
the client has the nodes from this node's memory, also when they change.

After the client's process was killed, the same command continues with the same disk: programs that
use the disk have only waited. The command needs root, and a kernel with ublk (6.5 or later).";

pub(crate) const DETACH_EXAMPLES: &str = "Examples:
  umount /mnt && vrio detach io1/alice-root
  vrio detach /dev/ublkb0
  vrio detach /dev/ublkb0 --force      also while programs use it: their requests fail";

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum LinkArg {
    Udp,
    Xdp,
    /// AF_XDP where the card reads and writes memory itself, UDP elsewhere.
    Auto,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AttachArgs {
    /// The node's name and the volume's name; the nodes' names, "io1,io2/alice", of a volume with
    /// copies; or the name alone of a volume that the cluster has placed.
    #[arg(value_name = "NODE/VOLUME", required_unless_present = "list")]
    volume: Option<String>,
    /// The address at which the node listens, for each node in their order; for a node of this
    /// machine also its socket, shm:PATH.
    #[arg(long = "peer", value_name = "HOST:PORT", value_delimiter = ',')]
    peers: Vec<String>,
    /// Of a volume that is named alone: the file with its nodes in the memory of a node of this
    /// machine [default: own.cluster/placements.json of the only node in /var/lib/vrio].
    #[arg(long, value_name = "FILE", conflicts_with = "peers")]
    placements: Option<PathBuf>,
    /// This client's name in the node's `[[peer]]` and in the volume's `allow`
    /// [default: this machine's host name].
    #[arg(long)]
    name: Option<String>,
    /// The file of this client's secret key (`vrio key new`): the session is sealed.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// The node's public key, for each node in their order: `vrio key show` prints it on the node's
    /// host.
    #[arg(long = "peer-key", value_name = "KEY", requires = "key", value_delimiter = ',')]
    peer_keys: Vec<String>,
    /// Without a key: trust every packet that reaches this machine's address.
    #[arg(long, conflicts_with = "key")]
    trust_network: bool,
    /// The attachment's name in the volume's records [default: this client's name].
    #[arg(long, value_name = "NAME")]
    attachment: Option<String>,
    /// The file of the secret key that proves the attachment's owner.
    #[arg(long, value_name = "FILE")]
    attachment_key: Option<PathBuf>,
    /// Queues of the disk.
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// How many requests each queue takes at once.
    #[arg(long, default_value_t = 128)]
    depth: u16,
    /// How the polling thread waits for work: spin, adaptive or sleep.
    #[arg(long, default_value = "adaptive")]
    idle: Idle,
    /// The way of datagrams: through the network stack, or past it (AF_XDP).
    #[arg(long, value_enum, default_value_t = LinkArg::Udp)]
    link: LinkArg,
    /// The core of the polling thread [default: any].
    #[arg(long)]
    core: Option<usize>,
    /// End the attachment that uses the volume now: its client's requests fail from then on.
    #[arg(long)]
    take_over: bool,
    /// Continue although acknowledged writes that were not flushed may be lost.
    #[arg(long)]
    accept_loss: bool,
    /// Fail requests after the node was unreachable for so long [default: they wait].
    #[arg(long, value_name = "SECONDS")]
    error_after: Option<u64>,
    /// Stay in the foreground, for a service manager; the disk's path is printed once it exists.
    #[arg(long)]
    foreground: bool,
    /// List this machine's attached disks.
    #[arg(long, conflicts_with_all = ["volume", "peers", "key"])]
    list: bool,
    /// Print the list as JSON, with all counters.
    #[arg(long, requires = "list")]
    json: bool,
    /// The directory of the records of this machine's clients.
    #[arg(long, value_name = "DIRECTORY", default_value = DIRECTORY_DEFAULT)]
    directory: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DetachArgs {
    /// The volume, or the disk's device.
    #[arg(value_name = "NODE/VOLUME|DEVICE")]
    target: String,
    /// Also while programs use the disk or the node does not answer: their requests fail.
    #[arg(long)]
    force: bool,
    /// The directory of the records of this machine's clients.
    #[arg(long, value_name = "DIRECTORY", default_value = DIRECTORY_DEFAULT)]
    directory: PathBuf,
}

/// `vrio attach`.
pub(crate) fn attach(args: &AttachArgs) -> Result<(), CommandFailure> {
    if args.list {
        return list(args);
    }
    let plan = plan(args).map_err(refused)?;
    if !args.foreground {
        return in_background(&plan);
    }
    logging::start(LogFormat::Human);
    direct::run(plan, |device, _| {
        // The process that started this client may have closed its output. The disk is there all
        // the same.
        let _ = output::print(&format!("{device}\n"));
    })
    .map_err(refused)
}

/// `vrio detach`.
pub(crate) fn detach(args: &DetachArgs) -> Result<(), CommandFailure> {
    let done = direct::detach(&args.directory, &args.target, args.force);
    let (device, closed) = done.map_err(refused)?;
    let how = if closed { "" } else { " (its client was gone: its attachment was not closed)" };
    output::print(&format!("{device} is detached{how}\n"))
}

fn refused(error: DirectError) -> CommandFailure {
    match error {
        DirectError::Plan(_) | DirectError::Key(_) => CommandFailure::configuration(error),
        error => CommandFailure::running(error),
    }
}

/// The file with the nodes of a volume that is named alone.
fn placements(args: &AttachArgs) -> Result<PathBuf, DirectError> {
    if let Some(path) = &args.placements {
        return Ok(path.clone());
    }
    let found = std::fs::read_dir(MEMORY).into_iter().flatten().flatten();
    let found = found.map(|it| it.path().join(PLACEMENTS)).filter(|path| path.is_file());
    let mut found: Vec<_> = found.collect();
    if found.len() == 1 {
        return Ok(found.remove(0));
    }
    let volume = args.volume.as_deref().unwrap_or_default();
    let count = found.len();
    Err(DirectError::Plan(PlanError::Words(format!(
        "{volume:?} names no node, and {count} nodes of a cluster have their memory in {MEMORY}: \
         write NODE/VOLUME with --peer, or name the file {PLACEMENTS} in the memory of a node by \
         --placements"
    ))))
}

/// The absolute path: the client in the background has another working directory.
fn absolute(path: &Path) -> Result<PathBuf, DirectError> {
    std::path::absolute(path).map_err(|source| DirectError::Files { path: path.to_owned(), source })
}

fn plan(args: &AttachArgs) -> Result<AttachPlan, DirectError> {
    let volume = AttachPlan::volume_of(args.volume.as_deref().unwrap_or_default())?;
    let placements = match volume.is_placed && args.peers.is_empty() {
        true => Some(placements(args)?),
        false => None,
    };
    let keys = &args.peer_keys;
    if placements.is_some() && !keys.is_empty() {
        let text = format!("--peer-key: {volume} names no node, and its nodes' keys are known");
        return Err(PlanError::Words(text).into());
    }
    if !keys.is_empty() && keys.len() != volume.peers.len() {
        let (volume, nodes) = (volume.to_string(), volume.peers.len());
        let (option, given) = ("--peer-key", keys.len());
        return Err(PlanError::Count { volume, nodes, option, given }.into());
    }
    let peer = |(at, address): (usize, &String)| {
        let key = keys.get(at).map(|key| key.trim().to_owned());
        AttachPeer { address: address.clone(), key }
    };
    let name = args.name.clone().unwrap_or_else(direct::host_name);
    let plan = AttachPlan {
        volume,
        peers: args.peers.iter().enumerate().map(peer).collect(),
        placements,
        key: args.key.as_deref().map(absolute).transpose()?,
        trust_network: args.trust_network,
        attachment: args.attachment.clone().unwrap_or_else(|| name.clone()),
        name,
        attachment_key: args.attachment_key.as_deref().map(absolute).transpose()?,
        shape: Shape { queues: args.queues, depth: args.depth },
        idle: args.idle,
        link: match args.link {
            LinkArg::Udp => LinkKind::Udp,
            LinkArg::Xdp => LinkKind::Xdp,
            LinkArg::Auto => LinkKind::Auto,
        },
        core: args.core,
        take_over: args.take_over,
        accept_loss: args.accept_loss,
        error_after_ns: args.error_after.map(|seconds| seconds.saturating_mul(NS_PER_S)),
        directory: args.directory.clone(),
    };
    plan.check()?;
    Ok(plan)
}

/// Runs this very command again, in the foreground of a process of its own, and waits until it has
/// printed the disk's path.
fn in_background(plan: &AttachPlan) -> Result<(), CommandFailure> {
    let home = Home::new(&plan.directory, &plan.volume).map_err(refused)?;
    let mut log = open_log(&home).map_err(CommandFailure::running)?;
    let begin = log.seek(SeekFrom::End(0)).context("the log").map_err(CommandFailure::running)?;
    let mut client = spawn(&log).map_err(CommandFailure::running)?;
    let mut line = String::new();
    let out = client.stdout.take().expect("it was asked for");
    // A client that ends without a line is reported below.
    let _ = BufReader::new(out).read_line(&mut line);
    if !line.is_empty() {
        return output::print(&line);
    }
    let ended = client.wait().context("waiting for the client").map_err(CommandFailure::running)?;
    let mut said = String::new();
    let _ = log.seek(SeekFrom::Start(begin)).and_then(|_| log.read_to_string(&mut said));
    let why = said.rsplit_once("vrio: ").map_or(said.trim(), |(_, why)| why.trim());
    let error = anyhow!("{why}");
    Err(match ended.code() {
        Some(2) => CommandFailure::configuration(error),
        _ => CommandFailure::running(error),
    })
}

fn open_log(home: &Home) -> anyhow::Result<File> {
    let path = home.log();
    let log = File::options().create(true).append(true).read(true).open(&path);
    log.with_context(|| format!("opening {}", path.display()))
}

fn spawn(log: &File) -> anyhow::Result<std::process::Child> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--foreground");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log.try_clone()?);
    // The client has a process group of its own: this terminal's ^C must not end it.
    command.process_group(0);
    command.spawn().context("starting the client")
}

fn list(args: &AttachArgs) -> Result<(), CommandFailure> {
    let all = direct::list(&args.directory).map_err(refused)?;
    if args.json {
        let text = serde_json::to_string_pretty(&all).expect("numbers and names");
        return output::print(&format!("{text}\n"));
    }
    output::print(&show(&all))
}

fn show(all: &[DirectStatus]) -> String {
    if all.is_empty() {
        return "no disk is attached here\n".to_owned();
    }
    tables::attached(all)
}
