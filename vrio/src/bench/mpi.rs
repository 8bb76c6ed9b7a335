//! `vrio bench mpi`.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use bench::compare::mpi::{Hosts, Options, Running, Together};
use direct::Idle;

use super::args::{LinkArg, Switch, TurnArgs};

pub(super) const EXAMPLES: &str = "Examples:
  vrio bench mpi --quick                               every MPI in PATH, every way that it has
  vrio bench mpi --mpi /opt/mpich --validate           another one as well; every byte looked at
  vrio bench mpi --way 'shared memory' --case '8 B' --rounds 9
  vrio bench mpi --json | jq '.goals[] | [.goal, .standing]'
  vrio bench mpi --osu /opt/osu/libexec                the OSU programs there instead of ours
  vrio bench mpi --hosts 2 --quick                     between two hosts: what each MPI has for that
Cases: 'latency', 'bandwidth', 'both ways', 'message rate', 'all-to-all', 'all-reduce', each with
its sizes. Of bandwidth both ways and one way MB/s are told, of the others messages or operations
per second; p50 and p99 are of a message one way for latency, else of a window of 64 messages or of
one operation. A node with a domain is started for the time, unless --control names one. MPIs are
found in PATH (Debian: openmpi-bin, libopenmpi-dev) and by --mpi; a program of ours is built for
each by its own mpicc. Contests are named after the MPIs: --contest 'Open MPI'.
Two hosts are two network namespaces, joined by a virtual cable, which takes root and iproute2. A
node runs in each; half of the ranks, and half of the cores for them and its sidecore.";

/// How long each case unless said, and with --quick.
const CASE_SECONDS: [f64; 2] = [0.2, 0.05];

#[derive(Debug, clap::Args)]
pub(crate) struct MpiArgs {
    #[command(flatten)]
    pub(super) turns: TurnArgs,
    /// Where another MPI is installed: bin/mpicc and bin/mpirun are there.
    #[arg(long = "mpi", value_name = "PREFIX")]
    prefixes: Vec<PathBuf>,
    /// Run the OSU micro-benchmarks in this folder, or below it, instead of our own program; with
    /// the MPI that they were built for, and as long as they take.
    #[arg(long, value_name = "DIRECTORY")]
    osu: Option<PathBuf>,
    /// Only ways with this in their name, besides vrio.
    #[arg(long, value_name = "WORDS")]
    way: Option<String>,
    /// Ranks of messages between all (as many as there are cores unless said); an even number.
    #[arg(long)]
    ranks: Option<u16>,
    /// Look at every byte of some messages of each kind before they are measured.
    #[arg(long)]
    validate: bool,
    /// The control socket of a node that runs already, whose domain is used.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Its domain; not needed where it has only one.
    #[arg(long, value_name = "NAME", requires = "control")]
    domain: Option<String>,
    /// Over how many hosts ranks are spread: 1, or 2 network namespaces.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    hosts: u8,
    /// With --hosts 2: how sessions travel, udp or xdp (udp unless said).
    #[arg(long, value_enum)]
    link: Option<LinkArg>,
    /// With --hosts 2: whether sessions are sealed (off unless said; the others talk in clear).
    #[arg(long, value_enum)]
    encrypt: Option<Switch>,
    /// With --hosts 2: the longest packet of the virtual cable.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// With --hosts 2: what sidecores do without work (adaptive unless said); spin where ranks and
    /// sidecores have a core each.
    #[arg(long)]
    idle: Option<Idle>,
}

impl MpiArgs {
    pub(super) fn options(&self) -> anyhow::Result<Options> {
        let running = self.control.clone();
        let hosts = self.hosts()?;
        Ok(Options {
            program: std::env::current_exe().context("finding this program")?,
            plan: self.turns.plan(CASE_SECONDS),
            prefixes: self.prefixes.clone(),
            osu: self.osu.clone(),
            ranks: self.ranks,
            validate: self.validate,
            way: self.way.clone(),
            running: running.map(|control| Running { control, domain: self.domain.clone() }),
            hosts,
        })
    }

    /// Refuses options that have no meaning on one host.
    fn hosts(&self) -> anyhow::Result<Hosts> {
        let Self { link, encrypt, mtu, idle, .. } = *self;
        if self.hosts == 2 {
            let (link, encrypt) = (link.unwrap_or(LinkArg::Udp), encrypt == Some(Switch::On));
            let idle = idle.unwrap_or_default();
            return Ok(Hosts::Two(Together { link: link.into(), encrypt, mtu, idle }));
        }
        let options = [
            ("--link", link.is_some()),
            ("--encrypt", encrypt.is_some()),
            ("--mtu", mtu.is_some()),
            ("--idle", idle.is_some()),
        ];
        for (option, said) in options {
            ensure!(!said, "{option} is about two nodes that meet: add --hosts 2, or drop it");
        }
        Ok(Hosts::One)
    }
}
