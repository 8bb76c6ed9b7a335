//! A member of etcd as a process: it is started, killed, halted and read.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// Lines of a log that an error shows.
const LOG_LINES: usize = 15;

/// A running member. Killed when dropped.
#[derive(Debug)]
pub struct EtcdMember {
    directory: PathBuf,
    child: Child,
}

impl EtcdMember {
    /// Starts the member of a directory of `vrio cluster init`, in a network namespace if there is
    /// one, and waits for nothing: each member waits for the other members.
    ///
    /// # Errors
    /// When etcd is not installed, or the directory is not there.
    pub fn start(directory: &Path, namespace: Option<&str>) -> Result<Self> {
        let log = directory.join("log");
        let log = File::options().create(true).append(true).open(&log);
        let mut command = match namespace {
            Some(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", namespace, "etcd"]);
                command
            }
            None => Command::new("etcd"),
        };
        command.args(["--config-file", "etcd.yml"]).current_dir(directory).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(log.context("the member's directory")?);
        let child = command
            .spawn()
            .context("etcd is missing: `scripts/install test` installs etcd-server")?;
        Ok(Self { directory: directory.to_owned(), child })
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("a process number")?, signal)?)
    }

    /// Whether the process has ended by itself.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for EtcdMember {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has a member wait longer for its leader than etcd's second: on a busy machine a member does not
/// run for that long, and each election is a refused request.
///
/// # Errors
/// When the directory has no configuration.
pub fn make_patient(directory: &Path) -> Result<()> {
    let file = directory.join("etcd.yml");
    let opened = File::options().append(true).open(&file);
    let mut file = opened.with_context(|| format!("opening {}", file.display()))?;
    Ok(file.write_all(b"heartbeat-interval: 300\nelection-timeout: 3000\n")?)
}
