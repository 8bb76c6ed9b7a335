//! The place of two nodes of the demo or a measurement: a folder, a network, and keys.

use std::fs::{self, File};
use std::io::Write;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Serialize;

use crate::cleanup::Cleanup;
use crate::nodes::{Node, NodeKeys, NodePlan};
use crate::progress::Progress;

/// The name of the IOhost's node, and of the host that its namespace stands for.
pub const IOHOST: &str = "io1";
/// The same of the VMhost.
pub const VMHOST: &str = "vm1";

/// The IOhost's address in the namespaces. No process outside of them can see it.
pub const IO_ADDRESS: &str = "10.77.0.9";
const VM_ADDRESS: &str = "10.77.0.1";

/// The name of the interface at each end of the virtual cable.
pub const CABLE: &str = "cable";

/// The length of a domain's key.
const DOMAIN_KEY_BYTES: usize = 16;

/// The link between the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeNetwork {
    /// Two network namespaces, joined by a virtual cable.
    Namespaces,
    /// The loopback device.
    Loopback,
}

/// The virtual cable between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct VirtualCable {
    /// Its longest packet; without it, the system's default.
    pub mtu: Option<u32>,
    /// The groups of packets that its ends take uncut.
    pub offloads: Offloads,
}

/// The groups of packets that an end of a cable takes from the network stack uncut. A virtual cable
/// takes all, and hands them over as they are; many cards cut TCP alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Offloads {
    /// Groups of TCP and of UDP.
    #[default]
    All,
    /// Groups of TCP. The stack cuts UDP's before the cable, and joins them again behind it.
    Tcp,
    /// None: each packet passes both stacks by itself.
    None,
}

impl Offloads {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::All, Self::Tcp, Self::None];

    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Tcp => "tcp",
            Self::None => "none",
        }
    }

    /// Whether it is what the system makes by itself.
    pub fn is_usual(&self) -> bool {
        *self == Self::All
    }

    /// The words for `ethtool -K` about an end of the cable.
    fn features(self) -> &'static [&'static str] {
        match self {
            Self::All => &[],
            // As cards do, by the stack itself.
            Self::Tcp => &["tx-udp-segmentation", "off", "gro", "on"],
            Self::None => &["tx-udp-segmentation", "off", "tso", "off", "gso", "off", "gro", "off"],
        }
    }
}

/// The folder and network of two nodes.
#[derive(Debug)]
pub struct Stage {
    /// The folder of all files.
    pub folder: PathBuf,
    program: PathBuf,
    /// The link between the nodes.
    pub network: NodeNetwork,
    /// The virtual cable, where there are namespaces.
    pub cable: VirtualCable,
    /// The address at which the IOhost listens.
    pub io_listen: String,
    /// The address at which the VMhost listens.
    pub vm_listen: String,
    /// The keys of the nodes.
    pub keys: NodeKeys,
    /// Removes all of it at the end.
    pub cleanup: Cleanup,
}

impl Stage {
    /// Makes a stage whose folder has `name` in its own name. Its nodes will run `program`, on the
    /// loopback device, with keys if `sealed`.
    ///
    /// # Errors
    /// When the folder or the keys cannot be made, or no port is free.
    pub fn new(name: &str, program: PathBuf, sealed: bool, cleanup: Cleanup) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("vrio-{name}-{}", std::process::id()));
        cleanup.path(folder.clone());
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        let [io, vm] = free_ports()?;
        let keys =
            if sealed { NodeKeys::make(&folder, &["io1", "vm1"])? } else { NodeKeys::plain() };
        Ok(Self {
            keys,
            folder,
            program,
            network: NodeNetwork::Loopback,
            cable: VirtualCable::default(),
            io_listen: format!("127.0.0.1:{io}"),
            vm_listen: format!("127.0.0.1:{vm}"),
            cleanup,
        })
    }

    /// Makes the two namespaces for the nodes.
    ///
    /// # Errors
    /// When that is not allowed here; the stage stays on the loopback device.
    pub fn separate(&mut self) -> Result<()> {
        make_hosts(self.cable, &self.cleanup)?;
        self.io_listen = format!("{IO_ADDRESS}:4870");
        self.vm_listen = format!("{VM_ADDRESS}:4870");
        self.network = NodeNetwork::Namespaces;
        Ok(())
    }

    /// Makes the namespaces if that is allowed, and reports the result.
    pub fn separate_if_allowed(&mut self, progress: &Progress) {
        if !rustix::process::geteuid().is_root() {
            progress.done("not root: the nodes meet on the loopback device, not in two namespaces");
            return;
        }
        progress.doing("making two network namespaces");
        match self.separate() {
            Ok(()) => progress.done("made two network namespaces, joined by a virtual cable"),
            Err(error) => progress.done(format!("no namespaces ({error:#}): loopback instead")),
        }
    }

    /// Whether the nodes have a network namespace each.
    pub fn has_namespaces(&self) -> bool {
        self.network == NodeNetwork::Namespaces
    }

    /// Makes a tap interface in a node's namespace, with an address. The interface stays when its
    /// node ends.
    ///
    /// # Errors
    /// When the stage has no namespaces, or the system refuses.
    pub fn make_tap(&self, node: &str, name: &str, address: &str) -> Result<()> {
        let namespace = self.namespace_of(node).context("nodes without namespaces")?;
        ip(&["-n", &namespace, "tuntap", "add", name, "mode", "tap"])?;
        ip(&["-n", &namespace, "addr", "add", address, "dev", name])?;
        ip(&["-n", &namespace, "link", "set", name, "up"])
    }

    /// A file of the stage.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Makes the key of a domain, in a file that only its owner can read. Gives the file and its
    /// content.
    ///
    /// # Errors
    /// When the key exists already, or there are no random numbers.
    pub fn make_domain_key(&self) -> Result<(PathBuf, String)> {
        let (key, mut secret) = (self.path("domain.key"), [0_u8; DOMAIN_KEY_BYTES]);
        aws_lc_rs::rand::fill(&mut secret)
            .map_err(|_| anyhow!("the system gives no random numbers"))?;
        let secret: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&key)?;
        file.write_all(secret.as_bytes())?;
        Ok((key, secret))
    }

    /// A node of this name in its namespace, with a key if there are any.
    pub fn plan(&self, name: &str, config: &str) -> NodePlan {
        let namespace = self.namespace_of(name);
        // Only these two nodes are in the two namespaces.
        let trusted = namespace.is_some() && !self.keys.is_sealed();
        let trust = if trusted { "trust = \"network\"\n" } else { "" };
        let config = format!("{}{trust}{config}", self.keys.own(name));
        NodePlan { namespace, ..NodePlan::new(&self.program, &self.folder, name, config) }
    }

    /// The network namespace of a node, if it has one.
    pub fn namespace_of(&self, node: &str) -> Option<String> {
        self.has_namespaces().then(|| namespace(node))
    }

    /// Starts a node.
    ///
    /// # Errors
    /// When the node does not start.
    pub fn start(&self, plan: &NodePlan) -> Result<Node> {
        let _starting = self.cleanup.start();
        plan.start()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.cleanup.remove_stage();
    }
}

