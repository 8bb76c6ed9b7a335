//! Where jobs run: one host or two of them, a node on each, and scripts by which ranks find both
//! their host's node and their cores.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::job::MpiJob;
use super::options::{HostSessions, Hosts, JoinedNode, MpiOptions, RANKS_MAX};
use super::ways::MpiTransport;
use testbed::cleanup::Cleanup;
use testbed::events::{EventsSnapshot, Role};
use testbed::hosts::{NamespaceEntry, write_enter};
use testbed::machine::cores;
use testbed::nodes::{Node, status};
use testbed::pair::PairLink;
use testbed::progress::Progress;
use testbed::stage::Stage;

/// The most endpoints of the domain: one for each rank, and the endpoints of a job that ended
/// badly, until the node has noticed.
const ENDPOINTS_MAX: u16 = 4 * RANKS_MAX;

/// The domain that is made.
const DOMAIN: &str = "bench";

/// Where ranks find their number on their host: Open MPI's, and that of MPICH's launcher.
const LOCAL_RANK: &str = "${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${PMI_RANK:-0}}}";

/// A host: this machine, or a network namespace of it.
struct Host {
    /// The name of the host, as its processes see it.
    name: String,
    /// Its place; none for the only host.
    place: Option<HostNamespace>,
    control: PathBuf,
    /// All cores that its processes may use.
    cores: Vec<usize>,
    /// The cores of one rank each; none where there are too few.
    seats: Vec<usize>,
    /// Its node, if this program started it.
    node: Option<Node>,
}

/// Where a host is, among two.
struct HostNamespace {
    namespace: String,
    address: String,
}

/// Where jobs run.
pub(super) struct Site<'a> {
    program: PathBuf,
    domain: Option<String>,
    hosts: Vec<Host>,
    /// The cable and the sessions between the nodes of two hosts.
    meeting: Option<PairLink>,
    pub(super) stage: Stage,
    pub(super) cleanup: &'a Cleanup,
}

impl<'a> Site<'a> {
    /// Makes a folder, and nodes with a domain unless the options name a node.
    pub(super) fn new(
        options: &MpiOptions,
        cleanup: &'a Cleanup,
        progress: &Progress,
    ) -> Result<Self> {
        let program = options.plan.program.clone();
        let ((stage, hosts), meeting) = match options.hosts {
            Hosts::One => (one(options, cleanup, progress)?, None),
            Hosts::Two(together) => {
                (two(together, options, cleanup, progress)?, Some(together.meeting()))
            }
        };
        let domain = options.running.as_ref().and_then(|running| running.domain.clone());
        let site = Self { program, domain, hosts, meeting, stage, cleanup };
        site.write("seat", &site.seat())?;
        if site.hosts.len() > 1 {
            write_enter(&site.stage.path("enter"), &site.doors())?;
        }
        Ok(site)
    }

    /// Where ranks run, in words.
    pub(super) fn seating(&self, ranks: u16) -> String {
        let of = |host: &Host| match self.has_seats(host, ranks) {
            true => format!("one rank on each core of {:?}", &host.seats[..self.of_each(ranks)]),
            false => format!(
                "{} ranks share cores {:?}{}: polling costs",
                self.of_each(ranks),
                host.cores,
                if host.place.is_some() { " with a sidecore" } else { "" }
            ),
        };
        match &self.hosts[..] {
            [host] => of(host),
            hosts => hosts.iter().map(of).collect::<Vec<_>>().join("; on the other host "),
        }
    }

    /// Ranks of each host.
    pub(super) fn of_each(&self, ranks: u16) -> usize {
        usize::from(ranks).div_ceil(self.hosts.len())
    }

    fn has_seats(&self, host: &Host, ranks: u16) -> bool {
        host.seats.len() >= self.of_each(ranks)
    }

