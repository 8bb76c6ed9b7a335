//! Nodes as `vrio node` runs them, in this process and on the loopback device, joined in one
//! domain; and endpoints in it that send the messages of a pattern to each other.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use fabric::{
    Address, Class, Completion, Domain, Done, Endpoint, EndpointOptions, MemoryPiece, Message,
    Receive, RequestContext, SendError,
};
use node::status::DomainStatus;
use node::{Config, Node};

use super::patterns::{ConnectionPattern, JobLayout};

/// The longest wait for anything: machines are shared.
const PATIENCE: Duration = Duration::from_secs(120);

/// The time between two looks at a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The domain and its key, which only these nodes use.
const DOMAIN: &str = "job";
const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The context of sends, and that of receives.
const SENT: RequestContext = RequestContext(1);
const RECEIVED: RequestContext = RequestContext(2);

/// A process of the job. All of them are this process, which works for each in turn.
struct JobProcess {
    endpoint: Endpoint,
    host: usize,
    memory: Box<[u8]>,
    /// The peers that it has yet to send to, and the number of peers that it has yet to hear from.
    to: Vec<usize>,
    missing: usize,
    /// Sends that have not ended.
    under_way: usize,
    heard: u64,
}

/// Hosts with their nodes and processes.
pub(super) struct Cluster {
    nodes: Vec<Node>,
    processes: Vec<JobProcess>,
    /// The data that is sent. It is kept here, so that it exists for as long as the endpoints do.
    body: Box<[u8]>,
    /// The domain, as each host's processes joined it. Endpoints must end before it does.
    _domains: Vec<Domain>,
    home: PathBuf,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.processes.clear();
        self.nodes.clear();
        // A folder that cannot be removed stays in the system's folder for temporary files.
        let _ = fs::remove_dir_all(&self.home);
    }
}

fn address(host: usize) -> String {
    // All of 127.0.0.0/8 is this host's: each process and each host has its own.
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    format!("127.{}.{low}.{}:4870", 128 | (high & 0x3f), host + 1)
}

/// The configuration of a host's node, whose domain has these hosts for peers.
fn config(
    home: &std::path::Path,
    host: usize,
    peers: &[usize],
    job: &JobLayout,
    sidecores: u16,
) -> String {
    let peer =
        |peer: &usize| format!("[[peer]]\nname = \"h{peer}\"\naddress = \"{}\"\n", address(*peer));
    let all: String = peers.iter().map(peer).collect();
    let names: Vec<_> = peers.iter().map(|peer| format!("h{peer}")).collect();
    format!(
        "name = \"h{host}\"\nlisten = \"{}\"\nprivileges = \"keep\"\n\
         control = {:?}\n[sidecores]\ncount = {sidecores}\nidle = \"sleep\"\n\
         [directories]\nsockets = {home:?}\n{all}\
         [[domain]]\nname = \"{DOMAIN}\"\nkey = {:?}\npeers = {names:?}\nendpoints-max = {}\n",
        address(host),
        home.join(format!("h{host}.control")),
        home.join("key"),
        job.processes
    )
}

