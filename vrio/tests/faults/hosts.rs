//! The hosts of the faults: processes, networks and disks that fail by order and are mended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testbed::cleanup::Cleanup;
use testbed::etcd::EtcdMember;
use testbed::nodes::{Node, NodePlan};
use testbed::rack::{IOHOSTS, NODES, Rack, SWITCH, VMHOST, host_address};
use testbed::stage::{ip, namespace};

use super::delay::{DelayRelay, PORT};
use super::disk::PoolDisk;
use super::plan::{Fault, FaultKind};
use super::{PATIENCE, VOLUMES};

/// Sidecores of each node.
const SIDECORES: u16 = 2;

/// The place of the VMhost.
const VM: usize = NODES.len() - 1;

/// After so long, and again, a wait is told with its reason.
const TELL: Duration = Duration::from_secs(20);

/// The pause between two looks at the cluster.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The faults of one way.
#[derive(Default)]
struct Way {
    is_cut: bool,
    percent: u64,
    is_delayed: bool,
}

/// A command that runs beside a fault.
struct Errand {
    words: String,
    child: Child,
    /// No other fault is there by which it may fail.
    is_alone: bool,
}

/// See the module's text. By their places in [`NODES`].
pub(super) struct Hosts {
    rack: Rack,
    plans: Vec<NodePlan>,
    nodes: Vec<Option<Node>>,
    etcd: Vec<Option<EtcdMember>>,
    disks: Vec<PoolDisk>,
    ways: BTreeMap<(usize, usize), Way>,
    relays: Vec<DelayRelay>,
    halted: Vec<Pid>,
    errands: Vec<Errand>,
    /// The lengths of the logs that were read.
    logs_read: Vec<usize>,
    revision: u64,
    cleanup: Cleanup,
    home: tempfile::TempDir,
}

