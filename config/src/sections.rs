//! The sections of the file as data, and the limits of what it may say.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use sidecore::Idle;

/// The longest name of a node, volume, disk or attachment: the head of a block message has room for
/// this.
pub const NAME_BYTES_MAX: usize = block::attachment::NAME_BYTES_MAX;

/// The longest path of a Unix socket: `sockaddr_un` has 108 bytes, one of which ends the path.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The most sidecores of a node: an attachment has one channel on each.
pub const SIDECORES_MAX: usize = block::attachment::CHANNELS_MAX;

/// The most queues of a disk; more than a guest has use for.
pub const QUEUES_MAX: u16 = 64;

/// How many queues a disk offers without the key. QEMU asks for one per virtual processor and
/// refuses a device with fewer, so small guests work without the key.
pub const QUEUES_DEFAULT: u16 = 4;

/// The most volumes, disks or peers in one file: each is a few kilobytes of state, and a mistake
/// in a generator should not become a machine without memory.
pub const OBJECTS_MAX: usize = 1024;

/// The most keys of one peer: while one key replaces another there are two. The keys of the most
/// peers fit into one keyring, beside the node's own.
pub const KEYS_PER_PEER_MAX: usize = 4;

/// Which networks a node without a key may listen on: its sessions are plain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Only this host's loopback.
    #[default]
    Loopback,
    /// The operator declares that each host which reaches the address is trusted.
    Network,
}

/// Whether a node gives up the rights that it does not need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Privileges {
    /// The node gives them up before it opens anything.
    #[default]
    Drop,
    /// The node keeps them: for a debugger, or to find out whether missing rights cause a fault.
    Keep,
}

/// The messages to the service manager about a sidecore that is stuck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Watchdog {
    /// The manager hears no difference: status, metrics and log report it, and other guests of the
    /// node go on.
    #[default]
    Report,
    /// The manager gets no more messages, so that it restarts the node.
    Restart,
}

/// The pools' sizes, and what front ends may have mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// The most that the bodies of messages take, on each sidecore.
    pub session_buffers_bytes: u64,
    /// Whether to ask for huge pages for them.
    pub huge_pages: bool,
    /// The kinds of files that guests' memory may be in, and how much of it front ends may map.
    pub guests: virtio::MemoryRules,
}

/// The default: enough for 256 large requests on each sidecore at once. The memory is taken from
/// the system as it is used.
pub const SESSION_BUFFERS_BYTES_DEFAULT: u64 = 256 << 20;

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            session_buffers_bytes: SESSION_BUFFERS_BYTES_DEFAULT,
            huge_pages: true,
            guests: virtio::MemoryRules::DEFAULT,
        }
    }
}

/// The polling threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecores {
    /// One entry per sidecore: the core that it is pinned to, if any.
    pub cores: Vec<Option<usize>>,
    /// The behaviour of a sidecore that finds no work.
    pub idle: Idle,
    /// The least number of sidecores that guests' queues are on, under any load.
    pub min: usize,
    /// The greatest number.
    pub max: usize,
}

impl Sidecores {
    /// All of these have queues, and no queue is ever moved.
    pub fn all(cores: Vec<Option<usize>>, idle: Idle) -> Self {
        let count = cores.len();
        Self { cores, idle, min: count, max: count }
    }

    /// Whether queues are moved by load.
    pub fn steers(&self) -> bool {
        self.min < self.cores.len()
    }
}

/// Where files and sockets may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directories {
    /// Where volumes' files are; relative names are looked up in the first.
    pub volumes: Vec<PathBuf>,
    /// Where disks' sockets are made.
    pub sockets: Option<PathBuf>,
    /// Where the durable records of attachments are.
    pub state: Option<PathBuf>,
    /// Where mirrors' files are made.
    pub captures: Option<PathBuf>,
}

/// The node's part in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The directory that `vrio node join` makes: the registry's place and a certificate.
    pub directory: PathBuf,
    /// The node's name in the cluster.
    pub name: String,
    /// The pools that the cluster sees; `None`: all of them.
    pub pools: Option<Vec<String>>,
    /// Where the keys of placed volumes are that are encrypted.
    pub volume_keys: PathBuf,
    /// Where the node is, by the kind of place: `rack` is `r1`.
    pub domain: BTreeMap<String, String>,
}

/// The process that makes a vhost-user socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// This node listens and the VMM connects.
    #[default]
    Listen,
    /// The VMM listens (`server=on`) and this node connects.
    Connect,
}

/// The way of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkKind {
    /// Through the system's network stack.
    #[default]
    Udp,
    /// Past the network stack where there is a way, else through it.
    Xdp,
    /// Past the stack where the card itself reads and writes our memory, else through it.
    Auto,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp",
            Self::Xdp => "xdp",
            Self::Auto => "auto",
        })
    }
}

/// How datagrams are treated on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// The way of the datagrams.
    pub kind: LinkKind,
    /// Faults to put in, for tests.
    pub fault: Option<FaultConfig>,
}

/// Shares of the datagrams that have a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Share that never arrives.
    pub loss: f64,
    /// Share that arrives twice.
    pub duplicate: f64,
    /// Share that arrives late, after younger ones.
    pub reorder: f64,
    /// Share that arrives with a flipped bit.
    pub corrupt: f64,
    /// The seed of the random numbers.
    pub seed: u64,
}
