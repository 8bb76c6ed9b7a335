//! A whole configuration as data.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use crate::kinds::peer::PeerConfig;
use crate::kinds::{Kind, ObjectConfigs};
use crate::reader::Lines;
use crate::sections::{
    ClusterConfig, Directories, LinkConfig, MemoryConfig, Privileges, Sidecores, Trust, Watchdog,
};

/// A configuration that has been read and found consistent.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file, for messages.
    pub path: PathBuf,
    /// The node's name, as peers write it into `allow` and `[[peer]]`.
    pub name: String,
    /// Where peers reach this node; `None` for a node with local disks only.
    pub listen: Option<SocketAddr>,
    /// The socket at which nodes of this machine call for shared memory.
    pub shm: Option<PathBuf>,
    /// The file of this node's secret key: with it sessions are sealed.
    pub key: Option<PathBuf>,
    /// Whether the network between the nodes is trusted, for a node without a key.
    pub trust: Trust,
    /// The control socket's path.
    pub control: PathBuf,
    /// Where Prometheus asks for metrics, if it may.
    pub metrics_listen: Option<SocketAddr>,
    /// The user that the node becomes when it was started as root.
    pub user: Option<String>,
    /// Whether the node gives up the rights that it does not need.
    pub privileges: Privileges,
    /// The messages to the service manager about a sidecore that is stuck.
    pub watchdog: Watchdog,
    /// The pools' sizes.
    pub memory: MemoryConfig,
    /// The polling threads.
    pub sidecores: Sidecores,
    /// Where files and sockets may be.
    pub directories: Directories,
    /// The node's part in a cluster; `None` for a node of no cluster.
    pub cluster: Option<ClusterConfig>,
    /// The objects: also reached as fields of the configuration itself, such as `config.disks`.
    pub objects: ObjectConfigs,
    /// The socket at which processes join a domain.
    pub fabric: PathBuf,
    /// How datagrams are treated on their way; for tests.
    pub link: LinkConfig,
    /// Where the keys of the file as a whole are.
    pub lines: Lines,
}

impl Deref for Config {
    type Target = ObjectConfigs;

    fn deref(&self) -> &ObjectConfigs {
        &self.objects
    }
}

impl DerefMut for Config {
    fn deref_mut(&mut self) -> &mut ObjectConfigs {
        &mut self.objects
    }
}

impl Config {
    /// The directory in which the node remembers how it holds the volumes of its own disks: with
    /// the records of its volumes, or else beside its sockets, or beside its control socket. So
    /// there is always a place. Beside sockets it lasts as long as the guests do, until the host is
    /// started again.
    pub fn memory_directory(&self) -> PathBuf {
        let Directories { state, sockets, .. } = &self.directories;
        let beside =
            || sockets.as_deref().or_else(|| self.control.parent()).unwrap_or("/".as_ref());
        state.clone().unwrap_or_else(|| beside().join(".vrio"))
    }

    /// `file:line` of a key, for messages.
    pub fn place(&self, lines: &Lines, key: &str) -> String {
        format!("{}:{}", self.path.display(), lines.of(key))
    }

    /// Whether peers may open sessions: whether the configuration has anything for them.
    pub fn is_for_peers(&self) -> bool {
        Kind::all().any(|kind| kind.row().is_for_peers(&self.objects))
    }

    /// The peer of that name.
    pub fn peer(&self, name: &str) -> Option<&PeerConfig> {
        self.peers.iter().find(|peer| peer.name == name)
    }
}
