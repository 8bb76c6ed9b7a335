//! `vrio bench`.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use bench::block::{self, LinkKind, Options, Path, Volume};
use bench::load::Pattern;
use bench::measure::Waiting;
use clap::{Subcommand, ValueEnum};
use node::direct::Idle;

use crate::{Failure, commands};

pub(crate) const BENCH_EXAMPLES: &str = "Examples:
  vrio bench block                                     a local disk, null volume, depth 1
  vrio bench block --path remote --depth 32 --json | jq .iops";

pub(crate) const BLOCK_EXAMPLES: &str = "Examples:
  vrio bench block --depth 32 --idle spin              how fast a ring is polled
  vrio bench block --path remote --volume memory       through two nodes, sealed
  vrio bench block --path direct --volume memory --encrypt off --depth 32
  vrio bench block --volume file:/var/tmp/bench.img --op randwrite --depth 32
  vrio bench block --path socket /run/spdk/vhost.0     whoever serves that socket
Everything on the disk is overwritten. Without root, `remote` and `direct` use the loopback
device instead of two network namespaces.";

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Measure a virtual disk: throughput, latency, events and processor time per request.
    #[command(after_help = BLOCK_EXAMPLES)]
    Block(Box<BlockArgs>),
}

#[derive(Debug, clap::Args)]
pub(crate) struct BlockArgs {
    /// The way to the disk: local, remote, direct, or socket and a path.
    #[arg(long, num_args = 1..=2, value_names = ["WAY", "PATH"], default_value = "local")]
    path: Vec<String>,
    /// What stands behind it: null, memory or file:PATH.
    #[arg(long, default_value = "null")]
    volume: String,
    /// Which requests.
    #[arg(long, value_enum, default_value_t = Op::Randread)]
    op: Op,
    /// Bytes of every request, such as 512, 4k or 1m.
    #[arg(long, default_value = "4k", value_parser = size)]
    size: u32,
    /// Requests outstanding, of each job.
    #[arg(long, default_value_t = 1)]
    depth: u16,
    /// Queues of the disk, each driven by a thread.
    #[arg(long, default_value_t = 1)]
    jobs: u16,
    /// How sessions travel.
    #[arg(long, value_enum, default_value_t = LinkArg::Udp)]
    link: LinkArg,
    /// Whether sessions are sealed.
    #[arg(long, value_enum, default_value_t = Switch::On)]
    encrypt: Switch,
    /// Sidecores of each node.
    #[arg(long, default_value_t = 1)]
    sidecores: u16,
    /// What sidecores do without work: spin, adaptive or sleep.
    #[arg(long, default_value = "adaptive")]
    idle: Idle,
    /// How the driver learns of completions.
    #[arg(long, value_enum, default_value_t = Driver::Polls)]
    driver: Driver,
    /// Packed rings instead of split ones.
    #[arg(long)]
    packed: bool,
    /// How long is measured.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// The process behind `--path socket`, for its processor time.
    #[arg(long)]
    pid: Option<u32>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Op {
    Randread,
    Randwrite,
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinkArg {
    Udp,
    Shm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Driver {
    /// It looks all the time.
    Polls,
    /// It sleeps until it is called, as a guest does.
    Sleeps,
}

/// Runs a measurement and prints it.
pub(crate) fn bench(command: &BenchCommand) -> Result<(), Failure> {
    let BenchCommand::Block(args) = command;
    let options = options(args).map_err(Failure::configuration)?;
    options.check().map_err(Failure::configuration)?;
    let report = block::run(&options).map_err(Failure::running)?;
    if args.json {
        let json = serde_json::to_string_pretty(&report).context("the report as JSON");
        return commands::print(&format!("{}\n", json.map_err(Failure::running)?));
    }
    commands::print(&report.to_string())
}

fn options(args: &BlockArgs) -> anyhow::Result<Options> {
    let program = std::env::current_exe().context("finding this program")?;
    let words: Vec<_> = args.path.iter().map(String::as_str).collect();
    Ok(Options {
        path: match words[..] {
            ["local"] => Path::Local,
            ["remote"] => Path::Remote,
            ["direct"] => Path::Direct,
            ["socket", path] => Path::Socket(PathBuf::from(path)),
            _ => {
                let said = words.join(" ");
                return Err(anyhow!("--path {said}: local, remote, direct or socket PATH"));
            }
        },
        volume: match (args.volume.as_str(), args.volume.strip_prefix("file:")) {
            ("null", _) => Volume::Null,
            ("memory", _) => Volume::Memory,
            (_, Some(path)) => Volume::File(PathBuf::from(path)),
            (other, None) => return Err(anyhow!("--volume {other}: null, memory or file:PATH")),
        },
        op: match args.op {
            Op::Randread => Pattern::RandRead,
            Op::Randwrite => Pattern::RandWrite,
            Op::Read => Pattern::Read,
            Op::Write => Pattern::Write,
        },
        size_bytes: args.size,
        depth: args.depth,
        jobs: args.jobs,
        link: match args.link {
            LinkArg::Udp => LinkKind::Udp,
            LinkArg::Shm => LinkKind::Shm,
        },
        encrypt: args.encrypt == Switch::On,
        sidecores: args.sidecores,
        idle: args.idle,
        driver: match args.driver {
            Driver::Polls => Waiting::Polls,
            Driver::Sleeps => Waiting::Sleeps,
        },
        packed: args.packed,
        seconds: args.seconds,
        pid: args.pid,
        ..Options::new(program)
    })
}

/// Bytes, with k or m for 1024 and its square.
fn size(words: &str) -> Result<u32, String> {
    let lower = words.to_ascii_lowercase();
    let bare = lower.trim_end_matches("ib").trim_end_matches('b');
    let (digits, unit) = match bare.strip_suffix('k') {
        Some(digits) => (digits, 1 << 10),
        None => bare.strip_suffix('m').map_or((bare, 1), |digits| (digits, 1 << 20)),
    };
    let count: u32 = digits.parse().map_err(|_| "such as 512, 4k or 1m".to_owned())?;
    count.checked_mul(unit).ok_or_else(|| "more than a request can have".to_owned())
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
