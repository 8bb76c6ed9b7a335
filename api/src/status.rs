//! The status of a node: the answer to `GET /v1/status`.
//!
//! The shape is a promise. Within a version fields may be added, never renamed or removed, and
//! readers skip fields that they do not know. Counters are maps from name to number, so that a new
//! counter does not change the shape.

mod cluster;
mod copies;
mod pools;
mod quotas;
mod strangers;

use std::collections::BTreeMap;

pub use cluster::NodeClusterStatus;
pub use copies::{CopyDifference, CopyScrub};
pub use pools::{
    HistoryReport, PackedReport, PoolDeviceStatus, PoolState, PooledStatus, ScrubReport,
    SharedReport, StoragePoolStatus,
};
pub use quotas::QuotaStatus;
use serde::{Deserialize, Serialize};
use serde_json::Value;
pub use strangers::{StrangerStatus, StrangersStatus};

/// The version of the shape; the `v1` of the path.
pub const STATUS_VERSION: u32 = 1;

/// Numbers by name. Names end in their unit unless they count things; all but those that end in
/// `_now` only ever grow.
pub type Counters = BTreeMap<String, u64>;

/// How long requests took, by their kind: `read`, `write`, `flush`, `discard`,
/// `write_zeroes`.
pub type Latencies = BTreeMap<String, LatencyStatus>;

/// Where the buckets of [`LatencyStatus`] end: 1, 2, 5 and so on, from 1 us to 50 s. Fine enough to
/// tell a median that doubled, few enough for a thousand disks.
pub const LATENCY_BUCKETS_NS: [u64; 24] = {
    let mut buckets = [0; 24];
    let (mut at, mut decade_ns) = (0, 1_000);
    while at < buckets.len() {
        buckets[at] = decade_ns;
        buckets[at + 1] = 2 * decade_ns;
        buckets[at + 2] = 5 * decade_ns;
        at += 3;
        decade_ns *= 10;
    }
    buckets
};

/// A node and everything it has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// [`STATUS_VERSION`].
    pub version: u32,
    /// The node as a whole.
    pub node: NodeStatus,
    /// Its part in a cluster; none for a node of no cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<NodeClusterStatus>,
    /// By index.
    pub sidecores: Vec<SidecoreStatus>,
    /// In the configuration's order.
    pub volumes: Vec<VolumeStatus>,
    /// In the configuration's order.
    pub disks: Vec<DiskStatus>,
    /// In the configuration's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<StoragePoolStatus>,
    /// By peer and sidecore.
    pub sessions: Vec<SessionStatus>,
    /// In the configuration's order.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// Peers that asked for a session and were refused, by reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strangers: Vec<StrangersStatus>,
    /// By peer and sidecore: of what a peer has or was refused some.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<QuotaStatus>,
    /// In the configuration's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkStatus>,
    /// In the configuration's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicStatus>,
    /// In the configuration's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainStatus>,
    /// In the configuration's order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub vfs: Vec<VfStatus>,
    /// The lists of kinds of objects that have no field here, by their path.
    #[serde(flatten)]
    pub others: BTreeMap<String, Value>,
}

/// Where an object came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The configuration's file.
    #[default]
    File,
    /// A command; it is gone when the node is restarted, unless it is put into the file.
    Command,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Command => "command",
        })
    }
}

/// A node as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// The release that it runs.
    pub release: String,
    /// Its process.
    pub pid: u32,
    /// For how long it has run.
    pub uptime_s: u64,
    /// Where peers reach it.
    pub listen: Option<String>,
    /// Where nodes of this machine call it for shared memory.
    #[serde(default)]
    pub shm: Option<String>,
    /// `keys`, `loopback` or `network`.
    pub trust: String,
    /// Its public key, if its sessions are sealed.
    #[serde(default)]
    pub key: Option<String>,
    /// Its configuration.
    #[serde(default)]
    pub file: String,
    /// Differences between the node and its file as the file was last read; empty if there are
    /// none.
    #[serde(default)]
    pub differs: Vec<String>,
    /// The node is being drained: it refuses new front ends, attachments and members.
    #[serde(default)]
    pub draining: bool,
    /// The guest memory that front ends have mapped.
    #[serde(default)]
    pub guest_memory: GuestMemoryStatus,
}

