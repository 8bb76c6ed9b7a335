//! The ends of nodes' processes: the agent proves that of its own node and tells it in the
//! registry, and it tells its node those of other nodes.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use ::cluster::registry::membership::{END_LIVES_MAX, EndRecord, EndsWatch, Membership};
use ::cluster::{ClusterDirectory, RegistryPlace};
use node::api::agent::{AgentLine, CopyLives, LIVES_MAX};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

use super::records;
use crate::cluster::clock::now_s;

/// All lives that a node tells have room in a record.
const _: () = assert!(LIVES_MAX <= END_LIVES_MAX);

/// How long the agent may take to prove and tell the end of the node's process: later the leases
/// are over by themselves, and a service manager may wait for the agent.
pub(super) const END_TIME_MAX: Duration = Duration::from_secs(3);

/// How long a watch waits for an end, before it is asked again.
const WATCH: Duration = Duration::from_secs(10);

/// The time between two looks at a registry in a file, which each look reads.
const LOOK: Duration = Duration::from_millis(100);

/// The pause after a registry that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// The process of the node that has started this agent.
pub(super) struct NodeProcess(OwnedFd);

impl NodeProcess {
    /// The process that has made the socket pair. None if it has ended, or the system does not
    /// show it: then leases end by themselves.
    pub(super) fn find() -> Option<Self> {
        let open = || pidfd_open(socket_peercred(io::stdin())?.pid, PidfdFlags::empty());
        let found = match open() {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the node's process is not seen: its end is not proved");
                return None;
            }
        };
        // While the node's end of the pair is open its number is no other process's.
        has_node_ended_within(Duration::ZERO)
            .is_ok_and(|has_ended| !has_ended)
            .then_some(Self(found))
    }

    /// Whether it ends soon: all of its threads have ended, and all of its files are closed.
    fn ends(&self) -> bool {
        let timeout = Timespec { tv_sec: END_TIME_MAX.as_secs() as i64, tv_nsec: 0 };
        let mut ends = [PollFd::new(&self.0, PollFlags::IN)];
        // An interrupted poll proves nothing.
        poll(&mut ends, Some(&timeout)).is_ok() && ends[0].revents().contains(PollFlags::IN)
    }
}

/// Waits, and says whether the node's process has ended: its end of the socket pair is closed then.
/// An agent that cannot start hears it here alone.
pub(super) fn has_node_ended_within(pause: Duration) -> io::Result<bool> {
    let until = Instant::now() + pause;
    let stdin = io::stdin();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        // No event is asked for: the end of the other side is always told.
        match poll(&mut [PollFd::new(&stdin, PollFlags::empty())], Some(&timeout)) {
            Ok(ended) => return Ok(ended > 0),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Tells in the registry that the node's process has ended, with the lives that it is given.
pub(super) fn teller(
    process: Option<NodeProcess>,
    directory: &Path,
    node: &str,
) -> impl FnOnce(CopyLives) + Send + use<> {
    let (directory, node) = (directory.to_owned(), node.to_owned());
    move |lives| {
        // A node that stops in order has no such lives.
        if lives.is_empty() || !process.is_some_and(|process| process.ends()) {
            return;
        }
        let copies = lives.len();
        match tell(&directory, &node, lives) {
            Ok(()) => tracing::info!(copies, "the node's process was killed: its end is told"),
            Err(error) => tracing::warn!(error, "the end of the node's process is not told"),
        }
    }
}

fn tell(directory: &Path, node: &str, lives: CopyLives) -> Result<(), String> {
    let directory = ClusterDirectory::open(directory).map_err(|error| error.to_string())?;
    let mut registry = directory.registry().map_err(|error| error.to_string())?;
    let ended = EndRecord { lives, ended_s: now_s() };
    let told = Membership::new(&mut registry, directory.keys()).tell_end(node, &ended);
    told.map_err(|error| error.to_string())
}

/// Starts the thread that tells the node the ends of other nodes' processes. It ends with this
/// process.
pub(super) fn follow(directory: &Path, node: &str) -> io::Result<()> {
    let (directory, node) = (directory.to_owned(), node.to_owned());
    let work = move || {
        loop {
            // A registry that is away tells no end, and the round of the agent says that it is.
            let Err(error) = follow_once(&directory, &node);
            tracing::debug!(error, "the ends of other nodes are not known at the moment");
            std::thread::sleep(AGAIN);
        }
    };
    std::thread::Builder::new().name("ends".to_owned()).spawn(work)?;
    Ok(())
}

fn follow_once(directory: &Path, own: &str) -> Result<std::convert::Infallible, String> {
    let directory = ClusterDirectory::open(directory).map_err(|error| error.to_string())?;
    let (patience, pause) = match &directory.file().registry {
        RegistryPlace::File(_) => (Duration::ZERO, LOOK),
        _ => (WATCH, Duration::ZERO),
    };
    let mut registry = directory.registry().map_err(|error| error.to_string())?;
    let watch = EndsWatch::open(&mut registry, directory.keys());
    let mut watch = watch.map_err(|error| error.to_string())?;
    loop {
        for (node, ended) in watch.next(patience).map_err(|error| error.to_string())? {
            if node != own {
                let over = AgentLine::Over { node, lives: ended.lives };
                records::say(&over).map_err(|error| error.to_string())?;
            }
        }
        std::thread::sleep(pause);
    }
}
