//! The results: one JSON object, or a table like the slide's.

use std::fmt;

use serde::Serialize;

use super::patterns::{JobLayout, Scheme};
use super::{ConnectionPattern, Connections, Goal};
use testbed::machine::Machine;

/// Connections of a job's processes, of one pattern by one transport.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// The pattern of communication.
    pub pattern: ConnectionPattern,
    /// The name of the transport.
    pub transport: String,
    /// Whether the connections are counted on live sessions, and not by a rule.
    pub is_ours: bool,
    /// The most peers that a process has.
    pub peers_max: usize,
    /// Connections of a process, on average; zero with vrio.
    pub per_process: f64,
    /// The most connections of one process.
    pub per_process_max: f64,
    /// Connections of all processes of a host, on average; of vrio, sessions of its node.
    pub per_host: f64,
    /// The most connections of one host.
    pub per_host_max: f64,
    /// The messages that went from one host to another by vrio's sessions.
    pub messages: usize,
}

fn mean(counts: &[usize]) -> f64 {
    counts.iter().sum::<usize>() as f64 / counts.len().max(1) as f64
}

fn most(counts: &[usize]) -> usize {
    counts.iter().copied().max().unwrap_or(0)
}

impl Line {
    /// Connections by a transport's rule.
    pub(super) fn of_rule(job: &JobLayout, pattern: ConnectionPattern, scheme: Scheme) -> Self {
        let of = |process| {
            let peers = pattern.peers(process, job.all());
            scheme.connections(job, process, &peers)
        };
        let each: Vec<_> = (0..job.all()).map(of).collect();
        let hosts: Vec<usize> = each.chunks(job.processes).map(|it| it.iter().sum()).collect();
        Self {
            transport: scheme.name(),
            is_ours: false,
            per_process: mean(&each),
            per_process_max: most(&each) as f64,
            ..Self::of_hosts(job, pattern, &hosts)
        }
    }

    /// Sessions of each host, by which so many messages went.
    pub(super) fn of_sessions(
        job: &JobLayout,
        pattern: ConnectionPattern,
        sessions: &[usize],
        messages: usize,
    ) -> Self {
        Self { messages, ..Self::of_hosts(job, pattern, sessions) }
    }

    fn of_hosts(job: &JobLayout, pattern: ConnectionPattern, hosts: &[usize]) -> Self {
        let peers = (0..job.all()).map(|it| pattern.peers(it, job.all()).len());
        Self {
            pattern,
            transport: "vrio".to_owned(),
            is_ours: true,
            peers_max: peers.max().unwrap_or(0),
            per_process: 0.0,
            per_process_max: 0.0,
            per_host: mean(hosts),
            per_host_max: most(hosts) as f64,
            messages: 0,
        }
    }
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hosts, processes) = (self.asked.hosts, self.asked.processes);
        writeln!(f, "{hosts} hosts of {processes} processes")?;
        let heads = ["peers", "of a process", "at most", "of a host", "at most"];
        let [peers, process, process_most, host, host_most] = heads;
        writeln!(
            f,
            "  {:12}{:26}{peers:>8}{process:>14}{process_most:>9}{host:>11}{host_most:>9}",
            "pattern", "transport"
        )?;
        self.lines.iter().try_for_each(|line| line.fmt(f))?;
        writeln!(f, "{RULES}\n")?;
        self.memory(f)?;
        writeln!(f, "goals")?;
        self.goals.iter().try_for_each(|goal| goal.fmt(f))?;
        let Machine { cores, processor, kernel, .. } = &self.machine;
        let build = self.machine.build();
        writeln!(f, "\n{cores} cores, {processor}, Linux {kernel}; vrio {build}")
    }
}

const RULES: &str = "\
Of vrio: sessions that were counted, of nodes in this process by which every process sent a message
to each of its peers; a node has them with the peers of its domains, here those hosts that have
anything to say to each other, and processes share them and have none. The others by
their rules from the same patterns: RC leads to a process of another host, XRC to another host,
VM-XRC to another VM, also of the own host, VM-proof XRC to a host, the own one among them (another
VM of it). By the slides' formulas, (N-1)*C, N-1, (N-1)*(C/CV) and N-1 of a process, that last step
within a host is missing; their own measurement of FT fits N*C/CV - 1 of VM-XRC and N of VM-proof
XRC, as here.";

impl Connections {
    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (memory, cluster) = (&self.memory, &self.extrapolation);
        let of_sessions = &memory.of_sessions;
        writeln!(
            f,
            "{} live sessions of one endpoint, sealed, after 1 MiB each way: {:.1} MB resident, \
             {:.0} bytes each ({:.0} of them tables)",
            of_sessions.sessions,
            of_sessions.resident_bytes as f64 / 1e6,
            of_sessions.session_bytes,
            of_sessions.tables_bytes
        )?;
        writeln!(
            f,
            "of 8 nodes and 128 endpoints, after 1 MiB to each neighbour and 10 times 8 KiB to \
             every endpoint: {:.0} bytes of an endpoint in its domain's memory, {:.1} of a process \
             for each endpoint elsewhere, {:.0} of a gateway for each host; {:.1} in a process's \
             vector for each address",
            memory.endpoint_bytes,
            memory.remote_bytes,
            memory.link_bytes,
            memory.vector_bytes as f64 / (cluster.hosts * cluster.processes) as f64
        )?;
        writeln!(
            f,
            "EXTRAPOLATED to {} hosts of {} processes, all of which talk to all: a host has {} \
             sessions, {:.1} MB; its processes' address vectors {:.1} MB, what they and gateways \
             know of others {:.1} MB, endpoints {:.1} MB: {:.1} MB in all",
            cluster.hosts,
            cluster.processes,
            cluster.sessions,
            cluster.sessions_mb,
            cluster.vectors_mb,
            cluster.order_mb,
            cluster.endpoints_mb,
            cluster.total_mb
        )?;
        writeln!(
            f,
            "  by the slides, 12 KB for each connection: VM-proof XRC {:.0} MB, VM-XRC with one \
             core in a VM {:.0} MB\n",
            cluster.vm_proof_xrc_mb, cluster.vm_xrc_mb
        )
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {:12}{:26}{:>8}{:>14.1}{:>9.0}{:>11.1}{:>9.0}",
            self.pattern.name(),
            self.transport,
            self.peers_max,
            self.per_process,
            self.per_process_max,
            self.per_host,
            self.per_host_max
        )
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, found, at_most, standing } = self;
        writeln!(f, "  {standing:14}{text}: {found:.1} <= {at_most:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FT's rows of the slide, of a host: 2032, 1014, 498, 242 and 128.
    #[test]
    fn a_hosts_connections_are_those_of_its_processes() {
        let job = JobLayout { hosts: 8, processes: 16 };
        let of = |scheme| Line::of_rule(&job, ConnectionPattern::AllToAll, scheme);
        let slide = [(1, 2032.0), (2, 1008.0), (4, 496.0), (8, 240.0)];
        for (cores, host) in slide {
            let line = of(Scheme::VmXrc(cores));
            assert_eq!((line.per_host, line.per_host_max, line.peers_max), (host, host, 127));
        }
        assert_eq!((of(Scheme::VmProofXrc).per_host, of(Scheme::Xrc).per_host), (128.0, 112.0));
        let ours = Line::of_sessions(&job, ConnectionPattern::AllToAll, &[7; 8], 9);
        assert_eq!((ours.per_process, ours.per_host, ours.messages), (0.0, 7.0, 9));
        assert!(ours.is_ours);
    }
}
