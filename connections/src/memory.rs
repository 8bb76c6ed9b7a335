//! The memory of live sessions, and the needs of a host in a large cluster.

use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use fabric::{Address, AddressTable};
use serde::Serialize;

use super::cluster::Cluster;
use super::hosts::{Host, connected, keys, rounds, until};
use super::patterns::{ConnectionPattern, JobLayout};

/// Bytes that each session has carried each way before its memory counts.
const BODY_BYTES: usize = 1 << 20;

/// Rounds of the clock after which everything that was sent is acknowledged.
const QUIET_ROUNDS: u64 = 40;

/// The cluster of the slide: 64 K processes on hosts of 16.
const HOSTS: u64 = 4096;
const PROCESSES: u64 = 16;

/// The memory of the other transports at that size, in MB, according to the slides.
pub(super) const VM_PROOF_XRC_MB: f64 = 805.0;
pub(super) const VM_XRC_MB: f64 = 12_900.0;

/// The most memory of vrio that keeps the goal, in MB.
pub(super) const GOAL_MB: f64 = 100.0;

/// The time after which a gateway gives back memory that only a burst needed.
const REST: Duration = Duration::from_secs(5);

/// The measured job at most, of the slide's size. It shows how much its processes and gateways know
/// of other hosts.
pub(super) const JOB_MAX: JobLayout = JobLayout { hosts: 8, processes: 16 };

/// Messages from each process to each other one, so often that each ring goes round. The messages
/// are so long that they go by buffers.
const SHORT_ROUNDS: usize = 10;
const SHORT_BYTES: usize = 8 << 10;

/// The memory of sessions.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sessions {
    /// Live sessions of one endpoint.
    pub sessions: u16,
    /// The growth of the process's resident memory by these sessions, in bytes.
    pub resident_bytes: u64,
    /// Bytes of each session.
    pub session_bytes: f64,
    /// Bytes of each session's tables, as the endpoint counts them.
    pub tables_bytes: f64,
}

/// The measured memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MeasuredMemory {
    /// The memory of sessions.
    #[serde(flatten)]
    pub of_sessions: Sessions,
    /// An address vector of all processes of the large cluster, in the provider's form, in bytes.
    pub vector_bytes: u64,
    /// The used part of a domain's memory, in bytes for each endpoint of a host.
    pub endpoint_bytes: f64,
    /// A process's knowledge of others, in bytes for each endpoint of another host.
    pub remote_bytes: f64,
    /// The memory of an idle gateway, in bytes for each other host.
    pub link_bytes: f64,
}

/// A host of a cluster of 64 K processes, worked out and not measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Extrapolation {
    /// Hosts, and processes on each.
    pub hosts: u64,
    /// Processes of each host.
    pub processes: u64,
    /// Sessions of a host.
    pub sessions: u64,
    /// Their memory, in MB (a million bytes).
    pub sessions_mb: f64,
    /// The address vectors of the host's processes, in MB.
    pub vectors_mb: f64,
    /// The knowledge of processes and gateways about endpoints and hosts elsewhere, which keeps the
    /// order of messages, in MB. It is counted as if all have sent to all.
    pub order_mb: f64,
    /// Rings and buffers of the host's endpoints, as far as they were used, in MB.
    pub endpoints_mb: f64,
    /// All of it, in MB.
    pub total_mb: f64,
    /// The memory of VM-proof XRC there, in MB, according to its slides.
    pub vm_proof_xrc_mb: f64,
    /// The memory of unmodified XRC there, in machines of one core, in MB, according to the same
    /// slides.
    pub vm_xrc_mb: f64,
}

/// Bytes for each host in a region's two tables: its name, and the gateways that hold back.
const HOST_ENTRY_BYTES: f64 = 16.0;

