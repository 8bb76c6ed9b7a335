//! The plan of a direct client, from the command line, and the configuration of its small node.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

use block::AttachOptions;
use block::ublk::Shape;
use config::{
    Config, ConfigError, LinkKind, PeerConfig, SOCKET_PATH_BYTES_MAX, VolumeRef, placed_peers,
};
use serde::{Deserialize, Serialize};
use sessions::{ConnectError, random};
use sidecore::Idle;

use crate::home::Home;

/// The prefix of the address of a node of this machine.
const SHARED: &str = "shm:";

/// The plan that the command line gives.
#[derive(Clone, Debug)]
pub struct AttachPlan {
    /// This client's name, as the peer knows it.
    pub name: String,
    /// The volume to attach.
    pub volume: VolumeRef,
    /// How its nodes are reached, in their order; of a placed volume, none.
    pub peers: Vec<AttachPeer>,
    /// Of a placed volume, the file in which the agent of a node keeps where its copies are.
    pub placements: Option<PathBuf>,
    /// The file of this client's secret key; with it the session is sealed.
    pub key: Option<PathBuf>,
    /// Without a key: every host that reaches the address is trusted.
    pub trust_network: bool,
    /// The name of the attachment in the volume's records.
    pub attachment: String,
    /// The file of the key that proves whose attachment it is.
    pub attachment_key: Option<PathBuf>,
    /// Queues and depth of a device that is made.
    pub shape: Shape,
    /// The sidecore's behaviour without work.
    pub idle: Idle,
    /// The way of datagrams.
    pub link: LinkKind,
    /// The core that it polls on; any, if none is named.
    pub core: Option<usize>,
    /// End another attachment's use of the volume.
    pub take_over: bool,
    /// Go on although acknowledged writes may be lost.
    pub accept_loss: bool,
    /// Requests end in an error after this time without the volume; `None` waits for ever.
    pub error_after_ns: Option<u64>,
    /// Where clients of this machine leave their records.
    pub directory: PathBuf,
}

/// A node that may serve the volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachPeer {
    /// Where it listens: `HOST:PORT`, or `shm:PATH` for a node of this machine.
    pub address: String,
    /// Its public key.
    pub key: Option<String>,
}

/// Faults of a command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A volume without its node.
    #[error(
        "{0:?} is not a volume of another node; write NODE/VOLUME, such as io1/alice-root, or \
         io1,io2/alice for a volume with copies on several nodes"
    )]
    NoVolume(String),
    /// Addresses or keys that do not belong to the nodes of the volume.
    #[error(
        "{volume} has {nodes} nodes, and {option} is given {given} times: give it for each of \
         them, in their order"
    )]
    Count {
        /// The volume.
        volume: String,
        /// How many nodes it has.
        nodes: usize,
        /// The option.
        option: &'static str,
        /// How often it is given.
        given: usize,
    },
    /// A volume that is named alone, and of which the file does not know the nodes.
    #[error(
        "the file {path:?} knows no node of volume {volume:?}: is it placed (`vrio cluster \
         status`), has a copy on the file's node or that node in its --allow, and has no copy on a \
         node {name:?}? Or write its nodes, such as io1,io2/{volume}"
    )]
    NotPlaced {
        /// The volume.
        volume: String,
        /// The client's name.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// The node's address is not usable.
    #[error("--peer {address:?}: {why}; write HOST:PORT, such as 10.0.0.9:4870")]
    Address {
        /// The address as given.
        address: String,
        /// The fault.
        why: String,
    },
    /// A text that does not fit the configuration of a node.
    #[error("{0}")]
    Words(String),
    /// Queues or depth are out of range.
    #[error(
        "--queues {queues} --depth {depth}: a disk has at least one queue and one request at a \
         time, and at most {places} in all",
        queues = .0.queues, depth = .0.depth, places = block::ublk::device::PLACES_MAX
    )]
    Shape(Shape),
}