/// The guest memory that all front ends together have mapped, and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestMemoryStatus {
    /// Bytes of this process's addresses.
    pub addresses_bytes: u64,
    /// `guest-addresses-max`.
    pub addresses_bytes_max: u64,
    /// Mappings.
    pub mappings: u64,
    /// `guest-mappings-max`.
    pub mappings_max: u64,
    /// How often a front end was refused memory, because its own limit or the common one was
    /// reached.
    pub refused: u64,
}

/// A polling thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SidecoreStatus {
    /// Its index on the node.
    pub index: usize,
    /// The core that it is pinned to.
    pub core: Option<usize>,
    /// `spin`, `adaptive` or `sleep`.
    pub idle: String,
    /// Its own address for sessions.
    pub address: Option<String>,
    /// Its round does not end, and why, as far as that can be known: all that it serves stands
    /// still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckStatus>,
    /// Numbers about its rounds, by name.
    pub counters: Counters,
}

/// A sidecore that is stuck.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckStatus {
    /// Since its last step, in milliseconds.
    pub for_ms: u64,
    /// In what, such as `serving disk "alice", blocked in write`.
    pub what: String,
}

/// A volume of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its backend in words, such as `file /var/lib/vrio/alice.img (direct)`.
    pub backend: String,
    /// Its size.
    pub size_bytes: u64,
    /// Its smallest unit.
    pub block_bytes: u32,
    /// `flush` or `write-through`.
    pub durability: String,
    /// Writes are refused.
    pub read_only: bool,
    /// Several attachments at once may use it.
    pub shared: bool,
    /// The present incarnation.
    pub incarnation: String,
    /// The stages that every request passes.
    pub chain: Vec<String>,
    /// The copy of this node, of a volume with copies on several nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyStatus>,
    /// Its snapshots by time: `1h:24` is one in each hour, of which 24 stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<String>,
    /// Why it takes no requests: its pool is not open, or its storage failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Why the last of these snapshots was not taken, or an old one not removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots_problem: Option<String>,
    /// The nodes whose disks may use it, `vm1`, or with an attachment key, `vm1 (key ..)`.
    pub allow: Vec<String>,
    /// The disks that use it now.
    pub attachments: Vec<AttachmentStatus>,
    /// Numbers about its requests, by name.
    pub counters: Counters,
    /// How long its requests took, if its chain has a meter.
    #[serde(default)]
    pub latencies: Latencies,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
}

/// A node's part in a volume with copies on several nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CopyRole {
    /// Its copy lacks writes: it waits for the primary, or gets what it lacks.
    #[default]
    Outside,
    /// Its copy has each write, and another node serves the volume.
    Backup,
    /// It is the next primary, and makes all copies equal first.
    TakesOver,
    /// It serves the volume.
    Primary,
    /// It has stopped.
    Failed,
}

/// The copy of a node, of a volume with copies on several nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyStatus {
    /// The node's part.
    pub role: CopyRole,
    /// The node that serves the volume, as far as this node knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<String>,
    /// The number of the record that the node knows: each change of the nodes below has one.
    pub epoch: u64,
    /// The nodes whose copies have each acknowledged write.
    pub in_sync: Vec<String>,
    /// The nodes with copies that lack writes.
    pub missing: Vec<String>,
    /// The nodes with copies by their places, of a volume that the cluster has placed; a place that
    /// a copy has left is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
    /// The nodes whose copies must go: the volume goes on without them as soon as it can.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<String>,
    /// The nodes with copies that are smaller than the volume: a copy is filled when it has grown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub small: Vec<String>,
    /// The size of the copy in its pool, of a volume that the cluster has placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub has_bytes: Option<u64>,
    /// The size that users have, as the node's agent has told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves_bytes: Option<u64>,
    /// The nodes of copies that this node fills as the primary, with the percent that they have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub filling: BTreeMap<String, u8>,
    /// Why the copy has stopped, or waits; empty if it does neither.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// The bytes of damaged blocks that were repaired from other copies since the node started.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub repaired_bytes: u64,
    /// The offsets in bytes of blocks of 4 KiB that no copy in sync can be read at, as far as reads
    /// have met them: the first 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<u64>,
    /// The scrub of the copies, on the node that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<CopyScrub>,
}

