//! `vrio bench replicas`.

use std::path::PathBuf;

use anyhow::Context;
use bench::replicas::{BenchRegistry, ReplicaEvent, ReplicasOptions};
use clap::ValueEnum;

use crate::failure::CommandFailure;
use crate::results::{self, ToldArgs};

pub(super) const EXAMPLES: &str = "Examples:
  vrio bench replicas                                  two copies, each event five times
  vrio bench replicas --folder /dev/shm                pools in memory: the price of the way alone
  vrio bench replicas --seconds 0 --event kill-primary --rounds 100
  vrio bench replicas --copies 3 --event move --mtu 9000 --json | jq '.pauses[] | .pauses_ms'
  vrio bench replicas --volumes 100 --event kill-primary --event kill-backup --seconds 0
  vrio bench replicas --registry etcd --event kill-host --event kill-host-with-leader --seconds 0
Sessions are sealed. All nodes are on this machine, in network namespaces if root runs it. The guest
is a stand-in that checks what it reads; a request that fails is an error here.";

/// Rounds and seconds unless said, and with --quick.
const ROUNDS: [u16; 2] = [5, 3];
const SECONDS: [f64; 2] = [1.0, 0.2];

#[derive(Debug, clap::Args)]
pub(crate) struct ReplicasArgs {
    /// Copies of each volume: 2 or 3.
    #[arg(long, default_value_t = 2)]
    copies: u16,
    /// Volumes with copies, of which all but two have no work.
    #[arg(long, default_value_t = 2)]
    volumes: u16,
    /// How often requests are measured, in turn, and each event happens (default: 5, or 3 with
    /// --quick).
    #[arg(long)]
    rounds: Option<u16>,
    /// Seconds of each measurement of requests, or 0 for none (default: 1, or 0.2 with --quick).
    #[arg(long)]
    seconds: Option<f64>,
    /// The event; may be given several times (default: each event).
    #[arg(long = "event", value_enum)]
    events: Vec<EventArg>,
    /// Measure requests alone: no event happens.
    #[arg(long, conflicts_with = "events")]
    no_events: bool,
    /// The directory for the pools' files: 512 MiB for each copy, or 4 GiB with more than 100
    /// volumes. In memory (tmpfs), requests cost what the way to the copies costs.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/tmp")]
    folder: PathBuf,
    /// The longest packet of the virtual cables.
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    mtu: u32,
    /// Connect the nodes by the loopback device, also where network namespaces are allowed.
    #[arg(long, conflicts_with = "mtu")]
    loopback: bool,
    /// The registry: a file, or a member of etcd on each of three IOhosts; the member on the
    /// primary's host does not lead, but for kill-host-with-leader.
    #[arg(long, value_enum, default_value = "file")]
    registry: RegistryArg,
    /// Run few and short rounds, as a trial.
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    pub(super) told: ToldArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EventArg {
    /// The node that serves gets SIGKILL.
    KillPrimary,
    /// The node that serves stands still (SIGSTOP) until another node serves.
    HaltPrimary,
    /// The node that serves is stopped in order.
    StopPrimary,
    /// `vrio volume move` has another node serve.
    Move,
    /// A node that does not serve gets SIGKILL.
    KillBackup,
    /// The node that serves, its agent and its host's member of etcd get SIGKILL.
    KillHost,
    /// The same where that member leads etcd.
    KillHostWithLeader,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RegistryArg {
    /// A file of this machine.
    File,
    /// Three members of etcd.
    Etcd,
}

impl From<RegistryArg> for BenchRegistry {
    fn from(registry: RegistryArg) -> Self {
        match registry {
            RegistryArg::File => Self::File,
            RegistryArg::Etcd => Self::Etcd,
        }
    }
}

impl From<EventArg> for ReplicaEvent {
    fn from(event: EventArg) -> Self {
        match event {
            EventArg::KillPrimary => Self::KillPrimary,
            EventArg::HaltPrimary => Self::HaltPrimary,
            EventArg::StopPrimary => Self::StopPrimary,
            EventArg::Move => Self::Move,
            EventArg::KillBackup => Self::KillBackup,
            EventArg::KillHost => Self::KillHost,
            EventArg::KillHostWithLeader => Self::KillHostWithLeader,
        }
    }
}

impl ReplicasArgs {
    /// Measures, and prints or saves the report.
    pub(super) fn run(&self) -> Result<(), CommandFailure> {
        let options = self.options().map_err(CommandFailure::configuration)?;
        options.check().map_err(CommandFailure::configuration)?;
        let report = bench::replicas::run(&options).map_err(CommandFailure::running)?;
        results::report(&report, &self.told)
    }

    fn options(&self) -> anyhow::Result<ReplicasOptions> {
        let said = self.events.iter().map(|event| ReplicaEvent::from(*event));
        let (usual, registry) = (usize::from(self.quick), self.registry.into());
        Ok(ReplicasOptions {
            program: std::env::current_exe().context("finding this program")?,
            copies: self.copies,
            volumes: self.volumes,
            rounds: self.rounds.unwrap_or(ROUNDS[usual]),
            seconds: self.seconds.unwrap_or(SECONDS[usual]),
            events: match (self.no_events, self.events.is_empty()) {
                (true, _) => Vec::new(),
                (_, true) => ReplicaEvent::of(registry),
                _ => said.collect(),
            },
            folder: self.folder.clone(),
            mtu: self.mtu,
            loopback: self.loopback,
            registry,
        })
    }
}