impl AttachPlan {
    /// The volume that `words` name: `NODE/VOLUME`, `NODE,NODE/VOLUME`, or a placed volume alone.
    ///
    /// # Errors
    /// When it is of no such form.
    pub fn volume_of(words: &str) -> Result<VolumeRef, PlanError> {
        let (peers, volume) = match words.split_once('/') {
            Some((peers, volume)) => (peers.split(',').collect(), volume),
            None => (Vec::new(), words),
        };
        if !peers.iter().copied().chain([volume]).all(is_name) {
            return Err(PlanError::NoVolume(words.to_owned()));
        }
        if let Some(problem) = VolumeRef::peers_problem(&peers) {
            return Err(PlanError::Words(format!("{words:?} {problem}")));
        }
        let is_placed = peers.is_empty();
        let peers = peers.into_iter().map(str::to_owned).collect();
        Ok(VolumeRef { peers, volume: volume.to_owned(), is_placed })
    }

    /// Checks all parts of the plan that can be checked without a start.
    ///
    /// # Errors
    /// The fault of the plan.
    pub fn check(&self) -> Result<(), PlanError> {
        self.config().map(drop)
    }

    /// The configuration of the node that this client is, checked like any other.
    ///
    /// # Errors
    /// The fault of the plan.
    pub(crate) fn config(&self) -> Result<Config, PlanError> {
        if !self.shape.is_possible() {
            return Err(PlanError::Shape(self.shape));
        }
        if !is_name(&self.attachment) {
            let text = format!("--attachment {:?} is no name", self.attachment);
            return Err(PlanError::Words(text));
        }
        // Before there is a device: a client without a socket cannot be told to remove it.
        let socket = Home::at(&self.directory, &self.volume).socket();
        if socket.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(PlanError::Words(format!(
                "the client's socket {socket:?} is longer than {SOCKET_PATH_BYTES_MAX} bytes: name \
                 a shorter --directory, or fewer nodes"
            )));
        }
        let peers = self.reach()?;
        let listen = self.listen(&peers)?;
        let text = self.text(&peers, listen);
        Config::parse(Path::new("attach"), &text).map_err(|error| words(&error))
    }

    /// The nodes with their addresses as a configuration has them.
    fn reach(&self) -> Result<Vec<(String, AttachPeer)>, PlanError> {
        if let Some(path) = &self.placements {
            let found = nodes_of(path, &self.volume.volume, &self.name);
            let found: Vec<_> = found.unwrap_or_default().iter().map(attach_peer).collect();
            // Users of a disk wait for the nodes that it had, also if the file is gone.
            let nodes = match found.is_empty() {
                true => self.last_nodes(),
                false => found,
            };
            if nodes.is_empty() {
                let (volume, name) = (self.volume.volume.clone(), self.name.clone());
                return Err(PlanError::NotPlaced { volume, name, path: path.clone() });
            }
            return Ok(nodes);
        }
        let names = &self.volume.peers;
        if names.is_empty() {
            return Err(PlanError::NoVolume(self.volume.to_string()));
        }
        let given = self.peers.len();
        if given != names.len() {
            let (volume, nodes) = (self.volume.to_string(), names.len());
            return Err(PlanError::Count { volume, nodes, option: "--peer", given });
        }
        let reach = |(name, peer): (&String, &AttachPeer)| {
            let AttachPeer { address, key } = peer;
            let address = match address.starts_with(SHARED) {
                true => address.clone(),
                false => resolve(address)?.to_string(),
            };
            Ok((name.clone(), AttachPeer { address, key: key.clone() }))
        };
        names.iter().zip(&self.peers).map(reach).collect()
    }

    /// The nodes of a placed volume that a disk of this machine had last.
    fn last_nodes(&self) -> Vec<(String, AttachPeer)> {
        let record = Home::at(&self.directory, &self.volume).record().ok().flatten();
        record.map(|it| it.nodes.into_iter().collect()).unwrap_or_default()
    }

    /// Our address on the way to the nodes: to the first node with a route.
    fn listen(&self, peers: &[(String, AttachPeer)]) -> Result<SocketAddr, PlanError> {
        let mut refused = None;
        for (_, AttachPeer { address, .. }) in peers {
            if address.starts_with(SHARED) {
                continue;
            }
            match own_address(resolve(address)?) {
                Ok(own) => return Ok(own),
                Err(error) => refused = refused.or(Some((address, error))),
            }
        }
        let Some((address, error)) = refused else {
            return Ok(SocketAddr::from(([127, 0, 0, 1], 0)));
        };
        Err(PlanError::Address {
            address: address.clone(),
            why: format!("this machine has no route to it: {error}"),
        })
    }

    fn text(&self, peers: &[(String, AttachPeer)], listen: SocketAddr) -> String {
        let mut text = format!("name = {:?}\nlisten = \"{listen}\"\n", self.name);
        let mut line = |key: &str, value: &dyn fmt::Display| {
            text.push_str(&format!("{key} = {:?}\n", value.to_string()));
        };
        if let Some(key) = &self.key {
            line("key", &key.display());
        }
        if self.trust_network {
            line("trust", &"network");
        }
        line("link", &self.link);
        // It is not made: a node must have a path.
        line("control", &self.directory.join("control").display());
        let cores = self.core.map_or("count = 1".to_owned(), |core| format!("cores = [{core}]"));
        text.push_str(&format!("[sidecores]\n{cores}\nidle = \"{}\"\n", self.idle));
        for (name, AttachPeer { address, key }) in peers {
            text.push_str(&format!("[[peer]]\nname = {name:?}\naddress = {address:?}\n"));
            if let Some(key) = key {
                text.push_str(&format!("key = {key:?}\n"));
            }
        }
        text
    }

    /// The options of the attachment; `resume` when the client goes on with a disk.
    pub(crate) fn options(&self, resume: bool) -> Result<AttachOptions, ConnectError> {
        Ok(AttachOptions {
            resume,
            accept_loss: self.accept_loss,
            take_over: self.take_over,
            error_after_ns: self.error_after_ns,
            claimant: random()?,
            known: 0,
        })
    }
}