impl Extrapolation {
    pub(super) fn of(memory: &MeasuredMemory, sidecores: u16) -> Self {
        let sessions = (HOSTS - 1) * u64::from(sidecores);
        let mb = |bytes: f64| bytes / 1e6;
        let sessions_mb = mb(sessions as f64 * memory.of_sessions.session_bytes);
        let vectors_mb = mb((PROCESSES * memory.vector_bytes) as f64);
        let of_region = HOSTS as f64 * HOST_ENTRY_BYTES;
        let of_links = sessions as f64 * memory.link_bytes;
        let of_processes = (PROCESSES * (HOSTS - 1) * PROCESSES) as f64 * memory.remote_bytes;
        let order_mb = mb(of_region + of_links + of_processes);
        let endpoints_mb = mb(PROCESSES as f64 * memory.endpoint_bytes);
        Self {
            hosts: HOSTS,
            processes: PROCESSES,
            sessions,
            sessions_mb,
            vectors_mb,
            order_mb,
            endpoints_mb,
            total_mb: sessions_mb + vectors_mb + order_mb + endpoints_mb,
            vm_proof_xrc_mb: VM_PROOF_XRC_MB,
            vm_xrc_mb: VM_XRC_MB,
        }
    }
}

/// Measures so many sessions of one endpoint, after 1 MiB each way on each of them. The other ends
/// are made and removed one after the other, so that the memory of only one of them is included.
pub(super) fn sessions(sessions: u16) -> Result<Sessions> {
    let clients = 1..u32::from(sessions) + 2;
    let server = Host::new(0, keys(clients.clone())?);
    let of_clients = keys(std::iter::once(0))?;
    let (mut hosts, mut now_ns, mut before) = (vec![server], 1, 0);
    for number in clients {
        hosts.push(Host::new(number, of_clients.clone()));
        exchange(&mut hosts, &mut now_ns)?;
        hosts.pop();
        // The first session brought the memory that all share: buffers, and the allocator's
        // reserve.
        if number == 1 {
            before = resident_bytes()?;
        }
    }
    let resident_bytes = resident_bytes()?.saturating_sub(before);
    let live = connected(&hosts[0]);
    ensure!(live == usize::from(sessions) + 1, "{live} sessions are live, not {sessions} and one");
    let tables: usize = hosts[0].endpoint.sessions().map(|it| it.state_bytes).sum();
    Ok(Sessions {
        sessions,
        resident_bytes,
        session_bytes: resident_bytes as f64 / f64::from(sessions),
        tables_bytes: tables as f64 / live as f64,
    })
}

/// Measures the rest of the memory, of the nodes and endpoints of a job in this process.
pub(super) fn measure(of_sessions: Sessions, job: &JobLayout) -> Result<MeasuredMemory> {
    let vector_bytes = vector_bytes()?;
    let all = ConnectionPattern::AllToAll;
    let mut cluster = Cluster::start(job, &job.talking_hosts(all), 1)?;
    cluster.exchange(ConnectionPattern::Halo, BODY_BYTES)?;
    for _ in 0..SHORT_ROUNDS {
        cluster.exchange(all, SHORT_BYTES)?;
    }
    thread::sleep(REST);
    let (hosts, processes) = (job.hosts as f64, job.processes as f64);
    let (mut used_bytes, mut state_bytes) = (0, 0);
    for domain in cluster.domains()? {
        used_bytes += domain.used_bytes;
        let of_gateways = domain.counters.get("gateway_state_bytes_now");
        state_bytes += of_gateways.context("memory of gateways")?;
    }
    let remotes: usize = cluster.remotes_bytes().iter().sum();
    Ok(MeasuredMemory {
        of_sessions,
        vector_bytes,
        endpoint_bytes: used_bytes as f64 / (hosts * processes),
        remote_bytes: remotes as f64 / (hosts * processes) / ((hosts - 1.0) * processes),
        link_bytes: state_bytes as f64 / hosts / (hosts - 1.0),
    })
}