/// A disk, here or elsewhere, that uses a volume of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentStatus {
    /// Its name.
    pub name: String,
}

/// A disk that this node shows to a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStatus {
    /// Its name.
    pub name: String,
    /// Its vhost-user socket.
    pub socket: String,
    /// The volume behind it: `volume` or `peer/volume`.
    pub volume: String,
    /// Its cluster has placed the volume: the peers are the nodes of the placement, and follow it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub placed: bool,
    /// How many queues it offers.
    pub queues: u16,
    /// One word: see [`DiskState`].
    pub state: DiskState,
    /// More words, for people.
    pub detail: String,
    /// Its size, once known.
    pub size_bytes: Option<u64>,
    /// The epoch of its attachment, while it has one.
    pub epoch: Option<u64>,
    /// Numbers about its requests, by name.
    pub counters: Counters,
    /// How long the guest's requests took, since the node started.
    #[serde(default)]
    pub latencies: Latencies,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
    /// The process that is connected to its socket, such as a guest's QEMU.
    #[serde(default)]
    pub front_end_pid: Option<u32>,
    /// Each queue that was ever started, in their order.
    #[serde(default)]
    pub by_queue: Vec<QueueStatus>,
    /// Each sidecore that ever served it, in their order.
    #[serde(default)]
    pub by_sidecore: Vec<ShareStatus>,
    /// Whether its volume answers, where that is another node's. Asked for every few seconds,
    /// whether a guest uses the disk or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<ReachStatus>,
    /// Its cache, if it should have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheStatus>,
}

/// The cache of a disk in a pool of the disk's node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStatus {
    /// The pool.
    pub pool: String,
    /// The space that it may have.
    pub size_bytes: u64,
    /// The bytes that it has.
    pub cached_bytes: u64,
    /// Whether it answers reads now.
    pub is_used: bool,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_unused: Option<String>,
    /// Reads that it has answered.
    pub hits: u64,
    /// Reads that went to the volume's node.
    pub misses: u64,
    /// How often it was emptied.
    pub emptied: u64,
    /// Requests that its pool failed.
    pub errors: u64,
    /// Writes that complete in the pool, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_back: Option<WriteBackStatus>,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Writes of a disk that its node's pool has, and the disk's volume has not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteBackStatus {
    /// Their bytes.
    pub dirty_bytes: u64,
    /// The most that there may be.
    pub dirty_bytes_max: u64,
    /// For how long the oldest of them wait; for writes of an earlier process since this process
    /// has found them.
    pub dirty_for_s: u64,
    /// When they are sent at the latest.
    pub dirty_age_max_s: u64,
    /// Why the disk's requests wait, or writes go to the volume's node at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_waits: Option<String>,
    /// Volumes of the pool with writes that were not written back, since another client has had
    /// the disk's volume meanwhile, or the pool was put back to an older copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stranded: Vec<String>,
    /// Blocks of 4 KiB of them that the pool could not read when it was asked last. They are not
    /// written back.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged_blocks: u64,
    /// The places of some of these blocks in the disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged_at_bytes: Vec<u64>,
    /// Requests for them that failed.
    pub errors: u64,
}