impl Hosts {
    /// The rack with its volumes, and a disk of each on the VMhost. None, with a line that says
    /// why, where that is not allowed.
    pub(super) fn start(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP {test}: only root may make hosts");
            return None;
        }
        // etcd waits for its disk at each change.
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let home = tempfile::Builder::new().prefix("vrio-faults").tempdir_in(place);
        let home = home.expect("a directory");
        let cleanup = Cleanup::default();
        let rack = match Rack::separated(env!("CARGO_BIN_EXE_vrio"), home.path(), None, &cleanup) {
            Ok(rack) => rack,
            Err(error) => {
                cleanup.remove();
                println!("SKIP {test}: no network namespaces: {error:#}");
                return None;
            }
        };
        let mut this = Self {
            rack,
            plans: Vec::new(),
            nodes: Vec::new(),
            etcd: Vec::new(),
            disks: Vec::new(),
            ways: BTreeMap::new(),
            relays: Vec::new(),
            halted: Vec::new(),
            errands: Vec::new(),
            logs_read: vec![0; NODES.len()],
            revision: 0,
            cleanup,
            home,
        };
        this.rack.sidecores = SIDECORES;
        this.rack.make_etcd().expect("a cluster");
        let members = IOHOSTS.map(|name| Some(this.rack.start_etcd(name).expect("etcd starts")));
        this.etcd.extend(members);
        for name in IOHOSTS {
            this.disks.push(PoolDisk::make(test, &this.rack, name)?);
        }
        this.wait("the registry answers", |status| status["verdict"] == "well");
        this.start_nodes();
        this.start_volumes();
        Some(this)
    }

    fn plan(&self, name: &str, more: &str) -> NodePlan {
        let directory = self.rack.path(&format!("of-{name}"));
        let mut plan =
            self.rack.plan(name, &format!("[cluster]\ndirectory = {directory:?}\n{more}"));
        plan.directories = Some(format!(
            "volumes = [{:?}]\nsockets = {:?}\nstate = {:?}\n",
            self.home.path(),
            plan.home,
            plan.home.join("state")
        ));
        plan
    }

    fn start_nodes(&mut self) {
        for name in NODES {
            let disk = self.disks.get(self.plans.len());
            let pool = disk.map_or(String::new(), |disk| {
                format!("[[pool]]\nname = \"fast\"\ndevices = [{:?}]\n", disk.path())
            });
            let plan = self.plan(name, &pool);
            let node = plan.start().expect("the node starts");
            self.rack.join(&node).expect("the node joins");
            self.plans.push(plan);
            self.nodes.push(Some(node));
        }
        self.wait("all nodes are present", |status| present(status) == NODES.len());
    }

    fn start_volumes(&mut self) {
        for (volume, copies) in VOLUMES {
            let copies = copies.to_string();
            let words = ["volume", "create", volume, "--size", "8MiB", "--allow", VMHOST];
            let made = self.rack.operate(words.into_iter().chain(["--replicas", &copies]));
            assert!(made.as_ref().is_ok_and(|it| it.status.success()), "{made:?}");
        }
        let places = self.plans[VM].home.join("state/own.cluster/placements.json");
        let knows = |_: &Node| {
            let text = fs::read_to_string(&places).unwrap_or_default();
            VOLUMES.iter().all(|(name, _)| text.contains(&format!("{name:?}")))
        };
        let vm = self.nodes[VM].as_mut().expect("it runs");
        vm.wait_until("its volumes' places", knows).expect("its agent keeps them");
        let disk = |(name, _): &(&str, usize)| {
            format!("[[disk]]\nsocket = \"{name}.sock\"\nvolume = {name:?}\nqueues = 2\n")
        };
        self.plans[VM] = self.plan(VMHOST, &VOLUMES.iter().map(disk).collect::<String>());
        self.nodes[VM].take().expect("it runs").stop().expect("it stops in order");
        self.nodes[VM] = Some(self.plans[VM].start().expect("the VMhost starts again"));
    }

    /// The socket of a volume's disk.
    pub(super) fn socket(&mut self, volume: &str) -> std::path::PathBuf {
        let vm = self.nodes[VM].as_mut().expect("it runs");
        vm.wait_for_disk(volume).expect("the disk is served")
    }

    /// The status of the cluster, if it can be had.
    fn status(&self) -> Option<Value> {
        let output = self.rack.operate(["cluster", "status", "--json"]).expect("vrio runs");
        serde_json::from_slice(&output.stdout).ok()
    }

    /// Waits until the status is so.
    fn wait(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let (began, mut told) = (Instant::now(), 0);
        loop {
            let status = self.status();
            self.look();
            if let Some(status) = status.as_ref().filter(|status| is(status)) {
                return status.clone();
            }
            let waited = began.elapsed();
            assert!(waited < PATIENCE, "{what}: not in {PATIENCE:?}: {status:#?}");
            if waited > TELL * (told + 1) {
                told += 1;
                let problems = status.map(|status| status["problems"].clone());
                println!(
                    "    {what}: not yet after {waited:.0?}: {}",
                    problems.unwrap_or_default()
                );
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Waits until nothing is wrong any more.
    pub(super) fn wait_until_well(&mut self) -> Value {
        self.wait_for_agents();
        let status = self.wait("all is well", is_well);
        let revision = status["registry"]["revision"].as_u64().expect("it answers");
        assert!(revision >= self.revision, "the registry went back to {revision}");
        self.revision = revision;
        status
    }

    /// Waits until each node has an agent that keeps it present: the presence of an agent that was
    /// killed lasts for a while, and ends then.
    fn wait_for_agents(&mut self) {
        for node in self.nodes.iter_mut().flatten() {
            let is_present = |node: &Node| {
                let part = node.status().map(|it| it["cluster"].clone()).unwrap_or_default();
                let agent = node.plan().agent().map(|pid| pid.as_raw_nonzero().get());
                part["state"] == "present" && agent.is_some_and(|pid| part["agent_pid"] == pid)
            };
            // A node's own patience is a minute.
            let mut wait = || node.wait_until("its agent keeps it present", is_present);
            wait().or_else(|_| wait()).expect("it comes by itself");
        }
    }

    /// No process has ended by itself, none has panicked, and no copy has stopped.
    fn look(&mut self) {
        for (name, node) in NODES.iter().zip(&mut self.nodes) {
            let Some(node) = node else { continue };
            let ended = node.ended().expect("the system tells");
            assert_eq!(ended, None, "{name} has ended by itself:\n{}", node.log_tail());
        }
        for (name, member) in IOHOSTS.iter().zip(&mut self.etcd) {
            let Some(member) = member else { continue };
            let has_ended = member.has_ended().expect("the system tells");
            assert!(!has_ended, "etcd on {name} has ended by itself:\n{}", member.log_tail());
        }
        for (plan, read) in self.plans.iter().zip(&mut self.logs_read) {
            let log = fs::read(plan.home.join("log")).unwrap_or_default();
            let new = String::from_utf8_lossy(&log[*read..]).into_owned();
            assert!(!new.contains("panicked at"), "{} has panicked:\n{new}", plan.name);
            *read = log.len();
        }
    }

    /// No copy has stopped: after a fault of its storage its node was started again.
    pub(super) fn expect_no_failed_copy(&self) {
        for node in self.nodes[..VM].iter().flatten() {
            let status = node.status().expect("it answers");
            for volume in status["volumes"].as_array().expect("a list") {
                let (name, at) = (&volume["name"], &node.plan().name);
                assert_ne!(volume["copy"]["role"], "failed", "{name} on {at}: {volume:#}");
            }
        }
    }

    /// Whether the nodes that serve say that all copies are in sync. On a host that is busy for a
    /// second a copy may fall out of sync.
    fn are_in_sync(&self) -> bool {
        let statuses = self.nodes[..VM].iter().flatten().map(|node| node.status());
        let statuses: Vec<_> = statuses.map(Result::unwrap_or_default).collect();
        let copies = statuses.iter().filter_map(|status| status["volumes"].as_array()).flatten();
        let whole = copies.filter(|volume| {
            let copy = &volume["copy"];
            copy["role"] == "primary" && names(&copy["missing"]).is_empty()
        });
        whole.count() == VOLUMES.len()
    }

    /// Begins a fault; `is_alone` says that no other fault is there.
    pub(super) fn begin(&mut self, fault: &Fault, is_alone: bool) {
        if fault.loses_writes() && !self.are_in_sync() {
            return println!("    left out, since a copy is not in sync: {fault}");
        }
        let Fault { io, host, other, .. } = *fault;
        match fault.kind {
            FaultKind::KillNode => self.kill(io),
            FaultKind::KillVm => self.kill(VM),
            FaultKind::KillWithAgent => {
                self.signal_agent(io, Signal::KILL);
                self.kill(io);
            }
            FaultKind::KillAgent => self.signal_agent(host, Signal::KILL),
            FaultKind::HaltAgent => self.signal_agent(host, Signal::STOP),
            FaultKind::KillEtcd => self.etcd[io] = None,
            FaultKind::HaltEtcd => {
                if let Some(member) = &self.etcd[io] {
                    member.signal(Signal::STOP).expect("it runs");
                }
            }
            FaultKind::HaltNode => {
                if let Some(node) = &self.nodes[host] {
                    node.halt().expect("it runs");
                }
            }
            FaultKind::StopNode => {
                if let Some(node) = self.nodes[io].take() {
                    node.stop().expect("it stops in order");
                }
            }
            FaultKind::FailPool => self.disks[io].fail(),
            FaultKind::Move => self.begin_move(fault, is_alone),
            FaultKind::Replace => self.begin_replacement(fault, is_alone),
            FaultKind::CutWay => self.change(&[(host, other)], |way| way.is_cut = true),
            FaultKind::CutApart => {
                self.change(&[(host, other), (other, host)], |way| way.is_cut = true);
            }
            FaultKind::CutOff => {
                let others = (0..NODES.len()).filter(|at| *at != host);
                let ways: Vec<_> = others.flat_map(|at| [(host, at), (at, host)]).collect();
                self.change(&ways, |way| way.is_cut = true);
            }
            FaultKind::Lose => self.change(&[(host, other)], |way| way.percent = fault.percent),
            FaultKind::Delay => {
                let ways = [(host, other), (other, host)];
                for (from, to) in ways {
                    let own = relay_address(from, to);
                    let words = ["addr", "replace", &format!("{own}/24"), "dev", "bridge"];
                    let switch = namespace(SWITCH);
                    ip(&[&["-n", &switch][..], &words].concat()).expect("an address");
                    let to = host_address(to);
                    self.relays.push(DelayRelay::start(&own, &to, SIDECORES, fault.delay));
                }
                self.change(&ways, |way| way.is_delayed = true);
            }
        }
    }

    fn kill(&mut self, at: usize) {
        if let Some(node) = self.nodes[at].take() {
            node.kill().expect("it has not ended by itself");
        }
    }

    /// Sends a signal to the agent of a node, if there is one: a node that stands still cannot be
    /// asked for it.
    fn signal_agent(&mut self, at: usize, signal: Signal) {
        let Some(pid) = self.plans[at].agent() else { return };
        if kill_process(pid, signal).is_ok() && signal == Signal::STOP {
            self.halted.push(pid);
        }
    }

    /// The volume's status, and the place of the node that serves it.
    fn find(&self, volume: &str) -> Option<(Value, usize)> {
        let status = self.status()?;
        let found = volume_of(&status, volume)?.clone();
        let primary = NODES.iter().position(|name| found["primary"] == *name)?;
        Some((found, primary))
    }

    fn begin_move(&mut self, fault: &Fault, is_alone: bool) {
        // While the registry is away there is nothing to be moved.
        let Some((status, primary)) = self.find(fault.volume()) else { return };
        let in_sync = names(&status["in_sync"]);
        let others: Vec<_> = in_sync.iter().filter(|name| *name != NODES[primary]).collect();
        let Some(to) = others.get(fault.io % others.len().max(1)) else { return };
        let Some(node) = &self.nodes[primary] else { return };
        let mut command = Command::new(env!("CARGO_BIN_EXE_vrio"));
        command.args(["volume", "move", fault.volume(), to]);
        command.arg("--control").arg(node.plan().control());
        self.send(command, is_alone);
    }

    /// A copy of the first volume goes to the node that has none.
    fn begin_replacement(&mut self, fault: &Fault, is_alone: bool) {
        let (volume, _) = VOLUMES[0];
        let Some((status, _)) = self.find(volume) else { return };
        let nodes = names(&status["nodes"]);
        let mut command = self.rack.operator();
        command.args(["volume", "copies", volume, "--replace", &nodes[fault.io % nodes.len()]]);
        command.arg("--directory").arg(self.rack.path("operator"));
        command.arg("--wait").arg(PATIENCE.as_secs().to_string());
        self.send(command, is_alone);
    }

    fn send(&mut self, mut command: Command, is_alone: bool) {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().expect("vrio runs");
        self.errands.push(Errand { words: format!("{command:?}"), child, is_alone });
    }

    fn change(&mut self, ways: &[(usize, usize)], how: impl Fn(&mut Way)) {
        ways.iter().for_each(|way| how(self.ways.entry(*way).or_default()));
        self.apply();
    }

    /// Gives each host the rules of its ways.
    fn apply(&self) {
        let hosts: BTreeSet<_> = self.ways.keys().flat_map(|(from, to)| [*from, *to]).collect();
        for host in hosts {
            let rules = rules(&self.ways, host);
            let mut command = Command::new("ip");
            command.args(["netns", "exec", &namespace(NODES[host]), "nft", "-f", "-"]);
            let child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let mut child = child.expect("ip runs");
            let written = child.stdin.take().expect("a pipe").write_all(rules.as_bytes());
            let output = child.wait_with_output().expect("a child");
            let is_done = written.is_ok() && output.status.success();
            assert!(is_done, "`scripts/install test` installs nftables: {output:?}\n{rules}");
        }
    }

    /// Ends all faults, and starts the processes again that have ended.
    pub(super) fn heal(&mut self) {
        self.ways.values_mut().for_each(|way| *way = Way::default());
        self.apply();
        self.ways.clear();
        self.relays.clear();
        for pid in self.halted.drain(..) {
            // It may have been killed meanwhile.
            let _ = kill_process(pid, Signal::CONT);
        }
        for (name, member) in IOHOSTS.iter().zip(&mut self.etcd) {
            match member {
                Some(member) => member.signal(Signal::CONT).expect("it runs"),
                None => *member = Some(self.rack.start_etcd(name).expect("etcd starts")),
            }
        }
        for node in self.nodes.iter().flatten() {
            node.resume().expect("it runs");
        }
        for (disk, node) in self.disks.iter().zip(&mut self.nodes) {
            let failed = disk.mend();
            // A copy on storage that has failed stays stopped until its node starts again.
            if let Some(node) = node.take_if(|_| failed) {
                node.stop().expect("it stops in order");
            }
        }
        for (plan, node) in self.plans.iter().zip(&mut self.nodes) {
            if node.is_none() {
                *node = Some(plan.start().expect("the node starts again"));
            }
        }
        for errand in std::mem::take(&mut self.errands) {
            let output = errand.child.wait_with_output().expect("a child");
            let is_as_promised = output.status.success() || !errand.is_alone;
            assert!(is_as_promised, "{}: {output:?}", errand.words);
        }
    }

    /// Has each node with a copy serve the volume in turn.
    pub(super) fn serve_in_turn(&mut self, volume: &str, mut served: impl FnMut()) {
        let until = Instant::now() + PATIENCE;
        let nodes = {
            let status = self.wait_until_well();
            names(&volume_of(&status, volume).expect("it is well")["nodes"])
        };
        for to in nodes {
            loop {
                let status = self.wait_until_well();
                let primary = volume_of(&status, volume).expect("it is well")["primary"].clone();
                if primary == *to {
                    break;
                }
                let at = NODES.iter().position(|name| primary == *name).expect("a node");
                let node = self.nodes[at].as_ref().expect("it runs");
                // A node on a busy machine may be out of sync just then.
                let told = self.rack.tell(node, &["volume", "move", volume, &to]);
                assert!(Instant::now() < until, "{volume} does not come to {to}: {told:?}");
            }
            served();
        }
    }

    /// Stops all nodes in order.
    pub(super) fn stop(mut self) {
        for node in self.nodes.iter_mut().rev().filter_map(Option::take) {
            node.stop().expect("it stops in order");
        }
    }

    /// Keeps the logs where people find them.
    fn keep_logs(&self) -> std::io::Result<()> {
        let folder = std::env::temp_dir().join(format!("vrio-faults-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        for plan in &self.plans {
            let _ = fs::copy(plan.home.join("log"), folder.join(format!("{}.log", plan.name)));
        }
        for name in IOHOSTS {
            let log = self.rack.etcd_directory(name).join("log");
            let _ = fs::copy(log, folder.join(format!("etcd-{name}.log")));
        }
        if let Some(status) = self.status() {
            writeln!(File::create(folder.join("status.json"))?, "{status:#}")?;
        }
        println!("the logs are in {}", folder.display());
        Ok(())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.keep_logs();
        }
        for mut errand in self.errands.drain(..) {
            let _ = errand.child.kill();
            let _ = errand.child.wait();
        }
        self.nodes.clear();
        self.etcd.clear();
        self.disks.clear();
        self.relays.clear();
        self.cleanup.remove();
    }
}

/// The address of the relay of a way.
fn relay_address(from: usize, to: usize) -> String {
    format!("10.77.1.{}", 200 + from * NODES.len() + to)
}

/// The rules of a host. A datagram that is delayed goes to the relay's address and comes from it,
/// and the nodes at both ends see the other host's address.
fn rules(ways: &BTreeMap<(usize, usize), Way>, host: usize) -> String {
    let last = PORT + SIDECORES - 1;
    let (mut comes, mut goes) = (String::new(), String::new());
    for (&(from, to), way) in ways {
        let (source, target, relay) =
            (host_address(from), host_address(to), relay_address(from, to));
        if from == host && way.is_delayed {
            goes += &format!("ip daddr {target} udp dport {PORT}-{last} ip daddr set {relay}\n");
        }
        if to != host {
            continue;
        }
        if way.is_delayed {
            comes += &format!("ip saddr {relay} udp sport {PORT}-{last} ip saddr set {source}\n");
        }
        if way.is_cut {
            comes += &format!("ip saddr {source} drop\n");
        }
        if way.percent > 0 {
            comes += &format!("ip saddr {source} numgen random mod 100 < {} drop\n", way.percent);
        }
    }
    format!(
        "flush ruleset\ntable ip faults {{\n\
         chain comes {{\ntype filter hook input priority 0\n{comes}}}\n\
         chain goes {{\ntype route hook output priority 0\n{goes}}}\n}}\n"
    )
}

fn names(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
}

fn volume_of<'s>(status: &'s Value, volume: &str) -> Option<&'s Value> {
    status["volumes"].as_array()?.iter().find(|it| it["name"] == volume)
}

fn present(status: &Value) -> usize {
    let nodes = status["nodes"].as_array().into_iter().flatten();
    nodes.filter(|node| node["state"] == "present").count()
}

/// All members of etcd answer, all nodes are present, and each volume has all of its copies in
/// sync.
fn is_well(status: &Value) -> bool {
    let members = status["registry"]["members"].as_array().into_iter().flatten();
    let members = members.filter(|it| it["state"] == "leader" || it["state"] == "follower");
    let has_all = |(volume, copies): &(&str, usize)| {
        volume_of(status, volume).is_some_and(|it| {
            it["state"] == "well"
                && names(&it["nodes"]).len() == *copies
                && names(&it["in_sync"]).len() == *copies
        })
    };
    status["verdict"] == "well"
        && members.count() == IOHOSTS.len()
        && present(status) == NODES.len()
        && VOLUMES.iter().all(has_all)
}
