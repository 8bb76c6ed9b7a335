//! A peer's servers: their commands, the order in which they start, and their life.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use testbed::cleanup::Cleanup;
use testbed::machine::cores;
use testbed::stage::{Offloads, VirtualCable, inside, make_hosts, namespace};

/// The word that stands for the folder of a turn in commands.
pub(super) const FOLDER: &str = "FOLDER";

/// The longest time until a server must serve.
const PATIENCE: Duration = Duration::from_secs(30);

/// The time between two looks at a server.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How long a server may take to end by itself. A server with huge pages should end so.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// A process of a peer, and the sign that the next one may be started.
#[derive(Clone, Debug)]
pub(super) struct ServerProcess {
    pub(super) words: Vec<String>,
    pub(super) ready: Ready,
    /// It pins itself to its core.
    pub(super) pinned: bool,
    /// The host that it runs on where the service has a cable.
    pub(super) host: &'static str,
}

/// The network between the servers of one service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServiceCable {
    /// The longest packet.
    pub(super) mtu: u32,
    /// The groups of packets that its ends take uncut.
    pub(super) offloads: Offloads,
}

impl ServiceCable {
    /// Its name in a contest's.
    pub(super) fn name(self) -> String {
        let Self { mtu, offloads } = self;
        if offloads.is_usual() {
            return format!("MTU {mtu}");
        }
        format!("MTU {mtu}, offloads {}", offloads.name())
    }
}

/// The sign that a process is ready.
#[derive(Clone, Debug)]
pub(super) enum Ready {
    /// It listens at this address.
    Listens(SocketAddr),
    /// Its sockets are in the turn's folder. A trial connection would take the place of the one
    /// front end that it serves.
    Sockets(&'static [&'static str]),
    /// It has ended without an error: its purpose was to tell another process something.
    Ended,
}

/// A file that is made for a peer.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// The servers and files of a peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Service {
    /// The servers, in the order in which they are started.
    pub(super) servers: Vec<ServerProcess>,
    /// The file that is made first.
    pub(super) file: Option<Made>,
    /// The content of `FOLDER/config.json`.
    pub(super) config: Option<Value>,
    /// The cable between the two hosts of its servers. Without it, all are on this host.
    pub(super) cable: Option<ServiceCable>,
}

impl Service {
    /// The words of a server on the core where our own node would be: the first, where it and the
    /// client have one each.
    fn seated(&self, server: &ServerProcess) -> Vec<String> {
        let mut all = self.entry(server.host);
        if let [first, _, ..] = cores()[..]
            && self.servers.len() == 1
            && !server.pinned
        {
            all.extend(["taskset".to_owned(), "-c".to_owned(), first.to_string()]);
        }
        all.extend_from_slice(&server.words);
        all
    }

    /// The same servers on the two hosts of a cable.
    pub(super) fn on_cable(self, cable: Option<ServiceCable>) -> Self {
        Self { cable, ..self }
    }

    /// The words in front of a command that runs it on a host.
    pub(super) fn entry(&self, host: &str) -> Vec<String> {
        let enter = || ["ip", "netns", "exec", &namespace(host)].map(str::to_owned).to_vec();
        self.cable.map(|_| enter()).unwrap_or_default()
    }
}

/// A program in `PATH`, or in the usual folders of programs for users and administrators.
pub(super) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<_> = std::env::split_paths(&path).collect();
    places.extend(["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/libexec"].map(PathBuf::from));
    places.into_iter().map(|place| place.join(program)).find(|file| file.is_file())
}

/// The folder that SPDK's environment, DPDK, leaves behind for other processes of DPDK.
pub(super) fn remains(pid: u32) -> PathBuf {
    PathBuf::from(format!("/run/dpdk/spdk_pid{pid}"))
}