impl Cluster {
    /// Starts the nodes of a job, whose peers are the hosts of `pairs`, and opens an endpoint for
    /// each process.
    pub(super) fn start(
        job: &JobLayout,
        pairs: &BTreeSet<[usize; 2]>,
        sidecores: u16,
    ) -> Result<Self> {
        let name = format!("vrio-connections-{}", std::process::id());
        let home = std::env::temp_dir().join(name);
        fs::create_dir_all(&home).with_context(|| format!("making {}", home.display()))?;
        let (nodes, processes, body, _domains) =
            (Vec::new(), Vec::new(), Box::default(), Vec::new());
        let mut it = Self { nodes, processes, body, _domains, home };
        let key = it.home.join("key");
        fs::write(&key, format!("{KEY}\n"))?;
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
        for host in 0..job.hosts {
            let of_pair = |[one, other]: &[usize; 2]| match host {
                _ if host == *one => Some(*other),
                _ if host == *other => Some(*one),
                _ => None,
            };
            let peers: Vec<_> = pairs.iter().filter_map(of_pair).collect();
            let text = config(&it.home, host, &peers, job, sidecores);
            let config = Config::parse(&it.home.join("node.toml"), &text);
            let config = config.map_err(|error| anyhow!("{error}"))?;
            it.nodes.push(Node::start(&config).map_err(|error| anyhow!("{error}"))?);
        }
        it.until("all hosts are joined", |it| {
            Ok(it.domains()?.iter().all(|domain| domain.peers.iter().all(|peer| peer.is_joined)))
        })?;
        for host in 0..job.hosts {
            let socket = it.home.join(format!("h{host}.fabric"));
            let domain = Domain::join(&socket, DOMAIN, KEY)?;
            for _ in 0..job.processes {
                let endpoint = domain.endpoint(EndpointOptions::default())?;
                it.processes.push(JobProcess {
                    endpoint,
                    host,
                    memory: Box::default(),
                    to: Vec::new(),
                    missing: 0,
                    under_way: 0,
                    heard: 0,
                });
            }
            it._domains.push(domain);
        }
        Ok(it)
    }