/// The nodes of a placed volume by the file of an agent. A node that has the key of an earlier one,
/// as a machine that was copied, is none.
pub(crate) fn nodes_of(file: &Path, volume: &str, own: &str) -> Option<Vec<PeerConfig>> {
    let mut nodes: Vec<PeerConfig> = Vec::new();
    for node in placed_peers(file, volume, own)? {
        let has_key = |it: &PeerConfig| node.keys.iter().any(|own| it.has_key(Some(own.key)));
        if !nodes.iter().any(has_key) {
            nodes.push(node);
        }
    }
    Some(nodes)
}

/// A node by its configuration, as the command line would give it.
pub(crate) fn attach_peer(peer: &PeerConfig) -> (String, AttachPeer) {
    let address = peer.address.as_ref().map(ToString::to_string).unwrap_or_default();
    let key = peer.keys.first().map(|it| it.key.to_string());
    (peer.name.clone(), AttachPeer { address, key })
}

fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=config::NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(letter)
        && text.as_bytes()[0].is_ascii_alphanumeric()
}

fn resolve(address: &str) -> Result<SocketAddr, PlanError> {
    let refuse = |why: String| PlanError::Address { address: address.to_owned(), why };
    let mut found = address.to_socket_addrs().map_err(|error| refuse(error.to_string()))?;
    found.next().ok_or_else(|| refuse("the name has no address".to_owned()))
}

/// The address of this machine on the way to `peer`: peers answer to one address.
fn own_address(peer: SocketAddr) -> std::io::Result<SocketAddr> {
    let any: SocketAddr =
        if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    // Nothing is sent.
    socket.connect(peer)?;
    Ok(SocketAddr::new(socket.local_addr()?.ip(), 0))
}