/// Makes two network namespaces, for [`IOHOST`] and [`VMHOST`], and a virtual cable between them.
/// [`Cleanup::remove_stage`] removes both.
///
/// # Errors
/// When that is not allowed here.
pub fn make_hosts(cable: VirtualCable, cleanup: &Cleanup) -> Result<()> {
    // The lock makes an interruption wait until the cleanup knows of both namespaces.
    let _starting = cleanup.start();
    let (io, vm) = (namespace(IOHOST), namespace(VMHOST));
    for name in [&io, &vm] {
        cleanup.namespace(name);
        ip(&["netns", "add", name])?;
    }
    let ends = ["type", "veth", "peer", "name", CABLE, "netns", &vm];
    ip(&[["link", "add", CABLE, "netns", &io].as_slice(), &ends].concat())?;
    for (name, address) in [(&io, IO_ADDRESS), (&vm, VM_ADDRESS)] {
        let address = format!("{address}/24");
        ip(&["-n", name, "addr", "add", &address, "dev", CABLE])?;
        if let Some(mtu) = cable.mtu {
            ip(&["-n", name, "link", "set", CABLE, "mtu", &mtu.to_string()])?;
        }
        // An address of IPv6 cannot be used for its first second, and libfabric's tcp chooses it.
        ip(&["-n", name, "link", "set", CABLE, "addrgenmode", "none", "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        if !cable.offloads.is_usual() {
            let words = ["netns", "exec", name, "ethtool", "-K", CABLE];
            ip(&[&words[..], cable.offloads.features()].concat())
                .context("--offloads takes ethtool (Debian: ethtool)")?;
        }
    }
    Ok(())
}

/// The network namespace of a host that [`make_hosts`] made.
pub fn namespace(host: &str) -> String {
    format!("vrio-{host}-{}", std::process::id())
}

/// Two ports that are free now. A node must find its port again after it was killed. So the ports
/// are chosen before, outside of the range from which the system gives ports to other programs.
fn free_ports() -> Result<[u16; 2]> {
    let first = 16_000 + (std::process::id() % 8_000) as u16;
    let is_free = |port: &u16| UdpSocket::bind(("127.0.0.1", *port)).is_ok();
    let mut free = (first..first + 100).filter(is_free);
    let (one, two) = (free.next(), free.next());
    one.zip(two).map(|(one, two)| [one, two]).context("no port is free for the nodes")
}

/// Checks that another program's socket exists. A driver waits for a socket that is made again
/// after a kill, but the first socket must exist.
///
/// # Errors
/// There is no socket.
pub fn expect_socket(path: &Path) -> Result<()> {
    let kind = fs::metadata(path).with_context(|| {
        format!("--path socket {}: start the program that makes it first", path.display())
    })?;
    ensure!(kind.file_type().is_socket(), "--path socket {}: no socket", path.display());
    Ok(())
}

/// Runs `f` on a thread in a network namespace. Sockets that `f` makes stay in that namespace.
pub fn inside<T: Send>(namespace: Option<&str>, f: impl FnOnce() -> T + Send) -> Result<T> {
    let Some(namespace) = namespace else { return Ok(f()) };
    let path = format!("/run/netns/{namespace}");
    thread::scope(|scope| {
        let inside = scope.spawn(|| -> Result<T> {
            let file = File::open(&path).with_context(|| format!("opening {path}"))?;
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(file.as_fd(), kind)
                .with_context(|| format!("entering {path}"))?;
            Ok(f())
        });
        inside.join().map_err(|_| anyhow!("the work in {path} panicked"))?
    })
}

/// Runs `ip` with these arguments.
///
/// # Errors
/// The output of `ip`.
pub fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("running ip")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("ip {}: {}", words.join(" "), why.trim());
    }
    Ok(())
}
