//! `vrio bench`.

mod all;
mod args;
mod copies;
mod failover;
mod models;
mod mpi;
mod net;
mod replicas;
mod tools;

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use bench::block::floor::{self, FloorOptions};
use bench::block::{self, BlockOptions, ChainStage, Path, Volume};
use bench::load::LoadPattern;
use bench::measure::Reuse;
use bench::scale;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};
use compare::account::{self, AccountOptions, AccountPlane};
use direct::Idle;
use testbed::pair::PairLink;
use testbed::stage::Offloads;

use self::args::{
    BenchDriver, LinkArg, PairLinkArgs, Switch, TURN_SECONDS, TurnArgs, offloads, size, volume,
};
use crate::failure::CommandFailure;
use crate::results::{self, ToldArgs};

pub(crate) const BENCH_EXAMPLES: &str = "Examples:
  vrio bench block                                     a local disk, null volume, depth 1
  vrio bench block --path remote --depth 32 --json | jq .iops
  vrio bench block --save && vrio results show latest  save the result, and show it";

pub(crate) const BLOCK_EXAMPLES: &str = "Examples:
  vrio bench block --depth 32 --idle spin              a local disk that is polled all the time
  vrio bench block --path remote --volume memory       through two nodes, sealed
  vrio bench block --path direct --volume memory --encrypt off --depth 32
  vrio bench block --volume memory --chain encrypt     a volume that is stored encrypted
  vrio bench block --volume file:/var/tmp/bench.img --op randwrite --depth 32
  vrio bench block --volume pool:/var/tmp/bench.pool --op zipfwrite --depth 32 --collect
  vrio bench block --path socket /run/spdk/vhost.0     another program's vhost-user server
Everything on the disk is overwritten. Without root, `remote` and `direct` use the loopback
device instead of two network namespaces. docs/measuring.md says which system calls are counted
for a request.";

pub(crate) const SCALE_EXAMPLES: &str = "Examples:
  vrio bench scale                                     local disks, null volumes
  vrio bench scale --volume memory --depth 32 --json | jq '.series[1].points[].report.iops'
Where cores are shared, only processor time and events per request are meaningful.";

pub(crate) const CONNECTIONS_EXAMPLES: &str = "Examples:
  vrio bench connections                               128 processes on 8 hosts
  vrio bench connections --hosts 32 --sidecores 2 --json | jq '.lines[] | select(.is_ours)'";

pub(crate) const FLOOR_EXAMPLES: &str = "Examples:
  vrio bench floor                                     the parts of a read over UDP
  vrio bench floor --link shm --rounds 9 --json
Two threads are busy at a time: the figures need at least two cores.";

pub(crate) const ACCOUNT_EXAMPLES: &str = "Examples:
  vrio bench account                                   disks, cards and TCP, MTU 1500 and 9000
  vrio bench account --plane disk --plane tcp --mtu 1500
  vrio bench account --json | jq '.rows[] | [.unit, .mtu, .sender.messages]'
It takes root, which makes a virtual cable between two network namespaces. The cable hands groups of
packets over uncut. docs/measuring.md says what each column counts.";

pub(crate) const COMPARE_EXAMPLES: &str = "Examples:
  vrio bench compare block --quick                     disks: every peer that is installed
  vrio bench compare store --quick                     ways to keep a disk: the same
  vrio bench compare net --quick                       network cards: the same
  vrio bench compare replicas --quick                  a disk that two hosts keep, in guests