    /// Begins a launcher's command, on the first of several hosts.
    pub(super) fn begin(&self, run: &Path) -> Command {
        let Some(place) = &self.hosts[0].place else { return Command::new(run) };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &place.namespace, "unshare", "--uts", "sh", "-euc"]);
        command.args(["hostname \"$1\"; shift; exec \"$@\"", "sh", &self.hosts[0].name]).arg(run);
        command
    }

    /// The program by which a launcher enters hosts, and the hosts' addresses; none where there is
    /// only one host.
    pub(super) fn reach(&self) -> Option<(PathBuf, Vec<&str>)> {
        let places: Vec<_> = self.hosts.iter().filter_map(|host| host.place.as_ref()).collect();
        let addresses = places.iter().map(|place| place.address.as_str()).collect();
        (!places.is_empty()).then(|| (self.stage.path("enter"), addresses))
    }

    /// The words that a launcher starts for each rank, before the program.
    pub(super) fn rank(&self, job: &MpiJob<'_>) -> [String; 3] {
        let family = if job.way == MpiTransport::Vrio { job.mpi.family.word() } else { "none" };
        let has_seats = self.hosts.iter().all(|host| self.has_seats(host, job.ranks));
        let where_it_sits = if has_seats { "seated" } else { "free" };
        [self.stage.path("seat").display().to_string(), family.to_owned(), where_it_sits.to_owned()]
    }

    /// The process ids of the nodes, which carry our messages, for the program.
    pub(super) fn carriers(&self, job: &MpiJob<'_>) -> String {
        let nodes = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let carriers: Vec<_> = nodes.map(|node| node.pid().to_string()).collect();
        match &carriers[..] {
            [_, ..] if job.way == MpiTransport::Vrio => carriers.join(","),
            _ => "none".to_owned(),
        }
    }

    /// Whether all ranks have joined the domain that carries their messages.
    pub(super) fn are_there(&self, job: &MpiJob<'_>) -> bool {
        let wanted = self.of_each(job.ranks) as u64;
        job.way != MpiTransport::Vrio || self.hosts.iter().all(|host| self.members(host) >= wanted)
    }

    /// Runs a measurement. For our messages between two hosts, it then looks whether their
    /// datagrams took the way of the options.
    pub(super) fn by_its_way<T>(
        &self,
        job: &MpiJob<'_>,
        measure: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let meeting = self.meeting.filter(|_| job.way == MpiTransport::Vrio);
        let Some(meeting) = meeting else { return measure() };
        let before = self.look()?;
        let measured = measure()?;
        meeting.check_way(&self.look()?.since(&before))?;
        Ok(measured)
    }

    /// The counters of both nodes so far. The first host's node has the role of a VMhost.
    fn look(&self) -> Result<EventsSnapshot> {
        let nodes = [Role::Vmhost, Role::Iohost].into_iter().zip(&self.hosts);
        EventsSnapshot::at(nodes.filter_map(|(role, host)| Some((role, host.node.as_ref()?))), &[])
    }

    fn members(&self, host: &Host) -> u64 {
        let Ok(status) = status(&host.control) else { return 0 };
        let domains = status["domains"].as_array().map_or(&[][..], Vec::as_slice);
        let is_ours = |it: &&Value| self.domain.as_ref().is_none_or(|name| it["name"] == **name);
        domains.iter().filter(is_ours).filter_map(|it| it["members"].as_u64()).sum()
    }

    /// A script that becomes a rank's program, with the variables that `vrio mpi env` prints on its
    /// host, on the rank's core.
    fn seat(&self) -> String {
        let domain = self.domain.as_ref().map(|name| format!(" --domain={name:?}"));
        let of = |host: &Host| {
            let seats = host.seats.iter().enumerate();
            let seats = seats.map(|(rank, core)| format!("{rank}) core={core};; "));
            let all: Vec<_> = host.cores.iter().map(usize::to_string).collect();
            format!(
                "{}) control={:?}; cores={}; case $rank in {}*) core=$cores;; esac;;\n",
                // The only host may have any name.
                if host.place.is_some() { &host.name } else { "*" },
                host.control,
                all.join(","),
                seats.collect::<String>()
            )
        };
        format!(
            "#!/bin/sh\nset -eu\nmpi=$1; sits=$2; shift 2\nrank={LOCAL_RANK}\n\
             case $(uname -n) in\n{}esac\n\
             if [ \"$mpi\" != none ]; then\n    \
             env=$({:?} mpi env --mpi \"$mpi\" --control \"$control\"{})\n    eval \"$env\"\nfi\n\
             [ \"$sits\" = seated ] || core=$cores\n\
             exec taskset -c \"$core\" \"$@\"\n",
            self.hosts.iter().map(of).collect::<String>(),
            self.program,
            domain.unwrap_or_default()
        )
    }

    /// The entrances of hosts for launchers. The script of [`Self::seat`] sets the environment.
    fn doors(&self) -> Vec<NamespaceEntry> {
        let door = |host: &Host| {
            let HostNamespace { namespace, address } = host.place.as_ref()?;
            let (address, namespace, name) =
                (address.clone(), namespace.clone(), host.name.clone());
            Some(NamespaceEntry { address, namespace, name, profile: String::new() })
        };
        self.hosts.iter().filter_map(door).collect()
    }

    /// Makes a program of the stage.
    fn write(&self, name: &str, script: &str) -> Result<()> {
        let file = self.stage.path(name);
        fs::write(&file, script).with_context(|| format!("writing {}", file.display()))?;
        Ok(fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?)
    }
}

