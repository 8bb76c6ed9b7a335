//! Other people's servers: which are installed, and how they are started.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::cleanup::Cleanup;
use crate::machine::cores;

/// How long a server may take to serve.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What peers' disks have: as ours of memory and of files.
const DISK_BYTES: u64 = 512 << 20;

/// What is installed, and what is not.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    daemon: Option<PathBuf>,
    nbdkit: Option<PathBuf>,
    /// Names of peers that are not, and where they come from.
    pub(super) missing: Vec<String>,
}

/// A server, as it is started. In its words, `SOCKET` is where it is to serve, `NBD` a socket of
/// another one.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    /// What it is called in tables.
    pub(super) name: &'static str,
    processes: Vec<Vec<String>>,
    /// Where the first one listens, if the second connects to it.
    listens: Option<SocketAddr>,
    /// A file to be made first.
    file: Option<PathBuf>,
}

impl Peers {
    /// Looks for programs.
    pub(super) fn find() -> Self {
        let mut missing = Vec::new();
        let mut look = |program: &str, from: &str| {
            let found = find(program);
            if found.is_none() {
                missing.push(format!("{program} ({from})"));
            }
            found
        };
        let daemon = look("qemu-storage-daemon", "Debian: qemu-utils");
        let nbdkit = look("nbdkit", "Debian: nbdkit");
        missing.push(
            "SPDK (not packaged; start its vhost target and name it with --socket NAME=PATH)"
                .into(),
        );
        Self { daemon, nbdkit, missing }
    }

    /// A local disk of nothing, served by a thread that polls.
    pub(super) fn null(&self) -> Option<Peer> {
        let node = format!("driver=null-co,node-name=disk,size={DISK_BYTES},read-zeroes=off");
        Some(Peer {
            name: "qemu-storage-daemon",
            processes: vec![daemon(self.daemon.as_ref()?, &node)],
            listens: None,
            file: None,
        })
    }

    /// A local disk in this file.
    pub(super) fn file(&self, file: &Path) -> Option<Peer> {
        let path = file.display();
        let node = format!("driver=file,node-name=disk,filename={path},aio=io_uring");
        Some(Peer {
            name: "qemu-storage-daemon",
            processes: vec![daemon(self.daemon.as_ref()?, &node)],
            listens: None,
            file: Some(file.to_owned()),
        })
    }

    /// A disk in another process's memory, by NBD.
    pub(super) fn remote(&self) -> Option<Peer> {
        let (daemon_path, nbdkit) = (self.daemon.as_ref()?, self.nbdkit.as_ref()?);
        // A port that the system does not give to others, as our nodes' are.
        let first = 24_500 + (std::process::id() % 3_000) as u16;
        let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
        let port = (first..first + 100).find(is_free)?;
        let words = ["--foreground", "--exit-with-parent", "-i", "127.0.0.1", "-p"];
        let mut server = vec![nbdkit.display().to_string()];
        server.extend(words.map(str::to_owned));
        server.extend([port.to_string(), "memory".to_owned(), DISK_BYTES.to_string()]);
        let node = format!(
            "driver=nbd,node-name=disk,server.type=inet,server.host=127.0.0.1,server.port={port}"
        );
        Some(Peer {
            name: "nbdkit + qemu-storage-daemon",
            processes: vec![server, daemon(daemon_path, &node)],
            listens: Some(SocketAddr::from(([127, 0, 0, 1], port))),
            file: None,
        })
    }
}

/// The words for a daemon that shows a block node, on a thread that polls.
fn daemon(program: &Path, node: &str) -> Vec<String> {
    let export = "type=vhost-user-blk,id=export,node-name=disk,addr.type=unix,addr.path=SOCKET,\
                  writable=on,iothread=poller";
    let words = [
        "--object",
        "iothread,id=poller,poll-max-ns=100000000",
        "--blockdev",
        node,
        "--export",
        export,
    ];
    let program = program.display().to_string();
    std::iter::once(program).chain(words.map(str::to_owned)).collect()
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<_> = std::env::split_paths(&path).collect();
    places.extend(["/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/libexec"].map(PathBuf::from));
    places.into_iter().map(|place| place.join(program)).find(|file| file.is_file())
}

/// A server at work; it goes when this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    folder: PathBuf,
    children: Vec<Child>,
    file: Option<PathBuf>,
}

impl Peer {
    /// The words for a process on the core where our own node would be: the first, where it and
    /// the driver have one each.
    fn seated(&self, words: &[String]) -> Vec<String> {
        let cores = cores();
        let mut all = match cores[..] {
            [first, _, ..] if self.processes.len() == 1 => {
                ["taskset".to_owned(), "-c".to_owned(), first.to_string()].to_vec()
            }
            _ => Vec::new(),
        };
        all.extend_from_slice(words);
        all
    }

    /// Starts it, and waits until it serves.
    pub(super) fn start(&self, cleanup: &Cleanup) -> Result<Running> {
        let folder = std::env::temp_dir().join(format!("vrio-peer-{}", std::process::id()));
        cleanup.path(folder.clone());
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let mut running = Running { folder, children: Vec::new(), file: self.file.clone() };
        if let Some(file) = &self.file {
            cleanup.path(file.clone());
            let made = File::create(file).and_then(|made| made.set_len(DISK_BYTES));
            made.with_context(|| format!("making {}", file.display()))?;
        }
        for words in &self.processes {
            running.spawn(&self.seated(words), cleanup)?;
            if let Some(address) = self.listens.filter(|_| running.children.len() == 1) {
                running.wait(|_| TcpStream::connect(address).is_ok())?;
            }
        }
        // A connection would be taken for the one front end that it serves.
        running.wait(|running| running.socket().exists())?;
        Ok(running)
    }
}

impl Running {
    /// Where it serves.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join("socket")
    }

    /// Its processes.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// An error with what the server said.
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
        let socket = self.socket().display().to_string();
        let words: Vec<_> = words.iter().map(|word| word.replace("SOCKET", &socket)).collect();
        let (program, words) = words.split_first().context("a program")?;
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let _starting = cleanup.start();
        let child = command.spawn().with_context(|| format!("starting {program}"))?;
        self.children.push(child);
        Ok(())
    }

    fn wait(&mut self, is: impl Fn(&Self) -> bool) -> Result<()> {
        let by = Instant::now() + PATIENCE;
        while !is(self) {
            for child in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    let error = anyhow::anyhow!("it ended with {status}");
                    return Err(self.explain(error));
                }
            }
            if Instant::now() > by {
                bail!("it does not serve after {PATIENCE:?}");
            }
            thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The last one started uses the others.
        for child in self.children.iter_mut().rev() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }
}
