//! Hosts of a rack on this machine, for tests and measurements: a cluster whose registry is a file
//! or on etcd, three IOhosts with copies of volumes, and a VMhost that uses them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use node::status::{CopyRole, CopyStatus, Status};

use crate::cleanup::Cleanup;
use crate::etcd::{self, EtcdMember};
use crate::nodes::{Node, NodeKeys, NodePlan};
use crate::stage::{ip, namespace};

/// The nodes: three IOhosts that may have a copy, and the VMhost.
pub const NODES: [&str; 4] = ["io1", "io2", "io3", VMHOST];

/// The name of the VMhost's node.
pub const VMHOST: &str = "vm1";

/// The name of the volume with copies, and of its disk.
pub const VOLUME: &str = "alice";

/// The IOhosts: with a registry on etcd, each has a member.
pub const IOHOSTS: [&str; 3] = ["io1", "io2", "io3"];

/// The host that stands for the switch between the nodes. The operator works there.
pub const SWITCH: &str = "switch";

/// The address of the operator's machine.
const OPERATOR_ADDRESS: &str = "10.77.1.100";

/// How long copies may take until all of them are in sync; only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(180);

/// The pause between two looks at the copies meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The copy of a node, as the node's file has it.
#[derive(Clone, Copy, Debug)]
pub struct CopyFile<'c> {
    /// The node.
    pub node: &'c str,
    /// The nodes with copies, in their order; empty for a file without the key.
    pub list: &'c [&'c str],
    /// The file of the node's pool, below the rack's folder for pools.
    pub pool: &'c str,
}

/// The rack: its folder, its keys, and the addresses of its nodes.
#[derive(Debug)]
pub struct Rack {
    program: PathBuf,
    folder: PathBuf,
    /// The folder of the pools' files.
    pub pools: PathBuf,
    /// The size of each pool.
    pub pool_size: &'static str,
    /// The size of the volume.
    pub volume_size: &'static str,
    /// Sidecores of each node.
    pub sidecores: u16,
    keys: NodeKeys,
    /// The first port of the loopback device; none if each node has a network namespace.
    port: Option<u16>,
    /// The registry is on etcd, whose members only the namespaces reach.
    is_on_etcd: bool,
}

impl Rack {
    /// Makes the keys and the registry of a rack in an existing folder. Its nodes will run
    /// `program`, on the loopback device, at sixteen ports from `port` on.
    ///
    /// # Errors
    /// When the keys or the registry cannot be made.
    pub fn new(program: impl Into<PathBuf>, folder: &Path, port: u16) -> Result<Self> {
        let this = Self::without_registry(program.into(), folder, Some(port))?;
        let registry = this.path("registry");
        let words = [&["cluster", "init", "lab", "--file"].map(Path::new)[..], &[&registry]];
        succeeds(&this.operate(words.concat())?)?;
        Ok(this)
    }

    /// The same with a network namespace for each node, on cables of this MTU, and no registry yet.
    ///
    /// # Errors
    /// When namespaces are not allowed here, or the keys cannot be made.
    pub fn separated(
        program: impl Into<PathBuf>,
        folder: &Path,
        mtu: Option<u32>,
        cleanup: &Cleanup,
    ) -> Result<Self> {
        let mut this = Self::without_registry(program.into(), folder, None)?;
        this.separate(mtu, cleanup)?;
        Ok(this)
    }

    /// Makes the registry of a rack without one: on a member of etcd on each IOhost. No member runs
    /// yet.
    ///
    /// # Errors
    /// When the cluster cannot be made.
    pub fn make_etcd(&mut self) -> Result<()> {
        self.is_on_etcd = true;
        let members: Vec<_> =
            (0..).zip(IOHOSTS).map(|(at, name)| format!("{name}={}", host_address(at))).collect();
        let mut words = vec!["cluster", "init", "rack1"];
        members.iter().for_each(|member| words.extend(["--member", member]));
        succeeds(&self.operate(words)?)?;
        IOHOSTS.iter().try_for_each(|name| etcd::make_patient(&self.etcd_directory(name)))
    }