/// Whether a volume of another node answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachStatus {
    /// `answers`; `away`: its node does not answer; `refused`: that node has no such volume for
    /// this one; `unknown` before the first question.
    pub state: String,
    /// For how long it has answered, or has not (`away` and `refused` count together).
    pub for_s: u64,
    /// Why it does not answer.
    pub why: Option<String>,
    /// How often it has ceased to answer.
    pub outages: u64,
}

/// A queue of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Its number in the disk, from 0.
    pub queue: usize,
    /// The guest has started it, and it is served.
    pub running: bool,
    /// The sidecore that serves it, or did last.
    pub sidecore: usize,
    /// `requests`, `moves` and `moves_refused`.
    pub counters: Counters,
}

/// One sidecore's work for a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareStatus {
    /// The sidecore's index.
    pub sidecore: usize,
    /// `requests`.
    pub counters: Counters,
}

/// How long requests of one kind took: counts that only ever grow, to 3 %.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Requests.
    pub count: u64,
    /// All their times together.
    pub sum_ns: u64,
    /// For each of [`LATENCY_BUCKETS_NS`], how many took that long at most.
    pub buckets: Vec<u64>,
}

impl LatencyStatus {
    /// The time that a share (0 to 1) of the requests stayed below, between two of the buckets'
    /// bounds by proportion. `None` where there were none.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let rank = (share * self.count as f64).ceil().clamp(1.0, self.count as f64);
        let (mut below_ns, mut below) = (0, 0);
        for (bound_ns, upto) in LATENCY_BUCKETS_NS.iter().zip(&self.buckets) {
            if *upto as f64 >= rank {
                let part = (rank - below as f64) / upto.saturating_sub(below).max(1) as f64;
                return Some(below_ns + ((bound_ns - below_ns) as f64 * part) as u64);
            }
            (below_ns, below) = (*bound_ns, *upto);
        }
        // Longer than the longest bucket.
        Some(below_ns)
    }

    /// The counts since an earlier look.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        Self {
            count: self.count.saturating_sub(earlier.count),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            buckets: self.buckets.iter().zip(before).map(|(n, b)| n.saturating_sub(b)).collect(),
        }
    }

    /// Adds the counts of another status.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.sum_ns += other.sum_ns;
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(bucket, more)| *bucket += more);
    }
}

/// Another node whose volumes this node's disks may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// Where it listens; absent for a peer that only connects to this node.
    pub address: Option<String>,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
    /// The disks that use its volumes.
    #[serde(default)]
    pub disks: Vec<String>,
}

/// A network of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Its name.
    pub name: String,
    /// The way to what is outside, such as `tap:vrio0`.
    pub uplink: Option<String>,
    /// Whether the uplink is there.
    pub uplink_up: Option<bool>,
    /// Why the uplink is away, or cannot be looked at.
    #[serde(default)]
    pub uplink_why: Option<String>,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
    /// The sidecore that it lives on.
    pub sidecore: usize,
    /// Its nics.
    pub nics: Vec<String>,
    /// Nics of other nodes that have joined it.
    #[serde(default)]
    pub members: Vec<MemberStatus>,
    /// Counters of the uplink, named `uplink_..`, and of the switch.
    pub counters: Counters,
}

/// A domain of this node's fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainStatus {
    /// Its name.
    pub name: String,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
    /// The socket at which processes join it.
    pub socket: String,
    /// The file of its key.
    pub key: String,
    /// Endpoints that there are.
    pub endpoints: usize,
    /// Endpoints that there may be.
    pub endpoints_max: usize,
    /// Processes that have joined.
    pub members: usize,
    /// The size of the memory that the endpoints share. Memory is taken for used parts only.
    pub region_bytes: u64,
    /// The size of the parts that were ever used.
    #[serde(default)]
    pub used_bytes: u64,
    /// The peers that its messages go to.
    #[serde(default)]
    pub peers: Vec<DomainPeerStatus>,
    /// Counters of its gateways, all of them together.
    #[serde(default)]
    pub counters: Counters,
}