The goals come last. Each holds, does not hold, or is undecided (its bound lies within the spread of
the rounds, or the cores' speed changed). A goal that was not measured names the missing program.";

pub(crate) const COMPARE_BLOCK_EXAMPLES: &str = "Examples:
  vrio bench compare block                             every peer that is installed
  vrio bench compare block --quick                     with short rounds
  vrio bench compare block --contest local --case 'depth 1' --rounds 9
  vrio bench compare block --contest remote --mtu 1500 --encrypt on
  vrio bench compare block --spdk /usr/src/spdk --contest direct --json
Peers: qemu-storage-daemon, nbdkit and fio (Debian: qemu-utils, nbdkit, fio), SPDK where it was
built. SPDK's huge pages are made (by root) and given back. A server named with --socket must leave
the last core to the driver; its disk is overwritten. Contests are 'null', 'local, memory', 'memory
file', 'O_DIRECT', 'page cache', 'remote', 'direct', and 'ours', whose figures no peer has. Hosts of
'remote' and 'direct' are network namespaces that a virtual cable joins.";

pub(crate) const COMPARE_STORE_EXAMPLES: &str = "Examples:
  vrio bench compare store                             every side that this machine has
  vrio bench compare store --quick --json | jq '.goals[] | [.goal, .standing]'
  vrio bench compare store --contest 'in a file' --case randwrite --folder /mnt/nvme
Sides: a disk in a pool (vrio store), in a file (vrio file), in a raw and a qcow2 file by
qemu-storage-daemon (Debian: qemu-utils), and in a file on XFS and btrfs, which root makes in files
and mounts (Debian: xfsprogs, btrfs-progs). All are around the page cache. Contests are 'in a file',
'after a snapshot', and 'ours', whose figures no peer has: 80 % full, before and after a snapshot.";

pub(crate) const COMPARE_NET_EXAMPLES: &str = "Examples:
  vrio bench compare net                               every peer that is installed
  vrio bench compare net --quick --json | jq '.goals[] | [.goal, .standing]'
  vrio bench compare net --case '64 B' --rounds 9      cases: '1500 B', '64 KiB', 'there and back'
Peers: DPDK's testpmd and Open vSwitch with DPDK (Debian: dpdk-dev, openvswitch-switch-dpdk), for
which root makes 1.1 GB of huge pages and gives them back; the kernel's taps and bridge, which root
makes in a network namespace. Our driver uses two vhost-user sockets of each peer; of the taps, one
thread writes and reads the descriptors.";

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure a virtual disk: throughput, latency, events and processor time per request.
    #[command(after_help = BLOCK_EXAMPLES)]
    Block(Box<BlockArgs>),
    /// Measure the parts of a remote read: a bare echo, the cipher, the volume without a network.
    #[command(after_help = FLOOR_EXAMPLES)]
    Floor(FloorArgs),
    /// Count the events of a unit of work at both ends of a cable, beside the kernel's TCP.
    #[command(after_help = ACCOUNT_EXAMPLES)]
    Account(AccountArgs),
    /// Measure vrio and other programs for the same task in turn, and print the ratios.
    #[command(subcommand, after_help = COMPARE_EXAMPLES)]
    Compare(CompareCommand),
    /// Measure the traffic between two guests' network cards.
    #[command(after_help = net::EXAMPLES)]
    Net(Box<net::NetArgs>),
    /// Measure MPI's messages by vrio's provider and by every other way, in turn.
    #[command(after_help = mpi::EXAMPLES)]
    Mpi(mpi::MpiArgs),
    /// Measure the pauses that a guest sees when nodes are killed or replaced.
    #[command(after_help = failover::EXAMPLES)]
    Failover(failover::FailoverArgs),
    /// Measure the price of copies on several nodes, and a guest's pauses when such a node goes.
    #[command(after_help = replicas::EXAMPLES)]
    Replicas(replicas::ReplicasArgs),
    /// Run every benchmark for a short while, save the results, and write a page of them.
    #[command(after_help = all::EXAMPLES)]
    All(all::AllArgs),
    /// Measure the I/O models side by side: events of a request, latency, throughput, cores.
    #[command(after_help = models::EXAMPLES)]
    Models(models::ModelsArgs),
    /// Count the connections of an MPI job's processes, with InfiniBand's transports and with vrio,
    /// and measure the memory of sessions.
    #[command(after_help = CONNECTIONS_EXAMPLES)]
    Connections(ConnectionsArgs),
    /// Measure throughput and the cost of a request with more sidecores, queues and guests.
    #[command(after_help = SCALE_EXAMPLES)]
    Scale(ScaleArgs),
}

