//! A peer's servers at work.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::peers::{DISK_BYTES, FOLDER, Peer};
use super::spdk;
use crate::cleanup::Cleanup;

/// How long a server may take to serve.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How long a server may take to end by itself, which one with huge pages should.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// Servers; they go when this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) folder: PathBuf,
    children: Vec<Child>,
    file: Option<PathBuf>,
    /// Asked to end before it is killed.
    gently: bool,
}

impl Running {
    /// Starts a peer, and waits until it serves.
    pub(super) fn start(peer: &Peer, cleanup: &Cleanup) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("vrio-peer-{}", std::process::id()));
        cleanup.path(folder.clone());
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        // One that is there is somebody else's.
        let file = peer.file.clone().filter(|file| !file.exists());
        let gently = peer.config.is_some();
        let mut running = Self { folder, children: Vec::new(), file, gently };
        if let Some(file) = &running.file {
            cleanup.path(file.clone());
            let made = File::create(file).and_then(|made| made.set_len(DISK_BYTES));
            made.with_context(|| format!("making {}", file.display()))?;
        }
        if let Some(config) = &peer.config {
            fs::write(running.folder.join("config.json"), config.to_string())?;
        }
        for server in &peer.servers {
            running.spawn(&peer.seated(server), cleanup)?;
            running.wait_to_serve(server.listens)?;
        }
        Ok(running)
    }

    /// Where it serves, if it is a disk's socket.
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
        let folder = self.folder.display().to_string();
        let words: Vec<_> = words.iter().map(|word| word.replace(FOLDER, &folder)).collect();
        let (program, words) = words.split_first().context("a program")?;
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let _starting = cleanup.start();
        let child = command.spawn().with_context(|| format!("starting {program}"))?;
        cleanup.path(spdk::remains(child.id()));
        self.children.push(child);
        Ok(())
    }

    /// Waits for the last one started.
    fn wait_to_serve(&mut self, listens: Option<SocketAddr>) -> Result<()> {
        let by = Instant::now() + PATIENCE;
        let serves = |running: &Self| match listens {
            Some(address) => TcpStream::connect(address).is_ok(),
            // A connection would be taken for the one front end that it serves.
            None => running.socket().exists(),
        };
        while !serves(self) {
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
