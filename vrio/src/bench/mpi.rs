//! `vrio bench mpi`.

use std::path::PathBuf;

use anyhow::ensure;
use compare::mpi::{HostSessions, Hosts, JoinedNode, MpiOptions};
use direct::Idle;
use testbed::stage::Offloads;

use super::args::{LinkArg, Switch, TurnArgs, offloads};

pub(super) const EXAMPLES: &str = "Examples:
  vrio bench mpi --quick                               every MPI in PATH, every way that it has
  vrio bench mpi --mpi /opt/mpich --validate           another MPI as well; every byte is checked
  vrio bench mpi --way 'shared memory' --case '8 B' --rounds 9
  vrio bench mpi --json | jq '.goals[] | [.goal, .standing]'
  vrio bench mpi --osu /opt/osu/libexec                the OSU programs instead of our own
  vrio bench mpi --hosts 2 --quick                     every way of each MPI between two hosts
Cases: 'latency', 'bandwidth', 'both ways', 'message rate', 'all-to-all', 'all-reduce', each with
its sizes. The unit is MB/s for bandwidth and both ways, else messages or operations per second.
p50 and p99 are of a message in one direction for latency, else of a window of 64 messages or of
one operation. A node with a domain is started for the measurement, unless --control names one.
MPIs are found in PATH (Debian: openmpi-bin, libopenmpi-dev) and by --mpi; our own program is built
by the mpicc of each. Contests are named after the MPIs: --contest 'Open MPI'.
Two hosts are two network namespaces, joined by a virtual cable, which takes root and iproute2. Each
has a node, half of the ranks, and half of the cores for the ranks and the node's sidecore.";

/// How long each case unless said, and with --quick.
const CASE_SECONDS: [f64; 2] = [0.2, 0.05];

#[derive(Debug, clap::Args)]
pub(crate) struct MpiArgs {
    #[command(flatten)]
    pub(super) turns: TurnArgs,
    /// The directory of another MPI, which has bin/mpicc and bin/mpirun.
    #[arg(long = "mpi", value_name = "PREFIX")]
    prefixes: Vec<PathBuf>,
    /// Run the OSU micro-benchmarks in or below this directory instead of our own program, with the
    /// MPI that they were built for. They take their own time.
    #[arg(long, value_name = "DIRECTORY")]
    osu: Option<PathBuf>,
    /// Measure only vrio and the ways with these words in their name.
    #[arg(long, value_name = "WORDS")]
    way: Option<String>,
    /// Ranks of the collective cases, an even number (default: the number of cores).
    #[arg(long)]
    ranks: Option<u16>,
    /// Check every byte of some messages of each kind before the measurement.
    #[arg(long)]
    validate: bool,
    /// The control socket of a running node, whose domain is used.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// The node's domain; not needed if the node has only one.
    #[arg(long, value_name = "NAME", requires = "control")]
    domain: Option<String>,
    /// How many hosts the ranks are spread over: 1, or 2 (network namespaces).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,
    /// With --hosts 2: the link of sessions, udp or xdp (default: udp).
    #[arg(long, value_enum)]
    link: Option<LinkArg>,
    /// With --hosts 2: whether sessions are sealed (default: off; other ways are in clear).
    #[arg(long, value_enum)]
    encrypt: Option<Switch>,
    /// With --hosts 2: the longest packet of the virtual cable.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// With --hosts 2: the groups that the ends of that cable take uncut: all, tcp or none
    /// (default: all).
    #[arg(long, value_parser = offloads())]
    offloads: Option<Offloads>,
    /// With --hosts 2: how sidecores wait for work (default: adaptive); use spin where each rank
    /// and each sidecore has a core.
    #[arg(long)]
    idle: Option<Idle>,
}

impl MpiArgs {
    pub(super) fn options(&self) -> anyhow::Result<MpiOptions> {
        let running = self.control.clone();
        let hosts = self.hosts()?;
        Ok(MpiOptions {
            plan: self.turns.plan(CASE_SECONDS)?,
            prefixes: self.prefixes.clone(),
            osu: self.osu.clone(),
            ranks: self.ranks,
            validate: self.validate,
            way: self.way.clone(),
            running: running.map(|control| JoinedNode { control, domain: self.domain.clone() }),
            hosts,
        })
    }

    /// Refuses options that have no meaning on one host.
    fn hosts(&self) -> anyhow::Result<Hosts> {
        let Self { link, encrypt, mtu, offloads, idle, .. } = *self;
        if self.hosts == 2 {
            let (link, encrypt) = (link.unwrap_or(LinkArg::Udp), encrypt == Some(Switch::On));
            let idle = idle.unwrap_or_default();
            let offloads = offloads.unwrap_or_default();
            let link = link.into();
            return Ok(Hosts::Two(HostSessions { link, encrypt, mtu, offloads, idle }));
        }
        let options = [
            ("--link", link.is_some()),
            ("--encrypt", encrypt.is_some()),
            ("--mtu", mtu.is_some()),
            ("--offloads", offloads.is_some()),
            ("--idle", idle.is_some()),
        ];
        for (option, said) in options {
            ensure!(!said, "{option} needs two nodes: add --hosts 2, or drop the option");
        }
        Ok(Hosts::One)
    }
}
