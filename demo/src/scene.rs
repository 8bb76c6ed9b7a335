//! The demo's two nodes and their objects.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use testbed::nodes::{Node, NodePlan};
use testbed::stage::Stage;

/// The size of each volume.
pub(super) const VOLUME_MIB: u64 = 64;

/// The tap of the guests' network in the IOhost's namespace, and the host's address on it.
pub(super) const TAP: &str = "vrio0";
pub(super) const HOST_ADDRESS: &str = "10.78.0.254";

/// The guests' cards in the network `io1/blue`: the names of their sockets, and their addresses.
pub(super) const CARDS: [Card; 2] = [
    Card { name: "alice-net", mac: "52:54:00:00:00:01", address: "10.78.0.1" },
    Card { name: "bob-net", mac: "52:54:00:00:00:02", address: "10.78.0.2" },
];

/// One guest's network card.
#[derive(Clone, Copy, Debug)]
pub(super) struct Card {
    pub(super) name: &'static str,
    pub(super) mac: &'static str,
    pub(super) address: &'static str,
}

/// The domain of the two guests, and its endpoints: twice the ranks of a job.
pub(super) const DOMAIN: &str = "demo";
const ENDPOINTS_MAX: u16 = 2 * super::mpi::RANKS;

impl Card {
    /// The socket of its guest's window into the domain.
    pub(super) fn window(&self) -> String {
        format!("{}.vf", self.name)
    }
}

/// The names of the nodes' files that are kept.
const LOGS: [&str; 2] = ["log", "node.toml"];

/// The guests' consoles, in the folder.
pub(super) const CONSOLES: [&str; 2] = ["alice.console", "bob.console"];

/// The IOhost: a volume for the guest, a volume for measuring, and a network, which has an uplink
/// where the nodes have namespaces.
pub(super) fn io_plan(stage: &Stage) -> NodePlan {
    let volume = |name| {
        format!(
            "[[volume]]\nname = \"{name}\"\nchain = [\"meter\"]\n{}\
             backend = {{ file = \"{name}.img\", size = \"{VOLUME_MIB}MiB\" }}\n",
            stage.keys.allow(&["vm1"])
        )
    };
    let vm1 = stage.keys.clients(&["vm1"]);
    let allow = stage.keys.allow(&["vm1"]);
    let uplink = stage.has_namespaces().then(|| format!("uplink = \"tap:{TAP}\"\n"));
    let uplink = uplink.unwrap_or_default();
    let network = format!("[[network]]\nname = \"blue\"\n{allow}{uplink}");
    let config = format!("{vm1}{}{}{network}", volume("alice"), volume("far"));
    stage.plan("io1", &format!("{}{config}", top(&stage.io_listen)))
}

/// The VMhost: the guest's disk, two disks for measuring (`near` on this node, `far` on the
/// IOhost), and the guests' cards. If there is a domain's key, also the domain and the guests'
/// windows.
pub(super) fn vm_plan(stage: &Stage, domain_key: Option<&Path>) -> NodePlan {
    let tenant = stage.keys.disk();
    let cards = CARDS.map(|Card { name, mac, .. }| {
        format!(
            "[[nic]]\nsocket = \"{name}.sock\"\nnetwork = \"io1/blue\"\n\
             mac = \"{mac}\"\n{tenant}"
        )
    });
    let config = format!(
        "[[peer]]\nname = \"io1\"\naddress = \"{}\"\n{}\
         [[volume]]\nname = \"near\"\nchain = [\"meter\"]\n\
         backend = {{ file = \"near.img\", size = \"{VOLUME_MIB}MiB\" }}\n\
         [[disk]]\nsocket = \"alice.sock\"\nvolume = \"io1/alice\"\nqueues = 2\n{tenant}\
         [[disk]]\nsocket = \"near.sock\"\nvolume = \"near\"\n\
         [[disk]]\nsocket = \"far.sock\"\nvolume = \"io1/far\"\n{tenant}{}{}",
        stage.io_listen,
        stage.keys.peer("io1"),
        cards.concat(),
        domain_key.map(domain).unwrap_or_default(),
    );
    stage.plan("vm1", &format!("{}{config}", top(&stage.vm_listen)))
}

/// Kills the node with -9, and starts a new process after some time. Also gives how long the node
/// was away.
///
/// # Errors
/// When the node was not running, or does not start again.
pub(super) fn kill_and_start(
    stage: &Stage,
    node: Node,
    pause: Duration,
) -> Result<(Node, Duration)> {
    let plan = node.kill()?;
    let died = Instant::now();
    thread::sleep(pause);
    Ok((stage.start(&plan)?, died.elapsed()))
}

/// Copies logs, configurations and the guests' consoles.
///
/// # Errors
/// When they cannot be written.
pub(super) fn keep_logs(stage: &Stage, into: &Path) -> Result<()> {
    for name in ["io1", "vm1"] {
        for log in LOGS {
            copy(&stage.folder.join(name).join(log), &into.join(name).join(log))?;
        }
    }
    CONSOLES.iter().try_for_each(|name| copy(&stage.path(name), &into.join(name)))
}

/// The first lines of a node's configuration.
fn top(listen: &str) -> String {
    format!("listen = \"{listen}\"\n[sidecores]\ncount = 1\nidle = \"adaptive\"\n")
}

/// The guests' domain, and the window of each guest.
fn domain(key: &Path) -> String {
    let windows = CARDS.map(|card| {
        let socket = card.window();
        format!("[[vf]]\ndomain = \"{DOMAIN}\"\nsocket = \"{socket}\"\n")
    });
    let max = ENDPOINTS_MAX;
    let domain = format!("[[domain]]\nname = \"{DOMAIN}\"\nkey = {key:?}\nendpoints-max = {max}\n");
    domain + &windows.concat()
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