    /// Makes this registry, starts its members, and waits until it answers.
    ///
    /// # Errors
    /// When etcd is missing, or does not answer for minutes.
    pub fn start_etcd_of_all(&mut self) -> Result<Vec<Option<EtcdMember>>> {
        self.make_etcd()?;
        let start = |name: &&str| self.start_etcd(name).map(Some);
        let members = IOHOSTS.iter().map(start).collect::<Result<_>>()?;
        self.wait_for_etcd()?;
        Ok(members)
    }

    /// Waits until the registry answers, and gives the place of the IOhost whose member leads.
    ///
    /// # Errors
    /// When it does not for minutes.
    pub fn wait_for_etcd(&self) -> Result<usize> {
        let until = Instant::now() + PATIENCE;
        loop {
            let output = self.operate(["cluster", "status", "--json"])?;
            let status: serde_json::Value =
                serde_json::from_slice(&output.stdout).unwrap_or_default();
            let members = status["registry"]["members"].as_array().cloned().unwrap_or_default();
            let answers = |it: &&serde_json::Value| {
                it["state"].as_str().is_some_and(|state| matches!(state, "leader" | "follower"))
            };
            let leader = members.iter().find(|it| it["state"] == "leader");
            let place = leader.and_then(|it| {
                let endpoint = it["endpoint"].as_str()?;
                (0..IOHOSTS.len())
                    .find(|place| endpoint.contains(&format!("//{}:", host_address(*place))))
            });
            if let Some(place) = place
                && members.iter().filter(answers).count() == IOHOSTS.len()
            {
                return Ok(place);
            }
            if Instant::now() > until {
                bail!("the registry does not answer after {PATIENCE:?}: {status:#}");
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn without_registry(program: PathBuf, folder: &Path, port: Option<u16>) -> Result<Self> {
        Ok(Self {
            program,
            folder: folder.to_owned(),
            pools: folder.to_owned(),
            pool_size: "256MiB",
            volume_size: "16MiB",
            sidecores: 2,
            keys: NodeKeys::make(folder, &NODES)?,
            port,
            is_on_etcd: false,
        })
    }

    /// The directory of the member of etcd on an IOhost.
    pub fn etcd_directory(&self, name: &str) -> PathBuf {
        self.path("operator").join("members").join(name)
    }

    /// Starts the member of etcd on an IOhost.
    ///
    /// # Errors
    /// As [`EtcdMember::start`].
    pub fn start_etcd(&self, name: &str) -> Result<EtcdMember> {
        EtcdMember::start(&self.etcd_directory(name), Some(&namespace(name)))
    }

    /// Gives each node a network namespace, and joins them by virtual cables to one switch.
    ///
    /// # Errors
    /// When that is not allowed here.
    pub fn separate(&mut self, mtu: Option<u32>, cleanup: &Cleanup) -> Result<()> {
        // The lock makes an interruption wait until the cleanup knows of all namespaces.
        let _starting = cleanup.start();
        let switch = namespace(SWITCH);
        cleanup.namespace(&switch);
        ip(&["netns", "add", &switch])?;
        ip(&["-n", &switch, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "bridge", "up"])?;
        let operator = format!("{OPERATOR_ADDRESS}/24");
        ip(&["-n", &switch, "addr", "add", &operator, "dev", "bridge"])?;
        for (place, node) in NODES.iter().enumerate() {
            let (host, port) = (namespace(node), format!("to-{node}"));
            cleanup.namespace(&host);
            ip(&["netns", "add", &host])?;
            let ends = ["type", "veth", "peer", "name", &port, "netns", &switch];
            ip(&[&["link", "add", "cable", "netns", &host][..], &ends].concat())?;
            let address = format!("{}/24", host_address(place));
            ip(&["-n", &host, "addr", "add", &address, "dev", "cable"])?;
            let mtu = mtu.unwrap_or(1500).to_string();
            ip(&["-n", &host, "link", "set", "cable", "mtu", &mtu])?;
            ip(&["-n", &switch, "link", "set", &port, "mtu", &mtu, "master", "bridge", "up"])?;
            ip(&["-n", &host, "link", "set", "cable", "up"])?;
            ip(&["-n", &host, "link", "set", "lo", "up"])?;
        }
        self.port = None;
        Ok(())
    }

    /// A file of the rack.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The nodes' keys, and the tenant's.
    pub fn keys(&self) -> &NodeKeys {
        &self.keys
    }

    /// Runs `vrio` with the operator's directory.
    ///
    /// # Errors
    /// When there is no such program.
    pub fn operate<W: AsRef<std::ffi::OsStr>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> Result<Output> {
        let mut command = self.operator();
        command.args(words).arg("--directory").arg(self.path("operator"));
        command.output().with_context(|| format!("running {command:?}"))
    }

    /// `vrio` with no words yet, on the operator's machine.
    pub fn operator(&self) -> Command {
        self.vrio_in(self.is_on_etcd.then_some(SWITCH))
    }

    /// `vrio` with no words yet, on a host if the hosts have namespaces.
    fn vrio_in(&self, host: Option<&str>) -> Command {
        let mut command = match host {
            Some(host) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &namespace(host)]).arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.stdin(Stdio::null());
        command
    }

    /// Runs `vrio` for a node, by the node's control socket.
    ///
    /// # Errors
    /// The words of the command that failed.
    pub fn tell(&self, node: &Node, words: &[&str]) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(words).arg("--control").arg(node.plan().control()).stdin(Stdio::null());
        succeeds(&command.output().with_context(|| format!("running {command:?}"))?)
    }

    fn address(&self, name: &str) -> String {
        let place = NODES.iter().position(|it| *it == name).expect("a node of the rack");
        match self.port {
            Some(port) => format!("127.0.0.1:{}", port + place as u16 * 4),
            None => format!("{}:4870", host_address(place)),
        }
    }

    /// A node of the rack.
    pub fn plan(&self, name: &str, config: &str) -> NodePlan {
        let config = format!(
            "listen = {:?}\n{}[sidecores]\ncount = {}\nidle = \"adaptive\"\n{config}",
            self.address(name),
            self.keys.own(name),
            self.sidecores
        );
        let plan = NodePlan::new(&self.program, &self.folder, name, config);
        let namespace = self.port.is_none().then(|| namespace(name));
        NodePlan { namespace, ..plan }
    }

    fn peer(&self, name: &str) -> String {
        format!(
            "[[peer]]\nname = {name:?}\naddress = {:?}\n{}",
            self.address(name),
            self.keys.peer(name)
        )
    }

    /// An IOhost with a pool and a copy of the volume, and further text such as other volumes. Its
    /// peers are all other nodes.
    pub fn member(&self, CopyFile { node, list, pool }: CopyFile<'_>, more: &str) -> NodePlan {
        let others = NODES[..3].iter().filter(|it| **it != node).map(|it| self.peer(it));
        let config = format!(
            "[cluster]\ndirectory = {:?}\n{}{}\
             [[pool]]\nname = \"fast\"\ndevices = [{:?}]\n{}{more}",
            self.path(&format!("of-{node}")),
            others.collect::<String>(),
            self.keys.clients(&[VMHOST]),
            self.pools.join(pool),
            self.volume(VOLUME, list),
        );
        let mut plan = self.plan(node, &config);
        plan.directories = Some(format!(
            "volumes = [{:?}]\nsockets = {:?}\nstate = {:?}\n",
            self.pools,
            plan.home,
            plan.home.join("state")
        ));
        plan
    }

    /// The text of a volume of the VMhost in the pool of a node; with copies on the nodes of
    /// `list`, if that is not empty.
    pub fn volume(&self, name: &str, list: &[&str]) -> String {
        let replicas = match list {
            [] => String::new(),
            list => format!("replicas = {list:?}\n"),
        };
        format!(
            "[[volume]]\nname = {name:?}\nbackend = {{ pool = \"fast\", size = {:?} }}\n\
             {replicas}{}",
            self.volume_size,
            self.keys.allow(&[VMHOST])
        )
    }

    /// Makes the file of a pool.
    ///
    /// # Errors
    /// When it exists, or there is no room.
    pub fn make_pool(&self, pool: &str) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["pool", "create", "--size", self.pool_size]).arg(self.pools.join(pool));
        succeeds(&command.output()?)
    }

    /// Makes the node's pool, starts it, and has it join the cluster.
    ///
    /// # Errors
    /// When one of the three fails.
    pub fn start_member(&self, file: CopyFile<'_>, more: &str) -> Result<Node> {
        self.make_pool(file.pool)?;
        let node = self.member(file, more).start()?;
        self.join(&node)?;
        Ok(node)
    }

    /// Has a node join the cluster.
    ///
    /// # Errors
    /// When the registry or the node refuses.
    pub fn join(&self, node: &Node) -> Result<()> {
        let token = self.operate(["cluster", "token"])?;
        succeeds(&token)?;
        let token = String::from_utf8(token.stdout).context("a token is text")?;
        let config = node.plan().home.join("node.toml");
        let mut command = self.vrio_in(self.is_on_etcd.then_some(node.plan().name.as_str()));
        command.args(["node", "join", token.trim(), "--config"]).arg(config);
        succeeds(&command.output()?)
    }

    /// Starts the nodes of a list, each with its copy in a pool of its name.
    ///
    /// # Errors
    /// When one of them does not start or join.
    pub fn start_members(&self, list: &[&str]) -> Result<Vec<Option<Node>>> {
        let start = |node: &&str| {
            let pool = format!("{node}.pool");
            self.start_member(CopyFile { node, list, pool: &pool }, "").map(Some)
        };
        list.iter().map(start).collect()
    }

    /// The VMhost with a disk that names the nodes of the list, and further text.
    pub fn client(&self, list: &[&str], more: &str) -> NodePlan {
        let config = format!(
            "{}{}{more}",
            list.iter().map(|it| self.peer(it)).collect::<String>(),
            self.disk(VOLUME, list)
        );
        self.plan(VMHOST, &config)
    }

    /// The text of the VMhost's disk for a volume with copies on the nodes of the list.
    pub fn disk(&self, volume: &str, list: &[&str]) -> String {
        format!(
            "[[disk]]\nsocket = \"{volume}.sock\"\nvolume = \"{}/{volume}\"\nqueues = 2\n{}",
            list.join(","),
            self.keys.disk()
        )
    }
}