/// A peer of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainPeerStatus {
    /// Its name.
    pub name: String,
    /// Whether messages can be sent to it.
    pub is_joined: bool,
    /// Its host's name in the addresses of endpoints, if it is known.
    pub host: Option<String>,
    /// Why they cannot.
    pub why: Option<String>,
}

/// A virtual machine's window into a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VfStatus {
    /// Its name.
    pub name: String,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
    /// The domain.
    pub domain: String,
    /// The socket at which its QEMU calls.
    pub socket: String,
    /// The QEMU that is connected, if one is.
    pub process: Option<u32>,
    /// Endpoints of processes inside of the VM.
    pub endpoints: usize,
    /// Requests of processes that had no key of the domain.
    pub denied: u64,
    /// Where the node shows the domain's memory, for an NVDIMM over it: while this node runs.
    #[serde(default)]
    pub memory: String,
}

/// A nic of another node in a network of this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its node.
    pub peer: String,
    /// Its name there.
    pub nic: String,
    /// Its guest's address.
    pub mac: String,
    /// Counters of its port; `in` counts frames that the nic sent.
    pub counters: Counters,
}

/// A network card that this node shows to a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicStatus {
    /// Its name.
    pub name: String,
    /// Its vhost-user socket.
    pub socket: String,
    /// The network that it is in.
    pub network: String,
    /// The guest's address.
    pub mac: String,
    /// How many pairs of queues it offers.
    pub pairs: u16,
    /// The largest packet in bytes.
    pub mtu: u16,
    /// Where it came from.
    #[serde(default)]
    pub origin: Origin,
    /// Its stages, each in words.
    #[serde(default)]
    pub chain: Vec<String>,
    /// Whether its guest's cable is plugged in.
    #[serde(default)]
    pub link: bool,
    /// One word: see [`DiskState`].
    pub state: DiskState,
    /// More words, for people.
    pub detail: String,
    /// The process that is connected to its socket, such as a guest's QEMU.
    pub front_end_pid: Option<u32>,
    /// Counters of its port; `in` counts frames that the guest sent.
    pub counters: Counters,
}

/// States of a disk or nic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskState {
    /// Its volume is not known yet, so there is no socket yet.
    #[default]
    Waiting,
    /// The socket is there and no guest uses it.
    Ready,
    /// A guest uses it.
    Running,
    /// Its volume is out of reach, whether a guest uses it or not.
    Lost,
    /// The attachment has ended for good; `detail` says why.
    Failed,
}

impl std::fmt::Display for DiskState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Lost => "lost",
            Self::Failed => "failed",
        })
    }
}