impl BenchCommand {
    /// The options for printing and saving a report, of the commands that can save one.
    fn told(&self) -> Option<&ToldArgs> {
        match self {
            Self::Block(args) => Some(&args.told),
            Self::Net(args) => Some(&args.told),
            Self::Mpi(args) => Some(&args.turns.told),
            Self::Compare(CompareCommand::Block(args)) => Some(&args.turns.told),
            Self::Compare(CompareCommand::Store(args)) => Some(&args.turns.told),
            Self::Compare(CompareCommand::Net(args)) => Some(&args.turns.told),
            Self::Compare(CompareCommand::Replicas(args)) => Some(&args.turns.told),
            Self::Connections(args) => Some(&args.told),
            Self::Scale(args) => Some(&args.told),
            Self::Models(args) => Some(&args.told),
            Self::Failover(args) => Some(&args.told),
            Self::Replicas(args) => Some(&args.told),
            Self::Floor(args) => Some(&args.told),
            Self::Account(args) => Some(&args.told),
            Self::All(_) => None,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum CompareCommand {
    /// Virtual disks, local and remote.
    #[command(after_help = COMPARE_BLOCK_EXAMPLES)]
    Block(CompareBlockArgs),
    /// Ways to keep a disk: in a pool, in a file, in qcow2, on other file systems.
    #[command(after_help = COMPARE_STORE_EXAMPLES)]
    Store(CompareStoreArgs),
    /// Network cards of two guests on one host.
    #[command(after_help = COMPARE_NET_EXAMPLES)]
    Net(CompareNetArgs),
    /// A disk that two hosts keep: by vrio, by md-raid1 over NVMe/TCP, by DRBD.
    #[command(after_help = copies::EXAMPLES)]
    Replicas(copies::CompareReplicasArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareStoreArgs {
    #[command(flatten)]
    turns: TurnArgs,
    /// How vrio's sidecores wait for work; the other programs poll.
    #[arg(long, default_value = "spin")]
    idle: Idle,
    /// The directory of all files, on the disk that is measured. It needs 6 GiB.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    folder: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareNetArgs {
    #[command(flatten)]
    turns: TurnArgs,
    /// How vrio's sidecores wait for work; the other programs poll.
    #[arg(long, default_value = "spin")]
    idle: Idle,
}

#[derive(Debug, clap::Args)]
pub(crate) struct CompareBlockArgs {
    #[command(flatten)]
    turns: TurnArgs,
    /// How vrio's sidecores wait for work; the other programs poll.
    #[arg(long, default_value = "spin")]
    idle: Idle,
    /// Whether vrio's sessions are sealed; the other programs' traffic is in clear.
    #[arg(long, value_enum, default_value_t = Switch::Off)]
    encrypt: Switch,
    /// Which slots and descriptors the driver takes next and what it stores, for all contestants.
    #[arg(long, value_enum, default_value_t = ReuseArg::InOrder)]
    reuse: ReuseArg,
    /// The longest packets of the virtual cables to disks of another host; each has a contest of
    /// its own (default: 1500 and 9000; without root the loopback device).
    #[arg(long = "mtu", value_name = "BYTES", value_delimiter = ',')]
    mtus: Vec<u32>,
    /// The groups that the ends of the cables take uncut: of TCP and UDP (all), of TCP (tcp), none.
    #[arg(long, value_parser = offloads(), default_value = Offloads::All.name())]
    offloads: Offloads,
    /// Connect the hosts by the loopback device, whose packets are 64 KiB: no network is like that.
    #[arg(long, conflicts_with = "mtus")]
    loopback: bool,
    /// The directory for files in memory (tmpfs).
    #[arg(long, value_name = "DIRECTORY", default_value = "/dev/shm")]
    folder: PathBuf,
    /// The directory for files on a disk, which are opened without the page cache (O_DIRECT).
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    disk_folder: PathBuf,
    /// The directory in which SPDK was built (it has build/bin), unless its programs are in PATH.
    #[arg(long, value_name = "DIRECTORY")]
    spdk: Option<PathBuf>,
    /// A qemu-storage-daemon of another version, besides the one in PATH.
    #[arg(long = "storage-daemon", value_name = "PROGRAM")]
    storage_daemons: Vec<PathBuf>,
    /// A running vhost-user-blk server, which is compared with a null volume.
    #[arg(long = "socket", value_name = "NAME=PATH", value_parser = named_socket)]
    sockets: Vec<(String, PathBuf)>,
}

impl CompareBlockArgs {
    /// The longest packets of the cables; none for the loopback device.
    fn cables(&self) -> Vec<u32> {
        match &self.mtus[..] {
            [] if self.loopback || !rustix::process::geteuid().is_root() => Vec::new(),
            [] => vec![1500, 9000],
            mtus => mtus.to_vec(),
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct ConnectionsArgs {
    /// Hosts of the job.
    #[arg(long, default_value_t = 8)]
    hosts: u16,
    /// Processes on each host.
    #[arg(long, default_value_t = 16)]
    processes: u16,
    /// Sidecores of each host's node.
    #[arg(long, default_value_t = 1)]
    sidecores: u16,
    /// Live sessions whose memory is measured.
    #[arg(long, default_value_t = 1000)]
    sessions: u16,
    #[command(flatten)]
    told: ToldArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScaleArgs {
    /// The volumes' backend: null or memory.
    #[arg(long, default_value = "null")]
    volume: String,
    /// Requests outstanding on each queue.
    #[arg(long, default_value_t = 8)]
    depth: u16,
    /// How long each point is measured.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    #[command(flatten)]
    told: ToldArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FloorArgs {
    /// How sessions travel: UDP on the loopback device, or shared memory.
    #[arg(long, value_enum, default_value_t = LinkArg::Udp)]
    link: LinkArg,
    /// Bytes of every read.
    #[arg(long, default_value = "4k", value_parser = size)]
    size: u32,
    /// How often each part is measured, in turn.
    #[arg(long, default_value_t = 5)]
    rounds: u16,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    #[command(flatten)]
    told: ToldArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AccountArgs {
    /// Count this alone: disk, card or tcp. May be given several times [default: all].
    #[arg(long = "plane", value_name = "PLANE", value_parser = account_plane())]
    planes: Vec<AccountPlane>,
    /// The longest packet of a cable. May be given several times.
    #[arg(long = "mtu", value_name = "BYTES", default_values_t = account::MTUS)]
    mtus: Vec<u32>,
    /// The groups that the ends of the cables take uncut: of TCP and UDP (all), of TCP (tcp), none.
    #[arg(long, value_parser = offloads(), default_value = Offloads::All.name())]
    offloads: Offloads,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    #[command(flatten)]
    told: ToldArgs,
}

impl AccountArgs {
    fn run(&self) -> Result<(), CommandFailure> {
        let program = std::env::current_exe().context("finding this program");
        let all = self.planes.is_empty();
        let options = AccountOptions {
            program: program.map_err(CommandFailure::running)?,
            planes: if all { AccountPlane::ALL.to_vec() } else { self.planes.clone() },
            mtus: self.mtus.clone(),
            offloads: self.offloads,
            seconds: self.seconds,
        };
        options.check().map_err(CommandFailure::configuration)?;
        let report = account::run(&options).map_err(CommandFailure::running)?;
        results::report(&report, &self.told)
    }
}

/// The names of an account's subjects.
fn account_plane() -> impl TypedValueParser<Value = AccountPlane> {
    PossibleValuesParser::new(AccountPlane::ALL.map(AccountPlane::name)).map(|name| {
        let named = AccountPlane::ALL.into_iter().find(|plane| plane.name() == name);
        named.expect("one of the names")
    })
}

#[derive(Debug, clap::Args)]
pub(crate) struct BlockArgs {
    /// The way to the disk: local, remote, direct, bare (no node: the volume on the driver's
    /// thread), or socket and a path.
    #[arg(long, num_args = 1..=2, value_names = ["WAY", "PATH"], default_value = "local")]
    path: Vec<String>,
    /// The volume's backend: null, memory, file:PATH, direct:PATH for a file without the page
    /// cache (O_DIRECT), or pool:PATH for a volume of a pool in that file, which is made if it is
    /// missing.
    #[arg(long, default_value = "null")]
    volume: String,
    /// Measure a pool once more while it is 80 % full and collects, and print both latencies.
    #[arg(long)]
    collect: bool,
    /// A stage of the volume's chain: meter, or encrypt, which encrypts the stored data (--encrypt
    /// is about sessions). May be given several times, in the order of the chain.
    #[arg(long, value_parser = chain_stage(), value_name = "STAGE")]
    chain: Vec<ChainStage>,
    /// The kind of requests.
    #[arg(long, value_enum, default_value_t = BenchOp::Randread)]
    op: BenchOp,
    /// Bytes of every request, such as 512, 4k or 1m.
    #[arg(long, default_value = "4k", value_parser = size)]
    size: u32,
    /// Requests outstanding of each job.
    #[arg(long, default_value_t = 1)]
    depth: u16,
    /// Requests a second of all jobs together, due at equal distances; latency counts from then on
    /// (default: as many as the depth lets through).
    #[arg(long)]
    iops: Option<u32>,
    /// Queues of each disk.
    #[arg(long, default_value_t = 1)]
    jobs: u16,
    /// Disks of one node, each with a volume of its own.
    #[arg(long, default_value_t = 1)]
    guests: u16,
    #[command(flatten)]
    meeting: PairLinkArgs,
    /// Sidecores of each node (default: 1).
    #[arg(long)]
    sidecores: Option<u16>,
    /// How sidecores wait for work: spin, adaptive or sleep (default: adaptive).
    #[arg(long)]
    idle: Option<Idle>,
    /// How the driver learns of completions.
    #[arg(long, value_enum, default_value_t = BenchDriver::Polls)]
    driver: BenchDriver,
    /// Packed rings instead of split ones.
    #[arg(long)]
    packed: bool,
    /// Which slots and descriptors the driver takes next, and what it stores.
    #[arg(long, value_enum, default_value_t = ReuseArg::InOrder)]
    reuse: ReuseArg,
    /// Seconds of the measurement.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The processes behind `--path socket`, for their processor time.
    #[arg(long)]
    pid: Vec<u32>,
    #[command(flatten)]
    told: ToldArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BenchOp {
    Randread,
    Randwrite,
    /// Random writes of which few places have most (Zipf, exponent 1).
    Zipfwrite,
    Read,
    Write,
}

/// The parser of a stage's name: the stages that can be measured, from their table.
fn chain_stage() -> impl TypedValueParser<Value = ChainStage> {
    let values = block::stages().map(|stage| PossibleValue::new(stage.name).help(stage.about));
    PossibleValuesParser::new(values).map(|name| {
        block::stages().find(|stage| stage.name == name).expect("it is a possible value")
    })
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReuseArg {
    /// The slots that were free for longest; only fields that change are stored.
    InOrder,
    /// The slots that came back last; all fields are stored, as Linux's virtio_blk does.
    AsLinux,
}

impl From<ReuseArg> for Reuse {
    fn from(reuse: ReuseArg) -> Self {
        match reuse {
            ReuseArg::InOrder => Self::InOrder,
            ReuseArg::AsLinux => Self::AsLinux,
        }
    }
}

/// Runs a measurement and prints it.
pub(crate) fn bench(command: &BenchCommand) -> Result<(), CommandFailure> {
    command.told().map_or(Ok(()), results::check_save)?;
    match command {
        BenchCommand::Block(args) => {
            let options = block_options(args).map_err(CommandFailure::configuration)?;
            options.check().map_err(CommandFailure::configuration)?;
            let tight = BlockOptions { collects: args.collect, ..options.clone() };
            tight.check().map_err(CommandFailure::configuration)?;
            let report = match args.collect {
                true => block::run_collecting(&options),
                false => block::run(&options),
            };
            results::report(&report.map_err(CommandFailure::running)?, &args.told)
        }
        BenchCommand::Net(args) => {
            let options = args.options().map_err(CommandFailure::configuration)?;
            options.check().map_err(CommandFailure::configuration)?;
            let report = bench::net::run(&options).map_err(CommandFailure::running)?;
            results::report(&report, &args.told)
        }
        BenchCommand::Floor(args) => {
            let program = std::env::current_exe().context("finding this program");
            let options = FloorOptions {
                program: program.map_err(CommandFailure::running)?,
                link: args.link.into(),
                size_bytes: args.size,
                rounds: args.rounds,
                seconds: args.seconds,
            };
            options.check().map_err(CommandFailure::configuration)?;
            let report = floor::run(&options).map_err(CommandFailure::running)?;
            results::report(&report, &args.told)
        }
        BenchCommand::Account(args) => args.run(),
        BenchCommand::Compare(command) => compare(command),
        BenchCommand::Mpi(args) => {
            let options = args.options().map_err(CommandFailure::configuration)?;
            options.check().map_err(CommandFailure::configuration)?;
            let report = compare::mpi::run(&options).map_err(CommandFailure::running)?;
            results::report(&report, &args.turns.told)
        }
        BenchCommand::Failover(args) => {
            let options = args.options().map_err(CommandFailure::configuration)?;
            options.check().map_err(CommandFailure::configuration)?;
            let report = bench::failover::run(&options).map_err(CommandFailure::running)?;
            results::report(&report, &args.told)
        }
        BenchCommand::Replicas(args) => args.run(),
        BenchCommand::All(args) => all::all(args),
        BenchCommand::Models(args) => args.run(),
        BenchCommand::Connections(args) => {
            let ConnectionsArgs { hosts, processes, sidecores, sessions, ref told } = *args;
            let options = connections::Options { hosts, processes, sidecores, sessions };
            options.check().map_err(CommandFailure::configuration)?;
            results::report(&connections::run(&options).map_err(CommandFailure::running)?, told)
        }
        BenchCommand::Scale(args) => {
            let program = std::env::current_exe().context("finding this program");
            let options = scale::ScaleOptions {
                program: program.map_err(CommandFailure::running)?,
                volume: volume(&args.volume).map_err(CommandFailure::configuration)?,
                depth: args.depth,
                seconds: args.seconds,
            };
            options.check().map_err(CommandFailure::configuration)?;
            results::report(&scale::run(&options).map_err(CommandFailure::running)?, &args.told)
        }
    }
}

fn compare(command: &CompareCommand) -> Result<(), CommandFailure> {
    match command {
        CompareCommand::Block(args) => {
            let turns = &args.turns;
            let options = compare::block::DisksOptions {
                plan: turns.plan(TURN_SECONDS).map_err(CommandFailure::running)?,
                idle: args.idle,
                encrypt: args.encrypt == Switch::On,
                reuse: args.reuse.into(),
                cables: args.cables(),
                offloads: args.offloads,
                folder: args.folder.clone(),
                disk_folder: args.disk_folder.clone(),
                spdk: args.spdk.clone(),
                storage_daemons: args.storage_daemons.clone(),
                sockets: args.sockets.clone(),
            };
            options.check().map_err(CommandFailure::configuration)?;
            let report = compare::block::run(&options).map_err(CommandFailure::running)?;
            results::report(&report, &turns.told)
        }
        CompareCommand::Store(CompareStoreArgs { turns, idle, folder }) => {
            let plan = turns.plan(TURN_SECONDS).map_err(CommandFailure::running)?;
            let (idle, folder) = (*idle, folder.clone());
            let options = compare::store::StoreOptions { plan, idle, folder };
            options.check().map_err(CommandFailure::configuration)?;
            let report = compare::store::run(&options).map_err(CommandFailure::running)?;
            results::report(&report, &turns.told)
        }
        CompareCommand::Net(CompareNetArgs { turns, idle }) => {
            let plan = turns.plan(TURN_SECONDS).map_err(CommandFailure::running)?;
            let options = compare::net::CardsOptions { plan, idle: *idle };
            options.check().map_err(CommandFailure::configuration)?;
            let report = compare::net::run(&options).map_err(CommandFailure::running)?;
            results::report(&report, &turns.told)
        }
        CompareCommand::Replicas(args) => args.run(),
    }
}

/// A name and a path.
fn named_socket(words: &str) -> Result<(String, PathBuf), String> {
    let parts = words.split_once('=').filter(|(name, path)| !name.is_empty() && !path.is_empty());
    let (name, path) = parts.ok_or("write NAME=PATH, such as spdk=/run/spdk/vhost.0")?;
    if name.starts_with("vrio") {
        return Err("names that begin with vrio are taken by vrio's own results".to_owned());
    }
    Ok((name.to_owned(), PathBuf::from(path)))
}

fn block_path(words: &[String]) -> anyhow::Result<Path> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    Ok(match words[..] {
        ["local"] => Path::Local,
        ["remote"] => Path::Remote,
        ["direct"] => Path::Direct,
        ["bare"] => Path::Bare,
        ["socket", path] => Path::Socket(PathBuf::from(path)),
        _ => {
            let said = words.join(" ");
            return Err(anyhow!(
                "--path {said}: it must be local, remote, direct, bare, or socket PATH"
            ));
        }
    })
}

/// Refuses options that have no meaning for this path: the user expects an effect of each.
fn check_said(args: &BlockArgs, path: &Path, volume: &Volume) -> anyhow::Result<()> {
    let meets = matches!(path, Path::Remote | Path::Direct);
    args.meeting.check(meets, "--path remote or --path direct")?;
    if !matches!(path, Path::Socket(_)) {
        return Ok(());
    }
    let said = [("--sidecores", args.sidecores.is_some()), ("--idle", args.idle.is_some())];
    if let Some((option, _)) = said.into_iter().find(|(_, said)| *said) {
        return Err(anyhow!("{option}: the socket's server runs already; drop the option"));
    }
    if volume.file().is_some() {
        return Err(anyhow!(
            "--volume {volume}: the socket's server has its own volume; drop the option, or use \
             --volume memory to write the whole disk before it is read"
        ));
    }
    Ok(())
}

fn block_options(args: &BlockArgs) -> anyhow::Result<BlockOptions> {
    let program = std::env::current_exe().context("finding this program")?;
    let (path, volume) = (block_path(&args.path)?, volume(&args.volume)?);
    check_said(args, &path, &volume)?;
    let PairLink { link, encrypt, loopback, mtu, offloads } = args.meeting.into();
    let usual = BlockOptions::new(program);
    Ok(BlockOptions {
        path,
        volume,
        chain: args.chain.clone(),
        op: match args.op {
            BenchOp::Randread => LoadPattern::RandRead,
            BenchOp::Randwrite => LoadPattern::RandWrite,
            BenchOp::Zipfwrite => LoadPattern::ZipfWrite,
            BenchOp::Read => LoadPattern::Read,
            BenchOp::Write => LoadPattern::Write,
        },
        size_bytes: args.size,
        depth: args.depth,
        jobs: args.jobs,
        guests: args.guests,
        link,
        encrypt,
        sidecores: args.sidecores.unwrap_or(usual.sidecores),
        idle: args.idle.unwrap_or(usual.idle),
        driver: args.driver.into(),
        packed: args.packed,
        reuse: args.reuse.into(),
        seconds: args.seconds,
        iops: args.iops,
        pids: args.pid.clone(),
        loopback,
        mtu,
        offloads,
        ..usual
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        let read = |words| size(words).unwrap();
        assert_eq!(["512", "4k", "64KiB", "1m"].map(read), [512, 4096, 65536, 1 << 20]);
        assert!(["", "k", "4g", "9999999m"].into_iter().all(|words| size(words).is_err()));
    }
}
