//! Where the demo takes place: a folder, a network, and the two nodes in it.

use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::nodes::{Keys, Node, NodePlan};

use super::cleanup::Cleanup;

/// The size of each volume.
pub(super) const VOLUME_MIB: u64 = 64;

/// Addresses in the two namespaces, which nobody else can see.
const IO_ADDRESS: &str = "10.77.0.9";
const VM_ADDRESS: &str = "10.77.0.1";

/// What the nodes' files are called that are worth keeping.
const LOGS: [&str; 2] = ["log", "node.toml"];

/// The guest's console, in the folder.
pub(super) const CONSOLE: &str = "guest.console";

/// What lies between the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Two network namespaces, joined by a virtual cable.
    Namespaces,
    /// The loopback device.
    Loopback,
}

/// A folder and a network.
#[derive(Debug)]
pub(super) struct Stage {
    folder: PathBuf,
    program: PathBuf,
    /// What lies between the nodes.
    pub(super) network: Network,
    io_listen: String,
    vm_listen: String,
    keys: Keys,
    /// Removes it all.
    pub(super) cleanup: Cleanup,
}

impl Stage {
    /// Makes the folder. The nodes are to run `program`, on the loopback device.
    ///
    /// # Errors
    /// When there is no room for files.
    pub(super) fn new(program: PathBuf, cleanup: Cleanup) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("vrio-demo-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| format!("making {}", folder.display()))?;
        cleanup.folder(folder.clone());
        let [io, vm] = free_ports()?;
        Ok(Self {
            keys: Keys::make(&folder, &["io1", "vm1"])?,
            folder,
            program,
            network: Network::Loopback,
            io_listen: format!("127.0.0.1:{io}"),
            vm_listen: format!("127.0.0.1:{vm}"),
            cleanup,
        })
    }

    /// Makes the two namespaces and has the nodes run in them.
    ///
    /// # Errors
    /// When that is not allowed here; the stage stays on the loopback device.
    pub(super) fn separate(&mut self) -> Result<()> {
        let (io, vm) = (namespace("io1"), namespace("vm1"));
        for name in [&io, &vm] {
            self.cleanup.namespace(name);
            ip(&["netns", "add", name])?;
        }
        let ends = ["type", "veth", "peer", "name", "cable", "netns", &vm];
        ip(&[["link", "add", "cable", "netns", &io].as_slice(), &ends].concat())?;
        for (name, address) in [(&io, IO_ADDRESS), (&vm, VM_ADDRESS)] {
            let address = format!("{address}/24");
            ip(&["-n", name, "addr", "add", &address, "dev", "cable"])?;
            ip(&["-n", name, "link", "set", "cable", "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        self.io_listen = format!("{IO_ADDRESS}:4870");
        self.vm_listen = format!("{VM_ADDRESS}:4870");
        self.network = Network::Namespaces;
        Ok(())
    }

    /// A file of the stage.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The IOhost: a volume for the guest, and one to measure with.
    pub(super) fn io_plan(&self) -> NodePlan {
        let volume = |name| {
            format!(
                "[[volume]]\nname = \"{name}\"\nchain = [\"meter\"]\n{}\
                 backend = {{ file = \"{name}.img\", size = \"{VOLUME_MIB}MiB\" }}\n",
                self.keys.allow(&["vm1"])
            )
        };
        let vm1 = self.keys.clients(&["vm1"]);
        self.plan("io1", &self.io_listen, &format!("{vm1}{}{}", volume("alice"), volume("far")))
    }

    /// The VMhost: the guest's disk, and two to measure: `near` here and `far` on the IOhost.
    pub(super) fn vm_plan(&self) -> NodePlan {
        let tenant = self.keys.disk();
        let config = format!(
            "[[peer]]\nname = \"io1\"\naddress = \"{}\"\n{}\
             [[volume]]\nname = \"near\"\nchain = [\"meter\"]\n\
             backend = {{ file = \"near.img\", size = \"{VOLUME_MIB}MiB\" }}\n\
             [[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1/alice\"\nqueues = 2\n{tenant}\
             [[disk]]\nsocket = \"near.sock\"\nvolume = \"near\"\n\
             [[disk]]\nsocket = \"far.sock\"\nvolume = \"io1/far\"\n{tenant}",
            self.io_listen,
            self.keys.peer("io1"),
        );
        self.plan("vm1", &self.vm_listen, &config)
    }

    fn plan(&self, name: &str, listen: &str, config: &str) -> NodePlan {
        let namespace = match self.network {
            Network::Namespaces => Some(namespace(name)),
            Network::Loopback => None,
        };
        let config = format!(
            "listen = \"{listen}\"\n{}[sidecores]\ncount = 1\nidle = \"adaptive\"\n{config}",
            self.keys.own(name)
        );
        NodePlan { namespace, ..NodePlan::new(&self.program, &self.folder, name, config) }
    }

    /// Starts a node.
    ///
    /// # Errors
    /// When it does not start.
    pub(super) fn start(&self, plan: &NodePlan) -> Result<Node> {
        let _starting = self.cleanup.start();
        plan.start()
    }

    /// kill -9, and a new process after some time. Also says how long the node was away.
    ///
    /// # Errors
    /// When the node was not running, or does not start again.
    pub(super) fn kill_and_start(&self, node: Node, pause: Duration) -> Result<(Node, Duration)> {
        let plan = node.kill()?;
        let died = Instant::now();
        thread::sleep(pause);
        Ok((self.start(&plan)?, died.elapsed()))
    }

    /// Copies logs, configurations and the guest's console.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn keep_logs(&self, into: &Path) -> Result<()> {
        for name in ["io1", "vm1"] {
            for log in LOGS {
                copy(&self.folder.join(name).join(log), &into.join(name).join(log))?;
            }
        }
        copy(&self.path(CONSOLE), &into.join(CONSOLE))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.cleanup.remove();
    }
}

/// Copies a file, if it is there.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.exists() {
        return Ok(());
    }
    let folder = to.parent().context("a file is in a folder")?;
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    fs::copy(from, to).with_context(|| format!("writing {}", to.display()))?;
    Ok(())
}

fn namespace(node: &str) -> String {
    format!("vrio-{node}-{}", std::process::id())
}

/// Two ports that are free now. A node must find its port again after it was killed, so they are
/// chosen before, and not among those that the system gives to others meanwhile.
fn free_ports() -> Result<[u16; 2]> {
    let first = 16_000 + (std::process::id() % 8_000) as u16;
    let is_free = |port: &u16| UdpSocket::bind(("127.0.0.1", *port)).is_ok();
    let mut free = (first..first + 100).filter(is_free);
    let (one, two) = (free.next(), free.next());
    one.zip(two).map(|(one, two)| [one, two]).context("no port is free for the nodes")
}

fn ip(words: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(words).output().context("running ip")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("ip {}: {}", words.join(" "), why.trim());
    }
    Ok(())
}
