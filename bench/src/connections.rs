//! `vrio bench connections`: how many connections a job's processes have, and what they cost a
//! host: by the transports of InfiniBand, natively and in virtual machines, and by vrio.
//!
//! The others are counted by their rules, from who talks to whom. Ours are counted from nodes that
//! run in this process, each on its own address, with a domain whose peers are the hosts that its
//! processes talk to, and from which every message of the pattern has come where it was sent. The
//! memory at the size that a slide of VM-proof XRC speaks of is worked out from what sessions,
//! endpoints and gateways take that have carried something.

mod cluster;
mod hosts;
mod memory;
mod patterns;
mod report;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::verdict::Standing;
use testbed::cleanup::tidily;
use testbed::machine::Machine;
use testbed::progress::Progress;

pub use memory::{Extrapolation, Memory};
pub use patterns::Pattern;
pub use report::Line;

use cluster::Cluster;
use patterns::{Job, Scheme};

/// The version of the JSON form.
const CONNECTIONS_VERSION: u32 = 2;

/// Hosts and processes of each, at most: all pairs of processes are looked at.
const HOSTS_MAX: u16 = 64;
const PROCESSES_MAX: u16 = 64;

/// Sessions that are measured, at most: an endpoint lets so many peers in.
const SESSIONS_MAX: u16 = 1000;

/// What each process sends to each of its peers while connections are counted.
const MESSAGE_BYTES: usize = 8;

/// Cores of a virtual machine, as the slide has them.
const CORES_PER_VM: [u16; 4] = [1, 2, 4, 8];

/// What is asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// Hosts of the job.
    pub hosts: u16,
    /// Processes on each.
    pub processes: u16,
    /// Sidecores of each host's node.
    pub sidecores: u16,
    /// Live sessions whose memory is measured.
    pub sessions: u16,
}

impl Default for Options {
    /// The slide's cluster.
    fn default() -> Self {
        Self { hosts: 8, processes: 16, sidecores: 1, sessions: SESSIONS_MAX }
    }
}

impl Options {
    /// Looks whether it makes sense.
    ///
    /// # Errors
    /// What does not.
    pub fn check(&self) -> Result<()> {
        let Self { hosts, processes, sidecores, sessions } = *self;
        ensure!((2..=HOSTS_MAX).contains(&hosts), "--hosts {hosts}: from 2 to {HOSTS_MAX}");
        ensure!(
            (1..=PROCESSES_MAX).contains(&processes),
            "--processes {processes}: from 1 to {PROCESSES_MAX}"
        );
        ensure!((1..=16).contains(&sidecores), "--sidecores {sidecores}: from 1 to 16");
        let fewest = 10;
        ensure!(
            (fewest..=SESSIONS_MAX).contains(&sessions),
            "--sessions {sessions}: from {fewest} to {SESSIONS_MAX}, the most of one endpoint"
        );
        Ok(())
    }

    fn job(&self) -> Job {
        Job { hosts: self.hosts.into(), processes: self.processes.into() }
    }
}

/// A goal, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// What we mean to reach.
    pub text: String,
    /// What was found.
    pub found: f64,
    /// What it may be.
    pub at_most: f64,
    /// What is to be said.
    pub standing: Standing,
}

impl Goal {
    fn of(text: String, found: f64, at_most: f64) -> Self {
        let holds = found <= at_most;
        let standing = if holds { Standing::Holds } else { Standing::DoesNotHold };
        Self { text, found, at_most, standing }
    }
}

/// Everything that was counted and measured.
#[derive(Clone, Debug, Serialize)]
pub struct Connections {
    /// The version of this form.
    pub version: u32,
    /// What was asked for.
    pub asked: Options,
    /// By pattern, then by transport.
    pub lines: Vec<Line>,
    /// What sessions take.
    pub memory: Memory,
    /// What a host would need in a large cluster.
    pub extrapolation: Extrapolation,
    /// Ours.
    pub goals: Vec<Goal>,
    /// The machine.
    pub machine: Machine,
}

/// Counts and measures. Says on standard error what it does, on a terminal.
///
/// # Errors
/// When sessions do not come to be.
pub fn run(options: &Options) -> Result<Connections> {
    let progress = Progress::quiet();
    tidily(&progress, |_| {
        progress.doing(format!("{} live sessions, 1 MiB each way", options.sessions));
        // First: what follows would leave memory behind that sessions could take.
        let sessions = memory::sessions(options.sessions)?;
        progress.doing("8 nodes, 128 endpoints, 1 MiB to each neighbour".to_owned());
        let memory = memory::measure(sessions)?;
        let mut lines = Vec::new();
        for pattern in Pattern::ALL {
            progress.doing(format!("counting connections: {}", pattern.name()));
            lines.extend(lines_of(pattern, options)?);
        }
        let extrapolation = Extrapolation::of(&memory, options.sidecores);
        let goals = goals(options, &lines, &extrapolation);
        let machine = Machine::look();
        let asked = options.clone();
        let version = CONNECTIONS_VERSION;
        Ok(Connections { version, asked, lines, memory, extrapolation, goals, machine })
    })
}

/// A pattern by every transport.
fn lines_of(pattern: Pattern, options: &Options) -> Result<Vec<Line>> {
    let job = options.job();
    let vms = CORES_PER_VM.into_iter().filter(|cores| options.processes.is_multiple_of(*cores));
    let schemes = [Scheme::Rc, Scheme::Xrc].into_iter().chain(vms.map(Scheme::VmXrc));
    let mut lines: Vec<_> = schemes
        .chain([Scheme::VmProofXrc])
        .map(|scheme| Line::of_rule(&job, pattern, scheme))
        .collect();
    let mut cluster = Cluster::start(&job, &job.talking_hosts(pattern), options.sidecores)?;
    cluster.exchange(pattern, MESSAGE_BYTES)?;
    let messages = cluster.between_hosts(pattern);
    lines.push(Line::of_sessions(&job, pattern, &cluster.sessions(), messages));
    Ok(lines)
}

fn goals(options: &Options, lines: &[Line], extrapolation: &Extrapolation) -> Vec<Goal> {
    let most = lines.iter().filter(|line| line.is_ours).map(|line| line.per_host_max);
    let most = most.fold(0.0, f64::max);
    let Options { hosts, processes, sidecores, .. } = *options;
    let bound = f64::from(hosts - 1) * f64::from(sidecores);
    let total = u32::from(hosts) * u32::from(processes);
    vec![
        Goal::of(
            format!(
                "sessions of a host, {total} processes on {hosts} hosts, {sidecores} sidecores"
            ),
            most,
            bound,
        ),
        Goal::of(
            "MB of a host at 64 K processes on 4,096 hosts, extrapolated".to_owned(),
            extrapolation.total_mb,
            memory::GOAL_MB,
        ),
    ]
}
