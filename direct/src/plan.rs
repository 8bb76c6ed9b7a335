//! The plan of a direct client, from the command line, and the configuration of its small node.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};

use block::AttachOptions;
use block::ublk::Shape;
use config::{Config, ConfigError, LinkKind, VolumeRef};
use sessions::{ConnectError, random};
use sidecore::Idle;

/// The plan that the command line gives.
#[derive(Clone, Debug)]
pub struct AttachPlan {
    /// This client's name, as the peer knows it.
    pub name: String,
    /// The volume to attach.
    pub volume: VolumeRef,
    /// Where its node listens: `HOST:PORT`, or `shm:PATH` for a node of this machine.
    pub peer: String,
    /// The file of this client's secret key; with it the session is sealed.
    pub key: Option<PathBuf>,
    /// The node's public key.
    pub peer_key: Option<String>,
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

/// Faults of a command line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A volume without its node.
    #[error("{0:?} is not a volume of another node; write NODE/VOLUME, such as io1/alice-root")]
    NoVolume(String),
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
    /// The volume that `words` name.
    ///
    /// # Errors
    /// When it is not of the form `NODE/VOLUME`.
    pub fn volume_of(words: &str) -> Result<VolumeRef, PlanError> {
        let parts = words.split_once('/').filter(|(peer, volume)| is_name(peer) && is_name(volume));
        let (peer, volume) = parts.ok_or_else(|| PlanError::NoVolume(words.to_owned()))?;
        let (peers, volume) = (vec![peer.to_owned()], volume.to_owned());
        Ok(VolumeRef { peers, volume, is_placed: false })
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
        let (peer, listen) = self.reach()?;
        let text = self.text(&peer, listen);
        Config::parse(Path::new("attach"), &text).map_err(|error| words(&error))
    }

    /// The peer's address, as a configuration has it, and our address on the way there.
    fn reach(&self) -> Result<(String, SocketAddr), PlanError> {
        if self.peer.starts_with("shm:") {
            return Ok((self.peer.clone(), SocketAddr::from(([127, 0, 0, 1], 0))));
        }
        let peer = resolve(&self.peer)?;
        let listen = own_address(peer).map_err(|error| PlanError::Address {
            address: self.peer.clone(),
            why: format!("this machine has no route to it: {error}"),
        })?;
        Ok((peer.to_string(), listen))
    }

    fn text(&self, peer: &str, listen: SocketAddr) -> String {
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
        let name = self.volume.peers.first().map(String::as_str).unwrap_or_default();
        text.push_str(&format!("[[peer]]\nname = {name:?}\naddress = \"{peer}\"\n"));
        if let Some(key) = &self.peer_key {
            text.push_str(&format!("key = {key:?}\n"));
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
            peer: "127.0.0.1:4870".to_owned(),
            key: None,
            peer_key: None,
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
        for words in ["", "io1", "io1/", "/root", "io1/a/b", "io1/a b", "../x", "io1/.."] {
            let error = AttachPlan::volume_of(words).unwrap_err().to_string();
            assert!(error.contains("NODE/VOLUME"), "{words}: {error}");
        }
    }

    #[test]
    fn invalid_values_are_named_with_their_option() {
        let shape = Shape { queues: 0, depth: 64 };
        assert!(refusal(&AttachPlan { shape, ..plan() }).contains("--queues 0"));
        let shape = Shape { queues: 64, depth: 4096 };
        assert!(refusal(&AttachPlan { shape, ..plan() }).contains("at most 1024"));
        for address in ["", "10.0.0.9", "10.0.0.9:x"] {
            let error = refusal(&AttachPlan { peer: address.to_owned(), ..plan() });
            assert!(error.contains("HOST:PORT"), "{address}: {error}");
        }
        let error = refusal(&AttachPlan { peer_key: Some("abc".to_owned()), ..plan() });
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