/// The memory of a vector of all processes: the table of `ofi/src/av.rs`.
fn vector_bytes() -> Result<u64> {
    let mut table = AddressTable::default();
    for process in 0..HOSTS * PROCESSES {
        let (host, slot) = (process / PROCESSES + 1, (process % PROCESSES) as u16);
        table.insert(Address { host, incarnation: 1, slot })?;
    }
    // The first lookup of a number builds an index, which a program may need as well.
    let last = Address { host: HOSTS, incarnation: 1, slot: 15 };
    ensure!(table.number(&last).is_some(), "the last address is there");
    Ok(table.held_bytes() as u64)
}

/// The last host asks the first one for a session, sends a body of [`BODY_BYTES`], and gets as much
/// back.
fn exchange(hosts: &mut [Host], now_ns: &mut u64) -> Result<()> {
    let address = hosts[0].address;
    let client = hosts.len() - 1;
    let session = hosts[client].endpoint.connect(*now_ns, address, "host0", 0);
    until(now_ns, hosts, |hosts| hosts[client].notes.connected > 0)?;
    let body = |host: &mut Host| {
        let buffer = host.endpoint.pool_mut().alloc(BODY_BYTES).context("a pool with room")?;
        host.endpoint.pool_mut().bytes_mut(buffer).fill(0x5a);
        Ok::<_, anyhow::Error>(buffer)
    };
    let buffer = body(&mut hosts[client])?;
    let endpoint = &mut hosts[client].endpoint;
    let asked = endpoint.call(*now_ns, session, 0, 1, b"question", Some((buffer, BODY_BYTES)));
    asked.map_err(|error| anyhow!("{error}"))?;
    endpoint.pool_mut().release(buffer);
    until(now_ns, hosts, |hosts| !hosts[0].notes.calls.is_empty())?;
    let (call, question) = hosts[0].notes.calls.pop().context("a call")?;
    let buffer = body(&mut hosts[0])?;
    let endpoint = &mut hosts[0].endpoint;
    let answered = endpoint.reply(*now_ns, call, b"answer", Some((buffer, BODY_BYTES)));
    answered.map_err(|error| anyhow!("{error}"))?;
    [Some(buffer), question].into_iter().flatten().for_each(|it| endpoint.pool_mut().release(it));
    until(now_ns, hosts, |hosts| hosts[client].notes.replies > 0)?;
    rounds(now_ns, hosts, QUIET_ROUNDS);
    Ok(())
}

/// The resident memory of this process, in bytes.
fn resident_bytes() -> Result<u64> {
    let statm = fs::read_to_string("/proc/self/statm").context("reading /proc/self/statm")?;
    let pages = statm.split(' ').nth(1).and_then(|it| it.parse::<u64>().ok());
    Ok(pages.context("a number of pages")? * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_live_and_take_something() {
        let of_sessions = sessions(20).unwrap();
        assert_eq!(of_sessions.sessions, 20);
        assert!(of_sessions.tables_bytes > 0.0, "{of_sessions:?}");
    }

    #[test]
    fn a_host_has_a_session_for_every_other_one() {
        let of_sessions =
            Sessions { sessions: 1, resident_bytes: 9, session_bytes: 10_000.0, tables_bytes: 1.0 };
        let memory = MeasuredMemory {
            of_sessions,
            vector_bytes: vector_bytes().unwrap(),
            endpoint_bytes: 1_000_000.0,
            remote_bytes: 20.0,
            link_bytes: 1000.0,
        };
        let one = Extrapolation::of(&memory, 1);
        assert_eq!((one.sessions, one.sessions_mb, one.endpoints_mb), (4095, 40.95, 16.0));
        let parts = [one.sessions_mb, one.vectors_mb, one.order_mb, one.endpoints_mb];
        assert!((one.total_mb - parts.iter().sum::<f64>()).abs() < 1e-9);
        assert!((17.0..18.0).contains(&one.vectors_mb), "{one:?}");
        let order_mb = 4096.0 * 16.0 / 1e6 + 4.095 + 16.0 * 4095.0 * 16.0 * 20.0 / 1e6;
        assert!((one.order_mb - order_mb).abs() < 1e-9, "{one:?}");
        assert_eq!(Extrapolation::of(&memory, 2).sessions, 8190);
    }
}
