//! `vrio bench connections`: the number of connections that a job's processes have, and their cost
//! for a host. Compared are the transports of InfiniBand, natively and in virtual machines, and
//! vrio.
//!
//! Connections of the other transports are counted by their rules, from the pairs of processes that
//! communicate. Sessions of vrio are counted on nodes that run in this process, each on its own
//! address. The peers of a node's domain are the hosts that its processes communicate with, and
//! every message of the pattern must have arrived. The memory of the large cluster, which a slide
//! on VM-proof XRC describes, is calculated from sessions, endpoints and gateways that have carried
//! messages.

mod cluster;
mod figures;
mod hosts;
mod memory;
mod patterns;
mod report;

use anyhow::{Result, ensure};
use bench::verdict::GoalState;
use serde::Serialize;

use testbed::cleanup::tidily;
use testbed::machine::Machine;
use testbed::progress::Progress;

pub use memory::{Extrapolation, MeasuredMemory};
pub use patterns::ConnectionPattern;
pub use report::Line;

use cluster::Cluster;
use patterns::{JobLayout, Scheme};

/// The version of the JSON form.
const CONNECTIONS_VERSION: u32 = 2;

/// The most hosts, and the most processes of each: all pairs of processes are looked at.
const HOSTS_MAX: u16 = 64;
const PROCESSES_MAX: u16 = 64;

/// The most sessions that are measured: an endpoint accepts no more peers.
const SESSIONS_MAX: u16 = 1000;

/// Bytes of the message that each process sends to each of its peers while connections are counted.
const MESSAGE_BYTES: usize = 8;

/// Cores of a virtual machine, as the slide has them.
const CORES_PER_VM: [u16; 4] = [1, 2, 4, 8];

/// The options of `vrio bench connections`.
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
    /// Looks whether the options make sense.
    ///
    /// # Errors
    /// The option that makes no sense.
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

    fn job(&self) -> JobLayout {
        JobLayout { hosts: self.hosts.into(), processes: self.processes.into() }
    }
}

/// A goal, and whether it holds.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// The goal in words.
    pub text: String,
    /// The number that was found.
    pub found: f64,
    /// The largest number that keeps the goal.
    pub at_most: f64,
    /// Whether the goal holds.
    pub standing: GoalState,
}

impl Goal {
    fn of(text: String, found: f64, at_most: f64) -> Self {
        let holds = found <= at_most;
        let standing = if holds { GoalState::Holds } else { GoalState::DoesNotHold };
        Self { text, found, at_most, standing }
    }
}

/// Everything that was counted and measured.
#[derive(Clone, Debug, Serialize)]
pub struct Connections {
    /// The version of this form.
    pub version: u32,
    /// The options of this run.
    pub asked: Options,
    /// The results, by pattern, then by transport.
    pub lines: Vec<Line>,
    /// The memory of sessions, endpoints and gateways.
    pub memory: MeasuredMemory,
    /// The needs of a host in a large cluster.
    pub extrapolation: Extrapolation,
    /// The goals of vrio.
    pub goals: Vec<Goal>,
    /// The machine.
    pub machine: Machine,
}

/// Counts and measures. The progress goes to standard error, if that is a terminal.
///
/// # Errors
/// When sessions are not established.
pub fn run(options: &Options) -> Result<Connections> {
    let progress = Progress::quiet();
    tidily(&progress, |_| {
        progress.doing(format!("{} live sessions, 1 MiB each way", options.sessions));
        // Sessions are measured first. The other measurements leave free memory behind, which
        // sessions could reuse.
        let sessions = memory::sessions(options.sessions)?;
        let most = memory::JOB_MAX;
        let asked = options.job();
        let (hosts, processes) = (asked.hosts.min(most.hosts), asked.processes.min(most.processes));
        let endpoints = hosts * processes;
        progress.doing(format!("{hosts} nodes, {endpoints} endpoints, 1 MiB to each neighbour"));
        let memory = memory::measure(sessions, &JobLayout { hosts, processes })?;
        let mut lines = Vec::new();
        for pattern in ConnectionPattern::ALL {
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
fn lines_of(pattern: ConnectionPattern, options: &Options) -> Result<Vec<Line>> {
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
