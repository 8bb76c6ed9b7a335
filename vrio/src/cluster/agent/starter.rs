//! The processes that keep a node's agent alive. The node itself cannot start a process: it has
//! given that right up, and an agent would inherit what the node is forbidden.
//!
//! ```text
//!   starter ── starts, also again ──▶ agent, which ends with its starter
//!      └─────── starts, also again ──▶ stand-by: the next starter when this one has ended
//! ```
//!
//! So the agent is back as long as one of the starter and its stand-by lives. All of them hold the
//! agent's end of the node's socket pair, and end when the node has ended.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use ::cluster::ClusterDirectory;
use node::api::agent::AgentLine;
use node::config::ClusterConfig;
use node::status::NodeClusterStatus;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::ends::has_node_ended_within;
use super::records;

/// This program, also after another file has taken its name: an agent of the node's own release.
pub(super) const PROGRAM: &str = "/proc/self/exe";

/// The time between two looks at the processes.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The first pause before a process that has died is started again: a presence outlives it. Each
/// further pause is twice as long, up to the longest, since a start costs the host some work.
const PAUSE: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// A process that has lived for so long had a sound start, and the next pause is the first one.
const SOUND: Duration = Duration::from_secs(60);

/// The pauses before the starts of a process that dies again and again.
#[derive(Debug)]
struct Pauses(Duration);

impl Pauses {
    /// The pause after a process that has lived for this time.
    fn next(&mut self, lived: Duration) -> Duration {
        if lived >= SOUND {
            self.0 = PAUSE;
        }
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

/// A process that is started again when it has died.
#[derive(Debug)]
struct KeptProcess {
    /// The word by which it knows its part.
    part: &'static str,
    running: Option<Child>,
    started: Instant,
    start_at: Instant,
    pauses: Pauses,
}

impl KeptProcess {
    fn new(part: &'static str, start_at: Instant) -> Self {
        Self { part, running: None, started: start_at, start_at, pauses: Pauses(PAUSE) }
    }

    /// Starts it if it is time. Gives how it has ended, if it has, and the pause until it is
    /// started again.
    fn look(&mut self, words: &[OsString]) -> Option<(ExitStatus, Duration)> {
        let now = Instant::now();
        if let Some(child) = &mut self.running {
            // A child that cannot be asked is asked again.
            let ended = child.try_wait().ok().flatten()?;
            self.running = None;
            let pause = self.pauses.next(now.saturating_duration_since(self.started));
            self.start_at = now + pause;
            return Some((ended, pause));
        }
        if now < self.start_at {
            return None;
        }
        let own = std::process::id().to_string();
        let mut command = Command::new(PROGRAM);
        match command.args(words).arg(self.part).args(["--starter", &own]).spawn() {
            Ok(child) => (self.running, self.started) = (Some(child), now),
            Err(error) => {
                let pause = self.pauses.next(Duration::ZERO);
                self.start_at = now + pause;
                tracing::error!(part = self.part, %error, ?pause, "no process of the agent");
            }
        }
        None
    }
}

/// The words with which the node has started the first process.
fn words() -> Vec<OsString> {
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    let own = ["--stand-by", "--work", "--starter"];
    let end = words.iter().position(|word| own.iter().any(|it| word == it));
    words.truncate(end.unwrap_or(words.len()));
    words
}

/// Waits for the end of the starter as its stand-by. Returns whether the node has ended.
pub(super) fn stand_by(starter: u32) -> io::Result<bool> {
    while is_started_by(starter) {
        if has_node_ended_within(LOOK_AGAIN)? {
            return Ok(true);
        }
    }
    // Both may have ended before this process has looked.
    if has_node_ended_within(Duration::ZERO)? {
        return Ok(true);
    }
    tracing::warn!("the process that starts the cluster's agent has ended; another one goes on");
    Ok(false)
}

/// Has this process, an agent, end with its starter: the next starter starts another agent, and two
/// of them would each read a part of what the node says. Returns whether the starter is there.
pub(super) fn end_with(starter: u32) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The starter may have ended before.
    Ok(is_started_by(starter))
}

fn is_started_by(starter: u32) -> bool {
    getppid().is_some_and(|pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(starter))
}

/// Keeps the agent and the stand-by until the node has ended. `after`: an earlier starter had them.
pub(super) fn keep(cluster: &ClusterConfig, after: bool) -> io::Result<()> {
    let words = words();
    let now = Instant::now();
    // The system may still be ending the agent of the starter before.
    let mut agent = KeptProcess::new("--work", if after { now + PAUSE } else { now });
    let mut stand_by = KeptProcess::new("--stand-by", now);
    loop {
        if let Some((ended, pause)) = agent.look(&words) {
            // The agent alone ends in order, and when the node has ended.
            if ended.success() {
                return Ok(());
            }
            tracing::warn!(%ended, ?pause, "the cluster's agent has ended; it is started again");
            let why = format!(
                "the agent has ended ({ended}) and is started again after {} s; the log has the \
                 reason",
                pause.as_secs()
            );
            tell(cluster, why);
        }
        if let Some((ended, pause)) = stand_by.look(&words) {
            tracing::warn!(%ended, ?pause, "the agent's stand-by has ended; it is started again");
        }
        if has_node_ended_within(LOOK_AGAIN)? {
            // It proves the end of the node's process, and then ends by itself.
            return agent.running.map_or(Ok(()), |mut agent| agent.wait().map(drop));
        }
    }
}

/// Reports to the node while there is no agent. A node that does not hear it has ended.
fn tell(cluster: &ClusterConfig, why: String) {
    let directory = ClusterDirectory::open(&cluster.directory);
    let report = NodeClusterStatus {
        cluster: directory.map(|it| it.file().name.clone()).unwrap_or_default(),
        node: cluster.name.clone(),
        state: "away".to_owned(),
        detail: why,
        ..NodeClusterStatus::default()
    };
    let _ = records::say(&AgentLine::Report(report));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_dies_at_once_is_started_more_and_more_slowly() {
        let mut pauses = Pauses(PAUSE);
        let mut next = |lived| pauses.next(Duration::from_secs(lived)).as_secs();
        assert_eq!([0, 1, 59, 2, 0, 0].map(&mut next), [2, 4, 8, 16, 30, 30]);
        assert_eq!([60, 0].map(&mut next), [2, 4], "it had a sound start");
    }
}