    fn until(&mut self, what: &str, mut is: impl FnMut(&mut Self) -> Result<bool>) -> Result<()> {
        let by = Instant::now() + PATIENCE;
        while !is(self)? {
            if Instant::now() > by {
                bail!("not within {PATIENCE:?}: {what}");
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// The status of the domain on each node.
    pub(super) fn domains(&self) -> Result<Vec<DomainStatus>> {
        let of = |node: &Node| node.status().domains.into_iter().next().context("a domain");
        self.nodes.iter().map(of).collect()
    }

    /// The sessions of each node that are connected.
    pub(super) fn sessions(&self) -> Vec<usize> {
        let of = |node: &Node| {
            let status = node.status();
            status.sessions.iter().filter(|it| it.state == "connected").count()
        };
        self.nodes.iter().map(of).collect()
    }

    /// The memory in which each process keeps its knowledge of others, in bytes.
    pub(super) fn remotes_bytes(&self) -> Vec<usize> {
        self.processes.iter().map(|process| process.endpoint.remotes_bytes()).collect()
    }

    /// Each process sends a message of so many bytes to each of its peers, and waits for theirs.
    pub(super) fn exchange(&mut self, pattern: ConnectionPattern, bytes: usize) -> Result<()> {
        let all = self.processes.len();
        let addresses: Vec<_> =
            self.processes.iter().map(|process| process.endpoint.address()).collect();
        self.body = vec![0x5a; bytes].into();
        for (number, process) in self.processes.iter_mut().enumerate() {
            // Processes begin with different peers, so that not all send to the same process first.
            let peers = pattern.peers(number, all);
            let (later, first): (Vec<_>, Vec<_>) = peers.into_iter().partition(|it| *it < number);
            process.to = first.into_iter().chain(later).rev().collect();
            process.missing = process.to.len();
            process.memory = vec![0; bytes].into();
            process.heard = 0;
            process.ask()?;
        }
        let by = Instant::now() + PATIENCE;
        let mut left = all;
        while left > 0 {
            left = 0;
            for (number, process) in self.processes.iter_mut().enumerate() {
                process.work(number, &addresses, &self.body)?;
                left += usize::from(!process.is_done());
            }
            ensure!(Instant::now() < by, "{left} processes have not heard all in {PATIENCE:?}");
        }
        for (number, process) in self.processes.iter().enumerate() {
            let expected: u64 = pattern.peers(number, all).iter().map(|peer| *peer as u64).sum();
            ensure!(process.heard == expected, "process {number} heard others than its peers");
        }
        Ok(())
    }

    /// The number of messages of a pattern that go from one host to another.
    pub(super) fn between_hosts(&self, pattern: ConnectionPattern) -> usize {
        let all = self.processes.len();
        let of = |(number, process): (usize, &JobProcess)| {
            let peers = pattern.peers(number, all);
            peers.into_iter().filter(|peer| self.processes[*peer].host != process.host).count()
        };
        self.processes.iter().enumerate().map(of).sum()
    }
}

impl JobProcess {
    /// Asks for the next message, from any sender.
    fn ask(&mut self) -> Result<()> {
        if self.missing == 0 {
            return Ok(());
        }
        let receive = Receive {
            class: Class::Tagged,
            source: None,
            tag: 0,
            ignore: u64::MAX,
            context: RECEIVED,
            multi_min_bytes: None,
        };
        let part = MemoryPiece { start: self.memory.as_mut_ptr(), bytes: self.memory.len() };
        // SAFETY: the memory is this process's, stays where it is until all messages have come, or
        // longer than the endpoint, and no code reads or writes it meanwhile.
        unsafe { self.endpoint.receive(&receive, &[part]) }?;
        Ok(())
    }

    /// Sends the next message, if there is room, and takes messages that have come.
    fn work(&mut self, number: usize, addresses: &[Address], body: &[u8]) -> Result<()> {
        if let Some(&peer) = self.to.last() {
            let message = Message {
                to: addresses[peer],
                class: Class::Tagged,
                tag: number as u64,
                data: None,
                context: Some(SENT),
                inject: false,
            };
            let part = MemoryPiece { start: body.as_ptr().cast_mut(), bytes: body.len() };
            // SAFETY: the body stays as it is until every send of the exchange has ended, or, after
            // an error, every endpoint.
            match unsafe { self.endpoint.send(&message, &[part]) } {
                Ok(()) => {
                    self.to.pop();
                    self.under_way += 1;
                }
                Err(SendError::Busy) => {}
                Err(error) => bail!("process {number}: {error}"),
            }
        }
        self.endpoint.progress();
        while let Some(ended) = self.endpoint.completion() {
            self.ended(&ended)?;
        }
        Ok(())
    }

    fn ended(&mut self, ended: &Completion) -> Result<()> {
        if let Some(failure) = &ended.failure {
            bail!("a message failed: {failure}");
        }
        match ended.done {
            Done::Send => self.under_way -= 1,
            Done::Receive { .. } => {
                let last = self.memory.last();
                ensure!(last.is_none_or(|byte| *byte == 0x5a), "other bytes than were sent");
                self.heard += ended.tag;
                self.missing -= 1;
                self.ask()?;
            }
            Done::Released => {}
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.to.is_empty() && self.missing == 0 && self.under_way == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There are as many sessions as pairs of hosts times sidecores, for any number of processes;
    /// and the messages went by these sessions.
    #[test]
    fn messages_of_all_processes_share_a_few_sessions() {
        let job = JobLayout { hosts: 3, processes: 4 };
        let pairs = job.talking_hosts(ConnectionPattern::AllToAll);
        let mut cluster = Cluster::start(&job, &pairs, 2).unwrap();
        for bytes in [8, 100_000] {
            cluster.exchange(ConnectionPattern::AllToAll, bytes).unwrap();
        }
        assert_eq!(cluster.sessions(), [4; 3]);
        assert_eq!(cluster.between_hosts(ConnectionPattern::AllToAll), 12 * 8);
        let domains = cluster.domains().unwrap();
        for domain in domains {
            let of = |name: &str| domain.counters.get(name).copied().unwrap_or_default();
            assert!(of("gateway_sent") >= 2 * 4 * 8 && of("gateway_delivered") >= 2 * 4 * 8);
            assert_eq!((of("gateway_nonsense"), of("gateway_undelivered")), (0, 0));
            assert!(of("gateway_state_bytes_now") > 0);
            assert!(domain.used_bytes > 0 && domain.used_bytes <= domain.region_bytes);
        }
        assert!(cluster.remotes_bytes().iter().all(|bytes| *bytes > 8 * 16));
    }
}