/// The address of a host, by its place among the nodes.
pub fn host_address(place: usize) -> String {
    format!("10.77.1.{}", place + 1)
}

fn succeeds(output: &Output) -> Result<()> {
    ensure!(output.status.success(), "vrio failed: {output:?}");
    Ok(())
}

/// The copy of a volume on a node, as the node's status has it; none if the node does not answer,
/// or has no such copy.
pub fn copy_on(node: &Node, volume: &str) -> Option<CopyStatus> {
    let status: Status = serde_json::from_value(node.status().ok()?).ok()?;
    status.volumes.into_iter().find(|it| it.name == volume)?.copy
}

/// Waits until all copies of the volume are in sync, and gives the place of the node that serves.
///
/// # Errors
/// When they are not in sync for minutes.
pub fn wait_until_in_sync(nodes: &[Option<Node>], volume: &str) -> Result<usize> {
    let until = Instant::now() + PATIENCE;
    loop {
        let of = |node: &Option<Node>| node.as_ref().and_then(|node| copy_on(node, volume));
        let copies: Vec<_> = nodes.iter().map(of).collect();
        let is_whole = |copy: &Option<CopyStatus>| {
            let copy = copy.as_ref();
            copy.is_some_and(|copy| copy.role == CopyRole::Primary && copy.missing.is_empty())
        };
        if let Some(primary) = copies.iter().position(is_whole) {
            return Ok(primary);
        }
        if Instant::now() > until {
            bail!("the copies of {volume} are not in sync after {PATIENCE:?}: {copies:#?}");
        }
        thread::sleep(LOOK_AGAIN);
    }
}