/// A session with another node's sidecore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The peer's name, once it has said it.
    pub peer: String,
    /// Its sidecore's address.
    pub address: String,
    /// The sidecore here.
    pub sidecore: usize,
    /// The session's index between the two nodes.
    pub index: u16,
    /// `connecting`, `half-open` or `connected`.
    pub state: String,
    /// Whether this node began it.
    pub outgoing: bool,
    /// The protocol's version, 0 while connecting.
    pub protocol: u32,
    /// Both ends have proved their identity, and packets are encrypted.
    #[serde(default)]
    pub sealed: bool,
    /// The cipher that encrypts packets.
    #[serde(default)]
    pub cipher: Option<String>,
    /// The public key by which the peer proved its identity.
    #[serde(default)]
    pub peer_key: Option<String>,
    /// When that key ends, as `2027-01-01T00:00:00Z`.
    #[serde(default)]
    pub key_expires: Option<String>,
    /// Numbers about its packets and calls, by name.
    pub counters: Counters,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: &str = r#"{
  "version": 1,
  "node": {
    "name": "",
    "release": "",
    "pid": 0,
    "uptime_s": 0,
    "listen": null,
    "shm": null,
    "trust": "",
    "key": null,
    "file": "",
    "differs": [],
    "draining": false,
    "guest_memory": {
      "addresses_bytes": 0,
      "addresses_bytes_max": 0,
      "mappings": 0,
      "mappings_max": 0,
      "refused": 0
    }
  },
  "sidecores": [
    {
      "index": 0,
      "core": null,
      "idle": "",
      "address": null,
      "counters": {}
    }
  ],
  "volumes": [
    {
      "name": "",
      "backend": "",
      "size_bytes": 0,
      "block_bytes": 0,
      "durability": "",
      "read_only": false,
      "shared": false,
      "incarnation": "",
      "chain": [],
      "allow": [],
      "attachments": [
        {
          "name": ""
        }
      ],
      "counters": {},
      "latencies": {},
      "origin": "file"
    }
  ],
  "disks": [
    {
      "name": "",
      "socket": "",
      "volume": "",
      "queues": 0,
      "state": "running",
      "detail": "",
      "size_bytes": null,
      "epoch": null,
      "counters": {},
      "latencies": {
        "read": {
          "count": 0,
          "sum_ns": 0,
          "buckets": []
        }
      },
      "origin": "file",
      "front_end_pid": null,
      "by_queue": [
        {
          "queue": 0,
          "running": false,
          "sidecore": 0,
          "counters": {}
        }
      ],
      "by_sidecore": [
        {
          "sidecore": 0,
          "counters": {}
        }
      ]
    }
  ],
  "sessions": [
    {
      "peer": "",
      "address": "",
      "sidecore": 0,
      "index": 0,
      "state": "",
      "outgoing": false,
      "protocol": 0,
      "sealed": false,
      "cipher": null,
      "peer_key": null,
      "key_expires": null,
      "counters": {}
    }
  ],
  "peers": [
    {
      "name": "",
      "address": null,
      "origin": "file",
      "disks": []
    }
  ]
}"#;

    /// A change here that is not an addition needs a new [`STATUS_VERSION`].
    #[test]
    fn the_shape_of_version_1_stays() {
        let status = Status {
            version: STATUS_VERSION,
            sidecores: vec![SidecoreStatus::default()],
            volumes: vec![VolumeStatus {
                attachments: vec![AttachmentStatus::default()],
                ..VolumeStatus::default()
            }],
            disks: vec![DiskStatus {
                state: DiskState::Running,
                latencies: [("read".to_owned(), LatencyStatus::default())].into(),
                by_queue: vec![QueueStatus::default()],
                by_sidecore: vec![ShareStatus::default()],
                ..DiskStatus::default()
            }],
            sessions: vec![SessionStatus::default()],
            peers: vec![PeerStatus::default()],
            ..Status::default()
        };
        let text = serde_json::to_string_pretty(&status).unwrap();
        assert_eq!(text, SHAPE);
        assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }

    #[test]
    fn a_quantile_lies_in_its_bucket() {
        assert_eq!(LATENCY_BUCKETS_NS[..4], [1_000, 2_000, 5_000, 10_000]);
        assert_eq!(LATENCY_BUCKETS_NS[23], 50_000_000_000);
        // Ten up to 2 us, ten more up to 5 us, one that is longer than all buckets.
        let mut buckets = vec![20; 24];
        (buckets[0], buckets[1]) = (0, 10);
        let all = LatencyStatus { count: 21, sum_ns: 1, buckets };
        assert_eq!(all.quantile_ns(0.0), Some(1_100));
        assert_eq!(all.quantile_ns(0.5), Some(2_300));
        assert_eq!(all.quantile_ns(1.0), Some(50_000_000_000));
        assert_eq!(LatencyStatus::default().quantile_ns(0.5), None);
        let mut twice = all.clone();
        twice.add(&all);
        assert_eq!(twice.since(&all), all);
    }

    #[test]
    fn unknown_fields_are_skipped() {
        let text = r#"{ "name": "a", "novelty": 1 }"#;
        let known: AttachmentStatus = serde_json::from_str(text).unwrap();
        assert_eq!(known.name, "a");
    }
}