/// This machine, with a node unless one is named.
fn one(options: &MpiOptions, cleanup: &Cleanup, progress: &Progress) -> Result<(Stage, Vec<Host>)> {
    let stage = Stage::new("mpi", options.plan.program.clone(), false, cleanup.clone())?;
    let (control, node) = match &options.running {
        Some(JoinedNode { control, .. }) => (control.clone(), None),
        None => {
            progress.doing("starting a node");
            let node = stage.start(&stage.plan("n", &domain(&stage)?))?;
            (node.plan().control(), Some(node))
        }
    };
    let (cores, name) = (cores(), String::new());
    let seats = cores.clone();
    Ok((stage, vec![Host { name, place: None, control, cores, seats, node }]))
}

/// Two network namespaces, which share this machine's cores as two machines would.
fn two(
    together: HostSessions,
    options: &MpiOptions,
    cleanup: &Cleanup,
    progress: &Progress,
) -> Result<(Stage, Vec<Host>)> {
    let HostSessions { link, idle, .. } = together;
    let stage = together.meeting().stage(options.plan.program.clone(), cleanup, progress)?;
    ensure!(
        stage.has_namespaces(),
        "two hosts are two network namespaces here, which takes root and iproute2 (ip); --hosts 1 \
         needs neither"
    );
    let link = if link == bench::block::LinkKind::Xdp { "link = \"xdp\"\n" } else { "" };
    let key = domain(&stage)?;
    let ends = [("vm1", &stage.vm_listen), ("io1", &stage.io_listen)];
    progress.doing("starting two nodes");
    let start = |at: usize| -> Result<Host> {
        let ((name, listen), (other, there)) = (ends[at], ends[1 - at]);
        let cores = of_host(&cores(), at);
        let sidecores = match cores[..] {
            [core, ..] => format!("cores = [{core}]"),
            [] => "count = 1".to_owned(),
        };
        let config = format!(
            "listen = \"{listen}\"\n{link}[sidecores]\n{sidecores}\nidle = \"{idle}\"\n\
             [[peer]]\nname = \"{other}\"\naddress = \"{there}\"\n{}{key}peers = [\"{other}\"]\n",
            stage.keys.peer(other)
        );
        let node = stage.start(&stage.plan(name, &config))?;
        let place = HostNamespace {
            namespace: stage.namespace_of(name).context("there are two")?,
            address: listen.split(':').next().unwrap_or_default().to_owned(),
        };
        Ok(Host {
            name: format!("vrio-{name}"),
            place: Some(place),
            control: node.plan().control(),
            seats: cores.iter().copied().skip(1).collect(),
            cores,
            node: Some(node),
        })
    };
    let mut hosts = vec![start(0)?, start(1)?];
    for node in hosts.iter_mut().filter_map(|host| host.node.as_mut()) {
        node.wait_until("its domain is joined with the other host's", |node| {
            node.status().is_ok_and(|it| it["domains"][0]["peers"][0]["is_joined"] == true)
        })?;
    }
    Ok((stage, hosts))
}

/// The cores of one of two hosts: half of them, or the only one.
fn of_host(cores: &[usize], at: usize) -> Vec<usize> {
    let half = cores.len() / 2;
    match (half, at) {
        (0, _) => cores.to_vec(),
        (_, 0) => cores[..half].to_vec(),
        (_, _) => cores[half..2 * half].to_vec(),
    }
}

/// A domain's table.
fn domain(stage: &Stage) -> Result<String> {
    let (key, _) = stage.make_domain_key()?;
    Ok(format!("[[domain]]\nname = \"{DOMAIN}\"\nkey = {key:?}\nendpoints-max = {ENDPOINTS_MAX}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_have_half_of_the_cores_each() {
        assert_eq!([of_host(&[0, 1], 0), of_host(&[0, 1], 1)], [[0], [1]]);
        let five = [1, 2, 4, 5, 7];
        assert_eq!([of_host(&five, 0), of_host(&five, 1)], [[1, 2], [4, 5]]);
        assert_eq!([of_host(&[3], 0), of_host(&[3], 1)], [[3], [3]]);
    }
}