/// Running servers, which are ended on drop.
#[derive(Debug)]
pub(super) struct RunningServers {
    pub(super) folder: PathBuf,
    children: Vec<Child>,
    file: Option<PathBuf>,
    /// Asked to end before it is killed.
    gently: bool,
    /// Removes the two hosts at the end, where the service has some.
    hosts: Option<Cleanup>,
}

impl RunningServers {
    /// Starts a peer, and waits until it serves.
    pub(super) fn start(service: &Service, cleanup: &Cleanup) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("vrio-peer-{}", std::process::id()));
        cleanup.path(folder.clone());
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        // A file that is already there belongs to the user.
        let made = service.file.as_ref().filter(|file| !file.path.exists());
        let (file, gently) = (made.map(|file| file.path.clone()), service.config.is_some());
        let mut running = Self { folder, children: Vec::new(), file, gently, hosts: None };
        if let Some(ServiceCable { mtu, offloads }) = service.cable {
            running.hosts = Some(cleanup.clone());
            make_hosts(VirtualCable { mtu: Some(mtu), offloads }, cleanup)?;
        }
        if let Some(Made { path, bytes }) = made {
            cleanup.path(path.clone());
            let made = File::create(path).and_then(|made| made.set_len(*bytes));
            made.with_context(|| format!("making {}", path.display()))?;
        }
        if let Some(config) = &service.config {
            fs::write(running.folder.join("config.json"), config.to_string())?;
        }
        for server in &service.servers {
            running.spawn(&service.seated(server), cleanup)?;
            running.wait(server, service.cable.is_some())?;
        }
        Ok(running)
    }

    /// Its processes.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// Adds the output of the server to an error.
    pub(super) fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let said = fs::read_to_string(self.log()).unwrap_or_default();
        match said.trim() {
            "" => error,
            said => error.context(format!("the server said: {said}")),
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn spawn(&mut self, words: &[String], cleanup: &Cleanup) -> Result<()> {
        let folder = self.folder.display().to_string();
        let words: Vec<_> = words.iter().map(|word| word.replace(FOLDER, &folder)).collect();
        let (program, words) = words.split_first().context("a program")?;
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let _starting = cleanup.start();
        let child = command.spawn().with_context(|| format!("starting {program}"))?;
        cleanup.path(remains(child.id()));
        self.children.push(child);
        Ok(())
    }

    /// Waits for the server that was started last.
    fn wait(
        &mut self,
        ServerProcess { ready, host, .. }: &ServerProcess,
        apart: bool,
    ) -> Result<()> {
        let by = Instant::now() + PATIENCE;
        let namespace = apart.then(|| namespace(host));
        let serves = |running: &Self| match ready {
            Ready::Listens(address) => {
                inside(namespace.as_deref(), || TcpStream::connect(address).is_ok())
                    .unwrap_or(false)
            }
            Ready::Sockets(names) => names.iter().all(|it| running.folder.join(it).exists()),
            Ready::Ended => false,
        };
        while !serves(self) {
            let last = self.children.len().saturating_sub(1);
            for at in 0..self.children.len() {
                let Some(status) = self.children[at].try_wait()? else { continue };
                if at == last && matches!(ready, Ready::Ended) && status.success() {
                    self.children.pop();
                    return Ok(());
                }
                return Err(self.explain(anyhow::anyhow!("it ended with {status}")));
            }
            if Instant::now() > by {
                return Err(self.explain(anyhow::anyhow!("it does not serve after {PATIENCE:?}")));
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}

impl Drop for RunningServers {
    fn drop(&mut self) {
        // The server that was started last uses the others.
        for child in self.children.iter_mut().rev() {
            if self.gently {
                end(child);
            }
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
        if let Some(hosts) = &self.hosts {
            hosts.remove_stage();
        }
    }
}

/// Asks a process to end, so that it removes what it made elsewhere.
fn end(child: &mut Child) {
    let pid = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(pid) = pid {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    let by = Instant::now() + END_PATIENCE;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < by {
        thread::sleep(LOOK_AGAIN);
    }
}
