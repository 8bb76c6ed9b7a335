//! Members of etcd as processes on this machine, each at an address and ports that were free.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster::registry::Registry;
use cluster::{ClusterDirectory, ClusterPlan, EtcdMemberPlan, init};

/// How long members may take until they answer: they elect a leader first.
const START_TIME_MAX: Duration = Duration::from_secs(120);

/// Members of etcd, which end with the value.
pub(crate) struct EtcdMembers {
    pub(crate) home: tempfile::TempDir,
    pub(crate) operator: ClusterDirectory,
    names: Vec<String>,
    running: Vec<Option<Child>>,
}

/// Memory, if this machine has a file system of it: etcd waits for its disk at each change.
fn home() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new().prefix("vrio-etcd").tempdir_in(place).expect("a directory")
}

/// The bytes that etcd takes in the configuration of `vrio cluster init`.
pub(crate) const QUOTA: u64 = 2 << 30;

/// Gives a member a quota, and has it wait longer for the leader than etcd's second: on a busy
/// machine a member does not run for that long, and each election is a refused request.
fn change(configuration: &Path, quota: u64) {
    let text = std::fs::read_to_string(configuration).expect("it was made");
    let [old, new] = [QUOTA, quota].map(|bytes| format!("quota-backend-bytes: {bytes}\n"));
    assert!(text.contains(&old), "{text}");
    let text = text.replace(&old, &new) + "heartbeat-interval: 300\nelection-timeout: 3000\n";
    std::fs::write(configuration, text).expect("ours");
}

/// A loopback address of this test alone, and two free ports.
fn address(number: u8) -> (IpAddr, u16, u16) {
    let [.., a, b] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, a | 1, b, 10 + number);
    let bind = || TcpListener::bind((address, 0)).expect("a loopback address");
    let listeners = [bind(), bind()];
    let [client, peer] = listeners.map(|it| it.local_addr().expect("it is bound").port());
    (address.into(), client, peer)
}

impl EtcdMembers {
    /// Three members of a new cluster, which answer, and the bytes that etcd takes.
    pub(crate) fn start(first: u8, quota: u64) -> Self {
        let (home, names) = (home(), ["a", "b", "c"].map(str::to_owned).to_vec());
        let members = (first..).zip(&names).map(|(number, name)| {
            let (address, client, peer) = address(number);
            EtcdMemberPlan {
                name: name.clone(),
                address,
                client_port: Some(client),
                peer_port: Some(peer),
            }
        });
        let plan = ClusterPlan {
            name: "test".to_owned(),
            directory: home.path().join("cluster"),
            members: members.collect(),
            file: PathBuf::new(),
            random: [5; 24],
            now_s: now_s(),
        };
        let operator = init(&plan).expect("a new cluster");
        for name in &names {
            change(&operator.path().join("members").join(name).join("etcd.yml"), quota);
        }
        let running = names.iter().map(|_| None).collect();
        let mut this = Self { home, operator, names, running };
        (0..3).for_each(|at| this.run(at));
        this.wait();
        this
    }

    /// Starts a member.
    pub(crate) fn run(&mut self, at: usize) {
        let directory = self.operator.path().join("members").join(&self.names[at]);
        let log = File::options().create(true).append(true).open(directory.join("log"));
        let mut command = Command::new("etcd");
        command.args(["--config-file", "etcd.yml"]).current_dir(&directory).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(log.expect("its directory is there"));
        let child = command
            .spawn()
            .expect("this test needs etcd: `scripts/install test` installs Debian's etcd-server");
        self.running[at] = Some(child);
    }

    /// Kills a member with SIGKILL.
    pub(crate) fn kill(&mut self, at: usize) {
        let mut child = self.running[at].take().expect("it runs");
        child.kill().and_then(|()| child.wait()).expect("a child of this process");
    }

    /// Waits until the members answer as a majority.
    pub(crate) fn wait(&mut self) {
        let until = Instant::now() + START_TIME_MAX;
        let mut registry = self.operator.registry().expect("its files are there");
        while let Err(error) = registry.stamp() {
            assert!(Instant::now() < until, "{error}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The ends of the members' logs.
    pub(crate) fn logs(&self) -> String {
        let logs = self.names.iter().map(|name| {
            let path = self.operator.path().join("members").join(name).join("log");
            let text = std::fs::read_to_string(path).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(15).collect();
            format!("{name}:\n{}\n", lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
        });
        logs.collect()
    }
}

impl Drop for EtcdMembers {
    fn drop(&mut self) {
        for child in self.running.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after 1970").as_secs()
}