/// The problems without line numbers: this configuration was not written as a file.
fn words(error: &ConfigError) -> PlanError {
    let lines = error.problems.iter().map(|problem| match problem.object.as_str() {
        "" => problem.text.clone(),
        object => format!("{object}: {}", problem.text),
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    // Options of the command line replace the words of a configuration.
    let text = text.replace("write key = \"FILE\" at the top", "give it with --key FILE");
    let text = text.replace("write key = \"FILE\"", "give it with --key FILE");
    let text = text.replace("write key = \"..\" with", "give --peer-key with");
    PlanError::Words(text.replace("write trust = \"network\"", "give --trust-network"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> AttachPlan {
        AttachPlan {
            name: "web1".to_owned(),
            volume: AttachPlan::volume_of("io1/alice-root").unwrap(),
            peers: vec![AttachPeer { address: "127.0.0.1:4870".to_owned(), key: None }],
            placements: None,
            key: None,
            trust_network: false,
            attachment: "web1".to_owned(),
            attachment_key: None,
            shape: Shape { queues: 1, depth: 64 },
            idle: Idle::Adaptive,
            link: LinkKind::Udp,
            core: None,
            take_over: false,
            accept_loss: false,
            error_after_ns: None,
            directory: PathBuf::from("/run/vrio/attach"),
        }
    }

    fn refusal(plan: &AttachPlan) -> String {
        plan.config().unwrap_err().to_string()
    }

    #[test]
    fn a_plan_is_a_node_with_one_sidecore_and_one_peer() {
        let config = plan().config().unwrap();
        assert_eq!((config.name.as_str(), config.sidecores.cores.len()), ("web1", 1));
        assert!(config.peer("io1").is_some() && config.disks.is_empty());
        assert!(config.volumes.is_empty());
        assert_eq!(config.listen.unwrap(), "127.0.0.1:0".parse().unwrap());
    }

    #[test]
    fn wrong_names_of_volumes_are_refused() {
        for words in ["", "io1/", "/root", "io1/a/b", "io1/a b", "../x", "io1/..", "io1,/a", ",/a"]
        {
            let error = AttachPlan::volume_of(words).unwrap_err().to_string();
            assert!(error.contains("NODE/VOLUME"), "{words}: {error}");
        }
        let error = AttachPlan::volume_of("io1,io1/a").unwrap_err().to_string();
        assert!(error.contains("has peer \"io1\" twice"), "{error}");
    }

    #[test]
    fn a_volume_with_copies_has_a_peer_for_each_of_its_nodes() {
        let volume = AttachPlan::volume_of("io1,io2/alice").unwrap();
        assert_eq!((volume.to_string(), volume.is_placed), ("io1,io2/alice".to_owned(), false));
        let peer = |port: u16| AttachPeer { address: format!("127.0.0.1:{port}"), key: None };
        let two = AttachPlan { volume, peers: vec![peer(1), peer(2)], ..plan() };
        let config = two.config().unwrap();
        let address = |name: &str| config.peer(name).unwrap().address.as_ref().unwrap().to_string();
        assert_eq!(["io1", "io2"].map(address), ["127.0.0.1:1", "127.0.0.1:2"]);
        let error = refusal(&AttachPlan { peers: vec![peer(1)], ..two.clone() });
        assert!(error.contains("has 2 nodes, and --peer is given 1 times"), "{error}");
        // A placed volume is named alone, and its nodes are in a file.
        let volume = AttachPlan::volume_of("alice").unwrap();
        assert_eq!((volume.to_string(), volume.is_placed), ("alice".to_owned(), true));
        let placed = AttachPlan { volume, peers: Vec::new(), ..two };
        assert!(refusal(&placed).contains("NODE/VOLUME"));
        let placements = Some(PathBuf::from("/nowhere/placements.json"));
        let error = refusal(&AttachPlan { placements, ..placed });
        assert!(error.contains("knows no node of volume \"alice\""), "{error}");
    }

    #[test]
    fn invalid_values_are_named_with_their_option() {
        let shape = Shape { queues: 0, depth: 64 };
        assert!(refusal(&AttachPlan { shape, ..plan() }).contains("--queues 0"));
        let shape = Shape { queues: 64, depth: 4096 };
        assert!(refusal(&AttachPlan { shape, ..plan() }).contains("at most 1024"));
        for address in ["", "10.0.0.9", "10.0.0.9:x"] {
            let peers = vec![AttachPeer { address: address.to_owned(), key: None }];
            let error = refusal(&AttachPlan { peers, ..plan() });
            assert!(error.contains("HOST:PORT"), "{address}: {error}");
        }
        let mut peers = plan().peers;
        peers[0].key = Some("abc".to_owned());
        let error = refusal(&AttachPlan { peers, ..plan() });
        assert!(error.contains("not a public key"), "{error}");
        let error = refusal(&AttachPlan { name: "io1".to_owned(), ..plan() });
        assert!(error.contains("own name"), "{error}");
        let key = Some(PathBuf::from("/etc/vrio/web1.key"));
        let error = refusal(&AttachPlan { key, ..plan() });
        assert!(error.contains("--peer-key"), "{error}");
        let error = refusal(&AttachPlan { attachment: "a/b".to_owned(), ..plan() });
        assert!(error.contains("no name"), "{error}");
    }
}
